//! Transfers that were told in another way than that in which they are found now.

use covault_core::{
    deposit::transfer::{OwnedTransfer, Transfer, TransferIndex},
    fault::Fault,
};

use super::super::follower::FollowStep;
use crate::store::{
    KeySpace, Scan,
    deposit_rows::{self, TransferRow},
};

/// Rows that one question to the store names.
const KEYS: usize = 1_000;

/// Whether a contract has passed it on, in whatever way that was found.
fn is_passed_on(of: &OwnedTransfer) -> bool {
    let by = matches!(
        of.transfer.index,
        TransferIndex::Internal(_) | TransferIndex::Log(_)
    );
    of.transfer.asset.is_none() && by
}

/// Whether both may be what a contract has passed on, by its trace and by the log of the coin.
fn is_same_otherwise(one: &OwnedTransfer, other: &OwnedTransfer) -> bool {
    let is_trace = |of: &OwnedTransfer| matches!(of.transfer.index, TransferIndex::Internal(_));
    let moved = |of: &OwnedTransfer| {
        let Transfer {
            tx,
            from,
            to,
            amount,
            ..
        } = of.transfer;
        (tx, from, to, amount, of.is_send)
    };
    is_passed_on(one)
        && is_passed_on(other)
        && is_trace(one) != is_trace(other)
        && moved(one) == moved(other)
}

impl FollowStep<'_> {
    /// Whether a transfer without a row may have been told otherwise already, by an entry of its block or a later one: what a
    /// contract passes on by its trace, and now by a log, or by a log and now by its trace; after a restart, all by a balance of
    /// the asset. That can be only where blocks are looked through again; what is left out wrongly is told by the next
    /// balance.
    pub(in crate::deposits) async fn may_be_told_otherwise(
        &self,
        transfer: &OwnedTransfer,
        number: u64,
        was_restarted: bool,
    ) -> Result<bool, Fault> {
        if !was_restarted && !is_passed_on(transfer) {
            return Ok(false);
        }
        let (all, from) = deposit_rows::transfers_from(self.chain, transfer.account(), number);
        let mut next = Some(Scan {
            from: Some(from),
            ..Scan::prefix(KeySpace::TransferIndex, &all.bytes, KEYS)
        });
        while let Some(scan) = next {
            let page = self.services.store.scan(&scan).await?;
            let keys = page
                .iter()
                .filter_map(|(key, _)| deposit_rows::transfer_of_index(key));
            let keys: Vec<_> = keys.collect();
            for row in self.services.load_all::<TransferRow>(&keys).await? {
                let is_it = row?.is_some_and(|row| {
                    let of = row.transfer;
                    let is_balance = was_restarted
                        && of.transfer.index == TransferIndex::Balance
                        && of.transfer.asset == transfer.transfer.asset;
                    // One that was reverted was taken back.
                    let is_same = row.state.block().is_some() && is_same_otherwise(&of, transfer);
                    let is_told = is_balance || is_same;
                    is_told && of.owner.token == transfer.owner.token
                });
                if is_it {
                    return Ok(true);
                }
            }
            next = scan.rest(&page);
        }
        Ok(false)
    }
}
