//! The EVM client with nodes of which one says what the others do not, where two have to agree.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use covault_actors::chain_rpc::{
    BroadcastOutcome, ChainClient, ChainEndpoints, ChainError, ChainKey, Inclusion,
    TransactionSighting, everywhere,
};
use covault_core::{
    networks::{ChainData, FeeLevel, Payload, Queries, evm},
    schema::wire::{self, create_signing_request_request::Type as Kind},
};
use serde_json::{Value, json};

use crate::{
    evm_node::{
        EvmTestNode, Seen, all_needs, both_ways, broadcast_request, connect_to, healthy, tracked,
    },
    http_double::{self, HttpResponse},
    tracker::until,
    world::*,
};

fn two_of(urls: &[&EvmTestNode]) -> Arc<dyn ChainClient> {
    let endpoints = ChainEndpoints {
        agree: 2,
        ..ChainEndpoints::new(urls.iter().map(|node| node.url.clone()).collect())
    };
    connect_to(ChainKey::evm(CHAIN), endpoints)
}

#[tokio::test]
async fn a_transaction__should_be_in_no_final_block_that_only_one_of_three_nodes_has() {
    let liar = Seen::mined("0x40", "0x1").node().await;
    let honest = || async { Seen::missing("0x5").node().await };
    let client = two_of(&[&liar, &honest().await, &honest().await]);
    let sighted = client.sightings(&[tracked(5)], 0).await;
    assert_eq!(sighted, [Ok(TransactionSighting::Missing)]);
    // They have it elsewhere.
    let honest = || async { Seen::mined("0x3f", "0x0").node().await };
    let client = two_of(&[&liar, &honest().await, &honest().await]);
    let sighted = client.sightings(&[tracked(5)], 0).await;
    let place = Inclusion {
        block: 63,
        success: false,
    };
    assert_eq!(sighted, [Ok(TransactionSighting::Final(place))]);
}

#[tokio::test]
async fn a_transaction_that_waits_by_one_node__should_be_in_the_final_block_that_two_others_have() {
    let still = EvmTestNode::start(|method, params| match method {
        "eth_getBlockByNumber" if params[0] == "finalized" => Ok(json!({"number": "0x40"})),
        "eth_getTransactionByHash" => Ok(json!({"blockNumber": null})),
        "eth_getTransactionReceipt" => Ok(Value::Null),
        _ => healthy(method, params),
    })
    .await;
    let honest = || async { Seen::mined("0x3f", "0x1").node().await };
    let client = two_of(&[&still, &honest().await, &honest().await]);
    let sighted = client.sightings(&[tracked(5)], 0).await;
    let place = Inclusion {
        block: 63,
        success: true,
    };
    assert_eq!(sighted, [Ok(TransactionSighting::Final(place))]);
}

/// A node that takes single calls only, and says so in words that are none of JSON-RPC.
async fn one_by_one(
    answer: impl Fn(&str, &Value) -> Result<Value, (i64, String)> + Send + Sync + 'static,
) -> String {
    http_double::start(move |request| {
        let call = request.json();
        let Some(method) = call["method"].as_str() else {
            return Some(HttpResponse {
                status: 400,
                headers: vec![("content-type", "text/plain".into())],
                body: b"no batches".to_vec(),
            });
        };
        let mut said = match answer(method, &call["params"]) {
            Ok(result) => json!({"jsonrpc": "2.0", "result": result}),
            Err((code, message)) => {
                json!({"jsonrpc": "2.0", "error": {"code": code, "message": message}})
            }
        };
        said["id"] = call["id"].clone();
        Some(HttpResponse::json(200, &said))
    })
    .await
}

