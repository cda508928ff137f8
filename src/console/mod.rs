//! The console: pages on which people see what waits for them, approve and reject it, and find it again.
//!
//! It decides nothing. It calls operations in the name of the person who has signed in, and the passkey of that person
//! signs what is approved: neither a session nor this server can approve ([docs/console.md]).
//!
//! [docs/console.md]: ../../../docs/console.md

pub mod assets;
mod audit;
mod batch_upload;
mod batches;
mod csv;
pub mod earlier_tries;
pub mod enrolment;
mod events;
mod facts;
pub mod fee_estimates;
pub mod gestures;
mod history;
mod history_filter;
mod listing;
pub mod lockout;
mod pages;
mod people;
mod reader_places;
pub mod requests;
pub mod response;
mod rule_facts;
mod search;
pub mod sessions;
mod settings;
pub mod standing;
#[cfg(test)]
pub mod tests;
pub mod text;
pub mod totals;
mod vaults;
pub mod views;

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{
        HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header, request::Parts,
    },
};
use covault_actors::{
    gateway::{Caller, Gateway, Shares},
    operations::Operation,
    users::{Browser, SignedIn},
};
use covault_core::fault::{Class, Fault};

use self::{
    facts::KnownTokens,
    lockout::{LockOut, TriedSecret},
    reader_places::ReaderPlaces,
    response::{PageError, PageResponse},
};
use crate::{
    api::{
        self, Api,
        address::{self, Peer, network},
        headers::{self, REQUEST_ID},
        meter::{MeasuredCall, Transport},
    },
    config::{PageOrigin, ShownSetting},
    shutdown::StopSignal,
    telemetry::ACCESS,
};

/// The largest body: a hundred approvals, and what a passkey signs.
const MAX_BODY: usize = 64 << 10;
/// The same of those who have not signed in.
const MAX_STRANGERS_BODY: usize = 8 << 10;
/// How long their bodies may take.
const STRANGERS_TIMEOUT: Duration = Duration::from_secs(5);
/// How many of their requests are in progress at once, shared by their addresses. The API's places are not touched.
const STRANGERS: usize = 256;
/// How many read long lists at once, to check or to export them.
const LONG_READS: usize = 2;
/// How many look at a history at once.
const HISTORIES: usize = 4;
/// How many have what is known of recipients looked up at once: whoever decides on a request waits for no history.
const RECIPIENTS: usize = 16;
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

pub use lockout::describe;

/// What every page needs.
pub struct Console {
    api: Arc<Api>,
    place: PageOrigin,
    lock_out: LockOut,
    strangers: Arc<Shares<Option<IpAddr>>>,
    /// What applies, without secrets.
    settings: Vec<ShownSetting>,
    known_tokens: KnownTokens,
    long_reads: Arc<ReaderPlaces>,
    /// Those who look at a history: one may be read in parts of some MiB.
    histories: Arc<ReaderPlaces>,
    recipients: Arc<ReaderPlaces>,
    /// It was said that a proxy stands before it which no setting names.
    proxy_was_named: AtomicBool,
    stop: StopSignal,
}

/// The routes. Streams end with `stop`.
pub fn router(
    api: &Arc<Api>,
    place: PageOrigin,
    settings: Vec<ShownSetting>,
    stop: &StopSignal,
) -> Router {
    let console = Arc::new(Console {
        api: Arc::clone(api),
        place,
        lock_out: LockOut::default(),
        strangers: Shares::new(STRANGERS),
        settings,
        known_tokens: KnownTokens::default(),
        long_reads: ReaderPlaces::new(LONG_READS),
        histories: ReaderPlaces::new(HISTORIES),
        recipients: ReaderPlaces::new(RECIPIENTS),
        proxy_was_named: AtomicBool::new(false),
        stop: stop.clone(),
    });
    Router::new().fallback(serve).with_state(console)
}

/// One request, as pages and gestures get it.
pub struct ConsoleCall<'a> {
    console: &'a Arc<Console>,
    head: &'a Parts,
    body: Bytes,
    /// The id that errors and the log carry.
    id: &'a str,
    address: Option<IpAddr>,
    /// The address as text; empty: not known.
    shown_address: String,
}

