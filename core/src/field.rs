//! Checks of fields that payloads, batches and wallets share. Paths are relative; the caller puts what is
//! above in front.

use crate::{amount::AmountError, fault::Fault, schema::wire::BatchPaymentRecipient};

/// Most recipients of one batch payment.
const MAX_RECIPIENTS: usize = 254;

/// Whether a batch payment may have this many `recipients`.
pub(crate) fn recipients_in_range(count: usize) -> Result<(), Fault> {
    if !(1..=MAX_RECIPIENTS).contains(&count) {
        return Err(Fault::field(
            "recipients",
            format_args!("must be 1 to {MAX_RECIPIENTS}"),
        ));
    }
    Ok(())
}

/// Refuses what stands beside a list of recipients: the fields of a single one, and notes, which are no part of a
/// transaction.
pub(crate) fn only_recipients(
    single: &[(&str, &str)],
    recipients: &[BatchPaymentRecipient],
) -> Result<(), Fault> {
    if let Some((name, _)) = single.iter().find(|(_, text)| !text.is_empty()) {
        return Err(Fault::field(*name, "cannot be combined with recipients"));
    }
    match recipients.iter().position(|one| one.notes.is_some()) {
        Some(index) => Err(Fault::field(
            format!("recipients[{index}].notes"),
            "must be left out: they are no part of the transaction",
        )),
        None => Ok(()),
    }
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

/// Whether a character could make a text look other than it is: a control character, or one that turns the order of
/// what is beside it (Unicode's `Bidi_Control`).
fn misleads(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// A name or a reference: at most `limit` Unicode scalar values, none of which misleads who reads it; may be empty.
pub fn label(name: &str, text: &str, limit: usize) -> Result<(), Fault> {
    at_most_chars(name, text, limit)?;
    plain(name, text, "control characters", misleads)
}

/// The same for notes, which may have several lines.
pub fn notes(name: &str, text: &str, limit: usize) -> Result<(), Fault> {
    at_most_chars(name, text, limit)?;
    let line = |character| matches!(character, '\n' | '\r' | '\t');
    let what = "control characters other than tabs and line breaks";
    plain(name, text, what, |character| {
        misleads(character) && !line(character)
    })
}

fn plain(name: &str, text: &str, what: &str, refused: impl Fn(char) -> bool) -> Result<(), Fault> {
    if text.chars().any(refused) {
        let problem =
            format!("must not have {what}, or characters that change the direction of text");
        return Err(Fault::field(name, problem));
    }
    Ok(())
}

/// A text of at most `limit` Unicode scalar values; may be empty.
fn at_most_chars(name: &str, text: &str, limit: usize) -> Result<(), Fault> {
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

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn label__should_refuse_what_makes_a_text_look_other_than_it_is() {
        for text in [
            "",
            "Grüße, \u{1f511} \u{5e9}\u{5dc}",
            "a\u{200d}b",
            "12345678",
        ] {
            assert_eq!(label("name", text, 20), Ok(()), "{text:?}");
        }
        for text in [
            "a\nb",
            "a\0",
            "\u{7f}",
            "\u{85}",
            "\u{202e}dlog",
            "a\u{2066}b",
            "\u{200f}",
            "\u{61c}",
        ] {
            let fault = label("name", text, 20).unwrap_err();
            assert!(
                fault.message().starts_with("name: must not have"),
                "{text:?}"
            );
        }
        assert!(label("name", &"x".repeat(21), 20).is_err());
    }

    #[test]
    fn notes__should_have_lines_and_nothing_hidden() {
        assert_eq!(notes("notes", "a\r\n\tb", 5), Ok(()));
        for text in ["\u{1b}[2J", "a\u{202e}b", "\0"] {
            assert!(notes("notes", text, 20).is_err(), "{text:?}");
        }
        let most = "\u{1f511}".repeat(10_000);
        assert_eq!(notes("notes", &most, 10_000), Ok(()));
        let fault = notes("notes", &format!("{most}x"), 10_000).unwrap_err();
        assert_eq!(fault.message(), "notes: has more than 10000 characters");
    }
}
