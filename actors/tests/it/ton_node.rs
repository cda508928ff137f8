//! The TON client against a node that speaks real HTTP. Cells are written by hand.

use std::sync::{Arc, Mutex};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_actors::rpc::{
    Broadcast, ChainClient, ChainError, ChainKey, Endpoints, Refusal, Shipment,
};
use covault_core::{
    chain::{
        Facts, Needs, Signed,
        ton::{
            Facts as TonFacts, JettonFacts, JettonNeeds, Needs as TonNeeds, TonAddress,
            TransactionFacts, TransactionNeeds, Version, ledger, parse_address,
        },
    },
    fault::ExecuteCode,
    network::Network,
    payload::{Payload, WireKind},
    schema::wire,
    signature::Signature,
};
use ed25519_dalek::{Signer as _, SigningKey};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::evm_node::connect_to;

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
    Version::V5r1.address(&key()).unwrap()
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
struct State {
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
    sent: usize,
}

impl Default for State {
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
fn answer(state: &mut State, path: &str, query: &str, body: &Value) -> Option<(u16, Value)> {
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
            assert!(query.contains(JETTON_WALLET), "{query}");
            good(json!({
                "balance": 0, "data": "", "state": state.jetton_kind,
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
struct Node {
    url: String,
    state: Arc<Mutex<State>>,
}

impl Node {
    async fn start(state: State) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/api/v2", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(state));
        let seen = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&seen)));
            }
        });
        Self { url, state }
    }

    fn sent(&self) -> usize {
        self.state.lock().unwrap().sent
    }
}

async fn serve(mut stream: TcpStream, state: Arc<Mutex<State>>) {
    let mut buffer = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return,
            Ok(count) => buffer.extend_from_slice(&chunk[..count]),
        }
        let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        let length = lines.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        let length = length.map_or(0, |(_, length)| length.parse::<usize>().unwrap());
        if buffer.len() < end + 4 + length {
            continue;
        }
        let body: Value =
            serde_json::from_slice(&buffer[end + 4..end + 4 + length]).unwrap_or_default();
        buffer.drain(..end + 4 + length);
        let target = head.split(' ').nth(1).unwrap();
        let target = target.strip_prefix("/api/v2").unwrap();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let said = answer(&mut state.lock().unwrap(), path, query, &body);
        let Some((status, body)) = said else {
            return;
        };
        let body = body.to_string();
        let head = format!(
            "HTTP/1.1 {status} So\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        if stream.write_all((head + &body).as_bytes()).await.is_err() {
            return;
        }
    }
}

fn connect(nodes: &[&Node], agree: usize) -> Arc<dyn ChainClient> {
    let urls = nodes.iter().map(|node| node.url.clone()).collect();
    let endpoints = Endpoints {
        agree,
        ..Endpoints::new(urls)
    };
    connect_to(ChainKey::of(Network::Ton, None), endpoints)
}

fn needs(jetton: Option<JettonNeeds>) -> Needs {
    Needs::Ton(TonNeeds::Transaction(TransactionNeeds {
        from: wallet().wallet_form(),
        value: VALUE,
        valid_until: true,
        jetton,
    }))
}

fn jetton(amount: u128) -> Option<JettonNeeds> {
    Some(JettonNeeds {
        master: MASTER.into(),
        amount,
        decimals: true,
    })
}

async fn facts(state: State, jetton: Option<JettonNeeds>) -> Result<Facts, ChainError> {
    let node = Node::start(state).await;
    let client = connect(&[&node], 1);
    client.facts(&needs(jetton), BUILT * 1_000 + 999).await
}

fn found(seqno: u32, deployed: bool, jetton: Option<JettonFacts>) -> Facts {
    Facts::Ton(TonFacts::Transaction(TransactionFacts {
        seqno,
        deployed,
        valid_until: Some(END),
        jetton,
    }))
}

