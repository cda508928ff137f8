//! The actor that shows the other orchestrators that this one is alive, takes vaults that nobody owns, and
//! gives away those that others should own.
//!
//! It never waits for a vault: what it gives back is emptied in a task beside it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use covault_core::{fault::Fault, ids::OrchestratorId, version::this_version};
use futures::future::join_all;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::watch;

use super::{
    Lease, LeaseRow, LeaseScope, MAX_MEMBERS, MemberRow,
    lease_store::{MAX_LEASES_PER_COMMIT, leases, of_no_vault, release, stored, take, take_all},
    member, member_of,
    members::MemberTable,
    told::{self, ToldMisfits, VaultMove},
};
use crate::{
    nodes,
    services::Services,
    store::{Batch, CommitError, KeySpace, Precondition, Scan, rows},
    vaults::directory,
    vaults::directory::DirectoryAddress,
};

/// Vaults that are emptied for others at the same time.
const MAX_MOVES: usize = 4_096;
/// The same, with those that were given and that nobody has taken yet: they are nowhere.
const MAX_AWAY: usize = 2 * MAX_MOVES;
/// How often it is looked whether others have taken what was given, while there is more to give.
const TAKEN_INTERVAL: Duration = Duration::from_millis(250);
/// How long commands may take that are in progress on a vault that is for another orchestrator.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// After this many rounds all rows are read, changed or not.
const ROUNDS_PER_FULL_SCAN: u32 = 20;
/// A round in which only those are read that others are giving counts for so many: new vaults are not among them.
const ROUNDS_PER_GIVEN: u32 = 4;
/// After this many lease times the row of a dead orchestrator is deleted.
const LEASES_BEFORE_DELETION: u64 = 60;

pub enum Msg {
    /// It is time to look.
    RoundDue,
    /// The orchestrator is stopping: it takes no more leases, and gives what it has to others that are alive.
    Leave,
    /// These were emptied, and whether they were given back.
    Moved(Vec<LeaseScope>, bool),
    /// Others may have taken what was given.
    TakenDue,
}

pub struct LeaseManager;

pub struct LeaseManagerState {
    services: Arc<Services>,
    directory: watch::Receiver<DirectoryAddress>,
    members: MemberTable,
    /// The version of the row of this orchestrator; `None` while there is none, or it is not known.
    version: Option<u64>,
    since_ms: u64,
    leaving: bool,
    /// Nobody else is where this process is.
    alone_at_home: bool,
    /// What was last seen of the members.
    signature: Vec<(OrchestratorId, u64, bool)>,
    /// Rounds since everything was looked at.
    rounds: u32,
    moving: BTreeSet<LeaseScope>,
    /// What was given, as far as nobody is known to have taken it, while there is more to give.
    given: BTreeSet<LeaseScope>,
    /// It will be looked who has.
    looks_for_taken: bool,
    /// What others are to give to this one, as of the last look at everything.
    expected: BTreeMap<OrchestratorId, BTreeSet<LeaseScope>>,
    /// There was more to give than may be moving, or to one that was not there for long enough.
    gives_later: bool,
    told_nodes: Option<Vec<covault_core::order::NodeId>>,
    told_misfits: ToldMisfits,
    failures: u32,
}

#[async_trait]
impl Actor for LeaseManager {
    type Msg = Msg;
    type State = LeaseManagerState;
    type Arguments = (Arc<Services>, watch::Receiver<DirectoryAddress>);

