//! Solana's off-chain messages: a text in a header that no transaction of any network begins with.
//!
//! Version 0 is that of the Solana documentation ("Off-chain message signing"), version 1 that of
//! the `@solana/kit` libraries.

use std::str;

/// What they begin with. No transaction message has this first byte.
const DOMAIN: &[u8] = b"\xffsolana offchain";
/// The most bytes of a text that hardware wallets show.
const SHORT: usize = 1232;

/// Whether the bytes are a well-formed off-chain message that names `signer` among its signers.
pub fn is_message(bytes: &[u8], signer: &[u8; 32]) -> bool {
    signers(bytes).is_some_and(|signers| signers.contains(signer))
}

/// Those who sign the message; `None` when it is not well-formed.
fn signers(bytes: &[u8]) -> Option<&[[u8; 32]]> {
    let (version, rest) = bytes.strip_prefix(DOMAIN)?.split_first()?;
    let (signers, fits) = match version {
        0 => {
            // The application, whose 32 bytes may be any.
            let (_, rest) = rest.split_at_checked(32)?;
            let (format, rest) = rest.split_first()?;
            let (signers, rest) = keys(rest)?;
            let (length, text) = rest.split_first_chunk()?;
            let is_short = text.len() <= SHORT;
            let is_text = match format {
                0 => is_short && text.iter().all(|byte| matches!(byte, b' '..=b'~')),
                1 => is_short && str::from_utf8(text).is_ok(),
                2 => str::from_utf8(text).is_ok(),
                _ => false,
            };
            let is_whole = usize::from(u16::from_le_bytes(*length)) == text.len();
            (signers, is_text && is_whole && !text.is_empty())
        }
        1 => {
            let (signers, text) = keys(rest)?;
            let is_sorted = signers.is_sorted_by(|one, next| one < next);
            let is_text = str::from_utf8(text).is_ok();
            (signers, is_sorted && is_text && !text.is_empty())
        }
        _ => return None,
    };
    fits.then_some(signers)
}

/// A number of keys that is not 0, so many keys, and what follows.
fn keys(bytes: &[u8]) -> Option<(&[[u8; 32]], &[u8])> {
    let (count, rest) = bytes.split_first()?;
    let (keys, rest) = rest.split_at_checked(usize::from(*count).saturating_mul(32))?;
    let (keys, _) = keys.as_chunks();
    (!keys.is_empty()).then_some((keys, rest))
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    const ME: [u8; 32] = [7; 32];
    const OTHER: [u8; 32] = [9; 32];

    fn version_0(format: u8, signers: &[[u8; 32]], text: &[u8]) -> Vec<u8> {
        let length = u16::try_from(text.len()).unwrap().to_le_bytes();
        let count = u8::try_from(signers.len()).unwrap();
        let header = [DOMAIN, &[0], &[1; 32], &[format, count]].concat();
        [&header[..], signers.as_flattened(), &length, text].concat()
    }

    fn version_1(signers: &[[u8; 32]], text: &[u8]) -> Vec<u8> {
        let count = u8::try_from(signers.len()).unwrap();
        [DOMAIN, &[1, count], signers.as_flattened(), text].concat()
    }

    #[test]
    fn message__should_be_read_in_each_version_and_format() {
        let long = "ü".repeat(SHORT);
        for good in [
            version_0(0, &[ME], b"hello"),
            version_0(1, &[OTHER, ME], "grüß\n".as_bytes()),
            version_0(2, &[ME], long.as_bytes()),
            version_1(&[ME], b"hello"),
            version_1(&[ME, OTHER], long.as_bytes()),
        ] {
            assert!(is_message(&good, &ME));
            assert!(!is_message(&good, &[8; 32]), "another's message");
            // Nothing may be missing, and of version 0, which says its length, nothing follow.
            assert!(!is_message(&good[1..], &ME));
            assert!(!is_message(&good[..50], &ME));
            let longer = [&good[..], b"."].concat();
            assert_eq!(is_message(&longer, &ME), good[DOMAIN.len()] == 1);
        }
    }

    #[test]
    fn message__should_be_refused_when_it_is_not_well_formed() {
        for bad in [
            Vec::new(),
            DOMAIN.to_vec(),
            version_0(0, &[], b"hello"),
            version_0(0, &[OTHER], b"hello"),
            version_0(0, &[ME], b""),
            version_0(0, &[ME], b"a\nb"),
            version_0(0, &[ME], &[b'a'; SHORT + 1]),
            version_0(1, &[ME], &[b'a'; SHORT + 1]),
            version_0(1, &[ME], &[0xff]),
            version_0(2, &[ME], &[0xff]),
            version_0(3, &[ME], b"hello"),
            version_1(&[], b"hello"),
            version_1(&[ME], b""),
            version_1(&[ME], &[0xff]),
            version_1(&[OTHER, ME], b"hello"),
            version_1(&[ME, ME], b"hello"),
            [DOMAIN, &[2, 1], &ME, b"hello"].concat(),
        ] {
            assert!(!is_message(&bad, &ME), "{}", String::from_utf8_lossy(&bad));
        }
    }
}
