//! What other nodes know of this one, and what this one knows of them.
//!
//! Each announcement says how much its node has promised ([`crate::claims::ClaimsAge`]). Peers keep the one
//! with the most, on disk too, and show it to its node when that starts, and when it announces less.
//! It is evidence: the node's own signature is on it, so that nobody can make a node believe that it
//! has forgotten something. A node that has does not sign with the shares it had then: it has to be
//! given new ones. Announcements also show a node that another process runs under its identity.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use covault_core::{
    fault::{Class, Fault},
    order::NodeId,
    port::random_16,
};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep};

use super::{EXPIRE_INTERVAL, Node, clock::ClockMonitor, refusals::MessageRefusal};
use crate::{
    claims::{ClaimsAge, LostClaims, PeerHeights},
    envelope::{EVERYONE, Envelope, EnvelopeHeader, EnvelopeKind, OpenedEnvelope},
    loaded_keys::LoadedKey,
    message::{
        Announcement, Ban, HaltReason, LiveStatus, MAX_OTHERS, SKEW_MS, WitnessMsg, decode, encode,
    },
};

/// How long a start waits for those that do not answer, in milliseconds.
const WAIT_MS: u64 = 3_000;
/// How long peers are asked whether or not they are heard, in milliseconds.
const ASK_MS: u64 = 5_000;
/// How often heights of peers are written, in milliseconds. What was heard since may be lost in a
/// crash.
const SAVE_MS: u64 = 10_000;
/// How often one peer is asked because of what is announced in its name, in milliseconds.
const RECHECK_MS: u64 = 1_000;
/// How often one start of a peer is told something, in milliseconds.
const MIN_ANSWER_INTERVAL_MS: u64 = 100;
/// Own announcements that are remembered.
const MAX_SENT: usize = 64;
/// How long another start of this identity is named after it was heard, in milliseconds.
const DUPLICATE_MS: u64 = 30_000;

const DUPLICATE_IDENTITY: &str = "this node runs twice: another process has its identity (a copied folder, or a \
                     cloned machine). Stop one of them, start the other again, and refresh the vaults";
const CLAIMS_LOST: &str = "claims of this node are missing from its claims file: an older copy was restored, or the \
                           node ran elsewhere. Refresh the vault first";

pub(super) struct Witness {
    began: Instant,
    /// What the claims had promised when they were opened. What is promised since hides nothing that was
    /// missing then.
    opened_height: u64,
    /// Who held shares of our keys when we started; `None`: we had none, and no promise could be missing.
    holders: Option<BTreeSet<NodeId>>,
    state: Mutex<State>,
}

struct State {
    clocks: ClockMonitor,
    /// By peer, the announcement with the most promises.
    newest: PeerHeights,
    /// Whose is not on disk yet.
    unsaved: BTreeSet<NodeId>,
    saved_ms: u64,
    answered: BTreeSet<NodeId>,
    /// Questions, none where the last one was answered, and when they were asked.
    questions: BTreeMap<NodeId, (Option<[u8; 16]>, u64)>,
    /// When a start of a peer was told something, with an answer to its question or without.
    last_answered: BTreeMap<(NodeId, [u8; 16], bool), u64>,
    /// Of our announcements: how many there were, and number and time of the latest.
    count: u64,
    sent: VecDeque<(u64, u64)>,
    /// Other starts of this identity, and when they were heard.
    others: BTreeMap<[u8; 16], u64>,
    duplicated: bool,
    /// The height of the evidence that is being noted.
    noted: u64,
    clock_wrong: bool,
}

/// What of an announcement is about this module.
pub(super) struct WitnessReport {
    pub count: u64,
    pub height: u64,
    pub halted: Vec<HaltReason>,
    pub others: Vec<[u8; 16]>,
}