    async fn pre_start(
        &self,
        myself: ActorRef<Msg>,
        (services, directory): (Arc<Services>, watch::Receiver<DirectoryAddress>),
    ) -> Result<LeaseManagerState, ActorProcessingErr> {
        myself.cast(Msg::RoundDue)?;
        Ok(LeaseManagerState {
            since_ms: services.now_ms(),
            services,
            directory,
            members: MemberTable::default(),
            version: None,
            leaving: false,
            alone_at_home: false,
            signature: Vec::new(),
            rounds: ROUNDS_PER_FULL_SCAN,
            moving: BTreeSet::new(),
            given: BTreeSet::new(),
            looks_for_taken: false,
            expected: BTreeMap::new(),
            gives_later: false,
            told_nodes: None,
            told_misfits: ToldMisfits::default(),
            failures: 0,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Msg>,
        message: Msg,
        state: &mut LeaseManagerState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Msg::RoundDue => {
                let exclusive = state.services.store.exclusive() && state.services.runs_vaults;
                let round = if exclusive {
                    take_all(&state.services).await
                } else {
                    state.round(&myself).await
                };
                let heartbeat = Duration::from_millis(state.services.settings.heartbeat_ms);
                match round {
                    // Nobody else can come.
                    Ok(()) if exclusive => {}
                    Ok(()) => {
                        state.failures = 0;
                        myself.send_after(heartbeat, || Msg::RoundDue);
                    }
                    Err(fault) => {
                        // Once an outage is enough.
                        if state.failures == 0 {
                            tracing::warn!(?fault, "lease heartbeat failed");
                        }
                        state.failures = state.failures.saturating_add(1);
                        state.rounds = ROUNDS_PER_FULL_SCAN;
                        let pause = state.services.backoff(state.failures).min(heartbeat);
                        myself.send_after(pause, || Msg::RoundDue);
                    }
                }
            }
            Msg::Leave => {
                state.leaving = true;
                // Also what another one was not there for long enough for.
                state.gives_later = true;
                state.leave(&myself).await;
            }
            Msg::Moved(scopes, released) => {
                for scope in &scopes {
                    state.moving.remove(scope);
                }
                if released {
                    state.given.extend(scopes);
                }
                state.give(&myself);
                if state.moving.is_empty() || !released {
                    state.rounds = ROUNDS_PER_FULL_SCAN;
                }
                if state.leaving {
                    state.leave(&myself).await;
                }
            }
            Msg::TakenDue => {
                state.looks_for_taken = false;
                if let Err(fault) = state.forget_taken().await {
                    tracing::debug!(?fault, "failed to read which vaults others have taken");
                }
                state.give(&myself);
            }
        }
        Ok(())
    }
}

impl LeaseManagerState {
    /// Shows that this orchestrator is alive, and looks for vaults that it can take.
    async fn round(&mut self, myself: &ActorRef<Msg>) -> Result<(), Fault> {
        if !self.services.runs_vaults {
            self.refresh_members().await?;
            return self.tell_nodes().await;
        }
        if !self.services.is_lease_fresh() {
            // Others may have taken everything.
            self.rounds = ROUNDS_PER_FULL_SCAN;
        }
        self.heartbeat().await?;
        if !self.alone_at_home {
            self.remove_predecessors().await?;
            self.alone_at_home = true;
        }
        self.refresh_members().await?;
        self.tell_nodes().await?;
        let lease_ms = self.services.settings.lease_ms;
        let me = self.services.held_leases.me();
        let signature = self.members.signature(me, lease_ms);
        self.rounds = self.rounds.saturating_add(1);
        if signature == self.signature && self.rounds < ROUNDS_PER_FULL_SCAN {
            if self.gives_later {
                self.give(myself);
            }
            return Ok(());
        }
        let able = |(id, _, eligible): &(OrchestratorId, u64, bool)| (*id, *eligible);
        let only_moves = signature
            .iter()
            .map(able)
            .eq(self.signature.iter().map(able));
        if only_moves && !self.leaving && self.rounds < ROUNDS_PER_FULL_SCAN {
            let wanted = self.given_by_others().await?;
            if !wanted.is_empty() {
                self.give(myself);
                self.take(wanted).await?;
                self.signature = signature;
                self.rounds = self.rounds.saturating_add(ROUNDS_PER_GIVEN);
                return Ok(());
            }
        }
        let others = of_no_vault(&self.services);
        let leases = leases(&*self.services.store, others).await?;
        // After the leases: an owner of one of them was there before.
        self.refresh_members().await?;
        let wanted = self.reconcile(&leases);
        self.give(myself);
        self.take(wanted).await?;
        self.delete_dead_members(&leases).await?;
        // Only now: a round that failed begins again.
        self.signature = signature;
        self.rounds = 0;
        Ok(())
    }

