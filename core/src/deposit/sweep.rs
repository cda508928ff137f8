//! The sweep of one deposit wallet: what it waits for, and what may be sent next.
//!
//! ```text
//! Due -> Funding -> Funded -> Moving -> Swept        (a token whose wallet has no coin for the fee)
//! Due -> Moving -> Swept                             (the coin, or a wallet that can pay the fee)
//! Due | Funded -> Paused -> Due | Funded             (something must change first)
//! Funding | Moving -> Paused -> Due | Funded         (what was sent can never do what it was to do)
//! Due | Funded -> Gone                               (something else has sent it away)
//! ```
//! What costs a fee and moves nothing is tried a few times ([`MOST_FAILURES`]); then a person has to look.
//! One sweep moves one coin or token once: the next request of a step is legal only when the last one is known to have
//! moved nothing. A wallet is topped up once until a token of it was swept, whichever that is: one that
//! cannot move leaves its place, and the coin that was sent for its fee, to the next. `Swept` and `Gone` are the end; what
//! comes later is another sweep.

use std::{fmt, time::Duration};

use alloy_primitives::{U256, U512};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{
    SweepRetries,
    transfer::{Account, FollowedChain},
};
use crate::{
    backoff::Backoff,
    fault::Fault,
    ids::{DerivedFrom, RequestId},
};

/// Separates these hashes from all others.
const DOMAIN: &[u8] = b"covault sweep request 1\0";
/// The pauses before something is tried again.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(60), Duration::from_secs(3_600));
/// How often a token that was topped up is paused before the wallet's coin may go first, and what is left of the top-up
/// with it: a quarter of an hour.
const PAUSES_BEFORE_COIN: u32 = 4;
/// How many transactions of a wallet may fail on the chain for one coin or token, each of which costs a fee: after so many
/// nothing of it is sent until a person says so.
pub const MOST_FAILURES: u32 = 3;
/// How much of a reason is kept, in characters.
const REASON_CHARS: usize = 200;

/// One sweep of a deposit wallet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepJob {
    /// Which sweep of the wallet on this chain it is, from 1 on.
    pub number: u64,
    /// The token that is moved; `None`: the coin.
    pub asset: Option<Account>,
    /// When it began, in milliseconds since the Unix epoch.
    pub began_at_ms: u64,
    /// How many requests were made for it.
    pub requests: u32,
    /// What the wallet was topped up with since a token of it was last swept; `None`: it was not.
    pub top_up: Option<TopUp>,
    /// How much the last top-up would have been that never came, in the smallest unit, big-endian: the next one is the same
    /// where it is still enough, so that the two are known for one payment.
    pub lost_top_up: Option<[u8; 32]>,
    /// When its present state began, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// When it was first paused, in milliseconds since the Unix epoch.
    pub blocked_since_ms: Option<u64>,
    /// How often it was paused: each pause is longer than the one before.
    pub pauses: u32,
    /// When the wallet's present round began, in milliseconds since the Unix epoch.
    pub round_since_ms: u64,
    /// What was swept of the wallet in this round.
    pub swept: Vec<Option<Account>>,
    /// What has cost fees and moved nothing, by coin or token, since each was last swept.
    pub failures: Vec<AssetFailures>,
    /// Where it stands.
    pub state: SweepState,
}

/// Transactions for a coin or token that have cost a fee and moved nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssetFailures {
    /// The token; `None`: the coin.
    pub asset: Option<Account>,
    /// How many.
    pub count: u32,
    /// Why the last one has failed, in words for people.
    pub reason: String,
    /// When that was found, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The last of [`SweepRetries`] by then.
    pub after: u64,
}

impl AssetFailures {
    /// Whether nothing more of it is sent until a person says so.
    pub fn is_held(&self) -> bool {
        self.count >= MOST_FAILURES
    }
}

/// Coin that the gas wallet has sent, or sends, to a deposit wallet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopUp {
    /// The request that sends it.
    pub request: RequestId,
    /// How much, in the smallest unit, big-endian.
    pub amount: [u8; 32],
    /// What it was to let move; `None`: the coin.
    pub asset: Option<Account>,
}

