//! The live requests of a vault: each has an actor, which is started again when it fails.

use std::sync::Arc;

use covault_core::{
    fault::Fault,
    ids::RequestId,
    networks::Payload,
    request::{RequestEffect, RequestState, SigningRequest},
};
use ractor::{Actor, ActorRef};

use super::{AdmissionPermit, Msg, NewRequest, VaultState};
use crate::{
    account::ChainAccount,
    requests::{
        request_store,
        signing::{self, SigningActor, SigningStart},
        tx_builder,
    },
    services::skip_unreadable,
};

/// A request that made its actor fail so often is given up, unless it is signed.
const MAX_FAILURES: u32 = 5;

impl VaultState {
    pub(super) fn restart_later(&mut self, myself: &ActorRef<Msg>, request: RequestId) {
        let failures = self.failures.entry(request).or_default();
        *failures = failures.saturating_add(1);
        let pause = self.services.backoff(*failures);
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
        myself: &ActorRef<Msg>,
        id: RequestId,
    ) -> Result<(), Fault> {
        match self.load_readable(id).await? {
            Some((request, version)) if !request.state.is_final() => {
                self.start_loaded(myself, request, version).await
            }
            found => {
                self.failures.remove(&id);
                if found.is_some() {
                    // Its last commit was on disk although its actor was told otherwise.
                    self.services.waiters.ended(id);
                }
                Ok(())
            }
        }
    }

    pub(super) async fn start_loaded(
        &mut self,
        myself: &ActorRef<Msg>,
        request: SigningRequest,
        version: u64,
    ) -> Result<(), Fault> {
        let id = request.id;
        let signed = matches!(
            request.state,
            RequestState::Signed { .. } | RequestState::Broadcasting { .. }
        );
        let failures = self.failures.get(&id).copied().unwrap_or_default();
        match self.account_queue_of(&request) {
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
        let admission = AdmissionPermit::readmit(&self.services, &request);
        let start = SigningStart::Load { request, version };
        self.start(myself, id, start, admission).await
    }

    /// The account in whose queue a loaded request waits, where it waits in one.
    fn account_queue_of(&self, request: &SigningRequest) -> Result<Option<ChainAccount>, Fault> {
        let payload = Payload::decode(&request.payload).map_err(Fault::bug)?;
        let queries = tx_builder::queries(&self.services, request.network, &payload);
        let waits = request.state.effect() == Some(RequestEffect::Prepare);
        Ok(tx_builder::account_queue(request, &payload, &queries).filter(|_| waits))
    }

    async fn give_up(
        &mut self,
        myself: &ActorRef<Msg>,
        request: SigningRequest,
        version: u64,
    ) -> Result<(), Fault> {
        let id = request.id;
        let reason = "internal error; see the server log".to_owned();
        match request_store::give_up(&self.services, request, version, reason).await {
            Ok(()) => {
                self.failures.remove(&id);
            }
            Err(problem) => {
                let fault = Fault::from(problem);
                tracing::error!(request = %id, ?fault, "failed to store the failure of a request");
                self.restart_later(myself, id);
            }
        }
        Ok(())
    }

    pub(super) async fn admit(
        &mut self,
        myself: &ActorRef<Msg>,
        new: NewRequest,
    ) -> Result<(), Fault> {
        let NewRequest {
            request,
            account_queue,
            broadcast,
            wallet_version,
            command_commit,
            admission,
            reply,
        } = new;
        let id = request.id;
        if let Some(account) = account_queue {
            self.account_queues.join(account, id);
        }
        let start = SigningStart::New {
            request,
            broadcast,
            wallet_version,
            command_commit,
            reply,
        };
        self.start(myself, id, start, Some(admission)).await
    }

    async fn start(
        &mut self,
        myself: &ActorRef<Msg>,
        id: RequestId,
        start: SigningStart,
        admission: Option<AdmissionPermit>,
    ) -> Result<(), Fault> {
        let args = signing::SigningArgs {
            services: Arc::clone(&self.services),
            vault_requests: Arc::clone(&self.vault_requests),
            vault: myself.clone(),
            in_use: self.in_use.subscribe(),
            start,
            admission,
        };
        let (actor, _) = Actor::spawn_linked(None, SigningActor, args, myself.get_cell())
            .await
            .map_err(Fault::bug)?;
        self.ids.insert(actor.get_id(), id);
        self.requests.insert(id, actor);
        Ok(())
    }
}
