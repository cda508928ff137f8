//! The actor that writes down how the service is as a whole. The failures of its own process each does; vaults and requests
//! are counted by one for all: the one that holds the maintenance lease.
//!
//! It takes at most one hundredth of a core as long as that leaves counts of a few minutes; and it counts at once when a
//! signer node comes, goes, stops signing or lists others.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use covault_core::{
    fault::{Class, Fault},
    ids::VaultId,
};
use ractor::{Actor, ActorProcessingErr, ActorRef};

use super::{Census, census};
use crate::{
    leases, nodes,
    port::NodeView,
    process::counters::SHOWN_FAILURES,
    services::{Services, skip_unreadable},
    store::{
        Batch, CommitError, Precondition,
        overview_rows::{self, FailedRequest, ServiceCounts},
        rows,
    },
};

/// How often it looks.
const INTERVAL: Duration = Duration::from_secs(2);
/// A count is followed by a pause of so many times as long as it took.
const PAUSES: u64 = 100;
/// But by no longer one than this, in milliseconds: what nodes do not tell, such as new vaults, shows by then.
const MAX_PAUSE_MS: u64 = 5 * 60 * 1000;
/// What has not changed is written again after so many milliseconds, so that it does not look old.
const REWRITTEN_MS: u64 = 60_000;
/// So many vaults are named in the log at once.
const MOST_NAMED: usize = 20;

pub enum Msg {
    /// It is time to look.
    LookDue,
}

pub struct ServiceObserver;

#[async_trait]
impl Actor for ServiceObserver {
    type Msg = Msg;
    type State = ServiceObserverState;
    type Arguments = Arc<Services>;

    async fn pre_start(
        &self,
        myself: ActorRef<Msg>,
        services: Arc<Services>,
    ) -> Result<ServiceObserverState, ActorProcessingErr> {
        myself.cast(Msg::LookDue)?;
        Ok(ServiceObserverState {
            services,
            written: None,
            short: BTreeMap::new(),
            nodes: Vec::new(),
            count_due_ms: 0,
            failing: false,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Msg>,
        message: Msg,
        state: &mut ServiceObserverState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Msg::LookDue => {
                let looked = state.look().await;
                // Once an outage is enough, and a lease that has moved meanwhile is none.
                if let Err(fault) = &looked
                    && *fault.class() != Class::Conflict
                    && !state.failing
                {
                    tracing::warn!(?fault, "failed to store how the service is doing");
                }
                state.failing = looked.is_err();
                myself.send_after(INTERVAL, || Msg::LookDue);
            }
        }
        Ok(())
    }
}

pub struct ServiceObserverState {
    services: Arc<Services>,
    /// What this process wrote last, under its present lease.
    written: Option<ServiceCounts>,
    /// The vaults that had too few signers when this process last counted.
    short: BTreeMap<VaultId, String>,
    /// The nodes as they were when it last counted, by what decides whether they sign.
    nodes: Vec<NodeView>,
    /// When it counts again, by the steady clock, unless nodes change.
    count_due_ms: u64,
    failing: bool,
}

impl ServiceObserverState {
    async fn look(&mut self) -> Result<(), Fault> {
        write_failures(&self.services).await?;
        let Some(here) = leases::maintenance_lease(&self.services).await? else {
            self.written = None;
            self.short.clear();
            return Ok(());
        };
        let began_ms = here.monotonic.elapsed_ms();
        let nodes = nodes::written(&here).await?.into_iter();
        let nodes: Vec<NodeView> = nodes.map(deciding).collect();
        if began_ms < self.count_due_ms && nodes == self.nodes {
            return Ok(());
        }
        let Some(census) = census(&here, usize::MAX).await? else {
            return Ok(());
        };
        let ended_ms = here.monotonic.elapsed_ms();
        let took_ms = ended_ms.saturating_sub(began_ms);
        let pause_ms = took_ms.saturating_mul(PAUSES).min(MAX_PAUSE_MS);
        self.write(&here, census).await?;
        // What could not be written is counted again at the next look.
        self.count_due_ms = ended_ms.saturating_add(pause_ms);
        self.nodes = nodes;
        Ok(())
    }

