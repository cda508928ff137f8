//! The comparison where nodes say what accounts have now, and nothing of earlier blocks (TRON).
//!
//! A node names its newest block with each balance, and the state may be that of the next one already. Blocks that were
//! followed may still be replaced, and of a node that is behind nothing is taken. So nothing comes of one look. A balance is
//! judged only where the wallet has no transfer within [`MARGIN`] blocks of it, as far as all of these are final, and only if
//! a second look, at a later block, finds the same difference.

use covault_core::{
    deposit::{
        balance::Comparison,
        lifecycle::ChainView,
        transfer::{Account, DepositAddress},
    },
    fault::Fault,
};

use super::{
    super::{
        books::{LedgerEntry, entries, ledger},
        change::{ChainChange, OpenTransfers},
        follower::FollowStep,
        known::StoredProgress,
        progress::{FollowError, FollowProgress},
    },
    ADDRESSES, HeldAsset, stored,
};
use crate::{
    chain_rpc::BalanceNow,
    services::skip_unreadable,
    store::{
        Batch, Precondition,
        deposit_rows::{
            self, BalanceRow, CursorRow, DoubtfulBalance, ReconciliationCounts, ReconciliationRow,
        },
        rows,
    },
};

/// How many blocks a balance has to be away from the transfers of its wallet, and may be from the newest one that was
/// followed.
const MARGIN: u64 = 10;
/// Accounts with a balance in doubt that are looked at again before all are.
const MOST_DOUBTS: usize = 200;

/// What comes of a look at a balance.
#[derive(Debug, PartialEq, Eq)]
enum Judgement {
    /// Nothing: transfers of it are too new, or it is to be looked at again.
    Later,
    /// What was found before is still so.
    Known,
    /// The transfers explain it.
    Explained,
    /// They do not, or do again, and a second look has to say the same.
    InDoubt,
    /// So much was there already at this block, which no transfer explains.
    More(DoubtfulBalance, [u8; 32]),
    /// So much is missing.
    Less([u8; 32]),
}

/// What is known of a coin or token of a wallet.
struct KnownBalance {
    /// What it was after a block.
    base: (u64, [u8; 32]),
    /// What is missing, as far as was found.
    missing: [u8; 32],
    /// What one look has found.
    doubt: Option<DoubtfulBalance>,
    /// Its transfers up to that block, as far as a look may be near them.
    earlier: Vec<LedgerEntry>,
    /// And those since.
    later: Vec<LedgerEntry>,
}

impl KnownBalance {
    /// Its transfers from twice the margin before the block of `base` on: that far before the newest block a node may be, and
    /// that far before it a transfer is too new.
    fn new(holding: &HeldAsset, entries: Vec<LedgerEntry>) -> Self {
        let base = holding.base();
        let is_earlier = |entry: &LedgerEntry| entry.block <= base.0;
        let (earlier, later) = entries.into_iter().partition(is_earlier);
        Self {
            base,
            missing: holding.missing,
            doubt: holding.before.and_then(|row| row.doubt),
            earlier,
            later,
        }
    }

    fn first_entry(holding: &HeldAsset) -> u64 {
        let (block, _) = holding.base();
        block.saturating_sub(MARGIN.saturating_mul(2))
    }

    fn has_entry(&self, is_it: impl Fn(u64) -> bool) -> bool {
        let mut all = self.earlier.iter().chain(&self.later);
        all.any(|entry| is_it(entry.block))
    }

    fn difference(&self, at: u64, balance: [u8; 32]) -> Comparison {
        let (_, base) = self.base;
        ledger(base, &self.later, at).compare(balance)
    }

    /// Judges a balance of now, where `head` was followed and `finalized` is the newest final block.
    fn judge(&self, now: BalanceNow, head: u64, finalized: u64) -> Judgement {
        let at = now.block;
        let is_of_another_time = at.abs_diff(head) > MARGIN;
        if is_of_another_time || self.has_entry(|block| block.saturating_add(MARGIN) > at) {
            return Judgement::Later;
        }
        let difference = self.difference(at, now.balance);
        match difference {
            Comparison::Equal if self.missing == [0; 32] => return Judgement::Explained,
            Comparison::Less(missing) if missing == self.missing => return Judgement::Known,
            _ => {}
        }
        let Some(first) = self.doubt else {
            return Judgement::InDoubt;
        };
        if first.block.saturating_add(MARGIN) > finalized.min(at) {
            return Judgement::Later;
        }
        let was = self.difference(first.block, first.balance);
        if was != difference || self.has_entry(|block| block.abs_diff(first.block) <= MARGIN) {
            return Judgement::InDoubt;
        }
        match difference {
            Comparison::More(amount) => Judgement::More(first, amount),
            Comparison::Less(amount) => Judgement::Less(amount),
            Comparison::Equal => Judgement::Explained,
        }
    }

