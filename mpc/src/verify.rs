//! Verifies signatures with other libraries than those that made them.

use covault_core::{
    order::SigningOrder,
    signature::{Curve, Signature},
};

/// The signatures do not fit the order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SignatureMismatch;

/// Checks one signature per input against the order's public key: the curve, low s and the y
/// parity of ECDSA too.
pub(crate) fn verify(
    order: &SigningOrder,
    signatures: &[Signature],
) -> Result<(), SignatureMismatch> {
    if signatures.len() != order.inputs.len() || signatures.is_empty() {
        return Err(SignatureMismatch);
    }
    order
        .inputs
        .iter()
        .zip(signatures)
        .try_for_each(|(input, signature)| {
            if input.curve != signature.curve() {
                return Err(SignatureMismatch);
            }
            verify_one(&order.public_key, &input.message, signature)
        })
}

pub(crate) fn verify_one(
    public_key: &[u8],
    message: &[u8],
    signature: &Signature,
) -> Result<(), SignatureMismatch> {
    match signature.curve() {
        Curve::Secp256k1 => {
            use k256::ecdsa::{RecoveryId, Signature as Plain, VerifyingKey};
            let Signature::Ecdsa { r, s, y_parity } = signature else {
                return Err(SignatureMismatch);
            };
            let plain = Plain::from_scalars(*r, *s).map_err(|_| SignatureMismatch)?;
            if *y_parity > 1 || plain.normalize_s() != plain {
                return Err(SignatureMismatch);
            }
            // A key that recovers to ours verifies, and the parity is right.
            let id = RecoveryId::new(*y_parity == 1, false);
            let recovered = VerifyingKey::recover_from_prehash(message, &plain, id)
                .map_err(|_| SignatureMismatch)?;
            let expected =
                VerifyingKey::from_sec1_bytes(public_key).map_err(|_| SignatureMismatch)?;
            (recovered == expected)
                .then_some(())
                .ok_or(SignatureMismatch)
        }
        Curve::Ed25519 => {
            use ed25519_dalek::{Signature as Plain, VerifyingKey};
            let key = VerifyingKey::try_from(public_key).map_err(|_| SignatureMismatch)?;
            let plain = Plain::from_bytes(&signature.to_bytes());
            key.verify_strict(message, &plain)
                .map_err(|_| SignatureMismatch)
        }
    }
}
