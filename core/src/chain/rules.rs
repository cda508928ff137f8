//! What a network's own file has to say, in its own types, and how a [`DynNetworkRules`] comes of it. What
//! is the same for all networks is here: who the sender is, rawMessage, facts that do not fit.

use std::collections::BTreeSet;

use k256::ecdsa::{RecoveryId, VerifyingKey};

use super::{
    Allocation, ChainData, DynNetworkRules, Queries, Resource, Signed, SigningInput, Unsigned, raw,
};
use crate::{
    amount::U256,
    fault::Fault,
    network::Network,
    payload::{Family, Payload},
    signature::{Curve, Signature},
};

/// A part of an enum over the networks.
pub trait Part<Whole>: Sized {
    /// The part, when the whole is of this network.
    fn of(whole: &Whole) -> Option<&Self>;
}

/// The rules of one network.
pub trait NetworkRules: Sync {
    /// Its checked payload kinds.
    type Payload: Part<Payload> + Family;
    /// What its nodes are asked.
    type Queries: Into<Queries>;
    /// What they answer.
    type ChainData: Into<ChainData> + Part<ChainData> + Clone;

    /// Which network this is.
    const NETWORK: Network;

    /// See [`DynNetworkRules::address`].
    ///
    /// # Errors
    /// As there.
    fn address(&self, public_key: &[u8]) -> Result<String, Fault>;

    /// See [`DynNetworkRules::owns`]: the one address of the key, unless the network says otherwise.
    ///
    /// # Errors
    /// As there.
    fn owns(&self, public_key: &[u8], address: &str) -> Result<bool, Fault> {
        Ok(self.address(public_key)? == address)
    }

    /// See [`DynNetworkRules::parse_address`].
    ///
    /// # Errors
    /// As there.
    fn parse_address(&self, text: &str) -> Result<String, Fault>;

    /// See [`DynNetworkRules::parse_token`]: an address, unless the network says otherwise.
    ///
    /// # Errors
    /// As there.
    fn parse_token(&self, text: &str) -> Result<String, Fault> {
        self.parse_address(text)
    }

    /// See [`DynNetworkRules::is_coin`]: never, unless the network says otherwise.
    fn is_coin(&self, _token: &str) -> bool {
        false
    }

    /// What must be known before the payload can be built; `None` for messages and for
    /// transactions that bring everything.
    fn queries(&self, payload: &Self::Payload) -> Option<Self::Queries>;

    /// Whether [`NetworkRules::build`] can use facts that [`NetworkRules::queries`] did not ask for.
    fn takes_unasked(&self, _payload: &Self::Payload) -> bool {
        false
    }

    /// See [`DynNetworkRules::is_sequenced`].
    fn is_sequenced(&self, _needs: &Queries) -> bool {
        false
    }

    /// See [`DynNetworkRules::allocate`]; the facts as they are, unless the network says otherwise.
    ///
    /// # Errors
    /// As there.
    fn allocate(
        &self,
        _payload: &Self::Payload,
        chain_data: Self::ChainData,
        _taken: &BTreeSet<Resource>,
    ) -> Result<Allocation, Fault> {
        Ok(Allocation::ChainData(chain_data.into()))
    }

    /// See [`DynNetworkRules::candidate_inputs`]; nothing, unless the network says otherwise.
    ///
    /// # Errors
    /// As there.
    fn candidate_inputs(&self, _facts: &Self::ChainData) -> Result<Vec<Resource>, Fault> {
        Ok(Vec::new())
    }

    /// See [`DynNetworkRules::reservations`].
    ///
    /// # Errors
    /// As there.
    fn reservations(
        &self,
        payload: &Self::Payload,
        unsigned: &Unsigned,
    ) -> Result<Vec<Resource>, Fault>;

    /// See [`DynNetworkRules::signed_in_parts`]: nothing is, unless the network says otherwise. The bytes are
    /// not empty.
    ///
    /// # Errors
    /// As there.
    fn signed_in_parts(&self, _unsigned: &[u8]) -> Result<Option<[u8; 32]>, Fault> {
        Ok(None)
    }

    /// See [`DynNetworkRules::vouch`]: nothing to show, unless the network says otherwise.
    ///
    /// # Errors
    /// As there.
    fn vouch(&self, _payload: &Self::Payload, _facts: &Self::ChainData) -> Result<(), Fault> {
        Ok(())
    }

    /// Builds the transaction or message of the sender, whose key `public_key` is. `chain_data` is
    /// `None` when nothing was asked. Field names in faults are relative to the payload.
    ///
    /// # Errors
    /// See [`DynNetworkRules::build`].
    fn build(
        &self,
        payload: &Self::Payload,
        chain_data: Option<&Self::ChainData>,
        public_key: &[u8],
    ) -> Result<Unsigned, Fault>;

    /// See [`DynNetworkRules::most_fee`]; the bytes are not empty.
    ///
    /// # Errors
    /// As there.
    fn most_fee(&self, unsigned: &[u8]) -> Result<U256, Fault>;

    /// See [`DynNetworkRules::difference`].
    fn difference(&self, built: &[u8], shown: &[u8]) -> Option<&'static str>;

