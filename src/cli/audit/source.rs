//! Where the audit log is read from: a running orchestrator, or a store that nobody serves.

use std::{io, sync::Arc};

use anyhow::{Context as _, bail};
use covault_actors::{
    operations::{ListAuditChains, ListAuditEntries},
    store::Store,
};
use covault_core::{
    audit::{AuditChain, ChainHead, EntryLine, ExportWriter, HeadLine, LinkedEntry, parse_hash},
    schema::admin,
};

use crate::{
    cli::client::AdminClient,
    config::{Config, StoreKind},
    files::{self, FolderLock},
    wiring::{explain, store, store_path},
};

/// See the module.
pub enum LogSource {
    /// It is asked over the admin API.
    Running(AdminClient),
    /// It is opened here; the folder is ours for so long.
    Stopped {
        store: Arc<dyn Store>,
        _folder: FolderLock,
    },
}

impl LogSource {
    /// The store of a configuration, which nobody else may be using.
    ///
    /// # Errors
    /// When there is none, or an orchestrator runs on it.
    pub async fn stopped(config: &Config) -> anyhow::Result<Self> {
        let path = store_path(&config.serve);
        if config.store.kind == StoreKind::Redb && !path.exists() {
            bail!("there is no store at {}", path.display());
        }
        let folder = files::lock_folder(&config.serve.data_dir)?;
        Ok(Self::Stopped {
            store: store(config, true).await?,
            _folder: folder,
        })
    }

    async fn chains(&self, after: Option<String>) -> anyhow::Result<Vec<admin::AuditChain>> {
        let request = admin::ListAuditChainsRequest { after };
        let print_line = match self {
            Self::Running(client) => client.call::<ListAuditChains>(&request).await?,
            Self::Stopped { store, .. } => {
                let read = ListAuditChains::read(&**store, request).await;
                read.map_err(explain)?
            }
        };
        Ok(print_line.chains)
    }

    async fn entries(
        &self,
        chain: AuditChain,
        from: u64,
    ) -> anyhow::Result<admin::ListAuditEntriesResponse> {
        let request = admin::ListAuditEntriesRequest {
            chain: chain.to_string(),
            from,
        };
        match self {
            Self::Running(client) => client.call::<ListAuditEntries>(&request).await,
            Self::Stopped { store, .. } => {
                let read = ListAuditEntries::read(&**store, request).await;
                read.map_err(explain)
            }
        }
    }

    /// Writes all of it as lines. Entries added during the export may be missing.
    ///
    /// # Errors
    /// When it cannot be read, or not be written.
    pub async fn export<W: io::Write>(&self, to: W, now_ms: u64) -> anyhow::Result<W> {
        let mut writer = ExportWriter::start(to, now_ms).context("cannot write")?;
        // First the one that tells of others: those that it tells of are there when they are listed.
        let mut heads = vec![(
            AuditChain::Service,
            self.chain(AuditChain::Service, &mut writer).await?,
        )];
        let mut after = None;
        loop {
            let chains = self.chains(after).await?;
            after = chains.last().map(|state| state.chain.clone());
            if after.is_none() {
                break;
            }
            for state in chains {
                let chain: AuditChain = state.chain.parse().map_err(explain)?;
                if chain != AuditChain::Service {
                    heads.push((chain, self.chain(chain, &mut writer).await?));
                }
            }
        }
        for (chain, head) in heads {
            if let Some(head) = head {
                let line = HeadLine::new(chain, &head);
                writer.head(line).context("cannot write")?;
            }
        }
        writer.end().context("cannot write")
    }

    /// Writes the entries of a chain up to the head that it has at first, and what lies behind it
    /// although the head does not know it. Returns the head.
    async fn chain<W: io::Write>(
        &self,
        chain: AuditChain,
        writer: &mut ExportWriter<W>,
    ) -> anyhow::Result<Option<ChainHead>> {
        let mut at_first = None;
        let mut next = 0;
        loop {
            let page = self.entries(chain, next).await?;
            let head = page.head.map(head_of).transpose()?;
            let first_page = at_first.is_none();
            let end = *at_first.get_or_insert(head);
            // The first entries may have come between the page and its head.
            let empty = page.entries.is_empty() && !(first_page && end.is_some());
            for entry in page.entries {
                let behind = end.is_some_and(|end| entry.at > end.number);
                if behind && head.is_some_and(|head| head.number >= entry.at) {
                    // It came while the others were read.
                    return Ok(end);
                }
                let at = entry.at;
                let line = EntryLine::new(chain, &linked_of(entry)?);
                writer.entry(line).context("cannot write")?;
                match at.checked_add(1) {
                    Some(after) => next = after,
                    None => return Ok(end),
                }
            }
            if empty {
                return Ok(end);
            }
        }
    }
}

fn head_of(head: admin::AuditHead) -> anyhow::Result<ChainHead> {
    Ok(ChainHead {
        number: head.number,
        hash: parse_hash("hash", &head.hash).map_err(explain)?,
    })
}

fn linked_of(entry: admin::AuditEntry) -> anyhow::Result<LinkedEntry> {
    Ok(LinkedEntry {
        number: entry.number,
        previous: parse_hash("previous", &entry.previous).map_err(explain)?,
        hash: parse_hash("hash", &entry.hash).map_err(explain)?,
        body: entry.body,
    })
}
