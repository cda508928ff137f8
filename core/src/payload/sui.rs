//! Sui payload kinds. Not built yet: the shape is checked, then the kind is refused.

use super::field::{amount, default_type, optional_amount, required, required_bytes};
use crate::{amount::parse_u64, fault::Fault, schema::wire};

/// Checks a suiSendNative: addresses, MIST, gas.
pub(super) fn send_native(wire: &wire::SuiSendNative) -> Result<(), Fault> {
    required("from", &wire.from)?;
    required("to", &wire.to)?;
    amount("value", &wire.value, parse_u64)?;
    gas(wire.gas_fee.as_ref())
}

/// Checks a suiSendCoin: addresses, coin, amount, gas.
pub(super) fn send_coin(wire: &wire::SuiSendCoin) -> Result<(), Fault> {
    required("from", &wire.from)?;
    required("to", &wire.to)?;
    required("coinTag", &wire.coin_tag)?;
    amount("amount", &wire.amount, parse_u64)?;
    gas(wire.gas_fee.as_ref())
}

/// Checks a suiSendCustom: sender, payload.
pub(super) fn send_custom(wire: &wire::SuiSendCustom) -> Result<(), Fault> {
    required("from", &wire.from)?;
    required_bytes("payload", &wire.payload)
}

/// Checks a suiMessage: sender. An empty message is a message.
pub(super) fn message(wire: &wire::SuiMessage) -> Result<(), Fault> {
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
