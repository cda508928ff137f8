//! The EVM client against a node that speaks real HTTP.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use alloy_consensus::{SignableTransaction as _, TxEip1559, TxEnvelope, private::alloy_primitives};
use alloy_eips::Encodable2718 as _;
use covault_actors::chain_rpc::{
    BroadcastOutcome, BroadcastRequest, ChainClient, ChainClients, ChainEndpoints, ChainError,
    ChainKey, FeeEstimate, Inclusion, Standing, TrackedTransaction, TransactionSighting,
};
use covault_core::{
    fault::ExecuteCode,
    networks::{ChainData, ChainMoment, FeeLevel, Payload, Queries, Signed, evm},
    schema::wire::{self, create_signing_request_request::Type as Kind},
    signature::Signature,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{
    http_double::{self, HttpResponse},
    one_witness::Witnesses,
    one_word::Lie,
    world::*,
};

/// A node that answers what a closure says. Stops with the test's runtime.
pub struct EvmTestNode {
    pub url: String,
    pub calls: Arc<Mutex<Vec<(String, Value)>>>,
    /// How often it was asked over HTTP.
    pub requests: Arc<AtomicUsize>,
}

impl EvmTestNode {
    pub async fn start(
        answer: impl Fn(&str, &Value) -> Result<Value, (i64, String)> + Send + Sync + 'static,
    ) -> Self {
        Self::on(http_double::listen().await.0, usize::MAX, answer)
    }

    /// One that takes so many calls in one request; 0: none but single ones.
    async fn taking(
        most: usize,
        answer: impl Fn(&str, &Value) -> Result<Value, (i64, String)> + Send + Sync + 'static,
    ) -> Self {
        Self::on(http_double::listen().await.0, most, answer)
    }

    fn on(
        listener: TcpListener,
        most: usize,
        answer: impl Fn(&str, &Value) -> Result<Value, (i64, String)> + Send + Sync + 'static,
    ) -> Self {
        let url = format!("http://{}", listener.local_addr().unwrap());
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&calls);
        let one = move |request: &Value| {
            let (method, params) = (request["method"].as_str().unwrap(), &request["params"]);
            seen.lock()
                .unwrap()
                .push((method.to_owned(), params.clone()));
            let id = &request["id"];
            match answer(method, params) {
                Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
                Err((code, message)) => {
                    let error = json!({"code": code, "message": message});
                    json!({"jsonrpc": "2.0", "id": id, "error": error})
                }
            }
        };
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        http_double::serve(listener, move |request| {
            counted.fetch_add(1, Ordering::SeqCst);
            let body = match request.json() {
                Value::Array(calls) if calls.len() > most => {
                    json!({"jsonrpc": "2.0", "id": null,
                        "error": {"code": -32600, "message": "batch is too large"}})
                }
                // Answers may come in any order.
                Value::Array(calls) => calls.iter().rev().map(&one).collect(),
                call => one(&call),
            };
            async move { Some(HttpResponse::json(200, &body)) }
        });
        Self {
            url,
            calls,
            requests,
        }
    }

    pub fn methods(&self) -> Vec<String> {
        self.calls
            .lock()
            .unwrap()
            .iter()
            .map(|(method, _)| method.clone())
            .collect()
    }
}

/// A healthy node of the test chain.
pub fn healthy(method: &str, _params: &Value) -> Result<Value, (i64, String)> {
    Ok(match method {
        "eth_chainId" => json!(format!("{CHAIN:#x}")),
        "eth_getTransactionCount" => json!("0x4"),
        "eth_getBlockByNumber" => json!({"baseFeePerGas": "0x3b9aca00", "number": "0x64"}),
        "eth_maxPriorityFeePerGas" => json!("0x5f5e100"),
        "eth_gasPrice" => json!("0x4a817c800"),
        "eth_estimateGas" => json!("0x5208"),
        "eth_getBalance" => json!("0xde0b6b3a7640000"),
        "eth_call" => json!(format!("0x{:064x}", 77)),
        "eth_sendRawTransaction" => json!("0x00"),
        "eth_getTransactionByHash" => Value::Null,
        other => return Err((-32601, format!("{other} not found"))),
    })
}

fn connect(urls: Vec<String>) -> Arc<dyn ChainClient> {
    connect_to(ChainKey::evm(CHAIN), ChainEndpoints::new(urls))
}

pub fn connect_to(chain: ChainKey, endpoints: ChainEndpoints) -> Arc<dyn ChainClient> {
    let chains = chains(chain, endpoints);
    Arc::clone(chains.get(chain.network, chain.chain_id).unwrap())
}

pub fn chains(chain: ChainKey, endpoints: ChainEndpoints) -> ChainClients {
    // Another test of the process may have installed it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    ChainClients::connect(&[(chain, endpoints)].into(), &World::new().ports()).unwrap()
}

/// An address where nobody listens.
pub async fn nobody() -> String {
    http_double::listen().await.1
}

pub fn all_needs() -> Queries {
    needs_at(FeeLevel::Normal)
}

fn needs_at(level: FeeLevel) -> Queries {
    Queries::Evm(evm::Queries {
        chain_id: CHAIN,
        from: "0x00000000000000000000000000000000000000aa".into(),
        nonce: true,
        fees: Some(evm::EvmCall {
            to: Some("0x00000000000000000000000000000000000000bb".into()),
            value: "255".into(),
            data: vec![0xab],
        }),
        level,
    })
}

fn signed(nonce: u64) -> Signed {
    let transaction = TxEip1559 {
        chain_id: CHAIN,
        nonce,
        gas_limit: 21_000,
        ..TxEip1559::default()
    };
    let signed = transaction.into_signed(alloy_primitives::Signature::test_signature());
    Signed {
        tx_hash: signed.hash().to_string(),
        transaction: format!("0x{}", hex::encode(TxEnvelope::from(signed).encoded_2718())),
    }
}

/// A signed transaction with number 5.
pub fn broadcast_request() -> BroadcastRequest {
    BroadcastRequest {
        signed: signed(5),
        chain_data: ChainData::Nothing,
        age_ms: 0,
        now_ms: 0,
        retried: false,
    }
}

