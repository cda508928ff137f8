//! Who waits for signers, and who is next. Pure.
//!
//! Requests of one key's holders and scheme stand in one line: they wait for places among the same
//! signers. Those that name a client signer stand in another one, since only they wait for it. In a line each party (a vault and who asks for it) has its turns, however much another one
//! has waiting: the next is of the party that got the least while it waited ([`Turns`]). Of one party, who was accepted first comes
//! first. Who waited for a third of its time goes before all others, so that turns of others cost
//! nobody its end. Lines have turns likewise, and do not wait for each other.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use covault_core::{
    ids::{RequestId, TokenId, VaultId},
    order::NodeId,
    scheme::Scheme,
    turns::Turns,
};

/// Of one line's requests so many that found no place for reasons of their own are passed by, at most, before
/// the line waits.
const PASSED_BY: usize = 16;

/// Whom a request may be signed by: the requests of one line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LineKey {
    pub scheme: Scheme,
    pub holders: Vec<NodeId>,
    pub needed: usize,
    /// Who takes part in each team, where the requests name one.
    pub client_signer: Option<NodeId>,
}

/// Whose request it is.
pub(super) type Party = (VaultId, TokenId);

/// Where a request stands: who was accepted first comes first, also when it comes late, or once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LinePlace {
    accepted_ms: u64,
    arrival: u64,
    party: Party,
    /// From then on it goes before all others.
    overdue_ms: u64,
}

/// What a signer could do for the next of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// It waits no more.
    Done,
    /// There is no place for it now, for a reason of its own: others may find one.
    PassedBy,
    /// There is no place for anyone of its line now.
    Full,
    /// Nor for anyone else: what there was is given away.
    NoneLeft,
}

/// Who of a party waits.
#[derive(Debug)]
struct Waiting<T> {
    by_place: BTreeMap<LinePlace, (T, usize)>,
    /// Inputs of those.
    work: usize,
}

/// What waits, and what is under way, of one line.
#[derive(Debug)]
struct Line<T> {
    parties: BTreeMap<Party, Waiting<T>>,
    turns: Turns<Party>,
    /// All that wait.
    places: BTreeSet<LinePlace>,
    /// Inputs of those.
    work: usize,
    /// Inputs that signers work on.
    under_way: usize,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self {
            parties: BTreeMap::new(),
            turns: Turns::default(),
            places: BTreeSet::new(),
            work: 0,
            under_way: 0,
        }
    }
}

impl<T> Line<T> {
    /// Who is next, but for these.
    fn next(&self, now_ms: u64, but: &BTreeSet<LinePlace>) -> Option<LinePlace> {
        let mut oldest = self.places.iter();
        let oldest = oldest.find(|place| !but.contains(place));
        if let Some(oldest) = oldest.filter(|oldest| oldest.overdue_ms <= now_ms) {
            return Some(*oldest);
        }
        self.turns.order().iter().find_map(|(_, party)| {
            let mut places = self.parties.get(party)?.by_place.keys();
            places.find(|place| !but.contains(place)).copied()
        })
    }
}

/// All lines.
#[derive(Debug)]
pub(super) struct WaitingLines<T> {
    lines: BTreeMap<LineKey, Line<T>>,
    /// Of lines in which somebody waits.
    turns: Turns<LineKey>,
    /// How many have come.
    arrivals: u64,
    /// How many wait.
    waiting: usize,
}

impl<T> Default for WaitingLines<T> {
    fn default() -> Self {
        Self {
            lines: BTreeMap::new(),
            turns: Turns::default(),
            arrivals: 0,
            waiting: 0,
        }
    }
}

impl<T> WaitingLines<T> {
    /// The place of a request that has come now; kept for all of its waiting.
    pub(super) fn come(&mut self, request: RequestId, party: Party, deadline_ms: u64) -> LinePlace {
        self.arrivals = self.arrivals.saturating_add(1);
        let accepted_ms = request.time_ms();
        let third_ms = deadline_ms.saturating_sub(accepted_ms) / 3;
        LinePlace {
            accepted_ms,
            arrival: self.arrivals,
            party,
            overdue_ms: accepted_ms.saturating_add(third_ms),
        }
    }

    fn line(&mut self, key: &LineKey) -> &mut Line<T> {
        self.lines.entry(key.clone()).or_default()
    }

