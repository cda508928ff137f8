//! The changes that the blocks of a chain cause in the store: gathered in memory, written in one commit.

use std::collections::{BTreeMap, BTreeSet};

use covault_core::{
    amount::U256,
    audit::AuditChain,
    deposit::{
        event::{EventId, TransferNotice},
        lifecycle::{ChainView, OwnerNotice, Stage, TransferEvent, TransferState, step},
        transfer::{Account, BlockHeader, BlockRef, FollowedChain, OwnedTransfer},
    },
    fault::Fault,
    ids::VaultId,
};

use super::routes::Routes;
use crate::{
    audit::{AuditActor, AuditNote},
    services::{Services, skip_unreadable},
    store::{
        Batch, CommitError, Key, KeySpace, Precondition,
        deposit_rows::{self, CursorRow, NoticeAfterRow, NoticeDelivery, NoticeRow, TransferRow},
        rows,
        sweep_rows::{self, SweepDueRow},
    },
};

/// How often a commit is tried beside once for each notice.
const TRIES: usize = 8;

/// The transfers of a chain that blocks to come can change, by the keys of their rows.
pub type OpenTransfers = BTreeMap<Vec<u8>, TransferRow>;

/// What has changed since the last commit.
#[derive(Default)]
pub struct ChainChange {
    /// Those that were changed: as they are stored, and as they are to be.
    touched: BTreeMap<Vec<u8>, TransferChange>,
    /// What is told, in order.
    notices: Vec<NewNotice>,
    /// Headers that are new, and numbers of those that are no longer kept.
    headers: BTreeMap<u64, Option<BlockHeader>>,
}

struct TransferChange {
    before: Option<TransferRow>,
    after: Option<TransferRow>,
}

struct NewNotice {
    id: EventId,
    after: Option<EventId>,
    notice: TransferNotice,
}

/// How a notice stands that another one comes after, with the version of the row between the two.
enum Predecessor {
    /// What comes after it waits for it.
    Waiting(Option<u64>),
    /// What comes after it may be sent.
    Over(Option<u64>),
}

/// How these notices stand, in two questions for all of them.
async fn predecessors(
    services: &Services,
    ids: &[EventId],
) -> Result<BTreeMap<EventId, Predecessor>, Fault> {
    let keys = ids.iter().map(|id| deposit_rows::notice_after(*id));
    let keys: Vec<_> = keys.collect();
    let after_rows = services.store.get_all(&keys).await?;
    let notices: Vec<_> = ids.iter().map(|id| deposit_rows::notice(*id)).collect();
    let notices = services.load_all::<NoticeRow>(&notices).await?;
    let mut found = BTreeMap::new();
    for ((id, key), notice) in ids.iter().zip(keys).zip(notices) {
        let row = after_rows.get(&key);
        let version = row.map(|row| row.version);
        let is_over = match row {
            Some(row) => rows::decode::<NoticeAfterRow>(&row.value)? == NoticeAfterRow::Over,
            // Sent again by an operator, or deleted long ago: nothing waits for it.
            None => skip_unreadable(notice, format_args!("webhook event {id}"))?
                .flatten()
                .is_none_or(|notice| notice.is_over()),
        };
        let one = match is_over {
            true => Predecessor::Over(version),
            false => Predecessor::Waiting(version),
        };
        found.insert(*id, one);
    }
    Ok(found)
}