    /// Puts the signatures into a transaction. There is one per input, of the input's curve, and
    /// each was verified with `public_key`.
    ///
    /// # Errors
    /// See [`DynNetworkRules::assemble`].
    fn assemble(
        &self,
        payload: &Self::Payload,
        unsigned: &Unsigned,
        signatures: &[Signature],
        public_key: &[u8],
    ) -> Result<Signed, Fault>;

    /// See [`DynNetworkRules::valid_until_ms`]: for ever, unless the network says otherwise.
    ///
    /// # Errors
    /// As there.
    fn valid_until_ms(&self, _signed: &Signed) -> Result<Option<u64>, Fault> {
        Ok(None)
    }
}

impl<R: NetworkRules> DynNetworkRules for R {
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

    fn queries(&self, payload: &Payload) -> Queries {
        R::Payload::of(payload)
            .and_then(|payload| NetworkRules::queries(self, payload))
            .map_or(Queries::Nothing, Into::into)
    }

    fn is_sequenced(&self, queries: &Queries) -> bool {
        NetworkRules::is_sequenced(self, queries)
    }

    fn allocate(
        &self,
        payload: &Payload,
        chain_data: ChainData,
        taken: &BTreeSet<Resource>,
    ) -> Result<Allocation, Fault> {
        let (Some(payload), Some(own)) = (R::Payload::of(payload), R::ChainData::of(&chain_data))
        else {
            return Err(not_those());
        };
        NetworkRules::allocate(self, payload, own.clone(), taken)
    }

    fn candidate_inputs(&self, chain_data: &ChainData) -> Result<Vec<Resource>, Fault> {
        R::ChainData::of(chain_data).map_or(Ok(Vec::new()), |chain_data| {
            NetworkRules::candidate_inputs(self, chain_data)
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

    fn vouch(&self, payload: &Payload, chain_data: &ChainData) -> Result<(), Fault> {
        match (R::Payload::of(payload), R::ChainData::of(chain_data)) {
            (Some(payload), Some(chain_data)) => NetworkRules::vouch(self, payload, chain_data),
            _ => Ok(()),
        }
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
            chain_data => Some(R::ChainData::of(chain_data).ok_or_else(not_those)?),
        };
        let own = match payload {
            Payload::Raw(raw) => {
                if chain_data.is_some() {
                    return Err(not_those());
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
            && !self.takes_unasked(own)
        {
            return Err(not_those());
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
        if unsigned.signing.is_empty() || unsigned.signing.len() != signatures.len() {
            return Err(Fault::bug("there is not one signature for each input"));
        }
        for (input, signature) in unsigned.signing.iter().zip(signatures) {
            check(input, signature, public_key)?;
        }
        if unsigned.bytes.is_empty() {
            return Ok(None);
        }
        let payload = R::Payload::of(payload)
            .ok_or_else(|| Fault::bug("the payload is of another network"))?;
        NetworkRules::assemble(self, payload, unsigned, signatures, public_key).map(Some)
    }

    fn valid_until_ms(&self, signed: &Signed) -> Result<Option<u64>, Fault> {
        NetworkRules::valid_until_ms(self, signed)
    }
}

/// The fault of a network's `build` whose facts are missing or of another network.
pub(crate) fn not_those() -> Fault {
    Fault::bug("the facts are not those that were asked for")
}

/// Verifies a signature: of the input's curve, by the key, and as every network takes it (ECDSA:
/// s low and the right parity, which tells the sender; Ed25519: strictly, RFC 8032 5.1.7).
fn check(input: &SigningInput, signature: &Signature, public_key: &[u8]) -> Result<(), Fault> {
    let wrong = || Fault::bug("the signature is not the wallet's");
    match (input.curve, signature) {
        (Curve::Secp256k1, Signature::Ecdsa { r, s, y_parity }) => {
            let odd = match y_parity {
                0 => false,
                1 => true,
                _ => return Err(Fault::bug("y parity is neither 0 nor 1")),
            };
            let ecdsa = k256::ecdsa::Signature::from_scalars(*r, *s)
                .map_err(|_| Fault::bug("r or s is out of range"))?;
            if ecdsa.normalize_s() != ecdsa {
                return Err(Fault::bug("s is not low"));
            }
            let id = RecoveryId::new(odd, false);
            let key = VerifyingKey::recover_from_prehash(&input.message, &ecdsa, id)
                .map_err(|_| Fault::bug("signature recovers to no public key"))?;
            let same = key.to_sec1_point(true).as_bytes() == public_key;
            same.then_some(()).ok_or_else(wrong)
        }
        (Curve::Ed25519, Signature::Ed25519 { .. }) => {
            let key = public_key.try_into().map_err(|_| wrong())?;
            ed25519_dalek::VerifyingKey::from_bytes(key)
                .and_then(|key| {
                    let signature = ed25519_dalek::Signature::from_bytes(&signature.to_bytes());
                    key.verify_strict(&input.message, &signature)
                })
                .map_err(|_| wrong())
        }
        _ => Err(Fault::bug(
            "the signature is of another curve than its input",
        )),
    }
}
