//! What operations answer, and the idempotency keys of their calls.

/// An idempotency key with a SHA-256 of the request that it came with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// 1 to 255 characters.
    pub key: String,
    /// SHA-256 that tells one request from another.
    pub body_hash: [u8; 32],
}

/// What an operation answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationResponse {
    /// The response message, written as the request was. Replayed: byte for byte that of the first
    /// call.
    pub response: Vec<u8>,
    /// An earlier call with the same idempotency key was answered with it.
    pub replayed: bool,
    /// That call had another body.
    pub body_mismatch: bool,
}

impl OperationResponse {
    /// What this call made.
    pub(crate) fn first(response: Vec<u8>) -> Self {
        Self {
            response,
            replayed: false,
            body_mismatch: false,
        }
    }
}
