//! What transactions may cost by what the nodes of their chains ask for now, so that nobody types the highest fee blind. It
//! is this service's word: pages say so.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use covault_actors::{operations::EstimateFee, users::SignedIn};
use covault_core::{
    amount::{U256, parse_u256},
    networks::{
        Network, Payload,
        evm::{EvmAction, EvmPayload},
        outflow::{ChainScope, Outflow},
    },
    schema::wire,
};
use futures::{StreamExt as _, stream};

use super::ConsoleCall;
use crate::units::{coins, in_decimals};

/// How long a page waits for its chains.
const PATIENCE: Duration = Duration::from_secs(2);
/// Chains that are asked at once.
const AT_ONCE: usize = 8;
/// How many times what it may cost is offered as the highest fee: prices rise while people take their time.
const MARGIN: u64 = 2;
/// How many times what it may cost a fee is that a person must have meant.
const FAR: u64 = 10;
/// Gas of a call of a contract: what it takes at most for a payment, and beside them. An allowance takes the latter, too.
const ROW_GAS: u64 = 40_000;
const CALL_GAS: u64 = 60_000;
/// Weight of a Bitcoin payment in vbytes: of an output, and of everything else with three inputs.
const OUTPUT_VBYTES: u64 = 43;
const OTHER_VBYTES: u64 = 300;

/// What the nodes of chains ask for.
pub type FeeEstimates = HashMap<ChainScope, wire::FeeEstimate>;

/// What of a transaction makes its fee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeeWork {
    /// Its chain.
    pub chain: ChainScope,
    /// How many it pays.
    pub payments: u64,
    /// How many other calls of contracts come with it.
    pub other_calls: u64,
    /// It pays coins to one account, and does nothing else.
    pub is_transfer: bool,
    /// What it costs depends on more than is known here: on what tokens need on their chain.
    pub is_unknown: bool,
    /// Units of gas, where the request names them.
    pub gas: Option<u64>,
    /// The highest price that the request names, if it does, times its gas: what it pays is never more.
    pub named: Option<u128>,
}

impl FeeWork {
    /// That of a payload; `listed`: how many payments are read from its call of a contract.
    pub fn of(payload: &Payload, outflow: &Outflow, listed: usize) -> Self {
        let payments = outflow.spends.len().max(listed).max(1);
        let mut work = Self {
            chain: outflow.place,
            payments: payments.try_into().unwrap_or(u64::MAX),
            other_calls: 0,
            is_transfer: payments == 1,
            is_unknown: outflow.spends.iter().any(|it| it.asset.token.is_some()),
            gas: None,
            named: None,
        };
        if let Payload::Evm(EvmPayload::Transaction(transaction)) = payload {
            work.is_transfer = matches!(transaction.action, EvmAction::SendNative { .. });
            work.is_unknown = false;
            let gas = transaction.gas.as_ref();
            work.gas = gas.and_then(|gas| gas.gas_limit);
            let price = gas.and_then(|gas| gas.max_fee);
            let named = price.zip(work.gas);
            work.named = named.and_then(|(price, gas)| price.checked_mul(gas.into()));
        }
        work
    }

    /// What it may cost at what the nodes of its chain ask for, in the coin's smallest unit.
    pub fn cost(&self, estimates: &FeeEstimates) -> Option<U256> {
        let usual = self.usual(estimates)?;
        let price = parse_u256(&estimates.get(&self.chain)?.most_price).ok()?;
        Some(match (self.chain.network, self.gas) {
            (Network::Evm, Some(gas)) => times(price, gas),
            _ => usual,
        })
    }

    /// What such a transaction mostly costs, whatever gas the request names: the requester has no say in it.
    fn usual(&self, estimates: &FeeEstimates) -> Option<U256> {
        if self.is_unknown {
            return None;
        }
        let asked = estimates.get(&self.chain)?;
        let price = parse_u256(&asked.most_price).ok()?;
        let transfer = parse_u256(&asked.transfer_fee).ok()?;
        Some(match self.chain.network {
            Network::Evm if self.is_transfer => transfer,
            Network::Evm => {
                let calls = CALL_GAS.saturating_mul(self.other_calls.saturating_add(1));
                times(
                    price,
                    self.payments.saturating_mul(ROW_GAS).saturating_add(calls),
                )
            }
            Network::Bitcoin => {
                let outputs = self.payments.saturating_mul(OUTPUT_VBYTES);
                times(price, outputs.saturating_add(OTHER_VBYTES))
            }
            _ if self.is_transfer => transfer,
            _ => times(transfer, self.payments.saturating_add(1)),
        })
    }

