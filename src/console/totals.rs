//! The totals of several requests together.

use std::collections::BTreeMap;

use covault_core::{amount::U256, networks::outflow::Asset};

use super::{
    text::Text,
    views::{RequestView, TotalView},
};

use crate::units::{in_decimals, in_units};

/// How many times the middle fee one is that is marked.
const HIGH: u128 = 10;
/// Fees on one chain below which there is no middle.
const FEW: usize = 3;

/// What leaves the wallets, by asset.
pub fn spends<'a>(requests: impl Iterator<Item = &'a RequestView>) -> Vec<TotalView> {
    let mut spends: BTreeMap<&Asset, U256> = BTreeMap::new();
    for (asset, sum) in requests.flat_map(|it| &it.sums) {
        let total = spends.entry(asset).or_default();
        *total = total.saturating_add(*sum);
    }
    let spends = spends.into_iter().map(|(asset, amount)| TotalView {
        what: Text::new(asset.to_string()),
        amount: in_units(asset, amount),
        smallest: amount.to_string(),
    });
    spends.collect()
}

/// How many of the requests may move more than [`spends`] has of them: calls of contracts that nobody here knows, typed
/// data, bytes.
pub fn unsummed<'a>(requests: impl Iterator<Item = &'a RequestView>) -> usize {
    requests.filter(|it| !it.caution.is_empty()).count()
}

/// The totals of [`spends`], and the highest fees that the fields have at first, by chain.
pub fn of(requests: &[RequestView]) -> Vec<TotalView> {
    let mut totals = spends(requests.iter());
    let mut fees: BTreeMap<&str, (U256, &str, usize)> = BTreeMap::new();
    for fee in requests.iter().filter_map(|it| it.fee.as_ref()) {
        let (total, _, _) = fees
            .entry(&fee.place)
            .or_insert((U256::ZERO, fee.unit, fee.decimals));
        *total = total.saturating_add(U256::from(fee.offered.unwrap_or_default()));
    }
    let fees = fees
        .into_iter()
        .filter(|(_, (total, ..))| *total > U256::ZERO);
    let fees = fees.map(|(place, (total, unit, decimals))| TotalView {
        what: Text::new(format!(
            "fees at most on {place}, as others have approved or as is offered here"
        )),
        amount: format!("{} {unit}", in_decimals(total, decimals)),
        smallest: total.to_string(),
    });
    totals.extend(fees);
    totals
}

/// Marks the fees that are far above the others of their chain: with many chosen, nobody reads each.
pub fn mark_high_fees(requests: &mut [RequestView]) {
    let mut of_chain: BTreeMap<String, Vec<u128>> = BTreeMap::new();
    for fee in requests.iter().filter_map(|it| it.fee.as_ref()) {
        if let Some(offered) = fee.offered {
            of_chain.entry(fee.place.clone()).or_default().push(offered);
        }
    }
    for fee in requests.iter_mut().filter_map(|it| it.fee.as_mut()) {
        let (Some(offered), Some(all)) = (fee.offered, of_chain.get_mut(&fee.place)) else {
            continue;
        };
        all.sort_unstable();
        let middle = all.get(all.len().saturating_sub(1) / 2).copied();
        fee.is_high =
            all.len() >= FEW && middle.is_some_and(|middle| offered > middle.saturating_mul(HIGH));
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::schema::wire;

    use super::*;
    use crate::console::{
        fee_estimates::{FeeView, FeeWork},
        requests::view,
    };

    fn with_fee(place: &str, offered: Option<u128>) -> RequestView {
        let mut shown = view(&wire::SigningRequest::default(), "", "", 0);
        shown.fee = Some(FeeView {
            unit: "ETH",
            decimals: 18,
            place: place.to_owned(),
            known: None,
            value: String::new(),
            is_high: false,
            work: FeeWork {
                chain: covault_core::networks::outflow::ChainScope::evm(1),
                payments: 1,
                other_calls: 0,
                is_transfer: true,
                is_unknown: false,
                gas: None,
                named: None,
            },
            estimate: String::new(),
            offered,
            is_far: false,
            exceeded: String::new(),
        });
        shown
    }

    #[test]
    fn requests__should_be_counted_that_may_move_more_than_the_sums() {
        let mut requests = [0, 1, 2].map(|_| with_fee("evm:1", None));
        assert_eq!(unsummed(requests.iter()), 0);
        requests[1].caution = "These bytes may be anything, a transaction too.";
        assert_eq!(unsummed(requests.iter()), 1);
    }

    #[test]
    fn totals__should_have_the_fees() {
        let ether = 1_000_000_000_000_000_000;
        let requests = [
            with_fee("evm:1", Some(ether)),
            with_fee("evm:1", Some(ether / 2)),
            with_fee("evm:10", Some(7)),
            with_fee("evm:56", None),
        ];
        let totals = of(&requests);
        let said: Vec<_> = totals
            .iter()
            .map(|it| (it.what.to_string(), it.amount.as_str()))
            .collect();
        assert_eq!(said.len(), 2);
        assert!(said[0].0.starts_with("fees at most on evm:1,"), "{said:?}");
        assert_eq!(
            (said[0].1, said[1].1),
            ("1.5 ETH", "0.000000000000000007 ETH")
        );
    }

    #[test]
    fn fee__should_be_marked_that_is_far_above_the_others() {
        let mut requests = [100, 110, 1_100, 101, 1_011].map(|fee| with_fee("evm:1", Some(fee)));
        mark_high_fees(&mut requests);
        let high = requests
            .each_ref()
            .map(|it| it.fee.as_ref().unwrap().is_high);
        assert_eq!(high, [false, false, false, false, false]);
        let mut requests = [100, 110, 1_101, 101, 5_000].map(|fee| with_fee("evm:1", Some(fee)));
        mark_high_fees(&mut requests);
        let high = requests
            .each_ref()
            .map(|it| it.fee.as_ref().unwrap().is_high);
        assert_eq!(high, [false, false, true, false, true]);
        let mut two = [1, 1_000].map(|fee| with_fee("evm:1", Some(fee)));
        mark_high_fees(&mut two);
        assert!(two.iter().all(|it| !it.fee.as_ref().unwrap().is_high));
    }
}
