//! A vault that starts with many unfinished requests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use covault_actors::{
    gateway::Gateway,
    store::{Batch, Key, KeySpace, Precondition, ReadError, Row, RowMap, Scan, Store},
    testing::StoreDouble,
};
use covault_core::{
    fault::FaultCode,
    ids::{RequestId, VaultId},
    request::SigningRequest,
    schema::wire,
};
use futures::future::join_all;
use tokio::sync::watch;

use crate::{nonces::nonce_of, world::*};

/// A store that gives no request while it is held.
struct HeldReads {
    inner: Arc<dyn Store>,
    hold: watch::Sender<bool>,
}

#[async_trait]
impl StoreDouble for HeldReads {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    async fn get(&self, key: &Key) -> Result<Option<Row>, ReadError> {
        if key.space == KeySpace::Request {
            let mut held = self.hold.subscribe();
            held.wait_for(|held| !held).await.unwrap();
        }
        self.inner.get(key).await
    }
}

/// A transfer whose transaction the client gets.
async fn signed_transfer(gateway: &Gateway, from: &str) -> wire::SigningRequest {
    let mut asked = request(send(from));
    asked.broadcast_tx = Some(false);
    created(try_create(gateway, asked, None).await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vault__should_answer_before_it_has_read_what_was_live() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 600_000;
    world.evm.down.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let mut transfers = Vec::new();
    for _ in 0..3 {
        transfers.push(signed_transfer(&gateway, &address).await);
        // Those of one millisecond have no order after a restart.
        world.clock.ahead_ms.fetch_add(1, Ordering::SeqCst);
    }
    gateway.stop().await;
    world.evm.down.store(false, Ordering::SeqCst);
    let store = Arc::new(HeldReads {
        inner: Arc::clone(&world.store),
        hold: watch::channel(true).0,
    });
    let gateway = world.start_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let answered = tokio::time::timeout(Duration::from_secs(20), evm_wallet(&gateway, vault)).await;
    assert!(answered.is_ok());
    let new = signed_transfer(&gateway, &address).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    store.hold.send_replace(false);
    transfers.push(new);
    // What is new comes after what was there.
    for (nonce, one) in (0u64..).zip(&transfers) {
        let signed = outcome(&gateway, &one.uuid).await.signed_transaction;
        assert_eq!(nonce_of(&signed), nonce);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vault__should_take_up_more_requests_than_it_has_at_once() {
    const REQUESTS: usize = 1_500;
    let mut world = World::new();
    world.settings.signing_deadline_ms = 600_000;
    world.signers.silent.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let mut requests = Vec::new();
    for _ in 0..REQUESTS / 100 {
        requests.extend(join_all((0..100).map(|_| create(&gateway, raw(&address)))).await);
    }
    gateway.stop().await;
    let asked = || world.signers.unanswered.load(Ordering::SeqCst);
    let before = asked();
    let gateway = world.start().await;
    while asked() < before + 1_000 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // A few more than it takes at once: those that have begun may wait for a chain that is away.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let begun = asked() - before;
    assert!((1_001..1_100).contains(&begun), "{begun}");
    world.signers.silent.store(false, Ordering::SeqCst);
    gateway.stop().await;
    let gateway = world.start().await;
    for one in &requests {
        assert_eq!(outcome(&gateway, &one.uuid).await.error, None);
    }
}

/// A store that counts the pages of what is unfinished.
struct CountedPages {
    inner: Arc<dyn Store>,
    pages: AtomicUsize,
}

#[async_trait]
impl StoreDouble for CountedPages {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    async fn get_all(&self, keys: &[Key]) -> Result<RowMap, ReadError> {
        self.inner.get_all(keys).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Vec<(Key, Row)>, ReadError> {
        if scan.space == KeySpace::Outbox {
            self.pages.fetch_add(1, Ordering::SeqCst);
        }
        self.inner.scan(scan).await
    }
}

/// Stores so many more unfinished requests like these of a vault, every second one like the first.
async fn copy_unfinished(store: &dyn Store, vault: VaultId, like: &[RequestId], count: usize) {
    let mut rows = Vec::new();
    let outbox = Scan::prefix(KeySpace::Outbox, vault.as_bytes(), 100);
    let effects = store.scan(&outbox).await.unwrap();
    for id in like {
        let effect = effects
            .iter()
            .find(|(key, _)| key.bytes.ends_with(id.as_bytes()));
        let (key, effect) = effect.unwrap();
        let request = Key::new(KeySpace::Request, &[id.as_bytes()]);
        let request = store.get(&request).await.unwrap().unwrap().value;
        let (version, request) = request.split_first().unwrap();
        let request: SigningRequest = bcs::from_bytes(request).unwrap();
        rows.push((key.bytes.clone(), effect.value.clone(), *version, request));
    }
    let mut batch = Batch::new();
    for number in 0..count {
        let (key, effect, version, request) = match number % 2 {
            0 => &rows[0],
            _ => &rows[1 + number / 2 % (rows.len() - 1)],
        };
        let id = RequestId::from_time(request.created_at_ms, (number as u128 + 1).to_be_bytes());
        let request = SigningRequest {
            id,
            ..request.clone()
        };
        let value = [vec![*version], bcs::to_bytes(&request).unwrap()].concat();
        let row = Key::new(KeySpace::Request, &[id.as_bytes()]);
        batch.put(row, Precondition::Absent, value);
        let name = &key[..key.len() - 16];
        let row = Key::new(KeySpace::Outbox, &[name, id.as_bytes()]);
        batch.put(row, Precondition::Absent, effect.clone());
        if number % 500 == 499 || number + 1 == count {
            store.commit(std::mem::take(&mut batch)).await.unwrap();
        }
    }
}

/// With COVAULT_UNFINISHED as many as that; `just measure-unfinished` prints the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(
    clippy::disallowed_methods,
    reason = "a measurement is told how much to measure, and reads the clock"
)]
async fn a_vault__should_answer_while_it_reads_very_many_unfinished_requests() {
    let count = std::env::var("COVAULT_UNFINISHED").map_or(20_000, |it| it.parse().unwrap());
    let mut world = World::new();
    world.settings.signing_deadline_ms = 3_600_000;
    world.settings.max_live_requests = 1_000_000;
    // They wait, and do nothing.
    (world.settings.retry_first_ms, world.settings.retry_most_ms) = (60_000, 60_000);
    world.evm.down.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let mut like = Vec::new();
    for _ in 0..4 {
        let address = evm_wallet(&gateway, vault).await;
        like.push(create(&gateway, send(&address)).await.uuid.parse().unwrap());
    }
    let address = evm_wallet(&gateway, vault).await;
    gateway.stop().await;
    copy_unfinished(&*world.store, vault, &like, count).await;
    let store = Arc::new(CountedPages {
        inner: Arc::clone(&world.store),
        pages: AtomicUsize::new(0),
    });
    let pages = || store.pages.load(Ordering::SeqCst);
    let began = Instant::now();
    let gateway = world.start_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let before = pages();
    let made = create(&gateway, raw(&address)).await;
    let (took, read) = (began.elapsed(), pages() - before);
    eprintln!(
        "{count} unfinished requests: the first call was answered after {took:?} and {read} pages"
    );
    // It did not wait until all were read.
    let all = count / 512;
    assert!(read < all / 2, "{read} of {all} pages");
    assert_eq!(outcome(&gateway, &made.uuid).await.error, None);
    gateway.stop().await;
}

/// Messages that wait for silent signers, more than a vault takes up at once.
async fn many_unsigned(world: &World, count: usize) -> (VaultId, String) {
    world.signers.silent.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    for _ in 0..count / 100 {
        join_all((0..100).map(|_| create(&gateway, raw(&address)))).await;
    }
    gateway.stop().await;
    (vault, address)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_without_an_actor__should_count_for_how_long_new_ones_wait() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 600_000;
    let (_, address) = many_unsigned(&world, 2_000).await;
    // Those that have actors alone are not too many: a thousand, and 40 more in each second.
    *world.signers.wait_for_each.lock().unwrap() = Duration::from_millis(200);
    let before = world.signers.unanswered.load(Ordering::SeqCst);
    let gateway = world.start().await;
    while world.signers.unanswered.load(Ordering::SeqCst) < before + 1_000 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let fault = try_create(&gateway, request(raw(&address)), None).await;
    let fault = fault.unwrap_err();
    assert_eq!(fault.code(), FaultCode::Busy { seconds: 60 }, "{fault:?}");
    // Once they have actors they count once.
    world.signers.silent.store(false, Ordering::SeqCst);
    gateway.stop().await;
    let gateway = world.start().await;
    while try_create(&gateway, request(raw(&address)), None)
        .await
        .is_err()
    {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request__should_have_all_its_time_once_earlier_ones_have_actors() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 600_000;
    let (vault, address) = many_unsigned(&world, 2_500).await;
    // The last ones to get actors.
    world.evm.down.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let early = signed_transfer(&gateway, &address).await;
    gateway.stop().await;
    world.evm.down.store(false, Ordering::SeqCst);
    // Long enough for two signatures on a machine that has much else to do.
    world.settings.signing_deadline_ms = 8_000;
    let store = Arc::new(HeldReads {
        inner: Arc::clone(&world.store),
        hold: watch::channel(true).0,
    });
    let gateway = world.start_on(Arc::clone(&store) as Arc<dyn Store>).await;
    evm_wallet(&gateway, vault).await;
    let late = signed_transfer(&gateway, &address).await;
    // The vault has not even found what comes before.
    tokio::time::sleep(Duration::from_millis(8_500)).await;
    store.hold.send_replace(false);
    // Now it has, and a thousand are before them.
    tokio::time::sleep(Duration::from_millis(8_500)).await;
    world.signers.silent.store(false, Ordering::SeqCst);
    for (nonce, one) in (0u64..).zip([early, late]) {
        let outcome = outcome(&gateway, &one.uuid).await;
        assert_eq!(outcome.error, None);
        assert_eq!(nonce_of(&outcome.signed_transaction), nonce);
    }
}
