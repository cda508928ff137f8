//! The work that a request's actor does outside itself: asks the chain, has the signers sign, sends.

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use covault_core::{
    fault::{Class, Fault, FaultCode},
    ids::{RequestId, SessionId},
    networks::{ChainData, Resource, VerifiedSignatures},
    request::{RequestEffect, RequestState, SigningRequest},
    trace::{SpanName, TraceContext},
    turns::RequestTurn,
};
use futures::FutureExt as _;
use ractor::{ActorProcessingErr, RpcReplyPort, rpc::CallResult};
use tokio::sync::watch;

use super::{
    BuildBlocker, Msg, SigningState,
    holding::tell_of_approvals,
    spans::{note_chain, note_signers},
    waiting::chain_asked,
};
use crate::{
    chain_rpc::{self, BroadcastOutcome, BroadcastRequest, ChainError, Standing, tried},
    port::SigningAttempt,
    process::{mailbox::ActorMailbox, tasks::AbortOnDrop},
    requests::{
        account::ChainAccount,
        followed, rebroadcast, recipients,
        refused::{self, NextRequest, NonceDemand, RepeatBlocker},
        replacing,
        request_store::StoredRequest,
        simulations, tx_builder,
    },
    services::{DEADLINE_GRACE_MS, Services},
    store::Key,
    vaults::vault::{self, KeyShares, SharesInUse, SlotRequest},
};

/// After so many tries in vain to send it, what is before it is looked after.
const TRIES_BEFORE_REBROADCAST: u32 = 3;
/// Why nothing is begun outside while another orchestrator may have the vault.
const UNSURE: &str = "this orchestrator has not reached its store for some time";

