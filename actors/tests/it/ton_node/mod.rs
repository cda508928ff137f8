//! The TON client against a node that speaks real HTTP. Cells are written by hand.

mod broadcast;
mod chain_data;
mod sightings;

pub use broadcast::lies;
pub use sightings::witnesses;

use std::sync::{Arc, Mutex};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_actors::chain_rpc::{
    BroadcastOutcome, BroadcastRequest, ChainClient, ChainEndpoints, ChainError, ChainKey,
    ChainRefusal, FeeEstimate, Inclusion, Standing, TrackedTransaction, TransactionSighting,
};
use covault_core::{
    fault::ExecuteCode,
    networks::{
        ChainData, ChainMoment, Network, Payload, Queries, Signed, WireKind,
        ton::{
            ChainData as TonChainData, JettonChainData, JettonQueries, Queries as TonQueries,
            TonAddress, TransactionChainData, TransactionQueries, WalletVersion, ledger,
            parse_address,
        },
    },
    schema::wire,
    signature::Signature,
};
use ed25519_dalek::{Signer as _, SigningKey};
use serde_json::{Value, json};

use crate::{
    evm_node::{all_ways, connect_to, never_ended},
    http_double::{self, HttpResponse},
    one_word::Lie,
};

const BOB: &str = "UQCzhX8UMF-q7gamM_JgyU9yb1RojCQoua8cjcuufiMYwNKp";
const MASTER: &str = "EQCxE6mUtQJKFnGfaROTKOt1lZbDiiX1kCixRv7Nw2Id_sDs";
const OTHER: &str = "EQDk2VTvn04SUKJrW7rXahzdF8_Qi6utb0wj43InCu9vdjrR";
const JETTON_WALLET: &str = "EQCrwnmBzjcAxkJOOkrI5y9msz7bqLtVG0GSu5cmaVwB0qbW";
/// In seconds since the Unix epoch.
const BUILT: u64 = 1_800_000_000;
const END: u32 = 1_800_000_600;
/// The number of the transactions here.
const SEQNO: u32 = 7;
const VALUE: u128 = 1_000_000;

fn secret() -> SigningKey {
    SigningKey::from_bytes(&[7; 32])
}

fn key() -> [u8; 32] {
    secret().verifying_key().to_bytes()
}

fn wallet() -> TonAddress {
    WalletVersion::V5r1.address(&key()).unwrap()
}

/// A bag of one cell.
fn boc(bits: &[(u64, usize)], tail: &[u8], end: &[bool]) -> String {
    let mut all: Vec<bool> = Vec::new();
    for (value, width) in bits {
        all.extend((0..*width).rev().map(|bit| value >> bit & 1 == 1));
    }
    let bytes = tail.iter();
    all.extend(bytes.flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1 == 1)));
    all.extend(end);
    let (whole, count) = (all.len() / 8, all.len());
    if count % 8 != 0 {
        all.push(true);
        all.resize(all.len().next_multiple_of(8), false);
    }
    let data: Vec<u8> = all
        .chunks(8)
        .map(|byte| byte.iter().fold(0, |all, bit| all << 1 | u8::from(*bit)))
        .collect();
    let mut cell = vec![0, u8::try_from(whole + data.len()).unwrap()];
    cell.extend(&data);
    let size = u8::try_from(cell.len()).unwrap();
    let mut bag = vec![0xb5, 0xee, 0x9c, 0x72, 1, 1, 1, 1, 0, size, 0];
    bag.extend(cell);
    STANDARD.encode(bag)
}

/// What a v5r1 wallet keeps.
fn data(takes_signatures: bool, seqno: u32) -> String {
    let head = [
        (u64::from(takes_signatures), 1),
        (seqno.into(), 32),
        (0x7fff_ff11, 32),
    ];
    boc(&head, &key(), &[false])
}

fn slice(address: &str) -> String {
    let address = parse_address(address).unwrap();
    let workchain = u64::from(address.workchain.cast_unsigned());
    boc(&[(0b100, 3), (workchain, 8)], &address.account, &[])
}

