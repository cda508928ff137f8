//! What is counted of calls: docs/metrics.md. Labels come from the schema and from fixed lists, so
//! that no client can make more of them.

use std::sync::Arc;

use axum::http::StatusCode;
use metrics::{Unit, counter, describe_counter, describe_histogram, histogram};
use tokio::time::Instant;
use tonic::Code;

/// Calls by transport, operation and code.
const CALLS: &str = "covault_api_calls_total";
/// How long they took, by transport, operation and outcome.
pub const SECONDS: &str = "covault_api_call_seconds";
/// From a millisecond to the time that executeSigningRequests may wait.
pub const BUCKETS: [f64; 13] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 90.0,
];

/// Calls and connections that were refused as too many, by what was exceeded, or for their admin token.
const REFUSED: &str = "covault_refused_total";

/// The operation of calls that reach none.
pub const NO_OPERATION: &str = "none";

/// Tells the recorder what the numbers mean. Call it once, after the recorder is installed.
pub fn describe() {
    describe_counter!(
        CALLS,
        "API calls, by transport, operation and code (HTTP status or gRPC code; gone: the client did not wait)"
    );
    describe_histogram!(
        SECONDS,
        Unit::Seconds,
        "Duration of API calls, by transport, operation and outcome (done, refused, failed, gone)"
    );
    describe_counter!(
        REFUSED,
        "Calls and connections that were refused because there were too many, by what there was too much of; \
         admin_token: calls refused for their admin token"
    );
    // Shown before there is one.
    for why in Refused::ALL {
        counter!(REFUSED, "why" => why.name()).increment(0);
    }
}

/// What there was too much of, or else the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Calls per second of a token or an address.
    Rate,
    /// Calls in progress.
    InFlight,
    /// Bytes of bodies, or of answers that were not read.
    Bytes,
    /// Connections, of all or of one address.
    Connections,
    /// Listeners to events.
    Listeners,
    /// Not too much: an admin token, or what came in place of one, does not open this, or not from there.
    AdminToken,
}

impl Refused {
    const ALL: [Self; 6] = [
        Self::Rate,
        Self::InFlight,
        Self::Bytes,
        Self::Connections,
        Self::Listeners,
        Self::AdminToken,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::InFlight => "in_flight",
            Self::Bytes => "bytes",
            Self::Connections => "connections",
            Self::Listeners => "listeners",
            Self::AdminToken => "admin_token",
        }
    }
}

/// Counts a call or a connection that was refused.
pub fn refused(why: Refused) {
    counter!(REFUSED, "why" => why.name()).increment(1);
}

/// Over what a call came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// JSON over HTTP.
    Rest,
    /// gRPC.
    Grpc,
    /// Pages of the console.
    Console,
}

/// A call that is being measured. One that is dropped without its answer has lost its client.
pub struct MeasuredCall {
    transport: Transport,
    operation: Arc<str>,
    began: Instant,
    ended: bool,
}

impl MeasuredCall {
    /// Begins now. `operation` is that of the schema, or [`NO_OPERATION`].
    pub fn begin(transport: Transport, operation: Arc<str>) -> Self {
        Self {
            transport,
            operation,
            began: Instant::now(),
            ended: false,
        }
    }

    /// It was answered over HTTP.
    pub fn answered(self, status: StatusCode) {
        let outcome = match status.as_u16() {
            ..400 => "done",
            400..500 => "refused",
            _ => "failed",
        };
        self.end(status.as_str().to_owned(), outcome);
    }

    /// It was answered over gRPC.
    pub fn answered_with(self, code: Code) {
        let outcome = match code {
            Code::Ok => "done",
            Code::Unknown
            | Code::DeadlineExceeded
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss => "failed",
            Code::Cancelled
            | Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::Unauthenticated => "refused",
        };
        self.end(name(code).to_owned(), outcome);
    }

    fn end(mut self, code: String, outcome: &'static str) {
        self.ended = true;
        self.record(code, outcome);
    }

    fn record(&self, code: String, outcome: &'static str) {
        let transport = match self.transport {
            Transport::Rest => "rest",
            Transport::Grpc => "grpc",
            Transport::Console => "console",
        };
        let operation = || Arc::clone(&self.operation);
        counter!(CALLS, "transport" => transport, "operation" => operation(), "code" => code)
            .increment(1);
        histogram!(
            SECONDS, "transport" => transport, "operation" => operation(), "outcome" => outcome
        )
        .record(self.began.elapsed());
    }
}

impl Drop for MeasuredCall {
    fn drop(&mut self) {
        if !self.ended {
            self.record("gone".to_owned(), "gone");
        }
    }
}

/// The name that the protocol gives a code.
fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
