//! Callers that wait for requests to end.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use covault_core::{
    ids::{RequestId, TokenId},
    request::SigningRequest,
    schema::wire,
};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, futures::Notified},
    time::Instant,
};

use crate::services::OutcomeListener;

/// For how long it is enough that one of those that wait with a token has looked whether it is in use.
const CHECKED_FOR: Duration = Duration::from_secs(1);
/// From so many tokens on, those are forgotten that nobody waits with.
const MANY_TOKENS: usize = 1_024;

/// Those who wait for a request to end.
#[derive(Default)]
pub struct CompletionWaiters {
    waiting: Mutex<HashMap<RequestId, Arc<CompletionNotice>>>,
    /// When it was last looked for one of those that wait with a token whether that is still in use.
    checked: Mutex<HashMap<TokenId, Instant>>,
    closed: AtomicBool,
}

/// What those who wait for one request are told.
#[derive(Default)]
pub struct CompletionNotice {
    notify: Notify,
    outcome: OnceLock<wire::ExecuteSigningRequestsResponse>,
}

impl CompletionNotice {
    /// Ends once the request has ended or waits for people, or nobody is to wait. To be polled before the store is asked.
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

    /// Whether it is to be looked whether a token is still in use: nobody has within the last second.
    pub fn is_to_check(&self, token: TokenId) -> bool {
        let (now, mut checked) = (Instant::now(), self.checked.lock());
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < CHECKED_FOR;
        if checked.get(&token).is_some_and(is_recent) {
            return false;
        }
        if checked.len() >= MANY_TOKENS {
            checked.retain(|_, at| is_recent(at));
        }
        checked.insert(token, now);
        true
    }

    /// It was not: whoever else waits with it is to look as well.
    pub fn check_again(&self, token: &TokenId) {
        self.checked.lock().remove(token);
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
