//! Where the audit log is read from: a running orchestrator, or a store that nobody serves.

use std::{io, sync::Arc};

use anyhow::{Context as _, bail};
use covault_actors::{audit::Log, store::Store};
use covault_core::audit::{Chain, Head, HeadLine, OlderLine, Writer};

use crate::{
    cli::client::Client,
    config::{Config, StoreKind},
    files::{self, Owned},
    http::admin::audit::{
        ChainsAnswer, EntriesAnswer, ListChains, ListEntries, ListOlder, OlderAnswer, OlderPlace,
        chains_answer, entries_answer, older_answer,
    },
    wiring::{explain, store, store_path},
};

/// See the module.
pub enum Source {
    /// It is asked over the admin API.
    Running(Client),
    /// It is opened here; the folder is ours for so long.
    Stopped {
        store: Arc<dyn Store>,
        _folder: Owned,
    },
}

impl Source {
    /// The store of a configuration, which nobody else may be using.
    ///
    /// # Errors
    /// When there is none, or an orchestrator runs on it.
    pub async fn stopped(config: &Config) -> anyhow::Result<Self> {
        let path = store_path(&config.serve);
        if config.store.kind == StoreKind::Redb && !path.exists() {
            bail!("there is no store at {}", path.display());
        }
        let folder = files::own_folder(&config.serve.data_dir)?;
        Ok(Self::Stopped {
            store: store(config, true).await?,
            _folder: folder,
        })
    }

    async fn chains(&self, after: Option<String>) -> anyhow::Result<ChainsAnswer> {
        match self {
            Self::Running(client) => client.call("listAuditChains", &ListChains { after }).await,
            Self::Stopped { store, .. } => {
                let after = after.map(|chain| chain.parse()).transpose();
                let after = after.map_err(explain)?;
                let found = Log(&**store).chains(after).await.map_err(explain)?;
                Ok(chains_answer(found))
            }
        }
    }

    async fn entries(&self, chain: Chain, from: u64) -> anyhow::Result<EntriesAnswer> {
        match self {
            Self::Running(client) => {
                let request = ListEntries {
                    chain: chain.to_string(),
                    from,
                };
                client.call("listAuditEntries", &request).await
            }
            Self::Stopped { store, .. } => {
                let log = Log(&**store);
                let entries = log.entries(chain, from).await.map_err(explain)?;
                let head = log.head(chain).await.map_err(explain)?;
                Ok(entries_answer(chain, entries, head))
            }
        }
    }

    async fn older(&self, after: Option<OlderPlace>) -> anyhow::Result<OlderAnswer> {
        match self {
            Self::Running(client) => client.call("listOlderAudit", &ListOlder { after }).await,
            Self::Stopped { store, .. } => {
                let after = match after {
                    None => None,
                    Some(OlderPlace { request, number }) => {
                        Some((request.parse().map_err(explain)?, number))
                    }
                };
                let found = Log(&**store).older(after).await.map_err(explain)?;
                Ok(older_answer(found))
            }
        }
    }

    /// Writes all of it as lines. What is added meanwhile may be left out.
    ///
    /// # Errors
    /// When it cannot be read, or not be written.
    pub async fn export<W: io::Write>(&self, to: W, now_ms: u64) -> anyhow::Result<W> {
        let mut writer = Writer::start(to, now_ms).context("cannot write")?;
        let mut after = None;
        loop {
            let OlderAnswer { older } = self.older(after).await?;
            after = older.last().map(|line: &OlderLine| OlderPlace {
                request: line.request.clone(),
                number: line.number,
            });
            if after.is_none() {
                break;
            }
            for line in older {
                writer.older(line).context("cannot write")?;
            }
        }
        // First the one that tells of others: those that it tells of are there when they are listed.
        let mut heads = vec![(
            Chain::Service,
            self.chain(Chain::Service, &mut writer).await?,
        )];
        let mut after = None;
        loop {
            let ChainsAnswer { chains } = self.chains(after).await?;
            after = chains.last().map(|state| state.chain.clone());
            if after.is_none() {
                break;
            }
            for state in chains {
                let chain: Chain = state.chain.parse().map_err(explain)?;
                if chain != Chain::Service {
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
        chain: Chain,
        writer: &mut Writer<W>,
    ) -> anyhow::Result<Option<Head>> {
        let mut at_first = None;
        let mut next = 0;
        loop {
            let page = self.entries(chain, next).await?;
            let head = page.head.map(|line| line.head().map_err(explain));
            let head = head.transpose()?.map(|(_, head)| head);
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
                writer.entry(entry.line).context("cannot write")?;
                match entry.at.checked_add(1) {
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
