//! Requests that name the outputs that they spend: what another request holds is shared with the one that is to take
//! its place, and nothing else is.

use std::{sync::atomic::Ordering, time::Duration};

use bitcoin::{Transaction, consensus::encode::deserialize_hex};
use covault_actors::{
    gateway::Gateway,
    operations::ReplaceTransaction,
    store::{KeySpace, Scan},
};
use covault_core::schema::wire::{
    self, FeeLevel, NetworkType, create_signing_request_request::Type as Kind,
    replace_transaction_request::Action, signing_request::Status,
};

use crate::{reservations::pay, world::*};

async fn bitcoin_wallet(gateway: &Gateway) -> String {
    let vault = vault(gateway, "main").await;
    wallet(gateway, vault, NetworkType::Bitcoin).await.address
}

/// A payment of these outputs, at a level or at a rate in sat/vB.
pub fn names(from: &str, amount: u64, inputs: &[String], rate: Option<u64>) -> Kind {
    let Kind::BtcSendNative(payment) = pay(from, amount) else {
        unreachable!()
    };
    let level = match rate {
        Some(_) => FeeLevel::Unspecified,
        None => FeeLevel::Fast,
    };
    Kind::BtcSendNative(wire::BtcSendNative {
        network_fee: rate.unwrap_or_default(),
        fee_level: level.into(),
        inputs: inputs.to_vec(),
        ..payment
    })
}

/// The transactions that the node was handed.
fn handed(world: &World) -> Vec<Transaction> {
    let handed = world.bitcoin.handed.lock().unwrap();
    handed
        .iter()
        .map(|hex| deserialize_hex(hex).unwrap())
        .collect()
}

fn spent(world: &World, hash: &str) -> Vec<String> {
    let all = handed(world);
    let mut of_hash = all
        .iter()
        .filter(|transaction| transaction.compute_txid().to_string() == hash);
    let inputs = of_hash.next().unwrap().input.iter();
    inputs
        .map(|input| input.previous_output.to_string())
        .collect()
}

async fn succeeds(gateway: &Gateway, kind: Kind) -> (wire::SigningRequest, String) {
    let made = create(gateway, kind).await;
    let came = outcome(gateway, &made.uuid).await;
    assert_eq!(came.error, None);
    (made, came.tx_hash)
}