/// Where a sweep stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SweepState {
    /// There is something to move.
    Due,
    /// Coin for the fee is on its way from the gas wallet.
    Funding {
        /// The request that sends it.
        request: RequestId,
    },
    /// The coin for the fee has arrived.
    Funded,
    /// What there is is on its way to the target.
    Moving {
        /// The request that sends it.
        request: RequestId,
        /// How much, in the smallest unit, big-endian.
        amount: [u8; 32],
    },
    /// It is at the target for good.
    Swept {
        /// How much, in the smallest unit, big-endian.
        amount: [u8; 32],
    },
    /// Something must change first; it continues by itself.
    Paused {
        /// What.
        reason: PauseReason,
        /// When it is looked at again, in milliseconds since the Unix epoch.
        retry_at_ms: u64,
    },
    /// Nothing is left to move: something else has sent it away.
    Gone,
}

/// Why a sweep is paused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PauseReason {
    /// A unit of gas costs more than the most that is allowed.
    GasPrice {
        /// What it costs now, in the smallest unit of the coin.
        price: u128,
    },
    /// The fee would be too large a part of what is moved.
    Cost,
    /// The gas wallet cannot pay the top-up.
    GasWalletEmpty,
    /// The coin in the wallet is not enough for the fee now, and it was topped up already.
    GasTooLow,
    /// The balance is lower than the transfers explain: a person has to check it.
    Unexplained,
    /// A request ended without having moved anything; why.
    RequestFailed(String),
    /// The request could not be made, or the nodes do not answer; why.
    Unavailable(String),
    /// The top-up would be larger than the most that is allowed.
    TopUpTooLarge {
        /// How much would be needed, in the smallest unit, big-endian.
        wanted: [u8; 32],
    },
}

impl fmt::Display for PauseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GasPrice { price } => {
                write!(f, "a unit of gas costs {price}, more than maxGasPrice")
            }
            Self::Cost => f.write_str("the fee is more than maxCostPercent of the amount"),
            Self::GasWalletEmpty => {
                f.write_str("the gas wallet cannot pay the top-up; send coin to it")
            }
            Self::GasTooLow => f.write_str(
                "the wallet's coin does not cover the fee, and it was already topped up",
            ),
            Self::Unexplained => {
                f.write_str("the wallet has less than its transfers explain; see docs/runbook.md")
            }
            Self::RequestFailed(reason) => write!(f, "the last request failed: {reason}"),
            Self::Unavailable(reason) => f.write_str(reason),
            Self::TopUpTooLarge { wanted } => {
                let wanted = U256::from_be_bytes(*wanted);
                write!(f, "a top-up of {wanted} is needed, more than maxTopUp")
            }
        }
    }
}

/// What happened to a sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SweepEvent {
    /// A request was made that sends so much coin from the gas wallet.
    TopUpRequested {
        /// It.
        request: RequestId,
        /// How much, in the smallest unit, big-endian.
        amount: [u8; 32],
    },
    /// The coin has arrived in a block that is deep enough.
    TopUpArrived,
    /// A request was made that sends what there is to the target.
    MoveRequested {
        /// It.
        request: RequestId,
        /// How much, in the smallest unit, big-endian.
        amount: [u8; 32],
    },
    /// A final block has the transfer to the target.
    MoveFinal,
    /// The last request has moved nothing, and never will; why.
    RequestLost {
        /// Why, in words for people.
        reason: String,
        /// Where a block has taken it, and the fee: the last of [`SweepRetries`] by now.
        paid_after: Option<u64>,
    },
    /// The top-up had arrived, and a reorganisation has taken it for good; why it never comes again.
    TopUpLost {
        /// Why, in words for people.
        reason: String,
        /// As of [`SweepEvent::RequestLost`].
        paid_after: Option<u64>,
    },
    /// A final block has nothing left of what was to be moved.
    NothingLeft,
    /// Nothing can be sent now.
    Blocked {
        /// Why.
        reason: PauseReason,
    },
    /// The pause is over.
    RetryDue,
}

impl SweepJob {
    /// A sweep of a coin or token.
    pub fn new(number: u64, asset: Option<Account>, now_ms: u64) -> Self {
        Self {
            number,
            asset,
            began_at_ms: now_ms,
            requests: 0,
            top_up: None,
            lost_top_up: None,
            since_ms: now_ms,
            blocked_since_ms: None,
            pauses: 0,
            round_since_ms: now_ms,
            swept: Vec::new(),
            failures: Vec::new(),
            state: SweepState::Due,
        }
    }

