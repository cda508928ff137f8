//! The coins of EVM chains that are tokens too.

use alloy_primitives::{Address, address};

/// Contracts through which a chain's own coin is a token too: one balance under two names.
const COINS: [(u64, Address); 4] = [
    // Metis
    (
        1_088,
        address!("0xDeadDeAddeAddEAddeadDEaDDEAdDeaDDeAD0000"),
    ),
    // Moonbeam, Moonriver
    (
        1_284,
        address!("0x0000000000000000000000000000000000000802"),
    ),
    (
        1_285,
        address!("0x0000000000000000000000000000000000000802"),
    ),
    // Celo
    (
        42_220,
        address!("0x471EcE3750Da237f93B8E339c536989b8978a438"),
    ),
];

/// Whether a token is the coin of its chain.
pub(crate) fn is_coin(chain_id: Option<u64>, token: &Address) -> bool {
    COINS
        .iter()
        .any(|(chain, contract)| chain_id == Some(*chain) && contract == token)
}
