//! What became of the last request of a sweep. That something has arrived is read from the transfers that this service
//! follows itself; that it never will, from the state of the request and of those that replaced it.

use covault_core::{
    amount::U256,
    deposit::{
        sweep::{SweepEvent, SweepJob, SweepState},
        transfer::TransferIndex,
    },
    fault::Fault,
    ids::RequestId,
    networks::Replacement,
    request::{RequestState, SigningRequest, TransactionState},
};

use super::{StoredJob, SweptWallet};
use crate::{
    audit::{AuditActor, AuditNote},
    requests::replacing::ReplacementFamily,
    services::skip_unreadable,
    store::{
        Batch, Precondition, Scan,
        deposit_rows::TransferRow,
        rows::{self, TransactionRow},
        sweep_rows::{self, SweepTotalRow},
    },
};

/// Transfers of one transaction that are read.
const PAGE: usize = 1_000;

/// Looks at the request that a sweep waits for. Whether there is more to do now.
pub(super) async fn look(
    swept: &SweptWallet,
    stored: &StoredJob,
    id: RequestId,
) -> Result<bool, Fault> {
    let services = &swept.services;
    let Some((request, _)) = services.request(id).await? else {
        return Err(Fault::bug("a sweep without its request"));
    };
    let family = ReplacementFamily::load(services, &request).await?;
    let later = family.after(id).map(|(_, later)| later.clone());
    let requests: Vec<SigningRequest> = std::iter::once(request).chain(later).collect();
    for request in &requests {
        let Some(tx) = request.state.tx_hash().and_then(hash) else {
            continue;
        };
        let transfers = transfers(swept, &tx).await?;
        if has_arrived(swept, &stored.job, &transfers) {
            return arrived(swept, stored, &transfers).await;
        }
    }
    match lost(swept, &requests).await? {
        None => Ok(false),
        Some(reason) => {
            let now_ms = services.now_ms();
            let next = (stored.job).step(SweepEvent::RequestLost { reason, now_ms })?;
            swept.tell(&next, now_ms);
            swept.write(stored, next).await
        }
    }
}

fn hash(text: &str) -> Option<[u8; 32]> {
    let bytes = hex::decode(text.trim_start_matches("0x")).ok()?;
    bytes.try_into().ok()
}

/// The transfers of a transaction that are known, to or from the wallet.
async fn transfers(swept: &SweptWallet, tx: &[u8; 32]) -> Result<Vec<TransferRow>, Fault> {
    let all = sweep_rows::transfers_of(swept.chain, tx);
    let scan = Scan::prefix(all.space, &all.bytes, PAGE);
    let mut found = Vec::new();
    for (_, row) in swept.services.store.scan(&scan).await? {
        let row = rows::decode::<TransferRow>(&row.value);
        found.extend(skip_unreadable(row, "a transfer of a sweep")?);
    }
    found.retain(|row| {
        row.transfer.account() == swept.account && row.transfer.owner.token == swept.token
    });
    Ok(found)
}

fn has_arrived(swept: &SweptWallet, job: &SweepJob, transfers: &[TransferRow]) -> bool {
    transfers.iter().any(|row| {
        let of = &row.transfer;
        match job.state {
            SweepState::Funding { .. } => {
                !of.is_send && of.transfer.asset.is_none() && row.state.is_told()
            }
            SweepState::Moving { .. } => {
                let is_it = of.is_send && of.transfer.asset == job.asset;
                let is_fee = of.transfer.index == TransferIndex::Fee;
                is_it && !is_fee && of.transfer.from == swept.account && row.state.is_final()
            }
            SweepState::Due
            | SweepState::Funded
            | SweepState::Swept { .. }
            | SweepState::Paused { .. } => false,
        }
    })
}

async fn arrived(
    swept: &SweptWallet,
    stored: &StoredJob,
    transfers: &[TransferRow],
) -> Result<bool, Fault> {
    if matches!(stored.job.state, SweepState::Funding { .. }) {
        let next = stored.job.step(SweepEvent::TopUpArrived)?;
        return swept.write(stored, next).await;
    }
    let services = &swept.services;
    let next = stored.job.step(SweepEvent::MoveFinal)?;
    let SweepState::Swept { amount } = next.state else {
        return Err(Fault::bug("a sweep that is not over at its end"));
    };
    let fees = transfers.iter().map(|row| &row.transfer.transfer);
    let fees = fees.filter(|transfer| transfer.index == TransferIndex::Fee);
    let fee = fees
        .map(|transfer| U256::from_be_bytes(transfer.amount))
        .sum::<U256>();
    let top_up = stored.job.top_up.unwrap_or_default();
    let key = sweep_rows::total(swept.token, swept.chain, stored.job.asset);
    let (total, expect) = match services.load::<SweepTotalRow>(&key).await? {
        Some((total, version)) => (total, Precondition::Version(version)),
        None => (SweepTotalRow::default(), Precondition::Absent),
    };
    let add = |one: [u8; 32], other: U256| -> [u8; 32] {
        U256::from_be_bytes(one).saturating_add(other).to_be_bytes()
    };
    let total = SweepTotalRow {
        sweeps: total.sweeps.saturating_add(1),
        amount: add(total.amount, U256::from_be_bytes(amount)),
        top_ups: add(total.top_ups, U256::from_be_bytes(top_up)),
        fees: add(total.fees, fee),
    };
    let mut batch = Batch::new();
    swept.put(&mut batch, stored.version, &next)?;
    batch.put(key, expect, rows::encode(&total)?);
    let network = swept.chain.network();
    AuditNote::for_vault(&AuditActor::service(), swept.vault, "DepositSwept")
        .fact("chain", swept.chain)
        .fact("address", swept.account.text(network))
        .fact(
            "token",
            next.asset
                .map(|asset| asset.text(network))
                .unwrap_or_default(),
        )
        .fact("amount", U256::from_be_bytes(amount))
        .fact("fee", fee)
        .add_to(
            &mut batch,
            covault_core::audit::AuditChain::Vault(swept.vault),
            services.now_ms(),
        )?;
    swept.commit(batch).await?;
    Ok(true)
}

/// Why none of these requests can move anything any more; `None` while one can, or has.
async fn lost(swept: &SweptWallet, requests: &[SigningRequest]) -> Result<Option<String>, Fault> {
    let mut why = None;
    for request in requests {
        if let RequestState::Failed { reason, .. } = &request.state {
            why = why.or_else(|| Some(reason.clone()));
            continue;
        }
        let cancels = request.replaces.as_ref();
        if cancels.is_some_and(|replaces| replaces.how == Replacement::Cancel) {
            continue;
        }
        let key = rows::transaction(request.id);
        let known = swept.services.load::<TransactionRow>(&key).await?;
        let settled = match known.map(|(row, _)| row.state) {
            Some(TransactionState::Final(inclusion)) if !inclusion.success => {
                "its transaction has failed on the chain"
            }
            Some(TransactionState::Replaced { .. }) => "another transaction has taken its place",
            Some(TransactionState::Dropped) => "its transaction was never mined",
            _ => return Ok(None),
        };
        why = Some(settled.to_owned());
    }
    Ok(why)
}
