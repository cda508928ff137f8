//! Follows the transactions that nodes accepted until they are final, or can never be mined.
//!
//! A request is over when a node has its transaction; its outbox row is not. That row goes in the commit
//! that stores what became of the transaction for good, so a restart loses none. One pump per chain asks for
//! all transactions of all vaults that run here, many at once, less often the longer nothing happens
//! (docs/decisions/0031-transactions-are-followed.md).
//!
//! It also asks for transactions of which nobody knows whether a node took them, and alone decides when one of
//! them never comes (docs/decisions/0030-doubt-about-a-broadcast.md).

mod entry;
mod resending;
mod unsigned;
mod waiting;

use std::{
    collections::{BTreeMap, HashMap},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use covault_core::{
    audit::AuditChain,
    fault::Fault,
    ids::{RequestId, VaultId},
    request::TransactionState,
};
use futures::{FutureExt as _, StreamExt as _, stream};
use tokio::{
    sync::mpsc::{self, UnboundedReceiver},
    task::JoinSet,
    time::Instant,
};

use self::{
    entry::{FollowedTransaction, ReplacementCheck, words},
    unsigned::ReplacementChecks,
};
use super::{rebroadcast::RebroadcastCache, replacing, reservations};
use crate::{
    audit::{AuditActor, AuditNote},
    chain_rpc::{self, ChainClient, ChainError, ChainKey, TrackedTransaction, TransactionSighting},
    leases::LeaseScope,
    process::counters::OpenTransactions,
    requests::{
        account::ChainAccount,
        tracking::{TrackedRequest, Verdict},
    },
    services::Services,
    store::{
        Batch, CommitError, Precondition,
        rows::{self, TransactionRow},
    },
};

/// Rows that are read at once.
const MAX_PARALLEL_READS: usize = 16;
/// Transactions that one round of questions is about.
const ROUND: usize = 256;
/// So many first pauses must a block be gone before that counts: nodes behind one address are not at the same
/// block.
const REORGANISED_PAUSES: u32 = 10;

/// Follows what comes, until the process ends.
pub async fn run(services: Arc<Services>, mut arriving: UnboundedReceiver<TrackedRequest>) {
    let mut pumps = HashMap::new();
    let mut running = JoinSet::new();
    while let Some(tracked) = arriving.recv().await {
        let account = &tracked.account;
        let chain = ChainKey::of(account.network, account.chain_id);
        let Some(client) = services.chains.get(account.network, account.chain_id) else {
            // The nodes are gone from the configuration. Its row waits for a start with them.
            continue;
        };
        let pump = pumps.entry(chain).or_insert_with(|| {
            let (sender, receiver) = mpsc::unbounded_channel();
            let pump = ChainTracker {
                services: Arc::clone(&services),
                chain,
                client: Arc::clone(client),
                arrived: Vec::new(),
                open: HashMap::new(),
                cache: RebroadcastCache::default(),
                looks: ReplacementChecks::default(),
            };
            running.spawn(pump.run(receiver));
            sender
        });
        let _ = pump.send(tracked);
    }
}

async fn load(
    services: &Services,
    request: RequestId,
) -> Result<Option<(TransactionRow, u64)>, Fault> {
    services.load(&rows::transaction(request)).await
}

/// Follows the transactions of one chain.
struct ChainTracker {
    services: Arc<Services>,
    chain: ChainKey,
    client: Arc<dyn ChainClient>,
    /// What is not among the open ones yet.
    arrived: Vec<TrackedRequest>,
    open: HashMap<RequestId, FollowedTransaction>,
    cache: RebroadcastCache,
    looks: ReplacementChecks,
}

impl ChainTracker {
    /// Follows what comes, until the process ends. After a panic, which is a bug, it continues with all that it had.
    async fn run(mut self, mut arriving: UnboundedReceiver<TrackedRequest>) {
        for panics in 0.. {
            let following = AssertUnwindSafe(self.follow(&mut arriving)).catch_unwind();
            if following.await.is_ok() {
                return;
            }
            tracing::error!(chain = %self.chain, "tracking transactions panicked and continues; this is a bug");
            tokio::time::sleep(self.services.backoff(panics)).await;
        }
    }

    async fn follow(&mut self, arriving: &mut UnboundedReceiver<TrackedRequest>) {
        loop {
            if !self.arrived.is_empty() {
                self.admit().await;
            }
            self.count();
            let next = self.open.values().map(|entry| entry.due).min();
            let rest = async {
                match next {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                count = arriving.recv_many(&mut self.arrived, ROUND) => {
                    if count == 0 {
                        return;
                    }
                }
                // What was sent is older than all that waits at the nodes, and a round is a few calls.
                () = rest => chain_rpc::accepted_at(0, self.round()).await,
                Some(looked) = self.looks.running.join_next() => self.looked(looked).await,
            }
        }
    }

    fn first_pause(&self) -> Duration {
        Duration::from_millis(self.services.settings.tracking_first_ms)
    }

    /// Begins to follow what has arrived.
    async fn admit(&mut self) {
        let services = &self.services;
        let known = stream::iter(self.arrived.clone()).map(|tracked| async move {
            let known = if tracked.resumed {
                load(services, tracked.request).await
            } else {
                Ok(None)
            };
            (tracked, known)
        });
        let known: Vec<_> = known.buffered(MAX_PARALLEL_READS).collect().await;
        let first = self.first_pause();
        for (mut tracked, known) in known {
            if tracked.doubt.is_some()
                && let Some(entry) = self.open.get_mut(&tracked.request)
                && entry.tracked.doubt.is_some()
            {
                // It was sent again, and in vain.
                entry.told = Instant::now();
                (entry.pause, entry.due) = (first, entry.told + first);
                entry.tracked = tracked;
                continue;
            }
            let known = known.unwrap_or_else(|fault| {
                // The commit that says it again finds what is there.
                tracing::warn!(request = %tracked.request, ?fault, "failed to read what is known of a transaction");
                None
            });
            let (known, version) =
                known.unwrap_or_else(|| (TransactionRow::new(tracked.transaction.sent_at_ms), 0));
            // What was in doubt went out before the nodes' word was stored.
            let doubted = self.open.get(&tracked.request);
            if let Some(doubted) = doubted {
                tracked.transaction.sent_at_ms = doubted.tracked.transaction.sent_at_ms;
            }
            let entry = FollowedTransaction {
                version,
                due: Instant::now() + first,
                pause: first,
                missing_since_ms: None,
                void: doubted.and_then(|entry| entry.void),
                look: ReplacementCheck::default(),
                mined_ms: matches!(known.state, TransactionState::Mined(_)).then_some(known.at_ms),
                known,
                unmined_since: None,
                resent_ms: 0,
                gap_sought_ms: 0,
                in_the_way: None,
                is_not_taken: false,
                told_not_taken: false,
                told: Instant::now(),
                unanswered: false,
                tracked,
            };
            self.open.insert(entry.tracked.request, entry);
        }
        self.arrived.clear();
    }

    /// What the nodes say of transactions; `None` when asking for them panics.
    async fn sightings(
        &self,
        transactions: &[TrackedTransaction],
    ) -> Option<Vec<Result<TransactionSighting, ChainError>>> {
        let asked = self.client.sightings(transactions, self.services.now_ms());
        let asked = AssertUnwindSafe(asked).catch_unwind().await;
        if asked.is_err() {
            let chain = &self.chain;
            tracing::error!(%chain, count = transactions.len(), "looking up transactions panicked; this is a bug");
        }
        asked.ok()
    }

    /// Asks for those that are due.
    async fn round(&mut self) {
        let held_leases = &self.services.held_leases;
        // Who has the vault now follows them.
        self.open.retain(|_, entry| {
            held_leases
                .get(LeaseScope::Vault(entry.tracked.vault))
                .is_some()
        });
        let now = Instant::now();
        // Those that are due soon go along.
        let mut due: Vec<_> = self
            .open
            .values()
            .filter(|entry| entry.due <= now + entry.pause / 2)
            .map(|entry| (entry.due, entry.tracked.request))
            .collect();
        due.sort_unstable();
        due.truncate(ROUND);
        let transactions: Vec<_> = due
            .iter()
            .filter_map(|(_, request)| self.open.get(request))
            .map(|entry| entry.tracked.transaction.clone())
            .collect();
        let sightings = match self.sightings(&transactions).await {
            Some(sightings) => sightings,
            // One of them is at fault. The others are asked for without it, and it is asked for less and less often.
            None => {
                let mut sightings = Vec::new();
                for one in &transactions {
                    let sighting = self.sightings(std::slice::from_ref(one)).await;
                    let sighting = sighting.and_then(|sightings| sightings.into_iter().next());
                    let bug = || Err(ChainError::Unknown("internal error".into()));
                    sightings.push(sighting.unwrap_or_else(bug));
                }
                sightings
            }
        };
        let now_ms = self.services.now_ms();
        let head = self.head().await;
        let mut changes: BTreeMap<VaultId, Vec<(RequestId, TransactionRow)>> = BTreeMap::new();
        let (mut seen, mut missing, mut held_back) = (Vec::new(), Vec::new(), Vec::new());
        // What no node takes may wait for a number before its own, too.
        let mut waiting = Vec::new();
        let settings = &self.services.settings;
        let first = self.first_pause();
        let longest = Duration::from_millis(settings.tracking_most_ms);
        let retry_most = Duration::from_millis(settings.retry_most_ms);
        for ((_, request), sighting) in due.into_iter().zip(sightings) {
            let sighting = match sighting {
                Ok(TransactionSighting::Replaced(None)) => {
                    Ok(TransactionSighting::Replaced(self.winner(request).await))
                }
                sighting => sighting,
            };
            let Some(entry) = self.open.get_mut(&request) else {
                continue;
            };
            let sighting = match sighting {
                Ok(sighting) => sighting,
                Err(error) => {
                    tracing::debug!(%request, ?error, "the nodes do not say where a transaction is");
                    entry.note_silence();
                    let is_open = entry.tracked.doubt.is_some();
                    entry.wait(if is_open { retry_most } else { longest });
                    if !is_open
                        && entry.tracked.unsigned.is_none()
                        && let Some(row) = entry.unseen(now_ms)
                    {
                        let of_vault = changes.entry(entry.tracked.vault).or_default();
                        of_vault.push((request, row));
                    }
                    continue;
                }
            };
            let settling_ms = self.services.settings.settling_ms;
            if entry.tracked.unsigned.is_some() {
                entry.wait(longest);
                let is_settled = entry.is_settled(&sighting, settling_ms);
                self.looks
                    .want(request, Some(sighting).filter(|_| is_settled));
                continue;
            }
            if let Some(doubt) = entry.tracked.doubt.clone() {
                entry.wait(longest);
                if sighting == TransactionSighting::Missing {
                    waiting.push(request);
                }
                let verdict = entry.verdict(sighting, longest, settling_ms);
                // Some of it never comes: that need not be said for minutes once more when it is followed.
                let goes_on = verdict == Some(Verdict::Accepted) && entry.void.is_some();
                let is_over = |verdict: &Verdict| *verdict != Verdict::Missing && !goes_on;
                if verdict.is_some_and(|verdict| is_over(&verdict) | !doubt.tell(verdict)) {
                    self.open.remove(&request);
                }
                continue;
            }
            let changed = entry.see(sighting, now_ms, first * REORGANISED_PAUSES, settling_ms);
            let changed = entry.begin_count(head, changed);
            seen.push(request);
            if entry.is_to_be_sent(now_ms) {
                missing.push(request);
            } else if entry.is_to_be_spread(now_ms) {
                held_back.push((entry.resent_ms, entry.tracked.number, request));
            }
            match changed {
                Some(row) => {
                    let of_vault = changes.entry(entry.tracked.vault).or_default();
                    of_vault.push((request, row));
                    entry.wait_for(first);
                }
                None => entry.wait(longest),
            }
        }
        for (vault, changed) in changes {
            self.store(vault, changed).await;
        }
        self.begin_look();
        if let Some(head) = head {
            self.ask_to_speed_up(&seen, head);
        }
        waiting.extend(seen);
        self.seek_gaps(&waiting, now_ms);
        self.send_again(missing, now_ms).await;
        self.spread(held_back, now_ms).await;
    }

    /// The transaction of ours that has taken the place of a request's, where the nodes do not say which it was.
    /// Of one that nobody here has it is looked for elsewhere.
    async fn winner(&self, request: RequestId) -> Option<String> {
        let entry = self.open.get(&request)?;
        let tracked = Some(&entry.tracked).filter(|tracked| tracked.unsigned.is_none())?;
        let signed = &tracked.transaction.signed;
        let found = replacing::winner(&self.services, request, &tracked.account, signed).await;
        found.unwrap_or_else(|fault| {
            tracing::warn!(%request, ?fault, "failed to read what has replaced a transaction");
            None
        })
    }

    /// Stores where transactions of a vault are now.
    async fn store(&mut self, vault: VaultId, changed: Vec<(RequestId, TransactionRow)>) {
        let Ok(services) = self.services.for_vault(vault) else {
            return;
        };
        // Anyone who comes next takes the numbers that are free now, so that nothing waits behind them.
        let free = match reservations::ended(&services, &self.dropped(&changed)).await {
            Ok(free) => free,
            Err(fault) => {
                tracing::warn!(%vault, ?fault, "failed to read which requests have the nonces of expired transactions");
                return;
            }
        };
        let mut batch = Batch::new();
        for (key, version) in free {
            batch.delete(key, Precondition::Version(version));
        }
        let mut write = || -> Result<(), Fault> {
            for (request, row) in &changed {
                let Some(entry) = self.open.get(request) else {
                    continue;
                };
                let expect = match entry.version {
                    0 => Precondition::Absent,
                    version => Precondition::Version(version),
                };
                batch.put(rows::transaction(*request), expect, rows::encode(row)?);
                // A node that names another block each time must not fill the audit chain.
                if entry::is_same_kind(&entry.known.state, &row.state) {
                    continue;
                }
                if row.state.is_settled() {
                    batch.delete(rows::outbox(vault, *request), Precondition::Any);
                }
                AuditNote::for_request(&AuditActor::service(), *request, row.state.name())
                    .fact("detail", words(&row.state))
                    .add_to(&mut batch, AuditChain::Vault(vault), row.at_ms)?;
            }
            Ok(())
        };
        if let Err(fault) = write() {
            tracing::error!(%vault, ?fault, "the state of transactions cannot be stored");
            return;
        }
        match services.store.commit(batch).await {
            Ok(()) => {}
            Err(CommitError::Conflict(_)) => {
                // A commit that was thought to be lost is there.
                for (request, _) in changed {
                    self.reload(&services, request).await;
                }
                return;
            }
            Err(error) => {
                // It is asked again, and comes to the same.
                tracing::warn!(%vault, ?error, "failed to store the state of transactions");
                return;
            }
        }
        for (request, row) in changed {
            let Some(entry) = self.open.get_mut(&request) else {
                continue;
            };
            entry.tell(&row);
            if row.state.is_settled() {
                self.open.remove(&request);
            } else {
                entry.version = entry.version.saturating_add(1);
                entry.known = row;
            }
        }
    }

    /// The requests among these whose transactions' time is over, with their accounts and numbers.
    fn dropped(
        &self,
        changed: &[(RequestId, TransactionRow)],
    ) -> BTreeMap<RequestId, (ChainAccount, u64)> {
        let dropped = changed
            .iter()
            .filter(|(_, row)| row.state == TransactionState::Dropped);
        let of = |(request, _): &(RequestId, TransactionRow)| {
            let tracked = &self.open.get(request)?.tracked;
            Some((*request, (tracked.account.clone(), tracked.number?)))
        };
        dropped.filter_map(of).collect()
    }

    /// Reads what the store knows.
    async fn reload(&mut self, services: &Services, request: RequestId) {
        let Ok(Some((known, version))) = load(services, request).await else {
            return;
        };
        if known.state.is_settled() {
            self.open.remove(&request);
        } else if let Some(entry) = self.open.get_mut(&request) {
            (entry.known, entry.version) = (known, version);
        }
    }

    /// What metrics show.
    fn count(&self) {
        let mut counts = OpenTransactions::default();
        let is_taken =
            |it: &&FollowedTransaction| it.tracked.doubt.is_none() && it.tracked.unsigned.is_none();
        let taken = self.open.values().filter(is_taken);
        for entry in taken {
            match entry.known.state {
                TransactionState::Mined(_) => counts.mined = counts.mined.saturating_add(1),
                _ => counts.pending = counts.pending.saturating_add(1),
            }
            if entry.known.problem.is_some() {
                counts.overdue = counts.overdue.saturating_add(1);
            }
        }
        let mut all = self.services.counters.transactions.lock();
        all.insert(self.chain, counts);
    }
}
