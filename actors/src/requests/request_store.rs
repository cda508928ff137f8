//! One signing request and its row: applies events and commits what they lead to.

mod delay_mark;
mod side_rows;

use covault_core::{
    fault::{Class, ExecuteCode, Fault},
    ids::{RequestId, VaultId},
    networks::Payload,
    request::{AuditRecord, Draft, RequestEvent, RequestState, ReservationChange, SigningRequest},
    schema::wire,
    trace::{SpanFact, SpanName, TraceSpan},
};
use prost::Message as _;

use self::{
    delay_mark::DelayMark,
    side_rows::{add_audit_entry, change_claims, pass_on},
};
use crate::{
    commands::command_commit::CommandCommit,
    requests::{
        account::ChainAccount,
        approval_waits, awaiting,
        batch_claim::BatchClaim,
        failures, followed, refused,
        replacement_claim::ReplacementClaim,
        reservations::{self, PassedClaim},
        search_terms,
        sweep_claim::SweepClaim,
    },
    services::Services,
    store::{
        Batch, CommitError, Key, KeySpace, Precondition, batch_rows,
        rows::{self, OutboxRow, TransactionRow},
    },
};

/// How often a number is asked for again that others take and give up.
const MAX_CONTENDED_TRIES: u32 = 20;

/// A request as the store has it.
pub struct StoredRequest {
    /// The request.
    pub request: SigningRequest,
    /// The version of its row; 0 before it was stored.
    pub version: u64,
    /// Its payload.
    pub payload: Payload,
    /// Whether it cannot continue.
    pub delayed: DelayMark,
    /// How often its actor has failed.
    pub failures: u32,
    /// When it came to its state, in milliseconds since the Unix epoch; its creation, where that is not known.
    pub advanced_at_ms: u64,
    /// Its span, while it is worked on.
    pub trace: TraceSpan,
}

