//! Which nodes are live, and second teams.

use std::sync::atomic::Ordering;

use covault_core::{
    ids::{TokenId, VaultId},
    rate::UnsignedWork,
    scheme::Scheme,
    testing::ManualClock,
    turns::RequestTurn,
};

use super::{places::SigningAsk, *};
use crate::message::LiveStatus;

const TURN: RequestTurn = RequestTurn {
    accepted_ms: 0,
    overdue_ms: u64::MAX,
};

fn party() -> (VaultId, TokenId) {
    (VaultId::from_bytes([1; 16]), TokenId::from_bytes([1; 16]))
}

pub(super) fn announcement(at_ms: u64) -> Announcement {
    Announcement {
        name: "node".into(),
        at_ms,
        leaving: false,
        boot: [1; 16],
        version: this_version().into(),
        keys: 0,
        bans: Vec::new(),
        // Each later than the one before.
        count: at_ms,
        height: 0,
        halted: Vec::new(),
        others: Vec::new(),
        threads: 1,
        frozen: Vec::new(),
        listed: ListedNodes::default(),
    }
}

fn node_registry() -> (Arc<ManualClock>, Arc<NodeRegistry>) {
    let clock = Arc::new(ManualClock::default());
    clock.0.store(1_000_000, Ordering::Relaxed);
    let node_registry =
        NodeRegistry::new(Arc::clone(&clock) as Arc<dyn Clock>, Duration::from_secs(3));
    (clock, node_registry)
}

#[test]
fn node_registry__should_not_take_a_replay_for_a_sign_of_life() {
    let (clock, node_registry) = node_registry();
    let node = NodeId([1; 32]);
    node_registry.heard(node, announcement(1_000_000));
    assert!(node_registry.live(&node));
    clock.0.fetch_add(5_000, Ordering::Relaxed);
    node_registry.heard(node, announcement(1_000_000));
    assert!(!node_registry.live(&node));
    node_registry.heard(node, announcement(1_000_001));
    assert!(node_registry.live(&node));
}

#[test]
fn node__should_be_named_when_it_runs_twice_and_not_for_a_restart_or_a_replay() {
    let (clock, node_registry) = node_registry();
    let node = NodeId([1; 32]);
    let said = |boot: u8, others: &[u8]| Announcement {
        boot: [boot; 16],
        others: others.iter().map(|other| [*other; 16]).collect(),
        ..announcement(clock.now_ms())
    };
    let twice = || node_registry.nodes()[0].halted == [HaltReason::Twice];
    // It starts again twice; each start has heard of the ones before, in whatever order they are
    // shown again.
    for announcement in [said(1, &[]), said(2, &[1]), said(3, &[1, 2]), said(2, &[1])] {
        node_registry.heard(node, announcement);
        clock.0.fetch_add(1, Ordering::Relaxed);
    }
    assert!(!twice());
    let signing_set = |node_registry: &Arc<NodeRegistry>| {
        let ask = SigningAsk::new(Scheme::Dkls23, &[node], 1, party(), 1);
        let place = node_registry.come(&ask, TURN);
        node_registry
            .take_place(&ask, place, &AttemptFailures::default())
            .is_ok()
    };
    assert!(signing_set(&node_registry));
    // The second and the third name each other.
    node_registry.heard(node, said(2, &[1, 3]));
    assert!(twice() && !signing_set(&node_registry));
    let sentence = node_registry.too_few(&[node], 1, &AttemptFailures::default(), None);
    assert!(sentence.message().contains("running twice"), "{sentence}");
    // One is gone.
    clock.0.fetch_add(DUPLICATE_MS, Ordering::Relaxed);
    node_registry.heard(node, said(4, &[]));
    assert!(!twice() && signing_set(&node_registry));
}

#[test]
fn node__should_not_live_on_announcements_that_were_held_back() {
    let (clock, node_registry) = node_registry();
    let node = NodeId([1; 32]);
    let began_ms = clock.now_ms();
    // It dies after a minute; the bus shows its words one by one, later and later.
    for second in 0..60 {
        clock.0.fetch_add(2_000, Ordering::Relaxed);
        node_registry.heard(node, announcement(began_ms + 1_000 * second));
        assert!(node_registry.live(&node));
    }
    for held in 0..60 {
        clock.0.fetch_add(2_000, Ordering::Relaxed);
        node_registry.heard(node, announcement(began_ms + 60_000 + held));
    }
    // Long before the last of them is too old to be noted.
    assert!(clock.now_ms() - began_ms - 60_000 > SKEW_MS + 3_000);
    assert!(!node_registry.live(&node));
    let sentence = node_registry.too_few(&[node], 1, &AttemptFailures::default(), None);
    assert!(
        sentence.message().contains("check the clocks of"),
        "{sentence}"
    );
}