    /// Waits at this place, to have so many inputs signed.
    pub(super) fn wait(&mut self, key: &LineKey, place: LinePlace, work: usize, who: T) {
        self.turns.come(key);
        self.waiting = self.waiting.saturating_add(1);
        let line = self.line(key);
        line.work = line.work.saturating_add(work);
        line.places.insert(place);
        line.turns.come(&place.party);
        let waiting = line.parties.entry(place.party).or_insert_with(|| Waiting {
            by_place: BTreeMap::new(),
            work: 0,
        });
        waiting.work = waiting.work.saturating_add(work);
        waiting.by_place.insert(place, (who, work));
    }

    /// Waits no more, if it still does.
    pub(super) fn leave(&mut self, key: &LineKey, place: LinePlace) -> Option<T> {
        let line = self.lines.get_mut(key)?;
        let waiting = line.parties.get_mut(&place.party)?;
        let (who, work) = waiting.by_place.remove(&place)?;
        self.waiting = self.waiting.saturating_sub(1);
        waiting.work = waiting.work.saturating_sub(work);
        if waiting.by_place.is_empty() {
            line.parties.remove(&place.party);
            line.turns.leave(&place.party);
        }
        line.places.remove(&place);
        line.work = line.work.saturating_sub(work);
        if line.places.is_empty() {
            self.turns.leave(key);
        }
        self.tidy(key);
        Some(who)
    }

    /// Whether somebody of this line has to be served before.
    pub(super) fn is_behind(&self, key: &LineKey, place: LinePlace) -> bool {
        let line = self.lines.get(key);
        let first = line.and_then(|line| line.places.first());
        first.is_some_and(|first| *first < place)
    }

    /// Signers begin to work on so many inputs of the line, for this place.
    pub(super) fn begin(&mut self, key: &LineKey, party: &Party, work: usize) {
        self.turns.get(key, work);
        let line = self.line(key);
        line.turns.get(party, work);
        line.under_way = line.under_way.saturating_add(work);
    }

    /// They are done with them.
    pub(super) fn end(&mut self, key: &LineKey, work: usize) {
        if let Some(line) = self.lines.get_mut(key) {
            line.under_way = line.under_way.saturating_sub(work);
        }
        self.tidy(key);
    }

    fn tidy(&mut self, key: &LineKey) {
        let over = |line: &Line<T>| line.places.is_empty() && line.under_way == 0;
        if self.lines.get(key).is_some_and(over) {
            self.lines.remove(key);
        }
    }

    /// Whether somebody waits there.
    pub(super) fn waits(&self, key: &LineKey) -> bool {
        let line = self.lines.get(key);
        line.is_some_and(|line| !line.places.is_empty())
    }

    /// Inputs that signers of the line work on.
    pub(super) fn under_way(&self, key: &LineKey) -> usize {
        self.lines.get(key).map_or(0, |line| line.under_way)
    }

    /// How many inputs wait in the line, and how many of those are the party's.
    pub(super) fn waiting(&self, key: &LineKey, party: &Party) -> (usize, usize) {
        let Some(line) = self.lines.get(key) else {
            return (0, 0);
        };
        let own = line.parties.get(party).map_or(0, |waiting| waiting.work);
        (line.work, own)
    }

    /// How many inputs of a vault wait in lines of the same keys, for another client signer, or for none.
    pub(super) fn waiting_elsewhere(&self, key: &LineKey, vault: VaultId) -> usize {
        let first = LineKey {
            client_signer: None,
            ..key.clone()
        };
        let is_of_keys = |other: &LineKey| {
            (other.scheme, other.needed) == (key.scheme, key.needed) && other.holders == key.holders
        };
        let lines = self.lines.range(first..);
        let lines = lines.take_while(|(other, _)| is_of_keys(other));
        let parties = lines
            .filter(|(other, _)| *other != key)
            .flat_map(|(_, line)| &line.parties);
        let of_vault = parties.filter(|((of, _), _)| *of == vault);
        of_vault.map(|(_, waiting)| waiting.work).sum()
    }

    /// About how many inputs are signed before those of this place.
    pub(super) fn before(&self, key: &LineKey, place: LinePlace) -> usize {
        let Some(line) = self.lines.get(key) else {
            return 0;
        };
        let own = line.parties.get(&place.party);
        let own: usize = own.map_or(0, |own| {
            let before = own.by_place.range(..place);
            before.map(|(_, (_, work))| work).sum()
        });
        let others = line
            .parties
            .iter()
            .filter(|(party, _)| **party != place.party);
        let others: usize = others.map(|(_, other)| other.work.min(own + 1)).sum();
        own.saturating_add(others)
    }

