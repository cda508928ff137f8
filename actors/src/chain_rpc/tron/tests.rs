//! What answers of nodes mean.

use super::{fees::ResourcePrices, *};
use crate::chain_rpc::simulation::ERROR;

fn answer(code: &str, words: &str) -> Value {
    json!({"result": false, "code": code, "txid": "00", "message": words})
}

fn verdict(code: &str, words: &str) -> TronVerdict {
    match judge(&answer(code, words)) {
        ParsedResponse::Value(verdict) => verdict,
        ParsedResponse::Busy(reason)
        | ParsedResponse::TooMuch(reason)
        | ParsedResponse::Malformed(reason) => panic!("{reason}"),
    }
}

fn trigger(fee_limit: u64) -> Trigger {
    Trigger {
        from: String::new(),
        contract: String::new(),
        data: TRANSFER.to_vec(),
        fee_limit,
    }
}

fn said<T>(read: ParsedResponse<T>) -> T {
    match read {
        ParsedResponse::Value(said) => said,
        ParsedResponse::Busy(reason)
        | ParsedResponse::TooMuch(reason)
        | ParsedResponse::Malformed(reason) => panic!("{reason}"),
    }
}

#[test]
fn judge__should_take_success_for_accepted_and_nothing_else() {
    let success = json!({"result": true, "code": "SUCCESS", "message": ""});
    assert_eq!(said(judge(&success)), TronVerdict::Accepted);
    assert!(matches!(
        verdict("DUP_TRANSACTION_ERROR", "Dup transaction."),
        TronVerdict::Duplicate(_)
    ));
    assert!(matches!(
        verdict("TRANSACTION_EXPIRATION_ERROR", "Transaction expired"),
        TronVerdict::Expired(_)
    ));
    assert!(matches!(
        judge(&answer("SUCCESS", "")),
        ParsedResponse::Malformed(_)
    ));
}

#[test]
fn judge__should_name_the_code_of_a_refusal() {
    for (code, words, expected) in [
        (
            "CONTRACT_VALIDATE_ERROR",
            "Contract validate error : Validate TransferContract error, balance is not sufficient.",
            ExecuteCode::InsufficientFunds,
        ),
        (
            "CONTRACT_VALIDATE_ERROR",
            "Contract validate error : assetBalance is not sufficient.",
            ExecuteCode::InsufficientFunds,
        ),
        (
            "CONTRACT_VALIDATE_ERROR",
            "Contract validate error : Validate TransferContract error, no OwnerAccount.",
            ExecuteCode::InsufficientFunds,
        ),
        (
            "CONTRACT_VALIDATE_ERROR",
            "Contract validate error : Validate TransferAssetActuator error, insufficient fee.",
            ExecuteCode::InsufficientGasFee,
        ),
        (
            "BANDWITH_ERROR",
            "Account resource insufficient error.",
            ExecuteCode::InsufficientGasFee,
        ),
        (
            "CONTRACT_VALIDATE_ERROR",
            "Contract validate error : No asset!",
            ExecuteCode::Unspecified,
        ),
        (
            "SIGERROR",
            "Validate signature error",
            ExecuteCode::Unspecified,
        ),
        ("TOO_BIG_TRANSACTION_ERROR", "", ExecuteCode::Unspecified),
    ] {
        for words in [words.to_owned(), hex::encode(words)] {
            let TronVerdict::Refused(refusal) = verdict(code, &words) else {
                panic!("{code} {words}")
            };
            assert_eq!(refusal.code, expected, "{words}");
            assert!(!refusal.reason.ends_with(": "), "{}", refusal.reason);
        }
    }
}

