#![allow(non_snake_case)]

use proptest::prelude::*;

use super::*;

const CHAIN: FollowedChain = FollowedChain::Evm(1);
const WALLET: Account = Account([7; 20]);

fn amount(number: u64) -> [u8; 32] {
    U256::from(number).to_be_bytes()
}

fn job() -> SweepJob {
    SweepJob::new(1, Some(Account([9; 20])), 1_000)
}

fn all_events(job: &SweepJob) -> [SweepEvent; 9] {
    let request = job.next_request(CHAIN, WALLET);
    [
        SweepEvent::TopUpRequested {
            request,
            amount: amount(5),
        },
        SweepEvent::TopUpArrived,
        SweepEvent::MoveRequested {
            request,
            amount: amount(70),
        },
        SweepEvent::MoveFinal,
        SweepEvent::RequestLost {
            reason: "refused".into(),
            paid_after: None,
        },
        SweepEvent::TopUpLost {
            reason: "replaced".into(),
            paid_after: None,
        },
        SweepEvent::NothingLeft,
        SweepEvent::Blocked {
            reason: PauseReason::Cost,
        },
        SweepEvent::RetryDue,
    ]
}

/// The job after these events, at one time.
fn after(job: SweepJob, events: &[usize], now_ms: u64) -> SweepJob {
    events.iter().fold(job, |job, which| {
        let event = all_events(&job)[*which].clone();
        job.step(event, now_ms).unwrap()
    })
}

const TOP_UP: usize = 0;
const ARRIVED: usize = 1;
const MOVE: usize = 2;
const FINAL: usize = 3;
const LOST: usize = 4;
const TOP_UP_LOST: usize = 5;
const NOTHING_LEFT: usize = 6;
const BLOCKED: usize = 7;
const RETRY: usize = 8;

/// Whether an event is legal.
fn takes(job: &SweepJob, which: usize) -> bool {
    let event = all_events(job)[which].clone();
    job.step(event, 9_000).is_ok()
}

#[test]
fn sweep__should_top_up_then_move() {
    let job = after(job(), &[TOP_UP], 2_000);
    assert!(!job.may_be_replaced());
    assert_eq!(job.waits_since_ms(), Some(2_000));
    let job = after(job, &[ARRIVED], 2_500);
    assert_eq!(job.state, SweepState::Funded);
    // One that stands still with what it needs, such as without a target, waits, too.
    assert_eq!(job.waits_since_ms(), Some(2_500));
    assert!(!takes(&job, TOP_UP), "never topped up twice");
    let job = after(job, &[MOVE], 3_000);
    assert_eq!(job.waits_since_ms(), Some(3_000));
    assert!(!job.may_be_replaced());
    assert!(!takes(&job, MOVE), "never moved twice");
    let job = after(job, &[FINAL], 3_000);
    let amount = amount(70);
    assert_eq!(job.state, SweepState::Swept { amount });
    assert!((0..9).all(|which| !takes(&job, which)), "it is over");
}

#[test]
fn pause__should_end_where_the_sweep_was_and_get_longer() {
    let mut job = job();
    let mut pauses = Vec::new();
    for _ in 0..9 {
        job = after(job, &[BLOCKED], 5_000);
        let SweepState::Paused { retry_at_ms, .. } = job.state else {
            panic!("{job:?}");
        };
        pauses.push(retry_at_ms - 5_000);
        assert_eq!(job.waits_since_ms(), Some(5_000));
        assert!(job.may_be_replaced());
        job = after(job, &[RETRY], 6_000);
        assert_eq!(job.state, SweepState::Due);
        assert_eq!(job.waits_since_ms(), Some(5_000));
    }
    assert_eq!(pauses[..3], [60_000, 120_000, 240_000]);
    assert_eq!(pauses[8], 3_600_000);
    job = after(job, &[TOP_UP, ARRIVED, BLOCKED, RETRY], 6_000);
    assert_eq!(job.state, SweepState::Funded);
}