#[tokio::test]
async fn transactions__should_be_in_blocks_by_a_node_that_refuses_several_calls_in_plain_text() {
    let at = |block: &'static str| {
        move |method: &str, params: &Value| match method {
            "eth_getBlockByNumber" if params[0] == "finalized" => Ok(json!({"number": "0x40"})),
            "eth_getTransactionByHash" => Ok(json!({"blockNumber": block})),
            "eth_getTransactionReceipt" => Ok(json!({"blockNumber": block, "status": "0x1"})),
            _ => healthy(method, params),
        }
    };
    let place = |block| Inclusion {
        block,
        success: true,
    };
    for (block, expected) in [
        ("0x40", TransactionSighting::Final(place(64))),
        ("0x41", TransactionSighting::Mined(place(65))),
    ] {
        let single = one_by_one(at(block)).await;
        let node = EvmTestNode::start(at(block)).await;
        for client in both_ways(ChainKey::evm(CHAIN), &single, &node.url) {
            let sighted = client.sightings(&[tracked(5), tracked(6)], 0).await;
            assert_eq!(sighted, [Ok(expected.clone()), Ok(expected.clone())]);
        }
    }
}

#[tokio::test]
async fn what_one_node_keeps_to_itself__should_get_to_all_when_it_is_sent_everywhere() {
    let node = |error: Option<&'static str>| {
        EvmTestNode::start(move |method, params| match (method, error) {
            ("eth_sendRawTransaction", Some(words)) => Err((-32000, words.into())),
            _ => healthy(method, params),
        })
    };
    let was_sent = |node: &EvmTestNode| {
        node.methods()
            .contains(&"eth_sendRawTransaction".to_owned())
    };
    let hoarder = node(Some("already known")).await;
    let (other, refusing) = (
        node(None).await,
        node(Some("transaction underpriced")).await,
    );
    let client = two_of(&[&hoarder, &other, &refusing]);
    let sent = client.broadcast(&broadcast_request()).await;
    assert_eq!(sent, BroadcastOutcome::Accepted);
    assert!(!was_sent(&other));
    let sent = everywhere(client.broadcast(&broadcast_request())).await;
    assert_eq!(sent, BroadcastOutcome::Accepted);
    assert!(was_sent(&other) && was_sent(&refusing));
}

#[tokio::test]
async fn what_is_final__should_not_be_guessed_where_nodes_have_named_it() {
    let fails = Arc::new(AtomicBool::new(false));
    let node = |words: &'static str, code: i64| {
        let fails = Arc::clone(&fails);
        EvmTestNode::start(move |method, params| match method {
            "eth_getBlockByNumber" if params[0] == "finalized" => {
                match fails.load(Ordering::SeqCst) {
                    true => Err((code, words.into())),
                    false => Ok(json!({"number": "0x20"})),
                }
            }
            "eth_getTransactionCount" => Ok(json!("0x6")),
            "eth_getTransactionByHash" => Ok(json!({"blockNumber": "0x21"})),
            "eth_getTransactionReceipt" => Ok(json!({"blockNumber": "0x21", "status": "0x1"})),
            _ => healthy(method, params),
        })
    };
    // What does not speak of a block says nothing of it.
    for (words, code, is_guessed) in [
        ("something else went wrong", -32000, false),
        ("finalized block not found", -39001, true),
        (
            "invalid argument 0: hex string without 0x prefix",
            -32602,
            true,
        ),
        ("the method does not exist", -32601, true),
    ] {
        let client = two_of(&[&node(words, code).await, &node(words, code).await]);
        fails.store(true, Ordering::SeqCst);
        let sighted = client.sightings(&[tracked(5)], 0).await;
        let is_final = matches!(sighted.as_slice(), [Ok(TransactionSighting::Final(_))]);
        assert_eq!(is_final, is_guessed, "{words}: {sighted:?}");
        // Nor once they have named it.
        let client = two_of(&[&node(words, code).await, &node(words, code).await]);
        fails.store(false, Ordering::SeqCst);
        let sighted = client.sightings(&[tracked(5)], 0).await;
        assert!(matches!(
            sighted.as_slice(),
            [Ok(TransactionSighting::Mined(_))]
        ));
        fails.store(true, Ordering::SeqCst);
        let sighted = client.sightings(&[tracked(5)], 0).await;
        assert!(sighted[0].is_err(), "{words}: {sighted:?}");
    }
}

