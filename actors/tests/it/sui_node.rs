//! The Sui client against a node that speaks real gRPC-Web. The messages are written by hand, by
//! the field numbers of sui-apis.

use std::sync::{Arc, Mutex};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_actors::chain_rpc::{
    BroadcastOutcome, BroadcastRequest, ChainClient, ChainEndpoints, ChainError, ChainKey,
    ChainRefusal, FeeEstimate, Inclusion, Standing, TrackedTransaction, TransactionSighting,
};
use covault_core::{
    fault::ExecuteCode,
    networks::{
        ChainData, DynNetworkRules, Network, Payload, Queries, Signed, WireKind,
        sui::{
            ChainData as SuiChainData, CoinObject, CoinOrigin, GasUsed, Queries as SuiQueries,
            SuiValidity,
        },
    },
    schema::wire,
    signature::Signature,
};
use ed25519_dalek::{Signer as _, SigningKey};

use crate::{
    evm_node::{all_ways, connect_to, never_ended},
    http_double::{self, HttpResponse},
    one_witness::Witnesses,
    one_word::{Lie, QuotedPrice},
};

const TO: &str = "0x2e11e011732dddf470541604330633038cccb0c199170662795b0dd34bf742da";
const TOKEN: &str = "0x0000000000000000000000000000000000000000000000000000000000000abc::tok::TOK";
const SUI: &str = "0x0000000000000000000000000000000000000000000000000000000000000002::sui::SUI";
const COIN: &str = "0x6565656565656565656565656565656565656565656565656565656565656565";
const DIGEST: &str = "cGfHiC6Kgg3FpFZvgwGcswsCRtp4aBP2fzuXRQPizuN";
const LOCALNET: &str = "69WiPg3DAQiwdxfncX6wYQ2siKwAe6L9BZthQea3JNMD";
const EPOCH: u64 = 5;
/// In seconds.
const NOW: u64 = 1_800_000_000;