#[test]
fn sweep__should_let_others_go_first_when_a_topped_up_token_cannot_move() {
    let job = after(job(), &[TOP_UP, ARRIVED, BLOCKED], 2_000);
    assert!(job.may_be_replaced());
    let other = job.instead(None, 3_000);
    assert_eq!((other.number, other.asset), (2, None));
    // The coin that was sent is there for whatever goes next, and no more is sent.
    assert_eq!(other.state, SweepState::Funded);
    assert!(!takes(&other, TOP_UP));
    let again = after(other, &[BLOCKED], 3_000).instead(job.asset, 4_000);
    assert!(!takes(&again, TOP_UP));
    assert!(takes(&again, MOVE));
}

#[test]
fn sweep__should_end_when_its_token_has_gone_elsewhere() {
    let job = after(job(), &[TOP_UP, ARRIVED, NOTHING_LEFT], 2_000);
    assert!(job.is_over());
    assert!((0..9).all(|which| !takes(&job, which)));
}

#[test]
fn top_up__should_not_be_made_again_when_only_the_coin_was_swept() {
    let every_ms = 1_000;
    let token = job();
    let failed = after(token.clone(), &[TOP_UP, ARRIVED, MOVE, LOST], 2_000);
    let coin = after(failed.instead(None, 3_000), &[MOVE, FINAL], 4_000);
    // In the same round, and in the next one.
    for now_ms in [4_100, 9_000] {
        let again = SweepJob::following(Some(&coin), token.asset, every_ms, now_ms);
        assert!(!takes(&again, TOP_UP), "topped up in a loop");
        assert!(takes(&again, MOVE), "with coin that is sent by hand");
        let swept = after(again, &[MOVE, FINAL], now_ms);
        let next = SweepJob::following(Some(&swept), token.asset, every_ms, now_ms);
        assert!(takes(&next, TOP_UP));
    }
    // One that is lost stays the same payment.
    let lost = after(token.clone(), &[TOP_UP, LOST], 2_000);
    let coin = after(lost.instead(None, 3_000), &[MOVE, FINAL], 4_000);
    let again = SweepJob::following(Some(&coin), token.asset, every_ms, 4_100);
    assert_eq!(again.lost_top_up, Some(amount(5)));
}

#[test]
fn top_up__should_be_over_with_the_token_that_has_gone() {
    let topped_up = after(job(), &[TOP_UP, ARRIVED], 2_000);
    let gone = after(topped_up.clone(), &[NOTHING_LEFT], 3_000);
    let next = SweepJob::following(Some(&gone), job().asset, 0, 4_000);
    assert!(takes(&next, TOP_UP));
    // Not with the coin, nor with another token.
    for other in [None, Some(Account([8; 20]))] {
        let blocked = after(topped_up.clone(), &[BLOCKED], 3_000);
        let gone = after(blocked.instead(other, 3_000), &[NOTHING_LEFT], 3_000);
        let next = SweepJob::following(Some(&gone), job().asset, 0, 4_000);
        assert!(!takes(&next, TOP_UP), "{other:?}");
    }
}

#[test]
fn coin__should_wait_a_while_for_the_token_that_was_topped_up() {
    let mut waits = after(job(), &[TOP_UP, ARRIVED, BLOCKED], 2_000);
    for _ in 0..3 {
        assert!(!waits.lets_coin_go());
        waits = after(waits, &[RETRY, BLOCKED], 3_000);
    }
    assert!(waits.lets_coin_go());
    assert!(after(job(), &[BLOCKED], 2_000).lets_coin_go());
}

#[test]
fn top_up__should_be_made_again_when_its_request_was_lost() {
    let job = after(job(), &[TOP_UP, LOST, RETRY], 2_000);
    // The same payment once more.
    assert_eq!(job.lost_top_up, Some(amount(5)));
    assert_eq!(job.instead(None, 3_000).lost_top_up, Some(amount(5)));
    assert_eq!(after(job, &[TOP_UP], 3_000).lost_top_up, None);
}

