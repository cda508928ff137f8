//! How transactions and messages are built, signed and read.

use std::collections::BTreeSet;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use curve25519_dalek::edwards::CompressedEdwardsY;
use sha2::{Digest as _, Sha256};
use stellar_strkey::ed25519::PublicKey;

use super::{
    address::{IssuedAsset, account_key, parse_account, parse_address},
    build::build,
    chain_data::{ChainData, Moves, Queries},
    envelope, ledger,
    payload::{StellarAction, StellarPayload, StellarTransaction},
};
use crate::{
    amount::U256,
    fault::{Class, Fault},
    networks::{
        network::Network,
        payload::NetworkPayload as _,
        rules::{
            Allocation, ChainMoment, NetworkRules, Resource, Signed, SigningInput, Unsigned,
            lowest_free, unexpected_chain_data,
        },
    },
    signature::{Curve, Signature},
};

/// How long a transaction waits for each one before it, at most: two ledgers, and the look whether it is there.
const SECONDS_PER_TURN: u64 = 15;

/// The Stellar rules.
pub struct Stellar;

impl NetworkRules for Stellar {
    type Payload = StellarPayload;
    type Queries = Queries;
    type ChainData = ChainData;

    const NETWORK: Network = Network::Stellar;
    const IS_NUMBERED: bool = true;
    const HASH_BEFORE_SIGNING: bool = true;
    /// 10 XLM.
    const DEFAULT_MOST_FEE: u64 = 100_000_000;
    const PRICE_UNIT: &'static str = "stroops per operation";

    fn address(&self, public_key: &[u8]) -> Result<String, Fault> {
        let key = key_of(public_key)?;
        // RFC 8032 wants the canonical encoding; a key of small order is nobody's.
        let point = CompressedEdwardsY(key)
            .decompress()
            .filter(|point| point.compress().to_bytes() == key && !point.is_small_order());
        if point.is_none() {
            return Err(Fault::bug("not an Ed25519 public key"));
        }
        Ok(PublicKey(key).to_string().as_str().to_owned())
    }

    /// An account or a muxed address. They are different recipients: the owner of the account may
    /// tell customers apart by the number in it.
    fn answers_fit_together(&self) -> bool {
        true
    }

    fn parse_address(&self, text: &str) -> Result<String, Fault> {
        parse_address(text)
            .map(|address| address.to_string())
            .map_err(|error| Fault::new(Class::Invalid, error.to_string()))
    }

    /// `CODE:ISSUER`.
    fn parse_token(&self, text: &str) -> Result<String, Fault> {
        IssuedAsset::parse(text)
            .map(|asset| asset.to_string())
            .map_err(|error| Fault::new(Class::Invalid, error.to_string()))
    }

    fn queries(&self, payload: &StellarPayload) -> Option<Queries> {
        let StellarPayload::Transaction(transaction) = payload else {
            return None;
        };
        Some(Queries {
            from: transaction.from.clone(),
            destination: match &transaction.action {
                StellarAction::SendNative { to, .. } => Some(to.clone().account_id().to_string()),
                StellarAction::SendAsset { .. } | StellarAction::ChangeTrust { .. } => None,
            },
            level: transaction.level.unwrap_or_default(),
            moves: moves(&transaction.action),
        })
    }

    fn is_sequenced(&self, _queries: &Queries) -> bool {
        true
    }

    /// The lowest number after the account's that is free. The network takes the numbers of an
    /// account one after the other and without a gap, one in a ledger: the time of a transaction begins when
    /// those before it can be through.
    fn allocate(
        &self,
        _payload: &StellarPayload,
        chain_data: ChainData,
        taken: &BTreeSet<Resource>,
    ) -> Result<Allocation<ChainData>, Fault> {
        let next = envelope::following(chain_data.sequence)?.unsigned_abs();
        let number = lowest_free(next, taken)?;
        let wait_s = number.saturating_sub(next).saturating_mul(SECONDS_PER_TURN);
        Ok(Allocation::ChainData(ChainData {
            sequence: number.saturating_sub(1),
            max_time: chain_data.max_time.saturating_add(wait_s),
            ..chain_data
        }))
    }

    /// Nodes name the last number that was used.
    fn with_next_number(&self, chain_data: ChainData, number: u64) -> Result<ChainData, Fault> {
        let last = number.checked_sub(1);
        Ok(ChainData {
            sequence: last.ok_or_else(|| Fault::bug("no number is before the first one"))?,
            ..chain_data
        })
    }

    /// The sequence number, where it is the sender's. Else the envelope itself: the one who owns that
    /// number sees to it that nothing else uses it.
    fn reservations(
        &self,
        payload: &StellarPayload,
        unsigned: &Unsigned,
    ) -> Result<Vec<Resource>, Fault> {
        let envelope = envelope::decode_own(&unsigned.bytes)?;
        let parts = envelope::parts(&envelope);
        let from = parse_account(payload.from()).map_err(Fault::bug)?;
        if parts.source == account_key(&from) {
            let sequence = u64::try_from(parts.sequence).map_err(Fault::bug)?;
            return Ok(vec![Resource::Nonce(sequence)]);
        }
        let digest = envelope::digest(&envelope)?;
        Ok(vec![Resource::TxHash(Sha256::digest(digest).into())])
    }

