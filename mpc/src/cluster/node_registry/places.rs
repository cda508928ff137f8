//! Capacity of signers: which requests may use which signers now, and which wait.
//!
//! Each signer works on a limited number of inputs at once ([`Window`](crate::cluster::window::Window)), for each
//! scheme. What is more waits here, where it costs nothing, and is sent when its turn has come.

mod choosing;
mod second_team;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Weak},
    time::Duration,
};

use covault_core::{
    order::NodeId,
    rate::{Rate, UnsignedWork, count},
    scheme::Scheme,
    turns::RequestTurn,
};
use tokio::{runtime::Handle, sync::oneshot, time::Instant};

use super::{NodeRegistry, lock};
use crate::{
    cluster::{
        line::{LineKey, LineParty, LinePlace, WaitingLines},
        load::{HeldAt, Overdraft, SignerLoad, answered},
        pace::{SchemeTimes, class_of},
        select_signers::{AttemptFailures, NoSigningSet},
    },
    meter,
};

/// Second teams, in tenths: one of ten attempts gets one, and some more when a node has just stopped. One that is done
/// first costs nothing.
/// What makes all attempts slow must not double what there is to do.
const SECOND_TEAM: u32 = 10;
const FIRST_CREDIT: u32 = 80;
const MOST_CREDIT: u32 = 160;
/// Of more lines than these, those are forgotten that were not used for so long.
const GROUPS: usize = 1_000;
const FORGOTTEN: Duration = Duration::from_secs(600);
/// Of the time in which what is accepted has to be signed, one part of so many is for tokens that have nothing waiting.
const RESERVED: usize = 16;
/// How often it is looked, while someone waits, whether attempts have become late, so that others may have places.
const LATE_INTERVAL: Duration = Duration::from_millis(50);

/// What a request wants.
#[derive(Clone, Debug)]
pub(in crate::cluster) struct SigningAsk {
    key: LineKey,
    party: LineParty,
    /// Inputs to be signed.
    work: usize,
    class: usize,
}

impl SigningAsk {
    /// One that takes part in each team; other client signers in none.
    pub(in crate::cluster) fn with_client_signer(mut self, client_signer: Option<NodeId>) -> Self {
        self.key.client_signer = client_signer;
        self
    }

    pub(in crate::cluster) fn new(
        scheme: Scheme,
        holders: &[NodeId],
        needed: usize,
        party: LineParty,
        inputs: usize,
    ) -> Self {
        Self {
            key: LineKey {
                scheme,
                // Keys of the same nodes share one line, in whatever order the nodes are listed.
                holders: holders
                    .iter()
                    .copied()
                    .collect::<BTreeSet<_>>()
                    .into_iter()
                    .collect(),
                needed,
                client_signer: None,
            },
            party,
            work: inputs.max(1),
            class: class_of(inputs),
        }
    }

    pub(in crate::cluster) fn holders(&self) -> &[NodeId] {
        &self.key.holders
    }

    pub(in crate::cluster) fn needed(&self) -> usize {
        self.key.needed
    }

    pub(in crate::cluster) fn scheme(&self) -> Scheme {
        self.key.scheme
    }
}

type PlacementResult = Result<SigningSet, NoSigningSet>;

/// A waiting request.
#[derive(Debug)]
struct SignerWaiter {
    ask: SigningAsk,
    failures: AttemptFailures,
    placed: oneshot::Sender<PlacementResult>,
}

/// What is known of the signers of one line. Not of a scheme: how long it takes is a matter of where they are.
#[derive(Debug)]
struct SignerGroup {
    /// Number of the line, as loads know it.
    number: u64,
    /// The last attempt came to nothing in its time.
    is_failing: bool,
    /// Who did not answer in it.
    silent: Vec<NodeId>,
    paces: SchemeTimes,
    rate: Rate,
    /// First attempts that were made.
    attempts: u64,
    credit: u32,
    /// When the newest attempt was sent that ended well.
    newest_done: Option<Instant>,
    used: Instant,
}

impl SignerGroup {
    /// A second team was worth it.
    fn refund(&mut self) {
        self.credit = self.credit.saturating_add(SECOND_TEAM).min(MOST_CREDIT);
    }
}

