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
        deposit_rows::{self, TransferRow},
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

/// What a wallet has by its transfers after a block: for chains whose nodes say nothing of the past.
///
/// # Errors
/// When the store cannot be read.
pub async fn balance_after(
    services: &Services,
    chain: FollowedChain,
    of: (Account, Option<Account>, TokenId),
    block: u64,
) -> Result<U256, Fault> {
    let entries = entries(services, chain, of, 0).await?;
    let ledger = ledger([0; 32], &entries, block);
    Ok(U256::from_be_bytes(ledger.balance()))
}
