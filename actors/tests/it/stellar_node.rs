//! The Stellar client against a node that speaks real HTTP. The XDR is written by hand (RFC 4506).

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_actors::chain_rpc::{
    BroadcastOutcome, BroadcastRequest, ChainClient, ChainEndpoints, ChainError, ChainKey,
    FeeEstimate, Inclusion, Standing, TrackedTransaction, TransactionSighting,
};
use covault_core::{
    fault::ExecuteCode,
    networks::{
        ChainData, ChainMoment, FeeLevel, Network, Payload, Queries, Signed, WireKind,
        stellar::{self, Moves},
    },
    schema::wire,
};
use serde_json::{Value, json};

use crate::{
    evm_node::{EvmTestNode, all_ways, connect_to, never_ended},
    one_witness::Witnesses,
    one_word::{Denial, Lie, QuotedPrice},
};

const FROM: &str = "GC2L7D2DLA4IGYCOLPD3X5IFSG2OWDJXVGHCH54WXFMYB5CKCILAD5CT";
const FROM_KEY: &str = "b4bf8f43583883604e5bc7bbf50591b4eb0d37a98e23f796b95980f44a121601";
const TO: &str = "GA5ZSEJYB37JRC5AVCIA5MOP4RHTM335X2KGX3IHOJAPP5RE34K4KZVN";
const HASH: &str = "7ac33997544e3175d266bd022439b22cdb16508c01163f26e5cb2a3e1045a979";
const PUBLIC: &str = "Public Global Stellar Network ; September 2015";
/// When the transaction was built, in seconds since the Unix epoch.
const BUILT: u64 = 1_700_000_000;
/// Its number.
const NUMBER: u64 = 42;
/// What the sender has, in stroops.
const BALANCE: u64 = 25_000_000;

/// The key of an account: the strkey without version and checksum.
fn key_of(account: &str) -> [u8; 32] {
    let mut bits = 0u64;
    let mut count = 0;
    let mut bytes = Vec::new();
    for letter in account.bytes() {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            _ => letter - b'2' + 26,
        };
        bits = bits << 5 | u64::from(value);
        count += 5;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    bytes[1..33].try_into().unwrap()
}

fn base64(parts: &[&[u8]]) -> String {
    STANDARD.encode(parts.concat())
}

fn int(value: i32) -> [u8; 4] {
    value.to_be_bytes()
}

fn ledger_key(account: &str) -> String {
    base64(&[&int(0), &int(0), &key_of(account)])
}

fn account_entry(account: &str, balance: u64, sequence: u64) -> String {
    base64(&[
        &int(0),
        &int(0),
        &key_of(account),
        &balance.to_be_bytes(),
        &sequence.to_be_bytes(),
        // Subentries, inflation destination, flags, home domain; thresholds; signers, extension.
        &[0; 16],
        &[1, 0, 0, 0],
        &[0; 8],
    ])
}

fn trust_line_key(account: &str, issuer: &str) -> String {
    base64(&[
        &int(1),
        &int(0),
        &key_of(account),
        &int(1),
        b"USDC",
        &int(0),
        &key_of(issuer),
    ])
}

fn trust_line_entry(account: &str, issuer: &str, balance: u64) -> String {
    base64(&[
        &int(1),
        &int(0),
        &key_of(account),
        &int(1),
        b"USDC",
        &int(0),
        &key_of(issuer),
        &balance.to_be_bytes(),
        &i64::MAX.to_be_bytes(),
        &int(1),
        &int(0),
    ])
}

/// A transaction that ends 300 seconds after it was built, without a signature.
fn transaction() -> String {
    base64(&[
        &int(2),
        &int(0),
        &key_of(FROM),
        &int(100),
        &NUMBER.to_be_bytes(),
        &int(1),
        &0u64.to_be_bytes(),
        &(BUILT + 300).to_be_bytes(),
        // No memo; one operation without a source: bump the sequence to 0.
        &int(0),
        &int(1),
        &int(0),
        &int(11),
        &0u64.to_be_bytes(),
        // Extension, signatures.
        &int(0),
        &int(0),
    ])
}

