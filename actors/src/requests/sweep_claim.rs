//! What keeps two requests of one step of a sweep from being made.

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
}

impl SweepClaim {
    /// Changes the row, which must be as it was.
    ///
    /// # Errors
    /// [`Class::Bug`] when the row cannot be serialized.
    pub fn add_to(&self, batch: &mut Batch) -> Result<(), Fault> {
        let expect = Precondition::Version(self.version);
        batch.put(self.key.clone(), expect, rows::encode(&self.job)?);
        Ok(())
    }

    /// Somebody else was faster.
    pub fn lost() -> Fault {
        Fault::new(
            Class::WrongState,
            "another request of the sweep was just made",
        )
    }
}
