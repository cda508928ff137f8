//! Drives approved batches to their end: checks the newest signing request of each, then makes the next
//! request or ends the batch. All its state is in the store, so that it continues wherever an earlier process
//! stopped.

use std::time::Duration;

use covault_core::{
    batch::{BatchEvent, BatchPayload, BatchPayment, BatchStage, BatchState},
    fault::{Class, Fault},
    ids::{BatchId, VaultId},
};
use futures::{StreamExt as _, stream};

use super::{
    outcome::{BatchOutcome, outcome},
    start::{self, LoadedBatch},
};
use crate::{
    audit::AuditActor,
    commands::command_commit::CommandCommit,
    process::tasks::contained,
    requests::batch_claim::BatchClaim,
    services::{Services, skip_unreadable},
    store::{Batch, KeySpace, Precondition, Scan, batch_rows, rows},
    vaults::vault_actors::VaultActors,
};

/// Rows that are read at once.
const PAGE: usize = 256;
/// Batches that are looked at at once.
const AT_ONCE: usize = 8;

/// Looks after the batches of the vaults that are here, until the process ends.
pub async fn run(vaults: VaultActors) {
    let pause = Duration::from_millis(vaults.services.settings.tracking_first_ms);
    loop {
        tokio::time::sleep(pause).await;
        if let Err(fault) = look(&vaults).await {
            tracing::warn!(?fault, "failed to process batch payments");
        }
    }
}

async fn look(vaults: &VaultActors) -> Result<(), Fault> {
    let services = &vaults.services;
    let mut next = Some(Scan::prefix(KeySpace::OpenBatch, &[], PAGE));
    while let Some(scan) = next {
        let page = services.store.scan(&scan).await?;
        let mut each = Vec::new();
        for (vault, batch) in page
            .iter()
            .filter_map(|(key, _)| batch_rows::open_batch_of(key))
        {
            if services.for_vault(vault).is_ok() {
                each.push(look_at(vaults, vault, batch));
            }
        }
        // A chain that does not answer holds up those of no other.
        let each = stream::iter(each).buffer_unordered(AT_ONCE);
        each.collect::<()>().await;
        next = scan.rest(&page);
    }
    Ok(())
}

async fn look_at(vaults: &VaultActors, vault: VaultId, batch: BatchId) {
    let reason = match contained(advance(vaults, batch)).await {
        Ok(()) => None,
        // It has changed in between: it is looked at again.
        Err(fault) if fault == BatchClaim::lost() => return,
        Err(fault) => Some(fault),
    };
    if let Err(fault) = hold_up(&vaults.services, vault, batch, reason).await {
        tracing::debug!(%batch, ?fault, "failed to store why a batch payment waits");
    }
}

/// Stores why a batch does not continue now, and logs it once.
async fn hold_up(
    services: &Services,
    vault: VaultId,
    batch: BatchId,
    fault: Option<Fault>,
) -> Result<(), Fault> {
    let reason = fault.as_ref().map(|fault| match fault.class() {
        Class::Bug => "an internal error; the log of the service has it".to_owned(),
        _ => fault.message().to_owned(),
    });
    let key = batch_rows::held_up(batch);
    let known = services.load::<String>(&key).await?;
    if known.as_ref().map(|(known, _)| known) == reason.as_ref() {
        return Ok(());
    }
    let mut change = Batch::new();
    match &reason {
        Some(reason) => {
            tracing::warn!(%batch, ?fault, "a batch payment is waiting");
            // It is on its way still, so that no reason stays behind one that is over.
            let open = batch_rows::open_batch(vault, batch);
            let open_row = services.load::<()>(&open).await?;
            let Some((_, version)) = open_row else {
                return Ok(());
            };
            change.check(open, Precondition::Version(version));
            change.put(key, Precondition::Any, rows::encode(reason)?);
        }
        None => {
            change.delete(key, Precondition::Any);
        }
    }
    let owner = services.for_vault(vault)?;
    Ok(owner.store.commit(change).await?)
}

/// What is to happen to a batch now.
enum NextStep {
    Nothing,
    Make(BatchStage),
    End(BatchEvent),
}

