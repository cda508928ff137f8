//! rawMessage: content signed by the wallet's key as it is, or hashed as told.

use sha2::{Digest as _, Sha256};

use super::{
    network::Network,
    payload::{
        NetworkPayload, PayloadKind, WireKind,
        outflow::{ChainScope, ContentKind, Outflow},
    },
    rules::{SigningInput, Unsigned},
};
use crate::{
    fault::Fault,
    field::required,
    schema::wire::{self, EcdsaHashFunction},
    signature::Curve,
};

/// A checked rawMessage.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RawPayload {
    /// The wallet, in canonical form.
    pub from: String,
    /// What to sign; may be empty.
    pub content: Vec<u8>,
    /// How ECDSA wallets hash it; ignored for Ed25519 wallets.
    pub hash_function: EcdsaHashFunction,
}

/// Parses a rawMessage. The kind does not say which network the wallet is of: `canonical` gives the
/// canonical form of an address of whichever it is.
pub(super) fn message(
    wire: &wire::RawMessage,
    canonical: impl Fn(&str) -> Option<String>,
) -> Result<RawPayload, Fault> {
    let from = canonical(required("from", &wire.from)?)
        .ok_or_else(|| Fault::field("from", "must be the address of a wallet"))?;
    let hash_function = EcdsaHashFunction::try_from(wire.ecdsa_hash_function)
        .map_err(|_| Fault::field("ecdsaHashFunction", "unknown hash function"))?;
    Ok(RawPayload {
        from,
        content: wire.content.clone(),
        hash_function,
    })
}

impl NetworkPayload for RawPayload {
    fn kind(&self) -> PayloadKind {
        PayloadKind::RawMessage
    }

    fn from(&self) -> &str {
        &self.from
    }

    fn to_wire(&self) -> WireKind {
        WireKind::RawMessage(wire::RawMessage {
            from: self.from.clone(),
            content: self.content.clone(),
            ecdsa_hash_function: self.hash_function.into(),
        })
    }

    fn outflow(&self, wallet: Network) -> Outflow {
        Outflow {
            nature: ContentKind::Raw,
            place: ChainScope::network(wallet),
            spends: Vec::new(),
        }
    }

    fn chain_id(&self) -> Option<u64> {
        None
    }

    fn is_transaction(&self) -> bool {
        false
    }

    fn check_wallet(&self, wallet: Network) -> Result<(), Fault> {
        self.signing_input(wallet.curve()).map(drop)
    }
}

impl RawPayload {
    /// What a key of `curve` signs.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] when an ECDSA wallet is not told how to hash, or told
    /// to use content directly that is not 32 bytes.
    pub(crate) fn signing_input(&self, curve: Curve) -> Result<SigningInput, Fault> {
        let message = match (curve, self.hash_function) {
            (Curve::Ed25519, _) => self.content.clone(),
            (Curve::Secp256k1, EcdsaHashFunction::Sha256) => Sha256::digest(&self.content).to_vec(),
            (Curve::Secp256k1, EcdsaHashFunction::UseMessageDirectly) => {
                if self.content.len() != 32 {
                    return Err(Fault::field(
                        "content",
                        "must be exactly 32 bytes for ECDSA_HASH_FUNCTION_USE_MESSAGE_DIRECTLY",
                    ));
                }
                self.content.clone()
            }
            (Curve::Secp256k1, EcdsaHashFunction::Unspecified) => {
                return Err(Fault::field(
                    "ecdsaHashFunction",
                    "is required for a wallet with an ECDSA key",
                ));
            }
        };
        Ok(SigningInput { curve, message })
    }
}

/// Builds a rawMessage for the wallet of `network` that it is from.
pub(super) fn build(network: Network, payload: &RawPayload) -> Result<Unsigned, Fault> {
    Ok(Unsigned {
        bytes: Vec::new(),
        signing: vec![payload.signing_input(network.curve())?],
    })
}
