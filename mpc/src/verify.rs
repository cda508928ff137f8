//! Verifies signatures with other libraries than those that made them.

#[cfg(feature = "simulation")]
use covault_core::networks::SigningInput;
use covault_core::{
    fault::Fault, networks::VerifiedSignatures, order::SigningOrder, signature::Signature,
};

/// Checks one signature per input against the order's public key: the curve, low s and the y
/// parity of ECDSA too.
pub(crate) fn verify(
    order: &SigningOrder,
    signatures: Vec<Signature>,
) -> Result<VerifiedSignatures, Fault> {
    VerifiedSignatures::verify(&order.public_key, &order.inputs, signatures)
}

/// As [`verify`], of one signature over one message.
#[cfg(feature = "simulation")]
pub(crate) fn verify_one(
    public_key: &[u8],
    message: &[u8],
    signature: &Signature,
) -> Result<(), Fault> {
    let input = SigningInput {
        curve: signature.curve(),
        message: message.to_vec(),
    };
    VerifiedSignatures::verify(public_key, &[input], vec![signature.clone()]).map(drop)
}
