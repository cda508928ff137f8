//! How many sessions one signer is asked to run at once. Pure: what it is told is when sessions ended and
//! how long they took.
//!
//! The window doubles at first, while that lets the signer get more done. From then on it tries a larger
//! and a smaller size in turns, beside the present one, and keeps the larger one where more gets done by
//! it; the smaller one where as much does and sessions take more than twice as long as at best: then they
//! only wait for each other.

use std::time::Duration;

use tokio::time::Instant;

use covault_core::rate::count;

use super::pace::CLASSES;

/// Sessions for each thread of a signer to begin with.
const FIRST: usize = 4;
/// The most for each thread. A signer at the other end of the world needs that many.
const MOST: usize = 256;
/// Sessions take too long at this multiple of the best time.
const SLOW: f64 = 2.0;
/// A rate that differs by less is the same one: machines are never quite still.
const NOISE: f64 = 0.03;
/// A round has at least so many sessions, and as many as fill the window so many times, and lasts so long:
/// fewer would say more about chance than about the size.
const LEAST_SESSIONS: usize = 64;
const LEAST_FILLS: usize = 4;
const LEAST_ROUND: Duration = Duration::from_millis(250);
/// Rounds of a trial: the present size and the other one in turns, so that a machine whose speed changes affects both
/// alike.
const TRIAL_ROUNDS: usize = 4;
/// Rounds between two trials, which cost a little.
const REST: u32 = 4;
/// What was best is forgotten by this part in each round: it may never come again.
const FORGET: f64 = 1.002;
/// One session's part in how long they take now: 1 of so many.
const SMOOTH: f64 = 8.0;
/// Threads that a signer is believed to have, at most.
const MOST_THREADS: usize = 256;

/// What of the present round is known.
#[derive(Clone, Copy, Debug)]
struct WindowRound {
    began: Instant,
    sessions: usize,
    /// Inputs that were signed.
    work: usize,
    /// The sum, over sessions, of how many times the best time they took.
    slowness: f64,
    /// The window was full, so that it was what limited the signer.
    full: bool,
}

/// Which size is tried beside the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WindowTrial {
    /// Twice as many, at the start.
    Double,
    Larger,
    Smaller,
}

/// The window of one signer and scheme.
#[derive(Clone, Debug)]
pub(super) struct Window {
    threads: usize,
    /// The present size, outside of a trial.
    kept: usize,
    size: usize,
    /// How long sessions take now and took at best, by class of attempts ([`super::pace::class_of`]), in
    /// seconds.
    times: [Option<(f64, f64)>; CLASSES],
    /// Sessions that were begun when the size was another one.
    stale: usize,
    round: Option<WindowRound>,
    trial: WindowTrial,
    /// Inputs per second in the rounds of this trial: of the kept size, of the other one, and again.
    rates: Vec<f64>,
    rest: u32,
}

impl Window {
    /// That of a signer of which nothing is known but how many threads it says it has.
    pub(super) fn new(threads: usize) -> Self {
        let threads = threads.clamp(1, MOST_THREADS);
        Self {
            threads,
            kept: FIRST * threads,
            size: FIRST * threads,
            times: [None; CLASSES],
            stale: 0,
            round: None,
            trial: WindowTrial::Double,
            rates: Vec::new(),
            rest: 0,
        }
    }