    /// Tells the others at once that this orchestrator is leaving, and what it has given back by now; and gives more.
    async fn leave(&mut self, myself: &ActorRef<Msg>) {
        if self.services.store.exclusive() || !self.services.runs_vaults {
            return;
        }
        let told = if self.moving.is_empty() {
            self.rounds = ROUNDS_PER_FULL_SCAN;
            self.round(myself).await
        } else {
            self.heartbeat().await
        };
        if let Err(fault) = told {
            tracing::warn!(
                ?fault,
                "failed to announce the shutdown to other orchestrators"
            );
        }
    }

    /// Writes the row of this orchestrator.
    async fn heartbeat(&mut self) -> Result<(), Fault> {
        let services = &self.services;
        let held_leases = &services.held_leases;
        let began_ms = services.monotonic.elapsed_ms();
        let row = self.row();
        let key = member(held_leases.me());
        let expect = match self.version {
            Some(version) => Precondition::Version(version),
            None => match services.store.get(&key).await? {
                Some(row) => Precondition::Version(row.version),
                None => Precondition::Absent,
            },
        };
        let mut batch = Batch::new();
        batch.put(key, expect, rows::encode(&row)?);
        let version = match expect {
            Precondition::Version(version) => version.saturating_add(1),
            Precondition::Any | Precondition::Absent => 1,
        };
        // Whatever happens to it: it is read again when that is not known.
        self.version = None;
        services.store.commit(batch).await?;
        self.version = Some(version);
        held_leases.seen(version, began_ms);
        Ok(())
    }

    fn row(&self) -> MemberRow {
        let services = &self.services;
        MemberRow {
            name: services.name.clone(),
            home: services.home,
            since_ms: self.since_ms,
            at_ms: services.now_ms(),
            moves: services.held_leases.moves(),
            leaving: self.leaving,
            follows: services.chains.followed().collect(),
            sends_webhooks: services.webhooks.keys.is_some(),
            version: this_version().to_owned(),
            secret_fingerprint: services.secret_fingerprint,
            requests: services.counters.all_requests(),
        }
    }

    /// An earlier process with the same home is dead: its leases need not be waited for.
    async fn remove_predecessors(&self) -> Result<(), Fault> {
        let services = &self.services;
        let Some(home) = services.home else {
            return Ok(());
        };
        let all = Scan::prefix(KeySpace::Member, &[], MAX_MEMBERS);
        for (key, row) in services.store.scan(&all).await? {
            let same = rows::decode::<MemberRow>(&row.value).is_ok_and(|it| it.home == Some(home));
            if !same || member_of(&key) == Some(services.held_leases.me()) {
                continue;
            }
            let mut batch = Batch::new();
            batch.delete(key, Precondition::Any);
            services.store.commit(batch).await?;
        }
        Ok(())
    }

    async fn refresh_members(&mut self) -> Result<(), Fault> {
        let services = &self.services;
        let all = Scan::prefix(KeySpace::Member, &[], MAX_MEMBERS);
        let now_ms = services.monotonic.elapsed_ms();
        let found = services.store.scan(&all).await?;
        let rows = found.iter().filter_map(|(key, row)| {
            let member = rows::decode::<MemberRow>(&row.value);
            Some((member_of(key)?, row.version, member.ok()?))
        });
        let most_ms = services.settings.heartbeat_ms.saturating_mul(2);
        self.members.observe(rows, now_ms, most_ms);
        let lease_ms = services.settings.lease_ms;
        services
            .held_leases
            .set_eligible(self.members.eligible(lease_ms));
        let (own, me) = (self.row(), services.held_leases.me());
        let others = self.members.writing(lease_ms);
        self.told_misfits
            .tell(&own, others.filter(|(id, _)| *id != me));
        Ok(())
    }

