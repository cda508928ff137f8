//! Tells open pages that something has changed. What it was the page asks for itself. The first event says how many requests
//! wait, so that a page that was made before it listened knows whether it is old.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    http::{HeaderName, HeaderValue},
    response::{
        IntoResponse as _,
        sse::{Event, KeepAlive, Sse},
    },
};
use covault_actors::{gateway::ChangeListener, users::SignedIn};
use covault_core::fault::Fault;
use futures::{StreamExt as _, stream};
use tokio::time::{Instant, sleep_until, timeout};

use super::{
    Console, ConsoleCall, listing,
    response::{PageError, PageResponse},
    sessions,
};
use crate::{api::admission::ListenerPlace, http::server::RequestGuard, shutdown};

/// How often it is looked whether the session still holds, and a sign of life is sent.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How long a page waits until it listens: the store may not be there.
const PATIENCE: Duration = Duration::from_secs(10);
/// Changes that come within this time are one: a page loads again once.
const GATHER: Duration = Duration::from_millis(500);

struct PageListener {
    console: Arc<Console>,
    listener: ChangeListener,
    who: SignedIn,
    cookie: String,
    _held: (ListenerPlace, Option<RequestGuard>),
}

pub async fn stream(call: &ConsoleCall<'_>, who: SignedIn) -> Result<PageResponse, PageError> {
    let caller = call.caller(&who);
    let place = call.console.api.admission.listen(caller.token)?;
    let listener = call.gateway().listen(caller, None);
    let (listener, _) = timeout(PATIENCE, listener)
        .await
        .map_err(|_| Fault::unavailable("the store cannot be read now"))?;
    // Read after it listens: nothing is missed in between.
    let view = listing::InboxView::of(call, &who);
    let (pending, _) = listing::pending(call, &who, view, "", listing::INBOX).await?;
    let pending = listing::mark(&pending);
    let guard = call.head.extensions.get::<RequestGuard>().cloned();
    let listening = PageListener {
        console: Arc::clone(call.console),
        listener,
        who,
        cookie: sessions::cookie_of(call),
        _held: (place, guard),
    };
    let first = Event::default().event("pending").data(pending);
    let first = stream::iter([Ok::<_, Infallible>(first)]);
    let events = stream::unfold(listening, |mut listening| async move {
        listening.changed().await?;
        let event = Event::default().event("changed").data("{}");
        Some((Ok::<_, Infallible>(event), listening))
    });
    let alive = KeepAlive::new().interval(HEARTBEAT);
    let mut response = Sse::new(first.chain(events))
        .keep_alive(alive)
        .into_response();
    let unbuffered = HeaderName::from_static("x-accel-buffering");
    let headers = response.headers_mut();
    headers.insert(unbuffered, HeaderValue::from_static("no"));
    Ok(PageResponse::stream(response))
}

impl PageListener {
    /// Returns when something has changed; `None` at the end of session or process.
    async fn changed(&mut self) -> Option<()> {
        let mut stop = self.console.stop.clone();
        let mut heartbeat = Instant::now() + HEARTBEAT;
        let mut told: Option<Instant> = None;
        loop {
            let due = told.unwrap_or(heartbeat).min(heartbeat);
            tokio::select! {
                biased;
                () = shutdown::requested(&mut stop) => return None,
                () = sleep_until(due) => {
                    if !sessions::recheck(&self.cookie, &self.console, &self.who).await {
                        return None;
                    }
                    if told.is_some_and(|at| at <= due) {
                        return Some(());
                    }
                    heartbeat = Instant::now() + HEARTBEAT;
                }
                heard = self.listener.next() => {
                    if !heard.changes.is_empty() {
                        told.get_or_insert(Instant::now() + GATHER);
                    }
                }
            }
        }
    }
}