/// A result without operations.
fn result(code: i32) -> String {
    base64(&[&300u64.to_be_bytes(), &int(code), &int(0)])
}

/// txFAILED, for a payment of more than there is.
fn underfunded() -> String {
    base64(&[
        &100u64.to_be_bytes(),
        &int(-1),
        &int(1),
        // opINNER, PAYMENT, PAYMENT_UNDERFUNDED.
        &int(0),
        &int(1),
        &int(-2),
        &int(0),
    ])
}

/// A node in whose ledger 900 the sender has used the number 41, and which does not know any
/// transaction.
fn healthy(method: &str, params: &Value) -> Result<Value, (i64, String)> {
    if !params.is_object() {
        return Err((-32602, "array arguments are not accepted".into()));
    }
    Ok(match method {
        "getNetwork" => json!({"passphrase": PUBLIC}),
        "getFeeStats" => json!({"inclusionFee": {"p90": "250"}, "latestLedger": 900}),
        "getLedgerEntries" => entries(params, 41),
        "getTransaction" => nowhere(900, BUILT + 200),
        other => return Err((-32601, format!("{other} not found"))),
    })
}

/// What a node has of the keys: the sender, and nothing else.
fn entries(params: &Value, sequence: u64) -> Value {
    entries_of(params, BALANCE, sequence)
}

fn entries_of(params: &Value, balance: u64, sequence: u64) -> Value {
    let keys = params["keys"].as_array().unwrap();
    let here = ledger_key(FROM);
    let entries = keys.iter().filter(|key| **key == here).map(
        |key| json!({"key": key, "xdr": account_entry(FROM, balance, sequence), "lastModifiedLedgerSeq": 3}),
    );
    json!({"entries": entries.collect::<Vec<_>>(), "latestLedger": 900})
}

fn nowhere(last: u64, until: u64) -> Value {
    json!({"status": "NOT_FOUND", "latestLedger": last, "latestLedgerCloseTime": until.to_string(),
        "oldestLedger": 3, "oldestLedgerCloseTime": (BUILT - 86_400).to_string()})
}

fn connect(urls: Vec<String>) -> Arc<dyn ChainClient> {
    connect_to(
        ChainKey::of(Network::Stellar, None),
        ChainEndpoints::new(urls),
    )
}

fn queries(destination: Option<&str>) -> Queries {
    moving(destination, Moves::Lumens(1))
}

fn moving(destination: Option<&str>, moves: Moves) -> Queries {
    Queries::Stellar(stellar::Queries {
        from: FROM.into(),
        destination: destination.map(Into::into),
        level: FeeLevel::Normal,
        moves,
    })
}

fn broadcast_request(retried: bool) -> BroadcastRequest {
    BroadcastRequest {
        signed: Signed {
            transaction: transaction(),
            tx_hash: HASH.into(),
        },
        chain_data: ChainData::Nothing,
        age_ms: 200_000,
        now_ms: (BUILT + 200) * 1000,
        retried,
    }
}

#[test]
fn keys__should_be_read_right_by_this_test() {
    assert_eq!(hex::encode(key_of(FROM)), FROM_KEY);
}

#[tokio::test]
async fn stellar_facts__should_be_what_the_node_says() {
    let node = EvmTestNode::start(healthy).await;
    let client = connect(vec![node.url.clone()]);
    for (destination, exists) in [
        (None, None),
        (Some(TO), Some(false)),
        (Some(FROM), Some(true)),
    ] {
        let chain_data = client
            .chain_data(&queries(destination), 1_700_000_000_999)
            .await;
        let expected = stellar::ChainData {
            sequence: 41,
            base_fee: 250,
            max_time: 1_700_000_300,
            destination_exists: exists,
        };
        assert_eq!(
            chain_data,
            Ok(ChainData::Stellar(expected)),
            "{destination:?}"
        );
    }
}