    /// What such a transaction mostly costs, where the gas that the request names makes it far more.
    fn exceeded(&self, estimates: &FeeEstimates) -> Option<U256> {
        let usual = self.usual(estimates)?;
        (self.cost(estimates)? > times(usual, FAR)).then_some(usual)
    }

    /// What a fee is compared with: what it may cost, but not for gas that is far too much.
    pub fn credible_cost(&self, estimates: &FeeEstimates) -> Option<U256> {
        self.exceeded(estimates).or_else(|| self.cost(estimates))
    }

    /// The highest fee that is offered to a person: what the request names, or what it may cost with a margin. Never far above
    /// what is usual, and nothing where nobody says that: who asks for a signature must not choose what people approve unread.
    pub fn offered(&self, estimates: &FeeEstimates) -> Option<u128> {
        let (usual, cost) = (self.usual(estimates)?, self.cost(estimates)?);
        let most = u128::try_from(times(usual.min(cost), FAR)).ok()?;
        // Elsewhere a transaction may cost more than it does mostly: when it opens an account, say.
        let is_offered = matches!(self.chain.network, Network::Evm | Network::Bitcoin);
        match self.named {
            _ if self.exceeded(estimates).is_some() => None,
            Some(named) if named <= most => Some(named),
            _ if is_offered => Some(rounded_up(times(cost, MARGIN))?.min(most)),
            _ => None,
        }
    }
}

fn times(amount: U256, number: u64) -> U256 {
    amount.saturating_mul(U256::from(number))
}

/// The highest fee that is asked for.
pub struct FeeView {
    pub unit: &'static str,
    pub decimals: usize,
    /// Whose coin it is: `evm:1`.
    pub place: String,
    /// What others have approved, in the smallest unit.
    pub known: Option<u128>,
    /// What is offered is far above that of the other requests of the page.
    pub is_high: bool,
    /// What others have approved, in coins; empty without any.
    pub value: String,
    /// What makes it.
    pub work: FeeWork,
    /// What it may cost now, in coins; empty where the chain's nodes do not say.
    pub estimate: String,
    /// The highest fee that the field has at first, in the smallest unit; `None`: the person has to know it.
    pub offered: Option<u128>,
    /// What others have approved is far above what it may cost.
    pub is_far: bool,
    /// What is usual, in coins, where the gas that the request names makes it far more; empty elsewhere.
    pub exceeded: String,
}

impl FeeView {
    /// Adds what the nodes of its chain ask for, and what that says of what others have approved.
    pub fn compare(&mut self, asked: &FeeEstimates) {
        let in_coins = |cost: Option<U256>| cost.map(|cost| in_decimals(cost, self.decimals));
        let cost = self.work.credible_cost(asked);
        let offered = self.work.offered(asked);
        self.estimate = in_coins(self.work.cost(asked)).unwrap_or_default();
        self.exceeded = in_coins(self.work.exceeded(asked)).unwrap_or_default();
        self.is_far = self.known.is_some_and(|known| is_far(known, cost));
        // What others name is not taken over where it is far too much.
        self.offered = self.known.filter(|_| !self.is_far).or(offered);
    }

    /// What the field has at first, in coins.
    pub fn field(&self) -> String {
        self.offered
            .map_or(String::new(), |fee| coins(fee, self.decimals))
    }
}

/// Whether a fee is far above what the transaction may cost; not where nobody knows that.
pub fn is_far(fee: u128, cost: Option<U256>) -> bool {
    cost.is_some_and(|cost| U256::from(fee) > times(cost, FAR))
}

/// With two digits, and zeros behind them.
fn rounded_up(amount: U256) -> Option<u128> {
    let amount = u128::try_from(amount).ok()?;
    let mut unit = 1_u128;
    while amount.checked_div(unit).is_some_and(|digits| digits >= 100) {
        unit = unit.saturating_mul(10);
    }
    Some(amount.div_ceil(unit).saturating_mul(unit))
}