// ---- protobuf -------------------------------------------------------------------------------

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn uint(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

fn bytes(field: u64, value: impl AsRef<[u8]>) -> Vec<u8> {
    let value = value.as_ref();
    let length = varint(value.len() as u64);
    [varint(field << 3 | 2), length, value.to_vec()].concat()
}

/// The fields of a message, as they come.
fn fields(mut message: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let take = |message: &mut &[u8]| {
        let (mut value, mut shift) = (0u64, 0);
        loop {
            let byte = message[0];
            *message = &message[1..];
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    };
    let mut found = Vec::new();
    while !message.is_empty() {
        let key = take(&mut message);
        let value = match key & 7 {
            0 => varint(take(&mut message)),
            2 => {
                let length = take(&mut message) as usize;
                let (value, rest) = message.split_at(length);
                message = rest;
                value.to_vec()
            }
            kind => panic!("wire type {kind}"),
        };
        found.push((key >> 3, value));
    }
    found
}

fn field(message: &[u8], number: u64) -> Option<Vec<u8>> {
    let mut found = fields(message)
        .into_iter()
        .filter(|(key, _)| *key == number);
    found.next().map(|(_, value)| value)
}

fn text(message: &[u8], number: u64) -> String {
    String::from_utf8(field(message, number).unwrap_or_default()).unwrap()
}

// ---- the node -------------------------------------------------------------------------------

enum SuiReply {
    Message(Vec<u8>),
    /// In the trailers.
    Status(u32, &'static str),
    /// In the headers, as servers do where there is no message.
    InHeaders(u32, &'static str),
    Http(u16),
}
use SuiReply::{Http, InHeaders, Message, Status};

const GRPC_WEB: &str = "application/grpc-web+proto";

impl SuiReply {
    fn respond(self) -> HttpResponse {
        let (status, mut headers, body) = match self {
            Message(message) => {
                let trailers = frame(0x80, b"grpc-status:0\r\n");
                (200, vec![], [frame(0, &message), trailers].concat())
            }
            Status(code, words) => {
                let trailers = format!("grpc-status:{code}\r\ngrpc-message:{words}\r\n");
                (200, vec![], frame(0x80, trailers.as_bytes()))
            }
            InHeaders(code, words) => {
                let code = ("grpc-status", code.to_string());
                (200, vec![code, ("grpc-message", words.into())], Vec::new())
            }
            Http(status) => (status, vec![], b"<html>".to_vec()),
        };
        headers.push(("content-type", GRPC_WEB.into()));
        HttpResponse {
            status,
            headers,
            body,
        }
    }
}

/// The paths and bodies of requests.
type RecordedRequests = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// A node that answers what a closure says. Stops with the test's runtime.
struct SuiTestNode {
    url: String,
    asked: RecordedRequests,
}

impl SuiTestNode {
    async fn start(answers: impl Fn(&str, &[u8]) -> SuiReply + Send + Sync + 'static) -> Self {
        let asked = RecordedRequests::default();
        let seen = Arc::clone(&asked);
        let url = http_double::start(move |request| {
            assert_eq!(request.header("content-type"), Some(GRPC_WEB));
            let path = request.target().strip_prefix("/sui.rpc.v2.").unwrap();
            let method = path.split_once('/').unwrap().1.to_owned();
            let message = request.body[5..].to_vec();
            assert_eq!(request.body[..5], frame(0, &message)[..5]);
            let answer = answers(&method, &message);
            seen.lock().unwrap().push((method, message));
            Some(answer.respond())
        })
        .await;
        Self { url, asked }
    }

    fn client(&self) -> Arc<dyn ChainClient> {
        client(&[self], 1)
    }

    /// The requests to a method, in order.
    fn asked(&self, method: &str) -> Vec<Vec<u8>> {
        let asked = self.asked.lock().unwrap();
        let asked = asked.iter().filter(|(name, _)| name == method);
        asked.map(|(_, message)| message.clone()).collect()
    }
}

fn client(nodes: &[&SuiTestNode], agree: usize) -> Arc<dyn ChainClient> {
    let urls = nodes.iter().map(|node| node.url.clone()).collect();
    let endpoints = ChainEndpoints {
        agree,
        ..ChainEndpoints::new(urls)
    };
    connect_to(ChainKey::of(Network::Sui, None), endpoints)
}

fn frame(flags: u8, bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u32).to_be_bytes();
    [&[flags], length.as_slice(), bytes].concat()
}

fn object(id: &str, version: u64, owner: (u64, &str), balance: u64) -> Vec<u8> {
    [
        bytes(2, id),
        uint(3, version),
        bytes(4, DIGEST),
        bytes(5, [uint(1, owner.0), bytes(2, owner.1)].concat()),
        bytes(10, DIGEST),
        uint(11, 988_000),
        uint(101, balance),
    ]
    .concat()
}

fn id(number: u8) -> String {
    format!("0x{}", hex::encode([number; 32]))
}

fn status(success: bool) -> Vec<u8> {
    let error = [
        bytes(1, "Insufficient coin balance for operation."),
        uint(3, 8),
    ]
    .concat();
    match success {
        true => uint(1, 1),
        false => [uint(1, 0), bytes(2, error)].concat(),
    }
}

/// A transaction's response: digest, and effects with status and gas.
fn executed(digest: &str, success: bool) -> SuiReply {
    let gas = [uint(1, 750_000), uint(2, 1_976_000), uint(3, 978_120)].concat();
    let effects = [bytes(4, status(success)), bytes(6, gas)].concat();
    let transaction = [bytes(1, digest), bytes(4, effects)].concat();
    Message(bytes(1, transaction))
}

fn epoch(number: u64, start: u64) -> SuiReply {
    let start = bytes(6, uint(1, start));
    Message(bytes(1, [uint(1, number), start, uint(8, 750)].concat()))
}

fn balance(all: u64, outside: u64) -> SuiReply {
    Message(bytes(1, [uint(3, all), uint(4, outside)].concat()))
}

/// A healthy node: two pages of SUI, one token coin.
fn healthy(method: &str, message: &[u8]) -> SuiReply {
    let from = from();
    let ours = (1, from.as_str());
    match method {
        "GetServiceInfo" => Message([bytes(1, LOCALNET), bytes(2, "localnet")].concat()),
        "GetEpoch" => epoch(EPOCH, NOW),
        "GetBalance" if text(message, 2) == SUI => balance(10_007, 7),
        "GetBalance" => balance(33, 3),
        "ListOwnedObjects" if text(message, 5) == format!("0x2::coin::Coin<{SUI}>") => {
            let page = match field(message, 3) {
                None => [
                    bytes(1, object(&id(1), 3, ours, 9_000)),
                    // In a consensus stream, and owned by another address.
                    bytes(1, object(&id(2), 3, (5, &from), 8_000)),
                    bytes(1, object(&id(3), 3, (1, TO), 7_000)),
                    bytes(2, b"next"),
                ]
                .concat(),
                Some(token) => {
                    assert_eq!(token, b"next");
                    [
                        // Its balance has changed in the meantime.
                        bytes(1, object(&id(1), 4, ours, 500)),
                        bytes(1, object(&id(4), 5, ours, 1_000)),
                    ]
                    .concat()
                }
            };
            Message(page)
        }
        "ListOwnedObjects" => Message(bytes(1, object(COIN, 3, ours, 30))),
        "SimulateTransaction" => executed(DIGEST, true),
        "GetTransaction" => InHeaders(5, "Transaction%20not%20found"),
        other => panic!("{other}"),
    }
}

// ---- a wallet -------------------------------------------------------------------------------

fn key() -> SigningKey {
    SigningKey::from_bytes(&[7; 32])
}

fn sui() -> &'static dyn DynNetworkRules {
    Network::Sui.rules()
}

fn from() -> String {
    sui().address(key().verifying_key().as_bytes()).unwrap()
}

fn token_payment(gas: Option<wire::SuiGas>) -> Payload {
    Payload::parse(&WireKind::SuiSendCoin(wire::SuiSendCoin {
        recipients: vec![],
        from: from(),
        to: TO.into(),
        coin_tag: TOKEN.into(),
        amount: "5".into(),
        gas_fee: gas,
    }))
    .unwrap()
}

fn native_payment(gas: Option<wire::SuiGas>) -> Payload {
    Payload::parse(&WireKind::SuiSendNative(wire::SuiSendNative {
        recipients: vec![],
        from: from(),
        to: TO.into(),
        value: "5".into(),
        gas_fee: gas,
    }))
    .unwrap()
}

fn queries(payload: &Payload) -> SuiQueries {
    match sui().queries(payload) {
        Queries::Sui(queries) => queries,
        other => panic!("{other:?}"),
    }
}

fn gas() -> Option<wire::SuiGas> {
    Some(wire::SuiGas {
        budget: Some("1000".into()),
        price: Some("10".into()),
    })
}

/// A signed payment out of one coin at version 3, or out of the address balance.
fn signed(outside: bool) -> Signed {
    let coin = |number: u8| CoinObject {
        object_id: id(number),
        version: 3,
        digest: DIGEST.into(),
        balance: 10_000,
        origin: None,
    };
    let chain_data = ChainData::from(SuiChainData {
        reference_gas_price: None,
        gas_used: None,
        sui_coins: if outside { vec![] } else { vec![coin(1)] },
        sui_address_balance: if outside { 10_000 } else { 0 },
        coins: vec![],
        coin_address_balance: 0,
        required: Vec::new(),
        validity: Some(SuiValidity {
            epoch: EPOCH,
            chain_identifier: LOCALNET.into(),
            nonce: Some(77),
        }),
    });
    let payload = native_payment(gas());
    let public_key = key().verifying_key().to_bytes();
    let unsigned = sui().build(&payload, &chain_data, &public_key).unwrap();
    let signature = key().sign(&unsigned.signing[0].message);
    let signature = Signature::Ed25519 {
        r: *signature.r_bytes(),
        s: *signature.s_bytes(),
    };
    let signed = sui().assemble(&payload, &unsigned, &[signature], &public_key);
    signed.unwrap().unwrap()
}

fn broadcast_request(outside: bool, retried: bool) -> BroadcastRequest {
    BroadcastRequest {
        signed: signed(outside),
        chain_data: ChainData::Nothing,
        age_ms: 0,
        now_ms: NOW * 1_000,
        retried,
    }
}

fn refusal(broadcast: BroadcastOutcome) -> ChainRefusal {
    match broadcast {
        BroadcastOutcome::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

fn void(broadcast: BroadcastOutcome) -> ChainRefusal {
    match broadcast {
        BroadcastOutcome::Doubtful(refusal, Standing::Void) => refusal,
        other => panic!("{other:?}"),
    }
}

fn doubt(broadcast: BroadcastOutcome, words: &str) {
    match broadcast {
        BroadcastOutcome::Unknown(reason) => assert!(reason.contains(words), "{reason}"),
        other => panic!("{other:?}"),
    }
}

async fn chain_data(
    client: &dyn ChainClient,
    queries: SuiQueries,
) -> Result<SuiChainData, ChainError> {
    match client.chain_data(&Queries::Sui(queries), 0).await? {
        ChainData::Sui(chain_data) => Ok(chain_data),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn facts__should_be_what_the_node_says() {
    let node = SuiTestNode::start(healthy).await;
    let client = node.client();
    let coin = |object_id: String, version, balance, origin| CoinObject {
        object_id,
        version,
        digest: DIGEST.into(),
        balance,
        origin,
    };
    let origin = CoinOrigin {
        previous_transaction: DIGEST.into(),
        storage_rebate: 988_000,
    };
    let found = chain_data(&*client, queries(&token_payment(None)))
        .await
        .unwrap();
    let nonce = found.validity.as_ref().unwrap().nonce;
    let expected = SuiChainData {
        reference_gas_price: Some(750),
        gas_used: Some(Box::new(GasUsed {
            computation_cost: 750_000,
            storage_cost: 1_976_000,
            storage_rebate: 978_120,
        })),
        // Of the coin that is on both pages, what the first said.
        sui_coins: vec![coin(id(1), 3, 9_000, None), coin(id(4), 5, 1_000, None)],
        sui_address_balance: 7,
        coins: vec![coin(COIN.into(), 3, 30, Some(origin))],
        coin_address_balance: 3,
        required: Vec::new(),
        validity: Some(SuiValidity {
            epoch: EPOCH,
            chain_identifier: LOCALNET.into(),
            nonce,
        }),
    };
    assert_eq!(found, expected);
    let again = chain_data(&*client, queries(&token_payment(None)))
        .await
        .unwrap();
    assert!(nonce.is_some());
    assert_ne!(again.validity.unwrap().nonce, nonce);

    // A node simulates with a gas coin of its own.
    let simulated = &node.asked("SimulateTransaction")[0];
    assert_eq!(field(simulated, 4), Some(vec![0]));
    let listed = &node.asked("ListOwnedObjects")[0];
    assert_eq!(text(listed, 1), from());
    assert_eq!(field(listed, 2), Some(varint(1000)));

    // What the request brings is not asked for.
    let found = chain_data(&*client, queries(&native_payment(gas())))
        .await
        .unwrap();
    assert_eq!((found.reference_gas_price, found.gas_used), (None, None));
    assert_eq!((found.coins, found.coin_address_balance), (vec![], 0));
    assert_eq!(node.asked("SimulateTransaction").len(), 2);
}

#[tokio::test]
async fn sui_estimates__should_be_the_reference_price() {
    let node = SuiTestNode::start(healthy).await;
    let estimate = FeeEstimate {
        price: 750,
        most_price: 750,
        priority_price: None,
        transfer_fee: 1_747_880,
    };
    assert_eq!(node.client().fee_estimates().await, Ok([estimate; 3]));
}

#[tokio::test]
async fn facts__should_need_nodes_that_agree() {
    let honest = SuiTestNode::start(healthy).await;
    for (method, lie) in [
        ("GetEpoch", (|| epoch(EPOCH + 1, NOW)) as fn() -> SuiReply),
        ("GetBalance", || balance(10_007, 8)),
        ("ListOwnedObjects", || {
            Message(bytes(1, object(COIN, 3, (1, &from()), 31)))
        }),
        ("SimulateTransaction", || executed(DIGEST, false)),
    ] {
        let byzantine = SuiTestNode::start(move |asked, message| match asked == method {
            true => lie(),
            false => healthy(asked, message),
        })
        .await;
        let error = chain_data(
            &*client(&[&honest, &byzantine], 2),
            queries(&token_payment(None)),
        )
        .await;
        match error.unwrap_err() {
            ChainError::Unknown(reason) => {
                assert!(
                    reason.contains(&format!("disagree about {method}")),
                    "{reason}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
    let agreed = client(&[&honest, &SuiTestNode::start(healthy).await], 2);
    assert!(
        chain_data(&*agreed, queries(&token_payment(None)))
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn facts__should_say_why_there_are_none() {
    let failing = |said: fn() -> SuiReply| {
        SuiTestNode::start(move |method, message| match method {
            "SimulateTransaction" => said(),
            _ => healthy(method, message),
        })
    };
    // It would fail; the node cannot; there is nothing that can be read.
    let node = failing(|| executed(DIGEST, false)).await;
    match chain_data(&*node.client(), queries(&token_payment(None))).await {
        Err(ChainError::Refused(refusal)) => {
            assert_eq!(refusal.code, ExecuteCode::InsufficientFunds);
            assert!(refusal.reason.contains("would fail"), "{}", refusal.reason);
        }
        other => panic!("{other:?}"),
    }
    for (said, words) in [
        (
            (|| Status(13, "Object is not available for consumption")) as fn() -> SuiReply,
            "available",
        ),
        (
            || InHeaders(3, "invalid%20transaction"),
            "invalid transaction",
        ),
        (|| InHeaders(14, "later"), "later"),
        (|| Http(415), "HTTP 415 without gRPC-Web"),
        (|| Http(200), "without gRPC-Web"),
        (|| Message(vec![]), "makes no sense"),
    ] {
        let node = failing(said).await;
        match chain_data(&*node.client(), queries(&token_payment(None))).await {
            Err(ChainError::Unknown(reason)) => assert!(reason.contains(words), "{reason}"),
            other => panic!("{words}: {other:?}"),
        }
    }

    // More than the wallet has.
    let node = SuiTestNode::start(|method, message| match method {
        "ListOwnedObjects" => Message(vec![]),
        "GetBalance" => balance(0, 0),
        _ => healthy(method, message),
    })
    .await;
    match chain_data(&*node.client(), queries(&token_payment(None))).await {
        Err(ChainError::Refused(refusal)) => {
            assert_eq!(refusal.code, ExecuteCode::InsufficientFunds);
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn balance__should_be_coins_and_address_balance_of_a_node_that_answers() {
    let broken = SuiTestNode::start(|_, _| Http(502)).await;
    let node = SuiTestNode::start(healthy).await;
    let client = client(&[&broken, &node], 1);
    assert_eq!(client.balance(&from(), None).await.unwrap(), "10007");
    assert_eq!(client.balance(&from(), Some(TOKEN)).await.unwrap(), "33");
    assert_eq!(text(&node.asked("GetBalance")[1], 2), TOKEN);
    let health = client.health();
    assert_eq!((health[0].failures > 0, health[1].failures), (true, 0));
}

#[tokio::test]
async fn broadcast__should_send_the_exact_bytes_and_take_what_was_executed() {
    let hash = signed(false).tx_hash;
    for success in [true, false] {
        let hash = hash.clone();
        let node = SuiTestNode::start(move |_, _| executed(&hash, success)).await;
        let sent = node
            .client()
            .broadcast(&broadcast_request(false, false))
            .await;
        assert_eq!(sent, BroadcastOutcome::Accepted);
        let asked = node.asked("ExecuteTransaction");
        let text: serde_json::Value = serde_json::from_str(&signed(false).transaction).unwrap();
        for (number, expected) in [(1, &text["txBytes"]), (2, &text["signatures"][0])] {
            let encoded = field(&field(&asked[0], number).unwrap(), 1).unwrap();
            let bytes = field(&encoded, 2).unwrap();
            assert_eq!(STANDARD.encode(bytes), expected.as_str().unwrap());
        }
    }
    let node = SuiTestNode::start(|method, message| match method {
        "ExecuteTransaction" => executed("another", true),
        _ => healthy(method, message),
    })
    .await;
    doubt(
        node.client()
            .broadcast(&broadcast_request(false, false))
            .await,
        "about another transaction",
    );
}

/// A node that refuses to execute; `known`: whether it has the transaction.
async fn refusing(
    said: fn() -> SuiReply,
    known: bool,
    more: impl Fn(&str, &[u8]) -> Option<SuiReply> + Send + Sync + 'static,
) -> SuiTestNode {
    let hash = signed(false).tx_hash;
    SuiTestNode::start(
        move |method, message| match (method, more(method, message)) {
            (_, Some(said)) => said,
            ("ExecuteTransaction", None) => said(),
            ("GetTransaction", None) if known => Message(bytes(1, bytes(1, &hash))),
            (_, None) => healthy(method, message),
        },
    )
    .await
}

fn nothing(_: &str, _: &[u8]) -> Option<SuiReply> {
    None
}

fn used_up() -> SuiReply {
    Status(
        3,
        "Object ID 0x1 Version 0x3 Digest 1 is not available for consumption, current version: 0x4",
    )
}

pub async fn lies() -> Vec<Lie> {
    let chain = ChainKey::of(Network::Sui, None);
    let invalid = || InHeaders(3, "Invalid%20user%20signature%3A%20no");
    let missing = || {
        Status(
            10,
            "Could not find the referenced object 0x1 at version Some(3)",
        )
    };
    let takes = async || {
        let hash = signed(false).tx_hash;
        SuiTestNode::start(move |_, _| executed(&hash, true))
            .await
            .url
    };
    let at = async |number| {
        let now = move |method: &str, _: &[u8]| match method {
            "GetEpoch" => Some(epoch(number, NOW - 60)),
            _ => None,
        };
        refusing(|| Status(9, "locked"), false, now).await.url
    };
    vec![
        Lie {
            what: "its signature",
            chain,
            liar: refusing(invalid, false, nothing).await.url,
            honest: takes().await,
            is_taken: true,
            request: broadcast_request(false, false),
        },
        Lie {
            what: "its object never came",
            chain,
            liar: refusing(missing, false, nothing).await.url,
            honest: takes().await,
            is_taken: true,
            request: BroadcastRequest {
                age_ms: 600_000,
                ..broadcast_request(false, false)
            },
        },
        Lie {
            what: "its epochs are over",
            chain,
            liar: at(7).await,
            honest: at(6).await,
            is_taken: false,
            request: broadcast_request(true, false),
        },
    ]
}

pub async fn prices() -> Vec<QuotedPrice> {
    let most = 20_000_u128;
    let naming = async |price: u64| {
        let node = SuiTestNode::start(move |method, message| match method {
            "GetEpoch" => {
                let start = bytes(6, uint(1, NOW));
                Message(bytes(1, [uint(1, EPOCH), start, uint(8, price)].concat()))
            }
            _ => healthy(method, message),
        });
        node.await.url
    };
    vec![QuotedPrice {
        chain: ChainKey::of(Network::Sui, None),
        nodes: [naming(20_000).await, naming(20_001).await],
        payload: native_payment(None),
        most,
        unit: "MIST per unit of gas",
    }]
}

#[tokio::test]
async fn broadcast__should_refuse_for_good_what_no_node_has_and_none_can_take() {
    for (said, words, code) in [
        (
            used_up as fn() -> SuiReply,
            "used one of its objects",
            ExecuteCode::Unspecified,
        ),
        (
            || InHeaders(3, "Invalid%20user%20signature%3A%20no"),
            "Invalid user signature: no",
            ExecuteCode::Unspecified,
        ),
        (
            || {
                Status(
                    3,
                    "Balance of gas object 5 is lower than the needed amount: 6",
                )
            },
            "gasFee.budget",
            ExecuteCode::InsufficientGasFee,
        ),
    ] {
        let node = refusing(said, false, nothing).await;
        let refusal = refusal(
            node.client()
                .broadcast(&broadcast_request(false, false))
                .await,
        );
        assert!(refusal.reason.contains(words), "{}", refusal.reason);
        assert_eq!(refusal.code, code);
        // Another try of the same bytes came in.
        let node = refusing(said, true, nothing).await;
        let sent = node
            .client()
            .broadcast(&broadcast_request(false, true))
            .await;
        assert_eq!(sent, BroadcastOutcome::Accepted);
    }
}

#[tokio::test]
async fn broadcast__should_keep_what_may_be_taken_later() {
    for (said, words) in [
        (
            (|| Status(9, "already locked by a different transaction")) as fn() -> SuiReply,
            "until the epoch ends",
        ),
        (|| InHeaders(10, "rejected"), "rejected"),
        (|| InHeaders(14, "timed-out"), "timed-out"),
        (|| Status(8, "overloaded"), "overloaded"),
        (|| Http(503), "HTTP 503"),
    ] {
        let node = refusing(said, false, nothing).await;
        doubt(
            node.client()
                .broadcast(&broadcast_request(false, false))
                .await,
            words,
        );
    }
    let finalized = || Status(10, "already finalized but with different user signatures");
    let node = refusing(finalized, true, nothing).await;
    let sent = node
        .client()
        .broadcast(&broadcast_request(false, false))
        .await;
    assert_eq!(sent, BroadcastOutcome::Accepted);

    // Its object may come; after ten minutes it is not waited for.
    let missing = || {
        Status(
            10,
            "Could not find the referenced object 0x1 at version Some(3)",
        )
    };
    let node = refusing(missing, false, nothing).await;
    doubt(
        node.client()
            .broadcast(&broadcast_request(false, true))
            .await,
        "0x1",
    );
    let old = BroadcastRequest {
        age_ms: 600_000,
        ..broadcast_request(false, true)
    };
    assert!(
        void(node.client().broadcast(&old).await)
            .reason
            .contains("0x1")
    );
}

/// What a node says of the gas coin: as it is, and as the transaction would have left it.
fn objects(now: Option<(u64, &str)>, then: Option<&str>) -> SuiReply {
    let result = |found: Option<(u64, &str)>| match found {
        Some((version, previous)) => {
            let object = [bytes(2, id(1)), uint(3, version), bytes(10, previous)].concat();
            bytes(1, bytes(1, object))
        }
        None => bytes(1, bytes(2, [uint(1, 5), bytes(2, "not found")].concat())),
    };
    Message([result(now), result(then.map(|previous| (4, previous)))].concat())
}

#[tokio::test]
async fn broadcast_in_doubt__should_look_who_used_the_objects() {
    let hash = signed(false).tx_hash;
    let ours = hash.as_str();
    for (now, then, expected) in [
        // A node that is behind, or one that has pruned.
        (Some((3, "before")), None, "not yet known"),
        (None, None, "not yet known"),
        (Some((4, ours)), Some(ours), "accepted"),
        (Some((9, "other")), Some(ours), "accepted"),
        (Some((4, "other")), Some("other"), "void"),
        (Some((9, "other")), None, "void"),
    ] {
        let (now, then) = (
            now.map(|(version, previous)| (version, previous.to_owned())),
            then.map(ToOwned::to_owned),
        );
        let node = refusing(used_up, false, move |method, message| {
            (method == "BatchGetObjects").then(|| {
                let requests = fields(message);
                assert_eq!(text(&requests[0].1, 1), id(1));
                assert_eq!(field(&requests[1].1, 2), Some(vec![4]));
                let now = now
                    .as_ref()
                    .map(|(version, previous)| (*version, previous.as_str()));
                objects(now, then.as_deref())
            })
        })
        .await;
        let sent = node
            .client()
            .broadcast(&broadcast_request(false, true))
            .await;
        match expected {
            "accepted" => assert_eq!(sent, BroadcastOutcome::Accepted),
            // One node says so: the others are asked before it counts.
            "void" => {
                let reason = void(sent).reason;
                assert!(reason.contains("used one of its objects"), "{reason}");
            }
            words => doubt(sent, words),
        }
    }
}

#[tokio::test]
async fn broadcast__should_give_up_what_expired_once_the_epoch_is_over_for_certain() {
    let expired = || Status(3, "Transaction Expired");
    // It is good in epochs 5 and 6.
    for (number, ago, over) in [(6, 10_000, false), (7, 30, false), (7, 60, true)] {
        let now = move |method: &str, _: &[u8]| match method {
            "GetEpoch" => Some(epoch(number, NOW - ago)),
            "BatchGetObjects" => Some(Message(vec![])),
            _ => None,
        };
        let node = refusing(expired, false, now).await;
        let sent = node
            .client()
            .broadcast(&broadcast_request(true, true))
            .await;
        match over {
            true => assert!(void(sent).reason.contains("create a new request")),
            false => doubt(sent, "not yet known"),
        }
        // Whatever a node says of it.
        let node = refusing(|| Status(9, "locked"), false, now).await;
        let sent = node
            .client()
            .broadcast(&broadcast_request(true, true))
            .await;
        match over {
            true => assert!(void(sent).reason.contains("expired")),
            false => doubt(sent, "locked"),
        }
    }
}

// ---- where transactions are -------------------------------------------------------------------

/// What a node says of a transaction, of its only object's version, and of the epoch.
#[derive(Clone, Copy)]
struct Seen {
    /// Whether it went well, and its checkpoint.
    found: Option<(bool, Option<u64>)>,
    version: u64,
    epoch: u64,
    /// From when to when it has all transactions, in seconds.
    remembers: Option<(u64, u64)>,
}

const OPEN: Seen = Seen {
    found: None,
    version: 3,
    epoch: EPOCH,
    remembers: None,
};

impl Seen {
    async fn node(self) -> SuiTestNode {
        SuiTestNode::start(move |method, message| match method {
            "GetTransaction" => {
                let Some((success, checkpoint)) = self.found else {
                    return InHeaders(5, "Transaction%20not%20found");
                };
                let effects = bytes(4, bytes(4, status(success)));
                let checkpoint = checkpoint.map(|number| uint(6, number)).unwrap_or_default();
                let digest = bytes(1, text(message, 1));
                Message(bytes(1, [digest, effects, checkpoint].concat()))
            }
            "BatchGetObjects" => {
                let from = from();
                let mut object = object(&id(1), self.version, (1, &from), 1);
                if self.found.is_some() && self.version > OPEN.version {
                    // It is what has used it: of two, the later one counts.
                    let ours = signed(false).tx_hash;
                    object.extend(bytes(10, ours.as_str()));
                }
                let error = bytes(2, uint(1, 5));
                Message([bytes(1, bytes(1, object)), bytes(1, error)].concat())
            }
            "GetEpoch" => epoch(self.epoch, NOW),
            "GetServiceInfo" => {
                let Message(mut info) = healthy(method, message) else {
                    unreachable!()
                };
                if let Some((_, to)) = self.remembers {
                    info.extend([bytes(5, uint(1, to)), uint(6, 77)].concat());
                }
                Message(info)
            }
            "GetCheckpoint" => {
                assert_eq!(field(message, 1), Some(vec![77]));
                let (from, _) = self.remembers.unwrap();
                Message(bytes(1, bytes(3, bytes(9, uint(1, from)))))
            }
            _ => healthy(method, message),
        })
        .await
    }
}

/// Of coin objects, or of what lies outside of them, when only the epoch ends it.
fn tracked(outside: bool) -> TrackedTransaction {
    TrackedTransaction {
        signed: signed(outside),
        from: from(),
        sent_at_ms: NOW * 1_000,
    }
}

pub async fn witnesses() -> Witnesses {
    let node = async |success: bool, checkpoint: Option<u64>| {
        let seen = Seen {
            found: Some((success, checkpoint)),
            version: 4,
            ..OPEN
        };
        seen.node().await.url
    };
    Witnesses {
        chain: ChainKey::of(Network::Sui, None),
        liars: vec![
            ("executed", node(true, None).await),
            ("final", node(true, Some(11)).await),
            ("failed for good", node(false, Some(12)).await),
        ],
        honest: OPEN.node().await.url,
        later: node(true, Some(12)).await,
        transaction: tracked(false),
        now_ms: NOW * 1_000,
        end: TransactionSighting::Final(Inclusion {
            block: 12,
            success: true,
        }),
    }
}

#[tokio::test]
async fn sightings__should_say_where_a_sui_transaction_is() {
    let at = |success| Inclusion { block: 12, success };
    let found = |success, checkpoint| Seen {
        found: Some((success, checkpoint)),
        ..OPEN
    };
    let late = 2 * 86_400;
    for (seen, after, expected) in [
        (
            found(true, Some(12)),
            0,
            TransactionSighting::Final(at(true)),
        ),
        (
            found(false, Some(12)),
            0,
            TransactionSighting::Final(at(false)),
        ),
        (found(true, None), 0, TransactionSighting::Waiting),
        (OPEN, 0, TransactionSighting::Missing),
        (
            Seen {
                epoch: EPOCH + 2,
                ..OPEN
            },
            0,
            TransactionSighting::Expired,
        ),
        (
            Seen { version: 4, ..OPEN },
            0,
            TransactionSighting::Replaced(Some(DIGEST.into())),
        ),
        // The node may have forgotten it.
        (
            Seen { version: 4, ..OPEN },
            late,
            TransactionSighting::Missing,
        ),
    ] {
        let node = seen.node().await;
        let now_ms = (NOW + after) * 1_000;
        let outside = expected == TransactionSighting::Expired;
        let sighted = node.client().sightings(&[tracked(outside)], now_ms).await;
        assert_eq!(sighted, [Ok(expected)]);
    }
}

#[tokio::test]
async fn sightings__should_end_what_is_old_by_sui_nodes_that_remember_that_time() {
    let now_ms = (NOW + 3 * 86_400) * 1_000;
    let used = |from: u64, to: u64| Seen {
        version: 4,
        remembers: Some((from, to)),
        ..OPEN
    };
    let (before, after) = (NOW - 600, NOW + 600);
    let replaced = || TransactionSighting::Replaced(Some(DIGEST.into()));
    for (seen, outside, expected) in [
        (used(before, after), false, replaced()),
        (
            Seen {
                version: 3,
                epoch: EPOCH + 2,
                ..used(before, after)
            },
            true,
            TransactionSighting::Expired,
        ),
        (
            Seen {
                version: 3,
                ..used(before, after)
            },
            false,
            TransactionSighting::Missing,
        ),
        // It has forgotten the time around it, or has not got there.
        (used(before + 1, after), false, TransactionSighting::Missing),
        (used(before, after - 1), false, TransactionSighting::Missing),
    ] {
        let node = seen.node().await;
        let sighted = node.client().sightings(&[tracked(outside)], now_ms).await;
        assert_eq!(sighted, [Ok(expected)]);
    }
    // As many as have to agree.
    let chain = ChainKey::of(Network::Sui, None);
    let [one, other, forgetful] = [
        used(before, after).node().await,
        used(before, after).node().await,
        used(before + 1, after).node().await,
    ];
    for client in all_ways(chain, &one.url, &forgetful.url) {
        never_ended(client, &tracked(false), now_ms).await;
    }
    for client in all_ways(chain, &one.url, &other.url) {
        let sighted = client.sightings(&[tracked(false)], now_ms).await;
        assert_eq!(sighted, [Ok(replaced())]);
    }
}

#[tokio::test]
async fn sightings__should_take_no_single_sui_node_s_word_for_the_end() {
    let honest = OPEN.node().await;
    for lie in [
        Seen {
            found: Some((true, Some(12))),
            ..OPEN
        },
        Seen { version: 4, ..OPEN },
        Seen {
            epoch: EPOCH + 2,
            ..OPEN
        },
    ] {
        let liar = lie.node().await;
        let chain = ChainKey::of(Network::Sui, None);
        for client in all_ways(chain, &liar.url, &honest.url) {
            never_ended(client, &tracked(lie.epoch > EPOCH), NOW * 1_000).await;
        }
    }
}
