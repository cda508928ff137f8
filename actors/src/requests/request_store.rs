//! One signing request and its row: applies events and commits what they lead to.

use covault_core::{
    audit::AuditChain,
    fault::{ExecuteCode, Fault},
    networks::Payload,
    request::{AuditRecord, Draft, RequestEvent, RequestState, ReservationChange, SigningRequest},
    schema::wire,
};
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use crate::{
    account::ChainAccount,
    audit::{AuditActor, AuditNote},
    commands::command_commit::CommandCommit,
    requests::reservations,
    services::Services,
    store::{
        Batch, CommitError, Key, KeySpace, Precondition,
        rows::{self, OutboxRow, ReservationExpiry},
    },
};

/// How long what a handed-over transaction uses up stays taken: the client sends it soon or never.
const HANDED_OVER_MS: u64 = 24 * 60 * 60 * 1000;
/// How long what a sent transaction uses up stays taken: longer than nodes keep one that no block
/// takes (14 days in bitcoind).
const SENT_MS: u64 = 15 * 24 * 60 * 60 * 1000;

/// A request as the store has it.
pub struct StoredRequest {
    /// The request.
    pub request: SigningRequest,
    /// The version of its row; 0 before it was stored.
    pub version: u64,
    /// Its payload.
    pub payload: Payload,
    /// The store may have a row that says why it cannot go on.
    pub delayed: bool,
}

/// What a commit stores or demands beside the request.
#[derive(Clone, Copy, Default)]
pub struct CommitExtras<'a> {
    /// That of the command which asked.
    pub command_commit: Option<&'a CommandCommit>,
    /// The version in which the row of the wallet was found that is in use: an archived one must
    /// not sign, whenever it was archived.
    pub wallet: Option<u64>,
}

/// Why a commit did not happen.
pub enum AdvanceError {
    /// This row was not as expected.
    Conflict(Key),
    /// Anything else; the actor starts again from the store.
    Fatal(Fault),
}

impl From<Fault> for AdvanceError {
    fn from(fault: Fault) -> Self {
        AdvanceError::Fatal(fault)
    }
}

impl From<AdvanceError> for Fault {
    fn from(problem: AdvanceError) -> Self {
        match problem {
            AdvanceError::Conflict(key) if key.space == KeySpace::Token => {
                CommitError::Conflict(key).into()
            }
            AdvanceError::Conflict(key) => {
                Fault::bug(format!("row of {:?} was not as expected", key.space))
            }
            AdvanceError::Fatal(fault) => fault,
        }
    }
}

impl StoredRequest {
    /// A request in a version of its row; 0 when it is new.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Bug`] when its payload cannot be read.
    pub fn open(request: SigningRequest, version: u64) -> Result<Self, Fault> {
        let payload = Payload::decode(&request.payload).map_err(Fault::bug)?;
        Ok(Self {
            request,
            version,
            payload,
            delayed: version > 0,
        })
    }

    /// Applies events and commits the new state, its claims, its pending effect, its audit
    /// trail and the idempotency record as one batch.
    ///
    /// # Errors
    /// [`AdvanceError`]; the request is as before then, in memory at least.
    pub async fn advance(
        &mut self,
        services: &Services,
        events: Vec<RequestEvent>,
        extras: CommitExtras<'_>,
    ) -> Result<(), AdvanceError> {
        advance(
            services,
            &mut self.request,
            &mut self.version,
            &mut self.delayed,
            Some(&self.payload),
            events,
            extras,
        )
        .await
    }

