//! Turns of lines, tokens and vaults.

use proptest::prelude::*;

use super::*;

fn key(number: u8) -> LineKey {
    LineKey {
        scheme: Scheme::Dkls23,
        holders: vec![NodeId([number; 32])],
        needed: 1,
        client_signer: None,
    }
}

fn party(number: u8) -> LineParty {
    let id = [number; 16];
    (VaultId::from_bytes(id), TokenId::from_bytes(id))
}

/// Long after all that was accepted here.
const DEADLINE_MS: u64 = 60_000;

fn turn(accepted_ms: u64) -> RequestTurn {
    RequestTurn::new(accepted_ms, DEADLINE_MS)
}

/// The place of a request that was accepted then.
fn come(lines: &mut WaitingLines<u8>, accepted_ms: u64, of: u8) -> LinePlace {
    lines.come(turn(accepted_ms), party(of))
}

fn serve_all(lines: &mut WaitingLines<u8>, full: &[u8]) -> Vec<u8> {
    let mut served = Vec::new();
    lines.serve(
        5,
        |_| true,
        |lines, of, place| {
            if full.iter().any(|full| *of == key(*full)) {
                return ServeResult::Full;
            }
            lines.begin(of, &place.party, 1);
            lines.end(of, 1);
            served.extend(lines.leave(of, place));
            ServeResult::Done
        },
    );
    served
}

#[test]
fn lines__should_serve_in_the_order_of_arrival_and_not_wait_for_each_other() {
    let mut lines = WaitingLines::default();
    for (number, line) in [1, 2, 1, 3, 2, 1].into_iter().enumerate() {
        let place = come(&mut lines, 5, 0);
        lines.wait(&key(line), place, 1, number as u8);
    }
    assert_eq!(serve_all(&mut lines, &[1]), [1, 3, 4]);
    assert_eq!(lines.len(), 3);
    assert_eq!(serve_all(&mut lines, &[]), [0, 2, 5]);
    assert_eq!(lines.len(), 0);
}

#[test]
fn lines__should_keep_the_place_of_who_comes_back() {
    let mut lines = WaitingLines::default();
    let (first, second) = (come(&mut lines, 5, 0), come(&mut lines, 5, 0));
    let third = come(&mut lines, 5, 0);
    lines.wait(&key(1), second, 1, 2);
    assert!(!lines.is_behind(&key(1), first) && lines.is_behind(&key(1), third));
    // Its attempt has failed.
    lines.wait(&key(1), first, 1, 1);
    assert!(lines.is_behind(&key(1), second));
    assert_eq!(serve_all(&mut lines, &[]), [1, 2]);
}

#[test]
fn lines__should_put_first_what_was_accepted_first() {
    let mut lines = WaitingLines::default();
    for (accepted_ms, number) in [(7, 3), (9, 4), (5, 1), (5, 2)] {
        let place = come(&mut lines, accepted_ms, 0);
        lines.wait(&key(1), place, 1, number);
    }
    assert_eq!(serve_all(&mut lines, &[]), [1, 2, 3, 4]);
}

#[test]
fn lines__should_count_what_waits_and_what_is_under_way() {
    let mut lines = WaitingLines::default();
    let (place, next) = (come(&mut lines, 5, 0), come(&mut lines, 5, 0));
    lines.wait(&key(1), place, 5, 0);
    lines.begin(&key(1), &party(0), 3);
    assert_eq!(lines.waiting(&key(1), &party(0).1), (5, 5));
    assert_eq!(lines.waiting(&key(1), &party(1).1), (5, 0));
    assert_eq!(lines.under_way(&key(1)), 3);
    assert_eq!(lines.before(&key(1), place), 0);
    assert_eq!(lines.before(&key(1), next), 5);
    // Of another party not more than its turns.
    let other = come(&mut lines, 5, 1);
    assert_eq!(lines.before(&key(1), other), 1);
    lines.leave(&key(1), place);
    assert_eq!(lines.waiting(&key(1), &party(0).1), (0, 0));
    lines.end(&key(1), 3);
    assert!(!lines.waits(&key(1)) && lines.under_way(&key(1)) == 0);
    assert!(lines.lines.is_empty() && lines.turns.order().is_empty());
}

