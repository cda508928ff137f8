//! EVM chains.
//!
//! Transactions are EIP-1559 (type 2), or legacy ones with EIP-155 replay protection where the
//! chain has no base fee or the request names a gas price only. Messages are EIP-191 personal
//! sign and EIP-712 typed data.

mod address;
pub mod calls;
pub(crate) mod effect;
pub(crate) mod tx;
pub(crate) mod typed_data;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use alloy_primitives::{Address, B256, address, keccak256};
use k256::ecdsa::VerifyingKey;
use serde::{Deserialize, Serialize};

pub use self::{
    address::{AddressError, parse_address},
    tx::{SimulationCall, trial},
};
use crate::{
    amount::U256,
    chain::{Allocation, NetworkRules, Resource, Signed, SigningInput, Unsigned, rules::not_those},
    fault::Fault,
    network::Network,
    payload::evm::{EvmPayload, EvmTransaction},
    signature::{Curve, Signature},
};

/// Contracts through which a chain's own coin is a token too: one balance under two names.
const COINS: [(u64, Address); 4] = [
    // Metis
    (
        1_088,
        address!("0xDeadDeAddeAddEAddeadDEaDDEAdDeaDDeAD0000"),
    ),
    // Moonbeam, Moonriver
    (
        1_284,
        address!("0x0000000000000000000000000000000000000802"),
    ),
    (
        1_285,
        address!("0x0000000000000000000000000000000000000802"),
    ),
    // Celo
    (
        42_220,
        address!("0x471EcE3750Da237f93B8E339c536989b8978a438"),
    ),
];

/// Whether a token is the coin of its chain.
pub(crate) fn is_coin(chain_id: Option<u64>, token: &Address) -> bool {
    COINS
        .iter()
        .any(|(chain, contract)| chain_id == Some(*chain) && contract == token)
}

/// What an EVM node must be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queries {
    /// The chain.
    pub chain_id: u64,
    /// The sender, EIP-55.
    pub from: String,
    /// Whether the next nonce of the sender is wanted (the request brings none).
    pub nonce: bool,
    /// Whether fees and a gas estimate are wanted (the request brings no `gasFee`), and for what.
    pub fees: Option<Call>,
}

/// The call whose gas is to be estimated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The recipient or contract, EIP-55; `None` creates a contract.
    pub to: Option<String>,
    /// wei, decimal.
    pub value: String,
    /// Call data.
    pub data: Vec<u8>,
}

/// What an EVM node said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainData {
    /// The nonce that was assigned to this transaction, where the request brought none.
    pub nonce: Option<u64>,
    /// Whether the chain's blocks have a base fee (EIP-1559). True unless known otherwise. Where
    /// not, the transaction is a legacy one and `maxPriorityFee` is ignored.
    pub eip1559: bool,
    /// Fees, where the request brought none.
    pub fees: Option<Fees>,
}

/// The network's present fees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fees {
    /// `eth_estimateGas`.
    pub estimate_gas: u64,
    /// Base fee of the latest block, wei; on a chain without one, `eth_gasPrice`.
    pub base_fee: u128,
    /// `eth_maxPriorityFeePerGas`, wei; 0 on a chain without a base fee.
    pub max_priority_fee: u128,
}

/// The EVM rules.
pub struct Evm;

impl NetworkRules for Evm {
    type Payload = EvmPayload;
    type Queries = Queries;
    type ChainData = ChainData;

    const NETWORK: Network = Network::Evm;

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
    fn takes_unasked(&self, payload: &EvmPayload) -> bool {
        matches!(payload, EvmPayload::Transaction(_))
    }

    fn is_sequenced(&self, queries: &super::Queries) -> bool {
        matches!(queries, super::Queries::Evm(Queries { nonce: true, .. }))
    }

    /// The lowest nonce from the node's count up that is free.
    fn allocate(
        &self,
        _payload: &EvmPayload,
        chain_data: ChainData,
        taken: &BTreeSet<Resource>,
    ) -> Result<Allocation, Fault> {
        let nonce = chain_data
            .nonce
            .map(|floor| super::lowest_free(floor, taken))
            .transpose()?;
        Ok(Allocation::ChainData(
            ChainData {
                nonce,
                ..chain_data
            }
            .into(),
        ))
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
            None => return Err(not_those()),
        };
        let bytes = tx::unsigned(transaction, chain_data)?;
        Ok(Unsigned {
            signing: vec![input(keccak256(&bytes))],
            bytes,
        })
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
            return Err(Fault::bug("the digest is not that of the transaction"));
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
        fees: fees.then(|| tx::call(&transaction.action)),
    })
}

fn input(digest: B256) -> SigningInput {
    SigningInput {
        curve: Curve::Secp256k1,
        message: digest.to_vec(),
    }
}

/// The last 20 bytes of keccak256 over the uncompressed point without its 0x04.
fn address_of(key: &VerifyingKey) -> Result<Address, Fault> {
    let point = key.to_sec1_point(false);
    let bytes = point
        .as_bytes()
        .get(1..)
        .ok_or_else(|| Fault::bug("a public key without coordinates"))?;
    Ok(Address::from_raw_public_key(bytes))
}
