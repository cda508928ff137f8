//! What a token's contract says of it (EIP-20). It is the contract's word, through nodes that may lie.

use covault_core::amount;

use crate::chain_rpc::TokenFacts;

/// Selector of `decimals()`.
pub const DECIMALS: &str = "0x313ce567";
/// Selector of `symbol()`.
pub const SYMBOL: &str = "0x95d89b41";
/// Most decimals that anything has: more than that fit no amount.
const MAX_DECIMALS: u8 = 77;
/// Most characters of a symbol.
const MAX_SYMBOL: usize = 32;
const WORD: usize = 32;

/// What both answers say, each as hex digits with `0x`; nothing when the decimals are no number.
pub fn facts(decimals: &str, symbol: &str) -> Option<TokenFacts> {
    let word = decimals.strip_prefix("0x")?.get(..2 * WORD)?;
    let decimals: u8 = amount::hex_to_decimal(word)?.parse().ok()?;
    (decimals <= MAX_DECIMALS).then(|| TokenFacts {
        decimals,
        symbol: read_symbol(symbol).unwrap_or_default(),
    })
}

/// A text as the ABI has it, or as tokens did before there was one: 32 bytes, filled up with zeros.
fn read_symbol(answer: &str) -> Option<String> {
    let bytes = hex::decode(answer.strip_prefix("0x")?).ok()?;
    let text = match bytes.len() {
        WORD => bytes.split(|byte| *byte == 0).next()?,
        _ => {
            let length = bytes.get(WORD..2 * WORD)?;
            let (zeros, low) = length.split_last_chunk::<8>()?;
            let length = usize::try_from(u64::from_be_bytes(*low)).ok()?;
            let is_small = zeros.iter().all(|byte| *byte == 0);
            bytes.get(2 * WORD..)?.get(..length).filter(|_| is_small)?
        }
    };
    let text = std::str::from_utf8(text).ok()?;
    Some(text.chars().take(MAX_SYMBOL).collect())
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn facts__should_be_read_as_tokens_of_every_age_write_them() {
        let six = format!("0x{:064x}", 6);
        let string = format!("0x{:064x}{:064x}{:0<64}", 32, 4, hex::encode("USDT"));
        let bytes = format!("0x{:0<64}", hex::encode("MKR"));
        for (symbol, expected) in [
            (string.as_str(), "USDT"),
            (&bytes, "MKR"),
            ("0x", ""),
            ("", ""),
            (&format!("0x{:064x}{}", 32, "f".repeat(64)), ""),
            (&format!("0x{:064x}{:064x}ff", 32, 1), ""),
        ] {
            let read = facts(&six, symbol).unwrap();
            assert_eq!((read.decimals, read.symbol.as_str()), (6, expected));
        }
        for decimals in [
            "0x",
            "",
            "0x06",
            &format!("0x{:064x}", 78),
            &format!("0x{}", "f".repeat(64)),
        ] {
            assert_eq!(facts(decimals, &string), None, "{decimals}");
        }
        let long = format!("0x{:064x}{:064x}{}", 32, 40, "41".repeat(40));
        assert_eq!(facts(&six, &long).unwrap().symbol.len(), MAX_SYMBOL);
    }
}
