//! Who signs together.

use std::collections::{BTreeMap, BTreeSet};

use covault_core::{fault::Fault, order::NodeId};

use super::roster::Busy;

/// A team, and the mark that its nodes are busy.
pub(super) struct Team {
    pub signers: Vec<NodeId>,
    pub _busy: Busy,
}

/// What can be done now.
pub(super) enum Choice {
    /// These can sign; the first collects.
    Team(Team),
    /// Not enough live nodes; more may come.
    Wait,
    /// Whoever comes, it will not do.
    Never,
}

/// A share holder.
pub(super) struct Candidate {
    pub node: NodeId,
    pub live: bool,
    /// Smaller goes first: (how suspect, sessions it is in, whose turn).
    pub order: (u8, usize, usize),
}

/// What has gone wrong with one request so far.
#[derive(Default)]
pub(super) struct Trouble {
    refusals: BTreeMap<NodeId, Fault>,
    /// (who says so, about whom). Either may lie: they do not meet again for this request.
    quarrels: BTreeSet<(NodeId, NodeId)>,
    silent: BTreeSet<NodeId>,
    /// Teams that failed although nobody can be blamed for certain.
    failed: BTreeSet<Vec<NodeId>>,
}

/// How much of what has gone wrong a choice heeds. Whoever is to blame must be in every team
/// that failed, so teams that share no pair with those come first, then those not tried yet.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Care {
    Least,
    NewTeam,
    NewPairs,
    NoOldQuarrels,
}

impl Trouble {
    /// These did not answer.
    pub(super) fn of_silent(nodes: &[NodeId]) -> Self {
        Self {
            silent: nodes.iter().copied().collect(),
            ..Self::default()
        }
    }

    pub(super) fn refused(&mut self, node: NodeId, fault: Fault) {
        self.refusals.insert(node, fault);
    }

    pub(super) fn misbehaved(&mut self, reporter: NodeId, culprit: NodeId) {
        self.quarrels.insert((reporter, culprit));
    }

    pub(super) fn was_silent(&mut self, node: NodeId) {
        self.silent.insert(node);
    }

    /// The team did not make it, and whoever says why may lie.
    pub(super) fn failed(&mut self, team: &[NodeId]) {
        let mut team = team.to_vec();
        team.sort_unstable();
        if !self.failed.insert(team.clone()) {
            // All were tried: another turn.
            self.failed.clear();
            self.failed.insert(team);
        }
    }

    pub(super) fn silent(&self) -> Vec<NodeId> {
        self.silent.iter().copied().collect()
    }

    pub(super) fn culprits(&self) -> Vec<NodeId> {
        let culprits: BTreeSet<NodeId> =
            self.quarrels.iter().map(|(_, culprit)| *culprit).collect();
        culprits.into_iter().collect()
    }

    pub(super) fn refusals(&self) -> impl Iterator<Item = (&NodeId, &Fault)> {
        self.refusals.iter()
    }

    pub(super) fn take_refusal(&mut self) -> Option<(NodeId, Fault)> {
        self.refusals.pop_first()
    }

    /// Whether `node` may be in a team with `others`.
    fn fits(&self, node: &NodeId, others: &[NodeId]) -> bool {
        !self.refusals.contains_key(node)
            && !self.quarrels.contains(&(*node, *node))
            && others.iter().all(|other| {
                !self.quarrels.contains(&(*node, *other))
                    && !self.quarrels.contains(&(*other, *node))
            })
    }

    fn failed_together(&self, one: &NodeId, other: &NodeId) -> bool {
        self.failed
            .iter()
            .any(|team| team.contains(one) && team.contains(other))
    }
}

/// What a choice knows of the nodes.
struct View<'a> {
    needed: usize,
    trouble: &'a Trouble,
    /// Pairs that quarrelled over earlier requests.
    old: &'a BTreeSet<(NodeId, NodeId)>,
    care: Care,
}

/// Picks `needed` candidates that get along, the preferred ones first.
pub(super) fn pick(
    mut candidates: Vec<Candidate>,
    needed: usize,
    trouble: &Trouble,
    old: &BTreeSet<(NodeId, NodeId)>,
) -> Result<Vec<NodeId>, Choice> {
    let complete = |nodes: &[NodeId], care| {
        let view = View {
            needed,
            trouble,
            old,
            care,
        };
        view.complete(nodes, Vec::new())
    };
    candidates.sort_by_key(|candidate| candidate.order);
    let live: Vec<NodeId> = candidates
        .iter()
        .filter(|candidate| candidate.live)
        .map(|candidate| candidate.node)
        .collect();
    let cares = [
        Care::NoOldQuarrels,
        Care::NewPairs,
        Care::NewTeam,
        Care::Least,
    ];
    if let Some(team) = cares.into_iter().find_map(|care| complete(&live, care)) {
        return Ok(team);
    }
    let all: Vec<NodeId> = candidates.iter().map(|candidate| candidate.node).collect();
    Err(match complete(&all, Care::Least) {
        Some(_) => Choice::Wait,
        None => Choice::Never,
    })
}

