//! The load of one signer with one scheme, and how soon it answers. Pure.

use std::{collections::BTreeMap, ops::Bound, time::Duration};

use covault_core::backoff::Backoff;
use tokio::time::Instant;

use super::{pace::CLASSES, window::Window};

/// How long a signer that reports busy gets no orders at first; twice as long each further time, up to the maximum.
/// Reporting busy costs it work and nothing else.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MOST_PAUSE: Duration = Duration::from_secs(2);
const PAUSES: Backoff = Backoff::new(FIRST_PAUSE, MOST_PAUSE);
/// A signer that says so many times that it is busy, with less than so many attempts that went well for each of
/// them, is avoided for a while where others suffice: it might say so to stop them all.
const TOO_BUSY: u32 = 3;
const MAKES_UP: u32 = 16;
const AVOIDED: Duration = Duration::from_secs(30);
/// Signers count as equally fast up to this multiple of the fastest, plus this margin: a slightly slower signer is
/// used as well.
const ALIKE: u32 = 2;
const ALIKE_BEYOND: Duration = Duration::from_millis(5);

/// An attempt is late after this multiple of what attempts with the signer take, and not before so long.
const LATE: u32 = 3;
const SOONEST_LATE: Duration = Duration::from_millis(100);
/// The same where nothing is known of them yet.
const LATE_UNMEASURED: Duration = Duration::from_secs(1);
/// Late attempts wait for another member, and the signer has nothing to do for them: up to this part of its window,
/// one in so many, they keep no place from lines that have none of them. A line whose last attempt came to nothing has as
/// much of the window at most.
const LATE_PART: usize = 2;

/// How far beyond its window a signer is used: in a crowd all windows are full, also of attempts that wait for a signer
/// that has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overdraft {
    None,
    One,
    Half,
}

/// Whose attempt it is, or is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LineStanding {
    /// Number of the line.
    pub line: u64,
    /// Its last attempt came to nothing in its time.
    pub is_failing: bool,
}

/// When an attempt is late, and its number.
pub(super) type HeldAt = (Instant, u64);

/// Places of an attempt.
#[derive(Clone, Copy, Debug)]
struct AttemptPlaces {
    line: u64,
    /// Inputs.
    work: usize,
}

/// A signer, for one scheme.
#[derive(Debug)]
pub(super) struct SignerLoad {
    pub window: Window,
    /// Inputs that it works on.
    at_work: usize,
    /// The attempts that it works on, those first that are late first.
    held: BTreeMap<HeldAt, AttemptPlaces>,
    /// How long attempts with it take, by class; a moving average.
    answers: [Option<Duration>; CLASSES],
    /// When the newest attempt with it was sent that ended well.
    newest_done: Option<Instant>,
    /// When the last attempt with it ended well, whenever it was sent.
    last_ended: Option<Instant>,
    /// When it last said that it is busy.
    busy_since: Option<Instant>,
    /// It is left alone until then.
    busy_until: Option<Instant>,
    pause: Duration,
    /// How often it said so, in attempts that would make up for it.
    strain: u32,
    avoided_until: Option<Instant>,
}

impl SignerLoad {
    pub(super) fn new(threads: usize) -> Self {
        Self {
            window: Window::new(threads),
            at_work: 0,
            held: BTreeMap::new(),
            answers: [None; CLASSES],
            newest_done: None,
            last_ended: None,
            busy_since: None,
            busy_until: None,
            pause: FIRST_PAUSE,
            strain: 0,
            avoided_until: None,
        }
    }

    /// Whether it may be given more, of this line; without one: of any. What it is given may be more than there is
    /// room for: else a transaction with many inputs would wait for ever.
    pub(super) fn has_room(
        &self,
        now: Instant,
        overdraft: Overdraft,
        of: Option<LineStanding>,
    ) -> bool {
        let size = self.window.size();
        let part = (size / LATE_PART).max(1);
        let beyond = match overdraft {
            Overdraft::None => 0,
            Overdraft::One => 1,
            Overdraft::Half => (size / 2).max(1),
        };
        let (own_late, others_late, beyond_part) = self.late_work(now, of, part);
        let at_work = self.at_work.saturating_sub(beyond_part);
        let has_room = match of {
            // A second team is a way out of that.
            Some(of) if of.is_failing && overdraft == Overdraft::None => {
                let own = self.held.values().filter(|held| held.line == of.line);
                let own: usize = own.map(|held| held.work).sum();
                // One place there is beside late ones: its next attempt may go well.
                own.saturating_add(others_late.min(part.saturating_sub(1))) < part && at_work < size
            }
            _ => {
                let uncounted = others_late.saturating_sub(own_late).min(part);
                at_work.saturating_sub(uncounted) < size.saturating_add(beyond)
            }
        };
        has_room && self.busy_until.is_none_or(|until| now >= until)
    }

