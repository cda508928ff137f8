//! What a token's contract says of it (EIP-20). It is the contract's word, through nodes that may lie.

use covault_core::{
    amount::{self, U256, parse_u256},
    fault::{ExecuteCode, Fault},
    networks::{Payload, evm::EvmCall},
};
use serde_json::{Value, json};

use super::{
    EvmNode,
    refusals::{refused_call, reverted},
    transaction,
};
use crate::chain_rpc::{
    ChainError, TokenFacts,
    jsonrpc::{RpcCall, RpcCallError, RpcError},
};

/// Selector of `balanceOf(address)`.
const BALANCE_OF: &str = "70a08231";
/// Selector of `decimals()`.
pub const DECIMALS: &str = "0x313ce567";
/// Selector of `symbol()`.
pub const SYMBOL: &str = "0x95d89b41";
/// Most decimals that anything has: more than that fit no amount.
pub const MAX_DECIMALS: u8 = 77;
/// Most characters of a symbol.
const MAX_SYMBOL: usize = 32;
const WORD: usize = 32;

/// What one node says of a token's transfer that is tried.
#[derive(PartialEq)]
enum TokenReply {
    Passes,
    /// It may pass when it is mined: the estimate of its gas decides, where it is asked for.
    Reverts,
    Nothing,
    SaysNo,
    Unknown(ChainError),
}

impl TokenReply {
    fn of(said: Result<Value, RpcError>) -> Self {
        let returned = match said {
            Ok(returned) => returned,
            Err(error) => {
                return match refused_call(&error) {
                    ChainError::Refused(_) => Self::Reverts,
                    unknown => Self::Unknown(unknown),
                };
            }
        };
        match returned.as_str().and_then(|text| text.strip_prefix("0x")) {
            Some("") => Self::Nothing,
            Some(word) if word.len() >= 64 && word.bytes().all(|digit| digit == b'0') => {
                Self::SaysNo
            }
            _ => Self::Passes,
        }
    }
}

impl EvmNode {
    /// A transfer to an address without code does nothing and succeeds, and some tokens say no with `false`
    /// instead of a revert (EIP-20).
    pub(super) async fn try_token_transfer(&self, payload: &Payload) -> Result<(), ChainError> {
        let Payload::Evm(evm) = payload else {
            return Ok(());
        };
        let Some(call) = evm.token_transfer() else {
            return Ok(());
        };
        let params = json!([transaction(payload.from(), &call), "latest"]);
        let said = self
            .rpc
            .voices(RpcCall("eth_call", params), |one, other| one == other);
        let said: Vec<_> = said.await?.into_iter().map(TokenReply::of).collect();
        let agree = self.rpc.agree();
        let voices = |reply: &TokenReply| said.iter().filter(|one| *one == reply).count();
        if voices(&TokenReply::SaysNo) >= agree {
            let reason = "the token refuses the transfer: it returns false";
            return Err(ChainError::refused(reason, ExecuteCode::Unspecified));
        }
        // Some tokens return nothing.
        if voices(&TokenReply::Nothing) >= agree {
            let code = RpcCall("eth_getCode", json!([call.to, "latest"]));
            let is_contract = |code: &Value| code.as_str().map(|code| code != "0x");
            if !self.rpc.query_quorum(code, is_contract).await? {
                let reason = "there is no token contract at tokenContractAddress";
                return Err(ChainError::refused(reason, ExecuteCode::Unspecified));
            }
            return Ok(());
        }
        // A lying node must not cause a payment in something that is not a token.
        let reverts = voices(&TokenReply::Reverts);
        if voices(&TokenReply::Passes).saturating_add(reverts) >= agree {
            return match reverts >= agree && evm.brings_gas() {
                true => self.check_token_balance(payload.from(), &call).await,
                false => Ok(()),
            };
        }
        let unknown = said.into_iter().find_map(|reply| match reply {
            TokenReply::Unknown(error) => Some(error),
            _ => None,
        });
        Err(unknown.unwrap_or_else(|| ChainError::unknown("the nodes disagree about the token")))
    }

    /// A transfer that reverts although it brings its gas may be of more than there is: mined it pays nobody, and costs its
    /// fee.
    async fn check_token_balance(&self, owner: &str, call: &EvmCall) -> Result<(), ChainError> {
        // The last word that it calls with.
        let amount = call
            .data
            .last_chunk::<WORD>()
            .copied()
            .map(U256::from_be_bytes);
        let (Some(token), Some(amount)) = (&call.to, amount) else {
            return Ok(());
        };
        let has = match self.token_word(token, balance_call(owner)).await {
            Ok(has) => has,
            // It does not say what it holds.
            Err(ChainError::Refused(_)) => return Ok(()),
            Err(unknown) => return Err(unknown),
        };
        if parse_u256(&has).is_ok_and(|has| has < amount) {
            let problem = format!("is {amount}, and the wallet has {has} of this token");
            return Err(ChainError::lacks(
                &Fault::field("amount", problem).with_execute_code(ExecuteCode::InsufficientFunds),
            ));
        }
        Ok(())
    }