#[tokio::test]
async fn facts__should_be_what_the_node_says() {
    let node = EvmTestNode::start(healthy).await;
    let chain_data = connect(vec![node.url.clone()])
        .chain_data(&all_needs(), 0)
        .await
        .unwrap();
    let expected = evm::ChainData {
        nonce: Some(4),
        eip1559: true,
        fees: Some(evm::Fees {
            // A call: a quarter on top.
            estimate_gas: 26_250,
            base_fee: 1_000_000_000,
            max_priority_fee: 100_000_000,
        }),
    };
    assert_eq!(chain_data, ChainData::Evm(expected));
    let calls = node.calls.lock().unwrap();
    let count = calls
        .iter()
        .find(|(method, _)| method == "eth_getTransactionCount")
        .unwrap();
    assert_eq!(
        count.1,
        json!(["0x00000000000000000000000000000000000000aa", "pending"])
    );
    let estimate = calls
        .iter()
        .find(|(method, _)| method == "eth_estimateGas")
        .unwrap();
    assert_eq!(estimate.1[0]["value"], "0xff");
    assert_eq!(estimate.1[0]["data"], "0xab");
    assert_eq!(
        estimate.1[0]["to"],
        "0x00000000000000000000000000000000000000bb"
    );
}

#[tokio::test]
async fn facts__should_take_the_gas_price_where_there_is_no_base_fee() {
    let node = EvmTestNode::start(|method, params| match method {
        "eth_getBlockByNumber" => Ok(json!({"number": "0x1"})),
        _ => healthy(method, params),
    })
    .await;
    let ChainData::Evm(chain_data) = connect(vec![node.url])
        .chain_data(&all_needs(), 0)
        .await
        .unwrap()
    else {
        panic!("no facts")
    };
    assert!(!chain_data.eip1559);
    let fees = chain_data.fees.unwrap();
    assert_eq!((fees.base_fee, fees.max_priority_fee), (20_000_000_000, 0));
}

