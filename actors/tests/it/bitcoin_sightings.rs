//! Where Bitcoin transactions are, by nodes of which not all have seen the same.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use covault_actors::chain_rpc::{
    ChainClient, ChainEndpoints, ChainKey, Inclusion, TrackedTransaction, TransactionSighting,
};
use covault_core::networks::{Network, bitcoin::UnspentOutput};
use serde_json::{Value, json};

use crate::{
    bitcoin_node::{TestWallet, tracked},
    evm_node::connect_to,
    http_double::{self, HttpResponse},
    one_witness::Witnesses,
    one_word::REGTEST,
};

const HOUR_MS: u64 = 3_600_000;

/// What a node says: `None` is an error, as of what it does not know.
type Says = Box<dyn Fn(&str, &Value) -> Option<Value> + Send + Sync>;

/// A bitcoind at this height that says the rest itself.
async fn bitcoind(height: &Arc<AtomicI64>, says: Says) -> String {
    let height = Arc::clone(height);
    let answer = move |call: &Value| {
        let blocks = height.load(Ordering::SeqCst);
        let said = match call["method"].as_str().unwrap() {
            "getblockhash" if call["params"][0] == 0 => Some(json!(REGTEST)),
            "getblockchaininfo" => {
                Some(json!({"chain": "regtest", "blocks": blocks, "headers": blocks}))
            }
            method => says(method, &call["params"]),
        };
        let unknown = json!({"code": -5, "message": "No such mempool or blockchain transaction"});
        match said {
            Some(result) => json!({"id": call["id"], "result": result, "error": null}),
            None => json!({"id": call["id"], "result": null, "error": unknown}),
        }
    };
    http_double::start(move |request| {
        let calls = request.json();
        let answers: Vec<Value> = calls.as_array().unwrap().iter().map(&answer).collect();
        Some(HttpResponse::json(200, &json!(answers)))
    })
    .await
}

fn client(urls: Vec<String>) -> Arc<dyn ChainClient> {
    let endpoints = ChainEndpoints {
        agree: 2,
        ..ChainEndpoints::new(urls)
    };
    connect_to(ChainKey::of(Network::Bitcoin, None), endpoints)
}

/// A payment that spends the output 0 of the transaction with this id.
fn payment(spends: &str) -> TrackedTransaction {
    let wallet = TestWallet::new(31);
    let output = UnspentOutput {
        txid: spends.repeat(64),
        vout: 0,
        value: 1_000_000,
    };
    let made = wallet.pays(&[output], &wallet.address, 400_000, 5);
    tracked(&wallet, &made)
}

pub async fn witnesses() -> Witnesses {
    let height = Arc::new(AtomicI64::new(100));
    let node = async |confirmations: i64| {
        let says = move |method: &str, params: &Value| match method {
            "getrawtransaction" if confirmations != 0 => {
                Some(json!({"confirmations": confirmations}))
            }
            // What it spends.
            "gettransaction" if params[0] == json!("1".repeat(64)) => {
                Some(json!({"confirmations": 20}))
            }
            "gettxout" => Some(json!({"value": 0.01})),
            _ => None,
        };
        bitcoind(&height, Box::new(says)).await
    };
    Witnesses {
        chain: ChainKey::of(Network::Bitcoin, None),
        liars: vec![("in a block", node(1).await), ("final", node(7).await)],
        honest: node(0).await,
        later: node(6).await,
        transaction: payment("1"),
        now_ms: 0,
        end: TransactionSighting::Final(Inclusion {
            block: 95,
            success: true,
        }),
    }
}

