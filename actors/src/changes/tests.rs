#![allow(non_snake_case)]

use std::sync::{Arc, atomic::AtomicU64};

use async_trait::async_trait;
use covault_core::{
    audit::{AuditChain, AuditEntry, AuditEvent},
    derive::KeyPath,
    fault::Class,
    ids::{RequestId, TokenId, VaultId, WalletId},
    networks::Network,
    request::{ApprovalRule, Consent, RequestState, SigningRequest},
    testing::{ConstantEntropy, ManualClock},
};

use super::*;
use crate::{
    audit,
    commands::caller::{Caller, VaultScope},
    lists::READ_CHUNK,
    services::{Listeners, Services},
    settings::OrchestratorParts,
    store::{
        Batch, Key, KeySpace, Precondition, ReadError, Row, Scan, Store, memory::MemoryStore, rows,
    },
    testing::{StoreDouble, orchestrator_parts},
};

const HOUR: u64 = 60 * 60 * 1000;

/// A process on a store that another one writes to.
struct World {
    store: Arc<MemoryStore>,
    clock: Arc<ManualClock>,
    services: Arc<Services>,
    hub: Arc<ChangeHub>,
}

impl World {
    fn new() -> Self {
        Self::on(Arc::new(MemoryStore::shared()), Arc::default())
    }

    fn on(store: Arc<MemoryStore>, clock: Arc<ManualClock>) -> Self {
        let front = Arc::clone(&store) as _;
        Self::behind(front, store, clock)
    }

    /// Its own process sees the store through `front`.
    fn behind(front: Arc<dyn Store>, store: Arc<MemoryStore>, clock: Arc<ManualClock>) -> Self {
        let hub = Arc::new(ChangeHub::default());
        let parts = OrchestratorParts {
            entropy: Arc::new(ConstantEntropy(1)),
            ..orchestrator_parts(front, Arc::clone(&clock))
        };
        let listeners = Listeners {
            logs: Arc::clone(&hub) as _,
            ..Listeners::none()
        };
        let services = Arc::new(Services::new(parts, listeners));
        let task = follower::run(Arc::clone(&services), Arc::clone(&hub));
        services.tasks.spawn(task);
        Self {
            store,
            clock,
            services,
            hub,
        }
    }

    fn at(&self, ms: u64) {
        self.clock.0.store(ms, Ordering::SeqCst);
    }

    /// The other process changes a request.
    async fn change(&self, vault: u8, number: u64, at_ms: u64) {
        change(&self.store, vault, number, at_ms).await;
    }

    async fn listen(
        &self,
        vaults: VaultScope,
        after: Option<Position>,
    ) -> (ChangeListener, ListenerStart) {
        let caller = Caller {
            vaults,
            ..Caller::service("test")
        };
        ChangeListener::begin(
            Arc::clone(&self.services),
            Arc::clone(&self.hub),
            caller,
            after,
        )
        .await
    }
}

async fn change(store: &MemoryStore, vault: u8, number: u64, at_ms: u64) {
    let (vault, id) = (VaultId::from_bytes([vault; 16]), request(number));
    let request = SigningRequest {
        id,
        vault,
        wallet: WalletId::from_bytes([3; 16]),
        network: Network::Bitcoin,
        root_public_key: vec![4; 33],
        path: KeyPath::of_wallet(Network::Bitcoin, 5).unwrap(),
        public_key: vec![6; 33],
        address: "bc1q".into(),
        payload: vec![7],
        notes: None,
        token: TokenId::from_bytes([9; 16]),
        replaces: None,
        created_at_ms: 10,
        consent: Consent::new(ApprovalRule::automatic()),
        state: RequestState::Received,
    };
    let entry = AuditEntry {
        at_ms,
        by: "service".into(),
        call: String::new(),
        subject: format!("request:{id}"),
        events: vec![AuditEvent {
            event: "Received".into(),
            facts: Vec::new(),
        }],
    };
    let mut batch = Batch::new();
    let row = rows::encode(&request).unwrap();
    batch.put(rows::request(id), Precondition::Any, row);
    batch.append(AuditChain::Vault(vault), entry.encode().unwrap());
    store.commit(batch).await.unwrap();
}

