//! The first commit of a request.

use std::sync::Arc;

use covault_core::{
    fault::{Class, Fault},
    request::{RequestEvent, SigningRequest},
    schema::wire,
    trace::SpanName,
    wallet::WalletStatus,
};

use super::{SigningState, spans::span_of};
use crate::{
    commands::command_commit::CommandCommit,
    requests::{
        account::ChainAccount,
        batch_claim::BatchClaim,
        refused,
        replacement_claim::ReplacementClaim,
        request_store::{AdvanceError, CommitExtras, StoredRequest},
        sweep_claim::SweepClaim,
        tx_builder,
    },
    services::Services,
    store::KeySpace,
    vaults::wallets,
};

/// What the first commit of a request has beside it.
pub(super) struct FirstCommit {
    /// Whether it is to be sent once signed.
    pub(super) broadcast: bool,
    /// The version of its wallet's row in which the wallet was active.
    pub(super) wallet_version: u64,
    /// The row that it joins when it replaces another one's transaction.
    pub(super) replacement: Option<ReplacementClaim>,
    /// The batch payment that it belongs to.
    pub(super) batch: Option<BatchClaim>,
    /// The sweep that it is a step of.
    pub(super) sweep: Option<SweepClaim>,
    /// That of the command which asked.
    pub(super) command_commit: CommandCommit,
}

impl SigningState {
    /// Everything up to the first outside effect, in one commit with the idempotency record. It is
    /// taken only as long as the wallet's row is in the version in which the wallet was found
    /// active: once an archive was answered no request of the wallet is accepted.
    pub(super) async fn create(
        &mut self,
        request: SigningRequest,
        first: FirstCommit,
    ) -> Result<wire::SigningRequest, Fault> {
        let FirstCommit {
            broadcast,
            mut wallet_version,
            replacement,
            batch,
            sweep,
            command_commit,
        } = first;
        let deadline_ms = self.fresh_deadline_ms();
        let mut stored = StoredRequest::open(request, 0)?;
        stored.trace = span_of(&self.services, &stored, command_commit.trace());
        let queries = tx_builder::queries(&self.services, stored.request.network, &stored.payload);
        let rule = stored.request.consent.rule.clone();
        let at_once = rule.needs() == 0;
        let mut events = vec![
            RequestEvent::PolicyPassed { broadcast },
            RequestEvent::ApprovalAsked { rule },
        ];
        if at_once {
            events.push(RequestEvent::Approved { deadline_ms });
        }
        let mut built = None;
        // Where nodes refused something of the account, what that may still do is asked before anything is built.
        let account = ChainAccount::of(&stored.request, &stored.payload);
        let is_asked =
            stored.payload.is_transaction() && refused::is_any(&self.services, &account).await?;
        let local = tx_builder::local_chain_data(&self.services, &stored.payload, &queries);
        self.current = Some(stored);
        if let Some(chain_data) = local {
            let _span = self.stored()?.trace.child(SpanName::Build);
            // What cannot be built is refused at once, also where people are asked first.
            let draft = self.draft(chain_data?, broadcast, deadline_ms)?;
            if at_once && !is_asked {
                events.extend(self.built_events(draft.clone())?);
                built = Some(draft);
            }
        }
        let services = Arc::clone(&self.services);
        let stored = self.stored_mut()?;
        let outcome = loop {
            let extras = CommitExtras {
                command_commit: Some(&command_commit),
                wallet: Some(wallet_version),
                replacement: replacement.as_ref(),
                batch: batch.as_ref(),
                sweep: sweep.as_ref(),
                ..CommitExtras::default()
            };
            let committed = stored
                .advance_claiming(&services, &events, extras, false)
                .await;
            match committed {
                Err(AdvanceError::Conflict(key)) if key.space == KeySpace::Wallet => {
                    wallet_version = active_wallet_version(&services, stored).await?;
                }
                committed => break committed,
            }
        };
        match (outcome, built) {
            (Ok(()), _) => {
                let calls = &services.settings.calls;
                let request = &self.stored()?.request;
                Ok(request.to_wire(calls, Vec::new(), None, services.now_ms()))
            }
            (Err(AdvanceError::Conflict(key)), _) if key.space == KeySpace::Idempotency => {
                Err(Fault::unavailable(
                    "another call with this idempotency key is in progress; try again",
                ))
            }
            (Err(AdvanceError::Conflict(key)), _) if key.space == KeySpace::Replacement => {
                Err(ReplacementClaim::lost())
            }
            (Err(AdvanceError::Conflict(key)), _)
                if key.space == KeySpace::Batch
                    || key.space == KeySpace::Request && batch.is_some() =>
            {
                Err(BatchClaim::lost())
            }
            (Err(AdvanceError::Conflict(key)), _) if key.space == KeySpace::AllowanceBatch => {
                Err(BatchClaim::allowance_taken())
            }
            // It may be there by now: its id is derived, and it is asked for again when an answer is late.
            (Err(AdvanceError::Conflict(key)), _)
                if key.space == KeySpace::Sweep
                    || key.space == KeySpace::Request && sweep.is_some() =>
            {
                Err(SweepClaim::lost())
            }
            (Err(problem), Some(draft)) => {
                let reason = stored.conflict_reason(&services, &draft, problem).await?;
                let kind = stored.payload.kind();
                Err(Fault::new(Class::WrongState, format!("{kind}: {reason}")))
            }
            (Err(problem), None) => Err(problem.into()),
        }
    }
}

/// The present version of the wallet's row, unless the wallet is archived by now.
async fn active_wallet_version(services: &Services, stored: &StoredRequest) -> Result<u64, Fault> {
    let (wallet, version) = services.hot_wallet(stored.request.wallet).await?;
    match wallet.status {
        WalletStatus::Active => Ok(version),
        WalletStatus::Archived => {
            let field = format!("{}.from", stored.payload.kind());
            Err(wallets::archived(field))
        }
    }
}
