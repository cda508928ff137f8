//! How long a client is willing to wait: the header `grpc-timeout`.

use std::time::Duration;

use axum::http::HeaderMap;
use covault_core::fault::Fault;

const NAME: &str = "grpc-timeout";
/// The digits that the protocol allows.
const DIGITS: usize = 8;

/// The client's own limit, if it has one.
///
/// # Errors
/// [`covault_core::fault::Class::Invalid`] when it is not in the protocol's form: 1 to 8 digits and
/// one of H, M, S, m, u, n.
pub fn asked(headers: &HeaderMap) -> Result<Option<Duration>, Fault> {
    let Some(value) = headers.get(NAME) else {
        return Ok(None);
    };
    let parsed = value.to_str().ok().and_then(parse);
    parsed.map(Some).ok_or_else(|| {
        Fault::field(
            NAME,
            "must be 1 to 8 digits and a unit (H, M, S, m, u or n)",
        )
    })
}

fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let is_number =
        (1..=DIGITS).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn timeout__should_be_read_as_the_protocol_writes_it() {
        for (text, expected) in [
            ("1H", Duration::from_secs(3600)),
            ("2M", Duration::from_secs(120)),
            ("3S", Duration::from_secs(3)),
            ("4m", Duration::from_millis(4)),
            ("5u", Duration::from_micros(5)),
            ("6n", Duration::from_nanos(6)),
            ("0S", Duration::ZERO),
            ("99999999H", Duration::from_secs(99_999_999 * 3600)),
        ] {
            assert_eq!(parse(text), Some(expected), "{text}");
        }
        for text in [
            "",
            "S",
            "1",
            "1s",
            "-1S",
            "+1S",
            "1.5S",
            "100000000S",
            "1 S",
            "1\u{e9}",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