    /// What is known of it after that, but for how often the chain was followed again.
    fn after(&self, judged: &Judgement, now: BalanceNow, finalized: u64) -> BalanceRow {
        let (block, balance) = self.base;
        let same = BalanceRow {
            block,
            balance,
            restarts: 0,
            missing: self.missing,
            is_more: false,
            doubt: self.doubt,
        };
        let explained = BalanceRow {
            missing: [0; 32],
            doubt: None,
            ..same
        };
        let is_open = self.later.iter().any(|entry| entry.block > finalized);
        match *judged {
            Judgement::Later => same,
            Judgement::Known => BalanceRow {
                doubt: None,
                ..same
            },
            // What is not final yet may come to another block.
            Judgement::Explained if is_open => explained,
            Judgement::Explained => BalanceRow {
                block: finalized,
                balance: now.balance,
                ..explained
            },
            Judgement::InDoubt => BalanceRow {
                doubt: Some(DoubtfulBalance {
                    block: now.block,
                    balance: now.balance,
                }),
                ..same
            },
            Judgement::More(first, _) => BalanceRow {
                block: first.block,
                balance: first.balance,
                ..explained
            },
            Judgement::Less(missing) => BalanceRow {
                missing,
                ..explained
            },
        }
    }
}

/// The final block from which on a balance in doubt is looked at again. One that could not be judged then is not asked
/// about with each block.
fn again_at(doubt: DoubtfulBalance, finalized: u64) -> u64 {
    let ripe = doubt.block.saturating_add(MARGIN);
    match ripe > finalized {
        true => ripe,
        false => finalized.saturating_add(MARGIN.saturating_mul(2)),
    }
}

/// Counts a wallet of which something is missing: all of them in a round, and then what changes.
fn count_missing(counts: &mut ReconciliationCounts, is_round: bool, was: bool, is: bool) {
    counts.missing = match (was, is) {
        (_, true) if is_round || !was => counts.missing.saturating_add(1),
        (true, false) if !is_round => counts.missing.saturating_sub(1),
        _ => counts.missing,
    };
}

/// What is looked at together.
struct Page {
    holdings: Vec<HeldAsset>,
    /// Whether it is a part of a round over all; else balances in doubt.
    is_round: bool,
}

