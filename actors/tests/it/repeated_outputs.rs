//! As [`crate::repeated_payments`], where the chain takes one of two transactions that spend the same output or object.

use std::sync::{Arc, Mutex, atomic::Ordering};

use bitcoin::{Transaction, consensus::encode::deserialize_hex};
use covault_actors::{
    chain_rpc::{
        BroadcastOutcome, BroadcastRequest, ChainClient, ChainClients, ChainKey, NodeEndpoint,
    },
    gateway::Gateway,
    operations::RejectSigningRequest,
    store::{Batch, KeySpace, Scan},
};
use covault_core::{
    ids::RequestId,
    networks::{ChainData, Network, Signed},
    schema::wire::{
        self, NetworkType, create_signing_request_request::Type as Kind, transaction_state::Status,
    },
};
use serde_json::{Value, json};

use crate::{
    bitcoin_node::{Bitcoind, connect},
    coin_control::names,
    http_double::{self, HttpResponse},
    many_refusals::{copy_refused, forget_refused},
    repeated_payments::{failed, remembered, waits_for},
    reservations::pay,
    tracker::until_status,
    world::*,
};

/// The hash of a payment that goes, once it is final.
async fn succeeds(gateway: &Gateway, kind: Kind) -> String {
    let hash = sent(gateway, kind).await;
    until_status(gateway, &hash.0, Status::Final).await;
    hash.1
}

/// The uuid and the hash of a payment that goes.
async fn sent(gateway: &Gateway, kind: Kind) -> (String, String) {
    let made = create(gateway, kind).await.uuid;
    let came = outcome(gateway, &made).await;
    assert_eq!(came.error, None);
    (made, came.tx_hash)
}

/// The transactions that the double of Bitcoin was handed, with their hashes.
fn handed(world: &World) -> Vec<(String, Transaction)> {
    let handed = world.bitcoin.handed.lock().unwrap();
    let read = |hex: &String| {
        let transaction: Transaction = deserialize_hex(hex).unwrap();
        (transaction.compute_txid().to_string(), transaction)
    };
    handed.iter().map(read).collect()
}

/// What a transaction spends that the double was handed.
fn spent(world: &World, hash: &str) -> Vec<String> {
    let all = handed(world);
    let (_, transaction) = all.iter().find(|(other, _)| other == hash).unwrap();
    let inputs = transaction.input.iter();
    inputs
        .map(|input| input.previous_output.to_string())
        .collect()
}

async fn bitcoin_wallet(gateway: &Gateway) -> String {
    let vault = vault(gateway, "main").await;
    wallet(gateway, vault, NetworkType::Bitcoin).await.address
}

/// A payment of 10,000 satoshi out of the wallet's only output, which the node refuses and keeps: its hash.
async fn refused_on_bitcoin(world: &World, gateway: &Gateway, address: &str) -> String {
    world.bitcoin.fund(address, 1, 50_000);
    world.bitcoin.refuse.store(true, Ordering::SeqCst);
    let refused = create(gateway, pay(address, 10_000)).await.uuid;
    let reason = failed(gateway, &refused).await;
    assert!(reason.contains("min relay fee not met"), "{reason}");
    world.bitcoin.refuse.store(false, Ordering::SeqCst);
    let [(hash, _)] = handed(world).try_into().unwrap();
    hash
}

