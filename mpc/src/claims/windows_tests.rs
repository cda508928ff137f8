//! What is counted for 24 hours.

use covault_core::ids::{RequestId, SessionId, VaultId};
use proptest::prelude::*;

use super::{super::*, *};
use crate::policy::{PolicyScope, SpendingCounter};

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
/// Of a bucket, and of no day.
const NOON_MS: u64 = 20_000 * 24 * HOUR_MS + 12 * HOUR_MS;
const MIDNIGHT_MS: u64 = NOON_MS + 12 * HOUR_MS;

fn counter(asset: &str) -> SpendingCounter {
    SpendingCounter {
        scope: PolicyScope::Node,
        asset: asset.into(),
    }
}

fn over(asset: &str) -> Result<(), ClaimError> {
    Err(ClaimError::DailyLimitReached(counter(asset)))
}

/// A claim of another request at `now_ms`: (asset, amount, most per day) each.
fn spending(request: u8, now_ms: u64, spends: &[(&str, u64, u64)]) -> Claim {
    Claim {
        session: SessionId::from_bytes([request; 16]),
        attempt: 0,
        digest: Some((RequestId::from_bytes([request; 16]), [request; 32])),
        transaction: None,
        spending: spends
            .iter()
            .map(|(asset, amount, most)| Spending {
                counter: counter(asset),
                amount: U256::from(*amount),
                most_per_day: Some(U256::from(*most)),
                unapproved: None,
            })
            .collect(),
        now_ms,
        root: Vec::new(),
        approved_until_ms: None,
        hold: None,
    }
}

fn of_vault(request: u8, vault: u8, amount: u64) -> Claim {
    let mut claim = spending(request, NOON_MS, &[("a", amount, 10)]);
    claim.spending[0].counter.scope = PolicyScope::Vault(VaultId::from_bytes([vault; 16]));
    claim
}

fn claims(folder: &tempfile::TempDir) -> Claims {
    Claims::open(&folder.path().join("claims.redb"), true).unwrap()
}

/// The writer thread closes the file a moment after its owner is dropped.
async fn again(folder: &tempfile::TempDir, claims: Claims) -> Claims {
    drop(claims);
    for _ in 0..500 {
        if let Ok(claims) = Claims::open(&folder.path().join("claims.redb"), false) {
            return claims;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the claims file stays locked");
}

#[tokio::test]
async fn totals__should_hold_for_24_hours_across_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let claims = claims(&folder);
    let at = NOON_MS;
    let first = spending(1, at, &[("a", 6, 10), ("b", 1, 1)]);
    assert_eq!(claims.claim(first.clone()).await, Ok(()));
    // Another attempt for the same digest counts nothing.
    let second = Claim {
        attempt: 1,
        ..first
    };
    assert_eq!(claims.claim(second).await, Ok(()));
    let more = |request, at, amount| spending(request, at, &[("a", amount, 10)]);
    assert_eq!(claims.claim(more(2, at, 5)).await, over("a"));

    let claims = again(&folder, claims).await;
    assert_eq!(claims.claim(more(2, at, 5)).await, over("a"));
    // One asset too much: the other is not counted, nor is the request claimed.
    let both = spending(3, at, &[("a", 4, 10), ("b", 1, 1)]);
    assert_eq!(claims.claim(both).await, over("b"));
    let later = at + 2 * HOUR_MS;
    assert_eq!(claims.claim(more(3, later, 4)).await, Ok(()));
    assert_eq!(claims.claim(more(4, later, 1)).await, over("a"));
    // The first is 24 hours old, the other one is not.
    let next = at + 24 * HOUR_MS + BUCKET_MS;
    assert_eq!(claims.claim(more(4, next, 7)).await, over("a"));
    assert_eq!(claims.claim(more(4, next, 6)).await, Ok(()));
    let claims = again(&folder, claims).await;
    assert_eq!(claims.claim(more(5, next, 1)).await, over("a"));
    assert_eq!(claims.claim(more(5, next + 2 * HOUR_MS, 4)).await, Ok(()));
}

#[tokio::test]
async fn totals__should_not_double_around_midnight() {
    let folder = tempfile::tempdir().unwrap();
    let claims = claims(&folder);
    let before = MIDNIGHT_MS - 1_000;
    assert_eq!(
        claims.claim(spending(1, before, &[("a", 10, 10)])).await,
        Ok(())
    );
    // The first millisecond of the next day in UTC, and all hours of it.
    for hour in 0..24 {
        let at = MIDNIGHT_MS + hour * HOUR_MS - 1_000 * u64::from(hour > 0);
        let claim = spending(2, at, &[("a", 1, 10)]);
        assert_eq!(claims.claim(claim).await, over("a"), "{hour}");
    }
    let at = before + 24 * HOUR_MS + BUCKET_MS;
    assert_eq!(
        claims.claim(spending(2, at, &[("a", 10, 10)])).await,
        Ok(())
    );
}

#[tokio::test]
async fn totals__should_not_be_forgotten_by_a_clock_that_is_set_ahead_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let claims = claims(&folder);
    let claim = |request, at| spending(request, at, &[("a", 10, 10)]);
    assert_eq!(claims.claim(claim(1, NOON_MS)).await, Ok(()));
    // A month ahead, where a request that is refused makes nothing go on, on disk or in memory.
    let month = NOON_MS + 30 * 24 * HOUR_MS;
    let much = spending(2, month, &[("a", 11, 10)]);
    assert_eq!(claims.claim(much).await, over("a"));
    assert_eq!(claims.claim(claim(2, NOON_MS)).await, over("a"));
    let claims = again(&folder, claims).await;
    assert_eq!(claims.claim(claim(2, NOON_MS)).await, over("a"));
    // One that is granted there counts until then, wherever the clock goes: each day that a clock
    // is set ahead is a day less later, never one more.
    assert_eq!(claims.claim(claim(2, month)).await, Ok(()));
    for at in [
        NOON_MS,
        NOON_MS + 48 * HOUR_MS,
        month - HOUR_MS,
        month + 23 * HOUR_MS,
    ] {
        assert_eq!(claims.claim(claim(3, at)).await, over("a"));
    }
    let claims = again(&folder, claims).await;
    assert_eq!(
        claims.claim(claim(3, NOON_MS + 48 * HOUR_MS)).await,
        over("a")
    );
    let free = month + 24 * HOUR_MS + BUCKET_MS;
    assert_eq!(claims.claim(claim(3, free)).await, Ok(()));
}

