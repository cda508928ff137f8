//! Errors, by class first.
//!
//! A [`Fault`] has a message, which clients see, and an inner cause, which only the log sees. The
//! transports map the class; nothing else about a fault decides a status. Code goes by class, code
//! and path, never by the message; so do scripts, by [`Fault::stable_code`] and [`Fault::path`].

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
    /// Our fault: 500, INTERNAL. The message never says why.
    Bug,
}

impl Class {
    /// Its name in logs, metrics and responses; never changes.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "forbidden",
            Self::Conflict => "conflict",
            Self::WrongState => "wrong_state",
            Self::TooLarge => "too_large",
            Self::Limited => "limited",
            Self::Unavailable => "unavailable",
            Self::Peer { .. } => "peer",
            Self::Bug => "bug",
        }
    }
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

impl ExecuteCode {
    /// Its name in the log and for operators.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unspecified => "unspecified",
            Self::InsufficientFunds => "insufficient_funds",
            Self::AlreadyDenied => "already_denied",
            Self::InsufficientGasFee => "insufficient_gas_fee",
            Self::AddressNotInWhitelist => "address_not_in_whitelist",
        }
    }
}

/// What tells a fault from others of its class, where code, a script or an operator does something else about it. Most
/// need none: of what is wrong with a request, the path says where, and the message how. Serialized by its place:
/// new ones come last. docs/errors.md lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum FaultCode {
    /// Class and path say all.
    #[default]
    Unspecified,
    /// The clocks of two processes differ too much, or an order came too late.
    Time,
    /// The payload as a whole, not a field of it.
    Payload,
    /// There is too much to do now, and nothing is wrong.
    Busy {
        /// After how many seconds it is worth another try.
        seconds: u32,
    },
    /// A signer's policy wants more people to approve than the order shows, or approvals that count with
    /// it. The message says who; nothing else is wrong, and the same request can be asked again.
    ApprovalsMissing,
    /// The signing request continues, and has no outcome yet.
    StillPending,
    /// Too few signers answered, or can sign.
    NotEnoughSigners,
    /// The store cannot be read or written now.
    StoreUnavailable,
    /// The vault is on its way to another orchestrator.
    VaultMoving,
    /// Another call changed the same at the same time: read it again.
    ChangedMeanwhile,
    /// The token may only read.
    ReadOnlyToken,
    /// A UUID is malformed, unknown or not accessible.
    InvalidUuid,
    /// A chain id is not configured.
    InvalidChainId,
    /// A signer's policy holds the payment for a time after its approvals. Nothing is wrong, and the same request can be
    /// asked again then.
    Held {
        /// Until when, in milliseconds since the Unix epoch.
        until_ms: u64,
    },
}

impl FaultCode {
    /// One of each, in their order.
    pub const ALL: [Self; 14] = [
        Self::Unspecified,
        Self::Time,
        Self::Payload,
        Self::Busy { seconds: 0 },
        Self::ApprovalsMissing,
        Self::StillPending,
        Self::NotEnoughSigners,
        Self::StoreUnavailable,
        Self::VaultMoving,
        Self::ChangedMeanwhile,
        Self::ReadOnlyToken,
        Self::InvalidUuid,
        Self::InvalidChainId,
        Self::Held { until_ms: 0 },
    ];

    /// Its name in logs and responses; never changes. `None`: that of the class says all.
    pub fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::Unspecified => return None,
            Self::Time => "clocks_differ",
            Self::Payload => "payload",
            Self::Busy { .. } => "busy",
            Self::ApprovalsMissing => "approvals_missing",
            Self::StillPending => "still_pending",
            Self::NotEnoughSigners => "not_enough_signers",
            Self::StoreUnavailable => "store_unavailable",
            Self::VaultMoving => "vault_moving",
            Self::ChangedMeanwhile => "changed_meanwhile",
            Self::ReadOnlyToken => "read_only_token",
            Self::InvalidUuid => "invalid_uuid",
            Self::InvalidChainId => "invalid_chain_id",
            Self::Held { .. } => "held",
        })
    }
}

/// An error with a message for people and a cause for the log.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    class: Class,
    code: FaultCode,
    /// The JSON path of the field that is wrong.
    path: Option<Box<str>>,
    /// With the path first, where there is one.
    message: Box<str>,
    execute_code: ExecuteCode,
    /// What only this process knows of it.
    #[serde(skip)]
    beside: Option<Box<FaultDetails>>,
}

