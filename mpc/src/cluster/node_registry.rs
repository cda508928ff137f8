//! The nodes: which exist, which are live, and which were slow.

mod clocks;
pub(super) mod places;
mod versions;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use covault_core::{
    fault::{Class, Fault, FaultCode},
    ids::VaultId,
    order::{ListedNodes, NodeId},
    port::Clock,
    version::this_version,
};
use parking_lot::{Mutex, MutexGuard};

use self::{
    clocks::{WrongClocks, skew_ms},
    places::SignerPlaces,
};
use super::{
    NodeStatus,
    select_signers::AttemptFailures,
    unadmitted::{Unadmitted, UnadmittedNodes},
};
use crate::message::{Announcement, Ban, HaltReason, SKEW_MS};

/// How far a node's clock may be off before its announcements count as replays. Between
/// [`SKEW_MS`] and this, it is seen, but refuses orders and says why.
const REPLAY_MS: u64 = 2 * SKEW_MS;
/// How long it is remembered, in milliseconds, that two nodes do not get along. A ban is for
/// good, but its reporter may lie: later requests avoid the pair, and only while they can.
const MISTRUST_MS: u64 = 3_600_000;
/// How long a node that was slow or silent is asked last.
const SUSPECT_MS: u64 = 30_000;
/// How long a node that ran twice is named after it was last seen to, in milliseconds.
const DUPLICATE_MS: u64 = 10_000;
/// Starts of one node that are compared.
const MAX_STARTS: usize = 8;
/// Where nobody says who is admitted, everyone is known, but not without end.
const MAX_NODES: usize = 1000;

/// The vault of a request, and the client signer that it names.
pub(super) type SigningFor = (VaultId, Option<NodeId>);

#[derive(Clone)]
struct KnownNode {
    name: String,
    version: String,
    keys: u32,
    threads: u16,
    bans: Vec<Ban>,
    halted: Vec<HaltReason>,
    frozen: Vec<VaultId>,
    listed: ListedNodes,
    boot: [u8; 16],
    /// Our clock, when it was last heard.
    heard_ms: u64,
    /// The newest time it has announced, by its own clock.
    at_ms: u64,
    left: bool,
}

impl KnownNode {
    fn new(announcement: Announcement, heard_ms: u64) -> Self {
        let Announcement {
            name,
            at_ms,
            leaving,
            boot,
            version,
            keys,
            bans,
            halted,
            count: _,
            height: _,
            others: _,
            threads,
            frozen,
            listed,
        } = announcement.sanitized();
        Self {
            name,
            version,
            keys,
            threads,
            bans,
            halted,
            frozen,
            listed,
            boot,
            heard_ms,
            at_ms,
            left: leaving,
        }
    }

    fn works_with_us(&self) -> bool {
        versions::works_with_us(&self.version)
    }

    /// Whether its operator has frozen the vault, or all.
    fn is_frozen(&self, vault: VaultId) -> bool {
        self.frozen.contains(&vault) || self.halted.contains(&HaltReason::Frozen)
    }

    fn status(&self, id: NodeId, live: bool, halted: Vec<HaltReason>) -> NodeStatus {
        NodeStatus {
            id,
            name: self.name.clone(),
            live,
            last_seen_ms: self.heard_ms,
            version: self.version.clone(),
            keys: self.keys,
            bans: self.bans.clone(),
            skew_ms: self.skew_ms(),
            halted,
            frozen: self.frozen.clone(),
            listed: Some(self.listed.clone()),
        }
    }

    /// How far its clock was ahead of ours when it was last heard, in milliseconds.
    fn skew_ms(&self) -> i64 {
        skew_ms(self.at_ms, self.heard_ms)
    }
}

#[derive(Default)]
struct State {
    known: HashMap<NodeId, KnownNode>,
    /// The nodes that an operator has admitted; `None` until set.
    admitted: Option<HashSet<NodeId>>,
    unadmitted: UnadmittedNodes,
    /// Until when, and how much: 1 was in a team that failed, 2 was missed by others.
    suspect_until: HashMap<NodeId, (u64, u8)>,
    mistrusted_pairs: HashMap<(NodeId, NodeId), u64>,
    /// Holders of keys we use: they always have a place.
    wanted: HashSet<NodeId>,
    places: SignerPlaces,
    /// Starts of each node that name other ones.
    starts: HashMap<NodeId, BootHistory>,
    wrong_clocks: WrongClocks,
}

