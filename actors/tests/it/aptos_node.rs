//! The Aptos client against a node that speaks real HTTP.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use covault_actors::chain_rpc::{
    BroadcastOutcome, BroadcastRequest, ChainClient, ChainClients, ChainEndpoints, ChainError,
    ChainKey, ChainRefusal, FeeEstimate, Inclusion, SimulationOutcome, SimulationRequest, Standing,
    TrackedTransaction, TransactionSighting,
};
use covault_core::{
    fault::ExecuteCode,
    networks::{
        ChainData, ChainMoment, DynNetworkRules as _, FeeLevel, Payload, Queries, Signed, WireKind,
        aptos::{self, Abi, CoinAmount, FunctionName, PlannedCall, SimulationQuery},
    },
    schema::wire,
};
use serde_json::{Value, json};

use crate::{
    evm_node::{all_ways, connect_to, never_ended},
    http_double::{self, HttpResponse},
    one_witness::Witnesses,
    one_word::{Denial, Lie, QuotedPrice},
    world::*,
};

const FROM: &str = "0x00000000000000000000000000000000000000000000000000000000000000ab";
const POOL: &str = "0x00000000000000000000000000000000000000000000000000000000000000cd";
const HASH: &str = "0x7e";
const BCS: &str = "application/x.aptos.signed_transaction+bcs";
/// In seconds.
const NOW: u64 = 1_800_000_000;
const END: u64 = NOW + 600;

/// A request to the node.
#[derive(Clone, Debug)]
struct RecordedCall {
    /// `GET` or `POST`, path and query.
    what: String,
    kind: Option<String>,
    body: Vec<u8>,
}

type AptosReply = (u16, Value);

/// A node that answers what a closure says, below `/v1`. Stops with the test's runtime.
struct AptosTestNode {
    url: String,
    asked: Arc<Mutex<Vec<RecordedCall>>>,
}

impl AptosTestNode {
    async fn start(answers: impl Fn(&RecordedCall) -> AptosReply + Send + Sync + 'static) -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        let url = http_double::start(move |request| {
            let what = format!("{} {}", request.method(), request.target());
            let asked = RecordedCall {
                what: what.replacen("/v1", "", 1),
                kind: request.header("content-type").map(str::to_owned),
                body: request.body.clone(),
            };
            seen.lock().unwrap().push(asked.clone());
            let (status, body) = answers(&asked);
            Some(HttpResponse::json(status, &body))
        })
        .await;
        let url = format!("{url}/v1");
        Self { url, asked }
    }

    fn client(&self) -> Arc<dyn ChainClient> {
        // Another test of the process may have installed it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let endpoints = ChainEndpoints::new(vec![self.url.clone()]);
        let chain = ChainKey::APTOS;
        let chains =
            ChainClients::connect(&[(chain, endpoints)].into(), &World::new().ports()).unwrap();
        Arc::clone(chains.get(chain.network, chain.chain_id).unwrap())
    }

    fn asked(&self, what: &str) -> Vec<RecordedCall> {
        let mut asked = self.asked.lock().unwrap().clone();
        asked.retain(|asked| asked.what == what);
        asked
    }
}

fn problem(status: u16, code: &str, message: &str) -> AptosReply {
    (status, json!({"message": message, "error_code": code}))
}

fn vm(status: &str) -> AptosReply {
    let message = format!("Invalid transaction: Type: Validation Code: {status}");
    problem(400, "vm_error", &message)
}

fn executed(success: bool, status: &str) -> AptosReply {
    let outcome = json!([{"success": success, "vm_status": status, "gas_used": "9"}]);
    (200, outcome)
}

fn ledger(chain_id: u8, now: u64) -> AptosReply {
    let ledger = json!({"chain_id": chain_id, "ledger_timestamp": format!("{now}000000")});
    (200, ledger)
}

/// A healthy node.
fn healthy(asked: &RecordedCall) -> AptosReply {
    let native = format!("GET /accounts/{FROM}/balance/0x1::aptos_coin::AptosCoin");
    match asked.what.as_str() {
        "GET " => ledger(1, NOW),
        "GET /estimate_gas_price" => (
            200,
            json!({"deprioritized_gas_estimate": 100, "gas_estimate": 120, "prioritized_gas_estimate": 150}),
        ),
        "POST /transactions/simulate" => executed(true, "Executed successfully"),
        "POST /transactions" => (202, json!({"hash": HASH})),
        what if what == native => (200, json!(1_000_000)),
        what if what == format!("GET /accounts/{FROM}") => (
            200,
            json!({"sequence_number": "7", "authentication_key": FROM}),
        ),
        what if what == format!("GET /accounts/{POOL}/module/pool") => (
            200,
            json!({"bytecode": "0x", "abi": {"address": POOL, "name": "pool", "exposed_functions": [
                {"name": "look", "is_entry": false, "generic_type_params": [], "params": []},
                {"name": "swap", "is_entry": true, "generic_type_params": [{"constraints": []}],
                 "params": ["&signer", "u64"], "return": []},
            ]}}),
        ),
        "GET /transactions/by_hash/0x7e" => problem(404, "transaction_not_found", "Not found"),
        _ => problem(404, "web_framework_error", "not found"),
    }
}

