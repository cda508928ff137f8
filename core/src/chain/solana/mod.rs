//! Solana and Sonic SVM.
//!
//! Transfers are legacy messages without compute budget; the sender pays the fee. Accounts stand in
//! the order that the Rust SDK gives them. Transactions that were made elsewhere are signed as they
//! are.

pub(crate) mod acts;
mod cost;
pub mod effect;
pub mod lifetime;
pub mod offchain;
#[cfg(test)]
mod tests;
pub mod token;
pub mod wire;

use std::fmt;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use curve25519_dalek::edwards::CompressedEdwardsY;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, SeqAccess, Visitor},
};
use sha2::{Digest as _, Sha256};
use solana_hash::Hash;
use solana_message::{Instruction, Message, VersionedMessage};
use solana_pubkey::Pubkey;
use solana_system_interface::instruction::transfer;

use self::{
    token::{TokenChainData, TokenQueries},
    wire::WireTransaction,
};
use crate::{
    amount::U256,
    chain::{NetworkRules, Resource, Signed, SigningInput, Unsigned, rules::not_those},
    fault::{Class, Fault},
    network::Network,
    payload::solana::{SendCustom, SendNative, SolanaPayload},
    signature::{Curve, Signature},
};

/// What a Solana node must be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queries {
    /// 101 for Solana, 0 for Sonic SVM.
    pub chain_id: u64,
    /// Whether a recent blockhash is wanted.
    pub blockhash: bool,
    /// The token that is sent, if one is.
    pub token: Option<TokenQueries>,
}

/// What a Solana node said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainData {
    /// `getLatestBlockhash` at commitment confirmed, base58.
    pub recent_blockhash: String,
    /// About the token, when it was asked for.
    pub token: Option<TokenChainData>,
}

/// Stands before the blockhash where facts about a token follow. It is no base58.
const WITH_TOKEN: char = '+';

/// ChainData of requests from before there were tokens are a blockhash and nothing else, and must be
/// read for ever: BCS says neither what is there nor how much.
impl Serialize for ChainData {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self {
            recent_blockhash,
            token,
        } = self;
        let Some(token) = token else {
            return (recent_blockhash,).serialize(serializer);
        };
        (format!("{WITH_TOKEN}{recent_blockhash}"), token).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ChainData {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Parts;

        impl<'de> Visitor<'de> for Parts {
            type Value = ChainData;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a blockhash, and facts about a token where it says so")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<ChainData, A::Error> {
                let missing = |place| A::Error::invalid_length(place, &self);
                let text: String = parts.next_element()?.ok_or_else(|| missing(0))?;
                Ok(match text.strip_prefix(WITH_TOKEN) {
                    None => ChainData {
                        recent_blockhash: text,
                        token: None,
                    },
                    Some(blockhash) => ChainData {
                        recent_blockhash: blockhash.to_owned(),
                        token: Some(parts.next_element()?.ok_or_else(|| missing(1))?),
                    },
                })
            }
        }

        deserializer.deserialize_tuple(2, Parts)
    }
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

/// The Solana rules.
pub struct Solana;

impl NetworkRules for Solana {
    type Payload = SolanaPayload;
    type Queries = Queries;
    type ChainData = ChainData;

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

    fn queries(&self, payload: &SolanaPayload) -> Option<Queries> {
        match payload {
            SolanaPayload::SendNative(send) => Some(Queries {
                chain_id: send.cluster.chain_id(),
                blockhash: true,
                token: None,
            }),
            SolanaPayload::SendToken(send) => Some(Queries {
                chain_id: send.cluster.chain_id(),
                blockhash: true,
                token: Some(TokenQueries {
                    mint: send.mint.clone(),
                    sender: send.from.clone(),
                    recipient: send.to.clone(),
                }),
            }),
            SolanaPayload::SendCustom(_) | SolanaPayload::Message(_) => None,
        }
    }

    /// The network knows a transaction by its message: two equal transfers with one blockhash are
    /// one transfer.
    fn reservations(
        &self,
        _payload: &SolanaPayload,
        unsigned: &Unsigned,
    ) -> Result<Vec<Resource>, Fault> {
        let whole = unsigned
            .signing
            .iter()
            .map(|input| Resource::Whole(Sha256::digest(&input.message).into()));
        Ok(whole.collect())
    }

    fn build(
        &self,
        payload: &SolanaPayload,
        chain_data: Option<&ChainData>,
        _public_key: &[u8],
    ) -> Result<Unsigned, Fault> {
        match payload {
            SolanaPayload::SendNative(send) => send_native(send, chain_data.ok_or_else(not_those)?),
            SolanaPayload::SendToken(send) => token::send(send, chain_data.ok_or_else(not_those)?),
            SolanaPayload::SendCustom(send) => send_custom(send),
            SolanaPayload::Message(message) => Ok(Unsigned {
                bytes: Vec::new(),
                signing: vec![input(&message.content)],
            }),
        }
    }