#[tokio::test]
async fn totals__should_be_those_of_each_vault() {
    let folder = tempfile::tempdir().unwrap();
    let claims = claims(&folder);
    assert_eq!(claims.claim(of_vault(1, 1, 10)).await, Ok(()));
    let refused = claims.claim(of_vault(2, 1, 1)).await;
    assert!(
        matches!(refused, Err(ClaimError::DailyLimitReached(_))),
        "{refused:?}"
    );
    assert_eq!(claims.claim(of_vault(3, 2, 10)).await, Ok(()));
}

#[tokio::test]
async fn totals__should_never_be_passed_by_rivals_in_one_commit() {
    let folder = tempfile::tempdir().unwrap();
    let claims = Arc::new(claims(&folder));
    let rivals: Vec<_> = (0..100_u8)
        .map(|request| {
            let claims = Arc::clone(&claims);
            let claim = spending(request, NOON_MS, &[("a", 3, 100)]);
            tokio::spawn(async move { claims.claim(claim).await })
        })
        .collect();
    let mut granted = 0;
    for rival in rivals {
        granted += u32::from(rival.await.unwrap().is_ok());
    }
    assert_eq!(granted, 33);
}

#[tokio::test]
async fn totals__should_not_wrap_around() {
    let folder = tempfile::tempdir().unwrap();
    let claims = claims(&folder);
    let mut most = spending(1, NOON_MS, &[("a", 0, 0)]);
    most.spending[0].amount = U256::MAX;
    most.spending[0].most_per_day = None;
    assert_eq!(claims.claim(most).await, Ok(()));
    let more = spending(2, NOON_MS, &[("a", 5, 10)]);
    assert_eq!(claims.claim(more).await, over("a"));
}

const MOST: u64 = 100;

/// A claim of the asset "a": the time that it counts as of, the amount, whether it was granted.
type ClaimSample = (u64, u64, bool);

/// Counts one claim after the other: its time, its amount, and 0 for another asset. Reads all again
/// from the table after every `reopen` claims.
fn run(claims: &[(u64, u8, u8)], reopen: usize) -> Vec<ClaimSample> {
    let storage = Arc::new(redb::backends::InMemoryBackend::new());
    let mut rows = Rows::make(storage, SMALL_LOG_PAGES).unwrap();
    let mut windows = SpendingWindows::default();
    let mut steps = Vec::new();
    let mut highest = 0;
    for (step, (now_ms, amount, asset)) in claims.iter().enumerate() {
        if step % reopen == 0 {
            windows = SpendingWindows::open(&rows).unwrap();
        }
        let (amount, asset) = (u64::from(*amount), if *asset == 0 { "b" } else { "a" });
        let claim = spending(0, *now_ms, &[(asset, amount, MOST)]);
        let outcome = windows.count(&mut rows, &claim.spending, *now_ms);
        let granted = outcome.unwrap().is_ok();
        rows.commit().unwrap();
        rows.fold_step().unwrap();
        let at = highest.max(*now_ms);
        if granted {
            highest = at;
        }
        if asset == "a" {
            steps.push((at, amount, granted));
        }
    }
    steps
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Wherever the clock goes: while it has gone on by less than 24 hours beyond where it ever was,
    /// never more than the limit is granted. And what is 24 hours and a bucket old stops nothing.
    #[test]
    fn totals__should_hold_for_any_times(
        steps in proptest::collection::vec((-40_i64..60, 0_u64..HOUR_MS, 1_u8..80, 0_u8..4), 1..80),
        reopen in 1_usize..20,
    ) {
        let mut at = NOON_MS;
        let claims: Vec<_> = steps
            .iter()
            .map(|(hours, rest, amount, asset)| {
                // Mostly on, in small steps.
                let hours = if hours % 3 == 0 { *hours } else { hours.rem_euclid(4) };
                at = at.saturating_add_signed(hours * i64::try_from(HOUR_MS).unwrap()) + rest;
                (at, *amount, *asset)
            })
            .collect();
        let steps = run(&claims, reopen);
        for (place, (at, amount, granted)) in steps.iter().enumerate() {
            let before = |span| -> u64 {
                steps[..place]
                    .iter()
                    .filter(|(then, _, granted)| *granted && at - then.min(at) < span)
                    .map(|(_, amount, _)| amount)
                    .sum()
            };
            if *granted {
                prop_assert!(before(24 * HOUR_MS) + amount <= MOST);
            } else {
                prop_assert!(before(24 * HOUR_MS + BUCKET_MS) + amount > MOST);
            }
        }
    }
}
