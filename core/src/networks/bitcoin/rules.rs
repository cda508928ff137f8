//! How transactions and messages are built, signed and read.

use std::collections::BTreeSet;

use bitcoin::{Address, CompressedPublicKey, KnownHrp, ScriptBuf};

use super::{
    address::parse_address,
    chain_data::{ChainData, Queries, UnspentOutput},
    payload::BitcoinPayload,
    tx::{self, SpendableOutput, UnsignedPsbt},
};
use crate::{
    amount::U256,
    fault::{Class, Fault},
    networks::{
        network::Network,
        rules::{
            Allocation, NetworkRules, Resource, Signed, SigningInput, Unsigned,
            unexpected_chain_data,
        },
    },
    signature::{Curve, Signature},
};

/// The Bitcoin rules.
pub struct Bitcoin;

impl NetworkRules for Bitcoin {
    type Payload = BitcoinPayload;
    type Queries = Queries;
    type ChainData = ChainData;

    const NETWORK: Network = Network::Bitcoin;

    fn address(&self, public_key: &[u8]) -> Result<String, Fault> {
        let key = key(public_key)?;
        Ok(Address::p2wpkh(&key, KnownHrp::Mainnet).to_string())
    }

    fn parse_address(&self, text: &str) -> Result<String, Fault> {
        parse_address(text)
            .map(|address| address.to_string())
            .map_err(|error| Fault::new(Class::Invalid, error.to_string()))
    }

    fn parse_token(&self, _text: &str) -> Result<String, Fault> {
        Err(Fault::new(Class::Invalid, "Bitcoin has no tokens"))
    }

    fn queries(&self, payload: &BitcoinPayload) -> Option<Queries> {
        let from = payload.payment().from.clone();
        Some(Queries { from })
    }

    fn is_sequenced(&self, _queries: &Queries) -> bool {
        true
    }

    /// Those of the free outputs that the transaction takes: the others have no part in it.
    fn allocate(
        &self,
        payload: &BitcoinPayload,
        chain_data: ChainData,
        taken: &BTreeSet<Resource>,
    ) -> Result<Allocation<ChainData>, Fault> {
        let all = tx::coins(&chain_data)?;
        let is_free = |coin: &&SpendableOutput| !taken.contains(&outpoint_resource(&coin.outpoint));
        let free: Vec<SpendableOutput> = all.iter().filter(is_free).copied().collect();
        if let Ok(choice) = tx::choose(payload, &free) {
            let outputs = choice.coins.iter().map(UnspentOutput::from).collect();
            return Ok(Allocation::ChainData(ChainData { outputs }));
        }
        if tx::choose(payload, &all).is_ok() {
            return Ok(Allocation::Wait(
                "the required outputs are reserved by other requests of this wallet".into(),
            ));
        }
        // `build` says what is missing.
        Ok(Allocation::ChainData(chain_data))
    }

    fn candidate_inputs(&self, chain_data: &ChainData) -> Result<Vec<Resource>, Fault> {
        let coins = tx::coins(chain_data)?;
        Ok(coins
            .iter()
            .map(|coin| outpoint_resource(&coin.outpoint))
            .collect())
    }

    fn reservations(
        &self,
        _payload: &BitcoinPayload,
        unsigned: &Unsigned,
    ) -> Result<Vec<Resource>, Fault> {
        let outpoints = UnsignedPsbt::read(&unsigned.bytes)?.outpoints();
        Ok(outpoints.iter().map(outpoint_resource).collect())
    }

    /// What is signed for an input binds the whole transaction, and the amount of this input alone
    /// (BIP-143). One input has its amount bound by its own signature.
    fn signed_in_parts(&self, unsigned: &[u8]) -> Result<Option<[u8; 32]>, Fault> {
        UnsignedPsbt::read(unsigned).map(|draft| draft.signed_in_parts())
    }

    fn build(
        &self,
        payload: &BitcoinPayload,
        chain_data: Option<&ChainData>,
        public_key: &[u8],
    ) -> Result<Unsigned, Fault> {
        let coins = tx::coins(chain_data.ok_or_else(unexpected_chain_data)?)?;
        let choice = tx::choose(payload, &coins)?;
        let own = own_script(&key(public_key)?);
        let draft = UnsignedPsbt::new(payload.payment(), &choice, &own);
        Ok(Unsigned {
            bytes: draft.write()?,
            signing: signing(&draft, &own)?,
        })
    }

    fn most_fee(&self, unsigned: &[u8]) -> Result<U256, Fault> {
        UnsignedPsbt::read(unsigned)?.fee().map(U256::from)
    }

    fn difference(&self, built: &[u8], shown: &[u8]) -> Option<&'static str> {
        let (built, shown) = (
            UnsignedPsbt::read(built).ok()?,
            UnsignedPsbt::read(shown).ok()?,
        );
        built.difference(&shown)
    }

    fn assemble(
        &self,
        _payload: &BitcoinPayload,
        unsigned: &Unsigned,
        signatures: &[Signature],
        public_key: &[u8],
    ) -> Result<Signed, Fault> {
        let key = key(public_key)?;
        let draft = UnsignedPsbt::read(&unsigned.bytes)?;
        if signing(&draft, &own_script(&key))? != unsigned.signing {
            return Err(Fault::bug("the signed message is not the transaction"));
        }
        draft.sign(signatures, &key)
    }
}

fn key(public_key: &[u8]) -> Result<CompressedPublicKey, Fault> {
    (public_key.len() == 33)
        .then(|| CompressedPublicKey::from_slice(public_key).ok())
        .flatten()
        .ok_or_else(|| Fault::bug("not a compressed secp256k1 public key"))
}

fn own_script(key: &CompressedPublicKey) -> ScriptBuf {
    ScriptBuf::new_p2wpkh(&key.wpubkey_hash())
}

/// `txid:vout`.
fn outpoint_resource(outpoint: &bitcoin::OutPoint) -> Resource {
    Resource::Object(outpoint.to_string())
}

fn signing(draft: &UnsignedPsbt, own: &ScriptBuf) -> Result<Vec<SigningInput>, Fault> {
    let digests = draft.digests(own)?.into_iter();
    Ok(digests
        .map(|digest| SigningInput {
            curve: Curve::Secp256k1,
            message: digest.to_vec(),
        })
        .collect())
}

#[cfg(test)]
#[path = "tests/mod.rs"]
mod tests;
