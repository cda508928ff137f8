//! What is asked of a vault about its wallets and live requests: a wallet changes, a request is
//! rejected.

use covault_core::{
    audit::AuditChain,
    fault::Fault,
    ids::{RequestId, WalletId},
    request::{RequestEvent, SigningRequest},
    schema::wire,
    wallet::{WalletChange, WalletStatus},
};
use ractor::RpcReplyPort;

use super::{Msg, VaultState};
use crate::{
    audit::AuditNote,
    commands::command_commit::CommandCommit,
    process::mailbox::ActorMailbox,
    requests::{
        request_store::{self, AdvanceError, CommitExtras},
        reservations,
        signing::{self, GIVEN_UP, not_rejected},
    },
    store::{Batch, CommitError, KeySpace, Precondition, rows},
    vaults::address_proofs,
};

/// How often a request is given up again while others change what it holds.
const MAX_CONTENDED_TRIES: u32 = 20;

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
    async fn withdraw(&mut self, myself: &ActorMailbox<Msg>, request: RequestId) -> bool {
        let (free, account) = self.account_queues.withdraw(request);
        if let Some(account) = account {
            self.dispatch(myself, &account).await;
        }
        free
    }

    /// Has the request's actor end it: past the queue it alone knows whether it is too late. One that
    /// has no actor now (it failed and starts again later) is ended here, and so is one whose client has its
    /// transaction: its actor does nothing more.
    pub(super) async fn reject(
        &mut self,
        myself: &ActorMailbox<Msg>,
        id: RequestId,
        reason: String,
        command_commit: CommandCommit,
        reply: RpcReplyPort<Result<(), Fault>>,
    ) {
        match self.give_up_handed_over(myself, id, &command_commit).await {
            Ok(false) => {}
            outcome => {
                let _ = reply.send(outcome.map(|_| ()));
                return;
            }
        }
        if !self.withdraw(myself, id).await {
            let _ = reply.send(Err(not_rejected("it is being signed")));
            return;
        }
        match self.requests.get(&id) {
            // When it has just ended the port is dropped, and the caller looks again.
            Some(actor) => {
                let _ = actor.cast(signing::Msg::Reject(reason, command_commit, reply));
            }
            None => {
                let _ = reply.send(self.reject_stored(id, &reason, &command_commit).await);
            }
        }
    }

    /// Ends a request whose client has its transaction to send, and lets the next ones use what it uses.
    /// False where it is another one.
    async fn give_up_handed_over(
        &mut self,
        myself: &ActorMailbox<Msg>,
        id: RequestId,
        command_commit: &CommandCommit,
    ) -> Result<bool, Fault> {
        for _ in 0..MAX_CONTENDED_TRIES {
            let (request, version) = self.stored(id).await?;
            let Some(draft) = request.state.handed_over() else {
                return Ok(false);
            };
            let passed_on = reservations::given_up(&self.services, &request, draft).await?;
            let event = RequestEvent::Rejected {
                reason: GIVEN_UP.to_owned(),
            };
            let extras = CommitExtras {
                command_commit: Some(command_commit),
                passed_on: &passed_on,
                ..CommitExtras::default()
            };
            match request_store::end(&self.services, request, version, event, extras).await {
                Ok(()) => {
                    // Its actor may not be gone yet.
                    self.leave_account_queue(myself, id).await;
                    return Ok(true);
                }
                // Another process was faster, or a claim has got another holder in between.
                Err(AdvanceError::Conflict(key))
                    if matches!(
                        key.space,
                        KeySpace::Request | KeySpace::Claim | KeySpace::NonceReservation
                    ) => {}
                Err(problem) => return Err(problem.into()),
            }
        }
        Err(Fault::unavailable(
            "other requests of the wallet are changing its reservations; try again",
        ))
    }

    async fn reject_stored(
        &self,
        id: RequestId,
        reason: &str,
        command_commit: &CommandCommit,
    ) -> Result<(), Fault> {
        for _ in 0..MAX_CONTENDED_TRIES {
            let (request, version) = self.stored(id).await?;
            if let Some(reason) = request.state.past_rejection() {
                return Err(not_rejected(reason));
            }
            let event = RequestEvent::Rejected {
                reason: reason.to_owned(),
            };
            let extras = CommitExtras {
                command_commit: Some(command_commit),
                ..CommitExtras::default()
            };
            match request_store::end(&self.services, request, version, event, extras).await {
                // An approval was stored in between.
                Err(AdvanceError::Conflict(key)) if key.space == KeySpace::Request => {}
                ended => return Ok(ended?),
            }
        }
        Err(Fault::unavailable(
            "others are approving the request; try again",
        ))
    }

    async fn stored(&self, id: RequestId) -> Result<(SigningRequest, u64), Fault> {
        let found = self.services.request(id).await?;
        found.ok_or_else(Fault::invalid_uuid)
    }
}
