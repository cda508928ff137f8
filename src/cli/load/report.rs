//! What was measured, for people and for programs.

use std::collections::BTreeMap;

use askama::Template as _;
use serde::Serialize;

use super::{
    drive::{LoadMeasurement, LoadPace, SignedSample},
    meters::{MeteredCount, MeteredStage},
    workload::LoadScenario,
};
use crate::cli::{one_line, table};

/// What must hold, for a script that ends by it.
#[derive(Debug, Default, clap::Args)]
pub struct LoadLimits {
    /// The least rate, in signatures per second.
    #[arg(long, value_name = "N")]
    least_rate: Option<f64>,
    /// The longest time within which 99 of 100 requests are signed, in milliseconds.
    #[arg(long, value_name = "MS")]
    most_p99_ms: Option<f64>,
    /// The most requests that may fail.
    #[arg(long, value_name = "N", default_value_t = 0)]
    most_failed: u64,
}

/// Times of some requests, in milliseconds.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct LatencyPercentiles {
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    longest: f64,
}

impl LatencyPercentiles {
    fn of(seconds: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<_> = seconds.map(|seconds| seconds * 1e3).collect();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = (sorted.len() as f64 * share).ceil() as usize;
            let found = sorted.get(place.saturating_sub(1));
            found.copied().unwrap_or_default()
        };
        Self {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            longest: at(1.0),
        }
    }

    /// In the order of the table's columns.
    fn all(&self) -> [f64; 5] {
        [self.p50, self.p90, self.p99, self.p999, self.longest]
    }

    fn row(&self, what: &str) -> [String; 6] {
        let [a, b, c, d, e] = self.all().map(|ms| format!("{ms:.1}"));
        [what.to_owned(), a, b, c, d, e]
    }
}

/// One second of the measurement.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct MeasuredSecond {
    signed: usize,
    p50_ms: f64,
    p99_ms: f64,
}

/// A limit, and what was measured.
#[derive(Debug, Serialize)]
struct LimitVerdict {
    what: &'static str,
    limit: f64,
    measured: f64,
    met: bool,
}

/// A measurement.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadReport {
    version: &'static str,
    scenario: String,
    pace: String,
    seconds: f64,
    signed: usize,
    rate: f64,
    refused: u64,
    left_out: u64,
    failed: BTreeMap<String, u64>,
    wrong: BTreeMap<String, u64>,
    /// Until a request was accepted.
    accepted_ms: LatencyPercentiles,
    /// Until it was signed.
    signed_ms: LatencyPercentiles,
    /// MeterReading it; none where nothing was read.
    read_ms: Option<LatencyPercentiles>,
    reads: usize,
    each_second: Vec<MeasuredSecond>,
    /// Of each process whose metrics were named, in their order.
    cpu_ms_per_signature: Vec<f64>,
    redis_commands_per_signature: Option<f64>,
    stages: Vec<MeteredStage>,
    counts: Vec<MeteredCount>,
    limits: Vec<LimitVerdict>,
}

#[derive(askama::Template)]
#[template(path = "load.html")]
struct ReportPage<'a> {
    report: &'a LoadReport,
    rate: String,
    p50: String,
    p99: String,
    most_rate: String,
    most_ms: String,
}

