#![allow(non_snake_case)]

use proptest::prelude::*;
use serde_json::json;

use super::*;

const USDT: u8 = 0xdd;

fn id(byte: u8) -> String {
    hex::encode([byte; 32])
}

/// The id of block 7, on one fork or another.
fn block_id(fork: u8) -> String {
    format!("{:016x}{}", 7, hex::encode([fork; 24]))
}

fn address(byte: u8) -> String {
    format!("41{}", hex::encode([byte; 20]))
}

fn word(byte: u8) -> String {
    format!("{}{}", "00".repeat(12), hex::encode([byte; 20]))
}

fn trx(tx: u8, from: u8, to: u8, amount: u64, result: &str) -> Value {
    json!({"ret": [{"contractRet": result}], "txID": id(tx), "raw_data": {"contract": [{
        "type": "TransferContract", "parameter": {"value": {
            "amount": amount, "owner_address": address(from), "to_address": address(to)}}}]}})
}

fn call(tx: u8) -> Value {
    json!({"ret": [{"contractRet": "SUCCESS"}], "txID": id(tx), "raw_data": {"contract": [{
        "type": "TriggerSmartContract", "parameter": {"value": {"call_value": 5, "owner_address": address(1)}}}]}})
}

fn block(transactions: Vec<Value>) -> Value {
    json!({"blockID": block_id(1), "transactions": transactions, "block_header": {"raw_data": {
        "number": 7, "parentHash": block_id(0), "timestamp": 9_000}}})
}

fn info(tx: u8) -> Value {
    json!({"id": id(tx), "blockNumber": 7, "blockTimeStamp": 9_000})
}

fn log(from: u8, to: u8, amount: u8) -> Value {
    json!({"address": hex::encode([USDT; 20]), "topics": [TRANSFER_TOPIC, word(from), word(to)],
        "data": format!("{}{amount:02x}", "00".repeat(31))})
}

fn internal(from: u8, to: u8, sun: u64) -> Value {
    json!({"caller_address": address(from), "transferTo_address": address(to), "callValueInfo": [{"callValue": sun}],
        "note": "63616c6c"})
}

fn with(mut value: Value, field: &str, to: Value) -> Value {
    value[field] = to;
    value
}

fn transfers(block: &Value, infos: Value) -> Result<Vec<(u8, TransferIndex, u8, u8)>, BlockError> {
    let tokens = BTreeSet::from([Account([USDT; 20])]);
    let found = TronBlock::read(block)?.transfers(&infos, &tokens)?;
    let short = found.iter().map(|it| {
        let CandidatePlace::Certain(index) = it.place else {
            panic!("{it:?}");
        };
        (it.tx[0], index, it.from.0[0], it.to.0[0])
    });
    Ok(short.collect())
}

#[test]
fn block__should_give_what_was_moved_and_nothing_that_has_failed() {
    let block = block(vec![
        trx(1, 1, 2, 5, "SUCCESS"),
        trx(2, 1, 2, 5, "OUT_OF_TIME"),
        trx(3, 1, 1, 5, "SUCCESS"),
        call(4),
        call(5),
        call(6),
    ]);
    let erc721 = json!({"address": hex::encode([USDT; 20]), "topics": [TRANSFER_TOPIC, word(1), word(2), word(3)]});
    let other = with(log(1, 2, 3), "address", json!(hex::encode([0xee; 20])));
    let rejected = with(internal(1, 2, 5), "rejected", json!(true));
    let trc10 = with(
        internal(1, 2, 5),
        "callValueInfo",
        json!([{"callValue": 5, "tokenId": "1000001"}]),
    );
    let bare = with(internal(1, 2, 5), "callValueInfo", json!([{}]));
    let infos = json!([
        info(1),
        info(2),
        info(3),
        with(
            info(4),
            "log",
            json!([other, log(1, 2, 0), log(2, 3, 9), erc721, {"address": hex::encode([1; 20])}])
        ),
        with(
            info(5),
            "internal_transactions",
            json!([rejected, trc10, bare, internal(4, 5, 7)])
        ),
        // Its logs are of what was undone.
        with(
            with(info(6), "result", json!("FAILED")),
            "log",
            json!([log(1, 2, 3)])
        ),
    ]);
    let found = transfers(&block, infos).unwrap();
    let expected = [
        (1, TransferIndex::Value, 1, 2),
        (4, TransferIndex::Log(2), 2, 3),
        (5, TransferIndex::Internal(3), 4, 5),
    ];
    assert_eq!(found, expected);
    let header = read_header(&block).unwrap();
    assert_eq!((header.block.number, header.timestamp_ms), (7, 9_000));
    assert_eq!(hex::encode(header.parent), block_id(0));
    // A block without transactions has neither list.
    let empty = with(block, "transactions", json!([]));
    assert_eq!(transfers(&empty, json!([])).unwrap(), []);
}

fn noted(note: &str, internal: Value) -> Value {
    with(internal, "note", json!(hex::encode(note)))
}

