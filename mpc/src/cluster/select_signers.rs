//! Chooses the nodes that sign together.

use std::collections::{BTreeMap, BTreeSet};

use covault_core::{fault::Fault, order::NodeId};

/// Why there is no signing set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoSigningSet {
    /// Not enough live nodes; more may come.
    Wait,
    /// Those that would do have as much to do as they can.
    Full,
    /// No choice will do.
    Never,
}

/// A share holder.
pub(super) struct SignerCandidate {
    pub node: NodeId,
    /// No team does without it.
    pub required: bool,
    pub live: bool,
    /// It may be given more to do.
    pub free: bool,
    /// It has said too often that it has too much to do: the others are not kept waiting for it.
    pub avoided: bool,
    /// Smaller goes first: how suspect, how slow.
    pub standing: (u8, u8),
    /// Among those that stand alike: whether it may have stopped, whether it would go beyond its window, sessions it
    /// is in, whose turn.
    pub turn: (bool, bool, usize, usize),
}

/// What has gone wrong with one request so far.
#[derive(Clone, Debug, Default)]
pub(super) struct AttemptFailures {
    refusals: BTreeMap<NodeId, Fault>,
    /// (who says so, about whom). Either may lie: they do not meet again for this request.
    mistrusted_pairs: BTreeSet<(NodeId, NodeId)>,
    silent: BTreeSet<NodeId>,
    /// Teams that failed although nobody can be blamed for certain.
    failed: BTreeSet<Vec<NodeId>>,
}

/// How much of what has gone wrong a choice heeds. Anyone who is to blame must be in every team
/// that failed, so teams that share no pair with those come first, then those not tried yet.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Strictness {
    Least,
    NewSet,
    NewPairs,
    NoMistrustedPairs,
}

impl AttemptFailures {
    /// These did not answer.
    pub(super) fn of_silent(nodes: &[NodeId]) -> Self {
        Self {
            silent: nodes.iter().copied().collect(),
            ..Self::default()
        }
    }

    /// Nothing has.
    pub(super) fn is_empty(&self) -> bool {
        let Self {
            refusals,
            mistrusted_pairs,
            silent,
            failed,
        } = self;
        refusals.is_empty() && mistrusted_pairs.is_empty() && silent.is_empty() && failed.is_empty()
    }

    pub(super) fn refused(&mut self, node: NodeId, fault: Fault) {
        self.refusals.insert(node, fault);
    }

    pub(super) fn misbehaved(&mut self, reporter: NodeId, culprit: NodeId) {
        self.mistrusted_pairs.insert((reporter, culprit));
    }

    pub(super) fn was_silent(&mut self, node: NodeId) {
        self.silent.insert(node);
    }

    /// The team did not make it, and anyone who says why may lie.
    pub(super) fn failed(&mut self, signing_set: &[NodeId]) {
        let mut signing_set = signing_set.to_vec();
        signing_set.sort_unstable();
        if !self.failed.insert(signing_set.clone()) {
            // All were tried: another turn.
            self.failed.clear();
            self.failed.insert(signing_set);
        }
    }

    pub(super) fn silent(&self) -> Vec<NodeId> {
        self.silent.iter().copied().collect()
    }

    pub(super) fn culprits(&self) -> Vec<NodeId> {
        let culprits: BTreeSet<NodeId> = self
            .mistrusted_pairs
            .iter()
            .map(|(_, culprit)| *culprit)
            .collect();
        culprits.into_iter().collect()
    }

    pub(super) fn refusals(&self) -> impl Iterator<Item = (&NodeId, &Fault)> {
        self.refusals.iter()
    }

    pub(super) fn take_refusal(&mut self) -> Option<(NodeId, Fault)> {
        self.refusals.pop_first()
    }

    /// Whether the node may be asked at all.
    fn takes(&self, node: &NodeId) -> bool {
        !self.refusals.contains_key(node) && !self.mistrusted_pairs.contains(&(*node, *node))
    }
}

/// Steps that one search for a team may take: anyone who can make nodes quarrel could have the search
/// go through all teams there are. What it does not find in so many is looked for with less care.
const MAX_SEARCH_STEPS: usize = 4_000;

/// What a search has found.
enum SearchResult {
    SigningSet(Vec<NodeId>),
    /// There is no such team.
    None,
    /// There may be one.
    TooLong,
}

