//! Sweeps deposit wallets: looks at those that something final was paid to, whose vault is here, and makes the next
//! request of each. What a sweep is: `core/src/deposit/sweep.rs`.
//!
//! The row of a sweep changes in the first commit of the request of its step, so that no crash, and no other process,
//! can make a second one. What has arrived is read from the transfers that this service follows itself.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use covault_core::{
    deposit::{
        DepositNetwork, SweepRoute, SweepRules,
        transfer::{Account, FollowedChain},
    },
    fault::Fault,
    ids::TokenId,
};
use futures::{StreamExt as _, stream};

use super::{
    route,
    sweep_counts::SweepCounts,
    sweep_step::{DueAsset, SweptWallet},
};
use crate::{
    leases::LeaseScope,
    services::{Services, skip_unreadable},
    store::{
        KeySpace, Scan, rows,
        sweep_rows::{self, SweepDueRow},
    },
    tasks::contained,
    vaults::vault_actors::VaultActors,
};

/// Rows that one scan reads.
const PAGE: usize = 1_000;
/// Wallets that are looked at at the same time: each asks the nodes.
const AT_ONCE: usize = 8;
/// The pause between two looks, where no chain is polled more often.
const PAUSE_MS: u64 = 1_000;

/// Sweeps until the process ends.
pub async fn run(vaults: VaultActors) {
    let services = Arc::clone(&vaults.services);
    let chains: Vec<_> = services
        .chains
        .followed()
        .filter(|chain| chain.network() == DepositNetwork::Evm)
        .collect();
    if chains.is_empty() {
        return;
    }
    let polls = chains
        .iter()
        .filter_map(|chain| services.chains.follow(*chain));
    let pause_ms = polls.map(|(policy, _)| policy.poll_ms).min();
    let pause = Duration::from_millis(pause_ms.unwrap_or(PAUSE_MS).min(PAUSE_MS));
    let mut said = HashMap::new();
    loop {
        for chain in &chains {
            let reason = match contained(look(&vaults, *chain)).await {
                Ok(()) => None,
                Err(fault) => Some(format!("{fault:?}")),
            };
            if reason.is_some() && said.get(chain) != Some(&reason) {
                tracing::warn!(%chain, reason, "deposit wallets cannot be swept now; trying again");
            }
            said.insert(*chain, reason);
        }
        tokio::time::sleep(pause).await;
    }
}

/// Looks once at all wallets of a chain of which something may be swept.
async fn look(vaults: &VaultActors, chain: FollowedChain) -> Result<(), Fault> {
    let services = &vaults.services;
    // Most services sweep nothing, and have a row for each wallet that was paid. Rules stay when they are switched off.
    let any_rules = Scan::prefix(KeySpace::SweepRules, &[], 1);
    if services.store.scan(&any_rules).await?.is_empty() {
        let none = SweepCounts::default();
        services.counters.sweeps.lock().insert(chain, none);
        return Ok(());
    }
    let due = load_due(services, chain).await?;
    let mut configured: HashMap<TokenId, Option<(SweepRoute, SweepRules)>> = HashMap::new();
    let mut wallets = Vec::new();
    for ((account, token), assets) in due {
        let Some((wallet, vault)) = assets.first().and_then(|due| due.owner.wallet) else {
            continue;
        };
        let Some(lease) = services.held_leases.get(LeaseScope::Vault(vault)) else {
            continue;
        };
        let found = match configured.get(&token) {
            Some(known) => known.clone(),
            None => {
                let key = sweep_rows::rules(token, chain);
                let rules = services.load::<SweepRules>(&key).await?;
                let route = route(services, token, chain.network()).await?;
                let found = rules.map(|(rules, _)| (route, rules));
                configured.insert(token, found.clone());
                found
            }
        };
        let Some((route, rules)) = found else {
            continue;
        };
        wallets.push(SweptWallet {
            vaults: vaults.clone(),
            services: services.with_lease(lease),
            chain,
            account,
            wallet,
            vault,
            token,
            route,
            rules,
            due: assets,
        });
    }
    let swept = stream::iter(wallets).map(|wallet| async move {
        let done = contained(wallet.advance()).await;
        done.map_err(|fault| {
            let address = wallet.account.text(chain.network());
            tracing::debug!(%chain, address, ?fault, "a deposit wallet cannot be swept now");
            fault
        })
    });
    let swept: Vec<_> = swept.buffer_unordered(AT_ONCE).collect().await;
    let jobs = swept.iter().filter_map(|done| done.as_ref().ok()?.as_ref());
    let counts = SweepCounts::of(jobs);
    services.counters.sweeps.lock().insert(chain, counts);
    // The first is told for all: nodes that do not answer, or a store that is away, are the same for each.
    swept.into_iter().try_for_each(|done| done.map(|_| ()))
}

/// What may be swept on a chain, by wallet.
async fn load_due(
    services: &Services,
    chain: FollowedChain,
) -> Result<BTreeMap<(Account, TokenId), Vec<DueAsset>>, Fault> {
    let all = sweep_rows::due_of(chain);
    let mut due: BTreeMap<_, Vec<DueAsset>> = BTreeMap::new();
    let mut next = Some(Scan::prefix(all.space, &all.bytes, PAGE));
    while let Some(scan) = next {
        let page = services.store.scan(&scan).await?;
        for (key, row) in &page {
            let Some((account, asset)) = sweep_rows::split_due(key) else {
                continue;
            };
            let found = rows::decode::<SweepDueRow>(&row.value);
            let Some(SweepDueRow { owner }) = skip_unreadable(found, "a wallet to be swept")?
            else {
                continue;
            };
            due.entry((account, owner.token))
                .or_default()
                .push(DueAsset {
                    asset,
                    version: row.version,
                    owner,
                });
        }
        next = scan.rest(&page);
    }
    // Tokens first: the coin may pay for them.
    for assets in due.values_mut() {
        assets.sort_by_key(|due| due.asset.is_none());
    }
    Ok(due)
}
