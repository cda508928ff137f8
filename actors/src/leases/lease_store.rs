//! Leases in the store: taken and released, many in one commit.

use std::{collections::BTreeMap, sync::Arc};

use covault_core::{
    deposit::transfer::FollowedChain,
    fault::{Class, Fault},
    ids::{OrchestratorId, VaultId},
    order::NodeId,
};

use super::{Lease, LeaseRow, LeaseScope, MAX_MEMBERS, MemberRow, member, member_of, preferred};
use crate::{
    process::counters::RequestCounts,
    services::Services,
    store::{Batch, CommitError, Key, KeySpace, Precondition, Row, Scan, Store, rows},
};

/// Leases that one commit takes or gives at most.
pub(super) const MAX_LEASES_PER_COMMIT: usize = 256;
/// Rows that one scan reads.
const PAGE: usize = 10_000;

/// Every scope with its lease, where there is one, and the version of that row: those of the vaults, and these others.
pub(super) async fn leases(
    store: &dyn Store,
    others: impl IntoIterator<Item = LeaseScope>,
) -> Result<BTreeMap<LeaseScope, Option<(LeaseRow, u64)>>, Fault> {
    let mut leases: BTreeMap<_, _> = others.into_iter().map(|scope| (scope, None)).collect();
    for (_, row) in all(store, KeySpace::VaultName).await? {
        // One that cannot be read must not stop the others.
        match rows::decode::<VaultId>(&row.value) {
            Ok(vault) => {
                leases.insert(LeaseScope::Vault(vault), None);
            }
            Err(fault) => tracing::error!(?fault, "the name of a vault cannot be read"),
        }
    }
    for (key, row) in all(store, KeySpace::Lease).await? {
        let stored = rows::decode::<LeaseRow>(&row.value);
        match (LeaseScope::of(&key), stored) {
            (Some(scope), Ok(stored)) => {
                leases.insert(scope, Some((stored, row.version)));
            }
            (scope, stored) => {
                tracing::error!(?scope, ?stored, "a lease cannot be read");
            }
        }
    }
    Ok(leases)
}

/// The leases of these scopes that there are and that can be read, with the versions of their rows.
pub(super) async fn stored(
    store: &dyn Store,
    scopes: impl Iterator<Item = LeaseScope>,
) -> Result<BTreeMap<LeaseScope, (LeaseRow, u64)>, Fault> {
    let keys: Vec<_> = scopes.map(LeaseScope::key).collect();
    let found = store.get_all(&keys).await?;
    let found = found.iter().filter_map(|(key, row)| {
        let stored = rows::decode::<LeaseRow>(&row.value).ok()?;
        Some((LeaseScope::of(key)?, (stored, row.version)))
    });
    Ok(found.collect())
}

/// What one process does that belongs to no vault.
pub(super) fn of_no_vault(services: &Services) -> Vec<LeaseScope> {
    let chains = services.chains.followed().map(LeaseScope::Chain);
    // Without a key nothing can be sent.
    let keys = services.webhooks.keys.as_ref();
    let webhooks = keys.map(|_| LeaseScope::Webhooks);
    chains
        .chain([LeaseScope::Maintenance])
        .chain(webhooks)
        .collect()
}

/// Every row of a kind.
async fn all(store: &dyn Store, space: KeySpace) -> Result<Vec<(Key, Row)>, Fault> {
    let mut rows = Vec::new();
    let mut next = Some(Scan::prefix(space, &[], PAGE));
    while let Some(scan) = next {
        let page = store.scan(&scan).await?;
        next = scan.rest(&page);
        rows.extend(page);
    }
    Ok(rows)
}

/// Takes all of these, or none: false, when one of them has changed hands.
pub(super) async fn take(
    services: &Services,
    some: &[(LeaseScope, Option<(LeaseRow, u64)>)],
) -> Result<bool, Fault> {
    let me = services.held_leases.me();
    let mut batch = Batch::new();
    let mut taken = Vec::with_capacity(some.len());
    for (scope, stored) in some {
        let (term, expect, version) = match stored {
            None => (1, Precondition::Absent, 1),
            Some((stored, version)) => (
                stored.term.saturating_add(1),
                Precondition::Version(*version),
                version.saturating_add(1),
            ),
        };
        let stored = LeaseRow {
            owner: Some(me),
            term,
        };
        batch.put(scope.key(), expect, rows::encode(&stored)?);
        taken.push(Lease::new(*scope, version));
    }
    match services.store.commit(batch).await {
        Ok(()) => {}
        Err(CommitError::Conflict(_)) => return Ok(false),
        // Whether it was taken is not known: the next look tells.
        Err(error) => return Err(error.into()),
    }
    for lease in taken {
        services.held_leases.begin(lease);
    }
    // The former owner, if it comes back, is to look.
    let of_other = |(stored, _): &(LeaseRow, u64)| stored.owner.is_some_and(|owner| owner != me);
    if some
        .iter()
        .any(|(_, stored)| stored.as_ref().is_some_and(of_other))
    {
        services.held_leases.moved();
    }
    Ok(true)
}

