//! How long attempts of one kind take, and so how long the next one is given. Pure: durations come in,
//! durations go out.

use std::time::Duration;

/// Attempts that are remembered.
const REMEMBERED: usize = 256;
/// Fewer samples than this say nothing about the slowest of a hundred.
const ENOUGH: usize = 20;
/// One attempt's part in the moving average: 1 of this many.
const WEIGHT: u32 = 16;
/// An attempt gets this multiple of the average time.
const ALLOWANCE: u32 = 8;
/// A quick cluster still gives an attempt this part of what one is given before any was measured: a disk
/// or a garbage collector may stop a machine for longer than signing takes.
const LEAST_PART: u32 = 3;
/// The most that an attempt is given, as nodes keep it.
const MOST: Duration = Duration::from_secs(60);
/// A second team never begins sooner: below this it costs more than it saves.
const SOONEST_SECOND: Duration = Duration::from_millis(100);

/// A second team begins after this multiple of the average time beside an attempt with a signer that seems to have stopped.
const STOPPED: u32 = 2;

/// How many classes [`class_of`] has: 1 input, 2, 3 to 4, 5 to 8, and so on.
pub(super) const CLASSES: usize = 9;

/// Which class of attempts one with so many inputs belongs to: its time goes with their number.
pub(super) fn class_of(inputs: usize) -> usize {
    let class = inputs.max(1).next_power_of_two().ilog2();
    usize::try_from(class).unwrap_or(CLASSES).min(CLASSES - 1)
}

/// The times of the attempts that ended well.
#[derive(Clone, Debug, Default)]
pub(super) struct AttemptTimes {
    average: Option<Duration>,
    /// The last ones, as each was one of so many at once: its part of the time. Without an order.
    last: Vec<Duration>,
    /// Where the next one goes.
    next: usize,
}

impl AttemptTimes {
    /// An attempt took so long, as one of so many at once. `overtaken`: how long an earlier one of the request has run that
    /// is not done.
    fn record(&mut self, took: Duration, overtaken: Option<Duration>, at_once: u32) {
        self.average = Some(match self.average {
            None => took,
            Some(average) => (average * (WEIGHT - 1) + took) / WEIGHT,
        });
        // Without the slow ones that are overtaken the next would seem slow sooner, and so on. They say nothing of how long
        // one takes that goes well.
        let part = overtaken.unwrap_or(took) / at_once.max(1);
        match self.last.get_mut(self.next) {
            Some(place) => *place = part,
            None => self.last.push(part),
        }
        self.next = (self.next + 1) % REMEMBERED;
    }

    /// The moving average.
    pub(super) fn average(&self) -> Option<Duration> {
        self.average
    }

    /// What 99 of 100 attempts take at most, of those that are alone.
    fn slowest_of_hundred(&self) -> Option<Duration> {
        if self.last.len() < ENOUGH {
            return None;
        }
        let mut last = self.last.clone();
        let place = last.len() * 99 / 100;
        let (_, slow, _) = last.select_nth_unstable(place);
        Some(*slow)
    }
}

/// The times of all attempts with one scheme, by the number of their inputs.
#[derive(Clone, Debug, Default)]
pub(super) struct SchemeTimes([AttemptTimes; CLASSES]);

impl SchemeTimes {
    /// An attempt of the class took so long, as one of so many at once. `overtaken`: how long an earlier one of the request
    /// has run that is not done.
    pub(super) fn record(
        &mut self,
        class: usize,
        took: Duration,
        overtaken: Option<Duration>,
        at_once: u32,
    ) {
        if let Some(pace) = self.0.get_mut(class) {
            pace.record(took, overtaken, at_once);
        }
    }

    /// The average of this class; of a smaller one for as many times the inputs where none was measured.
    pub(super) fn average(&self, class: usize) -> Option<Duration> {
        self.scaled(class, AttemptTimes::average)
    }

    fn scaled(
        &self,
        class: usize,
        of: impl Fn(&AttemptTimes) -> Option<Duration>,
    ) -> Option<Duration> {
        let known = self.0.get(..=class)?.iter().rev().zip(0_u32..);
        let mut known = known.filter_map(|(pace, below)| Some((of(pace)?, below)));
        known.next().map(|(took, below)| took * (1 << below))
    }

    /// How long an attempt has that is sent now. `unmeasured`: what one has that nothing is known of.
    pub(super) fn allowance(&self, class: usize, unmeasured: Duration) -> Duration {
        let least = unmeasured / LEAST_PART;
        let allowed = self
            .average(class)
            .map_or(unmeasured, |average| (average * ALLOWANCE).max(least));
        allowed.min(MOST)
    }

