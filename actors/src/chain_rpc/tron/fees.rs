//! What a call burns, and what there is besides coins to pay for it.

use covault_core::{
    fault::ExecuteCode,
    networks::{
        DynNetworkRules as _, Payload, Queries,
        tron::{Queries as TronQueries, Tron, TronAction, TronCall as Trigger},
    },
};
use serde_json::{Value, json};

use super::{
    CALL_BYTES, TronNode, account, http::post, is_account, is_empty, number, parameters,
    refusals::refused, trial, tried,
};
use crate::chain_rpc::{ChainError, TransferBurn, client::ChainCall as _};

/// Bytes that a transfer of TRX counts with at most.
const MOST_TRANSFER_BYTES: u64 = 280;
/// sun for a recipient that is not there: 1 TRX for the account and 0.1 TRX in place of its bytes.
const ACTIVATION_SUN: u64 = 1_100_000;

impl TronNode {
    /// What a transfer burns of its sender's TRX. The sender's own energy counts where it is enough for all of the call,
    /// its bandwidth likewise, as on the chain.
    pub(super) async fn burn_of(&self, payload: &Payload) -> Result<TransferBurn, ChainError> {
        let Payload::Tron(transfer) = payload else {
            return Err(refused(
                "not a Tron transfer".into(),
                ExecuteCode::Unspecified,
            ));
        };
        let prices = self.http.query_quorum(parameters(), prices).await?;
        let (energy, bytes) = match Tron.queries(payload) {
            Queries::Tron(TronQueries { call: Some(call) }) => {
                let data = u64::try_from(call.data.len()).unwrap_or(u64::MAX);
                (
                    self.energy_of(&call).await?,
                    CALL_BYTES.saturating_add(data),
                )
            }
            _ => (0, MOST_TRANSFER_BYTES),
        };
        let resources = json!({"address": transfer.from, "visible": true});
        let resources = post("getaccountresource", resources).about("resources");
        let enough = |found: &Value| {
            // Of an account that is not there nothing is said.
            let means = available_resources(found)?;
            Some((means.energy >= energy, means.bandwidth >= bytes))
        };
        let (has_energy, has_bytes) = self.http.query_quorum(resources, enough).await?;
        let burnt = |bytes: u64| bytes.saturating_mul(prices.byte);
        let on_top = match &transfer.action {
            TronAction::SendNative { to, .. } if !self.is_there(&to.to_string()).await? => {
                ACTIVATION_SUN.max(burnt(bytes))
            }
            _ if has_bytes => 0,
            _ => burnt(bytes),
        };
        Ok(TransferBurn {
            energy,
            burnt_energy: if has_energy { 0 } else { energy },
            energy_price: prices.energy,
            on_top,
        })
    }

    async fn energy_of(&self, call: &Trigger) -> Result<u64, ChainError> {
        let trial = trial(call).about("a call").reading(tried);
        match self.http.quorum(trial, PartialEq::eq).await? {
            Ok(tried) => Ok(tried.energy),
            Err(words) => Err(self.failure_reason(call, &words).await),
        }
    }

    /// Whether an account is activated.
    async fn is_there(&self, address: &str) -> Result<bool, ChainError> {
        let is_there = |found: &Value| is_account(found).then(|| !is_empty(found));
        let account = account(address).about("an account");
        Ok(self.http.query_quorum(account, is_there).await?)
    }
}

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
