//! Whether one attempt to send a transaction got to a node, besides the meaning of what nodes answered.

use std::{future::Future, sync::Arc};

use parking_lot::Mutex;

tokio::task_local! {
    static TRY: Arc<Mutex<Option<bool>>>;
}

/// Sends something, and says whether a node may have got it: not where no connection to any came about. Where nothing
/// went through a pool of nodes one may have.
pub async fn tried<F: Future>(work: F) -> (F::Output, bool) {
    let seen = Arc::new(Mutex::new(None));
    let output = TRY.scope(Arc::clone(&seen), work).await;
    let got_out = seen.lock().unwrap_or(true);
    (output, got_out)
}

/// Notes whether a node may have got one transaction of the present try. Of several one that did is enough.
pub(super) fn note(got_out: bool) {
    let _ = TRY.try_with(|seen| {
        let mut seen = seen.lock();
        *seen = Some(got_out || seen.unwrap_or(false));
    });
}
