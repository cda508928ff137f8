//! What a call burns, and what there is besides coins to pay for it.

use covault_core::{fault::ExecuteCode, networks::tron::TronCall as Trigger};
use serde_json::Value;

use super::{number, refusals::refused};
use crate::chain_rpc::ChainError;

/// What is burnt where the account's own energy and bandwidth do not suffice.
#[derive(Debug, PartialEq)]
pub(super) struct ResourcePrices {
    /// sun per unit of energy.
    pub(super) energy: u64,
    /// sun per byte.
    pub(super) byte: u64,
}

pub(super) fn prices(found: &Value) -> Option<ResourcePrices> {
    let parameters = found.get("chainParameter")?.as_array()?;
    let price = |name: &str| {
        let mut parameters = parameters.iter();
        parameters
            .find(|parameter| parameter.get("key").and_then(Value::as_str) == Some(name))?
            .get("value")?
            .as_u64()
    };
    Some(ResourcePrices {
        energy: price("getEnergyFee")?,
        byte: price("getTransactionFee")?,
    })
}

/// What there is besides coins to pay for a call.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AvailableResources {
    /// The sender's energy.
    pub(super) energy: u64,
    /// The sender's bandwidth: a transaction takes all of it from one of the two kinds.
    pub(super) bandwidth: u64,
    /// The part of the energy that falls to the sender; the contract's owner gives the rest, as
    /// far as he has it.
    pub(super) percent: u64,
}

impl AvailableResources {
    pub(super) const COINS_ONLY: Self = Self {
        energy: 0,
        bandwidth: 0,
        percent: 100,
    };
}

/// An answer of getaccountresource, without what the contract's owner gives.
pub(super) fn available_resources(found: &Value) -> Option<AvailableResources> {
    let left =
        |limit: &str, used: &str| Some(number(found, limit)?.saturating_sub(number(found, used)?));
    let free = left("freeNetLimit", "freeNetUsed")?;
    Some(AvailableResources {
        energy: left("EnergyLimit", "EnergyUsed")?,
        bandwidth: free.max(left("NetLimit", "NetUsed")?),
        ..AvailableResources::COINS_ONLY
    })
}

/// sun that a call burns at least.
pub(super) fn burn_cost(
    energy: u64,
    bytes: u64,
    prices: &ResourcePrices,
    means: &AvailableResources,
) -> u64 {
    let own = energy.saturating_mul(means.percent.min(100)) / 100;
    let energy = own.saturating_sub(means.energy);
    let bytes = if means.bandwidth < bytes { bytes } else { 0 };
    energy
        .saturating_mul(prices.energy)
        .saturating_add(bytes.saturating_mul(prices.byte))
}

/// The limit bounds all the energy of the sender, also what is not burnt.
pub(super) fn check_fee_limit(
    trigger: &Trigger,
    energy: u64,
    prices: &ResourcePrices,
) -> Result<(), ChainError> {
    let (limit, most) = (trigger.fee_limit, energy.saturating_mul(prices.energy));
    if most <= limit {
        return Ok(());
    }
    Err(refused(
        format!(
            "the call needs {energy} energy, which is {most} sun, and feeLimit is {limit} sun: \
             it would fail and still cost that much"
        ),
        ExecuteCode::InsufficientGasFee,
    ))
}
