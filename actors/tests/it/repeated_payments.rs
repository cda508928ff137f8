//! A node that refuses a transaction, keeps its bytes, and sends them once the client has paid again, on networks without
//! numbers: the chain takes one of the two, or the second one waits until the first one can no longer come.

use std::sync::{Arc, Mutex, atomic::Ordering};

use bitcoin::{Transaction, consensus::encode::deserialize_hex};
use covault_actors::{
    chain_rpc::{
        BroadcastOutcome, BroadcastRequest, ChainClient, ChainClients, ChainKey, NodeEndpoint,
        TransactionSighting,
    },
    gateway::Gateway,
    operations::{ForgetRefusedTransaction, RejectSigningRequest},
    store::{Batch, Key, KeySpace, Precondition, Scan},
};
use covault_core::{
    networks::{ChainData, Network, Payload, Signed, WireKind},
    schema::admin,
    schema::wire::{
        self, NetworkType, create_signing_request_request::Type as Kind, signing_request,
        transaction_state::Status,
    },
};
use serde_json::{Value, json};

use crate::{
    bitcoin_node::{Bitcoind, connect},
    coin_control::names,
    evm_anvil::Anvil,
    http_double::{self, HttpResponse},
    keeping_liar::{honest, patient},
    rebroadcast::noted,
    reservations::pay,
    timed_double::TimedDouble,
    tracker::{until, until_status},
    world::*,
};

/// Until a request has failed, and why; nothing of it was signed, unless it was sent.
async fn failed(gateway: &Gateway, uuid: &str) -> String {
    assert!(outcome(gateway, uuid).await.error.is_some());
    let shown = details(gateway, uuid).await;
    assert_eq!(shown.status(), signing_request::Status::Failed);
    shown.failed_reason
}

/// Until a request waits for this, unsigned.
async fn waits_for(gateway: &Gateway, uuid: &str, words: &str) {
    until(async || {
        let waits = try_outcome(gateway, &admin(), uuid).await;
        waits.is_err_and(|why| why.message().contains(words))
    })
    .await;
    assert_eq!(details(gateway, uuid).await.signed_transaction, "");
}

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

async fn remembered(world: &World) -> usize {
    let all = Scan::prefix(KeySpace::RefusedTransaction, &[], 10);
    world.store.scan(&all).await.unwrap().len()
}

/// A wallet of TRON, Solana or Sonic SVM, whose chain this is.
struct Timed {
    world: World,
    gateway: Gateway,
    chain: Arc<TimedDouble>,
    key: ChainKey,
    from: String,
}