/// What is not sent with a fault.
#[derive(Clone, Default, PartialEq, Eq)]
struct FaultDetails {
    /// For the log.
    cause: Option<Box<str>>,
    /// What each of several said, where the message is that of all of them.
    each: Vec<String>,
}

impl Fault {
    /// A fault of `class` whose message tells the user what to do.
    pub fn new(class: Class, message: impl Into<String>) -> Self {
        Self {
            class,
            code: FaultCode::Unspecified,
            path: None,
            message: message.into().into_boxed_str(),
            execute_code: ExecuteCode::Unspecified,
            beside: None,
        }
    }

    /// What several refuse, each in its own words.
    pub fn of_several(class: Class, said: Vec<String>) -> Self {
        let mut fault = Self::new(class, said.join("; "));
        fault.beside.get_or_insert_default().each = said;
        fault
    }

    /// A field that cannot be accepted. `path` is its JSON path, e.g. `evmSendNative.to`.
    pub fn field(path: impl fmt::Display, problem: impl fmt::Display) -> Self {
        Self::new(Class::Invalid, problem.to_string()).at(path)
    }

    /// The same, about the field of this JSON path.
    #[must_use]
    pub fn at(mut self, path: impl fmt::Display) -> Self {
        let path = path.to_string();
        self.message = format!("{path}: {}", self.message).into();
        self.path = Some(path.into());
        self
    }

    /// `Invalid uuid`: malformed, unknown or not accessible; callers cannot tell which.
    pub fn invalid_uuid() -> Self {
        Self::new(Class::Invalid, "Invalid uuid").with_code(FaultCode::InvalidUuid)
    }

    /// `Invalid chain id`.
    pub fn invalid_chain_id() -> Self {
        Self::new(Class::Invalid, "Invalid chain id").with_code(FaultCode::InvalidChainId)
    }

    /// `unauthenticated`: no token, or one that is unknown, malformed, expired or revoked; callers
    /// cannot tell which.
    pub fn unauthenticated() -> Self {
        Self::new(Class::Unauthenticated, "unauthenticated")
    }

