//! The first commit of a request.

use std::sync::Arc;

use covault_core::{
    fault::{Class, Fault},
    request::{Approval, Event, Request},
    schema::wire,
    wallet::Status,
};

use super::Live;
use crate::{
    building,
    command_commit::CommandCommit,
    context::Context,
    ledger::{CommitExtras, Ledger, Problem},
    store::Space,
    wallets,
};

impl Live {
    /// Everything up to the first outside effect, in one commit with the idempotency record. It is
    /// taken only as long as the wallet's row is in the version in which the wallet was found
    /// active: once an archive was answered no request of the wallet is accepted.
    pub(super) async fn create(
        &mut self,
        request: Request,
        broadcast: bool,
        mut wallet_version: u64,
        command_commit: CommandCommit,
    ) -> Result<wire::SigningRequest, Fault> {
        let deadline_ms = self.fresh_deadline_ms();
        let ledger = Ledger::open(request, 0)?;
        let needs = building::needs(&self.context, ledger.request.network, &ledger.payload);
        let mut events = vec![
            Event::PolicyPassed { broadcast },
            Event::ApprovalAsked {
                rule: Approval::Automatic,
            },
            Event::Approved { deadline_ms },
        ];
        let mut built = None;
        if let Some(facts) = building::own_facts(&self.context, &ledger.payload, &needs) {
            self.current = Some(ledger);
            let draft = self.draft(facts?, broadcast, deadline_ms)?;
            events.extend(self.built(draft.clone()));
            built = Some(draft);
        } else {
            self.current = Some(ledger);
        }
        let context = Arc::clone(&self.context);
        let ledger = self.now_mut()?;
        let stored = loop {
            let extras = CommitExtras {
                command_commit: Some(&command_commit),
                wallet: Some(wallet_version),
            };
            let stored = ledger
                .advance_claiming(&context, events.clone(), extras, false)
                .await;
            match stored {
                Err(Problem::Conflict(key)) if key.space == Space::Wallet => {
                    wallet_version = active(&context, ledger).await?;
                }
                stored => break stored,
            }
        };
        match (stored, built) {
            (Ok(()), _) => {
                let calls = &context.settings.calls;
                Ok(self.now()?.request.to_wire(calls, Vec::new()))
            }
            (Err(Problem::Conflict(key)), _) if key.space == Space::Idempotency => Err(
                Fault::unavailable("another call with this idempotency key is in work; try again"),
            ),
            (Err(problem), Some(draft)) => {
                let reason = ledger.taken(&context, &draft, problem).await?;
                let kind = ledger.payload.kind();
                Err(Fault::new(Class::WrongState, format!("{kind}: {reason}")))
            }
            (Err(problem), None) => Err(problem.into()),
        }
    }
}

/// The present version of the wallet's row, unless the wallet is archived by now.
async fn active(context: &Context, ledger: &Ledger) -> Result<u64, Fault> {
    let (wallet, version) = context.wallet(ledger.request.wallet).await?;
    match wallet.status {
        Status::Active => Ok(version),
        Status::Archived => {
            let field = format!("{}.from", ledger.payload.kind());
            Err(wallets::archived(field))
        }
    }
}
