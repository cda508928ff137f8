//! The number of sweeps in each state, for metrics and operators.

use covault_core::deposit::sweep::{SweepJob, SweepState};

/// Sweeps of one chain that are not over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepCounts {
    /// Something is to be moved.
    pub due: u64,
    /// Coin for the fee is on its way, or has just arrived.
    pub funding: u64,
    /// What there is is on its way to the target.
    pub moving: u64,
    /// Something must change first.
    pub paused: u64,
    /// Coins and tokens of wallets whose transactions have failed too often: a person has to look.
    pub held: u64,
    /// Wallets that could not be looked at: a node or the store did not answer, or their rules cannot be read. Their sweeps are counted as well.
    pub failed: u64,
    /// Since when the one waits that has waited for the longest, for something to change or for a request of its, in
    /// milliseconds since the Unix epoch.
    pub oldest_wait_ms: Option<u64>,
}

impl SweepCounts {
    /// Of these sweeps.
    pub fn of<'a>(jobs: impl Iterator<Item = &'a SweepJob>) -> Self {
        let mut counts = Self::default();
        for job in jobs {
            let count = match job.state {
                SweepState::Due => &mut counts.due,
                SweepState::Funding { .. } | SweepState::Funded => &mut counts.funding,
                SweepState::Moving { .. } => &mut counts.moving,
                SweepState::Paused { .. } => &mut counts.paused,
                SweepState::Swept { .. } | SweepState::Gone => continue,
            };
            *count = count.saturating_add(1);
            let oldest = counts.oldest_wait_ms.into_iter();
            counts.oldest_wait_ms = oldest.chain(job.waits_since_ms()).min();
        }
        counts
    }
}
