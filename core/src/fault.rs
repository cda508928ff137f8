//! Errors, by class first.
//!
//! A [`Fault`] has a public sentence, which clients see, and an inner cause, which only the
//! log sees. The transports map the class; nothing else about a fault decides a status.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What kind of trouble it is. Decides the HTTP and gRPC status (contract section 4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Class {
    /// The request is wrong: 400, INVALID_ARGUMENT.
    Invalid,
    /// No token, or not one of ours: 401, UNAUTHENTICATED.
    Unauthenticated,
    /// The token may not do this: 403, PERMISSION_DENIED.
    Forbidden,
    /// It exists already: 409, ALREADY_EXISTS.
    Conflict,
    /// It is in a state that does not allow this: 409, FAILED_PRECONDITION.
    WrongState,
    /// The body is too large: 413, RESOURCE_EXHAUSTED.
    TooLarge,
    /// Too many requests: 429, RESOURCE_EXHAUSTED. The transports add Retry-After.
    Limited,
    /// Signers, store, bus or chain node are not there now: 503, UNAVAILABLE.
    Unavailable,
    /// Peers misbehaved; names them (OpenSSH public keys). 503 to clients.
    Peer {
        /// Who.
        culprits: Vec<String>,
    },
    /// Our fault: 500, INTERNAL. The public sentence never says why.
    Bug,
}

/// `ExecuteSigningRequestsErrorCode` of the schema, where a failure has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum ExecuteCode {
    /// No other fits.
    #[default]
    Unspecified,
    /// The sender cannot pay the amount.
    InsufficientFunds,
    /// A person or a client signer said no.
    AlreadyDenied,
    /// The sender cannot pay the fee.
    InsufficientGasFee,
    /// A policy list does not have the recipient.
    AddressNotInWhitelist,
}

/// An error with a public sentence and a private cause.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    class: Class,
    public: String,
    code: ExecuteCode,
    #[serde(skip)]
    cause: Option<String>,
}

impl Fault {
    /// A fault of `class` whose message tells the user what to do.
    pub fn new(class: Class, public: impl Into<String>) -> Self {
        Self {
            class,
            public: public.into(),
            code: ExecuteCode::Unspecified,
            cause: None,
        }
    }

    /// A field that cannot be accepted. `path` is its JSON path, e.g. `evmSendNative.to`.
    pub fn field(path: impl fmt::Display, problem: impl fmt::Display) -> Self {
        Self::new(Class::Invalid, format!("{path}: {problem}"))
    }

    /// `Invalid uuid`: malformed, unknown or not accessible; callers cannot tell which.
    pub fn invalid_uuid() -> Self {
        Self::new(Class::Invalid, "Invalid uuid")
    }

    /// `Invalid chain id`.
    pub fn invalid_chain_id() -> Self {
        Self::new(Class::Invalid, "Invalid chain id")
    }

    /// `unauthenticated`: no token, or one that is unknown, malformed, expired or revoked; callers
    /// cannot tell which.
    pub fn unauthenticated() -> Self {
        Self::new(Class::Unauthenticated, "unauthenticated")
    }

    /// Something we depend on is not there now.
    pub fn unavailable(public: impl Into<String>) -> Self {
        Self::new(Class::Unavailable, public)
    }

    /// Our fault; `cause` goes to the log only.
    pub fn bug(cause: impl fmt::Display) -> Self {
        Self::new(Class::Bug, "internal error").caused_by(cause)
    }

    /// Attaches what the log should know. Never give it a secret.
    #[must_use]
    pub fn caused_by(mut self, cause: impl fmt::Display) -> Self {
        self.cause = Some(cause.to_string());
        self
    }

    /// Attaches the code that executeSigningRequests reports.
    #[must_use]
    pub fn with_code(mut self, code: ExecuteCode) -> Self {
        self.code = code;
        self
    }

    /// The same fault, found under `prefix`: `to: bad` becomes `evmSendNative.to: bad`.
    #[must_use]
    pub fn with_prefix(mut self, prefix: &str) -> Self {
        if self.class == Class::Invalid {
            self.public = format!("{prefix}.{}", self.public);
        }
        self
    }

    /// The class.
    pub fn class(&self) -> &Class {
        &self.class
    }

    /// The sentence that clients see.
    pub fn message(&self) -> &str {
        &self.public
    }

    /// The code that executeSigningRequests reports.
    pub fn code(&self) -> ExecuteCode {
        self.code
    }

    /// The inner cause, for the log.
    pub fn cause(&self) -> Option<&str> {
        self.cause.as_deref()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.public)
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.class, self.public)?;
        match &self.cause {
            Some(cause) => write!(f, " ({cause})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Fault {}