    /// Others may have admitted or removed nodes.
    async fn tell_nodes(&mut self) -> Result<(), Fault> {
        let admitted = nodes::admitted_ids(&self.services).await?;
        if self.told_nodes.as_ref() != Some(&admitted) {
            self.services.signers.admit(&admitted);
            self.told_nodes = Some(admitted);
        }
        Ok(())
    }

    /// Forgets what others have taken of what was given.
    async fn forget_taken(&mut self) -> Result<(), Fault> {
        let given = self.given.iter().copied();
        let stored = stored(&*self.services.store, given).await?;
        self.given.retain(|scope| {
            stored
                .get(scope)
                .is_some_and(|(row, _)| row.owner.is_none())
        });
        Ok(())
    }

    /// What others have given by now of what they are to give to this one. Each gives in order, and no more at a time than
    /// are read.
    async fn given_by_others(
        &mut self,
    ) -> Result<Vec<(LeaseScope, Option<(LeaseRow, u64)>)>, Fault> {
        let first = self
            .expected
            .values()
            .flat_map(|of| of.iter().take(MAX_AWAY));
        let stored = stored(&*self.services.store, first.copied()).await?;
        let mut given = Vec::new();
        for (owner, expected) in &mut self.expected {
            expected.retain(|scope| {
                let Some((row, version)) = stored.get(scope) else {
                    return true;
                };
                if row.owner.is_none() {
                    given.push((*scope, Some((row.clone(), *version))));
                }
                row.owner == Some(*owner)
            });
        }
        Ok(given)
    }

    /// Compares what is stored with what is here. Returns what is to be taken.
    fn reconcile(
        &mut self,
        leases: &BTreeMap<LeaseScope, Option<(LeaseRow, u64)>>,
    ) -> Vec<(LeaseScope, Option<(LeaseRow, u64)>)> {
        let held_leases = &self.services.held_leases;
        let (me, lease_ms) = (held_leases.me(), self.services.settings.lease_ms);
        let eligible = self.members.eligible(lease_ms);
        let mut wanted = Vec::new();
        self.expected.clear();
        for (scope, stored) in leases {
            let owner = stored.as_ref().and_then(|(stored, _)| stored.owner);
            if let (Some((_, version)), true) = (stored, owner == Some(me)) {
                let held = held_leases.get(*scope);
                let is_known = held.is_some_and(|lease| lease.version() == *version);
                // Of what this orchestrator wrote it had not heard that it was written.
                if !is_known && !self.moving.contains(scope) {
                    held_leases.begin(Lease::new(*scope, *version));
                }
                continue;
            }
            if let Some(lease) = held_leases.get(*scope) {
                tracing::warn!(?scope, "lease lost to another orchestrator");
                held_leases.end(&lease);
            }
            if self.leaving || self.members.preferred(*scope, &eligible) != Some(me) {
                continue;
            }
            match owner.filter(|owner| self.members.is_live(*owner, lease_ms)) {
                None => wanted.push((*scope, stored.clone())),
                Some(owner) => {
                    self.expected.entry(owner).or_default().insert(*scope);
                }
            }
        }
        wanted
    }

    /// Gives others what they should have, in order, and so much at a time that none of it is away for long: what was given
    /// and is not taken yet counts as well. Goes by what is here: reading the leases of very many vaults takes longer than
    /// giving some of them.
    fn give(&mut self, myself: &ActorRef<Msg>) {
        if self.moving.len() > MAX_MOVES / 2 {
            return;
        }
        let services = Arc::clone(&self.services);
        let (me, lease_ms) = (services.held_leases.me(), services.settings.lease_ms);
        let eligible = self.members.eligible(lease_ms);
        let mut leaving = Vec::new();
        self.gives_later = false;
        let mut held = services.held_leases.all();
        held.sort_unstable_by_key(|lease| lease.scope());
        for lease in held {
            let scope = lease.scope();
            let preferred = self.members.preferred(scope, &eligible);
            let Some(other) = preferred.filter(|other| *other != me) else {
                continue;
            };
            // Who leaves does not wait for anyone to have been there for long.
            let takes = self.leaving || self.members.is_settled(other, lease_ms);
            let away = self.moving.len().saturating_add(self.given.len());
            if self.moving.len() >= MAX_MOVES || away >= MAX_AWAY {
                self.gives_later = true;
                break;
            }
            if !takes {
                self.gives_later = true;
            } else if self.moving.insert(scope) {
                leaving.push(lease);
            }
        }
        if !self.gives_later {
            self.given.clear();
        } else if !self.given.is_empty() && !std::mem::replace(&mut self.looks_for_taken, true) {
            myself.send_after(TAKEN_INTERVAL, || Msg::TakenDue);
        }
        // Each group is free once its slowest vault is empty.
        for group in leaving.chunks(MAX_LEASES_PER_COMMIT) {
            hand_over(&services, myself, &self.directory, group.to_vec());
        }
    }

