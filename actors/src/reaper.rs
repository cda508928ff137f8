//! The actor that deletes idempotency records which have had their day.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use covault_core::fault::Fault;
use ractor::{Actor, ActorProcessingErr, ActorRef};

use crate::{
    context::Context,
    idempotency::LIFETIME_MS,
    rows::{self, Replay},
    store::{Batch, CommitError, Expect, Scan, Space},
};

/// How often it looks.
const INTERVAL: Duration = Duration::from_secs(15 * 60);
/// Rows that one commit deletes at most.
const PAGE: usize = 256;

/// Messages.
pub enum Msg {
    /// It is time to look.
    SweepDue,
}

/// The actor.
pub struct Reaper;

#[async_trait]
impl Actor for Reaper {
    type Msg = Msg;
    type State = Arc<Context>;
    type Arguments = Arc<Context>;

    async fn pre_start(
        &self,
        myself: ActorRef<Msg>,
        context: Arc<Context>,
    ) -> Result<Arc<Context>, ActorProcessingErr> {
        myself.send_interval(INTERVAL, || Msg::SweepDue);
        Ok(context)
    }

    async fn handle(
        &self,
        _: ActorRef<Msg>,
        message: Msg,
        context: &mut Arc<Context>,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Msg::SweepDue => {
                // The next sweep comes anyway.
                if let Err(fault) = sweep(context).await {
                    tracing::warn!(?fault, "old idempotency records could not be deleted");
                }
            }
        }
        Ok(())
    }
}

/// Deletes every record that is older than a key lives.
pub async fn sweep(context: &Context) -> Result<(), Fault> {
    let mut from = None;
    loop {
        let scan = Scan {
            from: from.take(),
            ..Scan::prefix(Space::Idempotency, &[], PAGE)
        };
        let page = context.store.scan(&scan).await?;
        let mut batch = Batch::new();
        for (key, row) in &page {
            let record: Replay = rows::decode(&row.value)?;
            if record.at_ms.saturating_add(LIFETIME_MS) <= context.now_ms() {
                batch.delete(key.clone(), Expect::Version(row.version));
            }
        }
        if !batch.writes().is_empty() {
            match context.store.commit(batch).await {
                // Somebody uses one of the keys again just now; the next sweep has the rest.
                Ok(()) | Err(CommitError::Conflict(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match page.last() {
            Some((key, _)) if page.len() == PAGE => {
                from = Some([key.bytes.as_slice(), &[0]].concat());
            }
            _ => return Ok(()),
        }
    }
}
