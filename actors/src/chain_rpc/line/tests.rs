//! Who is next, and how much a node is given at once.

use futures::{FutureExt as _, future::join_all};

use super::*;

const LIMIT: Duration = Duration::from_secs(5);

/// A call of a request that was accepted then, before all turns.
fn accepted(accepted_ms: u64) -> CallsOf {
    CallsOf {
        token: None,
        accepted_ms: Some(accepted_ms),
        overdue_ms: 0,
    }
}

/// A call of a token's request that was accepted then, and is overdue a second later.
fn of_token(number: u8, accepted_ms: u64) -> CallsOf {
    CallsOf {
        token: Some(TokenId::from_bytes([number; 16])),
        accepted_ms: Some(accepted_ms),
        overdue_ms: accepted_ms + 1_000,
    }
}

/// In which order a node that does one call at a time, and takes a millisecond for each, does these.
async fn order_of(calls: Vec<(CallsOf, u8)>) -> Vec<u8> {
    let line = CallLine::new(1);
    let served = Mutex::new(Vec::new());
    let first = line.enter(accepted(0), 0, false).await;
    let calls = calls.into_iter().map(|(of, number)| {
        let (line, served) = (&line, &served);
        async move {
            let permit = line.enter(of, 0, false).await;
            served.lock().push(number);
            tokio::time::sleep(Duration::from_millis(1)).await;
            drop(permit);
        }
    });
    let end = async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        drop(first);
    };
    tokio::join!(join_all(calls), end);
    let state = line.0.lock();
    assert_eq!((state.at_work, state.usual.len()), (0, 0));
    assert!(state.usual.turns.order().is_empty());
    assert!(state.usual.requests.by_token.is_empty());
    drop(state);
    served.into_inner()
}

#[tokio::test(start_paused = true)]
async fn line__should_give_each_token_its_turns_whatever_another_has_waiting() {
    let mut calls = vec![(of_token(1, 5), 1); 100];
    calls.extend([(of_token(2, 50), 2); 10]);
    let order = order_of(calls).await;
    let first = order.iter().take(20).filter(|of| **of == 2).count();
    assert_eq!(first, 10, "{order:?}");
}

#[tokio::test(start_paused = true)]
async fn line__should_serve_first_what_has_waited_for_long() {
    let mut calls = vec![(of_token(1, 0), 1); 2_000];
    calls.extend([(of_token(2, 900), 2); 1_000]);
    let order = order_of(calls).await;
    // Before the second is over each has its turns; then all of the first token are older.
    let second = |order: &[u8]| order.iter().filter(|of| **of == 2).count();
    assert!((480..=510).contains(&second(&order[..1_000])));
    assert!(
        second(&order[1_000..2_400]) < 30,
        "{}",
        second(&order[1_000..2_400])
    );
}

#[tokio::test(start_paused = true)]
async fn line__should_serve_first_who_is_overdue_also_where_an_older_one_is_not() {
    let of = |number, accepted_ms, overdue_ms| CallsOf {
        overdue_ms,
        ..of_token(number, accepted_ms)
    };
    // The oldest one has got new time.
    let mut calls = vec![(of(1, 0, 1_000_000), 1)];
    calls.extend([(of(2, 10, 0), 2); 10]);
    for number in 3..43 {
        calls.extend([(of(number, 11, 600_000), number); 10]);
    }
    let order = order_of(calls).await;
    assert_eq!(order[..10], [2; 10]);
}

#[tokio::test(start_paused = true)]
async fn what_belongs_to_no_request__should_have_a_quarter_of_the_calls() {
    let mut calls = vec![(accepted(0), 1); 100];
    calls.extend([(CallsOf::SERVICE, 2); 5]);
    let reads = CallsOf {
        token: Some(TokenId::from_bytes([7; 16])),
        ..CallsOf::SERVICE
    };
    calls.extend([(reads, 3); 50]);
    let order = order_of(calls).await;
    let reads = order.iter().take(40).filter(|of| **of != 1).count();
    assert!((9..=11).contains(&reads), "{order:?}");
    let service = order.iter().take(44).filter(|of| **of == 2).count();
    assert_eq!(service, 5, "its turns among those that read: {order:?}");
    // Alone they have all.
    assert_eq!(order_of(vec![(CallsOf::SERVICE, 2); 5]).await, [2; 5]);
}

fn size(line: &CallLine) -> usize {
    let state = line.0.lock();
    let room = |count: &usize| state.window.has_room(*count);
    (0..1_000).take_while(room).count()
}

/// A node that works on so many calls at once, and takes this long for each.
async fn node_answers(line: &CallLine, places: &tokio::sync::Semaphore, takes: Duration) -> bool {
    let mut permit = line.enter(accepted(0), 0, false).await;
    let answered = tokio::time::timeout(LIMIT, async {
        let _place = places.acquire().await.unwrap();
        tokio::time::sleep(takes).await;
    });
    let is_in_time = answered.await.is_ok();
    permit.ended(is_in_time, LIMIT);
    is_in_time
}

