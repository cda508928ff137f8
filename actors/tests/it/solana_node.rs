//! The Solana client against a node that speaks real HTTP.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_actors::chain_rpc::{
    BroadcastOutcome, BroadcastRequest, ChainEndpoints, ChainError, ChainKey, ChainRefusal,
    Inclusion, Standing, TrackedTransaction, TransactionPart, TransactionSighting,
};
use covault_core::{
    fault::ExecuteCode,
    networks::{
        ChainData, Queries, Signed,
        solana::{self, token::TOKEN},
    },
    signature::Signature,
};
use serde_json::{Value, json};

use crate::{
    evm_node::{EvmTestNode, all_ways, connect_to, never_ended, nobody},
    one_witness::Witnesses,
    one_word::Denial,
};

/// The account in which the chain keeps its time.
const CLOCK: &str = "SysvarC1ock11111111111111111111111111111111";

pub type JsonRpcReply = Result<Value, (i64, String)>;

/// 200 seconds: the blockhash is gone.
const OLD_MS: u64 = 200_000;

pub fn key(number: u8) -> [u8; 32] {
    [number; 32]
}

pub fn base58(bytes: &[u8]) -> String {
    bs58::encode(bytes).into_string()
}

/// A legacy transaction without signatures, with one writable account that does not sign.
fn transaction(readonly: &[[u8; 32]], accounts: &[u8], data: &[u8]) -> String {
    let program = u8::try_from(readonly.len()).unwrap() + 1;
    let mut bytes = vec![1];
    bytes.extend([0; 64]);
    bytes.extend([1, 0, program - 1, program + 1]);
    for one in [key(1), key(2)].iter().chain(readonly) {
        bytes.extend(one);
    }
    // The blockhash.
    bytes.extend(key(7));
    bytes.extend([1, program, u8::try_from(accounts.len()).unwrap()]);
    bytes.extend(accounts);
    bytes.push(u8::try_from(data.len()).unwrap());
    bytes.extend(data);
    STANDARD.encode(bytes)
}

fn transfer() -> String {
    let lamports = [2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0];
    transaction(&[[0; 32]], &[0, 1], &lamports)
}

fn durable() -> String {
    transaction(&[key(9), [0; 32]], &[1, 2, 0], &[4, 0, 0, 0])
}

fn broadcast_request(transactions: &[(&str, &str)]) -> BroadcastRequest {
    let texts: Vec<_> = transactions.iter().map(|one| one.0).collect();
    let ids: Vec<_> = transactions.iter().map(|one| one.1).collect();
    BroadcastRequest {
        signed: Signed {
            transaction: texts.join(","),
            tx_hash: ids.join(","),
        },
        chain_data: ChainData::Nothing,
        age_ms: 0,
        now_ms: 0,
        retried: false,
    }
}

fn three() -> BroadcastRequest {
    broadcast_request(&[("tx1", "id1"), ("tx2", "id2"), ("tx3", "id3")])
}

async fn ship(node: &EvmTestNode, broadcast_request: &BroadcastRequest) -> BroadcastOutcome {
    let endpoints = ChainEndpoints::new(vec![node.url.clone()]);
    connect_to(ChainKey::SOLANA, endpoints)
        .broadcast(broadcast_request)
        .await
}

