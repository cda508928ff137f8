//! Maps nodes' refusals of transactions, and failures of simulations, to outcomes.

use covault_core::fault::ExecuteCode;
use serde::Deserialize;

use crate::chain_rpc::{ChainError, ChainRefusal, NodeResponse, exchange::short};

/// What the chain says of a sender who cannot pay all the gas that a transaction may take.
pub(super) const NO_FEE: &str = "INSUFFICIENT_BALANCE_FOR_TRANSACTION_FEE";

/// What the chain finds wrong with a transaction that it validates, in itself or as its sender's account is: codes of
/// `vm_status.rs`.
const REFUSALS: [&str; 16] = [
    "INVALID_SIGNATURE",
    "INVALID_AUTH_KEY",
    NO_FEE,
    "INSUFFICIENT_BALANCE_FOR_REQUIRED_DEPOSIT",
    "CANT_PAY_GAS_DEPOSIT",
    "SENDING_ACCOUNT_DOES_NOT_EXIST",
    "SENDING_ACCOUNT_FROZEN",
    "EXCEEDED_MAX_TRANSACTION_SIZE",
    "MAX_GAS_UNITS_EXCEEDS_MAX_GAS_UNITS_BOUND",
    "MAX_GAS_UNITS_BELOW_MIN_TRANSACTION_GAS_UNITS",
    "GAS_UNIT_PRICE_BELOW_MIN_BOUND",
    "GAS_UNIT_PRICE_ABOVE_MAX_BOUND",
    "BAD_CHAIN_ID",
    "SEQUENCE_NUMBER_TOO_BIG",
    "SIGNERS_CONTAIN_DUPLICATES",
    "FEATURE_UNDER_GATING",
];

/// A node's `AptosError`.
#[derive(Deserialize)]
pub(super) struct AptosError {
    pub(super) message: String,
    pub(super) error_code: String,
}

/// What a node's answer to a transaction means.
#[derive(Debug, PartialEq)]
pub(super) enum AptosVerdict {
    Accepted,
    Unknown(String),
    Refused {
        refusal: ChainRefusal,
        /// It may be because this very transaction was executed.
        itself: bool,
    },
}

/// What a node's answer to `POST /transactions` means.
pub(super) fn judge(answer: &NodeResponse) -> AptosVerdict {
    if answer.status == 202 {
        return AptosVerdict::Accepted;
    }
    let Some(AptosError {
        message,
        error_code,
    }) = answer.json::<AptosError>()
    else {
        let status = answer.status;
        return AptosVerdict::Unknown(format!("the node answered HTTP {status} without a reason"));
    };
    let has = |words: &[&str]| words.iter().any(|word| message.contains(word));
    let refusal = |itself: bool| AptosVerdict::Refused {
        refusal: explained("the node refused the transaction", &message),
        itself,
    };
    match error_code.as_str() {
        "sequence_number_too_old" => refusal(true),
        // The earlier ones are not there yet.
        "vm_error" if has(&["SEQUENCE_NUMBER_TOO_NEW"]) => {
            AptosVerdict::Unknown("the node waits for the account's earlier transactions".into())
        }
        "vm_error" if has(&["TRANSACTION_EXPIRED"]) => AptosVerdict::Refused {
            refusal: expired(),
            itself: true,
        },
        "vm_error" if has(&["SEQUENCE_NUMBER_TOO_OLD", "NONCE_ALREADY_USED"]) => refusal(true),
        // Other types, and other codes, are troubles of the node's own.
        "vm_error" if has(&["Type: Validation"]) && has(&REFUSALS) => refusal(false),
        "invalid_transaction_update" | "invalid_input" => refusal(false),
        // mempool_is_full, internal_error and the like; the account may also have too many
        // transactions waiting.
        _ => AptosVerdict::Unknown(format!("the node said: {}", short(&message))),
    }
}

