#![allow(non_snake_case)]

use proptest::prelude::*;
use serde_json::json;

use super::*;

const USDT: u8 = 0xdd;

fn bytes(byte: u8, count: usize) -> String {
    format!("0x{}", hex::encode(vec![byte; count]))
}

fn word(byte: u8) -> String {
    bytes(byte, 32)
}

fn topic(byte: u8) -> String {
    format!("0x{}{}", "00".repeat(12), hex::encode([byte; 20]))
}

fn transaction(hash: u8, from: u8, to: Value, value: &str) -> Value {
    json!({"hash": word(hash), "blockHash": word(0xb1), "from": bytes(from, 20), "to": to, "value": value})
}

fn block(transactions: Vec<Value>) -> Value {
    json!({"number": "0x10", "hash": word(0xb1), "parentHash": word(0xb0), "timestamp": "0x65",
        "transactions": transactions})
}

/// Block 16 with three transactions.
fn plain() -> EvmBlock {
    EvmBlock::read(&block(vec![
        transaction(1, 0xa, json!(bytes(0xb, 20)), "0x5"),
        transaction(2, 0xa, Value::Null, "0x5"),
        transaction(3, 0xa, json!(bytes(USDT, 20)), "0x0"),
    ]))
    .unwrap()
}

fn log(number: u64, from: u8, to: u8, amount: u8) -> Value {
    json!({"address": bytes(USDT, 20), "blockHash": word(0xb1), "transactionHash": word(3),
        "logIndex": format!("{number:#x}"), "data": format!("0x{}{amount:02x}", "00".repeat(31)),
        "topics": [TRANSFER_TOPIC, topic(from), topic(to)], "removed": false})
}

fn contracts() -> BTreeSet<Account> {
    BTreeSet::from([Account([USDT; 20])])
}

fn tokens(logs: Value) -> Result<Vec<Candidate>, BlockError> {
    Ok(plain().tokens(&logs, &contracts())?.moved)
}

fn changed(mut value: Value, field: &str, to: Value) -> Value {
    value[field] = to;
    value
}

fn receipt(tx: u8, status: &str, logs: Vec<Value>) -> Value {
    json!({"transactionHash": word(tx), "blockHash": word(0xb1), "status": status, "logs": logs})
}

fn read(receipt: &Value) -> Result<TransferReceipt, BlockError> {
    TransferReceipt::read(receipt, &plain().header.block)
}

#[test]
fn block__should_say_what_its_transactions_move() {
    let block = plain();
    assert_eq!(
        (block.header.block.number, block.header.timestamp_ms),
        (16, 101_000)
    );
    assert_eq!(block.header.parent, [0xb0; 32]);
    // Neither a contract's creation nor a call without value.
    let values: Vec<_> = block.values().collect();
    let [one] = values.as_slice() else {
        panic!("{values:?}");
    };
    assert_eq!(
        (one.tx, one.place, one.asset),
        ([1; 32], CandidatePlace::Value, None)
    );
    assert_eq!((one.from, one.to), (Account([0xa; 20]), Account([0xb; 20])));
    // To oneself is told to nobody.
    let circle = transaction(1, 0xa, json!(bytes(0xa, 20)), "0x5");
    let circle = EvmBlock::read(&self::block(vec![circle])).unwrap();
    assert_eq!(circle.values().count(), 0);
}

