//! What nodes say of transactions that they do not take. The words are those of Bitcoin Core and Knots.

use covault_core::fault::ExecuteCode;

use crate::chain_rpc::{BroadcastOutcome, ChainRefusal, exchange::short, jsonrpc::RpcError};

/// The node has it. -27 says so too.
const KNOWN: [&str; 4] = [
    "txn-already-in-mempool",
    "txn-already-known",
    "already in block chain",
    "already in utxo set",
];

/// The mempool is full, for the fee; it waits for its own transactions before, or for blocks.
const LATER: [&str; 8] = [
    "mempool min fee not met",
    "mempool full",
    "mempool-limits",
    "too-long-mempool-chain",
    "too-large-cluster",
    "premature-spend-of-coinbase",
    "non-final",
    "non-bip68-final",
];

/// What the rules of the network, or of the node, have against it: reasons of `TxValidationState`. Whatever else a node
/// says leaves it open.
const REFUSALS: [&str; 25] = [
    "bad-txns-",
    "missing inputs",
    "min relay fee not met",
    "insufficient fee",
    "max-fee-exceeded",
    "max feerate exceeded",
    "fee exceeds maximum configured",
    "output exceeds maximum configured",
    "txn-mempool-conflict",
    "txn-same-nonwitness-data-in-mempool",
    "too many potential replacements",
    "replacement-adds-unconfirmed",
    "replacement-failed",
    "truc-violation",
    "script-verify-flag",
    "bad-witness-nonstandard",
    "dust",
    "tx-size",
    "scriptsig-",
    "scriptpubkey",
    "bare-multisig",
    "datacarrier",
    "multi-op-return",
    "version",
    "decode failed",
];

/// What a node's answer to sendrawtransaction means.
pub(super) fn judge(error: &RpcError) -> BroadcastOutcome {
    let said = error.message.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
    if error.code == -27 || has(&KNOWN) {
        return BroadcastOutcome::Accepted;
    }
    // -22: no transaction; -25: inputs or fee; -26: the rules of the network or of the node. The
    // others are about the node.
    if !matches!(error.code, -22 | -25 | -26) || has(&LATER) || !has(&REFUSALS) {
        return BroadcastOutcome::Unknown(format!("the node said: {}", short(&error.message)));
    }
    let (code, hint) = if has(&["min relay fee not met"]) {
        (
            ExecuteCode::InsufficientGasFee,
            "networkFee is below what the node takes; the node said: ",
        )
    } else if is_missing(error) || is_conflict(error) {
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

/// Whether the node does not have an output that is spent: it is spent already, or not there yet.
pub(super) fn is_missing(error: &RpcError) -> bool {
    let said = error.message.to_ascii_lowercase();
    said.contains("missingorspent") || said.contains("missing inputs")
}

/// Whether the mempool has another transaction that spends the same.
fn is_conflict(error: &RpcError) -> bool {
    let said = error.message.to_ascii_lowercase();
    ["conflict", "replace", "txn-same-nonwitness"]
        .iter()
        .any(|word| said.contains(word))
}
