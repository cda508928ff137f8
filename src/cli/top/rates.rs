//! How many requests a second there were lately.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use covault_core::schema::admin::RequestTotals;
use tokio::time::Instant;

/// So far back a rate looks: long enough for single requests, short enough to be of now.
const WINDOW: Duration = Duration::from_secs(10);
/// So far back the bars look: processes tell their counts once a second, and not when they are asked.
const BAR: Duration = Duration::from_secs(3);
/// So long it remembers.
const MEMORY: Duration = Duration::from_secs(60);

/// What became of requests, as it was heard.
#[derive(Default)]
pub struct RequestRates {
    /// The counts of each process, and when they were heard.
    processes: BTreeMap<String, (Instant, RequestTotals)>,
    /// What became of requests since the first time that anything was heard.
    sums: VecDeque<(Instant, RequestTotals)>,
}

impl RequestRates {
    /// These are the counts of processes now. What a process did before it was heard, or while it was not heard for longer than
    /// a rate looks back, is not of now.
    pub fn hear(&mut self, at: Instant, totals: Vec<RequestTotals>) {
        // Who cannot read the store knows of nobody.
        if totals.is_empty() {
            return;
        }
        let mut sum = self.sums.back().map(|(_, sum)| sum.clone());
        let sum = sum.get_or_insert_default();
        let is_recent = |then: Instant| at.duration_since(then) <= WINDOW;
        self.processes.retain(|_, (then, _)| is_recent(*then));
        for counts in totals {
            let id = counts.process.clone();
            let (then, last) = self.processes.entry(id).or_insert((at, counts.clone()));
            *then = at;
            // One orchestrator may know less of another one than was heard of a third.
            let rise = |sum: &mut u64, last: &mut u64, count: u64| {
                *sum = sum.saturating_add(count.saturating_sub(*last));
                *last = count.max(*last);
            };
            rise(&mut sum.created, &mut last.created, counts.created);
            rise(&mut sum.succeeded, &mut last.succeeded, counts.succeeded);
            rise(&mut sum.failed, &mut last.failed, counts.failed);
        }
        self.sums.push_back((at, sum.clone()));
        let is_old = |(then, _): &(Instant, RequestTotals)| at.duration_since(*then) > MEMORY;
        while self.sums.front().is_some_and(is_old) {
            self.sums.pop_front();
        }
    }

    /// How many a second of these there were lately; `None`: nobody knows yet.
    pub fn per_second(&self, count: impl Fn(&RequestTotals) -> u64) -> Option<f64> {
        rate(self.sums.iter(), WINDOW, &count)
    }

    /// How many tenths of requests a second were accepted, for each time that the totals were heard.
    pub fn bars(&self) -> Vec<u64> {
        let until = 1..=self.sums.len();
        let rates = until.filter_map(|until| rate(self.sums.range(..until), BAR, &|it| it.created));
        rates.map(|rate| (rate * 10.0).round() as u64).collect()
    }
}

/// How many a second there were before the last of these totals.
fn rate<'a>(
    heard: impl DoubleEndedIterator<Item = &'a (Instant, RequestTotals)>,
    window: Duration,
    count: &impl Fn(&RequestTotals) -> u64,
) -> Option<f64> {
    let mut latest_first = heard.rev();
    let (until, last) = latest_first.next()?;
    let earlier = latest_first.take_while(|(then, _)| until.duration_since(*then) <= window);
    let (since, first) = earlier.last()?;
    let passed = until.duration_since(*since).as_secs_f64();
    let more = count(last).saturating_sub(count(first));
    (passed > 0.0).then(|| more as f64 / passed)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn process(name: &str, created: u64) -> RequestTotals {
        RequestTotals {
            process: name.into(),
            created,
            ..RequestTotals::default()
        }
    }

    /// Once a second these processes are heard.
    fn heard_of(answers: &[&[(&str, u64)]]) -> RequestRates {
        let (start, mut rates) = (Instant::now(), RequestRates::default());
        for (seconds, answer) in (0..).zip(answers) {
            let totals = answer.iter().map(|(name, created)| process(name, *created));
            rates.hear(start + Duration::from_secs(seconds), totals.collect());
        }
        rates
    }

    fn heard(created: impl IntoIterator<Item = u64>) -> RequestRates {
        let answers: Vec<_> = created
            .into_iter()
            .map(|created| [("one", created)])
            .collect();
        heard_of(&answers.iter().map(|it| it.as_slice()).collect::<Vec<_>>())
    }

    #[test]
    fn rate__should_be_that_of_the_last_seconds() {
        assert_eq!(heard([]).per_second(|it| it.created), None);
        assert_eq!(heard([7]).per_second(|it| it.created), None);
        assert_eq!(heard([7, 9]).per_second(|it| it.created), Some(2.0));
        // It has become slower long ago.
        let slower = (0..20).map(|second| second * 100);
        let rates = heard(slower.chain((0..20).map(|second| 2_000 + second * 3)));
        assert_eq!(rates.per_second(|it| it.created), Some(3.0));
        assert_eq!(rates.per_second(|it| it.failed), Some(0.0));
        assert_eq!(rates.bars().len(), 39);
        assert_eq!(heard(0..200).bars().len(), 60);
    }

    #[test]
    fn rate__should_hold_only_what_processes_did_while_they_were_heard() {
        const A: (&str, u64) = ("a", 10);
        const B: (&str, u64) = ("b", 1_000_000);
        let created = |answers: &[&[(&str, u64)]]| heard_of(answers).per_second(|it| it.created);
        // One is not seen for a while, and there again.
        let away: &[&[_]] = &[&[A, B], &[("a", 14)], &[("a", 18), ("b", 1_000_006)]];
        assert_eq!(created(away), Some(7.0));
        assert!(heard_of(away).bars().iter().all(|bar| *bar <= 70));
        // An orchestrator has just started, and knows the others only later.
        let others: &[&[_]] = &[&[("new", 0)], &[("new", 1), A, B], &[("new", 4), A, B]];
        assert_eq!(created(others), Some(2.0));
        // Two answer in turn, each with older counts of the other.
        let turns: &[&[_]] = &[
            &[("a", 20), ("b", 8)],
            &[("a", 10), ("b", 20)],
            &[("a", 40), ("b", 18)],
        ];
        assert_eq!(created(turns), Some(16.0));
        // Nobody knows when one did what it did that was away for long.
        let mut long: Vec<&[_]> = vec![&[A, B]];
        long.resize(12, &[A]);
        long.push(&[A, ("b", 2_000_000)]);
        assert_eq!(created(&long), Some(0.0));
        // What cannot be read is not nothing.
        assert_eq!(created(&[&[A], &[("a", 12)], &[]]), Some(2.0));
    }
}
