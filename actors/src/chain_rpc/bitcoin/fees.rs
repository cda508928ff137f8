//! Fees as nodes report them: rates by level, and the fees of transactions that another one depends on or
//! replaces.

use std::collections::BTreeSet;

use covault_core::networks::bitcoin::{Ancestors, ReplacedFees};
use serde_json::{Value, json};

use super::{
    BitcoinNode,
    batch::{BitcoinRpcResult, RpcBatch},
    found_in, satoshi,
};
use crate::chain_rpc::{ChainCall as _, ChainError, FeeEstimate, exchange::ParsedResponse};

/// Blocks until a transaction is wanted in one: slow, normal, fast.
const TARGETS: [u64; 3] = [24, 6, 2];
/// Rates that differ by less, in satoshi per 1,000 virtual bytes, are those of one moment.
const SMALL_RATE: u64 = 2_000;

/// What a payment of one input to a recipient, with change, takes, in virtual bytes: all of them P2WPKH.
const PAYMENT_VBYTES: u64 = 141;

/// What a rate, in satoshi per 1,000 virtual bytes, means for a payment. Prices are in whole satoshi per virtual
/// byte, rounded up.
pub(super) fn estimate(rate: u64) -> FeeEstimate {
    let fee = rate.saturating_mul(PAYMENT_VBYTES).div_ceil(1_000);
    FeeEstimate::plain(rate.div_ceil(1_000).into(), 0, fee.into())
}

impl BitcoinNode {
    /// The fee rates with which transactions come into a block slowly (24 blocks), normally (6) and fast (2), in
    /// satoshi per 1,000 virtual bytes: `estimatesmartfee`, and never below what the mempool takes now. That alone
    /// where a node has not seen enough blocks to estimate.
    ///
    /// # Errors
    /// When the nodes do not answer, or do not agree about it.
    pub(in crate::chain_rpc) async fn fee_rates(&self) -> Result<[u64; 3], ChainError> {
        let ask = RpcBatch::node()
            .each(TARGETS, "estimatesmartfee", |target| json!([target]))
            .and("getmempoolinfo", json!([]));
        let rates = ask
            .about("fee rates")
            .reading(|said| found_in(said, read_rates(said)));
        let same = |one: &[u64; 3], other: &[u64; 3]| {
            one.iter().zip(other).all(|(one, other)| near(*one, *other))
        };
        Ok(self.rpc.quorum(rates, same).await?)
    }

    /// All that is in no block and has to come into one with or before what spends outputs of the transactions
    /// `txids`, these among them, which are in no block either.
    ///
    /// # Errors
    /// When the nodes do not answer, do not agree, or do not have one of them.
    pub(super) async fn ancestors(
        &self,
        txids: &BTreeSet<&str>,
    ) -> Result<Option<Ancestors>, ChainError> {
        if txids.is_empty() {
            return Ok(None);
        }
        let ask = RpcBatch::node()
            .each(txids, "getmempoolentry", |txid| json!([txid]))
            .each(txids, "getmempoolancestors", |txid| json!([txid, true]));
        let found = ask.about("transactions that wait").reading(|said| {
            let (own, before) = said.split_at(txids.len().min(said.len()));
            match read_ancestors(txids, own, before) {
                Some(found) => ParsedResponse::Value(found),
                // It has come into a block, or the node has not heard of it.
                None => ParsedResponse::Busy(
                    "the node does not have a transaction that makes a named input".into(),
                ),
            }
        });
        Ok(Some(self.rpc.quorum(found, Ancestors::eq).await?))
    }

    /// What the transactions in the mempool pay that spend `inputs` (`txid:vout`), with all that spends their
    /// outputs. `None` where there are none, or the nodes do not agree: mempools differ, and what the service has
    /// sent itself it knows.
    pub(super) async fn replaced(&self, inputs: &[(String, u32)]) -> Option<ReplacedFees> {
        let outputs: Vec<Value> = inputs
            .iter()
            .map(|(txid, vout)| json!({"txid": txid, "vout": vout}))
            .collect();
        let what = "transactions to be replaced";
        let ask = RpcBatch::node().and("gettxspendingprevout", json!([outputs]));
        let ask = ask
            .about(what)
            .reading(|said| found_in(said, spenders(said)));
        let spenders = self.rpc.quorum(ask, BTreeSet::eq).await.ok();
        let spenders = spenders.filter(|found| !found.is_empty())?;
        let ask = RpcBatch::node().each(&spenders, "getmempoolentry", |txid| json!([txid]));
        let ask = ask
            .about(what)
            .reading(|said| found_in(said, read_replaced(said)));
        self.rpc.quorum(ask, ReplacedFees::eq).await.ok()
    }
}