#[test]
fn node_registry__should_go_back_with_its_clock() {
    let (clock, node_registry) = node_registry();
    let (present, gone) = (NodeId([1; 32]), NodeId([2; 32]));
    let hour_ms = 3_600_000;
    clock.0.fetch_add(hour_ms, Ordering::Relaxed);
    for node in [present, gone] {
        node_registry.heard(node, announcement(clock.now_ms()));
        assert!(node_registry.live(&node));
    }
    // Set right again. Who was heard in the wrong hour counts when it is heard anew.
    clock.0.fetch_sub(hour_ms, Ordering::Relaxed);
    assert!(!node_registry.live(&present) && !node_registry.live(&gone));
    node_registry.heard(present, announcement(clock.now_ms()));
    assert!(node_registry.live(&present) && !node_registry.live(&gone));
    // From then on as ever.
    clock.0.fetch_add(5_000, Ordering::Relaxed);
    node_registry.heard(present, announcement(clock.now_ms() - 5_000));
    assert!(!node_registry.live(&present));
}

#[test]
fn stranger__should_not_count_before_it_is_admitted() {
    let (clock, node_registry) = node_registry();
    let (ours, stranger) = (NodeId([1; 32]), NodeId([2; 32]));
    node_registry.heard(stranger, announcement(1_000_000));
    assert!(
        node_registry.live(&stranger),
        "nobody has said who is admitted"
    );
    node_registry.admit(&[ours]);
    assert!(!node_registry.live(&stranger));
    for _ in 0..2 {
        clock.0.fetch_add(1, Ordering::Relaxed);
        node_registry.heard(stranger, announcement(clock.now_ms()));
        node_registry.heard(ours, announcement(clock.now_ms()));
    }
    let ids = |nodes: &[NodeStatus]| nodes.iter().map(|node| node.id).collect::<Vec<_>>();
    assert_eq!(ids(&node_registry.nodes()), [ours]);
    assert!(node_registry.live(&ours) && !node_registry.live(&stranger));
    let wanting: Vec<NodeId> = node_registry
        .unadmitted()
        .iter()
        .map(|node| node.id)
        .collect();
    assert_eq!(wanting, [stranger]);
    // Nobody is picked who is not admitted.
    let ask = SigningAsk::new(Scheme::Dkls23, &[ours, stranger], 2, party(), 1);
    let place = node_registry.come(&ask, TURN);
    let choice = node_registry.take_place(&ask, place, &AttemptFailures::default());
    assert!(choice.is_err());

    node_registry.admit(&[ours, stranger]);
    clock.0.fetch_add(1, Ordering::Relaxed);
    node_registry.heard(stranger, announcement(clock.now_ms()));
    assert!(node_registry.live(&stranger) && node_registry.unadmitted().is_empty());
    node_registry.admit(&[ours]);
    assert!(!node_registry.live(&stranger));
}

#[tokio::test(start_paused = true)]
async fn second_team__should_go_beyond_full_windows_further_when_later_attempts_are_done() {
    let (_, node_registry) = node_registry();
    let nodes = [1, 2, 3].map(|number| NodeId([number; 32]));
    for node in nodes {
        node_registry.heard(node, announcement(1_000_000));
    }
    let ask = SigningAsk::new(Scheme::Dkls23, &nodes, 2, party(), 1);
    let none = AttemptFailures::default();
    let place = node_registry.come(&ask, TURN);
    let sent = tokio::time::Instant::now();
    let mut sets = Vec::new();
    while let Ok(set) = node_registry.take_place(&ask, place, &none) {
        sets.push(set);
    }
    // One thread each: four sessions, in pairs.
    assert_eq!(sets.len(), 6);
    let stuck = sets[0].signers.clone();
    let second = |sets: &mut Vec<_>| {
        let team = node_registry.second_team(&ask, &[&stuck], sent, &none);
        let found = team.is_some();
        sets.extend(team);
        found
    };
    assert!(second(&mut sets) && !second(&mut sets));
    tokio::time::advance(Duration::from_millis(2)).await;
    node_registry.answered(
        &ask,
        &sets[1],
        Duration::from_nanos(1),
        Some(Duration::from_secs(1)),
    );
    assert!(second(&mut sets));
}

