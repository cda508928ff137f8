//! What a network is to Covault: addresses, what must be asked of its nodes, transactions,
//! the bytes to sign and the signed form.
//!
//! Pure: what the chain says arrives as [`Facts`], and the same payload with the same facts
//! always gives the same bytes. Signer nodes rebuild them from a signing order that way.

pub mod evm;
mod raw;
pub mod solana;

use serde::{Deserialize, Serialize};

use crate::{
    amount::U256,
    fault::Fault,
    payload::Payload,
    signature::{Curve, Signature},
};

/// One thing to be signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SigningInput {
    /// The key it needs.
    pub curve: Curve,
    /// What is handed to the signature algorithm: the 32-byte digest for ECDSA, the whole
    /// message for Ed25519.
    pub message: Vec<u8>,
}

/// A transaction or message before it is signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unsigned {
    /// The network's encoding of the unsigned transaction; empty for messages.
    pub bytes: Vec<u8>,
    /// What to sign, in order; never empty.
    pub signing: Vec<SigningInput>,
}

/// A signed transaction, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signed {
    /// `signedTransaction` of the API: the text that the network's tools take
    /// (EVM: `0x` and hex; Solana: base64).
    pub transaction: String,
    /// The transaction id as explorers show it. Known before anything is sent.
    pub tx_hash: String,
}

/// What must be asked of the network's node before a payload can be built.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Needs {
    /// Nothing: a message, or a transaction that brings everything.
    Nothing,
    /// See [`evm::Needs`].
    Evm(evm::Needs),
    /// See [`solana::Needs`].
    Solana(solana::Needs),
}

/// What the network's node answered; stored with the request and shown to the signers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Facts {
    /// Nothing was asked.
    Nothing,
    /// See [`evm::Facts`].
    Evm(evm::Facts),
    /// See [`solana::Facts`].
    Solana(solana::Facts),
}

/// The rules of one network.
pub trait Chain: Sync {
    /// The address of a public key (secp256k1: 33 bytes compressed, SEC 1; Ed25519: 32 bytes).
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when the key is not on the curve.
    fn address(&self, public_key: &[u8]) -> Result<String, Fault>;

    /// The canonical form of an address, checksum verified.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] with a sentence that says what is wrong; the caller
    /// adds the field with [`Fault::under`] or [`Fault::field`].
    fn parse_address(&self, text: &str) -> Result<String, Fault>;

    /// What must be known before the payload can be built.
    fn needs(&self, payload: &Payload) -> Needs;

    /// Builds the transaction or message.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] where payload and facts contradict each other, and
    /// [`crate::fault::Class::Bug`] where the facts are not those that [`Chain::needs`] named.
    fn build(&self, payload: &Payload, facts: &Facts, public_key: &[u8])
    -> Result<Unsigned, Fault>;

    /// The most that the network can take as fee for an unsigned transaction, in the smallest unit
    /// of its coin; 0 for messages, whose bytes are empty. What a chain charges beyond what the
    /// transaction agrees to (the data fee of an EVM rollup) is not in it.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when the bytes are not what [`Chain::build`] made.
    fn most_fee(&self, unsigned: &[u8]) -> Result<U256, Fault>;

    /// In what `shown` differs from the transaction `built`, where that has a name: `recipient`,
    /// `amount`, `chainId` and the like.
    fn difference(&self, built: &[u8], shown: &[u8]) -> Option<&'static str>;

    /// Puts the signatures (one per [`Unsigned::signing`], in order) in. `None` for messages.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when a signature is missing or of the wrong kind.
    fn assemble(
        &self,
        payload: &Payload,
        unsigned: &Unsigned,
        signatures: &[Signature],
    ) -> Result<Option<Signed>, Fault>;
}
