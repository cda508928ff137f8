//! The page of a signer node on which people approve, so that nobody but this node decides what they are shown
//! ([docs/approvals.md]).
//!
//! There are no accounts: who may sign in, and what is asked of whom, the node's own policy says. Requests come from the
//! orchestrators, and the node decodes them itself; an approval goes back to them, and signers verify it as any other.
//!
//! [docs/approvals.md]: ../../../docs/approvals.md

mod enrolment;
mod gestures;
mod people;
mod requests;
mod sessions;
#[cfg(test)]
mod tests;

use std::{
    net::IpAddr,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use anyhow::Context as _;
use async_trait::async_trait;
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderValue, Method, Response, request::Parts},
};
use covault_actors::gateway::Shares;
use covault_core::{
    fault::Fault,
    ids::{RequestId, VaultId},
    order::NodeId,
    port::{Clock, Entropy},
};
use covault_mpc::{
    enrolment_links::EnrolmentLinks,
    node::{ApprovalRelay, CurrentPolicy, ToldRequests},
    questions::{NodeAnswer, NodeQuestion},
    veto::VetoStore,
};
use sha2::{Digest as _, Sha256};
use tokio::task::JoinHandle;

use self::{people::PolicyPeople, sessions::PageSessions};
use crate::{
    api::{
        self,
        address::{self, Peer, network},
        headers::{self, REQUEST_ID},
    },
    config::PageOrigin,
    console::{
        self,
        lockout::LockOut,
        response::{PageError, PageResponse},
        text::Text,
        views::{PersonView, Shell},
    },
    http::server::{self, HttpVersion, ServerLimits},
    listeners,
    shutdown::StopSignal,
    telemetry::ACCESS,
    tls::ServerTls,
};

/// The largest body: what a passkey signs, and 100 requests.
const MAX_BODY: usize = 32 << 10;
/// How long a body may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// Calls in progress at once: of those who have not signed in, shared by their addresses, and of those who have, shared by
/// the people.
const STRANGERS: usize = 64;
const SIGNED_IN: usize = 16;
/// Connections at once, and those of one address where no proxy stands before the page.
const CONNECTIONS: usize = 256;
const CONNECTIONS_OF_ONE: usize = 32;

/// Where the page has requests from, and where it brings approvals.
#[async_trait]
pub trait WaitingRequests: Send + Sync {
    /// See [`ApprovalRelay::holds`].
    fn holds(&self, vault: VaultId, root_public_key: &[u8]) -> Result<bool, Fault>;
    /// See [`ApprovalRelay::signs_for`].
    fn signs_for(&self, vault: VaultId) -> Result<bool, Fault>;
    /// See [`ApprovalRelay::vetoes`].
    fn vetoes(&self) -> Result<Arc<VetoStore>, Fault>;
    /// See [`ApprovalRelay::pending`].
    async fn pending(&self, requests: &[RequestId]) -> Result<ToldRequests, Fault>;
    /// See [`ApprovalRelay::act`].
    async fn act(
        &self,
        questions: Vec<(NodeId, NodeQuestion)>,
    ) -> Result<Vec<(NodeId, NodeAnswer)>, Fault>;
}

#[async_trait]
impl WaitingRequests for ApprovalRelay {
    fn holds(&self, vault: VaultId, root_public_key: &[u8]) -> Result<bool, Fault> {
        ApprovalRelay::holds(self, vault, root_public_key)
    }

    fn signs_for(&self, vault: VaultId) -> Result<bool, Fault> {
        ApprovalRelay::signs_for(self, vault)
    }

    fn vetoes(&self) -> Result<Arc<VetoStore>, Fault> {
        ApprovalRelay::vetoes(self)
    }

    async fn pending(&self, requests: &[RequestId]) -> Result<ToldRequests, Fault> {
        ApprovalRelay::pending(self, requests).await
    }

    async fn act(
        &self,
        questions: Vec<(NodeId, NodeQuestion)>,
    ) -> Result<Vec<(NodeId, NodeAnswer)>, Fault> {
        ApprovalRelay::act(self, questions).await
    }
}

