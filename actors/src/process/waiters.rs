//! Callers that wait for requests to end.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use covault_core::ids::RequestId;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::services::OutcomeListener;

/// Those who wait for a request to end.
#[derive(Default)]
pub struct CompletionWaiters {
    waiting: Mutex<HashMap<RequestId, Arc<Notify>>>,
    closed: AtomicBool,
}

impl OutcomeListener for CompletionWaiters {
    fn ended(&self, request: RequestId) {
        let mut waiting = self.waiting.lock();
        if let Some(notify) = waiting.remove(&request) {
            notify.notify_waiters();
        }
    }
}

impl CompletionWaiters {
    /// Calls `Notify::notify_waiters` on the result once the request is final.
    pub fn subscribe(&self, request: RequestId) -> Arc<Notify> {
        let mut waiting = self.waiting.lock();
        Arc::clone(waiting.entry(request).or_default())
    }

    /// Nobody is to wait.
    pub fn close(&self) {
        let mut waiting = self.waiting.lock();
        self.closed.store(true, Ordering::SeqCst);
        for (_, notify) in waiting.drain() {
            notify.notify_waiters();
        }
    }

    /// Whether nobody is to wait. To be asked after listening to a subscription.
    pub fn closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Forgets a subscription that nobody else shares.
    pub fn unsubscribe(&self, request: RequestId, subscription: Arc<Notify>) {
        let mut waiting = self.waiting.lock();
        drop(subscription);
        if waiting
            .get(&request)
            .is_some_and(|notify| Arc::strong_count(notify) == 1)
        {
            waiting.remove(&request);
        }
    }
}