    /// How many inputs may be signed at once.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    fn most(&self) -> usize {
        MOST * self.threads
    }

    /// The window has no room for a waiting request.
    pub(super) fn was_full(&mut self) {
        if let Some(round) = &mut self.round {
            round.full = true;
        }
    }

    /// A session of `inputs` inputs has ended well.
    pub(super) fn signed(&mut self, class: usize, inputs: usize, took: Duration, now: Instant) {
        let Some(times) = self.times.get_mut(class) else {
            return;
        };
        let took = took.as_secs_f64().max(1e-6);
        let (usual, best) = times.unwrap_or((took, took));
        // One that was lucky is no measure for all the others.
        let usual = usual + (took - usual) / SMOOTH;
        let best = best.min(usual);
        *times = Some((usual, best));
        if self.stale > 0 {
            self.stale -= 1;
            return;
        }
        let round = self.round.get_or_insert(WindowRound {
            began: now,
            sessions: 0,
            work: 0,
            slowness: 0.0,
            full: false,
        });
        round.sessions += 1;
        round.work += inputs;
        round.slowness += took / best;
        let lasted = now.saturating_duration_since(round.began);
        let enough = LEAST_SESSIONS.max(LEAST_FILLS * self.size);
        if round.sessions >= enough && lasted >= LEAST_ROUND {
            let round = *round;
            self.end_round(round, lasted);
        }
    }

    /// The signer says that it has more than it can do.
    pub(super) fn busy(&mut self) {
        self.keep((self.size / 2).max(1));
        (self.trial, self.rest) = (WindowTrial::Larger, REST);
    }

    /// Ends the trial with this size. What brought something is tried again at once.
    fn keep(&mut self, size: usize) {
        if size == self.kept {
            self.rest = REST;
            self.trial = match self.trial {
                WindowTrial::Larger => WindowTrial::Smaller,
                WindowTrial::Double | WindowTrial::Smaller => WindowTrial::Larger,
            };
        }
        self.kept = size;
        self.rates.clear();
        self.resize(size);
    }

    fn resize(&mut self, size: usize) {
        // What is under way was begun with the old size.
        self.stale = match size == self.size {
            true => 0,
            false => self.size,
        };
        self.size = size;
        self.round = None;
    }

    /// The size that is tried.
    fn other(&self) -> usize {
        let other = match self.trial {
            WindowTrial::Double => self.kept * 2,
            WindowTrial::Larger => self.kept + (self.kept / 2).max(1),
            WindowTrial::Smaller => self.kept - (self.kept / 3).max(1).min(self.kept),
        };
        other.clamp(self.threads, self.most())
    }

    fn end_round(&mut self, round: WindowRound, lasted: Duration) {
        self.round = None;
        for (_, best) in self.times.iter_mut().flatten() {
            *best *= FORGET;
        }
        if !round.full {
            // Nobody waited: whatever the size is, it is enough.
            self.rates.clear();
            self.resize(self.kept);
            return;
        }
        if self.rest > 0 {
            self.rest -= 1;
            return;
        }
        let slow = round.slowness / count(round.sessions) > SLOW;
        let other = self.other();
        let pointless = other == self.kept || (self.trial == WindowTrial::Smaller && !slow);
        if self.rates.is_empty() && pointless {
            self.keep(self.kept);
            return;
        }
        self.rates
            .push(count(round.work) / lasted.as_secs_f64().max(1e-6));
        let rounds = match self.trial {
            WindowTrial::Double => 2,
            WindowTrial::Larger | WindowTrial::Smaller => TRIAL_ROUNDS,
        };
        if self.rates.len() < rounds {
            let at_kept = self.size == self.kept;
            self.resize(if at_kept { other } else { self.kept });
            return;
        }
        let sum = |first: usize| self.rates.iter().skip(first).step_by(2).sum::<f64>();
        let gain = sum(1) / sum(0).max(1e-6) - 1.0;
        match self.trial {
            WindowTrial::Double if gain > NOISE => {
                // On from here: what was measured is of the size that is kept now.
                self.rates.drain(..1);
                self.kept = other;
                self.resize(self.other());
            }
            WindowTrial::Larger if gain > NOISE => self.keep(other),
            WindowTrial::Smaller if gain > -NOISE => self.keep(other),
            WindowTrial::Double | WindowTrial::Larger | WindowTrial::Smaller => {
                self.keep(self.kept)
            }
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A signer: what it takes for sessions that come to it `at_once`.
    struct Station {
        /// Sessions per second that it can do at most.
        capacity: f64,
        /// How long one takes that is alone, in seconds.
        alone: f64,
        /// What each session more costs the others beyond that, in seconds.
        crowd: f64,
    }

    impl Station {
        fn time(&self, at_once: usize) -> f64 {
            let at_once = at_once as f64;
            (at_once / self.capacity).max(self.alone) + self.crowd * (at_once - 1.0)
        }

        fn rate(&self, at_once: usize) -> f64 {
            at_once as f64 / self.time(at_once)
        }

        fn best_rate(&self) -> f64 {
            (1..2_000).map(|size| self.rate(size)).fold(0.0, f64::max)
        }

        /// Keeps the window full for so many rounds. `noise`: how far times are off, from -1 to 1.
        fn crowd(&self, window: &mut Window, now: &mut Instant, noise: &[f64]) {
            for noise in noise {
                let size = window.size();
                let took = self.time(size) * (1.0 + noise);
                for _ in 0..LEAST_SESSIONS.max(5 * size) {
                    *now += Duration::from_secs_f64(took / size as f64);
                    window.signed(0, 1, Duration::from_secs_f64(took), *now);
                    window.was_full();
                }
            }
        }
    }

    /// Alone it shows how long one takes at best.
    fn measured(threads: usize, station: &Station) -> (Window, Instant) {
        let (mut window, now) = (Window::new(threads), Instant::now());
        window.signed(0, 1, Duration::from_secs_f64(station.time(1)), now);
        (window, now)
    }

    #[test]
    fn window__should_begin_with_four_for_each_thread() {
        assert_eq!(Window::new(2).size(), 8);
        assert_eq!(Window::new(0).size(), 4);
        assert_eq!(Window::new(usize::MAX).size(), FIRST * MOST_THREADS);
    }

    #[test]
    fn window__should_grow_while_more_gets_done() {
        // Far away: 2,000 sessions at once keep it busy.
        let far = Station {
            capacity: 4_000.0,
            alone: 0.2,
            crowd: 0.0,
        };
        let (mut window, mut now) = measured(8, &far);
        far.crowd(&mut window, &mut now, &[0.0; 60]);
        assert!(
            far.rate(window.size()) > 0.9 * far.best_rate(),
            "{}",
            window.size()
        );
        // Batches: sessions that come together share a commit.
        let batches = Station {
            capacity: 1e9,
            alone: 0.004,
            crowd: 0.000_5,
        };
        let (mut window, mut now) = measured(2, &batches);
        batches.crowd(&mut window, &mut now, &[0.0; 100]);
        assert!(
            batches.rate(window.size()) > 0.8 * batches.best_rate(),
            "{}",
            window.size()
        );
    }

    #[test]
    fn window__should_shrink_when_sessions_only_wait_for_each_other() {
        let near = Station {
            capacity: 100.0,
            alone: 0.04,
            crowd: 0.0,
        };
        let (mut window, mut now) = measured(4, &near);
        assert_eq!(window.size(), 16);
        near.crowd(&mut window, &mut now, &[0.0; 100]);
        assert!(
            near.time(window.size()) < 3.0 * near.alone,
            "{}",
            window.size()
        );
        assert!(
            near.rate(window.size()) > 0.95 * near.best_rate(),
            "{}",
            window.size()
        );
    }

    #[test]
    fn window__should_not_shrink_where_the_best_time_was_that_of_an_idle_machine() {
        // One alone takes 2 ms. In a crowd the disk confirms many at once, and not sooner.
        let (mut window, mut now) = (Window::new(2), Instant::now());
        window.signed(0, 1, Duration::from_millis(2), now);
        let busy = Station {
            capacity: 1e9,
            alone: 0.01,
            crowd: 0.001_5,
        };
        let noise: Vec<f64> = (0..200)
            .map(|round| f64::from(round % 7 - 3) / 100.0)
            .collect();
        busy.crowd(&mut window, &mut now, &noise);
        assert!(
            busy.rate(window.size()) > 0.8 * busy.best_rate(),
            "{}",
            window.size()
        );
    }

    #[test]
    fn window__should_stay_as_it_is_while_nobody_waits() {
        let (mut window, mut now) = (Window::new(1), Instant::now());
        for number in 0..10_000_u64 {
            now += Duration::from_millis(10);
            window.signed(0, 1, Duration::from_millis(1 + number % 50), now);
        }
        assert_eq!(window.size(), FIRST);
    }

    #[test]
    fn window__should_halve_when_the_signer_is_busy_and_come_back() {
        let station = Station {
            capacity: 500.0,
            alone: 0.02,
            crowd: 0.0,
        };
        let (mut window, mut now) = measured(4, &station);
        for _ in 0..20 {
            window.busy();
        }
        assert_eq!(window.size(), 1);
        station.crowd(&mut window, &mut now, &[0.0; 80]);
        assert!(station.rate(window.size()) > 0.95 * station.best_rate());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Whatever the signer is like, and however restless its machine.
        #[test]
        fn window__should_have_the_signer_do_most_of_what_it_can(
            capacity in 20.0..5_000.0_f64,
            alone_ms in 1.0..200.0_f64,
            threads in 1..5_usize,
            noise in proptest::collection::vec(-0.04..0.04_f64, 120),
        ) {
            let station = Station { capacity, alone: alone_ms / 1e3, crowd: 0.0 };
            let (mut window, mut now) = measured(threads, &station);
            station.crowd(&mut window, &mut now, &noise);
            // Where one for each thread is more than it can do, that is what it gets.
            let size = window.size();
            prop_assert!(size >= threads && size <= MOST * threads);
            prop_assert!(
                station.rate(size) > 0.85 * station.best_rate() || size > MOST * threads * 3 / 4,
                "{} of {} at {}", station.rate(size), station.best_rate(), size
            );
        }

        /// Whatever it is told.
        #[test]
        fn window__should_keep_its_bounds(
            threads in 0..300_usize,
            told in proptest::collection::vec((0..12_usize, 0..300_usize, 0..100_000_u64, 0..8_u8), 0..300),
        ) {
            let (mut window, mut now) = (Window::new(threads), Instant::now());
            for (class, inputs, took_ms, what) in told {
                now += Duration::from_millis(took_ms / 7);
                match what {
                    0 => window.busy(),
                    1 => window.was_full(),
                    _ => window.signed(class, inputs, Duration::from_millis(took_ms), now),
                }
                prop_assert!(window.size() >= 1 && window.size() <= window.most());
            }
        }
    }
}
