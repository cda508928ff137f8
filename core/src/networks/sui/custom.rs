//! Transactions that were made elsewhere.

use std::borrow::Cow;

use sui_sdk_types::Transaction;

use super::{json, tx};
use crate::fault::Fault;

/// Reads what a suiSendCustom brings: BCS `TransactionData`, or the JSON of @mysten/sui. Both in
/// their BCS form.
///
/// # Errors
/// [`Class::Invalid`] naming `payload`.
pub(crate) fn read_custom(payload: &[u8]) -> Result<(Vec<u8>, Transaction), Fault> {
    let wrong = |problem: &str| Fault::field("payload", problem);
    // TransactionData begins with its version, 0.
    let bytes = match payload.trim_ascii_start().first() {
        Some(b'{') => Cow::Owned(
            tx::encode(&json::read(payload)?)
                .map_err(|_| wrong("is too long: at most 128 KiB in BCS"))?,
        ),
        _ => Cow::Borrowed(payload),
    };
    let transaction = tx::decode(&bytes).ok_or_else(|| {
        wrong(
            "must be a programmable transaction: BCS TransactionData, or the JSON of \
             Transaction.toJSON of @mysten/sui",
        )
    })?;
    Ok((bytes.into_owned(), transaction))
}
