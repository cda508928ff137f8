//! Backups of the store while it is served: operators get one state of it in parts.

use std::{sync::Arc, time::Duration};

use covault_core::{
    audit::AuditChain,
    fault::{Class, Fault},
    ids::SessionId,
};
use parking_lot::Mutex;

use crate::{
    audit::{self, AuditActor, AuditNote},
    backup,
    services::Services,
    store::{
        Batch, Precondition, RawRow, Snapshot,
        overview_rows::{self, BackupRow},
        rows,
    },
};

/// How long a backup waits for its reader, in milliseconds.
const IDLE_TIMEOUT_MS: u64 = 60_000;

/// The backup that is being read. One at a time: the store keeps all that changes in the meantime.
#[derive(Default)]
pub struct BackupSlot(Arc<Mutex<Option<BackupSession>>>);

struct BackupSession {
    id: SessionId,
    /// `None`: all of it was read, and the reader has yet to say that it has kept it.
    snapshot: Option<Arc<dyn Snapshot>>,
    /// The number of the next part.
    next: u64,
    /// The last row that was read.
    last: Option<RawRow>,
    /// When it was last asked for, in milliseconds since the Unix epoch.
    asked_at_ms: u64,
    /// Of which moment it is, in milliseconds since the Unix epoch.
    at_ms: u64,
    /// Bytes that were read.
    bytes: u64,
}

impl BackupSlot {
    fn with<T>(&self, change: impl FnOnce(&mut Option<BackupSession>) -> T) -> T {
        change(&mut self.0.lock())
    }

    /// Begins a backup. Gives its id, by which its parts are asked for.
    ///
    /// # Errors
    /// [`Class::Conflict`] while another one is read.
    pub async fn begin(&self, services: &Services, by: &AuditActor) -> Result<SessionId, Fault> {
        let busy = self.with(|reading| {
            let now_ms = services.now_ms();
            let busy =
                |reading: &BackupSession| now_ms.abs_diff(reading.asked_at_ms) < IDLE_TIMEOUT_MS;
            let unread = reading.as_ref().filter(|it| it.snapshot.is_some());
            unread.is_some_and(busy)
        });
        if busy {
            return Err(Fault::new(
                Class::Conflict,
                "another backup is in progress; try again in a minute",
            ));
        }
        let id = services.new_session_id();
        // Before the state that is copied: so it is in it.
        let note = AuditNote::new(by, "store", "StoreBackedUp").fact("backup", id);
        audit::note(services, AuditChain::Service, note).await?;
        let snapshot = backup::snapshot(&*services.store).await?;
        self.with(|reading| {
            *reading = Some(BackupSession {
                id,
                snapshot: Some(snapshot),
                next: 0,
                last: None,
                asked_at_ms: services.now_ms(),
                at_ms: services.now_ms(),
                bytes: 0,
            });
        });
        let (all, clock) = (Arc::clone(&self.0), Arc::clone(&services.clock));
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(IDLE_TIMEOUT_MS)).await;
                let mut reading = all.lock();
                match &*reading {
                    Some(this) if this.id == id => {
                        if clock.now_ms().abs_diff(this.asked_at_ms) >= IDLE_TIMEOUT_MS {
                            *reading = None;
                            return;
                        }
                    }
                    _ => return,
                }
            }
        });
        Ok(id)
    }

    /// A part of a backup; empty at the end. Each is asked for once, in order, from 0. Whoever asks for one more has kept
    /// them all: the backup counts as made from then on, not before.
    ///
    /// # Errors
    /// [`Class::Conflict`] when it is not the turn of this part, or nobody has asked for so long that the
    /// backup was given up.
    pub async fn part(
        &self,
        services: &Services,
        id: SessionId,
        number: u64,
    ) -> Result<Vec<RawRow>, Fault> {
        let gone = || {
            Fault::new(
                Class::Conflict,
                "this backup has ended, or this part of it was already read; start a new backup",
            )
        };
        let reading = self.with(|reading| {
            let this = reading
                .as_mut()
                .filter(|it| it.id == id && it.next == number)?;
            this.next = this.next.saturating_add(1);
            this.asked_at_ms = services.now_ms();
            let made = BackupRow {
                at_ms: this.at_ms,
                bytes: this.bytes,
            };
            Some((this.snapshot.clone(), this.last.take(), made))
        });
        let (snapshot, last, made) = reading.ok_or_else(gone)?;
        let Some(snapshot) = snapshot else {
            note_made(services, made).await?;
            self.with(|reading| reading.take_if(|it| it.id == id));
            return Ok(Vec::new());
        };
        let rows = backup::page(&*snapshot, last.as_ref()).await?;
        self.with(|reading| {
            let Some(this) = reading.as_mut().filter(|it| it.id == id) else {
                return;
            };
            let bytes = rows.iter().map(|row| row.key.len() + row.value.len());
            let bytes = u64::try_from(bytes.sum::<usize>()).unwrap_or(u64::MAX);
            this.bytes = this.bytes.saturating_add(bytes);
            match rows.last() {
                Some(row) => this.last = Some(row.clone()),
                // The store need not keep it any longer.
                None => this.snapshot = None,
            }
        });
        Ok(rows)
    }
}

/// Writes down that there is a backup.
async fn note_made(services: &Services, backup: BackupRow) -> Result<(), Fault> {
    let mut batch = Batch::new();
    let row = rows::encode(&backup)?;
    batch.put(overview_rows::backup(), Precondition::Any, row);
    Ok(services.store.commit(batch).await?)
}