    async fn write(&mut self, services: &Services, census: Census) -> Result<(), Fault> {
        let Census { counts, short } = census;
        let is_known = self.written.as_ref().is_some_and(|written| {
            let same = (&written.vaults, &written.requests) == (&counts.vaults, &counts.requests);
            same && counts.at_ms.abs_diff(written.at_ms) < REWRITTEN_MS
        });
        if !is_known {
            let mut batch = Batch::new();
            let row = rows::encode(&counts)?;
            batch.put(overview_rows::counts(), Precondition::Any, row);
            services.store.commit(batch).await?;
            self.written = Some(counts);
        }
        tell_changes(&self.short, &short);
        self.short = short;
        Ok(())
    }
}

/// What decides of a node whether it signs.
fn deciding(node: NodeView) -> NodeView {
    NodeView {
        live: node.live,
        halted: node.halted,
        frozen: node.frozen,
        listed: node.listed,
        ..NodeView::unseen(node.id)
    }
}

/// Writes into the log which vaults have lost their signers, and which have them again.
fn tell_changes(before: &BTreeMap<VaultId, String>, now: &BTreeMap<VaultId, String>) {
    let lost = new_in(now, before);
    let back = new_in(before, now);
    for (vault, name) in lost.iter().take(MOST_NAMED) {
        tracing::warn!(name, %vault, "a vault cannot sign: too few of its signer nodes are available");
    }
    for (vault, name) in back.iter().take(MOST_NAMED) {
        tracing::info!(name, %vault, "a vault has enough signer nodes again");
    }
    for (which, vaults) in [
        ("cannot sign", lost),
        ("have enough signer nodes again", back),
    ] {
        let more = vaults.len().saturating_sub(MOST_NAMED);
        if more > 0 {
            tracing::warn!(
                more,
                "more vaults {which}; covault status names some of them"
            );
        }
    }
}

/// What only the first has.
fn new_in<'a>(
    these: &'a BTreeMap<VaultId, String>,
    others: &BTreeMap<VaultId, String>,
) -> Vec<(&'a VaultId, &'a String)> {
    let new = these
        .iter()
        .filter(|(vault, _)| !others.contains_key(vault));
    new.collect()
}

/// Adds what has failed in this process to the last failures of all.
async fn write_failures(services: &Services) -> Result<(), Fault> {
    let failed = services.counters.take_failures();
    if failed.is_empty() {
        return Ok(());
    }
    let added = add_failures(services, &failed).await;
    if !matches!(added, Ok(true)) {
        // Another process was faster, or the store is away: with the next look.
        services.counters.note_failures(failed);
    }
    added.map(|_| ())
}