#[tokio::test]
async fn stellar_fees__should_be_of_their_level() {
    let node = EvmTestNode::start(|method, params| match method {
        "getFeeStats" => {
            Ok(json!({"inclusionFee": {"p10": "100", "p50": "120", "p90": "250", "p99": "4000"}}))
        }
        _ => healthy(method, params),
    })
    .await;
    let client = connect(vec![node.url]);
    let expected = [120, 250, 4_000];
    for level in FeeLevel::ALL {
        let wanted = Queries::Stellar(stellar::Queries {
            from: FROM.into(),
            destination: None,
            level,
            moves: Moves::Lumens(1),
        });
        match client.chain_data(&wanted, 0).await.unwrap() {
            ChainData::Stellar(found) => assert_eq!(found.base_fee, level.of(expected)),
            other => panic!("{other:?}"),
        }
    }
    let plain = |price| FeeEstimate {
        price,
        most_price: price,
        priority_price: None,
        transfer_fee: price,
    };
    let estimates = client.fee_estimates().await;
    assert_eq!(estimates, Ok(expected.map(|fee| plain(u128::from(fee)))));
}

pub async fn denials() -> Vec<Denial> {
    let node = async |balance: Option<u64>| {
        let node = EvmTestNode::start(move |method, params| match (method, balance) {
            ("getLedgerEntries", None) => Ok(json!({"entries": [], "latestLedger": 900})),
            ("getLedgerEntries", Some(balance)) => Ok(entries_of(params, balance, 41)),
            _ => healthy(method, params),
        });
        node.await.url
    };
    let denial = async |what, liar, queries| Denial {
        what,
        chain: ChainKey::of(Network::Stellar, None),
        liar: node(liar).await,
        honest: node(Some(BALANCE)).await,
        queries,
        now_ms: 0,
    };
    let pay = moving(Some(TO), Moves::Lumens(5_000_000));
    vec![
        denial("there is no such account", None, queries(None)).await,
        denial("it has less than is to be sent", Some(BALANCE / 2), pay).await,
    ]
}

/// What a ledger would take the fee of, and not do.
#[tokio::test]
async fn stellar_payments_of_more_than_there_is__should_be_refused_before_they_are_signed() {
    let usdc = format!("USDC:{TO}");
    let node = EvmTestNode::start({
        let line = trust_line_key(FROM, TO);
        move |method, params| match method {
            "getLedgerEntries" => {
                let mut said = entries(params, 41);
                if params["keys"].as_array().unwrap().contains(&json!(line)) {
                    let entry = json!({"key": line, "xdr": trust_line_entry(FROM, TO, 77)});
                    said["entries"].as_array_mut().unwrap().push(entry);
                }
                Ok(said)
            }
            _ => healthy(method, params),
        }
    })
    .await;
    let client = connect(vec![node.url.clone()]);
    let asset = |amount| Moves::Asset {
        asset: usdc.clone(),
        amount,
        to: TO.into(),
    };
    // Half a lumen for each entry of the ledger that it has, and the fee that it offers.
    let most = BALANCE - 10_000_000 - 250;
    for (destination, moves, problem) in [
        (Some(TO), Moves::Lumens(most), None),
        (
            Some(TO),
            Moves::Lumens(most + 1),
            Some("value: is 14999751"),
        ),
        // To itself.
        (Some(FROM), Moves::Lumens(u64::MAX), None),
        (None, asset(77), None),
        (None, asset(78), Some("amount: is 78 units")),
    ] {
        let said = client.chain_data(&moving(destination, moves), 0).await;
        match (said, problem) {
            (Ok(_), None) => {}
            (Err(ChainError::Lacks(refusal)), Some(words)) => {
                assert!(refusal.reason.starts_with(words), "{refusal:?}");
                assert_eq!(refusal.code, ExecuteCode::InsufficientFunds);
            }
            other => panic!("{other:?}"),
        }
    }
    // One question more than before is not asked.
    let calls = node.calls.lock().unwrap();
    let asked = calls
        .iter()
        .filter(|(method, _)| method == "getLedgerEntries");
    assert_eq!(asked.count(), 5);
}

#[tokio::test]
async fn stellar_facts__should_say_that_an_account_must_be_funded_first() {
    let node = EvmTestNode::start(|method, params| match method {
        "getLedgerEntries" => Ok(json!({"entries": [], "latestLedger": 900})),
        _ => healthy(method, params),
    })
    .await;
    match connect(vec![node.url]).chain_data(&queries(None), 0).await {
        Err(ChainError::Refused(refusal)) => {
            assert_eq!(refusal.code, ExecuteCode::InsufficientFunds);
            assert!(refusal.reason.contains("1 XLM"), "{refusal:?}");
        }
        found => panic!("{found:?}"),
    }
}