/// Of a store that no other process can have: everything is this one's, also what another process
/// has left behind.
pub async fn take_all(services: &Services) -> Result<(), Fault> {
    let mut leases = leases(&*services.store, of_no_vault(services)).await?;
    // Taken when it is needed.
    leases.remove(&LeaseScope::Maintenance);
    let (me, mut all) = (services.held_leases.me(), Vec::new());
    for (scope, stored) in leases {
        match stored {
            // Of a vault that is being created, or a commit whose answer was lost.
            Some((stored, version)) if stored.owner == Some(me) => {
                services.held_leases.begin(Lease::new(scope, version));
            }
            stored => all.push((scope, stored)),
        }
    }
    for some in all.chunks(MAX_LEASES_PER_COMMIT) {
        if !take(services, some).await? {
            return Err(Fault::unavailable("another process has taken a lease"));
        }
    }
    Ok(())
}

/// Releases leases under which nobody works.
pub(super) async fn release(services: &Services, held_leases: &[Arc<Lease>]) -> Result<(), Fault> {
    for some in held_leases.chunks(MAX_LEASES_PER_COMMIT) {
        if !try_release(services, some).await? {
            // Another orchestrator has one of them.
            for one in some.chunks(1) {
                try_release(services, one).await?;
            }
        }
    }
    services.held_leases.moved();
    Ok(())
}

