//! One signing request and its row: applies events and commits what they lead to.

use covault_core::{
    chain::{Facts, evm},
    fault::{ExecuteCode, Fault},
    payload::Payload,
    request::{Audit, ClaimChange, Event, Request},
};
use prost::Message as _;

use crate::{
    context::Context,
    idempotency::Pledge,
    rows::{self, Pending},
    store::{Batch, CommitError, Expect, Space},
};

/// A request as the store has it.
pub struct Ledger {
    /// The request.
    pub request: Request,
    /// The version of its row; 0 before it was stored.
    pub version: u64,
    /// Its payload.
    pub payload: Payload,
}

/// Why a commit did not happen.
pub enum Problem {
    /// The row of this space was not as expected.
    Conflict(Space),
    /// Anything else; the actor starts again from the store.
    Fatal(Fault),
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        Problem::Fatal(fault)
    }
}

impl From<Problem> for Fault {
    fn from(problem: Problem) -> Self {
        match problem {
            Problem::Conflict(space) => Fault::bug(format!("row of {space:?} was not as expected")),
            Problem::Fatal(fault) => fault,
        }
    }
}

impl Ledger {
    /// A request in a version of its row; 0 when it is new.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Bug`] when its payload cannot be read.
    pub fn open(request: Request, version: u64) -> Result<Self, Fault> {
        let payload = Payload::decode(&request.payload).map_err(Fault::bug)?;
        Ok(Self {
            request,
            version,
            payload,
        })
    }

    /// Applies events and commits the new state, its claims, its pending effect, its audit
    /// trail and the idempotency record as one batch.
    ///
    /// # Errors
    /// [`Problem`]; the request is as before then, in memory at least.
    pub async fn advance(
        &mut self,
        context: &Context,
        events: Vec<Event>,
        pledge: Option<&Pledge>,
    ) -> Result<(), Problem> {
        advance(
            context,
            &mut self.request,
            &mut self.version,
            events,
            pledge,
        )
        .await
    }

    /// As `advance`; a nonce that the client chose and another request holds is used
    /// nevertheless: the client wants to replace that one. The claim stays with its holder.
    ///
    /// # Errors
    /// As `advance`.
    pub async fn advance_claiming(
        &mut self,
        context: &Context,
        mut events: Vec<Event>,
        pledge: Option<&Pledge>,
    ) -> Result<(), Problem> {
        let outcome = self.advance(context, events.clone(), pledge).await;
        if !matches!(outcome, Err(Problem::Conflict(Space::NonceClaim))) {
            return outcome;
        }
        for event in &mut events {
            if let Event::Built { draft } = event
                && !matches!(&draft.facts, Facts::Evm(evm::Facts { nonce: Some(_), .. }))
            {
                draft.claim = None;
            }
        }
        self.advance(context, events, pledge).await
    }
}

/// Fails a request that cannot be worked on, of which nothing is signed yet.
///
/// # Errors
/// As [`Ledger::advance`].
pub async fn give_up(
    context: &Context,
    mut request: Request,
    mut version: u64,
    reason: String,
) -> Result<(), Problem> {
    let event = Event::GaveUp {
        reason,
        code: ExecuteCode::Unspecified,
    };
    advance(context, &mut request, &mut version, vec![event], None).await
}

async fn advance(
    context: &Context,
    request: &mut Request,
    version: &mut u64,
    events: Vec<Event>,
    pledge: Option<&Pledge>,
) -> Result<(), Problem> {
    let now = context.now_ms();
    let mut next = request.clone();
    let mut batch = Batch::new();
    let mut trail: Vec<Audit> = Vec::with_capacity(events.len());
    for event in events {
        let step = next.state.step(event, now).map_err(Fault::bug)?;
        next.state = step.next;
        trail.push(step.audit);
        match step.claim {
            Some(ClaimChange::Take(claim)) => {
                let owner = rows::encode(&next.id)?;
                batch.put(rows::nonce_claim(&claim), Expect::Absent, owner);
            }
            Some(ClaimChange::Free(claim)) => {
                batch.delete(rows::nonce_claim(&claim), Expect::Any);
            }
            None => {}
        }
    }
    let expect = match *version {
        0 => Expect::Absent,
        version => Expect::Version(version),
    };
    let number = *version + 1;
    batch.put(rows::request(next.id), expect, rows::encode(&next)?);
    let audit = rows::audit(next.id, number);
    batch.put(audit, Expect::Any, rows::encode(&trail)?);
    let outbox = rows::outbox(next.vault, next.id);
    match next.state.effect() {
        Some(effect) => batch.put(outbox, Expect::Any, rows::encode(&Pending { effect })?),
        None => batch.delete(outbox, Expect::Any),
    };
    if let Some(pledge) = pledge {
        pledge.add_to(&mut batch, &next.to_wire().encode_to_vec(), now)?;
    }
    match context.store.commit(batch).await {
        Ok(()) => {}
        Err(CommitError::Conflict(key)) => return Err(Problem::Conflict(key.space)),
        Err(error) => return Err(Problem::Fatal(error.into())),
    }
    *request = next;
    *version = number;
    if request.state.is_final() {
        context.waiters.ended(request.id);
    }
    Ok(())
}