fn cell(boc: &str) -> Value {
    json!(["cell", {"bytes": boc}])
}

fn number(value: u128) -> Value {
    json!(["num", format!("0x{value:x}")])
}

/// What a node has, and how often it was sent something. Tests change it.
#[derive(Clone)]
struct TonTestState {
    kind: &'static str,
    takes_signatures: bool,
    seqno: u32,
    balance: u128,
    /// The time of its last block.
    time: u64,
    /// What it answers to sendBoc; `None`: nothing at all.
    said: Option<(u16, Value)>,
    /// What it is after that.
    seqno_then: Option<u32>,
    /// The wallet's transactions, from the last one back.
    transactions: Vec<Value>,
    /// How many of them it gives at once.
    page: usize,
    /// What the master names.
    jetton_wallet: Value,
    /// What that wallet says of itself.
    holding: Value,
    jetton_kind: &'static str,
    /// What is at [`OTHER`].
    recipient_kind: &'static str,
    /// The parameters 21 and 25 of its configuration; `None`: it is not asked for such.
    config: Option<[String; 2]>,
    sent: usize,
}

impl Default for TonTestState {
    fn default() -> Self {
        Self {
            kind: "active",
            takes_signatures: true,
            seqno: SEQNO,
            balance: 5_000_000_000,
            time: BUILT,
            said: Some((200, json!({"ok": true, "result": {"@type": "ok"}}))),
            seqno_then: None,
            transactions: vec![transaction(90, BUILT - 400, [1; 32], 1)],
            page: 100,
            jetton_wallet: ran(0, json!([cell(&slice(JETTON_WALLET))])),
            holding: holding(1_000_000, &wallet().wallet_form(), MASTER),
            jetton_kind: "active",
            recipient_kind: "active",
            config: None,
            sent: 0,
        }
    }
}

fn ran(exit_code: i64, stack: Value) -> Value {
    json!({"@type": "smc.runResult", "gas_used": 1, "exit_code": exit_code, "stack": stack})
}

fn holding(balance: u128, owner: &str, master: &str) -> Value {
    let stack = [
        number(balance),
        cell(&slice(owner)),
        cell(&slice(master)),
        cell("te6c"),
    ];
    ran(0, json!(stack))
}

fn transaction(lt: u64, utime: u64, body_hash: [u8; 32], messages: usize) -> Value {
    json!({
        "utime": utime,
        "transaction_id": {"lt": lt.to_string(), "hash": format!("hash+{lt}")},
        "in_msg": {"source": "", "body_hash": STANDARD.encode(body_hash)},
        "out_msgs": vec![json!({}); messages],
    })
}

fn refusal(words: &str) -> Option<(u16, Value)> {
    let error = format!(
        "LITE_SERVER_UNKNOWN: cannot apply external message to current state : {words}, steps=3\n"
    );
    Some((500, json!({"ok": false, "error": error, "code": 500})))
}

fn rejected(code: i64) -> Option<(u16, Value)> {
    refusal(&format!(
        "External message was not accepted\nCannot run message on account: inbound external \
         message rejected by transaction AB:\nexitcode={code}"
    ))
}

