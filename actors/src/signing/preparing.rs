//! From what the chain said to what is to be signed, and its commit.

use std::sync::Arc;

use covault_core::{
    chain::Facts,
    fault::{Class, Fault},
    request::{Draft, Event, State},
};
use ractor::ActorRef;

use super::{Live, Msg, waiting::TAKEN_TRIES};
use crate::{
    building,
    ledger::{CommitExtras, Ledger, Problem},
    store::Space,
    vault,
};

impl Live {
    /// Builds on what the chain said, and stores that with what the transaction uses up.
    pub(super) async fn facts_arrived(
        &mut self,
        myself: &ActorRef<Msg>,
        facts: Facts,
    ) -> Result<(), Fault> {
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
            Err(fault) => return self.cannot_be_built(fault).await,
        };
        let events = self.built(draft.clone());
        let context = Arc::clone(&self.context);
        let ledger = self.now()?;
        let (network, payload) = (ledger.request.network, &ledger.payload);
        let needs = building::needs(&context, network, payload);
        let assigned = network.chain().is_sequenced(&needs);
        let stored = loop {
            let Some(wallet) = self.wallet_in_use().await? else {
                return Ok(());
            };
            let extras = CommitExtras {
                command_commit: None,
                wallet: Some(wallet),
            };
            let stored = self
                .now_mut()?
                .advance_claiming(&context, events.clone(), extras, assigned)
                .await;
            // The wallet got another name, or was archived, just now.
            if !matches!(&stored, Err(Problem::Conflict(key)) if key.space == Space::Wallet) {
                break stored;
            }
        };
        let ledger = self.now()?;
        if let Err(problem) = stored {
            // Somebody was faster: other outputs, a newer block, the next number.
            let reason = ledger.taken(&context, &draft, problem).await?;
            return self.put_off(myself, reason, TAKEN_TRIES).await;
        }
        let request = ledger.request.id;
        self.tries = 0;
        self.delayed = None;
        context.note_delay(request, None);
        // A vault that ends meanwhile starts again with the claims that are on disk.
        let _ = self.vault.cast(vault::Msg::Claimed(request));
        Ok(())
    }

    pub(super) async fn cannot_be_built(&mut self, fault: Fault) -> Result<(), Fault> {
        if *fault.class() != Class::Invalid {
            return Err(fault);
        }
        self.give_up(fault.public().to_owned(), fault.code()).await
    }

    pub(super) fn built(&self, draft: Draft) -> Vec<Event> {
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

    pub(super) fn draft(
        &self,
        facts: Facts,
        broadcast: bool,
        deadline_ms: u64,
    ) -> Result<Draft, Fault> {
        let Ledger {
            request, payload, ..
        } = self.now()?;
        let now = self.context.now_ms();
        building::draft(request, payload, facts, broadcast, now, deadline_ms)
    }
}
