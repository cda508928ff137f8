//! Sweeps deposit wallets: checks those that received something final and whose vault is here, and makes the
//! next request of each. What a sweep is: `core/src/deposit/sweep.rs`.
//!
//! The row of a sweep changes in the first commit of the request of its step, so that no crash, and no other process,
//! can make a second one. What has arrived is read from the transfers that this service follows itself.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use covault_core::{
    deposit::{
        SweepRoute, SweepRules,
        sweep::{SweepJob, SweepState},
        transfer::{Account, FollowedChain},
    },
    fault::Fault,
    ids::TokenId,
};
use futures::{FutureExt as _, StreamExt as _, stream};

use super::{
    route,
    sweep_counts::SweepCounts,
    sweep_step::{DueAsset, GasWallets, LookAnswers, SweptWallet},
};
use crate::{
    backup::restore,
    chain_rpc::FollowPolicy,
    leases::LeaseScope,
    process::tasks::contained,
    services::{Services, skip_unreadable},
    store::{
        Key, KeySpace, Scan,
        deposit_rows::{self, CursorRow},
        rows,
        sweep_rows::{self, SweepDueRow},
    },
    vaults::vault_actors::VaultActors,
};

/// Rows that one scan reads.
const PAGE: usize = 1_000;
/// Wallets that are looked at at the same time: each asks the nodes.
const AT_ONCE: usize = 16;
/// Balances that one question asks for.
const BALANCES: usize = 500;
/// The longest pause between two looks.
const PAUSE_MS: u64 = 1_000;
/// How often the log warns of sweeps that wait for too long, in milliseconds.
const WARN_EVERY_MS: u64 = 60 * 60 * 1_000;

/// Those of all chains whose deposits can be swept. Each works by itself: nodes that are silent hold up no other chain.
pub fn of_all_chains(vaults: &VaultActors) -> Vec<ChainSweeper> {
    let chains = vaults.services.chains.followed();
    let sweepers = chains.map(|chain| ChainSweeper {
        vaults: vaults.clone(),
        chain,
        cursor_version: 0,
        warned_at_ms: None,
    });
    sweepers.collect()
}

/// Sweeps the deposit wallets of one chain.
pub struct ChainSweeper {
    vaults: VaultActors,
    chain: FollowedChain,
    /// The version of the row of the newest block that was followed, at the last look: what is on its way arrives with
    /// another one.
    cursor_version: u64,
    /// When the log last warned, in milliseconds of the monotonic clock.
    warned_at_ms: Option<u64>,
}

/// How the deposits of a token are swept.
#[derive(Clone)]
enum FoundRules {
    Known(Box<(SweepRoute, SweepRules)>),
    /// They are not.
    None,
    Unreadable,
}

/// What there is to look at.
struct DueWallets {
    /// With their sweeps that are not over.
    wallets: Vec<(SweptWallet, Option<SweepJob>)>,
    /// How many there are of which the rules cannot be read.
    unread: usize,
    /// Coins and tokens of which nothing is sent until a person says so.
    held: u64,
}

/// A wallet after a look at it.
struct CheckedWallet {
    wallet: SweptWallet,
    /// Its sweep, unless that is over.
    job: Option<SweepJob>,
    outcome: Result<(), Fault>,
}

impl CheckedWallet {
    /// Its sweep, unless it stands still because an operator has switched sweeping off, or is held, which is counted as that.
    fn waiting(&self) -> Option<&SweepJob> {
        let is_sent = |job: &SweepJob| {
            matches!(
                job.state,
                SweepState::Funding { .. } | SweepState::Moving { .. }
            )
        };
        let job = self.job.as_ref();
        let job = job.filter(|job| !(job.may_be_replaced() && job.is_held(job.asset)));
        job.filter(|job| self.wallet.rules.enabled || is_sent(job))
    }
}

impl ChainSweeper {
    /// Sweeps until the process ends.
    pub async fn run(mut self) {
        let services = Arc::clone(&self.vaults.services);
        let policy = services.chains.follow(self.chain);
        let poll_ms = policy.map_or(FollowPolicy::default().poll_ms, |(policy, _)| {
            policy.poll_ms
        });
        let pause = Duration::from_millis(poll_ms.min(PAUSE_MS));
        let mut said = None;
        loop {
            let reason = match contained(self.look()).await {
                Ok(()) => None,
                Err(fault) => Some(format!("{fault:?}")),
            };
            if reason.is_some() && said != reason {
                tracing::warn!(chain = %self.chain, reason, "failed to sweep deposit wallets; retrying");
            }
            said = reason;
            services.listeners.sweepers.wait(self.chain, pause).await;
        }
    }

