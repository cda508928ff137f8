use std::{sync::Arc, time::Duration};

use super::{Operation, OperationCall, lookup::request};
use crate::{
    commands::tokens,
    leases::LeaseScope,
    process::waiters::{CompletionNotice, CompletionWaiters},
    store::rows,
};
use async_trait::async_trait;
use covault_core::{
    backoff::Backoff,
    fault::{Class, Fault, FaultCode},
    ids::RequestId,
    request::{RequestState, SigningRequest},
    schema::wire,
};

/// When a call that waits looks again, where the request may end in another process.
const POLLS: Backoff = Backoff::new(Duration::from_millis(100), MAX_POLL);
/// After how long it does in the end, and where the vault is in this process: the token may have been revoked.
const MAX_POLL: Duration = Duration::from_secs(1);
/// One in so many times it looks at the request as well where its vault is here: it is told of the end.
const POLLS_PER_LOOK: u32 = 8;

/// Waits for the outcome of a signing request.
pub struct ExecuteSigningRequests;

#[async_trait]
impl Operation for ExecuteSigningRequests {
    const METHOD: &'static str = "mpcvault.platform.v1.PlatformAPI.ExecuteSigningRequests";
    type Request = wire::ExecuteSigningRequestsRequest;
    type Response = wire::ExecuteSigningRequestsResponse;

    async fn run(call: OperationCall<'_>, message: Self::Request) -> Result<Self::Response, Fault> {
        let patience = Duration::from_millis(call.services.settings.execute_wait_ms);
        outcome(call, message.uuid.parse()?, patience).await
    }
}

async fn outcome(
    call: OperationCall<'_>,
    id: RequestId,
    patience: Duration,
) -> Result<wire::ExecuteSigningRequestsResponse, Fault> {
    let OperationCall {
        services,
        caller,
        waiters,
        ..
    } = call;
    // Subscribed before the state is read, so that its end cannot fall between.
    let subscription = OutcomeSubscription {
        waiters,
        id,
        notice: Some(waiters.subscribe(id)),
    };
    let notice = subscription
        .notice
        .clone()
        .ok_or_else(|| Fault::bug("no subscription"))?;
    let mut ended = std::pin::pin!(notice.notified());
    ended.as_mut().enable();
    let asked = request(services, caller, id).await?;
    if let Some(outcome) = asked.outcome() {
        return Ok(outcome);
    }
    refuse_waiting(&asked)?;
    let effect = rows::outbox(asked.vault, id);
    let vault = LeaseScope::Vault(asked.vault);
    drop(asked);
    let mut left = patience;
    let mut called = waiters.closed();
    let mut polls = 0;
    loop {
        let is_here = services.held_leases.get(vault).is_some();
        if !called {
            let pause = if is_here {
                MAX_POLL
            } else {
                POLLS.pause(polls)
            };
            let pause = left.min(pause);
            called = tokio::time::timeout(pause, ended.as_mut()).await.is_ok();
            left = left.saturating_sub(pause);
            polls += 1;
        }
        let last = called || left.is_zero();
        // Thousands may wait with one token.
        if last || caller.person.is_some() || waiters.is_to_check(caller.token) {
            let in_use = tokens::in_use(services, caller).await;
            in_use.inspect_err(|_| waiters.check_again(&caller.token))?;
        }
        if let Some(outcome) = notice.outcome() {
            return Ok(outcome.clone());
        }
        // Whether it was called or not: the store says how things stand. The row of a request may be
        // large; that of its effect is not, and there is none once it has ended.
        let looks = !is_here || polls % POLLS_PER_LOOK == 0;
        if last || looks && services.store.get(&effect).await?.is_none() {
            let asked = request(services, caller, id).await?;
            if let Some(outcome) = asked.outcome() {
                return Ok(outcome);
            }
            refuse_waiting(&asked)?;
        }
        if last {
            let pending = match services.load::<String>(&rows::delay(id)).await? {
                None => "the request is still pending; ask again".to_owned(),
                Some((reason, _)) => format!("the request is still pending ({reason}); ask again"),
            };
            return Err(Fault::unavailable(pending).with_code(FaultCode::StillPending));
        }
    }
}

/// A request that waits for people is not waited for: it may be days.
fn refuse_waiting(request: &SigningRequest) -> Result<(), Fault> {
    match request.state {
        RequestState::AwaitingApproval { .. } => Err(Fault::new(
            Class::Forbidden,
            "ClientSignerPublicKey is required",
        )),
        _ => Ok(()),
    }
}

struct OutcomeSubscription<'a> {
    waiters: &'a CompletionWaiters,
    id: RequestId,
    notice: Option<Arc<CompletionNotice>>,
}

impl Drop for OutcomeSubscription<'_> {
    fn drop(&mut self) {
        if let Some(notice) = self.notice.take() {
            self.waiters.unsubscribe(self.id, notice);
        }
    }
}