#[test]
fn block__should_be_refused_when_it_contradicts_itself() {
    let good = transaction(1, 0xa, json!(bytes(0xb, 20)), "0x5");
    for (bad, reason) in [
        (
            changed(good.clone(), "blockHash", json!(word(0xb2))),
            "names another block",
        ),
        (
            changed(good.clone(), "blockHash", Value::Null),
            "names another block",
        ),
        (changed(good.clone(), "value", json!("5")), "cannot be read"),
        (
            changed(
                good.clone(),
                "value",
                json!(format!("0x{}", "f".repeat(65))),
            ),
            "cannot be read",
        ),
        (
            changed(good.clone(), "from", json!("0x00")),
            "cannot be read",
        ),
        (changed(good.clone(), "to", json!("0x00")), "cannot be read"),
        (changed(good.clone(), "hash", Value::Null), "cannot be read"),
        (good.clone(), "a transaction twice"),
    ] {
        let error = EvmBlock::read(&block(vec![good.clone(), bad])).unwrap_err();
        assert!(error.0.contains(reason), "{error} instead of {reason}");
    }
    for field in ["number", "hash", "parentHash", "timestamp", "transactions"] {
        for wrong in [Value::Null, json!("x"), json!(7), json!("0x+1")] {
            let bad = changed(block(vec![]), field, wrong);
            assert!(EvmBlock::read(&bad).is_err(), "{bad}");
        }
    }
    // Hashes instead of transactions.
    let hashes = changed(block(vec![]), "transactions", json!([word(1)]));
    assert!(EvmBlock::read(&hashes).is_err());
    assert!(EvmBlock::read(&Value::Null).is_err());
}

#[test]
fn logs__should_give_what_exactly_a_transfer_moves() {
    let mut erc721 = log(1, 1, 2, 3);
    erc721["topics"]
        .as_array_mut()
        .unwrap()
        .push(json!(word(9)));
    let all = json!([
        log(4, 1, 2, 7),
        log(0, 2, 1, 1),
        erc721,
        // Amount 0 poisons addresses; from = to is nothing.
        log(2, 1, 2, 0),
        log(3, 1, 1, 5),
        changed(log(5, 1, 2, 3), "data", json!("0x")),
        changed(
            log(6, 1, 2, 3),
            "data",
            json!(format!("0x{}", "00".repeat(64)))
        ),
        // What is not an address.
        changed(
            log(7, 1, 2, 3),
            "topics",
            json!([TRANSFER_TOPIC, word(1), topic(2)])
        ),
    ]);
    let found = tokens(all).unwrap();
    let found: Vec<_> = found
        .iter()
        .map(|it| (it.place, it.from.0[0], it.to.0[0]))
        .collect();
    assert_eq!(
        found,
        [
            (CandidatePlace::LogOfBlock(0), 2, 1),
            (CandidatePlace::LogOfBlock(4), 1, 2)
        ]
    );
    assert_eq!(tokens(json!([])).unwrap(), []);
}

#[test]
fn logs_of_two_transactions_with_one_number__should_not_stop_the_chain() {
    // As Erigon for bor has counted those of state syncs.
    let other = changed(log(4, 2, 1, 9), "transactionHash", json!(word(1)));
    let found = tokens(json!([log(4, 1, 2, 7), other.clone()])).unwrap();
    let amounts = found.iter().map(|it| (it.tx[31], it.amount[31]));
    assert_eq!(amounts.collect::<Vec<_>>(), [(1, 9), (3, 7)]);
    let confirmed = read(&receipt(1, "0x1", vec![other])).unwrap();
    assert!(confirmed.confirm(&found[0]).unwrap().is_some());
}

/// A log of the coin, of a transaction.
fn coin_log(tx: u8, number: u64, from: u8, to: u8, amount: u8) -> Value {
    let log = changed(
        log(number, from, to, amount),
        "transactionHash",
        json!(word(tx)),
    );
    changed(log, "address", json!(format!("0x{}fe", "ff".repeat(19))))
}

