//! Accounts of chains.

use covault_core::{
    networks::{Network, Payload},
    request::{NonceReservation, SigningRequest},
};

/// An account of a chain: what its requests use up is apart from that of all others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChainAccount {
    /// The network.
    pub network: Network,
    /// The chain, where payloads of the network name one.
    pub chain_id: Option<u64>,
    /// The address in canonical form.
    pub address: String,
}

impl ChainAccount {
    /// The account that a request spends from.
    pub fn of(request: &SigningRequest, payload: &Payload) -> Self {
        Self {
            network: request.network,
            chain_id: payload.chain_id(),
            address: request.address.clone(),
        }
    }

    /// A number of the account, as a draft keeps it.
    pub fn nonce(&self, nonce: u64) -> NonceReservation {
        NonceReservation {
            network: self.network,
            // Networks that name no chain have but one.
            chain_id: self.chain_id.unwrap_or_default(),
            address: self.address.clone(),
            nonce,
        }
    }
}
