//! The live requests of a vault: each has an actor, which is started again when it fails.

use std::sync::Arc;

use covault_core::{
    fault::{Class, Fault},
    ids::RequestId,
    networks::{Payload, Resource},
    request::{Consent, RequestEffect, RequestState, SigningRequest},
};
use ractor::{Actor, ActorProcessingErr};

use super::{AdmissionPermit, Msg, NewRequest, VaultState};
use crate::{
    process::{
        mailbox::{ActorMailbox, MailboxDepth},
        tasks::contained,
    },
    requests::{
        account::ChainAccount,
        batch_claim::BatchClaim,
        followed, request_store, reservations,
        signing::{self, SigningActor, SigningStart},
        sweep_claim::SweepClaim,
        tx_builder,
    },
    services::skip_unreadable,
    store::rows,
};

/// A request that made its actor fail so often is given up, unless it is signed.
const MAX_FAILURES: u32 = 5;

/// How the actor of a request has failed.
#[derive(Default)]
pub(super) struct ActorFailures {
    /// How often it was to be started again.
    restarts: u32,
    /// How often it failed for a reason of its own, and not because the store or a signer was away.
    own: u32,
}

impl ActorFailures {
    /// As an earlier process has counted.
    pub(super) fn counted(own: u32) -> Self {
        Self { restarts: 0, own }
    }
}

impl VaultState {
    /// The actor of a request has failed. How often is stored: where the whole process fails with it, the next
    /// one gives it up.
    pub(super) async fn actor_failed(
        &mut self,
        myself: &ActorMailbox<Msg>,
        request: RequestId,
        error: &ActorProcessingErr,
    ) {
        let is_elsewhere =
            |fault: &Fault| matches!(fault.class(), Class::Unavailable | Class::Peer { .. });
        if !error.downcast_ref().is_some_and(is_elsewhere) {
            let failures = self.failures.entry(request).or_default();
            failures.own = failures.own.saturating_add(1);
            let (vault, own) = (self.vault.id, failures.own);
            let noted = request_store::note_failures(&self.services, vault, request, own).await;
            if let Err(fault) = noted {
                tracing::warn!(%request, ?fault, "failed to store that the actor of a request failed");
            }
        }
        self.restart_later(myself, request);
    }

    pub(super) fn restart_later(&mut self, myself: &ActorMailbox<Msg>, request: RequestId) {
        let failures = self.failures.entry(request).or_default();
        failures.restarts = failures.restarts.saturating_add(1);
        let pause = self.services.backoff(failures.restarts);
        myself.send_after(pause, move || Msg::RestartDue(request));
    }

    /// A request from the store. One that cannot be read must not stop the vault: nothing can
    /// be done for it, and it stays as it is.
    pub(super) async fn load_readable(
        &self,
        id: RequestId,
    ) -> Result<Option<(SigningRequest, u64)>, Fault> {
        let found = self.services.request(id).await;
        Ok(skip_unreadable(found, format_args!("request {id}"))?.flatten())
    }

    pub(super) async fn load_request(
        &mut self,
        myself: &ActorMailbox<Msg>,
        id: RequestId,
    ) -> Result<(), Fault> {
        let found = self.load_readable(id).await?;
        self.go_on_with(myself, id, found).await
    }

    /// Goes on with what was read of a request.
    pub(super) async fn go_on_with(
        &mut self,
        myself: &ActorMailbox<Msg>,
        id: RequestId,
        found: Option<(SigningRequest, u64)>,
    ) -> Result<(), Fault> {
        match found {
            Some((request, version)) if !request.state.is_over() => {
                self.start_loaded(myself, request, version).await
            }
            found => {
                self.agreed.remove(&id);
                self.failures.remove(&id);
                self.replaced_outputs.remove(&id);
                if let Some((request, _)) = found {
                    // Its last commit was on disk although its actor was told otherwise.
                    self.services.listeners.outcomes.ended(&request);
                    self.follow(&request).await;
                }
                Ok(())
            }
        }
    }

    /// Has the transaction of a request followed that is over, where it has one.
    pub(super) async fn follow(&self, request: &SigningRequest) {
        // Who cannot read the payload cannot say either on which chain it is.
        let tracked = contained(async {
            let payload = Payload::decode(&request.payload)?;
            Ok(followed::tracked(
                request,
                &payload,
                request.created_at_ms,
                true,
            ))
        });
        if let Ok(Some(tracked)) = tracked.await {
            self.services.listeners.tracking.push(tracked);
        }
    }

    pub(super) async fn start_loaded(
        &mut self,
        myself: &ActorMailbox<Msg>,
        request: SigningRequest,
        version: u64,
    ) -> Result<(), Fault> {
        let id = request.id;
        let room = self.agreed.remove(&id);
        let signed = matches!(
            request.state,
            RequestState::Signed { .. } | RequestState::Broadcasting { .. }
        );
        let failures = self.failures.get(&id).map_or(0, |failures| failures.own);
        match self.account_queue_of(&request).await {
            Ok(account_queue) if failures < MAX_FAILURES || signed => {
                if let Some(account) = account_queue {
                    self.account_queues.join(account, id);
                }
            }
            Ok(_) => return self.give_up(myself, request, version).await,
            Err(fault) => {
                tracing::error!(request = %id, ?fault, "a stored request cannot be processed");
                return if signed {
                    Ok(())
                } else {
                    self.give_up(myself, request, version).await
                };
            }
        }
        let admission = room.unwrap_or_else(|| AdmissionPermit::readmit(&self.services, &request));
        let start = SigningStart::Load {
            request,
            version,
            failures,
        };
        self.start(myself, id, start, admission).await
    }

