//! What the gateway is handed, and what it answers.

use crate::{idempotency::Earlier, rebroadcast::Forgotten};

/// A request message as a client sent it.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// The JSON mapping of the schema.
    Json(&'a [u8]),
    /// Protobuf.
    Protobuf(&'a [u8]),
}

/// How a message is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Json,
    Protobuf,
}

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
pub struct Answer {
    /// The response message, written as the request was. Replayed: byte for byte that of the first
    /// call.
    pub response: Vec<u8>,
    /// An earlier call with the same idempotency key was answered with it.
    pub replayed: bool,
    /// That call had another body.
    pub body_mismatch: bool,
}

impl Answer {
    /// What this call made.
    pub(super) fn first(response: Vec<u8>) -> Self {
        Self {
            response,
            replayed: false,
            body_mismatch: false,
        }
    }

    /// What an earlier call with the same key got.
    pub(crate) fn replay(earlier: Earlier) -> Self {
        Self {
            response: earlier.response,
            replayed: true,
            body_mismatch: earlier.body_mismatch,
        }
    }
}

/// What is stuck, or was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Requests that cannot go on now.
    pub waiting: usize,
    /// What became of transactions that nodes had forgotten.
    pub forgotten: Forgotten,
}
