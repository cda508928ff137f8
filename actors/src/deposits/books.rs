//! When something is looked at beside new blocks, by the follower of a chain.

/// See the module.
#[derive(Default)]
pub(super) struct Books {
    /// Not before this, in milliseconds of the monotonic clock.
    pub(super) not_before_ms: u64,
    /// What was last said about it, so that it is told once.
    pub(super) said: Option<String>,
}
