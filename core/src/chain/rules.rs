//! What a network's own file has to say, in its own types, and how a [`Chain`] comes of it. What
//! is the same for all networks is here: who the sender is, rawMessage, facts that do not fit.

use std::collections::BTreeSet;

use k256::ecdsa::{RecoveryId, VerifyingKey};

use super::{Chain, Facts, Needs, Resource, Settled, Signed, SigningInput, Unsigned, raw};
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
pub trait Rules: Sync {
    /// Its checked payload kinds.
    type Payload: Part<Payload> + Family;
    /// What its nodes are asked.
    type Needs: Into<Needs>;
    /// What they answer.
    type Facts: Into<Facts> + Part<Facts> + Clone;

    /// Which network this is.
    const NETWORK: Network;

    /// See [`Chain::address`].
    ///
    /// # Errors
    /// As there.
    fn address(&self, public_key: &[u8]) -> Result<String, Fault>;

    /// See [`Chain::owns`]: the one address of the key, unless the network says otherwise.
    ///
    /// # Errors
    /// As there.
    fn owns(&self, public_key: &[u8], address: &str) -> Result<bool, Fault> {
        Ok(self.address(public_key)? == address)
    }

    /// See [`Chain::parse_address`].
    ///
    /// # Errors
    /// As there.
    fn parse_address(&self, text: &str) -> Result<String, Fault>;

    /// See [`Chain::parse_token`]: an address, unless the network says otherwise.
    ///
    /// # Errors
    /// As there.
    fn parse_token(&self, text: &str) -> Result<String, Fault> {
        self.parse_address(text)
    }

    /// See [`Chain::is_coin`]: never, unless the network says otherwise.
    fn is_coin(&self, _token: &str) -> bool {
        false
    }

    /// What must be known before the payload can be built; `None` for messages and for
    /// transactions that bring everything.
    fn needs(&self, payload: &Self::Payload) -> Option<Self::Needs>;

    /// Whether [`Rules::build`] can use facts that [`Rules::needs`] did not ask for.
    fn takes_unasked(&self, _payload: &Self::Payload) -> bool {
        false
    }

    /// See [`Chain::is_sequenced`].
    fn is_sequenced(&self, _needs: &Needs) -> bool {
        false
    }

    /// See [`Chain::settle`]; the facts as they are, unless the network says otherwise.
    ///
    /// # Errors
    /// As there.
    fn settle(
        &self,
        _payload: &Self::Payload,
        facts: Self::Facts,
        _taken: &BTreeSet<Resource>,
    ) -> Result<Settled, Fault> {
        Ok(Settled::Facts(facts.into()))
    }

    /// See [`Chain::offered`]; nothing, unless the network says otherwise.
    ///
    /// # Errors
    /// As there.
    fn offered(&self, _facts: &Self::Facts) -> Result<Vec<Resource>, Fault> {
        Ok(Vec::new())
    }

    /// See [`Chain::uses`].
    ///
    /// # Errors
    /// As there.
    fn uses(&self, payload: &Self::Payload, unsigned: &Unsigned) -> Result<Vec<Resource>, Fault>;

    /// See [`Chain::signed_in_parts`]: nothing is, unless the network says otherwise. The bytes are
    /// not empty.
    ///
    /// # Errors
    /// As there.
    fn signed_in_parts(&self, _unsigned: &[u8]) -> Result<Option<[u8; 32]>, Fault> {
        Ok(None)
    }

    /// See [`Chain::vouch`]: nothing to show, unless the network says otherwise.
    ///
    /// # Errors
    /// As there.
    fn vouch(&self, _payload: &Self::Payload, _facts: &Self::Facts) -> Result<(), Fault> {
        Ok(())
    }

    /// Builds the transaction or message of the sender, whose key `public_key` is. `facts` is
    /// `None` when nothing was asked. Field names in faults are relative to the payload.
    ///
    /// # Errors
    /// See [`Chain::build`].
    fn build(
        &self,
        payload: &Self::Payload,
        facts: Option<&Self::Facts>,
        public_key: &[u8],
    ) -> Result<Unsigned, Fault>;

    /// See [`Chain::most_fee`]; the bytes are not empty.
    ///
    /// # Errors
    /// As there.
    fn most_fee(&self, unsigned: &[u8]) -> Result<U256, Fault>;

    /// See [`Chain::difference`].
    fn difference(&self, built: &[u8], shown: &[u8]) -> Option<&'static str>;

    /// Puts the signatures into a transaction. There is one per input, of the input's curve, and
    /// each was verified with `public_key`.
    ///
    /// # Errors
    /// See [`Chain::assemble`].
    fn assemble(
        &self,
        payload: &Self::Payload,
        unsigned: &Unsigned,
        signatures: &[Signature],
        public_key: &[u8],
    ) -> Result<Signed, Fault>;

