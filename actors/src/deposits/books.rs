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

/// What a wallet has by its transfers after a block: for chains whose nodes say nothing of the past. `None` where more had
/// gone than had come after any block: something came unseen, and what came later is not to make up for it.
///
/// # Errors
/// When the store cannot be read.
pub async fn balance_after(
    services: &Services,
    chain: FollowedChain,
    of: (Account, Option<Account>, TokenId),
    block: u64,
) -> Result<Option<U256>, Fault> {
    Ok(balance_of(entries(services, chain, of, 0).await?, block))
}

fn balance_of(mut entries: Vec<LedgerEntry>, to: u64) -> Option<U256> {
    entries.retain(|entry| entry.block <= to);
    entries.sort_by_key(|entry| entry.block);
    let mut ledger = Ledger::default();
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
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn books__should_say_nothing_once_more_went_than_came() {
        let entry = |block, is_send, amount: u64| LedgerEntry {
            block,
            is_send,
            is_fee: false,
            is_final: true,
            amount: U256::from(amount).to_be_bytes(),
        };
        let unseen = || vec![entry(5, true, 100)];
        assert_eq!(balance_of(unseen(), 4), Some(U256::ZERO));
        assert_eq!(balance_of(unseen(), 5), None);
        for later in [50, 100, 300] {
            let mut entries = unseen();
            entries.push(entry(9, false, later));
            assert_eq!(balance_of(entries, 9), None, "{later}");
        }
        // Found by a later look, which names it after the others.
        let mut entries = unseen();
        entries.extend([entry(9, false, 100), entry(3, false, 100)]);
        assert_eq!(balance_of(entries, 9), Some(U256::from(100)));
        // It came and went in one block.
        let entries = vec![entry(5, true, 100), entry(5, false, 100)];
        assert_eq!(balance_of(entries, 5), Some(U256::ZERO));
    }
}
