//! From what the chain said to what is to be signed, and its commit.

use std::sync::Arc;

use covault_core::{
    chain::ChainData,
    fault::{Class, Fault},
    request::{Draft, Event, State},
};
use ractor::ActorRef;

use super::{Live, Msg, waiting::TAKEN_TRIES};
use crate::{
    requests::{
        request_store::{CommitExtras, Problem, StoredRequest},
        tx_builder,
    },
    store::Space,
    vaults::vault,
};

impl Live {
    /// Builds on what the chain said, and stores that with what the transaction uses up.
    pub(super) async fn facts_arrived(
        &mut self,
        myself: &ActorRef<Msg>,
        chain_data: ChainData,
    ) -> Result<(), Fault> {
        let State::Preparing {
            broadcast,
            deadline_ms,
        } = self.now()?.request.state
        else {
            return Ok(());
        };
        let deadline_ms = deadline_ms.max(self.patient_until_ms);
        let draft = match self.draft(chain_data, broadcast, deadline_ms) {
            Ok(draft) => draft,
            Err(fault) => return self.cannot_be_built(fault).await,
        };
        let events = self.built(draft.clone());
        let services = Arc::clone(&self.services);
        let stored = self.now()?;
        let (network, payload) = (stored.request.network, &stored.payload);
        let queries = tx_builder::queries(&services, network, payload);
        let assigned = network.rules().is_sequenced(&queries);
        let outcome = loop {
            let Some(wallet) = self.wallet_in_use().await? else {
                return Ok(());
            };
            let extras = CommitExtras {
                command_commit: None,
                wallet: Some(wallet),
            };
            let committed = self
                .now_mut()?
                .advance_claiming(&services, events.clone(), extras, assigned)
                .await;
            // The wallet got another name, or was archived, just now.
            if !matches!(&committed, Err(Problem::Conflict(key)) if key.space == Space::Wallet) {
                break committed;
            }
        };
        let stored = self.now()?;
        if let Err(problem) = outcome {
            // Somebody was faster: other outputs, a newer block, the next number.
            let reason = stored.taken(&services, &draft, problem).await?;
            return self.put_off(myself, reason, TAKEN_TRIES).await;
        }
        let request = stored.request.id;
        self.goes_on();
        // A vault that ends meanwhile starts again with the claims that are on disk.
        let _ = self.vault.cast(vault::Msg::Claimed(request));
        Ok(())
    }

    pub(super) async fn cannot_be_built(&mut self, fault: Fault) -> Result<(), Fault> {
        if *fault.class() != Class::Invalid {
            return Err(fault);
        }
        self.give_up(fault.message().to_owned(), fault.execute_code())
            .await
    }

    pub(super) fn built(&self, draft: Draft) -> Vec<Event> {
        // Only after an outage can it be built past its deadline.
        let late = draft.deadline_ms <= self.services.now_ms();
        let deadline_ms = if late {
            self.fresh_deadline_ms()
        } else {
            draft.deadline_ms
        };
        vec![
            Event::Built { draft },
            Event::SessionClaimed {
                session: self.services.new_session_id(),
                deadline_ms,
            },
        ]
    }

    pub(super) fn draft(
        &self,
        chain_data: ChainData,
        broadcast: bool,
        deadline_ms: u64,
    ) -> Result<Draft, Fault> {
        let StoredRequest {
            request, payload, ..
        } = self.now()?;
        let now = self.services.now_ms();
        tx_builder::draft(request, payload, chain_data, broadcast, now, deadline_ms)
    }
}
