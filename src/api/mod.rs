//! What surrounds a call of an operation, whatever transport brings it: who calls, how much and how
//! fast. The operations are in `covault_actors::operations`; the transports are `http` and `grpc`.

pub mod address;
pub mod admission;
pub mod auth;
pub mod headers;
mod limiter;
pub mod meter;
pub mod overload;
pub mod refusals;

use std::{net::IpAddr, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use axum::http::{Extensions, HeaderMap, HeaderValue};
use covault_actors::{
    gateway::{Caller, Gateway, OperationResponse, RequestBody},
    operations::RegisteredOperation,
};
use covault_core::{
    fault::{Class, Fault},
    port::{Clock, Entropy},
    schema::service::Audience,
    trace::{SpanFact, SpanName, TraceParent, Tracer},
};
use futures::FutureExt as _;

use self::{
    address::Peer,
    admission::{Admission, AnswerShare, CallRefusal, InFlight},
    auth::Tokens,
    headers::{IDEMPOTENCY_MISMATCH, IDEMPOTENCY_REPLAYED},
    refusals::{KnownToken, RefusalLog, RefusedCall},
};

/// Whose listener it is: neither side has the operations of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiSide {
    /// Clients of the platform and sweep APIs.
    Clients,
    /// Operators, who call the admin API.
    Operators,
}

impl ApiSide {
    /// Whether its listeners have the operations of an audience.
    pub fn has(self, audience: Audience) -> bool {
        let is_of_operators = match audience {
            Audience::Platform | Audience::Sweep => false,
            Audience::Admin => true,
        };
        is_of_operators == (self == Self::Operators)
    }
}

/// What the API needs.
pub struct Api {
    /// The door to everything else.
    pub gateway: Gateway,
    /// Who may call.
    pub tokens: Tokens,
    /// How much, and how fast.
    pub admission: Admission,
    /// Calls that were refused for their admin token.
    pub refusals: Arc<RefusalLog>,
    /// For request times in the log.
    pub clock: Arc<dyn Clock>,
    /// For request ids.
    pub entropy: Arc<dyn Entropy>,
    /// Records calls.
    pub tracer: Tracer,
    /// The largest body, in bytes.
    pub max_body_bytes: usize,
    /// How long a body may take to arrive.
    pub body_timeout: Duration,
    /// How many proxies stand before this service and are trusted to say whom they were called by.
    pub trusted_proxies: usize,
    /// 422 when an idempotency key comes again with another body.
    pub strict_idempotency: bool,
}

/// What a transport knows of a caller before anything is checked.
pub struct Credentials<'a> {
    /// The token.
    pub token: Option<&'a str>,
    /// Whose operation is called.
    pub audience: Audience,
    /// Its name, for the log.
    pub operation: &'a str,
    /// The client's address: the peer's, or what the trusted proxies say.
    pub address: Option<IpAddr>,
    /// The id of the call, for errors and the log.
    pub request_id: &'a str,
    /// The span of the client that it is part of.
    pub trace: TraceParent,
}

impl Api {
    /// The API as operators have it: with places and rates of its own, and no proxy is trusted. Who says that it calls for
    /// another address is the caller itself there.
    pub fn for_operators(&self) -> Self {
        Self {
            gateway: self.gateway.clone(),
            tokens: self.tokens.clone(),
            admission: self.admission.for_operators(),
            refusals: Arc::clone(&self.refusals),
            clock: Arc::clone(&self.clock),
            entropy: Arc::clone(&self.entropy),
            tracer: self.tracer.clone(),
            max_body_bytes: self.max_body_bytes,
            body_timeout: self.body_timeout,
            trusted_proxies: 0,
            strict_idempotency: self.strict_idempotency,
        }
    }

    /// The client's address of a request; nothing when the server does not know its peer.
    pub fn client_address(&self, extensions: &Extensions, headers: &HeaderMap) -> Option<IpAddr> {
        let Peer(peer) = extensions.get::<Peer>()?;
        Some(address::of(peer.ip(), headers, self.trusted_proxies))
    }

    /// Counts a request that reaches no operation.
    ///
    /// # Errors
    /// [`Class::Limited`] when they come too fast from its address.
    pub fn count(&self, extensions: &Extensions, headers: &HeaderMap) -> Result<(), CallRefusal> {
        match self.client_address(extensions, headers) {
            Some(address) => self.admission.address(address),
            None => Ok(()),
        }
    }

