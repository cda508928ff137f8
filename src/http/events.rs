//! `GET /v1/events`: server-sent events about requests that have changed (docs/events.md).

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Extension, Request},
    http::{HeaderMap, HeaderName, HeaderValue, Response, request::Parts},
    response::{
        IntoResponse as _,
        sse::{Event, KeepAlive, Sse},
    },
    routing::get,
};
use covault_actors::gateway::{Change, ChangeListener, HeardChanges, ListenerStart, Position};
use covault_core::{fault::Fault, schema::service::Audience, trace::TraceParent};
use futures::{Stream, StreamExt as _, stream};
use tokio::time::{Instant, sleep_until, timeout};

use super::{count, error::HttpError, server::RequestGuard, wrong_method};
use crate::{
    api::{
        Api, Credentials,
        admission::ListenerPlace,
        auth::CallerRecheck,
        headers::{self, RequestId},
        meter::{MeasuredCall, Transport},
    },
    shutdown::{self, StopSignal},
};

/// Where it is.
pub const PATH: &str = "/v1/events";
/// What it is called in metrics.
const NAME: &str = "events";
/// How often a listener gets the newest position when nothing changes, and its token is looked at.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How long a listener waits until it listens: the store may not be there.
const PATIENCE: Duration = Duration::from_secs(10);
/// When browsers come back after a connection was lost.
const COME_BACK: Duration = Duration::from_secs(2);
/// A change of a request.
const CHANGED: &str = "request";
/// What was before is not known: everything is to be looked at.
const ANEW: &str = "reset";
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The route.
pub fn routes(api: &Arc<Api>, stop: &StopSignal) -> Router {
    let (listened, refused) = (Arc::clone(api), Arc::clone(api));
    let stop = stop.clone();
    let listen = move |Extension(id): Extension<RequestId>, request: Request| {
        let (api, stop) = (Arc::clone(&listened), stop.clone());
        async move {
            let measured = MeasuredCall::begin(Transport::Rest, NAME.into());
            let (head, _) = request.into_parts();
            let answer = listen(api, stop, &id.0, &head).await;
            let response = answer.unwrap_or_else(|failure| failure.into_response(None, &id.0));
            measured.answered(response.status());
            response
        }
    };
    let wrong = move |Extension(id): Extension<RequestId>, request: Request| {
        let counted = count(&refused, &request);
        async move {
            match counted {
                Ok(()) => wrong_method("GET", None, &id.0),
                Err(failure) => failure.into_response(None, &id.0),
            }
        }
    };
    Router::new().route(PATH, get(listen).fallback(wrong))
}

async fn listen(
    api: Arc<Api>,
    stop: StopSignal,
    request_id: &str,
    head: &Parts,
) -> Result<Response<Body>, HttpError> {
    let in_flight = api.admission.enter()?;
    let (headers, extensions) = (&head.headers, &head.extensions);
    let credentials = || Credentials {
        token: headers::token(headers),
        audience: Audience::Platform,
        operation: PATH,
        address: api.client_address(extensions, headers),
        request_id,
        trace: TraceParent::Unknown,
    };
    let caller = api.admit(credentials(), &in_flight).await?;
    let after = last_event_id(headers)?;
    let place = api.admission.listen(caller.token)?;
    let recheck = CallerRecheck::new(&api, caller.clone(), &credentials());
    let listener = api.gateway.listen(caller, after);
    let (listener, start) = timeout(PATIENCE, listener)
        .await
        .map_err(|_| Fault::unavailable("the store cannot be read now"))?;
    let listening = EventListener {
        first: Some(first(&listener, start)),
        listener,
        recheck,
        heartbeat: Instant::now() + HEARTBEAT,
        stop,
        _held: (place, extensions.get::<RequestGuard>().cloned()),
        api: Arc::clone(&api),
    };
    let alive = KeepAlive::new().interval(HEARTBEAT);
    let mut response = Sse::new(events(listening))
        .keep_alive(alive)
        .into_response();
    // Proxies are not to collect them.
    let headers = response.headers_mut();
    let unbuffered = HeaderName::from_static("x-accel-buffering");
    headers.insert(unbuffered, HeaderValue::from_static("no"));
    Ok(response)
}

/// Where the listener continues.
fn last_event_id(headers: &HeaderMap) -> Result<Option<Position>, Fault> {
    let mut values = headers.get_all(&LAST_EVENT_ID).iter();
    let Some(value) = values.next().filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(Fault::field("Last-Event-ID", "is given twice"));
    }
    value.to_str().unwrap_or_default().parse().map(Some)
}

/// What a listener gets at once.
fn first(listener: &ChangeListener, start: ListenerStart) -> Event {
    let event = match start {
        ListenerStart::Now | ListenerStart::GoesOn => Event::default(),
        ListenerStart::Anew => Event::default().event(ANEW).data("{}"),
    };
    let event = event.retry(COME_BACK);
    match listener
        .position()
        .filter(|_| start != ListenerStart::GoesOn)
    {
        Some(position) => event.id(position.to_string()),
        None => event,
    }
}

fn events(listening: EventListener) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold(listening, |mut listening| async move {
        let page = listening.next().await?;
        // Each is written when it is taken.
        let events = page.into_iter().map(|tidings| Ok(tidings.event()));
        Some((stream::iter(events), listening))
    })
    .flatten()
}

/// What an event is made of.
enum EventData {
    /// The beginning.
    First(Event),
    /// Nothing has changed up to here.
    Nothing(Position),
    /// A change, and the position behind it.
    Change(Arc<Change>, Option<Position>),
}

impl EventData {
    fn event(self) -> Event {
        let (event, position) = match self {
            Self::First(event) => return event,
            Self::Nothing(position) => (Event::default(), Some(position)),
            Self::Change(change, position) => {
                let event = Event::default().event(CHANGED).data(&change.data);
                (event, position)
            }
        };
        match position {
            Some(position) => event.id(position.to_string()),
            None => event,
        }
    }
}

/// One who listens.
struct EventListener {
    first: Option<Event>,
    listener: ChangeListener,
    recheck: CallerRecheck,
    heartbeat: Instant,
    stop: StopSignal,
    _held: (ListenerPlace, Option<RequestGuard>),
    api: Arc<Api>,
}

impl EventListener {
    /// What the next events are of; `None` at the end.
    async fn next(&mut self) -> Option<Vec<EventData>> {
        if let Some(first) = self.first.take() {
            return Some(vec![EventData::First(first)]);
        }
        loop {
            // While it reads what is long ago it keeps its turn.
            let position = self.listener.position();
            let heard = tokio::select! {
                biased;
                () = shutdown::requested(&mut self.stop) => return None,
                () = sleep_until(self.heartbeat), if position.is_some() => None,
                heard = self.listener.next() => Some(heard),
            };
            match heard {
                None => {
                    self.heartbeat = Instant::now() + HEARTBEAT;
                    self.check().await?;
                    let position = self.listener.position()?;
                    return Some(vec![EventData::Nothing(position)]);
                }
                Some(HeardChanges {
                    changes,
                    check_token,
                }) => {
                    if check_token {
                        self.check().await?;
                    }
                    if !changes.is_empty() {
                        let tidings = |(change, position)| EventData::Change(change, position);
                        return Some(changes.into_iter().map(tidings).collect());
                    }
                }
            }
        }
    }

    /// `None` when its token is no longer valid for this, or cannot be looked up: the client may reconnect.
    async fn check(&self) -> Option<()> {
        let checked = self.recheck.check(&self.api, Audience::Platform).await;
        checked
            .inspect_err(|fault| tracing::info!(?fault, "event stream closed"))
            .ok()
    }
}
