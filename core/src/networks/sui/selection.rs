//! Which coins pay: no more than needed, so that the rest stays free for other payments.

use std::collections::BTreeSet;

use super::{
    chain_data::{ChainData, GasUsed},
    coins::{CoinObject, sum},
    payment::SuiPayment,
    tx::{self, MAX_GAS_OBJECTS},
};
use crate::{fault::Fault, networks::rules::unexpected_chain_data};

/// Units of gas that one more coin takes than were simulated: reading and merging it, many times over.
const UNITS_PER_COIN: u64 = 10;

/// The coins of `chain_data` that pay, out of those in `free`. `None`: all together would be enough, and others
/// hold what is missing. Whether coin objects or address balances pay is decided by all that the wallet has:
/// what was simulated is then what is built.
///
/// # Errors
/// [`crate::fault::Class::Invalid`] when the wallet cannot pay, even with all reservations released.
pub(super) fn choose(
    payment: &SuiPayment,
    chain_data: &ChainData,
    free: &ChainData,
) -> Result<Option<ChainData>, Fault> {
    let mut all = chain_data.clone();
    all.sui_coins = richest(&chain_data.sui_coins, usize::MAX);
    let (_, budget) = tx::gas(payment, &all)?;
    tx::funds(payment, &all, budget)?;
    // Nothing was required yet when it was simulated.
    all.required = Vec::new();
    let simulated = tokens(payment, &chain_data.coins, &all);
    let simulated = simulated.ok_or_else(unexpected_chain_data)?.len();
    let Some(coins) = tokens(payment, &free.coins, chain_data) else {
        return Ok(None);
    };
    let mut chosen = free.clone();
    let more = coins.len().saturating_sub(simulated);
    if !coins.is_empty() {
        // An address balance that is enough would pay all, and no coin would be spent.
        let most = payment.total().saturating_sub(1);
        chosen.coin_address_balance = chosen.coin_address_balance.min(most);
    }
    chosen.coins = coins;
    if let (Some(used), Some(price)) = (&mut chosen.gas_used, chain_data.reference_gas_price) {
        add_coins(used, more, price)?;
    }
    let (_, budget) = tx::gas(payment, &chosen)?;
    let Some((coins, address_balance)) = sui(payment, &free.sui_coins, chain_data, budget) else {
        return Ok(None);
    };
    chosen.sui_coins = coins;
    chosen.sui_address_balance = address_balance;
    chosen.required = Vec::new();
    Ok(Some(chosen))
}

/// The coins of a token that a simulation is to merge: those that would pay if nobody held any. Nothing is left
/// out where they cannot.
pub(super) fn simulated(payment: &SuiPayment, chain_data: &ChainData) -> ChainData {
    let coins = tokens(payment, &chain_data.coins, chain_data);
    ChainData {
        coins: coins.unwrap_or_else(|| chain_data.coins.clone()),
        ..chain_data.clone()
    }
}

fn add_coins(used: &mut GasUsed, coins: usize, price: u64) -> Result<(), Fault> {
    let coins = u64::try_from(coins).map_err(Fault::bug)?;
    let more = coins.saturating_mul(UNITS_PER_COIN).saturating_mul(price);
    used.computation_cost = used.computation_cost.saturating_add(more);
    Ok(())
}

/// The coin objects of the token; none where its address balance pays all. `None`: `coins` are not enough.
fn tokens(payment: &SuiPayment, coins: &[CoinObject], all: &ChainData) -> Option<Vec<CoinObject>> {
    let total = u128::from(payment.total());
    let outside = u128::from(all.coin_address_balance);
    if payment.token().is_none() {
        return Some(Vec::new());
    }
    if outside >= total {
        // What is required is spent although nothing is missing.
        return match total {
            0 => Some(Vec::new()),
            _ => fewest(coins, 0, usize::MAX, &all.required),
        };
    }
    let needed = match sum(&all.coins) >= total {
        true => total,
        false => total.saturating_sub(outside),
    };
    fewest(coins, needed, usize::MAX, &all.required)
}

/// The coin objects of SUI, and what of the address balance goes with them. `None`: `coins` are not enough.
fn sui(
    payment: &SuiPayment,
    coins: &[CoinObject],
    all: &ChainData,
    budget: u64,
) -> Option<(Vec<CoinObject>, u64)> {
    let (balance, budget) = (all.sui_address_balance, u128::from(budget));
    let outside = u128::from(balance);
    if payment.token().is_some() {
        // Of gas, either one pays all.
        if outside < budget {
            let coins = fewest(coins, budget, MAX_GAS_OBJECTS, &all.required)?;
            return Some((coins, balance));
        }
        // With a balance that is enough no coin would be spent, also none that is required.
        return match fewest(coins, 0, MAX_GAS_OBJECTS, &all.required)?.is_empty() {
            true => Some((Vec::new(), balance)),
            false => {
                let coins = fewest(coins, budget, MAX_GAS_OBJECTS, &all.required);
                coins.map(|coins| (coins, 0))
            }
        };
    }
    let need = budget.saturating_add(u128::from(payment.total()));
    if sum(&richest(&all.sui_coins, MAX_GAS_OBJECTS)) >= need {
        return Some((fewest(coins, need, MAX_GAS_OBJECTS, &all.required)?, 0));
    }
    // The address balance takes one of the places.
    let room = MAX_GAS_OBJECTS.saturating_sub(1);
    let coins = fewest(coins, need.saturating_sub(outside), room, &all.required)?;
    let rest = need.saturating_sub(sum(&coins));
    Some((coins, u64::try_from(rest).ok()?))
}

/// So many of the richest coins, in this order.
fn richest(coins: &[CoinObject], most: usize) -> Vec<CoinObject> {
    let mut coins = coins.to_vec();
    coins.sort_by(|one, other| {
        let richer = other.balance.cmp(&one.balance);
        richer.then_with(|| one.object_id.cmp(&other.object_id))
    });
    coins.truncate(most);
    coins
}

/// Those that are required, and as few others as hold `need` with them, the last of these the smallest that does; in the
/// order in which they came. `None` when `most` of them are not enough.
fn fewest(
    coins: &[CoinObject],
    need: u128,
    most: usize,
    required: &[String],
) -> Option<Vec<CoinObject>> {
    let is_required = |coin: &&CoinObject| {
        let name = coin.object_resource();
        name.is_ok_and(|name| required.contains(&name))
    };
    let first: Vec<_> = coins.iter().filter(is_required).collect();
    let mut names: BTreeSet<_> = first.iter().map(|coin| &coin.object_id).collect();
    let held = first.iter().map(|coin| u128::from(coin.balance)).sum();
    let mut missing = need.saturating_sub(held);
    let most = most.checked_sub(first.len())?;
    let mut sorted = richest(coins, usize::MAX);
    sorted.retain(|coin| !is_required(&coin));
    for (index, coin) in sorted.iter().take(most).enumerate() {
        if missing == 0 {
            break;
        }
        if u128::from(coin.balance) >= missing {
            let rest = sorted.iter().skip(index);
            let enough = rest.take_while(|coin| u128::from(coin.balance) >= missing);
            names.extend(enough.last().map(|coin| &coin.object_id));
            missing = 0;
            break;
        }
        missing = missing.saturating_sub(coin.balance.into());
        names.insert(&coin.object_id);
    }
    let chosen = coins.iter().filter(|coin| names.contains(&coin.object_id));
    (missing == 0).then(|| chosen.cloned().collect())
}
