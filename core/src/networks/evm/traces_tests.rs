#![allow(non_snake_case)]

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn bytes(byte: u8, count: usize) -> String {
    format!("0x{}", hex::encode(vec![byte; count]))
}

fn account(byte: u8) -> Value {
    json!(bytes(byte, 20))
}

/// A block with two transactions.
fn block() -> EvmBlock {
    let transaction = |hash: u8| {
        json!({"hash": bytes(hash, 32), "blockHash": bytes(0xb1, 32), "from": account(1), "to": account(2),
            "value": "0x63"})
    };
    EvmBlock::read(
        &json!({"number": "0x10", "hash": bytes(0xb1, 32), "parentHash": bytes(0xb0, 32), "timestamp": "0x65",
            "transactions": [transaction(1), transaction(2)]}),
    )
    .unwrap()
}

fn call(kind: &str, from: u8, to: u8, value: &str, calls: Vec<Value>) -> Value {
    json!({"type": kind, "from": account(from), "to": account(to), "value": value, "calls": calls})
}

fn failed(mut call: Value) -> Value {
    call["error"] = json!("execution reverted");
    call
}

fn root(calls: Vec<Value>) -> Value {
    call("CALL", 1, 2, "0x63", calls)
}

fn of(roots: [Value; 2]) -> Value {
    let [one, other] = roots;
    json!([{"txHash": bytes(1, 32), "result": one}, {"txHash": bytes(2, 32), "result": other}])
}

/// Transaction, number, from, to, amount.
type Moved = (u8, String, u8, u8, u8);

fn moved(candidates: Vec<Candidate>) -> Vec<Moved> {
    let moved = candidates.into_iter().map(|one| {
        let CandidatePlace::Certain(index) = one.place else {
            panic!("{one:?}");
        };
        assert_eq!(one.asset, None);
        let [from, to] = [one.from, one.to].map(|account| account.0[0]);
        (one.tx[0], index.to_string(), from, to, one.amount[31])
    });
    moved.collect()
}

#[test]
fn traces__should_say_what_contracts_pass_on_and_nothing_of_what_failed() {
    let traces = of([
        root(vec![
            call("CALL", 2, 3, "0x5", vec![call("CALL", 3, 4, "0x6", vec![])]),
            // A circle has its number, and is told to nobody.
            call("CALL", 4, 4, "0x7", vec![]),
            call("STATICCALL", 2, 5, "0x0", vec![]),
            call(
                "DELEGATECALL",
                2,
                5,
                "0x63",
                vec![call("CALL", 2, 5, "0x8", vec![])],
            ),
            call("CALLCODE", 2, 5, "0x9", vec![]),
            failed(call(
                "CALL",
                2,
                6,
                "0xa",
                vec![call("CALL", 6, 7, "0xb", vec![])],
            )),
            call("CREATE2", 2, 8, "0xc", vec![]),
            call("SELFDESTRUCT", 8, 9, "0xd", vec![]),
            call("CALL", 2, 9, "0x0", vec![]),
        ]),
        failed(root(vec![call("CALL", 2, 3, "0x5", vec![])])),
    ]);
    let expected = [
        (1, 0, 2, 3, 5),
        (1, 1, 3, 4, 6),
        (1, 3, 2, 5, 8),
        (1, 4, 2, 8, 12),
        (1, 5, 8, 9, 13),
    ];
    let expected = expected
        .map(|(tx, number, from, to, amount)| (tx, format!("internal-{number}"), from, to, amount));
    assert_eq!(moved(block().passed_on(&traces).unwrap()), expected);
    // The same by the other method.
    let one = |tx: u8, place: Value, kind: &str, action: Value| {
        json!({"blockHash": bytes(0xb1, 32), "transactionHash": bytes(tx, 32), "traceAddress": place, "type": kind,
            "action": action, "result": {"address": account(8)}})
    };
    let call = |kind: &str, from: u8, to: u8, value: &str| json!({"callType": kind, "from": account(from), "to": account(to), "value": value});
    let end = json!({"address": account(8), "refundAddress": account(9), "balance": "0xd"});
    let mut flat = vec![
        one(1, json!([]), "call", call("call", 1, 2, "0x63")),
        one(1, json!([0]), "call", call("call", 2, 3, "0x5")),
        one(1, json!([0, 0]), "call", call("call", 3, 4, "0x6")),
        one(1, json!([1]), "call", call("call", 4, 4, "0x7")),
        one(1, json!([2]), "call", call("staticcall", 2, 5, "0x0")),
        one(1, json!([3]), "call", call("delegatecall", 2, 5, "0x63")),
        one(1, json!([3, 0]), "call", call("call", 2, 5, "0x8")),
        one(1, json!([4]), "call", call("callcode", 2, 5, "0x9")),
        failed(one(1, json!([5]), "call", call("call", 2, 6, "0xa"))),
        one(1, json!([5, 0]), "call", call("call", 6, 7, "0xb")),
        one(
            1,
            json!([6]),
            "create",
            json!({"from": account(2), "value": "0xc"}),
        ),
        one(1, json!([7]), "suicide", end),
        one(1, json!([8]), "call", call("call", 2, 9, "0x0")),
        failed(one(2, json!([]), "call", call("call", 1, 2, "0x63"))),
        one(2, json!([0]), "call", call("call", 2, 3, "0x5")),
    ];
    flat.push(
        json!({"blockHash": bytes(0xb1, 32), "type": "reward", "action": {}, "traceAddress": []}),
    );
    assert_eq!(
        moved(block().passed_on_flat(&json!(flat)).unwrap()),
        expected
    );
}

