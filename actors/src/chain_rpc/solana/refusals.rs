//! What it means that a node does not take a transaction.
//!
//! Only what stands here is a refusal. Everything else, what nobody has seen before too, is trouble that may pass: a
//! request is not failed by words that someone has forgotten to list.

use covault_core::{
    fault::ExecuteCode,
    networks::solana::token::{TOKEN, TOKEN_2022},
};
use serde_json::Value;

use crate::chain_rpc::{ChainRefusal, exchange::short, jsonrpc::RpcError};

/// Errors of the network (`TransactionError`) by which a node does not take a transaction, and how their sentences
/// begin, for nodes that say nothing but that. Those that pass by themselves are left out.
const ERRORS: [(&str, &str); 24] = [
    ("AccountLoadedTwice", "Account loaded twice"),
    (
        "AccountNotFound",
        "Attempt to debit an account but found no record of a prior credit",
    ),
    (
        "ProgramAccountNotFound",
        "Attempt to load a program that does not exist",
    ),
    ("InsufficientFundsForFee", "Insufficient funds for fee"),
    (
        "InvalidAccountForFee",
        "This account may not be used to pay transaction fees",
    ),
    (
        ALREADY_PROCESSED,
        "This transaction has already been processed",
    ),
    (BLOCKHASH_NOT_FOUND, "Blockhash not found"),
    ("InstructionError", "Error processing Instruction "),
    ("CallChainTooDeep", "Loader call chain is too deep"),
    (
        "MissingSignatureForFee",
        "Transaction requires a fee but has no signature present",
    ),
    (
        "InvalidAccountIndex",
        "Transaction contains an invalid account reference",
    ),
    (
        "SignatureFailure",
        "Transaction did not pass signature verification",
    ),
    (
        "InvalidProgramForExecution",
        "This program may not be used for executing instructions",
    ),
    (
        "SanitizeFailure",
        "Transaction failed to sanitize accounts offsets correctly",
    ),
    ("UnsupportedVersion", "Transaction version is unsupported"),
    (
        "InvalidWritableAccount",
        "Transaction loads a writable account that cannot be written",
    ),
    (
        "TooManyAccountLocks",
        "Transaction locked too many accounts",
    ),
    (
        "InvalidAddressLookupTableOwner",
        "Transaction loads an address table account with an invalid owner",
    ),
    (
        "InvalidAddressLookupTableData",
        "Transaction loads an address table account with invalid data",
    ),
    (
        "InvalidRentPayingAccount",
        "Transaction leaves an account with a lower balance than rent-exempt minimum",
    ),
    (
        "DuplicateInstruction",
        "Transaction contains a duplicate instruction ",
    ),
    (
        "InsufficientFundsForRent",
        "Transaction results in an account (",
    ),
    (
        "MaxLoadedAccountsDataSizeExceeded",
        "Transaction exceeded max loaded accounts data size cap",
    ),
    (
        "InvalidLoadedAccountsDataSizeLimit",
        "LoadedAccountsDataSizeLimit set for transaction must be greater than 0",
    ),
];
const ALREADY_PROCESSED: &str = "AlreadyProcessed";
const BLOCKHASH_NOT_FOUND: &str = "BlockhashNotFound";

/// How a node's sentences begin about bytes that are no transaction for it.
const UNREADABLE: [&str; 8] = [
    "Transaction signature verification failure",
    "Transaction precompile verification failure",
    "Transaction signature length mismatch",
    "Transaction version (",
    "invalid transaction: ",
    "failed to deserialize ",
    "base64 encoded ",
    "decoded ",
];

/// In front of the outcome of trying a transaction before it is sent on.
const PREFLIGHT: &str = "Transaction simulation failed: ";

/// What an answer other than a result means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SolanaVerdict {
    /// The transaction is in a block.
    Processed,
    /// The node does not know its blockhash, or nonce.
    NoBlockhash,
    /// It may pass.
    Later,
    /// As things stand it cannot be.
    Refused(ChainRefusal),
}