    /// How many wait, in all lines.
    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    /// Serves whoever waits in lines that `concerns`, each when it is next. Who finds no place keeps the
    /// rest of its own line waiting, and no other. Each line is come to once, and again after it was served: what a
    /// line got moves it back, and never to where others were.
    pub(super) fn serve(
        &mut self,
        now_ms: u64,
        concerns: impl Fn(&LineKey) -> bool,
        mut serve: impl FnMut(&mut Self, &LineKey, LinePlace) -> Served,
    ) {
        let mut passed_by: BTreeMap<LineKey, BTreeSet<LinePlace>> = BTreeMap::new();
        let none = BTreeSet::new();
        let mut from = Bound::Unbounded;
        loop {
            let mut lines = self.turns.order().range((from, Bound::Unbounded));
            let Some(turn) = lines.find(|(_, key)| concerns(key)).cloned() else {
                return;
            };
            let key = &turn.1;
            let line = self.lines.get(key);
            let next = line.and_then(|line| line.next(now_ms, passed_by.get(key).unwrap_or(&none)));
            let served = next.map(|place| (place, serve(self, key, place)));
            let goes_on = match served {
                Some((_, Served::NoneLeft)) => return,
                Some((_, Served::Done)) => true,
                Some((place, Served::PassedBy)) => {
                    let passed_by = passed_by.entry(key.clone()).or_default();
                    passed_by.insert(place) && passed_by.len() < PASSED_BY
                }
                Some((_, Served::Full)) | None => false,
            };
            from = match goes_on {
                true => Bound::Included(turn),
                false => Bound::Excluded(turn),
            };
        }
    }

    /// Who waits there.
    pub(super) fn get(&self, key: &LineKey, place: LinePlace) -> Option<&T> {
        let waiting = self.lines.get(key)?.parties.get(&place.party)?;
        let (who, _) = waiting.by_place.get(&place)?;
        Some(who)
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
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

    fn party(number: u8) -> Party {
        let id = [number; 16];
        (VaultId::from_bytes(id), TokenId::from_bytes(id))
    }

    /// Long after all that was accepted here.
    const DEADLINE_MS: u64 = 60_000;

    /// The place of a request that was accepted then.
    fn come(lines: &mut WaitingLines<u8>, accepted_ms: u64, of: u8) -> LinePlace {
        let request = RequestId::from_time(accepted_ms, [9; 16]);
        lines.come(request, party(of), DEADLINE_MS)
    }

    fn serve_all(lines: &mut WaitingLines<u8>, full: &[u8]) -> Vec<u8> {
        let mut served = Vec::new();
        lines.serve(
            5,
            |_| true,
            |lines, of, place| {
                if full.iter().any(|full| *of == key(*full)) {
                    return Served::Full;
                }
                lines.begin(of, &place.party, 1);
                lines.end(of, 1);
                served.extend(lines.leave(of, place));
                Served::Done
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
        assert_eq!(lines.waiting(&key(1), &party(0)), (5, 5));
        assert_eq!(lines.waiting(&key(1), &party(1)), (5, 0));
        assert_eq!(lines.under_way(&key(1)), 3);
        assert_eq!(lines.before(&key(1), place), 0);
        assert_eq!(lines.before(&key(1), next), 5);
        // Of another party not more than its turns.
        let other = come(&mut lines, 5, 1);
        assert_eq!(lines.before(&key(1), other), 1);
        lines.leave(&key(1), place);
        assert_eq!(lines.waiting(&key(1), &party(0)), (0, 0));
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
                    return Served::Full;
                }
                lines.begin(of, &place.party, 1);
                lines.end(of, 1);
                served.extend(lines.leave(of, place));
                Served::Done
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
            if !lines.lines[&key(1)].parties.contains_key(&party(2)) {
                let place = come(&mut lines, 9, 2);
                lines.wait(&key(1), place, 1, 2);
            }
            own += usize::from(serve_some(&mut lines, 9, 1) == [2]);
        }
        assert!((45..=55).contains(&own), "{own}");
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
                    return Served::PassedBy;
                }
                served.extend(lines.leave(of, place));
                Served::Done
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
                Served::PassedBy
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
                        return Served::NoneLeft;
                    }
                    left -= 1;
                    lines.begin(of, &place.party, 1);
                    lines.end(of, 1);
                    lines.leave(of, place);
                    order.push(of.clone());
                    Served::Done
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
                                return Served::Full;
                            }
                            left -= 1;
                            lines.leave(of, place);
                            served.push(place);
                            Served::Done
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
}