fn registry_of<const N: usize>() -> (Arc<NodeRegistry>, [NodeId; N]) {
    let (_, node_registry) = node_registry();
    let nodes = std::array::from_fn(|number| NodeId([number as u8; 32]));
    for node in nodes {
        node_registry.heard(node, announcement(1_000_000));
    }
    (node_registry, nodes)
}

#[tokio::test(start_paused = true)]
async fn second_team__should_not_begin_later_because_slow_signers_are_tried() {
    let (node_registry, nodes) = registry_of::<3>();
    let ask = SigningAsk::new(Scheme::Dkls23, &nodes, 2, party(), 1);
    let none = AttemptFailures::default();
    let [_, _, slow] = nodes;
    let mut tries = 0;
    for round in 0..400 {
        let place = node_registry.come(&ask, TURN);
        let team = node_registry.take_place(&ask, place, &none).unwrap();
        let tried = team.signers.contains(&slow);
        // At first nobody knows.
        tries += usize::from(tried && round >= 20);
        let took = Duration::from_millis(if tried { 900 } else { 5 });
        node_registry.answered(&ask, &team, took, None);
    }
    assert!((4..=12).contains(&tries), "{tries}");
    let of_last = (nodes.as_slice(), tokio::time::Instant::now());
    let after = node_registry.second_after(&ask, Duration::from_secs(3), of_last);
    assert_eq!(after, Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn second_team__should_cost_nothing_when_it_was_not_sent() {
    let (node_registry, nodes) = registry_of::<3>();
    let ask = SigningAsk::new(Scheme::Dkls23, &nodes, 2, party(), 1);
    let none = AttemptFailures::default();
    let place = node_registry.come(&ask, TURN);
    let first = node_registry.take_place(&ask, place, &none).unwrap();
    let sent = tokio::time::Instant::now();
    let second = || node_registry.second_team(&ask, &[first.signers.as_slice()], sent, &none);
    for _ in 0..50 {
        // The bus is full.
        assert!(second().is_some());
    }
    let begun = (0..50).filter(|_| {
        let found = second().is_some();
        if found {
            node_registry.second_team_sent(&ask);
        }
        found
    });
    let begun = begun.count();
    // The credit of the beginning, and of one attempt.
    assert_eq!(begun, 8);
}

/// A signer has stopped, and holds as many attempts as it may.
#[tokio::test(start_paused = true)]
async fn second_teams__should_be_of_signers_that_have_signed_since_and_then_cost_nothing() {
    let (node_registry, nodes) = registry_of::<3>();
    let [.., stopped] = nodes;
    let ask = SigningAsk::new(Scheme::Dkls23, &nodes, 2, party(), 1);
    let none = AttemptFailures::default();
    let place = node_registry.come(&ask, TURN);
    let sent = tokio::time::Instant::now();
    let sets = std::iter::from_fn(|| node_registry.take_place(&ask, place, &none).ok());
    let (stuck, mut good): (Vec<_>, Vec<_>) = sets.partition(|set| set.signers.contains(&stopped));
    assert_eq!((stuck.len(), good.len()), (4, 2));
    // Nothing is known yet: no team may be better than another.
    assert!(stuck.iter().chain(&good).all(|set| !set.is_free));
    for _ in 0..40 {
        tokio::time::advance(Duration::from_millis(20)).await;
        let took = Duration::from_millis(15);
        let done = good.pop().unwrap();
        node_registry.answered(&ask, &done, took, None);
        drop(done);
        for stuck in &stuck {
            let team = node_registry.second_team(&ask, &[&stuck.signers], sent, &none);
            let team = team.unwrap();
            assert!(!team.signers.contains(&stopped) && team.is_free);
        }
        good.extend(node_registry.take_place(&ask, place, &none));
    }
    // One that is slow with all signers at work has no such reason.
    let team = good.pop().unwrap();
    let sent = tokio::time::Instant::now() - Duration::from_secs(10);
    let second = node_registry.second_team(&ask, &[&team.signers], sent, &none);
    assert!(second.is_none_or(|second| !second.is_free));
}

#[tokio::test(start_paused = true)]
async fn second_team__should_begin_sooner_where_a_signer_seems_to_have_stopped() {
    let (node_registry, nodes) = registry_of::<3>();
    let [.., stopped] = nodes;
    let ask = SigningAsk::new(Scheme::Dkls23, &nodes, 2, party(), 1);
    let none = AttemptFailures::default();
    let ms = Duration::from_millis;
    let take = || {
        let place = node_registry.come(&ask, TURN);
        node_registry.take_place(&ask, place, &none).ok()
    };
    for _ in 0..60 {
        node_registry.answered(&ask, &take().unwrap(), ms(300), None);
    }
    let sent = tokio::time::Instant::now();
    let sets = std::iter::from_fn(take);
    let (stuck_sets, good): (Vec<_>, Vec<_>) = sets.partition(|set| set.signers.contains(&stopped));
    let after = |team: &[NodeId]| node_registry.second_after(&ask, ms(3_000), (team, sent));
    let (stuck, done) = (&stuck_sets[0].signers, &good[0]);
    // What was sent with it is done: it may just be slower.
    tokio::time::advance(ms(360)).await;
    node_registry.answered(&ask, done, ms(360), None);
    assert!(after(stuck) > ms(1_000));
    tokio::time::advance(ms(340)).await;
    node_registry.answered(&ask, done, ms(340), None);
    assert!(after(stuck) < ms(650), "{:?}", after(stuck));
    // It still signs what was sent before: it is behind, as all are in a crowd.
    node_registry.answered(&ask, &stuck_sets[1], ms(710), None);
    assert!(after(stuck) > ms(1_000), "{:?}", after(stuck));
    tokio::time::advance(ms(650)).await;
    node_registry.answered(&ask, done, ms(100), None);
    assert!(after(stuck) < ms(800), "{:?}", after(stuck));
    // All of these have signed since.
    assert!(after(&done.signers) > ms(1_000));
}

#[tokio::test(start_paused = true)]
async fn second_team__should_not_begin_later_because_a_crowd_has_ended() {
    let (node_registry, nodes) = registry_of::<3>();
    let ask = SigningAsk::new(Scheme::Dkls23, &nodes, 2, party(), 1);
    let none = AttemptFailures::default();
    let take = || {
        let place = node_registry.come(&ask, TURN);
        node_registry.take_place(&ask, place, &none).ok()
    };
    let mut at_work: std::collections::VecDeque<_> = std::iter::from_fn(take).collect();
    let all = at_work.len() as u32;
    let took = Duration::from_millis(20) * all;
    let usual = took + Duration::from_millis(1);
    for round in 0..300 {
        let done = at_work.pop_front().unwrap();
        node_registry.answered(&ask, &done, took, None);
        drop(done);
        // Nobody comes after these.
        if round < 300 - all {
            at_work.push_back(take().unwrap());
        }
    }
    assert!(at_work.is_empty());
    at_work.extend(std::iter::from_fn(take));
    let of_last = (nodes.as_slice(), tokio::time::Instant::now());
    let after = node_registry.second_after(&ask, Duration::from_secs(3), of_last);
    assert!(after <= usual, "{after:?}, usually {usual:?}");
}

#[tokio::test(start_paused = true)]
async fn second_team__should_go_beyond_no_window_where_others_have_room() {
    let (node_registry, nodes) = registry_of::<4>();
    let none = AttemptFailures::default();
    let of =
        |scheme, holders: &[NodeId], needed| SigningAsk::new(scheme, holders, needed, party(), 1);
    let take = |ask: &SigningAsk| {
        let place = node_registry.come(ask, TURN);
        node_registry.take_place(ask, place, &none).ok()
    };
    // The third has as much of this scheme as it may; the fourth has more to do, of another one.
    let full = of(Scheme::Dkls23, &nodes[2..3], 1);
    let busy = of(Scheme::FrostEd25519, &nodes[3..], 1);
    let one: Vec<_> = std::iter::from_fn(|| take(&full)).collect();
    let other: Vec<_> = std::iter::from_fn(|| take(&busy)).take(one.len()).collect();
    let third = take(&of(Scheme::FrostEd25519, &nodes[3..], 1));
    assert!(!one.is_empty() && one.len() == other.len());
    let ask = of(Scheme::Dkls23, &nodes, 1);
    let at_work: Vec<&[NodeId]> = nodes[..2].chunks(1).collect();
    let sent = tokio::time::Instant::now();
    let team = node_registry.second_team(&ask, &at_work, sent, &none);
    assert_eq!(team.unwrap().signers, nodes[3..]);
    drop(third);
}

#[tokio::test(start_paused = true)]
async fn a_free_place__should_be_offered_to_few_of_a_thousand_lines() {
    let (node_registry, nodes) = registry_of::<14>();
    let none = AttemptFailures::default();
    // Keys of all sets of four of them.
    let mut lines = Vec::new();
    for set in 0..1_u32 << nodes.len() {
        let holders = nodes.iter().zip(0..).filter(|(_, bit)| set >> bit & 1 == 1);
        let holders: Vec<NodeId> = holders.map(|(node, _)| *node).collect();
        if holders.len() == 4 {
            lines.push(SigningAsk::new(Scheme::Dkls23, &holders, 2, party(), 1));
        }
    }
    assert!(lines.len() > 1_000);
    let come = |ask: &SigningAsk| node_registry.come(ask, TURN);
    let mut sets = Vec::new();
    let mut tickets = Vec::new();
    for ask in &lines {
        while let Ok(set) = node_registry.take_place(ask, come(ask), &none) {
            sets.push(set);
        }
        tickets.push(node_registry.wait(ask, come(ask), &none));
    }
    let before = node_registry.choices();
    let freed = sets.len();
    sets.clear();
    let placed = tickets
        .iter_mut()
        .filter_map(|it| it.placed.try_recv().ok());
    let placed: Vec<_> = placed.collect();
    assert!(placed.len() >= freed, "{} of {freed}", placed.len());
    let choices = node_registry.choices() - before;
    assert!(choices < 100 * freed, "{choices} for {freed}");
}

#[tokio::test(start_paused = true)]
async fn late_attempts__should_be_offered_once_to_a_thousand_lines() {
    let (node_registry, nodes) = registry_of::<14>();
    let none = AttemptFailures::default();
    let come = |ask: &SigningAsk| node_registry.come(ask, TURN);
    let (mut sets, mut tickets) = (Vec::new(), Vec::new());
    for set in 0..1_u32 << nodes.len() {
        let holders = nodes.iter().zip(0..).filter(|(_, bit)| set >> bit & 1 == 1);
        let holders: Vec<NodeId> = holders.map(|(node, _)| *node).collect();
        if holders.len() != 4 {
            continue;
        }
        let ask = SigningAsk::new(Scheme::Dkls23, &holders, 2, party(), 1);
        while let Ok(set) = node_registry.take_place(&ask, come(&ask), &none) {
            sets.push(set);
        }
        tickets.push(node_registry.wait(&ask, come(&ask), &none));
    }
    assert!(tickets.len() > 1_000);
    let before = node_registry.choices();
    // All of them are late after a second, and what is begun then after another one.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let placed = tickets
        .iter_mut()
        .filter_map(|it| it.placed.try_recv().ok());
    let placed: Vec<_> = placed.collect();
    assert!(placed.len() >= sets.len() / 4);
    let choices = node_registry.choices() - before;
    assert!(choices < 100 * sets.len(), "{choices} for {}", sets.len());
    let before = node_registry.choices();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(node_registry.choices(), before);
}

#[tokio::test(start_paused = true)]
async fn newcomer__should_wait_for_all_that_its_token_has_waiting() {
    let (node_registry, [one, other]) = registry_of::<2>();
    let ask = |vault, token| {
        let party = (
            VaultId::from_bytes([vault; 16]),
            TokenId::from_bytes([token; 16]),
        );
        SigningAsk::new(Scheme::Dkls23, &[one, other], 2, party, 1)
    };
    let none = AttemptFailures::default();
    let come = |ask: &SigningAsk| node_registry.come(ask, TURN);
    let first = node_registry
        .take_place(&ask(1, 1), come(&ask(1, 1)), &none)
        .ok()
        .unwrap();
    node_registry.answered(&ask(1, 1), &first, Duration::from_millis(100), None);
    let _tickets: Vec<_> = (0..60)
        .map(|vault| node_registry.wait(&ask(vault, 1), come(&ask(vault, 1)), &none))
        .collect();
    let wait = |ask: &SigningAsk, of_vault, of_token| {
        let unsigned = UnsignedWork { of_vault, of_token };
        node_registry
            .wait_of_newcomer(ask, unsigned)
            .unwrap()
            .as_secs_f64()
    };
    let others = wait(&ask(100, 2), 0, 0);
    let own = wait(&ask(100, 1), 0, 0);
    assert!(
        (own / others - 2.0 * 16.0 / 15.0).abs() < 0.01,
        "{own} {others}"
    );
    // What is built now, of this vault: of others, and its own.
    let others = wait(&ask(100, 2), 601, 0);
    let own = wait(&ask(100, 2), 601, 601);
    assert!(
        (own / others - 2.0 * 16.0 / 15.0).abs() < 0.01,
        "{own} {others}"
    );
}

#[tokio::test(start_paused = true)]
async fn line__should_be_known_to_get_on_once_a_later_attempt_has_signed() {
    let (node_registry, [one, other]) = registry_of::<2>();
    let ask = SigningAsk::new(Scheme::Dkls23, &[one, other], 2, party(), 1);
    let none = AttemptFailures::default();
    let place = node_registry.come(&ask, TURN);
    let failed = tokio::time::Instant::now();
    node_registry.line_failed(&ask, &[other]);
    assert_eq!(node_registry.silent_in_line(&ask), Some(vec![other]));
    tokio::time::advance(Duration::from_secs(1)).await;
    let team = node_registry.take_place(&ask, place, &none).ok().unwrap();
    // It was sent before, and ends now.
    node_registry.answered(&ask, &team, Duration::from_millis(1_001), None);
    assert!(!node_registry.gets_on(&ask, failed));
    node_registry.answered(&ask, &team, Duration::from_millis(10), None);
    assert!(node_registry.gets_on(&ask, failed));
    assert_eq!(node_registry.silent_in_line(&ask), None);
}

#[tokio::test(start_paused = true)]
async fn who_waits__should_get_places_once_attempts_of_another_line_are_late() {
    let (node_registry, [shared, silent, good]) = registry_of::<3>();
    let none = AttemptFailures::default();
    let ask = |of| SigningAsk::new(Scheme::Dkls23, &[shared, of], 2, party(), 1);
    let (hung, healthy) = (ask(silent), ask(good));
    let come = |ask: &SigningAsk| node_registry.come(ask, TURN);
    let take = |ask: &SigningAsk| node_registry.take_place(ask, come(ask), &none).ok();
    let first = take(&healthy).unwrap();
    node_registry.answered(&healthy, &first, Duration::from_millis(10), None);
    drop(first);
    let stuck: Vec<_> = std::iter::from_fn(|| take(&hung)).collect();
    assert_eq!(stuck.len(), 4, "all that one thread is asked for");
    assert!(take(&healthy).is_none());
    let mut tickets = [(); 3].map(|()| node_registry.wait(&healthy, come(&healthy), &none));
    let began = tokio::time::Instant::now();
    let [one, other, third] = &mut tickets;
    let sets = [
        (&mut one.placed).await.unwrap().unwrap(),
        (&mut other.placed).await.unwrap().unwrap(),
    ];
    // Not after the seconds that an attempt may take.
    assert!(began.elapsed() <= Duration::from_millis(150));
    assert!(third.placed.try_recv().is_err(), "half as much again");
    assert!(take(&hung).is_none());
    // One has signed: the next of that line has its place, although the other line got less.
    let waits = node_registry.wait(&hung, come(&hung), &none);
    drop(sets);
    third.placed.try_recv().unwrap().unwrap();
    // What came to nothing is begun again, and has half of the places.
    node_registry.line_failed(&hung, &[]);
    drop((stuck, waits));
    let again: Vec<_> = std::iter::from_fn(|| take(&hung)).collect();
    assert_eq!(again.len(), 2);
}

#[test]
fn who_begins_to_wait__should_not_hang_while_the_runtime_closes() {
    let (node_registry, [one, other]) = registry_of::<2>();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let handle = runtime.handle().clone();
    runtime.shutdown_background();
    while !handle.spawn(std::future::pending::<()>()).is_finished() {
        std::thread::yield_now();
    }
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _inside = handle.enter();
        let ask = SigningAsk::new(Scheme::Dkls23, &[one, other], 2, party(), 1);
        let place = node_registry.come(&ask, TURN);
        drop(node_registry.wait(&ask, place, &AttemptFailures::default()));
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(60)).unwrap();
}

#[tokio::test(start_paused = true)]
async fn request_for_a_slow_client_signer__should_hold_up_none_that_names_nobody() {
    let (clock, node_registry) = node_registry();
    let nodes = [1, 2, 3].map(|number| NodeId([number; 32]));
    let [_, _, client] = nodes;
    for node in nodes {
        let halted = match node == client {
            true => vec![HaltReason::ClientSigner],
            false => Vec::new(),
        };
        let said = Announcement {
            halted,
            ..announcement(clock.now_ms())
        };
        node_registry.heard(node, said);
    }
    let none = AttemptFailures::default();
    let plain = SigningAsk::new(Scheme::Dkls23, &nodes, 2, party(), 1);
    let named = plain.clone().with_client_signer(Some(client));
    let come = |ask: &SigningAsk| node_registry.come(ask, TURN);
    let take = |ask: &SigningAsk| node_registry.take_place(ask, come(ask), &none).ok();
    let sets: Vec<_> = std::iter::from_fn(|| take(&named)).collect();
    assert!(!sets.is_empty());
    let _waits = [(); 40].map(|()| node_registry.wait(&named, come(&named), &none));
    assert!(take(&plain).is_some());
}

#[test]
fn stranger__should_not_be_shown_for_a_replay() {
    let (_, node_registry) = node_registry();
    node_registry.admit(&[]);
    node_registry.heard(NodeId([2; 32]), announcement(1_000_000 - REPLAY_MS - 1));
    assert!(node_registry.unadmitted().is_empty());
}

#[test]
fn node_registry__should_tell_how_far_a_clock_is_off() {
    let (_, node_registry) = node_registry();
    node_registry.heard(NodeId([1; 32]), announcement(1_000_000 - 1_500));
    node_registry.heard(NodeId([2; 32]), announcement(1_000_000 + 700));
    let skews: Vec<i64> = node_registry
        .nodes()
        .iter()
        .map(|node| node.skew_ms)
        .collect();
    assert_eq!(skews, [-1_500, 700]);
}

#[test]
fn node_registry__should_show_a_clock_of_which_nothing_is_believed() {
    let (clock, node_registry) = node_registry();
    let (node, unknown) = (NodeId([1; 32]), NodeId([2; 32]));
    let hear = |node, skew_ms: i64| {
        let at_ms = clock.now_ms().saturating_add_signed(skew_ms);
        node_registry.heard(node, announcement(at_ms));
    };
    let shown = || -> Vec<_> {
        let nodes = node_registry.nodes().into_iter();
        nodes
            .map(|it| (it.id, it.live, it.skew_ms, it.halted))
            .collect()
    };
    hear(node, 0);
    // What was recorded is no word about the clock of a node that is heard.
    hear(node, -180_000);
    assert_eq!(shown(), [(node, true, 0, vec![])]);
    clock.0.fetch_add(3_000, Ordering::Relaxed);
    assert_eq!(shown(), [(node, false, 0, vec![])]);
    // Nor is one of a node that is not, before it has answered.
    hear(node, 180_000);
    hear(unknown, -600_000);
    assert_eq!(shown(), [(node, false, 0, vec![])]);
    let answer = |node, skew_ms: i64| {
        let question = node_registry.question(&node, || [7; 16]).unwrap();
        let (boot, count) = ([1; 16], 1);
        let at_ms = clock.now_ms().saturating_add_signed(skew_ms);
        let answer = LiveStatus {
            question,
            boot,
            count,
            at_ms,
        };
        node_registry.note_presence(&node, &answer);
    };
    answer(node, 180_000);
    answer(unknown, -600_000);
    let off = |node, skew_ms| (node, false, skew_ms, vec![HaltReason::ClockTooFar]);
    assert_eq!(shown(), [off(node, 180_000), off(unknown, -600_000)]);
    assert_eq!(node_registry.counts(), (0, 2));
    assert!(!node_registry.live(&node) && !node_registry.live(&unknown));
    let fault = node_registry.too_few(&[node, unknown], 2, &AttemptFailures::default(), None);
    let sentence = fault.message();
    assert!(
        sentence.contains("; check the clocks of: node ("),
        "{sentence}"
    );
    // What only such an announcement says is not shown.
    clock.0.fetch_add(1_000, Ordering::Relaxed);
    let at_ms = clock.now_ms() + 180_000;
    answer(unknown, 180_000);
    let more = |count| Announcement {
        count,
        keys: 7,
        bans: vec![Ban {
            key: [1; 8],
            peer: node,
        }],
        halted: vec![HaltReason::Frozen],
        frozen: vec![VaultId::from_bytes([3; 16])],
        ..announcement(at_ms)
    };
    node_registry.heard(unknown, more(at_ms));
    let found = node_registry.nodes();
    let of = |id: NodeId| found.iter().find(|node| node.id == id).unwrap();
    let unbelieved = of(unknown);
    assert_eq!(
        (unbelieved.name.as_str(), unbelieved.skew_ms),
        ("node", 180_000)
    );
    assert_eq!(unbelieved.halted, [HaltReason::ClockTooFar]);
    assert!(unbelieved.bans.is_empty() && unbelieved.frozen.is_empty() && unbelieved.keys == 0);
    assert!(unbelieved.version.is_empty() && unbelieved.listed.is_none());
    // Of one that is known, what was believed.
    node_registry.heard(node, more(at_ms + 1));
    assert!(node_registry.nodes().iter().all(|it| it.bans.is_empty()));
    assert!(of(node).listed.is_some() && !of(node).version.is_empty());
    // It is right again; the other one is gone.
    clock.0.fetch_add(3_000, Ordering::Relaxed);
    hear(node, 100);
    assert_eq!(shown(), [(node, true, 100, vec![])]);
    assert_eq!(node_registry.counts(), (1, 1));
}

#[test]
fn node_registry__should_have_a_place_for_holders_when_unadmitted_nodes_fill_it() {
    let (clock, node_registry) = node_registry();
    let number = |number: u32| {
        let mut id = [0; 32];
        id[..4].copy_from_slice(&number.to_be_bytes());
        NodeId(id)
    };
    let (early, late) = (number(1), number(2));
    node_registry.want(&[early, late]);
    node_registry.heard(early, announcement(1_000_000));
    for stranger in 10..2_500 {
        clock.0.fetch_add(1, Ordering::Relaxed);
        node_registry.heard(number(stranger), announcement(1_000_000));
    }
    node_registry.heard(late, announcement(1_000_000));
    assert_eq!(node_registry.nodes().len(), MAX_NODES);
    assert!(node_registry.nodes().iter().any(|node| node.id == early));
    assert!(node_registry.live(&late) && node_registry.live(&number(2_499)));
}

#[test]
fn node_of_a_version_too_far__should_be_heard_and_asked_for_nothing() {
    let (clock, node_registry) = node_registry();
    let nodes = [NodeId([1; 32]), NodeId([2; 32])];
    let now_ms = clock.now_ms();
    node_registry.heard(nodes[0], announcement(now_ms));
    let far = Announcement {
        version: "0.9.0".into(),
        ..announcement(now_ms)
    };
    node_registry.heard(nodes[1], far);
    assert!(node_registry.live(&nodes[0]) && !node_registry.live(&nodes[1]));
    let shown = node_registry.nodes();
    let of = |id: NodeId| shown.iter().find(|node| node.id == id).unwrap();
    assert!(of(nodes[0]).live && of(nodes[0]).halted.is_empty());
    assert!(of(nodes[1]).live, "it is there");
    assert_eq!(of(nodes[1]).halted, [HaltReason::Version]);
    // Who wants its signature is told what to do.
    let fault = node_registry.too_few(&nodes, 2, &AttemptFailures::default(), None);
    let sentence = fault.message();
    assert!(
        sentence.starts_with(
            "not enough signers: 1 of 2 needed answered; of version 0.9.0, too far from"
        ),
        "{sentence}"
    );
    assert!(
        sentence.contains("docs/upgrading.md") && !sentence.contains("missing"),
        "{sentence}"
    );
    // It is used again once it was upgraded.
    clock.0.store(now_ms + 1, Ordering::Relaxed);
    node_registry.heard(nodes[1], announcement(now_ms + 1));
    assert!(
        node_registry.live(&nodes[1])
            && node_registry
                .nodes()
                .iter()
                .all(|node| node.halted.is_empty())
    );
}