/// Which requests hold something, and which have noted what they replace.
async fn claims(world: &World) -> (Vec<String>, Vec<String>) {
    let all = Scan::prefix(KeySpace::Claim, &[], 1_000);
    let (mut holders, mut replacing) = (vec![], vec![]);
    for (key, row) in world.store.scan(&all).await.unwrap() {
        // Its last bytes are the id.
        let id = &row.value[row.value.len() - 16..];
        let holder = uuid::Uuid::from_slice(id).unwrap();
        // So are those of a note's key.
        if key.bytes.ends_with(id) {
            replacing.push(holder.to_string());
        } else {
            holders.push(holder.to_string());
        }
    }
    (holders, replacing)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outputs_that_are_named__should_stay_with_the_request_that_is_replaced() {
    let world = World::new();
    world.bitcoin.replaces.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let address = bitcoin_wallet(&gateway).await;
    world.bitcoin.fund(&address, 1, 100_000);
    let (first, first_hash) = succeeds(&gateway, pay(&address, 10_000)).await;
    let inputs = spent(&world, &first_hash);
    // The nodes' rate is below that of the first: what the first pays is outbid.
    let (second, second_hash) = succeeds(&gateway, names(&address, 10_000, &inputs, None)).await;
    assert_eq!(spent(&world, &second_hash), inputs);
    assert_eq!(world.bitcoin.accepted(), 1, "one of the two");
    let expected = (vec![first.uuid.clone()], vec![second.uuid]);
    assert_eq!(claims(&world).await, expected);
    // A third one outbids both, although the first is in no mempool.
    let (_, third_hash) = succeeds(&gateway, names(&address, 10_000, &inputs, None)).await;
    assert_eq!(world.bitcoin.accepted(), 1);
    // What comes next spends its change, and nothing of the others.
    let (_, next) = succeeds(&gateway, pay(&address, 10_000)).await;
    assert_eq!(spent(&world, &next), [format!("{third_hash}:1")]);
}

async fn replaces(gateway: &Gateway, uuid: &str, action: Action) -> (wire::SigningRequest, String) {
    let asked = wire::ReplaceTransactionRequest {
        uuid: uuid.into(),
        action: action.into(),
        ..Default::default()
    };
    let made = call::<ReplaceTransaction>(gateway, &admin(), asked)
        .await
        .unwrap();
    let made = made.signing_request.unwrap();
    let came = outcome(gateway, &made.uuid).await;
    assert_eq!(came.error, None);
    (made, came.tx_hash)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bitcoin_transactions__should_be_sped_up_and_cancelled_by_their_uuids() {
    let world = World::new();
    world.bitcoin.replaces.store(true, Ordering::SeqCst);
    world.bitcoin.lost.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let address = bitcoin_wallet(&gateway).await;
    world.bitcoin.fund(&address, 2, 60_000);
    // Both outputs, at 2 sat/vB; nodes name 1.
    let (first, first_hash) = succeeds(&gateway, pay(&address, 70_000)).await;
    let (second, second_hash) = replaces(&gateway, &first.uuid, Action::SpeedUp).await;
    assert_eq!(second.replaces_uuid, first.uuid);
    let inputs = spent(&world, &first_hash);
    assert_eq!(
        (inputs.len(), spent(&world, &second_hash)),
        (2, inputs.clone())
    );
    assert_eq!(world.bitcoin.accepted(), 1);
    let (third, third_hash) = replaces(&gateway, &first.uuid, Action::Cancel).await;
    assert_eq!(spent(&world, &third_hash), inputs);
    assert_eq!(world.bitcoin.accepted(), 1);
    let all = handed(&world);
    let of_hash = |hash: &str| {
        let mut all = all.iter();
        all.find(|one| one.compute_txid().to_string() == hash)
            .unwrap()
    };
    let [back] = of_hash(&third_hash).output.as_slice() else {
        panic!("{:?}", of_hash(&third_hash))
    };
    // 209 vB at 2 sat/vB; the same once more for the second; and 178 vB of its own.
    assert_eq!(back.value.to_sat(), 120_000 - 418 - 209 - 178);
    let [paid, _change] = of_hash(&second_hash).output.as_slice() else {
        panic!("{:?}", of_hash(&second_hash))
    };
    assert_eq!(paid.value.to_sat(), 70_000);
    let (holders, mut replacing) = claims(&world).await;
    assert_eq!(holders, [first.uuid.as_str(), first.uuid.as_str()]);
    replacing.sort_unstable();
    let mut expected = [
        second.uuid.clone(),
        second.uuid,
        third.uuid.clone(),
        third.uuid,
    ];
    expected.sort_unstable();
    assert_eq!(replacing, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replacement_that_fails__should_free_nothing_of_what_it_was_to_replace() {
    let world = World::new();
    world.bitcoin.replaces.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let address = bitcoin_wallet(&gateway).await;
    world.bitcoin.fund(&address, 2, 100_000);
    let (first, hash) = succeeds(&gateway, pay(&address, 10_000)).await;
    let inputs = spent(&world, &hash);
    // Less than the first pays, and more than its outputs are worth.
    for (amount, rate) in [(10_000, 1), (150_000, 1)] {
        let kind = names(&address, amount, &inputs, Some(rate));
        let cheap = create(&gateway, kind).await;
        let error = outcome(&gateway, &cheap.uuid).await.error.unwrap();
        assert!(error.message.contains("insufficient fee"), "{error:?}");
        let expected = (vec![first.uuid.clone()], vec![]);
        assert_eq!(claims(&world).await, expected);
    }
    // The other output is free again.
    let (_, next) = succeeds(&gateway, names(&address, 150_000, &[], Some(3))).await;
    assert_eq!(
        spent(&world, &next).len(),
        2,
        "with the change of the first"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn further_outputs_of_a_replacement__should_be_its_own() {
    let world = World::new();
    world.bitcoin.replaces.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let address = bitcoin_wallet(&gateway).await;
    world.bitcoin.fund(&address, 3, 100_000);
    let (first, hash) = succeeds(&gateway, pay(&address, 90_000)).await;
    let inputs = spent(&world, &hash);
    let kind = names(&address, 150_000, &inputs, None);
    let (second, hash) = succeeds(&gateway, kind).await;
    let both = spent(&world, &hash);
    assert_eq!((both.len(), &both[0]), (2, &inputs[0]));
    let (mut holders, replacing) = claims(&world).await;
    holders.sort_unstable();
    let mut expected = vec![first.uuid, second.uuid.clone()];
    expected.sort_unstable();
    assert_eq!((holders, replacing), (expected, vec![second.uuid]));
    let (_, next) = succeeds(&gateway, pay(&address, 60_000)).await;
    assert!(!both.contains(&spent(&world, &next)[0]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_output_that_is_named__should_be_waited_for_while_its_request_is_not_signed() {
    let world = World::new();
    world.signers.silent.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let address = bitcoin_wallet(&gateway).await;
    world.bitcoin.fund(&address, 1, 100_000);
    let first = create(&gateway, pay(&address, 10_000)).await;
    while world.signers.requests() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (holders, _) = claims(&world).await;
    assert_eq!(holders, [first.uuid.as_str()]);
    let outpoint = format!("{}:0", "01".repeat(32));
    let second = create(
        &gateway,
        names(&address, 10_000, std::slice::from_ref(&outpoint), None),
    )
    .await;
    let why = format!("{outpoint} is already reserved by request {}", first.uuid);
    waits(&gateway, &second.uuid, &why).await;
    assert_eq!(
        details(&gateway, &second.uuid).await.status(),
        Status::Pending
    );
    assert_eq!(world.signers.requests(), 1);
}

/// A payment that waits, of an address that has nothing but its change.
async fn waiting(world: &World, gateway: &Gateway) -> (String, wire::SigningRequest, String) {
    world.bitcoin.replaces.store(true, Ordering::SeqCst);
    world.bitcoin.lost.store(true, Ordering::SeqCst);
    let address = bitcoin_wallet(gateway).await;
    world.bitcoin.fund(&address, 1, 100_000);
    let (first, hash) = succeeds(gateway, pay(&address, 10_000)).await;
    (address, first, hash)
}

async fn fails(gateway: &Gateway, uuid: &str, words: &str) {
    let error = outcome(gateway, uuid).await.error.unwrap();
    assert!(error.message.contains(words), "{error:?}");
}

/// Until a request waits for a reason.
async fn waits(gateway: &Gateway, uuid: &str, why: &str) {
    loop {
        let waits = try_outcome(gateway, &admin(), uuid).await;
        if waits.unwrap_err().message().contains(why) {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inputs_that_are_named__should_not_evict_a_payment_that_spends_the_change() {
    let world = World::new();
    let gateway = world.start().await;
    let (address, first, hash) = waiting(&world, &gateway).await;
    let inputs = spent(&world, &hash);
    let (child, child_hash) = succeeds(&gateway, pay(&address, 10_000)).await;
    assert_eq!(spent(&world, &child_hash), [format!("{hash}:1")]);
    let before = claims(&world).await;
    let evicts = create(&gateway, names(&address, 10_000, &inputs, None)).await;
    let words = format!(
        "btcSendNative.inputs: a transaction that uses one of them makes {hash}:1, which request {} spends",
        child.uuid
    );
    fails(&gateway, &evicts.uuid, &words).await;
    // Nor can it spend what is gone then.
    let both = [inputs.as_slice(), &[format!("{hash}:1")]].concat();
    let conflicts = create(&gateway, names(&address, 10_000, &both, None)).await;
    let words = format!("btcSendNative.inputs: {hash}:1 is made by a transaction that spends");
    fails(&gateway, &conflicts.uuid, &words).await;
    assert_eq!(claims(&world).await, before);
    assert_eq!((world.bitcoin.accepted(), handed(&world).len()), (2, 2));
    // The later one can be replaced, and the first after it.
    let inputs = spent(&world, &child_hash);
    succeeds(&gateway, names(&address, 10_000, &inputs, None)).await;
    assert_eq!(
        details(&gateway, &first.uuid).await.status(),
        Status::Succeeded
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inputs_that_are_named_again__should_not_evict_what_spends_the_change_of_the_newest() {
    let world = World::new();
    let gateway = world.start().await;
    let (address, _, hash) = waiting(&world, &gateway).await;
    let inputs = spent(&world, &hash);
    let (_, second) = succeeds(&gateway, names(&address, 10_000, &inputs, None)).await;
    let (child, child_hash) = succeeds(&gateway, pay(&address, 10_000)).await;
    assert_eq!(spent(&world, &child_hash), [format!("{second}:1")]);
    let evicts = create(&gateway, names(&address, 10_000, &inputs, None)).await;
    let words = format!("makes {second}:1, which request {} spends", child.uuid);
    fails(&gateway, &evicts.uuid, &words).await;
    assert_eq!(world.bitcoin.accepted(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replacement__should_not_evict_a_payment_that_was_made_after_it() {
    let world = World::new();
    let gateway = world.start().await;
    let (address, first, hash) = waiting(&world, &gateway).await;
    // It was free to be replaced when that was asked for.
    world.bitcoin.unanswerable.store(true, Ordering::SeqCst);
    let asked = wire::ReplaceTransactionRequest {
        uuid: first.uuid.clone(),
        action: Action::SpeedUp.into(),
        ..Default::default()
    };
    let made = call::<ReplaceTransaction>(&gateway, &admin(), asked).await;
    let evicts = made.unwrap().signing_request.unwrap();
    let (child, child_hash) = succeeds(&gateway, pay(&address, 10_000)).await;
    assert_eq!(spent(&world, &child_hash), [format!("{hash}:1")]);
    world.bitcoin.unanswerable.store(false, Ordering::SeqCst);
    let words = format!("which request {} spends", child.uuid);
    fails(&gateway, &evicts.uuid, &words).await;
    assert_eq!(world.bitcoin.accepted(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_of_what_is_being_replaced__should_not_be_spent() {
    let world = World::new();
    let gateway = world.start().await;
    let (address, _, hash) = waiting(&world, &gateway).await;
    let inputs = spent(&world, &hash);
    world.signers.silent.store(true, Ordering::SeqCst);
    let asked = world.signers.requests();
    let evicts = create(&gateway, names(&address, 10_000, &inputs, None)).await;
    while world.signers.requests() == asked {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The nodes still offer it.
    let next = create(&gateway, pay(&address, 10_000)).await;
    let why = "the required outputs are reserved by other requests of this wallet";
    waits(&gateway, &next.uuid, why).await;
    gateway.stop().await;
    let gateway = world.start().await;
    waits(&gateway, &next.uuid, why).await;
    assert_eq!(world.signers.requests(), asked + 1);
    gateway.stop().await;
    world.signers.silent.store(false, Ordering::SeqCst);
    let gateway = world.start().await;
    let evicts = outcome(&gateway, &evicts.uuid).await;
    let next = outcome(&gateway, &next.uuid).await;
    assert_eq!((evicts.error, next.error), (None, None));
    assert_eq!(
        spent(&world, &next.tx_hash),
        [format!("{}:1", evicts.tx_hash)]
    );
    assert_eq!(world.bitcoin.conflicts.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_of_what_was_replaced__should_not_be_spent_while_nodes_offer_it() {
    let world = World::new();
    let gateway = world.start().await;
    let (address, _, first) = waiting(&world, &gateway).await;
    let inputs = spent(&world, &first);
    succeeds(&gateway, names(&address, 10_000, &inputs, None)).await;
    let (_, third) = succeeds(&gateway, names(&address, 10_000, &inputs, None)).await;
    // It is worth more than the change of what has replaced it, and the request is over.
    world.bitcoin.behind.store(true, Ordering::SeqCst);
    let (_, next) = succeeds(&gateway, pay(&address, 10_000)).await;
    assert_eq!(spent(&world, &next), [format!("{third}:1")]);
    gateway.stop().await;
    let gateway = world.start().await;
    let (_, last) = succeeds(&gateway, pay(&address, 10_000)).await;
    assert_eq!(spent(&world, &last), [format!("{next}:1")]);
    assert_eq!(world.bitcoin.conflicts.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_replaced__should_not_be_sent_again() {
    let world = World::new();
    world.bitcoin.replaces.store(true, Ordering::SeqCst);
    world.bitcoin.lost.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let address = bitcoin_wallet(&gateway).await;
    world.bitcoin.fund(&address, 1, 100_000);
    let (_, first) = succeeds(&gateway, pay(&address, 10_000)).await;
    let inputs = spent(&world, &first);
    let (_, second) = succeeds(&gateway, names(&address, 10_000, &inputs, None)).await;
    let sent = |hash: &str| {
        let all = world.bitcoin.broadcasts.lock().unwrap();
        all.iter().filter(|one| *one == hash).count()
    };
    let before = sent(&second);
    world.bitcoin.forget();
    // No node has either: the newest comes back.
    for _ in 0..400 {
        world.clock.ahead_ms.fetch_add(10_000, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(10)).await;
        if sent(&second) >= before + 3 {
            break;
        }
    }
    assert!(sent(&second) >= before + 3, "{}", sent(&second));
    assert_eq!(sent(&first), 1);
}