#[test]
fn top_up__should_be_made_again_when_a_reorganisation_took_it_for_good() {
    let job = after(job(), &[TOP_UP, ARRIVED, TOP_UP_LOST], 2_000);
    assert_eq!(job.top_up, None);
    let job = after(job, &[RETRY], 70_000);
    assert!(takes(&job, TOP_UP));
}

#[test]
fn sweep__should_wait_longer_each_time_also_when_another_asset_goes_first() {
    let mut job = job();
    let mut pauses = Vec::new();
    for now_ms in [5_000, 70_000, 200_000] {
        job = after(job, &[BLOCKED], now_ms);
        let SweepState::Paused { retry_at_ms, .. } = job.state else {
            panic!("{job:?}");
        };
        pauses.push(retry_at_ms - now_ms);
        assert_eq!(job.blocked_since_ms, Some(5_000));
        let other = match job.asset {
            None => Some(Account([9; 20])),
            Some(_) => None,
        };
        let number = job.number;
        job = job.instead(other, now_ms);
        assert_eq!((job.number, job.asset), (number + 1, other));
        assert_eq!((job.requests, job.top_up), (0, None));
    }
    assert_eq!(pauses, [60_000, 120_000, 240_000]);
}

#[test]
fn requests__should_have_one_id_each() {
    let job = job();
    let id = job.next_request(CHAIN, WALLET);
    assert_eq!(id, job.clone().next_request(CHAIN, WALLET));
    let other = SweepJob {
        requests: 1,
        ..job.clone()
    };
    let later = SweepJob {
        number: 2,
        ..job.clone()
    };
    for different in [
        other.next_request(CHAIN, WALLET),
        later.next_request(CHAIN, WALLET),
        job.next_request(FollowedChain::Evm(2), WALLET),
        job.next_request(CHAIN, Account([8; 20])),
    ] {
        assert_ne!(id, different);
    }
}

#[test]
fn gas_cost__should_leave_nothing_of_the_coin_and_top_up_a_quarter_more() {
    let cost = GasCost {
        limit: 21_000,
        price: 10,
        data_fee: 7,
    };
    assert_eq!(cost.total(), U256::from(210_007));
    assert_eq!(
        cost.rest_of(U256::from(1_210_007)),
        Some(U256::from(1_000_000))
    );
    assert_eq!(cost.rest_of(U256::from(210_007)), None);
    assert_eq!(cost.rest_of(U256::ZERO), None);
    assert_eq!(cost.missing(U256::from(210_007)), None);
    assert_eq!(cost.missing(U256::from(7)), Some(U256::from(262_500)));
    assert!(!cost.exceeds(5, U256::from(4_200_140)));
    assert!(cost.exceeds(5, U256::from(4_200_139)));
    assert!(cost.exceeds(100, U256::ZERO));
    assert!(!cost.exceeds(1, U256::MAX));
    assert_eq!(cost.affordable(U256::from(420_007), 100), Some(20));
    assert_eq!(cost.affordable(U256::from(420_007), 15), Some(15));
    assert_eq!(cost.affordable(U256::from(210_006), 100), None);
    assert_eq!(cost.affordable(U256::MAX, u128::MAX), Some(u128::MAX));
}