/// Which starts of a node have named which others. Two that name each other run at one time: a start
/// is drawn at random, so that nobody can name one that has not been.
#[derive(Default)]
struct BootHistory {
    named: VecDeque<([u8; 16], Vec<[u8; 16]>)>,
    /// When it was last seen to run twice.
    duplicate_ms: Option<u64>,
}

impl BootHistory {
    /// Notes an announcement; whether it shows that the node runs twice.
    fn heard(&mut self, boot: [u8; 16], others: &[[u8; 16]], now_ms: u64) -> bool {
        self.named.retain(|(known, _)| *known != boot);
        let twice = self
            .named
            .iter()
            .any(|(other, named)| others.contains(other) && named.contains(&boot));
        self.named.push_back((boot, others.to_vec()));
        if self.named.len() > MAX_STARTS {
            self.named.pop_front();
        }
        if twice {
            self.duplicate_ms = Some(now_ms);
        }
        twice
    }
}

/// The nodes.
pub(super) struct NodeRegistry {
    clock: Arc<dyn Clock>,
    live_ms: u64,
    state: Mutex<State>,
}

fn is_admitted(state: &State, node: &NodeId) -> bool {
    state
        .admitted
        .as_ref()
        .is_none_or(|admitted| admitted.contains(node))
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock()
}

impl NodeRegistry {
    pub(super) fn new(clock: Arc<dyn Clock>, live_for: Duration) -> Arc<Self> {
        let live_ms = u64::try_from(live_for.as_millis()).unwrap_or(u64::MAX);
        Arc::new(Self {
            clock,
            live_ms,
            state: Mutex::default(),
        })
    }

    /// Only these nodes are used from now on.
    pub(super) fn admit(&self, nodes: &[NodeId]) {
        let mut state = lock(&self.state);
        let State {
            known,
            admitted,
            unadmitted,
            starts,
            wrong_clocks,
            places,
            ..
        } = &mut *state;
        let nodes: HashSet<NodeId> = nodes.iter().copied().collect();
        known.retain(|node, _| nodes.contains(node));
        starts.retain(|node, _| nodes.contains(node));
        wrong_clocks.retain(|node| nodes.contains(node));
        places.retain(|node| nodes.contains(node));
        for node in &nodes {
            unadmitted.forget(node);
        }
        *admitted = Some(nodes);
    }

    /// Whether an announcement of this node is worth verifying.
    pub(super) fn listens_to(&self, node: &NodeId) -> bool {
        let now_ms = self.clock.now_ms();
        let mut state = lock(&self.state);
        let wanted = is_admitted(&state, node) || state.unadmitted.wants(node, now_ms);
        if !wanted {
            state.unadmitted.full(now_ms);
        }
        wanted
    }

    /// Whether the node was admitted by name, or heard before.
    pub(super) fn is_known(&self, node: &NodeId) -> bool {
        let state = lock(&self.state);
        let admitted = state.admitted.as_ref();
        admitted.is_some_and(|admitted| admitted.contains(node)) || state.known.contains_key(node)
    }

    /// The nodes that announced themselves recently and are not admitted; few, no matter who calls.
    pub(super) fn unadmitted(&self) -> Vec<Unadmitted> {
        let now_ms = self.clock.now_ms();
        lock(&self.state).unadmitted.list(now_ms)
    }

