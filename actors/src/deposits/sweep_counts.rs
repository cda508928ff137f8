//! How many sweeps stand where, for metrics and operators.

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
    /// When the one that has been paused for the longest was first paused, in milliseconds since the Unix epoch.
    pub oldest_pause_ms: Option<u64>,
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
                SweepState::Swept { .. } => continue,
            };
            *count = count.saturating_add(1);
            if matches!(job.state, SweepState::Paused { .. }) {
                let oldest = counts.oldest_pause_ms.into_iter();
                counts.oldest_pause_ms = oldest.chain(job.blocked_since_ms).min();
            }
        }
        counts
    }
}