/// False when another orchestrator has one of them; then none was released.
async fn try_release(services: &Services, some: &[Arc<Lease>]) -> Result<bool, Fault> {
    let mut batch = Batch::new();
    let keys: Vec<_> = some.iter().map(|lease| lease.scope().key()).collect();
    let found = services.store.get_all(&keys).await?;
    for lease in some {
        let key = lease.scope().key();
        let stored = found.get(&key);
        let Some(stored) = stored.filter(|row| row.version == lease.version()) else {
            return Ok(false);
        };
        let term = rows::decode::<LeaseRow>(&stored.value)?.term;
        let stored = LeaseRow {
            owner: None,
            term: term.saturating_add(1),
        };
        let expect = Precondition::Version(lease.version());
        batch.put(key, expect, rows::encode(&stored)?);
    }
    match services.store.commit(batch).await {
        Ok(()) => Ok(true),
        Err(CommitError::Conflict(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Gives everything back, and takes the row of this orchestrator away: others continue at once. To be
/// called when every actor has ended.
pub async fn release_all(services: &Services) {
    let all = services.held_leases.all();
    for lease in &all {
        services.held_leases.end(lease);
    }
    if services.store.exclusive() || !services.runs_vaults {
        return;
    }
    let gone = async {
        release(services, &all).await?;
        let mut batch = Batch::new();
        batch.delete(member(services.held_leases.me()), Precondition::Any);
        Ok::<_, Fault>(services.store.commit(batch).await?)
    };
    if let Err(fault) = gone.await {
        tracing::warn!(
            ?fault,
            "failed to release the vaults; other orchestrators take them over when the leases expire"
        );
    }
}

/// The lease of a new vault, for the commit that makes it: whose it is from the beginning.
pub async fn first_lease(services: &Services, vault: VaultId) -> Result<(LeaseRow, bool), Fault> {
    let me = services.held_leases.me();
    let mut all = vec![me];
    if let Some(eligible) = services.held_leases.eligible() {
        all.extend(eligible);
    } else if !services.store.exclusive() {
        let found = Scan::prefix(KeySpace::Member, &[], MAX_MEMBERS);
        for (key, row) in services.store.scan(&found).await? {
            let leaving = rows::decode::<MemberRow>(&row.value).is_ok_and(|member| member.leaving);
            all.extend(member_of(&key).filter(|_| !leaving));
        }
    }
    let mine = preferred(LeaseScope::Vault(vault), all) == Some(me);
    let stored = LeaseRow {
        owner: mine.then_some(me),
        term: 1,
    };
    Ok((stored, mine))
}

/// When the process that does what is done once for all was last there, and so watches the nodes; `None`: there is none.
///
/// # Errors
/// When the store cannot be read.
pub async fn watched_ms(services: &Services) -> Result<Option<u64>, Fault> {
    if services.store.exclusive() {
        return Ok(Some(services.now_ms()));
    }
    let lease = services
        .load::<LeaseRow>(&LeaseScope::Maintenance.key())
        .await?;
    let Some(watcher) = lease.and_then(|(lease, _)| lease.owner) else {
        return Ok(None);
    };
    let member = services.load::<MemberRow>(&member(watcher)).await?;
    Ok(member.map(|(member, _)| member.at_ms))
}

/// The processes with vaults that are alive, as far as they have an identity: their names, and what nodes are to list.
///
/// # Errors
/// When the store cannot be read.
pub async fn live_homes(
    services: &Services,
) -> Result<BTreeMap<OrchestratorId, (String, NodeId)>, Fault> {
    let me = services.held_leases.me();
    let mut homes = BTreeMap::new();
    if let (true, Some(home)) = (services.runs_vaults, services.home) {
        homes.insert(me, (services.name.clone(), NodeId(home)));
    }
    for (id, member) in live_members(services).await? {
        if let Some(home) = member.home {
            homes.insert(id, (member.name, NodeId(home)));
        }
    }
    Ok(homes)
}

/// Requests of this process and of each one with vaults that is alive, since its start: of others as they were at their last
/// sign of life.
///
/// # Errors
/// When the store cannot be read.
pub async fn request_totals(
    services: &Services,
) -> Result<BTreeMap<OrchestratorId, RequestCounts>, Fault> {
    let members = live_members(services).await?.into_iter();
    let mut totals: BTreeMap<_, _> = members.map(|(id, it)| (id, it.requests)).collect();
    // Its own row is older.
    totals.insert(services.held_leases.me(), services.counters.all_requests());
    Ok(totals)
}

/// The processes with vaults that are alive; none where one process has the store for itself.
async fn live_members(services: &Services) -> Result<Vec<(OrchestratorId, MemberRow)>, Fault> {
    let eligible = services.held_leases.eligible().unwrap_or_default();
    let all = Scan::prefix(KeySpace::Member, &[], MAX_MEMBERS);
    let rows = services.store.scan(&all).await?.into_iter();
    let live = rows.filter_map(|(key, row)| {
        let id = member_of(&key).filter(|id| eligible.contains(id))?;
        Some((id, rows::decode(&row.value).ok()?))
    });
    Ok(live.collect())
}

/// The chains that this process or another one has in its configuration, and whether none of them follows it now.
///
/// # Errors
/// When the store cannot be read.
pub async fn unowned_chains(services: &Services) -> Result<BTreeMap<FollowedChain, bool>, Fault> {
    let me = services.held_leases.me();
    let mut followers: BTreeMap<FollowedChain, Vec<OrchestratorId>> = BTreeMap::new();
    for chain in services.chains.followed() {
        let able = followers.entry(chain).or_default();
        able.extend(services.runs_vaults.then_some(me));
    }
    for (id, member) in live_members(services).await? {
        for chain in member.follows {
            followers.entry(chain).or_default().push(id);
        }
    }
    let mut unowned = BTreeMap::new();
    for (chain, able) in followers {
        let key = LeaseScope::Chain(chain).key();
        let stored = services.load::<LeaseRow>(&key).await?;
        let owner = stored.and_then(|(stored, _)| stored.owner);
        unowned.insert(chain, !owner.is_some_and(|owner| able.contains(&owner)));
    }
    Ok(unowned)
}

/// What is done once for all vaults, where that is here: the services to do it with.
///
/// # Errors
/// When the store cannot be read or written.
pub async fn maintenance_lease(services: &Services) -> Result<Option<Services>, Fault> {
    if let Some(lease) = services.held_leases.get(LeaseScope::Maintenance) {
        return Ok(Some(services.with_lease(lease)));
    }
    if !services.store.exclusive() {
        return Ok(None);
    }
    let stored = services
        .load::<LeaseRow>(&LeaseScope::Maintenance.key())
        .await?;
    if !take(services, &[(LeaseScope::Maintenance, stored)]).await? {
        return Err(Fault::new(Class::Conflict, "another process has taken it"));
    }
    let lease = services.held_leases.get(LeaseScope::Maintenance);
    Ok(lease.map(|lease| services.with_lease(lease)))
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;
    use crate::store::memory::MemoryStore;

    #[tokio::test]
    async fn leases__should_be_those_of_all_vaults() {
        const VAULTS: u32 = 100_001;
        let store = MemoryStore::new();
        let mut batch = Batch::new();
        for number in 0..VAULTS {
            let [a, b, c, d] = number.to_be_bytes();
            let id = VaultId::from_bytes([a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            let name = rows::vault_name(&format!("vault {number}"));
            batch.put(name, Precondition::Absent, rows::encode(&id).unwrap());
        }
        store.commit(batch).await.unwrap();
        let all = leases(&store, [LeaseScope::Maintenance]).await.unwrap();
        // And that of what is done once for all.
        assert_eq!(all.len(), 100_002);
    }
}
