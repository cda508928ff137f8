//! The calls of the batch contract (`deploy/contracts/CovaultBatch.sol`), and what they pay where its address is known.
//!
//! The signatures are those of disperse.app, which explorers and other wallets read.

use std::collections::BTreeSet;

use alloy_primitives::{Address, U256, keccak256};

use super::{
    action::EvmAction,
    payload::{EvmPayload, EvmTransaction},
};
use crate::networks::payload::outflow::{Asset, ChainScope, ContentKind, Outflow, Spend};

const NATIVE: &str = "disperseEther(address[],uint256[])";
const TOKEN: &str = "disperseToken(address,address[],uint256[])";
const APPROVE: &str = "approve(address,uint256)";
const WORD: usize = 32;

/// Batch contracts that are known to be genuine, each with its chain.
pub type BatchContracts = BTreeSet<(u64, Address)>;

/// A payment to many by the batch contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchCall {
    /// The contract of an ERC-20 token; `None` for the chain's coin.
    pub token: Option<Address>,
    /// Who gets how much, in the smallest unit.
    pub rows: Vec<(Address, U256)>,
}

impl BatchCall {
    /// The call data, in the one form that Solidity's encoder gives.
    pub fn encode(&self) -> Vec<u8> {
        let signature = self.token.map_or(NATIVE, |_| TOKEN);
        let head = if self.token.is_some() { 3 } else { 2 };
        let count = self.rows.len();
        let mut data = selector(signature).to_vec();
        let mut word = |number: U256| data.extend(number.to_be_bytes::<WORD>());
        if let Some(token) = self.token {
            word(of_address(&token));
        }
        // Where the lists begin, in bytes after the selector.
        word(U256::from(head * WORD));
        word(U256::from((head + 1 + count) * WORD));
        word(U256::from(count));
        for (to, _) in &self.rows {
            word(of_address(to));
        }
        word(U256::from(count));
        for (_, amount) in &self.rows {
            word(*amount);
        }
        data
    }

    /// Reads call data. `None` unless it is exactly what [`BatchCall::encode`] gives.
    pub fn decode(data: &[u8]) -> Option<Self> {
        let (selected, args) = data.split_first_chunk::<4>()?;
        let (words, []) = args.as_chunks::<WORD>() else {
            return None;
        };
        let (token, lists) = match *selected {
            native if native == selector(NATIVE) => (None, words.get(2..)?),
            token if token == selector(TOKEN) => (
                Some(Address::from_slice(words.first()?.get(12..)?)),
                words.get(3..)?,
            ),
            _ => return None,
        };
        let (count, lists) = lists.split_first()?;
        let count = usize::try_from(U256::from_be_bytes(*count)).ok()?;
        let (to, amounts) = (lists.get(..count)?, lists.get(count..)?.get(1..)?);
        let rows = to.iter().zip(amounts).map(|(to, amount)| {
            let to = to.get(12..).map(Address::from_slice)?;
            Some((to, U256::from_be_bytes(*amount)))
        });
        let call = Self {
            token,
            rows: rows.collect::<Option<_>>()?,
        };
        // One call has one form: nothing is hidden behind it.
        (call.encode() == data).then_some(call)
    }

    /// All amounts together; `None` where they exceed 256 bits.
    pub fn total(&self) -> Option<U256> {
        let mut amounts = self.rows.iter().map(|(_, amount)| *amount);
        amounts.try_fold(U256::ZERO, U256::checked_add)
    }
}

/// The call data by which a token's holder lets `spender` take `amount` of it (EIP-20).
pub fn approval(spender: Address, amount: U256) -> Vec<u8> {
    let mut data = selector(APPROVE).to_vec();
    data.extend(of_address(&spender).to_be_bytes::<WORD>());
    data.extend(amount.to_be_bytes::<WORD>());
    data
}

impl EvmPayload {
    /// What a call of a batch contract lets leave the wallet: each row of it. Nothing leaves by an allowance for the
    /// contract: it takes of its caller only, in such a call. `None` for everything else.
    pub fn batch_outflow(&self, contracts: &BatchContracts) -> Option<Outflow> {
        let EvmPayload::Transaction(EvmTransaction {
            chain_id,
            action:
                EvmAction::SendCustom {
                    to: Some(to),
                    value,
                    input,
                },
            ..
        }) = self
        else {
            return None;
        };
        let place = ChainScope::evm(*chain_id);
        let spends = if contracts.contains(&(*chain_id, *to)) {
            let call = BatchCall::decode(input)?;
            let expected = match call.token {
                None => call.total()?,
                Some(_) => U256::ZERO,
            };
            if *value != expected {
                return None;
            }
            let spend = |(to, amount): &(Address, U256)| Spend {
                asset: Asset::of_evm(place, call.token),
                amount: *amount,
                recipient: Some(to.to_checksum(None)),
            };
            call.rows.iter().map(spend).collect()
        } else {
            let mut contracts = contracts.iter().filter(|(chain, _)| chain == chain_id);
            let (_, amount) = input.split_last_chunk::<WORD>()?;
            let amount = U256::from_be_bytes(*amount);
            let is_allowance = contracts.any(|(_, contract)| approval(*contract, amount) == *input);
            if !is_allowance || !value.is_zero() {
                return None;
            }
            Vec::new()
        };
        Some(Outflow {
            nature: ContentKind::Transfer,
            place,
            spends,
        })
    }
}

fn selector(signature: &str) -> [u8; 4] {
    let [a, b, c, d, ..] = keccak256(signature).0;
    [a, b, c, d]
}

fn of_address(address: &Address) -> U256 {
    U256::from_be_slice(address.as_slice())
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