#[test]
fn judge__should_not_refuse_for_good_what_may_work_later() {
    for code in [
        "TAPOS_ERROR",
        "SERVER_BUSY",
        "NO_CONNECTION",
        "BLOCK_UNSOLIDIFIED",
    ] {
        let words = "words";
        assert!(
            matches!(judge(&answer(code, words)), ParsedResponse::Busy(reason) if reason.contains(words)),
            "{code}"
        );
    }
    // The node may have kept it.
    for code in ["NOT_ENOUGH_EFFECTIVE_CONNECTION", "OTHER_ERROR", "NEW", ""] {
        assert!(
            matches!(judge(&answer(code, "")), ParsedResponse::Malformed(_)),
            "{code}"
        );
    }
}

#[test]
fn on_mainnet__should_know_the_first_block() {
    let first = |id: &str| on_mainnet(&json!({"blockID": id}));
    assert_eq!(said(first(MAINNET)), Ok(()));
    // Nile.
    let nile = "0000000000000000d698d4192c56cb6be724a558448e2684802de4d6cd8690dc";
    assert!(said(first(nile)).unwrap_err().contains(nile));
    assert!(matches!(
        on_mainnet(&json!({})),
        ParsedResponse::Malformed(_)
    ));
}

#[test]
fn block__should_be_read_where_its_id_is_of_its_number() {
    let found = |number: u64, id: &str| {
        block(&json!({
            "blockID": id,
            "block_header": {"raw_data": {"number": number, "timestamp": 1_700_000_000_000_u64}},
        }))
    };
    let id = format!("{:016x}{}", 70_000_000, "ab".repeat(24));
    let block = found(70_000_000, &id).unwrap();
    assert_eq!(hex::encode(block.id), id);
    assert_eq!(block.timestamp_ms, 1_700_000_000_000);
    assert_eq!(found(70_000_001, &id), None);
    assert_eq!(found(70_000_000, &id[2..]), None);
}

#[test]
fn check_block_time__should_pass_over_nodes_of_another_time() {
    let now_ms = 1_700_000_000_000;
    let at = |timestamp_ms| {
        let block = Block {
            number: 1,
            id: [0; 32],
            timestamp_ms,
        };
        matches!(check_block_time(block, now_ms), ParsedResponse::Value(_))
    };
    for good in [now_ms, now_ms + MAX_AHEAD_MS, now_ms - MAX_BEHIND_MS] {
        assert!(at(good), "{good}");
    }
    for bad in [
        now_ms + MAX_AHEAD_MS + 1,
        now_ms - MAX_BEHIND_MS - 1,
        0,
        u64::MAX,
    ] {
        assert!(!at(bad), "{bad}");
    }
}

#[test]
fn tried__should_tell_a_call_that_fails_from_a_node_that_cannot() {
    let good = json!({
        "result": {"result": true},
        "energy_used": 64_285,
        "constant_result": ["00".repeat(32)],
        "transaction": {"ret": [{}]},
    });
    let expected = ConstantCallResult {
        energy: 64_285,
        output: vec![0; 32],
    };
    assert_eq!(said(tried(&good)), Ok(expected));

    let text = "transfer amount exceeds balance";
    let output = [
        &ERROR[..],
        &[0; 31],
        &[32],
        &[0; 31],
        &[u8::try_from(text.len()).unwrap()],
        text.as_bytes(),
        &[0],
    ]
    .concat();
    let reverted = |output: String| {
        json!({
            "result": {"result": true, "message": hex::encode("REVERT opcode executed")},
            "energy_used": 700,
            "constant_result": [output],
            "transaction": {"ret": [{"ret": "FAILED"}]},
        })
    };
    assert_eq!(
        said(tried(&reverted(hex::encode(output)))).unwrap_err(),
        format!("REVERT opcode executed ({text})")
    );
    assert_eq!(
        said(tried(&reverted(String::new()))).unwrap_err(),
        "REVERT opcode executed"
    );

    let failed = |code: &str, words: &str| tried(&json!({"result": answer(code, words)}));
    for (code, words) in [
        ("CONTRACT_VALIDATE_ERROR", "Smart contract is not exist."),
        (
            "OTHER_ERROR",
            "class org.tron.core.vm.program.Program$OutOfEnergyException : Not enough energy",
        ),
    ] {
        assert_eq!(said(failed(code, words)).unwrap_err(), words);
    }
    for (code, words) in [
        (
            "CONTRACT_VALIDATE_ERROR",
            "this node does not support constant",
        ),
        (
            "OTHER_ERROR",
            "class org.tron.core.vm.program.Program$OutOfTimeException : CPU timeout",
        ),
        ("OTHER_ERROR", "class java.lang.NullPointerException : null"),
    ] {
        assert!(
            matches!(failed(code, words), ParsedResponse::Busy(_)),
            "{words}"
        );
    }
    for nonsense in [json!({}), json!({"result": true}), json!({"result": {}})] {
        assert!(
            matches!(tried(&nonsense), ParsedResponse::Malformed(_)),
            "{nonsense}"
        );
    }
}

