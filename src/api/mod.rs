//! The operations, whatever transport brings them: decode, submit or view, encode. What surrounds
//! them (token, size, error shape, request id) is the transports' work: `http` and `grpc`.

pub mod address;
pub mod admission;
pub mod auth;
mod balances;
mod batches;
mod deposits;
pub mod headers;
pub mod meter;
mod signing_requests;
mod wallets;

use std::{net::IpAddr, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use axum::{
    body::Bytes,
    http::{Extensions, HeaderMap, HeaderValue},
};
use covault_actors::gateway::{
    Caller, Command, Gateway, IdempotencyKey, Operation as Once, Query, Receipt, Submitted,
};
use covault_core::{
    fault::{Class, Fault},
    port::{Clock, Entropy},
    schema::{json, service::Operation},
};
use futures::{FutureExt as _, future::BoxFuture};
use sha2::{Digest as _, Sha256};

use self::{
    address::Peer,
    admission::{Admission, Refusal},
    auth::{Area, Tokens},
    headers::{IDEMPOTENCY_MISMATCH, IDEMPOTENCY_REPLAYED},
};

/// What the API needs.
pub struct Api {
    /// The door to everything else.
    pub gateway: Gateway,
    /// Whether the bus was reachable when it was last used.
    pub bus_reachable: Box<dyn Fn() -> bool + Send + Sync>,
    /// Who may call.
    pub tokens: Tokens,
    /// How much, and how fast.
    pub admission: Admission,
    /// For request times in the log.
    pub clock: Arc<dyn Clock>,
    /// For request ids.
    pub entropy: Arc<dyn Entropy>,
    /// The largest body, in bytes.
    pub max_body_bytes: usize,
    /// How long a body may take to arrive.
    pub body_timeout: Duration,
    /// How long executeSigningRequests waits, in milliseconds.
    pub execute_wait_ms: u64,
    /// How many proxies stand before this service and are trusted to say whom they were called by.
    pub trusted_proxies: usize,
    /// 422 when an idempotency key comes again with another body.
    pub strict_idempotency: bool,
}

/// How messages are written in a call's body and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// The JSON mapping of the schema.
    Json,
    /// Protobuf.
    Protobuf,
}

/// Who knocks: what a transport knows of a call before anything is checked.
pub struct Credentials<'a> {
    /// The token.
    pub token: Option<&'a str>,
    /// What it is to open.
    pub area: Area,
    /// The client's address: the peer's, or what the trusted proxies say.
    pub address: Option<IpAddr>,
    /// The id of the call, for errors and the log.
    pub request_id: &'a str,
}

impl Api {
    /// The client's address of a request; nothing when the server does not know its peer.
    pub fn client_address(&self, extensions: &Extensions, headers: &HeaderMap) -> Option<IpAddr> {
        let Peer(peer) = extensions.get::<Peer>()?;
        Some(address::of(peer.ip(), headers, self.trusted_proxies))
    }

    /// Counts a request that reaches no operation.
    ///
    /// # Errors
    /// [`Class::Limited`] when they come too fast from its address.
    pub fn count(&self, extensions: &Extensions, headers: &HeaderMap) -> Result<(), Refusal> {
        match self.client_address(extensions, headers) {
            Some(address) => self.admission.address(address),
            None => Ok(()),
        }
    }

    /// Whether the store can be written, signers be reached and the bus too.
    ///
    /// # Errors
    /// [`Class::Unavailable`] with what is away.
    pub async fn ready(&self, request_id: &str) -> Result<(), Fault> {
        let caller = auth::internal(request_id);
        self.gateway.view(&caller, Query::Ready).await?;
        if (self.bus_reachable)() {
            return Ok(());
        }
        Err(Fault::unavailable("the bus cannot be reached"))
    }

