//! Maps nodes' refusals of transactions, and failures of calls, to outcomes.
//!
//! Codes tell little: -32000 is what most nodes say of a transaction that they refuse, and what they and the gateways
//! before them say of their own troubles. So the words count, and of these only what is listed here: what nodes say
//! of a transaction that they have looked at. Any other error leaves it open whether the transaction was taken. A
//! list of the others would never be whole, and what it lacked would be called failed and be paid twice.

use covault_core::fault::ExecuteCode;

use crate::chain_rpc::{
    BroadcastOutcome, ChainError, ChainRefusal, exchange::short, jsonrpc::RpcError,
};

/// The node has it: geth, reth, erigon, besu; nethermind, openethereum, anvil.
const KNOWN: [&str; 4] = [
    "already known",
    "known transaction",
    "already imported",
    "alreadyknown",
];

/// The sender cannot pay amount and fee.
const FUNDS: [&str; 10] = [
    // geth and what is made of it (bsc, coreth, op-geth, nitro), reth, erigon, nethermind, anvil.
    "insufficient funds for gas",
    "insufficient funds for transfer",
    "insufficient balance for transfer",
    "transaction would cause overdraft",
    "transaction overdraws from account",
    // besu.
    "upfront cost exceeds account balance",
    // nethermind before 1.36.
    "insufficientfunds",
    // openethereum, arbitrum before nitro, monad.
    "insufficient funds. the account you tried to send transaction from",
    "not enough funds for gas",
    "signer had insufficient balance",
];

/// The fee is too low, or the gas limit.
const FEE: [&str; 22] = [
    "intrinsic gas too low",
    "insufficient gas for floor data gas cost",
    "transaction underpriced",
    "transaction gas price below minimum",
    "max fee per gas less than block base fee",
    "gas price too low",
    "replacement transaction underpriced",
    "insufficient gas price to replace existing transaction",
    "could not replace existing tx",
    "future transaction tries to replace pending",
    "there is another tx which has the same nonce in the tx pool",
    "there is another transaction with same nonce in the queue",
    "below chain minimum",
    "transaction priority fee below minimum required priority fee",
    "gas price less than block base fee",
    "gasprice is less than gas price minimum floor",
    // besu.
    "intrinsic gas exceeds gas limit",
    "gas price below configured minimum gas price",
    "gas price below current base fee",
    // nethermind before 1.36. `FeeTooLowToCompete` is of the others that wait.
    "feetoolow",
    "replacementnotallowed",
    // monad.
    "gas limit too low",
];

/// Anything else that is wrong with it.
const OTHER: [&str; 47] = [
    "nonce too low",
    "nonce is too low",
    "oldnonce",
    "invalid transaction nonce",
    "ownnoncealreadyused",
    "nonce has max value",
    "exceeds block gas limit",
    "block gas limit exceeded",
    "gas limit is greater than the block gas limit",
    "gas limit reached",
    "gas limit too high",
    "gas limit is too high",
    "gaslimitexceeded",
    "txgaslimitcapexceeded",
    "intrinsic gas too high",
    "oversized data",
    "input data too large",
    "transaction too large",
    "max initcode size exceeded",
    "exceeds max_init_code_size",
    "initcode too large",
    "transaction type not supported",
    "unsupported transaction type",
    "invalid transaction type",
    "unknown transaction type",
    "invalidtxtype",
    "fork supporting this transaction type is not activated yet",
    "transactions allowed over rpc",
    "invalid sender",
    "invalid chain id for signer",
    "wrong chainid",
    "invalidtxchainid",
    "incompatible eip-155 transaction",
    "invalid transaction v, r, s values",
    "failed to decode signed transaction",
    "transaction invalid",
    "sender not an eoa",
    "sender is not an eoa",
    "senderiscontract",
    "max priority fee per gas higher than",
    "max priority fee per gas exceeds max fee per gas",
    "max fee per gas higher than",
    "exceeds the configured cap",
    "transaction fee cap exceeded",
    "sender account not authorized to send transactions",
    "sender or to in black list",
    // nitro and zkSync run a transaction before they take it.
    "execution reverted",
];

