#![allow(non_snake_case)]

use covault_core::{
    deposit::{
        lifecycle::TransferState,
        transfer::{AddressOwner, BlockRef, OwnedTransfer, Transfer, TransferIndex},
    },
    ids::{VaultId, WalletId},
};

use super::{
    super::change::tests::{CHAIN, world},
    *,
};
use crate::store::{Batch, Precondition, rows};

#[test]
fn books__should_say_nothing_once_more_went_than_came() {
    let entry = |block, is_send, amount: u64| LedgerEntry {
        block,
        is_send,
        is_fee: false,
        is_final: true,
        amount: U256::from(amount).to_be_bytes(),
    };
    let balance_of = |entries, to| super::balance_of([0; 32], entries, to);
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

const WALLET: Account = Account([2; 20]);

fn token() -> TokenId {
    TokenId::from_bytes([4; 16])
}

/// So much coin came with this number, in the block of the same number.
async fn pay(services: &Services, number: u64, amount: u64) {
    let mut tx = [0; 32];
    tx[..8].copy_from_slice(&number.to_be_bytes());
    let transfer = OwnedTransfer {
        chain: CHAIN,
        transfer: Transfer {
            tx,
            index: TransferIndex::Value,
            from: Account([1; 20]),
            to: WALLET,
            asset: None,
            amount: U256::from(amount).to_be_bytes(),
        },
        is_send: false,
        owner: AddressOwner {
            token: token(),
            reference: "order-1".into(),
            wallet: Some((WalletId::from_bytes([5; 16]), VaultId::from_bytes([6; 16]))),
            since_ms: 0,
        },
    };
    let block = BlockRef {
        number,
        hash: [3; 32],
    };
    let row = TransferRow {
        state: TransferState::Finalized { block, round: 0 },
        timestamp_ms: 1,
        transfer,
    };
    let mut batch = Batch::new();
    let index = deposit_rows::transfer_index(&row.transfer, number);
    batch.put(index, Precondition::Any, rows::encode(&()).unwrap());
    let key = deposit_rows::transfer(&row.transfer);
    batch.put(key, Precondition::Any, rows::encode(&row).unwrap());
    services.store.commit(batch).await.unwrap();
}

async fn balance(services: &Services, block: u64) -> Option<U256> {
    balance_after(services, CHAIN, (WALLET, None, token()), block)
        .await
        .unwrap()
}

#[tokio::test]
async fn books__should_add_what_came_since_they_were_compared() {
    let services = world().await;
    for number in 1..=9 {
        pay(&services, number, 10).await;
    }
    assert_eq!(balance(&services, 9).await, Some(U256::from(90)));
    // Another number than that of the transfers, to tell the two apart.
    let compared = BalanceRow {
        block: 7,
        balance: U256::from(1_000).to_be_bytes(),
        restarts: 0,
        missing: [0; 32],
        is_more: false,
        doubt: None,
    };
    let write = async |key, row: Vec<u8>| {
        let mut batch = Batch::new();
        batch.put(key, Precondition::Any, row);
        services.store.commit(batch).await.unwrap();
    };
    let key = deposit_rows::balance(CHAIN, WALLET, None);
    write(key, rows::encode(&compared).unwrap()).await;
    assert_eq!(balance(&services, 9).await, Some(U256::from(1_020)));
    assert_eq!(balance(&services, 8).await, Some(U256::from(1_010)));
    // It says nothing of the time before, nor after the chain was followed again.
    assert_eq!(balance(&services, 6).await, Some(U256::from(60)));
    let restarted = ReconciliationRow {
        restarts: 1,
        ..Default::default()
    };
    let key = deposit_rows::reconciliation(CHAIN);
    write(key, rows::encode(&restarted).unwrap()).await;
    assert_eq!(balance(&services, 9).await, Some(U256::from(90)));
}
