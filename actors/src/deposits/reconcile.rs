//! Compares the balances of deposit wallets on the chain with their known transfers. A surplus was paid in a
//! way that nobody can see, such as by a contract on nodes without traces, or was hidden: it is announced. A
//! deficit is reported to people.

mod of_now;
mod otherwise;
mod wanted;

pub use wanted::{begin, commit};

use std::collections::BTreeMap;

use covault_core::{
    amount::U256,
    deposit::{
        balance::{Comparison, Ledger, unexplained},
        lifecycle::ChainView,
        transfer::{Account, AddressOwner, DepositAddress, OwnedTransfer},
    },
    fault::Fault,
};

use self::wanted::stored;
use super::{
    beside::SideTask,
    books::{self, LedgerEntry, ledger},
    change::{ChainChange, OpenTransfers, may_be_included},
    follower::FollowStep,
    known::StoredProgress,
    progress::{FollowError, FollowProgress},
    routes::Routes,
    start,
};
use crate::{
    chain_rpc::{BlockBalances, ChainError},
    services::skip_unreadable,
    store::{
        Batch, Key, Precondition, Scan,
        deposit_rows::{
            self, BalanceRow, CursorRow, ReconciliationCounts, ReconciliationRow, TransferRow,
        },
        rows,
        sweep_rows::{self, SweepDueRow},
    },
};

/// How often all balances are compared, in milliseconds.
const INTERVAL_MS: u64 = 60 * 60 * 1_000;
/// For how long nothing is asked again that has failed, in milliseconds.
const PAUSE_MS: u64 = 60 * 1_000;
/// Addresses of one look.
const ADDRESSES: usize = 50;
/// Differences of one balance that are told one by one; what is left is told as one.
const DIFFERENCES: usize = 8;

/// A balance of a coin or token.
struct HeldAsset {
    owner: AddressOwner,
    account: Account,
    asset: Option<Account>,
    key: Key,
    /// What was found the last time, where it still counts.
    before: Option<BalanceRow>,
    /// What was missing the last time, also where its base counts no more.
    missing: [u8; 32],
}

impl HeldAsset {
    fn question(&self) -> (Account, Option<Account>) {
        (self.account, self.asset)
    }

    /// What it was after a block.
    fn base(&self) -> (u64, [u8; 32]) {
        self.before
            .map_or((0, [0; 32]), |row| (row.block, row.balance))
    }
}

/// A balance that is higher than the ledger explains.
struct Surplus {
    /// The newest block after which it was not there, as far as is known.
    since: u64,
    /// The block after which it was there.
    block: u64,
    amount: [u8; 32],
}

/// The result of a comparison.
struct BalanceFinding {
    /// What is to be announced: after which block the balance is higher, and by how much.
    more: Vec<(u64, [u8; 32])>,
    /// How much is for people to look at; 0: nothing.
    unclear: [u8; 32],
    /// Whether the difference is unexplained money, or missing money.
    is_more: bool,
}

/// Whether what is more may be fees that were less than the nodes have said: nothing is told that nobody has paid.
fn may_be_fees(entries: &[LedgerEntry], more: &Surplus) -> bool {
    let mut fees = Ledger::default();
    let of = |entry: &&LedgerEntry| {
        entry.is_fee && entry.block > more.since && entry.block <= more.block
    };
    for entry in entries.iter().filter(of) {
        fees.add(false, entry.amount);
    }
    matches!(
        fees.compare(more.amount),
        Comparison::Equal | Comparison::Less(_)
    )
}