    /// Notes an announcement whose sender is certain. Old ones, replayed, change nothing.
    pub(super) fn heard(&self, node: NodeId, announcement: Announcement) {
        let now_ms = self.clock.now_ms();
        let apart_ms = announcement.at_ms.abs_diff(now_ms);
        let others = announcement.others.clone();
        let announced = KnownNode::new(announcement, now_ms);
        let mut state = lock(&self.state);
        if !is_admitted(&state, &node) {
            if apart_ms <= REPLAY_MS && !announced.left {
                state.unadmitted.heard(node, announced.name, now_ms);
            }
            return;
        }
        if state.wrong_clocks.is_news(node, &announced) {
            tracing::warn!(name = %announced.name, node = %node.openssh_line(""), apart_ms, "a node's clock differs; check the clocks");
        }
        if apart_ms > REPLAY_MS {
            return;
        }
        let room = state.starts.len() < MAX_NODES || state.starts.contains_key(&node);
        if !others.is_empty() && room {
            let starts = state.starts.entry(node).or_default();
            let known = starts.duplicate_ms;
            if starts.heard(announced.boot, &others, now_ms)
                && known.is_none_or(|known_ms| now_ms.abs_diff(known_ms) >= DUPLICATE_MS)
            {
                tracing::error!(name = %announced.name, node = %node.openssh_line(""), "node runs twice: two processes have its identity. Stop one of them, start the other again, and refresh its vaults");
            }
        }
        if !state.known.contains_key(&node) && state.known.len() >= MAX_NODES {
            let State { known, wanted, .. } = &mut *state;
            let silent = known
                .iter()
                .filter(|(node, _)| !wanted.contains(*node))
                .min_by_key(|(_, known)| known.heard_ms)
                .map(|(node, _)| *node);
            match silent {
                Some(silent) => known.remove(&silent),
                None if wanted.contains(&node) => None,
                None => return,
            };
        }
        // What is known is from a time that is not yet: our clock was set back, and nodes whose
        // clocks went with it would not be heard before that time comes again.
        let ahead_ms = now_ms.saturating_add(REPLAY_MS);
        match state.known.get_mut(&node) {
            // Not even the newest one again: a replay does not keep a dead node alive.
            Some(known) if announced.at_ms <= known.at_ms && known.at_ms <= ahead_ms => {}
            Some(known) => {
                if known.boot != announced.boot {
                    tracing::info!(name = %announced.name, node = %node.openssh_line(""), "node has restarted");
                }
                if known.version != announced.version {
                    versions::tell(&node, &announced.name, &announced.version);
                }
                *known = announced;
            }
            None => {
                tracing::info!(name = %announced.name, node = %node.openssh_line(""), "node announced itself");
                versions::tell(&node, &announced.name, &announced.version);
                state.known.insert(node, announced);
            }
        }
    }

    /// Whether it can be asked for anything.
    fn is_live(&self, known: &KnownNode) -> bool {
        known.works_with_us() && self.is_heard(known)
    }

    /// Whether it announces itself.
    fn is_heard(&self, known: &KnownNode) -> bool {
        let now_ms = self.clock.now_ms();
        // What it says by its own clock counts as well: a bus that holds announcements back could
        // show a node for as long as it has some left.
        let latest_ms = known.at_ms.saturating_add(SKEW_MS);
        // Heard later than now: our clock was set back, and nobody knows how long ago that was.
        !known.left
            && now_ms.abs_diff(known.heard_ms) < self.live_ms
            && now_ms < latest_ms.saturating_add(self.live_ms)
    }

