//! The audit log: what goes into it, and how it is read.
//!
//! Entries are part of the batch of what they tell of ([`Batch::append`]). The store numbers and
//! links them; see [`covault_core::audit`].

use std::fmt;

use covault_core::{
    audit::{AuditChain, AuditEntry, AuditEvent, BEGAN, ChainHead, LinkedEntry, VAULT_CHAIN},
    fault::Fault,
    ids::{RequestId, TokenId, VaultId},
    order::NodeId,
};

use crate::{
    commands::caller::Caller,
    services::Services,
    store::{Batch, CommitError, KeySpace, Precondition, Scan, Store, prefix_end, rows},
};

/// Most entries that are read at once.
pub const PAGE: usize = 500;
/// Most chains that are listed at once.
const MAX_CHAINS: usize = 100;
/// Most characters of a value.
const MAX_FACT: usize = 2_000;

/// Who caused an audit log entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditActor {
    who: String,
    call: String,
}

impl AuditActor {
    /// The service itself.
    pub fn service() -> Self {
        Self {
            who: "service".to_owned(),
            call: String::new(),
        }
    }

    /// An operator who works on a store that nobody serves.
    pub fn operator() -> Self {
        Self {
            who: "operator".to_owned(),
            call: String::new(),
        }
    }

    /// A person who uses the console, in a call of this id.
    pub fn person(name: &str, call: &str) -> Self {
        Self {
            who: user(name),
            call: call.to_owned(),
        }
    }

    /// The caller.
    pub fn caller(caller: &Caller) -> Self {
        Self {
            who: match &caller.person {
                Some(person) => user(&person.name),
                None => match &caller.admin {
                    Some(admin) => match &admin.token {
                        Some(name) => format!("admin:{name}"),
                        None => "operator".to_owned(),
                    },
                    None => token(caller.token),
                },
            },
            call: caller.request_id.clone(),
        }
    }
}

/// How a token is named.
pub fn token(id: TokenId) -> String {
    format!("token:{id}")
}

/// How a person who uses the console is named.
pub fn user(name: &str) -> String {
    format!("user:{name}")
}

/// How a node is named.
pub fn node(id: &NodeId) -> String {
    format!("node:{}", hex::encode(id.0))
}

/// How some nodes are named.
pub fn nodes(ids: &[NodeId]) -> String {
    ids.iter().map(node).collect::<Vec<_>>().join(" ")
}

/// An audit log entry before it is stored. It must hold no secret.
#[derive(Clone, Debug)]
pub struct AuditNote {
    by: AuditActor,
    subject: String,
    events: Vec<AuditEvent>,
}

impl AuditNote {
    /// Something that happened to a subject.
    pub fn new(by: &AuditActor, subject: impl fmt::Display, event: &str) -> Self {
        Self {
            by: by.clone(),
            subject: subject.to_string(),
            events: Vec::new(),
        }
        .and(event)
    }

    /// Something more that happened to it.
    pub fn and(mut self, event: &str) -> Self {
        self.events.push(AuditEvent {
            event: event.to_owned(),
            facts: Vec::new(),
        });
        self
    }

    /// Something that happened to a request.
    pub fn for_request(by: &AuditActor, request: RequestId, event: &str) -> Self {
        Self::new(by, format_args!("request:{request}"), event)
    }

    /// Something that happened to a vault.
    pub fn for_vault(by: &AuditActor, vault: VaultId, event: &str) -> Self {
        Self::new(by, AuditChain::Vault(vault), event)
    }

    /// More about the last event. What is empty is left out, what is very long is cut.
    pub fn fact(mut self, name: &str, value: impl fmt::Display) -> Self {
        let value = value.to_string();
        if let (Some(event), false) = (self.events.last_mut(), value.is_empty()) {
            let value = match value.char_indices().nth(MAX_FACT) {
                Some((end, _)) => format!("{}...", value.get(..end).unwrap_or_default()),
                None => value,
            };
            event.facts.push((name.to_owned(), value));
        }
        self
    }

    /// Adds the entry to the batch of what it tells of.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Bug`] when it cannot be serialized.
    pub fn add_to(self, batch: &mut Batch, chain: AuditChain, now_ms: u64) -> Result<(), Fault> {
        let Self {
            by: AuditActor { who, call },
            subject,
            events,
        } = self;
        let entry = AuditEntry {
            at_ms: now_ms,
            by: who,
            call,
            subject,
            events,
        };
        batch.append(chain, entry.encode()?);
        Ok(())
    }
}