impl ChainChange {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.touched.is_empty() && self.notices.is_empty() && self.headers.is_empty()
    }

    /// A block was followed.
    pub fn add_header(&mut self, header: BlockHeader) {
        self.headers.insert(header.block.number, Some(header));
    }

    /// A block is no longer kept.
    pub fn drop_header(&mut self, number: u64) {
        self.headers.insert(number, None);
    }

    /// A block has a transfer. `stored` is what is known of it, unless it is open.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Bug`] when another block has it.
    pub fn include(
        &mut self,
        open: &mut OpenTransfers,
        transfer: OwnedTransfer,
        stored: Option<TransferRow>,
        header: &BlockHeader,
    ) -> Result<(), Fault> {
        let key = transfer.key();
        let known = match (open.get(&key), self.touched.get(&key)) {
            (Some(row), _) => Some(row.clone()),
            (None, Some(touched)) => touched.after.clone(),
            (None, None) => stored.clone(),
        };
        let state = known.map(|row| row.state);
        let next = step(state, TransferEvent::Included(header.block))?;
        let row = next.next.map(|state| TransferRow {
            transfer,
            state,
            timestamp_ms: header.timestamp_ms,
        });
        self.put(open, key, stored, row);
        Ok(())
    }

    /// A transfer that was told for good is in this block: in another one than before, after a restart.
    pub fn move_final(
        &mut self,
        open: &mut OpenTransfers,
        row: &TransferRow,
        header: &BlockHeader,
    ) {
        let TransferState::Finalized { block, round } = row.state else {
            return;
        };
        if block == header.block {
            return;
        }
        let moved = TransferRow {
            state: TransferState::Finalized {
                block: header.block,
                round,
            },
            timestamp_ms: header.timestamp_ms,
            ..row.clone()
        };
        self.put(open, row.transfer.key(), Some(row.clone()), Some(moved));
    }

    /// Blocks after this one were replaced.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Bug`] when that cannot be.
    pub fn revert(&mut self, open: &mut OpenTransfers, ancestor: &BlockRef) -> Result<(), Fault> {
        let is_replaced = |row: &TransferRow| {
            let block = row.state.block();
            block.is_some_and(|block| block.number > ancestor.number)
        };
        let replaced: Vec<_> = open.iter().filter(|(_, row)| is_replaced(row)).collect();
        let replaced: Vec<_> = replaced.into_iter().map(|(key, _)| key.clone()).collect();
        for key in replaced {
            self.advance(open, &key, TransferEvent::BlockReplaced)?;
        }
        Ok(())
    }

    /// Tells what is deep enough or final by now, the oldest block first, of so many transfers at most; whether those were
    /// all.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Bug`] when that cannot be.
    pub fn settle(
        &mut self,
        open: &mut OpenTransfers,
        view: &ChainView,
        most: usize,
    ) -> Result<bool, Fault> {
        let mut due: Vec<_> = open
            .iter()
            .filter(|(_, row)| view.next(&row.state).is_some())
            .map(|(key, row)| (row.state.block().map(|block| block.number), key.clone()))
            .collect();
        due.sort_unstable();
        let are_all = due.len() <= most;
        for (_, key) in due.into_iter().take(most) {
            while let Some(event) = open.get(&key).and_then(|row| view.next(&row.state)) {
                self.advance(open, &key, event)?;
            }
        }
        Ok(are_all)
    }

    fn advance(
        &mut self,
        open: &mut OpenTransfers,
        key: &[u8],
        event: TransferEvent,
    ) -> Result<(), Fault> {
        let Some(row) = open.get(key).cloned() else {
            return Ok(());
        };
        let next = step(Some(row.state), event)?;
        if let Some(tell) = next.tell {
            self.tell(&row, &tell);
        }
        let after = next.next.map(|state| TransferRow {
            state,
            ..row.clone()
        });
        self.put(open, key.to_vec(), Some(row), after);
        Ok(())
    }

    fn tell(&mut self, row: &TransferRow, tell: &OwnerNotice) {
        if !row.transfer.is_told() {
            return;
        }
        let id = |tell: &OwnerNotice| EventId::of(&row.transfer, tell);
        self.notices.push(NewNotice {
            id: id(tell),
            after: tell.predecessor().as_ref().map(id),
            notice: TransferNotice {
                stage: tell.stage,
                transfer: row.transfer.clone(),
                block: tell.block,
                timestamp_ms: row.timestamp_ms,
            },
        });
    }

    fn put(
        &mut self,
        open: &mut OpenTransfers,
        key: Vec<u8>,
        before: Option<TransferRow>,
        after: Option<TransferRow>,
    ) {
        match after.as_ref().filter(|row| row.state.is_open()) {
            Some(row) => open.insert(key.clone(), row.clone()),
            None => open.remove(&key),
        };
        // What is stored is what was there before the first change.
        let touched = self.touched.entry(key).or_insert(TransferChange {
            before,
            after: None,
        });
        touched.after = after;
    }

    /// Writes it all in one commit, with the cursor and what `more` adds. `routes` say what is swept.
    ///
    /// # Errors
    /// When the store cannot be read or written; nothing was changed then, as far as is known.
    pub async fn commit(
        &self,
        (services, routes): (&Services, &Routes),
        (chain, cursor): (FollowedChain, &CursorRow),
        expect: Precondition,
        more: impl Fn(&mut Batch) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        // A notice can end only once, so this comes to an end.
        for _ in 0..self.notices.len().saturating_add(TRIES) {
            let mut batch = self.batch(services, chain, cursor, expect).await?;
            self.add_due_sweeps(&mut batch, routes)?;
            more(&mut batch)?;
            match services.store.commit(batch).await {
                Ok(()) => {
                    if !self.notices.is_empty() {
                        services.listeners.notices_due.notify_one();
                        services.listeners.sweepers.wake(chain);
                    }
                    return Ok(());
                }
                // A notice that one of these waits for was just delivered, or given up.
                Err(CommitError::Conflict(key)) if key.space == KeySpace::NoticeAfter => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Fault::unavailable(
            "the notices of a chain change all the time",
        ))
    }

    async fn batch(
        &self,
        services: &Services,
        chain: FollowedChain,
        cursor: &CursorRow,
        expect: Precondition,
    ) -> Result<Batch, Fault> {
        let now_ms = services.now_ms();
        let mut batch = Batch::new();
        batch.put(deposit_rows::cursor(chain), expect, rows::encode(cursor)?);
        for (number, header) in &self.headers {
            let key = deposit_rows::header(chain, *number);
            match header {
                Some(header) => batch.put(key, Precondition::Any, rows::encode(header)?),
                None => batch.delete(key, Precondition::Any),
            };
        }
        for touched in self.touched.values() {
            add_transfer(&mut batch, touched)?;
        }
        self.add_notices(&mut batch, services, now_ms).await?;
        self.add_audit(&mut batch, chain, now_ms)?;
        Ok(batch)
    }

    async fn add_notices(
        &self,
        batch: &mut Batch,
        services: &Services,
        now_ms: u64,
    ) -> Result<(), Fault> {
        let new: BTreeSet<_> = self.notices.iter().map(|new| new.id).collect();
        let before = self.notices.iter().filter_map(|new| new.after);
        let before: Vec<_> = before.filter(|before| !new.contains(before)).collect();
        let mut told = predecessors(services, &before).await?;
        for NewNotice { id, after, notice } in &self.notices {
            let row = NoticeRow {
                notice: notice.clone(),
                created_at_ms: now_ms,
                attempts: 0,
                first_tried_at_ms: None,
                delivery: NoticeDelivery::Waiting {
                    problem: String::new(),
                },
            };
            let key = deposit_rows::notice(*id);
            batch.put(key, Precondition::Any, rows::encode(&row)?);
            let waits_for = match after {
                None => None,
                Some(before) if new.contains(before) => Some((*before, Precondition::Any)),
                // Who delivers it may be another process: of its end this is to hear.
                Some(before) => match told.remove(before) {
                    Some(Predecessor::Over(version)) => {
                        let key = deposit_rows::notice_after(*before);
                        match version {
                            Some(version) => batch.delete(key, Precondition::Version(version)),
                            None => batch.check(key, Precondition::Absent),
                        };
                        None
                    }
                    Some(Predecessor::Waiting(version)) => {
                        let expect = version.map_or(Precondition::Absent, Precondition::Version);
                        Some((*before, expect))
                    }
                    None => None,
                },
            };
            match waits_for {
                Some((before, expect)) => {
                    let next = rows::encode(&NoticeAfterRow::Next(*id))?;
                    batch.put(deposit_rows::notice_after(before), expect, next);
                }
                None => {
                    let owner = &notice.transfer.owner;
                    let network = notice.transfer.chain.network();
                    let key = deposit_rows::notice_due(owner.token, network, now_ms, *id);
                    batch.put(key, Precondition::Any, rows::encode(&())?);
                }
            }
        }
        Ok(())
    }

    /// Deposit wallets that something was paid to for good which is swept: the sweeper looks at them. What is swept only
    /// from later on, reconciliation finds.
    fn add_due_sweeps(&self, batch: &mut Batch, routes: &Routes) -> Result<(), Fault> {
        let mut due = BTreeMap::new();
        for NewNotice { notice, .. } in &self.notices {
            let transfer = &notice.transfer;
            let is_paid = notice.stage == Stage::Finalized && !transfer.is_send;
            let (token, asset) = (transfer.owner.token, transfer.transfer.asset);
            let is_swept = routes.swept_from(token, transfer.chain, asset).is_some();
            if is_paid && is_swept && transfer.owner.wallet.is_some() {
                let key = sweep_rows::due(transfer.chain, transfer.account(), asset);
                due.insert(key, transfer.owner.clone());
            }
        }
        for (key, owner) in due {
            batch.put(
                key,
                Precondition::Any,
                rows::encode(&SweepDueRow { owner })?,
            );
        }
        Ok(())
    }

    /// Sums of what vaults got for good, and of what was taken back.
    fn add_audit(&self, batch: &mut Batch, chain: FollowedChain, now_ms: u64) -> Result<(), Fault> {
        let mut sums: BTreeMap<(VaultId, Stage, Option<Account>), (u64, U256)> = BTreeMap::new();
        for NewNotice { notice, .. } in &self.notices {
            let transfer = &notice.transfer;
            let Some((_, vault)) = transfer.owner.wallet else {
                continue;
            };
            if transfer.is_send || notice.stage == Stage::Confirmed {
                continue;
            }
            let sum = sums.entry((vault, notice.stage, transfer.transfer.asset));
            let (count, amount) = sum.or_default();
            *count = count.saturating_add(1);
            *amount = amount.saturating_add(U256::from_be_bytes(transfer.transfer.amount));
        }
        for ((vault, stage, asset), (count, amount)) in sums {
            let event = match stage {
                Stage::Reverted => "DepositsReverted",
                Stage::Confirmed | Stage::Finalized => "DepositsFinalized",
            };
            let asset = asset.map(|asset| asset.text(chain.network()));
            AuditNote::for_vault(&AuditActor::service(), vault, event)
                .fact("chain", chain)
                .fact("token", asset.unwrap_or_default())
                .fact("transfers", count)
                .fact("amount", amount)
                .add_to(batch, AuditChain::Vault(vault), now_ms)?;
        }
        Ok(())
    }
}

