//! What a network is to Covault: addresses, what must be asked of its nodes, transactions,
//! the bytes to sign and the signed form.
//!
//! Pure: what the chain says arrives as [`ChainData`], and the same payload with the same facts
//! always gives the same bytes. Signer nodes rebuild them from a signing order that way.
//!
//! A network's file implements [`NetworkRules`] in its own types; [`DynNetworkRules`] comes of that, and is what
//! everybody else uses.

pub mod aptos;
pub mod bitcoin;
pub mod evm;
mod raw;
mod rules;
pub mod solana;
pub mod stellar;
pub mod sui;
pub mod ton;
pub mod tron;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

pub use self::rules::{NetworkRules, Part};
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

/// Something of which two transactions must not use the same. Held by a request from the moment
/// that its transaction is built, in the commit that stores the transaction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Resource {
    /// A nonce or sequence number of the sender's account.
    Nonce(u64),
    /// Something that is spent as a whole, by the name that the network gives it: an output
    /// (`txid:vout`), an object or coin.
    Object(String),
    /// The transaction itself (its signed message, hashed): where nothing else tells two equal
    /// payments apart, the network would take the second for the first.
    Whole([u8; 32]),
}

/// What [`DynNetworkRules::allocate`] made of the facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// ChainData that no other request builds on.
    ChainData(ChainData),
    /// Nothing is free now that the chain has; other requests hold it. Ask again later: why, in
    /// words that a person can act on.
    Wait(String),
}

macro_rules! networks {
    ($($variant:ident $module:ident,)*) => {
        /// What must be asked of the network's node before a payload can be built.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum Queries {
            /// Nothing: a message, or a transaction that brings everything.
            Nothing,
            $(#[doc = concat!("See [`", stringify!($module), "::Queries`].")] $variant($module::Queries),)*
        }

        /// What the network's node answered; stored with the request and shown to the signers.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum ChainData {
            /// Nothing was asked.
            Nothing,
            $(#[doc = concat!("See [`", stringify!($module), "::ChainData`].")] $variant($module::ChainData),)*
        }

        $(
            impl From<$module::Queries> for Queries {
                fn from(queries: $module::Queries) -> Self {
                    Queries::$variant(queries)
                }
            }

            impl From<$module::ChainData> for ChainData {
                fn from(chain_data: $module::ChainData) -> Self {
                    ChainData::$variant(chain_data)
                }
            }

            impl rules::Part<ChainData> for $module::ChainData {
                fn of(chain_data: &ChainData) -> Option<&Self> {
                    match chain_data {
                        ChainData::$variant(chain_data) => Some(chain_data),
                        _ => None,
                    }
                }
            }
        )*
    };
}

// The order is that of the numbers on disk: a new network goes to the end.
networks! {
    Evm evm,
    Solana solana,
    Bitcoin bitcoin,
    Tron tron,
    Aptos aptos,
    Sui sui,
    Ton ton,
    Stellar stellar,
}

/// One network, as everybody but its own file sees it. Every [`NetworkRules`] is one.
pub trait DynNetworkRules: Sync {
    /// The address of a public key (secp256k1: 33 bytes compressed, SEC 1; Ed25519: 32 bytes).
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when the key is not on the curve.
    fn address(&self, public_key: &[u8]) -> Result<String, Fault>;

    /// Whether an address in canonical form is one of a public key's: the one of
    /// [`DynNetworkRules::address`], or another that the network has for the same key.
    ///
    /// # Errors
    /// As [`DynNetworkRules::address`].
    fn owns(&self, public_key: &[u8], address: &str) -> Result<bool, Fault>;

    /// The canonical form of an address, checksum verified.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] with a sentence that says what is wrong; the caller
    /// adds the field with [`Fault::with_prefix`] or [`Fault::field`].
    fn parse_address(&self, text: &str) -> Result<String, Fault>;

    /// The canonical form of a token of this network: a contract, mint, coin type or asset.
    ///
    /// # Errors
    /// As [`DynNetworkRules::parse_address`].
    fn parse_token(&self, text: &str) -> Result<String, Fault>;

    /// Whether a token in its canonical form is the network's coin by another name
    /// (`0x2::sui::SUI`).
    fn is_coin(&self, token: &str) -> bool;

    /// What must be known before the payload can be built.
    fn queries(&self, payload: &Payload) -> Queries;

    /// Whether what the node answers depends on the sender's other transactions (a nonce, unspent
    /// outputs): such requests of one account are built one after the other, by
    /// [`DynNetworkRules::allocate`].
    fn is_sequenced(&self, queries: &Queries) -> bool;

