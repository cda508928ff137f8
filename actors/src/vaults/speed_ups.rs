//! The policy of a chain: transactions that no block takes for some blocks are replaced by the same at a higher fee, up
//! to a cap.
//!
//! Each replacement is an ordinary request of the service's. That there is one at most for each wait is kept by the row
//! of replacements, which changes in its first commit: a restart, or another owner of the vault, finds it there.

use std::sync::Arc;

use covault_core::{
    fault::{ExecuteCode, Fault},
    ids::RequestId,
    networks::{Payload, Replacement},
    request::{RequestState, SigningRequest},
};
use tokio::sync::mpsc::UnboundedReceiver;

use super::{
    admission::{ProposalContent, admit_own},
    vault_actors::VaultActors,
};
use crate::{
    chain_rpc::ChainKey,
    requests::{
        replacing::{self, ReplacementFamily, ReplacementWish},
        tracking::{self, SpeedUpDue},
    },
    services::Services,
};

/// After so many replacements of one transaction that failed no other one is made.
const MAX_FAILED: usize = 3;

/// Replaces what comes, until the process ends.
pub async fn run(vaults: VaultActors, arriving: UnboundedReceiver<SpeedUpDue>) {
    let look = |due: SpeedUpDue| {
        let vaults = vaults.clone();
        async move {
            if let Some(replacement) = speed_up(&vaults, due).await? {
                let request = due.request;
                tracing::warn!(%request, replacement, head = due.head, "no block includes a transaction; replacing \
                    it with a higher fee");
            }
            Ok(())
        }
    };
    let what = "replacing a transaction that no block includes";
    tracking::process_all(arriving, what, |due| due.request, look).await;
}

/// Makes a replacement, unless there is one, or it is not time for the next. Gives its uuid.
async fn speed_up(vaults: &VaultActors, due: SpeedUpDue) -> Result<Option<String>, Fault> {
    let services: &Arc<Services> = &vaults.services;
    let Some((request, _)) = services.request(due.request).await? else {
        return Ok(None);
    };
    let payload = Payload::decode(&request.payload).map_err(Fault::bug)?;
    let chain = ChainKey::of(request.network, payload.chain_id());
    let Some(policy) = services.chains.speed_up(chain) else {
        return Ok(None);
    };
    let family = ReplacementFamily::load(services, &request).await?;
    if !family.is_newest(request.id) {
        return Ok(None);
    }
    // All of these have failed.
    let failed = family.after(request.id);
    let of_policy = failed.filter(|(entry, _)| entry.at_block.is_some());
    if of_policy.count() >= MAX_FAILED {
        return Ok(None);
    }
    // One that costs too much is the last, and others are tried again after as many blocks.
    for (entry, failed) in family.after(request.id) {
        let Some(at_block) = entry.at_block else {
            continue;
        };
        let is_capped = matches!(
            failed.state,
            RequestState::Failed {
                code: ExecuteCode::InsufficientGasFee,
                ..
            }
        );
        if is_capped || due.head.saturating_sub(at_block) < policy.after_blocks {
            return Ok(None);
        }
    }
    if !is_first_in_line(services, &request, chain).await? {
        return Ok(None);
    }
    let wish = ReplacementWish {
        how: Replacement::SpeedUp,
        most_fee: Some(policy.most_fee),
        at_block: Some(due.head),
    };
    let plan = replacing::plan(services, &request, wish).await?;
    let notes = notes(request.id, policy.after_blocks, chain);
    admit_own(vaults, &request, ProposalContent::Replacement(plan), notes).await
}

/// Whether the chain waits for this very transaction: one behind another number is taken by no block, whatever it pays.
async fn is_first_in_line(
    services: &Services,
    request: &SigningRequest,
    chain: ChainKey,
) -> Result<bool, Fault> {
    let signed = request.state.signed();
    let signed = signed.ok_or_else(|| Fault::bug("a request that sent nothing"))?;
    let Some(number) = request
        .network
        .rules()
        .sent_number(signed, &request.address)?
    else {
        return Ok(true);
    };
    let next = services.chains.next_number(chain, &request.address).await?;
    Ok(next == Some(number))
}

fn notes(request: RequestId, after_blocks: u64, chain: ChainKey) -> String {
    format!(
        "made by the service: no block has included the transaction of request {request} for {after_blocks} blocks \
         ({}.speed_up_after_blocks)",
        chain.setting()
    )
}