/// Whether two rates are those of one moment, as nodes with other transactions in their mempools see it.
fn near(one: u64, other: u64) -> bool {
    let (low, high) = (one.min(other), one.max(other));
    high <= low.saturating_mul(4) || high - low <= SMALL_RATE
}

fn read_rates(said: &[BitcoinRpcResult]) -> Option<[u64; 3]> {
    let [slow, normal, fast, Ok(mempool)] = said else {
        return None;
    };
    let of_mempool = |name| mempool.get(name).and_then(satoshi);
    let floor = of_mempool("mempoolminfee")?.max(of_mempool("minrelaytxfee")?);
    let rate = |said: &BitcoinRpcResult, least: u64| {
        let estimate = said.as_ref().ok()?.get("feerate").and_then(satoshi);
        Some(estimate.unwrap_or_default().max(least))
    };
    let slow = rate(slow, floor)?;
    let normal = rate(normal, slow)?;
    Some([slow, normal, rate(fast, normal)?])
}

/// Size and fees of all of them, each once.
fn read_ancestors(
    txids: &BTreeSet<&str>,
    own: &[BitcoinRpcResult],
    before: &[BitcoinRpcResult],
) -> Option<Ancestors> {
    let mut counted: BTreeSet<&str> = BTreeSet::new();
    let mut all = Ancestors { vsize: 0, fees: 0 };
    let mut count = |entry: &Value| {
        let (vsize, fees) = size_and_fee(entry)?;
        all.vsize = all.vsize.checked_add(vsize)?;
        all.fees = all.fees.checked_add(fees)?;
        Some(())
    };
    for (txid, own) in txids.iter().zip(own) {
        let own = own.as_ref().ok()?;
        if counted.insert(*txid) {
            count(own)?;
        }
    }
    for before in before {
        for (txid, entry) in before.as_ref().ok()?.as_object()? {
            if counted.insert(txid.as_str()) {
                count(entry)?;
            }
        }
    }
    (own.len() == txids.len() && before.len() == txids.len()).then_some(all)
}

/// Of a mempool's entry: virtual bytes and satoshi.
fn size_and_fee(entry: &Value) -> Option<(u64, u64)> {
    let vsize = entry.get("vsize")?.as_u64().filter(|vsize| *vsize > 0)?;
    Some((vsize, satoshi(entry.pointer("/fees/base")?)?))
}

/// The transactions that spend some outputs.
fn spenders(said: &[BitcoinRpcResult]) -> Option<BTreeSet<String>> {
    let [Ok(outputs)] = said else {
        return None;
    };
    let spender = |output: &Value| match output.get("spendingtxid") {
        None => Some(None),
        Some(txid) => Some(Some(txid.as_str()?.to_owned())),
    };
    let spenders: Option<Vec<_>> = outputs.as_array()?.iter().map(spender).collect();
    Some(spenders?.into_iter().flatten().collect())
}

