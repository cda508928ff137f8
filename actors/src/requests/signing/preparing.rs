//! From the chain's answers to the draft that is signed, and its commit.

use std::sync::Arc;

use covault_core::{
    fault::{Class, Fault},
    networks::ChainData,
    request::{Draft, RequestEvent, RequestState},
};

use super::{
    Msg, SigningState,
    waiting::{MAX_CONTENDED_TRIES, ends_ms},
};
use crate::{
    process::mailbox::ActorMailbox,
    requests::{
        recipients,
        request_store::{AdvanceError, CommitExtras, StoredRequest},
        tx_builder,
    },
    store::KeySpace,
    vaults::vault,
};

/// Why a request waits that would be built on what is no longer so.
const OUTDATED: &str =
    "what the nodes of its chain had said was too old to build on; they are asked again";

impl SigningState {
    /// Builds on what the chain said, and stores that with what the transaction uses up.
    pub(super) async fn chain_data_arrived(
        &mut self,
        myself: &ActorMailbox<Msg>,
        chain_data: ChainData,
    ) -> Result<(), Fault> {
        let RequestState::Preparing {
            broadcast,
            deadline_ms,
        } = self.stored()?.request.state
        else {
            return Ok(());
        };
        let deadline_ms = deadline_ms.max(self.extended_deadline_ms);
        let draft = match self.draft(chain_data, broadcast, deadline_ms) {
            Ok(draft) => draft,
            Err(fault) => return self.build_failed(fault).await,
        };
        // The machine slept, or the clock was set, since the chain was asked. Nothing is claimed yet: it is built on what the
        // chain says now.
        if self.is_outdated(&draft)? {
            if self.may_wait_on() {
                self.extended_deadline_ms = self.fresh_deadline_ms();
            }
            let reason = OUTDATED.to_owned();
            return self.retry_build(myself, reason, MAX_CONTENDED_TRIES).await;
        }
        let services = Arc::clone(&self.services);
        let stored = self.stored()?;
        // With the next approval it is built again.
        let request = &stored.request;
        if let Some(reason) = request.beyond_approval(&draft.unsigned, services.now_ms())? {
            return self
                .advance(vec![RequestEvent::ApprovalWanted { reason }])
                .await;
        }
        let events = self.built_events(draft.clone())?;
        let (network, payload) = (stored.request.network, &stored.payload);
        let queries = tx_builder::queries(&services, network, payload);
        let assigned = network.rules().is_sequenced(&queries);
        let mut strangers = recipients::unknown(&services, network, payload);
        let outcome = loop {
            let Some(wallet) = self.active_wallet_version().await? else {
                return Ok(());
            };
            let extras = CommitExtras {
                wallet: Some(wallet),
                strangers: &strangers,
                ..CommitExtras::default()
            };
            let committed = self
                .stored_mut()?
                .advance_claiming(&services, &events, extras, assigned)
                .await;
            match &committed {
                // The wallet was renamed or archived in between.
                Err(AdvanceError::Conflict(key)) if key.space == KeySpace::Wallet => {}
                // One of them is a wallet: they are looked up.
                Err(AdvanceError::Conflict(key)) if key.space == KeySpace::WalletAddress => {
                    strangers.clear();
                }
                _ => break committed,
            }
        };
        let stored = self.stored()?;
        if let Err(problem) = outcome {
            // Another request was faster: other outputs, a newer block, the next nonce.
            let reason = stored.conflict_reason(&services, &draft, problem).await?;
            return self.retry_build(myself, reason, MAX_CONTENDED_TRIES).await;
        }
        let request = stored.request.id;
        self.strangers = strangers;
        self.proceed();
        // A vault that ends in the meantime starts again with the claims that are on disk.
        let _ = self.vault.cast(vault::Msg::Claimed(request));
        Ok(())
    }

    /// Whether no block can have what is built, as could still be when the chain was asked.
    fn is_outdated(&self, draft: &Draft) -> Result<bool, Fault> {
        let stored = self.stored()?;
        let ends_ms = ends_ms(&stored.request, &stored.payload, draft)?;
        let now_ms = self.services.now_ms();
        Ok(ends_ms.is_some_and(|ends_ms| self.asked_ms < ends_ms && ends_ms <= now_ms))
    }

    pub(super) async fn build_failed(&mut self, fault: Fault) -> Result<(), Fault> {
        if *fault.class() != Class::Invalid {
            return Err(fault);
        }
        self.give_up(fault.message().to_owned(), fault.execute_code())
            .await
    }

    pub(super) fn built_events(&self, draft: Draft) -> Result<Vec<RequestEvent>, Fault> {
        // What a chain took of its time is not to be missing for signers: thousands may come to them at once
        // when it answers again.
        let half_ms = self.services.settings.signing_deadline_ms / 2;
        let now_ms = self.services.now_ms();
        let deadline_ms = if draft.deadline_ms < now_ms.saturating_add(half_ms) {
            self.fresh_deadline_ms()
        } else {
            draft.deadline_ms
        };
        // A session lasts no longer than the transaction, where that is not over already.
        let stored = self.stored()?;
        let ends_ms = ends_ms(&stored.request, &stored.payload, &draft)?;
        let most_ms = ends_ms.filter(|ends_ms| *ends_ms > now_ms);
        Ok(vec![
            RequestEvent::Built {
                draft: draft.into(),
            },
            RequestEvent::SessionClaimed {
                session: self.services.new_session_id(),
                deadline_ms: deadline_ms.min(most_ms.unwrap_or(u64::MAX)),
            },
        ])
    }

    pub(super) fn draft(
        &self,
        chain_data: ChainData,
        broadcast: bool,
        deadline_ms: u64,
    ) -> Result<Draft, Fault> {
        let StoredRequest {
            request, payload, ..
        } = self.stored()?;
        let now = self.services.now_ms();
        tx_builder::draft(request, payload, chain_data, broadcast, now, deadline_ms)
    }
}