/// What the page needs.
pub struct ApprovalPageParts {
    /// The node's name.
    pub node: String,
    /// Under what browsers reach it.
    pub place: PageOrigin,
    /// The requests.
    pub waiting: Arc<dyn WaitingRequests>,
    /// Who approves what.
    pub policy: Arc<CurrentPolicy>,
    /// The node's folder, with its enrolment links.
    pub folder: PathBuf,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The source of randomness.
    pub entropy: Arc<dyn Entropy>,
}

struct ApprovalPage {
    node: String,
    place: PageOrigin,
    waiting: Arc<dyn WaitingRequests>,
    people: PolicyPeople,
    links: EnrolmentLinks,
    sessions: PageSessions,
    lock_out: LockOut,
    strangers: Arc<Shares<Option<IpAddr>>>,
    /// By SHA-256 of the person's name.
    signed_in: Arc<Shares<[u8; 32]>>,
    proxy_was_named: AtomicBool,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
}

/// One request of a browser.
struct PageCall<'a> {
    page: &'a ApprovalPage,
    head: &'a Parts,
    body: Bytes,
    address: Option<IpAddr>,
}

impl PageCall<'_> {
    fn now_ms(&self) -> u64 {
        self.page.clock.now_ms()
    }

    /// What surrounds a page for those who have not signed in.
    fn outside(&self) -> Shell {
        Shell {
            node: Some(Text::new(&self.page.node)),
            ..Shell::outside()
        }
    }

    /// What surrounds a page of this person.
    fn shell(&self, session: &sessions::PageSession) -> Shell {
        Shell {
            person: Some(PersonView {
                name: Text::new(&session.person),
                role: "approver",
                form_token: session.form_token.clone(),
                is_operator: false,
                is_auditor: false,
            }),
            ..self.outside()
        }
    }
}

/// Serves the page at this address until `stop`.
///
/// # Errors
/// When the address cannot be used.
pub async fn start(
    parts: ApprovalPageParts,
    listen: &str,
    tls: Option<ServerTls>,
    stop: StopSignal,
) -> anyhow::Result<JoinHandle<anyhow::Result<()>>> {
    let listener = listeners::listen(listen)
        .await
        .context("signer.approve_listen")?;
    let origin = &parts.place.origin;
    tracing::info!(address = %listener.local_addr()?, origin, "people approve on this node's page");
    if !people::counts_as_node(&parts.policy.get().0, &parts.place) {
        tracing::warn!(
            origin,
            "signer.approve_origin is not among node_origins of this node's policy file: what people approve on its page \
             counts as approved on the console; add it there, and in the policy files of the other signers"
        );
    }
    let limits = ServerLimits {
        reading: Duration::from_secs(30),
        max_connections: CONNECTIONS,
        max_per_address: (parts.place.trusted_proxies == 0).then_some(CONNECTIONS_OF_ONE),
        ..ServerLimits::OPERATORS
    };
    let router = router(parts);
    let version = HttpVersion::Http1;
    let served = server::serve(listener, tls, router, version, limits, stop);
    Ok(tokio::spawn(served))
}

fn router(parts: ApprovalPageParts) -> Router {
    let ApprovalPageParts {
        node,
        place,
        waiting,
        policy,
        folder,
        clock,
        entropy,
    } = parts;
    let page = ApprovalPage {
        node,
        people: PolicyPeople::new(policy, place.origin.clone()),
        place,
        waiting,
        links: EnrolmentLinks::of(&folder),
        sessions: PageSessions::new(&*entropy),
        lock_out: LockOut::default(),
        strangers: Shares::new(STRANGERS),
        signed_in: Shares::new(SIGNED_IN),
        proxy_was_named: AtomicBool::new(false),
        clock,
        entropy,
    };
    Router::new().fallback(serve).with_state(Arc::new(page))
}