impl SigningState {
    /// Starts what the state asks for; ends the actor when the request is final.
    pub(super) fn run_effect(
        &mut self,
        myself: &ActorMailbox<Msg>,
    ) -> Result<(), ActorProcessingErr> {
        self.measure();
        self.simulate()?;
        self.count_inputs()?;
        let is_again = self.note_sending()?;
        let StoredRequest {
            request,
            payload,
            advanced_at_ms,
            ..
        } = self.stored()?;
        if request.state.is_over() {
            if let Some(tracked) = followed::tracked(request, payload, *advanced_at_ms, false) {
                self.services.listeners.tracking.push(tracked);
            }
            myself.actor().stop(None);
            return Ok(());
        }
        if matches!(request.state, RequestState::AwaitingApproval { .. }) {
            // People take their time: in the meantime it is a row and nothing more.
            let _ = self
                .vault
                .cast(vault::Msg::Awaits(request.consent.due_ms()));
            myself.actor().stop(None);
            return Ok(());
        }
        let services = Arc::clone(&self.services);
        let vault_requests = Arc::clone(&self.vault_requests);
        if !self.told && request.has_approvals_to_tell() {
            let task = tell_of_approvals(services, self.in_use.clone(), request.clone());
            self.task = Some(spawn_task(myself, "telling signers of approvals", task));
            return Ok(());
        }
        let task = match (request.state.effect(), &request.state) {
            (Some(RequestEffect::Prepare), _) => {
                let queries = tx_builder::queries(&services, request.network, payload);
                let client = services
                    .chains
                    .get(request.network, payload.chain_id())
                    .cloned();
                let own = tx_builder::local_chain_data(&services, payload, &queries);
                let queue = services.chains.queue(request.network, payload.chain_id());
                let queue = queue.filter(|_| own.is_none());
                let account_queue = tx_builder::account_queue(request, payload, &queries);
                let ask = account_queue.map(|account_queue| {
                    (account_queue, request.public_key.clone(), payload.clone())
                });
                let vault = self.vault.clone();
                let id = request.id;
                // It is in the chain instead of what it replaces, whatever else was refused.
                let is_replacement = request.replaces.is_some();
                let (network, checked) = (request.network, payload.clone());
                let account = ChainAccount::of(request, payload);
                let public_key = request.public_key.clone();
                // One that waited for people comes now, and not before all that came in the meantime.
                let signing_ms = services.settings.signing_deadline_ms;
                let (accepted_ms, deadline_ms) = match request.state {
                    RequestState::Preparing { deadline_ms, .. } => {
                        (deadline_ms.saturating_sub(signing_ms), deadline_ms)
                    }
                    _ => (
                        request.created_at_ms,
                        request.created_at_ms.saturating_add(signing_ms),
                    ),
                };
                let token = request.token;
                let deadline_ms = deadline_ms.max(self.extended_deadline_ms);
                let time = (accepted_ms, deadline_ms);
                let overdue_ms = overdue_ms(signing_ms, time, self.has_waited_on());
                if self.chain_wait.is_none() {
                    let parties = vault::parties(request);
                    self.chain_wait = queue.map(|queue| Arc::new(queue.enter(&parties)));
                }
                let (chain_wait, chain_waits) = (self.chain_wait.clone(), self.chain_wait.clone());
                let left = self.time_to_build()?;
                self.asked_ms = services.now_ms();
                let work = async move {
                    if let Some(client) = &client
                        && let Err(error) = client.preflight(&checked).await
                    {
                        return Msg::ChainDataArrived(Err(BuildBlocker::Chain(error)));
                    }
                    let next = NextRequest {
                        request: id,
                        payload: &checked,
                        account: &account,
                        is_whole: own.is_some(),
                        looks: &vault_requests.refused_looks,
                    };
                    if let Some(chain_data) = own {
                        if let (Ok(chain_data), Some(client), false) =
                            (&chain_data, &client, is_replacement)
                            && checked.is_transaction()
                        {
                            let uses = tx_builder::uses(network, &checked, chain_data, &public_key);
                            let is_open =
                                refused::check_built_by_client(&services, client, &next, &uses);
                            if let Err(blocker) = is_open.await {
                                return not_now(blocker);
                            }
                        }
                        return Msg::ChainDataArrived(chain_data.map_err(BuildBlocker::Wrong));
                    }
                    let Some(client) = client else {
                        return Msg::ChainDataArrived(Err(BuildBlocker::Chain(
                            ChainError::Unknown("no node is configured for this chain".into()),
                        )));
                    };
                    // What is refused from now on is of a request that was made before its failure was known: no second
                    // payment of what someone heard of as failed.
                    let earlier = match is_replacement {
                        true => Ok(Vec::new()),
                        false => refused::still_open(&services, &client, &next).await,
                    };
                    let earlier = match earlier {
                        Ok(earlier) => earlier,
                        Err(blocker) => return not_now(blocker),
                    };
                    let mut chain_data = client.chain_data(&queries, services.now_ms()).await;
                    // Only who names a number or outputs can want to replace what has them.
                    let named = network.rules().named_inputs(&checked);
                    if (ask.is_none() || !named.is_empty())
                        && let Ok(found) = chain_data.as_mut()
                    {
                        let data = std::mem::replace(found, ChainData::Nothing);
                        match tx_builder::outbid(&services, &account, &checked, &public_key, data)
                            .await
                        {
                            Ok(data) => *found = data,
                            Err(fault) => {
                                let reason = fault.message().to_owned();
                                return Msg::ChainDataArrived(Err(BuildBlocker::Taken(reason)));
                            }
                        }
                    }
                    let mut demanded = Vec::new();
                    if let (Ok(found), false) = (chain_data.as_mut(), earlier.is_empty()) {
                        let required =
                            refused::required_inputs(&services, &*client, &next, &earlier, found);
                        let required = match required.await {
                            Ok(required) => required,
                            Err(blocker) => return not_now(blocker),
                        };
                        let data = std::mem::replace(found, ChainData::Nothing);
                        match network.rules().with_inputs(data, &required) {
                            Ok(data) => *found = data,
                            Err(fault) => {
                                return Msg::ChainDataArrived(Err(BuildBlocker::Wrong(fault)));
                            }
                        }
                        demanded.extend(required);
                    }
                    let problem = chain_data.as_ref().ok().and_then(|chain_data| {
                        services.chains.price_problem(network, &checked, chain_data)
                    });
                    if let Some(problem) = problem {
                        return Msg::ChainDataArrived(Err(BuildBlocker::Price(problem)));
                    }
                    Msg::ChainDataArrived(match (chain_data, ask) {
                        (Err(error), _) => Err(BuildBlocker::Chain(error)),
                        (Ok(chain_data), None) => {
                            let uses = || {
                                tx_builder::candidate_inputs(
                                    network,
                                    &checked,
                                    &chain_data,
                                    &public_key,
                                )
                            };
                            let checked_number = match is_replacement {
                                true => Ok(()),
                                false => {
                                    refused::check_named_number(&services, &*client, &next, uses)
                                        .await
                                }
                            };
                            match checked_number {
                                Ok(()) => Ok(chain_data),
                                Err(blocker) => return not_now(blocker),
                            }
                        }
                        (Ok(mut chain_data), Some((account_queue, public_key, payload))) => {
                            let mut candidate_inputs = tx_builder::candidate_inputs(
                                account_queue.network,
                                &payload,
                                &chain_data,
                                &public_key,
                            );
                            // Whatever has these is to be replaced, and not to be sent again.
                            candidate_inputs.retain(|resource| !named.contains(resource));
                            let number =
                                refused::next_number(&services, &*client, &next, &candidate_inputs);
                            match number.await {
                                Ok(None) => {}
                                Ok(Some(NonceDemand { number, is_own })) => {
                                    demanded.extend(is_own.then_some(Resource::Nonce(number)));
                                    candidate_inputs = vec![Resource::Nonce(number)];
                                    let rules = network.rules();
                                    match rules.with_next_number(chain_data, number) {
                                        Ok(lower) => chain_data = lower,
                                        Err(fault) => {
                                            let problem = BuildBlocker::Wrong(fault);
                                            return Msg::ChainDataArrived(Err(problem));
                                        }
                                    }
                                }
                                Err(blocker) => return not_now(blocker),
                            }
                            let found = rebroadcast::rebroadcast_dropped(
                                &services,
                                &vault_requests.rebroadcast_cache,
                                &*client,
                                &account_queue,
                                &candidate_inputs,
                            )
                            .await;
                            match found {
                                Ok(None) => {}
                                Ok(Some(in_the_way)) => {
                                    return Msg::ChainDataArrived(Err(BuildBlocker::Taken(
                                        in_the_way,
                                    )));
                                }
                                // The store cannot be read now, which its turn will tell.
                                Err(fault) => {
                                    tracing::warn!(request = %id, ?fault, "failed to check earlier transactions");
                                }
                            }
                            // From here on it waits for others of its account.
                            if let Some(wait) = chain_wait {
                                wait.answered();
                            }
                            let wanted = |reply| SlotRequest {
                                payload,
                                public_key,
                                chain_data,
                                demanded,
                                reply,
                            };
                            allocate(&services, &vault, id, wanted).await
                        }
                    })
                };
                let mut span = self.stored()?.trace.child(SpanName::Build);
                // Calls that wait for a node wait for as long as anyone wants them.
                spawn_task(myself, "asking the chain", async move {
                    let work = chain_rpc::of_request(token, accepted_ms, overdue_ms, work);
                    let work = chain_rpc::load_of_nodes(tokio::time::timeout(left, work));
                    let (outcome, load) = work.await;
                    let answered = chain_waits.is_some_and(|wait| wait.is_over());
                    let message = chain_asked(outcome.ok(), load, answered);
                    note_chain(&mut span, &message);
                    message
                })
            }
            (Some(RequestEffect::Sign), RequestState::Signing { draft, session, .. }) => {
                let (session, deadline_ms) = (*session, draft.deadline_ms);
                let turn = turn(&services, request, deadline_ms, self.has_waited_on());
                let in_use = self.in_use.clone();
                let request = request.clone();
                let strangers = self.strangers.clone();
                let mut span = self.stored()?.trace.child(SpanName::Session);
                spawn_task(myself, "signing", async move {
                    let until = (session, deadline_ms);
                    let trace = span.parent().context();
                    let signing =
                        sign(&services, in_use, &request, strangers, until, (turn, trace));
                    let (epoch, answer) = signing.await;
                    note_signers(&mut span, &answer);
                    Msg::SignersAnswered {
                        session,
                        epoch,
                        answer,
                    }
                })
            }
            (Some(RequestEffect::Broadcast), RequestState::Broadcasting { draft, signed, .. }) => {
                // Before it is sent: the one before it may be accepted at the same time.
                if let Some(claim) = &draft.claim {
                    let waiters = &self.vault_requests.nonce_waiters;
                    waiters.wait(claim.clone(), myself.clone());
                }
                let now_ms = services.now_ms();
                let broadcast_request = BroadcastRequest {
                    signed: signed.clone(),
                    chain_data: draft.chain_data.clone(),
                    age_ms: now_ms.saturating_sub(draft.built_at_ms),
                    now_ms,
                    retried: self.resumed || self.got_out,
                };
                let client = services
                    .chains
                    .get(request.network, payload.chain_id())
                    .cloned();
                let account = ChainAccount::of(request, payload);
                // Only what did not get through at once can have been replaced in the meantime.
                let replaceable = (self.resumed || is_again).then(|| request.clone());
                // A transaction that waits for long may wait for one that was dropped.
                let nonce = draft.claim.as_ref().map(|claim| claim.nonce);
                let nonce = nonce.filter(|_| self.tries >= TRIES_BEFORE_REBROADCAST);
                // What is sent again and again must not go before all others each time.
                let accepted_ms = match self.tries {
                    0 => request.created_at_ms,
                    _ => now_ms,
                };
                let token = request.token;
                let signing_ms = services.settings.signing_deadline_ms;
                let time = (accepted_ms, accepted_ms.saturating_add(signing_ms));
                let overdue_ms = overdue_ms(signing_ms, time, false);
                let work = async move {
                    let Some(client) = client else {
                        let reason = "no node is configured for this chain";
                        return not_sent(BroadcastOutcome::Unknown(reason.into()));
                    };
                    if !services.is_lease_fresh() {
                        return not_sent(BroadcastOutcome::Unknown(UNSURE.into()));
                    }
                    if let Some(request) = replaceable {
                        match replacing::successor(&services, &request).await {
                            Ok(None) => {}
                            Ok(Some(successor)) => {
                                let refusal = replacing::superseded(successor);
                                let answer = BroadcastOutcome::Doubtful(refusal, Standing::Passed);
                                return not_sent(answer);
                            }
                            Err(fault) => {
                                let reason = fault.message().to_owned();
                                return not_sent(BroadcastOutcome::Unknown(reason));
                            }
                        }
                    }
                    let (answer, sent) = tried(client.broadcast(&broadcast_request)).await;
                    let (BroadcastOutcome::Unknown(reason), Some(nonce)) = (&answer, nonce) else {
                        return Msg::NodeAnswered(answer, sent);
                    };
                    let cache = &vault_requests.rebroadcast_cache;
                    let found = rebroadcast::rebroadcast_predecessors(
                        &services, cache, &*client, &account, nonce,
                    )
                    .await;
                    let answer = match found {
                        Ok(Some(in_the_way)) => {
                            BroadcastOutcome::Unknown(format!("{reason}; {in_the_way}"))
                        }
                        Ok(None) | Err(_) => answer,
                    };
                    Msg::NodeAnswered(answer, sent)
                };
                let work = chain_rpc::of_request(token, accepted_ms, overdue_ms, work);
                let mut span = self.stored()?.trace.child(SpanName::Broadcast);
                spawn_task(myself, "sending", async move {
                    let message = work.await;
                    note_chain(&mut span, &message);
                    message
                })
            }
            // Folded into other commits; a row cannot stand there.
            (effect, state) => {
                return Err(Fault::bug(format!("{effect:?} in {}", state.name())).into());
            }
        };
        self.task = Some(task);
        Ok(())
    }
}