#[tokio::test]
async fn stellar_facts__should_not_come_of_an_answer_without_sense() {
    for answer in [
        json!({}),
        json!({"entries": [{"key": ledger_key(FROM), "xdr": "AAAA"}], "latestLedger": 900}),
    ] {
        let node = EvmTestNode::start(move |method, params| match method {
            "getLedgerEntries" => Ok(answer.clone()),
            _ => healthy(method, params),
        })
        .await;
        let chain_data = connect(vec![node.url]).chain_data(&queries(None), 0).await;
        assert!(
            matches!(chain_data, Err(ChainError::Unknown(_))),
            "{chain_data:?}"
        );
    }
}

#[tokio::test]
async fn stellar__should_not_use_a_node_of_another_network() {
    let node = EvmTestNode::start(|method, params| match method {
        "getNetwork" => Ok(json!({"passphrase": "Test SDF Network ; September 2015"})),
        _ => healthy(method, params),
    })
    .await;
    let client = connect(vec![node.url.clone()]);
    match client.chain_data(&queries(None), 0).await {
        Err(ChainError::Refused(refusal)) => {
            assert!(refusal.reason.contains("Test SDF"), "{refusal:?}")
        }
        found => panic!("{found:?}"),
    }
    let sent = client.broadcast(&broadcast_request(false)).await;
    assert!(matches!(sent, BroadcastOutcome::Unknown(_)), "{sent:?}");
    assert!(!node.methods().contains(&"sendTransaction".to_owned()));
}

/// What becomes of a transaction when the node answers this to sendTransaction, has used this
/// number of the sender, and says this to getTransaction.
async fn outcome(
    retried: bool,
    sent: Value,
    used: u64,
    found: Value,
) -> (&'static str, ExecuteCode, String) {
    let node = EvmTestNode::start(move |method, params| match method {
        "sendTransaction" => {
            assert_eq!(params["transaction"], transaction());
            Ok(sent.clone())
        }
        "getLedgerEntries" => Ok(entries(params, used)),
        "getTransaction" => {
            assert_eq!(params["hash"], HASH);
            Ok(found.clone())
        }
        _ => healthy(method, params),
    })
    .await;
    match connect(vec![node.url])
        .broadcast(&broadcast_request(retried))
        .await
    {
        BroadcastOutcome::Accepted => ("accepted", ExecuteCode::Unspecified, String::new()),
        BroadcastOutcome::Refused(refusal) => ("refused", refusal.code, refusal.reason),
        BroadcastOutcome::Doubtful(refusal, Standing::Void) => {
            ("void", refusal.code, refusal.reason)
        }
        BroadcastOutcome::Doubtful(refusal, _) => ("doubtful", refusal.code, refusal.reason),
        BroadcastOutcome::Unknown(reason) => ("unknown", ExecuteCode::Unspecified, reason),
    }
}

pub async fn lies() -> Vec<Lie> {
    let node = async |sent: Value, used, found: Value| {
        let node = EvmTestNode::start(move |method, params| match method {
            "sendTransaction" => Ok(sent.clone()),
            "getLedgerEntries" => Ok(entries(params, used)),
            "getTransaction" => Ok(found.clone()),
            _ => healthy(method, params),
        });
        node.await.url
    };
    let status = |status: &str| json!({"status": status, "hash": HASH});
    let nowhere = || nowhere(900, BUILT + 200);
    let done = json!({"status": "SUCCESS"});
    let chain = ChainKey::of(Network::Stellar, None);
    vec![
        Lie {
            what: "its number is used, where an earlier one is not in a ledger yet",
            chain,
            liar: node(error(-5), 42, nowhere()).await,
            honest: node(error(-5), 41, nowhere()).await,
            is_taken: false,
            request: broadcast_request(false),
        },
        Lie {
            what: "its signatures",
            chain,
            liar: node(error(-6), 41, nowhere()).await,
            honest: node(status("PENDING"), 41, done).await,
            is_taken: true,
            request: broadcast_request(false),
        },
    ]
}