#[test]
fn coin__should_be_counted_once_where_logs_tell_of_it() {
    let block = plain();
    let passed_on = |logs: Vec<Value>| {
        let logs = block.tokens(&json!(logs), &BTreeSet::from([COIN_LOGS]));
        block.passed_on_by_logs(&logs.unwrap().moved)
    };
    let own = || coin_log(1, 0, 0xa, 0xb, 5);
    // What the transaction itself moves is told as that.
    assert_eq!(passed_on(vec![own()]), Some(vec![]));
    // A call in it that moves the same again is another transfer, and so is what a call without value has moved.
    let again = coin_log(1, 1, 0xa, 0xb, 5);
    let inner = coin_log(3, 4, USDT, 0xc, 9);
    let found = passed_on(vec![inner.clone(), again, own()]).unwrap();
    let found: Vec<_> = found
        .iter()
        .map(|it| (it.tx[0], it.place, it.to.0[0], it.asset))
        .collect();
    assert_eq!(
        found,
        [
            (1, CandidatePlace::LogOfBlock(1), 0xb, None),
            (3, CandidatePlace::LogOfBlock(4), 0xc, None)
        ]
    );
    // No chain of EIP-7708: nothing shows it, or something speaks against it.
    assert_eq!(passed_on(vec![]), None);
    assert_eq!(passed_on(vec![inner.clone()]), None);
    for first in [
        coin_log(1, 0, 0xa, 0xc, 5),
        coin_log(1, 0, 0xc, 0xb, 5),
        coin_log(1, 0, 0xa, 0xb, 6),
    ] {
        assert_eq!(passed_on(vec![first, coin_log(1, 1, 0xa, 0xb, 5)]), None);
    }
    // The receipt has to have it.
    let logs = vec![own(), coin_log(1, 1, 0xb, 0xc, 3)];
    let candidate = passed_on(logs.clone()).unwrap()[0];
    let confirmed = read(&receipt(1, "0x1", logs.clone())).unwrap();
    let transfer = confirmed.confirm(&candidate).unwrap().unwrap();
    assert_eq!(
        (transfer.index, transfer.asset),
        (TransferIndex::Log(1), None)
    );
    for wrong in [
        receipt(1, "0x0", logs.clone()),
        receipt(1, "0x1", vec![own(), coin_log(1, 1, 0xb, 0xc, 4)]),
        receipt(
            1,
            "0x1",
            vec![
                own(),
                changed(log(1, 0xb, 0xc, 3), "transactionHash", json!(word(1))),
            ],
        ),
    ] {
        assert!(
            read(&wrong).unwrap().confirm(&candidate).is_err(),
            "{wrong}"
        );
    }
}

#[test]
fn logs__should_be_refused_when_they_are_not_what_was_asked_for() {
    for (bad, reason) in [
        (
            changed(log(1, 1, 2, 3), "blockHash", json!(word(0xb2))),
            "belongs to another block",
        ),
        (
            changed(log(1, 1, 2, 3), "blockHash", Value::Null),
            "belongs to another block",
        ),
        (
            changed(log(1, 1, 2, 3), "removed", json!(true)),
            "was replaced",
        ),
        (
            changed(log(1, 1, 2, 3), "transactionHash", Value::Null),
            "names no transaction",
        ),
        // Another contract's event is a token of its own, never this one.
        (
            changed(log(1, 1, 2, 3), "address", json!(bytes(0xee, 20))),
            "contract that was not asked for",
        ),
        (
            changed(
                log(1, 1, 2, 3),
                "topics",
                json!([word(1), topic(1), topic(2)]),
            ),
            "event that was not asked for",
        ),
        (
            changed(log(1, 1, 2, 3), "topics", json!([])),
            "event that was not asked for",
        ),
        (
            changed(log(1, 1, 2, 3), "logIndex", Value::Null),
            "no number",
        ),
        (log(0, 1, 2, 3), "have the same number"),
    ] {
        let error = tokens(json!([log(0, 1, 2, 3), bad])).unwrap_err();
        assert!(error.0.contains(reason), "{error} instead of {reason}");
    }
    // "I do not know this block" is no empty list.
    assert!(tokens(Value::Null).is_err());
    assert!(tokens(json!({"error": {}})).is_err());
}

/// A filter of the logs of these contracts, with their event.
fn bloom_of(contracts: &[u8]) -> Value {
    let mut bloom = Bloom::ZERO;
    let event = hex::decode(TRANSFER_TOPIC.trim_start_matches("0x")).unwrap();
    bloom.accrue(BloomInput::Raw(&event));
    for contract in contracts {
        bloom.accrue(BloomInput::Raw(&[*contract; 20]));
    }
    json!(format!("0x{}", hex::encode(bloom)))
}