    /// Looks once at all wallets of which something may be swept.
    async fn look(&mut self) -> Result<(), Fault> {
        let services = Arc::clone(&self.vaults.services);
        // Most services sweep nothing. Rules stay when they are switched off.
        let any_rules = Scan::prefix(KeySpace::SweepRules, &[], 1);
        if services.store.scan(&any_rules).await?.is_empty() {
            let mut counts = services.counters.sweeps.lock();
            counts.insert(self.chain, SweepCounts::default());
            return Ok(());
        }
        // What was sent since the backup is not known yet, nor whether its targets still hold.
        if restore::waits_for_operator(&services).await? {
            return Ok(());
        }
        let cursor = deposit_rows::cursor(self.chain);
        let cursor = services.load::<CursorRow>(&cursor).await?;
        let cursor_version = cursor.as_ref().map_or(0, |(_, version)| *version);
        let has_new_blocks = cursor_version != self.cursor_version;
        let found = self.wallets().await?;
        let (wallets, unread, held) = (found.wallets, found.unread, found.held);
        let now_ms = services.now_ms();
        if let Some((cursor, _)) = cursor {
            let due = wallets.iter().filter(|(wallet, job)| {
                job.as_ref()
                    .is_none_or(|job| may_go_on(wallet, job, has_new_blocks, now_ms))
            });
            let due: Vec<_> = due.collect();
            self.ask_together(&due, cursor.finalized.number).await;
        }
        let looked = stream::iter(wallets)
            .map(|(wallet, job)| look_at(wallet, job, has_new_blocks, now_ms).boxed())
            .buffer_unordered(AT_ONCE);
        let looked: Vec<_> = looked.collect().await;
        let failed = looked.iter().filter(|looked| looked.outcome.is_err());
        let failed = failed.count().saturating_add(unread);
        let failed = u64::try_from(failed).unwrap_or(u64::MAX);
        let counts = SweepCounts::of(looked.iter().filter_map(CheckedWallet::waiting));
        let counts = SweepCounts {
            failed,
            held,
            ..counts
        };
        services.counters.sweeps.lock().insert(self.chain, counts);
        self.warn(&looked);
        let outcomes = looked.into_iter().map(|looked| looked.outcome);
        // The first is told for all: nodes that do not answer, or a store that is away, are the same for each.
        outcomes.into_iter().collect::<Result<(), Fault>>()?;
        self.cursor_version = cursor_version;
        Ok(())
    }