impl ConsoleCall<'_> {
    fn gateway(&self) -> &Gateway {
        &self.console.api.gateway
    }

    fn now_ms(&self) -> u64 {
        self.console.api.clock.now_ms()
    }

    fn origin(&self) -> &str {
        &self.console.place.origin
    }

    /// Counts a wrong try, and lets it cost the address more than other calls do: guessing has to be slow.
    fn wrong(&self, tried: TriedSecret) {
        let Console { lock_out, api, .. } = &**self.console;
        lock_out.wrong(tried, self.address, self.now_ms());
        if let Some(address) = self.address {
            api.admission.unauthenticated(address);
        }
    }

    /// The values of a parameter of the URL.
    fn parameters(&self, name: &str) -> Vec<String> {
        let query = self.head.uri.query().unwrap_or_default();
        let pairs = form_urlencoded::parse(query.as_bytes());
        let found = pairs.filter(|(key, _)| key == name);
        found.map(|(_, value)| value.into_owned()).collect()
    }

    /// The first value of a parameter of the URL; empty without one.
    fn parameter(&self, name: &str) -> String {
        self.parameters(name).into_iter().next().unwrap_or_default()
    }

    fn browser(&self) -> Browser<'_> {
        let agent = self.head.headers.get(header::USER_AGENT);
        Browser {
            user_agent: agent.and_then(|it| it.to_str().ok()).unwrap_or_default(),
            address: &self.shown_address,
            request_id: self.id,
        }
    }

    fn caller(&self, signed_in: &SignedIn) -> Caller {
        Caller::person(&signed_in.user, self.id)
    }

    /// Calls an operation in the name of the person.
    async fn operation<O: Operation>(
        &self,
        signed_in: &SignedIn,
        request: &O::Request,
    ) -> Result<O::Response, Fault> {
        let caller = self.caller(signed_in);
        let called = self.gateway().call_typed::<O>(&caller, request, None).await;
        Ok(called?.0)
    }

    /// Asks what only operators may ask. What the person may not see of it is left out by who calls this.
    async fn look_up<O: Operation>(&self, request: &O::Request) -> Result<O::Response, Fault> {
        let caller = Caller::service(self.id);
        let called = self.gateway().call_typed::<O>(&caller, request, None).await;
        Ok(called?.0)
    }
}

async fn serve(State(console): State<Arc<Console>>, request: Request) -> Response<Body> {
    let api = &console.api;
    let headers::RequestId(id) = headers::request_id(request.headers(), api.entropy.as_ref());
    let (head, body) = request.into_parts();
    let path = headers::shown_path(&head.uri);
    let (method, began) = (head.method.clone(), api.clock.now_ms());
    let measured = MeasuredCall::begin(Transport::Console, name_of(&head).into());
    let answer = api::unless_it_panics(answer(&console, &head, body, &id)).await;
    let answer = answer.unwrap_or_else(|refused| refused.answer(&head, &id));
    let mut response = answer.into_response();
    protect(response.headers_mut(), &console.place.origin);
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let status = response.status();
    measured.answered(status);
    let ms = api.clock.now_ms().saturating_sub(began);
    let (code, is_ours) = (status.as_u16(), status.is_server_error());
    if is_ours {
        tracing::info!(target: ACCESS, request_id = id, %method, path, status = code, ms, "console");
    } else {
        tracing::debug!(target: ACCESS, request_id = id, %method, path, status = code, ms, "console");
    }
    response
}

/// What a request is called in metrics: a fixed list, however many paths are made up.
fn name_of(head: &Parts) -> &'static str {
    let first = head.uri.path().split('/').nth(1).unwrap_or_default();
    const NAMES: [&str; 17] = [
        "approve",
        "audit",
        "batches",
        "enrol",
        "events",
        "history",
        "history.csv",
        "nodes",
        "reject",
        "requests",
        "settings",
        "sign-in",
        "static",
        "tokens",
        "users",
        "vaults",
        "wallets",
    ];
    let known = NAMES.into_iter().find(|name| *name == first);
    known.unwrap_or("pages")
}

/// What is said before anyone is known: that the headers are too large, a file that never changes, or that a request
/// is neither a reading one nor sent by a page of this origin. `None`: it continues.
pub fn of_anybody(
    head: &Parts,
    path: &[&str],
    is_read: bool,
    origin: &str,
) -> Result<Option<PageResponse>, PageError> {
    if !headers::are_within_limits(&head.headers) {
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return Err(PageError::new(status, headers::TOO_LARGE));
    }
    if is_read && let Some(answer) = response::fixed(path, head.uri.query()) {
        return Ok(Some(answer));
    }
    match head.method {
        Method::GET | Method::HEAD => {}
        Method::POST => check_origin(&head.headers, origin)?,
        _ => {
            return Err(PageError::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "use GET or POST",
            ));
        }
    }
    Ok(None)
}

