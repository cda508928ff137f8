//! The text of a token: `cvp_`, `cvs_` or `cva_`, 43 characters of base62 for 256 random bits, and 6 for
//! the CRC-32 of what is before. Scanners for leaked secrets know it by its form
//! (`cv[psa]_[0-9A-Za-z]{49}`) and make sure by its checksum, without asking anyone.

use secrecy::SecretString;
use zeroize::Zeroizing;

use super::TokenKind;
use crate::port::Entropy;

const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// Base62 digits of 256 bits.
const RANDOM: usize = 43;
/// Base62 digits of 32 bits.
const CHECKSUM: usize = 6;
const PREFIX: usize = 4;
/// Characters of a token.
pub const LENGTH: usize = PREFIX + RANDOM + CHECKSUM;

/// A new token.
pub fn make(kind: TokenKind, entropy: &dyn Entropy) -> SecretString {
    let mut random = Zeroizing::new([0_u8; 32]);
    entropy.fill(random.as_mut());
    // As long as it will be: no copy stays behind in memory when it grows.
    let mut text = String::with_capacity(LENGTH);
    text.push_str(kind.prefix());
    base62(random.as_mut(), RANDOM, &mut text);
    let mut checksum = crc32fast::hash(text.as_bytes()).to_be_bytes();
    base62(&mut checksum, CHECKSUM, &mut text);
    SecretString::from(text)
}

/// What tokens begin with, of whatever kind.
const PREFIXES: [&str; 3] = ["cvp_", "cvs_", "cva_"];

/// Whether a text is a token, judged by its form and checksum alone.
pub fn is_token(text: &str) -> bool {
    let has_prefix = PREFIXES.iter().any(|prefix| text.starts_with(prefix));
    if !has_prefix || text.len() != LENGTH {
        return false;
    }
    let Some((before, given)) = text.split_at_checked(LENGTH - CHECKSUM) else {
        return false;
    };
    if !before
        .bytes()
        .skip(PREFIX)
        .all(|byte| DIGITS.contains(&byte))
    {
        return false;
    }
    let mut checksum = String::with_capacity(CHECKSUM);
    let mut crc = crc32fast::hash(before.as_bytes()).to_be_bytes();
    base62(&mut crc, CHECKSUM, &mut checksum);
    checksum == given
}

/// Appends a big-endian number in `digits` digits of base 62, which must be enough for it. The
/// number is 0 afterwards.
fn base62(number: &mut [u8], digits: usize, text: &mut String) {
    let mut remainders = Zeroizing::new(Vec::with_capacity(digits));
    for _ in 0..digits {
        let mut remainder = 0_u16;
        for byte in number.iter_mut() {
            let part = (remainder << 8) | u16::from(*byte);
            // A part is below 62 * 256: the quotient fits.
            *byte = u8::try_from(part / 62).unwrap_or(u8::MAX);
            remainder = part % 62;
        }
        remainders.push(DIGITS.get(usize::from(remainder)).copied().unwrap_or(b'0'));
    }
    text.extend(remainders.iter().rev().map(|digit| char::from(*digit)));
}
