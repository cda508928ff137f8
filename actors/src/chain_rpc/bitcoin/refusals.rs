//! Maps nodes' refusals of transactions to outcomes. The texts are those of Bitcoin Core and Knots.

use covault_core::fault::ExecuteCode;

use crate::chain_rpc::{
    BroadcastOutcome, ChainRefusal, ObjectionKind, exchange::short, jsonrpc::RpcError,
};

/// The node has it. -27 says so too.
const KNOWN: [&str; 2] = ["txn-already-in-mempool", "txn-already-known"];

/// One of the reasons that begin like refusals: it waits for blocks.
const LATER: &str = "bad-txns-premature-spend-of-coinbase";

/// The node does not have an output that is spent: it is spent already, or not there yet.
const MISSING: [&str; 2] = ["bad-txns-inputs-missingorspent", "missing inputs"];

/// The mempool has another transaction that spends the same, or an output that goes with it.
const CONFLICTS: [&str; 8] = [
    "txn-mempool-conflict",
    "txn-same-nonwitness-data-in-mempool",
    "bip125-replacement-disallowed",
    "insufficient fee",
    "too many potential replacements",
    "replacement-adds-unconfirmed",
    "replacement-failed",
    "bad-txns-spends-conflicting-tx",
];

const CHEAP: &str = "min relay fee not met";

/// What else the rules of the network, or of the node, have against it: reasons of `TxValidationState` and sentences of
/// `TransactionError`, whole. Whatever else a node says leaves it open.
const REFUSALS: [&str; 19] = [
    "max-fee-exceeded",
    "max feerate exceeded",
    "fee exceeds maximum configured by user",
    "unspendable output exceeds maximum configured by user",
    "truc-violation",
    "mempool-script-verify-flag-failed",
    "mandatory-script-verify-flag-failed",
    "non-mandatory-script-verify-flag",
    "dust",
    "tx-size",
    "tx-size-small",
    "scriptsig-size",
    "scriptsig-not-pushonly",
    "scriptpubkey",
    "bare-multisig",
    "datacarrier",
    "multi-op-return",
    "version",
    "tx decode failed",
];

/// How further ones begin: there are many, and Knots adds some.
const FAMILIES: [&str; 3] = ["bad-txns-", "bad-witness-", "scriptpubkey-"];

/// The reason for which a node does not take a transaction: what it says before the details.
fn reason(error: &RpcError) -> String {
    let said = error.message.split([',', '(', '.']).next();
    said.unwrap_or_default().trim().to_ascii_lowercase()
}

/// What a node's answer to sendrawtransaction means.
pub(super) fn judge(error: &RpcError) -> BroadcastOutcome {
    let reason = reason(error);
    let said = reason.as_str();
    if error.code == -27 || KNOWN.contains(&said) {
        return BroadcastOutcome::Accepted;
    }
    let is_missing = MISSING.contains(&said);
    let is_conflict = CONFLICTS.contains(&said);
    let is_refusal = is_missing
        || is_conflict
        || said == CHEAP
        || REFUSALS.contains(&said)
        || FAMILIES.iter().any(|family| said.starts_with(family)) && said != LATER;
    // -22: no transaction; -25: inputs or fee; -26: the rules of the network or of the node. The
    // others are about the node.
    if !matches!(error.code, -22 | -25 | -26) || !is_refusal {
        return BroadcastOutcome::Unknown(format!("the node said: {}", short(&error.message)));
    }
    let (code, hint) = if said == CHEAP {
        (
            ExecuteCode::InsufficientGasFee,
            "networkFee is below what the node accepts; the node said: ",
        )
    } else if is_missing || is_conflict {
        (
            ExecuteCode::Unspecified,
            "another transaction spends the same outputs; the node said: ",
        )
    } else {
        (
            ExecuteCode::Unspecified,
            "the node refused the transaction: ",
        )
    };
    BroadcastOutcome::Refused(ChainRefusal {
        reason: format!("{hint}{}", short(&error.message)),
        code,
    })
}

/// What the node has against a transaction that it does not take.
pub(super) fn objection_kind(error: &RpcError) -> ObjectionKind {
    if is_missing(error) {
        ObjectionKind::Missing
    } else if CONFLICTS.contains(&reason(error).as_str()) {
        ObjectionKind::Used
    } else {
        ObjectionKind::Refused
    }
}

/// Whether the node does not have an output that is spent.
pub(super) fn is_missing(error: &RpcError) -> bool {
    MISSING.contains(&reason(error).as_str())
}
