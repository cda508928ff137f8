//! The actor that deletes expired rows: idempotency records, and reservations of ended requests whose
//! transactions no block can include.
//!
//! What is freed can be spent again, and a call whose record is gone can be made again, so neither depends on a wall clock
//! alone: it must have been past their time for hours of the monotonic clock.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use async_trait::async_trait;
use covault_core::{fault::Fault, ids::RequestId};
use ractor::{Actor, ActorProcessingErr, ActorRef};

use crate::{
    commands::idempotency,
    leases,
    services::{Services, skip_unreadable},
    store::{
        Batch, CommitError, Key, KeySpace, Precondition, Scan,
        rows::{self, OutboxRow, ReservationExpiry},
    },
    webhooks::expiry,
};

/// How often it looks.
const INTERVAL: Duration = Duration::from_secs(15 * 60);
/// Rows that are read at once.
const PAGE: usize = 64;
/// For how long the clock has to have said so before anything is deleted, in milliseconds of the monotonic clock, so
/// that an operator has time to correct the wall clock.
const CONFIRMATION_MS: u64 = 6 * 60 * 60 * 1000;

pub enum Msg {
    /// It is time to look.
    CleanupDue,
}

pub struct RetentionJob;

#[async_trait]
impl Actor for RetentionJob {
    type Msg = Msg;
    type State = RetentionState;
    type Arguments = Arc<Services>;

    async fn pre_start(
        &self,
        myself: ActorRef<Msg>,
        services: Arc<Services>,
    ) -> Result<RetentionState, ActorProcessingErr> {
        myself.send_interval(INTERVAL, || Msg::CleanupDue);
        Ok(RetentionState {
            services,
            clock: ConfirmedClock::default(),
        })
    }

    async fn handle(
        &self,
        _: ActorRef<Msg>,
        message: Msg,
        state: &mut RetentionState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Msg::CleanupDue => {
                let services = &state.services;
                let steady_ms = services.monotonic.elapsed_ms();
                let confirmed_ms = state.clock.confirmed_ms(services.now_ms(), steady_ms);
                // The next sweep comes anyway.
                let here = match leases::maintenance_lease(services).await {
                    Ok(Some(here)) => here,
                    // One orchestrator does it for all.
                    Ok(None) => return Ok(()),
                    Err(fault) => {
                        tracing::warn!(?fault, "failed to delete old rows");
                        return Ok(());
                    }
                };
                let services = &here;
                if let Some(now_ms) = confirmed_ms
                    && let Err(fault) = idempotency::delete_expired(services, now_ms).await
                {
                    tracing::warn!(?fault, "failed to delete old idempotency records");
                }
                if let Some(now_ms) = confirmed_ms
                    && let Err(fault) = expiry::delete_old(services, now_ms).await
                {
                    tracing::warn!(?fault, "failed to delete old webhook events");
                }
                if let Some(now_ms) = confirmed_ms
                    && let Err(fault) = expiry::delete_unwanted(services, now_ms).await
                {
                    tracing::warn!(?fault, "failed to delete webhook events without a receiver");
                }
                if let Some(now_ms) = confirmed_ms
                    && let Err(fault) = free_expired_reservations(services, now_ms).await
                {
                    tracing::warn!(?fault, "failed to release expired reservations");
                }
            }
        }
        Ok(())
    }
}

pub struct RetentionState {
    services: Arc<Services>,
    clock: ConfirmedClock,
}

/// A lower bound of the time, no matter how the clock was set within the last hours.
#[derive(Default)]
struct ConfirmedClock {
    /// What the clock said, and the steady one, in milliseconds; those that matter, the oldest first.
    looks: VecDeque<(u64, u64)>,
}