    fn build(
        &self,
        payload: &StellarPayload,
        chain_data: Option<&ChainData>,
        public_key: &[u8],
    ) -> Result<Unsigned, Fault> {
        let (bytes, digest) = match payload {
            StellarPayload::Transaction(transaction) => {
                let chain_data = chain_data.ok_or_else(unexpected_chain_data)?;
                let envelope = build(transaction, chain_data, key_of(public_key)?)?;
                (envelope::encode(&envelope)?, envelope::digest(&envelope)?)
            }
            StellarPayload::Custom(custom) => {
                (custom.bytes.clone(), envelope::digest(&custom.envelope)?)
            }
        };
        Ok(Unsigned {
            bytes,
            signing: vec![SigningInput {
                curve: Curve::Ed25519,
                message: digest.to_vec(),
            }],
        })
    }

    fn gap_filler(&self, payload: &StellarPayload) -> Option<StellarPayload> {
        let from = crate::networks::NetworkPayload::from(payload);
        Some(StellarPayload::Transaction(StellarTransaction {
            from: from.to_owned(),
            // A payment is of more than nothing.
            action: StellarAction::SendNative {
                to: parse_address(from).ok()?,
                amount: 1,
            },
            memo: String::new(),
            level: None,
        }))
    }

    fn quoted_price(&self, payload: &StellarPayload, chain_data: &ChainData) -> Option<u128> {
        matches!(payload, StellarPayload::Transaction(_)).then(|| chain_data.base_fee.into())
    }

    fn paid_price(&self, unsigned: &[u8]) -> Result<Option<u128>, Fault> {
        Ok(Some(envelope::price(&envelope::decode_own(unsigned)?)))
    }

    fn default_most_price(&self, _chain_id: Option<u64>) -> u128 {
        envelope::MOST_PRICE.into()
    }

    fn most_fee(&self, unsigned: &[u8]) -> Result<U256, Fault> {
        let envelope = envelope::decode_own(unsigned)?;
        let fee = u64::try_from(envelope::parts(&envelope).fee).map_err(Fault::bug)?;
        Ok(U256::from(fee))
    }

    fn difference(&self, built: &[u8], shown: &[u8]) -> Option<&'static str> {
        envelope::difference(built, shown)
    }

    fn assemble(
        &self,
        _payload: &StellarPayload,
        unsigned: &Unsigned,
        signatures: &[Signature],
        public_key: &[u8],
    ) -> Result<Signed, Fault> {
        let ([input], [signature]) = (unsigned.signing.as_slice(), signatures) else {
            return Err(Fault::bug("an envelope takes exactly one signature"));
        };
        let mut envelope = envelope::decode_own(&unsigned.bytes)?;
        let digest = envelope::digest(&envelope)?;
        if digest.as_slice() != input.message {
            return Err(Fault::bug("the digest does not match the transaction"));
        }
        envelope::sign(&mut envelope, &key_of(public_key)?, signature.to_bytes())?;
        Ok(Signed {
            transaction: STANDARD.encode(envelope::encode(&envelope)?),
            tx_hash: hex::encode(digest),
        })
    }

    fn sent_number(&self, signed: &Signed, _address: &str) -> Result<Option<u64>, Fault> {
        Ok(Some(ledger::read_sent(&signed.transaction)?.sequence))
    }

    /// Its time bound, a second that is still good; without one, the ledger from which on none takes it.
    fn valid_until(&self, signed: &Signed) -> Result<Option<ChainMoment>, Fault> {
        let sent = ledger::read_sent(&signed.transaction)?;
        let time = sent
            .max_time
            .map(|second| ChainMoment::at_ms(second.saturating_add(1).saturating_mul(1_000)));
        let ledger = sent
            .max_ledger
            .map(|ledger| ChainMoment::at_height(ledger.into()));
        Ok(time.or(ledger))
    }
}

/// Amounts are more than 0.
fn moves(action: &StellarAction) -> Moves {
    match action {
        StellarAction::SendNative { amount, .. } => Moves::Lumens(amount.unsigned_abs()),
        StellarAction::SendAsset { to, asset, amount } => Moves::Asset {
            asset: asset.to_string(),
            amount: amount.unsigned_abs(),
            to: to.clone().account_id().to_string(),
        },
        StellarAction::ChangeTrust { asset } => Moves::Trust {
            asset: asset.to_string(),
        },
    }
}

fn key_of(public_key: &[u8]) -> Result<[u8; 32], Fault> {
    public_key
        .try_into()
        .map_err(|_| Fault::bug("an Ed25519 public key has 32 bytes"))
}

#[cfg(test)]
#[path = "tests/mod.rs"]
mod tests;