    /// Stores why the request cannot go on now.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn delay(&mut self, services: &Services, reason: &str) -> Result<(), Fault> {
        self.delayed = true;
        let mut batch = Batch::new();
        let key = rows::delay(self.request.id);
        batch.put(key, Precondition::Any, rows::encode(&reason)?);
        Ok(services.store.commit(batch).await?)
    }

    /// As `advance`; a number that the client chose and another request holds is used
    /// nevertheless: the client wants to replace that one. The claim stays with its holder.
    /// `assigned` is a number that the client did not choose.
    ///
    /// # Errors
    /// As `advance`.
    pub async fn advance_claiming(
        &mut self,
        services: &Services,
        mut events: Vec<RequestEvent>,
        extras: CommitExtras<'_>,
        assigned: bool,
    ) -> Result<(), AdvanceError> {
        let outcome = self.advance(services, events.clone(), extras).await;
        match outcome {
            Err(AdvanceError::Conflict(key))
                if key.space == KeySpace::NonceReservation && !assigned => {}
            outcome => return outcome,
        }
        for event in &mut events {
            if let RequestEvent::Built { draft } = event {
                draft.claim = None;
            }
        }
        self.advance(services, events, extras).await
    }

    /// Who holds what a draft would use up, when that is why a commit did not happen: the sentence
    /// for people.
    ///
    /// # Errors
    /// The problem itself when it is another one, and when the store cannot be read.
    pub async fn conflict_reason(
        &self,
        services: &Services,
        draft: &Draft,
        problem: AdvanceError,
    ) -> Result<String, Fault> {
        let key = match problem {
            AdvanceError::Conflict(key)
                if matches!(key.space, KeySpace::NonceReservation | KeySpace::Claim) =>
            {
                key
            }
            problem => return Err(problem.into()),
        };
        let account = ChainAccount::of(&self.request, &self.payload);
        let reservations = reservations::of(&self.request, &self.payload, draft)?;
        let resource = reservations
            .iter()
            .find(|resource| rows::claim(&account, resource) == key)
            .ok_or_else(|| Fault::bug("a conflict about what is not used"))?;
        match reservations::holder(services, &key).await? {
            // A commit that was thought to be lost is on disk.
            Some(holder) if holder == self.request.id => Err(Fault::bug("it is held already")),
            Some(holder) => Ok(reservations::describe_holder(resource, holder)),
            None => Ok("another request had reserved what this one needs; it is free again".into()),
        }
    }
}

/// Fails a request that cannot be worked on, of which nothing is signed yet.
///
/// # Errors
/// As [`StoredRequest::advance`].
pub async fn give_up(
    services: &Services,
    request: SigningRequest,
    version: u64,
    reason: String,
) -> Result<(), AdvanceError> {
    let event = RequestEvent::GaveUp {
        reason,
        code: ExecuteCode::Unspecified,
    };
    end(services, request, version, event, CommitExtras::default()).await
}

/// Ends a request that no actor works on.
///
/// # Errors
/// As [`StoredRequest::advance`].
pub async fn end(
    services: &Services,
    mut request: SigningRequest,
    mut version: u64,
    event: RequestEvent,
    extras: CommitExtras<'_>,
) -> Result<(), AdvanceError> {
    let payload = Payload::decode(&request.payload).ok();
    let events = vec![event];
    advance(
        services,
        &mut request,
        &mut version,
        &mut true,
        payload.as_ref(),
        events,
        extras,
    )
    .await
}

async fn advance(
    services: &Services,
    request: &mut SigningRequest,
    version: &mut u64,
    delayed: &mut bool,
    payload: Option<&Payload>,
    events: Vec<RequestEvent>,
    extras: CommitExtras<'_>,
) -> Result<(), AdvanceError> {
    let now = services.now_ms();
    let mut next = request.clone();
    let mut batch = Batch::new();
    let mut trail: Vec<AuditRecord> = Vec::with_capacity(events.len());
    for event in events {
        let step = next.state.step(event, now).map_err(Fault::bug)?;
        next.state = step.next;
        trail.push(step.audit);
        if let Some(change) = step.claim {
            change_claims(&mut batch, &next, payload, change, now)?;
        }
    }
    let expect = match *version {
        0 => Precondition::Absent,
        version => Precondition::Version(version),
    };
    let number = *version + 1;
    batch.put(rows::request(next.id), expect, rows::encode(&next)?);
    add_audit_entries(
        &mut batch,
        &next,
        *version == 0,
        payload,
        trail,
        extras.command_commit.map(CommandCommit::by),
    )?;
    let outbox = rows::outbox(next.vault, next.id);
    match next.state.effect() {
        Some(effect) => batch.put(
            outbox,
            Precondition::Any,
            rows::encode(&OutboxRow { effect })?,
        ),
        None => batch.delete(outbox, Precondition::Any),
    };
    // Before anybody hears of it: what goes on, or has ended, waits for nothing.
    let goes_on = *delayed && next.state.effect() != request.state.effect();
    if goes_on {
        batch.delete(rows::delay(next.id), Precondition::Any);
    }
    if *version == 0 {
        let index = rows::request_index(next.vault, next.created_at_ms, next.id);
        batch.put(index, Precondition::Any, rows::encode(&())?);
    }
    if let Some(version) = extras.wallet {
        batch.check(rows::wallet(next.wallet), Precondition::Version(version));
    }
    if let Some(command_commit) = extras.command_commit {
        // Nothing was tried before it is stored.
        let response = || wire::CreateSigningRequestResponse {
            signing_request: Some(next.to_wire(&services.settings.calls, Vec::new())),
            error: None,
        };
        command_commit.add_to(&mut batch, || response().encode_to_vec(), now)?;
    }
    match services.store.commit(batch).await {
        Ok(()) => {}
        Err(CommitError::Conflict(key)) => return Err(AdvanceError::Conflict(key)),
        Err(error) => return Err(AdvanceError::Fatal(error.into())),
    }
    *request = next;
    *version = number;
    *delayed = *delayed && !goes_on;
    if request.state.is_final() {
        services.waiters.ended(request.id);
    }
    Ok(())
}

