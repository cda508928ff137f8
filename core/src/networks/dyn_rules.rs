//! A network as everyone outside its own folder sees it: [`DynNetworkRules`] is derived from
//! [`NetworkRules`]. What is the same for all networks is here: the sender, rawMessage, chain data that does
//! not match, the check of signatures.

use std::collections::BTreeSet;

use super::{
    ChainData, Payload, Queries, raw,
    rules::{
        Allocation, ChainIds, ChainMoment, NetworkRules, Replacement, Resource, Signed, Unsigned,
        unexpected_chain_data,
    },
    verified::VerifiedSignatures,
};
use crate::{
    amount::U256,
    fault::{Class, Fault},
    signature::{Curve, Signature},
};

/// What one network has of an enum over all networks.
pub(super) trait PartOf<Whole>: Sized {
    /// The part, when the whole is of this network.
    fn of(whole: &Whole) -> Option<&Self>;
}

/// One network, as everyone but its own folder sees it. Every [`NetworkRules`] is one.
pub trait DynNetworkRules: Sync {
    /// See [`NetworkRules::address`].
    ///
    /// # Errors
    /// As there.
    fn address(&self, public_key: &[u8]) -> Result<String, Fault>;

    /// See [`NetworkRules::owns`].
    ///
    /// # Errors
    /// As there.
    fn owns(&self, public_key: &[u8], address: &str) -> Result<bool, Fault>;

    /// See [`NetworkRules::parse_address`].
    ///
    /// # Errors
    /// As there.
    fn parse_address(&self, text: &str) -> Result<String, Fault>;

    /// See [`NetworkRules::parse_token`].
    ///
    /// # Errors
    /// As there.
    fn parse_token(&self, text: &str) -> Result<String, Fault>;

    /// See [`NetworkRules::is_coin`].
    fn is_coin(&self, token: &str) -> bool;

    /// See [`NetworkRules::answers_fit_together`].
    fn answers_fit_together(&self) -> bool;

    /// See [`NetworkRules::counted_token`].
    fn counted_token(&self, chain_id: Option<u64>, token: String) -> Option<String>;

    /// See [`NetworkRules::chain_ids`].
    fn chain_ids(&self) -> Option<ChainIds>;

    /// See [`NetworkRules::queries`]: [`Queries::Nothing`] also for payloads of other networks.
    fn queries(&self, payload: &Payload) -> Queries;

    /// See [`NetworkRules::is_sequenced`].
    fn is_sequenced(&self, queries: &Queries) -> bool;

    /// See [`NetworkRules::allocate`].
    ///
    /// # Errors
    /// As there.
    fn allocate(
        &self,
        payload: &Payload,
        chain_data: ChainData,
        taken: &BTreeSet<Resource>,
    ) -> Result<Allocation<ChainData>, Fault>;

    /// See [`NetworkRules::with_next_number`]: as it is also for chain data of other networks.
    ///
    /// # Errors
    /// As there.
    fn with_next_number(&self, chain_data: ChainData, number: u64) -> Result<ChainData, Fault>;

    /// See [`NetworkRules::with_inputs`]: as it is also for chain data of other networks.
    ///
    /// # Errors
    /// As there.
    fn with_inputs(
        &self,
        chain_data: ChainData,
        inputs: &BTreeSet<Resource>,
    ) -> Result<ChainData, Fault>;

    /// See [`NetworkRules::outbid`].
    ///
    /// # Errors
    /// As there.
    fn outbid(
        &self,
        payload: &Payload,
        chain_data: ChainData,
        replaced: &Signed,
    ) -> Result<ChainData, Fault>;

    /// See [`NetworkRules::replacement`].
    ///
    /// # Errors
    /// As there; [`crate::fault::Class::Invalid`] also for a payload that is no transaction of the network.
    fn replacement(
        &self,
        payload: &Payload,
        replaced: &Signed,
        how: Replacement,
    ) -> Result<Payload, Fault>;

    /// See [`NetworkRules::DEFAULT_MOST_FEE`].
    fn default_most_fee(&self) -> U256;

    /// See [`NetworkRules::gap_filler`].
    fn gap_filler(&self, payload: &Payload) -> Option<Payload>;

    /// See [`NetworkRules::candidate_inputs`].
    ///
    /// # Errors
    /// As there.
    fn candidate_inputs(&self, chain_data: &ChainData) -> Result<Vec<Resource>, Fault>;