    /// Who calls, if neither the address nor the token calls too fast. The address is counted
    /// before the token is looked at, and more when there is no known one.
    ///
    /// # Errors
    /// As [`Api::caller`], [`Class::Limited`], [`InFlight::belongs_to`], and [`Admission::may_ask`].
    pub async fn admit(
        &self,
        credentials: Credentials<'_>,
        in_flight: &InFlight,
    ) -> Result<Caller, CallRefusal> {
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
        in_flight.belongs_to(caller.token)?;
        self.admission.may_ask(caller.token)?;
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
pub struct AdmittedCall<'a> {
    /// Who calls.
    pub caller: &'a Caller,
    /// From where.
    pub address: Option<IpAddr>,
    /// What is called.
    pub operation: &'static RegisteredOperation,
    /// The body; not parsed yet.
    pub body: RequestBody<'a>,
    /// The idempotency key, on operations that take one: 1 to 255 characters.
    pub idempotency: Option<String>,
}

impl Api {
    /// Runs a call, also when it panics. Its answer counts as unread for as long as its share is there.
    ///
    /// # Errors
    /// The operation's; [`Class::Bug`] when it panicked; [`Admission::answer`].
    pub async fn call(
        &self,
        call: AdmittedCall<'_>,
    ) -> Result<(OperationResponse, AnswerShare), Fault> {
        let AdmittedCall {
            caller,
            address,
            operation,
            body,
            idempotency,
        } = call;
        let transport = match &body {
            RequestBody::Json(_) => "rest",
            RequestBody::Protobuf(_) => "grpc",
        };
        let mut span = (self.tracer.begin(SpanName::Call, caller.trace))
            .with(SpanFact::Operation(operation.descriptor().name()))
            .with(SpanFact::Transport(transport));
        let traced;
        let caller = match span.parent() {
            same if same == caller.trace => caller,
            trace => {
                traced = Caller {
                    trace,
                    ..caller.clone()
                };
                &traced
            }
        };
        let answer = self.gateway.call(caller, operation, body, idempotency);
        let answer = unless_it_panics(answer).await;
        let answer = answer.inspect_err(|fault| {
            span.fail(fault.class().name());
            if let Some(admin) = &caller.admin {
                self.refusals.note(&RefusedCall {
                    token: Some(&KnownToken::of_operator(caller.token, admin)),
                    address,
                    operation: operation.descriptor().name(),
                    request_id: &caller.request_id,
                    fault,
                });
            }
        })?;
        let is_command = operation.descriptor().is_command();
        let bytes = answer.response.len();
        let share = self.admission.answer(caller.token, bytes, is_command)?;
        Ok((answer, share))
    }
}

/// What an operation, or a page, answers; our fault when it panics.
///
/// # Errors
/// Its own; [`Class::Bug`] when it panicked.
pub async fn unless_it_panics<T, E: From<Fault>>(
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    // The panic hook has said where. Nothing of ours is shared with the operation.
    AssertUnwindSafe(answer)
        .catch_unwind()
        .await
        .unwrap_or_else(|_| Err(Fault::bug("the operation panicked").into()))
}

/// Says in the headers of a response what the idempotency key did.
pub fn mark(answer: &OperationResponse, headers: &mut HeaderMap) {
    let yes = HeaderValue::from_static("true");
    if answer.replayed {
        headers.insert(IDEMPOTENCY_REPLAYED, yes.clone());
    }
    if answer.body_mismatch {
        headers.insert(IDEMPOTENCY_MISMATCH, yes);
    }
}

/// What clients read of a fault. Our own faults say nothing but how to find them in the log.
pub fn sentence(fault: &Fault, request_id: &str) -> String {
    if *fault.class() == Class::Bug {
        return format!("internal error, see request id {request_id}");
    }
    fault.message().to_owned()
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic__should_be_our_fault() {
        let panics = async { panic!("on purpose") };
        let fault = unless_it_panics::<(), Fault>(panics)
            .await
            .expect_err("panics");
        assert_eq!(*fault.class(), Class::Bug);
    }
}
