//! Prevents two requests from being made for one step of a sweep.

use covault_core::{
    deposit::sweep::SweepJob,
    fault::{Class, Fault},
    ids::RequestId,
};

use crate::store::{Batch, Key, Precondition, rows};

/// The row of a sweep as it was read, and what it becomes in the first commit of the request of its next step.
pub struct SweepClaim {
    /// The id of the request.
    pub request: RequestId,
    /// The key of the row.
    pub key: Key,
    /// The version in which it was read.
    pub version: u64,
    /// What it becomes.
    pub job: SweepJob,
    /// The row that says how much coin the gas wallet is asked for, where it is: by it a follower knows that what arrives is
    /// no deposit.
    pub top_up: Option<Key>,
}

impl SweepClaim {
    /// Changes the row, which must be as it was.
    ///
    /// # Errors
    /// [`Class::Bug`] when the row cannot be serialized.
    pub fn add_to(&self, batch: &mut Batch) -> Result<(), Fault> {
        let expect = Precondition::Version(self.version);
        batch.put(self.key.clone(), expect, rows::encode(&self.job)?);
        if let Some(top_up) = &self.top_up {
            batch.put(top_up.clone(), Precondition::Any, rows::encode(&())?);
        }
        Ok(())
    }

    /// It waits to be stored: its outcome is seen in a moment.
    pub fn being_made() -> Fault {
        Fault::new(
            Class::Conflict,
            "the same request of the sweep is being made",
        )
    }

    /// Another caller was faster.
    pub fn lost() -> Fault {
        Fault::new(
            Class::WrongState,
            "another request of the sweep was just made",
        )
    }
}
