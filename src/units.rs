//! Amounts as people read and write them.

use covault_core::{
    amount::U256,
    networks::{
        Network,
        outflow::{Asset, ChainScope},
    },
};

/// An amount in whole coins with its symbol; empty for tokens, whose decimals only their contract knows.
pub fn in_units(asset: &Asset, amount: U256) -> String {
    if asset.token.is_some() {
        return String::new();
    }
    let (symbol, decimals) = coin(&asset.place);
    format!("{} {symbol}", in_decimals(amount, decimals))
}

/// The symbol of a chain's coin, and how many decimals it has.
pub fn coin(place: &ChainScope) -> (&'static str, usize) {
    match (place.network, place.chain_id) {
        (Network::Evm, Some(1 | 10 | 8453 | 42_161)) => ("ETH", 18),
        (Network::Evm, Some(56)) => ("BNB", 18),
        (Network::Evm, Some(137)) => ("POL", 18),
        (Network::Evm, Some(43_114)) => ("AVAX", 18),
        (Network::Evm, _) => ("coins of this chain", 18),
        (Network::Bitcoin, _) => ("BTC", 8),
        (Network::Tron, _) => ("TRX", 6),
        (Network::Aptos, Some(126)) => ("MOVE", 8),
        (Network::Aptos, _) => ("APT", 8),
        (Network::Sui, _) => ("SUI", 9),
        // The signed bytes do not say which of the two.
        (Network::Solana, _) => ("SOL", 9),
        (Network::Ton, _) => ("TON", 9),
        (Network::Stellar, _) => ("XLM", 7),
    }
}

/// Digits with a point, without zeros at the end. Never a float.
pub fn in_decimals(amount: U256, decimals: usize) -> String {
    let digits = amount.to_string();
    let padded = format!("{digits:0>width$}", width = decimals.saturating_add(1));
    let (whole, part) = padded.split_at(padded.len().saturating_sub(decimals));
    match part.trim_end_matches('0') {
        "" => whole.to_owned(),
        part => format!("{whole}.{part}"),
    }
}

/// Coins with a point, as a person writes them, in the smallest unit; `None` when it is no such number.
pub fn smallest(text: &str, decimals: usize) -> Option<u128> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let is_number = !whole.is_empty() && digits(whole) && digits(part);
    if !is_number || part.len() > decimals || text.ends_with('.') {
        return None;
    }
    format!("{whole}{part:0<decimals$}").parse().ok()
}

/// `1234` as coins, the way [`smallest`] reads them.
pub fn coins(amount: u128, decimals: usize) -> String {
    in_decimals(U256::from(amount), decimals)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn amounts__should_be_exact_both_ways() {
        for (amount, decimals, text) in [
            (0_u128, 18, "0"),
            (1, 18, "0.000000000000000001"),
            (1_500_000_000_000_000_000, 18, "1.5"),
            (u128::MAX, 18, "340282366920938463463.374607431768211455"),
            (100, 0, "100"),
            (123, 2, "1.23"),
        ] {
            assert_eq!(coins(amount, decimals), text);
            assert_eq!(smallest(text, decimals), Some(amount));
        }
        for text in [
            "", ".", "1.", ".5", "1,5", "-1", "1e3", "0x1", "1.234", "\u{661}", " 1", "1.2.3",
        ] {
            assert_eq!(smallest(text, 2), None, "{text:?}");
        }
        assert_eq!(smallest("340282366920938463463374607431768211456", 0), None);
    }
}
