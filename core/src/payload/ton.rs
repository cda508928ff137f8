//! TON payload kinds. Not built yet: the shape is checked, then the kind is refused.

use super::{
    Family, Kind, WireKind,
    field::{amount, at_most_chars, decimals, default_type, not_built, required, required_bytes},
    outflow::Outflow,
};
use crate::{
    amount::{AmountError, parse_u128},
    fault::Fault,
    network::Network,
    schema::wire,
};

/// Characters of a comment.
const COMMENT_CHARS: usize = 50;

/// Checks a tonSendNative: addresses, nanoton, comment.
fn check_send_native(wire: &wire::TonSendNative) -> Result<(), Fault> {
    required("from", &wire.from)?;
    required("to", &wire.to)?;
    amount("value", &wire.value, coins)?;
    at_most_chars("comment", &wire.comment, COMMENT_CHARS)
}

/// Checks a tonSendToken: addresses, jetton, amount, comment, decimals.
fn check_send_token(wire: &wire::TonSendToken) -> Result<(), Fault> {
    required("from", &wire.from)?;
    required("to", &wire.to)?;
    required("mintAddress", &wire.mint_address)?;
    amount("amount", &wire.amount, coins)?;
    at_most_chars("comment", &wire.comment, COMMENT_CHARS)?;
    decimals(wire.decimals)
}

/// Checks a tonSendCustom: sender, payload.
fn check_send_custom(wire: &wire::TonSendCustom) -> Result<(), Fault> {
    required("from", &wire.from)?;
    required_bytes("payload", &wire.payload)
}

/// Checks a tonMessage: sender. An empty message is a message.
fn check_message(wire: &wire::TonMessage) -> Result<(), Fault> {
    required("from", &wire.from)?;
    default_type(wire.r#type)
}

/// An amount up to 2^120 - 1 (TL-B `VarUInteger 16`).
fn coins(text: &str) -> Result<u128, AmountError> {
    match parse_u128(text)? {
        value if value >> 120 == 0 => Ok(value),
        _ => Err(AmountError::TooLarge(120)),
    }
}

/// A checked TON payload. None is built yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TonPayload {}

impl Family for TonPayload {
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

pub(super) fn send_native(wire: &wire::TonSendNative) -> Result<TonPayload, Fault> {
    check_send_native(wire)?;
    Err(not_built("TON"))
}

pub(super) fn send_token(wire: &wire::TonSendToken) -> Result<TonPayload, Fault> {
    check_send_token(wire)?;
    Err(not_built("TON"))
}

pub(super) fn send_custom(wire: &wire::TonSendCustom) -> Result<TonPayload, Fault> {
    check_send_custom(wire)?;
    Err(not_built("TON"))
}

pub(super) fn message(wire: &wire::TonMessage) -> Result<TonPayload, Fault> {
    check_message(wire)?;
    Err(not_built("TON"))
}