#[tokio::test]
async fn a_token__should_be_refused_and_paid_by_as_many_nodes_as_have_to_agree() {
    // What a node returns of the transfer, and the code of the contract.
    type Says = (&'static str, &'static str);
    const PASSES: Says = ("0x01", "0x60");
    const SAYS_NO: Says = ("0x00", "0x60");
    const NO_TOKEN: Says = ("0x", "0x");
    let node = |(returned, code): Says| {
        let word = match returned {
            "0x" => returned.to_owned(),
            _ => format!("0x{:0>64}", &returned[2..]),
        };
        EvmTestNode::start(move |method, params| match method {
            "eth_call" => Ok(json!(word)),
            "eth_getCode" => Ok(json!(code)),
            _ => healthy(method, params),
        })
    };
    let payment = Payload::parse(&Kind::EvmSendErc20(wire::EvmSendErc20 {
        chain_id: CHAIN,
        from: "0x00000000000000000000000000000000000000aa".into(),
        to: "0x00000000000000000000000000000000000000cc".into(),
        token_contract_address: "0x00000000000000000000000000000000000000bb".into(),
        amount: "5".into(),
        ..Default::default()
    }))
    .unwrap();
    let asks = async |says: &[Says]| {
        let mut nodes = Vec::new();
        for says in says {
            nodes.push(node(*says).await);
        }
        let nodes: Vec<_> = nodes.iter().collect();
        two_of(&nodes).preflight(&payment).await
    };
    for lie in [SAYS_NO, NO_TOKEN] {
        for says in [[lie, PASSES], [PASSES, lie]] {
            let said = asks(&says).await;
            assert!(matches!(said, Err(ChainError::Unknown(_))), "{said:?}");
        }
        // The others decide, to either side.
        for says in [[lie, PASSES, PASSES], [PASSES, PASSES, lie]] {
            assert_eq!(asks(&says).await, Ok(()));
        }
        for says in [[PASSES, lie, lie], [lie, lie, PASSES]] {
            let said = asks(&says).await;
            assert!(matches!(said, Err(ChainError::Refused(_))), "{said:?}");
        }
    }
}

#[tokio::test]
async fn gas__should_be_the_highest_that_nodes_name_and_refused_by_as_many_as_have_to_agree() {
    type Says = Result<&'static str, &'static str>;
    let node = |says: Says| {
        EvmTestNode::start(move |method, params| match (method, says) {
            ("eth_estimateGas", Ok(gas)) => Ok(json!(gas)),
            ("eth_estimateGas", Err(words)) => Err((-32000, words.into())),
            _ => healthy(method, params),
        })
    };
    let queries = Queries::Evm(evm::Queries {
        chain_id: CHAIN,
        from: "0x00000000000000000000000000000000000000aa".into(),
        nonce: true,
        fees: Some(evm::EvmCall {
            to: Some("0x00000000000000000000000000000000000000bb".into()),
            value: "5".into(),
            data: vec![],
        }),
        level: FeeLevel::Normal,
    });
    let (low, high, reverts) = (Ok("0x5208"), Ok("0xc350"), Err("execution reverted"));
    let asks = async |one: Says, other: Says| {
        let client = two_of(&[&node(one).await, &node(other).await]);
        client
            .chain_data(&queries, 0)
            .await
            .map(|found| match found {
                ChainData::Evm(found) => found.fees.unwrap().estimate_gas,
                other => panic!("{other:?}"),
            })
    };
    for (one, other, expected) in [
        (low, high, 50_000),
        (high, low, 50_000),
        (low, reverts, 21_000),
        (reverts, high, 50_000),
    ] {
        assert_eq!(asks(one, other).await, Ok(expected));
    }
    let refused = asks(reverts, reverts).await;
    assert!(
        matches!(refused, Err(ChainError::Refused(_))),
        "{refused:?}"
    );
    let unknown = asks(reverts, Err("try again later")).await;
    assert!(
        matches!(unknown, Err(ChainError::Unknown(_))),
        "{unknown:?}"
    );
}

