use proptest::prelude::*;

use super::*;

fn said(code: i64, message: &str) -> RpcError {
    RpcError {
        code,
        message: message.into(),
        data: Value::Null,
    }
}

fn no<T>(code: i64, message: &str) -> Result<T, RpcError> {
    Err(said(code, message))
}

#[test]
fn judge__should_take_a_transaction_that_is_there_for_accepted() {
    for (code, words) in [
        (-27, "Transaction outputs already in utxo set"),
        (-27, "Transaction already in block chain"),
        (-26, "txn-already-in-mempool"),
        (-26, "txn-already-known"),
    ] {
        assert_eq!(
            judge(&said(code, words)),
            BroadcastOutcome::Accepted,
            "{words}"
        );
    }
}

#[test]
fn judge__should_send_again_what_may_be_taken_later() {
    for (code, words) in [
        (-26, "mempool min fee not met, 141 < 1410"),
        (-26, "mempool full"),
        (
            -26,
            "too-long-mempool-chain, too many unconfirmed ancestors [limit: 25]",
        ),
        (-26, "too-large-cluster"),
        (
            -26,
            "bad-txns-premature-spend-of-coinbase, tried to spend coinbase at depth 1",
        ),
        (-4, "Wallet is currently rescanning"),
        (-9, "Error: Peer-to-peer functionality missing or disabled"),
        (-32601, "Method not found"),
        (-32603, "internal"),
        // Whatever no node says of a transaction that it has looked at.
        (-26, "no answer of the upstream node"),
        (-25, "Unauthorized"),
        (-26, ""),
        // Words that have those of a reason within.
        (-26, "unsupported API version"),
        (-26, "this version of the gateway is too old"),
        (-25, "dustbin full"),
        (-26, "the proxy lost txn-mempool-conflict"),
        (-26, "versions, differ"),
    ] {
        let verdict = judge(&said(code, words));
        assert!(matches!(verdict, BroadcastOutcome::Unknown(_)), "{words}");
    }
}

/// Bitcoin Core 25 to 30, and Knots.
#[test]
fn judge__should_refuse_for_the_whole_reasons_of_nodes() {
    for words in [
        "version",
        "tx-size",
        "tx-size-small",
        "scriptsig-size",
        "scriptsig-not-pushonly",
        "scriptpubkey",
        "scriptpubkey-unknown-witnessversion",
        "bare-multisig",
        "multi-op-return",
        "datacarrier",
        "dust",
        "dust, tx with dust output must be 0-fee",
        "bad-txns-vout-toolarge",
        "bad-txns-in-belowout, value in (0.1) < value out (0.2)",
        "bad-txns-nonstandard-inputs",
        "bad-witness-nonstandard",
        "non-mandatory-script-verify-flag (Witness program hash mismatch)",
        "mandatory-script-verify-flag-failed (Script evaluated without error but finished with a false/empty top stack element)",
        "mempool-script-verify-flag-failed (Witness program hash mismatch), input 0 of aa (wtxid bb), spending cc:0",
        "TRUC-violation, tx aa (wtxid=bb) would exceed descendant count limit",
        "txn-same-nonwitness-data-in-mempool",
        "bip125-replacement-disallowed",
        "too many potential replacements, rejecting replacement aa; too many potential replacements (101 > 100)",
        "replacement-adds-unconfirmed, replacement aa adds unconfirmed input, idx 1",
        "replacement-failed",
        "max-fee-exceeded",
    ] {
        let verdict = judge(&said(-26, words));
        assert!(matches!(verdict, BroadcastOutcome::Refused(_)), "{words}");
    }
    for words in [
        "Missing inputs",
        "Fee exceeds maximum configured by user (e.g. -maxtxfee, maxfeerate)",
        "Unspendable output exceeds maximum configured by user (maxburnamount)",
    ] {
        let verdict = judge(&said(-25, words));
        assert!(matches!(verdict, BroadcastOutcome::Refused(_)), "{words}");
    }
}

#[test]
fn judge__should_name_the_code_and_what_is_wrong() {
    for (code, words, expected, hint) in [
        (
            -26,
            "min relay fee not met, 110 < 141",
            ExecuteCode::InsufficientGasFee,
            "networkFee is below",
        ),
        (
            -25,
            "bad-txns-inputs-missingorspent",
            ExecuteCode::Unspecified,
            "another transaction spends",
        ),
        (
            -26,
            "txn-mempool-conflict",
            ExecuteCode::Unspecified,
            "another transaction spends",
        ),
        (
            -26,
            "insufficient fee, rejecting replacement 37; new feerate 0.1 BTC/kvB <= old feerate 0.1 BTC/kvB",
            ExecuteCode::Unspecified,
            "another transaction spends",
        ),
        (
            -26,
            "mempool-script-verify-flag-failed (Signature must be zero for failed CHECK(MULTI)SIG operation)",
            ExecuteCode::Unspecified,
            "the node refused",
        ),
        (
            -22,
            "TX decode failed. Make sure the tx has at least one input.",
            ExecuteCode::Unspecified,
            "the node refused",
        ),
    ] {
        match judge(&said(code, words)) {
            BroadcastOutcome::Refused(refusal) => {
                assert_eq!(refusal.code, expected, "{words}");
                assert!(refusal.reason.starts_with(hint), "{}", refusal.reason);
                assert!(refusal.reason.ends_with(words), "{}", refusal.reason);
            }
            other => panic!("{words}: {other:?}"),
        }
    }
}