/// Searches for a team of `needed` nodes.
struct SetSearch<'a> {
    nodes: &'a [NodeId],
    needed: usize,
    /// Whom no team does without.
    required: Option<NodeId>,
    failures: &'a AttemptFailures,
    strictness: Strictness,
    /// Whether two nodes get along, by their places in `nodes`.
    fits: Vec<Vec<bool>>,
    /// How many more it may take.
    steps: usize,
}

/// Picks `needed` candidates that get along, the preferred ones first. Who is preferred and has too much
/// to do is waited for, unless others stand as well.
pub(super) fn pick(
    candidates: Vec<SignerCandidate>,
    needed: usize,
    failures: &AttemptFailures,
    old: &BTreeSet<(NodeId, NodeId)>,
) -> Result<Vec<NodeId>, NoSigningSet> {
    count_and_pick(candidates, needed, failures, old).0
}

/// As [`pick`], with how many steps it took.
fn count_and_pick(
    mut candidates: Vec<SignerCandidate>,
    needed: usize,
    failures: &AttemptFailures,
    old: &BTreeSet<(NodeId, NodeId)>,
) -> (Result<Vec<NodeId>, NoSigningSet>, usize) {
    let mut taken = 0_usize;
    let required = candidates.iter().find(|candidate| candidate.required);
    let required = required.map(|candidate| candidate.node);
    let mut search = |nodes: &[NodeId], strictness| {
        let mut search = SetSearch::new(nodes, needed, failures, old, strictness);
        search.required = required;
        let found = search.run();
        taken = taken.saturating_add(MAX_SEARCH_STEPS.saturating_sub(search.steps));
        found
    };
    candidates.sort_by_key(|candidate| (!candidate.required, candidate.standing, candidate.turn));
    let those = |is: fn(&SignerCandidate) -> bool| -> Vec<NodeId> {
        let those = candidates.iter().filter(|candidate| is(candidate));
        those.map(|candidate| candidate.node).collect()
    };
    let cares = [
        Strictness::NoMistrustedPairs,
        Strictness::NewPairs,
        Strictness::NewSet,
        Strictness::Least,
    ];
    let mut strictest = |nodes: &[NodeId], least: Strictness| {
        let mut cares = cares.into_iter().filter(|care| *care >= least);
        cares.find_map(|strictness| match search(nodes, strictness) {
            SearchResult::SigningSet(signing_set) => Some((signing_set, strictness)),
            SearchResult::None | SearchResult::TooLong => None,
        })
    };
    let worst = |signing_set: &[NodeId]| {
        let members = candidates.iter();
        let members = members.filter(|candidate| signing_set.contains(&candidate.node));
        members.map(|candidate| candidate.standing).max()
    };
    let live = those(|candidate| candidate.live);
    let preferred = those(|candidate| candidate.live && !candidate.avoided);
    let best = match preferred.len() < live.len() {
        true => strictest(&preferred, Strictness::NewSet),
        false => None,
    };
    let best = best.or_else(|| strictest(&live, Strictness::Least));
    let picked = match best {
        None => match search(&those(|_| true), Strictness::Least) {
            SearchResult::None => Err(NoSigningSet::Never),
            SearchResult::SigningSet(_) | SearchResult::TooLong => Err(NoSigningSet::Wait),
        },
        Some((best, strictness)) => {
            let free = those(|candidate| candidate.live && candidate.free);
            if best.iter().all(|node| free.contains(node)) {
                Ok(best)
            } else {
                strictest(&free, strictness)
                    .map(|(signing_set, _)| signing_set)
                    .filter(|signing_set| worst(signing_set) <= worst(&best))
                    .ok_or(NoSigningSet::Full)
            }
        }
    };
    (picked, taken)
}