#[tokio::test(start_paused = true)]
async fn line__should_serve_the_request_first_that_was_accepted_first() {
    let line = CallLine::new(1);
    let served = Mutex::new(Vec::new());
    let first = line.enter(accepted(0), 0, false).await;
    let call = |since_ms: u64| {
        let (line, served) = (&line, &served);
        async move {
            let _permit = line.enter(accepted(since_ms), 0, false).await;
            served.lock().push(since_ms);
        }
    };
    let end = async {
        tokio::time::sleep(LIMIT * 100).await;
        drop(first);
    };
    tokio::join!(join_all([7, 3, 9, 3, 1].map(call)), end);
    // Nobody has left, although it took long.
    assert_eq!(*served.lock(), [1, 3, 3, 7, 9]);
    assert_eq!(line.0.lock().at_work, 0);
}

#[tokio::test(start_paused = true)]
async fn line__should_forget_who_has_left() {
    let line = CallLine::new(1);
    let first = line.enter(accepted(0), 0, false).await;
    let mut gone = Box::pin(line.enter(accepted(1), 0, false));
    assert!((&mut gone).now_or_never().is_none());
    let mut served = Box::pin(line.enter(accepted(2), 0, false));
    assert!((&mut served).now_or_never().is_none());
    drop(gone);
    drop(first);
    assert!((&mut served).now_or_never().is_some());
    // One that has its place, and has not heard of it.
    let first = line.enter(accepted(0), 0, false).await;
    let mut told = Box::pin(line.enter(accepted(1), 0, false));
    assert!((&mut told).now_or_never().is_none());
    drop(first);
    drop(told);
    assert_eq!(line.0.lock().at_work, 0);
    assert!(line.enter(accepted(3), 0, false).now_or_never().is_some());
}

#[tokio::test(start_paused = true)]
async fn crowd__should_be_more_the_longer_the_line_is() {
    let (one, other) = (CallLine::new(16), CallLine::new(16));
    let take = |line: &CallLine, count: usize| -> Vec<_> {
        (0..count)
            .map(|_| line.enter(accepted(0), 0, false).now_or_never())
            .collect()
    };
    let _held = take(&one, 15);
    assert_eq!(one.crowd(false), 0);
    let _full = (take(&one, 1), take(&other, 16));
    assert_eq!((one.crowd(false), other.crowd(false)), (1_000, 1_000));
    let waits = one.enter(accepted(0), 0, false);
    tokio::pin!(waits);
    assert!(waits.as_mut().now_or_never().is_none());
    assert!(one.crowd(false) > other.crowd(false));
}

#[tokio::test(start_paused = true)]
async fn costly_calls__should_get_a_quarter_of_the_places() {
    let line = CallLine::new(16);
    let costly = || line.enter(accepted(0), 0, true).now_or_never();
    let held: Vec<_> = std::iter::from_fn(costly).collect();
    assert_eq!(held.len(), 4);
    let usual: Vec<_> =
        std::iter::from_fn(|| line.enter(accepted(9), 0, false).now_or_never()).collect();
    assert_eq!(usual.len(), 12);
    drop((held, usual));
    // Of one place they get that.
    let line = CallLine::new(1);
    assert!(line.enter(accepted(0), 0, true).now_or_never().is_some());
}

#[tokio::test(start_paused = true)]
async fn costly_calls__should_say_nothing_against_a_node() {
    let line = CallLine::new(16);
    let held: Vec<_> = (0..4)
        .map(|_| line.enter(accepted(0), 0, true).now_or_never().unwrap())
        .collect();
    let _usual: Vec<_> = (0..12)
        .map(|_| line.enter(accepted(0), 0, false).now_or_never().unwrap())
        .collect();
    for mut permit in held {
        permit.ended(false, LIMIT);
    }
    assert_eq!(size(&line), 16);
}

#[tokio::test(start_paused = true)]
async fn window__should_follow_what_the_node_answers_in_time() {
    let line = CallLine::new(128);
    // 400 a second.
    let fast = tokio::sync::Semaphore::new(40);
    let answers = (0..2_000).map(|_| node_answers(&line, &fast, Duration::from_millis(100)));
    assert!(join_all(answers).await.into_iter().all(|in_time| in_time));
    assert_eq!(size(&line), 128);
    // It becomes slow: two a second. What is in progress is late, and of what follows half as much each time.
    let slow = tokio::sync::Semaphore::new(2);
    let answers = (0..400).map(|_| node_answers(&line, &slow, Duration::from_secs(1)));
    let answers = join_all(answers).await;
    let late = answers.iter().filter(|in_time| !**in_time).count();
    assert!((100..256).contains(&late), "{late}");
    assert!((4..=10).contains(&size(&line)), "{}", size(&line));
    // And fast again.
    let answers = (0..20_000).map(|_| node_answers(&line, &fast, Duration::from_millis(100)));
    join_all(answers).await;
    assert!(size(&line) > 40, "{}", size(&line));
}

#[tokio::test(start_paused = true)]
async fn window__should_not_change_where_nobody_waits() {
    let line = CallLine::new(128);
    for _ in 0..100 {
        for was_taken in [true, false] {
            line.enter(accepted(0), 0, false)
                .await
                .ended(was_taken, LIMIT);
        }
    }
    assert_eq!(size(&line), 16);
}

#[tokio::test]
async fn calls__should_be_wanted_since_their_request_was_accepted() {
    assert_eq!(CallsOf::present(), CallsOf::SERVICE);
    let present = async { CallsOf::present() };
    assert_eq!(accepted_at(3, present).await, accepted(3));
    let token = TokenId::from_bytes([4; 16]);
    let present = async { CallsOf::present() };
    assert_eq!(of_request(token, 3, 1_003, present).await, of_token(4, 3));
    assert!(!asked_by(token, async { is_of_request() }).await);
}