/// A transfer with the rows by which it is found.
fn add_transfer(batch: &mut Batch, touched: &TransferChange) -> Result<(), Fault> {
    let TransferChange { before, after } = touched;
    let found_by = |row: &Option<TransferRow>| -> BTreeSet<Key> {
        let Some(row) = row else {
            return BTreeSet::new();
        };
        let Some(block) = row.state.block() else {
            return BTreeSet::new();
        };
        let is_open = row.state.is_open();
        let open = is_open.then(|| deposit_rows::open_transfer(&row.transfer, block.number));
        let index = deposit_rows::transfer_index(&row.transfer, block.number);
        open.into_iter().chain([index]).collect()
    };
    let (old, new) = (found_by(before), found_by(after));
    for key in old.difference(&new) {
        batch.delete(key.clone(), Precondition::Any);
    }
    for key in new.difference(&old) {
        batch.put(key.clone(), Precondition::Any, rows::encode(&())?);
    }
    match (before, after) {
        (_, Some(row)) => {
            let key = deposit_rows::transfer(&row.transfer);
            batch.put(key, Precondition::Any, rows::encode(row)?);
        }
        (Some(row), None) => {
            batch.delete(deposit_rows::transfer(&row.transfer), Precondition::Any);
        }
        (None, None) => {}
    }
    Ok(())
}

/// Whether this is a state of which a block that follows may have the transfer.
pub fn may_be_included(stored: Option<&TransferRow>) -> bool {
    stored.is_none_or(|row| matches!(row.state, TransferState::Reverted { .. }))
}

#[cfg(test)]
#[path = "change_tests.rs"]
pub mod tests;