/// False where another process has added some at the same time.
async fn add_failures(services: &Services, failed: &[FailedRequest]) -> Result<bool, Fault> {
    let key = overview_rows::failures();
    let row = services.store.get(&key).await?;
    let expect = row.as_ref().map_or(Precondition::Absent, |row| {
        Precondition::Version(row.version)
    });
    let known = row.map(|row| rows::decode::<Vec<FailedRequest>>(&row.value));
    let known = known.map(|known| skip_unreadable(known, "the last failures"));
    let mut all = known.transpose()?.flatten().unwrap_or_default();
    // A clock that was ahead must not hide what fails later: the order is that of writing.
    let now_ms = services.now_ms();
    for known in &mut all {
        known.at_ms = known.at_ms.min(now_ms);
    }
    // A commit of which it was not known may have been taken.
    let known: HashSet<_> = all.iter().map(|failed| failed.request).collect();
    let new = failed.iter().filter(|it| !known.contains(&it.request));
    all.extend(new.cloned());
    let older = all.len().saturating_sub(SHOWN_FAILURES);
    all.drain(..older);
    let mut batch = Batch::new();
    batch.put(key, expect, rows::encode(&all)?);
    match services.store.commit(batch).await {
        Ok(()) => Ok(true),
        Err(CommitError::Conflict(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::{
        ids::RequestId,
        order::NodeId,
        port::Clock as _,
        testing::{ConstantEntropy, ManualClock},
    };

    use super::*;
    use crate::{
        nodes::{AdmittedNode, status::NodeStatusRow},
        services::Listeners,
        settings::{OrchestratorParts, OrchestratorSharing},
        store::{KeySpace, Store, memory::MemoryStore},
        testing::{StoreCall, ToldStore, orchestrator_parts},
    };

    fn process(store: &Arc<MemoryStore>, clock: &Arc<ManualClock>) -> ServiceObserverState {
        process_on(Arc::clone(store) as _, clock)
    }

    fn process_on(store: Arc<dyn Store>, clock: &Arc<ManualClock>) -> ServiceObserverState {
        let parts = OrchestratorParts {
            entropy: Arc::new(ConstantEntropy(1)),
            sharing: OrchestratorSharing {
                monotonic: Arc::clone(clock) as _,
                ..OrchestratorSharing::default()
            },
            ..orchestrator_parts(store, Arc::clone(clock))
        };
        ServiceObserverState {
            services: Arc::new(Services::new(parts, Listeners::none())),
            written: None,
            short: BTreeMap::new(),
            nodes: Vec::new(),
            count_due_ms: 0,
            failing: false,
        }
    }

    fn failed(number: u8) -> FailedRequest {
        FailedRequest {
            at_ms: number.into(),
            request: RequestId::from_bytes([number; 16]),
            vault: VaultId::from_bytes([1; 16]),
            kind: "evmMessage".into(),
            class: "unspecified".into(),
            during: "Signing".into(),
            reason: String::new(),
        }
    }

    #[tokio::test]
    async fn failures__should_be_the_last_ten_of_all_processes() {
        let (store, clock) = (
            Arc::new(MemoryStore::new()),
            Arc::new(ManualClock::at(1_000)),
        );
        let (one, other) = (process(&store, &clock), process(&store, &clock));
        let numbers = async || {
            let key = overview_rows::failures();
            let row = one.services.load::<Vec<FailedRequest>>(&key);
            let (failures, version) = row.await.unwrap().unwrap();
            let numbers: Vec<u64> = failures.iter().map(|failed| failed.at_ms).collect();
            (numbers, version)
        };
        one.services.counters.note_failures([failed(2), failed(4)]);
        write_failures(&one.services).await.unwrap();
        other.services.counters.note_failures([failed(3)]);
        write_failures(&other.services).await.unwrap();
        assert_eq!(numbers().await, (vec![2, 4, 3], 2));
        // Of which nobody knew whether they were taken.
        one.services.counters.note_failures([failed(4)]);
        write_failures(&one.services).await.unwrap();
        assert_eq!(numbers().await, (vec![2, 4, 3], 3));
        write_failures(&other.services).await.unwrap();
        other.services.counters.note_failures((10..40).map(failed));
        write_failures(&other.services).await.unwrap();
        assert_eq!(
            numbers().await,
            ((30..40).collect(), 4),
            "nothing is written for nothing"
        );
    }

    #[tokio::test]
    async fn clock_that_was_ahead__should_hide_no_failure() {
        let (store, clock) = (
            Arc::new(MemoryStore::new()),
            Arc::new(ManualClock::at(1_000)),
        );
        let one = process(&store, &clock);
        let ahead = (10..20).map(|number| FailedRequest {
            at_ms: u64::MAX,
            ..failed(number)
        });
        one.services.counters.note_failures(ahead);
        write_failures(&one.services).await.unwrap();
        one.services.counters.note_failures([failed(1)]);
        write_failures(&one.services).await.unwrap();
        let key = overview_rows::failures();
        let row = one.services.load::<Vec<FailedRequest>>(&key);
        let (failures, _) = row.await.unwrap().unwrap();
        assert_eq!(failures.last(), Some(&failed(1)));
        assert!(failures.iter().all(|failed| failed.at_ms <= 1_000));
    }

    #[tokio::test]
    async fn counts__should_be_written_when_they_change_and_each_minute() {
        let store = Arc::new(MemoryStore::new());
        let clock = Arc::new(ManualClock::at(1_000_000));
        let mut observer = process(&store, &clock);
        let mut writes = async |passed_ms| {
            clock.advance(passed_ms);
            observer.look().await.unwrap();
            let key = overview_rows::counts();
            let row = observer.services.load::<ServiceCounts>(&key);
            row.await.unwrap().unwrap().1
        };
        assert_eq!(writes(0).await, 1);
        assert_eq!(writes(REWRITTEN_MS - 1).await, 1);
        assert_eq!(writes(1).await, 2);
    }

    #[tokio::test]
    async fn counts__should_be_minutes_old_at_most_and_follow_the_nodes_at_once() {
        const COUNT_MS: u64 = 60_000;
        let (inner, clock) = (
            Arc::new(MemoryStore::new()),
            Arc::new(ManualClock::at(1_000_000)),
        );
        let slow = Arc::clone(&clock);
        let inner: Arc<dyn Store> = inner;
        let store = ToldStore::new(&inner, move |told: StoreCall<'_>| {
            if matches!(told, StoreCall::Scan(scan) if scan.space == KeySpace::Vault) {
                slow.advance(COUNT_MS);
            }
        });
        let mut observer = process_on(store, &clock);
        let mut look = async |passed_ms| {
            clock.advance(passed_ms);
            let before = clock.now_ms();
            observer.look().await.unwrap();
            clock.now_ms() - before == COUNT_MS
        };
        assert!(look(0).await);
        assert!(!look(MAX_PAUSE_MS - 1).await);
        assert!(look(1).await);
        assert!(!look(2_000).await);
        let id = NodeId([9; 32]);
        let admitted = AdmittedNode {
            id,
            name: "graz".into(),
            at_ms: 1,
        };
        for live in [true, false] {
            let row = NodeStatusRow {
                at_ms: 1,
                node: NodeView {
                    live,
                    ..NodeView::unseen(id)
                },
            };
            let mut batch = Batch::new();
            let admitted = rows::encode(&admitted).unwrap();
            batch.put(rows::node(id), Precondition::Any, admitted);
            let row = rows::encode(&row).unwrap();
            batch.put(rows::node_status(id), Precondition::Any, row);
            inner.commit(batch).await.unwrap();
            assert!(look(2_000).await, "live: {live}");
            assert!(!look(2_000).await);
        }
    }
}