#[test]
fn revert_reason__should_not_believe_lengths() {
    let long = [&ERROR[..], &[0; 32], &[0xff; 32], b"text"].concat();
    for output in [&[][..], &ERROR, &long] {
        assert_eq!(revert_reason(output), None);
    }
}

#[test]
fn check_fee_limit__should_refuse_a_call_that_burns_more_than_its_limit() {
    let prices = ResourcePrices {
        energy: 100,
        byte: 1_000,
    };
    assert_eq!(
        check_fee_limit(&trigger(6_400_000), 64_000, &prices),
        Ok(())
    );
    let Err(ChainError::Refused(refusal)) = check_fee_limit(&trigger(6_399_999), 64_000, &prices)
    else {
        panic!("not refused")
    };
    assert_eq!(refusal.code, ExecuteCode::InsufficientGasFee);
    assert!(refusal.reason.contains("6400000"), "{}", refusal.reason);
    assert!(check_fee_limit(&trigger(u64::MAX - 1), u64::MAX, &prices).is_err());
}

#[test]
fn burn_cost__should_count_what_coins_have_to_pay() {
    let prices = ResourcePrices {
        energy: 100,
        byte: 1_000,
    };
    let burn_cost = |means: &AvailableResources| burn_cost(64_000, 350, &prices, means);
    assert_eq!(
        burn_cost(&AvailableResources::COINS_ONLY),
        6_400_000 + 350_000
    );
    let staked = available_resources(&json!({
        "freeNetLimit": 600, "freeNetUsed": 251, "NetLimit": 350,
        "EnergyLimit": 65_000, "EnergyUsed": 2_000,
    }));
    assert_eq!(burn_cost(&staked.unwrap()), 100_000);
    // Of neither kind is there enough.
    let some = available_resources(&json!({"freeNetLimit": 349, "NetLimit": 349}));
    assert_eq!(burn_cost(&some.unwrap()), 6_750_000);
    let shared = AvailableResources {
        percent: 10,
        ..AvailableResources::COINS_ONLY
    };
    assert_eq!(burn_cost(&shared), 640_000 + 350_000);
    assert_eq!(available_resources(&json!({"EnergyLimit": "many"})), None);
}

#[test]
fn accounts__should_be_read_with_what_they_leave_out() {
    let absent = json!({});
    let empty = json!({"address": "T", "create_time": 1});
    let rich = json!({
        "address": "T", "balance": 7,
        "assetV2": [{"key": "1000001", "value": 5}, {"key": "1000002", "value": 9}],
    });
    for (account, coins, tokens) in [(&absent, 0, 0), (&empty, 0, 0), (&rich, 7, 9)] {
        assert_eq!(sun(account), Some(coins));
        assert_eq!(asset(account, "1000002"), Some(tokens));
        assert_eq!(asset(account, "1000003"), Some(0));
    }
    for nonsense in [
        json!({"message": "limit"}),
        json!({"address": "T", "balance": -1, "assetV2": {}}),
    ] {
        assert_eq!(sun(&nonsense), None);
        assert_eq!(asset(&nonsense, "1000002"), None);
    }
}