async fn answer(
    console: &Arc<Console>,
    head: &Parts,
    body: Body,
    id: &str,
) -> Result<PageResponse, PageError> {
    let api = &console.api;
    let peer = head.extensions.get::<Peer>();
    let address =
        peer.map(|Peer(peer)| address::of(peer.ip(), &head.headers, console.place.trusted_proxies));
    note_proxy(
        &console.proxy_was_named,
        "console.trusted_proxies",
        console.place.trusted_proxies,
        head,
    );
    if let Some(address) = address {
        api.admission.address(address)?;
    }
    let path: Vec<&str> = head.uri.path().split('/').skip(1).collect();
    let is_read = matches!(head.method, Method::GET | Method::HEAD);
    if let Some(answer) = of_anybody(head, &path, is_read, &console.place.origin)? {
        return Ok(answer);
    }
    let mut call = ConsoleCall {
        console,
        head,
        body: Bytes::new(),
        id,
        address,
        shown_address: address.map(|it| it.to_string()).unwrap_or_default(),
    };
    if let ["sign-in" | "enrol", ..] = path.as_slice() {
        return of_stranger(&mut call, is_read, &path, body).await;
    }
    // Everything else is for those who have signed in, and nothing that others send is read.
    let in_flight = api.admission.enter()?;
    let signed_in = sessions::signed_in(&call).await?;
    let token = call.caller(&signed_in).token;
    api.admission.token(&token)?;
    api.admission.may_ask(token)?;
    in_flight.belongs_to(token)?;
    if !is_read {
        let most = match path.as_slice() {
            ["batches"] | ["batches", "check"] => batch_upload::MAX_UPLOAD,
            _ => MAX_BODY,
        };
        in_flight.hold(announced(head).min(most))?;
        call.body = read(head, body, most, api.body_timeout).await?;
    }
    let answer = match page(&call, &signed_in, is_read, &path).await {
        Ok(answer) => answer,
        Err(error) => return Err(error.within(views::Shell::new(&signed_in, ""))),
    };
    // What is not read counts as it does over the API. A gesture that is done is answered in any case.
    let unread = api.admission.answer(token, answer.size(), !is_read)?;
    Ok(answer.with_share(unread))
}

/// The page of a path, or what a gesture does, for who has signed in.
async fn page(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    is_read: bool,
    path: &[&str],
) -> Result<PageResponse, PageError> {
    match (is_read, path) {
        (true, [""]) => listing::inbox(call, signed_in).await,
        (true, ["history"]) => history::page(call, signed_in).await,
        (true, ["history.csv"]) => csv::export(call, signed_in).await,
        (true, ["requests", uuid]) => requests::page(call, signed_in, &[(*uuid).to_owned()]).await,
        (true, ["requests"]) => requests::chosen(call, signed_in).await,
        (true, ["batches"]) => batches::list(call, signed_in).await,
        (true, ["batches", "new"]) => batch_upload::page(call, signed_in).await,
        (true, ["batches", uuid]) => batches::page(call, signed_in, uuid).await,
        (false, ["batches", "check"]) => batch_upload::check(call, signed_in).await,
        (false, ["batches"]) => batch_upload::create(call, signed_in).await,
        (false, ["batches", uuid, what]) => batches::act(call, signed_in, uuid, what).await,
        (true, ["vaults"]) => vaults::list(call, signed_in).await,
        (true, ["vaults", uuid]) => vaults::page(call, signed_in, uuid).await,
        (true, ["wallets", address]) => vaults::wallet(call, signed_in, address).await,
        (true, ["nodes"]) => pages::nodes(call, signed_in).await,
        (true, ["tokens"]) => people::tokens(call, signed_in).await,
        (true, ["users"]) => people::users(call, signed_in).await,
        (true, ["settings"]) => settings::page(call, signed_in),
        (true, ["audit"]) => audit::page(call, signed_in).await,
        (true, ["audit", "verify"]) => audit::verify(call, signed_in).await,
        (true, ["account"]) => pages::account(call, signed_in).await,
        (true, ["events"]) => events::stream(call, signed_in.clone()).await,
        (false, ["approve", "begin"]) => gestures::begin_approval(call, signed_in).await,
        (false, ["approve"]) => gestures::approve(call, signed_in).await,
        (false, ["reject", "begin"]) => gestures::begin_rejection(call, signed_in).await,
        (false, ["reject"]) => gestures::reject(call, signed_in).await,
        (false, ["sign-out"]) => sessions::sign_out(call, signed_in).await,
        (false, ["sign-out", "elsewhere"]) => sessions::sign_out_elsewhere(call, signed_in).await,
        _ => Err(no_such_page()),
    }
}