impl Timed {
    async fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for (key, kind) in [
            (ChainKey::of(Network::Tron, None), NetworkType::Tron),
            (ChainKey::SOLANA, NetworkType::Solana),
            (ChainKey::SONIC, NetworkType::Solana),
        ] {
            let mut world = World::new();
            world.settings.signing_deadline_ms = 300_000;
            world.settings.settling_ms = 180_000;
            let chain = TimedDouble::new(Arc::clone(&world.clock));
            let client = Arc::clone(&chain) as Arc<dyn ChainClient>;
            let chains = ChainClients::default().with(key, client);
            let gateway = world.start_with(Arc::clone(&world.store), chains).await;
            let vault = vault(&gateway, "main").await;
            let from = wallet(&gateway, vault, kind).await.address;
            all.push(Self {
                world,
                gateway,
                chain,
                key,
                from,
            });
        }
        all
    }

    async fn pay(&self, value: &str) -> String {
        let (from, value) = (self.from.clone(), value.to_owned());
        let kind = match self.key.network {
            Network::Tron => Kind::TronSendNative(wire::TronSendNative {
                from,
                to: "TR7NHqjeKQxGTCi8q8ZY4pL8otSzgjLj6t".into(),
                value,
            }),
            _ => {
                let payment = wire::SolanaSendNative {
                    chain_id: self.key.chain_id.unwrap_or_default(),
                    from,
                    to: "CxvTXCepdDTH4PXUwU2Pf3FBi87L7VwXtzsgeAm1xVsS".into(),
                    value,
                    ..Default::default()
                };
                match self.key {
                    ChainKey::SONIC => Kind::SonicSvmSendNative(payment),
                    _ => Kind::SolanaSendNative(payment),
                }
            }
        };
        create(&self.gateway, kind).await.uuid
    }

    /// A payment that all nodes refuse, of which one keeps the bytes: its uuid and hash.
    async fn refused(&self) -> (String, String) {
        self.chain.refuses.store(true, Ordering::SeqCst);
        let refused = self.pay("5").await;
        assert_eq!(
            failed(&self.gateway, &refused).await,
            "the sender cannot pay"
        );
        self.chain.refuses.store(false, Ordering::SeqCst);
        let mut sent = self.chain.sent();
        assert_eq!(sent.len(), 1);
        (refused, sent.remove(0))
    }

    /// Lets as much time pass as it takes that a request which waits for this refused one gets new time, and waits until it
    /// has looked again. False once it waits no more.
    async fn goes_on(&self, uuid: &str, hash: &str) -> bool {
        let is_over = async || {
            let status = details(&self.gateway, uuid).await.status();
            status != signing_request::Status::Pending
        };
        self.world
            .pass(self.world.settings.signing_deadline_ms / 5 * 4);
        // A look that has begun before is one of them.
        let seen = self.chain.looks(hash) + 2;
        until(async || self.chain.looks(hash) >= seen || is_over().await).await;
        !is_over().await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_made_again__should_go_by_itself_once_the_refused_one_can_no_longer_come() {
    for it in Timed::all().await {
        let (_, hash) = it.refused().await;
        let again = it.pay("5").await;
        waits_for(&it.gateway, &again, "can still come with the transaction").await;
        // Longer than a request has to be built: it only waits.
        for _ in 0..2 {
            assert!(it.goes_on(&again, &hash).await, "{}", it.key);
        }
        waits_for(&it.gateway, &again, &hash).await;
        // What pays something else does not wait.
        let other = it.pay("6").await;
        assert_eq!(outcome(&it.gateway, &other).await.error, None, "{}", it.key);
        assert_eq!(it.chain.sent().len(), 2, "{}", it.key);
        while it.goes_on(&again, &hash).await {}
        let paid = outcome(&it.gateway, &again).await;
        assert_eq!(paid.error, None, "{}", it.key);
        // The node that has kept the first one comes too late.
        assert!(!it.chain.takes_what_it_kept(&hash));
        assert!(it.chain.blocks().contains(&paid.tx_hash));
        assert_eq!(remembered(&it.world).await, 0, "{}", it.key);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_that_came_after_it_was_refused__should_not_be_paid_a_second_time() {
    for it in Timed::all().await {
        let (refused, hash) = it.refused().await;
        let again = it.pay("5").await;
        waits_for(&it.gateway, &again, "can still come with the transaction").await;
        assert!(it.chain.takes_what_it_kept(&hash));
        let third = it.pay("5").await;
        for uuid in [&again, &third] {
            let reason = failed(&it.gateway, uuid).await;
            let words = format!("the transaction {hash} of request {refused}");
            assert!(reason.contains(&words), "{}: {reason}", it.key);
            assert!(reason.contains("is on the chain after all: nothing was signed now"));
            assert_eq!(details(&it.gateway, uuid).await.signed_transaction, "");
        }
        // The one that is called failed shows where it is.
        until_status(&it.gateway, &refused, Status::Final).await;
        assert_eq!(it.chain.blocks(), [hash]);
        // A day later the same may be paid again.
        it.world.pass(86_400_000);
        let later = it.pay("5").await;
        assert_eq!(outcome(&it.gateway, &later).await.error, None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_made_again__should_fail_unsigned_where_nodes_never_agree_on_the_refused_one() {
    for it in Timed::all().await {
        let (_, hash) = it.refused().await;
        it.chain.is_blind.store(true, Ordering::SeqCst);
        let again = it.pay("5").await;
        waits_for(&it.gateway, &again, "can still come with the transaction").await;
        while it.goes_on(&again, &hash).await {}
        let reason = failed(&it.gateway, &again).await;
        assert!(reason.contains(&hash), "{reason}");
        assert_eq!(it.chain.sent(), [hash], "{}", it.key);
    }
}

/// One node has sent it, and says for days that it is nowhere: two have to say what became of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_that_one_node_hides__should_not_be_paid_after_days_until_an_operator_says_so() {
    for it in Timed::all().await {
        let (refused, hash) = it.refused().await;
        assert!(it.chain.takes_what_it_kept(&hash));
        it.chain.is_blind.store(true, Ordering::SeqCst);
        it.world.pass(8 * 86_400_000);
        // Others go on, and nothing is forgotten for these.
        let other = it.pay("6").await;
        assert_eq!(outcome(&it.gateway, &other).await.error, None, "{}", it.key);
        let words = format!("covault request forget-refused {refused}");
        let again = it.pay("5").await;
        waits_for(&it.gateway, &again, &words).await;
        it.world.pass(2 * 86_400_000);
        let third = it.pay("5").await;
        waits_for(&it.gateway, &third, &words).await;
        assert_eq!(it.chain.sent().len(), 2, "{}", it.key);
        assert!(!noted(&it.world, "MinedLate", &hash).await);
        let forget = |uuid: &str| admin::ForgetRefusedTransactionRequest {
            uuid: uuid.to_owned(),
        };
        let call =
            async |asked| call::<ForgetRefusedTransaction>(&it.gateway, &admin(), asked).await;
        assert_eq!(
            call(forget(&refused)).await.unwrap().tx_hashes,
            std::slice::from_ref(&hash)
        );
        assert!(noted(&it.world, "RefusedForgotten", &hash).await);
        let nothing = call(forget(&refused)).await.unwrap_err();
        assert_eq!(
            nothing.message(),
            "uuid: no transaction of this request is remembered as refused"
        );
        for uuid in [&again, &third] {
            assert_eq!(outcome(&it.gateway, uuid).await.error, None, "{}", it.key);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_became_of_a_refused_payment__should_be_found_out_beside_other_payments() {
    for comes in [true, false] {
        for it in Timed::all().await {
            let (refused, hash) = it.refused().await;
            if comes {
                assert!(it.chain.takes_what_it_kept(&hash));
            }
            it.world.pass(3 * 86_400_000);
            let other = it.pay("6").await;
            assert_eq!(outcome(&it.gateway, &other).await.error, None, "{}", it.key);
            if comes {
                until_status(&it.gateway, &refused, Status::Final).await;
                let again = it.pay("5").await;
                assert!(failed(&it.gateway, &again).await.contains(&hash));
                // It is over a day later, whatever is paid.
                it.world.pass(86_400_000);
                let other = it.pay("7").await;
                assert_eq!(outcome(&it.gateway, &other).await.error, None);
            }
            until(async || remembered(&it.world).await == 0).await;
        }
    }
}

/// Nothing ties two transactions of TRON together, and its node is asked in several calls, which several nodes behind one
/// address may answer: one that is behind says that it is nowhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_payment__should_not_be_over_by_one_look() {
    let mut all = Timed::all().await.into_iter();
    let it = all.find(|it| it.key.network == Network::Tron).unwrap();
    let (refused, hash) = it.refused().await;
    assert!(it.chain.takes_what_it_kept(&hash));
    let said = [
        TransactionSighting::Expired,
        TransactionSighting::Expired,
        TransactionSighting::Expired,
    ];
    it.chain.says.lock().unwrap().extend(said);
    let again = it.pay("5").await;
    let reason = failed(&it.gateway, &again).await;
    let words = format!("the transaction {hash} of request {refused}");
    assert!(reason.contains(&words), "{reason}");
    assert_eq!(it.chain.sent(), [hash], "paid once");
}

/// Its client counts by itself, and pays the same twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_payments_with_numbers_of_their_own__should_be_made_again_after_both_were_refused() {
    let (anvil, world) = (Anvil::start().await, patient());
    let gateway = Anvil::start_on_all(&world, &[&honest(&anvil).await.0]).await;
    let address = anvil.wallet(&gateway).await;
    let funds = |value: &str| anvil.call("anvil_setBalance", json!([address, value]));
    let with_nonce = |nonce| {
        Kind::EvmSendNative(wire::EvmSendNative {
            nonce: Some(nonce),
            ..send_native(&address)
        })
    };
    funds("0x0").await;
    let refused = create(&gateway, with_nonce(0)).await.uuid;
    failed(&gateway, &refused).await;
    // As if another one had been on its way with the next number when the nodes refused this one.
    let all = Scan::prefix(KeySpace::RefusedTransaction, &[], 10);
    let (key, row) = world.store.scan(&all).await.unwrap().pop().unwrap();
    let (account, request) = key.bytes.split_last_chunk::<16>().unwrap();
    let (account, _) = account.split_last_chunk::<8>().unwrap();
    let mut batch = Batch::new();
    let next = Key::new(
        KeySpace::RefusedTransaction,
        &[account, &1_u64.to_be_bytes(), request],
    );
    batch.put(next, Precondition::Absent, row.value);
    world.store.commit(batch).await.unwrap();
    funds("0xde0b6b3a7640000").await;
    assert_eq!(remembered(&world).await, 2);
    for nonce in [0, 1] {
        let again = create(&gateway, with_nonce(nonce)).await.uuid;
        assert_eq!(outcome(&gateway, &again).await.error, None, "{nonce}");
    }
    anvil.mine(1).await;
    assert_eq!(anvil.received().await, "0xa");
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

/// Two of them cost a fee and no payment: none waits for an earlier one that was refused.
#[test]
fn what_fills_a_gap__should_be_known_by_what_it_is() {
    let from = "0x00000000000000000000000000000000000000bb";
    let payload = Payload::parse(&WireKind::EvmSendNative(send_native(from))).unwrap();
    let rules = Network::Evm.rules();
    let filler = rules.gap_filler(&payload).unwrap();
    assert_ne!(filler, payload);
    assert_eq!(rules.gap_filler(&filler), Some(filler));
}
