//! Leases: which orchestrator owns a vault.
//!
//! A vault has one row in [`KeySpace::Lease`]. It is written only when the vault goes to another
//! orchestrator, so that the version of the row is a fencing token: every commit on behalf of the
//! vault demands the version in which its orchestrator got it. A former owner, stalled or cut
//! off for however long, changes nothing. Who is alive is judged by [`MemberTable`], and decides
//! only how soon a vault continues elsewhere, never whether two work on it
//! (docs/decisions/0024-several-orchestrators.md).

mod fence;
mod hot_numbers;
mod hot_rows;
mod lease;
mod lease_store;
mod manager;
mod members;
mod placement;
mod told;

use covault_core::{
    deposit::transfer::FollowedChain,
    ids::{OrchestratorId, VaultId},
};
use serde::{Deserialize, Serialize};

use crate::{
    process::counters::RequestCounts,
    store::{Key, KeySpace},
};

pub use fence::{CommitGuard, GuardedStore, LeaseFence, LogListener, RestoreFence, UnleasedGuard};
pub use hot_rows::LeaseTerm;
pub use lease::{HeldLeases, Lease, LeaseGuard};
pub use lease_store::{
    first_lease, live_homes, maintenance_lease, release_all, request_totals, take_all,
    unowned_chains, watched_ms,
};
pub use manager::{LeaseManager, Msg as LeaseManagerMsg};
pub use placement::preferred;

/// Most orchestrators.
const MAX_MEMBERS: usize = 1_000;

/// Who has something, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRow {
    /// `None`: nobody, it was given back.
    pub owner: Option<OrchestratorId>,
    /// How often it has changed hands; for people, the version of the row is what counts.
    pub term: u64,
}

/// A live orchestrator, as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRow {
    /// What operators call it.
    pub name: String,
    /// What at most one process has at a time, if anything: of two with the same the other one is
    /// dead.
    pub home: Option<[u8; 32]>,
    /// Since when, by its own clock, in milliseconds since the Unix epoch; for people.
    pub since_ms: u64,
    /// When it was last there, by its own clock, in milliseconds since the Unix epoch; for people.
    pub at_ms: u64,
    /// How often it has given something back: others look then what there is for them.
    pub moves: u64,
    /// It is stopping: it gets no more leases.
    pub leaving: bool,
    /// The chains that it can follow, by its configuration.
    pub follows: Vec<FollowedChain>,
    /// It has a key to sign webhooks with.
    pub sends_webhooks: bool,
    /// The version of its program.
    pub version: String,
    /// Tells its cluster secret from another one; `None`: it has none.
    pub secret_fingerprint: Option<[u8; 8]>,
    /// Its requests of all kinds since its start.
    pub requests: RequestCounts,
}

impl MemberRow {
    /// Whether it can do what a lease is for: processes may have different configurations.
    pub fn can_do(&self, scope: LeaseScope) -> bool {
        match scope {
            LeaseScope::Vault(_) | LeaseScope::Maintenance => true,
            LeaseScope::Chain(chain) => self.follows.contains(&chain),
            LeaseScope::Webhooks => self.sends_webhooks,
        }
    }
}

/// What a lease is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LeaseScope {
    /// A vault with all that belongs to it.
    Vault(VaultId),
    /// Work done once for all vaults: deleting old rows.
    Maintenance,
    /// The blocks of a chain are followed.
    Chain(FollowedChain),
    /// What webhooks are to be told is sent.
    Webhooks,
}

impl LeaseScope {
    /// The row of its lease.
    pub fn key(self) -> Key {
        match self {
            LeaseScope::Vault(vault) => Key::new(KeySpace::Lease, &[&[1], vault.as_bytes()]),
            LeaseScope::Maintenance => Key::new(KeySpace::Lease, &[&[2]]),
            LeaseScope::Chain(chain) => Key::new(KeySpace::Lease, &[&[3], &chain.key()]),
            LeaseScope::Webhooks => Key::new(KeySpace::Lease, &[&[4]]),
        }
    }

    /// What a row is the lease of.
    pub fn of(key: &Key) -> Option<Self> {
        match key.bytes.split_first()? {
            (1, vault) => Some(LeaseScope::Vault(VaultId::from_bytes(
                vault.try_into().ok()?,
            ))),
            (2, []) => Some(LeaseScope::Maintenance),
            (3, chain) => FollowedChain::of_key(chain.try_into().ok()?).map(LeaseScope::Chain),
            (4, []) => Some(LeaseScope::Webhooks),
            _ => None,
        }
    }

    /// Bytes that are no other's.
    fn bytes(self) -> Vec<u8> {
        self.key().bytes
    }
}

/// [`KeySpace::Member`].
pub fn member(id: OrchestratorId) -> Key {
    Key::new(KeySpace::Member, &[id.as_bytes()])
}

fn member_of(key: &Key) -> Option<OrchestratorId> {
    let id = key.bytes.as_slice().try_into().ok()?;
    Some(OrchestratorId::from_bytes(id))
}
