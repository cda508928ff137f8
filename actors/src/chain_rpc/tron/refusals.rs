//! Maps a node's refusal of a transaction to an outcome.

use covault_core::fault::ExecuteCode;
use serde_json::Value;

use super::words;
use crate::chain_rpc::{
    ChainError, ChainRefusal,
    exchange::{ParsedResponse, short},
};

pub(super) fn refused(reason: String, code: ExecuteCode) -> ChainError {
    ChainError::Refused(ChainRefusal { reason, code })
}

/// What an answer of broadcasthex means.
#[derive(Debug, PartialEq)]
pub(super) enum TronVerdict {
    Accepted,
    /// The node has, or had, a transaction with this id.
    Duplicate(String),
    /// The node's blocks are past the transaction's time, or a day before it.
    Expired(String),
    Refused(ChainRefusal),
}

pub(super) fn judge(found: &Value) -> ParsedResponse<TronVerdict> {
    if found.get("result") == Some(&Value::Bool(true)) {
        return ParsedResponse::Value(TronVerdict::Accepted);
    }
    let code = found.get("code").and_then(Value::as_str).unwrap_or("");
    let words = words(found);
    let reason = format!("the node said {}: {words}", short(code));
    match code {
        "DUP_TRANSACTION_ERROR" => ParsedResponse::Value(TronVerdict::Duplicate(reason)),
        "TRANSACTION_EXPIRATION_ERROR" => ParsedResponse::Value(TronVerdict::Expired(reason)),
        "SIGERROR"
        | "CONTRACT_VALIDATE_ERROR"
        | "CONTRACT_EXE_ERROR"
        | "BANDWITH_ERROR"
        | "TOO_BIG_TRANSACTION_ERROR" => {
            ParsedResponse::Value(TronVerdict::Refused(refusal(code, &words)))
        }
        // Not now; TAPOS: the node does not know the block yet, or has another in its place.
        "TAPOS_ERROR" | "SERVER_BUSY" | "NO_CONNECTION" | "BLOCK_UNSOLIDIFIED" => {
            ParsedResponse::Busy(reason)
        }
        // NOT_ENOUGH_EFFECTIVE_CONNECTION is also said of what the node keeps and cannot pass on;
        // OTHER_ERROR is any fault of its own.
        _ => ParsedResponse::Malformed(reason),
    }
}

pub(super) fn refusal(code: &str, words: &str) -> ChainRefusal {
    let said = words.to_ascii_lowercase();
    let has = |phrases: &[&str]| phrases.iter().any(|phrase| said.contains(phrase));
    let (hint, execute_code) = if code == "BANDWITH_ERROR" || has(&["insufficient fee"]) {
        (
            "the sender cannot pay the fee; the node said: ",
            ExecuteCode::InsufficientGasFee,
        )
    } else if has(&[
        "balance is not sufficient",
        "assetbalance must be greater than 0",
        "no owneraccount",
        "no owner account",
    ]) {
        (
            "the sender cannot pay the amount; the node said: ",
            ExecuteCode::InsufficientFunds,
        )
    } else {
        (
            "the node refused the transaction: ",
            ExecuteCode::Unspecified,
        )
    };
    let words = if words.is_empty() { code } else { words };
    ChainRefusal {
        reason: format!("{hint}{words}"),
        code: execute_code,
    }
}

pub(super) fn expired() -> ChainRefusal {
    ChainRefusal {
        reason: "the transaction expired before a node took it; create a new request".into(),
        code: ExecuteCode::Unspecified,
    }
}
