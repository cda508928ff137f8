//! Transactions whose fee another account pays (AIP-39): sender and payer sign one message, which names the
//! payer. The payer is no signer in Move: nothing goes from it but the fee.

use ed25519_dalek::VerifyingKey;
use sui_sdk_types::Address;

use super::{
    address::{parse_address, sender},
    tx::{self, AccountAuthenticator, AnyPublicKey, AnySignature, RawTransaction},
};
use crate::{fault::Fault, schema::wire};

/// Who pays, and what the other one who signs has signed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FeePayer {
    /// Who pays; 0x0 while that is not known, as the sender may sign it.
    pub address: Address,
    /// The verified `AccountAuthenticator` of the other one in BCS; empty where it is not there.
    pub other_signature: Vec<u8>,
}

impl FeePayer {
    /// Reads what a request says of who pays; `None` where the sender does.
    pub(super) fn parse(
        wire: &wire::AptosSendCustom,
        from: Address,
        raw: Option<&RawTransaction>,
    ) -> Result<Option<Self>, Fault> {
        let Some(text) = named(wire) else {
            return match wire.other_signature.is_empty() {
                true => Ok(None),
                false => Err(Fault::field(
                    "otherSignature",
                    "must be empty: without feePayer, only `from` signs",
                )),
            };
        };
        let address = parse_address(text).map_err(|error| Fault::field("feePayer", error))?;
        let Some(raw) = raw else {
            return Err(Fault::field(
                "feePayer",
                "needs a RawTransaction in BCS as payload",
            ));
        };
        if raw.sender == address {
            return Err(Fault::field(
                "feePayer",
                "must differ from the sender, who pays if it is left out",
            ));
        }
        let payer = Self {
            address,
            other_signature: wire.other_signature.clone(),
        };
        if !payer.other_signature.is_empty() {
            payer.check_other(raw, from)?;
        }
        Ok(Some(payer))
    }

    /// The other one's signature has to be good for what is sent. The sender may have signed without knowing
    /// who pays. Whether the key is the account's the chain knows: it may have been changed.
    fn check_other(&self, raw: &RawTransaction, from: Address) -> Result<(), Fault> {
        let wrong = |problem: &str| Err(Fault::field("otherSignature", problem));
        if self.address == Address::ZERO {
            return wrong("needs the address of the fee payer, who has signed it");
        }
        let Some(authenticator) = self.other() else {
            return wrong("must be an AccountAuthenticator in BCS");
        };
        let (public_key, signature) = match authenticator {
            AccountAuthenticator::Ed25519 {
                public_key,
                signature,
            }
            | AccountAuthenticator::SingleKey {
                public_key: AnyPublicKey::Ed25519(public_key),
                signature: AnySignature::Ed25519(signature),
            } => (public_key, signature),
            _ => {
                return wrong(
                    "must be of one Ed25519 key: with another scheme, set broadcastTx to false and send the \
                     transaction yourself",
                );
            }
        };
        if sender(&public_key).is_ok_and(|signer| signer == from) {
            return wrong("is the signature of `from` itself: the fee payer has to sign");
        }
        let mut messages = vec![tx::message_with_payer(raw, self.address)?];
        if raw.sender != from {
            messages.push(tx::message_with_payer(raw, Address::ZERO)?);
        }
        let key = <&[u8; 32]>::try_from(public_key.as_slice());
        let key = key.ok().and_then(|key| VerifyingKey::from_bytes(key).ok());
        let signature = ed25519_dalek::Signature::from_slice(&signature).ok();
        let good = key.zip(signature).is_some_and(|(key, signature)| {
            let mut messages = messages.iter();
            messages.any(|message| key.verify_strict(message, &signature).is_ok())
        });
        match good {
            true => Ok(()),
            false => wrong("does not sign this transaction with this fee payer"),
        }
    }

    fn other(&self) -> Option<AccountAuthenticator> {
        tx::strictly(&self.other_signature)
    }

    /// The authenticators of sender and payer, of which `own` is the wallet's, the payer's where it is not the
    /// sender.
    pub(super) fn authenticators(
        &self,
        own: AccountAuthenticator,
        is_sender: bool,
    ) -> (AccountAuthenticator, AccountAuthenticator) {
        let other = self.other().unwrap_or(AccountAuthenticator::None);
        match is_sender {
            true => (own, other),
            false => (other, own),
        }
    }
}

/// The fee payer that a request names.
pub(super) fn named(wire: &wire::AptosSendCustom) -> Option<&str> {
    wire.fee_payer.as_deref().filter(|text| !text.is_empty())
}