    /// Who calls, if neither the address nor the token calls too fast. The address is counted
    /// before the token is looked at, and more when there is no known one.
    ///
    /// # Errors
    /// As [`Api::caller`], and [`Class::Limited`].
    pub async fn admit(&self, credentials: Credentials<'_>) -> Result<Caller, Refusal> {
        let address = credentials.address;
        if let Some(address) = address {
            self.admission.address(address)?;
        }
        let caller = match self.caller(credentials).await {
            Ok(caller) => caller,
            Err(fault) => {
                if let Some(address) = address
                    && *fault.class() == Class::Unauthenticated
                {
                    self.admission.unauthenticated(address);
                }
                return Err(fault.into());
            }
        };
        self.admission.token(&caller.token)?;
        Ok(caller)
    }

    /// Who calls.
    ///
    /// # Errors
    /// As [`auth::caller`].
    pub async fn caller(&self, credentials: Credentials<'_>) -> Result<Caller, Fault> {
        auth::caller(self, credentials).await
    }
}

/// A call whose token and headers were checked.
pub struct Call {
    /// The API.
    pub api: Arc<Api>,
    /// Who calls.
    pub caller: Caller,
    /// The body; not parsed yet.
    pub body: Bytes,
    /// How the body is written, and the answer will be.
    pub encoding: Encoding,
    /// The idempotency key, on operations that take one: 1 to 255 characters.
    pub idempotency: Option<String>,
}

/// What an operation answers.
pub struct Answer {
    /// A message in the call's form.
    pub body: Bytes,
    /// It was given before, to an earlier call with the same idempotency key.
    pub replayed: bool,
    /// That call had another body.
    pub body_mismatch: bool,
}

impl Answer {
    /// Says in the headers of a response what the idempotency key did.
    pub fn mark(&self, headers: &mut HeaderMap) {
        let yes = HeaderValue::from_static("true");
        if self.replayed {
            headers.insert(IDEMPOTENCY_REPLAYED, yes.clone());
        }
        if self.body_mismatch {
            headers.insert(IDEMPOTENCY_MISMATCH, yes);
        }
    }

    /// What a handler answers, also when it panics.
    ///
    /// # Errors
    /// The handler's; [`Class::Bug`] when it panicked.
    pub async fn of(handler: impl Future<Output = Result<Self, Fault>>) -> Result<Self, Fault> {
        // The panic hook has said where. Nothing of ours is shared with the handler.
        AssertUnwindSafe(handler)
            .catch_unwind()
            .await
            .unwrap_or_else(|_| Err(Fault::bug("the handler panicked")))
    }

    /// An answer from state.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self {
            body: body.into(),
            replayed: false,
            body_mismatch: false,
        }
    }
}

impl Call {
    /// The request message.
    ///
    /// # Errors
    /// [`Class::Invalid`] with the path of the field.
    pub fn request<T: prost::Message + prost::Name + Default>(&self) -> Result<T, Fault> {
        match self.encoding {
            Encoding::Json => json::decode(&self.body),
            Encoding::Protobuf => T::decode(self.body.clone()).map_err(|error| {
                Fault::new(Class::Invalid, "the message cannot be decoded").caused_by(error)
            }),
        }
    }

    /// Submits a command that needs no idempotency key.
    ///
    /// # Errors
    /// As [`Gateway::submit`].
    pub async fn submit(&self, command: Command) -> Result<Submitted, Fault> {
        self.api.gateway.submit(&self.caller, command, None).await
    }

    /// Submits the command that the request message asks for, once per idempotency key. A key that
    /// was used gives the first call's answer before the message is judged.
    ///
    /// # Errors
    /// As [`Call::request`] and [`Gateway::submit_once`].
    pub async fn submit_once<T: prost::Message + prost::Name + Default>(
        &self,
        operation: Once,
        command: impl FnOnce(T) -> Command,
    ) -> Result<Submitted, Fault> {
        let request = self.request::<T>();
        let Some(key) = self.idempotency.clone() else {
            return self.submit(command(request?)).await;
        };
        let key = IdempotencyKey {
            key,
            body_hash: self.fingerprint(&request),
        };
        let gateway = &self.api.gateway;
        gateway
            .submit_once(&self.caller, operation, key, request.map(command))
            .await
    }

