//! What is asked of a vault about its wallets and live requests: a wallet changes, a request is
//! rejected.

use covault_core::{
    audit::AuditChain,
    fault::Fault,
    ids::{RequestId, WalletId},
    request::RequestEvent,
    schema::wire,
    wallet::{WalletChange, WalletStatus},
};
use ractor::RpcReplyPort;

use super::VaultState;
use crate::{
    audit::AuditNote,
    commands::command_commit::CommandCommit,
    requests::{
        request_store::{self, CommitExtras},
        signing::{self, REJECTED, not_rejected},
    },
    store::{Batch, CommitError, KeySpace, Precondition, rows},
    vaults::address_proofs,
};

impl VaultState {
    /// Changes a wallet's row. Every first commit of a request demands the version of that row in
    /// which the wallet was active, so that none is accepted once this has archived it; those that
    /// were accepted before and are not built yet are told, and end.
    pub(super) async fn update_wallet(
        &mut self,
        id: WalletId,
        change: &WalletChange,
        command_commit: &CommandCommit,
    ) -> Result<wire::Wallet, Fault> {
        let wallet = loop {
            let (old, version) = self.services.wallet(id).await?;
            let new = change.applied_to(&old);
            if new == old {
                break old;
            }
            let mut batch = Batch::new();
            let expect = Precondition::Version(version);
            batch.put(rows::wallet(id), expect, rows::encode(&new)?);
            AuditNote::new(
                command_commit.by(),
                format_args!("wallet:{id}"),
                "WalletChanged",
            )
            .fact("name", &new.name)
            .fact("status", format_args!("{:?}", new.status))
            .add_to(
                &mut batch,
                AuditChain::Vault(self.vault.id),
                self.services.now_ms(),
            )?;
            command_commit.demand(&mut batch);
            match self.services.store.commit(batch).await {
                Ok(()) => break new,
                // Another process changed it too.
                Err(CommitError::Conflict(key)) if key.space == KeySpace::Wallet => {}
                Err(error) => return Err(error.into()),
            }
        };
        if wallet.status == WalletStatus::Archived {
            for actor in self.requests.values() {
                // One that has just ended needs it no more.
                let _ = actor.cast(signing::Msg::WalletArchived(id));
            }
        }
        address_proofs::shown(&self.services, &wallet).await
    }

    /// Removes a request from its queue, unless it has been given a number or outputs there: those that
    /// were settled after it build on them, so that a gap would hold them up for ever.
    async fn withdraw(&mut self, request: RequestId) -> bool {
        let (free, account) = self.account_queues.withdraw(request);
        if let Some(account) = account {
            self.dispatch(&account).await;
        }
        free
    }

    /// Has the request's actor end it: past the queue it alone knows whether it is too late. One that
    /// has no actor now (it failed and starts again later) is ended here.
    pub(super) async fn reject(
        &mut self,
        id: RequestId,
        command_commit: CommandCommit,
        reply: RpcReplyPort<Result<(), Fault>>,
    ) {
        if !self.withdraw(id).await {
            let _ = reply.send(Err(not_rejected("it is being signed")));
            return;
        }
        match self.requests.get(&id) {
            // When it has just ended the port is dropped, and the caller looks again.
            Some(actor) => {
                let _ = actor.cast(signing::Msg::Reject(command_commit, reply));
            }
            None => {
                let _ = reply.send(self.reject_stored(id, &command_commit).await);
            }
        }
    }

    async fn reject_stored(
        &self,
        id: RequestId,
        command_commit: &CommandCommit,
    ) -> Result<(), Fault> {
        let (request, version) = self
            .services
            .request(id)
            .await?
            .ok_or_else(Fault::invalid_uuid)?;
        if let Some(reason) = request.state.past_rejection() {
            return Err(not_rejected(reason));
        }
        let reason = REJECTED.to_owned();
        let event = RequestEvent::Rejected { reason };
        let extras = CommitExtras {
            command_commit: Some(command_commit),
            wallet: None,
        };
        Ok(request_store::end(&self.services, request, version, event, extras).await?)
    }
}