/// What erigon's pool says comes after one of these. Without it gateways say the like of their customers.
const RESULTS_OF_ERIGON: [&str; 4] = ["fee_too_low", "stale", "invalid", "internal_error"];
/// And is no more than a word or two.
const OF_ERIGON: [(&str, ExecuteCode); 7] = [
    ("insufficient funds", ExecuteCode::InsufficientFunds),
    ("underpriced", ExecuteCode::InsufficientGasFee),
    ("fee too low", ExecuteCode::InsufficientGasFee),
    ("intrinsicgas", ExecuteCode::InsufficientGasFee),
    ("gasuintoverflow", ExecuteCode::Unspecified),
    ("rlptoolong", ExecuteCode::Unspecified),
    ("negative value", ExecuteCode::Unspecified),
];

/// How a call fails that is tried.
const OF_CALLS: [&str; 15] = [
    "gas required exceeds",
    "gas allowance",
    "out of gas",
    "outofgas",
    "invalid opcode",
    "bad instruction",
    "invalid jump destination",
    "stack underflow",
    "stack limit reached",
    "write protection",
    "max code size exceeded",
    "evm error",
    "insufficient sender balance",
    "transaction processing could not be completed due to an exception",
    "vm execution error",
];

/// What nodes and gateways say of their own troubles. An error with one of these and a refusal in it may be of
/// several nodes that were asked at once.
const TROUBLES: [&str; 17] = [
    "txpool is full",
    "pool is full",
    "try again",
    "too many requests",
    "timeout",
    "timed out",
    "overloaded",
    "unavailable",
    "syncing",
    "header not found",
    "internal server error",
    "deadline exceeded",
    "context canceled",
    "gateway",
    "upstream",
    "connection",
    "unexpected eof",
];

/// What a node's answer to eth_sendRawTransaction means.
pub(super) fn judge(error: &RpcError) -> BroadcastOutcome {
    let said = error.message.to_ascii_lowercase();
    // Anything less plain is settled by whether the nodes know the hash.
    if KNOWN.iter().any(|phrase| says(&said, phrase)) {
        return BroadcastOutcome::Accepted;
    }
    match turned_down(&said).filter(|_| !speaks_of_load(error)) {
        Some(code) => BroadcastOutcome::Refused(refusal(error, code)),
        None => BroadcastOutcome::Unknown(format!("the node said: {}", short(&error.message))),
    }
}

/// The code of what a node says of a transaction that it does not take; `None` when it says nothing of the kind.
fn turned_down(said: &str) -> Option<ExecuteCode> {
    let any = |phrases: &[&str]| phrases.iter().any(|phrase| says(said, phrase));
    let of_erigon = || {
        let (_, reason) = said
            .split_once(": ")
            .filter(|(result, _)| RESULTS_OF_ERIGON.contains(result))?;
        let found = OF_ERIGON.iter().find(|(phrase, _)| *phrase == reason);
        found.map(|(_, code)| *code)
    };
    if any(&FUNDS) {
        Some(ExecuteCode::InsufficientFunds)
    } else if any(&FEE) {
        Some(ExecuteCode::InsufficientGasFee)
    } else if any(&OTHER) {
        Some(ExecuteCode::Unspecified)
    } else {
        of_erigon()
    }
}

/// Whether the words are there and are not part of others: `unknown transaction type` is not a known transaction.
fn says(said: &str, phrase: &str) -> bool {
    said.match_indices(phrase).any(|(at, found)| {
        let before = said.get(..at).and_then(|text| text.chars().next_back());
        let after = said.get(at.saturating_add(found.len())..);
        let after = after.and_then(|text| text.chars().next());
        ![before, after]
            .into_iter()
            .flatten()
            .any(char::is_alphanumeric)
    })
}

/// Whether the node may find it wrong because it, or another node behind the same address, has
/// this very transaction.
pub(super) fn speaks_of_another(error: &RpcError) -> bool {
    let said = error.message.to_ascii_lowercase();
    ["nonce", "already", "replace", "exist", "known"]
        .iter()
        .any(|word| said.contains(word))
}

