//! The post between the processes of one Covault: whoever gets a command of a client sends it to the
//! orchestrator that has its vault, and waits for the answer.

pub mod form;
pub mod memory;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use covault_core::{fault::Fault, ids::OrchestratorId};

use crate::gateway::{Caller, Command, IdempotencyKey, Submitted};

/// A command on its way.
#[derive(Clone, Debug)]
pub struct Parcel {
    /// The version of the recipient's row when it was sent: an old parcel is not opened.
    pub mark: u64,
    /// Who calls.
    pub caller: Caller,
    /// What is to be done.
    pub command: Command,
    /// The key it came with.
    pub idempotency: Option<IdempotencyKey>,
}

/// What became of a parcel.
#[derive(Debug)]
pub enum Delivery {
    /// It was done, or refused: the answer, after the commit.
    Answer(Box<Result<Submitted, Fault>>),
    /// It was not done and will not be: the recipient has not got the vault, or is not there.
    NotDone,
    /// No answer came: it may have been done, or be done later, once.
    NotKnown,
}

/// Who takes parcels.
#[async_trait]
pub trait Clerk: Send + Sync {
    /// Does what the parcel says, if the vault is here.
    async fn take(&self, parcel: Parcel) -> Delivery;
}

/// The post. A parcel is delivered at most once.
#[async_trait]
pub trait Post: Send + Sync {
    /// From now on parcels for `me` go to the clerk.
    ///
    /// # Errors
    /// When the post cannot be used.
    async fn open(&self, me: OrchestratorId, clerk: Arc<dyn Clerk>) -> Result<(), Fault>;

    /// From now on nothing is for `me`.
    async fn close(&self, me: OrchestratorId);

    /// Sends a parcel, and waits for the answer. The recipient does not begin with it after
    /// `patience`.
    async fn send(&self, to: OrchestratorId, parcel: Parcel, patience: Duration) -> Delivery;
}
