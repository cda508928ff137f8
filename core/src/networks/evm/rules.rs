//! How transactions and messages are built, signed and read.

use std::collections::BTreeSet;

use alloy_primitives::{B256, keccak256};
use k256::ecdsa::VerifyingKey;

use super::{
    action::call,
    address::{address_of, parse_address},
    chain_data::{ChainData, Queries},
    coins::is_coin,
    payload::{EvmPayload, EvmTransaction},
    tx,
};
use crate::{
    amount::U256,
    fault::Fault,
    networks::{
        network::Network,
        rules::{
            Allocation, ChainIds, NetworkRules, Resource, Signed, SigningInput, Unsigned,
            lowest_free, unexpected_chain_data,
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
    const PRICE_UNIT: &'static str = "wei per unit of gas";

    fn address(&self, public_key: &[u8]) -> Result<String, Fault> {
        let key = (public_key.len() == 33)
            .then(|| VerifyingKey::from_sec1_bytes(public_key).ok())
            .flatten()
            .ok_or_else(|| Fault::bug("not a compressed secp256k1 public key"))?;
        Ok(address_of(&key)?.to_checksum(None))
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

    fn quoted_price(&self, _payload: &EvmPayload, chain_data: &ChainData) -> Option<u128> {
        let fees = chain_data.fees.as_ref()?;
        Some(if chain_data.eip1559 {
            let twice = fees.base_fee.saturating_mul(2);
            twice.saturating_add(fees.max_priority_fee)
        } else {
            fees.base_fee
        })
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

/// What is asked about a transaction; `None` when it brings nonce and fees.
fn queries(transaction: &EvmTransaction) -> Option<Queries> {
    let (nonce, fees) = (transaction.nonce.is_none(), transaction.gas.is_none());
    if !nonce && !fees {
        return None;
    }
    Some(Queries {
        chain_id: transaction.chain_id,
        from: transaction.from.clone(),
        nonce,
        fees: fees.then(|| call(&transaction.action)),
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
