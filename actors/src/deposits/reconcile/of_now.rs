//! The comparison where nodes say what accounts have now, and nothing of earlier blocks (TRON).
//!
//! Nothing ties such a balance to a block: a node may be some blocks behind, or ahead of what was followed. So nothing comes
//! of one look. A balance is judged only where the wallet has no transfer within [`MARGIN`] blocks of it, as far as all of
//! these are final, and only if a second look finds the same difference.

use covault_core::deposit::{balance::Comparison, lifecycle::ChainView};

use super::{
    super::{
        books::{LedgerEntry, ledger},
        change::{ChainChange, OpenTransfers},
        follower::FollowStep,
        known::StoredProgress,
        progress::{FollowError, FollowProgress},
    },
    HeldAsset, stored,
};
use crate::{
    chain_rpc::BlockBalances,
    store::{
        Batch, Precondition,
        deposit_rows::{
            self, BalanceRow, CursorRow, DoubtfulBalance, ReconciliationCounts, RoundOfNow,
        },
        rows,
    },
};

/// How many blocks from the one that is named the state may be that a node answers from.
const MARGIN: u64 = 10;

/// What comes of a look at a balance.
#[derive(Debug, PartialEq, Eq)]
enum Judgement {
    /// Nothing: transfers of it are too new, or it is to be looked at again.
    Later,
    /// What was found before is still so.
    Known,
    /// The transfers explain it.
    Explained,
    /// They do not, and a second look has to say the same.
    InDoubt,
    /// So much was there already at this block, which no transfer explains.
    More(DoubtfulBalance, [u8; 32]),
    /// So much is missing.
    Less([u8; 32]),
}

/// Whether no transfer is within the margin of a block.
fn is_quiet(entries: &[LedgerEntry], at: u64) -> bool {
    let near = |entry: &LedgerEntry| entry.block.abs_diff(at) <= MARGIN;
    !entries.iter().any(near)
}

/// Judges a balance of now by the transfers since it was last explained, `base`; `at` is the block that the nodes name,
/// `finalized` the newest final one.
fn judge(
    (base, before): ([u8; 32], Option<&BalanceRow>),
    entries: &[LedgerEntry],
    (at, balance): (u64, [u8; 32]),
    finalized: u64,
) -> Judgement {
    let is_new = |entry: &LedgerEntry| entry.block.saturating_add(MARGIN) > at;
    if entries.iter().any(is_new) {
        return Judgement::Later;
    }
    let now = ledger(base, entries, at).compare(balance);
    let is_known = |row: &&BalanceRow| match now {
        Comparison::Less(missing) => !row.is_more && row.missing == missing,
        Comparison::Equal | Comparison::More(_) => false,
    };
    if now == Comparison::Equal {
        return Judgement::Explained;
    }
    if before.is_some_and(|row| is_known(&row)) {
        return Judgement::Known;
    }
    let Some(first) = before.and_then(|row| row.doubt) else {
        return Judgement::InDoubt;
    };
    if first.block.saturating_add(MARGIN) > finalized {
        return Judgement::Later;
    }
    let was = ledger(base, entries, first.block).compare(first.balance);
    match now {
        _ if was != now || !is_quiet(entries, first.block) => Judgement::InDoubt,
        Comparison::More(amount) => Judgement::More(first, amount),
        Comparison::Less(amount) => Judgement::Less(amount),
        Comparison::Equal => Judgement::Explained,
    }
}