#[test]
fn lines__should_tell_what_a_vault_has_waiting_for_other_client_signers() {
    let mut lines = WaitingLines::default();
    let of = |number: u8, client_signer: Option<u8>| LineKey {
        client_signer: client_signer.map(|number| NodeId([number; 32])),
        ..key(number)
    };
    for (line, of, work) in [
        (of(1, None), 1, 1),
        (of(1, Some(7)), 1, 10),
        (of(1, Some(8)), 1, 100),
        (of(1, Some(8)), 2, 1_000),
        (of(2, Some(7)), 1, 10_000),
    ] {
        let place = come(&mut lines, 5, of);
        lines.wait(&line, place, work, 0);
    }
    let (vault, _) = party(1);
    assert_eq!(lines.waiting_elsewhere(&of(1, None), vault), 110);
    assert_eq!(lines.waiting_elsewhere(&of(1, Some(7)), vault), 101);
    assert_eq!(lines.waiting_elsewhere(&of(3, None), vault), 0);
}

/// Serves the next `count`, as signers would. Whose they were.
fn serve_some(lines: &mut WaitingLines<u8>, now_ms: u64, count: usize) -> Vec<u8> {
    let mut served = Vec::new();
    lines.serve(
        now_ms,
        |_| true,
        |lines, of, place| {
            if served.len() == count {
                return ServeResult::Full;
            }
            lines.begin(of, &place.party, 1);
            lines.end(of, 1);
            served.extend(lines.leave(of, place));
            ServeResult::Done
        },
    );
    served
}

#[test]
fn line__should_give_each_party_its_turns_whatever_another_has_waiting() {
    let mut lines = WaitingLines::default();
    for _ in 0..1_000 {
        let place = come(&mut lines, 5, 1);
        lines.wait(&key(1), place, 1, 1);
    }
    assert_eq!(serve_some(&mut lines, 5, 200), [1; 200]);
    // It has asked for nothing until now, and gets no more than half for that.
    for accepted_ms in 6..106 {
        let place = come(&mut lines, accepted_ms, 2);
        lines.wait(&key(1), place, 1, 2);
    }
    let served = serve_some(&mut lines, 5, 100);
    assert_eq!(served.iter().filter(|of| **of == 2).count(), 50);
    // One at a time gets its half, too.
    let mut lines = WaitingLines::default();
    for _ in 0..1_000 {
        let place = come(&mut lines, 5, 1);
        lines.wait(&key(1), place, 1, 1);
    }
    let mut own = 0;
    for _ in 0..100 {
        if !lines.lines[&key(1)].tokens.contains_key(&party(2).1) {
            let place = come(&mut lines, 9, 2);
            lines.wait(&key(1), place, 1, 2);
        }
        own += usize::from(serve_some(&mut lines, 9, 1) == [2]);
    }
    assert!((45..=55).contains(&own), "{own}");
}

/// One request of a vault and a token, both by their numbers.
fn of(lines: &mut WaitingLines<u8>, line: &LineKey, (vault, token): (u8, u8)) {
    let party = (party(vault).0, party(token).1);
    let place = lines.come(turn(5), party);
    lines.wait(line, place, 1, vault);
}

#[test]
fn line__should_give_a_token_one_turn_however_many_vaults_it_has() {
    let mut lines = WaitingLines::default();
    for vault in 0..100 {
        (0..10).for_each(|_| of(&mut lines, &key(1), (vault, 1)));
    }
    (0..100).for_each(|_| of(&mut lines, &key(1), (200, 2)));
    let served = serve_some(&mut lines, 5, 120);
    let of_many: Vec<u8> = served.into_iter().filter(|of| *of != 200).collect();
    assert_eq!(of_many.len(), 60);
    // Each of its vaults in its turn.
    assert_eq!(BTreeSet::from_iter(&of_many).len(), 60);
    let place = come(&mut lines, 6, 200);
    // Of a third token: one of each of the others.
    assert_eq!(lines.before(&key(1), place), 2);
    // Of its own: what waits of this vault, as much of the token's others, and as much of the other token.
    let place = lines.come(turn(6), (party(99).0, party(1).1));
    let before = lines.before(&key(1), place);
    assert!((900..=980).contains(&before), "{before}");
}

