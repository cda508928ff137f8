//! What a transaction does, and the call that it makes.

use alloy_primitives::{Address, U256};

use super::chain_data::EvmCall;

/// What a transaction does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvmAction {
    /// Sends the chain's coin.
    SendNative {
        /// Recipient.
        to: Address,
        /// wei.
        value: U256,
    },
    /// Calls `transfer` of an ERC-20 contract (EIP-20).
    SendErc20 {
        /// Recipient of the tokens.
        to: Address,
        /// The contract.
        token: Address,
        /// In the token's smallest unit.
        amount: U256,
    },
    /// Any call, or the creation of a contract.
    SendCustom {
        /// The contract or recipient; `None` creates a contract.
        to: Option<Address>,
        /// wei.
        value: U256,
        /// Call data, or the init code of a new contract.
        input: Vec<u8>,
    },
}

/// Gas of any transaction (yellow paper, G_transaction).
const TRANSACTION_GAS: u64 = 21_000;

/// Gas of creating a contract on top (EIP-2).
const CREATION_GAS: u64 = 32_000;

/// Gas per zero byte of call data.
const ZERO_BYTE_GAS: u64 = 4;

/// Gas per other byte of call data (EIP-2028).
const OTHER_BYTE_GAS: u64 = 16;

/// Selector of `transfer(address,uint256)` (EIP-20).
pub(super) const TRANSFER: [u8; 4] = [0xa9, 0x05, 0x9c, 0xbb];

pub(super) struct CallParts {
    pub(super) to: Option<Address>,
    pub(super) value: U256,
    pub(super) input: Vec<u8>,
}

pub(super) fn parts(action: &EvmAction) -> CallParts {
    match action {
        EvmAction::SendNative { to, value } => CallParts {
            to: Some(*to),
            value: *value,
            input: Vec::new(),
        },
        EvmAction::SendErc20 { to, token, amount } => {
            // ABI encoding of two static words.
            let mut input = TRANSFER.to_vec();
            input.extend_from_slice(to.into_word().as_slice());
            input.extend_from_slice(&amount.to_be_bytes::<32>());
            CallParts {
                to: Some(*token),
                value: U256::ZERO,
                input,
            }
        }
        EvmAction::SendCustom { to, value, input } => CallParts {
            to: *to,
            value: *value,
            input: input.clone(),
        },
    }
}

/// The call whose gas is to be estimated.
pub(crate) fn call(action: &EvmAction) -> EvmCall {
    let CallParts { to, value, input } = parts(action);
    EvmCall {
        to: to.map(|to| to.to_checksum(None)),
        value: value.to_string(),
        data: input,
    }
}

/// What the transaction costs before its first instruction: the least that any chain asks
/// (later rules, such as EIP-3860 and EIP-7623, only add to it).
pub(crate) fn intrinsic_gas(action: &EvmAction) -> u64 {
    let CallParts { to, input, .. } = parts(action);
    let creation = if to.is_none() { CREATION_GAS } else { 0 };
    let data: u64 = input
        .iter()
        .map(|byte| match byte {
            0 => ZERO_BYTE_GAS,
            _ => OTHER_BYTE_GAS,
        })
        .sum();
    TRANSACTION_GAS + creation + data
}
