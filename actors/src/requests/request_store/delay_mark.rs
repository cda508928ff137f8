//! That a request cannot continue: in the store and in the count of such requests.
//!
//! A reader of the store finds the count at least as new: what is delayed is counted before its row says so, and
//! what continues is counted no more before its row says that.

use crate::process::counters::{Counters, StalledRequest};

/// Whether a request cannot continue.
#[derive(Default)]
pub struct DelayMark {
    /// The store may have a row that says why.
    is_stored: bool,
    counted: Option<StalledRequest>,
}

/// A mark that was taken away before the commit that has the request continue.
pub struct LiftedMark {
    was_counted: bool,
}

impl DelayMark {
    /// That of a request in the store, which another process may have delayed.
    pub fn found(is_stored: bool) -> Self {
        Self {
            is_stored,
            counted: None,
        }
    }

    /// To be called before the store is told.
    pub fn set(&mut self, counters: &Counters) {
        self.counted.get_or_insert_with(|| counters.wait());
        self.is_stored = true;
    }

    /// Whether the store may say that the request cannot continue.
    pub fn is_set(&self) -> bool {
        self.is_stored
    }

    /// Counts the request no more, before the store is told.
    pub fn lift(self) -> LiftedMark {
        LiftedMark {
            was_counted: self.counted.is_some(),
        }
    }
}

impl LiftedMark {
    /// The store was not told.
    pub fn restore(self, counters: &Counters) -> DelayMark {
        DelayMark {
            is_stored: true,
            counted: self.was_counted.then(|| counters.wait()),
        }
    }
}