impl FollowStep<'_> {
    /// Compares the balances of the next addresses, when a round is due or in progress, or of those in doubt.
    pub(super) async fn reconcile_now(
        &self,
        known: &mut StoredProgress,
    ) -> Result<FollowProgress, FollowError> {
        let services = self.services;
        let key = deposit_rows::reconciliation(self.chain);
        let (mut row, expect) = stored(services, &key).await?;
        let counter = services.counters.follow(self.chain);
        counter.reconciled(row.done);
        let Some((version, ring)) = &mut known.followed else {
            return Ok(FollowProgress::AtHead);
        };
        let (head, finalized) = (ring.head().block.number, ring.finalized().block.number);
        let Some(page) = self.next_page(&mut row, finalized).await? else {
            return Ok(FollowProgress::AtHead);
        };
        let found = self.ask_now(&page.holdings, head).await?;
        let (mut change, mut told) = (ChainChange::default(), OpenTransfers::new());
        let mut written = Vec::new();
        for (holding, now) in page.holdings.iter().zip(found) {
            let mut missing = holding.missing;
            let mut doubt = holding.before.and_then(|row| row.doubt);
            // A token that gives none, as one that is no contract.
            if let Some(now) = now {
                let first = KnownBalance::first_entry(holding);
                let of = (holding.account, holding.asset, holding.owner.token);
                let entries = entries(services, self.chain, of, first).await?;
                let books = KnownBalance::new(holding, entries);
                let judged = books.judge(now, head, finalized);
                match judged {
                    Judgement::More(first, amount) => {
                        row.round.found = row.round.found.saturating_add(1);
                        let of = (first.block, amount);
                        self.include(holding, of, &known.open, (&mut change, &mut told))
                            .await?;
                    }
                    Judgement::Less(missing) => self.alert(holding, missing, now.block),
                    _ => {}
                }
                let after = BalanceRow {
                    restarts: row.restarts,
                    ..books.after(&judged, now, finalized)
                };
                if holding.before != Some(after) {
                    written.push((holding.key.clone(), rows::encode(&after)?));
                }
                (missing, doubt) = (after.missing, after.doubt);
            }
            let (was, is) = (holding.missing != [0; 32], missing != [0; 32]);
            count_missing(&mut row.round, page.is_round, was, is);
            let doubts = &mut row.of_now.doubts;
            if let Some(doubt) = doubt
                && (doubts.len() < MOST_DOUBTS || doubts.contains_key(&holding.account))
            {
                doubts.insert(holding.account, again_at(doubt, finalized));
            }
        }
        let view = ChainView {
            head,
            finalized,
            confirmations: self.confirmations(),
        };
        change.settle(&mut told, &view, usize::MAX)?;
        let is_over = row.of_now.next.is_none();
        if is_over {
            row.done = match (page.is_round, row.done) {
                (false, Some((at_ms, _))) => Some((at_ms, row.round)),
                _ => Some((services.now_ms(), row.round)),
            };
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
        let of = (services, self.routes);
        let at = (self.chain, &cursor);
        change
            .commit(of, at, Precondition::Version(*version), progress)
            .await?;
        *version = version.saturating_add(1);
        known.open.append(&mut told);
        counter.reconciled(row.done);
        Ok(match is_over {
            true => FollowProgress::AtHead,
            false => FollowProgress::Behind,
        })
    }

    /// What is to be looked at next, which `row` has no more then; `None`: nothing now.
    async fn next_page(
        &self,
        row: &mut ReconciliationRow,
        finalized: u64,
    ) -> Result<Option<Page>, Fault> {
        if row.of_now.next.is_none() {
            if !row.of_now.is_wanted && !self.is_round_due(row).await? {
                return self.next_doubts(row, finalized).await;
            }
            row.of_now.is_wanted = false;
            row.of_now.doubts.clear();
            row.round = ReconciliationCounts::default();
        }
        let from = row.of_now.next.take();
        let (holdings, next) = self.next_holdings(from, row.restarts).await?;
        row.of_now.next = next;
        Ok(Some(Page {
            holdings,
            is_round: true,
        }))
    }

    /// The balances in doubt that can be judged now.
    async fn next_doubts(
        &self,
        row: &mut ReconciliationRow,
        finalized: u64,
    ) -> Result<Option<Page>, Fault> {
        let doubts = &mut row.of_now.doubts;
        let ripe = doubts.iter().filter(|(_, block)| **block <= finalized);
        let ripe: Vec<Account> = ripe.map(|(account, _)| *account).take(ADDRESSES).collect();
        if ripe.is_empty() {
            return Ok(None);
        }
        doubts.retain(|account, _| !ripe.contains(account));
        let network = self.chain.network();
        let keys = ripe
            .iter()
            .map(|of| deposit_rows::deposit_address(network, *of));
        let keys: Vec<_> = keys.collect();
        let addresses = self.services.load_all::<DepositAddress>(&keys).await?;
        let mut holdings = Vec::new();
        for (account, address) in ripe.into_iter().zip(addresses) {
            let address = skip_unreadable(address, "who is told of an address")?.flatten();
            if let Some(address) = address {
                holdings.extend(self.holdings(account, &address, row.restarts).await?);
            }
        }
        holdings.retain(|holding| holding.before.is_some_and(|row| row.doubt.is_some()));
        Ok(Some(Page {
            holdings,
            is_round: false,
        }))
    }

    /// What the nodes say of these, at a block near the newest one that was followed.
    async fn ask_now(
        &self,
        holdings: &[HeldAsset],
        head: u64,
    ) -> Result<Vec<Option<BalanceNow>>, FollowError> {
        if holdings.is_empty() {
            return Ok(Vec::new());
        }
        let questions: Vec<_> = holdings.iter().map(HeldAsset::question).collect();
        let found = self.source.balances_now(&questions).await?;
        let mut blocks = found.iter().flatten().map(|now| now.block);
        if let Some(first) = blocks.next()
            && !blocks
                .chain([first])
                .any(|block| block.abs_diff(head) <= MARGIN)
        {
            return Err(FollowError::Nodes(format!(
                "the nodes name balances of block {first}, and block {head} was followed: they are behind, or this service is"
            )));
        }
        if found.len() != questions.len() {
            let reason = "these are not the balances that were asked for";
            return Err(FollowError::Nodes(reason.into()));
        }
        Ok(found)
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
#[path = "of_now_tests.rs"]
mod tests;
