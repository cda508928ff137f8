//! Which nodes there are, which live, and which were slow.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use covault_core::{
    fault::{Class, Fault},
    order::NodeId,
    port::Clock,
};

use super::{
    NodeStatus,
    choose::{Candidate, Choice, Team, Trouble, pick},
};
use crate::{identity::openssh_line, message::Announcement};

/// How far a node's clock may be off before its announcements count as replays.
const SKEW_MS: u64 = 120_000;
/// How long a node that was slow or silent is asked last.
const SUSPECT_MS: u64 = 30_000;
/// Strangers may announce themselves too, but not without end.
const MAX_NODES: usize = 1000;
const MAX_NAME: usize = 64;

struct Known {
    name: String,
    /// Our clock, when it was last heard.
    heard_ms: u64,
    /// The newest time it has announced, by its own clock.
    at_ms: u64,
    left: bool,
}

#[derive(Default)]
struct State {
    known: HashMap<NodeId, Known>,
    suspect_until: HashMap<NodeId, u64>,
    busy: HashMap<NodeId, usize>,
    turn: usize,
}

/// The nodes.
pub(super) struct Roster {
    clock: Arc<dyn Clock>,
    live_ms: u64,
    state: Arc<Mutex<State>>,
}

/// Counts a team's nodes as busy while it is held.
pub(super) struct Busy {
    state: Arc<Mutex<State>>,
    nodes: Vec<NodeId>,
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        for node in &self.nodes {
            if let Some(count) = state.busy.get_mut(node) {
                *count = count.saturating_sub(1);
            }
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Roster {
    pub(super) fn new(clock: Arc<dyn Clock>, live_for: Duration) -> Self {
        let live_ms = u64::try_from(live_for.as_millis()).unwrap_or(u64::MAX);
        Self {
            clock,
            live_ms,
            state: Arc::default(),
        }
    }

    /// Notes an announcement whose sender is certain. Old ones, replayed, change nothing.
    pub(super) fn heard(&self, node: NodeId, announcement: Announcement) {
        let now_ms = self.clock.now_ms();
        let Announcement {
            mut name,
            at_ms,
            leaving,
        } = announcement;
        if at_ms.abs_diff(now_ms) > SKEW_MS {
            tracing::warn!(?node, "an announcement from another time; check the clocks");
            return;
        }
        name.retain(|letter| !letter.is_control());
        let name: String = name.chars().take(MAX_NAME).collect();
        let mut state = lock(&self.state);
        let full = state.known.len() >= MAX_NODES;
        match state.known.get_mut(&node) {
            Some(known) if at_ms < known.at_ms => {}
            Some(known) => {
                *known = Known {
                    name,
                    heard_ms: now_ms,
                    at_ms,
                    left: leaving,
                }
            }
            None if full => {}
            None => {
                tracing::info!(%name, node = %openssh_line(&node, ""), "node announced itself");
                state.known.insert(
                    node,
                    Known {
                        name,
                        heard_ms: now_ms,
                        at_ms,
                        left: leaving,
                    },
                );
            }
        }
    }

    fn is_live(&self, known: &Known) -> bool {
        !known.left && self.clock.now_ms() < known.heard_ms.saturating_add(self.live_ms)
    }

    pub(super) fn live(&self, node: &NodeId) -> bool {
        lock(&self.state)
            .known
            .get(node)
            .is_some_and(|known| self.is_live(known))
    }

    pub(super) fn nodes(&self) -> Vec<NodeStatus> {
        let mut nodes: Vec<NodeStatus> = lock(&self.state)
            .known
            .iter()
            .map(|(id, known)| NodeStatus {
                id: *id,
                name: known.name.clone(),
                live: self.is_live(known),
                last_seen_ms: known.heard_ms,
            })
            .collect();
        nodes.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
        nodes
    }

    /// `node-2 (ssh-ed25519 AAAA...)`, or the line alone while the name is unknown.
    pub(super) fn name(&self, node: &NodeId) -> String {
        let line = openssh_line(node, "");
        match lock(&self.state).known.get(node) {
            Some(known) if !known.name.is_empty() => format!("{} ({line})", known.name),
            _ => line,
        }
    }

    /// The node is asked last for a while.
    pub(super) fn suspect(&self, node: &NodeId) {
        let until = self.clock.now_ms().saturating_add(SUSPECT_MS);
        lock(&self.state).suspect_until.insert(*node, until);
    }

    pub(super) fn well_done(&self, node: &NodeId) {
        lock(&self.state).suspect_until.remove(node);
    }

    /// A team for one attempt: live nodes, those that were slow last, the least busy first.
    pub(super) fn choose(&self, holders: &[NodeId], needed: usize, trouble: &Trouble) -> Choice {
        let now_ms = self.clock.now_ms();
        let mut state = lock(&self.state);
        state.turn = state.turn.wrapping_add(1);
        let turn = state.turn;
        let count = holders.len().max(1);
        let candidates = holders
            .iter()
            .enumerate()
            .map(|(place, node)| Candidate {
                node: *node,
                live: state
                    .known
                    .get(node)
                    .is_some_and(|known| self.is_live(known)),
                order: (
                    state
                        .suspect_until
                        .get(node)
                        .is_some_and(|until| now_ms < *until),
                    state.busy.get(node).copied().unwrap_or(0),
                    // Equals take turns.
                    place.wrapping_add(turn) % count,
                ),
            })
            .collect();
        match pick(candidates, needed, trouble) {
            Ok(signers) => {
                for node in &signers {
                    *state.busy.entry(*node).or_default() += 1;
                }
                let busy = Busy {
                    state: Arc::clone(&self.state),
                    nodes: signers.clone(),
                };
                Choice::Team(Team {
                    signers,
                    _busy: busy,
                })
            }
            Err(choice) => choice,
        }
    }

    /// "not enough signers: 1 of 2 needed answered; missing: node-2 (ssh-ed25519 AAAA...)".
    pub(super) fn too_few(&self, holders: &[NodeId], needed: usize, trouble: &Trouble) -> Fault {
        let (silent, culprits) = (trouble.silent(), trouble.culprits());
        let refused: Vec<&NodeId> = trouble.refusals().map(|(node, _)| node).collect();
        let accused: Vec<&NodeId> = culprits
            .iter()
            .filter(|node| !refused.contains(node))
            .collect();
        let missing: Vec<&NodeId> = holders
            .iter()
            .filter(|node| !refused.contains(node) && !accused.contains(node))
            .filter(|node| !self.live(node) || silent.contains(node))
            .collect();
        let absent = missing
            .len()
            .saturating_add(accused.len())
            .saturating_add(refused.len());
        if absent == 0 {
            return Fault::unavailable("the signers were there, but did not finish in time");
        }
        let answered = holders.len().saturating_sub(absent).min(needed);
        let mut sentence = format!("not enough signers: {answered} of {needed} needed answered");
        let mut list = |title: &str, nodes: &[&NodeId]| {
            if !nodes.is_empty() {
                let names: Vec<String> = nodes.iter().map(|node| self.name(node)).collect();
                sentence.push_str(&format!("; {title}: {}", names.join(", ")));
            }
        };
        list("missing", &missing);
        list("accused of breaking the protocol", &accused);
        list("refused", &refused);
        if let Some((_, fault)) = trouble.refusals().next() {
            sentence.push_str(&format!(" ({})", fault.public()));
        }
        Fault::unavailable(sentence)
    }

    /// Names those who broke the protocol.
    pub(super) fn misbehaved(&self, culprits: &[NodeId]) -> Fault {
        let names: Vec<String> = culprits.iter().map(|node| self.name(node)).collect();
        let culprits = culprits.iter().map(|node| openssh_line(node, "")).collect();
        Fault::new(
            Class::Peer { culprits },
            format!("signers broke the protocol: {}", names.join(", ")),
        )
    }
}
