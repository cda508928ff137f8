//! What transactions of a chain pay now.

use covault_core::networks::FeeLevel;

use super::{ChainClients, ChainKey};

/// What a transaction of one level pays now. Prices are in [`PRICE_UNIT`](covault_core::networks::NetworkRules::PRICE_UNIT), fees in the smallest
/// unit of the coin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeeEstimate {
    /// What a unit costs.
    pub price: u128,
    /// The most that a unit may cost: what a transaction of the level offers. Where blocks have a base fee,
    /// there is room in it for that to rise.
    pub most_price: u128,
    /// The part of the price that goes to the maker of the block, where there is a base fee.
    pub priority_price: Option<u128>,
    /// What a plain transfer of the coin to an account that exists costs, at `price`.
    pub transfer_fee: u128,
}

impl FeeEstimate {
    /// Where a transaction pays what it offers: so many units of a transfer, and what comes on top.
    pub fn plain(price: u128, units: u128, on_top: u128) -> Self {
        Self {
            price,
            most_price: price,
            priority_price: None,
            transfer_fee: price.saturating_mul(units).saturating_add(on_top),
        }
    }
}

/// What a transfer burns of the sender's coin, in the smallest unit, as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferBurn {
    /// Energy that the call uses, whoever pays for it.
    pub energy: u64,
    /// The part of it for which coin is burnt.
    pub burnt_energy: u64,
    /// What a unit of energy costs.
    pub energy_price: u64,
    /// What is burnt beside energy: for bytes, and for a recipient that is not there yet.
    pub on_top: u64,
}

/// Whether nodes that answer at about the same time name the same prices: that of a level, or where none is
/// given, those of all.
pub(super) fn same_prices<T: Copy>(
    level: Option<FeeLevel>,
    near: impl Fn(T, T) -> bool,
) -> impl Fn(&[T; 3], &[T; 3]) -> bool {
    move |one, other| match level {
        Some(level) => near(level.of(*one), level.of(*other)),
        None => one.iter().zip(other).all(|(one, other)| near(*one, *other)),
    }
}

impl ChainClients {
    /// The highest price of a chain's nodes that is believed, in [`PRICE_UNIT`](covault_core::networks::NetworkRules::PRICE_UNIT).
    pub(super) fn most_price(&self, chain: ChainKey) -> u128 {
        let most = self.most_prices.get(&chain).copied();
        most.unwrap_or_else(|| chain.network.rules().default_most_price(chain.chain_id))
    }

    /// Why estimates of a chain's nodes are not handed on; `None` where they may be. No transaction would be
    /// built with a price above the ceiling.
    pub fn estimate_problem(
        &self,
        chain: ChainKey,
        estimates: &[FeeEstimate; 3],
    ) -> Option<String> {
        let most = self.most_price(chain);
        let levels = FeeLevel::ALL.iter().zip(estimates);
        let (level, dear) = levels.into_iter().find(|(_, one)| one.most_price > most)?;
        Some(format!(
            "the nodes of {chain} report a price of {} {} for the level {}, above the accepted maximum \
             of {most} ({}.most_price)",
            dear.most_price,
            chain.network.rules().price_unit(),
            level.name(),
            chain.setting(),
        ))
    }
}