/// The entries of the audit log. The first one of a request says what is wanted.
fn add_audit_entries(
    batch: &mut Batch,
    request: &SigningRequest,
    first: bool,
    payload: Option<&Payload>,
    trail: Vec<AuditRecord>,
    by: Option<&AuditActor>,
) -> Result<(), Fault> {
    let service = AuditActor::service();
    let by = by.unwrap_or(&service);
    let chain = AuditChain::Vault(request.vault);
    if first {
        AuditNote::for_request(by, request.id, "Received")
            .fact("kind", payload.map_or("", Payload::kind))
            .fact("network", request.network.name())
            .fact("wallet", request.wallet)
            .fact("address", &request.address)
            .fact(
                "payloadSha256",
                hex::encode(Sha256::digest(&request.payload)),
            )
            .add_to(batch, chain, request.created_at_ms)?;
    }
    for audit in trail {
        let AuditRecord {
            at_ms,
            event,
            state,
            detail,
        } = audit;
        AuditNote::for_request(by, request.id, &event)
            .fact("state", state)
            .fact("detail", detail)
            .add_to(batch, chain, at_ms)?;
    }
    Ok(())
}

/// The rows of a change of what a request holds. `request` is in its new state.
fn change_claims(
    batch: &mut Batch,
    request: &SigningRequest,
    payload: Option<&Payload>,
    change: ReservationChange,
    now_ms: u64,
) -> Result<(), Fault> {
    let keys = |draft: &Draft| -> Result<Vec<Key>, Fault> {
        let payload = payload.ok_or_else(|| Fault::bug("a payload that cannot be read"))?;
        let account = ChainAccount::of(request, payload);
        let reservations = reservations::of(request, payload, draft)?;
        Ok(reservations
            .iter()
            .map(|one| rows::claim(&account, one))
            .collect())
    };
    // An unreadable payload must not keep a request from its end: the rest stays reserved.
    let what_is_known = |draft: &Draft| {
        keys(draft).unwrap_or_else(|fault| {
            tracing::error!(request = %request.id, ?fault, "the reservations of a request cannot be read");
            draft.claim.iter().map(rows::nonce_claim).collect()
        })
    };
    match change {
        ReservationChange::Take => {
            let draft = request.state.draft();
            let draft = draft.ok_or_else(|| Fault::bug("a state without a draft"))?;
            for key in keys(draft)? {
                batch.put(key, Precondition::Absent, rows::encode(&request.id)?);
            }
            // Needed when the transaction with that nonce is sent again.
            if let (None, Some(payload)) = (&draft.claim, payload) {
                let account = ChainAccount::of(request, payload);
                for nonce in reservations::replaced(request, payload, draft)? {
                    let key = rows::replacement(&account, nonce, request.id);
                    batch.put(key, Precondition::Any, rows::encode(&request.id)?);
                }
            }
        }
        ReservationChange::Free(draft) => {
            for key in what_is_known(&draft) {
                batch.delete(key, Precondition::Any);
            }
        }
        ReservationChange::Outlive(draft) => {
            let claims = what_is_known(&draft).into_iter();
            // Numbers stay taken for ever: a node that lags must not make one be used twice.
            let claims = claims.filter(|key| key.space == KeySpace::Claim);
            let claims: Vec<_> = claims.map(|key| key.bytes).collect();
            if !claims.is_empty() {
                let life_ms = match request.state {
                    RequestState::Succeeded { sent: false, .. } => HANDED_OVER_MS,
                    _ => SENT_MS,
                };
                let key = rows::reservation_expiry(now_ms.saturating_add(life_ms), request.id);
                batch.put(
                    key,
                    Precondition::Any,
                    rows::encode(&ReservationExpiry { claims })?,
                );
            }
        }
    }
    Ok(())
}
