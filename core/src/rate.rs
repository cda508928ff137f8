//! How fast waiting work gets done, and so how long the next item waits. Pure.

use std::time::{Duration, Instant};

/// What was done longer ago than about twice this says nothing about now.
const STRETCH: Duration = Duration::from_secs(4);
/// After such a pause it is another crowd, and maybe others who work.
const PAUSE: Duration = Duration::from_secs(2);
/// Units after which the time of one attempt is all that counts for the average.
const SMOOTH: f64 = 32.0;

/// What was done while callers waited, and in what time.
#[derive(Clone, Copy, Debug, Default)]
struct BusyPeriod {
    lasted: Duration,
    units: usize,
}

/// The rate at which those of one line are served, in units of work. Time in which nobody waits does not
/// count: then it is only what there is to do that limits it.
#[derive(Clone, Debug, Default)]
pub struct Rate {
    before: BusyPeriod,
    now: BusyPeriod,
    /// Until when `now` goes, and whether a caller waits since then.
    until: Option<(Instant, bool)>,
    /// How long a unit's attempt takes, in seconds.
    attempt: Option<f64>,
}

impl Rate {
    /// Callers wait, or the last one has stopped waiting.
    pub fn waits(&mut self, waits: bool, now: Instant) {
        if waits && self.until.is_some_and(|until| rested(until, now)) {
            (self.before, self.now, self.until) =
                (BusyPeriod::default(), BusyPeriod::default(), None);
        }
        if self.until.is_none_or(|(_, waited)| waited != waits) {
            self.pass(now);
            self.until = Some((now, waits));
        }
    }

    /// An attempt with this many units has succeeded.
    pub fn done(&mut self, units: usize, took: Duration, now: Instant) {
        let took = took.as_secs_f64();
        let before = self.attempt.unwrap_or(took);
        self.attempt = Some(before + (took - before) * (count(units) / SMOOTH).min(1.0));
        self.pass(now);
        if self.until.is_some_and(|(_, waited)| waited) {
            self.now.units = self.now.units.saturating_add(units);
        }
    }

    fn pass(&mut self, now: Instant) {
        let Some((until, true)) = self.until else {
            return;
        };
        self.now.lasted += now.saturating_duration_since(until);
        self.until = Some((now, true));
        if self.now.lasted >= STRETCH {
            self.before = std::mem::take(&mut self.now);
        }
    }

    /// How long it is until so many units are done, `under_way` of others being worked on. `None`: nothing was
    /// done yet. What is under way counts as done within the time of one attempt: that is all there is to
    /// go by when a crowd has only just come, and ever less beside what was done since.
    pub fn time_for(&self, units: usize, under_way: usize, now: Instant) -> Option<Duration> {
        if units == 0 {
            return Some(Duration::ZERO);
        }
        let since = match self.until {
            Some((until, true)) => now.saturating_duration_since(until),
            _ => Duration::ZERO,
        };
        // As for a crowd that has just come, where it is long that one was there.
        let (before, latest) = match self.until {
            Some(until) if rested(until, now) => Default::default(),
            _ => (self.before, self.now),
        };
        let lasted = before.lasted + latest.lasted + since;
        let done = before.units.saturating_add(latest.units);
        let seconds = lasted.as_secs_f64() + self.attempt?;
        let done = count(done.saturating_add(under_way).max(1));
        let seconds = seconds * count(units) / done;
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }
}

/// Whether nobody has waited for so long that what was done before says nothing.
fn rested((until, waited): (Instant, bool), now: Instant) -> bool {
    !waited && now.saturating_duration_since(until) > PAUSE
}

/// What is accepted and not signed yet with the keys of one curve, in inputs: one for each request of which it is not
/// known yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnsignedWork {
    /// Of a vault.
    pub of_vault: usize,
    /// Of that, what one token asked for.
    pub of_token: usize,
}

/// A number to divide by, or to be divided.
pub fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

#[cfg(test)]
#[allow(
    non_snake_case,
    clippy::disallowed_methods,
    reason = "time that only the test moves on"
)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Whether two times differ by less than a tenth.
    fn alike(one: Option<Duration>, other: Duration) -> bool {
        let ratio = one.unwrap().as_secs_f64() / other.as_secs_f64();
        (0.9..1.1).contains(&ratio)
    }

    #[test]
    fn rate__should_go_by_attempts_when_a_crowd_has_just_come() {
        let (mut rate, mut now) = (Rate::default(), Instant::now());
        rate.waits(true, now);
        assert_eq!(rate.time_for(9, 4, now), None);
        // One a second, since no more were wanted: that is not what signers can do.
        rate.waits(false, now);
        for _ in 0..20 {
            now += ms(1_000);
            rate.done(1, ms(20), now);
        }
        rate.waits(true, now);
        assert!(alike(rate.time_for(400, 8, now), ms(1_000)));
        assert_eq!(rate.time_for(0, 8, now), Some(Duration::ZERO));
    }

    #[test]
    fn rate__should_forget_the_last_crowd_once_nobody_waits() {
        let (mut rate, mut now) = (Rate::default(), Instant::now());
        rate.waits(true, now);
        for _ in 0..20 {
            now += ms(400);
            rate.done(1, ms(20), now);
        }
        rate.waits(false, now);
        assert!(rate.time_for(200, 12, now).unwrap() > ms(30_000));
        assert!(alike(
            rate.time_for(200, 12, now + ms(3_600_000)),
            ms(20) * 200 / 12
        ));
    }

    #[test]
    fn rate__should_be_what_was_done_while_somebody_waited() {
        let (mut rate, mut now) = (Rate::default(), Instant::now());
        rate.done(1, ms(20), now);
        rate.waits(true, now);
        // Payments with 252 inputs: one input in 10 ms, and not 252 in the time of one.
        for _ in 0..20 {
            now += ms(2_520);
            rate.done(252, ms(5_040), now);
        }
        let wait = rate.time_for(25_200, 504, now).unwrap();
        assert!(wait > ms(150_000) && wait < ms(300_000), "{wait:?}");
        // It becomes four times as fast, and soon nothing else counts.
        for _ in 0..20 {
            now += ms(630);
            rate.done(252, ms(1_260), now);
        }
        assert!(rate.time_for(25_200, 504, now).unwrap() < ms(70_000));
    }

    #[test]
    fn rate__should_fall_slowly_when_nothing_is_done() {
        let (mut rate, mut now) = (Rate::default(), Instant::now());
        rate.waits(true, now);
        for _ in 0..1_000 {
            now += ms(10);
            rate.done(1, ms(80), now);
        }
        assert!(alike(rate.time_for(1_000, 8, now), ms(10_000)));
        // A second without a word does not make thousands hopeless.
        assert!(rate.time_for(1_000, 8, now + ms(1_000)).unwrap() < ms(15_000));
        assert!(rate.time_for(1_000, 8, now + ms(60_000)).unwrap() > ms(60_000));
        // Another day another crowd.
        now += ms(60_000);
        rate.waits(false, now);
        now += ms(60_000);
        rate.waits(true, now);
        assert!(alike(rate.time_for(1_000, 8, now), ms(10_000)));
    }
}