/// Whether a simulation found another number than the account's, or a node that is behind.
pub(super) fn of_the_number(status: &str) -> bool {
    ["SEQUENCE_NUMBER_TOO_OLD", "SEQUENCE_NUMBER_TOO_NEW"]
        .iter()
        .any(|code| status.contains(code))
}

/// A simulation that did not succeed.
pub(super) fn failed(status: &str) -> ChainError {
    if status.contains("TRANSACTION_EXPIRED") {
        return ChainError::unknown(
            "the chain's clock is ahead of this machine's by minutes: set this one",
        );
    }
    ChainError::Refused(explained("the transaction would fail", status))
}

/// A node's words with what they mean, where that is known.
fn explained(otherwise: &str, said: &str) -> ChainRefusal {
    let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
    let framework = has(&["0x1::coin: ", "0x1::fungible_asset: "]);
    // error::invalid_argument of EINSUFFICIENT_BALANCE, 6 and 4.
    let (meaning, code) = if framework && has(&["EINSUFFICIENT_BALANCE(", ": 0x10006", ": 0x10004"])
    {
        (
            "the sender cannot pay the amount",
            ExecuteCode::InsufficientFunds,
        )
    } else if has(&[
        "INSUFFICIENT_BALANCE_FOR_TRANSACTION_FEE",
        "CANT_PAY_GAS_DEPOSIT",
        "0x1::transaction_validation: 0x203ed",
        "SENDING_ACCOUNT_DOES_NOT_EXIST",
        "MAX_GAS_UNITS_BELOW_MIN_TRANSACTION_GAS_UNITS",
    ]) {
        (
            "the sender cannot pay the fee",
            ExecuteCode::InsufficientGasFee,
        )
    } else if has(&["GAS_UNIT_PRICE_BELOW_MIN_BOUND"]) {
        (
            "gasFee.gasUnitPrice is too low",
            ExecuteCode::InsufficientGasFee,
        )
    } else if has(&["Out of gas", "OUT_OF_GAS"]) {
        (
            "the call takes more gas than the sender can pay, or the chain allows",
            ExecuteCode::InsufficientGasFee,
        )
    } else {
        let meaning = if has(&["INVALID_AUTH_KEY"]) {
            "the account's key was changed on the chain, and the wallet's is no longer it"
        } else if has(&["SEQUENCE_NUMBER_TOO_OLD"]) {
            "another transaction has the account's number; create a new request"
        } else if has(&["already in mempool"]) {
            "another transaction with the account's number waits; create a new request"
        } else {
            otherwise
        };
        (meaning, ExecuteCode::Unspecified)
    };
    ChainRefusal {
        reason: format!("{meaning}; the node said: {}", short(said)),
        code,
    }
}