impl<'a> SetSearch<'a> {
    fn new(
        nodes: &'a [NodeId],
        needed: usize,
        failures: &'a AttemptFailures,
        old: &BTreeSet<(NodeId, NodeId)>,
        strictness: Strictness,
    ) -> Self {
        let mut fits = vec![vec![true; nodes.len()]; nodes.len()];
        let places: BTreeMap<&NodeId, usize> = nodes.iter().zip(0..).collect();
        let mut part = |one: &NodeId, other: &NodeId| {
            if let (Some(one), Some(other)) = (places.get(one), places.get(other)) {
                for (row, column) in [(*one, *other), (*other, *one)] {
                    if let Some(fits) = fits.get_mut(row).and_then(|row| row.get_mut(column)) {
                        *fits = false;
                    }
                }
            }
        };
        for (one, other) in &failures.mistrusted_pairs {
            part(one, other);
        }
        if strictness >= Strictness::NewPairs {
            for signing_set in &failures.failed {
                for (one, other) in signing_set
                    .iter()
                    .flat_map(|one| signing_set.iter().map(move |other| (one, other)))
                {
                    part(one, other);
                }
            }
        }
        if strictness >= Strictness::NoMistrustedPairs {
            for (one, other) in old {
                part(one, other);
            }
        }
        Self {
            nodes,
            needed,
            required: None,
            failures,
            strictness,
            fits,
            steps: MAX_SEARCH_STEPS,
        }
    }

    fn run(&mut self) -> SearchResult {
        let rest = (0_usize..).zip(self.nodes);
        let rest: Vec<usize> = rest
            .filter(|(_, node)| self.failures.takes(node))
            .map(|(place, _)| place)
            .collect();
        self.complete(&rest, &mut Vec::new())
    }

    /// Completes a team from `rest`, who get along with all of it, going back where it does not
    /// work out.
    fn complete(&mut self, rest: &[usize], signing_set: &mut Vec<usize>) -> SearchResult {
        if signing_set.len() == self.needed {
            let nodes = signing_set
                .iter()
                .filter_map(|place| self.nodes.get(*place));
            let nodes: Vec<NodeId> = nodes.copied().collect();
            return if self.may_be_tried(&nodes) {
                SearchResult::SigningSet(nodes)
            } else {
                SearchResult::None
            };
        }
        let mut rest = rest;
        while let Some((next, after)) = rest.split_first() {
            if signing_set.len().saturating_add(rest.len()) < self.needed {
                break;
            }
            let Some(left) = self.steps.checked_sub(1) else {
                return SearchResult::TooLong;
            };
            self.steps = left;
            let fits = |other: &&usize| {
                let row = self.fits.get(*next);
                row.and_then(|row| row.get(**other)).copied() == Some(true)
            };
            let fitting: Vec<usize> = after.iter().filter(fits).copied().collect();
            signing_set.push(*next);
            match self.complete(&fitting, signing_set) {
                SearchResult::None => {}
                found => return found,
            }
            signing_set.pop();
            rest = after;
        }
        SearchResult::None
    }

