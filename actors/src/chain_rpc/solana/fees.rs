//! What a transfer computes, and what a unit of that costs now.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_core::networks::{
    FeeLevel,
    solana::{self, ComputeBudget, Queries, TransferSimulation, token::TokenChainData},
};
use serde_json::{Value, json};

use super::{
    super::{
        ChainError, FeeEstimate,
        fees::same_prices,
        jsonrpc::{RpcCall, RpcCallError},
    },
    COMMITMENT, SolanaNode,
};

/// Of the prices that the last blocks took, the one that so many percent of them did not exceed, by level.
const PERCENTILES: [usize; 3] = [10, 50, 90];
/// What a transfer of the coin computes: 150 units, and 150 for each of limit and price.
const TRANSFER_UNITS: u64 = 450;
/// Of JSON-RPC 2.0.
const METHOD_NOT_FOUND: i64 = -32601;
const LAMPORTS_PER_SIGNATURE: u128 = 5_000;
const MICRO_LAMPORTS_PER_LAMPORT: u128 = 1_000_000;
/// Micro-lamports per unit, below which prices do not differ for people: 0.00001 SOL for 100,000 units.
const SMALL_PRICE: u64 = 100_000;

impl SolanaNode {
    /// Limit and price of what a transfer computes, where they are asked for. `None` too where it cannot be
    /// built: building it says why.
    pub(super) async fn compute(
        &self,
        queries: &Queries,
        token: Option<&TokenChainData>,
    ) -> Result<Option<ComputeBudget>, ChainError> {
        let Some(wanted) = &queries.compute else {
            return Ok(None);
        };
        let Ok(trial) = solana::trial(queries, token) else {
            return Ok(None);
        };
        let (unit_limit, prices) = tokio::join!(
            self.unit_limit(&trial),
            self.priority_prices(&trial.writable, Some(wanted.level))
        );
        Ok(Some(ComputeBudget {
            unit_limit,
            unit_price: wanted.level.of(prices?),
        }))
    }

    /// A fifth more than what nodes say that the transfer takes, for what changes until a block has it: of as many as
    /// have to agree the highest, as a limit that is too low makes it fail. What its kind can take at most, where one
    /// of them does not say it.
    async fn unit_limit(&self, trial: &TransferSimulation) -> u32 {
        let options = json!({
            "encoding": "base64",
            "commitment": COMMITMENT,
            "sigVerify": false,
            "replaceRecentBlockhash": true,
        });
        let params = json!([STANDARD.encode(&trial.transaction), options]);
        let call = RpcCall("simulateTransaction", params);
        let answers = self.rpc.query_several_best_effort(call).await;
        let units = answers
            .iter()
            .map(|answer| units_consumed(answer.as_ref().ok()?));
        let limit = units
            .collect::<Option<Vec<u64>>>()
            .and_then(|units| units.into_iter().max())
            .and_then(|units| u32::try_from(units.saturating_add(units.div_ceil(5))).ok());
        limit
            .unwrap_or(u32::MAX)
            .clamp(trial.least_units, trial.most_units)
    }

    /// What transactions of the last blocks paid for a unit that wrote one of these accounts, or that were
    /// the cheapest of their block, in micro-lamports: slow, normal and fast. Nothing where nodes do not
    /// have the method. They have to agree on the price of the level, or on all.
    pub(super) async fn priority_prices(
        &self,
        writable: &[String],
        level: Option<FeeLevel>,
    ) -> Result<[u64; 3], ChainError> {
        let call = RpcCall("getRecentPrioritizationFees", json!([writable]));
        let same = same_prices(level, near);
        match self.rpc.query_quorum_by(call, prices, same).await {
            Ok(prices) => Ok(prices),
            Err(RpcCallError::Node(error)) if error.code == METHOD_NOT_FOUND => Ok([0; 3]),
            Err(error) => Err(error.into()),
        }
    }
}

/// What a price means for a transfer of the coin: one signature, and a fifth more than what it computes.
pub(super) fn estimate(price: u64) -> FeeEstimate {
    let units = TRANSFER_UNITS + TRANSFER_UNITS.div_ceil(5);
    let priority = u128::from(price) * u128::from(units);
    FeeEstimate {
        transfer_fee: LAMPORTS_PER_SIGNATURE + priority.div_ceil(MICRO_LAMPORTS_PER_LAMPORT),
        ..FeeEstimate::plain(price.into(), 0, 0)
    }
}

/// Reads simulateTransaction; `None` where the transfer does not pass, which says nothing of one that does.
fn units_consumed(answer: &Value) -> Option<u64> {
    let value = answer.get("value")?;
    let units = value.get("unitsConsumed")?.as_u64()?;
    (value.get("err")?.is_null() && units > 0).then_some(units)
}

/// Reads getRecentPrioritizationFees: a price for each of the last blocks.
fn prices(answer: &Value) -> Option<[u64; 3]> {
    let blocks = answer.as_array()?.iter();
    let prices = blocks.map(|block| block.get("prioritizationFee")?.as_u64());
    let mut prices = prices.collect::<Option<Vec<_>>>()?;
    prices.sort_unstable();
    let last = prices.len().saturating_sub(1);
    let at = |percent: usize| {
        prices
            .get(last * percent / 100)
            .copied()
            .unwrap_or_default()
    };
    Some(PERCENTILES.map(at))
}

/// Nodes are some blocks apart.
fn near(one: u64, other: u64) -> bool {
    let (low, high) = (one.min(other), one.max(other));
    high <= low.saturating_mul(4) || high - low <= SMALL_PRICE
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn prices__should_be_what_tenths_of_the_blocks_did_not_exceed() {
        let block = |price: u64| json!({"slot": 1, "prioritizationFee": price});
        let hundred: Vec<_> = (0..=100).rev().map(block).collect();
        assert_eq!(prices(&json!(hundred)), Some([10, 50, 90]));
        assert_eq!(prices(&json!([block(7)])), Some([7; 3]));
        assert_eq!(prices(&json!([block(0), block(u64::MAX)])), Some([0, 0, 0]));
        assert_eq!(prices(&json!([])), Some([0; 3]));
        for nonsense in [
            json!(null),
            json!([{"slot": 1}]),
            json!([{"prioritizationFee": "5"}]),
            json!([{"prioritizationFee": -5}]),
            json!([{"prioritizationFee": 1e30}]),
        ] {
            assert_eq!(prices(&nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn units_consumed__should_be_those_of_what_passes() {
        let answer = |error: Value, units: Value| {
            units_consumed(&json!({"value": {"err": error, "unitsConsumed": units}}))
        };
        assert_eq!(answer(Value::Null, json!(450)), Some(450));
        assert_eq!(answer(json!("AccountNotFound"), json!(450)), None);
        assert_eq!(answer(Value::Null, json!(0)), None);
        assert_eq!(answer(Value::Null, Value::Null), None);
        assert_eq!(
            units_consumed(&json!({"value": {"unitsConsumed": 450}})),
            None
        );
    }

    #[test]
    fn near__should_bear_what_nodes_differ_by() {
        assert!(near(0, SMALL_PRICE) && near(1_000_000, 4_000_000));
        assert!(!near(0, SMALL_PRICE + 1) && !near(1_000_000, 4_000_001));
        assert!(near(u64::MAX, u64::MAX));
    }
}
