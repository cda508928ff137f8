//! What the payload kinds of all networks have in common. Each kind is parsed once, from its wire
//! message into a checked type of its network (`<network>/payload.rs`).

mod family;
mod kind;
pub(in crate::networks) mod opaque;
pub mod outflow;
mod purpose;

use std::collections::BTreeSet;

pub(in crate::networks) use self::kind::echo;
pub use self::{family::NetworkPayload, kind::PayloadKind, purpose::Purpose};
use crate::schema::wire;

/// The payload kind of a create request, on the wire.
pub type WireKind = wire::create_signing_request_request::Type;
/// The payload kind of a signing request in a response, on the wire.
pub type WireEcho = wire::signing_request::Type;

/// The EVM chains that are always known (contract section 3): Ethereum, Optimism, BNB Smart
/// Chain, Polygon, Base, Arbitrum One, Avalanche C-Chain.
pub const BUILT_IN_EVM_CHAINS: [u64; 7] = [1, 10, 56, 137, 8453, 42161, 43114];

/// Which EVM chains are known: the built-in ones and those that configuration names.
/// Any other chain id is a custom chain (contract section 3).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct KnownChains {
    /// EVM chain ids named by configuration, beside the built-in ones.
    pub configured: BTreeSet<u64>,
}

impl KnownChains {
    /// Whether the EVM chain is known.
    pub fn contains(&self, chain_id: u64) -> bool {
        BUILT_IN_EVM_CHAINS.contains(&chain_id) || self.configured.contains(&chain_id)
    }
}
