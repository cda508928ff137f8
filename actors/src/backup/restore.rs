//! The first start on a store that was restored from a backup.
//!
//! What happened after the backup was made is not known here. So whatever may have happened already is
//! not done a second time (docs/decisions/0023):
//!
//! - A request that was not signed is given up. It may have been signed, sent, rejected, or asked for again
//!   since. One of which the backup has the transaction is in doubt, and so pending until a final block has that, or it
//!   can never be mined; what it holds stays held, until the chain shows that it is free. The others have failed: of messages no
//!   chain knows, and of what was not built yet nobody could tell it in the chain.
//! - One that was signed continues: only the same bytes are sent.
//! - Keys that were being made, and new shares, are left to an operator: they may be there.
//! - Epochs that runs may have used, and numbers of wallets that may have been given out, are passed.
//! - Batch payments that were not over are closed: one may have been paid since.
//! - Clients are kept out until an operator lets them in.

use std::{
    ops::RangeInclusive,
    sync::atomic::{AtomicBool, Ordering},
};

use covault_core::{
    audit::AuditChain,
    batch::{BatchEvent, BatchPayment, BatchState},
    fault::{Class, Fault},
    request::{RequestEvent, RequestState, SigningRequest},
    wallet::vault::Vault,
};
use serde::{Deserialize, Serialize};

use crate::{
    audit::{AuditActor, AuditNote},
    requests::{
        batch_claim::BatchClaim,
        request_store::{self, CommitExtras},
    },
    services::Services,
    store::{Batch, CommitError, KeySpace, Precondition, Scan, rows},
    vaults::wallets,
};

/// Wallet numbers that are passed: more than anyone makes between two backups.
const PASSED_WALLETS: u32 = 1_000_000;
/// Epochs that are passed.
const PASSED_EPOCHS: u32 = 1_000;
/// Rows that one scan reads at most.
const PAGE: usize = 256;

/// Where a restore stands, as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RestoreState {
    /// Rows are being written.
    Importing,
    /// All rows are there; nobody has started on them.
    Imported(RestoreTimes),
    /// The first start saw to everything. Clients wait for an operator.
    Held(RestoreTimes),
    /// An operator has let clients in.
    Open(RestoreTimes),
}

/// A restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreTimes {
    /// When the backup was made, in milliseconds since the Unix epoch.
    pub backup_at_ms: u64,
    /// When it was restored, in milliseconds since the Unix epoch.
    pub restored_at_ms: u64,
}

/// Whether clients are kept out.
#[derive(Default)]
pub struct ClientGate(AtomicBool);

impl ClientGate {
    fn closed() -> Self {
        Self(AtomicBool::new(true))
    }

    /// Refuses clients until an operator has let them in.
    ///
    /// # Errors
    /// [`Class::Unavailable`] saying what the operator has to do.
    pub async fn check(&self, services: &Services) -> Result<(), Fault> {
        if !self.0.load(Ordering::SeqCst) {
            return Ok(());
        }
        match services.load::<RestoreState>(&rows::restore()).await? {
            Some((RestoreState::Held(_), _)) => Err(Fault::unavailable(
                "the service was restored from a backup, and waits for its operator (covault backup \
                 resume)",
            )),
            _ => {
                self.0.store(false, Ordering::SeqCst);
                Ok(())
            }
        }
    }
}

/// Whether the store was restored from a backup, and no operator has let clients in since.
///
/// # Errors
/// When the store cannot be read.
pub async fn waits_for_operator(services: &Services) -> Result<bool, Fault> {
    let state = services.load::<RestoreState>(&rows::restore()).await?;
    Ok(matches!(
        state,
        Some((RestoreState::Imported(_) | RestoreState::Held(_), _))
    ))
}

/// The time of which the store knows nothing, as it was restored from a backup: from the backup to the restore, in
/// milliseconds since the Unix epoch.
///
/// # Errors
/// When the store cannot be read.
pub async fn unknown_time(services: &Services) -> Result<Option<RangeInclusive<u64>>, Fault> {
    let state = services.load::<RestoreState>(&rows::restore()).await?;
    Ok(match state.map(|(state, _)| state) {
        Some(
            RestoreState::Imported(times) | RestoreState::Held(times) | RestoreState::Open(times),
        ) => Some(times.backup_at_ms..=times.restored_at_ms),
        Some(RestoreState::Importing) | None => None,
    })
}

