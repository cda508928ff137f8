//! rawMessage, which every network signs the same way: by the curve of its wallets.

use crate::{chain::Unsigned, fault::Fault, network::Network, payload::raw::RawPayload};

/// Builds a rawMessage for the wallet of `network` that it is from.
pub(super) fn build(network: Network, payload: &RawPayload) -> Result<Unsigned, Fault> {
    Ok(Unsigned {
        bytes: Vec::new(),
        signing: vec![payload.signing_input(network.curve())?],
    })
}