    /// Something we depend on is not there now.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Class::Unavailable, message)
    }

    /// Our fault; `cause` goes to the log only.
    pub fn bug(cause: impl fmt::Display) -> Self {
        Self::new(Class::Bug, "internal error").caused_by(cause)
    }

    /// Attaches what the log should know. Never give it a secret.
    #[must_use]
    pub fn caused_by(mut self, cause: impl fmt::Display) -> Self {
        self.beside.get_or_insert_default().cause = Some(cause.to_string().into());
        self
    }

    /// Attaches what tells it from others of its class.
    #[must_use]
    pub fn with_code(mut self, code: FaultCode) -> Self {
        self.code = code;
        self
    }

    /// Attaches the code that executeSigningRequests reports.
    #[must_use]
    pub fn with_execute_code(mut self, code: ExecuteCode) -> Self {
        self.execute_code = code;
        self
    }

    /// The same fault, found under `prefix`: `to: bad` becomes `evmSendNative.to: bad`.
    #[must_use]
    pub fn with_prefix(mut self, prefix: &str) -> Self {
        if self.class == Class::Invalid {
            self.message = format!("{prefix}.{}", self.message).into();
            self.path = self.path.map(|path| format!("{prefix}.{path}").into());
        }
        self
    }

    /// The same fault with the texts that peers and stores are trusted with: each one through `text`.
    #[must_use]
    pub fn map_texts(mut self, text: impl Fn(&str) -> String) -> Self {
        self.message = text(&self.message).into();
        self.path = self.path.map(|path| text(&path).into());
        self
    }

    /// The same fault of another class.
    #[must_use]
    pub fn with_class(mut self, class: Class) -> Self {
        self.class = class;
        self
    }

    /// The class.
    pub fn class(&self) -> &Class {
        &self.class
    }

    /// The message for people, with the path first where there is one.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The message with a line for each of those that refuse.
    pub fn lines(&self) -> String {
        match &self.beside {
            Some(beside) if !beside.each.is_empty() => beside.each.join("\n"),
            _ => self.message.to_string(),
        }
    }

    /// The message without the path.
    pub fn problem(&self) -> &str {
        let path = self.path.as_deref().unwrap_or_default();
        let rest = self.message.strip_prefix(path);
        let rest = rest.and_then(|rest| rest.strip_prefix(": "));
        rest.unwrap_or(&self.message)
    }

    /// The JSON path of the field that is wrong.
    pub fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    /// What tells it from others of its class.
    pub fn code(&self) -> FaultCode {
        self.code
    }

    /// A word for its kind, which never changes: that of the code, else that of the class.
    pub fn stable_code(&self) -> &'static str {
        self.code.name().unwrap_or_else(|| self.class.name())
    }

    /// The code that executeSigningRequests reports.
    pub fn execute_code(&self) -> ExecuteCode {
        self.execute_code
    }

    /// The inner cause, for the log.
    pub fn cause(&self) -> Option<&str> {
        self.beside.as_ref()?.cause.as_deref()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.class)?;
        if let Some(code) = self.code.name() {
            write!(f, " [{code}]")?;
        }
        write!(f, ": {}", self.message)?;
        match self.cause() {
            Some(cause) => write!(f, " ({cause})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Fault {}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_several__should_be_one_sentence_or_a_line_each() {
        let said = ["a wants 1", "b wants 2"].map(str::to_owned).to_vec();
        let fault = Fault::of_several(Class::Invalid, said);
        assert_eq!(fault.message(), "a wants 1; b wants 2");
        assert_eq!(fault.lines(), "a wants 1\nb wants 2");
        assert_eq!(Fault::field("to", "is bad").lines(), "to: is bad");
    }

    #[test]
    fn stable_codes__should_be_the_listed_ones_each_once_in_the_order_of_the_wire() {
        let classes = [
            Class::Invalid,
            Class::Unauthenticated,
            Class::Forbidden,
            Class::Conflict,
            Class::WrongState,
            Class::TooLarge,
            Class::Limited,
            Class::Unavailable,
            Class::Peer {
                culprits: Vec::new(),
            },
            Class::Bug,
        ];
        let names = classes.iter().map(Class::name);
        let codes = FaultCode::ALL.into_iter().filter_map(FaultCode::name);
        let mut names: Vec<&str> = names.chain(codes).collect();
        // Of docs/errors.md: `| `code` | ...` below its heading.
        let page = include_str!("../../docs/errors.md");
        let (_, table) = page.split_once("## Codes").unwrap();
        let (table, _) = table.split_once("\n## ").unwrap();
        let listed = table.lines().filter_map(|line| line.strip_prefix("| `"));
        let mut listed: Vec<&str> = listed
            .filter_map(|line| Some(line.split_once('`')?.0))
            .collect();
        names.sort_unstable();
        listed.sort_unstable();
        assert_eq!(names, listed);
        names.dedup();
        assert_eq!(names.len(), listed.len());
        for (place, code) in FaultCode::ALL.into_iter().enumerate() {
            assert_eq!(
                usize::from(bcs::to_bytes(&code).unwrap()[0]),
                place,
                "{code:?}"
            );
        }
        let next = u8::try_from(FaultCode::ALL.len()).unwrap();
        assert!(
            bcs::from_bytes::<FaultCode>(&[next]).is_err(),
            "one is missing in ALL"
        );
    }

    #[test]
    fn fault__should_have_the_code_of_its_kind_else_of_its_class() {
        for (fault, code, path) in [
            (Fault::field("name", "is required"), "invalid", Some("name")),
            (Fault::invalid_uuid(), "invalid_uuid", None),
            (Fault::unavailable("no node answered"), "unavailable", None),
            (Fault::bug("cause"), "bug", None),
        ] {
            assert_eq!((fault.stable_code(), fault.path()), (code, path));
        }
        assert_eq!(
            format!("{:?}", Fault::invalid_uuid()),
            "Invalid [invalid_uuid]: Invalid uuid"
        );
    }

    #[test]
    fn problem__should_be_the_message_without_its_path() {
        let fault = Fault::field("to", "is empty");
        assert_eq!(
            (fault.message(), fault.problem()),
            ("to: is empty", "is empty")
        );
        let fault = fault.with_prefix("evmSendNative");
        assert_eq!(fault.problem(), "is empty");
        assert_eq!(Fault::invalid_uuid().problem(), "Invalid uuid");
        let plain = Fault::new(Class::Invalid, "amount: or nothing");
        assert_eq!(plain.problem(), "amount: or nothing");
    }
}
