//! Tron.
//!
//! Transactions hold one contract: `TransferContract` (TRX), `TransferAssetContract` (TRC-10) or
//! `TriggerSmartContract` that calls `transfer` (TRC-20). They name a recent block, without which
//! they are void, and are gone 60 seconds after it.

mod address;
mod proto;
mod tx;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

pub use self::address::{Address, AddressError, AssetIdError, parse_address, parse_asset_id};
use crate::{
    amount::U256,
    chain::{Allocation, NetworkRules, Resource, Signed, SigningInput, Unsigned, rules::not_those},
    fault::{Class, Fault},
    network::Network,
    payload::tron::TronPayload,
    signature::{Curve, Signature},
};

/// What a Tron node must be asked: always its head block, and whether this call goes through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queries {
    /// The call that the transaction makes, to be tried on the node (`triggerconstantcontract`)
    /// before it is built. `None` where no contract is called: nodes take such transactions only
    /// when they can be paid. They take a call unseen, and one that fails costs its energy too.
    /// Nothing that comes of the trial is a fact.
    pub call: Option<Call>,
}

/// A call of a contract, which is sent nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The caller, base58check.
    pub from: String,
    /// The contract, base58check.
    pub contract: String,
    /// Call data.
    pub data: Vec<u8>,
    /// The most that it may burn for energy, in sun.
    pub fee_limit: u64,
}

/// What a Tron node said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainData {
    /// The node's head block: reference of the transaction, and start of the 60 seconds in which
    /// it can be mined.
    pub block: Block,
    /// When the transaction says that it was made, in milliseconds since the Unix epoch. That of
    /// the block; a little later where another request pays the same on the same block. Nodes do
    /// not look at it.
    pub timestamp_ms: u64,
}

impl ChainData {
    /// When the transaction that is built from these has expired, in milliseconds since the Unix
    /// epoch: it is not mined on top of a block of this time or later.
    pub fn expires_ms(&self) -> u64 {
        self.block.timestamp_ms.saturating_add(tx::LIFETIME_MS)
    }
}

/// A block of the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// `block_header.raw_data.number`.
    pub number: u64,
    /// `blockID`: the number in 8 bytes, then 24 bytes of the header's hash.
    pub id: [u8; 32],
    /// `block_header.raw_data.timestamp`, in milliseconds since the Unix epoch.
    pub timestamp_ms: u64,
}

impl From<Block> for ChainData {
    fn from(block: Block) -> Self {
        Self {
            timestamp_ms: block.timestamp_ms,
            block,
        }
    }
}

/// The Tron rules.
pub struct Tron;

impl NetworkRules for Tron {
    type Payload = TronPayload;
    type Queries = Queries;
    type ChainData = ChainData;

    const NETWORK: Network = Network::Tron;

    fn address(&self, public_key: &[u8]) -> Result<String, Fault> {
        Address::of_key(public_key).map(|address| address.to_string())
    }

    fn parse_address(&self, text: &str) -> Result<String, Fault> {
        parse_address(text)
            .map(|address| address.to_string())
            .map_err(|error| Fault::new(Class::Invalid, error.to_string()))
    }

    /// The number of a TRC-10 asset, or the address of a TRC-20 contract, which is never all
    /// digits.
    fn parse_token(&self, text: &str) -> Result<String, Fault> {
        if let Ok(id) = parse_asset_id(text) {
            return Ok(id.to_string());
        }
        parse_address(text)
            .map(|address| address.to_string())
            .map_err(|error| {
                let problem = match error {
                    AddressError::Form => {
                        "must be the number of a TRC-10 asset or the address of a TRC-20 contract"
                            .to_owned()
                    }
                    AddressError::Checksum => error.to_string(),
                };
                Fault::new(Class::Invalid, problem)
            })
    }

    fn queries(&self, payload: &TronPayload) -> Option<Queries> {
        Some(Queries {
            call: tx::call(payload),
        })
    }

    /// The network knows a transaction by its bytes, and two equal payments on one block would be
    /// one: see [`NetworkRules::allocate`].
    fn is_sequenced(&self, queries: &super::Queries) -> bool {
        matches!(queries, super::Queries::Tron(_))
    }

    /// Tells equal payments on one block apart by their timestamps, a millisecond each.
    fn allocate(
        &self,
        payload: &TronPayload,
        mut chain_data: ChainData,
        taken: &BTreeSet<Resource>,
    ) -> Result<Allocation, Fault> {
        let end_ms = chain_data.expires_ms();
        loop {
            let id = tx::id(&tx::unsigned(payload, &chain_data)?);
            if !taken.contains(&Resource::Whole(id)) {
                return Ok(Allocation::ChainData(chain_data.into()));
            }
            chain_data.timestamp_ms = chain_data.timestamp_ms.saturating_add(1);
            if chain_data.timestamp_ms >= end_ms {
                return Ok(Allocation::Wait(
                    "too many equal payments on one block: waiting for the next block".into(),
                ));
            }
        }
    }

    fn reservations(
        &self,
        _payload: &TronPayload,
        unsigned: &Unsigned,
    ) -> Result<Vec<Resource>, Fault> {
        Ok(vec![Resource::Whole(tx::id(&unsigned.bytes))])
    }

    fn build(
        &self,
        payload: &TronPayload,
        chain_data: Option<&ChainData>,
        _public_key: &[u8],
    ) -> Result<Unsigned, Fault> {
        let bytes = tx::unsigned(payload, chain_data.ok_or_else(not_those)?)?;
        Ok(Unsigned {
            signing: vec![SigningInput {
                curve: Curve::Secp256k1,
                message: tx::id(&bytes).to_vec(),
            }],
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
        _payload: &TronPayload,
        unsigned: &Unsigned,
        signatures: &[Signature],
        _public_key: &[u8],
    ) -> Result<Signed, Fault> {
        let ([input], [signature @ Signature::Ecdsa { y_parity, .. }]) =
            (unsigned.signing.as_slice(), signatures)
        else {
            return Err(Fault::bug(
                "a Tron transaction takes exactly one ECDSA signature",
            ));
        };
        if tx::id(&unsigned.bytes).as_slice() != input.message {
            return Err(Fault::bug("the digest is not that of the transaction"));
        }
        // v as TronWeb has it; nodes take 0 and 1 too.
        let v = match y_parity {
            0 => 27,
            _ => 28,
        };
        let signature = [&signature.to_bytes()[..], &[v]].concat();
        tx::assemble(&unsigned.bytes, signature)
    }
}
