//! The message of a call on its way: its bytes count like those of a body over REST.

use std::sync::{Arc, OnceLock};

use axum::body::Body;
use covault_core::fault::{Class, Fault};
use futures::StreamExt as _;

use crate::api::admission::{CallRefusal, InFlight};

/// Bytes that the protocol puts before a message: a flag and a length.
pub const PREFIX: usize = 5;

/// The body of a call with one message of at most `most` bytes, for which `in_flight` must have
/// room. What is refused breaks off, and `refused` says why.
pub fn watched(
    body: Body,
    most: usize,
    in_flight: Arc<InFlight>,
    refused: Arc<OnceLock<CallRefusal>>,
) -> Body {
    let mut total = 0_usize;
    let chunks = body.into_data_stream().map(move |chunk| {
        let chunk = chunk?;
        total = total.saturating_add(chunk.len());
        let room = if total > most.saturating_add(PREFIX) {
            Err(too_large(most).into())
        } else {
            in_flight.hold(chunk.len())
        };
        room.map_err(|refusal| {
            let error = axum::Error::new(refusal.fault.to_string());
            let _ = refused.set(refusal);
            error
        })?;
        Ok::<_, axum::Error>(chunk)
    });
    Body::from_stream(chunks)
}

/// The message is larger than `most` bytes.
pub fn too_large(most: usize) -> Fault {
    let sentence = format!("the message is larger than {most} bytes");
    Fault::new(Class::TooLarge, sentence)
}