#[test]
fn internal_transactions__should_tell_no_resources_that_are_only_delegated() {
    // In the order of Program.java; the last is one that is not known yet.
    let notes = [
        "freezeForEnergy",
        "unfreezeForEnergy",
        "freezeBalanceV2ForBandwidth",
        "unfreezeBalanceV2ForBandwidth",
        "withdrawExpireUnfreeze",
        "cancelAllUnfreezeV2",
        "delegateResourceOfEnergy",
        "unDelegateResourceOfBandwidth",
        "voteWitness",
        "withdrawReward",
        "callLater",
    ];
    assert_eq!(notes.len(), 11);
    let mut internals: Vec<_> = notes.map(|note| noted(note, internal(1, 2, 7))).into();
    internals.push(noted("create", internal(1, 3, 7)));
    let found = transfers(
        &block(vec![call(1)]),
        json!([with(info(1), "internal_transactions", json!(internals))]),
    );
    assert_eq!(found.unwrap(), [(1, TransferIndex::Internal(11), 1, 3)]);
}

#[test]
fn suicide__should_be_told_once_with_what_it_withdraws() {
    let internals = json!([
        noted("withdrawExpireUnfreezeWhileSuiciding", internal(1, 2, 5)),
        noted("suicide", internal(1, 2, 12)),
    ]);
    let infos = json!([with(info(1), "internal_transactions", internals)]);
    let tokens = BTreeSet::new();
    let block = block(vec![call(1)]);
    let found = TronBlock::read(&block).unwrap();
    let found = found.transfers(&infos, &tokens).unwrap();
    let [suicide] = found.as_slice() else {
        panic!("{found:?}");
    };
    assert_eq!(U256::from_be_bytes(suicide.amount), U256::from(12));
}

#[test]
fn results__should_be_refused_when_they_are_not_of_the_block() {
    let block = block(vec![call(1), call(2)]);
    assert!(transfers(&block, json!([info(1), info(2)])).is_ok());
    for (infos, reason) in [
        (json!([info(1)]), "is missing"),
        (json!([]), "is missing"),
        (json!([info(1), info(1)]), "the same transaction"),
        (json!([info(1), info(3)]), "not in the block"),
        (
            json!([info(1), with(info(2), "blockNumber", json!(8))]),
            "another block",
        ),
        (
            json!([info(1), with(info(2), "blockTimeStamp", json!(8))]),
            "another block",
        ),
        (
            json!([info(1), with(info(2), "id", json!("x"))]),
            "names no transaction",
        ),
        (json!([info(1), with(info(2), "log", json!(7))]), "no list"),
        (
            json!([info(1), with(info(2), "log", json!([{}]))]),
            "cannot be read",
        ),
        (
            // Whether it moves anything is not known.
            json!([
                info(1),
                with(
                    info(2),
                    "internal_transactions",
                    json!([with(internal(1, 2, 5), "note", Value::Null)])
                )
            ]),
            "cannot be read",
        ),
        (json!({}), "not a list of results"),
        (Value::Null, "not a list of results"),
    ] {
        let error = transfers(&block, infos).unwrap_err();
        assert!(error.0.contains(reason), "{error} instead of {reason}");
    }
}

#[test]
fn block__should_be_refused_when_it_cannot_be() {
    let good = block(vec![trx(1, 1, 2, 5, "SUCCESS")]);
    assert!(TronBlock::read(&good).is_ok());
    let twice = block(vec![call(1), call(1)]);
    let other_number = with(good.clone(), "blockID", json!(id(1)));
    let no_result = block(vec![with(trx(1, 1, 2, 5, ""), "ret", json!([]))]);
    let negative = block(
        vec![trx(1, 1, 2, 5, "SUCCESS")]
            .into_iter()
            .map(|mut it| {
                it["raw_data"]["contract"][0]["parameter"]["value"]["amount"] = json!(-5);
                it
            })
            .collect(),
    );
    for bad in [
        twice,
        other_number,
        no_result,
        negative,
        json!({}),
        Value::Null,
    ] {
        assert!(TronBlock::read(&bad).is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn anything__should_be_read_or_refused(text in "[\\[\\]{}:,\"a-z0-9]{0,80}") {
        if let Ok(value) = serde_json::from_str::<Value>(&text) {
            let _ = TronBlock::read(&value);
            let _ = transfers(&block(vec![call(1)]), value);
        }
    }
}

#[test]
fn transactions__should_not_be_none_where_the_root_says_otherwise() {
    let with = |transactions: Vec<Value>, root: Value| {
        let mut block = block(transactions);
        block["block_header"]["raw_data"]["txTrieRoot"] = root;
        TronBlock::read(&block)
    };
    let error = with(vec![], json!(id(1))).unwrap_err();
    assert!(error.0.contains("none are listed"), "{error}");
    for none in [json!(id(0)), json!(""), Value::Null] {
        assert!(with(vec![], none).is_ok());
    }
    assert!(with(vec![trx(1, 1, 2, 3, "SUCCESS")], json!(id(1))).is_ok());
}
