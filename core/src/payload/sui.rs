//! Sui payload kinds. Not built yet: the shape is checked, then the kind is refused.

use super::{
    Family, Kind, WireKind,
    field::{amount, default_type, not_built, optional_amount, required, required_bytes},
    outflow::Outflow,
};
use crate::{amount::parse_u64, fault::Fault, network::Network, schema::wire};

/// Checks a suiSendNative: addresses, MIST, gas.
fn check_send_native(wire: &wire::SuiSendNative) -> Result<(), Fault> {
    required("from", &wire.from)?;
    required("to", &wire.to)?;
    amount("value", &wire.value, parse_u64)?;
    gas(wire.gas_fee.as_ref())
}

/// Checks a suiSendCoin: addresses, coin, amount, gas.
fn check_send_coin(wire: &wire::SuiSendCoin) -> Result<(), Fault> {
    required("from", &wire.from)?;
    required("to", &wire.to)?;
    required("coinTag", &wire.coin_tag)?;
    amount("amount", &wire.amount, parse_u64)?;
    gas(wire.gas_fee.as_ref())
}

/// Checks a suiSendCustom: sender, payload.
fn check_send_custom(wire: &wire::SuiSendCustom) -> Result<(), Fault> {
    required("from", &wire.from)?;
    required_bytes("payload", &wire.payload)
}

/// Checks a suiMessage: sender. An empty message is a message.
fn check_message(wire: &wire::SuiMessage) -> Result<(), Fault> {
    required("from", &wire.from)?;
    default_type(wire.r#type)
}

fn gas(gas: Option<&wire::SuiGas>) -> Result<(), Fault> {
    let Some(gas) = gas else { return Ok(()) };
    let fields = [
        ("gasFee.budget", gas.budget.as_deref()),
        ("gasFee.price", gas.price.as_deref()),
    ];
    for (name, text) in fields {
        if optional_amount(name, text, parse_u64)? == Some(0) {
            return Err(Fault::field(name, "must be more than 0"));
        }
    }
    Ok(())
}

/// A checked Sui payload. None is built yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SuiPayload {}

impl Family for SuiPayload {
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

pub(super) fn send_native(wire: &wire::SuiSendNative) -> Result<SuiPayload, Fault> {
    check_send_native(wire)?;
    Err(not_built("Sui"))
}

pub(super) fn send_coin(wire: &wire::SuiSendCoin) -> Result<SuiPayload, Fault> {
    check_send_coin(wire)?;
    Err(not_built("Sui"))
}

pub(super) fn send_custom(wire: &wire::SuiSendCustom) -> Result<SuiPayload, Fault> {
    check_send_custom(wire)?;
    Err(not_built("Sui"))
}

pub(super) fn message(wire: &wire::SuiMessage) -> Result<SuiPayload, Fault> {
    check_message(wire)?;
    Err(not_built("Sui"))
}
