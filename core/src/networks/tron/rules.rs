//! How transactions and messages are built, signed and read.

use std::collections::BTreeSet;

use super::{
    address::{Address, AddressError, parse_address, parse_asset_id},
    chain_data::{ChainData, Queries},
    payload::TronPayload,
    tx,
};
use crate::{
    amount::U256,
    fault::{Class, Fault},
    networks::{
        network::Network,
        rules::{
            Allocation, ChainMoment, NetworkRules, Resource, Signed, SigningInput, Unsigned,
            unexpected_chain_data,
        },
    },
    signature::{Curve, Signature},
};

/// The Tron rules.
pub struct Tron;

impl NetworkRules for Tron {
    type Payload = TronPayload;
    type Queries = Queries;
    type ChainData = ChainData;

    const NETWORK: Network = Network::Tron;
    const HASH_BEFORE_SIGNING: bool = true;
    /// 200 TRX.
    const DEFAULT_MOST_FEE: u64 = 200_000_000;
    const PRICE_UNIT: &'static str = "sun per byte of bandwidth";

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
    fn is_sequenced(&self, _queries: &Queries) -> bool {
        true
    }

    /// Tells equal payments on one block apart by their timestamps, a millisecond each.
    fn allocate(
        &self,
        payload: &TronPayload,
        mut chain_data: ChainData,
        taken: &BTreeSet<Resource>,
    ) -> Result<Allocation<ChainData>, Fault> {
        let end_ms = chain_data.expires_ms();
        loop {
            let id = tx::id(&tx::unsigned(payload, &chain_data)?);
            if !taken.contains(&Resource::TxHash(id)) {
                return Ok(Allocation::ChainData(chain_data));
            }
            chain_data.timestamp_ms = chain_data.timestamp_ms.saturating_add(1);
            if chain_data.timestamp_ms >= end_ms {
                return Ok(Allocation::Wait(
                    "too many identical payments refer to one block: waiting for the next block"
                        .into(),
                ));
            }
        }
    }

    fn reservations(
        &self,
        _payload: &TronPayload,
        unsigned: &Unsigned,
    ) -> Result<Vec<Resource>, Fault> {
        Ok(vec![Resource::TxHash(tx::id(&unsigned.bytes))])
    }

    fn build(
        &self,
        payload: &TronPayload,
        chain_data: Option<&ChainData>,
        _public_key: &[u8],
    ) -> Result<Unsigned, Fault> {
        let bytes = tx::unsigned(payload, chain_data.ok_or_else(unexpected_chain_data)?)?;
        Ok(Unsigned {
            signing: vec![SigningInput {
                curve: Curve::Secp256k1,
                message: tx::id(&bytes).to_vec(),
            }],
            bytes,
        })
    }

    /// Ten times what mainnet asks for. No transaction names a price, so that there is none to read out of its bytes:
    /// it bounds estimates. What a call names is the most that it burns (`fee_limit`), which is part of
    /// [`NetworkRules::most_fee`].
    fn default_most_price(&self, _chain_id: Option<u64>) -> u128 {
        10_000
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
            return Err(Fault::bug("the digest does not match the transaction"));
        }
        // v as TronWeb has it; nodes take 0 and 1 too.
        let v = match y_parity {
            0 => 27,
            _ => 28,
        };
        let signature = [&signature.to_bytes()[..], &[v]].concat();
        tx::assemble(&unsigned.bytes, signature)
    }

    fn valid_until(&self, signed: &Signed) -> Result<Option<ChainMoment>, Fault> {
        Ok(Some(ChainMoment::at_ms(tx::expires_ms(signed)?)))
    }

    /// Nodes take none that expires later.
    fn longest_life_ms(&self, _signed: &Signed) -> Result<Option<u64>, Fault> {
        Ok(Some(86_400_000))
    }
}

#[cfg(test)]
#[path = "tests/mod.rs"]
mod tests;