/// What one node takes and passes on to nobody the other one gets in the same moment, unless too much waits for that.
#[tokio::test]
async fn a_node_that_answers_nothing__should_be_counted_where_it_does_not_get_what_another_takes() {
    let node = EvmTestNode::start(healthy).await;
    let (listener, url) = http_double::listen().await;
    http_double::serve(listener, |request| async move {
        let call = request.json();
        let method = call["method"].as_str().unwrap_or_default();
        if method == "eth_sendRawTransaction" {
            std::future::pending::<()>().await;
        }
        let result = healthy(method, &Value::Null).unwrap_or_default();
        let answer = json!({"jsonrpc": "2.0", "id": call["id"], "result": result});
        Some(HttpResponse::json(200, &answer))
    });
    let endpoints = ChainEndpoints {
        // Nothing ends while the test runs.
        timeout_ms: 600_000,
        ..ChainEndpoints::new(vec![node.url.clone(), url])
    };
    let client = connect_to(ChainKey::evm(CHAIN), endpoints);
    let left_out = || -> Vec<u64> { client.health().iter().map(|it| it.left_out).collect() };
    for _ in 0..256 {
        let sent = client.broadcast(&broadcast_request()).await;
        assert_eq!(sent, BroadcastOutcome::Accepted);
    }
    assert_eq!(left_out(), [0, 0]);
    for more in 1..=3 {
        client.broadcast(&broadcast_request()).await;
        assert_eq!(left_out(), [0, more]);
    }
}

/// One that is too busy to take it gets it when another one has.
#[tokio::test]
async fn a_node_that_was_skipped__should_get_what_another_takes() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&sent);
    let busy = EvmTestNode::start(move |method, params| {
        let is_sending = method == "eth_sendRawTransaction";
        if is_sending && counts.fetch_add(1, Ordering::SeqCst) == 0 {
            return Err((-32005, "limit exceeded".into()));
        }
        healthy(method, params)
    })
    .await;
    let node = EvmTestNode::start(healthy).await;
    let endpoints = ChainEndpoints::new(vec![busy.url.clone(), node.url.clone()]);
    let client = connect_to(ChainKey::evm(CHAIN), endpoints);
    let taken = client.broadcast(&broadcast_request()).await;
    assert_eq!(taken, BroadcastOutcome::Accepted);
    until(async || sent.load(Ordering::SeqCst) == 2).await;
}

/// It was asked again and again, for 53 seconds, and the request failed.
#[tokio::test]
async fn prices__should_be_asked_for_once_where_a_node_does_not_know_how() {
    let node = EvmTestNode::start(|method, params| match method {
        "eth_maxPriorityFeePerGas" | "eth_feeHistory" => {
            Err((-32601, "the method does not exist".into()))
        }
        _ => healthy(method, params),
    })
    .await;
    let client = connect_to(
        ChainKey::evm(CHAIN),
        ChainEndpoints::new(vec![node.url.clone()]),
    );
    let said = client.chain_data(&all_needs(), 0).await.unwrap();
    let ChainData::Evm(said) = said else {
        panic!("{said:?}")
    };
    // The gas price less the base fee.
    assert_eq!(said.fees.unwrap().max_priority_fee, 19_000_000_000);
    for method in ["eth_maxPriorityFeePerGas", "eth_feeHistory", "eth_gasPrice"] {
        let methods = node.methods();
        let asked = methods.iter().filter(|asked| *asked == method);
        assert_eq!(asked.count(), 1, "{method}");
    }
}