/// Refuses a store into which a backup was restored by half, before anything is written to it.
///
/// # Errors
/// [`Class::Unavailable`] saying what to do.
pub async fn refuse_half_restored(services: &Services) -> Result<(), Fault> {
    match services.load::<RestoreState>(&rows::restore()).await? {
        Some((RestoreState::Importing, _)) => Err(half_restored()),
        _ => Ok(()),
    }
}

fn half_restored() -> Fault {
    Fault::unavailable(
        "a restore into this store did not finish: restore again (covault backup restore)",
    )
}

/// Sees to what a restore left to do, when there was one, and says whether clients are kept out. To be called before any actor is started.
/// Whenever it is cut off, it is repeated as a whole.
///
/// # Errors
/// [`Class::Unavailable`] when the store cannot be read or written, or was restored by half.
pub async fn recover_after_restore(services: &Services) -> Result<ClientGate, Fault> {
    let marker = rows::restore();
    let (imported, version) = match services.load::<RestoreState>(&marker).await? {
        None | Some((RestoreState::Open(_), _)) => return Ok(ClientGate::default()),
        Some((RestoreState::Held(_), _)) => {
            tracing::warn!(
                "clients are still refused after a restore, until an operator runs covault backup resume"
            );
            return Ok(ClientGate::closed());
        }
        Some((RestoreState::Importing, _)) => return Err(half_restored()),
        Some((RestoreState::Imported(imported), version)) => (imported, version),
    };
    // Of several processes that start at once, only what came before the first that is done counts.
    let services = &services.with_restore_fence(marker.clone(), version);
    let ended = end_requests(services, imported).await?;
    end_batches(services, imported).await?;
    let vaults = recover_vaults(services).await?;
    let mut batch = Batch::new();
    let held = rows::encode(&RestoreState::Held(imported))?;
    batch.put(marker, Precondition::Version(version), held);
    AuditNote::new(&AuditActor::service(), "store", "StoreRestored")
        .fact("backupAtMs", imported.backup_at_ms)
        .fact("restoredAtMs", imported.restored_at_ms)
        .fact("requestsEnded", ended)
        .fact("vaults", vaults)
        .add_to(&mut batch, AuditChain::Service, services.now_ms())?;
    services.store.commit(batch).await?;
    tracing::warn!(
        ended,
        "restored from a backup; clients are refused until an operator runs covault backup resume"
    );
    Ok(ClientGate::closed())
}