impl Witness {
    pub(super) fn new(
        wall_ms: u64,
        opened_height: u64,
        holders: Option<BTreeSet<NodeId>>,
        newest: PeerHeights,
    ) -> Self {
        Self {
            began: Instant::now(),
            opened_height,
            holders,
            state: Mutex::new(State {
                clocks: ClockMonitor::new(wall_ms),
                newest,
                unsaved: BTreeSet::new(),
                saved_ms: 0,
                answered: BTreeSet::new(),
                questions: BTreeMap::new(),
                last_answered: BTreeMap::new(),
                count: 0,
                sent: VecDeque::new(),
                others: BTreeMap::new(),
                duplicated: false,
                noted: 0,
                clock_wrong: false,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Milliseconds since the start, by the steady clock.
    fn steady_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Node {
    /// Those whose word about us counts: the configured peers, else `holders`; and the peers that are configured for some
    /// vaults.
    fn watched_among(&self, holders: impl FnOnce() -> BTreeSet<NodeId>) -> BTreeSet<NodeId> {
        let pinned = self.peers.get();
        let mut watched = pinned.all.clone().unwrap_or_else(holders);
        watched.extend(pinned.of_vaults());
        watched.remove(&self.codec.id());
        watched
    }

    /// Without any that are configured, the holders of our keys.
    fn watched(&self) -> BTreeSet<NodeId> {
        self.watched_among(|| self.keys.holders())
    }

    /// Who is to say what it knows of us before we sign.
    fn expected(&self) -> BTreeSet<NodeId> {
        let held = self.witness.holders.as_ref();
        held.map_or_else(BTreeSet::new, |held| self.watched_among(|| held.clone()))
    }

    pub(super) fn is_watched(&self, node: &NodeId) -> bool {
        let pinned = self.peers.get();
        let is_watched = match &pinned.all {
            Some(peers) => peers.contains(node),
            None => self.keys.is_holder(node),
        };
        let mut of_vaults = pinned.of_vaults();
        *node != self.codec.id() && (is_watched || of_vaults.any(|peer| peer == node))
    }

    fn check_clock(&self, state: &mut State) -> Result<(), Fault> {
        let ClaimsAge { newest_ms, .. } = self.claims.age();
        let steady_ms = self.witness.steady_ms();
        let peers = self.watched();
        state.clocks.retain(&peers);
        state
            .clocks
            .check(self.clock.now_ms(), steady_ms, newest_ms, peers.len())
    }

    /// Milliseconds since the start of this process, by the steady clock.
    pub(super) fn steady_ms(&self) -> u64 {
        self.witness.steady_ms()
    }

    /// Whether nothing speaks against the wall clock, not even one peer.
    pub(super) fn is_clock_undisputed(&self) -> bool {
        let steady_ms = self.witness.steady_ms();
        let mut state = self.witness.lock();
        self.check_clock(&mut state).is_ok()
            && !state.clocks.is_disputed(self.clock.now_ms(), steady_ms)
    }

    /// Refuses when another process has our identity.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`].
    pub(super) fn check_not_duplicated(&self) -> Result<(), Fault> {
        match self.witness.lock().duplicated {
            true => Err(Fault::unavailable(DUPLICATE_IDENTITY)),
            false => Ok(()),
        }
    }

    /// Whether nothing speaks against signing with this share: neither another process of this node,
    /// nor missing promises, nor the clock; and those who sign with us have said what they know of us.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when it may change by itself,
    /// [`covault_core::fault::Class::Invalid`] when the share never signs again.
    pub(super) fn check_fit(&self, key: &LoadedKey, signers: &[NodeId]) -> Result<(), Fault> {
        if !self.guarded {
            return Ok(());
        }
        self.check_not_duplicated()?;
        let record = key.record();
        if self
            .claims
            .blocked(&record.key.root.public_key, record.epoch)
        {
            return Err(Fault::new(Class::Invalid, CLAIMS_LOST));
        }
        let steady_ms = self.witness.steady_ms();
        let mut state = self.witness.lock();
        self.check_clock(&mut state)?;
        let expected = self.expected();
        let silent: Vec<NodeId> = expected.difference(&state.answered).copied().collect();
        drop(state);
        let waits = |node: &NodeId| steady_ms < WAIT_MS || signers.contains(node);
        let Some(silent) = silent.into_iter().find(waits) else {
            return Ok(());
        };
        self.ask_witness(silent);
        Err(Fault::unavailable(format!(
            "this node has started and does not know yet what {} knows of it; try again",
            silent.openssh_line("")
        )))
    }

    /// What the next announcement says.
    pub(super) fn witness_report(&self, at_ms: u64) -> WitnessReport {
        let steady_ms = self.witness.steady_ms();
        let mut halted = Vec::new();
        let mut state = self.witness.lock();
        let clock = self.check_clock(&mut state);
        if clock.is_err() != state.clock_wrong {
            state.clock_wrong = clock.is_err();
            match &clock {
                Err(fault) => tracing::error!(node = %self.name, %fault, "signing nothing"),
                Ok(()) => tracing::info!(node = %self.name, "the clock is right again"),
            }
        }
        if clock.is_err() {
            halted.push(HaltReason::Clock);
        }
        if state.duplicated {
            halted.push(HaltReason::Twice);
        }
        let blocked = |key: &Arc<LoadedKey>| {
            let record = key.record();
            self.claims
                .blocked(&record.key.root.public_key, record.epoch)
        };
        if self.keys.all().iter().any(blocked) {
            halted.push(HaltReason::Claims);
        }
        state
            .others
            .retain(|_, heard_ms| steady_ms.saturating_sub(*heard_ms) < DUPLICATE_MS);
        state.count = state.count.saturating_add(1);
        let count = state.count;
        state.sent.push_back((count, at_ms));
        if state.sent.len() > MAX_SENT {
            state.sent.pop_front();
        }
        WitnessReport {
            count,
            height: self.claims.age().height,
            halted: if self.guarded { halted } else { Vec::new() },
            others: state.others.keys().copied().collect(),
        }
    }

    /// Looks after it, now and then: asks who has not answered, and has what was heard written.
    pub(super) fn poll_witnesses(self: &Arc<Self>) {
        let steady_ms = self.witness.steady_ms();
        let expected = self.expected();
        let (ask, due) = {
            let state = self.witness.lock();
            let silent = expected.difference(&state.answered);
            let ask: Vec<NodeId> = silent
                .filter(|node| steady_ms < ASK_MS || state.clocks.is_fresh(node, steady_ms))
                .copied()
                .collect();
            let due = steady_ms.saturating_sub(state.saved_ms) >= SAVE_MS;
            (ask, due && !state.unsaved.is_empty())
        };
        for node in ask {
            self.ask_witness(node);
        }
        if due {
            let node = Arc::clone(self);
            self.runtime.spawn(async move { node.save_heights().await });
        }
    }

    /// Writes what was heard of peers since it was written last.
    pub(super) async fn save_heights(&self) {
        let steady_ms = self.witness.steady_ms();
        let save: PeerHeights = {
            let mut state = self.witness.lock();
            state.saved_ms = steady_ms;
            let unsaved = std::mem::take(&mut state.unsaved);
            let newest = unsaved.into_iter().filter_map(|node| {
                let newest = state.newest.get(&node)?;
                Some((node, newest.clone()))
            });
            newest.collect()
        };
        if save.is_empty() {
            return;
        }
        if let Err(error) = self.claims.remember(save).await {
            tracing::warn!(node = %self.name, %error, "failed to store what peers reported");
        }
    }

    fn ask_witness(&self, node: NodeId) {
        let steady_ms = self.witness.steady_ms();
        let question = {
            let mut state = self.witness.lock();
            let (question, asked_ms) = state.questions.entry(node).or_default();
            *asked_ms = steady_ms;
            *question.get_or_insert_with(|| random_16(&*self.entropy))
        };
        let boot = self.boot;
        self.send_witness(node, &WitnessMsg::Ask { boot, question });
    }

    fn send_witness(&self, to: NodeId, news: &WitnessMsg) {
        let header = EnvelopeHeader::outside_sessions(EnvelopeKind::Witness, self.codec.id(), to);
        let sent = encode(news).and_then(|body| self.codec.send(header, &body));
        if let Err(fault) = sent {
            tracing::warn!(node = %self.name, ?fault, "failed to query or answer a peer");
        }
    }

    /// Shows a peer what it has announced at most, and who has asked, what we are at.
    fn tell_witness(&self, to: NodeId, boot: [u8; 16], question: Option<[u8; 16]>) {
        let steady_ms = self.witness.steady_ms();
        let at_ms = self.clock.now_ms();
        let (newest, now) = {
            let mut state = self.witness.lock();
            let lately =
                |told_ms: &u64| steady_ms.saturating_sub(*told_ms) < MIN_ANSWER_INTERVAL_MS;
            state.last_answered.retain(|_, told_ms| lately(told_ms));
            // A replayed message of an earlier start gets no answer from this one.
            let telling = (to, boot, question.is_some());
            if state.last_answered.contains_key(&telling) {
                return;
            }
            state.last_answered.insert(telling, steady_ms);
            let newest = state.newest.get(&to);
            let newest = newest.map(|(_, wire)| wire.clone()).unwrap_or_default();
            let now = question.map(|question| LiveStatus {
                question,
                boot: self.boot,
                count: state.count,
                at_ms,
            });
            (newest, now)
        };
        self.send_witness(to, &WitnessMsg::Told { boot, newest, now });
    }

    /// Takes a question or an answer, whose sender is certain, on a pool thread.
    pub(super) fn on_witness_msg(self: &Arc<Self>, from: NodeId, opened: &OpenedEnvelope) {
        match decode::<WitnessMsg>(&opened.body) {
            None => self.drop_message(&from, MessageRefusal::Unreadable),
            Some(WitnessMsg::Ask { boot, question }) => {
                self.tell_witness(from, boot, Some(question));
            }
            // To an earlier start of ours, or of an orchestrator, which knows nothing of us.
            Some(WitnessMsg::Told { boot, .. }) if boot != self.boot || !self.is_watched(&from) => {
            }
            Some(WitnessMsg::Told { newest, now, .. }) => {
                if !newest.is_empty() && !self.shown(newest) {
                    return self.drop_message(&from, MessageRefusal::Unreadable);
                }
                let steady_ms = self.witness.steady_ms();
                let mut state = self.witness.lock();
                state.answered.insert(from);
                let Some(now) = now else { return };
                let asked = state.questions.get_mut(&from);
                // An answer counts once.
                let asked = asked.and_then(|(it, _)| it.take_if(|it| *it == now.question));
                if asked.is_some() {
                    let place = (now.boot, now.count);
                    state.clocks.answered(from, place, now.at_ms, steady_ms);
                }
            }
        }
    }

    /// Looks at one of our own announcements that a peer has kept; false when it is invalid.
    fn shown(self: &Arc<Self>, wire: Vec<u8>) -> bool {
        let Ok(envelope) = Envelope::parse(wire) else {
            return false;
        };
        let EnvelopeHeader { kind, from, to, .. } = envelope.header;
        if (kind, from, to) != (EnvelopeKind::Announcement, self.codec.id(), EVERYONE) {
            return false;
        }
        let opened = self.codec.open(&envelope).ok();
        let announcement = opened.and_then(|opened| decode::<Announcement>(&opened.body));
        match announcement {
            Some(announcement) => {
                self.on_own_announcement(&announcement);
                true
            }
            None => false,
        }
    }

    /// Takes an announcement of a peer or of this node, whose sender is certain, on a pool thread.
    pub(super) fn announced(self: &Arc<Self>, envelope: &Envelope, opened: &OpenedEnvelope) {
        let from = envelope.header.from;
        let Some(announcement) = decode::<Announcement>(&opened.body) else {
            return;
        };
        if from == self.codec.id() {
            return self.on_own_announcement(&announcement);
        }
        let Announcement {
            at_ms,
            boot,
            count,
            height,
            ..
        } = announcement;
        self.codec.announced(&from, boot);
        let steady_ms = self.witness.steady_ms();
        let (known, ask) = {
            let mut state = self.witness.lock();
            let runs = state.clocks.heard(from, (boot, count), at_ms, steady_ms);
            let asked = state.questions.get(&from);
            let lately =
                asked.is_some_and(|(_, asked_ms)| steady_ms.saturating_sub(*asked_ms) < RECHECK_MS);
            let known = state.newest.get(&from).map(|(height, _)| *height);
            if known.is_none_or(|known| known < height) {
                let wire = envelope.bytes().to_vec();
                state.newest.insert(from, (height, wire));
                state.unsaved.insert(from);
            }
            (known, !runs && !lately)
        };
        if ask {
            self.ask_witness(from);
        }
        if known.is_some_and(|known| height < known) {
            self.tell_witness(from, boot, None);
        }
    }

    /// What was announced in our name: by this process, by an earlier one, or by one that should not
    /// be.
    fn on_own_announcement(self: &Arc<Self>, announcement: &Announcement) {
        if !self.guarded {
            return;
        }
        let Announcement {
            at_ms,
            boot,
            count,
            height,
            others,
            bans,
            ..
        } = announcement;
        let steady_ms = self.witness.steady_ms();
        let wall_ms = self.clock.now_ms();
        let mut state = self.witness.lock();
        if state.duplicated {
            return;
        }
        let known = match *boot == self.boot {
            true => self.claims.age().height,
            false => self.witness.opened_height,
        };
        if *boot == self.boot {
            // A process that went on from a copy of our memory.
            let first = state.sent.front().map(|(count, _)| *count);
            state.duplicated = *count > state.count
                || announcement.halted.contains(&HaltReason::Twice)
                || (first.is_some_and(|first| *count >= first)
                    && !state.sent.contains(&(*count, *at_ms)));
        } else {
            if at_ms.abs_diff(wall_ms) <= SKEW_MS
                && (state.others.len() < MAX_OTHERS || state.others.contains_key(boot))
            {
                state.others.insert(*boot, steady_ms);
            }
            // An earlier process cannot know of this one: it named a start that had not been.
            state.duplicated = others.contains(&self.boot);
        }
        let duplicated = state.duplicated;
        drop(state);
        if duplicated {
            tracing::error!(node = %self.name, "{DUPLICATE_IDENTITY}");
        }
        if duplicated || *height > known {
            self.on_claims_lost(*height, bans);
        }
    }

    /// A peer has seen more claims of ours than we know of: the present shares never sign again.
    fn on_claims_lost(self: &Arc<Self>, seen: u64, bans: &[Ban]) {
        {
            let mut state = self.witness.lock();
            if seen <= state.noted && !state.duplicated {
                return;
            }
            state.noted = state.noted.max(seen);
        }
        let known = self.claims.age().height;
        tracing::error!(node = %self.name, known, seen, "{CLAIMS_LOST}");
        let mut blocked = self.life.prepared_epochs();
        let mut of_bans = Vec::new();
        for key in self.keys.all() {
            let record = key.record();
            let root = &record.key.root.public_key;
            blocked.push((root.clone(), record.epoch));
            let of_key = bans.iter().filter(|ban| root.starts_with(&ban.key));
            of_bans.extend(of_key.map(|ban| (root.clone(), ban.peer)));
        }
        let forgotten = LostClaims {
            seen,
            blocked,
            bans: of_bans,
            now_ms: self.clock.now_ms(),
        };
        // In force before anything else is done.
        self.claims.forgotten_now(&forgotten);
        let node = Arc::clone(self);
        self.runtime.spawn(async move {
            while let Err(error) = node.claims.forgotten(forgotten.clone()).await {
                tracing::error!(node = %node.name, %error, "failed to store that claims are missing; retrying");
                if node.claims.is_broken() {
                    return;
                }
                sleep(EXPIRE_INTERVAL).await;
            }
        });
    }
}
