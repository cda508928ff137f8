//! Transactions that a node took, and then forgot: sent again, or their numbers come free, and
//! nothing is ever paid twice.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;
use covault_actors::{
    chain_rpc::Standing,
    gateway::{DroppedCounts, Gateway},
    store::{Batch, CommitError, KeySpace, Scan, Store},
    testing::StoreDouble,
};
use covault_core::{
    fault::Class,
    schema::wire::{self, NetworkType, create_signing_request_request::Type as Kind},
};

use crate::{reservations::pay, world::*};

/// Enough for a look at transactions that should be in blocks by now.
const MOMENT_MS: u64 = 61_000;
/// Enough for transactions to end, and for that to be certain.
const LIFE_MS: u64 = 662_000;

pub fn pass(world: &World, time_ms: u64) {
    world.clock.ahead_ms.fetch_add(time_ms, Ordering::SeqCst);
}

pub fn pay_aptos(from: &str) -> Kind {
    Kind::AptosSendNative(wire::AptosSendNative {
        chain_id: 1,
        from: from.into(),
        to: format!("0x{}", "ab".repeat(32)),
        value: "5".into(),
        gas_fee: Some(wire::AptosGas {
            max_gas_amount: Some("2000".into()),
            gas_unit_price: Some("100".into()),
            ..Default::default()
        }),
        ..Default::default()
    })
}

pub async fn aptos_wallet(gateway: &Gateway) -> String {
    let vault = vault(gateway, "main").await;
    wallet(gateway, vault, NetworkType::Aptos).await.address
}

/// The hash of a transaction that was sent.
pub async fn sent(gateway: &Gateway, kind: Kind) -> String {
    let made = create(gateway, kind).await;
    let outcome = outcome(gateway, &made.uuid).await;
    assert_eq!(outcome.error, None);
    outcome.tx_hash
}