proptest! {
    /// Whatever happens in whatever order, to whichever coin or token of the wallet: at most one request is on its way, a
    /// next one comes only after the last was lost or has arrived, each has an id of its own, and the wallet is topped up
    /// once until something of it was swept or has gone.
    #[test]
    fn sweep__should_never_send_twice(order in proptest::collection::vec((0..10_usize, 0..1_000_u64), 0..80)) {
        let mut job = job();
        let (mut is_moving, mut is_topped_up) = (false, false);
        let mut ids = std::collections::BTreeSet::new();
        for (which, now_ms) in order {
            let Some(event) = all_events(&job).get(which).cloned() else {
                if job.is_over() {
                    job = SweepJob::new(job.number + 1, None, now_ms);
                } else if job.may_be_replaced() {
                    job = job.instead(None, now_ms);
                }
                continue;
            };
            let Ok(next) = job.step(event.clone(), now_ms) else {
                continue;
            };
            match event {
                SweepEvent::MoveRequested { request, .. } => {
                    prop_assert!(!is_moving && ids.insert(request));
                    is_moving = true;
                }
                SweepEvent::TopUpRequested { request, .. } => {
                    prop_assert!(!is_moving && !is_topped_up && ids.insert(request));
                    is_topped_up = true;
                }
                SweepEvent::MoveFinal | SweepEvent::NothingLeft => {
                    (is_moving, is_topped_up) = (false, false);
                }
                SweepEvent::RequestLost { .. } => match is_moving {
                    true => is_moving = false,
                    false => is_topped_up = false,
                },
                SweepEvent::TopUpLost { .. } => is_topped_up = false,
                SweepEvent::TopUpArrived | SweepEvent::Blocked { .. } | SweepEvent::RetryDue => {}
            }
            prop_assert_eq!(is_topped_up, next.top_up.is_some() && !next.is_over());
            job = next;
        }
    }
}

#[test]
fn round__should_have_each_coin_or_token_once() {
    let (token, every_ms) = (Some(Account([3; 20])), 1_000);
    let swept = |job: SweepJob, now_ms| {
        let (request, amount) = (RequestId::from_bytes([1; 16]), [1; 32]);
        let moved = job.step(SweepEvent::MoveRequested { request, amount }, now_ms);
        moved.unwrap().step(SweepEvent::MoveFinal, now_ms).unwrap()
    };
    let first = swept(SweepJob::following(None, token, every_ms, 5_000), 5_100);
    assert!(!first.may_follow(token, every_ms, 5_999));
    assert!(first.may_follow(None, every_ms, 5_200));
    assert!(first.may_follow(token, 0, 5_100), "no rounds");
    // The coin belongs to the same round, which ends when it would have ended.
    let coin = SweepJob::following(Some(&first), None, every_ms, 5_200);
    assert_eq!((coin.number, coin.round_since_ms), (2, 5_000));
    let coin = swept(coin, 5_300);
    assert_eq!(coin.swept, [token, None]);
    assert!(!coin.may_follow(None, every_ms, 5_999));
    assert!(!coin.may_follow(token, every_ms, 5_999));
    let next = SweepJob::following(Some(&coin), token, every_ms, 6_000);
    assert!(coin.may_follow(token, every_ms, 6_000));
    assert_eq!((next.round_since_ms, next.swept.len()), (6_000, 0));
    // One that waits and gives its place to another stays in its round.
    let waits = SweepJob::following(Some(&first), None, every_ms, 5_200);
    let instead = waits.instead(Some(Account([4; 20])), 5_300);
    assert_eq!(
        (instead.round_since_ms, &instead.swept),
        (5_000, &first.swept)
    );
}

/// A transaction that a block has taken, and that has moved nothing.
fn failed(job: &SweepJob) -> SweepJob {
    let reason = "its transaction has failed on the chain".into();
    let lost = SweepEvent::RequestLost {
        reason,
        paid_after: Some(6),
    };
    job.step(lost, 3_000).unwrap()
}

#[test]
fn what_fails_on_the_chain__should_be_sent_three_times_and_then_wait_for_a_person() {
    let mut job = after(job(), &[TOP_UP, ARRIVED], 2_000);
    for tries in 1..=MOST_FAILURES {
        assert!(!job.is_held(job.asset), "after {tries} tries");
        job = after(failed(&after(job, &[MOVE], 2_500)), &[RETRY], 3_500);
    }
    assert!(job.is_held(job.asset));
    assert!(!takes(&job, MOVE));
    // The coin goes, and the token is held as before.
    let coin = job.instead(None, 4_000);
    assert!(!coin.is_held(None));
    let swept = after(coin, &[MOVE, FINAL], 5_000);
    let again = SweepJob::following(Some(&swept), job.asset, 0, 6_000);
    assert!(again.is_held(job.asset));
    assert!(!takes(&again, MOVE) && !takes(&again, TOP_UP));
    // Nor does a node help that names no balance.
    let gone = after(again.clone(), &[NOTHING_LEFT], 7_000);
    let again = SweepJob::following(Some(&gone), job.asset, 0, 8_000);
    assert!(again.is_held(job.asset));
    let retries = |last| SweepRetries {
        last,
        ..Default::default()
    };
    assert_eq!(again.retried(WALLET, &retries(6), 9_000), None);
    let with = |only| {
        let mut retries = retries(6);
        retries.note(only, 10);
        again.retried(WALLET, &retries, 9_000)
    };
    let released = with(None).unwrap();
    assert!(takes(&released, TOP_UP) && takes(&released, MOVE));
    assert_eq!(with(Some(Account([8; 20]))), None);
    assert!(with(Some(WALLET)).is_some());
}