impl FollowStep<'_> {
    /// Compares some balances, when it is time to. Nodes that do not answer are asked again later: nothing else waits for
    /// that.
    pub(super) async fn look_at_books(
        &self,
        books: &mut SideTask,
        known: &mut StoredProgress,
    ) -> Result<FollowProgress, FollowError> {
        let now_ms = self.services.monotonic.elapsed_ms();
        if books.is_paused(now_ms) {
            return Ok(FollowProgress::AtHead);
        }
        let what = "failed to compare balances of deposit wallets";
        let again_ms = now_ms.saturating_add(PAUSE_MS);
        let outcome = match self.source.has_balances() {
            true => self.reconcile(known).await,
            false => match self.note_what_is_due(known).await? {
                FollowProgress::AtHead => self.reconcile_now(known).await,
                other => return Ok(other),
            },
        };
        books.settle(outcome, self.chain, what, again_ms)
    }

    /// Compares the balances of the next addresses, when a round is due or in progress.
    async fn reconcile(&self, known: &mut StoredProgress) -> Result<FollowProgress, FollowError> {
        let services = self.services;
        let key = deposit_rows::reconciliation(self.chain);
        let (mut row, expect) = stored(services, &key).await?;
        services.counters.follow(self.chain).reconciled(row.done);
        if known.followed.is_none() {
            return Ok(FollowProgress::AtHead);
        }
        if row.next.is_none() {
            if !row.is_wanted && !self.is_round_due(&row).await? {
                return Ok(FollowProgress::AtHead);
            }
            row.is_wanted = false;
            row.round = ReconciliationCounts::default();
        }
        // Read after the row: what has asked for the round is in them.
        let routes = Routes::load(services, self.chain.network()).await?;
        let look = self.with_routes(&routes);
        look.reconcile_next(known, row, expect).await
    }

    /// Compares the balances of the next addresses of a round.
    async fn reconcile_next(
        &self,
        known: &mut StoredProgress,
        mut row: ReconciliationRow,
        expect: Precondition,
    ) -> Result<FollowProgress, FollowError> {
        let services = self.services;
        let key = deposit_rows::reconciliation(self.chain);
        let Some((version, ring)) = &mut known.followed else {
            return Ok(FollowProgress::AtHead);
        };
        let now_ms = services.now_ms();
        let (holdings, next) = self.next_holdings(row.next.take(), row.restarts).await?;
        let questions: Vec<_> = holdings.iter().map(HeldAsset::question).collect();
        // By its number alone it may be one of another fork.
        let there = self.source.header_at(ring.finalized().block.number).await?;
        if there.block != ring.finalized().block {
            let reason = "the nodes are on another fork than the one that was followed";
            return Err(FollowError::Nodes(reason.into()));
        }
        let finalized = ring.finalized().block.number;
        let found = match questions.is_empty() {
            true => BlockBalances {
                block: finalized,
                balances: Vec::new(),
            },
            false => self.source.balances(finalized, &questions).await?,
        };
        if found.block > ring.head().block.number || found.balances.len() != questions.len() {
            let reason = "the nodes report balances at a block that was not followed yet";
            return Err(FollowError::Nodes(reason.into()));
        }
        let (mut change, mut told) = (ChainChange::default(), OpenTransfers::new());
        let mut written = self.due_sweeps(&holdings, &found.balances).await?;
        let any_due = !written.is_empty();
        for (holding, balance) in holdings.iter().zip(&found.balances) {
            // A token that gives none, as one that is no contract.
            let Some(balance) = *balance else { continue };
            let entries = self.entries(holding).await?;
            // After a restart it is followed again up to there first.
            if entries
                .iter()
                .any(|entry| entry.is_final && entry.block > found.block)
            {
                continue;
            }
            let finding = self
                .compare(holding, entries, (found.block, balance))
                .await?;
            for (number, amount) in &finding.more {
                row.round.found = row.round.found.saturating_add(1);
                let of = (*number, *amount);
                self.include(holding, of, &known.open, (&mut change, &mut told))
                    .await?;
            }
            let is_unclear = finding.unclear != [0; 32];
            if is_unclear {
                row.round.missing = row.round.missing.saturating_add(1);
                self.alert(holding, finding.unclear, found.block);
            }
            let (block, base) = match is_unclear {
                true => holding.base(),
                false => (found.block, balance),
            };
            let after = BalanceRow {
                block,
                balance: base,
                restarts: row.restarts,
                missing: finding.unclear,
                is_more: finding.is_more,
                doubt: None,
            };
            written.push((holding.key.clone(), rows::encode(&after)?));
        }
        let view = ChainView {
            head: ring.head().block.number,
            finalized,
            confirmations: self.confirmations(),
        };
        change.settle(&mut told, &view, usize::MAX)?;
        row.next = next;
        let is_over = row.next.is_none();
        if is_over {
            row.done = Some((now_ms, row.round));
        }
        let cursor = CursorRow {
            head: ring.head().block,
            finalized: ring.finalized().block,
        };
        let progress = |batch: &mut Batch| {
            batch.put(key.clone(), expect, rows::encode(&row)?);
            for (key, row) in &written {
                batch.put(key.clone(), Precondition::Any, row.clone());
            }
            Ok(())
        };
        change
            .commit(
                (services, self.routes),
                (self.chain, &cursor),
                Precondition::Version(*version),
                progress,
            )
            .await?;
        if any_due {
            services.listeners.sweepers.wake(self.chain);
        }
        *version = version.saturating_add(1);
        known.open.append(&mut told);
        services.counters.follow(self.chain).reconciled(row.done);
        Ok(match is_over {
            true => FollowProgress::AtHead,
            false => FollowProgress::Behind,
        })
    }

    /// Whether all balances are to be compared again.
    async fn is_round_due(&self, row: &ReconciliationRow) -> Result<bool, Fault> {
        let last_ms = match row.done {
            Some((at_ms, _)) => at_ms,
            None => start::since_ms(self.services, self.chain).await?,
        };
        Ok(self.services.now_ms().saturating_sub(last_ms) >= INTERVAL_MS)
    }

    /// Notes what is to be swept by the transfers alone, when what is swept was changed: where nodes say nothing of balances
    /// after a block, there is nothing to compare.
    async fn note_what_is_due(&self, known: &StoredProgress) -> Result<FollowProgress, Fault> {
        let key = deposit_rows::reconciliation(self.chain);
        let (mut row, expect) = stored(self.services, &key).await?;
        let Some((_, ring)) = known
            .followed
            .as_ref()
            .filter(|_| row.is_wanted || row.next.is_some())
        else {
            return Ok(FollowProgress::AtHead);
        };
        if row.next.is_none() {
            row.is_wanted = false;
        }
        // Read after the row: what has asked for the round is in them.
        let routes = Routes::load(self.services, self.chain.network()).await?;
        let look = self.with_routes(&routes);
        let finalized = ring.finalized().block.number;
        let (holdings, next) = look.next_holdings(row.next.take(), row.restarts).await?;
        let mut balances = Vec::new();
        for holding in &holdings {
            let of = (holding.account, holding.asset, holding.owner.token);
            let balance = books::balance_after(self.services, self.chain, of, finalized).await?;
            // What its books cannot say is a matter for people, to whom its sweep tells that.
            balances.push(Some(balance.unwrap_or(U256::MAX).to_be_bytes()));
        }
        let mut batch = Batch::new();
        for (due, value) in look.due_sweeps(&holdings, &balances).await? {
            batch.put(due, Precondition::Any, value);
        }
        row.next = next;
        batch.put(key, expect, rows::encode(&row)?);
        self.services.store.commit(batch).await?;
        self.services.listeners.sweepers.wake(self.chain);
        Ok(match row.next {
            Some(_) => FollowProgress::Behind,
            None => FollowProgress::AtHead,
        })
    }

    /// What the next wallets may have, from an address on, and the address after them.
    async fn next_holdings(
        &self,
        from: Option<Vec<u8>>,
        restarts: u32,
    ) -> Result<(Vec<HeldAsset>, Option<Vec<u8>>), Fault> {
        let all = deposit_rows::deposit_addresses(self.chain.network());
        let scan = Scan {
            from,
            ..Scan::prefix(all.space, &all.bytes, ADDRESSES)
        };
        let page = self.services.store.scan(&scan).await?;
        let mut holdings = Vec::new();
        for (key, stored) in &page {
            let address = rows::decode::<DepositAddress>(&stored.value);
            let address = skip_unreadable(address, "who is told of an address")?;
            if let Some((account, address)) = deposit_rows::account_of_address(key).zip(address) {
                holdings.extend(self.holdings(account, &address, restarts).await?);
            }
        }
        Ok((holdings, scan.rest(&page).and_then(|scan| scan.from)))
    }

    /// The rows of what is to be swept and is not noted: of deposits from before it was swept, or wallets of which a node
    /// has once named less.
    async fn due_sweeps(
        &self,
        holdings: &[HeldAsset],
        balances: &[Option<[u8; 32]>],
    ) -> Result<Vec<(Key, Vec<u8>)>, Fault> {
        let there = holdings.iter().zip(balances).filter(|(holding, balance)| {
            let minimum = (self.routes).swept_from(holding.owner.token, self.chain, holding.asset);
            let balance = balance.map(U256::from_be_bytes).unwrap_or_default();
            !balance.is_zero() && minimum.is_some_and(|minimum| minimum <= balance)
        });
        let there = there.map(|(holding, _)| {
            let key = sweep_rows::due(self.chain, holding.account, holding.asset);
            let owner = holding.owner.clone();
            (key, SweepDueRow { owner })
        });
        let (keys, due): (Vec<_>, Vec<_>) = there.unzip();
        let known = self.services.load_all::<SweepDueRow>(&keys).await?;
        let mut new = Vec::new();
        for ((key, due), known) in keys.into_iter().zip(due).zip(known) {
            if skip_unreadable(known, "a wallet to be swept")?
                .flatten()
                .is_none()
            {
                new.push((key, rows::encode(&due)?));
            }
        }
        Ok(new)
    }

    /// What the wallets of an address may have.
    async fn holdings(
        &self,
        account: Account,
        address: &DepositAddress,
        restarts: u32,
    ) -> Result<Vec<HeldAsset>, Fault> {
        let wallets = address.owners.iter().filter(|owner| owner.wallet.is_some());
        let mut holdings = Vec::new();
        for owner in wallets {
            for asset in self.routes.assets_of(owner.token, self.chain) {
                let key = deposit_rows::balance(self.chain, account, asset);
                holdings.push(HeldAsset {
                    owner: owner.clone(),
                    account,
                    asset,
                    key,
                    before: None,
                    missing: [0; 32],
                });
            }
        }
        let keys: Vec<_> = holdings.iter().map(|holding| holding.key.clone()).collect();
        let found = self.services.load_all::<BalanceRow>(&keys).await?;
        for (holding, row) in holdings.iter_mut().zip(found) {
            let row = skip_unreadable(row, "a balance that was compared")?.flatten();
            let missing = row.filter(|row| !row.is_more).map(|row| row.missing);
            holding.missing = missing.unwrap_or_default();
            holding.before = row.filter(|row| row.restarts == restarts);
        }
        Ok(holdings)
    }

    /// What the books have of a holding since it was last compared.
    async fn entries(&self, holding: &HeldAsset) -> Result<Vec<LedgerEntry>, Fault> {
        let (block, _) = holding.base();
        let of = (holding.account, holding.asset, holding.owner.token);
        books::entries(self.services, self.chain, of, block.saturating_add(1)).await
    }

    /// Compares a balance after a block with the books. What is more is looked for, block by block, as far as nodes still
    /// have the state of old blocks.
    async fn compare(
        &self,
        holding: &HeldAsset,
        mut entries: Vec<LedgerEntry>,
        (at, balance): (u64, [u8; 32]),
    ) -> Result<BalanceFinding, FollowError> {
        let (mut from, base) = holding.base();
        let mut finding = BalanceFinding {
            more: Vec::new(),
            unclear: [0; 32],
            is_more: false,
        };
        loop {
            let rest = match ledger(base, &entries, at).compare(balance) {
                Comparison::Equal => return Ok(finding),
                Comparison::Less(missing) => {
                    finding.unclear = missing;
                    return Ok(finding);
                }
                Comparison::More(rest) => rest,
            };
            let more = match finding.more.len() < DIFFERENCES {
                true => {
                    self.first_more(holding, (base, &entries), (from, at))
                        .await?
                }
                false => None,
            };
            let more = more.unwrap_or(Surplus {
                since: from,
                block: at,
                amount: rest,
            });
            // An old state with more than is there by now is not believed.
            let is_wrong = more.amount > rest;
            if is_wrong || (holding.asset.is_none() && may_be_fees(&entries, &more)) {
                (finding.unclear, finding.is_more) = (rest, true);
                return Ok(finding);
            }
            let Surplus { block, amount, .. } = more;
            finding.more.push((block, amount));
            entries.push(LedgerEntry {
                block,
                is_send: false,
                is_fee: false,
                is_final: false,
                amount,
            });
            from = block;
        }
    }

    /// The first block after which more is there than the books say, of those that the nodes know; `None`: the last.
    async fn first_more(
        &self,
        holding: &HeldAsset,
        (base, entries): ([u8; 32], &[LedgerEntry]),
        (mut low, mut high): (u64, u64),
    ) -> Result<Option<Surplus>, FollowError> {
        let (mut more, mut since) = (None, low);
        while high.saturating_sub(low) > 1 {
            let middle = low.midpoint(high);
            let found = self.source.balances(middle, &[holding.question()]).await;
            let balance = match found {
                // Nodes that do not have old states.
                Ok(found) if found.block != middle => return Ok(None),
                Ok(found) => found.balances.first().copied().flatten(),
                Err(ChainError::Refused(_)) => None,
                Err(error) => return Err(error.into()),
            };
            // Where nothing is known, or less is there, what is more came later.
            match balance.map(|balance| ledger(base, entries, middle).compare(balance)) {
                Some(Comparison::More(amount)) => {
                    more = Some((middle, amount));
                    high = middle;
                }
                Some(Comparison::Equal | Comparison::Less(_)) => {
                    low = middle;
                    since = middle;
                }
                None => low = middle,
            }
        }
        Ok(more.map(|(block, amount)| Surplus {
            since,
            block,
            amount,
        }))
    }

    /// Adds what is told of a holding.
    async fn include(
        &self,
        holding: &HeldAsset,
        (number, amount): (u64, [u8; 32]),
        open: &OpenTransfers,
        (change, told): (&mut ChainChange, &mut OpenTransfers),
    ) -> Result<(), FollowError> {
        let header = self.source.header_at(number).await?;
        let transfer = OwnedTransfer {
            chain: self.chain,
            transfer: unexplained(self.chain, holding.question(), number, amount),
            is_send: false,
            owner: holding.owner.clone(),
        };
        let key = deposit_rows::transfer(&transfer);
        let stored = self.services.load::<TransferRow>(&key).await?;
        let stored = stored.map(|(row, _)| row);
        if open.contains_key(&transfer.key()) || !may_be_included(stored.as_ref()) {
            return Err(Fault::bug("a balance that was announced is not in the ledger").into());
        }
        tracing::warn!(
            chain = %self.chain, block = number, address = holding.account.text(self.chain.network()),
            "a deposit wallet has more than its transfers explain: announced as a deposit"
        );
        change.include(told, transfer, stored, &header)?;
        Ok(())
    }

    /// Whether the chain was ever followed again from an earlier block.
    pub(super) async fn was_restarted(&self) -> Result<bool, Fault> {
        let books = deposit_rows::reconciliation(self.chain);
        let (books, _) = stored(self.services, &books).await?;
        Ok(books.restarts > 0)
    }

    fn alert(&self, holding: &HeldAsset, difference: [u8; 32], block: u64) {
        let network = self.chain.network();
        if holding.before.is_some_and(|row| row.missing == difference) {
            return;
        }
        tracing::error!(
            chain = %self.chain, block, address = holding.account.text(network),
            token = holding.asset.map(|asset| asset.text(network)).unwrap_or_default(),
            difference = U256::from_be_bytes(difference).to_string(),
            "a deposit wallet has less than its transfers explain, or more by at most the fees that it has paid; check it"
        );
    }

    /// Which of these transfers of final blocks are in balances that were compared: what was not told of them one by one
    /// was told as a balance.
    pub(super) async fn reconciled(
        &self,
        transfers: &[(u64, OwnedTransfer)],
    ) -> Result<Vec<bool>, Fault> {
        let books = deposit_rows::reconciliation(self.chain);
        let (books, _) = stored(self.services, &books).await?;
        let keys = transfers.iter().map(|(_, transfer)| {
            let asset = transfer.transfer.asset;
            deposit_rows::balance(self.chain, transfer.account(), asset)
        });
        let keys: Vec<_> = keys.collect();
        let found = self.services.load_all::<BalanceRow>(&keys).await?;
        let mut known = BTreeMap::new();
        for (key, row) in keys.iter().zip(found) {
            let row = skip_unreadable(row, "a balance that was compared")?.flatten();
            known.insert(
                key.bytes.clone(),
                row.filter(|row| row.restarts == books.restarts),
            );
        }
        let is_in = |(key, (number, transfer)): (&Key, &(u64, OwnedTransfer))| {
            let row = known.get(&key.bytes).copied().flatten();
            // An address that is only watched has no books.
            transfer.owner.wallet.is_some() && row.is_some_and(|row| *number <= row.block)
        };
        Ok(keys.iter().zip(transfers).map(is_in).collect())
    }
}
