//! What live requests take up. It is bounded: where there is no place new ones are refused.

use std::sync::Arc;

use covault_core::{
    fault::Fault,
    request::{RequestState, SigningRequest},
};

use crate::{
    chain_rpc::ChainWait,
    limits::{Party, Share},
    services::Services,
};

/// What a live request takes up.
pub struct AdmissionPermit {
    /// One of the live requests. Given back once it is signed: a chain node that is down must
    /// not keep others from signing.
    pub place: Option<Share<Party>>,
    /// Its place among those that wait for the chain's nodes, from when it is accepted.
    pub chain_wait: Option<Arc<ChainWait>>,
    /// Its bytes in memory.
    _bytes: Share<Party>,
}

impl AdmissionPermit {
    /// That of a new request.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when there is no place for it.
    pub fn new(services: &Services, request: &SigningRequest) -> Result<Self, Fault> {
        let (limits, parties) = (&services.limits, parties(request));
        Ok(Self {
            place: Some(limits.live.take(&parties, 1)?),
            chain_wait: None,
            _bytes: limits.live_bytes.take(&parties, size(request))?,
        })
    }

    /// That of a request which was accepted before, by this process or an earlier one: it goes on,
    /// also when what others have left is too little for it.
    pub fn readmit(services: &Services, request: &SigningRequest) -> Self {
        let (limits, parties) = (&services.limits, parties(request));
        let signed = matches!(
            request.state,
            RequestState::Signed { .. } | RequestState::Broadcasting { .. }
        );
        Self {
            place: (!signed).then(|| limits.live.retake(&parties, 1)),
            chain_wait: None,
            _bytes: limits.live_bytes.retake(&parties, size(request)),
        }
    }
}

/// Whose places a request takes.
pub fn parties(request: &SigningRequest) -> [Party; 2] {
    [Party::Token(request.token), Party::Vault(request.vault)]
}

/// In bytes.
fn size(request: &SigningRequest) -> usize {
    request.payload.len() + request.notes.as_ref().map_or(0, String::len)
}