/// The clock of who says it may be years ahead of that of who sends, or behind it.
#[test]
fn retry__should_be_of_what_was_held_before_it_and_of_nothing_after() {
    let mut retries = SweepRetries::default();
    retries.note(None, 2);
    assert!(retries.include(WALLET, 0));
    // What fails three times again waits for the next one.
    assert!(!retries.include(WALLET, retries.last));
    let held = retries.last;
    retries.note(Some(WALLET), 2);
    assert!(retries.include(WALLET, held));
    assert!(!retries.include(Account([8; 20]), held));
    assert!(!retries.include(WALLET, retries.last));
    // One that is forgotten releases nothing, and keeps nothing back.
    let held = retries.last;
    for number in 20..30 {
        retries.note(Some(Account([number; 20])), 2);
    }
    assert_eq!(retries.some.len(), 2);
    assert!(!retries.include(WALLET, held));
    retries.note(Some(WALLET), 2);
    assert!(retries.include(WALLET, held));
    let held = retries.last;
    retries.note(None, 2);
    assert!(retries.some.is_empty() && retries.include(WALLET, held));
}

#[test]
fn release__should_end_the_pause_of_what_was_held_and_of_nothing_else() {
    let mut job = after(job(), &[TOP_UP, ARRIVED], 2_000);
    for _ in 1..MOST_FAILURES {
        job = after(failed(&after(job, &[MOVE], 2_500)), &[RETRY], 3_500);
    }
    let held = failed(&after(job, &[MOVE], 3_900));
    let released = held.released(held.asset, 4_000).unwrap();
    let SweepState::Paused { retry_at_ms, .. } = released.state else {
        panic!("{released:?}");
    };
    assert_eq!((retry_at_ms, released.pauses), (4_000, 0));
    assert_eq!(held.released(None, 4_000), None);
    let coin = after(held.instead(None, 4_000), &[BLOCKED], 4_000);
    let released = coin.released(held.asset, 5_000).unwrap();
    assert_eq!((released.state, released.pauses), (coin.state, coin.pauses));
}

#[test]
fn failures__should_be_counted_by_token_and_forgotten_once_it_was_swept() {
    let job = after(job(), &[TOP_UP, ARRIVED, MOVE], 2_000);
    let job = after(failed(&job), &[RETRY], 3_000);
    // What no block has taken costs nothing.
    let job = after(job, &[MOVE, LOST, RETRY], 3_500);
    assert_eq!(job.failures.len(), 1);
    assert_eq!(job.failures[0].count, 1);
    let other = job.instead(Some(Account([8; 20])), 4_000);
    let other = failed(&after(other, &[MOVE], 4_000));
    assert_eq!(other.failures.len(), 2);
    let job = after(other.instead(job.asset, 5_000), &[MOVE, FINAL], 5_000);
    assert_eq!(job.failures.len(), 1);
    assert_eq!(job.failures[0].asset, Some(Account([8; 20])));
}

#[test]
fn top_up_that_fails_on_the_chain__should_be_sent_three_times_at_most() {
    let mut job = job();
    for _ in 0..MOST_FAILURES {
        job = after(failed(&after(job, &[TOP_UP], 2_000)), &[RETRY], 3_000);
    }
    assert!(!takes(&job, TOP_UP));
    assert!(!takes(&job, MOVE));
}