fn refusal(broadcast: BroadcastOutcome) -> ChainRefusal {
    match broadcast {
        BroadcastOutcome::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

/// A refusal that ends nothing yet.
fn doubt(broadcast: BroadcastOutcome) -> ChainRefusal {
    match broadcast {
        BroadcastOutcome::Doubtful(refusal, Standing::Open) => refusal,
        other => panic!("{other:?}"),
    }
}

fn no_blockhash() -> JsonRpcReply {
    let words = "Transaction simulation failed: Blockhash not found";
    Err((-32002, words.into()))
}

pub fn value(value: Value) -> JsonRpcReply {
    value_at(1, value)
}

fn value_at(slot: u64, value: Value) -> JsonRpcReply {
    Ok(json!({"context": {"slot": slot}, "value": value}))
}

fn confirmed(slot: u64) -> JsonRpcReply {
    value(
        json!([{"slot": slot, "confirmations": 3, "err": null, "confirmationStatus": "confirmed"}]),
    )
}

fn is_send_of(method: &str, params: &Value, text: &str) -> bool {
    method == "sendTransaction" && params[0] == text
}

/// Takes everything and confirms it. Has every block, all of them of a time long after what the tests send.
pub fn healthy(method: &str, params: &Value) -> JsonRpcReply {
    match method {
        "getLatestBlockhash" => {
            value(json!({"blockhash": base58(&key(7)), "lastValidBlockHeight": 9}))
        }
        "sendTransaction" => Ok(params[0].clone()),
        "getSignatureStatuses" => confirmed(41),
        "getFirstAvailableBlock" => Ok(json!(0)),
        "getBlockTime" => Ok(json!(2_000_000_000)),
        other => Err((-32601, other.to_owned())),
    }
}

/// Knows no transaction.
fn empty(method: &str, params: &Value) -> JsonRpcReply {
    match method {
        "getSignatureStatuses" => value(json!([null])),
        "sendTransaction" => no_blockhash(),
        "isBlockhashValid" => value(json!(false)),
        _ => healthy(method, params),
    }
}

#[tokio::test]
async fn solana_facts__should_be_the_blockhash_and_what_the_tokens_accounts_say() {
    let mut mint = vec![0; 82];
    mint[44..46].copy_from_slice(&[6, 1]);
    let node = EvmTestNode::start(move |method, params| match method {
        "getMultipleAccounts" => {
            let mint =
                json!({"owner": TOKEN.to_string(), "data": [STANDARD.encode(&mint), "base64"]});
            let names = params[0].as_array().unwrap().len();
            let mut accounts = vec![Value::Null; names];
            accounts[0] = mint;
            value(json!(accounts))
        }
        _ => healthy(method, params),
    })
    .await;
    let client = connect_to(
        ChainKey::SOLANA,
        ChainEndpoints::new(vec![node.url.clone()]),
    );
    let token = solana::token::TokenQueries {
        mint: base58(&key(3)),
        sender: base58(&key(1)),
        recipient: base58(&key(2)),
    };
    let queries = Queries::Solana(solana::Queries {
        chain_id: 101,
        blockhash: true,
        token: Some(token.clone()),
        compute: None,
    });
    let ChainData::Solana(chain_data) = client.chain_data(&queries, 0).await.unwrap() else {
        panic!("no facts")
    };
    assert_eq!(chain_data.recent_blockhash, base58(&key(7)));
    let found = chain_data.token.unwrap();
    assert_eq!((found.decimals, found.program), (6, TOKEN.to_string()));
    assert_eq!(
        (found.sender_account_owner, found.transfer_fee),
        (None, None)
    );
    assert_eq!(chain_data.compute, None);
    let calls = node.calls.lock().unwrap();
    let asked = |wanted: &str| {
        let mut calls = calls.iter();
        let (_, params) = calls.find(|(method, _)| method == wanted).unwrap();
        params.clone()
    };
    assert_eq!(
        asked("getLatestBlockhash"),
        json!([{"commitment": "confirmed"}])
    );
    let options = json!({"encoding": "base64", "commitment": "confirmed"});
    assert_eq!(
        asked("getMultipleAccounts"),
        json!([token.accounts().unwrap(), options])
    );
    // A node of this machine may be of any chain.
    assert!(calls.iter().all(|(method, _)| method != "getGenesisHash"));
}

pub async fn denial() -> Denial {
    let node = async |has_mint: bool| {
        let mut mint = vec![0; 82];
        mint[44..46].copy_from_slice(&[6, 1]);
        let mint = json!({"owner": TOKEN.to_string(), "data": [STANDARD.encode(&mint), "base64"]});
        let node = EvmTestNode::start(move |method, params| match method {
            "getMultipleAccounts" => {
                let mut accounts = vec![Value::Null; params[0].as_array().unwrap().len()];
                if has_mint {
                    accounts[0] = mint.clone();
                }
                value(json!(accounts))
            }
            _ => healthy(method, params),
        });
        node.await.url
    };
    Denial {
        what: "there is no such token",
        chain: ChainKey::SOLANA,
        liar: node(false).await,
        honest: node(true).await,
        queries: Queries::Solana(solana::Queries {
            chain_id: 101,
            blockhash: true,
            token: Some(solana::token::TokenQueries {
                mint: base58(&key(3)),
                sender: base58(&key(1)),
                recipient: base58(&key(2)),
            }),
            compute: None,
        }),
        now_ms: 0,
    }
}

#[tokio::test]
async fn solana_facts__should_name_the_field_of_a_token_that_is_not_there() {
    let node = EvmTestNode::start(|method, params| match method {
        "getMultipleAccounts" => value(json!(vec![Value::Null; 6])),
        _ => healthy(method, params),
    })
    .await;
    let client = connect_to(ChainKey::SONIC, ChainEndpoints::new(vec![node.url]));
    let queries = Queries::Solana(solana::Queries {
        chain_id: 0,
        blockhash: true,
        token: Some(solana::token::TokenQueries {
            mint: base58(&key(3)),
            sender: base58(&key(1)),
            recipient: base58(&key(2)),
        }),
        compute: None,
    });
    match client.chain_data(&queries, 0).await {
        Err(ChainError::Refused(refusal)) => {
            assert_eq!(refusal.reason, "mintAddress: does not exist on this chain")
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn solana_facts__should_not_be_what_makes_no_sense() {
    let node = EvmTestNode::start(|method, params| match method {
        "getLatestBlockhash" => value(json!({"blockhash": "hash"})),
        "getMultipleAccounts" => value(json!([null])),
        _ => healthy(method, params),
    })
    .await;
    let client = connect_to(ChainKey::SOLANA, ChainEndpoints::new(vec![node.url]));
    let queries = |blockhash, token| {
        Queries::Solana(solana::Queries {
            chain_id: 101,
            blockhash,
            token,
            compute: None,
        })
    };
    let token = solana::token::TokenQueries {
        mint: base58(&key(3)),
        sender: base58(&key(1)),
        recipient: base58(&key(2)),
    };
    for queries in [queries(true, None), queries(false, Some(token))] {
        assert!(matches!(
            client.chain_data(&queries, 0).await,
            Err(ChainError::Unknown(_))
        ));
    }
}

#[tokio::test]
async fn solana_transactions__should_be_sent_in_order_each_when_the_one_before_is_confirmed() {
    let asked = Arc::new(AtomicUsize::new(0));
    let node = EvmTestNode::start(move |method, params| match method {
        // The first is not confirmed at once.
        "getSignatureStatuses" if asked.fetch_add(1, Ordering::Relaxed) == 0 => {
            value(json!([null]))
        }
        _ => healthy(method, params),
    })
    .await;
    assert_eq!(ship(&node, &three()).await, BroadcastOutcome::Accepted);
    let mut calls = node.calls.lock().unwrap();
    // That is about the clock.
    calls.retain(|(method, _)| method != "getAccountInfo");
    let said: Vec<_> = calls
        .iter()
        .map(|(method, params)| match method.as_str() {
            "sendTransaction" => params[0].as_str().unwrap().to_owned(),
            _ => params[0][0].as_str().unwrap().to_owned(),
        })
        .collect();
    assert_eq!(said, ["tx1", "id1", "id1", "tx2", "id2", "tx3"]);
    let slots: Vec<_> = calls
        .iter()
        .filter(|(method, _)| method == "sendTransaction")
        .map(|(_, params)| params[1]["minContextSlot"].clone())
        .collect();
    assert_eq!(slots, [Value::Null, json!(41), json!(41)]);
    assert_eq!(calls[0].1[1]["encoding"], "base64");
    assert_eq!(calls[0].1[1]["preflightCommitment"], "confirmed");
}

#[tokio::test]
async fn solana_transactions__should_all_be_sent_again_and_processed_ones_be_accepted() {
    let node = EvmTestNode::start(|method, params| {
        if is_send_of(method, params, "tx1") {
            let words =
                "Transaction simulation failed: This transaction has already been processed";
            return Err((-32002, words.into()));
        }
        // It landed, and its blockhash is gone.
        if is_send_of(method, params, "tx2") {
            return no_blockhash();
        }
        healthy(method, params)
    })
    .await;
    for age_ms in [0, OLD_MS] {
        let again = BroadcastRequest {
            retried: true,
            age_ms,
            ..three()
        };
        assert_eq!(ship(&node, &again).await, BroadcastOutcome::Accepted);
    }
}

#[tokio::test]
async fn a_refused_solana_transaction__should_not_hide_that_earlier_ones_were_sent() {
    let node = EvmTestNode::start(|method, params| {
        if is_send_of(method, params, "tx2") {
            let words = "Transaction simulation failed: Error processing Instruction 0: custom program error: 0x1";
            return Err((-32002, words.into()));
        }
        match method {
            "getSignatureStatuses" if params[0][0] == "id2" => value(json!([null])),
            _ => healthy(method, params),
        }
    })
    .await;
    let refusal = doubt(ship(&node, &three()).await);
    assert_eq!(refusal.code, ExecuteCode::InsufficientFunds);
    let reason = refusal.reason;
    assert!(
        reason.starts_with("transaction 2 of 3 was refused: ")
            && reason.ends_with("; the earlier ones were sent, the later ones were not"),
        "{reason}"
    );
}

#[tokio::test]
async fn solana_transactions__should_end_with_one_that_fails_in_its_block() {
    let node = EvmTestNode::start(|method, params| match method {
        "getSignatureStatuses" => value(
            json!([{"slot": 4, "err": {"InstructionError": [0, {"Custom": 3}]},
                "confirmationStatus": "confirmed"}]),
        ),
        _ => healthy(method, params),
    })
    .await;
    let reason = doubt(ship(&node, &three()).await).reason;
    assert!(
        reason.starts_with("transaction 1 of 3 failed: ")
            && reason.ends_with("; the later ones were not sent"),
        "{reason}"
    );
    let methods = ["getAccountInfo", "sendTransaction", "getSignatureStatuses"];
    assert_eq!(node.methods(), methods);
    // One alone is accepted: what it does is the chain's matter.
    let one = broadcast_request(&[("tx1", "id1")]);
    assert_eq!(ship(&node, &one).await, BroadcastOutcome::Accepted);
}

#[tokio::test]
async fn a_solana_transaction__should_be_refused_only_by_words_that_mean_it() {
    let one = broadcast_request(&[("tx1", "id1")]);
    for (code, words) in [
        (-32000, "upstream request timeout"),
        (-32001, "no available backend"),
        (-32004, "Block not available for slot 7"),
        (-32007, "Slot 7 was skipped"),
        (-32010, "credits used up"),
        (
            -32011,
            "Transaction history is not available from this node",
        ),
        (-32602, "invalid api key"),
        (-32603, "Internal error"),
        (
            -32002,
            "Transaction simulation failed: Commit cancelled internally",
        ),
        (
            -32002,
            "Transaction simulation failed: Transaction would exceed max Block Cost Limit",
        ),
        (1, "what nobody has seen before"),
    ] {
        let node = EvmTestNode::start(move |method, params| match method {
            "sendTransaction" => Err((code, words.into())),
            _ => empty(method, params),
        })
        .await;
        let outcome = ship(&node, &one).await;
        assert!(
            matches!(outcome, BroadcastOutcome::Unknown(_)),
            "{code} {words}: {outcome:?}"
        );
    }
}

#[tokio::test]
async fn a_solana_request__should_not_fail_for_what_one_of_two_nodes_says() {
    let poor = || {
        Err((
            -32002,
            "Transaction simulation failed: Insufficient funds for fee".into(),
        ))
    };
    let refusing = move |method: &str, params: &Value| match method {
        "sendTransaction" => poor(),
        _ => empty(method, params),
    };
    let one = broadcast_request(&[("tx1", "id1")]);
    let liar = EvmTestNode::start(refusing).await;
    let honest = EvmTestNode::start(healthy).await;
    for client in all_ways(ChainKey::SOLANA, &liar.url, &honest.url) {
        assert_eq!(client.broadcast(&one).await, BroadcastOutcome::Accepted);
    }
    // The other one has it, and its answer is lost, or it is in trouble of its own.
    let unwell = EvmTestNode::start(|method, params| match method {
        "sendTransaction" => Err((-32603, "Internal error".into())),
        _ => empty(method, params),
    })
    .await;
    for client in all_ways(ChainKey::SOLANA, &liar.url, &unwell.url) {
        let outcome = client.broadcast(&one).await;
        assert!(
            !matches!(outcome, BroadcastOutcome::Refused(_)),
            "{outcome:?}"
        );
    }
    let other = EvmTestNode::start(refusing).await;
    for client in all_ways(ChainKey::SOLANA, &liar.url, &other.url) {
        assert_eq!(
            refusal(client.broadcast(&one).await).code,
            ExecuteCode::InsufficientGasFee
        );
    }
    let single = connect_to(
        ChainKey::SOLANA,
        ChainEndpoints::new(vec![liar.url.clone()]),
    );
    refusal(single.broadcast(&one).await);
    // One that is behind lacks the blockhash, which is no word against the transaction.
    let behind = EvmTestNode::start(|method, params| match method {
        "sendTransaction" => Err((-32002, "Blockhash not found".into())),
        _ => empty(method, params),
    })
    .await;
    for client in all_ways(ChainKey::SOLANA, &liar.url, &behind.url) {
        let outcome = client.broadcast(&one).await;
        assert!(
            matches!(outcome, BroadcastOutcome::Unknown(_)),
            "{outcome:?}"
        );
    }
    // It is no reason not to ask the next one, which has not heard of it yet.
    let takes = EvmTestNode::start(|method, params| match method {
        "sendTransaction" => healthy(method, params),
        _ => empty(method, params),
    })
    .await;
    for client in all_ways(ChainKey::SOLANA, &behind.url, &takes.url) {
        assert_eq!(client.broadcast(&one).await, BroadcastOutcome::Accepted);
    }
}

#[tokio::test]
async fn a_solana_transaction__should_expire_only_when_no_node_can_take_it_or_has_it() {
    let transfer = transfer();
    let one = |age_ms| BroadcastRequest {
        age_ms,
        ..broadcast_request(&[(&transfer, "id")])
    };
    let node = EvmTestNode::start(empty).await;
    assert!(matches!(
        ship(&node, &one(10_000)).await,
        BroadcastOutcome::Unknown(_)
    ));
    let reason = refusal(ship(&node, &one(OLD_MS)).await).reason;
    assert_eq!(
        reason,
        "the transaction expired before a node took it; create a new request"
    );
    let calls = node.calls.lock().unwrap().clone();
    let (_, params) = calls
        .iter()
        .find(|(method, _)| method == "isBlockhashValid")
        .unwrap();
    assert_eq!(
        *params,
        json!([base58(&key(7)), {"commitment": "finalized"}])
    );

    // Another node still knows the blockhash.
    let other = EvmTestNode::start(|method, params| match method {
        "isBlockhashValid" => value(json!(true)),
        _ => empty(method, params),
    })
    .await;
    // Another has the transaction.
    let has = EvmTestNode::start(|method, params| match method {
        "getSignatureStatuses" => confirmed(3),
        _ => empty(method, params),
    })
    .await;
    // Another does not say: only time does.
    let mute = EvmTestNode::start(|method, params| match method {
        "isBlockhashValid" => Err((-32601, "Method not found".into())),
        _ => empty(method, params),
    })
    .await;
    for (second, age_ms, expected) in [
        (other.url.clone(), OLD_MS, "unknown"),
        (other.url, u64::MAX, "unknown"),
        (has.url, OLD_MS, "accepted"),
        (mute.url.clone(), OLD_MS, "unknown"),
        (mute.url, u64::MAX, "refused"),
        (nobody().await, u64::MAX, "unknown"),
    ] {
        let endpoints = ChainEndpoints::new(vec![node.url.clone(), second]);
        let client = connect_to(ChainKey::SOLANA, endpoints);
        let outcome = match client.broadcast(&one(age_ms)).await {
            BroadcastOutcome::Accepted => "accepted",
            BroadcastOutcome::Refused(_) => "refused",
            BroadcastOutcome::Doubtful(_, Standing::Void) => "void",
            BroadcastOutcome::Doubtful(..) => "doubtful",
            BroadcastOutcome::Unknown(_) => "unknown",
        };
        assert_eq!(outcome, expected, "{age_ms}");
    }
}

#[tokio::test]
async fn a_solana_transaction_with_a_durable_nonce__should_last_as_long_as_its_account_holds_it() {
    let durable = durable();
    let old = BroadcastRequest {
        age_ms: u64::MAX,
        ..broadcast_request(&[(&durable, "id")])
    };
    for (nonce, lasts) in [(key(7), true), (key(8), false)] {
        let node = EvmTestNode::start(move |method, params| match method {
            "getAccountInfo" => value(nonce_account(nonce, key(1))),
            _ => empty(method, params),
        })
        .await;
        match ship(&node, &old).await {
            BroadcastOutcome::Unknown(_) => assert!(lasts),
            BroadcastOutcome::Refused(refusal) => {
                assert!(!lasts);
                assert!(refusal.reason.contains(&base58(&key(2))), "{refusal:?}");
            }
            other => panic!("{other:?}"),
        }
        let mut calls = node.calls.lock().unwrap();
        calls.retain(|(_, params)| params[0] != CLOCK);
        let asked = calls.iter().find(|(method, _)| method == "getAccountInfo");
        let options = json!({"encoding": "base64", "commitment": "finalized"});
        assert_eq!(asked.unwrap().1, json!([base58(&key(2)), options]));
        assert!(calls.iter().all(|(method, _)| method != "isBlockhashValid"));
    }
}

/// Sent at the start of the epoch.
fn tracked(transactions: &[(&str, &str)]) -> TrackedTransaction {
    TrackedTransaction {
        signed: broadcast_request(transactions).signed,
        from: base58(&key(1)),
        sent_at_ms: 0,
    }
}

/// A node that says this of each transaction, and of its blockhash.
async fn seeing(statuses: Value, valid: bool) -> EvmTestNode {
    seeing_since(0, statuses, valid).await
}

/// The same, of a node that has all blocks from this one on.
async fn seeing_since(first: u64, statuses: Value, valid: bool) -> EvmTestNode {
    EvmTestNode::start(move |method, params| match method {
        "getFirstAvailableBlock" => Ok(json!(first)),
        "getSignatureStatuses" => {
            let count = params[0].as_array().unwrap().len();
            let statuses = statuses.as_array().unwrap().iter().cycle().take(count);
            value(json!(statuses.collect::<Vec<_>>()))
        }
        "isBlockhashValid" => value(json!(valid)),
        _ => healthy(method, params),
    })
    .await
}

fn status(slot: u64, commitment: &str, failed: bool) -> Value {
    let error = failed.then(|| json!({"InstructionError": [0, "Custom"]}));
    json!({"slot": slot, "confirmations": 3, "err": error, "confirmationStatus": commitment})
}

pub async fn witnesses() -> Vec<Witnesses> {
    let node = async |found: Value| seeing(json!([found]), true).await.url;
    let of_chain = async |chain| Witnesses {
        chain,
        liars: vec![
            ("in a block", node(status(6, "processed", false)).await),
            (
                "failed in a block",
                node(status(7, "confirmed", true)).await,
            ),
            ("final", node(status(6, "finalized", false)).await),
            ("failed for good", node(status(7, "finalized", true)).await),
        ],
        honest: node(Value::Null).await,
        later: node(status(7, "finalized", false)).await,
        transaction: tracked(&[(&transfer(), "id1")]),
        now_ms: OLD_MS,
        end: TransactionSighting::Final(Inclusion {
            block: 7,
            success: true,
        }),
    };
    vec![
        of_chain(ChainKey::SOLANA).await,
        of_chain(ChainKey::SONIC).await,
    ]
}

#[tokio::test]
async fn sightings__should_say_where_solana_transactions_are() {
    let at = |block, success| Inclusion { block, success };
    let nowhere = || json!([null]);
    let two_days = 2 * 86_400_000;
    for (statuses, valid, now_ms, expected) in [
        (nowhere(), false, 100_000, TransactionSighting::Missing),
        (nowhere(), true, OLD_MS, TransactionSighting::Missing),
        (nowhere(), false, OLD_MS, TransactionSighting::Expired),
        (
            json!([status(7, "processed", false)]),
            false,
            OLD_MS,
            TransactionSighting::Mined(at(7, true)),
        ),
        (
            json!([status(7, "confirmed", true)]),
            false,
            OLD_MS,
            TransactionSighting::Mined(at(7, false)),
        ),
        (
            json!([status(7, "finalized", false)]),
            false,
            two_days,
            TransactionSighting::Final(at(7, true)),
        ),
        (
            json!([status(7, "finalized", true)]),
            false,
            0,
            TransactionSighting::Final(at(7, false)),
        ),
    ] {
        let node = seeing(statuses, valid).await;
        let client = connect_to(ChainKey::SOLANA, ChainEndpoints::new(vec![node.url]));
        let sighted = client
            .sightings(&[tracked(&[(&transfer(), "id1")])], now_ms)
            .await;
        assert_eq!(sighted, [Ok(expected)]);
    }
    // The node may have forgotten it, or never had it: it began later.
    for now_ms in [OLD_MS, two_days] {
        let node = seeing_since(7, nowhere(), false).await;
        let client = connect_to(ChainKey::SOLANA, ChainEndpoints::new(vec![node.url]));
        let sighted = client
            .sightings(&[tracked(&[(&transfer(), "id1")])], now_ms)
            .await;
        assert_eq!(sighted, [Ok(TransactionSighting::Missing)], "{now_ms}");
    }
}

/// Slots of a chain whose slot 1,000 comes when [`sent_long_ago`] is sent, five in two seconds.
const SENT_SLOT: u64 = 1_000;

fn time_of(slot: &Value) -> JsonRpcReply {
    let slot = slot.as_u64().unwrap();
    Ok(json!(LONG_AGO + slot * 2 / 5 - SENT_SLOT * 2 / 5))
}

/// An account with a nonce, under an authority.
fn nonce_account(nonce: [u8; 32], authority: [u8; 32]) -> Value {
    let mut data = vec![1, 0, 0, 0, 1, 0, 0, 0];
    data.extend(authority);
    data.extend(nonce);
    data.extend([0; 8]);
    json!({"owner": base58(&[0; 32]), "data": [STANDARD.encode(data), "base64"]})
}

/// Nodes behind one address: what a transaction needs is gone at one slot, and no block has it at another.
async fn gone_at(over: u64, unknown: u64, account: Value) -> EvmTestNode {
    EvmTestNode::start(move |method, params| match method {
        "isBlockhashValid" => value_at(over, json!(false)),
        "getAccountInfo" => value_at(over, account.clone()),
        "getBlockTime" => time_of(&params[0]),
        "getSignatureStatuses" => value_at(unknown, json!([null])),
        _ => healthy(method, params),
    })
    .await
}

#[tokio::test]
async fn a_solana_node_that_stands_still__should_not_end_what_it_has_not_seen() {
    let now_ms = LONG_AGO * 1_000 + OLD_MS;
    // A minute and a half after it was sent is too soon, three minutes after are enough.
    let (before, soon, later) = (SENT_SLOT - 100, SENT_SLOT + 225, SENT_SLOT + 450);
    for (over, unknown, expected) in [
        // All of it stands still.
        (before, before + 10, TransactionSighting::Missing),
        (soon, soon + 10, TransactionSighting::Missing),
        // Another node behind the same address does not.
        (later, before, TransactionSighting::Missing),
        (before, later, TransactionSighting::Missing),
        (later, later - 1, TransactionSighting::Missing),
        (later, later, TransactionSighting::Expired),
        (later, later + 30, TransactionSighting::Expired),
    ] {
        let used = nonce_account(key(8), key(1));
        for (transaction, account) in [(transfer(), Value::Null), (durable(), used)] {
            let sent = TrackedTransaction {
                sent_at_ms: LONG_AGO * 1_000,
                ..tracked(&[(&transaction, "id1")])
            };
            for chain in [ChainKey::SOLANA, ChainKey::SONIC] {
                let node = gone_at(over, unknown, account.clone()).await;
                let client = connect_to(chain, ChainEndpoints::new(vec![node.url]));
                let sighted = client.sightings(std::slice::from_ref(&sent), now_ms).await;
                assert_eq!(sighted, [Ok(expected.clone())], "{over} {unknown}");
            }
        }
    }
}

/// A healthy node whose chain has this time, in seconds.
async fn at_time(time: u64) -> EvmTestNode {
    EvmTestNode::start(move |method, params| match method {
        "getAccountInfo" => {
            assert_eq!(params[0], CLOCK);
            let data = [&[0; 32][..], &time.to_le_bytes()].concat();
            let owner = "Sysvar1111111111111111111111111111111111111";
            value(json!({"owner": owner, "data": [STANDARD.encode(data), "base64"]}))
        }
        _ => healthy(method, params),
    })
    .await
}

/// By the time at which it was sent it is told whether a node has come to its blockhash (see above): that must not be
/// too early.
#[tokio::test]
async fn a_clock_that_is_behind_the_chain__should_let_nothing_of_solana_be_signed_or_sent() {
    let queries = Queries::Solana(solana::Queries {
        chain_id: 101,
        blockhash: true,
        token: None,
        compute: None,
    });
    let now_ms = 1_000_000;
    for (chain_s, is_right) in [
        (0, true),
        (999, true),
        (1_060, true),
        (1_061, false),
        (9_999, false),
    ] {
        let node = at_time(chain_s).await;
        let client = || {
            let endpoints = ChainEndpoints::new(vec![node.url.clone()]);
            connect_to(ChainKey::SOLANA, endpoints)
        };
        let chain_data = client().chain_data(&queries, now_ms).await;
        assert_eq!(chain_data.is_ok(), is_right, "{chain_s}");
        for retried in [false, true] {
            let request = BroadcastRequest {
                now_ms,
                retried,
                ..broadcast_request(&[(&transfer(), "id1")])
            };
            match client().broadcast(&request).await {
                BroadcastOutcome::Accepted => assert!(is_right, "{chain_s}"),
                BroadcastOutcome::Unknown(reason) => {
                    assert!(
                        !is_right && reason.contains("clock of this machine"),
                        "{reason}"
                    );
                }
                other => panic!("{other:?}"),
            }
        }
        let sent = node
            .methods()
            .iter()
            .any(|method| method == "sendTransaction");
        assert_eq!(sent, is_right, "{chain_s}");
    }
    // One of two nodes alone stops nothing.
    let (liar, honest) = (at_time(9_999_999).await, at_time(1_000).await);
    let mut endpoints = ChainEndpoints::new(vec![liar.url, honest.url]);
    endpoints.agree = 2;
    let request = BroadcastRequest {
        now_ms,
        ..broadcast_request(&[(&transfer(), "id1")])
    };
    let sent = connect_to(ChainKey::SOLANA, endpoints)
        .broadcast(&request)
        .await;
    assert_eq!(sent, BroadcastOutcome::Accepted);
}

#[tokio::test]
async fn a_durable_nonce__should_not_be_over_because_its_authority_was_changed() {
    // It may be changed back.
    let later = SENT_SLOT + 450;
    let node = gone_at(later, later, nonce_account(key(7), key(5))).await;
    let client = connect_to(ChainKey::SOLANA, ChainEndpoints::new(vec![node.url]));
    let durable = durable();
    let sent = TrackedTransaction {
        sent_at_ms: LONG_AGO * 1_000,
        ..tracked(&[(&durable, "id1")])
    };
    let sighted = client.sightings(&[sent], LONG_AGO * 1_000 + OLD_MS).await;
    assert_eq!(sighted, [Ok(TransactionSighting::Missing)]);
}

/// A node that knows no transaction, and all blocks between these times, in seconds.
async fn archive(valid: bool, from: u64, to: u64) -> EvmTestNode {
    EvmTestNode::start(move |method, params| match method {
        "getFirstAvailableBlock" => Ok(json!(7)),
        "getSlot" => {
            assert_eq!(params, &json!([{"commitment": "finalized"}]));
            Ok(json!(9))
        }
        "getBlockTime" if params == &json!([7]) => Ok(json!(from)),
        "getBlockTime" if params == &json!([9]) => Ok(json!(to)),
        "isBlockhashValid" => value_at(9, json!(valid)),
        "getSignatureStatuses" => value_at(9, json!([null])),
        _ => empty(method, params),
    })
    .await
}

/// When what is asked for was sent, in seconds: long before.
const LONG_AGO: u64 = 1_000_000;

fn sent_long_ago() -> TrackedTransaction {
    TrackedTransaction {
        sent_at_ms: LONG_AGO * 1_000,
        ..tracked(&[(&transfer(), "id1")])
    }
}

#[tokio::test]
async fn sightings__should_end_what_is_old_by_nodes_that_remember_that_time() {
    let now_ms = (LONG_AGO + 3 * 86_400) * 1_000;
    let (before, after) = (LONG_AGO - 600, LONG_AGO + 600);
    for (valid, from, to, expected) in [
        (false, before, after, TransactionSighting::Expired),
        (true, before, after, TransactionSighting::Missing),
        // It has forgotten the time around it, or has not got there.
        (false, before + 1, after, TransactionSighting::Missing),
        (false, before, after - 1, TransactionSighting::Missing),
    ] {
        let node = archive(valid, from, to).await;
        let client = connect_to(ChainKey::SOLANA, ChainEndpoints::new(vec![node.url]));
        let sighted = client.sightings(&[sent_long_ago()], now_ms).await;
        assert_eq!(sighted, [Ok(expected)]);
    }
    // As many as have to agree, and none of them has it.
    let archives = [before, before, before + 1].map(|from| archive(false, from, after));
    let [one, other, forgetful] = futures::future::join_all(archives)
        .await
        .try_into()
        .ok()
        .unwrap();
    for client in all_ways(ChainKey::SOLANA, &one.url, &forgetful.url) {
        never_ended(client, &sent_long_ago(), now_ms).await;
    }
    for client in all_ways(ChainKey::SOLANA, &one.url, &other.url) {
        let sighted = client.sightings(&[sent_long_ago()], now_ms).await;
        assert_eq!(sighted, [Ok(TransactionSighting::Expired)]);
    }
}

fn part(hash: &str, inclusion: Option<(u64, bool)>) -> TransactionPart {
    TransactionPart {
        hash: hash.into(),
        inclusion: inclusion.map(|(block, success)| Inclusion { block, success }),
    }
}

#[tokio::test]
async fn sightings__should_take_no_single_solana_node_s_word_for_a_part() {
    let transfer = transfer();
    let two = tracked(&[(&transfer, "id1"), (&transfer, "id2")]);
    let said = |first: Value, valid| seeing(json!([first, null]), valid);
    let of_final = || status(7, "finalized", false);
    let honest = said(Value::Null, false).await;
    let late = said(of_final(), true).await;
    for liar in [
        said(of_final(), false).await,
        said(status(7, "finalized", true), false).await,
    ] {
        for other in [&honest, &late] {
            for client in all_ways(ChainKey::SOLANA, &liar.url, &other.url) {
                never_ended(client, &two, OLD_MS).await;
            }
        }
    }
}

#[tokio::test]
async fn sightings__should_be_of_all_transactions_that_went_together() {
    let transfer = transfer();
    let three = tracked(&[(&transfer, "id1"), (&transfer, "id2"), (&transfer, "id3")]);
    let final_at = |slot| status(slot, "finalized", false);
    for (statuses, expected) in [
        (
            json!([final_at(7), final_at(9), final_at(8)]),
            TransactionSighting::Final(Inclusion {
                block: 9,
                success: true,
            }),
        ),
        (
            json!([final_at(7), status(9, "confirmed", false), final_at(8)]),
            TransactionSighting::Mined(Inclusion {
                block: 9,
                success: true,
            }),
        ),
        (
            json!([final_at(7), null, final_at(8)]),
            TransactionSighting::Partial(vec![
                part("id1", Some((7, true))),
                part("id2", None),
                part("id3", Some((8, true))),
            ]),
        ),
        (
            json!([final_at(7), status(8, "finalized", true), null]),
            TransactionSighting::Partial(vec![
                part("id1", Some((7, true))),
                part("id2", Some((8, false))),
                part("id3", None),
            ]),
        ),
        // Which of them did what they were to do is to be seen, also where blocks have all of them.
        (
            json!([final_at(7), status(8, "finalized", true), final_at(9)]),
            TransactionSighting::Partial(vec![
                part("id1", Some((7, true))),
                part("id2", Some((8, false))),
                part("id3", Some((9, true))),
            ]),
        ),
        (
            json!([status(7, "finalized", true)]),
            TransactionSighting::Final(Inclusion {
                block: 7,
                success: false,
            }),
        ),
        // The first may be dropped from its block.
        (
            json!([status(7, "confirmed", false), null, null]),
            TransactionSighting::Missing,
        ),
        (json!([null]), TransactionSighting::Expired),
    ] {
        let node = seeing(statuses, false).await;
        let client = connect_to(ChainKey::SOLANA, ChainEndpoints::new(vec![node.url]));
        let sighted = client.sightings(std::slice::from_ref(&three), OLD_MS).await;
        assert_eq!(sighted, [Ok(expected)]);
    }
}

#[tokio::test]
async fn sightings__should_ask_for_many_solana_transactions_at_once() {
    let node = seeing(json!([status(7, "confirmed", false)]), true).await;
    let client = connect_to(
        ChainKey::SOLANA,
        ChainEndpoints::new(vec![node.url.clone()]),
    );
    let transfer = transfer();
    let many = vec![tracked(&[(&transfer, "id1")]); 300];
    let sighted = client.sightings(&many, 0).await;
    assert_eq!(sighted.len(), 300);
    assert!(sighted.iter().all(Result::is_ok));
    let asked = node.calls.lock().unwrap().clone();
    let asked = asked
        .iter()
        .filter(|(method, _)| method == "getSignatureStatuses");
    assert_eq!(asked.count(), 2);
}

#[tokio::test]
async fn sightings__should_take_no_single_solana_node_s_word_for_the_end() {
    let transaction = tracked(&[(&transfer(), "id1")]);
    let honest = seeing(json!([null]), true).await;
    for liar in [
        seeing(json!([status(7, "finalized", false)]), true).await,
        seeing(json!([null]), false).await,
    ] {
        for client in all_ways(ChainKey::SOLANA, &liar.url, &honest.url) {
            never_ended(client, &transaction, OLD_MS).await;
        }
    }
}

#[tokio::test]
async fn otherwise_signed__should_be_found_by_its_message_among_those_of_the_wallet() {
    let built_s = LONG_AGO;
    let other = transaction(&[[0; 32]], &[0, 1], &[2, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
    // The same message, and another signature.
    let signed = {
        let mut bytes = STANDARD.decode(transfer()).unwrap();
        bytes[1..65].fill(9);
        STANDARD.encode(bytes)
    };
    for (history, expected) in [
        (json!([]), false),
        (json!([("other", built_s)]), false),
        (
            json!([("other", built_s + 5), ("signed", built_s + 1)]),
            true,
        ),
        // Older than what was built: it is not looked further.
        (
            json!([
                ("other", built_s),
                ("old", built_s - 601),
                ("signed", built_s - 700)
            ]),
            false,
        ),
    ] {
        let (other, signed) = (other.clone(), signed.clone());
        let node = EvmTestNode::start(move |method, params| match method {
            "getSlot" => Ok(json!(9)),
            "getSignaturesForAddress" => {
                assert_eq!(params[0], base58(&key(1)));
                let entry = |it: &Value| json!({"signature": it[0], "slot": 7, "err": null, "blockTime": it[1]});
                Ok(history.as_array().unwrap().iter().map(entry).collect())
            }
            "getTransaction" => {
                let transaction = match params[0].as_str().unwrap() {
                    "signed" => &signed,
                    "other" => &other,
                    older => panic!("{older} is too old"),
                };
                Ok(json!({"slot": 7, "transaction": [transaction, "base64"]}))
            }
            _ => healthy(method, params),
        })
        .await;
        let client = connect_to(ChainKey::SOLANA, ChainEndpoints::new(vec![node.url]));
        let found = client.signatures_in_block(&sent_long_ago(), None).await;
        let signature = Signature::Ed25519 {
            r: [9; 32],
            s: [9; 32],
        };
        let of_it = if expected { vec![signature] } else { vec![] };
        assert_eq!(found, Ok(of_it));
        // One of several says nothing of the whole.
        let third = transaction(&[[0; 32]], &[0, 1], &[2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        let several = TrackedTransaction {
            signed: broadcast_request(&[(&third, "id1"), (&transfer(), "id2")]).signed,
            ..sent_long_ago()
        };
        let found = client.signatures_in_block(&several, None).await;
        assert_eq!(found.is_err(), expected);
        assert_eq!(found.is_ok_and(|found| found.is_empty()), !expected);
    }
}

#[tokio::test]
async fn transactions_of_a_wallet__should_be_looked_at_in_a_few_requests() {
    let other = transaction(&[[0; 32]], &[0, 1], &[2, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
    let node = EvmTestNode::start(move |method, params| match method {
        "getSlot" => Ok(json!(9)),
        "getSignaturesForAddress" => {
            let entry = |it: u32| json!({"signature": it.to_string(), "slot": 7, "err": null, "blockTime": LONG_AGO});
            Ok((0..120).map(entry).collect())
        }
        "getTransaction" => Ok(json!({"slot": 7, "transaction": [other, "base64"]})),
        _ => healthy(method, params),
    })
    .await;
    let client = connect_to(
        ChainKey::SOLANA,
        ChainEndpoints::new(vec![node.url.clone()]),
    );
    let found = client.signatures_in_block(&sent_long_ago(), None).await;
    assert_eq!(found, Ok(vec![]));
    let asked = node.methods();
    assert_eq!(
        asked.iter().filter(|it| *it == "getTransaction").count(),
        120
    );
    let requests = node.requests.load(Ordering::SeqCst);
    assert!(requests < 20, "{requests}");
}
