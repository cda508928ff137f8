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
    /// Smaller goes first: (was slow lately, sessions it is in, whose turn).
    pub order: (bool, usize, usize),
}

/// What has gone wrong with one request so far.
#[derive(Default)]
pub(super) struct Trouble {
    refusals: BTreeMap<NodeId, Fault>,
    /// (who says so, about whom). Either may lie: they do not meet again for this request.
    quarrels: BTreeSet<(NodeId, NodeId)>,
    silent: BTreeSet<NodeId>,
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
}

/// Picks `needed` candidates that get along, the preferred ones first.
pub(super) fn pick(
    mut candidates: Vec<Candidate>,
    needed: usize,
    trouble: &Trouble,
) -> Result<Vec<NodeId>, Choice> {
    candidates.sort_by_key(|candidate| candidate.order);
    let live: Vec<NodeId> = candidates
        .iter()
        .filter(|candidate| candidate.live)
        .map(|candidate| candidate.node)
        .collect();
    if let Some(team) = complete(&live, needed, trouble, Vec::new()) {
        return Ok(team);
    }
    let all: Vec<NodeId> = candidates.iter().map(|candidate| candidate.node).collect();
    Err(match complete(&all, needed, trouble, Vec::new()) {
        Some(_) => Choice::Wait,
        None => Choice::Never,
    })
}

/// Completes a team from `rest`, going back where it does not work out.
fn complete(
    rest: &[NodeId],
    needed: usize,
    trouble: &Trouble,
    team: Vec<NodeId>,
) -> Option<Vec<NodeId>> {
    if team.len() == needed {
        return Some(team);
    }
    if team.len().saturating_add(rest.len()) < needed {
        return None;
    }
    let (next, rest) = rest.split_first()?;
    if trouble.fits(next, &team) {
        let mut with = team.clone();
        with.push(*next);
        if let Some(team) = complete(rest, needed, trouble, with) {
            return Some(team);
        }
    }
    complete(rest, needed, trouble, team)
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
                order: (false, 0, number.into()),
            })
            .collect()
    }

    fn refusal() -> Fault {
        Fault::new(Class::Invalid, "no")
    }

    #[test]
    fn pick__should_prefer_the_prompt_and_idle() {
        let mut all = candidates(&[true, true, true]);
        all[0].order = (true, 0, 0);
        all[1].order = (false, 9, 0);
        let team = pick(all, 2, &Trouble::default()).ok().unwrap();
        assert_eq!(team, [node(2), node(1)]);
    }

    #[test]
    fn pick__should_wait_while_enough_may_come() {
        assert!(matches!(
            pick(candidates(&[true, false, false]), 2, &Trouble::default()),
            Err(Choice::Wait)
        ));
        let mut trouble = Trouble::default();
        trouble.refused(node(1), refusal());
        assert!(matches!(
            pick(candidates(&[true, true, false]), 2, &trouble),
            Err(Choice::Wait)
        ));
        trouble.refused(node(2), refusal());
        assert!(matches!(
            pick(candidates(&[true, true, true]), 2, &trouble),
            Err(Choice::Never)
        ));
    }

    #[test]
    fn pick__should_keep_apart_who_quarrelled() {
        let mut trouble = Trouble::default();
        trouble.misbehaved(node(0), node(1));
        assert_eq!(
            pick(candidates(&[true; 3]), 2, &trouble).ok().unwrap(),
            [node(0), node(2)]
        );
        trouble.misbehaved(node(2), node(0));
        assert_eq!(
            pick(candidates(&[true; 3]), 2, &trouble).ok().unwrap(),
            [node(1), node(2)]
        );
        trouble.misbehaved(node(2), node(1));
        assert!(matches!(
            pick(candidates(&[true; 3]), 2, &trouble),
            Err(Choice::Never)
        ));
        assert_eq!(trouble.culprits(), [node(0), node(1)]);
    }
}