impl LoadReport {
    pub fn new(
        scenario: LoadScenario,
        pace: LoadPace,
        measured: LoadMeasurement,
        limits: &LoadLimits,
    ) -> Self {
        let LoadMeasurement {
            seconds,
            outcomes,
            metered,
        } = measured;
        let ended = outcomes.signed.iter().filter(|one| one.ended <= seconds);
        let signed = ended.count();
        let begun = || {
            let all = outcomes.signed.iter();
            all.filter(|one| one.begun >= 0.0 && one.begun <= seconds)
        };
        let signed_ms = LatencyPercentiles::of(begun().map(SignedSample::latency));
        let rate = signed as f64 / seconds;
        let failed: u64 = outcomes.failed.values().sum();
        let verdict = |what, limit: Option<f64>, measured: f64, is_least: bool| {
            limit.map(|limit| LimitVerdict {
                what,
                limit,
                measured,
                met: if is_least {
                    measured >= limit
                } else {
                    measured <= limit
                },
            })
        };
        let limits = [
            verdict("signatures per second", limits.least_rate, rate, true),
            verdict("p99 in ms", limits.most_p99_ms, signed_ms.p99, false),
            verdict(
                "failed",
                Some(limits.most_failed as f64),
                failed as f64,
                false,
            ),
        ];
        let each_second = (0..seconds as usize).map(|second| {
            let those = outcomes
                .signed
                .iter()
                .filter(|one| one.ended as usize == second);
            let times = LatencyPercentiles::of(those.clone().map(SignedSample::latency));
            MeasuredSecond {
                signed: those.count(),
                p50_ms: times.p50,
                p99_ms: times.p99,
            }
        });
        let many = signed.max(1) as f64;
        Self {
            version: env!("CARGO_PKG_VERSION"),
            scenario: scenario.to_string(),
            pace: match pace {
                LoadPace::Closed(clients) => format!("{clients} clients"),
                LoadPace::Open(rate) => format!("{rate} requests per second"),
            },
            seconds,
            signed,
            rate,
            refused: outcomes.refused,
            left_out: outcomes.left_out,
            accepted_ms: LatencyPercentiles::of(begun().map(|one| one.accepted)),
            signed_ms,
            read_ms: (!outcomes.reads.is_empty())
                .then(|| LatencyPercentiles::of(outcomes.reads.iter().copied())),
            reads: outcomes.reads.len(),
            each_second: each_second.collect(),
            cpu_ms_per_signature: metered.cpu_ms(many),
            redis_commands_per_signature: metered.redis_commands(many),
            stages: metered.stages(many),
            counts: metered.counts(many),
            limits: limits.into_iter().flatten().collect(),
            failed: outcomes.failed,
            wrong: outcomes.wrong,
        }
    }

    /// Signatures of the measured time.
    pub fn signed(&self) -> usize {
        self.signed
    }

    /// Signatures and answers that were wrong.
    pub fn wrong(&self) -> u64 {
        self.wrong.values().sum()
    }

    /// The limits that were missed.
    pub fn missed(&self) -> Vec<String> {
        let missed = self.limits.iter().filter(|verdict| !verdict.met);
        missed
            .map(|missed| {
                let LimitVerdict {
                    what,
                    limit,
                    measured,
                    ..
                } = missed;
                format!("{what}: {measured:.1}, and the limit is {limit}")
            })
            .collect()
    }

    /// For a terminal.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "{}, {}, {} s: {} signed and verified, {:.1} per second; {} refused, {} failed",
            self.scenario,
            self.pace,
            self.seconds,
            self.signed,
            self.rate,
            self.refused,
            self.failed.values().sum::<u64>(),
        )];
        if self.left_out > 0 {
            let left_out = self.left_out;
            lines.push(format!("{left_out} were not made: too many were in flight"));
        }
        let mut times = vec![
            self.accepted_ms.row("accepted"),
            self.signed_ms.row("signed"),
        ];
        times.extend(self.read_ms.as_ref().map(|read| read.row("read")));
        lines.push(table(
            ["MS", "P50", "P90", "P99", "P99.9", "LONGEST"],
            times,
        ));
        for (what, reasons) in [("failed", &self.failed), ("WRONG", &self.wrong)] {
            let said = reasons
                .iter()
                .map(|(reason, many)| format!("{what}: {many} times: {}", one_line(reason)));
            lines.extend(said);
        }
        let cpu = self.cpu_ms_per_signature.iter().enumerate();
        lines.extend(
            cpu.map(|(place, ms)| {
                format!("CPU of process {}: {ms:.2} ms per signature", place + 1)
            }),
        );
        if let Some(commands) = self.redis_commands_per_signature {
            lines.push(format!("Redis: {commands:.1} commands per signature"));
        }
        if !self.stages.is_empty() {
            let rows = self.stages.iter().map(|stage| {
                let mean = format!("{:.2}", stage.mean_ms);
                [
                    stage.name.clone(),
                    format!("{:.2}", stage.per_signature),
                    mean,
                ]
            });
            lines.push(table(["STAGE", "PER SIGNATURE", "MEAN MS"], rows));
        }
        if !self.counts.is_empty() {
            let rows = self.counts.iter();
            let rows = rows.map(|one| [one.name.clone(), format!("{:.2}", one.per_signature)]);
            lines.push(table(["COUNT", "PER SIGNATURE"], rows));
        }
        lines
    }

    /// A page that needs nothing else.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn page(&self) -> anyhow::Result<String> {
        let seconds = || self.each_second.iter();
        let most = |values: &mut dyn Iterator<Item = f64>| values.fold(1.0_f64, f64::max);
        let most_rate = most(&mut seconds().map(|second| second.signed as f64));
        let most_ms = most(&mut seconds().map(|second| second.p99_ms));
        let page = ReportPage {
            report: self,
            rate: points(seconds().map(|second| second.signed as f64 / most_rate)),
            p50: points(seconds().map(|second| second.p50_ms / most_ms)),
            p99: points(seconds().map(|second| second.p99_ms / most_ms)),
            most_rate: format!("{most_rate:.0}"),
            most_ms: format!("{most_ms:.0}"),
        };
        Ok(page.render()?)
    }
}