impl FollowStep<'_> {
    /// Compares the balances of the next addresses, when a round is due or in progress.
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
        if row.of_now.next.is_none() {
            let is_due = row.of_now.is_wanted || self.is_round_due(&row).await?;
            let of_doubts = row.of_now.judge_at.is_some_and(|block| block <= finalized);
            if !is_due && !of_doubts {
                return Ok(FollowProgress::AtHead);
            }
            row.of_now = RoundOfNow {
                of_doubts: !is_due,
                ..RoundOfNow::default()
            };
            if is_due {
                row.round = ReconciliationCounts::default();
            }
        }
        let from = row.of_now.next.take();
        let (mut holdings, next) = self.next_holdings(from, row.restarts).await?;
        if row.of_now.of_doubts {
            holdings.retain(|holding| holding.before.is_some_and(|row| row.doubt.is_some()));
        }
        let questions: Vec<_> = holdings.iter().map(HeldAsset::question).collect();
        let found = match questions.is_empty() {
            true => BlockBalances {
                block: head,
                balances: Vec::new(),
            },
            false => self.source.balances_now(&questions).await?,
        };
        if found.block > head.saturating_add(MARGIN) || found.balances.len() != questions.len() {
            let reason = "the nodes report balances at a block that was not followed yet";
            return Err(FollowError::Nodes(reason.into()));
        }
        let (mut change, mut told) = (ChainChange::default(), OpenTransfers::new());
        let mut written = Vec::new();
        for (holding, balance) in holdings.iter().zip(&found.balances) {
            // A token that gives none, as one that is no contract.
            let Some(balance) = *balance else { continue };
            let entries = self.entries(holding).await?;
            let ((block, base), before) = (holding.base(), holding.before.as_ref());
            let same = BalanceRow {
                block,
                balance: base,
                restarts: row.restarts,
                missing: before.map_or([0; 32], |row| row.missing),
                is_more: false,
                doubt: before.and_then(|row| row.doubt),
            };
            let explained = BalanceRow {
                missing: [0; 32],
                doubt: None,
                ..same
            };
            let after = match judge((base, before), &entries, (found.block, balance), finalized) {
                Judgement::Later => same,
                Judgement::Known => {
                    row.round.missing = row.round.missing.saturating_add(1);
                    BalanceRow {
                        doubt: None,
                        ..same
                    }
                }
                // What is not final yet may come to another block.
                Judgement::Explained if entries.iter().any(|entry| entry.block > finalized) => {
                    explained
                }
                Judgement::Explained => BalanceRow {
                    block: finalized,
                    balance,
                    ..explained
                },
                Judgement::InDoubt => BalanceRow {
                    doubt: Some(DoubtfulBalance {
                        block: found.block,
                        balance,
                    }),
                    ..same
                },
                Judgement::More(first, amount) => {
                    row.round.found = row.round.found.saturating_add(1);
                    let of = (first.block, amount);
                    self.include(holding, of, &known.open, (&mut change, &mut told))
                        .await?;
                    BalanceRow {
                        block: first.block,
                        balance: first.balance,
                        ..explained
                    }
                }
                Judgement::Less(missing) => {
                    row.round.missing = row.round.missing.saturating_add(1);
                    self.alert(holding, missing, found.block);
                    BalanceRow {
                        missing,
                        ..explained
                    }
                }
            };
            if let Some(doubt) = after.doubt {
                let judge_at = doubt.block.saturating_add(MARGIN);
                row.of_now.judge_at = row.of_now.judge_at.max(Some(judge_at));
            }
            if before != Some(&after) {
                written.push((holding.key.clone(), rows::encode(&after)?));
            }
        }
        let view = ChainView {
            head,
            finalized,
            confirmations: self.confirmations(),
        };
        change.settle(&mut told, &view, usize::MAX)?;
        row.of_now.next = next;
        let is_over = row.of_now.next.is_none();
        if is_over {
            row.done = match (row.of_now.of_doubts, row.done) {
                (true, Some((at_ms, _))) => Some((at_ms, row.round)),
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
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::amount::U256;

    use super::*;

    fn amount(amount: u64) -> [u8; 32] {
        U256::from(amount).to_be_bytes()
    }

    fn entry(block: u64, of: u64) -> LedgerEntry {
        LedgerEntry {
            block,
            is_send: false,
            is_fee: false,
            is_final: true,
            amount: amount(of),
        }
    }

    fn row(missing: u64, doubt: Option<(u64, u64)>) -> BalanceRow {
        BalanceRow {
            block: 0,
            balance: amount(0),
            restarts: 0,
            missing: amount(missing),
            is_more: false,
            doubt: doubt.map(|(block, of)| DoubtfulBalance {
                block,
                balance: amount(of),
            }),
        }
    }

    /// Of a wallet that got 100 in block 50, looked at after block 100, of which 81 are final.
    fn of(before: &BalanceRow, entries: &[LedgerEntry], balance: u64) -> Judgement {
        let base = (amount(0), Some(before));
        judge(base, entries, (100, amount(balance)), 81)
    }

    #[test]
    fn difference__should_be_believed_when_two_looks_find_it_and_all_between_is_final() {
        let entries = [entry(50, 100)];
        assert_eq!(of(&row(0, None), &entries, 100), Judgement::Explained);
        assert_eq!(of(&row(0, None), &entries, 105), Judgement::InDoubt);
        let first = DoubtfulBalance {
            block: 70,
            balance: amount(105),
        };
        let doubt = row(0, Some((70, 105)));
        assert_eq!(of(&doubt, &entries, 105), Judgement::More(first, amount(5)));
        assert_eq!(
            of(&row(0, Some((70, 93))), &entries, 93),
            Judgement::Less(amount(7))
        );
        // It was another difference, or none is there now.
        assert_eq!(of(&doubt, &entries, 106), Judgement::InDoubt);
        assert_eq!(of(&doubt, &entries, 93), Judgement::InDoubt);
        assert_eq!(of(&doubt, &entries, 100), Judgement::Explained);
        // What came until then is not final.
        assert_eq!(
            of(&row(0, Some((72, 105))), &entries, 105),
            Judgement::Later
        );
        // What is missing was told before.
        assert_eq!(of(&row(7, None), &entries, 93), Judgement::Known);
        assert_eq!(of(&row(7, None), &entries, 92), Judgement::InDoubt);
    }

    #[test]
    fn node_that_is_ahead_or_behind__should_invent_nothing() {
        // It knows what is in block 91 already, which is followed by now.
        let ahead = row(0, Some((60, 105)));
        let entries = [entry(50, 100), entry(68, 5)];
        assert_eq!(of(&ahead, &entries, 105), Judgement::Explained);
        // The same again, of the same amount: what was seen at first is too near to a transfer.
        assert_eq!(of(&ahead, &entries, 110), Judgement::InDoubt);
        // It does not know yet what was paid a moment ago.
        for block in [90, 91, 100, 101] {
            let entries = [entry(50, 100), entry(block, 5)];
            let expected = match block {
                90 => Judgement::InDoubt,
                _ => Judgement::Later,
            };
            assert_eq!(of(&row(0, None), &entries, 100), expected, "{block}");
        }
    }
}