    /// The wallets whose vault is here and whose deposits have rules, but for those that wait for a person.
    async fn wallets(&self) -> Result<DueWallets, Fault> {
        let (services, chain) = (&self.vaults.services, self.chain);
        let mut configured: HashMap<TokenId, FoundRules> = HashMap::new();
        let mut unread = 0_usize;
        let gas_wallets: Arc<GasWallets> = Arc::default();
        let said: Arc<LookAnswers> = Arc::default();
        let mut wallets = Vec::new();
        for ((account, token), assets) in load_due(services, chain).await? {
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
                    // Those of one token must not hold up the sweeps of the others.
                    let rules = services.load::<SweepRules>(&key).await;
                    let rules = skip_unreadable(rules, format_args!("sweep rules of {token}"))?;
                    let route = route(services, token, chain.network()).await;
                    let route = skip_unreadable(route, format_args!("sweep route of {token}"))?;
                    let found = match (rules, route) {
                        (Some(Some((rules, _))), Some(route)) => {
                            FoundRules::Known(Box::new((route, rules)))
                        }
                        (Some(None), _) => FoundRules::None,
                        (None, _) | (_, None) => FoundRules::Unreadable,
                    };
                    configured.insert(token, found.clone());
                    found
                }
            };
            let (route, rules) = match found {
                FoundRules::Known(found) => *found,
                FoundRules::None => continue,
                FoundRules::Unreadable => {
                    unread = unread.saturating_add(1);
                    continue;
                }
            };
            wallets.push(SweptWallet {
                vaults: self.vaults.clone(),
                services: services.with_lease(lease),
                chain,
                account,
                wallet,
                vault,
                token,
                route,
                rules,
                due: assets,
                gas_wallets: Arc::clone(&gas_wallets),
                said: Arc::clone(&said),
            });
        }
        let mut jobs = Vec::new();
        for some in wallets.chunks(PAGE) {
            for job in services.load_all::<SweepJob>(&keys(some)).await? {
                // One that cannot be read is told where it is looked at.
                jobs.push(job.ok().flatten());
            }
        }
        let (mut found, mut held) = (Vec::new(), 0_usize);
        for (wallet, job) in wallets.into_iter().zip(jobs) {
            if let Some(job) = &job {
                held = held.saturating_add(wallet.held(job));
                if wallet.is_held(job) {
                    continue;
                }
            }
            let job = job.filter(|job| !job.is_over());
            if let (Some(gas_wallet), Some(job)) = (wallet.rules.gas_wallet, &job) {
                gas_wallets.promised(gas_wallet, job);
            }
            found.push((wallet, job));
        }
        Ok(DueWallets {
            wallets: found,
            unread,
            held: u64::try_from(held).unwrap_or(u64::MAX),
        })
    }

    /// Asks the nodes at once for what all of these have, where each would ask for itself. Whatever is not answered each asks
    /// again, and tells the error.
    async fn ask_together(&self, due: &[&(SweptWallet, Option<SweepJob>)], block: u64) {
        let services = &self.vaults.services;
        let Some((_, client)) = services.chains.follow(self.chain) else {
            return;
        };
        let Some(source) = client.blocks().filter(|source| source.has_balances()) else {
            return;
        };
        let of_each = due.iter().map(|(wallet, _)| {
            let assets = wallet.assets();
            assets.map(move |asset| (wallet, (wallet.account, asset)))
        });
        let all: Vec<_> = of_each.flatten().collect();
        // One alone is as well asked for in its step.
        for some in all.chunks(BALANCES).filter(|some| some.len() > 1) {
            let asked: Vec<_> = some.iter().map(|(_, held)| *held).collect();
            let Ok(answer) = source.balances(block, &asked).await else {
                return;
            };
            for ((wallet, held), balance) in some.iter().zip(answer.balances) {
                if let Some(balance) = balance {
                    wallet.said.learn_after(block, *held, balance);
                }
            }
        }
        let new = due.iter().filter(|(_, job)| {
            // What was sent for the others may come in between.
            job.as_ref().is_none_or(SweepJob::is_untouched)
        });
        // Coin pays for tokens.
        let of_each = new.map(|(wallet, _)| {
            let held: BTreeSet<_> = wallet.assets().flat_map(|asset| [asset, None]).collect();
            let held = held.into_iter();
            held.map(move |asset| (wallet, (wallet.account, asset)))
        });
        let all: Vec<_> = of_each.flatten().collect();
        for some in all.chunks(BALANCES).filter(|some| some.len() > 1) {
            let asked: Vec<_> = some.iter().map(|(_, held)| *held).collect();
            // Before the question: it is at least as new.
            let at_ms = services.monotonic.elapsed_ms();
            let Ok(balances) = source.balances_now(&asked).await else {
                return;
            };
            for ((wallet, held), now) in some.iter().zip(balances) {
                if let Some(now) = now {
                    wallet.said.learn_newest(*held, now.balance, at_ms);
                }
            }
        }
    }

    /// Warns of sweeps that wait for too long: once for all of the chain, as there may be thousands.
    fn warn(&mut self, looked: &[CheckedWallet]) {
        let services = &self.vaults.services;
        let (now_ms, chain) = (services.now_ms(), self.chain);
        let waiting = looked.iter().filter_map(|looked| {
            let since_ms = looked.waiting()?.waits_since_ms()?;
            let waited_s = now_ms.saturating_sub(since_ms) / 1_000;
            (waited_s >= looked.wallet.rules.max_wait_s).then_some((waited_s, looked))
        });
        let waiting: Vec<_> = waiting.collect();
        let Some((waited_s, longest)) = waiting.iter().max_by_key(|(waited_s, _)| waited_s) else {
            self.warned_at_ms = None;
            return;
        };
        let elapsed_ms = services.monotonic.elapsed_ms();
        let is_due = |at_ms: u64| elapsed_ms.saturating_sub(at_ms) >= WARN_EVERY_MS;
        if !self.warned_at_ms.is_none_or(is_due) {
            return;
        }
        self.warned_at_ms = Some(elapsed_ms);
        let (address, sweeps) = (longest.wallet.address(), waiting.len());
        let reason = match longest.job.as_ref().map(|job| &job.state) {
            Some(SweepState::Paused { reason, .. }) => reason.to_string(),
            Some(SweepState::Due | SweepState::Funded) => {
                "nothing was sent for it: it has no target, or the chain's nodes do not answer"
                    .to_owned()
            }
            _ => "its request is not finished".to_owned(),
        };
        tracing::warn!(%chain, sweeps, address, waited_s, reason, "sweeps have waited longer than maxWaitSeconds; \
            the longest wait:");
    }
}

fn keys(wallets: &[SweptWallet]) -> Vec<Key> {
    wallets.iter().map(|wallet| wallet.key()).collect()
}

async fn look_at(
    wallet: SweptWallet,
    mut job: Option<SweepJob>,
    has_new_blocks: bool,
    now_ms: u64,
) -> CheckedWallet {
    let outcome = match &job {
        Some(job) if !may_go_on(&wallet, job, has_new_blocks, now_ms) => Ok(()),
        _ => contained(wallet.advance(&mut job)).await,
    };
    if let Err(fault) = &outcome {
        let (chain, address) = (wallet.chain, wallet.address());
        tracing::debug!(%chain, address, ?fault, "failed to sweep a deposit wallet");
    }
    CheckedWallet {
        wallet,
        job,
        outcome,
    }
}

/// Whether there may be something to do for a sweep that is not over.
fn may_go_on(wallet: &SweptWallet, job: &SweepJob, has_new_blocks: bool, now_ms: u64) -> bool {
    match job.state {
        // A person does not wait for the end of a pause.
        _ if wallet.retried(job).is_some() => true,
        SweepState::Paused { retry_at_ms, .. } => retry_at_ms <= now_ms,
        SweepState::Funding { .. } | SweepState::Moving { .. } => has_new_blocks,
        SweepState::Due | SweepState::Funded | SweepState::Swept { .. } | SweepState::Gone => true,
    }
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