pub(super) fn judge(error: &RpcError) -> SolanaVerdict {
    let name = error_name(error);
    match name {
        Some(ALREADY_PROCESSED) => return SolanaVerdict::Processed,
        Some(BLOCKHASH_NOT_FOUND) => return SolanaVerdict::NoBlockhash,
        Some(_) => {}
        None if begins_with(error, &UNREADABLE) => {}
        None => return SolanaVerdict::Later,
    }
    // Not with the logs: these are programs' own words.
    let data = error.data.get("err").unwrap_or(&Value::Null);
    let said = format!("{} {data}", error.message).to_ascii_lowercase();
    let (code, hint) = match name.unwrap_or_default() {
        "InsufficientFundsForRent" if account_index(&said).is_some_and(|index| index != "0") => (
            ExecuteCode::Unspecified,
            "an account would be left with less than the network demands of it (rent), such as one \
             that is new and gets too little; the node said: ",
        ),
        "InsufficientFundsForRent" | "AccountNotFound" => {
            (ExecuteCode::InsufficientFunds, CANNOT_PAY)
        }
        "InstructionError" if lacks(error, &said) => (ExecuteCode::InsufficientFunds, CANNOT_PAY),
        "InsufficientFundsForFee" => (
            ExecuteCode::InsufficientGasFee,
            "the sender cannot pay the fee; the node said: ",
        ),
        _ => (
            ExecuteCode::Unspecified,
            "the node refused the transaction: ",
        ),
    };
    SolanaVerdict::Refused(ChainRefusal {
        reason: format!("{hint}{}", short(&error.message)),
        code,
    })
}

const CANNOT_PAY: &str = "the sender cannot pay the amount; the node said: ";

/// The network's error that a node names, of those that stand here: in `data.err`, else in its sentence.
fn error_name(error: &RpcError) -> Option<&'static str> {
    let is_it = |(name, sentence): &&(&'static str, &str)| match error.data.get("err") {
        Some(Value::String(said)) => said == name,
        Some(Value::Object(said)) => said.contains_key(*name),
        _ => begins_with(error, &[sentence]),
    };
    ERRORS.iter().find(is_it).map(|(name, _)| *name)
}

/// Whether a node's words begin with one of these sentences.
fn begins_with(error: &RpcError, sentences: &[&str]) -> bool {
    let (_, said) = error
        .message
        .split_once(PREFLIGHT)
        .unwrap_or(("", &error.message));
    sentences.iter().any(|sentence| {
        said.get(..sentence.len())
            .is_some_and(|begin| begin.eq_ignore_ascii_case(sentence))
    })
}

/// Whether a program says that there is too little: that is error 1 of the system and token
/// programs. Of others it means something else.
fn lacks(error: &RpcError, said: &str) -> bool {
    let ours = || {
        let logs = error.data.get("logs")?.as_array()?;
        let failed = |line: &str| {
            let (program, _) = line.strip_prefix("Program ")?.split_once(" failed: ")?;
            // `Program log: ...` are a program's own words.
            (!program.contains(' ')).then(|| program.to_owned())
        };
        // Of programs that call each other, the innermost fails first.
        let program = logs.iter().find_map(|line| failed(line.as_str()?))?;
        Some([SYSTEM.to_owned(), TOKEN.to_string(), TOKEN_2022.to_string()].contains(&program))
    };
    custom_error(said) == Some("1") && ours().unwrap_or(true)
}

const SYSTEM: &str = "11111111111111111111111111111111";

/// The hex digits of a program's own error.
fn custom_error(said: &str) -> Option<&str> {
    let (_, rest) = said.split_once("custom program error: 0x")?;
    rest.split(|other: char| !other.is_ascii_hexdigit()).next()
}

