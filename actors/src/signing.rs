//! The actor of one live signing request.
//!
//! It folds every transition that has no outside effect into one commit, then runs the effect
//! of the state it reached in a task beside it; the outcome comes back as a message. It never
//! repairs itself: on anything unexpected it ends with an error, and its vault starts it again
//! from the store.

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use async_trait::async_trait;
use covault_core::{
    chain::{Facts, Needs, evm},
    fault::{Class, ExecuteCode, Fault},
    ids::SessionId,
    request::{Draft, Effect, Event, Request, State},
    schema::wire,
    signature::Signature,
};
use futures::FutureExt as _;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use tokio::sync::watch;

use crate::{
    building,
    context::{Context, GRACE_MS},
    idempotency::Pledge,
    ledger::{Ledger, Problem},
    port::SigningAttempt,
    rpc::{Broadcast, ChainError, Shipment},
    store::Space,
    vault::{self, InUse},
};

/// Messages.
pub enum Msg {
    /// Begins, or goes on where the store says.
    Begin(Box<Start>),
    /// The chain answered, and where one is wanted a nonce was assigned.
    FactsArrived(Result<Facts, ChainError>),
    /// The cluster answered.
    SignersAnswered {
        /// In which session.
        session: SessionId,
        /// The epoch of the shares that were to sign; `None` when nobody was asked.
        epoch: Option<u32>,
        /// What.
        answer: Result<Vec<Signature>, Fault>,
    },
    /// The node answered.
    NodeAnswered(Broadcast),
    /// The effect of the state is to be run (again).
    EffectDue,
    /// A task beside the actor panicked.
    TaskDied(&'static str),
}

/// How an actor starts.
pub enum Start {
    /// With a new request.
    New {
        /// In state `Received`.
        request: Request,
        /// Whether it is to be sent once signed.
        broadcast: bool,
        /// The idempotency record to store with it.
        pledge: Option<Pledge>,
        /// Where the receipt goes.
        reply: RpcReplyPort<Result<wire::SigningRequest, Fault>>,
    },
    /// With a request from the store.
    Load {
        /// It.
        request: Request,
        /// Its version.
        version: u64,
    },
}

/// Arguments.
pub struct Args {
    /// Shared.
    pub context: Arc<Context>,
    /// The vault.
    pub vault: ActorRef<vault::Msg>,
    /// The shares of the vault that sign.
    pub in_use: watch::Receiver<InUse>,
    /// How to start.
    pub start: Start,
    /// Counts the request as live; `None` for those that were live before a restart.
    pub place: Option<vault::Place>,
}

/// The actor.
pub struct Signing;

/// Its state.
pub struct Live {
    context: Arc<Context>,
    vault: ActorRef<vault::Msg>,
    in_use: watch::Receiver<InUse>,
    /// `None` before the first commit.
    current: Option<Ledger>,
    /// Tries of the effect that is run now.
    tries: u32,
    /// It was live before: what its last effect did is not known.
    resumed: bool,
    /// It may take until then, in milliseconds since the Unix epoch, whatever its row says.
    patient_until_ms: u64,
    task: Option<AbortOnDrop>,
    place: Option<vault::Place>,
}

/// A task that ends with its owner.
pub(crate) struct AbortOnDrop(pub(crate) tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[async_trait]
impl Actor for Signing {
    type Msg = Msg;
    type State = Live;
    type Arguments = Args;

    async fn pre_start(
        &self,
        myself: ActorRef<Msg>,
        args: Args,
    ) -> Result<Live, ActorProcessingErr> {
        myself.cast(Msg::Begin(Box::new(args.start)))?;
        Ok(Live {
            context: args.context,
            vault: args.vault,
            in_use: args.in_use,
            current: None,
            tries: 0,
            resumed: false,
            patient_until_ms: 0,
            task: None,
            place: args.place,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Msg>,
        message: Msg,
        live: &mut Live,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Msg::Begin(start) => match *start {
                Start::New {
                    request,
                    broadcast,
                    pledge,
                    reply,
                } => {
                    let receipt = live.create(request, broadcast, pledge).await;
                    let refused = receipt.as_ref().err().cloned();
                    // The caller may have gone; the request is on disk all the same.
                    let _ = reply.send(receipt);
                    match refused {
                        None => {}
                        Some(fault) if *fault.class() == Class::Invalid => {
                            myself.stop(None);
                            return Ok(());
                        }
                        // The store may have taken it nevertheless: the vault looks again.
                        Some(fault) => return Err(fault.into()),
                    }
                }
                Start::Load { request, version } => live.resume(request, version).await?,
            },
            Msg::FactsArrived(Ok(facts)) => live.facts_arrived(facts).await?,
            Msg::FactsArrived(Err(ChainError::Refused(refusal))) => {
                live.give_up(refusal.reason, refusal.code).await?;
            }
            Msg::FactsArrived(Err(ChainError::Unknown(reason))) => {
                if live.retry_before_deadline(&myself)? {
                    let request = live.now()?.request.id;
                    let _ = live.vault.cast(vault::Msg::StepBack(request));
                    return Ok(());
                }
                let reason = format!("the chain's nodes gave no answer in time: {reason}");
                live.give_up(reason, ExecuteCode::Unspecified).await?;
            }
            Msg::SignersAnswered {
                session,
                epoch,
                answer,
            } => {
                if live.session()? != Some(session) {
                    return Ok(());
                }
                match answer {
                    Ok(signatures) => live.signed(signatures).await?,
                    Err(fault) => {
                        tracing::warn!(request = %live.now()?.request.id, %session, ?fault, "signing attempt failed");
                        let for_good = matches!(fault.class(), Class::Invalid | Class::Forbidden)
                            && live.shares_stayed(epoch)?;
                        if !for_good && live.retry_before_deadline(&myself)? {
                            return Ok(());
                        }
                        live.give_up(fault.public().to_owned(), fault.code())
                            .await?;
                    }
                }
            }
            Msg::NodeAnswered(Broadcast::Accepted) => {
                live.advance(vec![Event::NodeAccepted]).await?
            }
            Msg::NodeAnswered(Broadcast::Refused(refusal)) => {
                let event = Event::NodeRefused {
                    reason: refusal.reason,
                    code: refusal.code,
                };
                live.advance(vec![event]).await?;
            }
            Msg::NodeAnswered(Broadcast::Unknown(reason)) => {
                tracing::warn!(request = %live.now()?.request.id, reason, tries = live.tries, "broadcast is not settled");
                live.retry(&myself);
                return Ok(());
            }
            Msg::EffectDue => live.renew_session(None).await?,
            Msg::TaskDied(task) => return Err(Fault::bug(format!("{task} panicked")).into()),
        }
        live.run_effect(&myself)
    }
}

impl Live {
    fn now(&self) -> Result<&Ledger, Fault> {
        self.current
            .as_ref()
            .ok_or_else(|| Fault::bug("no request yet"))
    }

    fn now_mut(&mut self) -> Result<&mut Ledger, Fault> {
        self.current
            .as_mut()
            .ok_or_else(|| Fault::bug("no request yet"))
    }

    async fn advance(&mut self, events: Vec<Event>) -> Result<(), Fault> {
        let context = Arc::clone(&self.context);
        let ledger = self.now_mut()?;
        let before = ledger.request.state.effect();
        ledger.advance(&context, events, None).await?;
        if ledger.request.state.effect() != before {
            self.tries = 0;
        }
        Ok(())
    }

    fn draft(&self, facts: Facts, broadcast: bool, deadline_ms: u64) -> Result<Draft, Fault> {
        let Ledger {
            request, payload, ..
        } = self.now()?;
        let now = self.context.now_ms();
        building::draft(request, payload, facts, broadcast, now, deadline_ms)
    }

    fn session(&self) -> Result<Option<SessionId>, Fault> {
        Ok(match &self.now()?.request.state {
            State::Signing { session, .. } => Some(*session),
            _ => None,
        })
    }

    /// Everything up to the first outside effect, in one commit with the idempotency record.
    async fn create(
        &mut self,
        request: Request,
        broadcast: bool,
        pledge: Option<Pledge>,
    ) -> Result<wire::SigningRequest, Fault> {
        let deadline_ms = self.fresh_deadline_ms();
        let ledger = Ledger::open(request, 0)?;
        let needs = building::needs(&self.context, ledger.request.network, &ledger.payload)?;
        self.current = Some(ledger);
        let mut events = vec![
            Event::PolicyPassed { broadcast },
            Event::ApprovalAsked {
                rule: covault_core::request::Approval::Automatic,
            },
            Event::Approved { deadline_ms },
        ];
        if needs == Needs::Nothing {
            let draft = self.draft(Facts::Nothing, broadcast, deadline_ms)?;
            events.extend(self.built(draft));
        }
        let context = Arc::clone(&self.context);
        let stored = self
            .now_mut()?
            .advance_claiming(&context, events, pledge.as_ref())
            .await;
        match stored {
            Ok(()) => Ok(self.now()?.request.to_wire()),
            Err(Problem::Conflict(Space::Idempotency)) => Err(Fault::unavailable(
                "another call with this idempotency key is in work; try again",
            )),
            Err(problem) => Err(problem.into()),
        }
    }

    async fn resume(&mut self, request: Request, version: u64) -> Result<(), Fault> {
        self.resumed = true;
        self.current = Some(Ledger::open(request, version)?);
        // A session that ran when the process ended is never run again. The request gets new
        // time: the outage was not its fault.
        let fresh = self.fresh_deadline_ms();
        self.patient_until_ms = fresh;
        self.renew_session(Some(fresh)).await
    }

    fn fresh_deadline_ms(&self) -> u64 {
        let Context {
            clock, settings, ..
        } = &*self.context;
        clock.now_ms().saturating_add(settings.signing_deadline_ms)
    }

    /// Whether the shares that were to sign are still those in use, and every node knows it. Else
    /// a refusal says nothing about the request.
    fn shares_stayed(&self, epoch: Option<u32>) -> Result<bool, Fault> {
        let curve = self.now()?.request.network.curve();
        let in_use = self.in_use.borrow();
        let shares = in_use.of(curve);
        Ok(shares.is_some_and(|shares| shares.settled && Some(shares.generation.epoch) == epoch))
    }

    /// In `Prepared` and `Signing`: a new session for the same digest. Elsewhere: nothing.
    async fn renew_session(&mut self, new_deadline_ms: Option<u64>) -> Result<(), Fault> {
        let (lost, deadline_ms) = match &self.now()?.request.state {
            State::Prepared { draft, .. } => (None, draft.deadline_ms),
            State::Signing { draft, .. } => {
                let reason = "the session ended without signatures".to_owned();
                (Some(Event::SessionLost { reason }), draft.deadline_ms)
            }
            _ => return Ok(()),
        };
        let claimed = Event::SessionClaimed {
            session: self.context.new_session_id(),
            deadline_ms: new_deadline_ms.unwrap_or(deadline_ms),
        };
        let events = lost.into_iter().chain([claimed]).collect();
        self.advance(events).await
    }

    async fn facts_arrived(&mut self, facts: Facts) -> Result<(), Fault> {
        let State::Preparing {
            broadcast,
            deadline_ms,
        } = self.now()?.request.state
        else {
            return Ok(());
        };
        let deadline_ms = deadline_ms.max(self.patient_until_ms);
        let draft = match self.draft(facts, broadcast, deadline_ms) {
            Ok(draft) => draft,
            Err(fault) if *fault.class() == Class::Invalid => {
                return self.give_up(fault.public().to_owned(), fault.code()).await;
            }
            Err(fault) => return Err(fault),
        };
        let events = self.built(draft);
        let context = Arc::clone(&self.context);
        let ledger = self.now_mut()?;
        ledger.advance_claiming(&context, events, None).await?;
        self.tries = 0;
        let request = self.now()?.request.id;
        // A vault that ends meanwhile starts again with the claims that are on disk.
        let _ = self.vault.cast(vault::Msg::NonceSettled(request));
        Ok(())
    }

    fn built(&self, draft: Draft) -> Vec<Event> {
        // Only after an outage can it be built past its deadline.
        let late = draft.deadline_ms <= self.context.now_ms();
        let deadline_ms = if late {
            self.fresh_deadline_ms()
        } else {
            draft.deadline_ms
        };
        vec![
            Event::Built { draft },
            Event::SessionClaimed {
                session: self.context.new_session_id(),
                deadline_ms,
            },
        ]
    }

    async fn signed(&mut self, signatures: Vec<Signature>) -> Result<(), Fault> {
        let Ledger {
            request, payload, ..
        } = self.now()?;
        let State::Signing { draft, .. } = &request.state else {
            return Ok(());
        };
        let chain = building::chain(request.network)?;
        let signed = chain.assemble(payload, &draft.unsigned, &signatures, &request.public_key)?;
        let delivery = if draft.broadcast {
            Event::SendingStarted
        } else {
            Event::HandedOver
        };
        let made = Event::SignaturesMade { signatures, signed };
        self.advance(vec![made, delivery]).await?;
        if let Some(place) = &mut self.place {
            place.permit = None;
        }
        Ok(())
    }

    async fn give_up(&mut self, reason: String, code: ExecuteCode) -> Result<(), Fault> {
        self.advance(vec![Event::GaveUp { reason, code }]).await
    }

    /// Plans another try, unless the deadline comes first.
    fn retry_before_deadline(&mut self, myself: &ActorRef<Msg>) -> Result<bool, Fault> {
        let deadline_ms = match &self.now()?.request.state {
            State::Preparing { deadline_ms, .. } => (*deadline_ms).max(self.patient_until_ms),
            State::Prepared { draft, .. } | State::Signing { draft, .. } => draft.deadline_ms,
            _ => return Ok(false),
        };
        let pause = self.context.pause(self.tries);
        let due = self
            .context
            .now_ms()
            .saturating_add(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
        if due >= deadline_ms {
            return Ok(false);
        }
        self.plan(myself, pause);
        Ok(true)
    }

    fn retry(&mut self, myself: &ActorRef<Msg>) {
        let pause = self.context.pause(self.tries);
        self.plan(myself, pause);
    }

    fn plan(&mut self, myself: &ActorRef<Msg>, pause: Duration) {
        self.tries = self.tries.saturating_add(1);
        myself.send_after(pause, || Msg::EffectDue);
    }

    /// Starts what the state asks for; ends the actor when the request is final.
    fn run_effect(&mut self, myself: &ActorRef<Msg>) -> Result<(), ActorProcessingErr> {
        let Ledger {
            request, payload, ..
        } = self.now()?;
        if request.state.is_final() {
            myself.stop(None);
            return Ok(());
        }
        let context = Arc::clone(&self.context);
        let task = match (request.state.effect(), &request.state) {
            (Some(Effect::Prepare), _) => {
                let needs = building::needs(&context, request.network, payload)?;
                let client = context
                    .chains
                    .get(request.network, payload.chain_id())
                    .cloned();
                let vault = self.vault.clone();
                let id = request.id;
                beside(myself, "asking the chain", async move {
                    let Some(client) = client else {
                        return Msg::FactsArrived(Err(ChainError::Unknown(
                            "no node is configured for this chain".into(),
                        )));
                    };
                    Msg::FactsArrived(match client.facts(&needs, context.now_ms()).await {
                        Ok(facts) => assign_nonce(&context, &vault, id, facts).await,
                        Err(error) => Err(error),
                    })
                })
            }
            (Some(Effect::Sign), State::Signing { draft, session, .. }) => {
                let (session, deadline_ms) = (*session, draft.deadline_ms);
                let in_use = self.in_use.clone();
                let request = request.clone();
                beside(myself, "signing", async move {
                    let (epoch, answer) =
                        sign(&context, in_use, &request, session, deadline_ms).await;
                    Msg::SignersAnswered {
                        session,
                        epoch,
                        answer,
                    }
                })
            }
            (Some(Effect::Broadcast), State::Broadcasting { draft, signed, .. }) => {
                let now_ms = context.now_ms();
                let shipment = Shipment {
                    signed: signed.clone(),
                    facts: draft.facts.clone(),
                    age_ms: now_ms.saturating_sub(draft.built_at_ms),
                    now_ms,
                    retried: self.resumed || self.tries > 0,
                };
                let client = context
                    .chains
                    .get(request.network, payload.chain_id())
                    .cloned();
                beside(myself, "sending", async move {
                    Msg::NodeAnswered(match client {
                        Some(client) => client.broadcast(&shipment).await,
                        None => Broadcast::Unknown("no node is configured for this chain".into()),
                    })
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

/// Has the shares that are in use sign, and says which those were. New shares are waited for
/// until their nodes were told to use them.
async fn sign(
    context: &Context,
    mut in_use: watch::Receiver<InUse>,
    request: &Request,
    session: SessionId,
    deadline_ms: u64,
) -> (Option<u32>, Result<Vec<Signature>, Fault>) {
    let curve = request.network.curve();
    let patience = || {
        let left = deadline_ms.saturating_sub(context.now_ms());
        Duration::from_millis(left.saturating_add(GRACE_MS))
    };
    let told = in_use.wait_for(|keys| keys.of(curve).is_some_and(|shares| shares.told));
    let generation = match tokio::time::timeout(patience(), told).await {
        Ok(Ok(keys)) => keys.of(curve).map(|shares| shares.generation.clone()),
        _ => None,
    };
    let Some(generation) = generation else {
        let fault = Fault::unavailable("the vault's nodes were not told in time to use new shares");
        return (None, Err(fault));
    };
    let Some(order) = request.order(generation.epoch, context.now_ms()) else {
        return (None, Err(Fault::bug("no order")));
    };
    let attempt = SigningAttempt {
        session,
        holders: generation.holders,
        threshold: generation.threshold,
        deadline_ms,
    };
    let signing = context.signers.sign(&order, &attempt);
    let answer = tokio::time::timeout(patience(), signing)
        .await
        .unwrap_or_else(|_| Err(Fault::unavailable("the signers gave no answer in time")));
    (Some(generation.epoch), answer)
}

/// Runs a task beside the actor; what it makes becomes a message, also when it panics.
fn beside(
    myself: &ActorRef<Msg>,
    name: &'static str,
    task: impl Future<Output = Msg> + Send + 'static,
) -> AbortOnDrop {
    let actor = myself.clone();
    let handle = tokio::spawn(async move {
        let message = AssertUnwindSafe(task)
            .catch_unwind()
            .await
            .unwrap_or(Msg::TaskDied(name));
        // The actor may have ended meanwhile.
        let _ = actor.cast(message);
    });
    AbortOnDrop(handle.abort_handle())
}

/// Replaces the node's pending count by the nonce that the vault assigns.
async fn assign_nonce(
    context: &Context,
    vault: &ActorRef<vault::Msg>,
    request: covault_core::ids::RequestId,
    facts: Facts,
) -> Result<Facts, ChainError> {
    let Facts::Evm(evm::Facts {
        nonce: Some(floor), ..
    }) = &facts
    else {
        return Ok(facts);
    };
    let floor = *floor;
    let ask = |reply| vault::Msg::AssignNonce {
        request,
        floor,
        reply,
    };
    let nonce = match vault.call(ask, context.call_timeout()).await {
        Ok(ractor::rpc::CallResult::Success(nonce)) => nonce,
        _ => {
            return Err(ChainError::Unknown(
                "no nonce could be assigned in time".into(),
            ));
        }
    };
    Ok(match facts {
        Facts::Evm(evm) => Facts::Evm(evm::Facts {
            nonce: Some(nonce),
            ..evm
        }),
        other => other,
    })
}
