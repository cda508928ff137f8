//! Whether what a message signs is a text that people read, or a value that only programs do:
//! contracts obey signatures over the digests of orders and permits.

use solana_pubkey::Pubkey;

use super::outflow::{ChainScope, Outflow};

/// What texts begin with that a network or its wallets sign for a purpose of their own, of those
/// whose keys are Ed25519.
const SIGNING_PREFIXES: [&str; 5] = [
    "APTOS",
    "Stellar Signed Message:",
    "ton-connect",
    "ton-proof-item-v2/",
    "ton-safe-sign-magic",
];

/// Digits in base64 of 32 bytes; any other encoding takes more.
const ENCODED_VALUE: usize = 43;

/// The outflow of a message whose kind puts a prefix of its own in front of the `content`, so that
/// no network takes it for a transaction.
pub(in crate::networks) fn outflow(content: &[u8], place: ChainScope) -> Outflow {
    if is_opaque(content) {
        Outflow::of_typed_data(place)
    } else {
        Outflow::of_text(place)
    }
}

/// Whether content that is signed as it stands, with nothing in front, is plainly a text.
pub(in crate::networks) fn is_bare_text(content: &[u8]) -> bool {
    let has_prefix = |prefix: &str| content.starts_with(prefix.as_bytes());
    !content.is_empty() && !is_opaque(content) && !SIGNING_PREFIXES.into_iter().any(has_prefix)
}

/// Whether it is of 32 bytes, as digests and keys are, not printable, or nothing but the digits of
/// such a value (hex, base58, base64).
fn is_opaque(content: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(content) else {
        return true;
    };
    let is_printable = |c: char| !c.is_control() || matches!(c, '\n' | '\r' | '\t');
    content.len() == 32 || !text.chars().all(is_printable) || is_encoded_value(text.trim())
}

/// Whether it is one run of digits that holds 32 bytes or more.
fn is_encoded_value(text: &str) -> bool {
    let is_digit =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_' | b'=');
    let is_long = text.len() >= ENCODED_VALUE && text.bytes().all(is_digit);
    // Leading zero bytes make base58 shorter.
    is_long || text.parse::<Pubkey>().is_ok()
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use base64::{
        Engine as _,
        engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
    };

    use super::*;
    use crate::networks::{Network, outflow::ContentKind};

    fn nature(content: &[u8]) -> ContentKind {
        outflow(content, ChainScope::network(Network::Sui)).nature
    }

    #[test]
    fn text__should_be_told_from_values() {
        for text in [
            "hello",
            "app.example wants you to sign in with your account:\n\tgrüß ✅\r\n",
            "a line of exactly thirty-three c.",
            "https://example.com/a/path/that/is/long/enough?nonce=1234567890",
            "deadbeef",
        ] {
            assert!(is_bare_text(text.as_bytes()), "{text}");
            assert_eq!(nature(text.as_bytes()), ContentKind::Message);
        }
        let digest: [u8; 32] = std::array::from_fn(|at| (at * 37 + 11) as u8);
        let mut small = [0; 32];
        small[20..].copy_from_slice(&digest[..12]);
        let hex = hex::encode(digest);
        for value in [
            digest.to_vec(),
            digest[..31].to_vec(),
            [&digest[..], &digest].concat(),
            b"a line of exactly thirty-two ch.".to_vec(),
            b"hello\0".to_vec(),
            b"hello\x7f".to_vec(),
            "hello\u{85}".into(),
            b"\x19Ethereum Signed Message:\n1a".to_vec(),
            hex.clone().into_bytes(),
            format!("0x{}", hex.to_uppercase()).into_bytes(),
            format!("{hex}{hex}\n").into_bytes(),
            bs58::encode(digest).into_vec(),
            bs58::encode(small).into_vec(),
            STANDARD.encode(digest).into_bytes(),
            URL_SAFE_NO_PAD.encode(digest).into_bytes(),
        ] {
            assert!(!is_bare_text(&value), "{}", String::from_utf8_lossy(&value));
            assert_eq!(nature(&value), ContentKind::TypedData);
        }
    }

    #[test]
    fn text__should_not_be_bare_with_the_prefix_of_another_signature_or_empty() {
        for text in [
            "",
            "APTOS\nmessage: hello\nnonce: 1",
            "APTOS::RawTransaction",
            "Stellar Signed Message:\nhello",
            "ton-connect/sign-data/hello",
            "ton-proof-item-v2/hello",
            "ton-safe-sign-magic hello",
        ] {
            assert!(!is_bare_text(text.as_bytes()), "{text}");
            assert_eq!(nature(text.as_bytes()), ContentKind::Message);
        }
    }
}
