//! A batch payment: one asset from one wallet to many recipients.
//!
//! It is made through the API. A person approves it; then signing requests are made for it, one after the other: an
//! allowance where one is needed, and the payment. Everything here is pure.

mod machine;
mod payment;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::{
    fault::Fault,
    field::{self, label},
    ids::{BatchId, TokenId, VaultId, WalletId},
    schema::wire::{self, batch_payment::Status},
};

pub use machine::{
    BatchEvent, BatchProgress, BatchRequest, BatchStage, BatchState, BatchStep, MAX_REQUESTS,
};
pub use payment::{BatchPayload, BatchWireEcho, BatchWireKind};

/// Most characters (Unicode scalar values) of a batch's name.
pub const MAX_NAME: usize = 85;
/// Most characters (Unicode scalar values) of a batch's notes.
pub const MAX_NOTES: usize = 1_000;
/// Most characters (Unicode scalar values) of a recipient's notes.
pub const MAX_RECIPIENT_NOTES: usize = 500;

/// A batch payment: what never changes, and its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchPayment {
    /// The batch.
    pub id: BatchId,
    /// The vault of the wallet.
    pub vault: VaultId,
    /// The wallet that pays.
    pub wallet: WalletId,
    /// Its name; may be empty.
    pub name: String,
    /// Its notes; may be empty.
    pub notes: String,
    /// What is paid, as [`BatchPayload::encode`] gives it.
    pub payment: Vec<u8>,
    /// The token that asked.
    pub token: TokenId,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// Where it stands.
    pub state: BatchState,
}

impl BatchPayment {
    /// How it stands as responses show it, and why it failed.
    pub fn status(&self) -> (Status, &str) {
        match &self.state {
            BatchState::Pending | BatchState::Approved(_) => (Status::Pending, ""),
            BatchState::Succeeded(_) => (Status::Succeeded, ""),
            BatchState::Failed { reason, .. } => (Status::Failed, reason.as_str()),
        }
    }

    /// The batch as responses show it, without its signing requests, which have rows of their own; without its payment
    /// where that can no longer be read.
    pub fn to_wire(&self) -> wire::BatchPayment {
        let (status, failed_reason) = self.status();
        wire::BatchPayment {
            uuid: self.id.to_string(),
            name: self.name.clone(),
            notes: self.notes.clone(),
            status: status.into(),
            failed_reason: failed_reason.to_owned(),
            creation_timestamp: self.created_at_ms,
            approval_signing_request: None,
            send_signing_request: None,
            r#type: BatchPayload::decode(&self.payment)
                .ok()
                .map(|payment| payment.echo()),
        }
    }
}

/// Checks name and notes of a batch that is to be made.
///
/// # Errors
/// [`crate::fault::Class::Invalid`] naming the field.
pub fn check_labels(name: &str, notes: &str) -> Result<(), Fault> {
    label("name", name, MAX_NAME)?;
    field::notes("notes", notes, MAX_NOTES)
}
