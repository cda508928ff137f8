//! Rows of what operators do to vaults, which lists show among the signing requests. They are written in the commit
//! that does it.

use covault_core::{
    fault::Fault,
    ids::{RequestId, VaultId},
    schema::wire,
    wallet::{
        management::{ManagementKind, ManagementOutcome, ManagementRequest},
        vault::Vault,
    },
};

use crate::{
    services::Services,
    store::{Batch, Precondition, rows},
};

/// Adds the requests that come with a new vault.
///
/// # Errors
/// A bug, when one cannot be encoded.
pub fn add_of_new(batch: &mut Batch, vault: &Vault) -> Result<(), Fault> {
    ManagementRequest::of_new(vault)
        .iter()
        .try_for_each(|request| add(batch, request))
}

/// Adds what a change of a vault begins and ends.
///
/// # Errors
/// When the store cannot be read.
pub async fn add_changed(
    services: &Services,
    batch: &mut Batch,
    before: &Vault,
    after: &Vault,
) -> Result<(), Fault> {
    for mut request in ManagementRequest::changed(before, after, services.now_ms()) {
        let known = services
            .load::<ManagementRequest>(&rows::management(request.id))
            .await?;
        if let Some((known, _)) = known {
            request.created_at_ms = known.created_at_ms;
        }
        add(batch, &request)?;
    }
    Ok(())
}

/// Adds one that is over.
///
/// # Errors
/// A bug, when it cannot be encoded.
pub fn add_over(
    services: &Services,
    batch: &mut Batch,
    vault: VaultId,
    kind: ManagementKind,
    outcome: ManagementOutcome,
) -> Result<(), Fault> {
    let (id, now_ms) = (services.new_request_id(), services.now_ms());
    add(
        batch,
        &ManagementRequest::over(id, vault, kind, now_ms, outcome),
    )
}

fn add(batch: &mut Batch, request: &ManagementRequest) -> Result<(), Fault> {
    let row = rows::encode(request)?;
    batch.put(rows::management(request.id), Precondition::Any, row);
    let index = rows::request_index(request.vault, request.created_at_ms, request.id);
    batch.put(index, Precondition::Any, rows::encode(&())?);
    Ok(())
}

/// One with its vault, as responses show it; `None` when there is none.
///
/// # Errors
/// When the store cannot be read.
pub async fn shown(
    services: &Services,
    id: RequestId,
) -> Result<Option<(VaultId, wire::SigningRequest)>, Fault> {
    let row = services
        .load::<ManagementRequest>(&rows::management(id))
        .await?;
    let Some((request, _)) = row else {
        return Ok(None);
    };
    let vault = services.vault(request.vault).await?;
    let (vault, _) = vault.ok_or_else(|| Fault::bug("a request about no vault"))?;
    Ok(Some((vault.id, request.to_wire(&vault))))
}
