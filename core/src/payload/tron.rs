//! Tron payload kinds. Not built yet: the shape is checked, then the kind is refused.

use super::{
    Family, Kind, WireKind,
    field::{amount, not_built, optional_amount, required},
    outflow::Outflow,
};
use crate::{
    amount::{parse_i64, parse_u256},
    fault::Fault,
    network::Network,
    schema::wire,
};

/// Checks a tronSendNative: addresses, sun.
fn check_send_native(wire: &wire::TronSendNative) -> Result<(), Fault> {
    parties(&wire.from, &wire.to)?;
    positive("value", &wire.value)
}

/// Checks a tronSendTrc10: addresses, the asset's number, an amount of it.
fn check_send_trc10(wire: &wire::TronSendTrc10) -> Result<(), Fault> {
    parties(&wire.from, &wire.to)?;
    required("assetName", &wire.asset_name)?;
    positive("amount", &wire.amount)
}

/// Checks a tronSendTrc20: addresses, a uint256 amount, fee limit in sun.
fn check_send_trc20(wire: &wire::TronSendTrc20) -> Result<(), Fault> {
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

/// A checked Tron payload. None is built yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TronPayload {}

impl Family for TronPayload {
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

pub(super) fn send_native(wire: &wire::TronSendNative) -> Result<TronPayload, Fault> {
    check_send_native(wire)?;
    Err(not_built("Tron"))
}

pub(super) fn send_trc10(wire: &wire::TronSendTrc10) -> Result<TronPayload, Fault> {
    check_send_trc10(wire)?;
    Err(not_built("Tron"))
}

pub(super) fn send_trc20(wire: &wire::TronSendTrc20) -> Result<TronPayload, Fault> {
    check_send_trc20(wire)?;
    Err(not_built("Tron"))
}
