//! What the cluster is asked in a task beside the vault's actor.

use std::{future::Future, panic::AssertUnwindSafe, time::Duration};

use covault_core::fault::Fault;
use futures::FutureExt as _;

use super::Msg;
use crate::process::{mailbox::ActorMailbox, tasks::AbortOnDrop};

/// Asks in a task. Its answer becomes a message, also when it takes too long or panics: an actor that
/// waits for one that never comes would not ask again.
pub(super) fn ask_cluster<T: Send + 'static>(
    actor: &ActorMailbox<Msg>,
    patience: Duration,
    too_late: &'static str,
    question: impl Future<Output = Result<T, Fault>> + Send + 'static,
    message: impl FnOnce(Result<T, Fault>) -> Msg + Send + 'static,
) -> AbortOnDrop {
    let actor = actor.clone();
    let task = tokio::spawn(async move {
        let question = AssertUnwindSafe(question).catch_unwind();
        let answer = match tokio::time::timeout(patience, question).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Fault::bug("the call to the signers panicked")),
            Err(_) => Err(Fault::unavailable(too_late)),
        };
        // The actor may have ended.
        let _ = actor.cast(message(answer));
    });
    AbortOnDrop(task.abort_handle())
}
