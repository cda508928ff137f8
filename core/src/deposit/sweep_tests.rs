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

fn all_events(job: &SweepJob, now_ms: u64) -> [SweepEvent; 7] {
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
            now_ms,
        },
        SweepEvent::Blocked {
            reason: PauseReason::Cost,
            now_ms,
        },
        SweepEvent::RetryDue,
    ]
}

#[test]
fn sweep__should_top_up_then_move() {
    let mut job = job();
    let [top_up, arrived, ..] = all_events(&job, 2_000);
    job = job.step(top_up).unwrap();
    assert!(!job.may_be_replaced());
    job = job.step(arrived).unwrap();
    assert_eq!(job.state, SweepState::Funded);
    let [again, _, moving, is_final, ..] = all_events(&job, 3_000);
    assert!(job.step(again).is_err(), "never topped up twice");
    job = job.step(moving.clone()).unwrap();
    assert!(job.step(moving).is_err(), "never moved twice");
    job = job.step(is_final).unwrap();
    let amount = amount(70);
    assert_eq!(job.state, SweepState::Swept { amount });
    for event in all_events(&job, 4_000) {
        assert!(job.step(event).is_err(), "it is over");
    }
}

#[test]
fn pause__should_end_where_the_sweep_was_and_get_longer() {
    let mut job = job();
    let mut pauses = Vec::new();
    for _ in 0..9 {
        let [.., blocked, retry] = all_events(&job, 5_000);
        job = job.step(blocked).unwrap();
        let SweepState::Paused { retry_at_ms, .. } = job.state else {
            panic!("{job:?}");
        };
        pauses.push(retry_at_ms - 5_000);
        assert_eq!(job.blocked_since_ms, Some(5_000));
        assert!(job.may_be_replaced());
        job = job.step(retry).unwrap();
        assert_eq!(job.state, SweepState::Due);
    }
    assert_eq!(pauses[..3], [60_000, 120_000, 240_000]);
    assert_eq!(pauses[8], LONGEST_PAUSE_MS);
    let [top_up, arrived, ..] = all_events(&job, 6_000);
    job = job.step(top_up).unwrap().step(arrived).unwrap();
    let [.., blocked, retry] = all_events(&job, 6_000);
    job = job.step(blocked).unwrap();
    assert!(!job.may_be_replaced(), "its coin is for its own fee");
    assert_eq!(job.step(retry).unwrap().state, SweepState::Funded);
}

#[test]
fn sweep__should_wait_longer_each_time_also_when_another_asset_goes_first() {
    let mut job = job();
    let mut pauses = Vec::new();
    for now_ms in [5_000, 70_000, 200_000] {
        let [.., blocked, _] = all_events(&job, now_ms);
        job = job.step(blocked).unwrap();
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
    /// Whatever happens in whatever order: at most one request is on its way, a next one comes only after the last
    /// was lost or has arrived, and each has an id of its own.
    #[test]
    fn sweep__should_never_send_twice(order in proptest::collection::vec((0..7_usize, 0..1_000_u64), 0..60)) {
        let mut job = job();
        let (mut moves, mut top_ups, mut lost_moves, mut lost_top_ups) = (0, 0, 0, 0);
        let mut ids = std::collections::BTreeSet::new();
        for (which, now_ms) in order {
            let event = all_events(&job, now_ms)[which].clone();
            let Ok(next) = job.step(event.clone()) else {
                continue;
            };
            match (&event, &job.state) {
                (SweepEvent::MoveRequested { request, .. }, _) => {
                    moves += 1;
                    prop_assert!(ids.insert(*request));
                }
                (SweepEvent::TopUpRequested { request, .. }, _) => {
                    top_ups += 1;
                    prop_assert!(ids.insert(*request));
                }
                (SweepEvent::RequestLost { .. }, SweepState::Moving { .. }) => lost_moves += 1,
                (SweepEvent::RequestLost { .. }, _) => lost_top_ups += 1,
                _ => {}
            }
            prop_assert!(moves - lost_moves <= 1);
            prop_assert!(top_ups - lost_top_ups <= 1);
            job = next;
        }
    }
}
