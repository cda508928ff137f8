//! How transactions and messages are built, signed and read.

use std::collections::BTreeSet;

use alloy_primitives::{B256, keccak256};
use k256::ecdsa::VerifyingKey;

use super::{
    action::{EvmAction, call},
    address::{address_of, parse_address},
    chain_data::{ChainData, Queries},
    coins::is_coin,
    payload::{EvmGas, EvmPayload, EvmTransaction, parse_field},
    tx,
};
use crate::{
    amount::U256,
    fault::Fault,
    networks::{
        fee_level::FeeLevel,
        network::Network,
        rules::{
            Allocation, ChainIds, NetworkRules, Replacement, Resource, Signed, SigningInput,
            Unsigned, lowest_free, unexpected_chain_data,
        },
    },
    signature::{Curve, Signature},
};

/// The EVM rules.
pub struct Evm;

impl NetworkRules for Evm {
    type Payload = EvmPayload;
    type Queries = Queries;
    type ChainData = ChainData;

    const NETWORK: Network = Network::Evm;
    const IS_NUMBERED: bool = true;
    /// 0.1 of the coin.
    const DEFAULT_MOST_FEE: u64 = 100_000_000_000_000_000;
    const PRICE_UNIT: &'static str = "wei per unit of gas";
    // Rollups wait for what is final on the chain below.
    const FINALITY_MS: u64 = 21_600_000;

    fn address(&self, public_key: &[u8]) -> Result<String, Fault> {
        let key = (public_key.len() == 33)
            .then(|| VerifyingKey::from_sec1_bytes(public_key).ok())
            .flatten()
            .ok_or_else(|| Fault::bug("not a compressed secp256k1 public key"))?;
        Ok(address_of(&key)?.to_checksum(None))
    }

    fn answers_fit_together(&self) -> bool {
        true
    }

    fn parse_address(&self, text: &str) -> Result<String, Fault> {
        parse_address(text)
            .map(|address| address.to_checksum(None))
            .map_err(|error| Fault::new(crate::fault::Class::Invalid, error.to_string()))
    }

    fn queries(&self, payload: &EvmPayload) -> Option<Queries> {
        match payload {
            EvmPayload::Transaction(transaction) => queries(transaction),
            EvmPayload::Message(_) => None,
        }
    }

    /// A transaction that brings everything may still be told that its chain has no base fee.
    fn accepts_unqueried_chain_data(&self, payload: &EvmPayload) -> bool {
        matches!(payload, EvmPayload::Transaction(_))
    }

    fn counted_token(&self, chain_id: Option<u64>, token: String) -> Option<String> {
        let contract = parse_address(&token).ok();
        let is_coin = contract.is_some_and(|contract| is_coin(chain_id, &contract));
        (!is_coin).then_some(token)
    }

    fn chain_ids(&self) -> Option<ChainIds> {
        Some(ChainIds {
            contains: |id| id > 0 && i64::try_from(id).is_ok(),
            problem: "must be an EVM chain id after evm:, e.g. evm:1",
            example: "evm:1",
        })
    }

    fn is_sequenced(&self, queries: &Queries) -> bool {
        queries.nonce
    }

    /// The lowest nonce from the node's count up that is free.
    fn allocate(
        &self,
        _payload: &EvmPayload,
        chain_data: ChainData,
        taken: &BTreeSet<Resource>,
    ) -> Result<Allocation<ChainData>, Fault> {
        let nonce = chain_data
            .nonce
            .map(|floor| lowest_free(floor, taken))
            .transpose()?;
        Ok(Allocation::ChainData(ChainData {
            nonce,
            ..chain_data
        }))
    }

    fn with_next_number(&self, chain_data: ChainData, number: u64) -> Result<ChainData, Fault> {
        Ok(ChainData {
            nonce: chain_data.nonce.map(|_| number),
            ..chain_data
        })
    }

    fn reservations(
        &self,
        _payload: &EvmPayload,
        unsigned: &Unsigned,
    ) -> Result<Vec<Resource>, Fault> {
        tx::nonce(&unsigned.bytes).map(|nonce| vec![Resource::Nonce(nonce)])
    }

