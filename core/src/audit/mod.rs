//! The audit log: what happened, in chains that only grow.
//!
//! Each entry names the hash of the entry before it, so that nothing can be changed, left out or
//! put in between without a trace. There is one chain per vault, and one for what belongs to no
//! vault. That the end of a chain was cut off, or a chain rewritten, shows only against a
//! [`ChainHead`] that was kept elsewhere.
//!
//! ```text
//! hash = SHA-256("covault audit entry 1\0" || length of chain key (1 byte) || chain key
//!                || number (8 bytes, big-endian) || hash of the entry before || body)
//! ```
//! The chain key is `00` for the service's chain, and `01` and the 16 bytes of its uuid for a vault's.
//! The first number is 1, and the hash before it is 32 zeros. The body is [`AuditEntry::encode`].

mod check;
mod lines;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{fault::Fault, ids::VaultId};

pub use check::{BreakKind, ChainBreak, ChainChecker, ChainReport, KnownHeads, LogChecker};
pub use lines::{
    EntryLine, ExportEnd, ExportFindings, ExportLine, ExportReader, ExportStart, ExportWriter,
    HeadLine, parse_hash,
};

/// The hash of an entry.
pub type Hash = [u8; 32];

/// The hash before the first entry.
pub const NO_HASH: Hash = [0; 32];

/// The event of the first entry of a chain.
pub const BEGAN: &str = "ChainBegan";
/// The event in the service's chain that says that a vault has a chain.
pub const VAULT_CHAIN: &str = "VaultChainBegan";

/// Separates these hashes from all others.
const DOMAIN: &[u8] = b"covault audit entry 1\0";

/// Which chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AuditChain {
    /// What belongs to no vault: nodes, tokens, the store.
    Service,
    /// A vault with its wallets and requests.
    Vault(VaultId),
}

impl AuditChain {
    /// Its key, where chains lie side by side. No key begins another.
    pub fn key(&self) -> Vec<u8> {
        match self {
            AuditChain::Service => vec![0],
            AuditChain::Vault(id) => [&[1], id.as_bytes().as_slice()].concat(),
        }
    }

    /// The chain of a key, and what comes after it.
    pub fn split(key: &[u8]) -> Option<(Self, &[u8])> {
        match key.split_first()? {
            (0, rest) => Some((AuditChain::Service, rest)),
            (1, rest) => {
                let (id, rest) = rest.split_first_chunk::<16>()?;
                Some((AuditChain::Vault(VaultId::from_bytes(*id)), rest))
            }
            _ => None,
        }
    }
}

impl fmt::Display for AuditChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AuditChain::Service => f.write_str("service"),
            AuditChain::Vault(id) => write!(f, "vault:{id}"),
        }
    }
}

impl FromStr for AuditChain {
    type Err = Fault;

    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming `chain`.
    fn from_str(text: &str) -> Result<Self, Fault> {
        let wrong = || Fault::field("chain", "must be service, or vault: and a uuid");
        let chain = match text.strip_prefix("vault:") {
            None if text == "service" => return Ok(AuditChain::Service),
            None => return Err(wrong()),
            Some(id) => AuditChain::Vault(id.parse().map_err(|_| wrong())?),
        };
        // One text per chain: what is compared as text must be equal.
        if chain.to_string() == text {
            Ok(chain)
        } else {
            Err(wrong())
        }
    }
}

/// What happened to a subject in one commit. Holds no secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuditEntry {
    /// When, in milliseconds since the Unix epoch, by the orchestrator's clock.
    pub at_ms: u64,
    /// Who did it: `operator`, `token:` and an id, or `service`.
    pub by: String,
    /// The `x-request-id` of the call that caused it; empty without one.
    pub call: String,
    /// Its subject: `request:`, `wallet:`, `vault:`, ... and an id.
    pub subject: String,
    /// What, in its order: one at least.
    pub events: Vec<AuditEvent>,
}

/// Something that happened. Holds no secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuditEvent {
    /// Its name.
    pub event: String,
    /// More: names and values.
    #[serde(with = "facts")]
    pub facts: Vec<(String, String)>,
}

