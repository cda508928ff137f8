//! The calls of the batch contract (`deploy/contracts/CovaultBatch.sol`), and what they pay where its address is known.
//!
//! The signatures are those of disperse.app, which explorers and other wallets read.

use std::collections::BTreeSet;

use alloy_primitives::{Address, U256, keccak256};

use super::{
    action::EvmAction,
    address::parse_address,
    payload::{EvmPayload, EvmTransaction},
};
use crate::{
    fault::{Class, Fault},
    networks::{
        Network,
        payload::outflow::{Asset, ChainScope, ContentKind, Outflow, Spend},
    },
};

const NATIVE: &str = "disperseEther(address[],uint256[])";
const TOKEN: &str = "disperseToken(address,address[],uint256[])";
const APPROVE: &str = "approve(address,uint256)";
const WORD: usize = 32;

/// Batch contracts that are known to be genuine, each with its chain.
pub type BatchContracts = BTreeSet<(u64, Address)>;

/// `evm:1:0x...`: an EVM chain, and the address of a contract there.
///
/// # Errors
/// [`Class::Invalid`] that says what it must be.
pub fn parse_contract(text: &str) -> Result<(u64, Address), Fault> {
    let wrong = |why: &str| Fault::new(Class::Invalid, why);
    let (place, address) = text.rsplit_once(':').unwrap_or_default();
    let place = ChainScope::parse(place).ok();
    let chain = place.filter(|place| place.network == Network::Evm);
    let chain_id = chain.and_then(|place| place.chain_id).ok_or_else(|| {
        wrong("must be a contract of an EVM chain, e.g. evm:1:0x and 40 hex digits")
    })?;
    let address = parse_address(address).map_err(|error| wrong(&error.to_string()))?;
    Ok((chain_id, address))
}

/// What a transaction of a batch payment does, if the contract that it is about is a batch contract: that is for the
/// reader to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchPart {
    /// Calls it to pay.
    Payment(BatchCall),
    /// Lets it take so much of the token, in the smallest unit.
    Allowance {
        /// The contract of the token.
        token: Address,
        /// 0: nothing.
        amount: U256,
    },
}

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

/// Reads the call data of [`approval`]: spender and amount. `None` unless it has exactly that form.
fn decode_approval(data: &[u8]) -> Option<(Address, U256)> {
    let (spender, amount) = data.get(4..)?.split_first_chunk::<WORD>()?;
    let amount: [u8; WORD] = amount.try_into().ok()?;
    let spender = Address::from_slice(spender.get(12..)?);
    let amount = U256::from_be_bytes(amount);
    (approval(spender, amount) == data).then_some((spender, amount))
}

/// The call data by which a token's holder lets `spender` take `amount` of it (EIP-20).
pub fn approval(spender: Address, amount: U256) -> Vec<u8> {
    let mut data = selector(APPROVE).to_vec();
    data.extend(of_address(&spender).to_be_bytes::<WORD>());
    data.extend(amount.to_be_bytes::<WORD>());
    data
}

impl EvmPayload {
    /// What it would do as a part of a batch payment, with the chain and the contract that it calls or lets take a token.
    /// `None` where it is no such part whatever the contract is.
    pub fn batch_part(&self) -> Option<(u64, Address, BatchPart)> {
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
        if let Some(call) = BatchCall::decode(input) {
            let expected = match call.token {
                None => call.total()?,
                Some(_) => U256::ZERO,
            };
            let pays = *value == expected;
            return pays.then_some((*chain_id, *to, BatchPart::Payment(call)));
        }
        let (spender, amount) = decode_approval(input)?;
        let part = BatchPart::Allowance { token: *to, amount };
        value.is_zero().then_some((*chain_id, spender, part))
    }

    /// What a call of a batch contract lets leave the wallet: each row of it. Nothing leaves by an allowance for the
    /// contract: it takes of its caller only, in such a call. `None` for everything else.
    pub fn batch_outflow(&self, contracts: &BatchContracts) -> Option<Outflow> {
        let (chain_id, contract, part) = self.batch_part()?;
        if !contracts.contains(&(chain_id, contract)) {
            return None;
        }
        let place = ChainScope::evm(chain_id);
        let spends = match part {
            // The contract is no token.
            BatchPart::Allowance { token, .. } if contracts.contains(&(chain_id, token)) => {
                return None;
            }
            BatchPart::Allowance { .. } => Vec::new(),
            BatchPart::Payment(call) => {
                let spend = |(to, amount): &(Address, U256)| Spend {
                    asset: Asset::of_evm(place, call.token),
                    amount: *amount,
                    recipient: Some(to.to_checksum(None)),
                };
                call.rows.iter().map(spend).collect()
            }
        };
        Some(Outflow {
            nature: ContentKind::Transfer,
            place,
            spends,
        })
    }

    /// The token of which a batch contract is let take something.
    pub fn batch_allowance(&self, contracts: &BatchContracts) -> Option<Asset> {
        let (chain_id, contract, part) = self.batch_part()?;
        match part {
            BatchPart::Allowance { token, .. } if contracts.contains(&(chain_id, contract)) => {
                Some(Asset::of_evm(ChainScope::evm(chain_id), Some(token)))
            }
            _ => None,
        }
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