    /// Inputs of attempts that are late: of the line; of others, no more than `most` of one attempt; and those beyond
    /// that. One that waits takes no more of a signer for being large.
    fn late_work(
        &self,
        now: Instant,
        of: Option<LineStanding>,
        most: usize,
    ) -> (usize, usize, usize) {
        let late = self.held.range(..=(now, u64::MAX));
        late.fold(
            (0, 0, 0),
            |(own, others, beyond): (usize, usize, usize), (_, held)| {
                if of.is_some_and(|of| of.line == held.line) {
                    return (own.saturating_add(held.work), others, beyond);
                }
                let counted = held.work.min(most);
                (
                    own,
                    others.saturating_add(counted),
                    beyond.saturating_add(held.work.saturating_sub(counted)),
                )
            },
        )
    }

    /// Whether an attempt with it has become late between these.
    pub(super) fn became_late(&self, since: Instant, now: Instant) -> bool {
        let (after, until) = (Bound::Excluded((since, u64::MAX)), (now, u64::MAX));
        let mut late = self.held.range((after, Bound::Included(until)));
        late.next().is_some()
    }

    /// Inputs that it works on.
    pub(super) fn at_work(&self) -> usize {
        self.at_work
    }

    /// It begins to work on an attempt of a line.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        attempt: u64,
        (line, class, work): (u64, usize, usize),
    ) -> HeldAt {
        let patience = self
            .usual(class)
            .map_or(LATE_UNMEASURED, |usual| (usual * LATE).max(SOONEST_LATE));
        let at = (now + patience, attempt);
        self.at_work = self.at_work.saturating_add(work);
        self.held.insert(at, AttemptPlaces { line, work });
        at
    }

    /// An attempt is over.
    pub(super) fn end(&mut self, at: &HeldAt) {
        if let Some(held) = self.held.remove(at) {
            self.at_work = self.at_work.saturating_sub(held.work);
        }
    }

    /// How long attempts of the class take with it; as many times what a smaller one takes where none was measured.
    fn usual(&self, class: usize) -> Option<Duration> {
        let known = self.answers.get(..=class)?.iter().rev().zip(0_u32..);
        let mut known = known.filter_map(|(answer, below)| Some(((*answer)?, below)));
        known.next().map(|(took, below)| took * (1 << below))
    }

    /// Whether others are taken before it, even suspect ones.
    pub(super) fn is_avoided(&self, now: Instant) -> bool {
        self.avoided_until.is_some_and(|until| now < until)
    }

    /// How long attempts of the class take with it.
    pub(super) fn answer(&self, class: usize) -> Option<Duration> {
        self.answers.get(class).copied().flatten()
    }

    /// Whether an attempt with it has ended well that was sent after this.
    pub(super) fn has_signed_since(&self, sent: Instant) -> bool {
        self.newest_done.is_some_and(|done| done > sent)
    }

    /// Whether no attempt with it has ended well for so long.
    pub(super) fn is_quiet_for(&self, quiet: Duration) -> bool {
        self.last_ended.is_none_or(|ended| ended.elapsed() >= quiet)
    }

    /// It says that it is busy, to an order that was sent then.
    pub(super) fn busy(&mut self, sent: Instant, now: Instant) {
        // What it says of many sessions at once counts once; and to those that were sent before it gets fewer.
        let is_known = self.busy_since.is_some_and(|since| sent <= since);
        if !is_known && self.busy_until.is_none_or(|until| now >= until) {
            self.busy_since = Some(now);
            self.window.busy();
            self.busy_until = Some(now + self.pause);
            self.pause = PAUSES.after(self.pause);
            self.strain = self.strain.saturating_add(MAKES_UP);
            if self.strain >= TOO_BUSY * MAKES_UP {
                (self.strain, self.avoided_until) = (0, Some(now + AVOIDED));
            }
        }
    }

    /// An attempt with it ended well. `blamed`: no other of the team is known to be slower.
    fn answered(&mut self, class: usize, took: Duration, now: Instant, blamed: bool) {
        self.newest_done = self.newest_done.max(now.checked_sub(took));
        self.last_ended = Some(now);
        self.pause = FIRST_PAUSE;
        self.strain = self.strain.saturating_sub(1);
        if let Some(answer) = self.answers.get_mut(class) {
            *answer = Some(match *answer {
                None => took,
                // Soon again among the fast ones.
                Some(before) if took < before => (before + took) / 2,
                Some(before) if blamed => (before * 3 + took) / 4,
                Some(before) => (before * 31 + took) / 32,
            });
        }
    }

    /// An attempt with it was not over after so long, when another one was.
    pub(super) fn late(&mut self, class: usize, at_least: Duration) {
        if let Some(answer) = self.answers.get_mut(class) {
            *answer = Some(answer.map_or(at_least, |answer| answer.max(at_least)));
        }
    }
}

