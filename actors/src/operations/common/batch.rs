//! What the operations about batch payments share.

use std::collections::HashSet;

use covault_core::{
    batch::{BatchPayload, BatchPayment, BatchStage, BatchState},
    fault::{Class, Fault},
    ids::{BatchId, TokenId, UserId},
    order::NodeId,
    schema::admin::{BatchPaymentRow, BatchPaymentSummary, BatchStageRequest},
    token::ApiToken,
    user::User,
};

use crate::{
    batches::start,
    commands::caller::{Caller, in_scope},
    operations::{Home, HomeLookup},
    services::Services,
    store::{batch_rows, rows},
};

/// A batch with the version of its row, when the caller may see it.
///
/// # Errors
/// `Invalid uuid`.
pub async fn find(
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
pub async fn home(lookup: &HomeLookup<'_>, uuid: &str) -> Result<Home, Fault> {
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
pub fn summary(services: &Services, batch: &BatchPayment) -> Result<BatchPaymentSummary, Fault> {
    let payment = BatchPayload::decode(&batch.payment).map_err(Fault::bug)?;
    let (status, failed_reason) = batch.status();
    let contract = start::contract(services, &payment).unwrap_or_default();
    let requests = batch.state.progress().into_iter();
    let requests = requests.flat_map(|progress| &progress.requests);
    Ok(BatchPaymentSummary {
        uuid: batch.id.to_string(),
        vault_uuid: batch.vault.to_string(),
        status: status.as_str_name().to_owned(),
        name: batch.name.clone(),
        notes: batch.notes.clone(),
        kind: payment.kind().to_owned(),
        address: payment.from().to_owned(),
        chain_id: payment.chain_id().unwrap_or_default(),
        token: payment.token().unwrap_or_default().to_owned(),
        recipients: u32::try_from(payment.recipients().len()).unwrap_or(u32::MAX),
        total: payment.total().to_string(),
        approved: requests.clone().next().is_some(),
        failed_reason: failed_reason.to_owned(),
        batch_contract: contract.to_owned(),
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
        ..Default::default()
    })
}

/// The same with what other rows say of it: who made it, and why it does not continue.
///
/// # Errors
/// As [`summary`], and when the store cannot be read.
pub async fn whole_summary(
    services: &Services,
    batch: &BatchPayment,
) -> Result<BatchPaymentSummary, Fault> {
    let mut shown = summary(services, batch)?;
    (shown.made_by, shown.maker_revoked) = maker(services, batch.token).await?;
    if let BatchState::Approved(progress) = &batch.state {
        let newest = progress.requests.last();
        let newest = newest.map(|made| rows::delay(made.request));
        let keys: Vec<_> = [Some(batch_rows::held_up(batch.id)), newest]
            .into_iter()
            .flatten()
            .collect();
        for found in services.load_all::<String>(&keys).await? {
            if let (Some(reason), true) = (found?, shown.held_up_by.is_empty()) {
                shown.held_up_by = reason;
            }
        }
    }
    Ok(shown)
}

/// What the token or user is called that made a batch, and whether it was revoked.
async fn maker(services: &Services, id: TokenId) -> Result<(String, bool), Fault> {
    if let Some((token, _)) = services.load::<ApiToken>(&rows::token(id)).await? {
        return Ok((token.name, token.revoked_at_ms.is_some()));
    }
    let user = rows::user(UserId::from_bytes(*id.as_bytes()));
    let user = services.load::<User>(&user).await?;
    Ok(user.map_or((String::new(), false), |(user, _)| {
        (user.name.clone(), !user.is_active())
    }))
}

/// Refuses a person of the console who has nothing to do with a batch: who did not make it, and whom the rule of its vault
/// does not name.
///
/// # Errors
/// [`Class::Forbidden`].
pub async fn check_concerns(
    services: &Services,
    caller: &Caller,
    batch: &BatchPayment,
) -> Result<(), Fault> {
    let Some(person) = &caller.person else {
        return Ok(());
    };
    let vault = services.hot_vault(batch.vault).await?;
    let is_named = vault.is_some_and(|(vault, _)| {
        let mut of = vault.approval.of.iter();
        of.any(|it| it.name == person.name)
    });
    if is_named || batch.token.as_bytes() == person.id.as_bytes() {
        return Ok(());
    }
    Err(Fault::new(
        Class::Forbidden,
        "you did not make this batch payment, and the vault's rule does not name you: ask a person whom it names, or use \
         covault batch",
    ))
}

/// Refuses what a person of the console asks for where no person would approve the signing requests: a session alone moves
/// no money.
///
/// # Errors
/// [`Class::Forbidden`].
pub async fn check_people_approve(
    services: &Services,
    caller: &Caller,
    batch: &BatchPayment,
    client_signer: Option<NodeId>,
) -> Result<(), Fault> {
    if caller.person.is_none() {
        return Ok(());
    }
    check_concerns(services, caller, batch).await?;
    let vault = services.hot_vault(batch.vault).await?;
    let (wallet, _) = services.hot_wallet(batch.wallet).await?;
    let approve =
        vault.is_some_and(|(vault, _)| vault.approval.of_wallet(&wallet.address).needs() > 0);
    if approve && client_signer.is_none() {
        return Ok(());
    }
    Err(Fault::new(
        Class::Forbidden,
        "no person approves the signing requests of this batch with a key, so it is not approved here: use covault batch \
         approve",
    ))
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
pub fn rows_of(batch: &BatchPayment) -> Result<Vec<BatchPaymentRow>, Fault> {
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