impl SigningState {
    /// Whether this actor has begun to send the transaction before; it does now.
    fn note_sending(&mut self) -> Result<bool, Fault> {
        let sends = matches!(
            self.stored()?.request.state,
            RequestState::Broadcasting { .. }
        );
        // What became of a try that was broken off is not known.
        self.got_out |= std::mem::replace(&mut self.is_sending, sends);
        Ok(std::mem::replace(&mut self.sends, sends) && sends)
    }

    /// How long it may still take until there is something to sign.
    fn time_to_build(&self) -> Result<Duration, Fault> {
        let left_ms = match self.stored()?.request.state {
            RequestState::Preparing { deadline_ms, .. } => deadline_ms
                .max(self.extended_deadline_ms)
                .saturating_sub(self.services.now_ms()),
            _ => 0,
        };
        // The last try is one, too.
        Ok(Duration::from_millis(
            left_ms.saturating_add(DEADLINE_GRACE_MS),
        ))
    }

    /// Has those who come wait for all that signers have to sign of it.
    fn count_inputs(&mut self) -> Result<(), Fault> {
        let Self {
            services,
            current,
            admission,
            ..
        } = self;
        let stored = current
            .as_ref()
            .ok_or_else(|| Fault::bug("no request yet"))?;
        admission.built(services, &stored.request);
        Ok(())
    }