/// The fees of [`all_needs`] from a node that answers like this.
async fn fees(
    answer: impl Fn(&str, &Value) -> Option<Result<Value, (i64, String)>> + Send + Sync + 'static,
) -> evm::Fees {
    let node = EvmTestNode::start(move |method, params| {
        answer(method, params).unwrap_or_else(|| healthy(method, params))
    })
    .await;
    let chain_data = connect(vec![node.url]).chain_data(&all_needs(), 0).await;
    match chain_data.unwrap() {
        ChainData::Evm(chain_data) => chain_data.fees.unwrap(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn tips__should_be_no_more_than_twice_what_blocks_have_paid() {
    const GWEI: u64 = 1_000_000_000;
    let history = |middle: u64, high: u64| {
        let reward = |middle, high| json!(["0x0", format!("{middle:#x}"), format!("{high:#x}")]);
        json!({"reward": [reward(0, 1), reward(middle, high), reward(middle, 2)]})
    };
    let missing = || Err((-32601, "the method does not exist".into()));
    for (advised, paid, expected) in [
        (Some(1_000_000 * GWEI), Some((GWEI, 5 * GWEI)), 10 * GWEI),
        (Some(4 * GWEI), Some((GWEI, 5 * GWEI)), 4 * GWEI),
        // Tips as small as this are always believed.
        (Some(2 * GWEI), Some((0, 0)), 2 * GWEI),
        (Some(40 * GWEI), Some((0, 0)), 3 * GWEI),
        (Some(40 * GWEI), None, 40 * GWEI),
        // What nodes without the method have.
        (None, Some((GWEI, 5 * GWEI)), GWEI),
        // 20 gwei less the base fee of 1.
        (None, None, 19 * GWEI),
    ] {
        let fees = fees(move |method, _| match method {
            "eth_maxPriorityFeePerGas" => {
                Some(advised.map_or_else(missing, |tip| Ok(json!(format!("{tip:#x}")))))
            }
            "eth_feeHistory" => {
                Some(paid.map_or_else(missing, |(middle, high)| Ok(history(middle, high))))
            }
            _ => None,
        });
        assert_eq!(fees.await.max_priority_fee, u128::from(expected));
    }
}

/// A node that advises this tip, and whose blocks paid these: of each, what a tenth, half and nine tenths of
/// the gas did not exceed, in gwei.
async fn tipping(advised: Option<u64>, paid: &'static [[u64; 3]]) -> EvmTestNode {
    let wei = |gwei: u64| format!("{:#x}", gwei * 1_000_000_000);
    EvmTestNode::start(move |method, params| match (method, advised) {
        ("eth_maxPriorityFeePerGas", Some(tip)) => Ok(json!(wei(tip))),
        ("eth_maxPriorityFeePerGas", None) => Err((-32601, "no such method".into())),
        ("eth_feeHistory", _) if paid.is_empty() => Err((-32601, "no such method".into())),
        ("eth_feeHistory", _) => {
            assert_eq!(*params, json!(["0x14", "latest", [10, 50, 90]]));
            let rewards: Vec<_> = paid.iter().map(|block| block.map(wei)).collect();
            Ok(json!({ "reward": rewards }))
        }
        _ => healthy(method, params),
    })
    .await
}

#[tokio::test]
async fn tips__should_be_of_their_level() {
    const GWEI: u128 = 1_000_000_000;
    const PAID: &[[u64; 3]] = &[[1, 3, 9], [2, 4, 8], [1, 2, 30]];
    for (advised, paid, expected) in [
        (Some(5), PAID, [1, 5, 9]),
        // In order, whatever the node advises.
        (Some(0), PAID, [0, 0, 9]),
        (Some(20), PAID, [1, 20, 20]),
        (None, PAID, [1, 3, 9]),
        (Some(5), &[], [5, 5, 5]),
    ] {
        let node = tipping(advised, paid).await;
        let client = connect(vec![node.url.clone()]);
        for level in FeeLevel::ALL {
            let tip = match client.chain_data(&needs_at(level), 0).await.unwrap() {
                ChainData::Evm(chain_data) => chain_data.fees.unwrap().max_priority_fee,
                other => panic!("{other:?}"),
            };
            assert_eq!(tip, level.of(expected) * GWEI, "{advised:?} {level:?}");
        }
        // The base fee of the double is 1 gwei.
        let estimates = client.fee_estimates().await.unwrap();
        for (estimate, tip) in estimates.into_iter().zip(expected) {
            let expected = FeeEstimate {
                price: (1 + tip) * GWEI,
                most_price: (2 + tip) * GWEI,
                priority_price: Some(tip * GWEI),
                transfer_fee: 21_000 * (1 + tip) * GWEI,
            };
            assert_eq!(estimate, expected);
        }
    }
}

#[tokio::test]
async fn fee_estimates__should_be_the_gas_price_where_there_is_no_base_fee() {
    let node = EvmTestNode::start(|method, params| match method {
        "eth_getBlockByNumber" => Ok(json!({"number": "0x1"})),
        _ => healthy(method, params),
    })
    .await;
    let expected = FeeEstimate {
        price: 20_000_000_000,
        most_price: 20_000_000_000,
        priority_price: None,
        transfer_fee: 420_000_000_000_000,
    };
    let estimates = connect(vec![node.url]).fee_estimates().await;
    assert_eq!(estimates, Ok([expected; 3]));
}

#[tokio::test]
async fn gas_of_calls__should_have_a_reserve_within_the_blocks_limit() {
    for (estimate, limit, expected) in [
        (100_000, Some(30_000_000), 125_000),
        (28_000_000, Some(30_000_000), 30_000_000),
        (28_000_000, None, 35_000_000),
        // A block of another time.
        (30_000_000, Some(29_000_000), 30_000_000),
    ] {
        let fees = fees(move |method, _| match method {
            "eth_estimateGas" => Some(Ok(json!(format!("{estimate:#x}")))),
            "eth_getBlockByNumber" => {
                let mut block = json!({"baseFeePerGas": "0x1", "number": "0x64"});
                if let Some(limit) = limit {
                    block["gasLimit"] = json!(format!("{limit:#x}"));
                }
                Some(Ok(block))
            }
            _ => None,
        });
        assert_eq!(fees.await.estimate_gas, expected);
    }
}

#[tokio::test]
async fn facts__should_come_from_another_node_when_one_is_down_or_overloaded() {
    let busy = EvmTestNode::start(|_, _| Err((-32005, "rate limit exceeded".into()))).await;
    let good = EvmTestNode::start(healthy).await;
    let client = connect(vec![nobody().await, busy.url.clone(), good.url.clone()]);
    assert!(client.chain_data(&all_needs(), 0).await.is_ok());
    let busy_calls = busy.calls.lock().unwrap().len();
    assert!(client.chain_data(&all_needs(), 0).await.is_ok());
    assert_eq!(
        busy.calls.lock().unwrap().len(),
        busy_calls,
        "the one that answered is asked first"
    );
}

#[tokio::test]
async fn facts__should_be_unknown_without_a_node_and_refused_by_one_of_another_chain() {
    let client = connect(vec![nobody().await]);
    assert!(matches!(
        client.chain_data(&all_needs(), 0).await,
        Err(ChainError::Unknown(_))
    ));
    let other = EvmTestNode::start(|method, params| match method {
        "eth_chainId" => Ok(json!("0x1")),
        _ => healthy(method, params),
    })
    .await;
    let client = connect(vec![other.url.clone()]);
    match client.chain_data(&all_needs(), 0).await {
        Err(ChainError::Refused(refusal)) => {
            assert!(refusal.reason.contains("is on chain 1"), "{refusal:?}")
        }
        found => panic!("{found:?}"),
    }
    // Nothing is ever sent there.
    assert!(matches!(
        client.broadcast(&broadcast_request()).await,
        BroadcastOutcome::Unknown(_)
    ));
    assert!(
        !other
            .methods()
            .contains(&"eth_sendRawTransaction".to_owned())
    );
}

#[tokio::test]
async fn facts__should_say_when_the_sender_cannot_pay() {
    let node = EvmTestNode::start(|method, params| match method {
        "eth_estimateGas" => Err((-32000, "insufficient funds for transfer".into())),
        _ => healthy(method, params),
    })
    .await;
    match connect(vec![node.url]).chain_data(&all_needs(), 0).await {
        Err(ChainError::Refused(refusal)) => {
            assert_eq!(refusal.code, ExecuteCode::InsufficientFunds)
        }
        found => panic!("{found:?}"),
    }
}

#[tokio::test]
async fn broadcast__should_tell_accepted_refused_and_unknown_apart() {
    for (said, known, expected) in [
        ("already known", false, "accepted"),
        ("nonce too low", true, "accepted"),
        ("nonce too low", false, "passed"),
        (
            "insufficient funds for gas * price + value",
            false,
            "refused",
        ),
        ("txpool is full", false, "unknown"),
        ("Internal server error", false, "unknown"),
        ("context deadline exceeded", false, "unknown"),
    ] {
        let node = EvmTestNode::start(move |method, params| match method {
            "eth_sendRawTransaction" => Err((-32000, said.into())),
            "eth_getTransactionByHash" if known => Ok(json!({"hash": params[0]})),
            _ => healthy(method, params),
        })
        .await;
        let outcome = match connect(vec![node.url])
            .broadcast(&broadcast_request())
            .await
        {
            BroadcastOutcome::Accepted => "accepted",
            BroadcastOutcome::Refused(_) => "refused",
            BroadcastOutcome::Doubtful(_, Standing::Passed) => "passed",
            BroadcastOutcome::Doubtful(..) => "doubtful",
            BroadcastOutcome::Unknown(_) => "unknown",
        };
        assert_eq!(outcome, expected, "{said}, known: {known}");
    }
    let client = connect(vec![nobody().await]);
    assert!(matches!(
        client.broadcast(&broadcast_request()).await,
        BroadcastOutcome::Unknown(_)
    ));
}

#[tokio::test]
async fn broadcast__should_not_call_refused_what_a_silent_node_may_have() {
    let node = EvmTestNode::start(|method, params| match method {
        "eth_sendRawTransaction" => Err((-32000, "nonce too low".into())),
        _ => healthy(method, params),
    })
    .await;
    let again = BroadcastRequest {
        retried: true,
        ..broadcast_request()
    };
    let client = connect(vec![node.url.clone(), nobody().await]);
    assert!(matches!(
        client.broadcast(&again).await,
        BroadcastOutcome::Unknown(_)
    ));
    // Also for a first try: one address may be many nodes, and one of them has it.
    assert!(matches!(
        client.broadcast(&broadcast_request()).await,
        BroadcastOutcome::Unknown(_)
    ));
    // Every node says that it does not have it: one that has it may be behind the same address.
    let client = connect(vec![node.url]);
    assert!(matches!(
        client.broadcast(&again).await,
        BroadcastOutcome::Doubtful(_, Standing::Passed)
    ));
}

#[tokio::test]
async fn broadcast__should_doubt_every_refusal_of_what_may_have_been_sent() {
    let node = EvmTestNode::start(|method, params| match method {
        "eth_sendRawTransaction" => Err((-32000, "insufficient funds for gas".into())),
        _ => healthy(method, params),
    })
    .await;
    let again = BroadcastRequest {
        retried: true,
        ..broadcast_request()
    };
    let outcome = connect(vec![node.url]).broadcast(&again).await;
    assert!(
        matches!(&outcome, BroadcastOutcome::Doubtful(refusal, Standing::Open)
            if refusal.code == ExecuteCode::InsufficientFunds),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn broadcast__should_find_what_used_the_number_in_final_blocks() {
    let ours = broadcast_request();
    let sender = evm::read_sent(&ours.signed).unwrap().from.to_lowercase();
    for (tag, hash, pruned) in [
        ("finalized", "0xother", false),
        ("finalized", ours.signed.tx_hash.as_str(), false),
        ("finalized", "0xother", true),
        ("latest", "0xother", false),
    ] {
        let (found, from) = (hash.to_owned(), sender.clone());
        let node = EvmTestNode::start(move |method, params| match method {
            "eth_sendRawTransaction" => Err((-32000, "nonce too low".into())),
            "eth_getBlockByNumber" if params[1] == true => {
                assert_eq!(params[0], "0x20");
                let other = json!({"from": "0x00", "nonce": "0x5", "hash": "0xnot"});
                let it = json!({"from": from, "nonce": "0x5", "hash": found});
                Ok(json!({"number": "0x20", "transactions": [other, it]}))
            }
            "eth_getBlockByNumber" if params[0] == "finalized" && tag != "finalized" => {
                Err((-39001, "unknown block".into()))
            }
            // The number is used in block 32.
            "eth_getTransactionCount" => {
                let at = u64::from_str_radix(&params[1].as_str().unwrap()[2..], 16).unwrap();
                match at {
                    ..32 if pruned => Err((-32000, "missing trie node".into())),
                    ..32 => Ok(json!("0x5")),
                    _ => Ok(json!("0x6")),
                }
            }
            _ => healthy(method, params),
        })
        .await;
        let again = BroadcastRequest {
            retried: true,
            ..ours.clone()
        };
        let outcome = connect(vec![node.url]).broadcast(&again).await;
        if hash == ours.signed.tx_hash {
            assert_eq!(outcome, BroadcastOutcome::Accepted);
            continue;
        }
        let BroadcastOutcome::Doubtful(refusal, Standing::Void) = outcome else {
            panic!("{outcome:?}");
        };
        let words = if pruned {
            "nonce 5 was used by another transaction of the account, which is final"
        } else {
            "nonce 5 was used by the transaction 0xother, which is final"
        };
        assert_eq!(refusal.reason, words);
    }
}

pub async fn lies() -> Vec<Lie> {
    let mut lies = Vec::new();
    for what in [
        "insufficient funds for gas * price + value: balance 0, tx cost 1, overshot 1",
        "intrinsic gas too low",
        "exceeds block gas limit",
    ] {
        let liar = EvmTestNode::start(move |method, params| match method {
            "eth_sendRawTransaction" => Err((-32000, what.into())),
            _ => healthy(method, params),
        });
        lies.push(Lie {
            what,
            chain: ChainKey::evm(CHAIN),
            liar: liar.await.url,
            honest: EvmTestNode::start(healthy).await.url,
            is_taken: true,
            request: broadcast_request(),
        });
    }
    lies
}

/// What is in front of a node may have passed the transaction on before it gave up.
#[tokio::test]
async fn broadcast__should_doubt_what_another_node_refuses_after_a_gateway_gave_up() {
    let gateway = http_double::start(|request| {
        let call = request.json();
        let is_sent = call["method"] == "eth_sendRawTransaction";
        let (status, answer) = match is_sent {
            true => (
                504,
                json!({"jsonrpc": "2.0", "id": null,
                    "error": {"code": -32000, "message": "upstream request timeout"}}),
            ),
            false => (
                200,
                json!({"jsonrpc": "2.0", "id": call["id"],
                    "result": healthy(call["method"].as_str().unwrap(), &call["params"]).unwrap()}),
            ),
        };
        Some(HttpResponse::json(status, &answer))
    });
    let node = EvmTestNode::start(|method, params| match method {
        "eth_sendRawTransaction" => {
            Err((-32000, "insufficient funds for gas * price + value".into()))
        }
        _ => healthy(method, params),
    })
    .await;
    let gateway = gateway.await;
    let client = connect(vec![gateway.clone(), node.url.clone(), node.url.clone()]);
    let outcome = client.broadcast(&broadcast_request()).await;
    assert!(
        matches!(outcome, BroadcastOutcome::Doubtful(_, Standing::Open)),
        "{outcome:?}"
    );
    // One alone that refuses it says less.
    let client = connect(vec![gateway, node.url]);
    let outcome = client.broadcast(&broadcast_request()).await;
    assert!(
        matches!(outcome, BroadcastOutcome::Unknown(_)),
        "{outcome:?}"
    );
}

/// No matter which node lies: the service never reports what it cannot take back.
pub async fn never_ended(
    client: Arc<dyn ChainClient>,
    transaction: &TrackedTransaction,
    now_ms: u64,
) {
    let sighted = client
        .sightings(std::slice::from_ref(transaction), now_ms)
        .await;
    let [one] = sighted.as_slice() else {
        panic!("{sighted:?}");
    };
    assert!(
        !matches!(
            one,
            Ok(TransactionSighting::Final(_)
                | TransactionSighting::Replaced(_)
                | TransactionSighting::Expired
                | TransactionSighting::Partial(_))
        ),
        "{one:?}"
    );
}

/// Two nodes that have to agree, in both orders.
pub fn both_ways(chain: ChainKey, one: &str, other: &str) -> [Arc<dyn ChainClient>; 2] {
    two_of(chain, 2, one, other)
}

/// Two nodes, in both orders, of which one is believed or both have to agree: neither ends anything alone.
pub fn all_ways(chain: ChainKey, one: &str, other: &str) -> Vec<Arc<dyn ChainClient>> {
    let of_one = two_of(chain, 1, one, other);
    both_ways(chain, one, other)
        .into_iter()
        .chain(of_one)
        .collect()
}

/// Two nodes of which so many have to agree, in both orders.
pub fn two_of(chain: ChainKey, agree: usize, one: &str, other: &str) -> [Arc<dyn ChainClient>; 2] {
    [[one, other], [other, one]].map(|urls| {
        let endpoints = ChainEndpoints {
            agree,
            // Tests beside this one may take all there is of the machine.
            timeout_ms: 120_000,
            ..ChainEndpoints::new(urls.map(str::to_owned).to_vec())
        };
        connect_to(chain, endpoints)
    })
}

/// What a chain says of a transaction with nonce 5: by hash, by receipt, and how many of the account's
/// transactions the final block, 64, has.
#[derive(Clone)]
pub struct Seen {
    found: Value,
    receipt: Value,
    used: &'static str,
}

impl Seen {
    pub fn mined(block: &str, status: &str) -> Self {
        Self {
            found: json!({"blockNumber": block}),
            receipt: json!({"blockNumber": block, "status": status}),
            used: "0x6",
        }
    }

    pub fn missing(used: &'static str) -> Self {
        Self {
            found: Value::Null,
            receipt: Value::Null,
            used,
        }
    }

    pub async fn node(self) -> EvmTestNode {
        self.node_taking(usize::MAX).await
    }

    /// Of one that takes so many calls in one request.
    async fn node_taking(self, most: usize) -> EvmTestNode {
        EvmTestNode::taking(most, move |method, params| match method {
            "eth_getBlockByNumber" if params[0] == "finalized" => Ok(json!({"number": "0x40"})),
            "eth_getTransactionByHash" => Ok(self.found.clone()),
            "eth_getTransactionReceipt" => Ok(self.receipt.clone()),
            "eth_getTransactionCount" => Ok(json!(self.used)),
            // Which one used the number cannot be said.
            "eth_getBlockByNumber" => Err((-32000, "missing trie node".into())),
            _ => healthy(method, params),
        })
        .await
    }
}

/// A transaction that was sent, with its number.
pub fn tracked(nonce: u64) -> TrackedTransaction {
    let signed = signed(nonce);
    TrackedTransaction {
        from: evm::read_sent(&signed).unwrap().from,
        signed,
        sent_at_ms: 0,
    }
}

pub async fn witnesses() -> Witnesses {
    let url = async |seen: Seen| seen.node().await.url;
    Witnesses {
        chain: ChainKey::evm(CHAIN),
        liars: vec![
            ("in a block", url(Seen::mined("0x41", "0x1")).await),
            ("failed in a block", url(Seen::mined("0x41", "0x0")).await),
            ("final", url(Seen::mined("0x3f", "0x1")).await),
            ("failed for good", url(Seen::mined("0x40", "0x0")).await),
        ],
        honest: url(Seen::missing("0x5")).await,
        later: url(Seen::mined("0x40", "0x1")).await,
        transaction: tracked(5),
        now_ms: 0,
        end: TransactionSighting::Final(Inclusion {
            block: 64,
            success: true,
        }),
    }
}

#[tokio::test]
async fn sightings__should_say_where_a_transaction_is() {
    let at = |block, success| Inclusion { block, success };
    let waiting = Seen {
        found: json!({"blockNumber": null}),
        ..Seen::missing("0x5")
    };
    // Its block is gone between two questions.
    let gone = Seen {
        receipt: Value::Null,
        ..Seen::mined("0x41", "0x1")
    };
    for (seen, expected) in [
        (Seen::missing("0x5"), TransactionSighting::Missing),
        (waiting, TransactionSighting::Waiting),
        (gone, TransactionSighting::Waiting),
        (
            Seen::mined("0x41", "0x1"),
            TransactionSighting::Mined(at(65, true)),
        ),
        (
            Seen::mined("0x40", "0x1"),
            TransactionSighting::Final(at(64, true)),
        ),
        (
            Seen::mined("0x40", "0x0"),
            TransactionSighting::Final(at(64, false)),
        ),
        (Seen::missing("0x6"), TransactionSighting::Replaced(None)),
    ] {
        let node = seen.node().await;
        let sighted = connect(vec![node.url.clone()])
            .sightings(&[tracked(5)], 0)
            .await;
        assert_eq!(sighted, [Ok(expected)]);
    }
}

/// What signers may have signed has no sender that could be recovered, and a number nevertheless.
#[tokio::test]
async fn sightings__should_go_by_the_number_of_the_wallet_where_nobody_has_signed() {
    let from = tracked(5).from;
    let stranger = TrackedTransaction {
        from: "0x00000000000000000000000000000000000000aA".into(),
        ..tracked(5)
    };
    for (transaction, expected) in [
        (tracked(5), TransactionSighting::Replaced(None)),
        (stranger, TransactionSighting::Missing),
    ] {
        let wallet = from.clone();
        let node = EvmTestNode::start(move |method, params| match method {
            "eth_getBlockByNumber" if params[0] == "finalized" => Ok(json!({"number": "0x40"})),
            "eth_getTransactionCount" if params[0] == json!(wallet) => Ok(json!("0x6")),
            "eth_getTransactionCount" => Ok(json!("0x5")),
            "eth_getTransactionByHash" | "eth_getTransactionReceipt" => Ok(Value::Null),
            "eth_getBlockByNumber" => Err((-32000, "missing trie node".into())),
            _ => healthy(method, params),
        })
        .await;
        let client = connect(vec![node.url.clone()]);
        let sighted = client.sightings(&[transaction], 0).await;
        assert_eq!(sighted, [Ok(expected)]);
    }
}

#[tokio::test]
async fn sightings__should_take_the_lowest_block_for_final_that_nodes_name() {
    let at = |block| Inclusion {
        block,
        success: true,
    };
    let node = async |finalized: &'static str, block: &'static str| {
        let seen = Seen::mined(block, "0x1");
        EvmTestNode::start(move |method, params| match method {
            "eth_getBlockByNumber" if params[0] == "finalized" => Ok(json!({"number": finalized})),
            "eth_getTransactionByHash" => Ok(seen.found.clone()),
            "eth_getTransactionReceipt" => Ok(seen.receipt.clone()),
            _ => healthy(method, params),
        })
        .await
    };
    // Nodes may be 64 blocks apart, and one that is ahead may lie.
    for (block, expected) in [
        ("0x40", TransactionSighting::Final(at(64))),
        ("0x41", TransactionSighting::Mined(at(65))),
    ] {
        let (behind, ahead) = (node("0x40", block).await, node("0x80", block).await);
        for client in both_ways(ChainKey::evm(CHAIN), &behind.url, &ahead.url) {
            let sighted = client.sightings(&[tracked(5)], 0).await;
            assert_eq!(sighted, [Ok(expected.clone())]);
        }
    }
}

#[tokio::test]
async fn sightings__should_ask_for_many_in_a_few_calls() {
    let node = Seen::mined("0x41", "0x1").node().await;
    let many: Vec<_> = (0..100).map(tracked).collect();
    let sighted = connect(vec![node.url.clone()]).sightings(&many, 0).await;
    assert_eq!(sighted.len(), 100);
    assert!(
        sighted
            .iter()
            .all(|one| matches!(one, Ok(TransactionSighting::Mined(_))))
    );
    // Which chain, the final block, twice fifty by hash, twice fifty receipts.
    assert_eq!(node.requests.load(Ordering::SeqCst), 6);
}

#[tokio::test]
async fn sightings__should_come_from_nodes_that_take_few_calls_at_once() {
    for most in [0, 1, 10] {
        let node = Seen::mined("0x50", "0x1").node_taking(most).await;
        let transactions: Vec<_> = (0..25).map(tracked).collect();
        let found = connect(vec![node.url.clone()])
            .sightings(&transactions, 0)
            .await;
        assert_eq!(found.len(), transactions.len());
        for sighting in found {
            let is_mined = matches!(sighting, Ok(TransactionSighting::Mined(_)));
            assert!(is_mined, "{most}: {sighting:?}");
        }
    }
}

#[tokio::test]
async fn head__should_be_the_newest_block_and_the_next_number_that_of_it() {
    let says = |height: u64| {
        move |method: &str, params: &Value| match method {
            "eth_blockNumber" => Ok(json!(format!("{height:#x}"))),
            "eth_getTransactionCount" => {
                assert_eq!(params[1], "latest", "not that of the pool");
                Ok(json!("0x4"))
            }
            _ => healthy(method, params),
        }
    };
    let node = EvmTestNode::start(says(700)).await;
    let chain = connect(vec![node.url.clone()]);
    assert_eq!(chain.head().await, Ok(Some(700)));
    assert_eq!(
        chain.next_number("0xaa", ChainMoment::ANY).await,
        Ok(Some(4))
    );
    // Transactions of EVM chains do not end with time.
    assert!(
        chain
            .next_number("0xaa", ChainMoment::at_ms(1))
            .await
            .is_err()
    );
    // One node alone is not believed where two have to agree.
    let liar = EvmTestNode::start(says(700_000)).await;
    let endpoints = ChainEndpoints {
        agree: 2,
        ..ChainEndpoints::new(vec![node.url.clone(), liar.url.clone()])
    };
    let chain = connect_to(ChainKey::evm(CHAIN), endpoints);
    assert!(chain.head().await.is_err());
}

#[tokio::test]
async fn sightings__should_take_no_single_word_for_the_end() {
    for lie in [
        Seen::mined("0x40", "0x1"),
        Seen::mined("0x40", "0x0"),
        Seen::missing("0x6"),
    ] {
        let (liar, honest) = (lie.node().await, Seen::missing("0x5").node().await);
        for client in all_ways(ChainKey::evm(CHAIN), &liar.url, &honest.url) {
            never_ended(client, &tracked(5), 0).await;
        }
    }
}

#[tokio::test]
async fn token_transfers__should_be_refused_that_pay_nothing() {
    let payload = |to: &str| {
        Payload::parse(&Kind::EvmSendErc20(wire::EvmSendErc20 {
            chain_id: CHAIN,
            from: "0x00000000000000000000000000000000000000aa".into(),
            to: to.into(),
            token_contract_address: "0x00000000000000000000000000000000000000bb".into(),
            amount: "5".into(),
            ..Default::default()
        }))
    };
    let bool_word = |value: u8| Ok(json!(format!("0x{value:064x}")));
    for (returned, code, expected) in [
        (bool_word(1), "0x60", None),
        (bool_word(0), "0x60", Some("returns false")),
        (Ok(json!("0x")), "0x60", None),
        (Ok(json!("0x")), "0x", Some("no token contract")),
        (Err((3, "execution reverted".into())), "0x60", None),
    ] {
        let node = EvmTestNode::start(move |method, params| match method {
            "eth_call" => {
                assert_eq!(
                    params[0]["from"],
                    "0x00000000000000000000000000000000000000AA"
                );
                returned.clone()
            }
            "eth_getCode" => Ok(json!(code)),
            _ => healthy(method, params),
        })
        .await;
        let paid = payload("0x00000000000000000000000000000000000000cc").unwrap();
        let found = match connect(vec![node.url]).preflight(&paid).await {
            Ok(()) => None,
            Err(ChainError::Refused(refusal)) => Some(refusal.reason),
            other => panic!("{other:?}"),
        };
        match expected {
            None => assert_eq!(found, None),
            Some(words) => assert!(found.unwrap().contains(words)),
        }
    }
    // What the node cannot say now is asked again.
    let node = EvmTestNode::start(|method, params| match method {
        "eth_call" => Err((-32000, "header not found".into())),
        _ => healthy(method, params),
    })
    .await;
    let paid = payload("0x00000000000000000000000000000000000000cc").unwrap();
    let client = connect(vec![node.url]);
    assert!(matches!(
        client.preflight(&paid).await,
        Err(ChainError::Unknown(_))
    ));
    for to in [
        "0x0000000000000000000000000000000000000000",
        "0x00000000000000000000000000000000000000bb",
    ] {
        let refusal = payload(to).unwrap_err();
        assert!(
            refusal.message().starts_with("evmSendErc20.to"),
            "{refusal:?}"
        );
    }
}

/// A request that brings all of its fees is not estimated; mined, a transfer of more than there is would cost them.
#[tokio::test]
async fn token_transfers_of_more_than_there_is__should_be_refused_although_they_bring_their_gas() {
    let payload = |gas_limit: Option<&str>| {
        Payload::parse(&Kind::EvmSendErc20(wire::EvmSendErc20 {
            chain_id: CHAIN,
            from: "0x00000000000000000000000000000000000000aa".into(),
            to: "0x00000000000000000000000000000000000000cc".into(),
            token_contract_address: "0x00000000000000000000000000000000000000bb".into(),
            amount: "78".into(),
            gas_fee: Some(wire::EvmGas {
                max_fee: Some("9".into()),
                gas_limit: gas_limit.map(str::to_owned),
                ..Default::default()
            }),
            ..Default::default()
        }))
    };
    let word = |value: u64| Ok(json!(format!("0x{value:064x}")));
    let reverted = || Err((3, "execution reverted".into()));
    for (gas_limit, holds, is_refused) in [
        (Some("60000"), word(77), true),
        // It reverts for something else, which may pass.
        (Some("60000"), word(78), false),
        (Some("60000"), reverted(), false),
        // The estimate of its gas will say.
        (None, word(77), false),
    ] {
        let node = EvmTestNode::start(move |method, params| match method {
            "eth_call" if params[0].get("from").is_none() => holds.clone(),
            "eth_call" => Err((3, "execution reverted".into())),
            _ => healthy(method, params),
        })
        .await;
        let payload = payload(gas_limit).unwrap();
        match connect(vec![node.url]).preflight(&payload).await {
            Ok(()) => assert!(!is_refused, "{gas_limit:?}"),
            Err(ChainError::Lacks(refusal)) => {
                assert!(is_refused, "{refusal:?}");
                let expected = "amount: is 78, and the wallet has 77 of this token";
                assert_eq!(refusal.reason, expected);
                assert_eq!(refusal.code, ExecuteCode::InsufficientFunds);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn balance__should_be_decimal_for_coin_and_token() {
    let node = EvmTestNode::start(healthy).await;
    let client = connect(vec![node.url.clone()]);
    let owner = "0x00000000000000000000000000000000000000aa";
    let token = "0x00000000000000000000000000000000000000bb";
    assert_eq!(
        client.balance(owner, None).await.unwrap(),
        "1000000000000000000"
    );
    assert_eq!(client.balance(owner, Some(token)).await.unwrap(), "77");
    let calls = node.calls.lock().unwrap();
    let call = calls
        .iter()
        .find(|(method, _)| method == "eth_call")
        .unwrap();
    assert_eq!(call.1[0]["to"], token);
    let data = format!("0x70a08231{}aa", "0".repeat(62));
    assert_eq!(call.1[0]["data"], data);
}

#[tokio::test]
async fn broadcast__should_end_what_cannot_have_landed_although_a_node_is_silent() {
    let node = EvmTestNode::start(|method, params| match method {
        "eth_sendRawTransaction" => Err((-32000, "insufficient funds for gas".into())),
        _ => healthy(method, params),
    })
    .await;
    let url = || node.url.clone();
    let client = connect(vec![url(), url(), nobody().await]);
    assert!(matches!(
        client.broadcast(&broadcast_request()).await,
        BroadcastOutcome::Refused(_)
    ));
}

#[tokio::test]
async fn broadcast__should_not_take_an_error_of_the_lookup_for_not_found() {
    let node = EvmTestNode::start(|method, params| match method {
        "eth_sendRawTransaction" => Err((-32000, "nonce too low".into())),
        "eth_getTransactionByHash" => Err((-32601, "method is not available".into())),
        _ => healthy(method, params),
    })
    .await;
    assert!(matches!(
        connect(vec![node.url])
            .broadcast(&broadcast_request())
            .await,
        BroadcastOutcome::Unknown(_)
    ));
}

#[tokio::test]
async fn nodes__should_each_say_which_chain_they_are_on() {
    let right = EvmTestNode::start(|method, params| match method {
        "eth_sendRawTransaction" => Err((-32005, "limit exceeded".into())),
        _ => healthy(method, params),
    })
    .await;
    let wrong = EvmTestNode::start(|method, params| match method {
        "eth_chainId" => Ok(json!("0x1")),
        _ => healthy(method, params),
    })
    .await;
    let client = connect(vec![right.url.clone(), wrong.url.clone()]);
    assert!(client.chain_data(&all_needs(), 0).await.is_ok());
    assert!(matches!(
        client.broadcast(&broadcast_request()).await,
        BroadcastOutcome::Unknown(_)
    ));
    assert_eq!(wrong.methods(), ["eth_chainId"]);
}

#[tokio::test]
async fn facts__should_not_believe_an_absurd_transaction_count() {
    for count in ["0x8000000000000000", "0xffffffffffffffff"] {
        let node = EvmTestNode::start(move |method, params| match method {
            "eth_getTransactionCount" => Ok(json!(count)),
            _ => healthy(method, params),
        })
        .await;
        assert!(matches!(
            connect(vec![node.url]).chain_data(&all_needs(), 0).await,
            Err(ChainError::Unknown(_))
        ));
    }
}

#[tokio::test]
async fn balance__should_say_when_there_is_no_token() {
    for answer in [
        "0x".to_owned(),
        "0x1".to_owned(),
        format!("0x{}", "zz".repeat(32)),
    ] {
        let said = answer.clone();
        let node = EvmTestNode::start(move |method, params| match method {
            "eth_call" => Ok(json!(said)),
            _ => healthy(method, params),
        })
        .await;
        let token = Some("0x00000000000000000000000000000000000000bb");
        let found = connect(vec![node.url]).balance("0xaa", token).await;
        assert!(matches!(found, Err(ChainError::Refused(_))), "{answer}");
    }
}

#[tokio::test]
async fn balance__should_read_one_word_of_what_a_hostile_token_answers() {
    let node = EvmTestNode::start(|method, params| match method {
        "eth_call" => Ok(json!(format!("0x{:064x}{}", 9, "f".repeat(4 << 20)))),
        "eth_getBalance" => Ok(json!(format!("0x{}", "f".repeat(1 << 20)))),
        _ => healthy(method, params),
    })
    .await;
    let client = connect(vec![node.url]);
    let token = Some("0x00000000000000000000000000000000000000bb");
    assert_eq!(client.balance("0xaa", token).await.unwrap(), "9");
    assert!(matches!(
        client.balance("0xaa", None).await,
        Err(ChainError::Unknown(_))
    ));
}

#[tokio::test]
async fn connect__should_refuse_what_is_no_address_without_repeating_it() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    for url in ["", "ftp://secret-key@host", "secret-key"] {
        let config = [(ChainKey::evm(CHAIN), ChainEndpoints::new(vec![url.into()]))].into();
        let fault = ChainClients::connect(&config, &World::new().ports())
            .err()
            .unwrap();
        assert!(fault.message().starts_with("chains.evm.31337.rpc: "));
        assert!(!format!("{fault:?}").contains("secret-key"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer__should_wait_for_a_node_that_comes_back() {
    let (listener, url) = http_double::listen().await;
    // First there is a node until the transaction is built, then none, then one again.
    let node = EvmTestNode::on(listener, usize::MAX, |method, params| match method {
        "eth_sendRawTransaction" => Err((-32000, "node is syncing".into())),
        _ => healthy(method, params),
    });
    // Nobody is there.
    let (_second, second_url) = http_double::listen().await;
    let urls = vec![url, second_url];
    let endpoints = ChainEndpoints {
        timeout_ms: 500,
        ..ChainEndpoints::new(urls)
    };
    let world = World::new();
    let gateway = world
        .start_with(
            Arc::clone(&world.store),
            chains(ChainKey::evm(CHAIN), endpoints),
        )
        .await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    let pending = create(&gateway, send(&from)).await;
    let sends = |node: &EvmTestNode| {
        node.methods()
            .iter()
            .filter(|method| *method == "eth_sendRawTransaction")
            .count()
    };
    while sends(&node) < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    {
        let calls = node.calls.lock().unwrap();
        let sent = calls
            .iter()
            .filter(|(method, _)| method == "eth_sendRawTransaction")
            .map(|(_, params)| params.to_string());
        assert_eq!(
            sent.collect::<std::collections::BTreeSet<_>>().len(),
            1,
            "always the same bytes"
        );
    }
    gateway.stop().await;
    let healthy_node = EvmTestNode::start(healthy).await;
    let endpoints = ChainEndpoints::new(vec![healthy_node.url.clone()]);
    let gateway = world
        .start_with(
            Arc::clone(&world.store),
            chains(ChainKey::evm(CHAIN), endpoints),
        )
        .await;
    assert_eq!(outcome(&gateway, &pending.uuid).await.error, None);
    assert_eq!(sends(&healthy_node), 1);
}

#[tokio::test]
async fn signatures_in_block__should_be_of_the_transaction_with_the_number_alone() {
    let sent = tracked(5);
    let hash = format!("0x{}", "ab".repeat(32));
    let found = json!({"hash": hash, "from": sent.from.to_lowercase(), "nonce": "0x5", "blockNumber": "0x9",
        "r": "0x1", "s": format!("0x{}", "2".repeat(64))});
    let broken = |field: &str, value: Value| {
        let mut found = found.clone();
        found[field] = value;
        found
    };
    let mut r = [0; 32];
    r[31] = 1;
    let expected = Signature::Ecdsa {
        r,
        s: [0x22; 32],
        y_parity: 0,
    };
    for (answer, is_taken) in [
        (found.clone(), true),
        (Value::Null, false),
        (json!({}), false),
        (broken("hash", json!("0x77")), false),
        (
            broken("from", json!("0x00000000000000000000000000000000000000aa")),
            false,
        ),
        (broken("nonce", json!("0x6")), false),
        // No block has it yet.
        (broken("blockNumber", Value::Null), false),
        (broken("r", json!("1")), false),
        (broken("r", json!(format!("0x{}", "1".repeat(66)))), false),
        (broken("s", Value::Null), false),
    ] {
        let said = answer.clone();
        let node = EvmTestNode::start(move |method, params| match method {
            "eth_getTransactionByHash" => Ok(said.clone()),
            _ => healthy(method, params),
        })
        .await;
        let client = connect(vec![node.url.clone()]);
        let found = client.signatures_in_block(&sent, Some(&hash)).await;
        match is_taken {
            true => assert_eq!(found, Ok(vec![expected.clone()])),
            false => assert!(found.is_err(), "{answer}"),
        }
        assert!(client.signatures_in_block(&sent, None).await.is_err());
        // One of two is not enough, whatever it says.
        let honest = EvmTestNode::start(|method, params| match method {
            "eth_getTransactionByHash" => Ok(Value::Null),
            _ => healthy(method, params),
        })
        .await;
        for client in all_ways(ChainKey::evm(CHAIN), &node.url, &honest.url) {
            let found = client.signatures_in_block(&sent, Some(&hash)).await;
            assert!(found.is_err(), "{answer}");
        }
        for client in all_ways(ChainKey::evm(CHAIN), &node.url, &node.url) {
            let found = client.signatures_in_block(&sent, Some(&hash)).await;
            assert_eq!(found.is_ok(), is_taken, "{answer}");
        }
    }
}

/// A node whose final block has used the number of what is asked for, and which knows no transaction.
fn passed_by(method: &str, params: &Value) -> Result<Value, (i64, String)> {
    match method {
        "eth_getBlockByNumber" if params[0] == "finalized" => Ok(json!({"number": "0x40"})),
        "eth_getTransactionCount" => Ok(json!("0x6")),
        "eth_getTransactionByHash" | "eth_getTransactionReceipt" => Ok(Value::Null),
        _ => healthy(method, params),
    }
}

#[tokio::test]
async fn an_answer_without_a_result__should_not_say_that_there_is_no_transaction() {
    for is_broken in [false, true] {
        let (listener, url) = http_double::listen().await;
        http_double::serve(listener, move |request| {
            let one = |call: &Value| {
                let method = call["method"].as_str().unwrap();
                if is_broken && method == "eth_getTransactionReceipt" {
                    return json!({"id": call["id"], "message": "please slow down"});
                }
                let result = passed_by(method, &call["params"]).unwrap();
                json!({"jsonrpc": "2.0", "id": call["id"], "result": result})
            };
            let body = match request.json() {
                Value::Array(calls) => calls.iter().map(one).collect(),
                call => one(&call),
            };
            async move { Some(HttpResponse::json(200, &body)) }
        });
        let sighted = connect(vec![url]).sightings(&[tracked(5)], 0).await;
        match is_broken {
            true => assert!(sighted[0].is_err(), "{sighted:?}"),
            false => assert_eq!(sighted, [Ok(TransactionSighting::Replaced(None))]),
        }
    }
}

#[tokio::test]
async fn two_backends_of_one_address__should_not_end_what_only_one_of_them_has() {
    for takes_batches in [true, false] {
        let (listener, url) = http_double::listen().await;
        http_double::serve(listener, move |request| {
            let body = request.json();
            let calls = match &body {
                Value::Array(calls) => calls.clone(),
                call => vec![call.clone()],
            };
            // Each request meets one of the two, and those about numbers the one that is not behind.
            let is_newer = calls
                .iter()
                .any(|call| call["method"] == "eth_getTransactionCount");
            let one = |call: &Value| {
                let method = call["method"].as_str().unwrap();
                let result = match method {
                    "eth_getTransactionReceipt" if is_newer => {
                        json!({"blockNumber": "0x40", "status": "0x1"})
                    }
                    _ => passed_by(method, &call["params"]).unwrap(),
                };
                json!({"jsonrpc": "2.0", "id": call["id"], "result": result})
            };
            let body = match body {
                Value::Array(calls) if calls.len() > 1 && !takes_batches => {
                    json!({"jsonrpc": "2.0", "id": null,
                        "error": {"code": -32600, "message": "batch is too large"}})
                }
                Value::Array(calls) => calls.iter().map(one).collect(),
                call => one(&call),
            };
            async move { Some(HttpResponse::json(200, &body)) }
        });
        let sighted = connect(vec![url]).sightings(&[tracked(5)], 0).await;
        // One that takes no two questions at once is asked one after the other.
        let expected = match takes_batches {
            true => TransactionSighting::Waiting,
            false => TransactionSighting::Replaced(None),
        };
        assert_eq!(sighted, [Ok(expected)]);
    }
}

#[tokio::test]
async fn nodes_that_have_changed_their_chain__should_not_end_a_transaction() {
    let changed = Arc::new(AtomicUsize::new(0));
    let calls = Arc::clone(&changed);
    let node = EvmTestNode::start(move |method, params| match method {
        // It was the right one when it was first asked.
        "eth_chainId" if calls.fetch_add(1, Ordering::SeqCst) > 0 => Ok(json!("0x1")),
        _ => passed_by(method, params),
    })
    .await;
    let sighted = connect(vec![node.url]).sightings(&[tracked(5)], 0).await;
    assert!(sighted[0].is_err(), "{sighted:?}");
}

#[tokio::test]
async fn a_node_in_trouble__should_not_have_what_is_final_guessed() {
    for (words, is_guessed) in [("too many requests", false), ("invalid block tag", true)] {
        let node = EvmTestNode::start(move |method, params| match method {
            "eth_getBlockByNumber" if params[0] == "finalized" => Err((-32000, words.into())),
            _ => passed_by(method, params),
        })
        .await;
        let sighted = connect(vec![node.url]).sightings(&[tracked(5)], 0).await;
        assert_eq!(sighted[0].is_ok(), is_guessed, "{words}: {sighted:?}");
    }
}
