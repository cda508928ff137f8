//! Maps nodes' refusals of transactions, and failures of simulations, to outcomes.

use covault_core::fault::ExecuteCode;

use super::{
    digest, outcome,
    proto::{ExecutionError, ExecutionErrorKind, TransactionResponse},
};
use crate::chain_rpc::{
    ChainError, ChainRefusal,
    client::Refusal as _,
    exchange::short,
    grpc::{GrpcCode, GrpcStatus},
};

/// What a node's answer to a transaction means.
#[derive(Debug, PartialEq)]
pub(super) enum SuiVerdict {
    Accepted,
    /// It may be taken later.
    Later {
        reason: String,
        /// There are no such objects.
        missing: bool,
    },
    Refused {
        refusal: ChainRefusal,
        /// It may be because this very transaction was executed.
        itself: bool,
    },
}

/// A simulation that did not succeed.
pub(super) fn failed(error: &ExecutionError) -> ChainError {
    let said = short(error.description.as_deref().unwrap_or("no reason"));
    let code = match error.kind() {
        // The facts say that it is there: another transaction has spent it since.
        ExecutionErrorKind::InsufficientFundsForWithdraw => {
            return ChainError::Unknown(format!("the node said: {said}"));
        }
        ExecutionErrorKind::InsufficientCoinBalance => ExecuteCode::InsufficientFunds,
        ExecutionErrorKind::InsufficientGas => ExecuteCode::InsufficientGasFee,
        ExecutionErrorKind::Unknown => ExecuteCode::Unspecified,
    };
    ChainError::refused(
        format!("the transaction would fail; the node said: {said}"),
        code,
    )
}

/// What a node's answer to `ExecuteTransaction` means.
pub(super) fn judge(said: Result<&TransactionResponse, &GrpcStatus>, hash: &str) -> SuiVerdict {
    let later = |reason: String| SuiVerdict::Later {
        reason,
        missing: false,
    };
    let status = match said {
        Ok(answer) if digest(answer).is_some_and(|digest| digest != hash) => {
            return later("the node answered about another transaction".into());
        }
        Ok(answer) => {
            if let Some(Err(error)) = outcome(answer) {
                let reason = short(error.description.as_deref().unwrap_or_default());
                tracing::warn!(hash, reason, "a Sui transaction was executed and failed");
            }
            return SuiVerdict::Accepted;
        }
        Err(status) => status,
    };
    match status.code {
        GrpcCode::InvalidArgument if has(status, &MISSING) => SuiVerdict::Later {
            reason: status.words(),
            missing: true,
        },
        GrpcCode::InvalidArgument => SuiVerdict::Refused {
            refusal: explained(status),
            itself: has(status, &[USED, EXPIRED, WITHDRAWAL, RESERVATION]),
        },
        // Where two fight for an object, one may win, or none until the epoch ends.
        GrpcCode::FailedPrecondition => later(format!(
            "another transaction holds one of its objects, at the latest until the epoch ends; {}",
            status.words()
        )),
        GrpcCode::Aborted => SuiVerdict::Later {
            reason: status.words(),
            missing: has(status, &MISSING),
        },
        GrpcCode::NotFound | GrpcCode::Internal | GrpcCode::Other => later(status.words()),
    }
}

/// Words of `sui-types` (`error.rs`) and of the transaction driver.
const MISSING: [&str; 2] = [
    "could not find the referenced",
    "dependent package not found",
];
const USED: &str = "not available for consumption";
const EXPIRED: &str = "expired";
const WITHDRAWAL: &str = "withdraw";
const RESERVATION: &str = "reservation";

fn has(status: &GrpcStatus, words: &[&str]) -> bool {
    let said = status.message.to_lowercase();
    words.iter().any(|word| said.contains(word))
}

/// A node's words with what they mean, where that is known.
fn explained(status: &GrpcStatus) -> ChainRefusal {
    let fee = ExecuteCode::InsufficientGasFee;
    let (meaning, code) = if has(status, &["balance of gas object"]) {
        ("the gas coins do not cover gasFee.budget", fee)
    } else if has(status, &["under reference gas price"]) {
        ("gasFee.price is below what the network accepts", fee)
    } else if has(status, &["gas budget"]) {
        ("gasFee.budget is outside what the network accepts", fee)
    } else if has(status, &[USED]) {
        (
            "another transaction has used one of its objects; create a new request",
            ExecuteCode::Unspecified,
        )
    } else if has(status, &[EXPIRED]) {
        return expired();
    } else if has(status, &[WITHDRAWAL, RESERVATION]) {
        (
            "the address balance does not cover the withdrawal in this epoch; create a new \
             request",
            ExecuteCode::InsufficientFunds,
        )
    } else {
        ("the node refused the transaction", ExecuteCode::Unspecified)
    };
    ChainRefusal {
        reason: format!("{meaning}; {}", status.words()),
        code,
    }
}

pub(super) fn expired() -> ChainRefusal {
    ChainRefusal {
        reason: "the transaction expired before a node took it; create a new request".into(),
        code: ExecuteCode::Unspecified,
    }
}