fn queries(function: &str) -> Queries {
    let json = json!({"type": "entry_function_payload", "function": format!("{POOL}::pool::{function}"),
        "type_arguments": ["u8"], "arguments": ["5"]});
    Queries::Aptos(aptos::Queries {
        chain_id: 1,
        from: FROM.into(),
        gas_unit_price: true,
        simulate: Some(SimulationQuery {
            call: PlannedCall::Json(json.to_string()),
            gas_unit_price: None,
        }),
        pays: None,
        abi: Some(FunctionName {
            address: POOL.into(),
            module: "pool".into(),
            name: function.into(),
        }),
        sequence_number: None,
        expiration_timestamp_secs: None,
        level: FeeLevel::Normal,
    })
}

/// A signed transaction of number 7 that runs an empty script and ends at [`END`].
fn signed() -> Vec<u8> {
    let mut bytes = vec![0; 31];
    bytes.push(0xab);
    bytes.extend(7u64.to_le_bytes());
    bytes.extend([0; 4]);
    for number in [10, 100, END] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend([1, 0, 32]);
    bytes.extend([3; 32]);
    bytes.push(64);
    bytes.extend([4; 64]);
    bytes
}

fn broadcast_request(now: u64, retried: bool) -> BroadcastRequest {
    BroadcastRequest {
        signed: Signed {
            transaction: format!("0x{}", hex::encode(signed())),
            tx_hash: HASH.into(),
        },
        chain_data: ChainData::Nothing,
        age_ms: 0,
        now_ms: now * 1_000,
        retried,
    }
}

fn reason(error: ChainError) -> ChainRefusal {
    match error {
        ChainError::Refused(refusal) | ChainError::Lacks(refusal) => refusal,
        ChainError::Unknown(reason) => panic!("{reason}"),
    }
}

#[tokio::test]
async fn aptos_facts__should_be_what_the_node_says() {
    let node = AptosTestNode::start(healthy).await;
    let (client, queries) = (node.client(), queries("swap"));
    let asked = client.chain_data(&queries, NOW * 1_000 + 999);
    let expected = aptos::ChainData {
        sequence_number: 7,
        expiration_timestamp_secs: END,
        gas_unit_price: Some(120),
        gas_used: Some(9),
        abi: Some(Abi {
            params: vec!["&signer".into(), "u64".into()],
            type_parameters: 1,
        }),
    };
    assert_eq!(asked.await.unwrap(), ChainData::Aptos(expected));
    let simulated = node.asked("POST /transactions/simulate").remove(0);
    assert_eq!(simulated.kind.as_deref(), Some(BCS));
    // As much gas as the sender can pay for, and AIP-92's empty signature.
    let gas = (1_000_000u64 / 120).to_le_bytes();
    assert!(simulated.body.windows(8).any(|eight| eight == gas));
    assert_eq!(simulated.body[simulated.body.len() - 2..], [4, 4]);
}

#[tokio::test]
async fn aptos_prices__should_be_of_their_level() {
    let plain = |price| FeeEstimate {
        price,
        most_price: price,
        priority_price: None,
        transfer_fee: 20 * price,
    };
    for (answer, expected) in [
        (
            json!({"deprioritized_gas_estimate": 100, "gas_estimate": 120, "prioritized_gas_estimate": 150}),
            [100, 120, 150],
        ),
        (json!({"gas_estimate": 120}), [120; 3]),
        // In order, whatever a node says.
        (
            json!({"deprioritized_gas_estimate": 900, "gas_estimate": 120, "prioritized_gas_estimate": 1}),
            [120; 3],
        ),
    ] {
        let node = AptosTestNode::start(move |asked| match asked.what.as_str() {
            "GET /estimate_gas_price" => (200, answer.clone()),
            _ => healthy(asked),
        })
        .await;
        for level in FeeLevel::ALL {
            let wanted = Queries::Aptos(aptos::Queries {
                chain_id: 1,
                from: FROM.into(),
                gas_unit_price: true,
                level,
                simulate: None,
                pays: None,
                abi: None,
                sequence_number: None,
                expiration_timestamp_secs: None,
            });
            let found = node
                .client()
                .chain_data(&wanted, NOW * 1_000)
                .await
                .unwrap();
            let ChainData::Aptos(found) = found else {
                panic!("{found:?}")
            };
            assert_eq!(found.gas_unit_price, Some(level.of(expected)));
        }
        let estimates = node.client().fee_estimates().await;
        let expected = expected.map(|price| plain(u128::from(price)));
        assert_eq!(estimates, Ok(expected));
    }
}

#[tokio::test]
async fn aptos_facts__should_take_the_number_after_transactions_that_were_executed_meanwhile() {
    let count = AtomicUsize::new(0);
    let node = AptosTestNode::start(move |asked| match asked.what.as_str() {
        "POST /transactions/simulate" if count.fetch_add(1, Ordering::SeqCst) == 0 => executed(
            false,
            "Transaction Executed and Committed with Error SEQUENCE_NUMBER_TOO_OLD",
        ),
        what if what.ends_with(FROM) => {
            let number = 7 + count.load(Ordering::SeqCst);
            (200, json!({"sequence_number": number.to_string()}))
        }
        _ => healthy(asked),
    })
    .await;
    let chain_data = node.client().chain_data(&queries("swap"), 0).await.unwrap();
    let ChainData::Aptos(chain_data) = chain_data else {
        panic!("{chain_data:?}")
    };
    assert_eq!(
        (chain_data.sequence_number, chain_data.gas_used),
        (8, Some(9))
    );
}