/// Whether the node says that the number is used.
pub(super) fn speaks_of_number(error: &RpcError) -> bool {
    let said = error.message.to_ascii_lowercase();
    [
        "nonce too low",
        "nonce is too low",
        "oldnonce",
        "already used",
    ]
    .iter()
    .any(|words| said.contains(words))
}

/// Whether the node may say something else later.
pub(super) fn speaks_of_load(error: &RpcError) -> bool {
    let said = error.message.to_ascii_lowercase();
    TROUBLES.iter().any(|words| said.contains(words))
        || error.code == -32603 && said.contains("internal error")
}

/// What nodes say of a block that they know by no such name: geth and what is made of it, erigon, nethermind, besu,
/// reth and gateways.
const NO_SUCH_BLOCK: [&str; 11] = [
    "block not found",
    "unknown block",
    "no such block",
    "invalid block",
    "not a valid block",
    "invalid argument",
    "invalid params",
    "invalid tag",
    "tag not supported",
    "unsupported block tag",
    "hex string without 0x prefix",
];

/// Whether the node does not know a block by the name that was used, or not the method.
pub(super) fn knows_no_such_block(error: &RpcError) -> bool {
    let said = error.message.to_ascii_lowercase();
    !speaks_of_load(error)
        // EIP-1474's -32601 and -32602, and the unknown block of the execution API.
        && (matches!(error.code, -32601 | -32602 | -39001)
            || NO_SUCH_BLOCK.iter().any(|phrase| says(&said, phrase)))
}

fn refusal(error: &RpcError, code: ExecuteCode) -> ChainRefusal {
    let hint = match code {
        ExecuteCode::InsufficientFunds => "the sender cannot pay amount and fee; the node said: ",
        ExecuteCode::InsufficientGasFee => "the fee or gas limit is too low; the node said: ",
        _ => "the node refused the transaction: ",
    };
    ChainRefusal {
        reason: format!("{hint}{}", short(&error.message)),
        code,
    }
}

/// An error of a call that is tried: it reverts or cannot be paid, or the node cannot say it now. -32015 is what
/// nethermind says of one that fails.
pub(super) fn refused_call(error: &RpcError) -> ChainError {
    let said = error.message.to_ascii_lowercase();
    let of_calls = OF_CALLS.iter().any(|phrase| says(&said, phrase));
    let code = match turned_down(&said) {
        Some(code) => Some(code),
        None if of_calls && said.contains("gas") => Some(ExecuteCode::InsufficientGasFee),
        None if of_calls || error.code == -32015 => Some(ExecuteCode::Unspecified),
        None => None,
    };
    match code.filter(|_| !speaks_of_load(error)) {
        Some(code) => ChainError::Refused(refusal(error, code)),
        None if reverted(error) => ChainError::Refused(refusal(error, ExecuteCode::Unspecified)),
        None => ChainError::Unknown(format!("the node said: {}", short(&error.message))),
    }
}

