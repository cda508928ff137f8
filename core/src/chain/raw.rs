//! rawMessage, which every network signs the same way: by the curve of its wallets.

use crate::{chain::Unsigned, fault::Fault, network::Network, payload::raw::RawPayload};

/// Builds a rawMessage for a wallet of `network`.
pub(super) fn build(
    network: Network,
    payload: &RawPayload,
    sender: &str,
) -> Result<Unsigned, Fault> {
    if payload.from != sender {
        return Err(Fault::field("from", "is not the wallet's address"));
    }
    Ok(Unsigned {
        bytes: Vec::new(),
        signing: vec![payload.signing_input(network.curve())?],
    })
}
