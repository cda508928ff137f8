//! Deletes events that were over long ago. The transfers that they were about stay: by them nothing is told twice.

use covault_core::fault::Fault;

use crate::{
    services::{Services, skip_unreadable},
    store::{
        Batch, CommitError, KeySpace, Precondition, Scan,
        deposit_rows::{self, NoticeRow},
    },
};

/// For how long events are kept after they were delivered or given up, in milliseconds.
pub const KEPT_MS: u64 = 90 * 24 * 60 * 60 * 1_000;
/// Events that one commit deletes.
const PAGE: usize = 64;

/// Deletes events that were delivered or given up long ago. `now_ms` is in milliseconds since the Unix epoch.
///
/// # Errors
/// When the store cannot be read or written.
pub async fn delete_old(services: &Services, now_ms: u64) -> Result<(), Fault> {
    loop {
        let all = Scan::prefix(KeySpace::NoticeAge, &[], PAGE);
        let page = services.store.scan(&all).await?;
        let mut batch = Batch::new();
        let mut is_last = page.len() < PAGE;
        for (key, _) in &page {
            let Some((at_ms, id)) = deposit_rows::event_of_age(key) else {
                continue;
            };
            if at_ms.saturating_add(KEPT_MS) > now_ms {
                is_last = true;
                break;
            }
            let notice = deposit_rows::notice(id);
            let found = services.load::<NoticeRow>(&notice).await;
            let found = skip_unreadable(found, format_args!("webhook event {id}"))?.flatten();
            // One that an operator has sent again is over at another time.
            if let Some((row, version)) = found
                && row.over_at_ms() == Some(at_ms)
            {
                batch.delete(notice, Precondition::Version(version));
                batch.delete(deposit_rows::notice_after(id), Precondition::Any);
            }
            batch.delete(key.clone(), Precondition::Any);
        }
        if batch.writes().is_empty() {
            return Ok(());
        }
        match services.store.commit(batch).await {
            Ok(()) if is_last => return Ok(()),
            Ok(()) => {}
            // An operator has just sent one of them again: the next time.
            Err(CommitError::Conflict(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::sync::Arc;

    use covault_core::{
        deposit::{
            event::{EventId, TransferNotice},
            lifecycle::Stage,
            transfer::{
                Account, AddressOwner, BlockRef, FollowedChain, OwnedTransfer, Transfer,
                TransferIndex,
            },
        },
        ids::TokenId,
        testing::{ConstantEntropy, ManualClock},
    };

    use super::*;
    use crate::{
        chain_rpc::ChainClients,
        services::Listeners,
        settings::{OrchestratorParts, OrchestratorSharing, Settings},
        store::{deposit_rows::NoticeDelivery, memory::MemoryStore, rows},
        testing::NoSigners,
    };

    fn notice(delivery: NoticeDelivery) -> NoticeRow {
        let owner = AddressOwner {
            token: TokenId::from_bytes([1; 16]),
            reference: String::new(),
            wallet: None,
            since_ms: 0,
        };
        let transfer = Transfer {
            tx: [2; 32],
            index: TransferIndex::Value,
            from: Account([3; 20]),
            to: Account([4; 20]),
            asset: None,
            amount: [5; 32],
        };
        NoticeRow {
            notice: TransferNotice {
                stage: Stage::Confirmed,
                transfer: OwnedTransfer {
                    chain: FollowedChain::Tron,
                    transfer,
                    is_send: false,
                    owner,
                },
                block: BlockRef {
                    number: 6,
                    hash: [7; 32],
                },
                timestamp_ms: 8,
            },
            created_at_ms: 0,
            attempts: 1,
            first_tried_at_ms: None,
            delivery,
        }
    }

    #[tokio::test]
    async fn events__should_be_deleted_when_they_are_old_and_over() {
        let parts = OrchestratorParts {
            store: Arc::new(MemoryStore::new()),
            signers: Arc::<NoSigners>::default(),
            clock: Arc::<ManualClock>::default(),
            entropy: Arc::new(ConstantEntropy(0)),
            chains: ChainClients::default(),
            settings: Settings::default(),
            webhooks: Default::default(),
            sharing: OrchestratorSharing::default(),
        };
        let services = Services::new(parts, Listeners::none());
        let mut batch = Batch::new();
        let mut add = |number: u8, at_ms: u64, delivery: NoticeDelivery| {
            let id = EventId([number; 16]);
            let row = rows::encode(&notice(delivery)).unwrap();
            batch.put(deposit_rows::notice(id), Precondition::Absent, row);
            batch.put(
                deposit_rows::notice_age(at_ms, id),
                Precondition::Absent,
                vec![],
            );
        };
        let problem = String::new;
        // More than one commit takes.
        for number in 0..100 {
            add(number, 10, NoticeDelivery::Delivered { at_ms: 10 });
        }
        let dead = NoticeDelivery::Dead {
            at_ms: 11,
            problem: problem(),
        };
        add(100, 11, dead);
        // Sent again since: it waits, or has another time.
        add(101, 11, NoticeDelivery::Waiting { problem: problem() });
        add(102, 11, NoticeDelivery::Delivered { at_ms: 50 });
        add(103, 12, NoticeDelivery::Delivered { at_ms: 12 });
        services.store.commit(batch).await.unwrap();
        let left = async |space| {
            let all = Scan::prefix(space, &[], 1_000);
            let found = services.store.scan(&all).await.unwrap();
            found.len()
        };
        delete_old(&services, KEPT_MS + 9).await.unwrap();
        assert_eq!(left(KeySpace::TransferNotice).await, 104);
        delete_old(&services, KEPT_MS + 11).await.unwrap();
        assert_eq!(left(KeySpace::TransferNotice).await, 3);
        assert_eq!(left(KeySpace::NoticeAge).await, 1);
    }
}