    /// See [`NetworkRules::named_inputs`].
    fn named_inputs(&self, payload: &Payload) -> Vec<Resource>;

    /// See [`NetworkRules::reservations`].
    ///
    /// # Errors
    /// As there.
    fn reservations(&self, payload: &Payload, unsigned: &Unsigned) -> Result<Vec<Resource>, Fault>;

    /// See [`NetworkRules::signed_in_parts`].
    ///
    /// # Errors
    /// As there.
    fn signed_in_parts(&self, unsigned: &[u8]) -> Result<Option<[u8; 32]>, Fault>;

    /// See [`NetworkRules::check_chain_data`].
    ///
    /// # Errors
    /// As there.
    fn check_chain_data(&self, payload: &Payload, chain_data: &ChainData) -> Result<(), Fault>;

    /// See [`NetworkRules::quoted_price`].
    fn quoted_price(&self, payload: &Payload, chain_data: &ChainData) -> Option<u128>;

    /// See [`NetworkRules::paid_price`].
    ///
    /// # Errors
    /// As there.
    fn paid_price(&self, unsigned: &[u8]) -> Result<Option<u128>, Fault>;

    /// See [`NetworkRules::default_most_price`].
    fn default_most_price(&self, chain_id: Option<u64>) -> u128;

    /// See [`NetworkRules::PRICE_UNIT`].
    fn price_unit(&self) -> &'static str;

    /// See [`NetworkRules::sent_number`].
    ///
    /// # Errors
    /// As there.
    fn sent_number(&self, signed: &Signed, address: &str) -> Result<Option<u64>, Fault>;

    /// See [`NetworkRules::sent_inputs`].
    ///
    /// # Errors
    /// As there.
    fn sent_inputs(&self, signed: &Signed) -> Result<Vec<Resource>, Fault>;

    /// See [`NetworkRules::exclusive_inputs`].
    ///
    /// # Errors
    /// As there.
    fn exclusive_inputs(&self, signed: &Signed) -> Result<Vec<Resource>, Fault>;

    /// See [`NetworkRules::sent_outputs`].
    ///
    /// # Errors
    /// As there.
    fn sent_outputs(&self, signed: &Signed) -> Result<Vec<Resource>, Fault>;

    /// See [`NetworkRules::PATIENCE_MS`].
    fn patience_ms(&self) -> u64;
    /// See [`NetworkRules::FINALITY_MS`].
    fn finality_ms(&self) -> u64;

    /// Builds the transaction or message; checks that the payload's sender is the key's.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] where payload and chain data contradict each other, and
    /// [`crate::fault::Class::Bug`] where the chain data is not what
    /// [`DynNetworkRules::queries`] named.
    fn build(
        &self,
        payload: &Payload,
        chain_data: &ChainData,
        public_key: &[u8],
    ) -> Result<Unsigned, Fault>;

    /// See [`NetworkRules::most_fee`].
    ///
    /// # Errors
    /// As there.
    fn most_fee(&self, unsigned: &[u8]) -> Result<U256, Fault>;

    /// [`DynNetworkRules::most_fee`] of what the payload gives by itself, whosever key it is for; 0 for
    /// messages, and where another one pays. `None` where a node is asked first, or the bytes depend on the key.
    fn fixed_fee(&self, payload: &Payload) -> Option<U256>;

    /// See [`NetworkRules::difference`].
    fn difference(&self, built: &[u8], shown: &[u8]) -> Option<&'static str>;

    /// Puts the signatures (one per [`Unsigned::signing`], in order) in, once each was verified with
    /// `public_key`. `None` for messages.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when a signature is missing, of the wrong kind or not the
    /// key's.
    fn assemble(
        &self,
        payload: &Payload,
        unsigned: &Unsigned,
        signatures: &[Signature],
        public_key: &[u8],
    ) -> Result<Option<Signed>, Fault>;

    /// As [`DynNetworkRules::assemble`], with signatures that were verified before: where they were not of this key, or over
    /// something else, it fails.
    ///
    /// # Errors
    /// As [`DynNetworkRules::assemble`].
    fn assemble_verified(
        &self,
        payload: &Payload,
        unsigned: &Unsigned,
        signatures: &VerifiedSignatures,
        public_key: &[u8],
    ) -> Result<Option<Signed>, Fault>;