/// Signing in and enrolling, which anyone may try: in places of their own, and with small bodies that arrive soon.
async fn of_stranger(
    call: &mut ConsoleCall<'_>,
    is_read: bool,
    path: &[&str],
    body: Body,
) -> Result<PageResponse, PageError> {
    let of = call.address.map(network);
    let place = call.console.strangers.take(&[of], 1);
    let _place = place.map_err(|_| {
        Fault::unavailable("too many people are signing in; try again in a few seconds")
    })?;
    if !is_read {
        let timeout = call.console.api.body_timeout.min(STRANGERS_TIMEOUT);
        call.body = read(call.head, body, MAX_STRANGERS_BODY, timeout).await?;
    }
    let call = &*call;
    match (is_read, path) {
        (true, ["sign-in"]) => sessions::page(call).await,
        (false, ["sign-in", "begin"]) => sessions::begin(call).await,
        (false, ["sign-in"]) => sessions::sign_in(call).await,
        (true, ["enrol"]) => enrolment::page(),
        (false, ["enrol", "begin"]) => enrolment::begin(call).await,
        (false, ["enrol", "prove"]) => enrolment::prove(call),
        (false, ["enrol"]) => enrolment::finish(call).await,
        _ => Err(no_such_page()),
    }
}

/// 404.
pub fn no_such_page() -> PageError {
    PageError::new(StatusCode::NOT_FOUND, "there is no such page")
}

/// How long the body says that it is, in bytes; as long as can be where it does not.
fn announced(head: &Parts) -> usize {
    let length = head.headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    length.unwrap_or(usize::MAX)
}

/// Reads a body of at most `limit` bytes.
///
/// # Errors
/// 413 when it is larger, 408 when it takes longer.
pub async fn read(
    head: &Parts,
    body: Body,
    limit: usize,
    within: Duration,
) -> Result<Bytes, PageError> {
    let too_large = || {
        let problem = format!("the body is incomplete, or larger than {} KiB", limit >> 10);
        PageError::new(StatusCode::PAYLOAD_TOO_LARGE, &problem)
    };
    if head.headers.contains_key(header::CONTENT_LENGTH) && announced(head) > limit {
        return Err(too_large());
    }
    let read = axum::body::to_bytes(body, limit);
    let read = tokio::time::timeout(within, read).await;
    let read = read.map_err(|_| {
        PageError::new(
            StatusCode::REQUEST_TIMEOUT,
            "the body did not arrive in time",
        )
    })?;
    read.map_err(|_| too_large())
}

/// Says once that requests come through a proxy which `setting` does not name: all people share an address then, its limits
/// and its wrong tries. Whether it was said now.
pub fn note_proxy(
    was_said: &AtomicBool,
    setting: &str,
    trusted_proxies: usize,
    head: &Parts,
) -> bool {
    let is_named = head.headers.contains_key("x-forwarded-for");
    let is_new = trusted_proxies == 0 && is_named && !was_said.swap(true, Ordering::Relaxed);
    if is_new {
        tracing::warn!(
            "requests have X-Forwarded-For, and {setting} is 0: behind a proxy all people share one address, its limits and \
             its wrong tries; set {setting} to the number of proxies"
        );
    }
    is_new
}

/// Refuses what another site has a browser send: the origin must be that of the pages, whole, and so must be what the
/// browser says of who asks, where it says it.
///
/// # Errors
/// 403.
pub fn check_origin(headers: &HeaderMap, origin: &str) -> Result<(), PageError> {
    let only = |name: &HeaderName| {
        let mut values = headers.get_all(name).iter();
        let value = values.next();
        // Of two nobody can say which is meant.
        (value, values.next().is_none())
    };
    let (given, alone) = only(&header::ORIGIN);
    let (site, site_alone) = only(&SEC_FETCH_SITE);
    let is_ours = given.is_some_and(|given| given.as_bytes() == origin.as_bytes());
    let is_same = site.is_none_or(|site| site.as_bytes() == b"same-origin");
    if is_ours && alone && is_same && site_alone {
        return Ok(());
    }
    Err(PageError::new(
        StatusCode::FORBIDDEN,
        "this did not come from a page of this service",
    ))
}

/// What browsers are told about every answer.
pub fn protect(headers: &mut HeaderMap, origin: &str) {
    for (name, value) in [
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
             form-action 'self'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; \
             trusted-types 'none'",
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        // Not no-referrer: the origin of forms would be null.
        (header::REFERRER_POLICY, "same-origin"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("permissions-policy"),
            "publickey-credentials-get=(self), publickey-credentials-create=(self), camera=(), geolocation=(), \
             microphone=(), payment=(), usb=()",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if origin.starts_with("https://") {
        let year = HeaderValue::from_static("max-age=31536000");
        headers.insert(header::STRICT_TRANSPORT_SECURITY, year);
    }
    let caching = headers.entry(header::CACHE_CONTROL);
    caching.or_insert(HeaderValue::from_static("no-store"));
}

/// A fault of a person who may not do something.
pub fn forbidden(problem: &str) -> PageError {
    Fault::new(Class::Forbidden, problem).into()
}