impl ConfirmedClock {
    /// The earliest time that any look within [`CONFIRMATION_MS`], and one before, makes it, in milliseconds since
    /// the Unix epoch; `None` before there is one so old.
    fn confirmed_ms(&mut self, now_ms: u64, steady_ms: u64) -> Option<u64> {
        self.looks.push_back((now_ms, steady_ms));
        let is_old = |look: &(u64, u64)| steady_ms.saturating_sub(look.1) >= CONFIRMATION_MS;
        while self.looks.get(1).is_some_and(is_old) {
            self.looks.pop_front();
        }
        if !self.looks.front().is_some_and(is_old) {
            return None;
        }
        let looks = self.looks.iter();
        looks
            .map(|(said_ms, at_ms)| said_ms.saturating_add(steady_ms.saturating_sub(*at_ms)))
            .min()
    }
}

/// Deletes the claims whose time has come, where they are still those of their request. `now_ms` is in
/// milliseconds since the Unix epoch.
pub async fn free_expired_reservations(services: &Services, now_ms: u64) -> Result<(), Fault> {
    let mut next = Some(Scan::prefix(KeySpace::ReservationExpiry, &[], PAGE));
    while let Some(scan) = next {
        let page = services.store.scan(&scan).await?;
        let mut batch = Batch::new();
        let mut all_due = true;
        for (key, row) in &page {
            let due = rows::reservation_expiry_due(key)
                .ok_or_else(|| Fault::bug("a release without a time"));
            let Some((due_ms, request)) = skip_unreadable(due, "when claims are released")? else {
                continue;
            };
            if due_ms > now_ms {
                all_due = false;
                break;
            }
            let release = skip_unreadable(rows::decode(&row.value), "what claims are released")?;
            let Some(ReservationExpiry { claims }) = release else {
                continue;
            };
            // One that is still followed is still sent again.
            let followed = services.request(request).await;
            if let Some((followed, _)) = skip_unreadable(followed, "a request")?.flatten() {
                let outbox = rows::outbox(followed.vault, request);
                if services.load::<OutboxRow>(&outbox).await?.is_some() {
                    continue;
                }
            }
            for bytes in claims {
                let claim = Key::new(KeySpace::Claim, &[&bytes]);
                let holder = services.load::<RequestId>(&claim).await;
                if let Some((holder, version)) = skip_unreadable(holder, "a claim")?.flatten()
                    && holder == request
                {
                    batch.delete(claim, Precondition::Version(version));
                }
            }
            batch.delete(key.clone(), Precondition::Version(row.version));
        }
        if !batch.writes().is_empty() {
            match services.store.commit(batch).await {
                Ok(()) => {}
                Err(CommitError::Conflict(_)) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        next = scan.rest(&page).filter(|_| all_due);
    }
    Ok(())
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::sync::atomic::Ordering;

    use covault_core::{
        derive::KeyPath,
        ids::{TokenId, VaultId, WalletId},
        networks::Network,
        request::{ApprovalRule, Consent, RequestEffect, RequestState, SigningRequest},
        testing::ManualClock,
    };

    use super::*;
    use crate::{
        commands::idempotency::LIFETIME_MS,
        services::Listeners,
        store::{Store, memory::MemoryStore, rows::IdempotencyRow},
        testing::{CountingStore, orchestrator_parts},
    };

    async fn world() -> (Arc<MemoryStore>, Arc<ManualClock>, Services) {
        let store = Arc::new(MemoryStore::new());
        let clock = Arc::new(ManualClock::default());
        let parts = orchestrator_parts(Arc::clone(&store) as _, Arc::clone(&clock));
        let services = Services::new(parts, Listeners::none());
        let services = leases::maintenance_lease(&services).await.unwrap().unwrap();
        (store, clock, services)
    }

    #[test]
    fn confirmed_clock__should_believe_no_jump_for_hours() {
        const HOUR: u64 = 60 * 60 * 1000;
        const DAY: u64 = 24 * HOUR;
        let mut clock = ConfirmedClock::default();
        for hour in 0..6 {
            assert_eq!(clock.confirmed_ms(1_000 + hour * HOUR, hour * HOUR), None);
        }
        assert_eq!(
            clock.confirmed_ms(1_000 + 6 * HOUR, 6 * HOUR),
            Some(1_000 + 6 * HOUR)
        );
        // It jumps ahead by a day, for some hours.
        for hour in 7..12 {
            let right = 1_000 + hour * HOUR;
            assert_eq!(clock.confirmed_ms(right + DAY, hour * HOUR), Some(right));
        }
        assert_eq!(
            clock.confirmed_ms(1_000 + 12 * HOUR, 12 * HOUR),
            Some(1_000 + 12 * HOUR)
        );
        // It jumps for good: a day of a suspended machine.
        let mut confirmed = 0;
        for hour in 13..20 {
            let said = 1_000 + hour * HOUR + DAY;
            confirmed = clock.confirmed_ms(said, hour * HOUR).unwrap();
            assert_eq!(confirmed == said, hour >= 19, "{hour}");
        }
        // And back: what it says now counts.
        let back = 1_000 + 20 * HOUR;
        assert_eq!(clock.confirmed_ms(back, 20 * HOUR), Some(back));
        assert!(confirmed > back);
        assert!(clock.looks.len() < 10);
    }

    #[tokio::test]
    async fn release__should_give_back_what_is_due_and_still_its_requests() {
        let (store, _, services) = world().await;
        let request = |number: u64| {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&number.to_be_bytes());
            RequestId::from_bytes(id)
        };
        let claim = |number: u64| Key::new(KeySpace::Claim, &[&number.to_be_bytes()]);
        // More than a page; every third one is held by another request by now.
        for number in 0..600u64 {
            let owner = match number % 3 {
                0 => request(number + 1),
                _ => request(number),
            };
            let release = ReservationExpiry {
                claims: vec![claim(number).bytes, claim(number + 1_000_000).bytes],
            };
            let key = rows::reservation_expiry(1_000 + number, request(number));
            let mut batch = Batch::new();
            batch.put(
                claim(number),
                Precondition::Absent,
                rows::encode(&owner).unwrap(),
            );
            batch.put(key, Precondition::Absent, rows::encode(&release).unwrap());
            store.commit(batch).await.unwrap();
        }
        let left = async |space| {
            let all = Scan::prefix(space, &[], 2000);
            store.scan(&all).await.unwrap().len()
        };
        free_expired_reservations(&services, 999).await.unwrap();
        assert_eq!(
            (
                left(KeySpace::Claim).await,
                left(KeySpace::ReservationExpiry).await
            ),
            (600, 600)
        );
        free_expired_reservations(&services, 1_299).await.unwrap();
        assert_eq!(
            (
                left(KeySpace::Claim).await,
                left(KeySpace::ReservationExpiry).await
            ),
            (400, 300)
        );
        free_expired_reservations(&services, 1_599).await.unwrap();
        assert_eq!(
            (
                left(KeySpace::Claim).await,
                left(KeySpace::ReservationExpiry).await
            ),
            (200, 0)
        );
        let kept = services.load::<RequestId>(&claim(3)).await.unwrap();
        assert_eq!(kept.unwrap().0, request(4));
    }

    #[tokio::test]
    async fn release__should_wait_for_the_end_of_a_transaction_that_is_followed() {
        let (store, _, services) = world().await;
        let request = SigningRequest {
            id: RequestId::from_bytes([1; 16]),
            vault: VaultId::from_bytes([2; 16]),
            wallet: WalletId::from_bytes([3; 16]),
            network: Network::Bitcoin,
            root_public_key: vec![4; 33],
            path: KeyPath::of_wallet(Network::Bitcoin, 5).unwrap(),
            public_key: vec![6; 33],
            address: "bc1q".into(),
            payload: vec![7],
            notes: None,
            token: TokenId::from_bytes([9; 16]),
            replaces: None,
            created_at_ms: 10,
            consent: Consent::new(ApprovalRule::automatic()),
            state: RequestState::Received,
        };
        let claim = Key::new(KeySpace::Claim, &[b"output"]);
        let due = rows::reservation_expiry(1_000, request.id);
        let outbox = rows::outbox(request.vault, request.id);
        let expiry = ReservationExpiry {
            claims: vec![claim.bytes.clone()],
        };
        let follows = OutboxRow {
            failures: 0,
            effect: RequestEffect::Track,
        };
        let mut batch = Batch::new();
        for (key, value) in [
            (rows::request(request.id), rows::encode(&request)),
            (claim.clone(), rows::encode(&request.id)),
            (due.clone(), rows::encode(&expiry)),
            (outbox.clone(), rows::encode(&follows)),
        ] {
            batch.put(key, Precondition::Absent, value.unwrap());
        }
        store.commit(batch).await.unwrap();
        let kept = async || {
            let (claim, due) = (store.get(&claim).await, store.get(&due).await);
            [claim, due].map(|row| row.unwrap().is_some())
        };
        free_expired_reservations(&services, u64::MAX)
            .await
            .unwrap();
        assert_eq!(kept().await, [true, true]);
        let mut batch = Batch::new();
        batch.delete(outbox, Precondition::Any);
        store.commit(batch).await.unwrap();
        free_expired_reservations(&services, u64::MAX)
            .await
            .unwrap();
        assert_eq!(kept().await, [false, false]);
    }

    #[tokio::test]
    async fn sweeps__should_not_be_stopped_by_what_cannot_be_read() {
        let (store, clock, services) = world().await;
        clock.0.store(LIFETIME_MS, Ordering::SeqCst);
        let request = RequestId::from_bytes([1; 16]);
        let token = TokenId::from_bytes([1; 16]);
        let record = |key: &str| rows::idempotency(token, "a.B.C", key);
        let old = rows::encode(&IdempotencyRow {
            body_hash: [0; 32],
            at_ms: 0,
            response: vec![],
        });
        let none = rows::encode(&ReservationExpiry { claims: vec![] });
        let damaged = vec![0xff; 3];
        let short = Key::new(KeySpace::ReservationExpiry, &[&[0, 1]]);
        for (key, value) in [
            (record("1"), damaged.clone()),
            (record("2"), old.unwrap()),
            (short.clone(), damaged.clone()),
            (rows::reservation_expiry(1, request), damaged.clone()),
            (rows::reservation_expiry(2, request), none.unwrap()),
        ] {
            let mut batch = Batch::new();
            if key.space == KeySpace::Idempotency {
                idempotency::add_age(&mut batch, &key, 0).unwrap();
            }
            batch.put(key, Precondition::Absent, value);
            store.commit(batch).await.unwrap();
        }
        idempotency::delete_expired(&services, services.now_ms())
            .await
            .unwrap();
        free_expired_reservations(&services, services.now_ms())
            .await
            .unwrap();
        let left = async |space| {
            let rows = store.scan(&Scan::prefix(space, &[], 10)).await.unwrap();
            rows.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
        };
        assert_eq!(left(KeySpace::Idempotency).await, [record("1")]);
        assert_eq!(
            left(KeySpace::ReservationExpiry).await,
            [rows::reservation_expiry(1, request), short]
        );
    }

    #[tokio::test]
    async fn sweep__should_look_at_none_whose_time_has_not_come() {
        let (store, clock, mut services) = world().await;
        let counting = CountingStore::new(Arc::clone(&store) as _);
        services.store = Arc::clone(&counting) as _;
        let token = TokenId::from_bytes([1; 16]);
        for number in 0..2000u64 {
            let record = IdempotencyRow {
                body_hash: [0; 32],
                at_ms: number,
                response: vec![],
            };
            let key = rows::idempotency(token, "a.B.C", &format!("{number:04}"));
            let mut batch = Batch::new();
            batch.put(
                key.clone(),
                Precondition::Absent,
                rows::encode(&record).unwrap(),
            );
            idempotency::add_age(&mut batch, &key, number).unwrap();
            store.commit(batch).await.unwrap();
        }
        let left = async |space| {
            let all = Scan::prefix(space, &[], 5000);
            store.scan(&all).await.unwrap().len()
        };
        clock.0.store(LIFETIME_MS, Ordering::SeqCst);
        idempotency::delete_expired(&services, services.now_ms())
            .await
            .unwrap();
        assert_eq!(
            (
                left(KeySpace::Idempotency).await,
                left(KeySpace::RecordAge).await
            ),
            (1999, 1999)
        );
        counting.read.store(0, Ordering::SeqCst);
        idempotency::delete_expired(&services, services.now_ms())
            .await
            .unwrap();
        let read = counting.read.swap(0, Ordering::SeqCst);
        assert!(read < 100, "{read} rows");
        // One that is used again keeps its new record.
        let again = rows::idempotency(token, "a.B.C", "0001");
        let record = IdempotencyRow {
            body_hash: [0; 32],
            at_ms: 2 * LIFETIME_MS,
            response: vec![],
        };
        let mut batch = Batch::new();
        batch.put(
            again.clone(),
            Precondition::Any,
            rows::encode(&record).unwrap(),
        );
        idempotency::add_age(&mut batch, &again, record.at_ms).unwrap();
        store.commit(batch).await.unwrap();
        clock.0.store(2 * LIFETIME_MS, Ordering::SeqCst);
        idempotency::delete_expired(&services, services.now_ms())
            .await
            .unwrap();
        let all = Scan::prefix(KeySpace::Idempotency, &[], 5000);
        let rest = store.scan(&all).await.unwrap();
        assert_eq!(rest.len(), 1);
        assert_eq!(rest[0].0, again);
        assert_eq!(left(KeySpace::RecordAge).await, 1);
        clock.0.store(3 * LIFETIME_MS, Ordering::SeqCst);
        idempotency::delete_expired(&services, services.now_ms())
            .await
            .unwrap();
        assert_eq!(
            (
                left(KeySpace::Idempotency).await,
                left(KeySpace::RecordAge).await
            ),
            (0, 0)
        );
    }

    #[tokio::test]
    async fn sweep__should_delete_what_is_older_than_a_day_and_nothing_else() {
        let (store, clock, services) = world().await;
        // More than a page, every second one made a day later.
        for number in 0..1000u64 {
            let record = IdempotencyRow {
                body_hash: [0; 32],
                at_ms: (number % 2) * LIFETIME_MS,
                response: vec![],
            };
            let token = TokenId::from_bytes([1; 16]);
            let key = rows::idempotency(token, "a.B.C", &format!("{number:04}"));
            let mut batch = Batch::new();
            idempotency::add_age(&mut batch, &key, record.at_ms).unwrap();
            batch.put(key, Precondition::Absent, rows::encode(&record).unwrap());
            store.commit(batch).await.unwrap();
        }
        let left = async || {
            let all = Scan::prefix(KeySpace::Idempotency, &[], 2000);
            store.scan(&all).await.unwrap().len()
        };
        clock.0.store(LIFETIME_MS - 1, Ordering::SeqCst);
        idempotency::delete_expired(&services, services.now_ms())
            .await
            .unwrap();
        assert_eq!(left().await, 1000);
        clock.0.store(LIFETIME_MS, Ordering::SeqCst);
        idempotency::delete_expired(&services, services.now_ms())
            .await
            .unwrap();
        assert_eq!(left().await, 500);
        clock.0.store(2 * LIFETIME_MS, Ordering::SeqCst);
        idempotency::delete_expired(&services, services.now_ms())
            .await
            .unwrap();
        assert_eq!(left().await, 0);
    }
}