    /// What all its transactions cost, whoever pays: bytes do not say whose request they are of.
    /// With deposits of token accounts that are opened.
    fn most_fee(&self, unsigned: &[u8]) -> Result<U256, Fault> {
        let transactions = transactions_of(unsigned)?;
        let costs = transactions
            .iter()
            .map(|transaction| cost::most(transaction.message()));
        Ok(U256::from(costs.fold(0, u128::saturating_add)))
    }

    fn difference(&self, built: &[u8], shown: &[u8]) -> Option<&'static str> {
        let (built, shown) = (wire::split(built)?, wire::split(shown)?);
        if built.len() != shown.len() {
            return Some("transactions");
        }
        let mut pairs = built.iter().zip(&shown);
        pairs.find_map(|(built, shown)| {
            effect::difference(built.message(), shown.message())
                .or_else(|| (built != shown).then_some("signatures"))
        })
    }

    /// The hash of a transaction whose fee payer has yet to sign is empty: nobody can know it.
    fn assemble(
        &self,
        _payload: &SolanaPayload,
        unsigned: &Unsigned,
        signatures: &[Signature],
        public_key: &[u8],
    ) -> Result<Signed, Fault> {
        let key = Pubkey::try_from(public_key).map_err(|_| Fault::bug("the key is no key"))?;
        let transactions = transactions_of(&unsigned.bytes)?;
        if transactions.len() != signatures.len() || transactions.len() != unsigned.signing.len() {
            return Err(Fault::bug("there is not one signature per transaction"));
        }
        let mut texts = Vec::with_capacity(transactions.len());
        let mut hashes = Vec::with_capacity(transactions.len());
        for ((transaction, input), signature) in
            transactions.iter().zip(&unsigned.signing).zip(signatures)
        {
            if transaction.message_bytes() != input.message {
                return Err(Fault::bug("what was signed is not the transaction"));
            }
            let signed = transaction
                .signed(&key, &signature.to_bytes())
                .ok_or_else(|| Fault::bug("the transaction does not ask for the signature"))?;
            texts.push(STANDARD.encode(signed.bytes()));
            let id = signed.id().map(|id| bs58::encode(id).into_string());
            hashes.push(id.unwrap_or_default());
        }
        Ok(Signed {
            transaction: texts.join(SEPARATOR),
            tx_hash: hashes.join(SEPARATOR),
        })
    }
}

/// Between the values of several transactions of one request.
const SEPARATOR: &str = ",";

/// The transactions of a request one by one, in order: base64, and the hash, base58. `None` when
/// [`NetworkRules::assemble`] did not make it.
pub fn each(signed: &Signed) -> Option<Vec<(&str, &str)>> {
    let transactions = signed.transaction.split(SEPARATOR);
    let hashes = signed.tx_hash.split(SEPARATOR);
    (transactions.clone().count() == hashes.clone().count())
        .then(|| transactions.zip(hashes).collect())
}

fn send_native(send: &SendNative, chain_data: &ChainData) -> Result<Unsigned, Fault> {
    if chain_data.token.is_some() {
        return Err(not_those());
    }
    let (from, to) = (field_key("from", &send.from)?, field_key("to", &send.to)?);
    transfer_message(&from, &[transfer(&from, &to, send.lamports)], chain_data)
}

/// The transactions as they came, without a signature of the wallet, back to back.
fn send_custom(send: &SendCustom) -> Result<Unsigned, Fault> {
    let from = field_key("from", &send.from)?;
    let mut unsigned = Unsigned {
        bytes: Vec::new(),
        signing: Vec::with_capacity(send.transactions.len()),
    };
    for transaction in &send.transactions {
        let blank = transaction
            .blank(&from)
            .ok_or_else(|| Fault::bug("a transaction does not ask for the wallet's signature"))?;
        unsigned.bytes.extend_from_slice(blank.bytes());
        unsigned.signing.push(input(blank.message_bytes()));
    }
    Ok(unsigned)
}

/// A transaction of our own: a legacy message that the sender pays for.
fn transfer_message(
    from: &Pubkey,
    instructions: &[Instruction],
    chain_data: &ChainData,
) -> Result<Unsigned, Fault> {
    let blockhash = bytes_32(&chain_data.recent_blockhash)
        .map(Hash::new_from_array)
        .ok_or_else(|| Fault::bug("the recent blockhash is not base58 of 32 bytes"))?;
    let message = Message::new_with_blockhash(instructions, Some(from), &blockhash);
    let transaction =
        WireTransaction::unsigned(VersionedMessage::Legacy(message)).map_err(Fault::bug)?;
    Ok(Unsigned {
        bytes: transaction.bytes().to_vec(),
        signing: vec![input(transaction.message_bytes())],
    })
}

/// An address of the payload.
fn field_key(name: &str, text: &str) -> Result<Pubkey, Fault> {
    parse_key(text).map_err(|error| Fault::field(name, error))
}

fn transactions_of(unsigned: &[u8]) -> Result<Vec<WireTransaction>, Fault> {
    wire::split(unsigned).ok_or_else(|| Fault::bug("the unsigned transaction cannot be read"))
}

fn input(message: &[u8]) -> SigningInput {
    SigningInput {
        curve: Curve::Ed25519,
        message: message.to_vec(),
    }
}
