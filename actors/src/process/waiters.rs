//! Callers that wait for requests to end.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use covault_core::{ids::RequestId, request::SigningRequest, schema::wire};
use parking_lot::Mutex;
use tokio::sync::{Notify, futures::Notified};

use crate::services::OutcomeListener;

/// Those who wait for a request to end.
#[derive(Default)]
pub struct CompletionWaiters {
    waiting: Mutex<HashMap<RequestId, Arc<CompletionNotice>>>,
    closed: AtomicBool,
}

/// What those who wait for one request are told.
#[derive(Default)]
pub struct CompletionNotice {
    notify: Notify,
    outcome: OnceLock<wire::ExecuteSigningRequestsResponse>,
}

impl CompletionNotice {
    /// Ends once the request has ended, or nobody is to wait. To be polled before the store is asked.
    pub fn notified(&self) -> Notified<'_> {
        self.notify.notified()
    }

    /// What its actor has committed, where that is known here: nobody needs to read it again.
    pub fn outcome(&self) -> Option<&wire::ExecuteSigningRequestsResponse> {
        self.outcome.get()
    }
}

impl OutcomeListener for CompletionWaiters {
    fn ended(&self, request: &SigningRequest) {
        let notice = self.waiting.lock().remove(&request.id);
        let Some(notice) = notice else {
            return;
        };
        if let Some(outcome) = request.outcome() {
            // It is the first: the notice is no longer among those that wait.
            let _ = notice.outcome.set(outcome);
        }
        notice.notify.notify_waiters();
    }
}

impl CompletionWaiters {
    /// What is told once the request is final.
    pub fn subscribe(&self, request: RequestId) -> Arc<CompletionNotice> {
        let mut waiting = self.waiting.lock();
        Arc::clone(waiting.entry(request).or_default())
    }

    /// Nobody is to wait.
    pub fn close(&self) {
        let mut waiting = self.waiting.lock();
        self.closed.store(true, Ordering::SeqCst);
        for (_, notice) in waiting.drain() {
            notice.notify.notify_waiters();
        }
    }

    /// Whether nobody is to wait. To be asked after listening to a subscription.
    pub fn closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Forgets a subscription that nobody else shares.
    pub fn unsubscribe(&self, request: RequestId, subscription: Arc<CompletionNotice>) {
        let mut waiting = self.waiting.lock();
        drop(subscription);
        if waiting
            .get(&request)
            .is_some_and(|notice| Arc::strong_count(notice) == 1)
        {
            waiting.remove(&request);
        }
    }
}