/// Why facts are refused for good.
async fn never(state: State, jetton: Option<JettonNeeds>) -> (ExecuteCode, String) {
    match facts(state, jetton).await {
        Err(ChainError::Refused(Refusal { reason, code })) => (code, reason),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn ton_facts__should_be_what_the_node_says() {
    let new = State {
        kind: "uninitialized",
        ..State::default()
    };
    assert_eq!(
        facts(State::default(), None).await,
        Ok(found(7, true, None))
    );
    assert_eq!(facts(new, None).await, Ok(found(0, false, None)));
    let expected = JettonFacts {
        wallet: JETTON_WALLET.into(),
        master: Some(MASTER.into()),
        decimals: Some(9),
    };
    let with = |jetton| Ok(found(7, true, Some(jetton)));
    let all = jetton(1_000_000);
    assert_eq!(
        facts(State::default(), all.clone()).await,
        with(expected.clone())
    );
    // It is not there: the wallet has none.
    let absent = State {
        holding: ran(-13, json!([])),
        jetton_kind: "uninitialized",
        ..State::default()
    };
    let none = JettonFacts {
        master: None,
        ..expected.clone()
    };
    assert_eq!(facts(absent, all.clone()).await, with(none));
    // Of another jetton: the rules refuse that.
    let foreign = State {
        holding: holding(1, &wallet().wallet_form(), OTHER),
        ..State::default()
    };
    let other = JettonFacts {
        master: Some(OTHER.into()),
        ..expected
    };
    assert_eq!(facts(foreign, all).await, with(other));
}

#[tokio::test]
async fn ton_facts__should_be_refused_where_nothing_can_be_sent() {
    use ExecuteCode::{InsufficientFunds, InsufficientGasFee, Unspecified};
    let state = State::default;
    let poor = State {
        balance: VALUE - 1,
        ..state()
    };
    let frozen = State {
        kind: "frozen",
        ..state()
    };
    let closed = State {
        takes_signatures: false,
        ..state()
    };
    let no_master = State {
        jetton_wallet: ran(11, json!([])),
        ..state()
    };
    let strange = State {
        jetton_wallet: ran(0, json!([number(1)])),
        ..state()
    };
    let others = State {
        holding: holding(9, BOB, MASTER),
        ..state()
    };
    let no_wallet = State {
        holding: ran(11, json!([])),
        ..state()
    };
    for (state, amount, code, words) in [
        (poor, 1, InsufficientFunds, "999999 nanoton"),
        (frozen, 1, InsufficientGasFee, "frozen"),
        (closed, 1, Unspecified, "signatures"),
        (no_master, 1, Unspecified, "mintAddress: is not the master"),
        (strange, 1, Unspecified, "mintAddress: is not the master"),
        (others, 1, Unspecified, "mintAddress: is not a sound jetton"),
        (
            no_wallet,
            1,
            Unspecified,
            "mintAddress: is not a sound jetton",
        ),
        (
            state(),
            1_000_001,
            InsufficientFunds,
            "mintAddress: the wallet holds 1000000",
        ),
    ] {
        let (found, reason) = never(state, jetton(amount)).await;
        assert_eq!(found, code, "{reason}");
        assert!(reason.contains(words), "{reason}");
    }
}

#[tokio::test]
async fn ton_facts__should_not_come_of_one_node_where_two_have_to_agree() {
    let other = |change: fn(&mut State)| {
        let mut state = State::default();
        change(&mut state);
        state
    };
    for (other, agree) in [
        (other(|state| state.balance += 1), true),
        (other(|state| state.seqno = 8), false),
        (other(|state| state.balance = 1), false),
        (
            other(|state| state.jetton_wallet = ran(0, json!([cell(&slice(OTHER))]))),
            false,
        ),
        (
            other(|state| state.holding = holding(1_000_000, &wallet().wallet_form(), OTHER)),
            false,
        ),
    ] {
        let nodes = [
            Node::start(State::default()).await,
            Node::start(other).await,
        ];
        let client = connect(&[&nodes[0], &nodes[1]], 2);
        let facts = client.facts(&needs(jetton(1)), BUILT * 1_000).await;
        match facts {
            Ok(_) => assert!(agree),
            Err(ChainError::Unknown(reason)) => assert!(!agree, "{reason}"),
            Err(ChainError::Refused(refusal)) => panic!("{refusal:?}"),
        }
    }
}

#[tokio::test]
async fn ton_facts__should_not_come_of_the_data_of_another_wallet() {
    // Whose address is not that of the key in it.
    let needs = Needs::Ton(TonNeeds::Transaction(TransactionNeeds {
        from: Version::V4r2.address(&key()).unwrap().wallet_form(),
        value: 0,
        valid_until: false,
        jetton: None,
    }));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut buffer = [0; 4096];
            let _ = stream.read(&mut buffer).await;
            let body = json!({"ok": true, "result": {"balance": "1", "data": data(true, 9),
                "state": "active", "last_transaction_id": {"lt": "1", "hash": "a"}, "sync_utime": 1}});
            let body = body.to_string();
            let head = format!("HTTP/1.1 200 So\r\ncontent-length: {}\r\n\r\n", body.len());
            let _ = stream.write_all((head + &body).as_bytes()).await;
        }
    });
    let endpoints = Endpoints::new(vec![url]);
    let client = connect_to(ChainKey::of(Network::Ton, None), endpoints);
    let facts = client.facts(&needs, 0).await;
    assert!(
        matches!(&facts, Err(ChainError::Unknown(reason)) if reason.contains("a wallet")),
        "{facts:?}"
    );
}