    async fn take(
        &mut self,
        wanted: Vec<(LeaseScope, Option<(LeaseRow, u64)>)>,
    ) -> Result<(), Fault> {
        for some in wanted.chunks(MAX_LEASES_PER_COMMIT) {
            if !take(&self.services, some).await? {
                // Another orchestrator was faster with one of them.
                for one in some.chunks(1) {
                    take(&self.services, one).await?;
                }
            }
            self.heartbeat().await?;
        }
        let scopes = wanted.iter().map(|(scope, _)| *scope);
        let taken: Vec<_> = scopes
            .filter(|scope| self.services.held_leases.get(*scope).is_some())
            .collect();
        told::tell(&self.services, VaultMove::TakenOver, &taken).await;
        Ok(())
    }

    /// Deletes the rows of those that died long ago and have nothing.
    async fn delete_dead_members(
        &self,
        leases: &BTreeMap<LeaseScope, Option<(LeaseRow, u64)>>,
    ) -> Result<(), Fault> {
        let after_ms = self
            .services
            .settings
            .lease_ms
            .saturating_mul(LEASES_BEFORE_DELETION);
        for (id, version) in self.members.forgotten(after_ms) {
            let has = |stored: &Option<(LeaseRow, u64)>| {
                stored.as_ref().and_then(|(stored, _)| stored.owner) == Some(id)
            };
            if leases.values().any(has) {
                continue;
            }
            let mut batch = Batch::new();
            batch.delete(member(id), Precondition::Version(version));
            match self.services.store.commit(batch).await {
                // It woke up, or another orchestrator was faster.
                Ok(()) | Err(CommitError::Conflict(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Has the commands of vaults end, their actors stop, and the vaults be free.
fn hand_over(
    services: &Arc<Services>,
    myself: &ActorRef<Msg>,
    directory: &watch::Receiver<DirectoryAddress>,
    leases: Vec<Arc<Lease>>,
) {
    let (services, myself) = (Arc::clone(services), myself.clone());
    let directory = directory.borrow().clone();
    tokio::spawn(async move {
        join_all(leases.iter().map(|lease| lease.drain(DRAIN_TIMEOUT))).await;
        for lease in &leases {
            services.held_leases.end(lease);
        }
        let scopes: Vec<_> = leases.iter().map(|lease| lease.scope()).collect();
        if let Some(directory) = &directory {
            // Nothing is written from now on, also when they do not answer.
            join_all(scopes.iter().map(|scope| ended(directory, *scope))).await;
        }
        let released = release(&services, &leases).await;
        let _ = myself.cast(Msg::Moved(scopes.clone(), released.is_ok()));
        match released {
            Ok(()) => told::tell(&services, VaultMove::HandedOver, &scopes).await,
            Err(fault) => {
                tracing::warn!(vaults = leases.len(), ?fault, "failed to release leases");
            }
        }
    });
}

/// Waits for the end of the actor of a vault.
async fn ended(directory: &ActorRef<directory::Msg>, scope: LeaseScope) {
    if let LeaseScope::Vault(vault) = scope {
        let ended = |reply| directory::Msg::Ended(vault, reply);
        let _ = directory.call(ended, Some(DRAIN_TIMEOUT)).await;
    }
}
