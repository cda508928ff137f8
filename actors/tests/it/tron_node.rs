//! The Tron client against nodes that speak real HTTP.

use std::sync::{Arc, Mutex};

use covault_actors::chain_rpc::{
    BroadcastOutcome, BroadcastRequest, ChainClient, ChainClients, ChainEndpoints, ChainError,
    ChainKey, FeeEstimate, Inclusion, SimulationOutcome, SimulationRequest, Standing,
    TrackedTransaction, TransactionSighting, TransferBurn,
};
use covault_core::{
    fault::ExecuteCode,
    networks::{
        ChainData, DynNetworkRules as _, Network, Payload, Queries, Signed, WireKind,
        tron::{self, Block, TronCall},
    },
    schema::wire,
};
use serde_json::{Value, json};

use crate::{
    evm_node::{all_ways, chains, connect_to, never_ended},
    http_double::{self, HttpResponse},
    one_witness::Witnesses,
    one_word::{Denial, Lie},
    world::*,
};

const NOW_MS: u64 = 1_700_000_000_000;
/// When what is built on the block of now has expired, and when that cannot be undone.
const EXPIRES_MS: u64 = NOW_MS + 60_000;
const END_MS: u64 = EXPIRES_MS + 60_000;
const FROM: &str = "TJRabPrwbZy45sbavfcjinPJC18kjpRTv8";
const TOKEN: &str = "TR7NHqjeKQxGTCi8q8ZY4pL8otSzgjLj6t";
const HASH: &str = "abababababababababababababababababababababababababababababababab";

/// What a node answers.
#[derive(Clone)]
struct TronTestState {
    head_ms: u64,
    /// sun per byte of bandwidth.
    byte: Value,
    /// sun.
    balance: u64,
    /// Of the token, a byte.
    tokens: u8,
    trial: Value,
    broadcast: Value,
    known: bool,
    /// The block that has the transaction, and how it went.
    mined: Option<(u64, &'static str)>,
    /// The last solidified block's number and time.
    solid: (u64, u64),
    sent: usize,
}

impl Default for TronTestState {
    fn default() -> Self {
        Self {
            head_ms: NOW_MS,
            byte: json!(1000),
            balance: 1_000_000_000,
            tokens: 9,
            trial: json!({
                "result": {"result": true}, "energy_used": 64_000, "constant_result": ["00".repeat(32)],
            }),
            broadcast: json!({"result": true, "code": "SUCCESS"}),
            known: false,
            mined: None,
            solid: (0, NOW_MS),
            sent: 0,
        }
    }
}

impl TronTestState {
    fn answer(&mut self, path: &str, body: &Value) -> Value {
        match path {
            "/wallet/getnowblock" => json!({
                "blockID": hex::encode(block().id),
                "block_header": {"raw_data": {"number": block().number, "timestamp": self.head_ms}},
            }),
            "/wallet/getaccount" => {
                json!({"address": FROM, "balance": self.balance, "assetV2": [{"key": "1000001", "value": 5}]})
            }
            "/wallet/getchainparameters" => json!({"chainParameter": [
                {"key": "getTransactionFee", "value": self.byte}, {"key": "getEnergyFee", "value": 100},
            ]}),
            "/wallet/getaccountresource" => json!({"freeNetLimit": 600, "EnergyLimit": 1_000}),
            "/wallet/getcontract" => json!({"consume_user_resource_percent": 50}),
            "/wallet/triggerconstantcontract" => {
                let data = body["data"].as_str().unwrap();
                let contract = body["contract_address"].as_str().unwrap();
                if !contract.starts_with('T') {
                    let words = hex::encode("class org.tron.json.JSONException : ParseException");
                    json!({"result": {"code": "OTHER_ERROR", "message": words}})
                } else if contract != TOKEN {
                    let words = hex::encode("Smart contract is not exist.");
                    json!({"result": {"code": "CONTRACT_VALIDATE_ERROR", "message": words}})
                } else if let "313ce567" | "95d89b41" = data {
                    // USDT, as the ABI has a text.
                    let said = match data {
                        "313ce567" => format!("{:064x}", 6),
                        _ => format!("{:064x}{:064x}{:0<64}", 32, 4, hex::encode("USDT")),
                    };
                    json!({"result": {"result": true}, "energy_used": 400, "constant_result": [said]})
                } else if let Some(owner) = data.strip_prefix("70a08231") {
                    assert_eq!(owner.len(), 64);
                    json!({
                        "result": {"result": true}, "energy_used": 900,
                        "constant_result": [format!("{:064x}", self.tokens)],
                    })
                } else {
                    self.trial.clone()
                }
            }
            "/wallet/broadcasthex" => {
                assert_eq!(body["transaction"], signed());
                self.sent += 1;
                self.broadcast.clone()
            }
            "/wallet/gettransactioninfobyid" | "/walletsolidity/gettransactioninfobyid" => {
                let is_solid = path.starts_with("/walletsolidity");
                match self
                    .mined
                    .filter(|(block, _)| !is_solid || *block <= self.solid.0)
                {
                    None => json!({}),
                    Some((block, "")) => json!({"id": body["value"], "blockNumber": block}),
                    Some((block, result)) => {
                        json!({"id": body["value"], "blockNumber": block, "result": result})
                    }
                }
            }
            "/walletsolidity/getnowblock" => json!({
                "blockID": hex::encode(block().id),
                "block_header": {"raw_data": {"number": block().number, "timestamp": self.solid.1}},
            }),
            "/wallet/gettransactionbyid" if self.known => json!({"txID": body["value"]}),
            "/wallet/gettransactionbyid" => json!({}),
            other => panic!("{other}"),
        }
    }
}

/// A node whose state tests can change. Stops with the test's runtime.
struct TronTestNode {
    url: String,
    state: Arc<Mutex<TronTestState>>,
}

impl TronTestNode {
    async fn start(state: TronTestState) -> Self {
        let state = Arc::new(Mutex::new(state));
        let seen = Arc::clone(&state);
        let url = http_double::start(move |request| {
            let body = request.json();
            let answer = seen.lock().unwrap().answer(request.target(), &body);
            Some(HttpResponse::json(200, &answer))
        })
        .await;
        Self { url, state }
    }

