//! Bitcoin payload kinds. Not built yet: the shape is checked, then the kind is refused.

use super::{
    Family, Kind, WireKind,
    field::{amount, not_built, required},
    outflow::Outflow,
};
use crate::{amount::parse_u64, fault::Fault, network::Network, schema::wire};

/// Checks a btcSendNative: addresses, satoshi, fee rate in sat/vB.
fn check_send_native(wire: &wire::BtcSendNative) -> Result<(), Fault> {
    required("from", &wire.from)?;
    required("to", &wire.to)?;
    if amount("amount", &wire.amount, parse_u64)? == 0 {
        return Err(Fault::field("amount", "must be more than 0"));
    }
    if wire.network_fee == 0 {
        return Err(Fault::field("networkFee", "is required: give sat/vB"));
    }
    Ok(())
}

/// A checked Bitcoin payload. None is built yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BitcoinPayload {}

impl Family for BitcoinPayload {
    fn kind(&self) -> Kind {
        match *self {}
    }

    fn from(&self) -> &str {
        match *self {}
    }

    fn to_wire(&self) -> WireKind {
        match *self {}
    }

    fn outflow(&self, _wallet: Network) -> Outflow {
        match *self {}
    }

    fn chain_id(&self) -> Option<u64> {
        match *self {}
    }

    fn is_transaction(&self) -> bool {
        match *self {}
    }
}

pub(super) fn send_native(wire: &wire::BtcSendNative) -> Result<BitcoinPayload, Fault> {
    check_send_native(wire)?;
    Err(not_built("Bitcoin"))
}