    /// The account in whose queue a loaded request waits, where it waits in one.
    pub(super) async fn account_queue_of(
        &self,
        request: &SigningRequest,
    ) -> Result<Option<ChainAccount>, Fault> {
        let work = async {
            let payload = Payload::decode(&request.payload).map_err(Fault::bug)?;
            let queries = tx_builder::queries(&self.services, request.network, &payload);
            let waits = request.state.effect() == Some(RequestEffect::Prepare);
            Ok(tx_builder::account_queue(request, &payload, &queries).filter(|_| waits))
        };
        contained(work).await
    }

    async fn give_up(
        &mut self,
        myself: &ActorMailbox<Msg>,
        request: SigningRequest,
        version: u64,
    ) -> Result<(), Fault> {
        let id = request.id;
        let reason = match self.failures.get(&id) {
            Some(ActorFailures { own, .. }) => format!(
                "internal error: building or signing it failed {own} times; see the server log"
            ),
            None => "internal error: it cannot be read; see the server log".to_owned(),
        };
        let work = async {
            let ended = request_store::give_up(&self.services, request, version, reason).await;
            Ok(ended?)
        };
        match contained(work).await {
            Ok(()) => {
                self.failures.remove(&id);
                self.replaced_outputs.remove(&id);
            }
            Err(fault) => {
                tracing::error!(request = %id, ?fault, "failed to store the failure of a request");
                self.restart_later(myself, id);
            }
        }
        Ok(())
    }

    pub(super) async fn admit(
        &mut self,
        myself: &ActorMailbox<Msg>,
        new: NewRequest,
    ) -> Result<(), Fault> {
        let NewRequest {
            mut request,
            account_queue,
            broadcast,
            wallet_version,
            replacement,
            batch,
            sweep,
            gap,
            command_commit,
            admission,
            reply,
        } = new;
        let id = request.id;
        // The ids of requests of batches and sweeps are derived: the same one may be asked for twice.
        if self.requests.contains_key(&id) {
            let fault = match sweep {
                Some(_) => SweepClaim::being_made(),
                None => BatchClaim::lost(),
            };
            let _ = reply.send(Err(fault));
            return Ok(());
        }
        if let (Some(account), Some(number)) = (&account_queue, gap)
            && let Err(fault) = self.check_gap(account, number).await
        {
            let _ = reply.send(Err(fault));
            return Ok(());
        }
        // That of its row may be older.
        let mut client_signer = request.consent.rule.client_signer();
        let rule = self.vault.approval.of_wallet(&request.address);
        if replacement.is_some() || gap.is_some() {
            client_signer = rule.still_named(client_signer);
        }
        if let Some(signer) = client_signer
            && let Err(fault) = (self.vault).check_client_signer(request.network.curve(), signer)
        {
            let _ = reply.send(Err(fault));
            return Ok(());
        }
        request.consent = Consent::new(match client_signer {
            Some(signer) => rule.of_client_signer(signer),
            None => rule,
        });
        if request.consent.rule.needs() == 0 {
            self.queue_up(id, account_queue);
        }
        let start = SigningStart::New {
            request,
            broadcast,
            wallet_version,
            replacement: replacement.map(Box::new),
            batch: batch.map(Box::new),
            sweep: sweep.map(Box::new),
            command_commit,
            reply,
        };
        self.start(myself, id, start, admission).await
    }

    /// Refuses what is to use a number of an account that another request uses, or is about to. Requests get the
    /// lowest free number one after the other, here, so that none comes in between.
    async fn check_gap(&self, account: &ChainAccount, number: u64) -> Result<(), Fault> {
        if self.looks_for_requests() || self.account_queues.may_take(account, number) {
            return Err(Fault::new(
                Class::WrongState,
                "an earlier request of the account may take the nonce",
            ));
        }
        let claim = rows::claim(account, &Resource::Nonce(number));
        match reservations::holder(&self.services, &claim).await? {
            None => Ok(()),
            // It sends nothing, and the chain waits for the number.
            Some(holder) if reservations::is_given_up(&self.services, holder).await? => Ok(()),
            Some(holder) => Err(Fault::new(
                Class::WrongState,
                format!("request {holder} has reserved its nonce"),
            )),
        }
    }

    async fn start(
        &mut self,
        myself: &ActorMailbox<Msg>,
        id: RequestId,
        start: SigningStart,
        admission: AdmissionPermit,
    ) -> Result<(), Fault> {
        let depth = MailboxDepth::new(&self.services.counters.request_mailboxes);
        let args = signing::SigningArgs {
            depth: Arc::clone(&depth),
            services: Arc::clone(&self.services),
            vault_requests: Arc::clone(&self.vault_requests),
            vault: myself.clone(),
            in_use: self.in_use.subscribe(),
            start,
            admission,
        };
        let (actor, _) = Actor::spawn_linked(None, SigningActor, args, myself.actor().get_cell())
            .await
            .map_err(Fault::bug)?;
        self.ids.insert(actor.get_id(), id);
        self.requests.insert(id, ActorMailbox::new(actor, depth));
        Ok(())
    }
}