/// The account that an error is about: `account (1)`, or `account_index` in its data.
fn account_index(said: &str) -> Option<&str> {
    let rest = [r"account (", "account_index"]
        .iter()
        .find_map(|words| said.split_once(words))?
        .1;
    rest.split(|other: char| !other.is_ascii_digit())
        .find(|digits| !digits.is_empty())
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use serde_json::json;

    use super::*;

    fn error(code: i64, message: &str, data: Value) -> RpcError {
        RpcError {
            code,
            message: message.into(),
            data,
        }
    }

    fn said(message: &str) -> RpcError {
        let message = format!("Transaction simulation failed: {message}");
        error(-32002, &message, Value::Null)
    }

    #[track_caller]
    fn refused(error: &RpcError) -> ChainRefusal {
        match judge(error) {
            SolanaVerdict::Refused(refusal) => refusal,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn judge__should_know_a_transaction_that_was_processed() {
        let words = said("This transaction has already been processed");
        assert_eq!(judge(&words), SolanaVerdict::Processed);
        let data = error(-32002, "no", json!({"err": "AlreadyProcessed"}));
        assert_eq!(judge(&data), SolanaVerdict::Processed);
    }

    #[test]
    fn judge__should_know_a_blockhash_that_the_node_does_not() {
        assert_eq!(
            judge(&said("Blockhash not found")),
            SolanaVerdict::NoBlockhash
        );
        let data = error(-32002, "no", json!({"err": "BlockhashNotFound"}));
        assert_eq!(judge(&data), SolanaVerdict::NoBlockhash);
    }

    #[test]
    fn judge__should_not_refuse_for_good_what_may_work_later() {
        for (code, words) in [
            (-32005, "Node is behind by 42 slots"),
            (-32016, "Minimum context slot has not been reached"),
            (-32603, "Internal error"),
            (-32601, "Method not found"),
            (-32002, "Transaction simulation failed: Account in use"),
        ] {
            assert_eq!(
                judge(&error(code, words, Value::Null)),
                SolanaVerdict::Later,
                "{words}"
            );
        }
    }

    #[test]
    fn judge__should_name_the_code_of_a_refusal() {
        use ExecuteCode::{InsufficientFunds, InsufficientGasFee, Unspecified};
        for (words, code) in [
            (
                "Attempt to debit an account but found no record of a prior credit.",
                InsufficientFunds,
            ),
            ("Insufficient funds for fee", InsufficientGasFee),
            (
                "Error processing Instruction 0: custom program error: 0x1",
                InsufficientFunds,
            ),
            (
                "Error processing Instruction 0: custom program error: 0x1 [3 log messages]",
                InsufficientFunds,
            ),
            (
                "Error processing Instruction 0: custom program error: 0x1771",
                Unspecified,
            ),
            (
                "Transaction results in an account (0) with insufficient funds for rent",
                InsufficientFunds,
            ),
            (
                "Transaction results in an account (1) with insufficient funds for rent",
                Unspecified,
            ),
            ("Transaction signature verification failure", Unspecified),
        ] {
            assert_eq!(refused(&said(words)).code, code, "{words}");
        }
        let rent = json!({"err": {"InsufficientFundsForRent": {"account_index": 1}}});
        let refusal = refused(&error(-32002, "no", rent));
        assert_eq!(refusal.code, Unspecified);
        assert!(refusal.reason.contains("rent"), "{refusal:?}");
    }

    #[test]
    fn judge__should_not_take_the_error_of_any_program_for_too_little() {
        let token = TOKEN.to_string();
        let other = "MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgLMDGEcGL";
        for (innermost, code) in [
            (SYSTEM, ExecuteCode::InsufficientFunds),
            (&token, ExecuteCode::InsufficientFunds),
            (other, ExecuteCode::Unspecified),
        ] {
            let logs = json!({"logs": [
                format!("Program {other} invoke [1]"),
                "Program log: \"Program x failed: y\"",
                format!("Program {innermost} failed: custom program error: 0x1"),
                format!("Program {other} failed: custom program error: 0x1"),
            ]});
            let words = "Error processing Instruction 0: custom program error: 0x1";
            let refusal = refused(&error(-32002, words, logs));
            assert_eq!(refusal.code, code, "{innermost}");
        }
    }

    #[test]
    fn judge__should_refuse_for_nothing_that_it_does_not_know() {
        for (code, words, data) in [
            (-32000, "upstream request timeout", Value::Null),
            (-32002, "no", json!({"err": "CommitCancelled"})),
            (-32002, "no", json!({"err": {"ErrorOfTheFuture": 3}})),
            (-32602, "invalid api key", Value::Null),
            // A program's own words say nothing about the transaction.
            (
                -32002,
                "no",
                json!({"err": "BailOut", "logs": ["Program log: already been processed",
                    "Program log: Insufficient funds for fee"]}),
            ),
        ] {
            let judged = judge(&error(code, words, data));
            assert_eq!(judged, SolanaVerdict::Later, "{words}");
        }
    }

    #[test]
    fn judge__should_know_each_error_by_its_name_and_by_its_sentence() {
        for (name, sentence) in ERRORS {
            let by_name = judge(&error(-32002, "no", json!({"err": name})));
            let by_sentence = judge(&said(sentence));
            assert_ne!(by_name, SolanaVerdict::Later, "{name}");
            let same = std::mem::discriminant(&by_name) == std::mem::discriminant(&by_sentence);
            assert!(same, "{name}: {by_sentence:?}");
        }
        let custom = json!({"err": {"InstructionError": [0, {"Custom": 1}]}});
        assert_eq!(
            refused(&error(-32002, "custom program error: 0x1", custom)).code,
            ExecuteCode::InsufficientFunds
        );
    }
}
