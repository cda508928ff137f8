//! Whether nodes that gave no answer had too much to do.

use std::{future::Future, sync::Arc};

use parking_lot::Mutex;

tokio::task_local! {
    static SEEN: Arc<Mutex<Option<NodeLoad>>>;
}

/// What a node that gave no answer has shown of how much it has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeLoad {
    /// It said nothing in time, or calls wait for it.
    Silent,
    /// It said that it has too much to do, or that it is asked for too much.
    TooMuch,
}

/// What `work` comes to, and the most that a node has shown meanwhile; `None` where each said something else.
pub async fn load_of_nodes<F: Future>(work: F) -> (F::Output, Option<NodeLoad>) {
    let seen = Arc::new(Mutex::new(None));
    let output = SEEN.scope(Arc::clone(&seen), work).await;
    let seen = *seen.lock();
    (output, seen)
}

/// The nodes have answered, and disagree: what one of them has shown before is not the reason.
pub(super) fn forget() {
    let _ = SEEN.try_with(|seen| *seen.lock() = None);
}

/// Notes it of a node that is asked by the present work.
pub(super) fn note(load: NodeLoad) {
    let _ = SEEN.try_with(|seen| {
        let mut seen = seen.lock();
        *seen = (*seen).max(Some(load));
    });
}
