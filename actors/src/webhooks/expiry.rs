//! Deletes events that were over long ago. The transfers that they were about stay: by them nothing is told twice.

use covault_core::{
    deposit::{DepositNetwork, SweepRoute, event::EventId},
    fault::Fault,
    ids::TokenId,
};

use crate::{
    services::{Services, skip_unreadable},
    store::{
        Batch, CommitError, KeySpace, Precondition, Scan,
        deposit_rows::{self, NoticeAfterRow, NoticeRow},
        prefix_end, rows,
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

/// Deletes events that nobody has been there to take for as long: of tokens without a webhook. One that is set later gets
/// what is younger. `now_ms` is in milliseconds since the Unix epoch.
///
/// # Errors
/// When the store cannot be read or written.
pub async fn delete_unwanted(services: &Services, now_ms: u64) -> Result<(), Fault> {
    let mut from = Some(Vec::new());
    while let Some(begin) = from {
        let scan = Scan {
            from: Some(begin),
            ..Scan::prefix(KeySpace::NoticeDue, &[], 1)
        };
        let first = services.store.scan(&scan).await?.pop();
        let destination = first.and_then(|(key, _)| deposit_rows::destination_of_due(&key));
        let Some((token, network)) = destination else {
            return Ok(());
        };
        let all = deposit_rows::due_notices(token, network);
        from = prefix_end(&all.bytes);
        let route = rows::sweep_route(token, network);
        let found = services.load::<SweepRoute>(&route).await;
        let Some(found) = skip_unreadable(found, format_args!("where webhooks of {token} go"))?
        else {
            continue;
        };
        // Who sets a webhook at the same time keeps all.
        let expect = match found {
            Some((route, _)) if route.webhook.is_some() => continue,
            Some((_, version)) => Precondition::Version(version),
            None => Precondition::Absent,
        };
        loop {
            let scan = Scan::prefix(all.space, &all.bytes, PAGE);
            let page = services.store.scan(&scan).await?;
            let mut batch = Batch::new();
            for (key, _) in &page {
                let Some((due_ms, id)) = deposit_rows::due_event(key) else {
                    continue;
                };
                if due_ms.saturating_add(KEPT_MS) > now_ms {
                    break;
                }
                batch.delete(key.clone(), Precondition::Any);
                forget(services, (token, network), id, &mut batch).await?;
            }
            if batch.writes().is_empty() {
                break;
            }
            batch.check(route.clone(), expect);
            match services.store.commit(batch).await {
                Ok(()) => {}
                Err(CommitError::Conflict(_)) => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Deletes an event that was not sent; what comes after it is as old as it is.
async fn forget(
    services: &Services,
    (token, network): (TokenId, DepositNetwork),
    id: EventId,
    batch: &mut Batch,
) -> Result<(), Fault> {
    let after = deposit_rows::notice_after(id);
    if let Some((NoticeAfterRow::Next(next), version)) =
        services.load::<NoticeAfterRow>(&after).await?
    {
        let found = services
            .load::<NoticeRow>(&deposit_rows::notice(next))
            .await;
        let found = skip_unreadable(found, format_args!("webhook event {next}"))?.flatten();
        if let Some((row, _)) = found {
            let due = deposit_rows::notice_due(token, network, row.created_at_ms, next);
            batch.put(due, Precondition::Any, rows::encode(&())?);
        }
        batch.delete(after, Precondition::Version(version));
    }
    batch.delete(deposit_rows::notice(id), Precondition::Any);
    Ok(())
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::sync::Arc;

    use covault_core::deposit::{
        Webhook,
        event::TransferNotice,
        lifecycle::Stage,
        transfer::{
            Account, AddressOwner, BlockRef, FollowedChain, OwnedTransfer, Transfer, TransferIndex,
        },
    };

    use super::*;
    use crate::{
        services::Listeners,
        store::{deposit_rows::NoticeDelivery, memory::MemoryStore},
        testing::orchestrator_parts,
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

    fn services() -> Services {
        let parts = orchestrator_parts(Arc::new(MemoryStore::new()), Arc::default());
        Services::new(parts, Listeners::none())
    }

    #[tokio::test]
    async fn events_without_a_receiver__should_be_deleted_when_they_are_old() {
        let services = services();
        let (tron, mut batch) = (DepositNetwork::Tron, Batch::new());
        let token = |number| TokenId::from_bytes([number; 16]);
        let mut add = |of: u8, number: u8, due_ms: u64| {
            let id = EventId([number; 16]);
            let row = NoticeRow {
                created_at_ms: due_ms,
                ..notice(NoticeDelivery::Waiting {
                    problem: String::new(),
                })
            };
            let row = rows::encode(&row).unwrap();
            batch.put(deposit_rows::notice(id), Precondition::Absent, row);
            let due = deposit_rows::notice_due(token(of), tron, due_ms, id);
            (id, due)
        };
        let mut due = Vec::new();
        // Those of the first token wait for a receiver that is away, the second has none, nor has the third.
        for number in 0..100 {
            due.push(add(1, number, 10).1);
            due.push(add(2, 100 + number, 10).1);
        }
        // One after the other, and one that is younger.
        let (first, first_due) = add(3, 200, 10);
        let (second, _) = add(3, 201, 11);
        let (young, young_due) = add(3, 202, 12);
        due.extend([first_due, young_due]);
        for due in due {
            batch.put(due, Precondition::Absent, rows::encode(&()).unwrap());
        }
        let next = rows::encode(&NoticeAfterRow::Next(second)).unwrap();
        batch.put(
            deposit_rows::notice_after(first),
            Precondition::Absent,
            next,
        );
        let route = SweepRoute {
            webhook: Some(Webhook("https://example.com/".into())),
            ..SweepRoute::default()
        };
        let key = rows::sweep_route(token(1), tron);
        batch.put(key, Precondition::Absent, rows::encode(&route).unwrap());
        services.store.commit(batch).await.unwrap();
        let left = async |space| {
            let all = Scan::prefix(space, &[], 1_000);
            services.store.scan(&all).await.unwrap().len()
        };
        delete_unwanted(&services, KEPT_MS + 9).await.unwrap();
        assert_eq!(left(KeySpace::TransferNotice).await, 203);
        delete_unwanted(&services, KEPT_MS + 11).await.unwrap();
        assert_eq!(left(KeySpace::TransferNotice).await, 101);
        assert_eq!(left(KeySpace::NoticeDue).await, 101);
        assert_eq!(left(KeySpace::NoticeAfter).await, 0);
        let young = deposit_rows::notice(young);
        assert!(services.store.get(&young).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn events__should_be_deleted_when_they_are_old_and_over() {
        let services = services();
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