    /// Has what was built tried on a node, once, beside all the rest.
    fn simulate(&mut self) -> Result<(), Fault> {
        let StoredRequest {
            request, payload, ..
        } = self.stored()?;
        if let (RequestState::Signing { draft, .. }, false) = (&request.state, self.simulated) {
            simulations::start(&self.services, request, payload, draft, self.resumed);
            self.simulated = true;
        }
        Ok(())
    }
}

/// The outcome of a request that may not be built while, or because, the same payment was refused.
fn not_now(blocker: RepeatBlocker) -> Msg {
    Msg::ChainDataArrived(Err(match blocker {
        RepeatBlocker::Wait(reason) => BuildBlocker::Repeated(reason),
        RepeatBlocker::Refuse(reason) => BuildBlocker::Wrong(Fault::new(Class::Invalid, reason)),
    }))
}

/// What a try comes to that came to no node.
fn not_sent(answer: BroadcastOutcome) -> Msg {
    Msg::NodeAnswered(answer, false)
}

/// From when on a request goes before the turns of others, at nodes and at signers: when a third of the time that it has
/// now is over, and of what waits on, and so gets new time anyway, two thirds: else what one token has waiting would be
/// before all others for as long as it takes. That time is `signing_ms`, or all that there is between `from_ms` and
/// `deadline_ms`: what expires soon by its client's own wish is not overdue at once. In milliseconds since the Unix epoch.
fn overdue_ms(signing_ms: u64, (from_ms, deadline_ms): (u64, u64), waits_on: bool) -> u64 {
    let third_ms = signing_ms.min(deadline_ms.saturating_sub(from_ms)) / 3;
    let left_ms = match waits_on {
        true => third_ms,
        false => third_ms.saturating_mul(2),
    };
    deadline_ms.saturating_sub(left_ms)
}