impl SignerGroup {
    fn new(number: u64) -> Self {
        Self {
            number,
            is_failing: false,
            silent: Vec::new(),
            paces: SchemeTimes::default(),
            rate: Rate::default(),
            attempts: 0,
            credit: FIRST_CREDIT,
            newest_done: None,
            used: Instant::now(),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct SignerPlaces {
    loads: HashMap<(NodeId, Scheme), SignerLoad>,
    groups: BTreeMap<LineKey, SignerGroup>,
    lines: WaitingLines<SignerWaiter>,
    /// Sessions that each node is in.
    sessions: HashMap<NodeId, usize>,
    turn: usize,
    /// How many attempts were begun, and how many lines there were.
    attempts: u64,
    groups_made: u64,
    /// It is looked again and again whether attempts are late.
    watches: bool,
    /// How often a team was looked for.
    #[cfg(test)]
    choices: usize,
}

impl SignerPlaces {
    /// Only these nodes are of interest from now on.
    pub(super) fn retain(&mut self, is: impl Fn(&NodeId) -> bool) {
        self.loads
            .retain(|(node, _), load| is(node) || load.at_work() > 0);
        self.sessions.retain(|node, count| is(node) || *count > 0);
    }

    fn group(&mut self, key: &LineKey) -> &mut SignerGroup {
        let now = Instant::now();
        if self.groups.len() >= GROUPS && !self.groups.contains_key(key) {
            let recent =
                |group: &SignerGroup| now.saturating_duration_since(group.used) < FORGOTTEN;
            self.groups.retain(|_, group| recent(group));
        }
        let made = &mut self.groups_made;
        let group = self.groups.entry(key.clone()).or_insert_with(|| {
            *made = made.wrapping_add(1);
            SignerGroup::new(*made)
        });
        group.used = now;
        group
    }

    /// A request has joined the line, or has left it.
    fn note_waiting(&mut self, key: &LineKey) {
        let waits = self.lines.waits(key);
        self.group(key).rate.waits(waits, Instant::now().into_std());
    }

    /// How long signers of the line need for so many inputs, in addition to those in progress.
    fn time_for(&mut self, key: &LineKey, inputs: usize) -> Option<Duration> {
        let mut at_once = self.lines.under_way(key);
        if !self.lines.waits(key) {
            // They could work on more.
            let loads = key.holders.iter();
            let loads = loads.filter_map(|node| self.loads.get(&(*node, key.scheme)));
            let places: usize = loads.map(|load| load.window.size()).sum();
            at_once = at_once.max(places / key.needed.max(1));
        }
        let rate = &self.group(key).rate;
        rate.time_for(inputs, at_once, Instant::now().into_std())
    }

    /// Signers with attempts that have become late in between.
    fn late_since(&self, since: Instant, now: Instant) -> BTreeMap<Scheme, Vec<NodeId>> {
        let mut late = BTreeMap::<_, Vec<NodeId>>::new();
        for ((node, scheme), load) in &self.loads {
            if load.became_late(since, now) {
                late.entry(*scheme).or_default().push(*node);
            }
        }
        late
    }

    /// Whether none of these has room for anything.
    fn are_full(&self, scheme: Scheme, nodes: &[NodeId]) -> bool {
        let now = Instant::now();
        let mut loads = nodes.iter().map(|node| self.loads.get(&(*node, scheme)));
        loads.all(|load| load.is_some_and(|load| !load.has_room(now, Overdraft::None, None)))
    }

    /// A request waits for these.
    fn were_full(&mut self, key: &LineKey) {
        for node in &key.holders {
            if let Some(load) = self.loads.get_mut(&(*node, key.scheme))
                && load.at_work() >= load.window.size()
            {
                load.window.was_full();
            }
        }
    }
}

/// How many attempts of this size would be as much as signers of its line work on.
fn at_once(lines: &WaitingLines<SignerWaiter>, ask: &SigningAsk) -> u32 {
    let at_once = lines.under_way(&ask.key) / ask.work.max(1);
    u32::try_from(at_once).unwrap_or(u32::MAX).max(1)
}

/// Looks for attempts that become late. Should it end by a panic, another one begins with the next request that waits.
struct LateWatch(Weak<NodeRegistry>);

impl LateWatch {
    /// It has ended in order.
    fn end(&mut self) {
        self.0 = Weak::new();
    }
}

impl Drop for LateWatch {
    fn drop(&mut self) {
        if let Some(registry) = self.0.upgrade() {
            lock(&registry.state).places.watches = false;
        }
    }
}

/// Signers that were chosen.
struct ChosenSigners {
    signers: Vec<NodeId>,
    tries_slow: bool,
}

/// The signers of one attempt, who have a place taken while it is held; the first collects.
pub(in crate::cluster) struct SigningSet {
    pub signers: Vec<NodeId>,
    /// It tries a signer that is known to be slow.
    pub tries_slow: bool,
    /// Beside one that waits for a signer that may have stopped: it costs none of what second teams may.
    pub is_free: bool,
    /// How many attempts signers of the line worked on when it began.
    at_once: u32,
    registry: Arc<NodeRegistry>,
    key: LineKey,
    work: usize,
    /// Its place at each signer.
    held: Vec<(NodeId, HeldAt)>,
}

impl std::fmt::Debug for SigningSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.signers).finish()
    }
}