    fn build(
        &self,
        payload: &EvmPayload,
        chain_data: Option<&ChainData>,
        _public_key: &[u8],
    ) -> Result<Unsigned, Fault> {
        let transaction = match payload {
            EvmPayload::Transaction(transaction) => transaction,
            EvmPayload::Message(message) => {
                return Ok(Unsigned {
                    bytes: Vec::new(),
                    signing: vec![input(message.digest)],
                });
            }
        };
        let chain_data = match chain_data {
            Some(chain_data) => chain_data,
            None if queries(transaction).is_none() => &ChainData {
                nonce: None,
                eip1559: true,
                fees: None,
            },
            None => return Err(unexpected_chain_data()),
        };
        let bytes = tx::unsigned(transaction, chain_data)?;
        Ok(Unsigned {
            signing: vec![input(keccak256(&bytes))],
            bytes,
        })
    }

    fn sent_number(&self, signed: &Signed, _address: &str) -> Result<Option<u64>, Fault> {
        Ok(Some(tx::read_sent(signed)?.nonce))
    }

    /// Nodes want both prices an eighth higher: ten percent in geth and most others, an eighth in some.
    fn outbid(
        &self,
        payload: &EvmPayload,
        mut chain_data: ChainData,
        replaced: &Signed,
    ) -> Result<ChainData, Fault> {
        let EvmPayload::Transaction(transaction) = payload else {
            return Ok(chain_data);
        };
        let own = transaction.gas.as_ref();
        let names_price = own.is_some_and(|own| own.max_fee.is_some());
        let Some(fees) = chain_data.fees.as_mut().filter(|_| !names_price) else {
            return Ok(chain_data);
        };
        let replaced = tx::read_sent(replaced)?;
        if transaction.nonce != Some(replaced.nonce) {
            return Ok(chain_data);
        }
        // Nodes want a tip of 0 raised too.
        let above = |price: u128| price.saturating_add(price.div_ceil(8).max(1));
        let max_fee = above(replaced.max_fee);
        if !chain_data.eip1559 {
            fees.base_fee = fees.base_fee.max(max_fee);
            return Ok(chain_data);
        }
        fees.max_priority_fee = fees.max_priority_fee.max(above(replaced.max_priority_fee));
        let own_tip = own.and_then(|own| own.max_priority_fee);
        let tip = own_tip.unwrap_or(fees.max_priority_fee);
        // The price is twice the base fee, and the tip.
        let base_fee = max_fee.saturating_sub(tip).div_ceil(2);
        fees.base_fee = fees.base_fee.max(base_fee);
        Ok(chain_data)
    }

    /// The same nonce: the chain takes one of the two. To speed up, the same call with the same gas limit, whatever
    /// prices the request brought; to cancel, nothing to the wallet itself.
    fn replacement(
        &self,
        payload: &EvmPayload,
        replaced: &Signed,
        how: Replacement,
    ) -> Result<EvmPayload, Fault> {
        let EvmPayload::Transaction(transaction) = payload else {
            return Err(Fault::bug("a message was sent"));
        };
        let sent = tx::read_sent(replaced)?;
        if sent.from != transaction.from {
            return Err(Fault::bug("the transaction is another wallet's"));
        }
        let (action, gas) = match how {
            Replacement::SpeedUp => {
                let gas = EvmGas {
                    gas_limit: Some(sent.gas_limit),
                    level: Some(FeeLevel::Fast),
                    ..EvmGas::default()
                };
                (transaction.action.clone(), Some(gas))
            }
            // Contracts can charge for it, so nodes say what it takes.
            Replacement::Cancel => {
                let gas = EvmGas {
                    level: Some(FeeLevel::Fast),
                    ..EvmGas::default()
                };
                (nothing(transaction)?, Some(gas))
            }
        };
        Ok(EvmPayload::Transaction(EvmTransaction {
            chain_id: transaction.chain_id,
            from: transaction.from.clone(),
            action,
            gas,
            nonce: Some(sent.nonce),
        }))
    }

