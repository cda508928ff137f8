//! How vaults change hands: leases are taken and given back, many in one commit.

use std::{collections::BTreeMap, sync::Arc};

use covault_core::{
    fault::{Class, Fault},
    ids::VaultId,
};

use super::{Lease, MAX_MEMBERS, Member, Tenure, Ward, best, member, member_of};
use crate::{
    context::Context,
    rows,
    store::{Batch, CommitError, Expect, Scan, Space},
};

/// Leases that one commit takes or gives at most.
pub(super) const AT_ONCE: usize = 64;
/// Most vaults.
const MAX_VAULTS: usize = 100_000;

/// Every ward with its lease, where there is one, and the version of that row.
pub(super) async fn leases(
    context: &Context,
) -> Result<BTreeMap<Ward, Option<(Lease, u64)>>, Fault> {
    let mut leases = BTreeMap::from([(Ward::House, None)]);
    let all = Scan::prefix(Space::VaultName, &[], MAX_VAULTS);
    for (_, row) in context.store.scan(&all).await? {
        // One that cannot be read must not stop the others.
        match rows::decode::<VaultId>(&row.value) {
            Ok(vault) => {
                leases.insert(Ward::Vault(vault), None);
            }
            Err(fault) => tracing::error!(?fault, "the name of a vault cannot be read"),
        }
    }
    let all = Scan::prefix(Space::Lease, &[], MAX_VAULTS);
    for (key, row) in context.store.scan(&all).await? {
        let lease = rows::decode::<Lease>(&row.value);
        match (Ward::of(&key), lease) {
            (Some(ward), Ok(lease)) => {
                leases.insert(ward, Some((lease, row.version)));
            }
            (ward, lease) => {
                tracing::error!(?ward, ?lease, "a lease cannot be read");
            }
        }
    }
    Ok(leases)
}

/// Takes all of these, or none: false, when one of them has changed hands.
pub(super) async fn take(
    context: &Context,
    some: &[(Ward, Option<(Lease, u64)>)],
) -> Result<bool, Fault> {
    let me = context.tenures.me();
    let mut batch = Batch::new();
    let mut taken = Vec::with_capacity(some.len());
    for (ward, lease) in some {
        let (term, expect, version) = match lease {
            None => (1, Expect::Absent, 1),
            Some((lease, version)) => (
                lease.term.saturating_add(1),
                Expect::Version(*version),
                version.saturating_add(1),
            ),
        };
        let lease = Lease {
            owner: Some(me),
            term,
        };
        batch.put(ward.key(), expect, rows::encode(&lease)?);
        taken.push(Tenure::new(*ward, version));
    }
    match context.store.commit(batch).await {
        Ok(()) => {}
        Err(CommitError::Conflict(_)) => return Ok(false),
        // Whether it was taken is not known: the next look tells.
        Err(error) => return Err(error.into()),
    }
    for tenure in taken {
        context.tenures.begin(tenure);
    }
    // Whoever had it, and comes back, is to look.
    let of_other = |(lease, _): &(Lease, u64)| lease.owner.is_some_and(|owner| owner != me);
    if some
        .iter()
        .any(|(_, lease)| lease.as_ref().is_some_and(of_other))
    {
        context.tenures.moved();
    }
    Ok(true)
}

/// Of a store that no other process can have: everything is this one's, also what another process
/// has left behind.
pub async fn take_all(context: &Context) -> Result<(), Fault> {
    let mut leases = leases(context).await?;
    // Taken when it is needed.
    leases.remove(&Ward::House);
    let (me, mut all) = (context.tenures.me(), Vec::new());
    for (ward, lease) in leases {
        match lease {
            // Of a vault that is being made just now, or a commit whose answer was lost.
            Some((lease, version)) if lease.owner == Some(me) => {
                context.tenures.begin(Tenure::new(ward, version));
            }
            lease => all.push((ward, lease)),
        }
    }
    for some in all.chunks(AT_ONCE) {
        if !take(context, some).await? {
            return Err(Fault::unavailable("another process has taken a lease"));
        }
    }
    Ok(())
}

/// Gives back what nobody works under any more.
pub(super) async fn free(context: &Context, tenures: &[Arc<Tenure>]) -> Result<(), Fault> {
    for some in tenures.chunks(AT_ONCE) {
        if !free_all(context, some).await? {
            // Somebody else has one of them by now.
            for one in some.chunks(1) {
                free_all(context, one).await?;
            }
        }
    }
    context.tenures.moved();
    Ok(())
}

/// False when somebody else has one of them; then none was given back.
async fn free_all(context: &Context, some: &[Arc<Tenure>]) -> Result<bool, Fault> {
    let mut batch = Batch::new();
    for tenure in some {
        let key = tenure.ward().key();
        let lease = context.load::<Lease>(&key).await?;
        let Some((lease, _)) = lease.filter(|(_, version)| *version == tenure.version()) else {
            return Ok(false);
        };
        let lease = Lease {
            owner: None,
            term: lease.term.saturating_add(1),
        };
        let expect = Expect::Version(tenure.version());
        batch.put(key, expect, rows::encode(&lease)?);
    }
    match context.store.commit(batch).await {
        Ok(()) => Ok(true),
        Err(CommitError::Conflict(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Gives everything back, and takes the row of this orchestrator away: others go on at once. To be
/// called when every actor has ended.
pub async fn give_back(context: &Context) {
    let all = context.tenures.all();
    for tenure in &all {
        context.tenures.end(tenure);
    }
    if context.store.exclusive() || !context.runs_vaults {
        return;
    }
    let gone = async {
        free(context, &all).await?;
        let mut batch = Batch::new();
        batch.delete(member(context.tenures.me()), Expect::Any);
        Ok::<_, Fault>(context.store.commit(batch).await?)
    };
    if let Err(fault) = gone.await {
        tracing::warn!(
            ?fault,
            "the vaults could not be given back; others take them over"
        );
    }
}

/// The lease of a new vault, for the commit that makes it: whose it is from the beginning.
pub async fn first_lease(context: &Context, vault: VaultId) -> Result<(Lease, bool), Fault> {
    let me = context.tenures.me();
    let mut all = vec![me];
    if let Some(able) = context.tenures.able() {
        all.extend(able);
    } else if !context.store.exclusive() {
        let found = Scan::prefix(Space::Member, &[], MAX_MEMBERS);
        for (key, row) in context.store.scan(&found).await? {
            let leaving = rows::decode::<Member>(&row.value).is_ok_and(|member| member.leaving);
            all.extend(member_of(&key).filter(|_| !leaving));
        }
    }
    let mine = best(Ward::Vault(vault), all) == Some(me);
    let lease = Lease {
        owner: mine.then_some(me),
        term: 1,
    };
    Ok((lease, mine))
}

/// What is done once for all vaults, where that is here: the context to do it in.
///
/// # Errors
/// When the store cannot be read or written.
pub async fn house(context: &Context) -> Result<Option<Context>, Fault> {
    if let Some(tenure) = context.tenures.get(Ward::House) {
        return Ok(Some(context.under(tenure)));
    }
    if !context.store.exclusive() {
        return Ok(None);
    }
    let lease = context.load::<Lease>(&Ward::House.key()).await?;
    if !take(context, &[(Ward::House, lease)]).await? {
        return Err(Fault::new(Class::Conflict, "another process has taken it"));
    }
    let tenure = context.tenures.get(Ward::House);
    Ok(tenure.map(|tenure| context.under(tenure)))
}