/// Lets clients in again.
///
/// # Errors
/// [`Class::WrongState`] when none are kept out.
pub async fn let_clients_in(services: &Services, by: &AuditActor) -> Result<(), Fault> {
    let marker = rows::restore();
    let Some((RestoreState::Held(imported), version)) =
        services.load::<RestoreState>(&marker).await?
    else {
        return Err(Fault::new(
            Class::WrongState,
            "clients are not refused: no backup was restored, or the service was already resumed",
        ));
    };
    let mut batch = Batch::new();
    let open = rows::encode(&RestoreState::Open(imported))?;
    batch.put(marker, Precondition::Version(version), open);
    AuditNote::new(by, "store", "ClientsLetIn").add_to(
        &mut batch,
        AuditChain::Service,
        services.now_ms(),
    )?;
    match services.store.commit(batch).await {
        // Another operator was faster.
        Ok(()) | Err(CommitError::Conflict(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Gives up all requests that are not signed. Returns how many.
async fn end_requests(services: &Services, imported: RestoreTimes) -> Result<u64, Fault> {
    let mut ended = 0_u64;
    let mut next = Some(Scan::prefix(KeySpace::Request, &[], PAGE));
    while let Some(scan) = next {
        let page = services.store.scan(&scan).await?;
        for (key, row) in &page {
            let Ok(request) = rows::decode::<SigningRequest>(&row.value) else {
                tracing::error!(
                    request = hex::encode(&key.bytes),
                    "a stored request cannot be read"
                );
                continue;
            };
            if request.state.is_over()
                || matches!(
                    request.state,
                    RequestState::Signed { .. } | RequestState::Broadcasting { .. }
                )
            {
                continue;
            }
            let reason = format!(
                "the service was restored from a backup in which this request was not signed yet; it is \
                 not known whether it was signed or sent after that: check the chain before you \
                 request it again (backup of {} ms since the Unix epoch)",
                imported.backup_at_ms
            );
            let event = RequestEvent::Restored { reason };
            request_store::end(
                services,
                request,
                row.version,
                event,
                CommitExtras::default(),
            )
            .await?;
            ended = ended.saturating_add(1);
        }
        next = scan.rest(&page);
    }
    Ok(ended)
}

/// Closes all batch payments that are not over: one may have been approved and paid since, and would be paid again.
async fn end_batches(services: &Services, imported: RestoreTimes) -> Result<(), Fault> {
    let mut next = Some(Scan::prefix(KeySpace::Batch, &[], PAGE));
    while let Some(scan) = next {
        let page = services.store.scan(&scan).await?;
        for (key, row) in &page {
            let Ok(batch) = rows::decode::<BatchPayment>(&row.value) else {
                tracing::error!(
                    batch = hex::encode(&key.bytes),
                    "a stored batch payment cannot be read"
                );
                continue;
            };
            let is_over = matches!(
                batch.state,
                BatchState::Succeeded(_)
                    | BatchState::Failed {
                        resumable: false,
                        ..
                    }
            );
            if is_over {
                continue;
            }
            let reason = format!(
                "the service was restored from a backup in which this batch had not ended yet; it is not known whether it \
                 was paid after that: check the chain before you make another one (backup of {} ms since the Unix epoch)",
                imported.backup_at_ms
            );
            let (event, by) = (BatchEvent::Restored { reason }, AuditActor::service());
            let claim = BatchClaim::new(&batch, row.version, event, &by, services.now_ms())?;
            let mut ended = Batch::new();
            claim.add_to(&mut ended)?;
            services.store.commit(ended).await?;
        }
        next = scan.rest(&page);
    }
    Ok(())
}

/// Leaves to operators what was in progress for keys, and passes epochs and numbers of wallets. Returns how
/// many vaults there are.
async fn recover_vaults(services: &Services) -> Result<u64, Fault> {
    let mut vaults = 0_u64;
    let mut next = Some(Scan::prefix(KeySpace::Vault, &[], PAGE));
    while let Some(scan) = next {
        let page = services.store.scan(&scan).await?;
        for (key, row) in &page {
            let mut vault: Vault = rows::decode(&row.value)?;
            vault.restored(PASSED_EPOCHS, services.now_ms());
            let wallet = next_wallet(services, vault.id).await?;
            let wallet = wallet.saturating_add(PASSED_WALLETS);
            let mut batch = Batch::new();
            batch.put(
                key.clone(),
                Precondition::Version(row.version),
                rows::encode(&vault)?,
            );
            batch.put(
                rows::first_wallet(vault.id),
                Precondition::Any,
                rows::encode(&wallet)?,
            );
            AuditNote::for_vault(&AuditActor::service(), vault.id, "VaultRestored")
                .fact("nextWallet", wallet)
                .add_to(&mut batch, AuditChain::Vault(vault.id), services.now_ms())?;
            services.store.commit(batch).await?;
            vaults = vaults.saturating_add(1);
        }
        next = scan.rest(&page);
    }
    Ok(vaults)
}

/// The number of the next wallet of a vault.
///
/// # Errors
/// When the store cannot be read.
pub async fn next_wallet(
    services: &Services,
    vault: covault_core::ids::VaultId,
) -> Result<u32, Fault> {
    let after_last = wallets::next_index(services, vault).await?;
    let first = services.load::<u32>(&rows::first_wallet(vault)).await?;
    Ok(first.map_or(after_last, |(first, _)| first.max(after_last)))
}