/// Whether a call reverts, whatever it says itself. 3 is geth's code of that.
pub(super) fn reverted(error: &RpcError) -> bool {
    error.code == 3 || error.message.to_ascii_lowercase().contains("revert")
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn said(code: i64, message: &str) -> RpcError {
        RpcError {
            code,
            message: message.into(),
            data: Value::Null,
        }
    }

    #[test]
    fn judge__should_take_a_known_transaction_for_accepted() {
        for words in [
            "already known",
            "known transaction: 0x12",
            "AlreadyKnown",
            "transaction already imported",
            "INTERNAL_ERROR: already known",
            "Tx: [0x12] already Imported",
        ] {
            assert_eq!(
                judge(&said(-32000, words)),
                BroadcastOutcome::Accepted,
                "{words}"
            );
        }
    }

    #[test]
    fn judge__should_not_take_an_unknown_transaction_for_accepted() {
        for (words, refused) in [
            ("unknown transaction type", true),
            ("Unknown transaction type: 2", true),
            ("block gas limit exceeded", true),
            ("a transaction of this nonce already exists", false),
        ] {
            let verdict = judge(&said(-32000, words));
            assert_eq!(
                matches!(verdict, BroadcastOutcome::Refused(_)),
                refused,
                "{words}"
            );
            assert_ne!(verdict, BroadcastOutcome::Accepted, "{words}");
        }
    }

    #[test]
    fn judge__should_refuse_for_good_what_nodes_turn_down() {
        use ExecuteCode::{InsufficientFunds, InsufficientGasFee, Unspecified};
        for (code, words, expected) in [
            // geth, bsc, coreth, op-geth, nitro.
            (
                -32000,
                "insufficient funds for gas * price + value: balance 0, tx cost 21000, overshot 21000",
                InsufficientFunds,
            ),
            (
                -32000,
                "insufficient funds for gas * price + value: address 0x1 have (0) want (1)",
                InsufficientFunds,
            ),
            (
                -32000,
                "intrinsic gas too low: gas 1, minimum needed 21000",
                InsufficientGasFee,
            ),
            (
                -32000,
                "transaction underpriced: gas tip cap 0, minimum needed 1",
                InsufficientGasFee,
            ),
            (
                -32000,
                "max fee per gas less than block base fee: address 0x1, maxFeePerGas: 1, baseFee: 2",
                InsufficientGasFee,
            ),
            (
                -32000,
                "nonce too low: next nonce 7, tx nonce 5",
                Unspecified,
            ),
            (-32000, "exceeds block gas limit", Unspecified),
            (
                -32000,
                "transaction type not supported: type 2 rejected, pool not yet in London",
                Unspecified,
            ),
            (
                -32000,
                "oversized data: transaction size 131073, limit 131072",
                Unspecified,
            ),
            (
                -32000,
                "tx fee (2.00 ether) exceeds the configured cap (1.00 ether)",
                Unspecified,
            ),
            (-32000, "sender or to in black list", Unspecified),
            (3, "execution reverted: not today", Unspecified),
            // reth.
            (
                -32003,
                "insufficient funds for gas * price + value: have 0 want 1",
                InsufficientFunds,
            ),
            (
                -32000,
                "transaction feeCap 1 below chain minimum",
                InsufficientGasFee,
            ),
            // erigon.
            (
                -32000,
                "INTERNAL_ERROR: insufficient funds",
                InsufficientFunds,
            ),
            (-32000, "FEE_TOO_LOW: underpriced", InsufficientGasFee),
            (-32000, "INTERNAL_ERROR: IntrinsicGas", InsufficientGasFee),
            // nethermind, old and new.
            (
                -32010,
                "InsufficientFunds, Account balance: 0, cumulative cost: 21000",
                InsufficientFunds,
            ),
            (
                -32010,
                "FeeTooLow, MaxFeePerGas too low. MaxFeePerGas: 1",
                InsufficientGasFee,
            ),
            (
                -32010,
                "OldNonce, Current nonce: 7, nonce of rejected tx: 5",
                Unspecified,
            ),
            (-32000, "gas limit reached, Gas limit: 1", Unspecified),
            // besu.
            (
                -32004,
                "Upfront cost exceeds account balance",
                InsufficientFunds,
            ),
            (
                -32009,
                "Gas price below configured minimum gas price",
                InsufficientGasFee,
            ),
            (
                -32003,
                "Intrinsic gas exceeds gas limit",
                InsufficientGasFee,
            ),
            (-32001, "Nonce too low", Unspecified),
            // anvil.
            (
                -32003,
                "Insufficient funds for gas * price + value",
                InsufficientFunds,
            ),
            (
                -32003,
                "Tx: [0x12] insufficient gas price to replace existing transaction",
                InsufficientGasFee,
            ),
        ] {
            match judge(&said(code, words)) {
                BroadcastOutcome::Refused(refusal) => {
                    assert_eq!(refusal.code, expected, "{words}");
                }
                other => panic!("{words}: {other:?}"),
            }
        }
    }

    #[test]
    fn judge__should_leave_open_whatever_is_not_said_of_the_transaction() {
        for (code, words) in [
            // Pools that have no room now, or wait for an earlier number.
            (-32000, "txpool is full"),
            (-32000, "account limit exceeded: pooled 64 txs"),
            (
                -32000,
                "in-flight transaction limit reached for delegated accounts",
            ),
            (-32000, "sequencer pending tx pool full, please try again"),
            (-32010, "FeeTooLowToCompete"),
            (-32000, "pending sub-pool is full"),
            (-32000, "nonce too high: tx nonce 9, gapped nonce 5"),
            (-32006, "Nonce too high"),
            (
                -32000,
                "transaction discarded outright due to pool size constraints",
            ),
            // Nodes that are behind or broken.
            (-32000, "node is syncing"),
            (-32008, "Initial sync is still in progress"),
            (-32000, "header not found"),
            (
                -32000,
                "missing trie node 12 (path ) state 0x1 is not available",
            ),
            (-32000, "World state unavailable"),
            (-32000, "request timeout"),
            (-32000, "not synced"),
            (-32000, "database closed"),
            (-32603, "internal error"),
            (-32603, "Unknown internal error"),
            (
                -32601,
                "the method eth_sendRawTransaction does not exist/is not available",
            ),
            (-32000, ""),
            // Gateways.
            (-32000, "daily request limit exceeded"),
            (-32000, "Insufficient funds"),
            (-32000, "billing: insufficient funds"),
            (
                -32000,
                "insufficient funds in your account: top up to go on",
            ),
            (-32000, "Your plan has insufficient balance"),
            (-32052, "API key is not allowed to access blockchain"),
            (-32000, "Unauthorized: invalid signature"),
            (-32000, "no backends available for method"),
            (-32000, "bad response from the node: <html>"),
            (-32099, "something that no node says today"),
            // Several nodes asked at once.
            (
                -32000,
                "1 of 2 backends: insufficient funds for gas * price + value; the other: i/o timeout",
            ),
        ] {
            let verdict = judge(&said(code, words));
            assert!(
                matches!(verdict, BroadcastOutcome::Unknown(_)),
                "{words}: {verdict:?}"
            );
        }
    }

    #[test]
    fn refused_call__should_wait_for_whatever_does_not_speak_of_the_call() {
        for (code, words, refused) in [
            (-32015, "VM execution error.", true),
            (3, "", true),
            (3, "execution reverted: the gateway says no", true),
            (-32000, "gas required exceeds allowance (0)", true),
            (-32000, "insufficient funds for transfer", true),
            (-32000, "invalid opcode: INVALID", true),
            (-32000, "missing trie node", false),
            (-32000, "header not found", false),
            (-32000, "request timed out", false),
            (-32000, "request exceeds your quota", false),
            (-32603, "internal error", false),
        ] {
            let answer = refused_call(&said(code, words));
            assert_eq!(matches!(answer, ChainError::Refused(_)), refused, "{words}");
        }
    }

    #[test]
    fn judge__should_name_the_code_of_a_refusal() {
        let code = |words: &str| match judge(&said(-32000, words)) {
            BroadcastOutcome::Refused(refusal) => refusal.code,
            other => panic!("{words}: {other:?}"),
        };
        assert_eq!(
            code("insufficient funds for gas * price + value: balance 0"),
            ExecuteCode::InsufficientFunds
        );
        assert_eq!(
            code("Insufficient funds for gas * price + value"),
            ExecuteCode::InsufficientFunds
        );
        assert_eq!(
            code("intrinsic gas too low: gas 1"),
            ExecuteCode::InsufficientGasFee
        );
        assert_eq!(
            code("transaction underpriced"),
            ExecuteCode::InsufficientGasFee
        );
        assert_eq!(code("nonce too low"), ExecuteCode::Unspecified);
    }

    #[test]
    fn judge__should_not_refuse_for_good_what_may_work_later() {
        for words in [
            "txpool is full",
            "request timeout",
            "node is syncing",
            "daily request limit exceeded",
        ] {
            assert!(
                matches!(judge(&said(-32000, words)), BroadcastOutcome::Unknown(_)),
                "{words}"
            );
        }
    }
}
