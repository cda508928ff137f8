//! Transactions as they go over the wire: a compact array of signatures, then the message.

use std::collections::BTreeSet;

use solana_message::VersionedMessage;
use solana_pubkey::Pubkey;
use solana_transaction::versioned::VersionedTransaction;

/// The most bytes of a transaction with a legacy or v0 message: an IPv6 packet of 1,280 bytes
/// without its headers (`PACKET_DATA_SIZE` of the SDK).
pub const MAX_TRANSACTION_BYTES: usize = 1232;
/// The most transactions of one request.
pub const MAX_TRANSACTIONS: usize = 5;
/// Bytes of a signature.
pub const SIGNATURE_BYTES: usize = 64;

/// In the place of a signature that is not there yet.
const BLANK: [u8; SIGNATURE_BYTES] = [0; SIGNATURE_BYTES];
/// The compact array of signatures begins with its length, which fits one byte: no more than 12
/// signatures go into a transaction.
const LENGTH_BYTES: usize = 1;

/// Why bytes are not a transaction that can be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransactionError {
    /// No node takes it.
    #[error("exceeds the network's limit of {MAX_TRANSACTION_BYTES} bytes")]
    TooLong,
    /// Not exactly one transaction in its one encoding.
    #[error("is not one whole Solana transaction")]
    Form,
    /// A message of version 1 or above.
    #[error("has an unsupported message version: only legacy and 0 are supported")]
    Version,
    /// Indices out of range, a fee payer that is read-only, signatures missing or too many.
    #[error("is inconsistent: accounts, signers or indices do not match")]
    Contradiction,
    /// The network refuses it.
    #[error("names one account twice")]
    AccountTwice,
}

/// A whole transaction with a legacy or v0 message. Signatures that are not there are zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireTransaction {
    bytes: Vec<u8>,
    message: VersionedMessage,
}

impl WireTransaction {
    /// Reads exactly one transaction. Signatures are not verified.
    ///
    /// # Errors
    /// See [`TransactionError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, TransactionError> {
        if bytes.len() > MAX_TRANSACTION_BYTES {
            return Err(TransactionError::TooLong);
        }
        let transaction: VersionedTransaction =
            wincode::deserialize_exact(bytes).map_err(|_| TransactionError::Form)?;
        if !matches!(
            transaction.message,
            VersionedMessage::Legacy(_) | VersionedMessage::V0(_)
        ) {
            return Err(TransactionError::Version);
        }
        // What is signed and sent is these bytes, so there must be no other form of them.
        if wincode::serialize(&transaction).ok().as_deref() != Some(bytes) {
            return Err(TransactionError::Form);
        }
        transaction
            .sanitize()
            .map_err(|_| TransactionError::Contradiction)?;
        let keys = transaction.message.static_account_keys();
        if keys.iter().collect::<BTreeSet<_>>().len() != keys.len() {
            return Err(TransactionError::AccountTwice);
        }
        Ok(Self {
            bytes: bytes.to_vec(),
            message: transaction.message,
        })
    }

    /// The transaction of a message, without signatures.
    ///
    /// # Errors
    /// See [`TransactionError`].
    pub fn unsigned(message: VersionedMessage) -> Result<Self, TransactionError> {
        let transaction = VersionedTransaction::new_unsigned(message);
        let bytes = wincode::serialize(&transaction).map_err(|_| TransactionError::Form)?;
        Self::parse(&bytes)
    }

    /// The wire form.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The message.
    pub fn message(&self) -> &VersionedMessage {
        &self.message
    }

    /// What is signed.
    pub fn message_bytes(&self) -> &[u8] {
        let start = LENGTH_BYTES + SIGNATURE_BYTES * self.signers();
        self.bytes.get(start..).unwrap_or_default()
    }

    /// The signature in the first place, which is the transaction's id; `None` when the fee payer
    /// has not signed.
    pub fn id(&self) -> Option<[u8; SIGNATURE_BYTES]> {
        let first = self.signatures().first()?;
        (*first != BLANK).then_some(*first)
    }

    /// The signature of an address, base58, by halves; `None` where it is missing or not asked for.
    pub fn signature_of(&self, address: &str) -> Option<([u8; 32], [u8; 32])> {
        let key = address.parse().ok()?;
        let signature = self.signatures().get(self.place_of(&key)?)?;
        let (r, s) = signature.split_first_chunk()?;
        (*signature != BLANK).then_some((*r, s.try_into().ok()?))
    }

    /// The place of a key among the required signers; `None` when its signature is not asked for.
    pub fn place_of(&self, key: &Pubkey) -> Option<usize> {
        let keys = self.message.static_account_keys().iter();
        keys.take(self.signers()).position(|signer| signer == key)
    }

    /// Whether no other signature than that of `key` is missing.
    pub fn lacks_only(&self, key: &Pubkey) -> bool {
        let place = self.place_of(key);
        let mut signatures = self.signatures().iter().enumerate();
        signatures.all(|(other, signature)| Some(other) == place || *signature != BLANK)
    }

    /// Puts a key's signature in its place; `None` when it is not asked for.
    #[must_use]
    pub fn signed(&self, key: &Pubkey, signature: &[u8; SIGNATURE_BYTES]) -> Option<Self> {
        let start = LENGTH_BYTES + SIGNATURE_BYTES * self.place_of(key)?;
        let mut signed = self.clone();
        let slot = signed.bytes.get_mut(start..start + SIGNATURE_BYTES)?;
        slot.copy_from_slice(signature);
        Some(signed)
    }

    /// As [`WireTransaction::signed`], without a signature of the key.
    #[must_use]
    pub fn blank(&self, key: &Pubkey) -> Option<Self> {
        self.signed(key, &BLANK)
    }

    fn signers(&self) -> usize {
        usize::from(self.message.header().num_required_signatures)
    }

    fn signatures(&self) -> &[[u8; SIGNATURE_BYTES]] {
        let bytes = self.bytes.get(LENGTH_BYTES..).unwrap_or_default();
        let (all, _) = bytes.as_chunks();
        all.get(..self.signers()).unwrap_or_default()
    }
}

/// Reads transactions that stand back to back, as in [`crate::networks::Unsigned::bytes`]: each says
/// itself where it ends. `None` unless there are 1 to [`MAX_TRANSACTIONS`] and nothing else.
pub fn split(mut bytes: &[u8]) -> Option<Vec<WireTransaction>> {
    let mut found = Vec::new();
    while !bytes.is_empty() && found.len() < MAX_TRANSACTIONS {
        let first: VersionedTransaction = wincode::deserialize(bytes).ok()?;
        let length = wincode::serialized_size(&first).ok()?;
        let (one, rest) = bytes.split_at_checked(usize::try_from(length).ok()?)?;
        found.push(WireTransaction::parse(one).ok()?);
        bytes = rest;
    }
    (bytes.is_empty() && !found.is_empty()).then_some(found)
}

/// Whether the bytes are a whole transaction message: legacy, or of any version that is known.
/// A signature over them would be that of the transaction.
pub fn is_transaction_message(bytes: &[u8]) -> bool {
    wincode::deserialize_exact::<VersionedMessage>(bytes).is_ok()
}
