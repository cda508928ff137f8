//! What a chain's follower writes, while somebody else sends the webhooks.

#![allow(non_snake_case)]

use std::sync::Arc;

use covault_core::{
    deposit::transfer::{AddressOwner, Transfer, TransferIndex},
    ids::TokenId,
};

use super::*;
use crate::{
    chain_rpc::{ChainClients, FollowPolicy},
    leases::{self, LeaseScope},
    services::Listeners,
    settings::OrchestratorParts,
    store::{Scan, memory::MemoryStore},
    testing::orchestrator_parts,
};

pub const CHAIN: FollowedChain = FollowedChain::Evm(1);

/// What a follower has under its lease.
pub async fn world() -> Services {
    let parts = OrchestratorParts {
        chains: ChainClients::default().with_follow(CHAIN, FollowPolicy::default()),
        ..orchestrator_parts(Arc::new(MemoryStore::new()), Arc::default())
    };
    let services = Services::new(parts, Listeners::none());
    leases::take_all(&services).await.unwrap();
    let lease = services.held_leases.get(LeaseScope::Chain(CHAIN)).unwrap();
    services.with_lease(lease)
}

fn header(number: u64) -> BlockHeader {
    BlockHeader {
        block: BlockRef {
            number,
            hash: [u8::try_from(number).unwrap(); 32],
        },
        parent: [0; 32],
        timestamp_ms: number,
    }
}

fn transfer() -> OwnedTransfer {
    OwnedTransfer {
        chain: CHAIN,
        transfer: Transfer {
            tx: [1; 32],
            index: TransferIndex::Value,
            from: Account([2; 20]),
            to: Account([3; 20]),
            asset: None,
            amount: [4; 32],
        },
        is_send: false,
        owner: AddressOwner {
            token: TokenId::from_bytes([5; 16]),
            reference: String::new(),
            wallet: None,
            since_ms: 0,
        },
    }
}

fn cursor(number: u64) -> CursorRow {
    CursorRow {
        head: header(number).block,
        finalized: header(number).block,
    }
}

fn view(finalized: u64) -> ChainView {
    ChainView {
        head: 20,
        finalized,
        confirmations: 2,
    }
}

/// The transfer was told as confirmed, which is not delivered yet. It is to be told as final.
async fn confirmed(services: &Services) -> ChainChange {
    let mut open = OpenTransfers::new();
    let mut first = ChainChange::default();
    first
        .include(&mut open, transfer(), None, &header(10))
        .unwrap();
    first.settle(&mut open, &view(9), usize::MAX).unwrap();
    let nothing = |_: &mut Batch| Ok(());
    let (cursor, routes) = (cursor(10), Routes::default());
    let written = first.commit(
        (services, &routes),
        (CHAIN, &cursor),
        Precondition::Absent,
        nothing,
    );
    written.await.unwrap();
    let mut next = ChainChange::default();
    next.settle(&mut open, &view(10), usize::MAX).unwrap();
    assert_eq!(next.notices.len(), 1);
    next
}

async fn notices(services: &Services) -> Vec<(Key, NoticeRow, u64)> {
    let all = Scan::prefix(KeySpace::TransferNotice, &[], 10);
    let found = services.store.scan(&all).await.unwrap();
    found
        .into_iter()
        .map(|(key, row)| (key, rows::decode(&row.value).unwrap(), row.version))
        .collect()
}

async fn count(services: &Services, space: KeySpace) -> usize {
    let all = Scan::prefix(space, &[], 10);
    services.store.scan(&all).await.unwrap().len()
}

#[test]
fn settling__should_go_on_in_several_commits() {
    let mut open = OpenTransfers::new();
    let mut first = ChainChange::default();
    for number in 0..5 {
        let mut one = transfer();
        one.transfer.tx = [number; 32];
        let block = header(u64::from(12 - number));
        first.include(&mut open, one, None, &block).unwrap();
    }
    let mut told = Vec::new();
    for (round, are_all) in [(0, false), (1, false), (2, true), (3, true)] {
        let mut change = ChainChange::default();
        assert_eq!(
            change.settle(&mut open, &view(0), 2).unwrap(),
            are_all,
            "{round}"
        );
        let blocks = change.notices.iter();
        told.extend(blocks.map(|new| new.notice.block.number));
    }
    // Each once, the oldest first.
    assert_eq!(told, [8, 9, 10, 11, 12]);
}

#[tokio::test]
async fn tries_of_a_webhook__should_not_hold_up_the_chain() {
    let services = world().await;
    let next = confirmed(&services).await;
    let expect = Precondition::Version(1);
    let batch = next
        .batch(&services, CHAIN, &cursor(11), expect)
        .await
        .unwrap();
    for _ in 0..3 {
        let (key, mut row, version) = notices(&services).await.remove(0);
        row.attempts += 1;
        let mut tried = Batch::new();
        tried.put(
            key,
            Precondition::Version(version),
            rows::encode(&row).unwrap(),
        );
        services.store.commit(tried).await.unwrap();
    }
    services.store.commit(batch).await.unwrap();
    // It waits for the one before it.
    assert_eq!(count(&services, KeySpace::NoticeDue).await, 1);
    assert_eq!(count(&services, KeySpace::NoticeAfter).await, 1);
}

#[tokio::test]
async fn end_of_a_webhook__should_be_heard_of_by_what_comes_after_it() {
    let services = world().await;
    let next = confirmed(&services).await;
    let expect = Precondition::Version(1);
    let batch = next
        .batch(&services, CHAIN, &cursor(11), expect)
        .await
        .unwrap();
    // It is delivered between reading and writing.
    let (key, mut row, version) = notices(&services).await.remove(0);
    row.delivery = NoticeDelivery::Delivered { at_ms: 1 };
    let mut ended = Batch::new();
    let id = deposit_rows::event_of_notice(&key).unwrap();
    ended.put(
        key,
        Precondition::Version(version),
        rows::encode(&row).unwrap(),
    );
    let over = rows::encode(&NoticeAfterRow::Over).unwrap();
    ended.put(deposit_rows::notice_after(id), Precondition::Absent, over);
    services.store.commit(ended).await.unwrap();
    let refused = services.store.commit(batch).await;
    let key = deposit_rows::notice_after(id);
    assert_eq!(refused, Err(CommitError::Conflict(key)));
    // The same, once more: it may be sent at once, and nothing is left between the two.
    let nothing = |_: &mut Batch| Ok(());
    next.commit(
        (&services, &Routes::default()),
        (CHAIN, &cursor(11)),
        expect,
        nothing,
    )
    .await
    .unwrap();
    assert_eq!(count(&services, KeySpace::NoticeDue).await, 2);
    assert_eq!(count(&services, KeySpace::NoticeAfter).await, 0);
}
