//! Payments that name outputs, against a real bitcoind: what takes the place of what waits (RBF), and what brings
//! it along (CPFP).

use std::{sync::Arc, time::Duration};

use covault_actors::chain_rpc::{
    BroadcastOutcome, BroadcastRequest, ChainClient, ChainError, TransactionSighting,
};
use covault_core::{
    networks::{ChainData, Payload, Replacement, WireKind, bitcoin::UnspentOutput},
    schema::wire::{self, BtcSendNative, FeeLevel},
};
use serde_json::{Value, json};

use crate::bitcoin_node::{Bitcoind, TestWallet, bitcoin, refusal, tracked};

type Client = Arc<dyn ChainClient>;

fn name(output: &UnspentOutput) -> String {
    format!("{}:{}", output.txid, output.vout)
}

/// At a level, with no rate; or at a rate in sat/vB.
fn payload(wallet: &TestWallet, to: &str, amount: u64, rate: u64, inputs: &[String]) -> Payload {
    let level = match rate {
        0 => FeeLevel::Fast,
        _ => FeeLevel::Unspecified,
    };
    Payload::parse(&WireKind::BtcSendNative(BtcSendNative {
        recipients: vec![],
        from: wallet.address.clone(),
        to: to.into(),
        amount: amount.to_string(),
        network_fee: rate,
        fee_level: level.into(),
        inputs: inputs.to_vec(),
    }))
    .unwrap()
}

async fn facts(client: &Client, payload: &Payload) -> Result<ChainData, ChainError> {
    client.chain_data(&bitcoin().queries(payload), 0).await
}

/// As the service asks until it knows: a node's wallet hears of what its mempool has a moment later.
async fn make(wallet: &TestWallet, client: &Client, payload: &Payload) -> BroadcastRequest {
    for _ in 0..100 {
        match facts(client, payload).await {
            Ok(facts) => return wallet.makes(payload, facts),
            Err(ChainError::Unknown(_)) => tokio::time::sleep(Duration::from_millis(50)).await,
            Err(refused) => panic!("{refused:?}"),
        }
    }
    panic!("the node does not know what is named");
}

async fn mempool(node: &Bitcoind) -> Vec<String> {
    let all = node.call("getrawmempool", json!([])).await;
    serde_json::from_value(all).unwrap()
}

/// Of the mempool, in satoshi and virtual bytes: alone, and with all that comes before it.
async fn fees(node: &Bitcoind, txid: &str) -> [(f64, f64); 2] {
    let entry = node.call("getmempoolentry", json!([txid])).await;
    let number = |value: &Value| value.as_f64().unwrap();
    let satoshi = |name: &str| number(&entry["fees"][name]) * 1e8;
    [
        (satoshi("base"), number(&entry["vsize"])),
        (satoshi("ancestor"), number(&entry["ancestorsize"])),
    ]
}

/// Within one in a hundred, and never below.
fn assert_rate((fees, vsize): (f64, f64), rate: f64) {
    let paid = fees / vsize;
    assert!(
        (rate..rate * 1.01).contains(&paid),
        "{paid} sat/vB, not {rate}"
    );
}

async fn take(client: &Client, made: &BroadcastRequest) {
    assert_eq!(client.broadcast(made).await, BroadcastOutcome::Accepted);
}

#[tokio::test]
async fn replacements_on_bitcoin__should_take_the_place_of_what_waits() {
    let folder = tempfile::tempdir().unwrap();
    let node = Bitcoind::rich(folder.path(), &[]).await;
    let (wallet, other) = (TestWallet::new(41), TestWallet::new(42));
    for satoshi in [600_000, 500_000] {
        node.pay(&wallet.address, satoshi).await;
    }
    node.mine(1).await;
    let client = node.client();
    let old = payload(&wallet, &other.address, 1_000_000, 5, &[]);
    let first = make(&wallet, &client, &old).await;
    take(&client, &first).await;
    let [(first_fee, _), _] = fees(&node, &first.signed.tx_hash).await;

    // The mempool spends what it names, so that listunspent has nothing.
    assert!(wallet.values(&client).await.len() == 1, "only the change");
    let faster = bitcoin()
        .replacement(&old, &first.signed, Replacement::SpeedUp)
        .unwrap();
    let second = make(&wallet, &client, &faster).await;
    take(&client, &second).await;
    assert_eq!(mempool(&node).await, [second.signed.tx_hash.as_str()]);
    let [(second_fee, vsize), _] = fees(&node, &second.signed.tx_hash).await;
    assert!(second_fee >= first_fee + vsize, "{first_fee} {second_fee}");
    // A node with no estimate names what the mempool takes: the old fee decides.
    assert!(second_fee <= first_fee + vsize + 2.0, "{second_fee}");

    let cancelled = bitcoin()
        .replacement(&faster, &second.signed, Replacement::Cancel)
        .unwrap();
    let third = make(&wallet, &client, &cancelled).await;
    take(&client, &third).await;
    assert_eq!(mempool(&node).await, [third.signed.tx_hash.as_str()]);
    // The old ones do not come back by being sent again.
    for old in [&first, &second] {
        let again = BroadcastRequest {
            retried: true,
            ..old.clone()
        };
        let answer = client.broadcast(&again).await;
        assert!(
            matches!(answer, BroadcastOutcome::Doubtful(..)),
            "{answer:?}"
        );
    }
    let [(third_fee, _), _] = fees(&node, &third.signed.tx_hash).await;
    node.mine(6).await;
    assert_eq!(
        wallet.values(&client).await,
        [1_100_000 - third_fee.round() as u64]
    );
    assert_eq!(client.balance(&other.address, None).await, Ok("0".into()));
    let all = [&first, &second, &third].map(|made| tracked(&wallet, made));
    let sighted = client.sightings(&all, 0).await;
    let by = || TransactionSighting::Replaced(Some(third.signed.tx_hash.clone()));
    assert_eq!(sighted[..2], [Ok(by()), Ok(by())]);
    assert!(
        matches!(sighted[2], Ok(TransactionSighting::Final(_))),
        "{sighted:?}"
    );
}