impl Drop for SigningSet {
    fn drop(&mut self) {
        {
            let mut state = lock(&self.registry.state);
            let places = &mut state.places;
            for (node, at) in &self.held {
                if let Some(load) = places.loads.get_mut(&(*node, self.key.scheme)) {
                    load.end(at);
                }
            }
            for node in &self.signers {
                if let Some(count) = places.sessions.get_mut(node) {
                    *count = count.saturating_sub(1);
                }
            }
            places.lines.end(&self.key, self.work);
        }
        self.registry.serve(Some((self.key.scheme, &self.signers)));
    }
}

/// A place in a line; given up when dropped.
pub(in crate::cluster) struct PlaceTicket {
    registry: Arc<NodeRegistry>,
    key: LineKey,
    place: LinePlace,
    pub placed: oneshot::Receiver<PlacementResult>,
}

impl Drop for PlaceTicket {
    fn drop(&mut self) {
        let mut state = lock(&self.registry.state);
        let left = state.places.lines.leave(&self.key, self.place);
        meter::waiting(state.places.lines.len());
        state.places.note_waiting(&self.key);
        drop(state);
        drop(left);
    }
}

impl NodeRegistry {
    /// A request's place in the lines, to be kept for all of its attempts.
    pub(in crate::cluster) fn come(&self, ask: &SigningAsk, turn: RequestTurn) -> LinePlace {
        let lines = &mut lock(&self.state).places.lines;
        lines.come(turn, ask.party)
    }

    /// Signers for an attempt that is sent at once.
    ///
    /// # Errors
    /// [`NoSigningSet::Full`] also when others came before, and wait.
    pub(in crate::cluster) fn take_place(
        self: &Arc<Self>,
        ask: &SigningAsk,
        place: LinePlace,
        failures: &AttemptFailures,
    ) -> PlacementResult {
        let mut state = lock(&self.state);
        state.wanted.extend(&ask.key.holders);
        if state.places.lines.is_behind(&ask.key, place) {
            return Err(NoSigningSet::Full);
        }
        let chosen = self.choose(&mut state, ask, failures, None);
        if matches!(chosen, Err(NoSigningSet::Full)) {
            state.places.were_full(&ask.key);
        }
        Ok(self.begin(&mut state, None, ask, chosen?))
    }

    #[cfg(test)]
    pub(in crate::cluster) fn choices(&self) -> usize {
        lock(&self.state).places.choices
    }

    /// Waits in line, at the place that was taken when the request came.
    pub(in crate::cluster) fn wait(
        self: &Arc<Self>,
        ask: &SigningAsk,
        place: LinePlace,
        failures: &AttemptFailures,
    ) -> PlaceTicket {
        let (sender, placed) = oneshot::channel();
        let waiter = SignerWaiter {
            ask: ask.clone(),
            failures: failures.clone(),
            placed: sender,
        };
        let mut state = lock(&self.state);
        let lines = &mut state.places.lines;
        lines.wait(&ask.key, place, ask.work, waiter);
        meter::waiting(lines.len());
        state.places.note_waiting(&ask.key);
        let runtime = Handle::try_current().ok();
        let runtime = runtime.filter(|_| !std::mem::replace(&mut state.places.watches, true));
        let looked_at = Instant::now();
        // A runtime that is being closed drops the watch at once, and that needs the lock.
        drop(state);
        if let Some(runtime) = runtime {
            self.watch_late(&runtime, looked_at);
        }
        PlaceTicket {
            registry: Arc::clone(self),
            key: ask.key.clone(),
            place,
            placed,
        }
    }

