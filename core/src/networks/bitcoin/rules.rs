//! How transactions and messages are built, signed and read.

use std::collections::BTreeSet;

use bitcoin::{Address, CompressedPublicKey, KnownHrp, ScriptBuf};

use super::{
    address::parse_address,
    chain_data::{ChainData, Queries, ReplacedFees, UnspentOutput},
    fee::FeeTable,
    payload::{BitcoinOutput, BitcoinPayload, BitcoinPayment, FeeRate, MAX_INPUTS},
    tx::{self, SpendableOutput, UnsignedPsbt},
};
use crate::{
    amount::U256,
    fault::{Class, Fault},
    networks::{
        fee_level::FeeLevel,
        network::Network,
        rules::{
            Allocation, NetworkRules, Replacement, Resource, Signed, SigningInput, Unsigned,
            objects, unexpected_chain_data,
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
    const HASH_BEFORE_SIGNING: bool = true;
    /// 0.005 BTC.
    const DEFAULT_MOST_FEE: u64 = 500_000;
    const PRICE_UNIT: &'static str = "sat/vB";
    /// A dozen blocks, which an ordinary fee may well take.
    const PATIENCE_MS: u64 = 7_200_000;
    const FINALITY_MS: u64 = 21_600_000;

    fn address(&self, public_key: &[u8]) -> Result<String, Fault> {
        let key = key(public_key)?;
        Ok(Address::p2wpkh(&key, KnownHrp::Mainnet).to_string())
    }

    fn answers_fit_together(&self) -> bool {
        true
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
        let payment = payload.payment();
        Some(Queries {
            from: payment.from.clone(),
            inputs: payment.inputs.iter().map(ToString::to_string).collect(),
            fee_level: payment.level(),
        })
    }

    fn is_sequenced(&self, _queries: &Queries) -> bool {
        true
    }

    fn named_inputs(&self, payload: &BitcoinPayload) -> Vec<Resource> {
        let inputs = payload.payment().inputs.iter();
        inputs.map(outpoint_resource).collect()
    }

    /// Those of the free outputs that the transaction takes, and all that it names: the others have no part in
    /// it.
    fn allocate(
        &self,
        payload: &BitcoinPayload,
        chain_data: ChainData,
        taken: &BTreeSet<Resource>,
    ) -> Result<Allocation<ChainData>, Fault> {
        let all = tx::coins(&chain_data)?;
        let tariff = FeeTable::of(payload.payment(), &chain_data)?;
        let named = &payload.payment().inputs;
        let is_free = |coin: &&SpendableOutput| {
            named.contains(&coin.outpoint) || !taken.contains(&outpoint_resource(&coin.outpoint))
        };
        let free: Vec<SpendableOutput> = all.iter().filter(is_free).copied().collect();
        if let Ok(choice) = tx::choose(payload, &free, &tariff) {
            let outputs = choice.coins.iter().map(UnspentOutput::from).collect();
            return Ok(Allocation::ChainData(ChainData {
                outputs,
                ..chain_data
            }));
        }
        if tx::choose(payload, &all, &tariff).is_ok() {
            return Ok(Allocation::Wait(
                "the required outputs are reserved by other requests of this wallet".into(),
            ));
        }
        // `build` says what is missing.
        Ok(Allocation::ChainData(chain_data))
    }

    fn with_inputs(
        &self,
        chain_data: ChainData,
        inputs: &BTreeSet<Resource>,
    ) -> Result<ChainData, Fault> {
        Ok(ChainData {
            required: objects(inputs),
            ..chain_data
        })
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

    /// Nodes know what the transactions in their own mempools pay. What nobody has now may still be in another
    /// one: what it pays follows from the outputs that it spends, where all are known.
    fn outbid(
        &self,
        payload: &BitcoinPayload,
        chain_data: ChainData,
        replaced: &Signed,
    ) -> Result<ChainData, Fault> {
        let payment = payload.payment();
        if payment.level().is_none() {
            return Ok(chain_data);
        }
        let coins = tx::coins(&chain_data)?;
        let paid = tx::paid(replaced, &payment.inputs, &coins)?;
        let (Some(paid), before) = (paid, chain_data.replaced) else {
            return Ok(chain_data);
        };
        let replaced = ReplacedFees {
            fees: before.map_or(paid.fees, |before| before.fees.max(paid.fees)),
            rate: before.map_or(paid.rate, |before| before.rate.max(paid.rate)),
        };
        Ok(ChainData {
            replaced: Some(replaced),
            ..chain_data
        })
    }

    /// The same inputs: the chain takes one of the two. To speed up, the same payment; to cancel, all of it back to
    /// the wallet, where the least amount that nodes carry is named.
    fn replacement(
        &self,
        payload: &BitcoinPayload,
        replaced: &Signed,
        how: Replacement,
    ) -> Result<BitcoinPayload, Fault> {
        let payment = payload.payment();
        let outputs = match how {
            Replacement::SpeedUp => payment.outputs.clone(),
            Replacement::Cancel => vec![BitcoinOutput::least(&payment.from)?],
        };
        let inputs = tx::spent(replaced)?;
        if inputs.len() > MAX_INPUTS {
            return Err(Fault::bug("more inputs than a payment has"));
        }
        Ok(BitcoinPayload::SendNative(BitcoinPayment {
            from: payment.from.clone(),
            outputs,
            inputs,
            fee: FeeRate::Level(FeeLevel::Fast),
        }))
    }

    fn sent_inputs(&self, signed: &Signed) -> Result<Vec<Resource>, Fault> {
        Ok(tx::spent(signed)?.iter().map(outpoint_resource).collect())
    }

    fn sent_outputs(&self, signed: &Signed) -> Result<Vec<Resource>, Fault> {
        Ok(tx::made(signed)?.iter().map(outpoint_resource).collect())
    }

    fn quoted_price(&self, payload: &BitcoinPayload, chain_data: &ChainData) -> Option<u128> {
        let payment = payload.payment();
        let tariff = FeeTable::of(payment, chain_data).ok()?;
        let coins = tx::coins(chain_data).ok()?;
        let level = payment.level().is_some();
        match tx::choose(payload, &coins, &tariff) {
            Ok(choice) => tariff.quoted(choice.coins.len(), choice.has_change(), level),
            // That it cannot be paid is said in its turn, or that it is too dear.
            Err(_) => tariff.quoted(payment.inputs.len().max(1), false, level),
        }
    }

    fn paid_price(&self, unsigned: &[u8]) -> Result<Option<u128>, Fault> {
        UnsignedPsbt::read(unsigned)?.price().map(Some)
    }

    /// Blocks have never asked for more for longer than some hours.
    fn default_most_price(&self, _chain_id: Option<u64>) -> u128 {
        2_000
    }

    fn build(
        &self,
        payload: &BitcoinPayload,
        chain_data: Option<&ChainData>,
        public_key: &[u8],
    ) -> Result<Unsigned, Fault> {
        let chain_data = chain_data.ok_or_else(unexpected_chain_data)?;
        let coins = tx::coins(chain_data)?;
        let tariff = FeeTable::of(payload.payment(), chain_data)?;
        let choice = tx::choose(payload, &coins, &tariff)?;
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