fn request(number: u64) -> RequestId {
    RequestId::from_bytes(u128::from(number).to_be_bytes())
}

/// Listens until it has heard of these requests, in any order. Returns how many changes it heard of.
async fn hears(listener: &mut ChangeListener, numbers: std::ops::Range<u64>) -> usize {
    let mut missing: BTreeSet<_> = numbers.map(|it| request(it).to_string()).collect();
    let mut told = 0;
    while !missing.is_empty() {
        let heard = tokio::time::timeout(Duration::from_secs(30), listener.next());
        for (change, _) in heard.await.expect("in time").changes {
            told += 1;
            missing.retain(|uuid| !change.data.contains(uuid));
        }
    }
    told
}

/// Listens until it has read all that was before.
async fn arrive(listener: &mut ChangeListener) {
    while listener.position().is_none() {
        // With nothing to tell it waits.
        let _ = tokio::time::timeout(Duration::from_millis(50), listener.next()).await;
    }
}

#[test]
fn position__should_be_read_as_it_was_written_and_nothing_else() {
    let position = Position {
        safe_ms: 1_787_000_000_000,
        follower: 0xfe,
        next: u64::MAX,
    };
    let text = position.to_string();
    assert_eq!(text.parse::<Position>().unwrap(), position);
    for wrong in [
        "",
        "1",
        "1-2",
        "1-00000000000000fe",
        "1-fe-1",
        "01-00000000000000fe-1",
        "1-00000000000000FE-1",
        "+1-00000000000000fe-1",
        "1-00000000000000fe-1 ",
        "1-00000000000000fe--1",
        "99999999999999999999999-00000000000000fe-1",
    ] {
        let fault = wrong.parse::<Position>().unwrap_err();
        assert_eq!(*fault.class(), Class::Invalid);
        assert_eq!(fault.path(), Some("Last-Event-ID"), "{wrong}");
    }
}

#[test]
fn memory__should_be_bounded_and_say_what_it_lacks() {
    let mut followed = RecentChanges {
        id: 1,
        first: 0,
        kept: VecDeque::new(),
        visible: 0,
        complete_from_ms: 5,
        safe_ms: 5,
        last_ms: HashMap::new(),
        service: 1,
    };
    for number in 0..KEPT as u64 + 10 {
        followed.keep(Change {
            vault: VaultId::from_bytes([1; 16]),
            data: String::new(),
            at_ms: 1_000 + number,
            safe_ms: 5,
        });
    }
    assert_eq!((followed.kept.len(), followed.first), (KEPT, 10));
    assert_eq!(followed.complete_from_ms, 1_010);
    // Listeners have what they may have, and no more.
    assert_eq!(followed.from(10).count(), 0);
    followed.visible = 13;
    let numbers: Vec<_> = followed.from(11).map(|(number, _)| number).collect();
    assert_eq!(numbers, [12, 13]);
}

#[tokio::test]
async fn listeners__should_hear_what_others_write_of_their_vaults_only() {
    let world = World::new();
    world.at(100 * HOUR);
    let mine = VaultScope::Only(vec![VaultId::from_bytes([1; 16])]);
    let (mut all, start) = world.listen(VaultScope::All, None).await;
    assert_eq!(start, ListenerStart::Now);
    let (mut some, _) = world.listen(mine, None).await;
    for number in 0..200 {
        world
            .change(1 + (number % 2) as u8, number, 100 * HOUR)
            .await;
    }
    hears(&mut all, 0..200).await;
    let mut told = 0;
    while told < 100 {
        for (change, position) in some.next().await.changes {
            assert_eq!(change.vault, VaultId::from_bytes([1; 16]));
            assert!(position.is_some());
            told += 1;
        }
    }
    assert_eq!(world.hub.listeners(), 2);
    drop((all, some));
    assert_eq!(world.hub.listeners(), 0);
}