/// Begins the service's chain in a new store. Those of vaults begin when the vaults are made.
///
/// # Errors
/// When the store cannot be read or written.
pub async fn begin(services: &Services) -> Result<(), Fault> {
    let head = rows::audit_head(AuditChain::Service);
    if services.store.get(&head).await?.is_some() {
        return Ok(());
    }
    let mut batch = Batch::new();
    batch.check(head, Precondition::Absent);
    AuditNote::new(&AuditActor::service(), "store", BEGAN).add_to(
        &mut batch,
        AuditChain::Service,
        services.now_ms(),
    )?;
    match services.store.commit(batch).await {
        // Another process on the store was faster.
        Ok(()) | Err(CommitError::Conflict(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Has the service's chain tell that a vault's chain begins in this batch.
///
/// # Errors
/// [`covault_core::fault::Class::Bug`] when it cannot be serialized.
pub fn note_chain_begin(
    by: &AuditActor,
    chain: AuditChain,
    batch: &mut Batch,
    now_ms: u64,
) -> Result<(), Fault> {
    AuditNote::new(by, chain, VAULT_CHAIN).add_to(batch, AuditChain::Service, now_ms)
}

/// Writes something down that changes nothing in the store.
///
/// # Errors
/// When the store cannot be written.
pub async fn note(services: &Services, chain: AuditChain, note: AuditNote) -> Result<(), Fault> {
    let mut batch = Batch::new();
    note.add_to(&mut batch, chain, services.now_ms())?;
    Ok(services.store.commit(batch).await?)
}

/// The entry of a row. One that cannot be read has its bytes as its body, and no hash.
pub fn decode_linked(number: u64, row: Vec<u8>) -> LinkedEntry {
    rows::decode::<LinkedEntry>(&row).unwrap_or(LinkedEntry {
        number,
        previous: [0; 32],
        hash: [0; 32],
        body: row,
    })
}

/// The audit log of a store.
pub struct AuditLog<'a>(pub &'a dyn Store);

impl AuditLog<'_> {
    /// Chains that have a head or an entry, in order, after this one; a part of them.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn chains(
        &self,
        after: Option<AuditChain>,
    ) -> Result<Vec<(AuditChain, Option<ChainHead>)>, Fault> {
        let mut found = Vec::new();
        let mut after = after;
        while found.len() < MAX_CHAINS {
            let Some(chain) = self.chain_after(after).await? else {
                break;
            };
            found.push((chain, self.head(chain).await?));
            after = Some(chain);
        }
        Ok(found)
    }

    async fn chain_after(&self, after: Option<AuditChain>) -> Result<Option<AuditChain>, Fault> {
        let mut first: Option<AuditChain> = None;
        for space in [KeySpace::AuditHead, KeySpace::AuditEntry] {
            let scan = Scan {
                from: after.and_then(|chain| prefix_end(&chain.key())),
                ..Scan::prefix(space, &[], 1)
            };
            let row = self.0.scan(&scan).await?.into_iter().next();
            let Some((key, _)) = row else {
                continue;
            };
            let chain = rows::audit_chain(&key)
                .or_else(|| Some(rows::audit_position(&key)?.0))
                .ok_or_else(|| Fault::bug("an audit log row has no chain"))?;
            first = Some(first.map_or(chain, |other| other.min(chain)));
        }
        Ok(first)
    }

    /// The head of a chain; `None` also when it cannot be read.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn head(&self, chain: AuditChain) -> Result<Option<ChainHead>, Fault> {
        let row = self.0.get(&rows::audit_head(chain)).await?;
        Ok(row.and_then(|row| rows::decode(&row.value).ok()))
    }

    /// Entries of a chain from a number on, in the order in which they lie; at most [`PAGE`], with
    /// the numbers under which they lie; see [`decode_linked`].
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn entries(
        &self,
        chain: AuditChain,
        from: u64,
    ) -> Result<Vec<(u64, LinkedEntry)>, Fault> {
        let scan = Scan {
            from: Some(rows::audit_entry(chain, from).bytes),
            ..Scan::prefix(KeySpace::AuditEntry, &chain.key(), PAGE)
        };
        let mut found = Vec::new();
        for (key, row) in self.0.scan(&scan).await? {
            let (_, number) = rows::audit_position(&key)
                .ok_or_else(|| Fault::bug("an audit log row has no number"))?;
            found.push((number, decode_linked(number, row.value)));
        }
        Ok(found)
    }
}