async fn advance(vaults: &VaultActors, id: BatchId) -> Result<(), Fault> {
    let services: &Services = &vaults.services;
    let found = services.load::<BatchPayment>(&rows::batch(id)).await;
    let found = skip_unreadable(found, format_args!("batch {id}"))?.flatten();
    let Some((batch, version)) = found else {
        return Ok(());
    };
    let BatchState::Approved(progress) = &batch.state else {
        return Ok(());
    };
    let by = AuditActor::service();
    let commit = || CommandCommit::new(by.clone(), None, None);
    let ahead = match next(services, &batch).await {
        // Such as a batch contract that is no longer configured. No request is on its way then.
        Err(fault) if is_lasting(&fault) => NextStep::End(BatchEvent::GaveUp {
            reason: fault.message().to_owned(),
            resumable: true,
        }),
        ahead => ahead?,
    };
    let event = match ahead {
        NextStep::Nothing => return Ok(()),
        NextStep::End(event) => event,
        NextStep::Make(stage) => {
            let read = LoadedBatch {
                batch: &batch,
                version,
                progress,
                client_signer: progress.client_signer,
            };
            match start::make(vaults, read, stage, BatchEvent::StepMade, commit()).await {
                Ok(()) => return Ok(()),
                Err(fault) if is_lasting(&fault) => BatchEvent::GaveUp {
                    reason: fault.message().to_owned(),
                    resumable: true,
                },
                Err(fault) => return Err(fault),
            }
        }
    };
    // Had its request been made nevertheless, the row would be another one.
    let claim = BatchClaim::new(&batch, version, event, &by, services.now_ms())?;
    claim.commit(services, &commit()).await?;
    Ok(())
}

/// Whether a person has to do something before it can be made.
fn is_lasting(fault: &Fault) -> bool {
    matches!(
        fault.class(),
        Class::Invalid | Class::WrongState | Class::Forbidden
    )
}

async fn next(services: &Services, batch: &BatchPayment) -> Result<NextStep, Fault> {
    let newest = batch.state.progress().and_then(|it| it.requests.last());
    let Some(newest) = newest else {
        return Ok(NextStep::Nothing);
    };
    let gave_up =
        |reason: String, resumable| NextStep::End(BatchEvent::GaveUp { reason, resumable });
    Ok(
        match (newest.stage, outcome(services, newest.request).await?) {
            (_, BatchOutcome::Waiting) | (BatchStage::Send, BatchOutcome::Mined) => {
                NextStep::Nothing
            }
            (BatchStage::Send, BatchOutcome::Final) => NextStep::End(BatchEvent::PaymentSent),
            (
                BatchStage::Send,
                BatchOutcome::Void {
                    reason,
                    certain,
                    denied,
                },
            ) => gave_up(
                match certain {
                    true => reason,
                    false => format!(
                        "{reason}. Someone may have the signed transaction: check whether the recipients were paid \
                         before you make another batch"
                    ),
                },
                certain && !denied,
            ),
            // No allowance pays anyone.
            (_, BatchOutcome::Void { reason, denied, .. }) => gave_up(reason, !denied),
            (BatchStage::ResetAllowance, done) => after_reset(services, batch, done).await?,
            (BatchStage::Allowance, done) => after_allowance(services, batch, done).await?,
        },
    )
}

async fn after_reset(
    services: &Services,
    batch: &BatchPayment,
    done: BatchOutcome,
) -> Result<NextStep, Fault> {
    let payment = BatchPayload::decode(&batch.payment).map_err(Fault::bug)?;
    let allowance = start::allowance(services, &payment).await?;
    Ok(match (allowance.is_zero(), done) {
        (true, _) => NextStep::Make(BatchStage::Allowance),
        (false, BatchOutcome::Final) => NextStep::End(BatchEvent::GaveUp {
            reason: format!(
                "the allowance of the batch contract is {allowance} after it was set to 0"
            ),
            resumable: true,
        }),
        // The node that was asked has not seen the block yet.
        (false, _) => NextStep::Nothing,
    })
}

async fn after_allowance(
    services: &Services,
    batch: &BatchPayment,
    done: BatchOutcome,
) -> Result<NextStep, Fault> {
    let payment = BatchPayload::decode(&batch.payment).map_err(Fault::bug)?;
    let allowance = start::allowance(services, &payment).await?;
    Ok(match (allowance == payment.total(), done) {
        (true, _) => NextStep::Make(BatchStage::Send),
        (false, BatchOutcome::Final) => NextStep::End(BatchEvent::GaveUp {
            reason: format!(
                "the allowance of the batch contract is {allowance} after it was set to {}",
                payment.total()
            ),
            resumable: true,
        }),
        (false, _) => NextStep::Nothing,
    })
}