/// What executeSigningRequests says of a request, once it says this.
async fn says(gateway: &Gateway, uuid: &str, words: &str) -> String {
    let search = async {
        loop {
            let outcome = try_outcome(gateway, &admin(), uuid).await;
            let fault = outcome.unwrap_err();
            assert_eq!(fault.class(), &Class::Unavailable);
            if fault.message().contains(words) {
                return fault.message().to_owned();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(15), search)
        .await
        .unwrap_or_else(|_| panic!("nobody says {words}"))
}

/// Whether the trail has an event with these words.
pub async fn noted(world: &World, event: &str, words: &str) -> bool {
    let trail = Scan::prefix(KeySpace::AuditEntry, &[], 10_000);
    let trail = world.store.scan(&trail).await.unwrap();
    trail.iter().any(|(_, row)| {
        let text = String::from_utf8_lossy(&row.value);
        text.contains(event) && text.contains(words)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_transactions__should_be_sent_again_when_the_wallet_is_used() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let mut hashes = Vec::new();
    for _ in 0..5 {
        hashes.push(sent(&gateway, send(&address)).await);
    }
    world.evm.forget(2);
    assert_eq!(world.evm.nonces(), [0, 1]);
    // They have only just been sent: the node may be another one than before.
    hashes.push(sent(&gateway, send(&address)).await);
    assert_eq!(world.evm.nonces(), [0, 1, 5]);
    pass(&world, MOMENT_MS);
    hashes.push(sent(&gateway, send(&address)).await);
    assert_eq!(world.evm.nonces(), (0..7).collect::<Vec<_>>());
    assert_eq!(
        world.evm.handed.lock().unwrap().len(),
        7,
        "the exact bytes, and no others"
    );
    assert!(hashes.iter().all(|hash| world.evm.has(hash)));
    assert!(noted(&world, "SentAgain", &hashes[2]).await);
    assert!(!noted(&world, "SentAgain", &hashes[1]).await);
    // The last of them was only out of sight, behind the gap.
    let expected = DroppedCounts {
        taken: 4,
        ..DroppedCounts::default()
    };
    assert_eq!(gateway.backlog().forgotten, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_back__should_not_keep_what_was_found_before() {
    const HOUR_MS: u64 = 3_600_000;
    let world = World::new();
    pass(&world, HOUR_MS);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let lost = sent(&gateway, send(&address)).await;
    world.evm.forget(0);
    world.evm.refuse.store(true, Ordering::SeqCst);
    pass(&world, MOMENT_MS);
    let behind = create(&gateway, send(&address)).await;
    says(&gateway, &behind.uuid, "no node accepts it now").await;
    world.clock.ahead_ms.fetch_sub(HOUR_MS, Ordering::SeqCst);
    world.evm.refuse.store(false, Ordering::SeqCst);
    assert_eq!(outcome(&gateway, &behind.uuid).await.error, None);
    assert!(world.evm.has(&lost));
    assert_eq!(world.evm.nonces(), [0, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_transaction_that_nodes_refuse__should_stop_those_behind_it_until_it_is_replaced()
{
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let lost = sent(&gateway, send(&address)).await;
    world.evm.forget(0);
    world.evm.refuse.store(true, Ordering::SeqCst);
    pass(&world, MOMENT_MS);
    let signed = world.signers.requests();
    let behind = create(&gateway, send(&address)).await;
    let why = says(&gateway, &behind.uuid, "no node accepts it now").await;
    assert!(why.contains(&lost) && why.contains("nonce 0"), "{why}");
    assert!(why.contains("intrinsic gas too low"), "{why}");
    assert!(noted(&world, "SentAgain", "no node accepts").await);
    assert!(gateway.backlog().forgotten.refused > 0);
    pass(&world, 30_000);
    let error = outcome(&gateway, &behind.uuid).await.error.unwrap();
    assert!(error.message.contains(&lost), "{error:?}");
    assert_eq!(world.signers.requests(), signed, "nothing was signed");

    world.evm.refuse.store(false, Ordering::SeqCst);
    let mut replacing = send_native(&address);
    (replacing.nonce, replacing.value) = (Some(0), "6".into());
    let replacing = sent(&gateway, Kind::EvmSendNative(replacing)).await;
    let next = sent(&gateway, send(&address)).await;
    assert!(world.evm.has(&replacing) && world.evm.has(&next) && !world.evm.has(&lost));
    assert_eq!(world.evm.nonces(), [0, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_transaction__should_never_be_sent_again() {
    for handed_over in [false, true] {
        let world = World::new();
        world.evm.replaceable.store(true, Ordering::SeqCst);
        let gateway = world.start().await;
        let vault = vault(&gateway, "main").await;
        let address = evm_wallet(&gateway, vault).await;
        let replaced = sent(&gateway, send(&address)).await;
        let mut replacing = send_native(&address);
        (replacing.nonce, replacing.value) = (Some(0), "6".into());
        let mut asked = request(Kind::EvmSendNative(replacing));
        asked.broadcast_tx = Some(!handed_over);
        let replacing = created(try_create(&gateway, asked, None).await.unwrap());
        let replacing = outcome(&gateway, &replacing.uuid).await;
        assert_eq!(replacing.error, None);
        assert_ne!(world.evm.has(&replaced), world.evm.has(&replacing.tx_hash));
        // A failed replacement does not count.
        world.evm.refuse.store(true, Ordering::SeqCst);
        let mut failed = send_native(&address);
        (failed.nonce, failed.value) = (Some(0), "7".into());
        let failed = create(&gateway, Kind::EvmSendNative(failed)).await;
        assert!(outcome(&gateway, &failed.uuid).await.error.is_some());
        world.evm.refuse.store(false, Ordering::SeqCst);

        world.evm.forget(0);
        pass(&world, MOMENT_MS);
        let next = sent(&gateway, send(&address)).await;
        assert!(!world.evm.has(&replaced) && world.evm.has(&next));
        assert_eq!(world.evm.has(&replacing.tx_hash), !handed_over);
        let expected: &[u64] = if handed_over { &[1] } else { &[0, 1] };
        assert_eq!(world.evm.nonces(), expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_was_handed_over__should_never_be_sent() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let mut asked = request(send(&address));
    asked.broadcast_tx = Some(false);
    let handed_over = created(try_create(&gateway, asked, None).await.unwrap());
    assert_eq!(outcome(&gateway, &handed_over.uuid).await.error, None);
    pass(&world, MOMENT_MS);
    sent(&gateway, send(&address)).await;
    assert_eq!(world.evm.nonces(), [1]);
    assert_eq!(world.evm.handed.lock().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_transaction_that_can_still_come__should_be_sent_again() {
    let world = World::new();
    let gateway = world.start().await;
    let address = aptos_wallet(&gateway).await;
    world.aptos.halted.store(true, Ordering::SeqCst);
    let lost = sent(&gateway, pay_aptos(&address)).await;
    world.aptos.forget();
    world.aptos.halted.store(false, Ordering::SeqCst);
    pass(&world, MOMENT_MS);
    let next = sent(&gateway, pay_aptos(&address)).await;
    assert_eq!(world.aptos.executed(), [lost, next]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_waits_for_a_dropped_one__should_have_it_sent_again() {
    let world = World::new();
    let gateway = world.start().await;
    let address = aptos_wallet(&gateway).await;
    world.aptos.halted.store(true, Ordering::SeqCst);
    world.aptos.strict.store(true, Ordering::SeqCst);
    let lost = sent(&gateway, pay_aptos(&address)).await;
    world.aptos.forget();
    let waits = create(&gateway, pay_aptos(&address)).await;
    says(&gateway, &waits.uuid, "an earlier transaction is not there").await;
    while !noted(&world, "Delayed", "an earlier transaction is not there").await {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(details(&gateway, &waits.uuid).await.failed_reason, "");
    world.aptos.halted.store(false, Ordering::SeqCst);
    pass(&world, MOMENT_MS);
    let waited = outcome(&gateway, &waits.uuid).await;
    assert_eq!(waited.error, None);
    assert_eq!(world.aptos.executed(), [lost, waited.tx_hash]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_transaction_that_expired__should_give_its_number_back() {
    for broadcast in [true, false] {
        let world = World::new();
        let gateway = world.start().await;
        let address = aptos_wallet(&gateway).await;
        world.aptos.halted.store(true, Ordering::SeqCst);
        let mut asked = request(pay_aptos(&address));
        asked.broadcast_tx = Some(broadcast);
        let lost = created(try_create(&gateway, asked, None).await.unwrap());
        let lost = outcome(&gateway, &lost.uuid).await;
        assert_eq!(lost.error, None);
        world.aptos.forget();
        world.aptos.halted.store(false, Ordering::SeqCst);
        pass(&world, LIFE_MS);
        let next = sent(&gateway, pay_aptos(&address)).await;
        assert_eq!(world.aptos.executed(), [next]);
        assert!(noted(&world, "Dropped", &lost.tx_hash).await);
        assert_eq!(
            world.aptos.handed().len(),
            1 + usize::from(broadcast),
            "what has expired is not sent again"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number__should_stay_taken_until_the_chains_own_clock_has_passed_the_end() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 600_000;
    let gateway = world.start().await;
    let address = aptos_wallet(&gateway).await;
    world.aptos.halted.store(true, Ordering::SeqCst);
    let slow = sent(&gateway, pay_aptos(&address)).await;
    // This machine's clock is ahead by 10 minutes, or the nodes are behind.
    world.aptos.behind_ms.store(LIFE_MS, Ordering::SeqCst);
    pass(&world, LIFE_MS);
    let waits = create(&gateway, pay_aptos(&address)).await;
    let why = says(
        &gateway,
        &waits.uuid,
        "the chain has not passed its expiration yet",
    )
    .await;
    assert!(why.contains("nonce 0 has expired"), "{why}");
    // It was there all the time.
    world.aptos.halted.store(false, Ordering::SeqCst);
    let waiting = world.aptos.handed().len();
    assert_eq!(waiting, 1);
    world.aptos.execute();
    let done = outcome(&gateway, &waits.uuid).await;
    assert_eq!(done.error, None);
    assert_eq!(world.aptos.executed(), [slow, done.tx_hash]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_payments__should_fill_the_gap_of_one_that_was_dropped() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 120_000;
    let gateway = world.start().await;
    let address = aptos_wallet(&gateway).await;
    let first = sent(&gateway, pay_aptos(&address)).await;
    world.aptos.halted.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        sent(&gateway, pay_aptos(&address)).await;
    }
    world.aptos.forget();
    world.aptos.halted.store(false, Ordering::SeqCst);
    pass(&world, LIFE_MS);
    let many = || (0..100).map(|_| create(&gateway, pay_aptos(&address)));
    let mut requests = futures::future::join_all(many()).await;
    requests.extend(futures::future::join_all(many()).await);
    gateway.stop().await;
    let gateway = world.start().await;
    let outcomes = requests.iter().map(|one| outcome(&gateway, &one.uuid));
    for outcome in futures::future::join_all(outcomes).await {
        assert_eq!(outcome.error, None);
    }
    let executed = world.aptos.executed();
    assert_eq!((executed.len(), &executed[0]), (201, &first));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_payment__should_be_sent_again_when_its_outputs_are_offered() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = wallet(&gateway, vault, NetworkType::Bitcoin).await.address;
    world.bitcoin.fund(&address, 1, 100_000);
    let lost = sent(&gateway, pay(&address, 10_000)).await;
    world.bitcoin.forget();
    assert_eq!(world.bitcoin.accepted(), 0);
    pass(&world, MOMENT_MS);
    let next = sent(&gateway, pay(&address, 20_000)).await;
    assert_ne!(lost, next);
    assert_eq!(world.bitcoin.accepted(), 2);
    assert_eq!(world.bitcoin.conflicts.load(Ordering::SeqCst), 0);
    assert_eq!(world.bitcoin.handed.lock().unwrap().len(), 2);
    assert!(noted(&world, "SentAgain", &lost).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_no_node_takes__should_say_why_as_long_as_it_is_pending() {
    let world = World::new();
    world.evm.stuck.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let stuck = create(&gateway, send(&address)).await;
    let why = says(&gateway, &stuck.uuid, "the node cannot be reached").await;
    assert!(why.contains("still pending"), "{why}");
    while !noted(&world, "Delayed", "the node cannot be reached").await {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let pending = details(&gateway, &stuck.uuid).await;
    assert_eq!(pending.status(), wire::signing_request::Status::Pending);
    assert_eq!(
        (pending.failed_reason, pending.tx_hash),
        ("".into(), "".into())
    );
    assert_eq!(gateway.backlog().waiting, 1);
    world.evm.stuck.store(false, Ordering::SeqCst);
    assert_eq!(outcome(&gateway, &stuck.uuid).await.error, None);
    assert_eq!(gateway.backlog().waiting, 0);
}

/// A store that says late that it has taken a request, which all can read by then.
struct LateAnswers(Arc<dyn Store>);

#[async_trait]
impl StoreDouble for LateAnswers {
    fn inner(&self) -> &dyn Store {
        &*self.0
    }

    async fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        let mut writes = batch.writes().iter();
        let is_request = writes.any(|write| write.key.space == KeySpace::Request);
        let done = self.0.commit(batch).await;
        if is_request {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        done
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_ended__should_be_counted_as_waiting_by_nobody_who_can_read_its_end() {
    let world = World::new();
    world.evm.stuck.store(true, Ordering::SeqCst);
    let store = LateAnswers(Arc::clone(&world.store));
    let gateway = world.start_on(Arc::new(store)).await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let stuck = create(&gateway, send(&address)).await;
    says(&gateway, &stuck.uuid, "the node cannot be reached").await;
    assert_eq!(gateway.backlog().waiting, 1);
    world.evm.stuck.store(false, Ordering::SeqCst);
    let ended = async {
        while details(&gateway, &stuck.uuid).await.status()
            == wire::signing_request::Status::Pending
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        gateway.backlog().waiting
    };
    let waiting = tokio::time::timeout(Duration::from_secs(20), ended).await;
    assert_eq!(waiting, Ok(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_behind__should_not_end_the_next_request_of_the_wallet() {
    for standing in [Standing::Passed, Standing::Void] {
        let world = World::new();
        let gateway = world.start().await;
        let vault = vault(&gateway, "main").await;
        let address = evm_wallet(&gateway, vault).await;
        sent(&gateway, send(&address)).await;
        pass(&world, MOMENT_MS);
        // It offers a number that is used, and says so of the transaction that used it.
        world.evm.forget(0);
        *world.evm.doubt.lock().unwrap() = Some(("nonce too low".into(), standing));
        sent(&gateway, send(&address)).await;
        assert_eq!(world.evm.nonces(), [1]);
    }
}
