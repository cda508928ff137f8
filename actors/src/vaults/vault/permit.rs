//! What live requests take up. It is bounded: where there is no place new ones are refused.

use std::sync::Arc;

use covault_core::{
    fault::Fault,
    request::{RequestState, SigningRequest},
};

use crate::{
    chain_rpc::ChainWait,
    process::limits::{LimitedParty, Share, SigningParty},
    services::Services,
};

/// About what a live request takes of memory beside its payload and notes, in bytes: its actor, what is built, what is
/// signed, and what follows it.
const FOOTPRINT: usize = 8 << 10;

/// What a live request takes up.
pub struct AdmissionPermit {
    /// One of the live requests. Given back once it is signed: a chain node that is down must
    /// not keep others from signing.
    place: Option<Share<LimitedParty>>,
    /// What signers have to sign: one input until it is known, and those beyond it.
    inputs: Option<Share<SigningParty>>,
    more_inputs: Option<[Share<SigningParty>; 2]>,
    /// The first of them, once it wants nothing more of its chain's nodes.
    ready: Option<Share<SigningParty>>,
    /// Its place among those that wait for the chain's nodes, from when it is accepted.
    pub chain_wait: Option<Arc<ChainWait>>,
    /// Its bytes in memory.
    _bytes: Share<LimitedParty>,
}

impl AdmissionPermit {
    /// That of a new request, which waits for its chain's nodes where it has a place there.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when there is no place for it.
    pub fn new(
        services: &Services,
        request: &SigningRequest,
        chain_wait: Option<Arc<ChainWait>>,
    ) -> Result<Self, Fault> {
        let (limits, parties) = (&services.limits, parties(request));
        let signing = signing_parties(request);
        Ok(Self {
            place: Some(limits.live.take(&parties, 1)?),
            _bytes: limits.live_bytes.take(&parties, size(request))?,
            inputs: Some(limits.unsigned.retake(&signing, 1)),
            more_inputs: None,
            ready: chain_wait
                .is_none()
                .then(|| limits.ready.retake(&signing, 1)),
            chain_wait,
        })
    }

    /// That of a request which was accepted before, by this process or an earlier one: it continues,
    /// also when what others have left is too little for it.
    pub fn readmit(services: &Services, request: &SigningRequest) -> Self {
        let (limits, parties) = (&services.limits, parties(request));
        let signed = matches!(
            request.state,
            RequestState::Signed { .. } | RequestState::Broadcasting { .. }
        );
        Self {
            place: (!signed).then(|| limits.live.retake(&parties, 1)),
            inputs: (!signed).then(|| limits.unsigned.retake(&signing_parties(request), 1)),
            more_inputs: None,
            ready: None,
            chain_wait: None,
            _bytes: limits.live_bytes.retake(&parties, size(request)),
        }
    }

    /// What is built says how much there is to sign.
    pub fn built(&mut self, services: &Services, request: &SigningRequest) {
        if self.place.is_none() || request.state.draft().is_none() {
            return;
        }
        let (limits, signing) = (&services.limits, signing_parties(request));
        if self.ready.is_none() {
            self.ready = Some(limits.ready.retake(&signing, 1));
        }
        let more = inputs(request).saturating_sub(1);
        if more > 0 && self.more_inputs.is_none() {
            let counts = [&limits.unsigned, &limits.ready];
            self.more_inputs = Some(counts.map(|all| all.retake(&signing, more)));
        }
    }

    /// Signers have nothing more to do for it.
    pub fn signed(&mut self) {
        (self.place, self.inputs) = (None, None);
        (self.more_inputs, self.ready) = (None, None);
    }
}

/// How many inputs of a request are to be signed; one where it is not built.
pub fn inputs(request: &SigningRequest) -> usize {
    let draft = request.state.draft();
    draft.map_or(1, |draft| draft.unsigned.signing.len().max(1))
}

/// Whose places a request takes.
pub fn parties(request: &SigningRequest) -> [LimitedParty; 2] {
    [
        LimitedParty::Token(request.token),
        LimitedParty::Vault(request.vault),
    ]
}

/// Whose signatures it waits for.
pub fn signing_parties(request: &SigningRequest) -> [SigningParty; 3] {
    SigningParty::of(request.vault, request.network.curve(), request.token)
}

/// In bytes. Also of what is signed, and taken by no node: there may be any number of those.
fn size(request: &SigningRequest) -> usize {
    let notes = request.notes.as_ref().map_or(0, String::len);
    let own = request.payload.len().saturating_add(notes);
    own.saturating_add(FOOTPRINT)
}
