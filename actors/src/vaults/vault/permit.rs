//! What live requests take up. It is bounded: where there is no place new ones are refused.

use std::sync::Arc;

use covault_core::request::{RequestState, SigningRequest};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::services::Services;

/// What a live request takes up.
pub struct AdmissionPermit {
    /// One of the live requests. Given back once it is signed: a chain node that is down must
    /// not keep others from signing.
    pub permit: Option<OwnedSemaphorePermit>,
    /// Its bytes in memory.
    _bytes: OwnedSemaphorePermit,
}

impl AdmissionPermit {
    /// That of a new request; `None` when there is no place for it.
    pub fn new(services: &Services, request: &SigningRequest) -> Option<Self> {
        let permit = Arc::clone(&services.limits.live).try_acquire_owned().ok()?;
        let bytes = Arc::clone(&services.limits.live_bytes)
            .try_acquire_many_owned(u32::try_from(size(request)).ok()?)
            .ok()?;
        Some(Self {
            permit: Some(permit),
            _bytes: bytes,
        })
    }

    /// That of a request which was accepted before, by this process or an earlier one: it goes on,
    /// also when what others have left is too little for it.
    pub fn readmit(services: &Services, request: &SigningRequest) -> Option<Self> {
        let signed = matches!(
            request.state,
            RequestState::Signed { .. } | RequestState::Broadcasting { .. }
        );
        let permit = if signed { 0 } else { 1 };
        Some(Self {
            permit: acquire_up_to(&services.limits.live, permit),
            _bytes: acquire_up_to(&services.limits.live_bytes, size(request))?,
        })
    }
}

/// In bytes.
fn size(request: &SigningRequest) -> usize {
    request.payload.len() + request.notes.as_ref().map_or(0, String::len)
}

fn acquire_up_to(of: &Arc<Semaphore>, wanted: usize) -> Option<OwnedSemaphorePermit> {
    let permits = u32::try_from(wanted.min(of.available_permits())).ok()?;
    // Another request may have taken it.
    Arc::clone(of).try_acquire_many_owned(permits).ok()
}