    /// The sweep that follows one that is over, or the first of a wallet; `every_ms` is how long a round is. What a token was
    /// topped up with stays its top-up when only the coin was swept: one that cannot move would get one after the other.
    pub fn following(
        last: Option<&Self>,
        asset: Option<Account>,
        every_ms: u64,
        now_ms: u64,
    ) -> Self {
        let Some(last) = last else {
            return Self::new(1, asset, now_ms);
        };
        let (top_up, lost_top_up) = last.kept_top_up();
        let next = Self {
            top_up,
            lost_top_up,
            failures: last.failures.clone(),
            state: waiting(top_up),
            ..Self::new(last.number.saturating_add(1), asset, now_ms)
        };
        match last.is_round_over(every_ms, now_ms) {
            true => next,
            false => Self {
                round_since_ms: last.round_since_ms,
                swept: last.swept.clone(),
                ..next
            },
        }
    }

    /// The top-up that is open after this sweep, and the one that was lost.
    fn kept_top_up(&self) -> (Option<TopUp>, Option<[u8; 32]>) {
        let was_swept = matches!(self.state, SweepState::Swept { .. });
        if was_swept && self.asset.is_some() {
            return (None, None);
        }
        let is_over = |top_up: &TopUp| top_up.asset == self.asset;
        (
            self.top_up.filter(|top_up| !is_over(top_up)),
            self.lost_top_up,
        )
    }

    /// Whether the wallet's coin may be swept in place of this one, which waits.
    pub fn lets_coin_go(&self) -> bool {
        let is_for_token = self.top_up.is_some_and(|top_up| top_up.asset.is_some());
        !is_for_token || self.pauses >= PAUSES_BEFORE_COIN
    }

    /// Whether a coin or token of the wallet may be swept after this sweep: each once in a round of so many milliseconds.
    pub fn may_follow(&self, asset: Option<Account>, every_ms: u64, now_ms: u64) -> bool {
        self.is_round_over(every_ms, now_ms) || !self.swept.contains(&asset)
    }

    fn is_round_over(&self, every_ms: u64, now_ms: u64) -> bool {
        now_ms >= self.round_since_ms.saturating_add(every_ms)
    }

    /// A sweep of another coin or token of the wallet in place of this one, which waits. How long the wallet has waited
    /// continues: those that take turns would wait a minute each for ever, and no operator would be told. So does its
    /// top-up: each of them would be topped up otherwise.
    #[must_use]
    pub fn instead(&self, asset: Option<Account>, now_ms: u64) -> Self {
        let next = Self::new(self.number.saturating_add(1), asset, now_ms);
        Self {
            blocked_since_ms: self.blocked_since_ms,
            pauses: self.pauses,
            top_up: self.top_up,
            lost_top_up: self.lost_top_up,
            round_since_ms: self.round_since_ms,
            swept: self.swept.clone(),
            failures: self.failures.clone(),
            state: waiting(self.top_up),
            ..next
        }
    }

    /// The id of its next request: the same no matter who makes it.
    pub fn next_request(&self, chain: FollowedChain, account: Account) -> RequestId {
        let hash: [u8; 32] = Sha256::new()
            .chain_update(DOMAIN)
            // The parts have fixed lengths.
            .chain_update(chain.key())
            .chain_update(account.0)
            .chain_update(self.number.to_be_bytes())
            .chain_update(self.requests.to_be_bytes())
            .finalize()
            .into();
        RequestId::derived(DerivedFrom::Sweep, hash)
    }

    /// The coins and tokens of which nothing is sent until a person says so.
    pub fn held(&self) -> impl Iterator<Item = &AssetFailures> {
        self.failures.iter().filter(|of| of.is_held())
    }

    /// Whether nothing of a coin or token is sent until a person says so.
    pub fn is_held(&self, asset: Option<Account>) -> bool {
        self.held().any(|of| of.asset == asset)
    }

    /// The same once people have said that what is held of it is to be tried again; `None`: they have not.
    pub fn retried(&self, account: Account, retries: &SweepRetries, now_ms: u64) -> Option<Self> {
        let held = self.held().filter(|of| retries.include(account, of.after));
        held.map(|of| of.asset).fold(None, |next, asset| {
            next.as_ref().unwrap_or(self).released(asset, now_ms)
        })
    }