#[tokio::test]
async fn a_replaced_bitcoin_transaction_that_one_wallet_alone_knows__should_hold_up_no_others() {
    let (replaced, done) = (payment("1"), payment("2"));
    let hashes = [&replaced, &done].map(|one| one.signed.tx_hash.clone());
    let height = Arc::new(AtomicI64::new(100));
    let node = async |has_seen_it: bool| {
        let [replaced, done] = hashes.clone();
        let says = move |method: &str, params: &Value| match method {
            "getrawtransaction" if params[0] == json!(done) => Some(json!({"confirmations": 6})),
            "gettransaction" if params[0] == json!(done) => Some(json!({"confirmations": 6})),
            "gettransaction" if params[0] == json!(replaced) => {
                has_seen_it.then(|| json!({"confirmations": -6, "walletconflicts": []}))
            }
            // What the replaced one spends, and a block has spent.
            "gettransaction" if params[0] == json!("1".repeat(64)) => {
                Some(json!({"confirmations": 20}))
            }
            "gettxout" => Some(Value::Null),
            _ => None,
        };
        bitcoind(&height, Box::new(says)).await
    };
    let (one, other) = (node(true).await, node(false).await);
    let both = [replaced, done];
    for urls in [[&one, &other], [&other, &one]] {
        height.store(100, Ordering::SeqCst);
        let client = client(urls.map(String::clone).to_vec());
        let sighted = async || {
            let [first, second]: [_; 2] = client.sightings(&both, 0).await.try_into().unwrap();
            assert!(
                matches!(second, Ok(TransactionSighting::Final(_))),
                "{second:?}"
            );
            first.unwrap()
        };
        assert_eq!(sighted().await, TransactionSighting::Missing);
        height.store(105, Ordering::SeqCst);
        assert_eq!(sighted().await, TransactionSighting::Replaced(None));
    }
}

#[tokio::test]
async fn a_block_that_spends_what_a_bitcoin_transaction_spends__should_stand_before_that_counts() {
    let sent = payment("1");
    // The block of the other one; 0: there is none.
    let (height, spent) = (Arc::new(AtomicI64::new(100)), Arc::new(AtomicI64::new(0)));
    let node = async || {
        let spent = Arc::clone(&spent);
        let says = move |method: &str, params: &Value| match method {
            "gettransaction" if params[0] == json!("1".repeat(64)) => {
                Some(json!({"confirmations": 20}))
            }
            "gettxout" => Some(match spent.load(Ordering::SeqCst) {
                0 => json!({"value": 0.01}),
                _ => Value::Null,
            }),
            _ => None,
        };
        bitcoind(&height, Box::new(says)).await
    };
    let client = client(vec![node().await, node().await]);
    let sighted = async |now_ms: u64| {
        let sighted = client.sightings(std::slice::from_ref(&sent), now_ms).await;
        sighted.into_iter().next().unwrap().unwrap()
    };
    let (missing, replaced) = (
        TransactionSighting::Missing,
        TransactionSighting::Replaced(None),
    );
    // It was sent hours ago, and the block has only just come: it may go again.
    assert_eq!(sighted(3 * HOUR_MS).await, missing);
    spent.store(101, Ordering::SeqCst);
    height.store(101, Ordering::SeqCst);
    assert_eq!(sighted(3 * HOUR_MS).await, missing);
    height.store(105, Ordering::SeqCst);
    assert_eq!(sighted(3 * HOUR_MS).await, missing);
    // It does.
    spent.store(0, Ordering::SeqCst);
    assert_eq!(sighted(5 * HOUR_MS).await, missing);
    spent.store(106, Ordering::SeqCst);
    height.store(106, Ordering::SeqCst);
    assert_eq!(sighted(5 * HOUR_MS).await, missing);
    height.store(111, Ordering::SeqCst);
    assert_eq!(sighted(5 * HOUR_MS).await, replaced);
    // Or by time.
    spent.store(0, Ordering::SeqCst);
    assert_eq!(sighted(6 * HOUR_MS).await, missing);
    spent.store(112, Ordering::SeqCst);
    assert_eq!(sighted(6 * HOUR_MS).await, missing);
    assert_eq!(sighted(7 * HOUR_MS - 1).await, missing);
    assert_eq!(sighted(7 * HOUR_MS).await, replaced);
}

