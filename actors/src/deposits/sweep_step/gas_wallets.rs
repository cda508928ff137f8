//! Top-ups that sweeps have requested from their gas wallets and that may still be pending: the same coin is
//! not promised twice.

use std::collections::BTreeMap;

use covault_core::{
    amount::U256,
    deposit::sweep::{SweepJob, SweepState},
    ids::WalletId,
};
use parking_lot::Mutex;

/// Coin that is promised, by gas wallet, in one look at a chain.
#[derive(Default)]
pub struct GasWallets(Mutex<BTreeMap<WalletId, U256>>);

impl GasWallets {
    /// A sweep waits for its top-up, if it does, which may not have left the gas wallet yet.
    pub fn promised(&self, gas_wallet: WalletId, job: &SweepJob) {
        if let (SweepState::Funding { .. }, Some(top_up)) = (&job.state, job.top_up) {
            let mut promised = self.0.lock();
            let all = promised.entry(gas_wallet).or_default();
            *all = all.saturating_add(U256::from_be_bytes(top_up.amount));
        }
    }

    /// Promises so much of what a gas wallet has; whether there is as much beside what is promised.
    pub fn reserve(&self, gas_wallet: WalletId, amount: U256, there: U256) -> bool {
        let mut promised = self.0.lock();
        let all = promised.entry(gas_wallet).or_default();
        match all.checked_add(amount).filter(|wanted| *wanted <= there) {
            Some(wanted) => {
                *all = wanted;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::{deposit::sweep::SweepEvent, ids::RequestId};

    use super::*;

    #[test]
    fn top_ups__should_be_asked_for_only_as_far_as_the_gas_wallet_goes() {
        let promised = GasWallets::default();
        let (one, other) = (WalletId::from_bytes([1; 16]), WalletId::from_bytes([2; 16]));
        let of = |amount: u64| U256::from(amount);
        let (request, amount) = (RequestId::from_bytes([3; 16]), of(40).to_be_bytes());
        let job = SweepJob::new(1, None, 0);
        promised.promised(one, &job);
        let asked = SweepEvent::TopUpRequested { request, amount };
        promised.promised(one, &job.step(asked, 0).unwrap());
        assert!(promised.reserve(one, of(60), of(100)));
        assert!(!promised.reserve(one, of(1), of(100)));
        // What was refused is not promised.
        assert!(promised.reserve(one, of(1), of(101)));
        assert!(promised.reserve(other, of(100), of(100)));
        assert!(!promised.reserve(other, U256::MAX, U256::MAX));
    }
}