#[tokio::test]
async fn who_comes_back__should_hear_all_since_then_from_memory_and_from_the_logs() {
    let world = World::new();
    world.at(100 * HOUR);
    // Long before this process: more than a page, and more than is looked at in one step.
    for number in 0..1_500 {
        let at_ms = 90 * HOUR + number * 1_000;
        world.change(1 + (number % 3) as u8, number, at_ms).await;
    }
    let place = |at_ms| Position {
        safe_ms: at_ms,
        follower: 77,
        next: 3,
    };
    let (mut listener, start) = world.listen(VaultScope::All, Some(place(90 * HOUR))).await;
    assert_eq!(start, ListenerStart::GoesOn);
    // Changes in the meantime are reported too.
    world.change(1, 1_500, 100 * HOUR).await;
    assert!(listener.position().is_none());
    let told = hears(&mut listener, 0..1_501).await;
    assert!(told < 1_600, "{told}");
    arrive(&mut listener).await;
    // From the middle: not what was long before.
    let middle = 90 * HOUR + 1_000_000;
    let (mut listener, _) = world.listen(VaultScope::All, Some(place(middle))).await;
    let told = hears(&mut listener, 1_000..1_501).await;
    assert!(told < 700, "{told}");
    // The same process knows the very place.
    arrive(&mut listener).await;
    let at = listener.position().expect("among the changes in memory");
    drop(listener);
    world.change(2, 1_501, 100 * HOUR).await;
    let (mut listener, _) = world.listen(VaultScope::All, Some(at)).await;
    assert_eq!(hears(&mut listener, 1_501..1_502).await, 1);
    // Another process goes by the time.
    let other = World::on(Arc::clone(&world.store), Arc::clone(&world.clock));
    let (mut listener, start) = other.listen(VaultScope::All, Some(at)).await;
    assert_eq!(start, ListenerStart::GoesOn);
    hears(&mut listener, 1_501..1_502).await;
}

#[tokio::test]
async fn places__should_be_of_the_last_day() {
    let world = World::new();
    world.at(100 * HOUR);
    let start = async |safe_ms| {
        let place = Position {
            safe_ms,
            follower: 7,
            next: 0,
        };
        world.listen(VaultScope::All, Some(place)).await.1
    };
    for (at_ms, expected) in [
        (0, ListenerStart::Anew),
        (76 * HOUR - 1, ListenerStart::Anew),
        (76 * HOUR, ListenerStart::GoesOn),
        (100 * HOUR, ListenerStart::GoesOn),
        (100 * HOUR + MARGIN_MS, ListenerStart::GoesOn),
        (100 * HOUR + MARGIN_MS + 1, ListenerStart::Anew),
        (u64::MAX, ListenerStart::Anew),
    ] {
        assert_eq!(start(at_ms).await, expected, "{at_ms}");
    }
}

#[tokio::test(start_paused = true)]
async fn following__should_end_when_nobody_listens_and_begin_again() {
    let world = World::new();
    world.at(100 * HOUR);
    for round in 0..2 {
        let (mut listener, _) = world.listen(VaultScope::All, None).await;
        assert!(world.hub.is_active());
        world.change(1, round, 100 * HOUR).await;
        hears(&mut listener, round..round + 1).await;
        drop(listener);
        tokio::time::sleep(UNHEARD + Duration::from_secs(10)).await;
        assert!(!world.hub.is_active());
        assert!(world.hub.followed.read().is_none());
    }
}

/// A store that can hold back answers about entries of logs, and in which vault 1 may write as fast as it is read.
struct Busy {
    store: Arc<MemoryStore>,
    held: watch::Sender<bool>,
    /// The next request that vault 1 changes; 0: it writes nothing.
    next: AtomicU64,
}