    /// See [`Chain::valid_until_ms`]: for ever, unless the network says otherwise.
    ///
    /// # Errors
    /// As there.
    fn valid_until_ms(&self, _signed: &Signed) -> Result<Option<u64>, Fault> {
        Ok(None)
    }
}

impl<R: Rules> Chain for R {
    fn address(&self, public_key: &[u8]) -> Result<String, Fault> {
        Rules::address(self, public_key)
    }

    fn owns(&self, public_key: &[u8], address: &str) -> Result<bool, Fault> {
        Rules::owns(self, public_key, address)
    }

    fn parse_address(&self, text: &str) -> Result<String, Fault> {
        Rules::parse_address(self, text)
    }

    fn parse_token(&self, text: &str) -> Result<String, Fault> {
        Rules::parse_token(self, text)
    }

    fn is_coin(&self, token: &str) -> bool {
        Rules::is_coin(self, token)
    }

    fn needs(&self, payload: &Payload) -> Needs {
        R::Payload::of(payload)
            .and_then(|payload| Rules::needs(self, payload))
            .map_or(Needs::Nothing, Into::into)
    }

    fn is_sequenced(&self, needs: &Needs) -> bool {
        Rules::is_sequenced(self, needs)
    }

    fn settle(
        &self,
        payload: &Payload,
        facts: Facts,
        taken: &BTreeSet<Resource>,
    ) -> Result<Settled, Fault> {
        let (Some(payload), Some(own)) = (R::Payload::of(payload), R::Facts::of(&facts)) else {
            return Err(not_those());
        };
        Rules::settle(self, payload, own.clone(), taken)
    }

    fn offered(&self, facts: &Facts) -> Result<Vec<Resource>, Fault> {
        R::Facts::of(facts).map_or(Ok(Vec::new()), |facts| Rules::offered(self, facts))
    }

    fn uses(&self, payload: &Payload, unsigned: &Unsigned) -> Result<Vec<Resource>, Fault> {
        match R::Payload::of(payload) {
            Some(payload) if !unsigned.bytes.is_empty() => Rules::uses(self, payload, unsigned),
            _ => Ok(Vec::new()),
        }
    }

    fn signed_in_parts(&self, unsigned: &[u8]) -> Result<Option<[u8; 32]>, Fault> {
        if unsigned.is_empty() {
            return Ok(None);
        }
        Rules::signed_in_parts(self, unsigned)
    }

    fn vouch(&self, payload: &Payload, facts: &Facts) -> Result<(), Fault> {
        match (R::Payload::of(payload), R::Facts::of(facts)) {
            (Some(payload), Some(facts)) => Rules::vouch(self, payload, facts),
            _ => Ok(()),
        }
    }

    fn build(
        &self,
        payload: &Payload,
        facts: &Facts,
        public_key: &[u8],
    ) -> Result<Unsigned, Fault> {
        let kind = payload.kind();
        let is_sender = Rules::owns(self, public_key, payload.from())?;
        let not_sender = || Fault::field("from", "is not the wallet's address").under(kind);
        let facts = match facts {
            Facts::Nothing => None,
            facts => Some(R::Facts::of(facts).ok_or_else(not_those)?),
        };
        let own = match payload {
            Payload::Raw(raw) => {
                if facts.is_some() {
                    return Err(not_those());
                }
                if !is_sender {
                    return Err(not_sender());
                }
                return raw::build(R::NETWORK, raw).map_err(|fault| fault.under(kind));
            }
            payload => R::Payload::of(payload)
                .ok_or_else(|| Fault::bug(format!("{kind} is not of {}", R::NETWORK.name())))?,
        };
        if !is_sender {
            return Err(not_sender());
        }
        if facts.is_some() && Rules::needs(self, own).is_none() && !self.takes_unasked(own) {
            return Err(not_those());
        }
        Rules::build(self, own, facts, public_key).map_err(|fault| fault.under(kind))
    }

    fn most_fee(&self, unsigned: &[u8]) -> Result<U256, Fault> {
        if unsigned.is_empty() {
            return Ok(U256::ZERO);
        }
        Rules::most_fee(self, unsigned)
    }

    fn fixed_fee(&self, payload: &Payload) -> Option<U256> {
        let own = match payload {
            Payload::Raw(_) => return Some(U256::ZERO),
            payload => R::Payload::of(payload)?,
        };
        if Rules::needs(self, own).is_some() {
            return None;
        }
        let built = Rules::build(self, own, None, &[]).ok()?;
        Chain::most_fee(self, &built.bytes).ok()
    }

    fn difference(&self, built: &[u8], shown: &[u8]) -> Option<&'static str> {
        Rules::difference(self, built, shown)
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
        Rules::assemble(self, payload, unsigned, signatures, public_key).map(Some)
    }

    fn valid_until_ms(&self, signed: &Signed) -> Result<Option<u64>, Fault> {
        Rules::valid_until_ms(self, signed)
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
