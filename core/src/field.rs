//! Checks of fields that payloads, batches and wallets share. Paths are relative; the caller puts what is
//! above in front.

use crate::{amount::AmountError, fault::Fault};

/// Most recipients of one batch payment.
const MAX_RECIPIENTS: usize = 254;

/// Whether a batch payment may have so many `recipients`.
pub(crate) fn recipients_in_range(count: usize) -> Result<(), Fault> {
    if !(1..=MAX_RECIPIENTS).contains(&count) {
        return Err(Fault::field(
            "recipients",
            format_args!("must be 1 to {MAX_RECIPIENTS}"),
        ));
    }
    Ok(())
}

/// A text that must not be empty.
pub(crate) fn required<'a>(name: &str, text: &'a str) -> Result<&'a str, Fault> {
    if text.is_empty() {
        return Err(Fault::field(name, "is required"));
    }
    Ok(text)
}

/// Bytes that must not be empty.
pub(crate) fn required_bytes(name: &str, bytes: &[u8]) -> Result<(), Fault> {
    if bytes.is_empty() {
        return Err(Fault::field(name, "is required"));
    }
    Ok(())
}

/// An amount, by one of the parsers of [`crate::amount`].
pub(crate) fn amount<T>(
    name: &str,
    text: &str,
    parse: impl Fn(&str) -> Result<T, AmountError>,
) -> Result<T, Fault> {
    parse(text).map_err(|error| Fault::field(name, error))
}

/// An amount that may be left out.
pub(crate) fn optional_amount<T>(
    name: &str,
    text: Option<&str>,
    parse: impl Fn(&str) -> Result<T, AmountError>,
) -> Result<Option<T>, Fault> {
    text.map(|text| amount(name, text, parse)).transpose()
}

/// A text of at most `limit` bytes of UTF-8; may be empty.
pub(crate) fn at_most_bytes(name: &str, text: &str, limit: usize) -> Result<(), Fault> {
    if text.len() > limit {
        return Err(Fault::field(
            name,
            format_args!("is too long: at most {limit} bytes in UTF-8"),
        ));
    }
    Ok(())
}

/// A text of at most `limit` Unicode scalar values; may be empty.
pub(crate) fn at_most_chars(name: &str, text: &str, limit: usize) -> Result<(), Fault> {
    if text.chars().count() > limit {
        return Err(Fault::field(
            name,
            format_args!("has more than {limit} characters"),
        ));
    }
    Ok(())
}

/// Token decimals: 0 to 255.
pub(crate) fn decimals(decimals: Option<i64>) -> Result<(), Fault> {
    match decimals.map(u8::try_from) {
        Some(Err(_)) => Err(Fault::field("decimals", "must be from 0 to 255")),
        Some(Ok(_)) | None => Ok(()),
    }
}

/// A message `type`: unspecified or the default one, for the kinds that have no other.
pub(crate) fn default_type(value: i32) -> Result<(), Fault> {
    if !(0..=1).contains(&value) {
        return Err(Fault::field("type", "must be TYPE_DEFAULT or left out"));
    }
    Ok(())
}
