//! Looks for secrets in what everybody may read: in the clear, in hexadecimal, in base64 (standard
//! and for URLs, padded or not), and as a list of numbers. The process tests of the program use it,
//! too.

use std::collections::HashSet;

use base64::Engine as _;

/// So many bytes of a secret in a row give it away.
pub const WINDOW: usize = 12;
/// How the first bytes of a window are told apart before it is looked for.
const STARTS: usize = 1 << 24;

/// Every piece of every secret.
pub struct SecretSearch {
    pieces: HashSet<[u8; WINDOW]>,
    /// Whether a piece begins with these three bytes.
    starts: Vec<bool>,
}

impl Default for SecretSearch {
    fn default() -> Self {
        Self {
            pieces: HashSet::new(),
            starts: vec![false; STARTS],
        }
    }
}

fn start(bytes: &[u8]) -> usize {
    usize::from(bytes[0]) << 16 | usize::from(bytes[1]) << 8 | usize::from(bytes[2])
}

impl SecretSearch {
    pub fn add(&mut self, secret: &[u8]) {
        assert!(secret.len() >= WINDOW, "too short to be looked for");
        for piece in secret.windows(WINDOW).filter(|piece| tells(piece)) {
            self.pieces.insert(piece.try_into().unwrap());
            self.starts[start(piece)] = true;
        }
    }

    /// What is part of a secret, and known to everybody.
    pub fn remove(&mut self, public: &[u8]) {
        for piece in public.windows(WINDOW) {
            self.pieces.remove(piece);
        }
    }

    /// Where a secret stands in these bytes.
    pub fn in_bytes(&self, bytes: &[u8]) -> Option<usize> {
        bytes
            .windows(WINDOW)
            .position(|piece| self.starts[start(piece)] && self.pieces.contains(piece))
    }

    /// What in the text is, or hides, a piece of a secret.
    pub fn in_text(&self, text: &str) -> Option<String> {
        if let Some(place) = self.in_bytes(text.as_bytes()) {
            let bytes = &text.as_bytes()[place.saturating_sub(80)..];
            let shown = &bytes[..bytes.len().min(80 + WINDOW)];
            return Some(format!("in the clear: {}", String::from_utf8_lossy(shown)));
        }
        for run in runs(text, |letter| letter.is_ascii_hexdigit()) {
            for start in 0..2 {
                let digits = &run[start.min(run.len())..];
                let even = &digits[..digits.len() & !1];
                if self.in_bytes(&hex::decode(even).unwrap()).is_some() {
                    return Some(run.to_owned());
                }
            }
        }
        let of_base64 = |letter: char| letter.is_ascii_alphanumeric() || "+/-_".contains(letter);
        let engine = base64::engine::GeneralPurpose::new(
            &base64::alphabet::STANDARD,
            base64::engine::general_purpose::NO_PAD.with_decode_allow_trailing_bits(true),
        );
        for run in runs(text, of_base64) {
            let run = run.replace('-', "+").replace('_', "/");
            for start in 0..4 {
                let letters = &run[start.min(run.len())..];
                // What is left of three bytes stands in two or three letters.
                let whole = &letters[..letters.len() - usize::from(letters.len() % 4 == 1)];
                if self.in_bytes(&engine.decode(whole).unwrap()).is_some() {
                    return Some(run);
                }
            }
        }
        let of_list = |letter: char| letter.is_ascii_digit() || ", \n".contains(letter);
        for run in runs(text, of_list) {
            let numbers: Vec<u8> = run
                .split([',', ' ', '\n'])
                .filter_map(|number| number.parse().ok())
                .collect();
            if self.in_bytes(&numbers).is_some() {
                return Some(run.to_owned());
            }
        }
        None
    }

    /// Fails unless the search finds this secret in each form that it is to find.
    pub fn assert_finds(&self, secret: &[u8]) {
        use base64::engine::general_purpose::{
            STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD,
        };
        let hex = hex::encode(&secret[5..20]);
        for shown in [
            format!("share={hex}"),
            format!("0x{}", hex.to_uppercase()),
            format!("a{}", STANDARD.encode(secret)),
            format!("\"{}\"", STANDARD_NO_PAD.encode(&secret[1..])),
            format!("x={} y", URL_SAFE_NO_PAD.encode(&secret[3..])),
            format!("{}.", URL_SAFE.encode(&secret[4..17])),
            format!("{secret:?}"),
            format!("{secret:#?}"),
        ] {
            assert!(self.in_text(&shown).is_some(), "{shown}");
        }
    }
}

/// Whether it is more than filling: zeros around a number stand everywhere.
fn tells(piece: &[u8]) -> bool {
    let distinct: HashSet<u8> = piece.iter().copied().collect();
    distinct.len() > WINDOW / 3
}

/// The longest pieces of a text that are of these letters.
fn runs(text: &str, of: impl Fn(char) -> bool) -> impl Iterator<Item = &str> {
    text.split(move |letter| !of(letter))
        .filter(|run| run.len() >= WINDOW)
}
