//! What is known of a deposit wallet by its transfers alone: what it received, sent and paid as fees.

use covault_core::{
    amount::U256,
    deposit::{
        balance::Ledger,
        transfer::{Account, FollowedChain},
    },
    fault::Fault,
    ids::TokenId,
};

use crate::{
    services::Services,
    store::{
        KeySpace, Scan,
        deposit_rows::{self, BalanceRow, ReconciliationRow, TransferRow},
    },
};

/// Rows that one question to the store names.
const KEYS: usize = 1_000;

/// A transfer as the books have it.
pub struct LedgerEntry {
    pub block: u64,
    pub is_send: bool,
    pub is_fee: bool,
    pub is_final: bool,
    pub amount: [u8; 32],
}

/// What is known up to a block, of an address that had so much before.
pub fn ledger(base: [u8; 32], entries: &[LedgerEntry], to: u64) -> Ledger {
    let mut ledger = Ledger::new(base);
    for entry in entries.iter().filter(|entry| entry.block <= to) {
        ledger.add(entry.is_send, entry.amount);
    }
    ledger
}

/// The transfers of a coin or token of a wallet since a block, as they were told to an API token.
///
/// # Errors
/// When the store cannot be read.
pub async fn entries(
    services: &Services,
    chain: FollowedChain,
    (account, asset, token): (Account, Option<Account>, TokenId),
    first: u64,
) -> Result<Vec<LedgerEntry>, Fault> {
    let (all, from) = deposit_rows::transfers_from(chain, account, first);
    let mut entries = Vec::new();
    let mut next = Some(Scan {
        from: Some(from),
        ..Scan::prefix(KeySpace::TransferIndex, &all.bytes, KEYS)
    });
    while let Some(scan) = next {
        let page = services.store.scan(&scan).await?;
        let keys = page
            .iter()
            .filter_map(|(key, _)| deposit_rows::transfer_of_index(key));
        let keys: Vec<_> = keys.collect();
        for row in services.load_all::<TransferRow>(&keys).await? {
            let row = row?.ok_or_else(|| Fault::bug("a transfer of an address without a row"))?;
            let is_it = row.transfer.transfer.asset == asset && row.transfer.owner.token == token;
            if let Some(block) = row.state.block().filter(|_| is_it) {
                entries.push(LedgerEntry {
                    block: block.number,
                    is_send: row.transfer.is_send,
                    is_fee: row.transfer.is_fee(),
                    is_final: row.state.is_final(),
                    amount: row.transfer.transfer.amount,
                });
            }
        }
        next = scan.rest(&page);
    }
    Ok(entries)
}

/// What a wallet has by its transfers after a block: for chains whose nodes say nothing of the past. They are added to what
/// it had when they were last compared with the chain. `None` where more had gone than had come after any block: something
/// came unseen, and what came later is not to make up for it.
///
/// # Errors
/// When the store cannot be read.
pub async fn balance_after(
    services: &Services,
    chain: FollowedChain,
    of: (Account, Option<Account>, TokenId),
    block: u64,
) -> Result<Option<U256>, Fault> {
    let (account, asset, _) = of;
    let compared = deposit_rows::balance(chain, account, asset);
    let compared = services.load::<BalanceRow>(&compared).await?;
    let restarts = deposit_rows::reconciliation(chain);
    let restarts = services.load::<ReconciliationRow>(&restarts).await?;
    let restarts = restarts.map_or(0, |(row, _)| row.restarts);
    let counts = |row: &BalanceRow| row.restarts == restarts && row.block <= block;
    let base = compared.map(|(row, _)| row).filter(counts);
    let (since, base) = base.map_or((0, [0; 32]), |row| (row.block, row.balance));
    let entries = entries(services, chain, of, since.saturating_add(1)).await?;
    Ok(balance_of(base, entries, block))
}

fn balance_of(base: [u8; 32], mut entries: Vec<LedgerEntry>, to: u64) -> Option<U256> {
    entries.retain(|entry| entry.block <= to);
    entries.sort_by_key(|entry| entry.block);
    let mut ledger = Ledger::new(base);
    // Within a block their order is not known.
    for block in entries.chunk_by(|one, next| one.block == next.block) {
        for entry in block {
            ledger.add(entry.is_send, entry.amount);
        }
        ledger.balance()?;
    }
    ledger.balance().map(U256::from_be_bytes)
}

#[cfg(test)]
#[path = "books_tests.rs"]
mod tests;
