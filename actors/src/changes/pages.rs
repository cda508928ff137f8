//! The log of a vault, page by page, for a listener that is behind.

use std::{collections::VecDeque, sync::Arc};

use covault_core::{
    audit::AuditChain,
    fault::Fault,
    ids::{RequestId, VaultId},
};

use super::{ChangeHub, follower};
use crate::{
    audit::{self, AuditLog},
    lists::READ_CHUNK,
    services::Services,
};

/// How far a log was read.
#[derive(Clone)]
pub(super) struct LogCursor {
    vault: VaultId,
    /// Up to which entry; `None`: it was not begun.
    read: Option<u64>,
    /// Whether there were no more entries.
    all_read: bool,
    /// The requests that these entries are about and that were not told yet, each with the time of its change: what is
    /// told of them is made when it is taken.
    touched: VecDeque<(RequestId, u64)>,
}

/// A page of it.
pub(super) struct LogPage {
    /// The time of each change, and its JSON.
    pub changes: Vec<(u64, String)>,
    /// Where the next page begins; `None`: it was the last one.
    pub rest: Option<LogCursor>,
}

impl LogCursor {
    /// Before its beginning.
    pub(super) fn new(vault: VaultId) -> Self {
        Self {
            vault,
            read: None,
            all_read: false,
            touched: VecDeque::new(),
        }
    }

    pub(super) fn vault(&self) -> VaultId {
        self.vault
    }

    /// The next page, of changes from a time on, in milliseconds since the Unix epoch. Waits for its turn.
    pub(super) async fn page(
        mut self,
        services: Arc<Services>,
        hub: Arc<ChangeHub>,
        from_ms: u64,
    ) -> Result<LogPage, Fault> {
        let _turn = hub.readers.acquire().await.map_err(Fault::bug)?;
        if self.touched.is_empty() {
            self.read_on(&services, from_ms).await?;
        }
        let next = self.touched.len().min(READ_CHUNK);
        let next = self.touched.drain(..next).collect();
        let changes = follower::changes(&services, self.vault, next).await?;
        let over = self.all_read && self.touched.is_empty();
        Ok(LogPage {
            changes,
            rest: (!over).then_some(self),
        })
    }

    /// Reads the next entries.
    async fn read_on(&mut self, services: &Services, from_ms: u64) -> Result<(), Fault> {
        let chain = AuditChain::Vault(self.vault);
        let log = AuditLog(&*services.store);
        let read = match self.read {
            Some(read) => read,
            None => {
                let last = log.head(chain).await?.map_or(0, |head| head.number);
                let before = follower::before(services, chain, last, from_ms, u64::MAX);
                before.await?.0
            }
        };
        let entries = log.entries(chain, read.saturating_add(1)).await?;
        self.all_read = entries.len() < audit::PAGE;
        self.read = Some(entries.last().map_or(read, |(last, _)| *last));
        self.touched = follower::touched(entries, from_ms).0.into();
        Ok(())
    }
}
