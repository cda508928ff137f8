//! Side tasks of a chain's follower, besides reading new blocks: if the nodes cannot do one now, following
//! continues as before.

use covault_core::deposit::transfer::FollowedChain;

use super::progress::{FollowError, FollowProgress};

/// One such thing.
#[derive(Default)]
pub(super) struct SideTask {
    /// Not before this, in milliseconds of the monotonic clock.
    not_before_ms: u64,
    /// What was last said about it, so that it is told once.
    said: Option<String>,
}

impl SideTask {
    /// Whether it is to be left alone now.
    pub(super) fn is_paused(&self, now_ms: u64) -> bool {
        now_ms < self.not_before_ms
    }

    /// It went well.
    pub(super) fn went_well(&mut self) {
        self.said = None;
    }

    /// The nodes cannot do it: says so once, in these words, and leaves it alone until then.
    pub(super) fn failed(
        &mut self,
        chain: FollowedChain,
        what: &str,
        reason: String,
        not_before_ms: u64,
    ) {
        self.not_before_ms = not_before_ms;
        if self.said.as_ref() != Some(&reason) {
            tracing::warn!(%chain, reason, "{what}");
            self.said = Some(reason);
        }
    }

    /// What of its outcome concerns the chain.
    ///
    /// # Errors
    /// Those of the service.
    pub(super) fn settle(
        &mut self,
        outcome: Result<FollowProgress, FollowError>,
        chain: FollowedChain,
        what: &str,
        not_before_ms: u64,
    ) -> Result<FollowProgress, FollowError> {
        match outcome {
            Ok(progress) => {
                self.went_well();
                Ok(progress)
            }
            Err(FollowError::Nodes(reason)) => {
                self.failed(chain, what, reason, not_before_ms);
                Ok(FollowProgress::AtHead)
            }
            Err(error) => Err(error),
        }
    }
}
