//! Bitcoin payload kinds. Not built yet: the shape is checked, then the kind is refused.

use super::field::{amount, required};
use crate::{amount::parse_u64, fault::Fault, schema::wire};

/// Checks a btcSendNative: addresses, satoshi, fee rate in sat/vB.
pub(super) fn send_native(wire: &wire::BtcSendNative) -> Result<(), Fault> {
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
