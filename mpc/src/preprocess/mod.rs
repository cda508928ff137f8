//! Signing nonces made ahead, so that an Ed25519 signature by FROST is one round.
//!
//! A nonce is committed to, sealed, and stored in the claims file of its node, bound to one
//! generation of the shares. Then peers hear the commitments, and orchestrators the numbers to
//! name in their requests. A nonce is readable once: the entry that claims the session
//! deletes it, and what that entry took out is handed over when it is on disk. So whatever
//! happens to the process, a nonce signs one message at most. Numbers grow for ever.
//!
//! None is ever in a backup. An old copy of a folder that was put back holds nonces that were used
//! since, and looks like any other start: therefore a node begins with [`NonceStore::begin_anew`], and
//! uses only what it has made since. To make them again takes milliseconds.
//!
//! A node has a `Preprocessor`, which fills its [`NonceStore`] when nothing else waits and knows what
//! its peers have committed to. An orchestrator has a `NonceInventory`: what nodes have ready, and what
//! it has named.

mod inventory;
mod peer_nonces;
mod preprocessor;
mod seal;
mod store;
pub(crate) mod table;

pub use inventory::NonceLevel;
pub(crate) use inventory::{NonceInventory, NonceQuery};
#[cfg(feature = "simulation")]
pub(crate) use peer_nonces::PeerNonces;
pub(crate) use preprocessor::{
    NamedNonces, NodeServices, NonceLookupError, NonceMessageError, Preprocessor,
};
#[cfg(feature = "simulation")]
pub(crate) use seal::NonceSealer;
pub use store::{NonceStore, TakenNonces};
pub use table::NonceSelection;

/// How many nonces a node keeps ready for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Refilled when there are fewer than this. Little below the other: what is made at once, signatures wait for.
    pub low: usize,
    /// Filled up to this; 0 turns the pool off, at most [`MAX_POOL_SIZE`].
    pub high: usize,
}

/// The highest mark.
pub const MAX_POOL_SIZE: usize = 4096;

impl Default for Watermarks {
    fn default() -> Self {
        Self {
            low: 240,
            high: 256,
        }
    }
}