pub(super) fn expired() -> ChainRefusal {
    ChainRefusal {
        reason: "the transaction expired before a node took it; create a new request".into(),
        code: ExecuteCode::Unspecified,
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use serde_json::json;

    use super::*;

    fn problem(status: u16, code: &str, message: &str) -> NodeResponse {
        let body = json!({"message": message, "error_code": code, "vm_error_code": null});
        NodeResponse {
            status,
            body: body.to_string().into_bytes(),
            ..NodeResponse::default()
        }
    }

    fn vm(status: &str) -> NodeResponse {
        let message = format!("Invalid transaction: Type: Validation Code: {status}");
        problem(400, "vm_error", &message)
    }

    fn refusal(answer: &NodeResponse) -> (ChainRefusal, bool) {
        match judge(answer) {
            AptosVerdict::Refused { refusal, itself } => (refusal, itself),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn judge__should_take_only_202_for_accepted() {
        for (status, accepted) in [(202, true), (200, false), (206, false)] {
            let body = br#"{"hash":"0x1"}"#.to_vec();
            let verdict = judge(&NodeResponse {
                status,
                body,
                ..NodeResponse::default()
            });
            assert_eq!(verdict == AptosVerdict::Accepted, accepted, "{status}");
        }
    }

    #[test]
    fn judge__should_not_refuse_for_good_what_may_pass() {
        for answer in [
            vm("SEQUENCE_NUMBER_TOO_NEW"),
            problem(507, "mempool_is_full", "Mempool is full"),
            problem(404, "web_framework_error", "not found"),
            problem(403, "rejected_by_filter", "no"),
            problem(500, "internal_error", "oops"),
            problem(
                400,
                "vm_error",
                "Invalid transaction: Type: Execution Code: RESOURCE_DOES_NOT_EXIST",
            ),
            vm("UNKNOWN_VALIDATION_STATUS"),
            vm("SOMETHING_NEW"),
            NodeResponse {
                status: 413,
                body: b"<html>".to_vec(),
                ..NodeResponse::default()
            },
        ] {
            assert!(
                matches!(judge(&answer), AptosVerdict::Unknown(_)),
                "{}",
                answer.words()
            );
        }
    }

    #[test]
    fn judge__should_say_where_the_transaction_itself_may_be_the_reason() {
        for (answer, expected) in [
            (vm("SEQUENCE_NUMBER_TOO_OLD"), true),
            (vm("NONCE_ALREADY_USED"), true),
            (vm("TRANSACTION_EXPIRED"), true),
            (problem(400, "sequence_number_too_old", "no"), true),
            (vm("INVALID_SIGNATURE"), false),
            (vm("INSUFFICIENT_BALANCE_FOR_TRANSACTION_FEE"), false),
            (
                problem(
                    400,
                    "invalid_transaction_update",
                    "Transaction already in mempool with a different payload",
                ),
                false,
            ),
        ] {
            assert_eq!(refusal(&answer).1, expected, "{}", answer.words());
        }
    }

    #[test]
    fn judge__should_name_the_code_of_a_refusal() {
        for (status, code) in [
            (
                "INSUFFICIENT_BALANCE_FOR_TRANSACTION_FEE",
                ExecuteCode::InsufficientGasFee,
            ),
            (
                "SENDING_ACCOUNT_DOES_NOT_EXIST",
                ExecuteCode::InsufficientGasFee,
            ),
            (
                "GAS_UNIT_PRICE_BELOW_MIN_BOUND",
                ExecuteCode::InsufficientGasFee,
            ),
            ("INVALID_AUTH_KEY", ExecuteCode::Unspecified),
            ("TRANSACTION_EXPIRED", ExecuteCode::Unspecified),
        ] {
            assert_eq!(refusal(&vm(status)).0.code, code, "{status}");
        }
    }

    #[test]
    fn failed__should_tell_the_amount_from_the_fee() {
        for (status, code) in [
            (
                "Move abort in 0x1::coin: EINSUFFICIENT_BALANCE(0x10006): Not enough coins",
                ExecuteCode::InsufficientFunds,
            ),
            (
                "Move abort in 0x1::fungible_asset: 0x10004",
                ExecuteCode::InsufficientFunds,
            ),
            (
                "Transaction Executed and Committed with Error INSUFFICIENT_BALANCE_FOR_TRANSACTION_FEE",
                ExecuteCode::InsufficientGasFee,
            ),
            ("Out of gas", ExecuteCode::InsufficientGasFee),
            (
                "Move abort in 0xcafe::pool: EINSUFFICIENT_BALANCE(0x1): of the pool",
                ExecuteCode::Unspecified,
            ),
        ] {
            match failed(status) {
                ChainError::Refused(refusal) => {
                    assert_eq!(refusal.code, code, "{status}");
                    assert!(refusal.reason.contains(status), "{}", refusal.reason);
                }
                other => panic!("{other:?}"),
            }
        }
        let expired = "Transaction Executed and Committed with Error TRANSACTION_EXPIRED";
        assert!(matches!(failed(expired), ChainError::Unknown(_)));
    }
}
