//! An operator has looked up what became of a refused transaction, where the nodes do not say it.

use covault_core::{
    audit::AuditChain,
    fault::{Class, Fault},
    networks::Payload,
    request::SigningRequest,
};

use super::all;
use crate::{
    account::ChainAccount,
    audit::AuditNote,
    commands::command_commit::CommandCommit,
    services::Services,
    store::{Batch, CommitError, Precondition, rows},
};

/// Forgets the refused transactions of a request: what pays the same is built as if there had been none. `services` are
/// those of the request's vault. Gives the hashes.
///
/// # Errors
/// [`Class::WrongState`] naming `uuid` where none is remembered; [`Class::Unavailable`] when the store cannot be written.
pub async fn forget_refused(
    services: &Services,
    request: &SigningRequest,
    commit: &CommandCommit,
) -> Result<Vec<String>, Fault> {
    let payload = Payload::decode(&request.payload)?;
    let account = ChainAccount::of(request, &payload);
    let (mut batch, mut hashes) = (Batch::new(), Vec::new());
    let mut scan = Some(all(&account));
    while let Some(asked) = scan {
        let page = services.store.scan(&asked).await?;
        scan = asked.rest(&page);
        for (key, row) in page {
            if rows::split_refused(&key).is_some_and(|(_, _, id)| id == request.id) {
                let refused: rows::RefusedRow = rows::decode(&row.value)?;
                hashes.push(refused.signed.tx_hash);
                batch.delete(key, Precondition::Version(row.version));
            }
        }
    }
    if hashes.is_empty() {
        let problem = "no transaction of this request is remembered as refused";
        return Err(Fault::new(Class::WrongState, problem).at("uuid"));
    }
    AuditNote::for_request(commit.by(), request.id, "RefusedForgotten")
        .fact("detail", hashes.join(", "))
        .add_to(
            &mut batch,
            AuditChain::Vault(request.vault),
            services.now_ms(),
        )?;
    commit.demand(&mut batch);
    match services.store.commit(batch).await {
        Ok(()) => Ok(hashes),
        Err(CommitError::Conflict(_)) => Err(Fault::unavailable(
            "the refused transaction has just changed; retry",
        )),
        Err(error) => Err(error.into()),
    }
}