#[test]
fn client_signers__should_share_one_turn_of_their_holders() {
    let mut lines = WaitingLines::default();
    let named = |number: Option<u8>| LineKey {
        client_signer: number.map(|number| NodeId([number; 32])),
        ..key(1)
    };
    for number in 0..6 {
        let line = named((number > 0).then_some(number));
        (0..100).for_each(|_| of(&mut lines, &line, (1, 1)));
    }
    (0..100).for_each(|_| of(&mut lines, &key(2), (2, 2)));
    let mut served = Vec::new();
    for _ in 0..60 {
        served.extend(serve_some(&mut lines, 5, 1));
    }
    assert_eq!(served.iter().filter(|of| **of == 2).count(), 30);
}

#[test]
fn client_signer_without_room__should_hold_up_none_that_do_not_name_it() {
    let mut lines = WaitingLines::default();
    let slow = LineKey {
        client_signer: Some(NodeId([7; 32])),
        ..key(1)
    };
    for number in 0..40 {
        let line = if number < 20 { &slow } else { &key(1) };
        let place = come(&mut lines, 5, 1);
        lines.wait(line, place, 1, number);
    }
    let (mut looked_at, mut served) = (0, Vec::new());
    lines.serve(
        5,
        |_| true,
        |lines, of, place| {
            looked_at += 1;
            if *of == slow {
                return ServeResult::Full;
            }
            lines.begin(of, &place.party, 1);
            served.extend(lines.leave(of, place));
            ServeResult::Done
        },
    );
    assert_eq!(served, Vec::from_iter(20..40));
    assert_eq!(looked_at, 21);
    assert_eq!(lines.waiting(&slow, &party(1).1), (20, 20));
}

#[test]
fn line__should_serve_first_who_has_waited_for_a_third_of_its_time() {
    let mut lines = WaitingLines::default();
    let old = come(&mut lines, 0, 1);
    for _ in 0..50 {
        let place = come(&mut lines, 0, 1);
        lines.wait(&key(1), place, 1, 1);
    }
    lines.wait(&key(1), old, 1, 9);
    serve_some(&mut lines, 0, 1);
    for accepted_ms in 1..50 {
        let place = come(&mut lines, accepted_ms, 2);
        lines.wait(&key(1), place, 1, 2);
    }
    assert!(serve_some(&mut lines, DEADLINE_MS / 3 - 1, 10).contains(&2));
    assert_eq!(serve_some(&mut lines, DEADLINE_MS / 3, 10), [1; 10]);
}

#[test]
fn line__should_serve_first_who_is_overdue_also_where_an_older_one_is_not() {
    let mut lines = WaitingLines::default();
    let mut wait = |of: u8, accepted_ms, overdue_ms| {
        let turn = RequestTurn {
            accepted_ms,
            overdue_ms,
        };
        let place = lines.come(turn, party(of));
        lines.wait(&key(1), place, 1, of);
    };
    // The oldest one has got new time.
    wait(1, 0, 100_000);
    (0..10).for_each(|_| wait(2, 10, 20_000));
    for of in 3..43 {
        (0..10).for_each(|_| wait(of, 11, 60_000));
    }
    // Older than all those, and overdue after them.
    (0..5).for_each(|_| wait(50, 5, 20_001));
    assert_eq!(serve_some(&mut lines, 20_001, 10), [2; 10]);
    assert_eq!(serve_some(&mut lines, 20_001, 5), [50; 5]);
    assert!(!serve_some(&mut lines, 20_001, 40).contains(&50));
}

#[test]
fn a_party_that_comes__should_wait_for_one_turn_of_each_other() {
    let mut lines = WaitingLines::default();
    for of in 0..40 {
        for _ in 0..400 {
            let place = come(&mut lines, 5, of);
            lines.wait(&key(1), place, 1, of);
        }
    }
    serve_some(&mut lines, 5, 100);
    // One payment with hundreds of inputs, of somebody who has nothing else, was served.
    let large = come(&mut lines, 5, 100);
    lines.wait(&key(1), large, 252, 100);
    lines.begin(&key(1), &party(100), 252);
    lines.leave(&key(1), large);
    let quiet = come(&mut lines, 6, 200);
    lines.wait(&key(1), quiet, 1, 200);
    assert!(serve_some(&mut lines, 6, 42).contains(&200));
}