/// An entry with its version, as it is hashed and stored.
#[derive(Serialize, Deserialize)]
enum VersionedEntry<T> {
    /// The first form.
    V1(T),
}

/// The fields of an entry in the order in which they are hashed: BCS has no names.
type EntryFields<T> = (u64, T, T, T, Vec<(T, Vec<(T, T)>)>);

impl AuditEntry {
    /// Its one form in bytes: BCS.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when it cannot be serialized.
    pub fn encode(&self) -> Result<Vec<u8>, Fault> {
        let Self {
            at_ms,
            by,
            call,
            subject,
            events,
        } = self;
        let events = events.iter().map(|AuditEvent { event, facts }| {
            let facts = facts.iter().map(|(name, value)| (&**name, &**value));
            (&**event, facts.collect())
        });
        let fields: EntryFields<&str> = (*at_ms, by, call, subject, events.collect());
        bcs::to_bytes(&VersionedEntry::V1(fields)).map_err(Fault::bug)
    }

    /// The entry of such bytes; `None` when they are of another version, or none.
    pub fn decode(body: &[u8]) -> Option<Self> {
        let VersionedEntry::V1((at_ms, by, call, subject, events)) =
            bcs::from_bytes::<VersionedEntry<EntryFields<String>>>(body).ok()?;
        let events = events.into_iter();
        Some(Self {
            at_ms,
            by,
            call,
            subject,
            events: events
                .map(|(event, facts)| AuditEvent { event, facts })
                .collect(),
        })
    }
}

/// An entry in its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkedEntry {
    /// Its number in the chain; 1 for the first.
    pub number: u64,
    /// The hash of the entry before.
    pub previous: Hash,
    /// Its own.
    pub hash: Hash,
    /// What it says; see [`AuditEntry::encode`].
    pub body: Vec<u8>,
}

/// The last entry of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainHead {
    /// Its number.
    pub number: u64,
    /// Its hash.
    pub hash: Hash,
}

/// The hash of an entry in its place.
pub fn hash(chain: AuditChain, number: u64, previous: &Hash, body: &[u8]) -> Hash {
    let key = chain.key();
    let mut hash = Sha256::new();
    hash.update(DOMAIN);
    // Keys have at most 17 bytes.
    hash.update([u8::try_from(key.len()).unwrap_or(u8::MAX)]);
    hash.update(key);
    hash.update(number.to_be_bytes());
    hash.update(previous);
    hash.update(body);
    hash.finalize().into()
}

impl LinkedEntry {
    /// The entry that comes after `head`; the first of its chain after `None`.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when there are 2^64 entries.
    pub fn after(
        head: Option<&ChainHead>,
        chain: AuditChain,
        body: Vec<u8>,
    ) -> Result<Self, Fault> {
        let (last, previous) = head.map_or((0, NO_HASH), |head| (head.number, head.hash));
        let number = last
            .checked_add(1)
            .ok_or_else(|| Fault::bug("a chain is full"))?;
        Ok(Self {
            number,
            previous,
            hash: hash(chain, number, &previous, &body),
            body,
        })
    }

    /// What it is as the last of its chain.
    pub fn head(&self) -> ChainHead {
        ChainHead {
            number: self.number,
            hash: self.hash,
        }
    }
}

/// Names and values as a JSON object, in their order.
mod facts {
    use std::fmt;

    use serde::{
        Deserializer, Serializer,
        de::{MapAccess, Visitor},
    };

    pub fn serialize<S: Serializer>(
        facts: &[(String, String)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(facts.iter().map(|(name, value)| (name, value)))
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(
        deserializer: D,
    ) -> Result<Vec<(String, String)>, D::Error> {
        struct Facts;
        impl<'a> Visitor<'a> for Facts {
            type Value = Vec<(String, String)>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }
            fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut facts = Vec::new();
                while let Some(fact) = map.next_entry()? {
                    facts.push(fact);
                }
                Ok(facts)
            }
        }
        deserializer.deserialize_map(Facts)
    }
}

#[cfg(test)]
mod tests;