#[test]
fn satoshi__should_go_by_the_digits() {
    for (text, expected) in [
        ("0", Some(0)),
        ("0.00000000", Some(0)),
        ("1e-8", Some(1)),
        ("0.00000001", Some(1)),
        ("0.00000010", Some(10)),
        ("0.1", Some(10_000_000)),
        ("0.29999999", Some(29_999_999)),
        ("1.50000000", Some(150_000_000)),
        ("50", Some(5_000_000_000)),
        ("20999999.97690000", Some(2_099_999_997_690_000)),
        ("20999999.99999999", Some(2_099_999_999_999_999)),
        ("21000000.00000000", Some(MAX_SATOSHI)),
        ("21000000.00000001", None),
        ("0.000000001", None),
        ("1e300", None),
        ("1e-300", None),
        ("-0.1", None),
        ("-1", None),
        ("\"1\"", None),
        ("null", None),
    ] {
        let value: Value = serde_json::from_str(text).unwrap();
        assert_eq!(satoshi(&value), expected, "{text}");
    }
}

proptest! {
    /// As bitcoind writes amounts.
    #[test]
    fn satoshi__should_be_exact(amount in 0..=MAX_SATOSHI) {
        let text = format!("{}.{:08}", amount / 100_000_000, amount % 100_000_000);
        let value: Value = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(satoshi(&value), Some(amount));
    }

    #[test]
    fn large_amounts__should_be_exact(less in 0..=100_000u64) {
        let amount = MAX_SATOSHI - less;
        let text = format!("{}.{:08}", amount / 100_000_000, amount % 100_000_000);
        let value: Value = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(satoshi(&value), Some(amount));
    }
}

fn chain(first: &str, later: BitcoinRpcResult, local: bool) -> Result<Result<(), String>, String> {
    match chain_of(&[Ok(json!(first)), later], local) {
        ParsedResponse::Value(said) => Ok(said),
        ParsedResponse::Busy(reason)
        | ParsedResponse::TooMuch(reason)
        | ParsedResponse::Malformed(reason) => Err(reason),
    }
}

#[test]
fn a_chain__should_be_mainnet_or_a_regtest_of_this_machine() {
    let (_, block) = CHECKPOINT;
    let none = || no(-8, "Block height out of range");
    assert_eq!(chain(GENESIS, Ok(json!(block)), false), Ok(Ok(())));
    assert_eq!(chain(REGTEST, none(), true), Ok(Ok(())));
    let testnet4 = "00000000da84f2bafbbc53dee25a72ae507ff4914b867c565be350b0da8bf043";
    for (first, later, local) in [
        (REGTEST, none(), false),
        (testnet4, Ok(json!(block)), true),
        // Bitcoin Cash begins as Bitcoin does.
        (GENESIS, Ok(json!("00".repeat(32))), false),
    ] {
        assert!(matches!(chain(first, later, local), Ok(Err(_))), "{first}");
    }
    assert!(chain(GENESIS, none(), false).is_err());
}

#[test]
fn a_node__should_be_up_to_date() {
    let info = |chain: &str, blocks: u64, starting: bool| json!({"chain": chain, "blocks": blocks, "headers": 900, "initialblockdownload": starting});
    assert_eq!(behind(&info("main", 900, false)), None);
    assert_eq!(behind(&info("main", 897, false)), None);
    assert!(behind(&info("main", 896, false)).is_some());
    assert!(behind(&info("main", 900, true)).is_some());
    assert!(behind(&json!({})).is_some());
    assert_eq!(behind(&info("regtest", 0, true)), None);
}

#[test]
fn a_list__should_be_read_in_order_and_whole() {
    let entry = |digit: &str, vout: u64, depth: u64| {
        json!({"txid": digit.repeat(64), "vout": vout, "amount": 0.5, "scriptPubKey": "0014aa",
            "confirmations": depth})
    };
    let list = json!([entry("b", 1, 0), entry("a", 10, 7), entry("a", 9, 7)]);
    let read = read_list(&list, "0014aa").unwrap();
    let places: Vec<_> = read
        .iter()
        .map(|listed| (&listed.output.txid[..1], listed.output.vout))
        .collect();
    assert_eq!(places, [("a", 9), ("a", 10), ("b", 1)]);
    assert_eq!(
        read.iter()
            .map(|listed| listed.confirmed)
            .collect::<Vec<_>>(),
        [true, true, false]
    );
    assert!(read.iter().all(|listed| listed.output.value == 50_000_000));
    assert_eq!(read_list(&list, "0014bb"), None);
    assert_eq!(read_list(&json!({}), "0014aa"), None);
    assert_eq!(read_list(&json!([{"txid": "a"}]), "0014aa"), None);
}

#[test]
fn a_transaction_of_a_block_that_was_left_behind__should_not_be_there() {
    assert!(is_there(&json!({"txid": "a"})));
    assert!(is_there(&json!({"blockhash": "b", "confirmations": 1})));
    assert!(!is_there(&json!({"blockhash": "b", "confirmations": 0})));
    assert!(!is_in_block(&json!({"confirmations": 0})));
    assert!(!is_in_block(&json!({"confirmations": -1})));
    assert!(is_settled(&json!({"confirmations": -1})));
    assert!(!is_settled(&json!({"confirmations": 0})));
}