    /// When a second team begins beside one that has not answered, and is one of so many at once: after longer than 99 of
    /// 100 took, and after half of what an attempt is given at most. They share the signers: when a crowd comes, all
    /// become slow at once, and second teams would make them slower.
    pub(super) fn second_after(
        &self,
        class: usize,
        unmeasured: Duration,
        at_once: u32,
    ) -> Duration {
        let half = self.allowance(class, unmeasured) / 2;
        match self.scaled(class, AttemptTimes::slowest_of_hundred) {
            Some(slow) => (slow * at_once.max(1)).min(half).max(SOONEST_SECOND),
            None => half,
        }
    }

    /// The same beside one with a signer that seems to have stopped.
    pub(super) fn second_after_stop(&self, class: usize, unmeasured: Duration) -> Duration {
        let usual = self.average(class).unwrap_or(unmeasured);
        (usual * STOPPED).max(SOONEST_SECOND)
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    const UNMEASURED: Duration = Duration::from_secs(3);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn paces(class: usize, times: impl IntoIterator<Item = u64>) -> SchemeTimes {
        let mut paces = SchemeTimes::default();
        for took in times {
            paces.record(class, ms(took), None, 1);
        }
        paces
    }

    #[test]
    fn allowance__should_be_a_multiple_of_what_attempts_take() {
        assert_eq!(SchemeTimes::default().allowance(0, UNMEASURED), UNMEASURED);
        assert_eq!(paces(0, [500; 9]).allowance(0, UNMEASURED), ms(4_000));
        // Never so short that a machine that stops for a moment ends all of them.
        assert_eq!(paces(0, [2; 9]).allowance(0, UNMEASURED), ms(1_000));
        assert_eq!(paces(0, [20_000; 9]).allowance(0, UNMEASURED), MOST);
        // A machine that becomes slow is followed.
        let slower = paces(0, std::iter::repeat_n(10, 50).chain([2_000; 50]));
        assert!(slower.allowance(0, UNMEASURED) > ms(12_000));
    }

    #[test]
    fn allowance__should_go_with_the_inputs() {
        assert_eq!([0, 1, 2, 3, 4, 256].map(class_of), [0, 0, 1, 2, 2, 8]);
        assert_eq!(class_of(1_000_000), CLASSES - 1);
        let paces = paces(0, [200; 9]);
        assert_eq!(paces.allowance(0, UNMEASURED), ms(1_600));
        assert_eq!(paces.allowance(2, UNMEASURED), ms(6_400));
        assert_eq!(paces.average(8), Some(ms(51_200)));
    }

    #[test]
    fn second_team__should_begin_after_longer_than_nearly_all_take() {
        assert_eq!(
            SchemeTimes::default().second_after(0, UNMEASURED, 1),
            ms(1_500)
        );
        let most = (0..1_000).map(|number| if number % 50 == 0 { 900 } else { 300 });
        assert_eq!(paces(0, most).second_after(0, UNMEASURED, 1), ms(900));
        let rare = (0..256).map(|number| if number % 200 == 0 { 900 } else { 300 });
        assert_eq!(paces(0, rare).second_after(0, UNMEASURED, 1), ms(300));
        assert_eq!(
            paces(0, [3; 50]).second_after(0, UNMEASURED, 1),
            SOONEST_SECOND
        );
    }

    #[test]
    fn second_team__should_not_begin_because_a_crowd_has_come() {
        let mut paces = paces(0, [20; 50]);
        // As many at once share the signers: each takes longer for that.
        assert_eq!(paces.second_after(0, UNMEASURED, 12), ms(240));
        // Half of what an attempt is given.
        assert_eq!(paces.second_after(0, UNMEASURED, 1_000), ms(500));
        // Also before there are many that were made in the crowd.
        for _ in 0..5 {
            paces.record(0, ms(100), None, 12);
        }
        assert_eq!(paces.second_after(0, UNMEASURED, 12), ms(240));
        for _ in 0..256 {
            paces.record(0, ms(180), None, 12);
        }
        assert_eq!(paces.second_after(0, UNMEASURED, 12), ms(180));
        assert_eq!(paces.second_after(0, UNMEASURED, 1), SOONEST_SECOND);
    }

    #[test]
    fn overtaken_attempts__should_not_change_what_an_attempt_is_given() {
        let mut paces = paces(0, [20; 60]);
        for _ in 0..20 {
            paces.record(0, ms(20), Some(ms(500)), 1);
        }
        assert_eq!(paces.average(0), Some(ms(20)));
        assert_eq!(paces.allowance(0, UNMEASURED), ms(1_000));
        // They were slow, and the next may be as slow.
        assert_eq!(paces.second_after(0, UNMEASURED, 1), ms(500));
    }
}