pub async fn prices() -> Vec<QuotedPrice> {
    let most = 1_000_000_u128;
    let naming = async |price: u128| {
        let node = EvmTestNode::start(move |method, params| match method {
            "getFeeStats" => {
                let fee = price.to_string();
                Ok(json!({"inclusionFee": {"p50": fee, "p90": fee, "p99": fee}}))
            }
            _ => healthy(method, params),
        });
        node.await.url
    };
    vec![QuotedPrice {
        chain: ChainKey::of(Network::Stellar, None),
        nodes: [naming(most).await, naming(most + 1).await],
        payload: Payload::parse(&WireKind::StellarSendNative(wire::StellarSendNative {
            from: FROM.into(),
            to: TO.into(),
            value: "0.5".into(),
            ..Default::default()
        }))
        .unwrap(),
        most,
        unit: "stroops per operation",
    }]
}

fn error(code: i32) -> Value {
    json!({"status": "ERROR", "hash": HASH, "errorResultXdr": result(code)})
}

#[tokio::test]
async fn stellar_broadcast__should_tell_accepted_refused_and_unknown_apart() {
    use ExecuteCode::{InsufficientFunds, InsufficientGasFee, Unspecified};
    let status = |status: &str| json!({"status": status, "hash": HASH});
    let done = json!({"status": "SUCCESS"});
    // It paid nobody: the tracker says so, and nobody may be told that it is not there.
    let failed = json!({"status": "FAILED", "resultXdr": underfunded()});
    let here = nowhere(900, BUILT + 200);
    let over = nowhere(960, BUILT + 301);
    let behind = nowhere(899, BUILT + 195);
    let mut forgetful = nowhere(900, BUILT + 200);
    forgetful["oldestLedgerCloseTime"] = json!((BUILT + 1).to_string());
    for (retried, sent, used, found, expected, code, words) in [
        (
            false,
            status("PENDING"),
            41,
            &done,
            "accepted",
            Unspecified,
            "",
        ),
        (
            false,
            status("PENDING"),
            41,
            &failed,
            "accepted",
            Unspecified,
            "",
        ),
        (
            true,
            status("DUPLICATE"),
            41,
            &done,
            "accepted",
            Unspecified,
            "",
        ),
        (
            false,
            status("TRY_AGAIN_LATER"),
            41,
            &done,
            "unknown",
            Unspecified,
            "one transaction of an account",
        ),
        (
            true,
            status("TRY_AGAIN_LATER"),
            41,
            &here,
            "unknown",
            Unspecified,
            "one transaction of an account",
        ),
        (
            true,
            status("TRY_AGAIN_LATER"),
            42,
            &done,
            "accepted",
            Unspecified,
            "",
        ),
        (
            true,
            status("TRY_AGAIN_LATER"),
            42,
            &failed,
            "accepted",
            Unspecified,
            "",
        ),
        // txBAD_SEQ: an earlier one is on its way; this one can go, and the node is behind.
        (
            false,
            error(-5),
            40,
            &here,
            "unknown",
            Unspecified,
            "earlier",
        ),
        (
            false,
            error(-5),
            41,
            &here,
            "unknown",
            Unspecified,
            "earlier",
        ),
        // The number was used: by this one, by another, or the node does not know.
        (true, error(-5), 42, &done, "accepted", Unspecified, ""),
        (true, error(-5), 43, &failed, "accepted", Unspecified, ""),
        (
            false,
            error(-5),
            42,
            &here,
            "refused",
            Unspecified,
            "sequence number",
        ),
        (
            false,
            error(-5),
            42,
            &behind,
            "unknown",
            Unspecified,
            "all ledgers",
        ),
        (
            false,
            error(-5),
            42,
            &forgetful,
            "unknown",
            Unspecified,
            "all ledgers",
        ),
        // txTOO_LATE.
        (
            false,
            error(-3),
            41,
            &here,
            "refused",
            Unspecified,
            "expired",
        ),
        (
            true,
            error(-3),
            41,
            &here,
            "unknown",
            Unspecified,
            "all ledgers",
        ),
        (true, error(-3), 41, &over, "void", Unspecified, "expired"),
        (true, error(-3), 42, &done, "accepted", Unspecified, ""),
        // Fee and balance, which another node may have found good.
        (
            false,
            error(-9),
            41,
            &here,
            "refused",
            InsufficientGasFee,
            "at least 300 stroops",
        ),
        (
            true,
            error(-9),
            41,
            &here,
            "unknown",
            Unspecified,
            "txINSUFFICIENT_FEE",
        ),
        (
            true,
            error(-9),
            41,
            &over,
            "void",
            InsufficientGasFee,
            "txINSUFFICIENT_FEE",
        ),
        (
            false,
            error(-7),
            41,
            &here,
            "refused",
            InsufficientFunds,
            "txINSUFFICIENT_BALANCE",
        ),
        (
            false,
            error(-8),
            41,
            &here,
            "refused",
            InsufficientFunds,
            "txNO_ACCOUNT",
        ),
        // The others.
        (
            true,
            error(-6),
            41,
            &here,
            "unknown",
            Unspecified,
            "txBAD_AUTH",
        ),
        (
            false,
            error(-11),
            41,
            &here,
            "unknown",
            Unspecified,
            "txINTERNAL_ERROR",
        ),
        // txTOO_EARLY: it may come yet.
        (
            false,
            error(-2),
            41,
            &here,
            "unknown",
            Unspecified,
            "txTOO_EARLY",
        ),
        (
            false,
            json!({"status": "ERROR"}),
            41,
            &here,
            "refused",
            Unspecified,
            "without a reason",
        ),
        (
            false,
            json!({}),
            41,
            &here,
            "unknown",
            Unspecified,
            "makes no sense",
        ),
    ] {
        let what = format!("{retried} {sent} {used} {found}");
        let (verdict, named, reason) = outcome(retried, sent, used, found.clone()).await;
        assert_eq!((verdict, named), (expected, code), "{what}: {reason}");
        assert!(reason.contains(words), "{what}: {reason}");
    }
}

