//! Solana and Sonic SVM.
//!
//! Transfers are legacy messages with one System Program instruction and no compute budget; the
//! sender pays the fee. Accounts stand in the order that the Rust SDK gives them.

#[cfg(test)]
mod tests;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use curve25519_dalek::edwards::CompressedEdwardsY;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use solana_hash::Hash;
use solana_message::{Message, VersionedMessage};
use solana_pubkey::Pubkey;
use solana_system_interface::instruction::transfer;

use crate::{
    amount::U256,
    chain::{Resource, Rules, Signed, SigningInput, Unsigned, rules::not_those},
    fault::{Class, Fault},
    network::Network,
    payload::solana::{SendNative, SolanaPayload},
    signature::{Curve, Signature},
};

/// What a Solana node must be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    /// 101 for Solana, 0 for Sonic SVM.
    pub chain_id: u64,
    /// Whether a recent blockhash is wanted.
    pub blockhash: bool,
}

/// What a Solana node said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// `getLatestBlockhash` at commitment confirmed, base58.
    pub recent_blockhash: String,
}

/// Why a text is not a Solana address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not base58 of 32 bytes.
    #[error("must be a Solana address: base58 of 32 bytes")]
    Form,
}

/// Parses base58 of exactly 32 bytes. Not every address is on the curve (those of programs are
/// not), so that is not asked for.
///
/// # Errors
/// See [`AddressError`].
pub fn parse_key(text: &str) -> Result<Pubkey, AddressError> {
    bytes_32(text)
        .map(Pubkey::new_from_array)
        .ok_or(AddressError::Form)
}

fn bytes_32(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    let length = bs58::decode(text).onto(&mut bytes).ok()?;
    (length == 32).then_some(bytes)
}

/// Whether the bytes are a whole transaction message: legacy, or of any version that is known.
/// A signature over them would be that of the transaction.
pub fn is_transaction_message(bytes: &[u8]) -> bool {
    wincode::deserialize_exact::<VersionedMessage>(bytes).is_ok()
}

/// A compact array of one signature.
const ONE_SIGNATURE: u8 = 1;
const SIGNATURE_BYTES: usize = 64;
/// The base fee of a signature.
const LAMPORTS_PER_SIGNATURE: u64 = 5000;

/// The Solana rules.
pub struct Solana;

impl Rules for Solana {
    type Payload = SolanaPayload;
    type Needs = Needs;
    type Facts = Facts;

    const NETWORK: Network = Network::Solana;

    fn address(&self, public_key: &[u8]) -> Result<String, Fault> {
        let key: [u8; 32] = public_key
            .try_into()
            .map_err(|_| Fault::bug("an Ed25519 public key has 32 bytes"))?;
        // RFC 8032 wants the canonical encoding; a key of small order is nobody's.
        let point = CompressedEdwardsY(key)
            .decompress()
            .filter(|point| point.compress().to_bytes() == key && !point.is_small_order());
        if point.is_none() {
            return Err(Fault::bug("not an Ed25519 public key"));
        }
        Ok(Pubkey::new_from_array(key).to_string())
    }

    fn parse_address(&self, text: &str) -> Result<String, Fault> {
        parse_key(text)
            .map(|key| key.to_string())
            .map_err(|error| Fault::new(Class::Invalid, error.to_string()))
    }

    fn needs(&self, payload: &SolanaPayload) -> Option<Needs> {
        match payload {
            SolanaPayload::SendNative(send) => Some(Needs {
                chain_id: send.cluster.chain_id(),
                blockhash: true,
            }),
            SolanaPayload::Message(_) => None,
        }
    }

    /// The network knows a transaction by its message: two equal transfers with one blockhash are
    /// one transfer.
    fn uses(&self, _payload: &SolanaPayload, unsigned: &Unsigned) -> Result<Vec<Resource>, Fault> {
        let whole = unsigned
            .signing
            .iter()
            .map(|input| Resource::Whole(Sha256::digest(&input.message).into()));
        Ok(whole.collect())
    }

