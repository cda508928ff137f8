//! What transactions of an EVM chain pay: tips by level, and the price where there is no base fee.

use covault_core::networks::FeeLevel;
use serde_json::{Value, json};

use super::{
    super::{
        ChainError, FeeEstimate,
        fees::same_prices,
        jsonrpc::{RpcCall, RpcCallError, quantity},
    },
    EvmNode,
};

/// 3 gwei.
const SMALL_PRICE: u128 = 3_000_000_000;

/// How many blocks say which tips are paid.
const HISTORY: u64 = 20;
/// Of the gas of a block, cheapest first: slow, normal and fast.
const PERCENTILES: [u64; 3] = [10, 50, 90];
/// What a plain transfer takes.
const TRANSFER_GAS: u128 = 21_000;

/// Tips that the last blocks paid, in wei per unit of gas.
#[derive(Debug, PartialEq, Eq)]
struct PaidTips {
    /// Of what a tenth, half and nine tenths of the gas of a block did not exceed, the middle ones.
    levels: [u128; 3],
    /// The highest of what nine tenths of the gas of a block did not exceed.
    most: u128,
}

impl PaidTips {
    /// Reads eth_feeHistory with [`PERCENTILES`]; `None` when the answer makes no sense.
    fn read(history: &Value) -> Option<Self> {
        let blocks = history.get("reward")?.as_array()?;
        let of = |place: usize| -> Option<Vec<u128>> {
            let tips = blocks.iter().map(|block| quantity(block.get(place)?));
            let mut tips: Vec<_> = tips.collect::<Option<_>>()?;
            tips.sort_unstable();
            Some(tips)
        };
        let (low, middle, high) = (of(0)?, of(1)?, of(2)?);
        let half = |tips: &[u128]| tips.get(tips.len() / 2).copied();
        Some(Self {
            levels: [half(&low)?, half(&middle)?, half(&high)?],
            most: high.last().copied()?,
        })
    }
}

impl EvmNode {
    pub(super) async fn gas_price(&self) -> Result<u128, RpcCallError> {
        let call = RpcCall("eth_gasPrice", json!([]));
        self.rpc.query_quorum_by(call, quantity, near).await
    }

    /// What makes a block take a transaction, in wei per unit of gas on top of the base fee: slow, normal and
    /// fast. Normal is what the node advises, if blocks have paid such tips of late; else what they have paid;
    /// else its gas price less the base fee. The others are what blocks have paid. Nodes have to agree on what
    /// blocks have paid for the level, or for all.
    pub(super) async fn tips(
        &self,
        base_fee: u128,
        level: Option<FeeLevel>,
    ) -> Result<[u128; 3], ChainError> {
        let advised = RpcCall("eth_maxPriorityFeePerGas", json!([]));
        let advised = self.rpc.query_quorum_by(advised, quantity, near);
        let paid = RpcCall(
            "eth_feeHistory",
            json!([format!("{HISTORY:#x}"), "latest", PERCENTILES]),
        );
        let same = same_prices(level, |one, other| near(&one, &other));
        let paid = self
            .rpc
            .query_quorum_by(paid, PaidTips::read, |one, other| {
                same(&one.levels, &other.levels) && near(&one.most, &other.most)
            });
        let (normal, paid) = match tokio::join!(advised, paid) {
            (Ok(advised), Ok(paid)) => {
                let most = paid.most.saturating_mul(2).max(SMALL_PRICE);
                (advised.min(most), Some(paid))
            }
            (Ok(advised), Err(RpcCallError::Node(_))) => (advised, None),
            (Err(RpcCallError::Node(_)), Ok(paid)) => {
                (FeeLevel::Normal.of(paid.levels), Some(paid))
            }
            (Err(RpcCallError::Node(_)), Err(RpcCallError::Node(_))) => {
                (self.gas_price().await?.saturating_sub(base_fee), None)
            }
            (Err(error), _) | (_, Err(error)) => return Err(error.into()),
        };
        Ok(paid.map_or([normal; 3], |paid| {
            let [slow, _, fast] = paid.levels;
            [slow.min(normal), normal, fast.max(normal)]
        }))
    }

    /// What a transfer of the coin pays now: slow, normal and fast.
    pub(super) async fn estimates(&self) -> Result<[FeeEstimate; 3], ChainError> {
        let latest = self.latest().await?;
        let Some(base_fee) = latest.base_fee else {
            let price = self.gas_price().await?;
            return Ok([FeeEstimate::plain(price, TRANSFER_GAS, 0); 3]);
        };
        let tips = self.tips(base_fee, None).await?;
        Ok(tips.map(|tip| FeeEstimate {
            most_price: base_fee.saturating_mul(2).saturating_add(tip),
            priority_price: Some(tip),
            ..FeeEstimate::plain(base_fee.saturating_add(tip), TRANSFER_GAS, 0)
        }))
    }
}

/// Whether two prices are those of one moment, as nodes with other transactions in their pools
/// see it. Small tips differ by more, and cost nothing.
pub(super) fn near(one: &u128, other: &u128) -> bool {
    let (low, high) = (one.min(other), one.max(other));
    *high <= low.saturating_mul(4) || high - low <= SMALL_PRICE
}