#[tokio::test]
async fn stellar_broadcast__should_refuse_only_what_a_node_cannot_read() {
    for (code, words, expected) in [
        (-32602, "invalid_xdr", true),
        (-32603, "invalid_xdr", false),
        (-32601, "invalid_xdr", false),
        // A gateway's own.
        (
            -32602,
            "Invalid params: your plan does not have this method",
            false,
        ),
    ] {
        let node = EvmTestNode::start(move |method, params| match method {
            "sendTransaction" => Err((code, words.into())),
            _ => healthy(method, params),
        })
        .await;
        let sent = connect(vec![node.url])
            .broadcast(&broadcast_request(false))
            .await;
        assert_eq!(
            matches!(sent, BroadcastOutcome::Refused(_)),
            expected,
            "{sent:?}"
        );
    }
}

#[tokio::test]
async fn the_next_stellar_number__should_be_that_of_a_ledger_after_the_time_in_question() {
    let at_ms = ChainMoment::at_ms;
    for (ledger, since, expected) in [
        (900, ChainMoment::ANY, Ok(Some(42))),
        (900, at_ms((BUILT + 200) * 1000), Ok(Some(42))),
        (900, at_ms((BUILT + 200) * 1000 + 1), Ok(None)),
        (900, ChainMoment::at_height(900), Ok(Some(42))),
        (900, ChainMoment::at_height(901), Ok(None)),
        // The entries are older than what said the time.
        (901, ChainMoment::ANY, Err(())),
    ] {
        let node = EvmTestNode::start(move |method, params| match method {
            "getTransaction" => Ok(nowhere(ledger, BUILT + 200)),
            _ => healthy(method, params),
        })
        .await;
        let next = connect(vec![node.url]).next_number(FROM, since).await;
        let next = next.map_err(|error| match error {
            ChainError::Unknown(_) => (),
            refused => panic!("{refused:?}"),
        });
        assert_eq!(next, expected, "{ledger} {since}");
    }
}