/// What it spends was the change of one that was sped up: it will never be there.
#[tokio::test]
async fn a_transaction__should_be_void_where_the_maker_of_its_output_was_replaced_for_good() {
    let sent = payment("1");
    let (height, depth) = (Arc::new(AtomicI64::new(100)), Arc::new(AtomicI64::new(-5)));
    let node = async || {
        let depth = Arc::clone(&depth);
        let says = move |method: &str, params: &Value| match method {
            "gettransaction" if params[0] == json!("1".repeat(64)) => {
                Some(json!({"confirmations": depth.load(Ordering::SeqCst)}))
            }
            "gettxout" => Some(Value::Null),
            _ => None,
        };
        bitcoind(&height, Box::new(says)).await
    };
    let client = client(vec![node().await, node().await]);
    for (confirmations, expected) in [
        (0, TransactionSighting::Missing),
        (-5, TransactionSighting::Missing),
        (-6, TransactionSighting::Replaced(None)),
    ] {
        depth.store(confirmations, Ordering::SeqCst);
        let sighted = client.sightings(std::slice::from_ref(&sent), 0).await;
        assert_eq!(sighted, [Ok(expected)], "{confirmations}");
    }
}

#[tokio::test]
async fn a_bitcoin_transaction__should_be_in_no_block_that_only_one_of_three_nodes_has() {
    let sent = payment("1");
    let height = Arc::new(AtomicI64::new(100));
    let node = async |has_it: bool| {
        let says = move |method: &str, _: &Value| match method {
            "getrawtransaction" => has_it.then(|| json!({"confirmations": 6})),
            "gettxout" => Some(json!({"value": 0.01})),
            _ => None,
        };
        bitcoind(&height, Box::new(says)).await
    };
    let client = client(vec![node(true).await, node(false).await, node(false).await]);
    let sighted = client.sightings(&[sent], 0).await;
    assert_eq!(sighted, [Ok(TransactionSighting::Missing)]);
}

/// Where one is believed, what it has said for long is new for the other one that has to say so, too.
#[tokio::test]
async fn what_one_bitcoin_node_has_called_spent_for_long__should_not_be_spent_for_long_by_two() {
    let sent = payment("1");
    let height = Arc::new(AtomicI64::new(100));
    let node = async |spent: &Arc<AtomicI64>| {
        let spent = Arc::clone(spent);
        let says = move |method: &str, params: &Value| match method {
            "gettransaction" if params[0] == json!("1".repeat(64)) => {
                Some(json!({"confirmations": 20}))
            }
            "gettxout" => Some(match spent.load(Ordering::SeqCst) {
                0 => json!({"value": 0.01}),
                _ => Value::Null,
            }),
            _ => None,
        };
        bitcoind(&height, Box::new(says)).await
    };
    let (by_liar, by_other) = (Arc::new(AtomicI64::new(1)), Arc::new(AtomicI64::new(0)));
    let urls = vec![node(&by_liar).await, node(&by_other).await];
    let chain = ChainKey::of(Network::Bitcoin, None);
    let client = connect_to(chain, ChainEndpoints::new(urls));
    let sighted = async |now_ms: u64| {
        let sighted = client.sightings(std::slice::from_ref(&sent), now_ms).await;
        sighted.into_iter().next().unwrap().unwrap()
    };
    let missing = TransactionSighting::Missing;
    assert_eq!(sighted(3 * HOUR_MS).await, missing);
    assert_eq!(sighted(4 * HOUR_MS - 1).await, missing);
    // Its block has only just come.
    by_other.store(1, Ordering::SeqCst);
    assert_eq!(sighted(4 * HOUR_MS).await, missing);
    assert_eq!(sighted(5 * HOUR_MS - 1).await, missing);
    let replaced = TransactionSighting::Replaced(None);
    assert_eq!(sighted(5 * HOUR_MS).await, replaced);
}