#[tokio::test]
async fn aptos_facts__should_offer_no_more_gas_than_is_left_after_transactions_that_were_executed_meanwhile()
 {
    const TOLD: &str =
        "Transaction Executed and Committed with Error INSUFFICIENT_BALANCE_FOR_TRANSACTION_FEE";
    let gas = |asked: &RecordedCall, units: u64| {
        asked
            .body
            .windows(8)
            .any(|eight| eight == units.to_le_bytes())
    };
    for (falls, old) in [
        (true, "SEQUENCE_NUMBER_TOO_OLD"),
        (true, TOLD),
        (false, TOLD),
    ] {
        let count = AtomicUsize::new(0);
        let node = AptosTestNode::start(move |asked| match asked.what.as_str() {
            "POST /transactions/simulate" if count.fetch_add(1, Ordering::SeqCst) == 0 => {
                executed(false, old)
            }
            // It can pay what it has now, and nothing more.
            "POST /transactions/simulate" if !gas(asked, 600_000 / 120) => executed(false, TOLD),
            what if what.contains("/balance/") && falls && count.load(Ordering::SeqCst) > 0 => {
                (200, json!(600_000))
            }
            _ => healthy(asked),
        })
        .await;
        let chain_data = node.client().chain_data(&queries("swap"), 0).await;
        let simulated = node.asked("POST /transactions/simulate").len();
        match chain_data {
            Ok(ChainData::Aptos(chain_data)) if falls => {
                assert_eq!((chain_data.gas_used, simulated), (Some(9), 2));
            }
            // It has what it had, and that is too little.
            Err(error) if !falls => {
                assert_eq!(reason(error).code, ExecuteCode::InsufficientGasFee);
                assert_eq!(simulated, 1);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn aptos_facts__should_begin_at_0_only_where_the_node_knows_no_account() {
    for (answer, begins) in [
        (
            problem(404, "account_not_found", "Account not found by Address"),
            true,
        ),
        (problem(404, "web_framework_error", "not found"), false),
        ((404, json!("no such page")), false),
    ] {
        let node = AptosTestNode::start(move |asked| match asked.what.as_str() {
            what if what.ends_with(FROM) => answer.clone(),
            _ => healthy(asked),
        })
        .await;
        let mut queries = queries("swap");
        if let Queries::Aptos(queries) = &mut queries {
            (queries.simulate, queries.abi) = (None, None);
        }
        match node.client().chain_data(&queries, 0).await {
            Ok(ChainData::Aptos(chain_data)) if begins => assert_eq!(chain_data.sequence_number, 0),
            Err(ChainError::Unknown(_)) if !begins => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn aptos_facts__should_refuse_functions_that_cannot_be_called() {
    let node = AptosTestNode::start(healthy).await;
    let client = node.client();
    for (function, words) in [
        ("look", "is not an entry function"),
        ("drain", "no such function"),
    ] {
        let refusal = reason(client.chain_data(&queries(function), 0).await.unwrap_err());
        assert!(refusal.reason.contains(words), "{}", refusal.reason);
    }
    let mut queries = queries("swap");
    if let Queries::Aptos(aptos::Queries {
        abi: Some(function),
        ..
    }) = &mut queries
    {
        function.module = "none".into();
    }
    // A page that is not there is no module that is not there.
    let error = client.chain_data(&queries, 0).await.unwrap_err();
    assert!(matches!(error, ChainError::Unknown(_)), "{error:?}");
    let node = AptosTestNode::start(|asked| match asked.what.as_str() {
        what if what.ends_with("/module/none") => problem(404, "module_not_found", "Not found"),
        _ => healthy(asked),
    })
    .await;
    let refusal = reason(node.client().chain_data(&queries, 0).await.unwrap_err());
    assert!(
        refusal.reason.contains("no such module"),
        "{}",
        refusal.reason
    );
}

/// The payment of somebody who brings the gas.
fn paying(coin: Option<&str>, amount: u64) -> Queries {
    Queries::Aptos(aptos::Queries {
        chain_id: 1,
        from: FROM.into(),
        gas_unit_price: true,
        level: FeeLevel::Normal,
        simulate: None,
        pays: Some(CoinAmount {
            coin: coin.map(str::to_owned),
            amount,
        }),
        abi: None,
        sequence_number: None,
        expiration_timestamp_secs: None,
    })
}

/// Nothing is simulated where the request brings the gas, and what fails in a block costs it.
#[tokio::test]
async fn aptos_payments_of_more_than_there_is__should_be_refused_before_they_are_signed() {
    const USDT: &str = "0x357b0b74bc833e95a115ad22604854d6b0fca151cecd94111770e5d6ffc9dc2b";
    let node = AptosTestNode::start(|asked| match asked.what.as_str() {
        what if what.ends_with(USDT) => (200, json!(70)),
        _ => healthy(asked),
    })
    .await;
    for (coin, amount, problem) in [
        (None, 999_999, None),
        (
            None,
            1_000_000,
            Some("value: is 1000000, and the wallet has 1000000 of 0x1::"),
        ),
        (Some(USDT), 70, None),
        (
            Some(USDT),
            71,
            Some("amount: is 71, and the wallet has 70 of 0x357b"),
        ),
    ] {
        let said = node.client().chain_data(&paying(coin, amount), 0).await;
        match (said, problem) {
            (Ok(_), None) => {}
            (Err(error), Some(words)) => {
                let refusal = reason(error);
                assert!(refusal.reason.starts_with(words), "{refusal:?}");
                assert_eq!(refusal.code, ExecuteCode::InsufficientFunds);
            }
            other => panic!("{other:?}"),
        }
    }
    let asked = node.asked.lock().unwrap();
    assert!(!asked.iter().any(|asked| asked.what.contains("simulate")));
}

pub async fn denials() -> Vec<Denial> {
    let node = async |said: fn(&RecordedCall) -> Option<AptosReply>| {
        let node = AptosTestNode::start(move |asked| said(asked).unwrap_or_else(|| healthy(asked)));
        node.await.url
    };
    let denial = async |what, lie| Denial {
        what,
        chain: ChainKey::APTOS,
        liar: node(lie).await,
        honest: node(|_| None).await,
        queries: queries("swap"),
        now_ms: 0,
    };
    let poor: fn(&RecordedCall) -> Option<AptosReply> =
        |asked| asked.what.contains("/balance/").then(|| (200, json!(3)));
    let payment = Denial {
        queries: paying(None, 3),
        ..denial("it has less than is to be sent", poor).await
    };
    vec![
        payment,
        denial("the call fails", |asked| {
            (asked.what == "POST /transactions/simulate")
                .then(|| executed(false, "Move abort in 0xcd::pool: 0x3"))
        })
        .await,
        denial("no coins for the fee", |asked| {
            asked.what.contains("/balance/").then(|| (200, json!(0)))
        })
        .await,
        denial("no such function", |asked| {
            let is_asked = asked.what == format!("GET /accounts/{POOL}/module/pool");
            is_asked.then(|| problem(404, "module_not_found", "Module not found"))
        })
        .await,
    ]
}

#[tokio::test]
async fn aptos_gas__should_be_the_highest_that_nodes_name_whatever_they_say_of_what_passes() {
    const TOLD: &str =
        "Transaction Executed and Committed with Error INSUFFICIENT_BALANCE_FOR_TRANSACTION_FEE";
    let node = |status: &'static str, gas: &'static str| {
        AptosTestNode::start(move |asked| match asked.what.as_str() {
            "POST /transactions/simulate" => {
                let outcome = json!([{"success": true, "vm_status": status, "gas_used": gas}]);
                (200, outcome)
            }
            _ => healthy(asked),
        })
    };
    let liar = node(TOLD, "1").await;
    let one = node("Executed successfully", "9").await;
    let other = node("Executed successfully", "9").await;
    for nodes in [[&liar, &one, &other], [&one, &liar, &other]] {
        let endpoints = ChainEndpoints {
            agree: 2,
            ..ChainEndpoints::new(nodes.map(|node| node.url.clone()).to_vec())
        };
        let client = connect_to(ChainKey::APTOS, endpoints);
        match client.chain_data(&queries("swap"), 0).await {
            Ok(ChainData::Aptos(chain_data)) => assert_eq!(chain_data.gas_used, Some(9)),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn aptos_facts__should_say_in_words_why_a_simulation_fails() {
    for (status, code) in [
        (
            "Move abort in 0x1::fungible_asset: EINSUFFICIENT_BALANCE(0x10004): Insufficient balance",
            ExecuteCode::InsufficientFunds,
        ),
        (
            "Transaction Executed and Committed with Error INSUFFICIENT_BALANCE_FOR_TRANSACTION_FEE",
            ExecuteCode::InsufficientGasFee,
        ),
        ("Move abort in 0xcd::pool: 0x3", ExecuteCode::Unspecified),
    ] {
        let node = AptosTestNode::start(move |asked| match asked.what.as_str() {
            "POST /transactions/simulate" => executed(false, status),
            _ => healthy(asked),
        })
        .await;
        let refusal = reason(
            node.client()
                .chain_data(&queries("swap"), 0)
                .await
                .unwrap_err(),
        );
        assert_eq!(refusal.code, code);
        assert!(refusal.reason.contains(status), "{}", refusal.reason);
    }
    let node = AptosTestNode::start(|asked| match asked.what.as_str() {
        what if what.contains("/balance/") => (200, json!(0)),
        _ => healthy(asked),
    })
    .await;
    let refusal = reason(
        node.client()
            .chain_data(&queries("swap"), 0)
            .await
            .unwrap_err(),
    );
    assert_eq!(refusal.code, ExecuteCode::InsufficientGasFee);
}

#[tokio::test]
async fn aptos_nodes_of_another_chain__should_get_nothing() {
    let node = AptosTestNode::start(|asked| match asked.what.as_str() {
        "GET " => ledger(126, NOW),
        _ => healthy(asked),
    })
    .await;
    let client = node.client();
    let refusal = reason(client.chain_data(&queries("swap"), 0).await.unwrap_err());
    assert!(
        refusal.reason.contains("on chain 126"),
        "{}",
        refusal.reason
    );
    let sent = client.broadcast(&broadcast_request(NOW, false)).await;
    assert!(matches!(sent, BroadcastOutcome::Unknown(_)), "{sent:?}");
    assert!(node.asked("POST /transactions").is_empty());
}

#[tokio::test]
async fn aptos_broadcast__should_send_the_exact_bytes() {
    let node = AptosTestNode::start(healthy).await;
    let sent = node
        .client()
        .broadcast(&broadcast_request(NOW, false))
        .await;
    assert_eq!(sent, BroadcastOutcome::Accepted);
    let posted = node.asked("POST /transactions").remove(0);
    assert_eq!(posted.kind.as_deref(), Some(BCS));
    assert_eq!(posted.body, signed());
}

/// The outcome of a transaction that a node refuses; `seen` is what the chain has.
async fn refused_with(
    refusal: AptosReply,
    broadcast_request: BroadcastRequest,
    seen: impl Fn(&RecordedCall) -> Option<AptosReply> + Send + Sync + 'static,
) -> BroadcastOutcome {
    let node = AptosTestNode::start(move |asked| match asked.what.as_str() {
        "POST /transactions" => refusal.clone(),
        _ => seen(asked).unwrap_or_else(|| healthy(asked)),
    })
    .await;
    node.client().broadcast(&broadcast_request).await
}

pub async fn lies() -> Vec<Lie> {
    let lie = async |what, refusal: AptosReply, chain: u64, request| {
        let node = async |refusal: AptosReply, chain| {
            let node = AptosTestNode::start(move |asked| match asked.what.as_str() {
                "POST /transactions" => refusal.clone(),
                "GET " => ledger(1, chain),
                _ => healthy(asked),
            });
            node.await.url
        };
        let honest = match chain {
            NOW => (202, json!({"hash": HASH})),
            _ => refusal.clone(),
        };
        Lie {
            what,
            chain: ChainKey::APTOS,
            liar: node(refusal, chain).await,
            honest: node(honest, NOW).await,
            is_taken: chain == NOW,
            request,
        }
    };
    let fee = vm("INSUFFICIENT_BALANCE_FOR_TRANSACTION_FEE");
    let unknown = problem(404, "web_framework_error", "not found");
    vec![
        lie("its fee", fee, NOW, broadcast_request(NOW, false)).await,
        lie(
            "has expired",
            unknown,
            END + 61,
            broadcast_request(END + 61, false),
        )
        .await,
    ]
}

pub async fn prices() -> Vec<QuotedPrice> {
    let mut prices = Vec::new();
    for (chain, chain_id) in [(ChainKey::APTOS, 1), (ChainKey::MOVEMENT, 126)] {
        let most = 10_000_u128;
        let naming = async |price: u128| {
            let node = AptosTestNode::start(move |asked| match asked.what.as_str() {
                "GET " => ledger(chain_id, NOW),
                "GET /estimate_gas_price" => (
                    200,
                    json!({"deprioritized_gas_estimate": price, "gas_estimate": price, "prioritized_gas_estimate": price}),
                ),
                _ => healthy(asked),
            });
            node.await.url
        };
        prices.push(QuotedPrice {
            chain,
            nodes: [naming(most).await, naming(most + 1).await],
            payload: Payload::parse(&WireKind::AptosSendNative(wire::AptosSendNative {
                chain_id: chain_id.into(),
                from: FROM.into(),
                to: POOL.into(),
                value: "5".into(),
                ..Default::default()
            }))
            .unwrap(),
            most,
            unit: "octa per unit of gas",
        });
    }
    prices
}

#[tokio::test]
async fn aptos_broadcast__should_look_whether_an_old_number_is_its_own() {
    let old = || vm("SEQUENCE_NUMBER_TOO_OLD");
    let by_hash = "GET /transactions/by_hash/0x7e";
    let by_number = format!("GET /accounts/{FROM}/transactions?start=7&limit=1");
    let sent = refused_with(old(), broadcast_request(NOW, false), move |asked| {
        let pending = json!({"type": "pending_transaction", "hash": HASH});
        (asked.what == by_hash).then_some((200, pending))
    });
    assert_eq!(sent.await, BroadcastOutcome::Accepted);

    // Nothing was sent before.
    let sent = refused_with(old(), broadcast_request(NOW, false), |_| None).await;
    assert!(matches!(sent, BroadcastOutcome::Refused(_)), "{sent:?}");

    // It may have arrived, and the node that was asked by its hash is behind.
    let sent = refused_with(old(), broadcast_request(NOW, true), |_| None).await;
    assert!(matches!(sent, BroadcastOutcome::Unknown(_)), "{sent:?}");
    for (hash, accepted) in [(HASH, true), ("0x99", false)] {
        let by_number = by_number.clone();
        let sent = refused_with(old(), broadcast_request(NOW, true), move |asked| {
            let there = json!([{"hash": hash, "sequence_number": "7"}]);
            (asked.what == by_number).then_some((200, there))
        });
        match sent.await {
            BroadcastOutcome::Accepted if accepted => {}
            // One node says so: the others are asked before it counts.
            BroadcastOutcome::Doubtful(_, Standing::Void) if !accepted => {}
            other => panic!("{other:?}"),
        }
    }
    let sent = refused_with(old(), broadcast_request(NOW, true), |asked| {
        (asked.what == "GET ").then(|| ledger(1, END + 60))
    });
    assert!(matches!(
        sent.await,
        BroadcastOutcome::Doubtful(_, Standing::Void)
    ));

    // A node that cannot say leaves it open.
    let sent = refused_with(old(), broadcast_request(NOW, true), move |asked| {
        (asked.what == by_hash).then_some((503, json!("no")))
    });
    assert!(matches!(sent.await, BroadcastOutcome::Unknown(_)));
}

#[tokio::test]
async fn aptos_broadcast__should_end_when_the_chains_clock_has_passed_the_end() {
    let full = || problem(507, "mempool_is_full", "Mempool is full");
    for (now, chain, over) in [
        (NOW, NOW, false),
        // This machine's clock is ahead.
        (END + 1, NOW, false),
        (END + 1, END + 59, false),
        (END + 61, END + 61, true),
    ] {
        let sent = refused_with(full(), broadcast_request(now, true), move |asked| {
            (asked.what == "GET ").then(|| ledger(1, chain))
        });
        match sent.await {
            BroadcastOutcome::Doubtful(refusal, Standing::Void) if over => {
                assert!(refusal.reason.contains("expired"), "{}", refusal.reason);
            }
            BroadcastOutcome::Unknown(_) if !over => {}
            other => panic!("{now} {chain}: {other:?}"),
        }
    }
    let sent = refused_with(
        vm("TRANSACTION_EXPIRED"),
        broadcast_request(NOW, false),
        |_| None,
    )
    .await;
    match sent {
        BroadcastOutcome::Refused(refusal) => {
            assert!(refusal.reason.contains("expired"), "{}", refusal.reason);
        }
        other => panic!("{other:?}"),
    }
    let sent = refused_with(
        vm("TRANSACTION_EXPIRED"),
        broadcast_request(NOW, true),
        |_| None,
    )
    .await;
    assert!(matches!(sent, BroadcastOutcome::Unknown(_)), "{sent:?}");
}

#[tokio::test]
async fn the_next_aptos_number__should_be_that_of_a_ledger_after_the_time_in_question() {
    let at = format!("GET /accounts/{FROM}?ledger_version=900");
    let node = AptosTestNode::start(move |asked| match asked.what.as_str() {
        "GET " => {
            let now = format!("{NOW}500000");
            let ledger = json!({"chain_id": 1, "ledger_timestamp": now, "ledger_version": "900"});
            (200, ledger)
        }
        what if what == at => (200, json!({"sequence_number": "9"})),
        _ => healthy(asked),
    })
    .await;
    let client = node.client();
    for (since_ms, next) in [
        (0, Some(9)),
        (NOW * 1_000 + 500, Some(9)),
        (NOW * 1_000 + 501, None),
    ] {
        assert_eq!(
            client.next_number(FROM, ChainMoment::at_ms(since_ms)).await,
            Ok(next)
        );
    }

    // A node that does not have this version of the ledger cannot say anything.
    let node = AptosTestNode::start(|asked| match asked.what.as_str() {
        "GET " => {
            let now = format!("{NOW}500000");
            let ledger = json!({"chain_id": 1, "ledger_timestamp": now, "ledger_version": "900"});
            (200, ledger)
        }
        what if what.starts_with("GET /accounts") => {
            problem(404, "version_not_found", "Ledger version not found")
        }
        _ => healthy(asked),
    })
    .await;
    let next = node.client().next_number(FROM, ChainMoment::ANY).await;
    assert!(matches!(next, Err(ChainError::Unknown(_))), "{next:?}");
}

#[tokio::test]
async fn head__should_be_the_height_of_the_aptos_ledger() {
    let at = |height: u64| {
        AptosTestNode::start(move |asked| match asked.what.as_str() {
            "GET " => {
                let (status, mut ledger) = ledger(1, NOW);
                ledger["block_height"] = json!(height.to_string());
                (status, ledger)
            }
            _ => healthy(asked),
        })
    };
    let (node, near, liar) = (at(700).await, at(690).await, at(7_000_000).await);
    assert_eq!(node.client().head().await, Ok(Some(700)));
    let both = |other: &AptosTestNode| {
        let endpoints = ChainEndpoints {
            agree: 2,
            ..ChainEndpoints::new(vec![node.url.clone(), other.url.clone()])
        };
        connect_to(ChainKey::APTOS, endpoints)
    };
    // Nodes are some blocks apart, and one that is far ahead is not believed.
    assert!(matches!(both(&near).head().await, Ok(Some(690 | 700))));
    assert!(both(&liar).head().await.is_err());
}

#[tokio::test]
async fn aptos_balance__should_be_of_the_coin_or_of_an_asset() {
    let node = AptosTestNode::start(|asked| match asked.what.as_str() {
        what if what.ends_with("/balance/0xa1::usd::USD") => (200, json!(u64::MAX)),
        what if what.ends_with("/balance/0xa2") => (200, json!("77")),
        what if what.ends_with("/balance/0xa3") => {
            problem(404, "account_not_found", "Account not found by Address")
        }
        what if what.ends_with("/balance/0xa1::pair::LP%3C0x1::a::A,%20u8%3E") => (200, json!(3)),
        what if what.ends_with("/balance/0xa4") => problem(400, "invalid_input", "no"),
        _ => healthy(asked),
    })
    .await;
    let client = node.client();
    for (token, expected) in [
        (None, "1000000"),
        (Some("0xa1::usd::USD"), "18446744073709551615"),
        (Some("0xa2"), "77"),
        (Some("0xa3"), "0"),
        (Some("0xa1::pair::LP<0x1::a::A, u8>"), "3"),
    ] {
        assert_eq!(client.balance(FROM, token).await.unwrap(), expected);
    }
    let refusal = reason(client.balance(FROM, Some("0xa4")).await.unwrap_err());
    assert_eq!(refusal.reason, "is not a token of Aptos");
    let error = client.balance(FROM, Some("0xa5")).await.unwrap_err();
    assert!(matches!(error, ChainError::Unknown(_)), "{error:?}");
}

#[tokio::test]
async fn simulate__should_show_what_the_node_says_of_the_built_transaction() {
    // The generator of the curve.
    let public_key = hex::decode("58".to_owned() + &"66".repeat(31)).unwrap();
    let kind = WireKind::AptosSendNative(wire::AptosSendNative {
        chain_id: 1,
        from: aptos::Aptos.address(&public_key).unwrap(),
        to: POOL.into(),
        value: "5".into(),
        gas_fee: Some(wire::AptosGas {
            max_gas_amount: Some("1000".into()),
            gas_unit_price: Some("100".into()),
            ..Default::default()
        }),
        ..Default::default()
    });
    let payload = Payload::parse(&kind).unwrap();
    let chain_data = ChainData::Aptos(aptos::ChainData {
        sequence_number: 7,
        expiration_timestamp_secs: END,
        gas_unit_price: None,
        gas_used: None,
        abi: None,
    });
    let unsigned = aptos::Aptos
        .build(&payload, &chain_data, &public_key)
        .unwrap();
    let trial = SimulationRequest {
        payload,
        chain_data,
        unsigned: unsigned.clone(),
        public_key: public_key.clone(),
    };
    let of = |success, error: Option<&str>| {
        Some(SimulationOutcome {
            success,
            error: error.map(str::to_owned),
            units_used: Some("9".into()),
            ..SimulationOutcome::default()
        })
    };
    let node = AptosTestNode::start(healthy).await;
    assert_eq!(node.client().simulate(&trial).await, of(true, None));
    let asked = node.asked("POST /transactions/simulate");
    assert_eq!(asked[0].kind.as_deref(), Some(BCS));
    // The transaction, its key, and no signature.
    let authenticator = [&[0, 32], public_key.as_slice(), &[64], &[0; 64]].concat();
    assert_eq!(asked[0].body, [unsigned.bytes, authenticator].concat());

    let abort = "Move abort in 0x1::coin: EINSUFFICIENT_BALANCE(0x10006)";
    // Earlier transactions of the account wait, or it is executed itself: nothing can be said.
    let early = "Transaction Executed and Committed with Error SEQUENCE_NUMBER_TOO_NEW";
    let late = "Transaction Executed and Committed with Error SEQUENCE_NUMBER_TOO_OLD";
    for (said, expected) in [
        (executed(false, abort), of(false, Some(abort))),
        (executed(false, early), None),
        (executed(false, late), None),
        (problem(400, "invalid_input", "cannot be read"), None),
        ((200, json!([])), None),
        ((503, json!({})), None),
    ] {
        let node = AptosTestNode::start(move |asked| match asked.what.as_str() {
            "POST /transactions/simulate" => said.clone(),
            _ => healthy(asked),
        });
        assert_eq!(node.await.client().simulate(&trial).await, expected);
    }
}

/// A node that says this of the transaction, of the account's next number, of the one that used number 7, and of
/// the time.
async fn seeing(found: AptosReply, next: u64, by: &'static str, now: u64) -> AptosTestNode {
    seeing_on(1, found, next, by, now).await
}

/// The same on the chain with this id.
async fn seeing_on(
    chain_id: u8,
    found: AptosReply,
    next: u64,
    by: &'static str,
    now: u64,
) -> AptosTestNode {
    AptosTestNode::start(move |asked| match asked.what.as_str() {
        "GET /transactions/by_hash/0x7e" => found.clone(),
        "GET " => ledger(chain_id, now),
        what if what == format!("GET /accounts/{FROM}") => {
            (200, json!({"sequence_number": next.to_string()}))
        }
        what if what.starts_with(&format!("GET /accounts/{FROM}/transactions")) => {
            (200, json!([{"hash": by, "sequence_number": "7"}]))
        }
        _ => healthy(asked),
    })
    .await
}

fn tracked() -> TrackedTransaction {
    TrackedTransaction {
        signed: broadcast_request(NOW, false).signed,
        from: FROM.into(),
        sent_at_ms: NOW * 1_000,
    }
}

fn in_ledger(success: bool) -> AptosReply {
    let found =
        json!({"type": "user_transaction", "hash": HASH, "version": "12", "success": success});
    (200, found)
}

fn nowhere() -> AptosReply {
    problem(404, "transaction_not_found", "Not found")
}

pub async fn witnesses() -> Vec<Witnesses> {
    let of_chain = async |chain, chain_id| {
        let node = async |success: bool, version: &str| {
            let (status, mut found) = in_ledger(success);
            found["version"] = json!(version);
            let node = seeing_on(chain_id, (status, found), 8, HASH, NOW);
            node.await.url
        };
        Witnesses {
            chain,
            liars: vec![
                ("final", node(true, "11").await),
                ("failed for good", node(false, "12").await),
            ],
            honest: seeing_on(chain_id, nowhere(), 7, HASH, NOW).await.url,
            later: node(true, "12").await,
            transaction: tracked(),
            now_ms: NOW * 1_000,
            end: TransactionSighting::Final(Inclusion {
                block: 12,
                success: true,
            }),
        }
    };
    vec![
        of_chain(ChainKey::APTOS, 1).await,
        of_chain(ChainKey::MOVEMENT, 126).await,
    ]
}

#[tokio::test]
async fn sightings__should_say_where_an_aptos_transaction_is() {
    let at = |success| Inclusion { block: 12, success };
    let pending = (200, json!({"type": "pending_transaction", "hash": HASH}));
    let replaced = || TransactionSighting::Replaced(Some("0x7f".into()));
    for (found, next, by, now, expected) in [
        (
            in_ledger(true),
            8,
            HASH,
            NOW,
            TransactionSighting::Final(at(true)),
        ),
        (
            in_ledger(false),
            8,
            HASH,
            NOW,
            TransactionSighting::Final(at(false)),
        ),
        (pending, 7, HASH, NOW, TransactionSighting::Waiting),
        (nowhere(), 7, HASH, END, TransactionSighting::Missing),
        (nowhere(), 7, HASH, END + 1, TransactionSighting::Expired),
        (nowhere(), 8, "0x7f", NOW, replaced()),
        // The node that lists it has not got it by its hash.
        (nowhere(), 8, HASH, NOW, TransactionSighting::Waiting),
        // What is over by the clock stays so.
        (
            nowhere(),
            7,
            HASH,
            NOW + 2 * 86_400,
            TransactionSighting::Expired,
        ),
        // The node may have forgotten it.
        (
            nowhere(),
            8,
            "0x7f",
            NOW + 2 * 86_400,
            TransactionSighting::Missing,
        ),
    ] {
        let node = seeing(found, next, by, now).await;
        // No matter who pays: the sequence number is the sender's.
        let paid = TrackedTransaction {
            from: format!("0x{}", "5f".repeat(32)),
            ..tracked()
        };
        for tracked in [tracked(), paid] {
            let sighted = node.client().sightings(&[tracked], now * 1_000).await;
            assert_eq!(sighted, [Ok(expected.clone())]);
        }
    }
}

/// A node that knows no transaction, and all blocks since this time, in seconds. The account's next number is 8.
async fn archive(from: u64, now: u64) -> AptosTestNode {
    AptosTestNode::start(move |asked| match asked.what.as_str() {
        "GET " => {
            let (status, mut ledger) = ledger(1, now);
            ledger["oldest_block_height"] = json!("77");
            (status, ledger)
        }
        "GET /blocks/by_height/77" => (
            200,
            json!({"block_height": "77", "block_timestamp": format!("{from}000000")}),
        ),
        what if what == format!("GET /accounts/{FROM}") => (200, json!({"sequence_number": "8"})),
        _ => healthy(asked),
    })
    .await
}

#[tokio::test]
async fn sightings__should_end_what_is_old_by_aptos_nodes_that_remember_that_time() {
    let now = NOW + 3 * 86_400;
    let end = TransactionSighting::Replaced(None);
    for (from, expected) in [
        (NOW - 600, end.clone()),
        // It has forgotten the time around it.
        (NOW - 599, TransactionSighting::Missing),
    ] {
        let node = archive(from, now).await;
        let sighted = node.client().sightings(&[tracked()], now * 1_000).await;
        assert_eq!(sighted, [Ok(expected)]);
    }
    // As many as have to agree.
    let [one, other, forgetful] = [
        archive(NOW - 600, now).await,
        archive(0, now).await,
        archive(NOW - 599, now).await,
    ];
    for client in all_ways(ChainKey::APTOS, &one.url, &forgetful.url) {
        never_ended(client, &tracked(), now * 1_000).await;
    }
    for client in all_ways(ChainKey::APTOS, &one.url, &other.url) {
        let sighted = client.sightings(&[tracked()], now * 1_000).await;
        assert_eq!(sighted, [Ok(end.clone())]);
    }
}

#[tokio::test]
async fn sightings__should_take_no_single_aptos_node_s_word_for_the_end() {
    let honest = seeing(nowhere(), 7, HASH, NOW).await;
    for liar in [
        seeing(in_ledger(true), 8, HASH, NOW).await,
        seeing(nowhere(), 8, "0x7f", NOW).await,
        seeing(nowhere(), 7, HASH, END + 1).await,
    ] {
        for client in all_ways(ChainKey::APTOS, &liar.url, &honest.url) {
            never_ended(client, &tracked(), NOW * 1_000).await;
        }
    }
}