/// Where a request that is built stands among those that wait for signers. What people approved late was accepted then,
/// and not when it was created: it does not go before all that came in the meantime. No new time changes it.
fn turn(
    services: &Services,
    request: &SigningRequest,
    deadline_ms: u64,
    waits_on: bool,
) -> RequestTurn {
    let built_ms = request.state.draft().map_or(0, |draft| draft.built_at_ms);
    let signing_ms = services.settings.signing_deadline_ms;
    let earliest_ms = built_ms.saturating_sub(signing_ms);
    RequestTurn {
        accepted_ms: request.created_at_ms.max(earliest_ms),
        overdue_ms: overdue_ms(signing_ms, (built_ms, deadline_ms), waits_on),
    }
}

/// Has the shares that are in use sign, and says which those were. New shares are waited for
/// until their nodes were told to use them.
async fn sign(
    services: &Services,
    mut in_use: watch::Receiver<SharesInUse>,
    request: &SigningRequest,
    strangers: Vec<Key>,
    (session, deadline_ms): (SessionId, u64),
    (turn, trace): (RequestTurn, Option<TraceContext>),
) -> (Option<u32>, Result<VerifiedSignatures, Fault>) {
    let curve = request.network.curve();
    let patience = || {
        let left = deadline_ms.saturating_sub(services.now_ms());
        Duration::from_millis(left.saturating_add(DEADLINE_GRACE_MS))
    };
    let activated = in_use.wait_for(|keys| keys.of(curve).is_some_and(|shares| shares.activated));
    let shares = match tokio::time::timeout(patience(), activated).await {
        Ok(Ok(keys)) => keys.of(curve).cloned(),
        _ => None,
    };
    let Some(KeyShares {
        scheme, generation, ..
    }) = shares
    else {
        let fault = Fault::unavailable("the vault's nodes did not activate the new shares in time");
        return (None, Err(fault));
    };
    let Some(mut order) = request.order(generation.epoch, services.now_ms()) else {
        return (None, Err(Fault::bug("no order")));
    };
    order.recipient_indices = match recipients::own(services, request, &strangers).await {
        Ok(indices) => indices,
        Err(fault) => return (None, Err(fault)),
    };
    let attempt = SigningAttempt {
        scheme,
        session,
        holders: generation.holders,
        threshold: generation.threshold,
        deadline_ms,
        token: request.token,
        turn,
        client_signer: request.consent.rule.client_signer(),
        trace,
    };
    if !services.is_lease_fresh() {
        return (Some(generation.epoch), Err(Fault::unavailable(UNSURE)));
    }
    if let Err(fault) = still_approved(request, order.issued_at_ms) {
        return (Some(generation.epoch), Err(fault));
    }
    let signing = services.signers.sign(&order, &attempt);
    let answer = tokio::time::timeout(patience(), signing)
        .await
        .unwrap_or_else(|_| Err(Fault::unavailable("the signers did not answer in time")));
    (Some(generation.epoch), answer)
}