    /// The same after a person has said that a held coin or token is to be tried again, and at once; `None`: it is not held.
    /// What it was topped up with is spent by then: it may be topped up once more.
    fn released(&self, asset: Option<Account>, now_ms: u64) -> Option<Self> {
        self.is_held(asset).then(|| {
            let mut next = self.clone();
            next.failures.retain(|of| of.asset != asset);
            if self.is_at_rest() && self.top_up.is_some_and(|top_up| top_up.asset == asset) {
                next.top_up = None;
            }
            if next.state == SweepState::Funded {
                next.state = waiting(next.top_up);
            }
            if let SweepState::Paused { retry_at_ms, .. } = &mut next.state
                && self.asset == asset
            {
                *retry_at_ms = now_ms;
                next.pauses = 0;
                next.blocked_since_ms = None;
            }
            next
        })
    }

    /// Counts a transaction that has cost a fee and moved nothing.
    fn count_failure(&mut self, reason: &str, after: u64, now_ms: u64) {
        let reason: String = reason.chars().take(REASON_CHARS).collect();
        let before = self.failures.iter().find(|of| of.asset == self.asset);
        let count = before.map_or(0, |of| of.count).saturating_add(1);
        self.failures.retain(|of| of.asset != self.asset);
        self.failures.push(AssetFailures {
            asset: self.asset,
            count,
            reason,
            at_ms: now_ms,
            after,
        });
    }

    /// Whether another coin or token of the wallet may be swept instead: nothing is on its way.
    pub fn may_be_replaced(&self) -> bool {
        match self.state {
            SweepState::Due | SweepState::Funded | SweepState::Paused { .. } => true,
            SweepState::Funding { .. }
            | SweepState::Moving { .. }
            | SweepState::Swept { .. }
            | SweepState::Gone => false,
        }
    }

    /// Whether nothing was sent for it, or nothing came of that, and its wallet was not topped up.
    pub fn is_untouched(&self) -> bool {
        self.top_up.is_none() && matches!(self.state, SweepState::Due | SweepState::Paused { .. })
    }

    /// Whether nothing of it is on its way.
    pub fn is_at_rest(&self) -> bool {
        self.may_be_replaced() || self.is_over()
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        matches!(self.state, SweepState::Swept { .. } | SweepState::Gone)
    }

    /// Since when it waits, in milliseconds since the Unix epoch: for something to change, for a request of its, or to be
    /// looked at, which it is not without a target or a node.
    pub fn waits_since_ms(&self) -> Option<u64> {
        match self.state {
            SweepState::Paused { .. } => self.blocked_since_ms,
            SweepState::Funding { .. } | SweepState::Moving { .. } => Some(self.since_ms),
            SweepState::Due | SweepState::Funded => {
                Some(self.blocked_since_ms.unwrap_or(self.since_ms))
            }
            SweepState::Swept { .. } | SweepState::Gone => None,
        }
    }

    /// Where an event leads at a time in milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when it cannot happen: above all a second transfer, or a second top-up.
    pub fn step(&self, event: SweepEvent, now_ms: u64) -> Result<Self, Fault> {
        use {SweepEvent as Event, SweepState as State};
        let mut next = self.clone();
        next.since_ms = now_ms;
        match (&self.state, event) {
            (State::Due, Event::TopUpRequested { request, amount })
                if self.top_up.is_none() && !self.is_held(self.asset) =>
            {
                next.top_up = Some(TopUp {
                    request,
                    amount,
                    asset: self.asset,
                });
                next.lost_top_up = None;
                next.requests = self.requests.saturating_add(1);
                next.state = State::Funding { request };
            }
            (State::Funding { .. }, Event::TopUpArrived) => next.state = State::Funded,
            (State::Due | State::Funded, Event::MoveRequested { request, amount })
                if !self.is_held(self.asset) =>
            {
                next.requests = self.requests.saturating_add(1);
                next.state = State::Moving { request, amount };
            }
            (State::Moving { amount, .. }, Event::MoveFinal) => {
                next.state = State::Swept { amount: *amount };
                next.swept.push(self.asset);
                next.failures.retain(|of| of.asset != self.asset);
                next.blocked_since_ms = None;
                next.pauses = 0;
            }
            (State::Due | State::Funded, Event::NothingLeft) => {
                next.state = State::Gone;
                next.blocked_since_ms = None;
                next.pauses = 0;
            }
            (State::Funding { .. }, Event::RequestLost { reason, paid_after })
            | (State::Funded, Event::TopUpLost { reason, paid_after }) => {
                next.top_up = None;
                next.lost_top_up = self.top_up.map(|top_up| top_up.amount);
                next.lose(reason, paid_after, now_ms);
            }
            (State::Moving { .. }, Event::RequestLost { reason, paid_after }) => {
                next.lose(reason, paid_after, now_ms);
            }
            (State::Due | State::Funded, Event::Blocked { reason }) => {
                next.pause(reason, now_ms);
            }
            (State::Paused { .. }, Event::RetryDue) => next.state = waiting(self.top_up),
            (state, event) => {
                return Err(Fault::bug(format!(
                    "a sweep that is {state:?} got {event:?}"
                )));
            }
        }
        Ok(next)
    }