impl View<'_> {
    /// Completes a team from `rest`, going back where it does not work out.
    fn complete(&self, rest: &[NodeId], team: Vec<NodeId>) -> Option<Vec<NodeId>> {
        if team.len() == self.needed {
            return self.may_be_tried(&team).then_some(team);
        }
        if team.len().saturating_add(rest.len()) < self.needed {
            return None;
        }
        let (next, rest) = rest.split_first()?;
        if self.fits(next, &team) {
            let mut with = team.clone();
            with.push(*next);
            if let Some(team) = self.complete(rest, with) {
                return Some(team);
            }
        }
        self.complete(rest, team)
    }

    fn fits(&self, node: &NodeId, team: &[NodeId]) -> bool {
        self.trouble.fits(node, team)
            && team.iter().all(|other| {
                (self.care < Care::NewPairs || !self.trouble.failed_together(node, other))
                    && (self.care < Care::NoOldQuarrels
                        || !(self.old.contains(&(*node, *other))
                            || self.old.contains(&(*other, *node))))
            })
    }

    fn may_be_tried(&self, team: &[NodeId]) -> bool {
        if self.care < Care::NewTeam {
            return true;
        }
        let mut team = team.to_vec();
        team.sort_unstable();
        !self.trouble.failed.contains(&team)
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

    fn candidates(live: &[bool]) -> Vec<Candidate> {
        (0_u8..)
            .zip(live)
            .map(|(number, live)| Candidate {
                node: node(number),
                live: *live,
                order: (0, 0, number.into()),
            })
            .collect()
    }

    fn refusal() -> Fault {
        Fault::new(Class::Invalid, "no")
    }

    #[test]
    fn pick__should_prefer_the_prompt_and_idle() {
        let mut all = candidates(&[true, true, true]);
        all[0].order = (1, 0, 0);
        all[1].order = (0, 9, 0);
        let team = pick(all, 2, &Trouble::default(), &BTreeSet::new())
            .ok()
            .unwrap();
        assert_eq!(team, [node(2), node(1)]);
    }

    #[test]
    fn pick__should_wait_while_enough_may_come() {
        assert!(matches!(
            pick(
                candidates(&[true, false, false]),
                2,
                &Trouble::default(),
                &BTreeSet::new()
            ),
            Err(Choice::Wait)
        ));
        let mut trouble = Trouble::default();
        trouble.refused(node(1), refusal());
        assert!(matches!(
            pick(
                candidates(&[true, true, false]),
                2,
                &trouble,
                &BTreeSet::new()
            ),
            Err(Choice::Wait)
        ));
        trouble.refused(node(2), refusal());
        assert!(matches!(
            pick(
                candidates(&[true, true, true]),
                2,
                &trouble,
                &BTreeSet::new()
            ),
            Err(Choice::Never)
        ));
    }

    #[test]
    fn pick__should_keep_apart_who_quarrelled() {
        let mut trouble = Trouble::default();
        trouble.misbehaved(node(0), node(1));
        assert_eq!(
            pick(candidates(&[true; 3]), 2, &trouble, &BTreeSet::new())
                .ok()
                .unwrap(),
            [node(0), node(2)]
        );
        trouble.misbehaved(node(2), node(0));
        assert_eq!(
            pick(candidates(&[true; 3]), 2, &trouble, &BTreeSet::new())
                .ok()
                .unwrap(),
            [node(1), node(2)]
        );
        trouble.misbehaved(node(2), node(1));
        assert!(matches!(
            pick(candidates(&[true; 3]), 2, &trouble, &BTreeSet::new()),
            Err(Choice::Never)
        ));
        assert_eq!(trouble.culprits(), [node(0), node(1)]);
    }

    #[test]
    fn pick__should_come_to_every_team_whoever_is_preferred() {
        let mut trouble = Trouble::default();
        let mut tried = BTreeSet::new();
        // The one who breaks every attempt looks best every time.
        for _ in 0..3 {
            let mut team = pick(candidates(&[true; 3]), 2, &trouble, &BTreeSet::new())
                .ok()
                .unwrap();
            trouble.failed(&team);
            team.sort_unstable();
            tried.insert(team);
        }
        assert_eq!(tried.len(), 3);
        // It does not end there.
        for _ in 0..3 {
            let team = pick(candidates(&[true; 3]), 2, &trouble, &BTreeSet::new());
            trouble.failed(&team.ok().unwrap());
        }
        // With five, a team that shares no pair with the one that failed comes first.
        let mut trouble = Trouble::default();
        trouble.failed(&[node(0), node(1), node(2)]);
        let team = pick(candidates(&[true; 5]), 3, &trouble, &BTreeSet::new());
        assert_eq!(team.ok().unwrap(), [node(0), node(3), node(4)]);
    }

    #[test]
    fn pick__should_avoid_old_quarrels_while_it_can() {
        let old = BTreeSet::from([(node(1), node(0))]);
        let none = Trouble::default();
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
}