    fn gap_filler(&self, payload: &EvmPayload) -> Option<EvmPayload> {
        let EvmPayload::Transaction(transaction) = payload else {
            return None;
        };
        Some(EvmPayload::Transaction(EvmTransaction {
            chain_id: transaction.chain_id,
            from: transaction.from.clone(),
            action: nothing(transaction).ok()?,
            gas: None,
            nonce: None,
        }))
    }

    fn quoted_price(&self, payload: &EvmPayload, chain_data: &ChainData) -> Option<u128> {
        let fees = chain_data.fees.as_ref()?;
        let own = match payload {
            EvmPayload::Transaction(transaction) => transaction.gas.as_ref(),
            EvmPayload::Message(_) => None,
        };
        if own.is_some_and(|own| own.max_fee.is_some()) {
            return None;
        }
        let own_tip = own.and_then(|own| own.max_priority_fee);
        Some(if chain_data.eip1559 {
            let twice = fees.base_fee.saturating_mul(2);
            twice.saturating_add(own_tip.map_or(fees.max_priority_fee, |_| 0))
        } else {
            fees.base_fee
        })
    }

    fn paid_price(&self, unsigned: &[u8]) -> Result<Option<u128>, Fault> {
        tx::trial(unsigned).map(|trial| Some(trial.most_price))
    }

    fn default_most_price(&self, chain_id: Option<u64>) -> u128 {
        let gwei = match chain_id {
            Some(1) => 1_000,
            // Optimism, Base, Arbitrum One.
            Some(10 | 8453 | 42161) => 100,
            // BNB Smart Chain.
            Some(56) => 200,
            // Avalanche C-Chain.
            Some(43114) => 2_000,
            // Polygon PoS, and chains that nobody here knows: a transfer of 21,000 is 0.21 of the coin.
            _ => 10_000,
        };
        gwei * 1_000_000_000
    }

    fn most_fee(&self, unsigned: &[u8]) -> Result<U256, Fault> {
        tx::most_fee(unsigned)
    }

    fn difference(&self, built: &[u8], shown: &[u8]) -> Option<&'static str> {
        tx::difference(built, shown)
    }

    fn assemble(
        &self,
        _payload: &EvmPayload,
        unsigned: &Unsigned,
        signatures: &[Signature],
        _public_key: &[u8],
    ) -> Result<Signed, Fault> {
        let ([input], [Signature::Ecdsa { r, s, y_parity }]) =
            (unsigned.signing.as_slice(), signatures)
        else {
            return Err(Fault::bug(
                "an EVM transaction takes exactly one ECDSA signature",
            ));
        };
        if keccak256(&unsigned.bytes).as_slice() != input.message {
            return Err(Fault::bug("the digest does not match the transaction"));
        }
        let signature = alloy_primitives::Signature::from_scalars_and_parity(
            B256::from(*r),
            B256::from(*s),
            *y_parity == 1,
        );
        tx::assemble(&unsigned.bytes, &signature)
    }
}

/// A transfer of nothing to the wallet itself.
fn nothing(transaction: &EvmTransaction) -> Result<EvmAction, Fault> {
    Ok(EvmAction::SendNative {
        to: parse_field("from", &transaction.from)?,
        value: U256::ZERO,
    })
}

/// What is asked about a transaction; `None` when it brings nonce and fees.
fn queries(transaction: &EvmTransaction) -> Option<Queries> {
    let complete = transaction.gas.as_ref().is_some_and(EvmGas::is_complete);
    let (nonce, fees) = (transaction.nonce.is_none(), !complete);
    if !nonce && !fees {
        return None;
    }
    Some(Queries {
        chain_id: transaction.chain_id,
        from: transaction.from.clone(),
        nonce,
        fees: fees.then(|| call(&transaction.action)),
        level: transaction
            .gas
            .as_ref()
            .and_then(|gas| gas.level)
            .unwrap_or_default(),
    })
}

fn input(digest: B256) -> SigningInput {
    SigningInput {
        curve: Curve::Secp256k1,
        message: digest.to_vec(),
    }
}

#[cfg(test)]
#[path = "tests/mod.rs"]
mod tests;
