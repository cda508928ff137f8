//! Jetton transfers (TEP-74).

use tycho_types::{
    cell::{Cell, CellBuilder, CellFamily as _, CellSlice, Load as _, Store as _},
    error::Error,
    models::{IntAddr, StdAddr},
    num::Tokens,
};

use super::{address::TonAddress, cells::snake_cell};

/// nanoton that go with a transfer to pay for it; what is left comes back to the sender.
pub(crate) const ATTACHED: u128 = 50_000_000;

/// Opcode of `transfer`.
const TRANSFER: u32 = 0x0f8a_7ea5;
/// nanoton for the recipient, so that they are told.
const FORWARDED: u128 = 1;
/// Opcode of a comment (TEP-74, also of a plain message).
const COMMENT: u32 = 0;

/// The body of a message with a comment; an empty one without.
pub(super) fn comment(text: &str) -> Result<Cell, Error> {
    if text.is_empty() {
        return Ok(Cell::default());
    }
    let mut builder = CellBuilder::new();
    builder.store_u32(COMMENT)?;
    snake_cell(builder, text.as_bytes())
}

/// The body that asks the sender's jetton wallet to send.
pub(super) fn transfer(
    amount: u128,
    to: &TonAddress,
    from: &TonAddress,
    text: &str,
) -> Result<Cell, Error> {
    let context = Cell::empty_context();
    let mut builder = CellBuilder::new();
    builder.store_u32(TRANSFER)?;
    builder.store_u64(0)?;
    Tokens::new(amount).store_into(&mut builder, context)?;
    to.std().store_into(&mut builder, context)?;
    // What is left of the attached value goes back here.
    from.std().store_into(&mut builder, context)?;
    // No custom payload.
    builder.store_bit_zero()?;
    Tokens::new(FORWARDED).store_into(&mut builder, context)?;
    if text.is_empty() {
        builder.store_bit_zero()?;
    } else {
        builder.store_bit_one()?;
        builder.store_reference(comment(text)?)?;
    }
    builder.build()
}

/// Recipient and amount of a body that asks for a transfer.
pub(super) fn read_transfer(mut body: CellSlice<'_>) -> Option<(StdAddr, u128)> {
    if body.load_u32().ok()? != TRANSFER {
        return None;
    }
    body.load_u64().ok()?;
    let amount = Tokens::load_from(&mut body).ok()?;
    match IntAddr::load_from(&mut body).ok()? {
        IntAddr::Std(to) => Some((to, amount.into_inner())),
        IntAddr::Var(_) => None,
    }
}