/// Notes an attempt of this team that ended well. Only the slowest made it last: who is known to be faster
/// is not blamed for it.
pub(super) fn answered(team: &mut [&mut SignerLoad], class: usize, took: Duration, now: Instant) {
    let unknown = team.iter().any(|load| load.answer(class).is_none());
    let slowest = team.iter().filter_map(|load| load.answer(class)).max();
    for load in team {
        let answer = load.answer(class);
        let blamed = answer.is_none() || (!unknown && answer == slowest);
        load.answered(class, took, now, blamed);
    }
}

/// How slow each is beside the fastest: 0 for those that are as good, more for the others. Who was never
/// tried may be fast.
pub(super) fn slowness(answers: &[Option<Duration>]) -> Vec<u8> {
    let fastest = answers.iter().flatten().min().copied();
    let alike = fastest.unwrap_or_default() * ALIKE + ALIKE_BEYOND;
    let slowness = |answer: &Option<Duration>| match answer {
        Some(answer) if *answer > alike => {
            let times = answer.as_micros() / alike.as_micros().max(1);
            u8::try_from(times.max(1).ilog2()).map_or(u8::MAX, |times| times.saturating_add(1))
        }
        _ => 0,
    };
    answers.iter().map(slowness).collect()
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn has_room(load: &SignerLoad, now: Instant) -> bool {
        load.has_room(now, Overdraft::None, None)
    }

    #[test]
    fn signer__should_be_left_alone_when_it_is_busy_for_longer_each_time() {
        let (mut load, now) = (SignerLoad::new(4), Instant::now());
        assert!(has_room(&load, now));
        load.busy(now, now);
        // It reports this for each session that it was sent.
        load.busy(now, now + ms(1));
        assert_eq!(load.window.size(), 8);
        assert!(!has_room(&load, now + ms(49)) && has_room(&load, now + ms(50)));
        // In a crowd they are many, and their answers come for a while: the window gets no smaller for these.
        load.busy(now, now + ms(50));
        assert!(load.window.size() == 8 && has_room(&load, now + ms(50)));
        load.busy(now + ms(50), now + ms(50));
        assert!(!has_room(&load, now + ms(149)) && has_room(&load, now + ms(150)));
        let mut at = now + ms(150);
        for _ in 0..20 {
            load.busy(at, at);
            at += MOST_PAUSE;
        }
        assert!(has_room(&load, at) && load.window.size() == 1);
        answered(&mut [&mut load], 0, ms(1), Instant::now());
        load.busy(at, at);
        assert!(has_room(&load, at + FIRST_PAUSE));
    }

    #[test]
    fn signer__should_be_avoided_when_it_says_too_often_that_it_is_busy() {
        let (mut load, mut now) = (SignerLoad::new(4), Instant::now());
        // It works as well.
        for _ in 0..20 {
            load.busy(now, now);
            for _ in 0..MAKES_UP {
                answered(&mut [&mut load], 0, ms(1), Instant::now());
            }
            now += FIRST_PAUSE;
        }
        assert!(!load.is_avoided(now));
        // One signature now and then, so that it is not forgotten.
        for _ in 0..4 {
            load.busy(now, now);
            answered(&mut [&mut load], 0, ms(1), Instant::now());
            now += FIRST_PAUSE;
        }
        assert!(load.is_avoided(now) && !load.is_avoided(now + AVOIDED));
    }

    #[test]
    fn signer__should_take_one_large_transaction_when_it_has_room_for_anything() {
        let (mut load, now) = (SignerLoad::new(1), Instant::now());
        load.begin(now, 1, (1, 0, 3));
        assert!(has_room(&load, now));
        load.begin(now, 2, (1, 8, 256));
        assert!(!has_room(&load, now));
    }

    #[test]
    fn late_attempts_of_one_line__should_leave_half_of_the_window_to_others() {
        let (mut load, began) = (SignerLoad::new(2), Instant::now());
        assert_eq!(load.window.size(), 8);
        answered(&mut [&mut load], 0, ms(20), Instant::now());
        let of = |line| LineStanding {
            line,
            is_failing: false,
        };
        let failing = LineStanding {
            is_failing: true,
            ..of(1)
        };
        let room = |load: &SignerLoad, now, of| load.has_room(now, Overdraft::None, Some(of));
        // As much as it takes: all of it, where nobody else came.
        let mut held: Vec<_> = (0..8).map(|it| load.begin(began, it, (1, 0, 1))).collect();
        assert!(!room(&load, began + ms(99), of(2)));
        let now = began + ms(100);
        assert!(load.became_late(began, now) && !load.became_late(now, now + ms(50)));
        assert!(room(&load, now, of(2)) && !room(&load, now, of(1)));
        for attempt in 8..12 {
            assert!(room(&load, now, of(2)));
            load.begin(now, attempt, (2, 0, 1));
        }
        // More than half as many again are never at work.
        assert!(!room(&load, now, of(2)) && !room(&load, now, of(3)));
        // Its attempts come to nothing, one after the other: others get their places, and it has no more than half.
        for _ in 0..4 {
            load.end(&held.pop().unwrap());
            assert!(!room(&load, now, failing) && room(&load, now, of(2)));
        }
        while let Some(at) = held.pop() {
            load.end(&at);
        }
        let mut begun = 0;
        while room(&load, now, failing) {
            load.begin(now, 20 + begun, (1, 0, 1));
            begun += 1;
        }
        assert_eq!((begun, load.at_work()), (4, 8));
        // Who is late itself gets nothing for that.
        let later = now + ms(100);
        assert!(!room(&load, later, of(2)) && room(&load, later, of(3)));
    }

    #[test]
    fn late_attempt_of_many_inputs__should_leave_half_of_the_window() {
        for inputs in [12, 252] {
            let (mut load, began) = (SignerLoad::new(2), Instant::now());
            answered(&mut [&mut load], 0, ms(20), Instant::now());
            let of = |line, is_failing| LineStanding { line, is_failing };
            let room = |load: &SignerLoad, now, of| load.has_room(now, Overdraft::None, Some(of));
            load.begin(began, 1, (1, 0, inputs));
            assert!(!room(&load, began, of(2, false)) && !room(&load, began, of(2, true)));
            let now = began + ms(100);
            assert!(!room(&load, now, of(1, false)) && !room(&load, now, of(1, true)));
            // A line that had one attempt in vain gets one place beside it.
            assert!(room(&load, now, of(3, true)));
            let held = load.begin(now, 2, (3, 0, 1));
            assert!(!room(&load, now, of(3, true)));
            load.end(&held);
            for attempt in 0..load.window.size() as u64 {
                assert!(room(&load, now, of(2, false)), "{inputs} {attempt}");
                load.begin(now, 10 + attempt, (2, 0, 1));
            }
            assert!(!room(&load, now, of(2, false)) && !room(&load, now, of(3, true)));
            load.end(&(began + ms(100), 1));
            assert_eq!(load.at_work(), 8);
        }
    }

    #[test]
    fn large_attempt__should_be_late_later() {
        let (mut load, now) = (SignerLoad::new(1), Instant::now());
        answered(&mut [&mut load], 0, ms(100), Instant::now());
        load.begin(now, 1, (1, 3, 8));
        assert!(!load.became_late(now, now + ms(2_399)) && load.became_late(now, now + ms(2_400)));
        // Of which nothing is known.
        let mut load = SignerLoad::new(1);
        load.begin(now, 1, (1, 0, 1));
        assert!(!load.became_late(now, now + ms(999)) && load.became_late(now, now + ms(1_000)));
    }

    #[test]
    fn slow_signer__should_be_told_from_those_it_signs_with() {
        let mut loads = [(); 3].map(|()| SignerLoad::new(1));
        // In turns; the third takes 200 ms longer.
        for round in 0..12_usize {
            let (one, other) = [(0, 2), (1, 2), (0, 1)][round % 3];
            let took = if other == 2 { 216 } else { 16 };
            let [first, second] = loads.get_disjoint_mut([one, other]).unwrap();
            answered(&mut [first, second], 0, ms(took), Instant::now());
        }
        let answers = |loads: &[SignerLoad; 3]| {
            let answers: Vec<_> = loads.iter().map(|load| load.answer(0)).collect();
            slowness(&answers)
        };
        let slow = answers(&loads);
        assert!(slow[0] == 0 && slow[1] == 0 && slow[2] > 0, "{slow:?}");
        // Its trouble is over: a few tries, and it is one of them.
        for _ in 0..4 {
            let [first, third] = loads.get_disjoint_mut([0, 2]).unwrap();
            answered(&mut [first, third], 0, ms(16), Instant::now());
        }
        assert_eq!(answers(&loads), [0, 0, 0]);
        // Another one stops.
        loads[1].late(0, ms(400));
        assert!(answers(&loads)[1] > 0);
    }

    #[test]
    fn slowness__should_not_tell_apart_who_is_nearly_as_fast() {
        let of = |answers: &[u64]| {
            let answers: Vec<_> = answers.iter().map(|answer| Some(ms(*answer))).collect();
            slowness(&answers)
        };
        assert_eq!(of(&[16, 30, 37]), [0, 0, 0]);
        assert_eq!(of(&[1, 7, 8]), [0, 0, 1]);
        assert_eq!(of(&[16, 38, 16_000]), [0, 1, 9]);
        assert_eq!(slowness(&[None, Some(ms(500))]), [0, 0]);
        assert!(slowness(&[]).is_empty());
    }
}