    fn build(
        &self,
        payload: &SolanaPayload,
        facts: Option<&Facts>,
        _public_key: &[u8],
    ) -> Result<Unsigned, Fault> {
        match payload {
            SolanaPayload::SendNative(send) => send_native(send, facts.ok_or_else(not_those)?),
            SolanaPayload::Message(message) => Ok(Unsigned {
                bytes: Vec::new(),
                signing: vec![input(message.content.clone())],
            }),
        }
    }

    fn most_fee(&self, unsigned: &[u8]) -> Result<U256, Fault> {
        let message = message_of(unsigned)
            .ok_or_else(|| Fault::bug("the unsigned transaction cannot be read"))?;
        let signatures = u64::from(message.header.num_required_signatures);
        // Without compute budget instructions, which nothing here makes, there is no priority fee.
        Ok(U256::from(
            signatures.saturating_mul(LAMPORTS_PER_SIGNATURE),
        ))
    }

    fn difference(&self, built: &[u8], shown: &[u8]) -> Option<&'static str> {
        let (built, shown) = (message_of(built)?, message_of(shown)?);
        if built.account_keys.first() != shown.account_keys.first() {
            return Some("from");
        }
        if built.account_keys != shown.account_keys {
            return Some("recipient");
        }
        if built.instructions != shown.instructions {
            return Some("amount");
        }
        (built.recent_blockhash != shown.recent_blockhash).then_some("recentBlockhash")
    }

    fn assemble(
        &self,
        _payload: &SolanaPayload,
        unsigned: &Unsigned,
        signatures: &[Signature],
        _public_key: &[u8],
    ) -> Result<Signed, Fault> {
        let ([input], [signature]) = (unsigned.signing.as_slice(), signatures) else {
            return Err(Fault::bug("the payload has exactly one thing to sign"));
        };
        if transaction(&[0; SIGNATURE_BYTES], &input.message) != unsigned.bytes {
            return Err(Fault::bug("what was signed is not the transaction"));
        }
        let signature = signature.to_bytes();
        Ok(Signed {
            transaction: STANDARD.encode(transaction(&signature, &input.message)),
            tx_hash: bs58::encode(signature).into_string(),
        })
    }
}

fn send_native(send: &SendNative, facts: &Facts) -> Result<Unsigned, Fault> {
    let key = |name: &str, text: &str| parse_key(text).map_err(|error| Fault::field(name, error));
    let (from, to) = (key("from", &send.from)?, key("to", &send.to)?);
    let blockhash = bytes_32(&facts.recent_blockhash)
        .map(Hash::new_from_array)
        .ok_or_else(|| Fault::bug("the recent blockhash is not base58 of 32 bytes"))?;
    let instruction = transfer(&from, &to, send.lamports);
    let message = Message::new_with_blockhash(&[instruction], Some(&from), &blockhash).serialize();
    Ok(Unsigned {
        bytes: transaction(&[0; SIGNATURE_BYTES], &message),
        signing: vec![input(message)],
    })
}

/// The legacy message of a transaction with one signature.
fn message_of(transaction: &[u8]) -> Option<Message> {
    let message = transaction.get(1 + SIGNATURE_BYTES..)?;
    match wincode::deserialize_exact::<VersionedMessage>(message).ok()? {
        VersionedMessage::Legacy(message) => Some(message),
        _ => None,
    }
}

fn input(message: Vec<u8>) -> SigningInput {
    SigningInput {
        curve: Curve::Ed25519,
        message,
    }
}

/// The wire form of a transaction with one signer.
fn transaction(signature: &[u8; SIGNATURE_BYTES], message: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + SIGNATURE_BYTES + message.len());
    bytes.push(ONE_SIGNATURE);
    bytes.extend_from_slice(signature);
    bytes.extend_from_slice(message);
    bytes
}