    fn may_be_tried(&self, signing_set: &[NodeId]) -> bool {
        let required = self.required.as_ref();
        if required.is_some_and(|node| !signing_set.contains(node)) {
            return false;
        }
        if self.strictness < Strictness::NewSet {
            return true;
        }
        let mut signing_set = signing_set.to_vec();
        signing_set.sort_unstable();
        !self.failures.failed.contains(&signing_set)
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::fault::Class;

    use super::*;

    fn node(number: u8) -> NodeId {
        NodeId([number; 32])
    }

    fn candidates(live: &[bool]) -> Vec<SignerCandidate> {
        (0_u8..)
            .zip(live)
            .map(|(number, live)| SignerCandidate {
                node: node(number),
                required: false,
                live: *live,
                free: true,
                avoided: false,
                standing: (0, 0),
                turn: (false, false, 0, number.into()),
            })
            .collect()
    }

    fn refusal() -> Fault {
        Fault::new(Class::Invalid, "no")
    }

    #[test]
    fn pick__should_prefer_the_prompt_and_idle() {
        let mut all = candidates(&[true, true, true]);
        all[0].standing = (1, 0);
        all[1].turn = (false, false, 9, 0);
        let signing_set = pick(all, 2, &AttemptFailures::default(), &BTreeSet::new())
            .ok()
            .unwrap();
        assert_eq!(signing_set, [node(2), node(1)]);
    }

    #[test]
    fn pick__should_take_no_team_without_the_one_that_is_required() {
        let none = BTreeSet::new();
        let mut all = candidates(&[true, true, true]);
        all[2].required = true;
        all[2].standing = (2, 1);
        let mut failures = AttemptFailures::default();
        failures.misbehaved(node(0), node(2));
        assert_eq!(pick(all, 2, &failures, &none), Ok(vec![node(2), node(1)]));
        let mut away = candidates(&[true, true, false]);
        away[2].required = true;
        assert_eq!(pick(away, 2, &failures, &none), Err(NoSigningSet::Wait));
        let mut refused = candidates(&[true, true, true]);
        refused[2].required = true;
        failures.refused(node(2), refusal());
        assert_eq!(pick(refused, 2, &failures, &none), Err(NoSigningSet::Never));
    }

    #[test]
    fn pick__should_wait_for_the_prompt_and_not_for_one_of_several_as_good() {
        let none = BTreeSet::new();
        let picked = |all, failures: &AttemptFailures| pick(all, 2, failures, &none);
        let mut failures = AttemptFailures::default();
        let all = || {
            let mut all = candidates(&[true; 4]);
            all[0].free = false;
            all[3].standing = (0, 1);
            all
        };
        // The others are as good.
        assert_eq!(picked(all(), &failures), Ok(vec![node(1), node(2)]));
        // The fourth is free, and slow.
        let mut busy = all();
        busy[1].free = false;
        assert_eq!(picked(busy, &failures), Err(NoSigningSet::Full));
        // A team that has failed is no better than one that is busy.
        failures.failed(&[node(1), node(2)]);
        assert_eq!(picked(all(), &failures), Err(NoSigningSet::Full));
        // Where the slow one is needed, it is taken.
        let mut few = all();
        few[1].live = false;
        few[0].free = true;
        failures.misbehaved(node(0), node(2));
        assert_eq!(picked(few, &failures), Ok(vec![node(0), node(3)]));
    }

    #[test]
    fn pick__should_not_wait_for_who_is_busy_all_the_time() {
        let none = BTreeSet::new();
        let mut failures = AttemptFailures::default();
        let all = || {
            let mut all = candidates(&[true; 3]);
            // Suspect, since the busy one said so.
            all[0].standing = (2, 0);
            all[2].free = false;
            all
        };
        let avoided = || {
            let mut all = all();
            all[2].avoided = true;
            all
        };
        assert_eq!(pick(all(), 2, &failures, &none), Err(NoSigningSet::Full));
        let picked = pick(avoided(), 2, &failures, &none);
        assert_eq!(picked, Ok(vec![node(1), node(0)]));
        // The suspect one was silent indeed.
        failures.failed(&[node(0), node(1)]);
        let waits = pick(avoided(), 2, &failures, &none);
        assert_eq!(waits, Err(NoSigningSet::Full));
        // Nobody else is there.
        let mut few = avoided();
        few[0].live = false;
        few[2].free = true;
        assert_eq!(pick(few, 2, &failures, &none), Ok(vec![node(1), node(2)]));
    }

    #[test]
    fn pick__should_wait_while_enough_may_come() {
        assert!(matches!(
            pick(
                candidates(&[true, false, false]),
                2,
                &AttemptFailures::default(),
                &BTreeSet::new()
            ),
            Err(NoSigningSet::Wait)
        ));
        let mut failures = AttemptFailures::default();
        failures.refused(node(1), refusal());
        assert!(matches!(
            pick(
                candidates(&[true, true, false]),
                2,
                &failures,
                &BTreeSet::new()
            ),
            Err(NoSigningSet::Wait)
        ));
        failures.refused(node(2), refusal());
        assert!(matches!(
            pick(
                candidates(&[true, true, true]),
                2,
                &failures,
                &BTreeSet::new()
            ),
            Err(NoSigningSet::Never)
        ));
    }

    #[test]
    fn pick__should_keep_apart_who_quarrelled() {
        let mut failures = AttemptFailures::default();
        failures.misbehaved(node(0), node(1));
        assert_eq!(
            pick(candidates(&[true; 3]), 2, &failures, &BTreeSet::new())
                .ok()
                .unwrap(),
            [node(0), node(2)]
        );
        failures.misbehaved(node(2), node(0));
        assert_eq!(
            pick(candidates(&[true; 3]), 2, &failures, &BTreeSet::new())
                .ok()
                .unwrap(),
            [node(1), node(2)]
        );
        failures.misbehaved(node(2), node(1));
        assert!(matches!(
            pick(candidates(&[true; 3]), 2, &failures, &BTreeSet::new()),
            Err(NoSigningSet::Never)
        ));
        assert_eq!(failures.culprits(), [node(0), node(1)]);
    }

    #[test]
    fn pick__should_come_to_every_team_whoever_is_preferred() {
        let mut failures = AttemptFailures::default();
        let mut tried = BTreeSet::new();
        // The one who breaks every attempt looks best every time.
        for _ in 0..3 {
            let mut signing_set = pick(candidates(&[true; 3]), 2, &failures, &BTreeSet::new())
                .ok()
                .unwrap();
            failures.failed(&signing_set);
            signing_set.sort_unstable();
            tried.insert(signing_set);
        }
        assert_eq!(tried.len(), 3);
        // It does not end there.
        for _ in 0..3 {
            let signing_set = pick(candidates(&[true; 3]), 2, &failures, &BTreeSet::new());
            failures.failed(&signing_set.ok().unwrap());
        }
        // With five, a team that shares no pair with the one that failed comes first.
        let mut failures = AttemptFailures::default();
        failures.failed(&[node(0), node(1), node(2)]);
        let signing_set = pick(candidates(&[true; 5]), 3, &failures, &BTreeSet::new());
        assert_eq!(signing_set.ok().unwrap(), [node(0), node(3), node(4)]);
    }

    #[test]
    fn pick__should_avoid_old_quarrels_while_it_can() {
        let old = BTreeSet::from([(node(1), node(0))]);
        let none = AttemptFailures::default();
        assert_eq!(
            pick(candidates(&[true; 3]), 2, &none, &old).ok().unwrap(),
            [node(0), node(2)]
        );
        assert_eq!(
            pick(candidates(&[true, true, false]), 2, &none, &old)
                .ok()
                .unwrap(),
            [node(0), node(1)]
        );
    }

    /// The team of so many live nodes, found in few steps.
    fn large(
        count: u8,
        needed: usize,
        failures: &AttemptFailures,
        old: &BTreeSet<(NodeId, NodeId)>,
    ) -> Vec<NodeId> {
        let all = candidates(&vec![true; usize::from(count)]);
        let (signing_set, steps) = count_and_pick(all, needed, failures, old);
        let signing_set = signing_set.ok().unwrap();
        assert_eq!(signing_set.len(), needed);
        assert!(steps <= 4 * MAX_SEARCH_STEPS, "{steps} steps");
        signing_set
    }

    #[test]
    fn pick__should_take_few_steps_also_where_many_teams_are_possible() {
        for (count, needed) in [(50, 26), (60, 40), (255, 128)] {
            let mut failures = AttemptFailures::default();
            let mut tried = BTreeSet::new();
            for _ in 0..20 {
                let mut signing_set = large(count, needed, &failures, &BTreeSet::new());
                failures.failed(&signing_set);
                signing_set.sort_unstable();
                assert!(tried.insert(signing_set), "a team twice");
            }
        }
    }

    #[test]
    fn pick__should_take_few_steps_whatever_nodes_say_of_each_other() {
        // About one pair in `odd` does not fit, without a pattern that a search could use.
        let pairs = |odd: u16| -> BTreeSet<(NodeId, NodeId)> {
            let pairs = (0..60_u8).flat_map(|one| (0..60_u8).map(move |other| (one, other)));
            pairs
                .filter(|(one, other)| {
                    one != other && (u16::from(*one) * 7 + u16::from(*other) * 3) % odd == 0
                })
                .map(|(one, other)| (node(one), node(other)))
                .collect()
        };
        for odd in [11, 13, 17, 23, 31] {
            // Of before: heeded while a team without them is found soon.
            large(60, 40, &AttemptFailures::default(), &pairs(odd));
            // Of now: there may be no team, and that is not looked for without end.
            let failures = AttemptFailures {
                mistrusted_pairs: pairs(odd),
                ..AttemptFailures::default()
            };
            let all = candidates(&[true; 60]);
            let (picked, steps) = count_and_pick(all, 40, &failures, &BTreeSet::new());
            assert!(steps <= 5 * MAX_SEARCH_STEPS, "{steps} steps");
            if let Ok(signing_set) = picked {
                for (one, other) in &failures.mistrusted_pairs {
                    assert!(!(signing_set.contains(one) && signing_set.contains(other)));
                }
            }
        }
    }
}