/// The path, the query and the body of a request.
fn answer(state: &mut TonTestState, path: &str, query: &str, body: &Value) -> Option<(u16, Value)> {
    let good = |result: Value| Some((200, json!({"ok": true, "result": result})));
    match path {
        "/getAddressInformation" if query.contains(&wallet().contract_form()) => {
            let data = match state.kind {
                "active" => data(state.takes_signatures, state.seqno),
                _ => String::new(),
            };
            let last = state.transactions.first().unwrap();
            good(json!({
                "balance": state.balance.to_string(), "data": data, "state": state.kind,
                "last_transaction_id": last["transaction_id"], "sync_utime": state.time,
            }))
        }
        "/getAddressInformation" => {
            let kind = if query.contains(OTHER) {
                state.recipient_kind
            } else {
                assert!(query.contains(JETTON_WALLET), "{query}");
                state.jetton_kind
            };
            good(json!({
                "balance": 0, "data": "", "state": kind,
                "last_transaction_id": {"lt": "0", "hash": ""}, "sync_utime": state.time,
            }))
        }
        "/runGetMethod" => match body["method"].as_str().unwrap() {
            "get_wallet_address" => {
                assert_eq!(body["address"], MASTER);
                let [kind, argument] = [0, 1].map(|index| body["stack"][0][index].clone());
                assert_eq!(kind, "tvm.Slice");
                let owner = ledger::read_address(argument.as_str().unwrap()).unwrap();
                assert!(owner.is_account(&wallet()));
                good(state.jetton_wallet.clone())
            }
            "get_wallet_data" => {
                assert_eq!(body["address"], JETTON_WALLET);
                good(state.holding.clone())
            }
            "get_jetton_data" => {
                // On the chain, and without names: 9 decimals.
                let content = cell(&boc(&[(0, 9)], &[], &[]));
                good(ran(
                    0,
                    json!([number(1), number(1), cell("te6c"), content, cell("te6c")]),
                ))
            }
            other => panic!("{other}"),
        },
        "/getTransactions" => {
            let from = |one: &Value| {
                let lt = one["transaction_id"]["lt"].as_str().unwrap().to_owned();
                query.contains(&format!("lt={lt}&")) && query.contains(&format!("hash%2B{lt}"))
            };
            let Some(first) = state.transactions.iter().position(from) else {
                return Some((
                    500,
                    json!({"ok": false, "error": "cannot locate", "code": 500}),
                ));
            };
            let part = state.transactions[first..].iter().take(state.page);
            good(json!(part.collect::<Vec<_>>()))
        }
        "/getConfigParam" => {
            let Some([gas, carriage]) = &state.config else {
                return Some((404, json!({"ok": false, "error": "not found", "code": 404})));
            };
            let bytes = match query {
                "config_id=21" => gas,
                "config_id=25" => carriage,
                other => panic!("{other}"),
            };
            let cell = json!({"@type": "tvm.cell", "bytes": bytes});
            good(json!({"@type": "configInfo", "config": cell}))
        }
        "/sendBoc" => {
            assert_eq!(body["boc"], signed().transaction);
            state.sent += 1;
            state.seqno = state.seqno_then.unwrap_or(state.seqno);
            state.said.clone()
        }
        other => panic!("{other}"),
    }
}

/// A node below `/api/v2`. Stops with the test's runtime.
struct TonTestNode {
    url: String,
    state: Arc<Mutex<TonTestState>>,
}

impl TonTestNode {
    async fn start(state: TonTestState) -> Self {
        let state = Arc::new(Mutex::new(state));
        let seen = Arc::clone(&state);
        let url = http_double::start(move |request| {
            let target = request.target().strip_prefix("/api/v2").unwrap();
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let (status, body) = answer(&mut seen.lock().unwrap(), path, query, &request.json())?;
            Some(HttpResponse::json(status, &body))
        })
        .await;
        let url = format!("{url}/api/v2");
        Self { url, state }
    }

    fn sent(&self) -> usize {
        self.state.lock().unwrap().sent
    }
}

fn connect(nodes: &[&TonTestNode], agree: usize) -> Arc<dyn ChainClient> {
    let urls = nodes.iter().map(|node| node.url.clone()).collect();
    let endpoints = ChainEndpoints {
        agree,
        ..ChainEndpoints::new(urls)
    };
    connect_to(ChainKey::of(Network::Ton, None), endpoints)
}

