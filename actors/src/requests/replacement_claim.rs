//! Prevents two replacements of one transaction from being made at once.

use covault_core::{
    fault::{Class, Fault},
    ids::RequestId,
};

use crate::store::{
    Batch, Precondition,
    rows::{self, ReplacementEntry, ReplacementRow},
};

/// The row of the replacements as it was read, to which one is added.
pub struct ReplacementClaim {
    /// In whose name the row is.
    pub first: RequestId,
    /// Its version; 0 when there is none.
    pub version: u64,
    /// It.
    pub row: ReplacementRow,
    /// The newest block of the chain, when its policy asks.
    pub at_block: Option<u64>,
}

impl ReplacementClaim {
    /// Adds a request to the row, which must be as it was.
    ///
    /// # Errors
    /// [`Class::Bug`] when the row cannot be serialized.
    pub fn add_to(&self, batch: &mut Batch, request: RequestId) -> Result<(), Fault> {
        let expect = match self.version {
            0 => Precondition::Absent,
            version => Precondition::Version(version),
        };
        let mut row = self.row.clone();
        row.replacements.push(ReplacementEntry {
            request,
            at_block: self.at_block,
        });
        batch.put(
            rows::replacement_row(self.first),
            expect,
            rows::encode(&row)?,
        );
        Ok(())
    }

    /// Another caller was faster.
    pub fn lost() -> Fault {
        Fault::new(
            Class::WrongState,
            "another request was just made to replace it; read replacedByUuids",
        )
        .at("uuid")
    }
}