/// What a commit stores or demands beside the request.
#[derive(Clone, Copy, Default)]
pub struct CommitExtras<'a> {
    /// That of the command which asked.
    pub command_commit: Option<&'a CommandCommit>,
    /// The version in which the row of the wallet was found that is in use: an archived one must
    /// not sign, whenever it was archived.
    pub wallet: Option<u64>,
    /// Rows of addresses that must be those of no wallet ([`rows::wallet_address`]): what was not looked up is
    /// found out by that.
    pub strangers: &'a [Key],
    /// Claims that get another holder, or none.
    pub passed_on: &'a [PassedClaim],
    /// The row that a new request joins when it replaces another one's transaction.
    pub replacement: Option<&'a ReplacementClaim>,
    /// The batch payment that a new request belongs to.
    pub batch: Option<&'a BatchClaim>,
    /// The sweep that a new request is a step of.
    pub sweep: Option<&'a SweepClaim>,
    /// Where its transaction is for good: nothing is left to follow.
    pub settled: Option<&'a TransactionRow>,
    /// Nodes refuse its transaction, and one that lies may have kept it: its number is remembered.
    pub may_be_kept: bool,
    /// How often the request's actor has failed.
    pub failures: u32,
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
            advanced_at_ms: request.created_at_ms,
            request,
            version,
            payload,
            delayed: DelayMark::found(version > 0),
            failures: 0,
            trace: TraceSpan::off(),
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
        events: &[RequestEvent],
        extras: CommitExtras<'_>,
    ) -> Result<(), AdvanceError> {
        let now_ms = services.now_ms();
        let mut span = self.trace.child(SpanName::Commit);
        let outcome = advance(
            services,
            &mut self.request,
            &mut self.version,
            &mut self.delayed,
            Some(&self.payload),
            events,
            CommitExtras {
                failures: self.failures,
                ..extras
            },
        )
        .await;
        match &outcome {
            Ok(()) => {
                span.note(SpanFact::Outcome(self.request.state.name()));
                self.advanced_at_ms = now_ms;
            }
            Err(AdvanceError::Conflict(_)) => span.fail("conflict"),
            Err(AdvanceError::Fatal(fault)) => span.fail(fault.class().name()),
        }
        outcome
    }

    /// Stores why the request cannot continue now.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn delay(&mut self, services: &Services, reason: &str) -> Result<(), Fault> {
        self.delayed.set(&services.counters);
        let mut batch = Batch::new();
        let key = rows::delay(self.request.id);
        batch.put(key, Precondition::Any, rows::encode(&reason)?);
        Ok(services.store.commit(batch).await?)
    }

    /// As `advance`; what the client named and another request holds, a number or outputs, is used
    /// nevertheless: the client wants to replace that one. The claim stays with its holder.
    /// `assigned` is a number that the client did not choose.
    ///
    /// # Errors
    /// As `advance`.
    pub async fn advance_claiming(
        &mut self,
        services: &Services,
        events: &[RequestEvent],
        extras: CommitExtras<'_>,
        assigned: bool,
    ) -> Result<(), AdvanceError> {
        let is_held = |outcome: &Result<(), AdvanceError>| matches!(outcome, Err(AdvanceError::Conflict(key)) if key.space == KeySpace::NonceReservation);
        let mut tries = 0;
        loop {
            let outcome = self.advance(services, events, extras).await;
            let key = match outcome {
                Err(AdvanceError::Conflict(key))
                    if key.space == KeySpace::NonceReservation && !assigned =>
                {
                    key
                }
                Err(AdvanceError::Conflict(key)) if key.space == KeySpace::Claim => {
                    let events = events.to_vec();
                    return self.advance_sharing(services, events, extras, key).await;
                }
                outcome => return outcome,
            };
            let held = services.load::<RequestId>(&key).await?;
            // Written again, so that a holder who gives the number up at the same time learns of this request.
            let passed_on = held.map(|(holder, version)| PassedClaim {
                key,
                version,
                holder: Some(holder),
            });
            if passed_on.is_some() {
                let extras = CommitExtras {
                    passed_on: passed_on.as_slice(),
                    ..extras
                };
                let mut replacing = events.to_vec();
                for draft in drafts(&mut replacing) {
                    draft.claim = None;
                }
                let outcome = self.advance(services, &replacing, extras).await;
                if !is_held(&outcome) || tries >= MAX_CONTENDED_TRIES {
                    return outcome;
                }
            }
            // It was given up in between.
            tries += 1;
        }
    }

    /// As `advance`, without what the payload names and another request holds whose transaction exists; `held` is
    /// what another one holds.
    async fn advance_sharing(
        &mut self,
        services: &Services,
        mut events: Vec<RequestEvent>,
        extras: CommitExtras<'_>,
        mut held: Key,
    ) -> Result<(), AdvanceError> {
        let named = self.request.network.rules().named_inputs(&self.payload);
        let account = ChainAccount::of(&self.request, &self.payload);
        let names = |key: &Key| {
            let mut named = named.iter();
            named.any(|resource| rows::claim(&account, resource) == *key)
        };
        for _ in 0..MAX_CONTENDED_TRIES {
            let id = self.request.id;
            let shared = reservations::replaceable(services, &account, &named, id).await?;
            // Else someone holds what it cannot share.
            if shared.is_empty() || !names(&held) {
                break;
            }
            for draft in drafts(&mut events) {
                draft.shared = shared.keys().cloned().collect();
            }
            // Written again, so that a holder who gives it up at the same time learns of this request.
            let passed_on: Vec<PassedClaim> = shared
                .into_iter()
                .map(|(resource, (holder, version))| PassedClaim {
                    key: rows::claim(&account, &resource),
                    version,
                    holder: Some(holder),
                })
                .collect();
            let extras = CommitExtras {
                passed_on: &passed_on,
                ..extras
            };
            match self.advance(services, &events, extras).await {
                Err(AdvanceError::Conflict(key)) if key.space == KeySpace::Claim => held = key,
                outcome => return outcome,
            }
        }
        Err(AdvanceError::Conflict(held))
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

fn drafts(events: &mut [RequestEvent]) -> impl Iterator<Item = &mut Draft> {
    events.iter_mut().filter_map(|event| match event {
        RequestEvent::Built { draft } => Some(&mut **draft),
        _ => None,
    })
}

/// Stores how often the actor of a request has failed, so that the next process keeps counting.
///
/// # Errors
/// When the store cannot be read or written.
pub async fn note_failures(
    services: &Services,
    vault: VaultId,
    request: RequestId,
    failures: u32,
) -> Result<(), Fault> {
    let key = rows::outbox(vault, request);
    let Some((row, version)) = services.load::<OutboxRow>(&key).await? else {
        return Ok(());
    };
    let mut batch = Batch::new();
    let row = rows::encode(&OutboxRow { failures, ..row })?;
    batch.put(key, Precondition::Version(version), row);
    Ok(services.store.commit(batch).await?)
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
    advance(
        services,
        &mut request,
        &mut version,
        &mut DelayMark::found(true),
        payload.as_ref(),
        &[event],
        extras,
    )
    .await
}

/// As [`try_advance`]; a claim that gets another holder while the request lets go of it is read again.
async fn advance(
    services: &Services,
    request: &mut SigningRequest,
    version: &mut u64,
    delayed: &mut DelayMark,
    payload: Option<&Payload>,
    events: &[RequestEvent],
    extras: CommitExtras<'_>,
) -> Result<(), AdvanceError> {
    let mut tries = 0;
    loop {
        let mut freed = false;
        let outcome = try_advance(
            services, request, version, delayed, payload, events, extras, &mut freed,
        )
        .await;
        match outcome {
            Err(AdvanceError::Conflict(key))
                if freed
                    && tries < MAX_CONTENDED_TRIES
                    && matches!(key.space, KeySpace::Claim | KeySpace::NonceReservation) => {}
            outcome => return outcome,
        }
        tries += 1;
    }
}

#[expect(clippy::too_many_arguments, reason = "what a request is in memory")]
async fn try_advance(
    services: &Services,
    request: &mut SigningRequest,
    version: &mut u64,
    delayed: &mut DelayMark,
    payload: Option<&Payload>,
    events: &[RequestEvent],
    extras: CommitExtras<'_>,
    freed: &mut bool,
) -> Result<(), AdvanceError> {
    let now = services.now_ms();
    let mut next = request.clone();
    let mut batch = Batch::new();
    let mut trail: Vec<AuditRecord> = Vec::with_capacity(events.len());
    let is_unwanted = events.iter().any(|event| {
        matches!(
            event,
            RequestEvent::Rejected { .. } | RequestEvent::ApprovalExpired
        )
    });
    for event in events {
        let step = next.state.step(&next.consent, event.clone(), now);
        let step = step.map_err(Fault::bug)?;
        next.state = step.next;
        next.consent = step.consent.unwrap_or(next.consent);
        trail.push(step.audit);
        if let Some(change) = step.claim {
            // What others share that it lets go of is theirs from now on.
            let passed_on = match &change {
                ReservationChange::Free(draft) => {
                    *freed = true;
                    match reservations::given_up(services, &next, draft).await {
                        Ok(passed_on) => Some(passed_on),
                        Err(fault) if *fault.class() == Class::Unavailable => {
                            return Err(fault.into());
                        }
                        // What cannot be read must not keep a request from its end.
                        Err(_) => None,
                    }
                }
                ReservationChange::Take | ReservationChange::Outlive(_) => None,
            };
            change_claims(
                &mut batch,
                &next,
                payload,
                change,
                passed_on.as_deref(),
                now,
            )?;
        }
    }
    if asked_for_nothing_seen(&request.state, &next.state) {
        let key = batch_rows::asked_request(next.id);
        batch.put(key, Precondition::Any, rows::encode(&())?);
    }
    if extras.may_be_kept
        && let RequestState::Broadcasting { draft, .. } = &request.state
    {
        refused::remember(&mut batch, request, payload, draft)?;
    }
    let expect = match *version {
        0 => Precondition::Absent,
        version => Precondition::Version(version),
    };
    let number = *version + 1;
    batch.put(rows::request(next.id), expect, rows::encode(&next)?);
    add_audit_entry(
        &mut batch,
        &next,
        *version == 0,
        payload,
        &trail,
        extras.command_commit.map(CommandCommit::by),
    )?;
    let outbox = rows::outbox(next.vault, next.id);
    match next.state.effect().filter(|_| extras.settled.is_none()) {
        Some(effect) => batch.put(
            outbox,
            Precondition::Any,
            rows::encode(&OutboxRow {
                failures: extras.failures,
                effect,
            })?,
        ),
        None => batch.delete(outbox, Precondition::Any),
    };
    if let Some(settled) = extras.settled {
        let key = rows::transaction(next.id);
        batch.put(key, Precondition::Any, rows::encode(settled)?);
    }
    awaiting::change(&mut batch, request, &next)?;
    // Before anyone hears of it: what continues, or has ended, waits for nothing.
    let goes_on = delayed.is_set() && next.state.effect() != request.state.effect();
    match next.state.doubt() {
        Some(reason) => {
            let reason = rows::encode(&reason)?;
            batch.put(rows::delay(next.id), Precondition::Any, reason);
        }
        None if goes_on => {
            batch.delete(rows::delay(next.id), Precondition::Any);
        }
        None => {}
    }
    if *version == 0 {
        let index = rows::request_index(next.vault, next.created_at_ms, next.id);
        batch.put(index, Precondition::Any, rows::encode(&())?);
    }
    search_terms::add(
        &mut batch,
        (*version > 0).then_some(&*request),
        &next,
        payload,
    )?;
    pass_on(&mut batch, extras.passed_on)?;
    if let Some(replacement) = extras.replacement {
        replacement.add_to(&mut batch, next.id)?;
    }
    if let Some(claim) = extras.batch {
        claim.add_to(&mut batch)?;
    }
    if let Some(sweep) = extras.sweep {
        sweep.add_to(&mut batch)?;
    }
    if let Some(version) = extras.wallet {
        batch.check(rows::wallet(next.wallet), Precondition::Version(version));
    }
    for stranger in extras.strangers {
        batch.check_once(stranger.clone(), Precondition::Absent);
    }
    if let Some(command_commit) = extras.command_commit {
        // Nothing was tried before it is stored. The answer of replaceTransaction has the same fields.
        let calls = &services.settings.calls;
        let response = || wire::CreateSigningRequestResponse {
            signing_request: Some(next.to_wire(calls, Vec::new(), None, now)),
            error: None,
        };
        command_commit.add_to(&mut batch, || response().encode_to_vec(), now)?;
    }
    let lifted = goes_on.then(|| std::mem::take(delayed).lift());
    if let Err(error) = services.store.commit(batch).await {
        if let Some(lifted) = lifted {
            *delayed = lifted.restore(&services.counters);
        }
        return Err(match error {
            CommitError::Conflict(key) => AdvanceError::Conflict(key),
            error => AdvanceError::Fatal(error.into()),
        });
    }
    failures::tell(services, &request.state, &next, payload, is_unwanted, now);
    approval_waits::measure(services, &request.state, &next, now).await;
    let ends = next.state.is_final() && !request.state.is_final();
    let succeeds = ends && !matches!(next.state, RequestState::Failed { .. });
    let kind = payload.map_or(failures::OTHER_KIND, Payload::kind);
    services.counters.request(kind, |counts| {
        counts.created += u64::from(*version == 0);
        counts.succeeded += u64::from(succeeds);
        counts.failed += u64::from(ends && !succeeds);
    });
    *request = next;
    *version = number;
    // Nobody waits while people take their time.
    if request.state.is_final() || matches!(request.state, RequestState::AwaitingApproval { .. }) {
        services.listeners.outcomes.ended(request);
    }
    if let (RequestState::InDoubt { .. }, Some(payload)) = (&request.state, payload)
        && let Some(tracked) = followed::tracked(request, payload, now, false)
    {
        services.listeners.tracking.push(tracked);
    }
    Ok(())
}

/// Whether a request fails without signatures that signers were asked for: one of them may have finished them.
fn asked_for_nothing_seen(before: &RequestState, next: &RequestState) -> bool {
    let asked = match before {
        RequestState::Signing { .. } => true,
        RequestState::Prepared { attempts, .. } => *attempts > 0,
        _ => false,
    };
    asked && matches!(next, RequestState::Failed { signatures, .. } if signatures.is_empty())
}
