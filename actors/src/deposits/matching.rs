//! Which transfers of blocks are announced.

use std::collections::{BTreeMap, BTreeSet};

use covault_core::{
    deposit::{
        sweep::{SweepJob, SweepState},
        transfer::{Account, AddressOwner, DepositAddress, OwnedTransfer, Transfer, TransferIndex},
    },
    fault::Fault,
};

use super::{follower::FollowStep, progress::FollowError};
use crate::{
    backup::restore,
    chain_rpc::ChainBlock,
    services::skip_unreadable,
    store::{deposit_rows, sweep_rows},
};

/// Rows that one question to the store names.
const KEYS: usize = 1_000;
/// How far the clock of who asks for an address to be watched and that of who makes the next block may be apart, in
/// milliseconds: nothing that comes after the call is to be left out.
const CLOCKS_APART_MS: u64 = 60_000;
/// How long after a restore a transaction of before may still get into a block, in milliseconds.
const LATE_MS: u64 = 6 * 60 * 60 * 1_000;

impl FollowStep<'_> {
    /// Who is told of the accounts that are named in blocks.
    pub(super) async fn owners(
        &self,
        blocks: &[ChainBlock],
    ) -> Result<BTreeMap<Account, Vec<AddressOwner>>, Fault> {
        let network = self.chain.network();
        let candidates = blocks.iter().flat_map(|block| &block.candidates);
        let accounts = candidates.flat_map(|candidate| [candidate.from, candidate.to]);
        let accounts: BTreeSet<_> = accounts.collect();
        let accounts: Vec<_> = accounts.into_iter().collect();
        let mut owners = BTreeMap::new();
        for some in accounts.chunks(KEYS) {
            let keys = some
                .iter()
                .map(|account| deposit_rows::deposit_address(network, *account));
            let keys: Vec<_> = keys.collect();
            let found = self.services.load_all::<DepositAddress>(&keys).await?;
            for (account, address) in some.iter().zip(found) {
                if let Some(address) = address? {
                    owners.insert(*account, address.owners);
                }
            }
        }
        Ok(owners)
    }

    /// The transfers of a block that are announced.
    pub(super) async fn transfers(
        &self,
        block: &ChainBlock,
        owners: &BTreeMap<Account, Vec<AddressOwner>>,
    ) -> Result<Vec<OwnedTransfer>, FollowError> {
        let told = |account: &Account, asset: Option<Account>, is_fee: bool| {
            let owners = owners.get(account).into_iter().flatten();
            owners.filter(move |owner| {
                let seen_ms = block.header.timestamp_ms.saturating_add(CLOCKS_APART_MS);
                // Nobody keeps the books of an address that is only watched.
                let is_kept = !is_fee || owner.wallet.is_some();
                is_kept && owner.since_ms <= seen_ms && self.routes.tells(owner, self.chain, asset)
            })
        };
        let matched = block.candidates.iter().filter(|candidate| {
            let sides = [candidate.from, candidate.to];
            let mut sides = sides.iter();
            sides.any(|account| {
                let mut owners = told(account, candidate.asset, candidate.is_fee());
                owners.next().is_some()
            })
        });
        let matched: Vec<_> = matched.copied().collect();
        if matched.is_empty() {
            return Ok(Vec::new());
        }
        let confirmed = self.source.confirm(&block.header.block, &matched).await?;
        let mut transfers = Vec::new();
        for mut transfer in confirmed {
            if !transfer.moves_something() {
                continue;
            }
            if self.is_top_up(&transfer, block.header.timestamp_ms).await? {
                transfer.index = TransferIndex::TopUp;
            }
            let is_fee = transfer.index == TransferIndex::Fee;
            for (account, is_send) in [(transfer.to, false), (transfer.from, true)] {
                let owners = told(&account, transfer.asset, is_fee);
                transfers.extend(owners.map(|owner| OwnedTransfer {
                    chain: self.chain,
                    transfer,
                    is_send,
                    owner: owner.clone(),
                }));
            }
        }
        Ok(transfers)
    }

    /// Whether a sweep has asked a gas wallet for it, which is written before it is sent, or it helps one that was topped up
    /// already. All else that such a wallet pays is a deposit as any other.
    async fn is_top_up(&self, transfer: &Transfer, at_ms: u64) -> Result<bool, Fault> {
        let is_gas_account = self.routes.is_gas_account(self.chain, transfer.from);
        if transfer.index != TransferIndex::Value || is_gas_account == Some(false) {
            return Ok(false);
        }
        let asked = sweep_rows::top_up(self.chain, transfer.to, &transfer.amount);
        if self.services.store.get(&asked).await?.is_some() {
            return Ok(true);
        }
        // Of somebody of whom it is not known whether it is a gas account, all else is a deposit.
        if is_gas_account.is_none() {
            return Ok(false);
        }
        let sweep = sweep_rows::sweep(self.chain, transfer.to);
        let sweep = self.services.load::<SweepJob>(&sweep).await;
        // One wallet's must not hold up the deposits of all. What cannot be read is told, and so looked at.
        let sweep = skip_unreadable(sweep, "the sweep of a deposit wallet")?.flatten();
        // Also where somebody has emptied the wallet: its top-up is not made again.
        let is_swept = |job: &SweepJob| matches!(job.state, SweepState::Swept { .. });
        if sweep.is_some_and(|(job, _)| job.top_up.is_some() && !is_swept(&job)) {
            return Ok(true);
        }
        // What was asked for after a backup is not known where that was restored.
        let unknown = restore::unknown_time(self.services).await?;
        Ok(unknown.is_some_and(|time| {
            let begin_ms = time.start().saturating_sub(CLOCKS_APART_MS);
            let end_ms = time.end().saturating_add(LATE_MS);
            (begin_ms..=end_ms).contains(&at_ms)
        }))
    }
}
