//! Stellar payload kinds. Not built yet: the shape is checked, then the kind is refused.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::{
    Family, Kind, WireKind,
    field::{amount, at_most_bytes, not_built, required},
    outflow::Outflow,
};
use crate::{amount::parse_decimal, fault::Fault, network::Network, schema::wire};

/// Bytes of a text memo.
const MEMO_BYTES: usize = 28;
/// Digits after the point of an amount.
const DECIMALS: u8 = 7;

/// Checks a stellarSendNative: addresses, a decimal amount, memo.
fn check_send_native(wire: &wire::StellarSendNative) -> Result<(), Fault> {
    required("from", &wire.from)?;
    required("to", &wire.to)?;
    positive("value", &wire.value)?;
    at_most_bytes("memo", &wire.memo, MEMO_BYTES)
}

/// Checks a stellarSendAsset: addresses, asset, a decimal amount, memo.
fn check_send_asset(wire: &wire::StellarSendAsset) -> Result<(), Fault> {
    required("from", &wire.from)?;
    required("to", &wire.to)?;
    asset(&wire.asset_code, &wire.asset_issuer)?;
    positive("amount", &wire.amount)?;
    at_most_bytes("memo", &wire.memo, MEMO_BYTES)
}

/// Checks a stellarChangeTrust: sender, asset, memo.
fn check_change_trust(wire: &wire::StellarChangeTrust) -> Result<(), Fault> {
    required("from", &wire.from)?;
    asset(&wire.asset_code, &wire.asset_issuer)?;
    at_most_bytes("memo", &wire.memo, MEMO_BYTES)
}

/// Checks a stellarSendCustom: sender, a transaction in base64.
fn check_send_custom(wire: &wire::StellarSendCustom) -> Result<(), Fault> {
    required("from", &wire.from)?;
    let text = required("txBase64", &wire.tx_base64)?;
    STANDARD
        .decode(text)
        .map(drop)
        .map_err(|_| Fault::field("txBase64", "must be base64 with padding"))
}

fn positive(name: &str, text: &str) -> Result<(), Fault> {
    if amount(name, text, |text| parse_decimal(text, DECIMALS))? == 0 {
        return Err(Fault::field(name, "must be more than 0"));
    }
    Ok(())
}

fn asset(code: &str, issuer: &str) -> Result<(), Fault> {
    required("assetCode", code)?;
    if code.len() > 12 || !code.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(Fault::field(
            "assetCode",
            "must be 1 to 12 letters or digits",
        ));
    }
    required("assetIssuer", issuer)?;
    Ok(())
}

/// A checked Stellar payload. None is built yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StellarPayload {}

impl Family for StellarPayload {
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

pub(super) fn send_native(wire: &wire::StellarSendNative) -> Result<StellarPayload, Fault> {
    check_send_native(wire)?;
    Err(not_built("Stellar"))
}

pub(super) fn send_asset(wire: &wire::StellarSendAsset) -> Result<StellarPayload, Fault> {
    check_send_asset(wire)?;
    Err(not_built("Stellar"))
}

pub(super) fn change_trust(wire: &wire::StellarChangeTrust) -> Result<StellarPayload, Fault> {
    check_change_trust(wire)?;
    Err(not_built("Stellar"))
}

pub(super) fn send_custom(wire: &wire::StellarSendCustom) -> Result<StellarPayload, Fault> {
    check_send_custom(wire)?;
    Err(not_built("Stellar"))
}