/// The points of a line of the plot, 600 wide and 160 high; values are from 0 to 1.
fn points(values: impl ExactSizeIterator<Item = f64>) -> String {
    let steps = values.len().saturating_sub(1).max(1) as f64;
    let points = values.enumerate().map(|(place, value)| {
        let (x, y) = (place as f64 * 600.0 / steps, 160.0 - value * 160.0);
        format!("{x:.1},{y:.1}")
    });
    points.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;
    use crate::cli::load::{
        drive::LoadOutcomes,
        meters::{MeterGrowth, MeterReading},
    };

    fn measured(samples: &[(f64, f64)]) -> LoadMeasurement {
        let sample = |(begun, ended): &(f64, f64)| SignedSample {
            begun: *begun,
            ended: *ended,
            accepted: 0.001,
        };
        LoadMeasurement {
            seconds: 2.0,
            outcomes: LoadOutcomes {
                signed: samples.iter().map(sample).collect(),
                failed: [("no <b>funds</b>".to_owned(), 2)].into(),
                ..LoadOutcomes::default()
            },
            metered: MeterGrowth {
                before: MeterReading::default(),
                after: MeterReading::default(),
            },
        }
    }

    #[test]
    fn latencies__should_be_those_of_so_many_of_all() {
        let all = LatencyPercentiles::of((1..=1000).map(|ms| f64::from(ms) / 1e3));
        let LatencyPercentiles {
            p50,
            p90,
            p99,
            p999,
            longest,
        } = all;
        assert_eq!(
            [p50, p90, p99, p999, longest],
            [500., 900., 990., 999., 1000.]
        );
        assert_eq!(
            LatencyPercentiles::of(std::iter::empty()),
            LatencyPercentiles::default()
        );
    }

    #[test]
    fn report__should_count_the_rate_by_ends_and_latency_by_beginnings() {
        // Begun before, all of it inside, ended after.
        let measured = measured(&[(-1.0, 0.5), (0.5, 1.5), (1.0, 3.0)]);
        let limits = LoadLimits {
            least_rate: Some(1.0),
            most_p99_ms: Some(1_999.0),
            most_failed: 1,
        };
        let report = LoadReport::new(LoadScenario::Ecdsa, LoadPace::Closed(3), measured, &limits);
        assert_eq!((report.signed, report.rate), (2, 1.0));
        assert_eq!(report.signed_ms.longest, 2_000.0);
        let missed = report.missed();
        assert_eq!(
            missed,
            [
                "p99 in ms: 2000.0, and the limit is 1999",
                "failed: 2.0, and the limit is 1"
            ]
        );
        let seconds: Vec<_> = report.each_second.iter().map(|one| one.signed).collect();
        assert_eq!(seconds, [1, 1]);
    }

    #[test]
    fn page__should_show_what_the_service_says_as_text() {
        let limits = LoadLimits::default();
        let measured = measured(&[(0.0, 0.5), (0.5, 1.5)]);
        let report = LoadReport::new(LoadScenario::Mixed, LoadPace::Open(1.5), measured, &limits);
        let page = report.page().unwrap();
        assert!(page.contains("1.5 requests per second"), "{page}");
        assert!(page.contains("no &#60;b&#62;funds"), "{page}");
        assert!(page.contains("<polyline"), "{page}");
    }
}