    /// Serves those that wait when attempts of others become late, for as long as someone waits: nothing else tells
    /// that there are places.
    fn watch_late(self: &Arc<Self>, runtime: &Handle, mut looked_at: Instant) {
        let mut watch = LateWatch(Arc::downgrade(self));
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(LATE_INTERVAL).await;
                let Some(registry) = watch.0.upgrade() else {
                    return;
                };
                let now = Instant::now();
                let late = {
                    let places = &mut lock(&registry.state).places;
                    if places.lines.len() == 0 {
                        places.watches = false;
                        watch.end();
                        return;
                    }
                    places.late_since(looked_at, now)
                };
                looked_at = now;
                for (scheme, nodes) in late {
                    registry.serve(Some((scheme, &nodes)));
                }
            }
        });
    }

    /// An attempt came to nothing in its time, in which these did not answer.
    pub(in crate::cluster) fn line_failed(&self, ask: &SigningAsk, silent: &[NodeId]) {
        let mut state = lock(&self.state);
        let group = state.places.group(&ask.key);
        (group.is_failing, group.silent) = (true, silent.to_vec());
    }

    /// Who did not answer in the last attempt of the line, where that came to nothing.
    pub(in crate::cluster) fn silent_in_line(&self, ask: &SigningAsk) -> Option<Vec<NodeId>> {
        let mut state = lock(&self.state);
        let group = state.places.group(&ask.key);
        group.is_failing.then(|| group.silent.clone())
    }

    /// Whether an attempt of the line has signed that was sent since then.
    pub(in crate::cluster) fn gets_on(&self, ask: &SigningAsk, since: Instant) -> bool {
        let mut state = lock(&self.state);
        let newest = state.places.group(&ask.key).newest_done;
        newest.is_some_and(|sent| sent >= since)
    }

    /// About how long a request at this place waits for its turn, at the present rate. `None`: unknown, as where the
    /// line's last attempt came to nothing: then its rate says only that nothing is done.
    pub(in crate::cluster) fn expected_wait(
        &self,
        ask: &SigningAsk,
        place: LinePlace,
    ) -> Option<Duration> {
        let mut state = lock(&self.state);
        if state.places.group(&ask.key).is_failing {
            return None;
        }
        let before = state.places.lines.before(&ask.key, place);
        state.places.time_for(&ask.key, before)
    }

    /// See [`crate::cluster::Cluster::expected_wait`].
    pub(in crate::cluster) fn wait_of_newcomer(
        &self,
        ask: &SigningAsk,
        unsigned: UnsignedWork,
    ) -> Option<Duration> {
        let mut state = lock(&self.state);
        let places = &mut state.places;
        let (vault, token) = &ask.party;
        let (all, own) = places.lines.waiting(&ask.key, token);
        // What is being built, or waits for its chain, comes later, and maybe all at once.
        let elsewhere = places.lines.waiting_elsewhere(&ask.key, *vault);
        let known = places.lines.under_way(&ask.key).saturating_add(elsewhere);
        let ahead = all.max(unsigned.of_vault.saturating_sub(known));
        let own = own.max(unsigned.of_token.saturating_sub(known));
        let wait = places.time_for(&ask.key, ahead.saturating_add(own))?;
        Some(match own {
            0 => wait,
            _ => {
                let seconds = wait.as_secs_f64() * count(RESERVED) / count(RESERVED - 1);
                Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
            }
        })
    }

    /// What is known of the times of such attempts.
    pub(in crate::cluster) fn pace<T>(
        &self,
        ask: &SigningAsk,
        of: impl FnOnce(&SchemeTimes, usize) -> T,
    ) -> T {
        let mut state = lock(&self.state);
        of(&state.places.group(&ask.key).paces, ask.class)
    }

    /// The team has signed, after so long. `overtook`: how long an earlier attempt of the request has run that still does.
    pub(in crate::cluster) fn answered(
        &self,
        ask: &SigningAsk,
        team: &SigningSet,
        took: Duration,
        overtook: Option<Duration>,
    ) {
        let now = Instant::now();
        let mut state = lock(&self.state);
        // The last ones of a crowd have signed beside others as well, although those are done.
        let at_once = at_once(&state.places.lines, ask).max(team.at_once);
        let group = state.places.group(&ask.key);
        group.newest_done = group.newest_done.max(now.checked_sub(took));
        group.is_failing = false;
        if overtook.is_some() {
            group.refund();
        }
        if !team.tries_slow {
            // One of 50 would be enough to be the slowest of a hundred, after which second teams begin.
            group.paces.record(ask.class, took, overtook, at_once);
        }
        group.rate.done(ask.work, took, now.into_std());
        let loads = &mut state.places.loads;
        let of_team = |((node, scheme), _): &(&(NodeId, Scheme), &mut SignerLoad)| {
            *scheme == ask.key.scheme && team.signers.contains(node)
        };
        let team = loads.iter_mut().filter(of_team);
        let mut team: Vec<&mut SignerLoad> = team.map(|(_, load)| load).collect();
        for load in &mut team {
            load.window.signed(ask.class, ask.work, took, now);
        }
        answered(&mut team, ask.class, took, now);
    }

    /// The nodes were in a team that was not done after so long, when another one was.
    pub(in crate::cluster) fn late(
        &self,
        ask: &SigningAsk,
        nodes: impl Iterator<Item = NodeId>,
        at_least: Duration,
    ) {
        let mut state = lock(&self.state);
        for node in nodes {
            if let Some(load) = state.places.loads.get_mut(&(node, ask.key.scheme)) {
                load.late(ask.class, at_least);
            }
        }
    }

    /// The node says that it has too much to do, to an order that was sent then.
    pub(in crate::cluster) fn busy(&self, ask: &SigningAsk, node: &NodeId, sent: Instant) {
        let mut state = lock(&self.state);
        if let Some(load) = state.places.loads.get_mut(&(*node, ask.key.scheme)) {
            load.busy(sent, Instant::now());
        }
    }
}