#[tokio::test]
async fn a_replacement_on_bitcoin__should_take_further_outputs_that_are_in_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let node = Bitcoind::rich(folder.path(), &[]).await;
    let (wallet, other) = (TestWallet::new(43), TestWallet::new(44));
    node.pay(&wallet.address, 100_000).await;
    node.mine(1).await;
    let client = node.client();
    let old = payload(&wallet, &other.address, 99_000, 5, &[]);
    let first = make(&wallet, &client, &old).await;
    take(&client, &first).await;
    let inputs: Vec<String> = wallet_inputs(&first);
    let dear = payload(&wallet, &other.address, 99_000, 60, &inputs);
    // What others have sent is in no block: a replacement may not spend that (BIP-125).
    node.pay(&wallet.address, 90_000).await;
    let all = facts(&client, &dear).await.unwrap();
    let ChainData::Bitcoin(listed) = &all else {
        panic!("{all:?}")
    };
    assert_eq!(listed.outputs.len(), 1);
    node.mine_without(&first.signed.tx_hash).await;
    let second = make(&wallet, &client, &dear).await;
    let ChainData::Bitcoin(spent) = &second.chain_data else {
        panic!("{second:?}")
    };
    assert_eq!(spent.outputs.len(), 2);
    take(&client, &second).await;
    assert_eq!(mempool(&node).await, [second.signed.tx_hash.as_str()]);
    let [(fee, vsize), _] = fees(&node, &second.signed.tx_hash).await;
    assert_rate((fee, vsize), 60.0);
}