/// Asks the nodes of these chains, all of them for [`PATIENCE`] together. Those that do not answer are left out.
pub async fn ask(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    chains: impl Iterator<Item = ChainScope>,
) -> FeeEstimates {
    let chains: BTreeSet<_> = chains.collect();
    let mut each = Vec::new();
    for chain in chains {
        each.push(async move {
            let request = wire::EstimateFeeRequest {
                network_type: chain.network.to_wire().into(),
                chain_id: chain.chain_id.and_then(|id| id.try_into().ok()),
            };
            let said = call.operation::<EstimateFee>(signed_in, &request).await;
            Some((chain, said.ok()?.normal?))
        });
    }
    let end = tokio::time::Instant::now() + PATIENCE;
    let mut each = stream::iter(each).buffer_unordered(AT_ONCE);
    let mut found = FeeEstimates::new();
    while let Ok(Some(one)) = tokio::time::timeout_at(end, each.next()).await {
        found.extend(one);
    }
    found
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn asked(price: u64) -> FeeEstimates {
        let estimate = wire::FeeEstimate {
            most_price: price.to_string(),
            transfer_fee: (price * 21_000).to_string(),
            ..Default::default()
        };
        FeeEstimates::from([(ChainScope::evm(1), estimate)])
    }

    fn work() -> FeeWork {
        FeeWork {
            chain: ChainScope::evm(1),
            payments: 1,
            other_calls: 0,
            is_transfer: true,
            is_unknown: false,
            gas: None,
            named: None,
        }
    }

    #[test]
    fn offered_fee__should_have_a_margin_and_be_what_the_request_names_unless_that_is_far_above() {
        let asked = asked(1_000);
        assert_eq!(work().cost(&asked), Some(U256::from(21_000_000)));
        assert_eq!(work().offered(&asked), Some(42_000_000));
        let named = |named| FeeWork {
            named: Some(named),
            ..work()
        };
        assert_eq!(named(7).offered(&asked), Some(7));
        assert_eq!(named(210_000_000).offered(&asked), Some(210_000_000));
        assert_eq!(named(210_000_001).offered(&asked), Some(42_000_000));
        // Nobody says what it may cost: nothing stands beside what the requester would choose.
        let silent = FeeEstimates::new();
        for work in [work(), named(7), named(1_000_000_000_000_000_000)] {
            assert_eq!(work.offered(&silent), None);
        }
        assert!(!is_far(u128::MAX, None));
    }

    #[test]
    fn named_gas__should_raise_what_is_offered_ten_times_at_most() {
        let asked = asked(1_000);
        let gas = |gas, named, is_transfer| FeeWork {
            gas: Some(gas),
            named,
            is_transfer,
            ..work()
        };
        let usual = work().cost(&asked).unwrap();
        assert_eq!(gas(50_000, None, true).offered(&asked), Some(100_000_000));
        // More than it needs of what is usual with the margin, and not more than ten times.
        assert_eq!(gas(210_000, None, true).offered(&asked), Some(210_000_000));
        let named = Some(210_000_001);
        assert_eq!(gas(50_000, named, true).offered(&asked), Some(100_000_000));
        assert_eq!(gas(5, Some(51_000), true).offered(&asked), Some(10_000));
        for (limit, is_transfer) in [(210_001, true), (30_000_000, true), (1_000_001, false)] {
            for named in [None, Some(7), Some(u128::MAX)] {
                let work = gas(limit, named, is_transfer);
                assert_eq!(work.offered(&asked), None, "{limit}");
            }
        }
        let greedy = gas(30_000_000, None, true);
        assert_eq!(greedy.cost(&asked), Some(U256::from(30_000_000_000_u64)));
        assert_eq!(greedy.credible_cost(&asked), Some(usual));
        assert!(is_far(60_000_000_000, greedy.credible_cost(&asked)));
        assert_eq!(gas(u64::MAX, None, true).credible_cost(&asked), Some(usual));
    }

    #[test]
    fn cost__should_grow_with_payments_and_be_of_the_gas_that_is_named() {
        let asked = asked(10);
        let of = |payments, gas| {
            let work = FeeWork {
                payments,
                gas,
                is_transfer: false,
                ..work()
            };
            work.cost(&asked).unwrap()
        };
        assert_eq!(of(1, None), U256::from(1_000_000));
        assert_eq!(of(254, None), U256::from(102_200_000));
        assert_eq!(of(254, Some(5)), U256::from(50));
    }

    #[test]
    fn rounded_up__should_keep_two_digits() {
        for (amount, rounded) in [(0_u64, 0), (7, 7), (99, 99), (101, 110), (12_345, 13_000)] {
            assert_eq!(rounded_up(U256::from(amount)), Some(rounded));
        }
        assert_eq!(rounded_up(U256::MAX), None);
    }
}