fn read_replaced(said: &[BitcoinRpcResult]) -> Option<ReplacedFees> {
    let mut all = ReplacedFees { fees: 0, rate: 0 };
    for entry in said {
        let entry = entry.as_ref().ok()?;
        let (vsize, fee) = size_and_fee(entry)?;
        let with_later = satoshi(entry.pointer("/fees/descendant")?)?;
        all.fees = all.fees.checked_add(with_later.max(fee))?;
        all.rate = all.rate.max(fee.checked_mul(1_000)?.div_ceil(vsize));
    }
    Some(all)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn rates(estimates: [Value; 3], mempool: Value) -> Option<[u64; 3]> {
        let said = estimates.into_iter().chain([mempool]).map(Ok);
        read_rates(&said.collect::<Vec<_>>())
    }

    fn mempool() -> Value {
        json!({"mempoolminfee": 0.00001, "minrelaytxfee": 1.1e-5})
    }

    #[test]
    fn fee_rates__should_be_estimates_and_never_below_what_the_mempool_takes() {
        let estimate = |coins: f64| json!({"feerate": coins, "blocks": 2});
        let none = || json!({"errors": ["Insufficient data or no feerate found"], "blocks": 0});
        for (estimates, expected) in [
            (
                [estimate(0.00002), estimate(0.00003), estimate(0.00012345)],
                [2_000, 3_000, 12_345],
            ),
            ([none(), none(), none()], [1_100; 3]),
            // Sooner never costs less.
            ([estimate(0.00003), none(), estimate(0.00002)], [3_000; 3]),
            (
                [estimate(0.000_000_1), none(), estimate(0.00002)],
                [1_100, 1_100, 2_000],
            ),
        ] {
            assert_eq!(rates(estimates, mempool()), Some(expected));
        }
        assert_eq!(rates([none(), none(), none()], json!({})), None);
        assert_eq!(
            rates([none(), none(), json!({"feerate": 1})], mempool()),
            Some([1_100, 1_100, 100_000_000])
        );
    }

    #[test]
    fn estimate__should_be_of_a_payment_with_change() {
        let estimate = |rate| {
            let FeeEstimate {
                price,
                most_price,
                priority_price,
                transfer_fee,
            } = estimate(rate);
            assert_eq!((most_price, priority_price), (price, None));
            (price, transfer_fee)
        };
        assert_eq!(estimate(1_000), (1, 141));
        assert_eq!(estimate(12_345), (13, 1_741));
        assert_eq!(estimate(0), (0, 0));
        assert!(estimate(u64::MAX).0 > 2_000);
    }

    #[test]
    fn rates_of_two_nodes__should_be_those_of_one_moment() {
        for (one, other, same) in [
            (1_000, 3_000, true),
            (10_000, 40_000, true),
            (10_000, 40_001, false),
            (1_000, 100_000, false),
        ] {
            assert_eq!(near(one, other), same);
            assert_eq!(near(other, one), same);
        }
    }

    #[test]
    fn ancestors__should_be_counted_once() {
        let entry = |vsize: u64, coins: f64| json!({"vsize": vsize, "fees": {"base": coins}});
        let (a, b, c) = ("aa", "bb", "cc");
        let own = [Ok(entry(100, 0.000001)), Ok(entry(200, 0.000002))];
        let before = [
            Ok(json!({c: entry(300, 0.000003)})),
            Ok(json!({c: entry(300, 0.000003), a: entry(100, 0.000001)})),
        ];
        let txids = BTreeSet::from([a, b]);
        let all = Ancestors {
            vsize: 600,
            fees: 600,
        };
        assert_eq!(read_ancestors(&txids, &own, &before), Some(all));
        assert_eq!(read_ancestors(&txids, &own[..1], &before), None);
        assert_eq!(read_ancestors(&txids, &own, &[]), None);
        let huge = [
            Ok(json!({"vsize": u64::MAX, "fees": {"base": 0}})),
            own[1].clone(),
        ];
        assert_eq!(read_ancestors(&txids, &huge, &before), None);
    }

    #[test]
    fn replaced__should_count_what_hangs_on_it() {
        let entry = |vsize: u64, base: f64, descendant: f64| {
            Ok(json!({"vsize": vsize, "fees": {"base": base, "descendant": descendant}}))
        };
        let said = [
            entry(100, 0.000001, 0.00001),
            entry(300, 0.000009, 0.000009),
        ];
        let all = ReplacedFees {
            fees: 1_000 + 900,
            rate: 3_000,
        };
        assert_eq!(read_replaced(&said), Some(all));
        let list = json!([
            {"txid": "aa", "vout": 0, "spendingtxid": "cc"},
            {"txid": "aa", "vout": 1},
            {"txid": "bb", "vout": 0, "spendingtxid": "cc"},
        ]);
        assert_eq!(
            spenders(&[Ok(list)]),
            Some(BTreeSet::from(["cc".to_owned()]))
        );
        assert_eq!(spenders(&[Ok(json!([{"spendingtxid": 1}]))]), None);
    }
}