/// A signed transaction.
fn signed() -> Signed {
    let rules = Network::Ton.chain().unwrap();
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

fn shipment(retried: bool, now: u64) -> Shipment {
    Shipment {
        signed: signed(),
        facts: found(SEQNO, true, None),
        age_ms: (now - BUILT) * 1_000,
        now_ms: now * 1_000,
        retried,
    }
}

/// It, in the chain.
fn here(lt: u64, messages: usize) -> Value {
    let sent = ledger::read_sent(&signed().transaction).unwrap();
    transaction(lt, BUILT + 5, sent.body_hash, messages)
}

/// Some other transaction of the wallet, after it was made.
fn other(lt: u64) -> Value {
    transaction(lt, BUILT + 3, [2; 32], 1)
}

/// Sends it, and checks what becomes of it, and how often the node got it.
async fn assert_outcome(state: State, shipment: Shipment, expected: (&str, &str, usize)) {
    assert_outcome_with(ExecuteCode::Unspecified, state, shipment, expected).await;
}

async fn assert_outcome_with(
    code: ExecuteCode,
    state: State,
    shipment: Shipment,
    (expected, words, sends): (&str, &str, usize),
) {
    let node = Node::start(state).await;
    let (verdict, found, reason) = verdict(connect(&[&node], 1).broadcast(&shipment).await);
    let what = format!("{expected} {words}: {reason}");
    assert_eq!(
        (verdict, found, node.sent()),
        (expected, code, sends),
        "{what}"
    );
    assert!(reason.contains(words), "{what}");
}

fn verdict(outcome: Broadcast) -> (&'static str, ExecuteCode, String) {
    match outcome {
        Broadcast::Accepted => ("accepted", ExecuteCode::Unspecified, String::new()),
        Broadcast::Refused(refusal) => ("refused", refusal.code, refusal.reason),
        Broadcast::Unknown(reason) => ("unknown", ExecuteCode::Unspecified, reason),
    }
}

/// Some other transaction, from before it was made.
fn old() -> Value {
    transaction(50, BUILT - 400, [3; 32], 1)
}

/// A node for which the wallet's number is `seqno`, and these are its last transactions.
fn at(seqno: u32, transactions: &[Value]) -> State {
    State {
        seqno,
        transactions: transactions.to_vec(),
        ..State::default()
    }
}

fn first_try() -> Shipment {
    shipment(false, BUILT + 10)
}

fn next_try() -> Shipment {
    shipment(true, BUILT + 10)
}

#[tokio::test]
async fn ton_broadcast__should_accept_what_is_in_a_block() {
    let then = |transactions: &[Value]| State {
        seqno_then: Some(SEQNO + 1),
        ..at(SEQNO, transactions)
    };
    let accepted = |sends| ("accepted", "", sends);
    let overtaken = |sends| ("refused", "seqno", sends);
    let found = then(&[here(80, 1), old()]);
    assert_outcome(found, first_try(), accepted(1)).await;
    let below = then(&[other(99), here(80, 1), old()]);
    assert_outcome(below, first_try(), accepted(1)).await;
    assert_outcome(then(&[other(99), old()]), first_try(), overtaken(1)).await;
    // A wallet that has no more transactions.
    assert_outcome(then(&[other(99)]), first_try(), overtaken(1)).await;
    // It was there before.
    assert_outcome(at(8, &[here(80, 1)]), next_try(), accepted(0)).await;
    let later = shipment(true, u64::from(END) + 999);
    let below = at(9, &[other(99), here(80, 1)]);
    assert_outcome(below, later, accepted(0)).await;
    assert_outcome(at(8, &[other(99), old()]), next_try(), overtaken(0)).await;
    // The wallet sent nothing.
    let funds = ExecuteCode::InsufficientFunds;
    let nothing = ("refused", "sent nothing", 1);
    assert_outcome_with(funds, then(&[here(80, 0)]), first_try(), nothing).await;
}

#[tokio::test]
async fn ton_broadcast__should_not_send_what_cannot_be_taken() {
    let earlier = ("unknown", "earlier", 0);
    assert_outcome(at(6, &[old()]), first_try(), earlier).await;
    let end = u64::from(END);
    let expired = ("refused", "expired", 0);
    assert_outcome(State::default(), shipment(false, end), expired).await;
    let past = |time, seqno| State {
        time,
        ..at(seqno, &[old()])
    };
    let over = || shipment(true, end);
    assert_outcome(past(end + 60, SEQNO), over(), expired).await;
    assert_outcome(past(end + 60, 6), over(), expired).await;
    let behind = ("unknown", "past it", 0);
    assert_outcome(past(end + 59, SEQNO), over(), behind).await;
    let poor = State {
        balance: VALUE - 1,
        ..State::default()
    };
    let funds = ExecuteCode::InsufficientFunds;
    assert_outcome_with(funds, poor, first_try(), ("refused", "nanoton", 0)).await;
}

#[tokio::test]
async fn ton_broadcast__should_refuse_only_what_can_never_be_taken() {
    let says = |said: Option<(u16, Value)>| State {
        said,
        ..State::default()
    };
    let not_run = || refusal("rejected by account A before smart-contract execution");
    let error = |status: u16, words: &str| {
        Some((status, json!({"ok": false, "error": words, "code": status})))
    };
    for (said, expected, words) in [
        (rejected(133), "unknown", "seqno"),
        (rejected(33), "unknown", "seqno"),
        (rejected(136), "unknown", "clock"),
        (rejected(135), "refused", "exit code 135"),
        (
            refusal("failed to parse external message"),
            "refused",
            "cannot read",
        ),
        (refusal("something"), "unknown", "something"),
        (not_run(), "unknown", "before"),
        (error(404, "Not Found"), "unknown", "Not Found"),
        (error(422, "what?"), "unknown", "what?"),
        (error(500, "LITE_SERVER_NETWORK"), "unknown", "HTTP 500"),
        (error(429, "Ratelimit exceed"), "unknown", "HTTP 429"),
        (
            Some((200, json!({"ok": false}))),
            "unknown",
            "without a reason",
        ),
        (None, "unknown", "TON"),
    ] {
        assert_outcome(says(said), first_try(), (expected, words, 1)).await;
    }
    // Where an earlier try may have arrived, only the chain can say.
    for said in [rejected(135), refusal("failed to parse external message")] {
        assert_outcome(says(said), next_try(), ("unknown", "", 1)).await;
    }
    let poor = State {
        balance: 9_000_000,
        ..says(not_run())
    };
    let fee = ExecuteCode::InsufficientGasFee;
    let expected = ("refused", "cannot pay the fees", 1);
    assert_outcome_with(fee, poor, first_try(), expected).await;
}

#[tokio::test]
async fn ton_broadcast__should_call_it_gone_only_when_every_node_says_so() {
    let without = at(SEQNO + 1, &[other(99), old()]);
    let with = at(SEQNO + 1, &[other(99), here(80, 1), old()]);
    let behind = at(SEQNO + 1, &[old()]);
    let (now, end) = (BUILT + 10, u64::from(END));
    let over = State {
        time: end + 60,
        ..State::default()
    };
    let slow = State::default();
    for (first, second, time, expected) in [
        (&without, &without, now, "refused"),
        (&without, &with, now, "accepted"),
        (&with, &without, now, "accepted"),
        // The second does not have what the first has.
        (&without, &behind, now, "unknown"),
        (&over, &over, end, "refused"),
        (&over, &slow, end, "unknown"),
    ] {
        let one = Node::start(first.clone()).await;
        let other = Node::start(second.clone()).await;
        let client = connect(&[&one, &other], 1);
        let (verdict, _, reason) = verdict(client.broadcast(&shipment(true, time)).await);
        assert_eq!(verdict, expected, "{reason}");
        assert_eq!((one.sent(), other.sent()), (0, 0));
    }
}

#[tokio::test]
async fn ton_broadcast__should_go_back_to_the_time_of_the_transaction() {
    // A node that gives two at once.
    let later: Vec<Value> = (60..100).rev().map(other).collect();
    let with = |earlier: &[Value]| State {
        page: 2,
        ..at(SEQNO + 1, &[&later, earlier].concat())
    };
    let accepted = ("accepted", "", 0);
    assert_outcome(with(&[here(59, 1)]), next_try(), accepted).await;
    // What is older than it cannot be it.
    let before = transaction(59, BUILT - 301, [3; 32], 1);
    let overtaken = ("refused", "seqno", 0);
    assert_outcome(with(&[before, here(58, 1)]), next_try(), overtaken).await;
    // A node that leaves out the first.
    let hides = State {
        page: 0,
        ..at(SEQNO + 1, &[other(99), old()])
    };
    assert_outcome(hides, next_try(), ("unknown", "makes no sense", 0)).await;
}

#[tokio::test]
async fn ton_balance__should_be_that_of_the_account_or_its_jetton_wallet() {
    let owner = wallet().wallet_form();
    let balance = async |state: State, token: Option<&str>| {
        let node = Node::start(state).await;
        connect(&[&node], 1).balance(&owner, token).await
    };
    let state = State::default;
    assert_eq!(balance(state(), None).await.as_deref(), Ok("5000000000"));
    let jetton = balance(state(), Some(MASTER)).await;
    assert_eq!(jetton.as_deref(), Ok("1000000"));
    let absent = State {
        holding: ran(-13, json!([])),
        jetton_kind: "uninitialized",
        ..state()
    };
    assert_eq!(balance(absent, Some(MASTER)).await.as_deref(), Ok("0"));
    for (jetton_wallet, holding, words) in [
        (
            ran(11, json!([])),
            json!(null),
            "is not the master contract",
        ),
        (
            state().jetton_wallet,
            holding(1, BOB, MASTER),
            "is not a sound jetton",
        ),
        (
            state().jetton_wallet,
            holding(1, &owner, OTHER),
            "is not a sound jetton",
        ),
    ] {
        let state = State {
            jetton_wallet,
            holding,
            ..state()
        };
        match balance(state, Some(MASTER)).await {
            Err(ChainError::Refused(refusal)) => {
                assert!(refusal.reason.starts_with(words), "{refusal:?}")
            }
            other => panic!("{other:?}"),
        }
    }
}
