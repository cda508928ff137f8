//! Signatures that were verified.

use std::ops::Deref;

use k256::ecdsa::{RecoveryId, VerifyingKey};

use super::SigningInput;
use crate::{
    fault::Fault,
    signature::{Curve, Signature},
};

/// One signature for each input, verified once with the key; it remembers of what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedSignatures {
    public_key: Vec<u8>,
    inputs: Vec<SigningInput>,
    signatures: Vec<Signature>,
}

impl VerifiedSignatures {
    /// Verifies signatures: one per input, in order, of the input's curve, by the key (compressed SEC 1 or 32 bytes, as
    /// [`crate::wallet::ChildKey`] has it), and as every network takes it (ECDSA: s low and the right parity, which tells the
    /// sender; Ed25519: strictly, RFC 8032 5.1.7).
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when one is missing, of the wrong kind or not the key's.
    pub fn verify(
        public_key: &[u8],
        inputs: &[SigningInput],
        signatures: Vec<Signature>,
    ) -> Result<Self, Fault> {
        if inputs.is_empty() || inputs.len() != signatures.len() {
            return Err(Fault::bug(
                "the number of signatures does not match the number of inputs",
            ));
        }
        for (input, signature) in inputs.iter().zip(&signatures) {
            check(input, signature, public_key)?;
        }
        Ok(Self {
            public_key: public_key.to_vec(),
            inputs: inputs.to_vec(),
            signatures,
        })
    }

    /// Whether it was these inputs that were verified, and with this key.
    pub(super) fn check_of(&self, public_key: &[u8], inputs: &[SigningInput]) -> Result<(), Fault> {
        let same = self.public_key == public_key && self.inputs == inputs;
        same.then_some(())
            .ok_or_else(|| Fault::bug("the signatures are those of something else"))
    }

    /// The signatures alone.
    pub fn into_signatures(self) -> Vec<Signature> {
        self.signatures
    }
}

impl Deref for VerifiedSignatures {
    type Target = [Signature];

    fn deref(&self) -> &[Signature] {
        &self.signatures
    }
}

fn check(input: &SigningInput, signature: &Signature, public_key: &[u8]) -> Result<(), Fault> {
    let wrong = || Fault::bug("the signature is not from the wallet's key");
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
        _ => Err(Fault::bug("the signature's curve does not match its input")),
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use ed25519_dalek::{Signer as _, SigningKey};

    use super::*;

    #[test]
    fn verified__should_be_of_one_key_and_these_inputs_alone() {
        let key = SigningKey::from_bytes(&[7; 32]);
        let public_key = key.verifying_key().to_bytes();
        let input = |message: &[u8]| SigningInput {
            curve: Curve::Ed25519,
            message: message.to_vec(),
        };
        let signature = |message: &[u8]| {
            let bytes = key.sign(message).to_bytes();
            let half = |from: usize| <[u8; 32]>::try_from(&bytes[from..from + 32]).unwrap();
            Signature::Ed25519 {
                r: half(0),
                s: half(32),
            }
        };
        let of = |inputs: &[SigningInput], signatures: Vec<Signature>| {
            VerifiedSignatures::verify(&public_key, inputs, signatures)
        };
        let (one, two) = (input(b"one"), input(b"two"));
        let both = vec![signature(b"one"), signature(b"two")];
        let inputs = [one.clone(), two.clone()];
        let verified = of(&inputs, both.clone()).unwrap();
        assert_eq!(verified[..], both);
        assert!(verified.check_of(&public_key, &inputs).is_ok());
        for others in [
            &[two.clone(), one.clone()][..],
            &inputs[..1],
            &[one.clone(), input(b"other")],
        ] {
            assert!(verified.check_of(&public_key, others).is_err());
        }
        assert!(verified.check_of(&[8; 32], &inputs).is_err());
        assert!(of(&inputs, both[..1].to_vec()).is_err() && of(&[], Vec::new()).is_err());
        assert!(of(&[two, one], both).is_err());
    }
}