    /// The transaction with signatures that nobody has made: what is asked for where it may have been signed and the
    /// signatures are not known. `None` for messages. Where not [`DynNetworkRules::hash_before_signing`], its hash is
    /// that of no transaction.
    ///
    /// # Errors
    /// As [`NetworkRules::assemble`].
    fn stand_in(
        &self,
        payload: &Payload,
        unsigned: &Unsigned,
        public_key: &[u8],
    ) -> Result<Option<Signed>, Fault>;

    /// See [`NetworkRules::HASH_BEFORE_SIGNING`].
    fn hash_before_signing(&self) -> bool;

    /// See [`NetworkRules::valid_until`].
    ///
    /// # Errors
    /// As there.
    fn valid_until(&self, signed: &Signed) -> Result<Option<ChainMoment>, Fault>;

    /// See [`NetworkRules::longest_life_ms`].
    ///
    /// # Errors
    /// As there.
    fn longest_life_ms(&self, signed: &Signed) -> Result<Option<u64>, Fault>;

    /// See [`NetworkRules::IS_NUMBERED`].
    fn is_numbered(&self) -> bool;
}

impl<R> DynNetworkRules for R
where
    R: NetworkRules,
    R::Payload: PartOf<Payload> + Into<Payload>,
    R::Queries: PartOf<Queries> + Into<Queries>,
    R::ChainData: PartOf<ChainData> + Into<ChainData>,
{
    fn address(&self, public_key: &[u8]) -> Result<String, Fault> {
        NetworkRules::address(self, public_key)
    }

    fn owns(&self, public_key: &[u8], address: &str) -> Result<bool, Fault> {
        NetworkRules::owns(self, public_key, address)
    }

    fn parse_address(&self, text: &str) -> Result<String, Fault> {
        NetworkRules::parse_address(self, text)
    }

    fn parse_token(&self, text: &str) -> Result<String, Fault> {
        NetworkRules::parse_token(self, text)
    }

    fn is_coin(&self, token: &str) -> bool {
        NetworkRules::is_coin(self, token)
    }

    fn answers_fit_together(&self) -> bool {
        NetworkRules::answers_fit_together(self)
    }

    fn counted_token(&self, chain_id: Option<u64>, token: String) -> Option<String> {
        NetworkRules::counted_token(self, chain_id, token)
    }

    fn chain_ids(&self) -> Option<ChainIds> {
        NetworkRules::chain_ids(self)
    }

    fn queries(&self, payload: &Payload) -> Queries {
        R::Payload::of(payload)
            .and_then(|payload| NetworkRules::queries(self, payload))
            .map_or(Queries::Nothing, Into::into)
    }

    fn is_sequenced(&self, queries: &Queries) -> bool {
        R::Queries::of(queries).is_some_and(|queries| NetworkRules::is_sequenced(self, queries))
    }

    fn allocate(
        &self,
        payload: &Payload,
        chain_data: ChainData,
        taken: &BTreeSet<Resource>,
    ) -> Result<Allocation<ChainData>, Fault> {
        let (Some(payload), Some(own)) = (R::Payload::of(payload), R::ChainData::of(&chain_data))
        else {
            return Err(unexpected_chain_data());
        };
        let allocation = NetworkRules::allocate(self, payload, own.clone(), taken)?;
        Ok(match allocation {
            Allocation::ChainData(own) => Allocation::ChainData(own.into()),
            Allocation::Wait(reason) => Allocation::Wait(reason),
        })
    }

    fn with_next_number(&self, chain_data: ChainData, number: u64) -> Result<ChainData, Fault> {
        match R::ChainData::of(&chain_data) {
            Some(own) => Ok(NetworkRules::with_next_number(self, own.clone(), number)?.into()),
            None => Ok(chain_data),
        }
    }

    fn with_inputs(
        &self,
        chain_data: ChainData,
        inputs: &BTreeSet<Resource>,
    ) -> Result<ChainData, Fault> {
        match R::ChainData::of(&chain_data) {
            Some(own) => Ok(NetworkRules::with_inputs(self, own.clone(), inputs)?.into()),
            None => Ok(chain_data),
        }
    }

    fn outbid(
        &self,
        payload: &Payload,
        chain_data: ChainData,
        replaced: &Signed,
    ) -> Result<ChainData, Fault> {
        match (R::Payload::of(payload), R::ChainData::of(&chain_data)) {
            (Some(payload), Some(own)) => {
                Ok(NetworkRules::outbid(self, payload, own.clone(), replaced)?.into())
            }
            _ => Ok(chain_data),
        }
    }

    fn replacement(
        &self,
        payload: &Payload,
        replaced: &Signed,
        how: Replacement,
    ) -> Result<Payload, Fault> {
        match R::Payload::of(payload) {
            Some(own) if payload.is_transaction() => {
                Ok(NetworkRules::replacement(self, own, replaced, how)?.into())
            }
            _ => Err(Fault::new(
                Class::Invalid,
                format!("{} makes no transaction", payload.kind()),
            )),
        }
    }

    fn default_most_fee(&self) -> U256 {
        U256::from(R::DEFAULT_MOST_FEE)
    }

    fn gap_filler(&self, payload: &Payload) -> Option<Payload> {
        let own = R::Payload::of(payload)?;
        NetworkRules::gap_filler(self, own).map(Into::into)
    }

    fn candidate_inputs(&self, chain_data: &ChainData) -> Result<Vec<Resource>, Fault> {
        R::ChainData::of(chain_data).map_or(Ok(Vec::new()), |chain_data| {
            NetworkRules::candidate_inputs(self, chain_data)
        })
    }

    fn named_inputs(&self, payload: &Payload) -> Vec<Resource> {
        R::Payload::of(payload).map_or_else(Vec::new, |payload| {
            NetworkRules::named_inputs(self, payload)
        })
    }

    fn reservations(&self, payload: &Payload, unsigned: &Unsigned) -> Result<Vec<Resource>, Fault> {
        match R::Payload::of(payload) {
            Some(payload) if !unsigned.bytes.is_empty() => {
                NetworkRules::reservations(self, payload, unsigned)
            }
            _ => Ok(Vec::new()),
        }
    }

    fn signed_in_parts(&self, unsigned: &[u8]) -> Result<Option<[u8; 32]>, Fault> {
        if unsigned.is_empty() {
            return Ok(None);
        }
        NetworkRules::signed_in_parts(self, unsigned)
    }

    fn check_chain_data(&self, payload: &Payload, chain_data: &ChainData) -> Result<(), Fault> {
        match (R::Payload::of(payload), R::ChainData::of(chain_data)) {
            (Some(payload), Some(chain_data)) => {
                NetworkRules::check_chain_data(self, payload, chain_data)
            }
            _ => Ok(()),
        }
    }

    fn quoted_price(&self, payload: &Payload, chain_data: &ChainData) -> Option<u128> {
        let payload = R::Payload::of(payload)?;
        NetworkRules::quoted_price(self, payload, R::ChainData::of(chain_data)?)
    }

    fn paid_price(&self, unsigned: &[u8]) -> Result<Option<u128>, Fault> {
        match unsigned.is_empty() {
            true => Ok(None),
            false => NetworkRules::paid_price(self, unsigned),
        }
    }

    fn default_most_price(&self, chain_id: Option<u64>) -> u128 {
        NetworkRules::default_most_price(self, chain_id)
    }

    fn price_unit(&self) -> &'static str {
        R::PRICE_UNIT
    }

    fn sent_number(&self, signed: &Signed, address: &str) -> Result<Option<u64>, Fault> {
        NetworkRules::sent_number(self, signed, address)
    }

    fn sent_inputs(&self, signed: &Signed) -> Result<Vec<Resource>, Fault> {
        NetworkRules::sent_inputs(self, signed)
    }

    fn exclusive_inputs(&self, signed: &Signed) -> Result<Vec<Resource>, Fault> {
        NetworkRules::exclusive_inputs(self, signed)
    }

    fn sent_outputs(&self, signed: &Signed) -> Result<Vec<Resource>, Fault> {
        NetworkRules::sent_outputs(self, signed)
    }

    fn patience_ms(&self) -> u64 {
        R::PATIENCE_MS
    }

    fn finality_ms(&self) -> u64 {
        R::FINALITY_MS
    }

    fn build(
        &self,
        payload: &Payload,
        chain_data: &ChainData,
        public_key: &[u8],
    ) -> Result<Unsigned, Fault> {
        let kind = payload.kind();
        let is_sender = NetworkRules::owns(self, public_key, payload.from())?;
        let not_sender = || Fault::field("from", "is not the wallet's address").with_prefix(kind);
        let chain_data = match chain_data {
            ChainData::Nothing => None,
            chain_data => Some(R::ChainData::of(chain_data).ok_or_else(unexpected_chain_data)?),
        };
        let own = match payload {
            Payload::Raw(raw) => {
                if chain_data.is_some() {
                    return Err(unexpected_chain_data());
                }
                if !is_sender {
                    return Err(not_sender());
                }
                return raw::build(R::NETWORK, raw).map_err(|fault| fault.with_prefix(kind));
            }
            payload => R::Payload::of(payload)
                .ok_or_else(|| Fault::bug(format!("{kind} is not of {}", R::NETWORK.name())))?,
        };
        if !is_sender {
            return Err(not_sender());
        }
        if chain_data.is_some()
            && NetworkRules::queries(self, own).is_none()
            && !self.accepts_unqueried_chain_data(own)
        {
            return Err(unexpected_chain_data());
        }
        NetworkRules::build(self, own, chain_data, public_key)
            .map_err(|fault| fault.with_prefix(kind))
    }

    fn most_fee(&self, unsigned: &[u8]) -> Result<U256, Fault> {
        if unsigned.is_empty() {
            return Ok(U256::ZERO);
        }
        NetworkRules::most_fee(self, unsigned)
    }

    fn fixed_fee(&self, payload: &Payload) -> Option<U256> {
        let own = match payload {
            Payload::Raw(_) => return Some(U256::ZERO),
            payload => R::Payload::of(payload)?,
        };
        if NetworkRules::queries(self, own).is_some() {
            return None;
        }
        if !payload.pays_fee() {
            return Some(U256::ZERO);
        }
        let built = NetworkRules::build(self, own, None, &[]).ok()?;
        DynNetworkRules::most_fee(self, &built.bytes).ok()
    }

    fn difference(&self, built: &[u8], shown: &[u8]) -> Option<&'static str> {
        NetworkRules::difference(self, built, shown)
    }

    fn assemble(
        &self,
        payload: &Payload,
        unsigned: &Unsigned,
        signatures: &[Signature],
        public_key: &[u8],
    ) -> Result<Option<Signed>, Fault> {
        let signatures = signatures.to_vec();
        let verified = VerifiedSignatures::verify(public_key, &unsigned.signing, signatures)?;
        self.assemble_verified(payload, unsigned, &verified, public_key)
    }

    fn assemble_verified(
        &self,
        payload: &Payload,
        unsigned: &Unsigned,
        signatures: &VerifiedSignatures,
        public_key: &[u8],
    ) -> Result<Option<Signed>, Fault> {
        signatures.check_of(public_key, &unsigned.signing)?;
        put_in(self, payload, unsigned, signatures, public_key)
    }

    fn stand_in(
        &self,
        payload: &Payload,
        unsigned: &Unsigned,
        public_key: &[u8],
    ) -> Result<Option<Signed>, Fault> {
        let inputs = unsigned.signing.iter();
        let signatures: Vec<_> = inputs.map(|input| nobody_s(input.curve)).collect();
        put_in(self, payload, unsigned, &signatures, public_key)
    }

    fn hash_before_signing(&self) -> bool {
        R::HASH_BEFORE_SIGNING
    }

    fn valid_until(&self, signed: &Signed) -> Result<Option<ChainMoment>, Fault> {
        NetworkRules::valid_until(self, signed)
    }

    fn longest_life_ms(&self, signed: &Signed) -> Result<Option<u64>, Fault> {
        NetworkRules::longest_life_ms(self, signed)
    }

    fn is_numbered(&self) -> bool {
        R::IS_NUMBERED
    }
}

fn put_in<R: NetworkRules>(
    rules: &R,
    payload: &Payload,
    unsigned: &Unsigned,
    signatures: &[Signature],
    public_key: &[u8],
) -> Result<Option<Signed>, Fault>
where
    R::Payload: PartOf<Payload>,
{
    if unsigned.bytes.is_empty() {
        return Ok(None);
    }
    let payload = R::Payload::of(payload)
        .ok_or_else(|| Fault::bug("the payload belongs to another network"))?;
    NetworkRules::assemble(rules, payload, unsigned, signatures, public_key).map(Some)
}

/// What reads as a signature and is nobody's. (Points of secp256k1 have the x 1: a key can be recovered.)
fn nobody_s(curve: Curve) -> Signature {
    let mut r = [0; 32];
    let [.., last] = &mut r;
    *last = 1;
    match curve {
        Curve::Secp256k1 => Signature::Ecdsa {
            r,
            s: r,
            y_parity: 0,
        },
        Curve::Ed25519 => Signature::Ed25519 { r, s: r },
    }
}