#[test]
fn logs__should_not_be_believed_to_be_none_where_the_bloom_has_them() {
    let with = |bloom: Value| {
        let block = changed(
            block(vec![transaction(3, 0xa, json!(bytes(USDT, 20)), "0x0")]),
            "logsBloom",
            bloom,
        );
        EvmBlock::read(&block).unwrap()
    };
    let has = with(bloom_of(&[USDT]));
    let silent = has.tokens(&json!([]), &contracts()).unwrap();
    assert_eq!((silent.moved, silent.missing), (vec![], contracts()));
    let said = json!([log(0, 1, 2, 7)]);
    let said = has.tokens(&said, &contracts()).unwrap();
    assert_eq!((said.moved.len(), said.missing), (1, BTreeSet::new()));
    // Of another contract, of another event, and of chains that have no filters.
    let zeros = json!(format!("0x{}", "00".repeat(256)));
    for none in [bloom_of(&[0xee]), zeros, Value::Null, json!("0x12")] {
        let logs = with(none).tokens(&json!([]), &contracts()).unwrap();
        assert_eq!(logs, TokenLogs::default());
    }
    // What the receipts have is what counts then.
    let sent = receipt(3, "0x1", vec![log(1, 1, 2, 7), log(0, 2, 1, 9)]);
    let other = receipt(9, "0x1", vec![]);
    let receipts = has.receipts(&json!([other, sent.clone()])).unwrap();
    let moved = tokens_of(&receipts, &contracts());
    let moved: Vec<_> = moved.iter().map(|it| (it.place, it.amount[31])).collect();
    let expected = [
        (CandidatePlace::LogOfBlock(0), 9),
        (CandidatePlace::LogOfBlock(1), 7),
    ];
    assert_eq!(moved, expected);
    assert_eq!(tokens_of(&receipts, &BTreeSet::new()), []);
    assert_eq!(has.without_receipt(&receipts), Vec::<[u8; 32]>::new());
    let none = has.receipts(&json!([])).unwrap();
    assert_eq!(has.without_receipt(&none), [[3; 32]]);
    for (bad, reason) in [
        (json!([sent.clone(), sent]), "the same transaction"),
        (Value::Null, "not a list"),
    ] {
        let error = has.receipts(&bad).unwrap_err();
        assert!(error.0.contains(reason), "{error} instead of {reason}");
    }
}

#[test]
fn transactions__should_not_be_none_where_the_root_says_otherwise() {
    let with = |root: Value| EvmBlock::read(&changed(block(vec![]), "transactionsRoot", root));
    let error = with(json!(word(1))).unwrap_err();
    assert!(error.0.contains("none are listed"), "{error}");
    let none = json!(NO_TRANSACTIONS.to_uppercase().replace('X', "x"));
    for root in [none, json!(word(0)), Value::Null] {
        assert!(with(root.clone()).is_ok(), "{root}");
    }
    // Nodes of Polygon list one that no root knows.
    let listed = block(vec![transaction(1, 0xa, Value::Null, "0x0")]);
    let listed = changed(listed, "transactionsRoot", json!(NO_TRANSACTIONS));
    assert!(EvmBlock::read(&listed).is_ok());
}

#[test]
fn log_of_a_transaction_that_the_block_does_not_list__should_be_told_by_its_receipt() {
    // A state sync of Polygon.
    let sync = changed(log(1, 1, 2, 3), "transactionHash", json!(word(9)));
    let found = tokens(json!([log(0, 1, 2, 3), sync.clone()])).unwrap();
    assert_eq!(found.len(), 2);
    let good = read(&receipt(9, "0x1", vec![sync])).unwrap();
    assert!(good.confirm(&found[1]).unwrap().is_some());
    let bad = read(&receipt(9, "0x1", vec![])).unwrap();
    assert!(bad.confirm(&found[1]).is_err());
}

