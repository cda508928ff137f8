//! The first commit of a request.

use std::sync::Arc;

use covault_core::{
    fault::{Class, Fault},
    request::{ApprovalRule, RequestEvent, SigningRequest},
    schema::wire,
    wallet::WalletStatus,
};

use super::SigningState;
use crate::{
    commands::command_commit::CommandCommit,
    requests::{
        request_store::{AdvanceError, CommitExtras, StoredRequest},
        tx_builder,
    },
    services::Services,
    store::KeySpace,
    vaults::wallets,
};

impl SigningState {
    /// Everything up to the first outside effect, in one commit with the idempotency record. It is
    /// taken only as long as the wallet's row is in the version in which the wallet was found
    /// active: once an archive was answered no request of the wallet is accepted.
    pub(super) async fn create(
        &mut self,
        request: SigningRequest,
        broadcast: bool,
        mut wallet_version: u64,
        command_commit: CommandCommit,
    ) -> Result<wire::SigningRequest, Fault> {
        let deadline_ms = self.fresh_deadline_ms();
        let stored = StoredRequest::open(request, 0)?;
        let queries = tx_builder::queries(&self.services, stored.request.network, &stored.payload);
        let mut events = vec![
            RequestEvent::PolicyPassed { broadcast },
            RequestEvent::ApprovalAsked {
                rule: ApprovalRule::Automatic,
            },
            RequestEvent::Approved { deadline_ms },
        ];
        let mut built = None;
        if let Some(chain_data) =
            tx_builder::local_chain_data(&self.services, &stored.payload, &queries)
        {
            self.current = Some(stored);
            let draft = self.draft(chain_data?, broadcast, deadline_ms)?;
            events.extend(self.built_events(draft.clone()));
            built = Some(draft);
        } else {
            self.current = Some(stored);
        }
        let services = Arc::clone(&self.services);
        let stored = self.stored_mut()?;
        let outcome = loop {
            let extras = CommitExtras {
                command_commit: Some(&command_commit),
                wallet: Some(wallet_version),
            };
            let committed = stored
                .advance_claiming(&services, events.clone(), extras, false)
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
                Ok(self.stored()?.request.to_wire(calls, Vec::new()))
            }
            (Err(AdvanceError::Conflict(key)), _) if key.space == KeySpace::Idempotency => {
                Err(Fault::unavailable(
                    "another call with this idempotency key is in progress; try again",
                ))
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
    let (wallet, version) = services.wallet(stored.request.wallet).await?;
    match wallet.status {
        WalletStatus::Active => Ok(version),
        WalletStatus::Archived => {
            let field = format!("{}.from", stored.payload.kind());
            Err(wallets::archived(field))
        }
    }
}