#[async_trait]
impl StoreDouble for Busy {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    async fn scan(&self, scan: &Scan) -> Result<Vec<(Key, Row)>, ReadError> {
        if scan.space == KeySpace::AuditEntry {
            let mut held = self.held.subscribe();
            let _ = held.wait_for(|held| !held).await;
        }
        let first = self.next.load(Ordering::SeqCst);
        if scan.space == KeySpace::AuditEntry && first > 0 {
            let next = first + audit::PAGE as u64;
            self.next.store(next, Ordering::SeqCst);
            for number in first..next {
                change(&self.store, 1, number, 100 * HOUR).await;
            }
        }
        self.inner().scan(scan).await
    }
}

fn busy() -> (World, Arc<Busy>) {
    let store = Arc::new(MemoryStore::shared());
    let busy = Arc::new(Busy {
        store: Arc::clone(&store),
        held: watch::channel(false).0,
        next: AtomicU64::new(0),
    });
    let front = Arc::clone(&busy) as _;
    let world = World::behind(front, store, Arc::default());
    world.at(100 * HOUR);
    (world, busy)
}

fn long_ago() -> Position {
    Position {
        safe_ms: 90 * HOUR,
        follower: 77,
        next: 3,
    }
}

#[tokio::test]
async fn listeners_that_stop_while_they_read_the_logs__should_keep_no_turn_from_others() {
    let (world, busy) = busy();
    for number in 0..1_000 {
        world.change(1, number, 95 * HOUR).await;
    }
    let mut stopped = Vec::new();
    for _ in 0..2 * READERS {
        stopped.push(world.listen(VaultScope::All, Some(long_ago())).await.0);
    }
    let (mut other, _) = world.listen(VaultScope::All, Some(long_ago())).await;
    busy.held.send_replace(true);
    // Each asks once, and is not polled again: its client reads no further.
    let waiting = stopped.iter_mut().map(|listener| Box::pin(listener.next()));
    let mut waiting: Vec<_> = waiting.collect();
    for listener in &mut waiting {
        assert!(futures::poll!(listener).is_pending());
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    busy.held.send_replace(false);
    hears(&mut other, 0..1_000).await;
    // They find what was read for them, and the rest.
    drop(waiting);
    for mut listener in stopped {
        hears(&mut listener, 0..1_000).await;
    }
}

#[tokio::test]
async fn pages__should_be_small_wherever_changes_are_read() {
    let (world, _) = busy();
    for number in 0..1_000 {
        world.change(1, number, 95 * HOUR).await;
    }
    let (mut listener, _) = world.listen(VaultScope::All, Some(long_ago())).await;
    let mut told = 0;
    while told < 1_000 {
        let page = listener.next().await.changes.len();
        assert!(page <= READ_CHUNK, "{page} from the logs");
        told += page;
    }
    arrive(&mut listener).await;
    for number in 1_000..2_000 {
        world.change(1, number, 100 * HOUR).await;
    }
    let mut told = 0;
    while told < 1_000 {
        let page = listener.next().await.changes.len();
        assert!(page <= READ_CHUNK, "{page} from memory");
        told += page;
    }
}

#[tokio::test]
async fn vault_that_writes_as_fast_as_it_is_read__should_keep_no_other_waiting() {
    let (world, busy) = busy();
    let quiet = VaultScope::Only(vec![VaultId::from_bytes([2; 16])]);
    let (mut listener, _) = world.listen(quiet, None).await;
    busy.next.store(1_000, Ordering::SeqCst);
    world.change(1, 1, 100 * HOUR).await;
    world.change(2, 2, 100 * HOUR).await;
    assert_eq!(hears(&mut listener, 2..3).await, 1);
    busy.next.store(0, Ordering::SeqCst);
}