#[tokio::test]
async fn stellar_balance__should_be_that_of_the_account_or_the_trust_line() {
    let asset = format!("USDC:{TO}");
    let line = trust_line_key(FROM, TO);
    let node = EvmTestNode::start(move |method, params| match method {
        "getLedgerEntries" if params["keys"] == json!([line]) => Ok(json!({
            "entries": [{"key": line, "xdr": trust_line_entry(FROM, TO, 77)}],
            "latestLedger": 900,
        })),
        _ => healthy(method, params),
    })
    .await;
    let client = connect(vec![node.url]);
    for (address, token, expected) in [
        (FROM, None, "25000000"),
        (TO, None, "0"),
        (FROM, Some(asset.as_str()), "77"),
        (TO, Some(asset.as_str()), "0"),
    ] {
        let found = client.balance(address, token).await;
        assert_eq!(found.as_deref(), Ok(expected), "{address} {token:?}");
    }
}

/// A node that says this of the transaction, and which number the account has used.
async fn seeing(found: Value, used: u64) -> EvmTestNode {
    EvmTestNode::start(move |method, params| match method {
        "getTransaction" => Ok(found.clone()),
        "getLedgerEntries" => Ok(entries(params, used)),
        _ => healthy(method, params),
    })
    .await
}

fn tracked() -> TrackedTransaction {
    TrackedTransaction {
        signed: broadcast_request(false).signed,
        from: FROM.into(),
        sent_at_ms: BUILT * 1_000,
    }
}

fn in_ledger(status: &str) -> Value {
    json!({"status": status, "ledger": 900, "latestLedger": 905})
}

pub async fn witnesses() -> Witnesses {
    let node = async |status: &str, ledger: u64| {
        let mut found = in_ledger(status);
        found["ledger"] = json!(ledger);
        seeing(found, 42).await.url
    };
    Witnesses {
        chain: ChainKey::of(Network::Stellar, None),
        liars: vec![
            ("final", node("SUCCESS", 899).await),
            ("failed for good", node("FAILED", 900).await),
        ],
        honest: seeing(nowhere(900, BUILT + 200), 41).await.url,
        later: node("SUCCESS", 900).await,
        transaction: tracked(),
        now_ms: 0,
        end: TransactionSighting::Final(Inclusion {
            block: 900,
            success: true,
        }),
    }
}

#[tokio::test]
async fn sightings__should_say_where_a_stellar_transaction_is() {
    let at = |success| Inclusion {
        block: 900,
        success,
    };
    let mut forgotten = nowhere(900, BUILT + 301);
    forgotten["oldestLedgerCloseTime"] = json!((BUILT + 1).to_string());
    for (found, used, expected) in [
        (
            in_ledger("SUCCESS"),
            42,
            TransactionSighting::Final(at(true)),
        ),
        (
            in_ledger("FAILED"),
            42,
            TransactionSighting::Final(at(false)),
        ),
        (nowhere(900, BUILT + 300), 41, TransactionSighting::Missing),
        (nowhere(900, BUILT + 301), 41, TransactionSighting::Expired),
        (
            nowhere(900, BUILT + 200),
            42,
            TransactionSighting::Replaced(None),
        ),
        // The number was used in ledger 900.
        (nowhere(899, BUILT + 200), 42, TransactionSighting::Missing),
        (forgotten, 42, TransactionSighting::Missing),
    ] {
        let node = seeing(found, used).await;
        let sighted = connect(vec![node.url]).sightings(&[tracked()], 0).await;
        assert_eq!(sighted, [Ok(expected)]);
    }
}

#[tokio::test]
async fn sightings__should_take_no_single_stellar_node_s_word_for_the_end() {
    let honest = seeing(nowhere(900, BUILT + 200), 41).await;
    for liar in [
        seeing(in_ledger("SUCCESS"), 42).await,
        seeing(nowhere(900, BUILT + 301), 41).await,
        seeing(nowhere(900, BUILT + 200), 42).await,
    ] {
        let chain = ChainKey::of(Network::Stellar, None);
        for client in all_ways(chain, &liar.url, &honest.url) {
            never_ended(client, &tracked(), 0).await;
        }
    }
}
