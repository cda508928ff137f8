//! What the operations about batch payments share.

use std::collections::HashSet;

use covault_core::{
    batch::{BatchPayload, BatchPayment, BatchStage, BatchState},
    fault::Fault,
    ids::BatchId,
    schema::admin::{BatchPaymentRow, BatchPaymentSummary, BatchStageRequest},
};

use super::{Home, HomeLookup};
use crate::{
    commands::caller::{Caller, in_scope},
    services::Services,
    store::rows,
};

/// A batch with the version of its row, when the caller may see it.
///
/// # Errors
/// `Invalid uuid`.
pub(super) async fn find(
    services: &Services,
    caller: &Caller,
    uuid: &str,
) -> Result<(BatchPayment, u64), Fault> {
    let id: BatchId = uuid.parse()?;
    let found = services.load::<BatchPayment>(&rows::batch(id)).await?;
    found
        .filter(|(batch, _)| in_scope(caller, batch.vault))
        .ok_or_else(Fault::invalid_uuid)
}

/// The home of a command about a batch: where its vault runs.
pub(super) async fn home(lookup: &HomeLookup<'_>, uuid: &str) -> Result<Home, Fault> {
    let Ok(id) = uuid.parse::<BatchId>() else {
        return Ok(Home::AnyProcess);
    };
    let found = lookup
        .services
        .load::<BatchPayment>(&rows::batch(id))
        .await?;
    Ok(found.map(|(batch, _)| batch.vault).into())
}

/// A batch as the admin API shows it.
///
/// # Errors
/// [`covault_core::fault::Class::Bug`] when its payment cannot be read.
pub(super) fn summary(batch: &BatchPayment) -> Result<BatchPaymentSummary, Fault> {
    let payment = BatchPayload::decode(&batch.payment).map_err(Fault::bug)?;
    let shown = batch.to_wire();
    let requests = batch.state.progress().into_iter();
    let requests = requests.flat_map(|progress| &progress.requests);
    Ok(BatchPaymentSummary {
        uuid: batch.id.to_string(),
        vault_uuid: batch.vault.to_string(),
        status: shown.status().as_str_name().to_owned(),
        name: shown.name,
        kind: payment.kind().to_owned(),
        address: payment.from().to_owned(),
        chain_id: payment.chain_id().unwrap_or_default(),
        token: payment.token().unwrap_or_default().to_owned(),
        recipients: u32::try_from(payment.recipients().len()).unwrap_or(u32::MAX),
        total: payment.total().to_string(),
        approved: requests.clone().next().is_some(),
        failed_reason: shown.failed_reason,
        resumable: matches!(
            batch.state,
            BatchState::Failed {
                resumable: true,
                ..
            }
        ),
        requests: requests
            .map(|request| BatchStageRequest {
                stage: stage_name(request.stage).to_owned(),
                uuid: request.request.to_string(),
            })
            .collect(),
        created_ms: batch.created_at_ms,
    })
}

fn stage_name(stage: BatchStage) -> &'static str {
    match stage {
        BatchStage::ResetAllowance => "resetAllowance",
        BatchStage::Allowance => "allowance",
        BatchStage::Send => "send",
    }
}

/// Who is paid how much, with those marked that an earlier row pays too.
///
/// # Errors
/// As [`summary`].
pub(super) fn rows_of(batch: &BatchPayment) -> Result<Vec<BatchPaymentRow>, Fault> {
    let payment = BatchPayload::decode(&batch.payment).map_err(Fault::bug)?;
    let mut seen = HashSet::new();
    let rows = payment.recipients().iter().map(|row| BatchPaymentRow {
        address: row.address.clone(),
        amount: row.amount.clone(),
        notes: row.notes.clone().unwrap_or_default(),
        duplicate: !seen.insert(row.address.clone()),
    });
    Ok(rows.collect())
}