    /// Tells one request from another by what it says: the same message may come over REST and
    /// over gRPC, and JSON with other spaces.
    fn fingerprint<T: prost::Message>(&self, request: &Result<T, Fault>) -> [u8; 32] {
        match request {
            Ok(message) => Sha256::digest(message.encode_to_vec()),
            Err(_) => Sha256::new_with_prefix("unreadable")
                .chain_update(&self.body)
                .finalize(),
        }
        .into()
    }

    /// The answer from state.
    ///
    /// # Errors
    /// [`Class::Bug`] when the message is not in the schema.
    pub fn answer<T: prost::Message + prost::Name>(&self, message: &T) -> Result<Answer, Fault> {
        Ok(Answer::new(match self.encoding {
            Encoding::Json => Bytes::from(json::encode(message)?),
            Encoding::Protobuf => Bytes::from(message.encode_to_vec()),
        }))
    }

    /// The answer to a command, made of its receipt; `message` makes nothing of one that it does not
    /// expect.
    ///
    /// # Errors
    /// [`Class::Bug`] for such a receipt.
    pub fn answer_to<T: prost::Message + prost::Name>(
        &self,
        done: Submitted,
        message: impl FnOnce(Receipt) -> Option<T>,
    ) -> Result<Answer, Fault> {
        let message = message(done.receipt).ok_or_else(|| unexpected(&"another receipt"))?;
        Ok(Answer {
            replayed: done.replayed,
            body_mismatch: done.body_mismatch,
            ..self.answer(&message)?
        })
    }
}

/// What clients read of a fault. Our own faults say nothing but how to find them in the log.
pub fn sentence(fault: &Fault, request_id: &str) -> String {
    if *fault.class() == Class::Bug {
        return format!("internal error, see request id {request_id}");
    }
    fault.message().to_owned()
}

/// The gateway answered something else than what was asked.
pub fn unexpected(answer: &impl std::fmt::Debug) -> Fault {
    Fault::bug(format!("unexpected answer of the gateway: {answer:?}"))
}

/// What runs an operation.
pub type Handler = Arc<dyn Fn(Call) -> BoxFuture<'static, Result<Answer, Fault>> + Send + Sync>;

/// How an operation is served.
#[derive(Clone)]
pub struct Served {
    /// What runs it.
    pub handler: Handler,
    /// Whether it takes an idempotency key.
    pub takes_idempotency_key: bool,
}

/// How an operation of the schema is served. One line per operation that is built; the others say
/// that they are not.
pub fn served(operation: &Operation) -> Served {
    match operation.name() {
        "createSigningRequest" => once(signing_requests::create),
        "executeSigningRequests" => plain(signing_requests::execute),
        "getSigningRequestDetails" => plain(signing_requests::details),
        "getSigningRequestList" => plain(signing_requests::list),
        "rejectSigningRequest" => plain(signing_requests::reject),
        "resimulation" => plain(signing_requests::resimulate),
        "createBatchPayment" => once(batches::create),
        "getBatchPaymentDetails" => plain(batches::details),
        "createWallet" => once(wallets::create),
        "updateWallet" => plain(wallets::update),
        "getWalletInfo" => plain(wallets::info),
        "getWalletList" => plain(wallets::list),
        "getBalance" => plain(balances::get),
        "createDepositWallet" => plain(deposits::create_wallet),
        "addWatchAddress" => plain(deposits::add_watch),
        name => {
            let sentence = format!("{name} is not available in this version");
            plain(move |_| std::future::ready(Err(Fault::new(Class::Invalid, sentence.clone()))))
        }
    }
}

fn plain<F>(handler: impl Fn(Call) -> F + Send + Sync + 'static) -> Served
where
    F: Future<Output = Result<Answer, Fault>> + Send + 'static,
{
    Served {
        handler: Arc::new(move |call| Box::pin(handler(call))),
        takes_idempotency_key: false,
    }
}

/// With an idempotency key.
fn once<F>(handler: impl Fn(Call) -> F + Send + Sync + 'static) -> Served
where
    F: Future<Output = Result<Answer, Fault>> + Send + 'static,
{
    Served {
        takes_idempotency_key: true,
        ..plain(handler)
    }
}
