//! Tron payload kinds. Not built yet: the shape is checked, then the kind is refused.

use super::field::{amount, optional_amount, required};
use crate::{
    amount::{parse_i64, parse_u256},
    fault::Fault,
    schema::wire,
};

/// Checks a tronSendNative: addresses, sun.
pub(super) fn send_native(wire: &wire::TronSendNative) -> Result<(), Fault> {
    parties(&wire.from, &wire.to)?;
    positive("value", &wire.value)
}

/// Checks a tronSendTrc10: addresses, the asset's number, an amount of it.
pub(super) fn send_trc10(wire: &wire::TronSendTrc10) -> Result<(), Fault> {
    parties(&wire.from, &wire.to)?;
    required("assetName", &wire.asset_name)?;
    positive("amount", &wire.amount)
}

/// Checks a tronSendTrc20: addresses, a uint256 amount, fee limit in sun.
pub(super) fn send_trc20(wire: &wire::TronSendTrc20) -> Result<(), Fault> {
    parties(&wire.from, &wire.to)?;
    required("contractAddress", &wire.contract_address)?;
    amount("amount", &wire.amount, parse_u256)?;
    optional_amount("feeLimit", wire.fee_limit.as_deref(), parse_i64)?;
    Ok(())
}

fn parties(from: &str, to: &str) -> Result<(), Fault> {
    required("from", from)?;
    required("to", to)?;
    Ok(())
}

fn positive(name: &str, text: &str) -> Result<(), Fault> {
    if amount(name, text, parse_i64)? == 0 {
        return Err(Fault::field(name, "must be more than 0"));
    }
    Ok(())
}