    /// The facts that this request may build on, out of what the node answered and what other
    /// requests of the same account hold: the next free nonce, the outputs that are left.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] when it can never be built with these facts, and
    /// [`crate::fault::Class::Bug`] when the facts are not those that were asked for.
    fn allocate(
        &self,
        payload: &Payload,
        chain_data: ChainData,
        taken: &BTreeSet<Resource>,
    ) -> Result<Allocation, Fault>;

    /// The outputs or objects that the node offered: what others hold of them can be looked up at
    /// once. Empty when it offered none.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when they cannot be read.
    fn candidate_inputs(&self, chain_data: &ChainData) -> Result<Vec<Resource>, Fault>;

    /// What the built transaction uses up; nothing else may use it. Empty for messages.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when the bytes are not what [`DynNetworkRules::build`] made.
    fn reservations(&self, payload: &Payload, unsigned: &Unsigned) -> Result<Vec<Resource>, Fault>;

    /// The name of a transaction whose inputs are signed one by one, each signature over a part of what
    /// the bytes show: those of two orders can make one transaction, although no order has shown it.
    /// `None` where one signature covers all.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when the bytes are not what [`DynNetworkRules::build`] made.
    fn signed_in_parts(&self, unsigned: &[u8]) -> Result<Option<[u8; 32]>, Fault>;

    /// Checks that the built bytes will do what [`crate::payload::Payload::outflow`] says of the
    /// payload, where that hangs on facts: on what type a coin object has, which the bytes only
    /// name. Signers ask it, as facts come from others; facts of another network are for
    /// [`DynNetworkRules::build`] to refuse.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] with the path `chain_data`, and [`crate::fault::Class::Bug`]
    /// where the facts cannot be read.
    fn vouch(&self, payload: &Payload, chain_data: &ChainData) -> Result<(), Fault>;

    /// Builds the transaction or message.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] where payload and chain data contradict each other, and
    /// [`crate::fault::Class::Bug`] where the facts are not those that [`DynNetworkRules::queries`] named.
    fn build(
        &self,
        payload: &Payload,
        chain_data: &ChainData,
        public_key: &[u8],
    ) -> Result<Unsigned, Fault>;

    /// The most that the network can take as fee for an unsigned transaction, in the smallest unit
    /// of its coin; 0 for messages, whose bytes are empty. What a chain charges beyond what the
    /// transaction agrees to (the data fee of an EVM rollup) is not in it.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when the bytes are not what [`DynNetworkRules::build`] made.
    fn most_fee(&self, unsigned: &[u8]) -> Result<U256, Fault>;

    /// [`DynNetworkRules::most_fee`] of what the payload gives by itself, whosever key it is for; 0 for
    /// messages. `None` where a node is asked first, or the bytes hang on the key.
    fn fixed_fee(&self, payload: &Payload) -> Option<U256>;

    /// In what `shown` differs from the transaction `built`, where that has a name: `recipient`,
    /// `amount`, `chainId` and the like.
    fn difference(&self, built: &[u8], shown: &[u8]) -> Option<&'static str>;

    /// Puts the signatures (one per [`Unsigned::signing`], in order) in, once each was verified with
    /// `public_key`. `None` for messages.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when a signature is missing, of the wrong kind or not the
    /// key's.
    fn assemble(
        &self,
        payload: &Payload,
        unsigned: &Unsigned,
        signatures: &[Signature],
        public_key: &[u8],
    ) -> Result<Option<Signed>, Fault>;

    /// Until when blocks can have a signed transaction, by the chain's clock, in milliseconds since
    /// the Unix epoch: none from a later time on ever has it. `None`: nothing ends it but what else
    /// uses up the same. Asked on networks with numbers ([`Resource::Nonce`]).
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when it is not what [`DynNetworkRules::assemble`] made.
    fn valid_until_ms(&self, signed: &Signed) -> Result<Option<u64>, Fault>;
}

/// The lowest nonce or sequence number from `floor` up that is not taken.
///
/// # Errors
/// [`crate::fault::Class::Bug`] when the numbers are used up.
fn lowest_free(floor: u64, taken: &BTreeSet<Resource>) -> Result<u64, Fault> {
    let mut nonce = floor;
    while taken.contains(&Resource::Nonce(nonce)) {
        nonce = nonce
            .checked_add(1)
            .ok_or_else(|| Fault::bug("nonces are used up"))?;
    }
    Ok(nonce)
}
