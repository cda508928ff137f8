//! The result of one attempt to send a transaction to the nodes, besides the meaning of their answers:
//! whether one of them may have it.

use std::{future::Future, sync::Arc};

use parking_lot::Mutex;

tokio::task_local! {
    static TRY: Arc<Mutex<Option<SendTry>>>;
}

/// How nodes took what was sent to them in one try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendTry {
    /// A node took it, or its answer was lost: not where each that got it objected, and the others were not reached.
    pub may_be_taken: bool,
    /// As many as it takes to end something have refused it, by the rules or because its sender cannot pay. Not
    /// where they say that what it uses is used.
    pub is_refused: bool,
}

impl SendTry {
    /// Of a try of which nothing is known.
    pub const UNKNOWN: Self = Self {
        may_be_taken: true,
        is_refused: false,
    };
    /// Of one that came to no node.
    pub const NOT_SENT: Self = Self {
        may_be_taken: false,
        is_refused: false,
    };
}

/// Sends something, and says how the nodes took it; [`SendTry::UNKNOWN`] where nothing went through a pool of nodes.
pub async fn tried<F: Future>(work: F) -> (F::Output, SendTry) {
    let seen = Arc::new(Mutex::new(None));
    let output = TRY.scope(Arc::clone(&seen), work).await;
    let seen = seen.lock().unwrap_or(SendTry::UNKNOWN);
    (output, seen)
}

/// Notes how nodes took one transaction of the present try. Of several one that may be taken is enough.
pub(super) fn note(one: SendTry) {
    let _ = TRY.try_with(|seen| {
        let mut seen = seen.lock();
        let before = seen.is_some_and(|before| before.may_be_taken);
        *seen = Some(SendTry {
            may_be_taken: one.may_be_taken || before,
            ..one
        });
    });
}
