//! rawMessage.

/// A checked rawMessage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawPayload {}
