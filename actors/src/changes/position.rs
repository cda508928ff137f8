use std::{fmt, str::FromStr};

use covault_core::fault::Fault;

/// How far a listener has heard: what it sends as `Last-Event-ID` when it comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// All that was before has been heard, but for a margin; in milliseconds since the Unix epoch. Counts in every
    /// process.
    pub(super) safe_ms: u64,
    /// The follower that has numbered the changes.
    pub(super) follower: u64,
    /// The number behind the last change that was heard. Counts as long as there is that follower.
    pub(super) next: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}-{}", self.safe_ms, self.follower, self.next)
    }
}

impl FromStr for Position {
    type Err = Fault;

    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] naming `Last-Event-ID`, for what this service has never sent.
    fn from_str(text: &str) -> Result<Self, Fault> {
        let parse = || {
            let mut parts = text.splitn(3, '-');
            let position = Self {
                safe_ms: parts.next()?.parse().ok()?,
                follower: u64::from_str_radix(parts.next()?, 16).ok()?,
                next: parts.next()?.parse().ok()?,
            };
            // Not `+1`, nor another length.
            (position.to_string() == text).then_some(position)
        };
        parse().ok_or_else(|| {
            let problem = "is not an id that this service has sent; omit it to start over";
            Fault::field("Last-Event-ID", problem)
        })
    }
}