/// What a transaction spends, `txid:vout`.
fn wallet_inputs(made: &BroadcastRequest) -> Vec<String> {
    match &made.chain_data {
        ChainData::Bitcoin(chain_data) => chain_data.outputs.iter().map(name).collect(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn inputs_that_are_named__should_be_the_wallet_s_and_not_spent_in_a_block() {
    let folder = tempfile::tempdir().unwrap();
    let node = Bitcoind::rich(folder.path(), &[]).await;
    let (wallet, other) = (TestWallet::new(45), TestWallet::new(46));
    for address in [&wallet.address, &wallet.address, &other.address] {
        node.pay(address, 100_000).await;
    }
    node.mine(1).await;
    let client = node.client();
    let outputs = wallet.outputs(&client).await;
    let foreign = other.outputs(&client).await;
    let spend = payload(&wallet, &other.address, 10_000, 2, &[name(&outputs[0])]);
    take(&client, &make(&wallet, &client, &spend).await).await;
    node.mine(1).await;
    let unknown = UnspentOutput {
        txid: "ab".repeat(32),
        vout: 0,
        value: 0,
    };
    let beyond = UnspentOutput {
        vout: 9,
        ..outputs[1].clone()
    };
    for (wrong, why, for_good) in [
        (&foreign[0], "is not an output of the wallet", true),
        (&beyond, "is not an output of the wallet", true),
        (&outputs[0], "is already spent in a block", true),
        (&unknown, "the nodes do not know", false),
    ] {
        let inputs = [name(&outputs[1]), name(wrong)];
        let payload = payload(&wallet, &other.address, 10_000, 2, &inputs);
        let reason = match facts(&client, &payload).await {
            Err(ChainError::Refused(refusal)) if for_good => refusal.reason,
            Err(ChainError::Unknown(reason)) if !for_good => reason,
            said => panic!("{said:?}"),
        };
        assert!(
            reason.contains("btcSendNative.inputs[1]: ") && reason.contains(why),
            "{reason}"
        );
    }
    // The client's own price is too low for a replacement: the error says so.
    let first = payload(&wallet, &other.address, 10_000, 9, &[name(&outputs[1])]);
    take(&client, &make(&wallet, &client, &first).await).await;
    let cheap = payload(&wallet, &other.address, 10_001, 9, &[name(&outputs[1])]);
    let made = make(&wallet, &client, &cheap).await;
    let (_, reason) = refusal(client.broadcast(&made).await);
    assert!(reason.contains("insufficient fee"), "{reason}");
}

#[tokio::test]
async fn children_on_bitcoin__should_lift_their_parents_to_the_rate() {
    let folder = tempfile::tempdir().unwrap();
    let node = Bitcoind::rich(folder.path(), &[]).await;
    let (wallet, other) = (TestWallet::new(47), TestWallet::new(48));
    node.pay(&wallet.address, 1_000_000).await;
    node.mine(1).await;
    let client = node.client();
    wallet.outputs(&client).await;

    // Another wallet's payment, at 10 sat/vB, is in no block.
    let incoming = node.pay(&wallet.address, 500_000).await;
    let listed = node.outputs_of(&incoming, &wallet.address).await;
    let child = payload(&wallet, &other.address, 100_000, 70, &listed);
    let child = make(&wallet, &client, &child).await;
    take(&client, &child).await;
    let [own, package] = fees(&node, &child.signed.tx_hash).await;
    assert!(own.1 < package.1, "it has a parent");
    assert_rate(package, 70.0);
    node.mine(1).await;

    // Two before it: own change of own change. The child gathers all in one output.
    let first = make(
        &wallet,
        &client,
        &payload(&wallet, &other.address, 100_000, 2, &[]),
    )
    .await;
    take(&client, &first).await;
    let change = node
        .outputs_of(&first.signed.tx_hash, &wallet.address)
        .await;
    // At 2 sat/vB, as its parent: nothing is lacking.
    let second = payload(&wallet, &other.address, 100_000, 2, &change);
    let second = make(&wallet, &client, &second).await;
    take(&client, &second).await;
    let [own, package] = fees(&node, &second.signed.tx_hash).await;
    assert_rate(own, 2.0);
    assert_rate(package, 2.0);
    let change = node
        .outputs_of(&second.signed.tx_hash, &wallet.address)
        .await;
    let child = payload(&wallet, &wallet.address, 1_000, 90, &change);
    let child = make(&wallet, &client, &child).await;
    take(&client, &child).await;
    let [own, package] = fees(&node, &child.signed.tx_hash).await;
    assert!(package.1 > 2.5 * own.1, "two before it");
    assert_rate(package, 90.0);

    // Another one instead of it, at a higher rate: above the old fee, and still for all three.
    let faster = payload(&wallet, &wallet.address, 1_000, 120, &change);
    let faster = make(&wallet, &client, &faster).await;
    take(&client, &faster).await;
    let [_, package] = fees(&node, &faster.signed.tx_hash).await;
    assert_rate(package, 120.0);
    assert_eq!(mempool(&node).await.len(), 3);
    node.mine(1).await;
    assert_eq!(mempool(&node).await.len(), 0);
}

#[tokio::test]
async fn parents_of_two_inputs__should_be_counted_once() {
    let folder = tempfile::tempdir().unwrap();
    let node = Bitcoind::rich(folder.path(), &[]).await;
    let (wallet, other) = (TestWallet::new(49), TestWallet::new(50));
    node.pay(&wallet.address, 1_000_000).await;
    node.mine(1).await;
    let client = node.client();
    // One transaction with two outputs of the wallet, and one made by another wallet.
    let to_itself = payload(&wallet, &wallet.address, 300_000, 3, &[]);
    let parent = make(&wallet, &client, &to_itself).await;
    take(&client, &parent).await;
    let incoming = node.pay(&wallet.address, 200_000).await;
    let mut inputs = node
        .outputs_of(&parent.signed.tx_hash, &wallet.address)
        .await;
    assert_eq!(inputs.len(), 2);
    inputs.extend(node.outputs_of(&incoming, &wallet.address).await);
    let child = payload(&wallet, &other.address, 100_000, 40, &inputs);
    let child = make(&wallet, &client, &child).await;
    take(&client, &child).await;
    let [_, package] = fees(&node, &child.signed.tx_hash).await;
    assert_rate(package, 40.0);
}

#[tokio::test]
async fn levels_on_bitcoin__should_be_what_the_mempool_takes_where_nobody_can_estimate() {
    let folder = tempfile::tempdir().unwrap();
    let node = Bitcoind::rich(folder.path(), &["-minrelaytxfee=0.00003"]).await;
    let (wallet, other) = (TestWallet::new(51), TestWallet::new(52));
    node.pay(&wallet.address, 1_000_000).await;
    node.mine(1).await;
    let client = node.client();
    let level = payload(&wallet, &other.address, 100_000, 0, &[]);
    let made = make(&wallet, &client, &level).await;
    take(&client, &made).await;
    let [own, _] = fees(&node, &made.signed.tx_hash).await;
    assert_rate(own, 3.0);
    let estimates = client.fee_estimates().await.unwrap();
    let told = estimates.map(|one| (one.price, one.transfer_fee));
    assert_eq!(told, [(3, 423); 3]);
    let height = node.call("getblockcount", json!([])).await;
    assert_eq!(client.head().await, Ok(height.as_u64()));
    let wire = level.to_wire();
    assert!(
        matches!(
            wire,
            WireKind::BtcSendNative(wire::BtcSendNative { network_fee: 0, .. })
        ),
        "{wire:?}"
    );
}