    fn lose(&mut self, reason: String, paid_after: Option<u64>, now_ms: u64) {
        if let Some(after) = paid_after {
            self.count_failure(&reason, after, now_ms);
        }
        self.pause(PauseReason::RequestFailed(reason), now_ms);
    }

    fn pause(&mut self, reason: PauseReason, now_ms: u64) {
        let pause = PAUSES.pause(self.pauses);
        let pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        self.pauses = self.pauses.saturating_add(1);
        self.blocked_since_ms = self.blocked_since_ms.or(Some(now_ms));
        self.state = SweepState::Paused {
            reason,
            retry_at_ms: now_ms.saturating_add(pause_ms),
        };
    }
}

/// The state in which something is to be sent.
fn waiting(top_up: Option<TopUp>) -> SweepState {
    match top_up {
        Some(_) => SweepState::Funded,
        None => SweepState::Due,
    }
}

/// What gas costs now; on TRON energy. Prices and fees are in the smallest unit of the coin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GasCost {
    /// Gas that the transaction may use; on TRON what it burns coin for.
    pub limit: u64,
    /// Price of a unit of gas that a block takes now.
    pub price: u128,
    /// What the chain takes beside gas: rollups for their data elsewhere, TRON for bytes and for an account that is new.
    pub data_fee: u128,
}

impl GasCost {
    /// All of it.
    pub fn total(&self) -> U256 {
        let gas = U256::from(self.limit).saturating_mul(U256::from(self.price));
        gas.saturating_add(U256::from(self.data_fee))
    }

    /// How much is sent of a balance of the coin so that nothing is left but the part of the data fee that is not
    /// taken; `None` when the fee takes all.
    pub fn rest_of(&self, balance: U256) -> Option<U256> {
        let rest = balance.checked_sub(self.total())?;
        (!rest.is_zero()).then_some(rest)
    }

    /// How much coin a wallet lacks for it, with a quarter more for gas that gets dearer; `None` when it lacks nothing.
    pub fn missing(&self, balance: U256) -> Option<U256> {
        if balance >= self.total() {
            return None;
        }
        let gas = U256::from(self.limit).saturating_mul(U256::from(self.price));
        let wanted = gas
            .saturating_add(gas / U256::from(4))
            .saturating_add(U256::from(self.data_fee));
        Some(wanted.saturating_sub(balance))
    }

    /// Whether it is more than so many percent of an amount.
    pub fn exceeds(&self, percent: u32, amount: U256) -> bool {
        let cost = U512::from(self.total()).saturating_mul(U512::from(100));
        cost > U512::from(amount).saturating_mul(U512::from(percent))
    }

    /// The most that a unit of gas may cost when the coin of the wallet is all there is, up to so much; `None` when it
    /// does not pay the present price.
    pub fn affordable(&self, balance: U256, most: u128) -> Option<u128> {
        let gas = balance.checked_sub(U256::from(self.data_fee))?;
        let price = gas.checked_div(U256::from(self.limit))?;
        let price = u128::try_from(price).unwrap_or(u128::MAX).min(most);
        (price >= self.price).then_some(price)
    }
}

#[cfg(test)]
#[path = "sweep_tests.rs"]
mod tests;