async fn serve(State(page): State<Arc<ApprovalPage>>, request: Request) -> Response<Body> {
    let headers::RequestId(id) = headers::request_id(request.headers(), page.entropy.as_ref());
    let (head, body) = request.into_parts();
    let path = headers::shown_path(&head.uri);
    let method = head.method.clone();
    let is_known = sessions::is_known(&page, &head);
    let answer = api::unless_it_panics(answer(&page, &head, body)).await;
    let answer = answer.unwrap_or_else(|refused| match is_known {
        true => refused.answer(&head, &id),
        false => refused.answer_quietly(&head, &id),
    });
    let mut response = answer.into_response();
    console::protect(response.headers_mut(), &page.place.origin);
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let status = response.status().as_u16();
    match is_known {
        true => tracing::info!(request_id = id, %method, path, status, "approval page"),
        // Anybody can ask, as often as he likes: a flood must not fill the disk with words about itself.
        false => {
            tracing::debug!(target: ACCESS, request_id = id, %method, path, status, "approval page")
        }
    }
    response
}

async fn answer(page: &ApprovalPage, head: &Parts, body: Body) -> Result<PageResponse, PageError> {
    let peer = head.extensions.get::<Peer>();
    let proxies = page.place.trusted_proxies;
    let address = peer.map(|Peer(peer)| address::of(peer.ip(), &head.headers, proxies));
    let setting = "signer.approve_trusted_proxies";
    console::note_proxy(&page.proxy_was_named, setting, proxies, head);
    let path: Vec<&str> = head.uri.path().split('/').skip(1).collect();
    let is_read = matches!(head.method, Method::GET | Method::HEAD);
    if let Some(answer) = console::of_anybody(head, &path, is_read, &page.place.origin)? {
        return Ok(answer);
    }
    let mut call = PageCall {
        page,
        head,
        body: Bytes::new(),
        address,
    };
    if let ["sign-in" | "enrol", ..] = path.as_slice() {
        return of_stranger(&mut call, is_read, &path, body).await;
    }
    // Nothing that others send is read.
    let session = sessions::signed_in(&call)?;
    let person = Sha256::digest(&session.person).into();
    let place = page.signed_in.take(&[person], 1);
    let _place = place.map_err(|_| {
        Fault::unavailable("too many people use this page; try again in a few seconds")
    })?;
    if !is_read {
        call.body = console::read(head, body, MAX_BODY, BODY_TIMEOUT).await?;
    }
    match (is_read, path.as_slice()) {
        (true, [""]) => requests::list(&call, &session).await,
        (true, ["requests"]) => requests::chosen(&call, &session).await,
        (true, ["requests", uuid]) => requests::one(&call, &session, uuid).await,
        (false, ["approve", "begin"]) => gestures::begin_approval(&call, &session).await,
        (false, ["approve"]) => gestures::approve(&call, &session).await,
        (false, ["reject", "begin"]) => gestures::begin_rejection(&call, &session).await,
        (false, ["reject"]) => gestures::reject(&call, &session).await,
        (false, ["sign-out"]) => sessions::sign_out(&call, &session),
        _ => Err(console::no_such_page()),
    }
}

/// Signing in and enrolling, which anyone may try.
async fn of_stranger(
    call: &mut PageCall<'_>,
    is_read: bool,
    path: &[&str],
    body: Body,
) -> Result<PageResponse, PageError> {
    let place = call.page.strangers.take(&[call.address.map(network)], 1);
    let _place = place.map_err(|_| {
        Fault::unavailable("too many people are signing in; try again in a few seconds")
    })?;
    if !is_read {
        call.body = console::read(call.head, body, MAX_BODY, BODY_TIMEOUT).await?;
    }
    let call = &*call;
    match (is_read, path) {
        (true, ["sign-in"]) => sessions::page(call),
        (false, ["sign-in", "begin"]) => sessions::begin(call),
        (false, ["sign-in"]) => sessions::sign_in(call),
        (true, ["enrol"]) => enrolment::page(call),
        (false, ["enrol", "begin"]) => enrolment::begin(call),
        (false, ["enrol", "prove"]) => enrolment::prove(call),
        (false, ["enrol"]) => enrolment::finish(call),
        _ => Err(console::no_such_page()),
    }
}
