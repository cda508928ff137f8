//! An operator has looked up what became of a refused transaction, where the nodes do not say it.

use covault_core::{
    audit::AuditChain,
    fault::{Class, Fault},
    networks::Payload,
    request::SigningRequest,
};

use super::{all, payloads};
use crate::{
    audit::AuditNote,
    commands::command_commit::CommandCommit,
    requests::{
        account::ChainAccount,
        refused::looks::{RefusedPayload, RefusedPayloads},
    },
    services::Services,
    store::{
        Batch, CommitError, Precondition,
        rows::{self, RefusedRow},
    },
};

/// Forgets the refused transactions of a request: what pays the same is built as if there had been none. `services` are
/// those of the request's vault. Where `older` ones of the same payment are not kept, whoever asks has to say so: one of them may
/// have come, and what waits is signed at once. Gives the hashes.
///
/// # Errors
/// [`Class::WrongState`] naming `uuid` where none is remembered or it has come, and `older` where there is another number of
/// these; [`Class::Unavailable`] when the store cannot be written.
pub async fn forget_refused(
    services: &Services,
    request: &SigningRequest,
    older: u64,
    commit: &CommandCommit,
) -> Result<Vec<String>, Fault> {
    let payload = Payload::decode(&request.payload)?;
    let account = ChainAccount::of(request, &payload);
    let (mut batch, mut hashes) = (Batch::new(), Vec::new());
    let (mut rest, mut unkept) = (Vec::new(), None);
    let mut scan = Some(all(&account));
    while let Some(asked) = scan {
        let page = services.store.scan(&asked).await?;
        scan = asked.rest(&page);
        for (key, row) in page {
            let Some((_, number, id)) = rows::split_refused(&key) else {
                continue;
            };
            let refused: RefusedRow = rows::decode(&row.value)?;
            if id != request.id {
                rest.push((number, id, key, row.version, refused));
                continue;
            }
            if refused.late.is_some() {
                let problem = "its transaction is on the chain; what pays the same goes by itself a day after that was seen";
                return Err(Fault::new(Class::WrongState, problem).at("uuid"));
            }
            if refused.unkept > 0 {
                let inputs = account.network.rules().exclusive_inputs(&refused.signed);
                unkept = Some((number, inputs.unwrap_or_default(), refused.unkept));
            }
            hashes.push(refused.signed.tx_hash);
            batch.delete(key, Precondition::Version(row.version));
        }
    }
    if hashes.is_empty() {
        let problem = "no transaction of this request is remembered as refused";
        return Err(Fault::new(Class::WrongState, problem).at("uuid"));
    }
    check_older(older, unkept.as_ref().map_or(0, |(.., count)| *count))?;
    // Of what else of the same payment is kept the next one says that there were older ones.
    if let Some((number, inputs, unkept)) = unkept {
        let rules = account.network.rules();
        rest.retain(|(other, _, _, _, row)| {
            let spends = || rules.exclusive_inputs(&row.signed).unwrap_or_default();
            let is_alike = rules.is_numbered() || spends() == inputs;
            *other == number && row.late.is_none() && is_alike
        });
        while let Some((_, id, key, version, mut refused)) = rest.pop() {
            let read = RefusedPayloads::default();
            let found = payloads(services, &read, &account, &[id]).await?;
            let found = found.into_iter().next().flatten();
            let is_same = |found: &RefusedPayload| {
                let purpose = payload.purpose(request.network);
                found.purpose.is_exactly_same(&purpose)
            };
            if found.is_some_and(|found| is_same(&found)) {
                refused.unkept = refused.unkept.saturating_add(unkept);
                batch.put(key, Precondition::Version(version), rows::encode(&refused)?);
                break;
            }
        }
    }
    AuditNote::for_request(commit.by(), request.id, "RefusedForgotten")
        .fact("detail", hashes.join(", "))
        .fact("older", older)
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

/// Whether whoever forgets a transaction says of how many older ones, that are not kept, he knows.
fn check_older(said: u64, unkept: u64) -> Result<(), Fault> {
    if said == unkept {
        return Ok(());
    }
    let problem = match unkept {
        0 => "all refused transactions of the same payment are kept; leave it out".to_owned(),
        _ => format!(
            "{unkept} older ones of the same payment are not kept, and one of these may have come: look up what has used \
             the same nonce or outputs, then give that number"
        ),
    };
    Err(Fault::new(Class::WrongState, problem).at("older"))
}