#[test]
fn traces__should_be_refused_when_they_are_not_of_the_block() {
    let good = of([root(vec![]), root(vec![])]);
    assert_eq!(block().passed_on(&good).unwrap(), []);
    let mut other = good.clone();
    other[1]["txHash"] = json!(bytes(3, 32));
    let mut lost = good.clone();
    lost[1] = json!({"txHash": bytes(2, 32), "error": "execution timeout"});
    let one = json!([good[0]]);
    // As of chains that run transactions within something of their own.
    let wrapped = of([call("CALL", 9, 2, "0x0", vec![root(vec![])]), root(vec![])]);
    let unreadable = of([
        root(vec![json!({"type": "CALL", "value": "0x5"})]),
        root(vec![]),
    ]);
    for bad in [
        other,
        lost,
        one,
        wrapped,
        unreadable,
        json!([]),
        Value::Null,
    ] {
        assert!(block().passed_on(&bad).is_err(), "{bad}");
    }
    let flat = |tx: u8, place: Value| {
        json!({"blockHash": bytes(0xb1, 32), "transactionHash": bytes(tx, 32), "traceAddress": place, "type": "call",
            "action": {"callType": "call", "from": account(1), "to": account(2), "value": "0x63"}})
    };
    let good = [flat(1, json!([])), flat(2, json!([]))];
    assert_eq!(block().passed_on_flat(&json!(good)).unwrap(), []);
    let mut foreign = good.clone();
    foreign[1]["blockHash"] = json!(bytes(0xb2, 32));
    for bad in [
        json!(foreign),
        json!([good[0]]),
        json!([good[1], good[0]]),
        json!([good[0], flat(2, json!([0]))]),
        json!([good[0], flat(2, Value::Null), good[1]]),
        Value::Null,
    ] {
        assert!(block().passed_on_flat(&bad).is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn traces__should_never_panic(text in "\\PC{0,40}", depth in 0_usize..40) {
        let mut call = json!({"type": "CALL", "from": account(1), "to": account(2), "value": text});
        for _ in 0..depth {
            call = json!({"type": "CALL", "from": account(1), "to": account(2), "value": "0x1", "calls": [call]});
        }
        let _ = block().passed_on(&of([call.clone(), root(vec![])]));
        let _ = block().passed_on_flat(&json!([call]));
    }
}