    fn set(&self, change: impl FnOnce(&mut TronTestState)) {
        change(&mut self.state.lock().unwrap());
    }

    fn sent(&self) -> usize {
        self.state.lock().unwrap().sent
    }
}

fn connect(nodes: &[&TronTestNode]) -> Arc<dyn ChainClient> {
    // Another test of the process may have installed it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let chain = ChainKey::of(Network::Tron, None);
    let endpoints = ChainEndpoints::new(nodes.iter().map(|node| node.url.clone()).collect());
    let chains =
        ChainClients::connect(&[(chain, endpoints)].into(), &World::new().ports()).unwrap();
    Arc::clone(chains.get(chain.network, chain.chain_id).unwrap())
}

fn block() -> Block {
    let number = 70_000_000_u64;
    let mut id = [0xab; 32];
    id[..8].copy_from_slice(&number.to_be_bytes());
    Block {
        number,
        id,
        timestamp_ms: NOW_MS,
    }
}

/// Of a transfer of 7.
fn call(contract: &str, fee_limit: u64) -> Queries {
    let data = [&[0xa9, 0x05, 0x9c, 0xbb][..], &[0x11; 32], &[0; 31], &[7]].concat();
    Queries::Tron(tron::Queries {
        call: Some(TronCall {
            from: FROM.into(),
            contract: contract.into(),
            data,
            fee_limit,
        }),
    })
}

/// A transaction that expires at [`EXPIRES_MS`], without a signature.
fn signed() -> String {
    let payload = Payload::parse(&WireKind::TronSendNative(wire::TronSendNative {
        from: tron::Tron.address(&public_key()).unwrap(),
        to: FROM.into(),
        value: "5".into(),
    }))
    .unwrap();
    let chain_data = ChainData::Tron(block().into());
    let unsigned = tron::Tron
        .build(&payload, &chain_data, &public_key())
        .unwrap();
    let length = u8::try_from(unsigned.bytes.len() & 0x7f).unwrap() | 0x80;
    let high = u8::try_from(unsigned.bytes.len() >> 7).unwrap();
    hex::encode([&[0x0a, length, high], unsigned.bytes.as_slice()].concat())
}

fn broadcast_request(now_ms: u64, retried: bool) -> BroadcastRequest {
    BroadcastRequest {
        signed: Signed {
            transaction: signed(),
            tx_hash: HASH.into(),
        },
        chain_data: tron::ChainData::from(block()).into(),
        age_ms: now_ms - NOW_MS,
        now_ms,
        retried,
    }
}

fn no(code: &str, words: &str) -> Value {
    json!({"result": false, "code": code, "txid": HASH, "message": hex::encode(words)})
}

fn code(refused: Result<ChainData, ChainError>) -> ExecuteCode {
    match refused {
        Err(ChainError::Refused(refusal)) => refusal.code,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn tron_facts__should_be_the_head_of_a_node_of_this_time() {
    let none = Queries::Tron(tron::Queries { call: None });
    let behind = TronTestNode::start(TronTestState {
        head_ms: NOW_MS - 60_000,
        ..TronTestState::default()
    })
    .await;
    let ahead = TronTestNode::start(TronTestState {
        head_ms: NOW_MS + 3_600_000,
        ..TronTestState::default()
    })
    .await;
    let good = TronTestNode::start(TronTestState::default()).await;
    let chain_data: ChainData = tron::ChainData::from(block()).into();
    let client = connect(&[&behind, &ahead, &good]);
    assert_eq!(
        client.chain_data(&none, NOW_MS).await,
        Ok(chain_data.clone())
    );
    for (node, words) in [(&behind, "behind"), (&ahead, "ahead")] {
        match connect(&[node]).chain_data(&none, NOW_MS).await {
            Err(ChainError::Unknown(reason)) => assert!(reason.contains(words), "{reason}"),
            other => panic!("{other:?}"),
        }
    }
    let exact = call(TOKEN, 6_400_000);
    assert_eq!(client.chain_data(&exact, NOW_MS).await, Ok(chain_data));
}

#[tokio::test]
async fn tron_estimates__should_be_the_chain_s_price_for_bytes() {
    let node = TronTestNode::start(TronTestState::default()).await;
    let estimate = FeeEstimate {
        price: 1_000,
        most_price: 1_000,
        priority_price: None,
        transfer_fee: 268_000,
    };
    assert_eq!(connect(&[&node]).fee_estimates().await, Ok([estimate; 3]));
}

#[tokio::test]
async fn tron_estimates__should_be_believed_up_to_a_ceiling() {
    let chain = ChainKey::of(Network::Tron, None);
    let ask = async |byte: Value, most_price: Option<u128>| {
        let state = TronTestState {
            byte,
            ..TronTestState::default()
        };
        let endpoints = ChainEndpoints {
            most_price,
            ..ChainEndpoints::new(vec![TronTestNode::start(state).await.url])
        };
        let chains = chains(chain, endpoints);
        let client = chains.get(chain.network, chain.chain_id).unwrap();
        let estimates = client.fee_estimates().await?;
        Ok::<_, ChainError>(chains.estimate_problem(chain, &estimates))
    };
    // Ten times what mainnet asks for.
    assert_eq!(ask(json!(10_000), None).await, Ok(None));
    for absurd in [10_001, 1_000_000_000_000, u64::MAX] {
        let problem = ask(json!(absurd), None).await.unwrap().unwrap_or_default();
        let named = format!("report a price of {absurd} sun per byte of bandwidth");
        assert!(problem.contains(&named), "{problem}");
        assert!(problem.contains("chains.tron.most_price"), "{problem}");
    }
    // Configuration raises it, and lowers it.
    assert_eq!(ask(json!(10_001), Some(10_001)).await, Ok(None));
    assert!(ask(json!(1_000), Some(999)).await.unwrap().is_some());
    // What no chain charges is no answer.
    for nonsense in [json!(-1), json!(1e30), json!("1000"), json!(null)] {
        let answer = ask(nonsense, None).await;
        assert!(matches!(answer, Err(ChainError::Unknown(_))), "{answer:?}");
    }
}

pub async fn denials() -> Vec<Denial> {
    let poor = TronTestState {
        balance: 0,
        ..TronTestState::default()
    };
    let mut reverts = TronTestState::default();
    reverts.trial["result"]["message"] = json!(hex::encode("REVERT opcode executed"));
    let mut burns = TronTestState::default();
    burns.trial["energy_used"] = json!(10_000_000);
    let mut denials = Vec::new();
    for (what, lie) in [
        ("no coins for the fee", poor),
        ("the call fails", reverts),
        ("the fee limit is too low", burns),
    ] {
        denials.push(Denial {
            what,
            chain: ChainKey::of(Network::Tron, None),
            liar: TronTestNode::start(lie).await.url,
            honest: TronTestNode::start(TronTestState::default()).await.url,
            queries: call(TOKEN, 100_000_000),
            now_ms: NOW_MS,
        });
    }
    denials
}

#[tokio::test]
async fn tron_calls__should_be_refused_where_they_would_fail() {
    let node = TronTestNode::start(TronTestState::default()).await;
    let client = connect(&[&node]);
    let low = call(TOKEN, 6_399_999);
    assert_eq!(
        code(client.chain_data(&low, NOW_MS).await),
        ExecuteCode::InsufficientGasFee
    );
    let nowhere = call(FROM, 100_000_000);
    assert_eq!(
        code(client.chain_data(&nowhere, NOW_MS).await),
        ExecuteCode::Unspecified
    );

    // Half of 64,000 energy, less the 1,000 that the sender has; there is bandwidth for the bytes.
    let good = call(TOKEN, 100_000_000);
    node.set(|state| state.balance = 3_100_000);
    client.chain_data(&good, NOW_MS).await.unwrap();
    node.set(|state| state.balance = 3_099_999);
    assert_eq!(
        code(client.chain_data(&good, NOW_MS).await),
        ExecuteCode::InsufficientGasFee
    );

    node.set(|state| {
        state.balance = 1_000_000_000;
        state.trial["result"]["message"] = json!(hex::encode("REVERT opcode executed"));
    });
    for (tokens, expected) in [
        (7, ExecuteCode::Unspecified),
        (6, ExecuteCode::InsufficientFunds),
    ] {
        node.set(|state| state.tokens = tokens);
        assert_eq!(code(client.chain_data(&good, NOW_MS).await), expected);
    }
}

#[tokio::test]
async fn tron_energy__should_be_what_as_many_nodes_name_as_have_to_agree_where_coins_pay_it() {
    let node = |energy: u64| {
        let mut state = TronTestState {
            balance: 1_000_000,
            ..TronTestState::default()
        };
        state.trial["energy_used"] = json!(energy);
        TronTestNode::start(state)
    };
    let (liar, one, other) = (node(0).await, node(64_000).await, node(64_000).await);
    for nodes in [[&liar, &one, &other], [&one, &liar, &other]] {
        let endpoints = ChainEndpoints {
            agree: 2,
            ..ChainEndpoints::new(nodes.map(|node| node.url.clone()).to_vec())
        };
        let client = connect_to(ChainKey::of(Network::Tron, None), endpoints);
        let said = client.chain_data(&call(TOKEN, 100_000_000), NOW_MS).await;
        assert_eq!(code(said), ExecuteCode::InsufficientGasFee);
    }
}

pub async fn lies() -> Vec<Lie> {
    let mut lies = Vec::new();
    for (what, words, now_ms) in [
        ("SIGERROR", "Validate signature error", NOW_MS),
        (
            "TRANSACTION_EXPIRATION_ERROR",
            "Transaction expired",
            EXPIRES_MS,
        ),
    ] {
        let liar = TronTestNode::start(TronTestState {
            broadcast: no(what, words),
            ..TronTestState::default()
        });
        lies.push(Lie {
            what,
            chain: ChainKey::of(Network::Tron, None),
            liar: liar.await.url,
            honest: TronTestNode::start(TronTestState::default()).await.url,
            is_taken: true,
            request: broadcast_request(now_ms, false),
        });
    }
    lies
}

#[tokio::test]
async fn tron_refusals__should_be_for_good_at_once_only_without_doubt() {
    let words =
        "Contract validate error : Validate TransferContract error, balance is not sufficient.";
    let node = TronTestNode::start(TronTestState {
        broadcast: no("CONTRACT_VALIDATE_ERROR", words),
        ..TronTestState::default()
    })
    .await;
    let client = connect(&[&node]);
    let outcome = client.broadcast(&broadcast_request(NOW_MS, false)).await;
    assert!(
        matches!(&outcome, BroadcastOutcome::Refused(refusal) if refusal.code == ExecuteCode::InsufficientFunds)
    );
    // An earlier try may have spent the balance.
    for (now_ms, head_ms, void) in [
        (NOW_MS, NOW_MS, false),
        (END_MS - 1, END_MS, false),
        // The node is behind and may still mine it.
        (END_MS, END_MS - 1, false),
        (END_MS, END_MS, true),
    ] {
        node.set(|state| state.head_ms = head_ms);
        let outcome = client.broadcast(&broadcast_request(now_ms, true)).await;
        match outcome {
            BroadcastOutcome::Doubtful(refusal, Standing::Void) if void => {
                assert_eq!(refusal.code, ExecuteCode::InsufficientFunds);
            }
            BroadcastOutcome::Unknown(_) if !void => {}
            other => panic!("{now_ms} {head_ms}: {other:?}"),
        }
    }
    node.set(|state| state.known = true);
    assert_eq!(
        client.broadcast(&broadcast_request(END_MS, true)).await,
        BroadcastOutcome::Accepted
    );
}

#[tokio::test]
async fn tron_duplicates__should_be_believed_where_the_transaction_is_there() {
    let node = TronTestNode::start(TronTestState {
        broadcast: no("DUP_TRANSACTION_ERROR", "Dup transaction."),
        ..TronTestState::default()
    })
    .await;
    let client = connect(&[&node]);
    // Some nodes say so of what they refused.
    let outcome = client.broadcast(&broadcast_request(NOW_MS, true)).await;
    assert!(
        matches!(outcome, BroadcastOutcome::Unknown(_)),
        "{outcome:?}"
    );
    node.set(|state| state.head_ms = END_MS);
    match client.broadcast(&broadcast_request(END_MS, true)).await {
        BroadcastOutcome::Doubtful(refusal, Standing::Void) => {
            assert!(refusal.reason.contains("expired"));
        }
        other => panic!("{other:?}"),
    }
    node.set(|state| state.known = true);
    for now_ms in [NOW_MS, END_MS] {
        let outcome = client.broadcast(&broadcast_request(now_ms, true)).await;
        assert_eq!(outcome, BroadcastOutcome::Accepted);
    }
}

#[tokio::test]
async fn expired_tron_transactions__should_fail_when_nobody_has_them() {
    let node = TronTestNode::start(TronTestState {
        broadcast: no("TRANSACTION_EXPIRATION_ERROR", "Transaction expired"),
        head_ms: EXPIRES_MS,
        ..TronTestState::default()
    })
    .await;
    let client = connect(&[&node]);
    for (now_ms, retried, refused) in [
        // It is the node's clock against this one.
        (EXPIRES_MS - 1, false, false),
        (EXPIRES_MS, false, true),
        (EXPIRES_MS, true, false),
        (END_MS, true, false),
    ] {
        let outcome = client.broadcast(&broadcast_request(now_ms, retried)).await;
        match outcome {
            BroadcastOutcome::Refused(refusal) if refused => {
                assert!(refusal.reason.contains("create a new request"));
            }
            BroadcastOutcome::Unknown(_) if !refused => {}
            other => panic!("{now_ms} {retried}: {other:?}"),
        }
    }
    // A node that says nothing of use about it, for ever.
    node.set(|state| {
        state.broadcast = no("SERVER_BUSY", "Server busy.");
        state.head_ms = END_MS;
    });
    let outcome = client.broadcast(&broadcast_request(END_MS - 1, true)).await;
    assert!(matches!(outcome, BroadcastOutcome::Unknown(reason) if reason.contains("Server busy")));
    let outcome = client.broadcast(&broadcast_request(END_MS, true)).await;
    assert!(
        matches!(outcome, BroadcastOutcome::Doubtful(_, Standing::Void)),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn tron_nodes_that_cannot_take_a_transaction__should_be_passed_over() {
    for code in ["SERVER_BUSY", "TAPOS_ERROR", "OTHER_ERROR"] {
        let first = TronTestNode::start(TronTestState {
            broadcast: no(code, "words"),
            ..TronTestState::default()
        })
        .await;
        let second = TronTestNode::start(TronTestState::default()).await;
        let client = connect(&[&first, &second]);
        let outcome = client.broadcast(&broadcast_request(NOW_MS, false)).await;
        assert_eq!(outcome, BroadcastOutcome::Accepted, "{code}");
        assert_eq!((first.sent(), second.sent()), (1, 1), "{code}");
    }
}

#[tokio::test]
async fn tron_balances__should_be_of_coins_and_both_kinds_of_tokens() {
    let node = TronTestNode::start(TronTestState::default()).await;
    let client = connect(&[&node]);
    for (token, expected) in [
        (None, "1000000000"),
        (Some("1000001"), "5"),
        (Some("1000002"), "0"),
        (Some(TOKEN), "9"),
    ] {
        let balance = client.balance(FROM, token).await;
        assert_eq!(balance.as_deref(), Ok(expected), "{token:?}");
    }
    let nowhere = client.balance(FROM, Some(FROM)).await;
    assert!(
        matches!(nowhere, Err(ChainError::Refused(_))),
        "{nowhere:?}"
    );
}

#[tokio::test]
async fn tron_tokens__should_say_their_decimals_and_symbol() {
    let node = TronTestNode::start(TronTestState::default()).await;
    let client = connect(&[&node]);
    let facts = client.token_facts(TOKEN).await.unwrap();
    let facts = facts.expect("it is a contract");
    assert_eq!((facts.decimals, facts.symbol.as_str()), (6, "USDT"));
    // Where there is no contract, nothing is known.
    let unknown = client.token_facts(FROM).await;
    assert!(
        matches!(unknown, Err(ChainError::Unknown(_))),
        "{unknown:?}"
    );
    // A TRC-10 token is a number: no node is asked for a contract there, and none is blamed.
    let answers = client.health()[0].answers;
    assert_eq!(client.token_facts("1000001").await, Ok(None));
    let health = client.health().remove(0);
    assert_eq!((health.answers, health.errors), (answers, 0));
}

#[tokio::test]
async fn transfer_burn__should_be_what_as_many_nodes_name_as_have_to_agree() {
    let transfer = |amount: &str| {
        let kind = WireKind::TronSendTrc20(wire::TronSendTrc20 {
            from: FROM.into(),
            to: "TEkxiTehnzSmSe2XqrBj4w32RUN966rdz8".into(),
            contract_address: TOKEN.into(),
            amount: amount.into(),
            fee_limit: None,
        });
        Payload::parse(&kind).unwrap()
    };
    let node = |energy: u64| {
        let mut state = TronTestState::default();
        state.trial["energy_used"] = json!(energy);
        TronTestNode::start(state)
    };
    let (liar, one, other) = (node(1).await, node(64_000).await, node(64_000).await);
    let endpoints = ChainEndpoints {
        agree: 2,
        ..ChainEndpoints::new([&liar, &one, &other].map(|node| node.url.clone()).to_vec())
    };
    let client = connect_to(ChainKey::of(Network::Tron, None), endpoints);
    // Its 1,000 energy is not enough for all of it, and its 600 bytes are.
    let expected = TransferBurn {
        energy: 64_000,
        burnt_energy: 64_000,
        energy_price: 100,
        on_top: 0,
    };
    assert_eq!(client.transfer_burn(&transfer("5")).await, Ok(expected));
    let alone = connect(&[&node(1_000).await]);
    let own = alone.transfer_burn(&transfer("5")).await.unwrap();
    assert_eq!((own.energy, own.burnt_energy), (1_000, 0));
    // A call that would fail is not sent.
    let failing = json!({"result": {"result": true, "message": hex::encode("REVERT opcode executed")},
        "energy_used": 700, "constant_result": [""], "transaction": {"ret": [{"ret": "FAILED"}]}});
    let state = TronTestState {
        trial: failing,
        ..TronTestState::default()
    };
    let client = connect(&[&TronTestNode::start(state).await]);
    let refused = client.transfer_burn(&transfer("10")).await;
    assert!(
        matches!(&refused, Err(ChainError::Refused(refusal)) if refusal.code == ExecuteCode::InsufficientFunds),
        "{refused:?}"
    );
}

fn trial(kind: WireKind) -> SimulationRequest {
    let payload = Payload::parse(&kind).unwrap();
    let chain_data = ChainData::Tron(block().into());
    let unsigned = tron::Tron
        .build(&payload, &chain_data, &public_key())
        .unwrap();
    SimulationRequest {
        payload,
        chain_data,
        unsigned,
        public_key: public_key(),
    }
}

/// The generator of the curve.
fn public_key() -> Vec<u8> {
    hex::decode("0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798").unwrap()
}

#[tokio::test]
async fn simulate__should_try_calls_of_contracts_and_nothing_else() {
    let node = TronTestNode::start(TronTestState::default()).await;
    let client = connect(&[&node]);
    let from = tron::Tron.address(&public_key()).unwrap();
    let token = trial(WireKind::TronSendTrc20(wire::TronSendTrc20 {
        from: from.clone(),
        to: FROM.into(),
        contract_address: TOKEN.into(),
        amount: "5".into(),
        fee_limit: Some("100000000".into()),
    }));
    let expected = SimulationOutcome {
        units_used: Some("64000".into()),
        ..SimulationOutcome::passes(Some(format!("0x{}", "00".repeat(32))))
    };
    assert_eq!(client.simulate(&token).await, Some(expected));
    node.set(|state| {
        state.trial = json!({
            "result": {"result": true, "message": hex::encode("REVERT opcode executed")},
            "energy_used": 700, "constant_result": [""], "transaction": {"ret": [{"ret": "FAILED"}]},
        });
    });
    let expected = SimulationOutcome::fails("REVERT opcode executed");
    assert_eq!(client.simulate(&token).await, Some(expected));
    node.set(|state| state.trial = json!({"result": {"code": "OTHER_ERROR"}}));
    assert_eq!(client.simulate(&token).await, None);

    let coins = trial(WireKind::TronSendNative(wire::TronSendNative {
        from,
        to: FROM.into(),
        value: "5".into(),
    }));
    assert_eq!(client.simulate(&coins).await, None);
}

fn tracked() -> TrackedTransaction {
    TrackedTransaction {
        signed: broadcast_request(NOW_MS, false).signed,
        from: FROM.into(),
        sent_at_ms: NOW_MS,
    }
}

pub async fn witnesses() -> Witnesses {
    let node = async |mined: Option<(u64, &'static str)>| {
        let state = TronTestState {
            mined,
            solid: (12, NOW_MS),
            ..TronTestState::default()
        };
        TronTestNode::start(state).await.url
    };
    Witnesses {
        chain: ChainKey::of(Network::Tron, None),
        liars: vec![
            ("in a block", node(Some((13, ""))).await),
            ("failed in a block", node(Some((13, "FAILED"))).await),
            ("final", node(Some((11, ""))).await),
            ("failed for good", node(Some((12, "FAILED"))).await),
        ],
        honest: node(None).await,
        later: node(Some((12, ""))).await,
        transaction: tracked(),
        now_ms: NOW_MS,
        end: TransactionSighting::Final(Inclusion {
            block: 12,
            success: true,
        }),
    }
}

#[tokio::test]
async fn sightings__should_say_where_a_tron_transaction_is() {
    let at = |success| Inclusion { block: 12, success };
    let mined = |result, solid| TronTestState {
        mined: Some((12, result)),
        solid: (solid, NOW_MS),
        ..TronTestState::default()
    };
    let missing = |known, solid_ms| TronTestState {
        known,
        solid: (12, solid_ms),
        ..TronTestState::default()
    };
    for (state, expected) in [
        (mined("", 12), TransactionSighting::Final(at(true))),
        (mined("FAILED", 13), TransactionSighting::Final(at(false))),
        (mined("", 11), TransactionSighting::Mined(at(true))),
        (mined("FAILED", 11), TransactionSighting::Mined(at(false))),
        (missing(true, NOW_MS), TransactionSighting::Waiting),
        (missing(false, NOW_MS), TransactionSighting::Missing),
        (missing(false, EXPIRES_MS - 1), TransactionSighting::Missing),
        (missing(false, EXPIRES_MS), TransactionSighting::Expired),
    ] {
        let node = TronTestNode::start(state).await;
        let sighted = connect(&[&node]).sightings(&[tracked()], NOW_MS).await;
        assert_eq!(sighted, [Ok(expected)]);
    }
}

#[tokio::test]
async fn sightings__should_take_no_single_tron_node_s_word_for_the_end() {
    let honest = TronTestNode::start(TronTestState::default()).await;
    for lie in [
        TronTestState {
            mined: Some((12, "")),
            solid: (12, NOW_MS),
            ..TronTestState::default()
        },
        TronTestState {
            solid: (12, EXPIRES_MS),
            ..TronTestState::default()
        },
    ] {
        let liar = TronTestNode::start(lie).await;
        let chain = ChainKey::of(Network::Tron, None);
        for client in all_ways(chain, &liar.url, &honest.url) {
            never_ended(client, &tracked(), NOW_MS).await;
        }
    }
}

#[tokio::test]
async fn a_dropped_transaction__should_be_sent_again_without_what_it_was_built_from() {
    let node = TronTestNode::start(TronTestState::default()).await;
    let again = BroadcastRequest {
        chain_data: ChainData::Nothing,
        ..broadcast_request(NOW_MS, true)
    };
    let outcome = connect(&[&node]).broadcast(&again).await;
    assert_eq!((outcome, node.sent()), (BroadcastOutcome::Accepted, 1));
}