    /// Those whose clocks are too far off, as they were last heard.
    fn out_of_time<'a>(&self, nodes: &[&'a NodeId]) -> Vec<&'a NodeId> {
        let (now_ms, state) = (self.clock.now_ms(), lock(&self.state));
        let off = nodes.iter().filter(|node| {
            let known = state.known.get(node);
            let unbelieved = || state.wrong_clocks.unbelieved(node, now_ms, self.live_ms);
            known.is_some_and(|known| known.skew_ms().unsigned_abs() > SKEW_MS)
                || unbelieved().is_some()
        });
        off.copied().collect()
    }

    pub(super) fn live(&self, node: &NodeId) -> bool {
        lock(&self.state)
            .known
            .get(node)
            .is_some_and(|known| self.is_live(known))
    }

    /// Names the start of the node's process, as far as it was heard.
    pub(super) fn start_of(&self, node: &NodeId) -> Option<[u8; 16]> {
        let state = lock(&self.state);
        state.known.get(node).map(|known| known.boot)
    }

    /// Whether the node was heard within this many milliseconds, and has not announced its shutdown.
    pub(super) fn heard_within(&self, node: &NodeId, ms: u64) -> bool {
        let now_ms = self.clock.now_ms();
        let state = lock(&self.state);
        state.known.get(node).is_some_and(|known| {
            !known.left && now_ms.abs_diff(known.heard_ms) < ms.max(self.live_ms)
        })
    }

    pub(super) fn nodes(&self) -> Vec<NodeStatus> {
        let state = lock(&self.state);
        let known = state.known.iter().map(|(id, known)| {
            let (live, halted) = (self.is_heard(known), self.halted(&state, id));
            known.status(*id, live, halted)
        });
        let mut nodes: Vec<NodeStatus> = known.collect();
        state
            .wrong_clocks
            .show(&mut nodes, self.clock.now_ms(), self.live_ms);
        nodes.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
        nodes
    }

    /// How many of them are live, and how many there are.
    pub(super) fn counts(&self) -> (usize, usize) {
        let state = lock(&self.state);
        let live = state.known.values().filter(|known| self.is_heard(known));
        let shown = state.wrong_clocks.shown(self.clock.now_ms(), self.live_ms);
        let unknown = shown.filter(|(id, _)| !state.known.contains_key(*id));
        (
            live.count(),
            state.known.len().saturating_add(unknown.count()),
        )
    }

    /// Why the node does not sign: what it says itself, and whether we see it run twice.
    fn halted(&self, state: &State, node: &NodeId) -> Vec<HaltReason> {
        let now_ms = self.clock.now_ms();
        let known = state.known.get(node);
        let mut halted = known.map(|known| known.halted.clone()).unwrap_or_default();
        let duplicate_ms = state
            .starts
            .get(node)
            .and_then(|starts| starts.duplicate_ms);
        if duplicate_ms.is_some_and(|duplicate_ms| now_ms.abs_diff(duplicate_ms) < DUPLICATE_MS) {
            halted.push(HaltReason::Twice);
        }
        if known.is_some_and(|known| !known.works_with_us()) {
            halted.push(HaltReason::Version);
        }
        halted.sort_unstable();
        halted.dedup();
        halted
    }

    /// Nodes that announce themselves with a version that does not fit, each with that version.
    fn of_other_versions<'a>(&self, nodes: &'a [NodeId]) -> Vec<(&'a NodeId, String)> {
        let state = lock(&self.state);
        let version = |node: &'a NodeId| {
            let known = state.known.get(node).filter(|known| self.is_heard(known))?;
            (!known.works_with_us()).then(|| (node, known.version.clone()))
        };
        nodes.iter().filter_map(version).collect()
    }

    /// `node-2 (ssh-ed25519 AAAA...)`, or the line alone while the name is unknown.
    pub(super) fn name(&self, node: &NodeId) -> String {
        let line = node.openssh_line("");
        match lock(&self.state).known.get(node) {
            Some(known) if !known.name.is_empty() => format!("{} ({line})", known.name),
            _ => line,
        }
    }

    /// These nodes are never forgotten for others.
    pub(super) fn want(&self, nodes: &[NodeId]) {
        lock(&self.state).wanted.extend(nodes);
    }

    /// The node is asked later than others for a while; those that others missed last.
    pub(super) fn suspect(&self, node: &NodeId, missed: bool) {
        let now_ms = self.clock.now_ms();
        let until = now_ms.saturating_add(SUSPECT_MS);
        let level = if missed { 2 } else { 1 };
        let mut state = lock(&self.state);
        let suspect = state.suspect_until.entry(*node).or_default();
        if now_ms >= suspect.0 {
            suspect.1 = 0;
        }
        *suspect = (until, suspect.1.max(level));
    }

    /// The two are not asked together for a while, when there are others.
    pub(super) fn record_mistrust(&self, reporter: &NodeId, culprit: &NodeId) {
        let until = self.clock.now_ms().saturating_add(MISTRUST_MS);
        lock(&self.state)
            .mistrusted_pairs
            .insert((*reporter, *culprit), until);
    }

    pub(super) fn clear_suspicion(&self, node: &NodeId) {
        lock(&self.state).suspect_until.remove(node);
    }

    /// Those that do not sign, and why.
    fn halted_with<'a>(&self, nodes: &'a [NodeId]) -> Vec<(&'a NodeId, Vec<HaltReason>)> {
        let state = lock(&self.state);
        let nodes = nodes.iter().map(|node| (node, self.halted(&state, node)));
        nodes.filter(|(_, halts)| !halts.is_empty()).collect()
    }

    /// Whether the node is there, and says of itself that no callback decides for it.
    pub(super) fn is_ordinary(&self, node: &NodeId) -> bool {
        let state = lock(&self.state);
        let known = state.known.get(node).filter(|known| self.is_live(known));
        known.is_some_and(|known| !known.halted.contains(&HaltReason::ClientSigner))
    }

    /// Live nodes whose operators have frozen the vault, or everything.
    fn frozen_of<'a>(&self, nodes: &'a [NodeId], vault: VaultId) -> Vec<&'a NodeId> {
        let state = lock(&self.state);
        let is_frozen = |node: &&NodeId| {
            let known = state.known.get(*node).filter(|known| self.is_live(known));
            known.is_some_and(|known| known.is_frozen(vault))
        };
        nodes.iter().filter(is_frozen).collect()
    }

    /// "not enough signers: 1 of 2 needed answered; missing: node-2 (ssh-ed25519 AAAA...)".
    /// Who is asked to sign for a vault may have frozen it.
    pub(super) fn too_few(
        &self,
        holders: &[NodeId],
        needed: usize,
        failures: &AttemptFailures,
        signing_for: Option<SigningFor>,
    ) -> Fault {
        let frozen = signing_for.map_or_else(Vec::new, |(vault, _)| self.frozen_of(holders, vault));
        let halted = self.halted_with(holders);
        // Whom the request does not name; for what is no request they are nodes like others.
        let client_signers: Vec<&NodeId> = halted
            .iter()
            .filter(|(_, halts)| halts.contains(&HaltReason::ClientSigner))
            .map(|(node, _)| *node)
            .filter(|node| !frozen.contains(node))
            .filter(|node| signing_for.is_some_and(|(_, named)| named.as_ref() != Some(*node)))
            .collect();
        let halted: Vec<(&NodeId, Vec<HaltReason>)> = halted
            .into_iter()
            .filter(|(_, halts)| halts.as_slice() != [HaltReason::ClientSigner])
            .collect();
        let other_versions = self.of_other_versions(holders);
        let is_of_other = |node: &&NodeId| other_versions.iter().any(|(other, _)| other == node);
        let (silent, culprits) = (failures.silent(), failures.culprits());
        let refused: Vec<&NodeId> = failures.refusals().map(|(node, _)| node).collect();
        let accused: Vec<&NodeId> = culprits
            .iter()
            .filter(|node| !refused.contains(node))
            .collect();
        let missing: Vec<&NodeId> = holders
            .iter()
            .filter(|node| !refused.contains(node) && !accused.contains(node))
            .filter(|node| !frozen.contains(node) && !client_signers.contains(node))
            .filter(|node| !is_of_other(node))
            .filter(|node| !self.live(node) || silent.contains(node))
            .collect();
        let absent = missing
            .len()
            .saturating_add(accused.len())
            .saturating_add(refused.len())
            .saturating_add(frozen.len())
            .saturating_add(other_versions.len())
            .saturating_add(client_signers.len());
        let others = absent.saturating_sub(client_signers.len());
        let enough = holders.len().saturating_sub(absent) >= needed;
        if others == 0 && enough && halted.is_empty() {
            return Fault::unavailable("the signers are online but did not finish in time");
        }
        let answered = holders.len().saturating_sub(absent).min(needed);
        let mut sentence = format!("not enough signers: {answered} of {needed} needed answered");
        let mut list = |title: &str, nodes: &[&NodeId]| {
            if !nodes.is_empty() {
                let names: Vec<String> = nodes.iter().map(|node| self.name(node)).collect();
                sentence.push_str(&format!("; {title}: {}", names.join(", ")));
            }
        };
        list("frozen by their operators (covault node thaw)", &frozen);
        list("missing", &missing);
        let own = this_version();
        for (node, version) in &other_versions {
            list(
                &format!("of version {version}, too far from {own} (docs/upgrading.md)"),
                &[node],
            );
        }
        list("signing only what names them", &client_signers);
        list("check the clocks of", &self.out_of_time(&missing));
        for (title, halt) in [
            ("not signing because of their clocks", HaltReason::Clock),
            (
                "to be refreshed: claims missing from their claims files",
                HaltReason::Claims,
            ),
            ("running twice", HaltReason::Twice),
        ] {
            let nodes: Vec<&NodeId> = halted
                .iter()
                .filter(|(_, halts)| halts.contains(&halt))
                .map(|(node, _)| *node)
                .collect();
            list(title, &nodes);
        }
        list("accused of breaking the protocol", &accused);
        list("refused", &refused);
        if let Some((_, fault)) = failures.refusals().next() {
            sentence.push_str(&format!(" ({})", fault.message()));
        }
        Fault::unavailable(sentence).with_code(FaultCode::NotEnoughSigners)
    }

    /// Names those who broke the protocol.
    pub(super) fn misbehaved(&self, culprits: &[NodeId]) -> Fault {
        let names: Vec<String> = culprits.iter().map(|node| self.name(node)).collect();
        let culprits = culprits.iter().map(|node| node.openssh_line("")).collect();
        Fault::new(
            Class::Peer { culprits },
            format!("signers broke the protocol: {}", names.join(", ")),
        )
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests;