/// The node sends what it has kept: false where the chain does not take it.
async fn comes_after_all(world: &World, hash: &str) -> bool {
    let handed = world.bitcoin.handed.lock().unwrap().clone();
    let hash_of = |hex: &str| {
        let transaction: Transaction = deserialize_hex(hex).unwrap();
        transaction.compute_txid().to_string()
    };
    let kept = handed.into_iter().find(|hex| hash_of(hex) == hash);
    let again = BroadcastRequest {
        signed: Signed {
            transaction: kept.unwrap(),
            tx_hash: hash.to_owned(),
        },
        chain_data: ChainData::Nothing,
        age_ms: 0,
        now_ms: 0,
        retried: true,
    };
    world.bitcoin.broadcast(&again).await == BroadcastOutcome::Accepted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bitcoin_payment_made_again__should_spend_what_the_refused_one_spends() {
    let world = World::new();
    let gateway = world.start().await;
    let address = bitcoin_wallet(&gateway).await;
    let first = refused_on_bitcoin(&world, &gateway, &address).await;
    // Larger ones are spent first.
    world.bitcoin.fund(&address, 2, 1_000_000);
    let other = succeeds(&gateway, pay(&address, 20_000)).await;
    assert!(!spent(&world, &other).contains(&spent(&world, &first)[0]));
    // Not the very same transaction.
    let dearer = names(&address, 10_000, &[], Some(3));
    let again = succeeds(&gateway, dearer).await;
    assert_ne!(again, first);
    assert!(spent(&world, &again).contains(&spent(&world, &first)[0]));
    assert!(!comes_after_all(&world, &first).await, "paid once");
    // It is forgotten once that is used for good.
    succeeds(&gateway, pay(&address, 30_000)).await;
    assert_eq!(remembered(&world).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bitcoin_payment_made_again__should_spend_besides_what_its_client_names() {
    let world = World::new();
    let gateway = world.start().await;
    let address = bitcoin_wallet(&gateway).await;
    let first = refused_on_bitcoin(&world, &gateway, &address).await;
    world.bitcoin.fund(&address, 2, 1_000_000);
    let other = succeeds(&gateway, pay(&address, 20_000)).await;
    let change = format!("{other}:1");
    let again = names(&address, 10_000, std::slice::from_ref(&change), Some(3));
    let again = succeeds(&gateway, again).await;
    let mut inputs = spent(&world, &again);
    inputs.sort();
    let mut expected = vec![change, spent(&world, &first).remove(0)];
    expected.sort();
    assert_eq!(inputs, expected);
    assert!(!comes_after_all(&world, &first).await, "paid once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bitcoin_payment_made_again__should_spend_the_change_of_what_took_the_refused_one_s_output()
 {
    let world = World::new();
    world.bitcoin.unmined.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let address = bitcoin_wallet(&gateway).await;
    let first = refused_on_bitcoin(&world, &gateway, &address).await;
    let (_, other) = sent(&gateway, pay(&address, 20_000)).await;
    assert_eq!(spent(&world, &other), spent(&world, &first));
    world.bitcoin.fund(&address, 2, 1_000_000);
    // No block has the other one: the first one could still take its place, but then this one goes with it.
    let (_, again) = sent(&gateway, pay(&address, 10_000)).await;
    assert!(spent(&world, &again).contains(&format!("{other}:1")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bitcoin_payment_made_again__should_wait_while_its_client_has_what_the_refused_one_spends()
 {
    let world = World::new();
    let gateway = world.start().await;
    let address = bitcoin_wallet(&gateway).await;
    let first = refused_on_bitcoin(&world, &gateway, &address).await;
    world.bitcoin.unmined.store(true, Ordering::SeqCst);
    let mut handed_over = request(pay(&address, 20_000));
    handed_over.broadcast_tx = Some(false);
    let holder = created(try_create(&gateway, handed_over, None).await.unwrap()).uuid;
    assert_eq!(outcome(&gateway, &holder).await.error, None);
    world.bitcoin.fund(&address, 2, 1_000_000);
    let again = create(&gateway, pay(&address, 10_000)).await.uuid;
    let words = format!("what it spends is reserved by request {holder}");
    waits_for(&gateway, &again, &words).await;
    let give_up = wire::RejectSigningRequestRequest {
        uuid: holder,
        rejection: None,
    };
    call::<RejectSigningRequest>(&gateway, &admin(), give_up)
        .await
        .unwrap();
    let paid = outcome(&gateway, &again).await;
    assert_eq!(paid.error, None);
    assert!(spent(&world, &paid.tx_hash).contains(&spent(&world, &first)[0]));
}

/// How many older ones are not kept is handed on to what spends the same: of these the chain takes one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgetting__should_hand_older_ones_to_what_spends_the_same() {
    let world = World::new();
    let gateway = world.start().await;
    let address = bitcoin_wallet(&gateway).await;
    let first = refused_on_bitcoin(&world, &gateway, &address).await;
    let all = Scan::prefix(KeySpace::RefusedTransaction, &[], 100);
    let rows = world.store.scan(&all).await.unwrap();
    let first_id = RequestId::from_bytes(*rows[0].0.bytes.last_chunk().unwrap());
    let mut copies = Batch::new();
    copy_refused(&*world.store, &first_id, 0..18, &mut copies).await;
    world.store.commit(copies).await.unwrap();
    // The same payment, of another output besides: also refused.
    world.bitcoin.fund(&address, 2, 1_000_000);
    world.bitcoin.refuse.store(true, Ordering::SeqCst);
    let named = format!("{}:0", "02".repeat(32));
    let other = names(&address, 10_000, std::slice::from_ref(&named), Some(3));
    let other = create(&gateway, other).await.uuid;
    failed(&gateway, &other).await;
    world.bitcoin.refuse.store(false, Ordering::SeqCst);
    let mut besides = handed(&world);
    besides.retain(|(hash, _)| *hash != first);
    let mut inputs = spent(&world, &besides[0].0);
    inputs.sort();
    assert_eq!(inputs, [spent(&world, &first).remove(0), named]);
    let problem = forget_refused(&gateway, &first_id.to_string(), 0).await;
    let words = "older: 3 older ones of the same payment are not kept";
    assert!(problem.unwrap_err().message().starts_with(words));
    let forgotten = forget_refused(&gateway, &first_id.to_string(), 3).await;
    assert_eq!(forgotten, Ok(1));
    // None is said to be older than what spends something else.
    assert_eq!(forget_refused(&gateway, &other, 0).await, Ok(1));
    let rows = world.store.scan(&all).await.unwrap();
    assert_eq!(rows.len(), 15);
    // The count stands before the last byte.
    let older = rows.iter().map(|(_, row)| {
        let (value, _) = row.value.split_last_chunk::<1>().unwrap();
        u64::from_le_bytes(*value.last_chunk().unwrap())
    });
    assert_eq!(older.sum::<u64>(), 3);
}

fn pay_sui(from: &str, value: &str, budget: u64) -> Kind {
    Kind::SuiSendNative(wire::SuiSendNative {
        recipients: vec![],
        from: from.into(),
        to: format!("0x{}", "ab".repeat(32)),
        value: value.into(),
        gas_fee: Some(wire::SuiGas {
            budget: Some(budget.to_string()),
            price: Some("1000".into()),
        }),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sui_payment_made_again__should_take_a_coin_of_the_refused_one() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = wallet(&gateway, vault, NetworkType::Sui).await.address;
    world.sui.add(1, 50_000_000);
    world.sui.refuses.store(true, Ordering::SeqCst);
    let refused = create(&gateway, pay_sui(&from, "5", 5_000_000)).await.uuid;
    assert_eq!(failed(&gateway, &refused).await, "the sender cannot pay");
    world.sui.refuses.store(false, Ordering::SeqCst);
    let kept = world.sui.kept.lock().unwrap()[0].clone();
    // The smallest that is enough is taken.
    world.sui.add(2, 10_000_000);
    world.sui.add(3, 9_000_000);
    succeeds(&gateway, pay_sui(&from, "6", 5_000_000)).await;
    assert_eq!(world.sui.balance_of(3), None);
    // Not the very same transaction.
    succeeds(&gateway, pay_sui(&from, "5", 6_000_000)).await;
    assert_eq!(world.sui.balance_of(2), Some(10_000_000), "not this one");
    let again = BroadcastRequest {
        retried: true,
        ..kept
    };
    let came = world.sui.broadcast(&again).await;
    assert_ne!(came, BroadcastOutcome::Accepted, "paid once");
    assert_eq!(world.sui.executed(), 2);
    // It is forgotten once another one has used its coin for good.
    succeeds(&gateway, pay_sui(&from, "7", 5_000_000)).await;
    assert_eq!(remembered(&world).await, 0);
}

/// Passes questions on to a node, and keeps the transactions that are sent.
async fn keeping(node: &Bitcoind, kept: &Arc<Mutex<Vec<String>>>) -> NodeEndpoint {
    let (listener, url) = http_double::listen().await;
    let (honest, kept) = (node.endpoint().url, Arc::clone(kept));
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    http_double::serve(listener, move |request| {
        let asked: Option<Value> = serde_json::from_slice(&request.body).ok();
        let calls = asked.iter().flat_map(|asked| match asked {
            Value::Array(calls) => calls.clone(),
            call => vec![call.clone()],
        });
        let sent = calls.filter(|call| call["method"] == "sendrawtransaction");
        let sent = sent.filter_map(|call| Some(call["params"][0].as_str()?.to_owned()));
        kept.lock().unwrap().extend(sent);
        let asked = http
            .post(format!("{honest}{}", request.target()))
            .header("authorization", request.header("authorization").unwrap())
            .body(request.body.clone());
        async move {
            let answer = asked.send().await.unwrap();
            Some(HttpResponse {
                status: answer.status().as_u16(),
                headers: vec![],
                body: answer.bytes().await.unwrap().to_vec(),
            })
        }
    });
    NodeEndpoint {
        url,
        ..node.endpoint()
    }
}

/// Real nodes: what both refuse for its fee a miner may take nevertheless.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_that_bitcoin_nodes_refuse__should_be_paid_once_when_it_is_made_again() {
    for comes in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let node = Bitcoind::rich(folder.path(), &["-minrelaytxfee=0.0001"]).await;
        let kept = Arc::default();
        let nodes = vec![keeping(&node, &kept).await, node.endpoint()];
        let mut world = World::new();
        world.settings.signing_deadline_ms = 600_000;
        let chain = ChainKey::of(Network::Bitcoin, None);
        let chains = ChainClients::default().with(chain, connect(nodes, 1));
        let gateway = world.start_with(Arc::clone(&world.store), chains).await;
        let from = bitcoin_wallet(&gateway).await;
        node.pay(&from, 1_000_000).await;
        node.mine(1).await;
        let at_rate = |rate| {
            let Kind::BtcSendNative(payment) = pay(&from, 400_000) else {
                unreachable!()
            };
            Kind::BtcSendNative(wire::BtcSendNative {
                network_fee: rate,
                ..payment
            })
        };
        let refused = create(&gateway, at_rate(1)).await.uuid;
        let reason = failed(&gateway, &refused).await;
        assert!(reason.contains("min relay fee not met"), "{reason}");
        let first = kept.lock().unwrap().first().cloned().unwrap();
        // More than enough, and spent first.
        node.pay(&from, 5_000_000).await;
        node.mine(1).await;
        let again = create(&gateway, at_rate(20)).await.uuid;
        let sent = outcome(&gateway, &again).await;
        assert_eq!(sent.error, None);
        if comes {
            let own = node.call("getnewaddress", json!([])).await;
            node.call("generateblock", json!([own, [first]])).await;
        }
        node.mine(1).await;
        let script = covault_core::networks::bitcoin::parse_address(
            "bc1qcr8te4kr609gcawutmrza0j4xv80jy8z306fyu",
        );
        let script = script.unwrap().script_pubkey().to_hex_string();
        let wanted = json!(["start", [format!("raw({script})")]]);
        let found = node.call("scantxoutset", wanted).await;
        assert_eq!(found["total_amount"], json!(0.004), "paid once: {found}");
    }
}
