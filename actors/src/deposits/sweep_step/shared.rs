//! What nodes have said in one look of a sweeper: all of its wallets ask for much of the same, and need not ask one by one.

use std::collections::HashMap;

use covault_core::{
    amount::U256,
    deposit::transfer::Account,
    networks::evm::{ChainData, Fees},
};
use parking_lot::Mutex;

/// For how long what was said of now is used, in milliseconds.
const FRESH_MS: u64 = 2_000;

/// A balance: of which wallet, and of the coin (`None`) or a token.
type Held = (Account, Option<Account>);

/// What was said at a time of the monotonic clock, in milliseconds.
struct Said<T> {
    at_ms: u64,
    value: T,
}

impl<T> Said<T> {
    fn fresh(&self, now_ms: u64) -> Option<&T> {
        (now_ms.saturating_sub(self.at_ms) < FRESH_MS).then_some(&self.value)
    }
}

/// The answers of one look.
#[derive(Default)]
pub struct LookAnswers {
    /// After a final block: they never change.
    finals: Mutex<HashMap<(u64, Held), U256>>,
    /// Of wallets for which nothing was sent yet.
    newest: Mutex<HashMap<Held, Said<U256>>>,
    /// Of any transfer but for its gas, as a block with a base fee or without one has it.
    prices: Mutex<Option<Said<ChainData>>>,
    data_fee: Mutex<Option<Said<u128>>>,
}

impl LookAnswers {
    /// What there is after a final block, where that was said.
    pub fn after(&self, block: u64, held: Held) -> Option<U256> {
        self.finals.lock().get(&(block, held)).copied()
    }

    /// Keeps what nodes say of a final block, 32 bytes, big-endian.
    pub fn learn_after(&self, block: u64, held: Held, balance: [u8; 32]) {
        let balance = U256::from_be_bytes(balance);
        self.finals.lock().insert((block, held), balance);
    }

    /// What there is in the newest block, where that was just said.
    pub fn newest(&self, held: Held, now_ms: u64) -> Option<U256> {
        self.newest.lock().get(&held)?.fresh(now_ms).copied()
    }

    /// Keeps what nodes say of the newest block, 32 bytes, big-endian.
    pub fn learn_newest(&self, held: Held, balance: [u8; 32], at_ms: u64) {
        let value = U256::from_be_bytes(balance);
        self.newest.lock().insert(held, Said { at_ms, value });
    }

    /// What was just said of prices, for a transfer of so much gas.
    pub fn priced(&self, estimate_gas: u64, now_ms: u64) -> Option<ChainData> {
        let prices = self.prices.lock();
        let data = prices.as_ref()?.fresh(now_ms)?;
        let fees = data.fees.clone()?;
        Some(ChainData {
            fees: Some(Fees {
                estimate_gas,
                ..fees
            }),
            ..data.clone()
        })
    }

    /// Whether it was just said what gas costs.
    pub fn has_prices(&self, now_ms: u64) -> bool {
        self.priced(0, now_ms).is_some()
    }

    /// Keeps what gas costs.
    pub fn learn_prices(&self, value: ChainData, at_ms: u64) {
        *self.prices.lock() = Some(Said { at_ms, value });
    }

    /// What the chain takes beside gas, where that was just said.
    pub fn data_fee(&self, now_ms: u64) -> Option<u128> {
        self.data_fee.lock().as_ref()?.fresh(now_ms).copied()
    }

    /// Keeps what the chain takes beside gas.
    pub fn learn_data_fee(&self, value: u128, at_ms: u64) {
        *self.data_fee.lock() = Some(Said { at_ms, value });
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_now__should_be_used_for_two_seconds() {
        let (answers, held) = (LookAnswers::default(), (Account([1; 20]), None));
        let data = |estimate_gas| ChainData {
            nonce: None,
            eip1559: true,
            fees: Some(Fees {
                estimate_gas,
                base_fee: 7,
                max_priority_fee: 1,
            }),
        };
        answers.learn_newest(held, [0; 32], 5_000);
        answers.learn_prices(data(60_000), 5_000);
        answers.learn_data_fee(3, 5_000);
        assert_eq!(answers.newest(held, 6_999), Some(U256::ZERO));
        assert_eq!(answers.priced(21_000, 6_999), Some(data(21_000)));
        assert_eq!(answers.data_fee(6_999), Some(3));
        let late = 7_000;
        assert_eq!(answers.newest(held, late), None);
        assert!(!answers.has_prices(late));
        assert_eq!(answers.data_fee(late), None);
        // What a final block has never changes.
        answers.learn_after(9, held, [0; 32]);
        assert_eq!(answers.after(9, held), Some(U256::ZERO));
        assert_eq!(answers.after(8, held), None);
    }
}