#[test]
fn transfers__should_be_those_that_receipts_confirm() {
    let value = plain().values().next().unwrap();
    let good = read(&receipt(1, "0x1", vec![])).unwrap();
    let transfer = good.confirm(&value).unwrap().unwrap();
    assert_eq!(transfer.index, TransferIndex::Value);
    // A failed transaction moves nothing.
    assert_eq!(
        read(&receipt(1, "0x0", vec![])).unwrap().confirm(&value),
        Ok(None)
    );
    assert!(
        read(&receipt(2, "0x1", vec![]))
            .unwrap()
            .confirm(&value)
            .is_err()
    );

    // The number counts within the transaction: in another block it is the same.
    let moved = tokens(json!([log(41, 1, 2, 7)])).unwrap()[0];
    let other = changed(log(40, 1, 2, 7), "address", json!(bytes(0xee, 20)));
    let good = receipt(3, "0x1", vec![other.clone(), log(41, 1, 2, 7)]);
    let transfer = read(&good).unwrap().confirm(&moved).unwrap().unwrap();
    assert_eq!(transfer.index, TransferIndex::Log(1));
    assert_eq!(
        (transfer.asset, transfer.amount_text()),
        (Some(Account([USDT; 20])), "7".into())
    );
    for bad in [
        receipt(3, "0x0", vec![log(41, 1, 2, 7)]),
        receipt(3, "0x1", vec![log(41, 1, 2, 8)]),
        receipt(3, "0x1", vec![log(41, 1, 3, 7)]),
        receipt(3, "0x1", vec![log(40, 1, 2, 7)]),
        receipt(
            3,
            "0x1",
            vec![changed(log(41, 1, 2, 7), "address", json!(bytes(0xee, 20)))],
        ),
        receipt(3, "0x1", vec![]),
    ] {
        assert!(read(&bad).unwrap().confirm(&moved).is_err(), "{bad}");
    }
    for bad in [
        Value::Null,
        changed(good.clone(), "blockHash", json!(word(0xb2))),
        changed(good.clone(), "status", Value::Null),
        changed(good.clone(), "status", json!("0x2")),
        changed(good.clone(), "logs", Value::Null),
        changed(good, "transactionHash", json!(word(9))),
    ] {
        assert!(read(&bad).is_err(), "{bad}");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        "(0x)?[0-9a-f]{0,66}".prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 6, |inner| {
        let names = prop::sample::select(vec![
            "number",
            "hash",
            "parentHash",
            "timestamp",
            "transactions",
            "blockHash",
            "from",
            "to",
            "value",
            "topics",
            "data",
            "address",
            "logIndex",
            "transactionHash",
            "status",
            "logs",
            "logsBloom",
            "transactionsRoot",
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((names, inner), 0..6).prop_map(|fields| {
                Value::Object(
                    fields
                        .into_iter()
                        .map(|(name, value)| (name.to_owned(), value))
                        .collect(),
                )
            }),
        ]
    })
}

proptest! {
    #[test]
    fn anything__should_be_read_or_refused(value in any_json()) {
        let _ = EvmBlock::read(&value);
        let _ = tokens(value.clone());
        let _ = read(&value);
        let _ = plain().receipts(&value);
    }

    /// A candidate is told only with exactly what a log of the right contract says.
    #[test]
    fn logs__should_invent_nothing(logs in prop::collection::vec((0_u64..8, 0_u8..3, 0_u8..3, 0_u8..3), 0..8)) {
        let json: Vec<_> = logs.iter().map(|(number, from, to, amount)| log(*number, *from, *to, *amount)).collect();
        let numbers: BTreeSet<_> = logs.iter().map(|log| log.0).collect();
        match tokens(Value::from(json)) {
            Err(_) => prop_assert!(numbers.len() < logs.len()),
            Ok(found) => {
                let real = logs.iter().filter(|(_, from, to, amount)| from != to && *amount > 0);
                prop_assert_eq!(found.len(), real.count());
            }
        }
    }
}
