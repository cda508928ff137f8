//! Aptos and Movement payload kinds. Not built yet: the shape is checked, then the kind is
//! refused.

use super::{
    Family, Kind, WireKind,
    field::{amount, default_type, not_built, optional_amount, required, required_bytes},
    outflow::Outflow,
};
use crate::{amount::parse_u64, fault::Fault, network::Network, schema::wire};

/// Aptos and Movement mainnet; testnets are not supported.
const CHAIN_IDS: [u64; 2] = [1, 126];

/// Checks an aptosSendNative: chain, addresses, octa, gas.
fn check_send_native(wire: &wire::AptosSendNative) -> Result<(), Fault> {
    common(wire.chain_id, &wire.from, wire.gas_fee.as_ref())?;
    required("to", &wire.to)?;
    amount("value", &wire.value, parse_u64)?;
    Ok(())
}

/// Checks an aptosSendCoin: chain, addresses, coin, amount, gas.
fn check_send_coin(wire: &wire::AptosSendCoin) -> Result<(), Fault> {
    common(wire.chain_id, &wire.from, wire.gas_fee.as_ref())?;
    required("to", &wire.to)?;
    required("coinTag", &wire.coin_tag)?;
    amount("amount", &wire.amount, parse_u64)?;
    Ok(())
}

/// Checks an aptosSendCustom: chain, sender, payload, gas.
fn check_send_custom(wire: &wire::AptosSendCustom) -> Result<(), Fault> {
    common(wire.chain_id, &wire.from, wire.gas_fee.as_ref())?;
    required_bytes("payload", &wire.payload)
}

/// Checks an aptosMessage: sender, content without line breaks in the fields of one line.
fn check_message(wire: &wire::AptosMessage) -> Result<(), Fault> {
    required("from", &wire.from)?;
    default_type(wire.r#type)?;
    let content = wire
        .content
        .as_ref()
        .ok_or_else(|| Fault::field("content", "is required"))?;
    let lines = [
        ("content.nonce", Some(content.nonce.as_str())),
        ("content.address", content.address.as_deref()),
        ("content.application", content.application.as_deref()),
    ];
    for (name, line) in lines {
        if line.is_some_and(|line| line.contains(['\n', '\r'])) {
            return Err(Fault::field(name, "must not contain line breaks"));
        }
    }
    Ok(())
}

fn common(chain_id: u64, from: &str, gas: Option<&wire::AptosGas>) -> Result<(), Fault> {
    if !CHAIN_IDS.contains(&chain_id) {
        return Err(Fault::field(
            "chainId",
            "must be 1 (Aptos) or 126 (Movement)",
        ));
    }
    required("from", from)?;
    if let Some(gas) = gas {
        let limit = gas.max_gas_amount.as_deref();
        if optional_amount("gasFee.maxGasAmount", limit, parse_u64)? == Some(0) {
            return Err(Fault::field("gasFee.maxGasAmount", "must be more than 0"));
        }
        optional_amount(
            "gasFee.gasUnitPrice",
            gas.gas_unit_price.as_deref(),
            parse_u64,
        )?;
    }
    Ok(())
}

/// A checked Aptos payload. None is built yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AptosPayload {}

impl Family for AptosPayload {
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

pub(super) fn send_native(wire: &wire::AptosSendNative) -> Result<AptosPayload, Fault> {
    check_send_native(wire)?;
    Err(not_built("Aptos"))
}

pub(super) fn send_coin(wire: &wire::AptosSendCoin) -> Result<AptosPayload, Fault> {
    check_send_coin(wire)?;
    Err(not_built("Aptos"))
}

pub(super) fn send_custom(wire: &wire::AptosSendCustom) -> Result<AptosPayload, Fault> {
    check_send_custom(wire)?;
    Err(not_built("Aptos"))
}

pub(super) fn message(wire: &wire::AptosMessage) -> Result<AptosPayload, Fault> {
    check_message(wire)?;
    Err(not_built("Aptos"))
}