/// The configuration of a chain in which a unit of gas costs so much, and a message and each of its bits and cells, in
/// nanoton. The latter and gas in parts of 65,536.
fn prices(gas: u64, [lump, bit, cell]: [u64; 3]) -> Option<[String; 2]> {
    let limits = [
        1_000_000,
        1_000_000,
        10_000,
        10_000_000,
        100_000_000,
        1_000_000_000,
    ];
    let mut of_gas = vec![(0xd1, 8), (100, 64), (40_000, 64), (0xde, 8), (gas, 64)];
    of_gas.extend(limits.map(|limit| (limit, 64)));
    let of_messages = [
        (0xea, 8),
        (lump, 64),
        (bit, 64),
        (cell, 64),
        (98_304, 32),
        (21_845, 16),
        (21_845, 16),
    ];
    Some([boc(&of_gas, &[], &[]), boc(&of_messages, &[], &[])])
}

#[tokio::test]
async fn ton_estimates__should_be_the_chain_s_prices() {
    let mainnet = prices(400 << 16, [400_000, 400 << 16, 40_000 << 16]);
    let doubled = prices(800 << 16, [800_000, 800 << 16, 80_000 << 16]);
    let lower = prices((50 << 16) + 1, [100_000, 1 << 16, 1]);
    for (config, price, carriage) in [
        // Nodes without the method.
        (None, 400, 1_600_000),
        (mainnet, 400, 1_600_000),
        (doubled, 800, 3_200_000),
        (lower, 51, 2 * 100_000 + 1_800 + 2),
    ] {
        let state = TonTestState {
            config,
            ..TonTestState::default()
        };
        let node = TonTestNode::start(state).await;
        let estimate = FeeEstimate {
            price,
            most_price: price,
            priority_price: None,
            transfer_fee: 4_939 * price + carriage,
        };
        let estimates = connect(&[&node], 1).fee_estimates().await;
        assert_eq!(estimates, Ok([estimate; 3]));
    }
}

#[tokio::test]
async fn ton_estimates__should_not_follow_a_node_that_is_alone_or_absurd() {
    let base = [400_000, 400 << 16, 40_000 << 16];
    for config in [
        prices((800 << 16) + 1, base),
        prices(400 << 16, [1_200_001, 400 << 16, 40_000 << 16]),
        prices(u64::MAX, [u64::MAX; 3]),
        // The one in the place of the other.
        prices(400 << 16, base).map(|[gas, carriage]| [carriage, gas]),
        Some(["te6c".to_owned(), String::new()]),
    ] {
        let state = TonTestState {
            config,
            ..TonTestState::default()
        };
        let node = TonTestNode::start(state).await;
        let estimates = connect(&[&node], 1).fee_estimates().await;
        assert!(
            matches!(estimates, Err(ChainError::Unknown(_))),
            "{estimates:?}"
        );
    }
    let of_gas = async |gas: u64| {
        let state = TonTestState {
            config: prices(gas << 16, base),
            ..TonTestState::default()
        };
        TonTestNode::start(state).await
    };
    let (one, other) = (of_gas(400).await, of_gas(500).await);
    for nodes in [[&one, &other], [&other, &one]] {
        let estimates = connect(&nodes, 2).fee_estimates().await;
        assert!(
            matches!(estimates, Err(ChainError::Unknown(_))),
            "{estimates:?}"
        );
    }
}

fn found(seqno: u32, deployed: bool, jetton: Option<JettonChainData>) -> ChainData {
    ChainData::Ton(TonChainData::Transaction(TransactionChainData {
        seqno,
        deployed,
        valid_until: Some(END),
        recipient_deployed: None,
        jetton,
    }))
}

/// A signed transaction.
fn signed() -> Signed {
    let rules = Network::Ton.rules();
    let payload = Payload::parse(&WireKind::TonSendNative(wire::TonSendNative {
        from: wallet().wallet_form(),
        to: BOB.into(),
        value: VALUE.to_string(),
        comment: String::new(),
    }))
    .unwrap();
    let unsigned = rules
        .build(&payload, &found(SEQNO, true, None), &key())
        .unwrap();
    let signature = secret().sign(&unsigned.signing[0].message);
    let signature = Signature::Ed25519 {
        r: *signature.r_bytes(),
        s: *signature.s_bytes(),
    };
    let signed = rules.assemble(&payload, &unsigned, &[signature], &key());
    signed.unwrap().unwrap()
}
