//! Stellar payload kinds. Not built yet: the shape is checked, then the kind is refused.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::field::{amount, at_most_bytes, required};
use crate::{amount::parse_decimal, fault::Fault, schema::wire};

/// Bytes of a text memo.
const MEMO_BYTES: usize = 28;
/// Digits after the point of an amount.
const DECIMALS: u8 = 7;

/// Checks a stellarSendNative: addresses, a decimal amount, memo.
pub(super) fn send_native(wire: &wire::StellarSendNative) -> Result<(), Fault> {
    required("from", &wire.from)?;
    required("to", &wire.to)?;
    positive("value", &wire.value)?;
    at_most_bytes("memo", &wire.memo, MEMO_BYTES)
}

/// Checks a stellarSendAsset: addresses, asset, a decimal amount, memo.
pub(super) fn send_asset(wire: &wire::StellarSendAsset) -> Result<(), Fault> {
    required("from", &wire.from)?;
    required("to", &wire.to)?;
    asset(&wire.asset_code, &wire.asset_issuer)?;
    positive("amount", &wire.amount)?;
    at_most_bytes("memo", &wire.memo, MEMO_BYTES)
}

/// Checks a stellarChangeTrust: sender, asset, memo.
pub(super) fn change_trust(wire: &wire::StellarChangeTrust) -> Result<(), Fault> {
    required("from", &wire.from)?;
    asset(&wire.asset_code, &wire.asset_issuer)?;
    at_most_bytes("memo", &wire.memo, MEMO_BYTES)
}

/// Checks a stellarSendCustom: sender, a transaction in base64.
pub(super) fn send_custom(wire: &wire::StellarSendCustom) -> Result<(), Fault> {
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