/// Refuses what people have not approved, or no longer: it may have waited since.
fn still_approved(request: &SigningRequest, now_ms: u64) -> Result<(), Fault> {
    let RequestState::Signing { draft, .. } = &request.state else {
        return Ok(());
    };
    match request.beyond_approval(&draft.unsigned, now_ms)? {
        Some(problem) => {
            Err(Fault::new(Class::Invalid, problem).with_code(FaultCode::ApprovalsMissing))
        }
        None => Ok(()),
    }
}

/// Runs a task beside the actor; what it makes becomes a message, also when it panics.
fn spawn_task(
    myself: &ActorMailbox<Msg>,
    name: &'static str,
    task: impl Future<Output = Msg> + Send + 'static,
) -> AbortOnDrop {
    let actor = myself.clone();
    let handle = tokio::spawn(async move {
        let message = AssertUnwindSafe(task)
            .catch_unwind()
            .await
            .unwrap_or(Msg::TaskDied(name));
        // The actor may have ended.
        let _ = actor.cast(message);
    });
    AbortOnDrop(handle.abort_handle())
}

/// Waits for the request's slot in its account queue, where the vault allocates what it builds on.
async fn allocate(
    services: &Services,
    vault: &ActorMailbox<vault::Msg>,
    request: RequestId,
    wanted: impl FnOnce(RpcReplyPort<Result<ChainData, BuildBlocker>>) -> SlotRequest,
) -> Result<ChainData, BuildBlocker> {
    let ask = |reply| vault::Msg::RequestSlot(request, Box::new(wanted(reply)));
    match vault.call(ask, services.call_timeout()).await {
        Ok(CallResult::Success(settled)) => settled,
        _ => Err(BuildBlocker::NoTurn),
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn what_expires_soon__should_not_be_overdue_at_once() {
        let overdue = |deadline_ms, waits_on| overdue_ms(60_000, (100_000, deadline_ms), waits_on);
        assert_eq!(overdue(160_000, false), 120_000);
        assert_eq!(overdue(130_000, false), 110_000);
        assert_eq!(overdue(130_000, true), 120_000);
        // It has got new time.
        assert_eq!(overdue(400_000, true), 380_000);
    }
}