#[test]
fn line__should_go_on_where_one_has_reasons_of_its_own_to_wait() {
    let mut lines = WaitingLines::default();
    for number in 0..40 {
        let place = come(&mut lines, 5, 0);
        lines.wait(&key(1), place, 1, number);
    }
    let mut looked_at = 0;
    let mut served = Vec::new();
    lines.serve(
        5,
        |_| true,
        |lines, of, place| {
            looked_at += 1;
            if *lines.get(of, place).unwrap() < 3 {
                return ServeResult::PassedBy;
            }
            served.extend(lines.leave(of, place));
            ServeResult::Done
        },
    );
    assert_eq!(served, Vec::from_iter(3..40));
    assert_eq!((looked_at, lines.len()), (40, 3));
    // It does not look through thousands for one.
    for number in 0..40 {
        let place = come(&mut lines, 5, 0);
        lines.wait(&key(1), place, 1, number);
    }
    looked_at = 0;
    lines.serve(
        5,
        |_| true,
        |_, _, _| {
            looked_at += 1;
            ServeResult::PassedBy
        },
    );
    assert_eq!(looked_at, PASSED_BY);
}

#[test]
fn lines__should_not_all_be_looked_at_for_one_place() {
    const LINES: usize = 1_000;
    let mut lines = WaitingLines::default();
    let keys = (0..LINES).map(|number| {
        let mut holders = [0; 32];
        holders[..8].copy_from_slice(&number.to_be_bytes());
        LineKey {
            holders: vec![NodeId(holders)],
            ..key(1)
        }
    });
    let keys: Vec<LineKey> = keys.collect();
    for (number, key) in keys.iter().enumerate() {
        for _ in 0..2 {
            let place = come(&mut lines, 5, 0);
            lines.wait(key, place, 1, (number % 256) as u8);
        }
    }
    // One place after the other, for whoever is next.
    let (mut offers, mut order) = (0, Vec::new());
    while lines.len() > 0 {
        let mut left = 1;
        lines.serve(
            5,
            |_| true,
            |lines, of, place| {
                offers += 1;
                if left == 0 {
                    return ServeResult::NoneLeft;
                }
                left -= 1;
                lines.begin(of, &place.party, 1);
                lines.end(of, 1);
                lines.leave(of, place);
                order.push(of.clone());
                ServeResult::Done
            },
        );
    }
    assert!(offers <= 4 * LINES, "{offers}");
    assert_eq!(order[..LINES], keys[..], "each line in its turn");
    assert_eq!(order[LINES..], keys[..]);
}

proptest! {
    /// Whoever comes, goes or is full: nobody is served before somebody of its line who came before.
    #[test]
    fn lines__should_never_let_anybody_pass(steps in proptest::collection::vec((0..4_u8, 0..5_u8), 0..200)) {
        let mut lines = WaitingLines::default();
        let mut waiting: Vec<(u8, LinePlace)> = Vec::new();
        for (line, what) in steps {
            match what {
                0..=2 => {
                    let place = come(&mut lines, 5, 0);
                    lines.wait(&key(line), place, 1, line);
                    waiting.push((line, place));
                }
                3 => {
                    if let Some(at) = waiting.iter().position(|(of, _)| *of == line) {
                        let (_, place) = waiting.remove(at);
                        prop_assert!(lines.leave(&key(line), place).is_some());
                    }
                }
                _ => {
                    // One place, at this line's signers.
                    let mut left = 1;
                    let mut served = Vec::new();
                    lines.serve(5, |_| true, |lines, of, place| {
                        if *of != key(line) || left == 0 {
                            return ServeResult::Full;
                        }
                        left -= 1;
                        lines.leave(of, place);
                        served.push(place);
                        ServeResult::Done
                    });
                    let first = waiting.iter().position(|(of, _)| *of == line);
                    let expected: Vec<LinePlace> = first.map(|at| waiting.remove(at).1).into_iter().collect();
                    prop_assert_eq!(served, expected);
                }
            }
            prop_assert_eq!(lines.len(), waiting.len());
        }
    }
}