    /// The number that a token's contract answers to a call, decimal.
    pub(super) async fn token_word(&self, token: &str, data: String) -> Result<String, ChainError> {
        let params = json!([{"to": token, "data": data}, "latest"]);
        // The first word of the answer, as ABI decoders read it. The contract is one that the
        // client named: it can answer anything.
        let read = |answer: &Value| {
            let digits = answer.as_str()?.strip_prefix("0x")?;
            Some(digits.get(..64).and_then(amount::hex_to_decimal))
        };
        let not_a_token = || {
            ChainError::refused(
                "there is no token contract at this address",
                ExecuteCode::Unspecified,
            )
        };
        match self
            .rpc
            .query_quorum(RpcCall("eth_call", params), read)
            .await
        {
            Err(RpcCallError::Node(error)) if reverted(&error) => Err(not_a_token()),
            answer => answer?.ok_or_else(not_a_token),
        }
    }
}

/// The call that asks what an address has of a token.
pub(super) fn balance_call(owner: &str) -> String {
    format!("0x{BALANCE_OF}{}", word_of(owner))
}

/// An address in canonical form as a word of call data, hexadecimal.
pub(super) fn word_of(address: &str) -> String {
    let digits = address.trim_start_matches("0x").to_ascii_lowercase();
    format!("{digits:0>64}")
}

/// What both answers say, each as hex digits with `0x`.
///
/// # Errors
/// When the decimals are no number of decimals.
pub fn facts(decimals: &str, symbol: &str) -> Result<TokenFacts, ChainError> {
    let word = decimals
        .strip_prefix("0x")
        .and_then(|digits| digits.get(..2 * WORD));
    let number = word.and_then(amount::hex_to_decimal);
    let decimals: Option<u8> = number.and_then(|number| number.parse().ok());
    match decimals.filter(|decimals| *decimals <= MAX_DECIMALS) {
        Some(decimals) => Ok(TokenFacts {
            decimals,
            symbol: read_symbol(symbol).unwrap_or_default(),
        }),
        None => Err(ChainError::unknown(
            "the contract does not say its decimals",
        )),
    }
}

/// A text as the ABI has it, or as tokens did before there was one: 32 bytes, filled up with zeros.
fn read_symbol(answer: &str) -> Option<String> {
    let bytes = hex::decode(answer.strip_prefix("0x")?).ok()?;
    let text = match bytes.len() {
        WORD => bytes.split(|byte| *byte == 0).next()?,
        _ => {
            let length = bytes.get(WORD..2 * WORD)?;
            let (zeros, low) = length.split_last_chunk::<8>()?;
            let length = usize::try_from(u64::from_be_bytes(*low)).ok()?;
            let is_small = zeros.iter().all(|byte| *byte == 0);
            bytes.get(2 * WORD..)?.get(..length).filter(|_| is_small)?
        }
    };
    let text = std::str::from_utf8(text).ok()?;
    Some(text.chars().take(MAX_SYMBOL).collect())
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn facts__should_be_read_as_tokens_of_every_age_write_them() {
        let six = format!("0x{:064x}", 6);
        let string = format!("0x{:064x}{:064x}{:0<64}", 32, 4, hex::encode("USDT"));
        let bytes = format!("0x{:0<64}", hex::encode("MKR"));
        for (symbol, expected) in [
            (string.as_str(), "USDT"),
            (&bytes, "MKR"),
            ("0x", ""),
            ("", ""),
            (&format!("0x{:064x}{}", 32, "f".repeat(64)), ""),
            (&format!("0x{:064x}{:064x}ff", 32, 1), ""),
        ] {
            let read = facts(&six, symbol).unwrap();
            assert_eq!((read.decimals, read.symbol.as_str()), (6, expected));
        }
        for decimals in [
            "0x",
            "",
            "0x06",
            &format!("0x{:064x}", 78),
            &format!("0x{}", "f".repeat(64)),
        ] {
            assert_eq!(facts(decimals, &string).ok(), None, "{decimals}");
        }
        let long = format!("0x{:064x}{:064x}{}", 32, 40, "41".repeat(40));
        assert_eq!(facts(&six, &long).unwrap().symbol.len(), MAX_SYMBOL);
    }
}
