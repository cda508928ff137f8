//! What the processes say of themselves, before and after.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use serde::Serialize;

/// How long a process may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
const CPU: &str = "process_cpu_seconds_total";

/// Where figures are read from.
pub struct ProcessMeters {
    urls: Vec<String>,
    redis: Option<redis::Client>,
    http: reqwest::Client,
}

/// The figures of one moment.
#[derive(Default)]
pub struct MeterReading {
    /// Those of each process, by series: name and labels.
    processes: Vec<BTreeMap<String, f64>>,
    redis_commands: Option<f64>,
}

/// Those of both ends of a measurement.
pub struct MeterGrowth {
    pub before: MeterReading,
    pub after: MeterReading,
}

/// A kind of work that has a histogram.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MeteredStage {
    /// The metric, and its labels but for `node` and `le`.
    pub name: String,
    pub per_signature: f64,
    pub mean_ms: f64,
}

/// Something that is counted.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MeteredCount {
    pub name: String,
    pub per_signature: f64,
}

impl ProcessMeters {
    /// Of the processes with these metrics, and of the Redis whose URL is in the file.
    ///
    /// # Errors
    /// When the file cannot be read or holds no URL.
    pub fn new(urls: Vec<String>, redis_url_file: Option<&Path>) -> anyhow::Result<Self> {
        let redis = redis_url_file.map(|file| {
            let url = fs::read_to_string(file);
            let url = url
                .with_context(|| format!("--redis-url-file: {} cannot be read", file.display()))?;
            // Not its own words: they may hold the password.
            let client = redis::Client::open(url.trim()).ok();
            client.with_context(|| {
                format!(
                    "--redis-url-file: {} holds no URL of a Redis",
                    file.display()
                )
            })
        });
        Ok(Self {
            urls,
            redis: redis.transpose()?,
            http: reqwest::Client::builder().timeout(TIMEOUT).build()?,
        })
    }

    /// The figures of now.
    ///
    /// # Errors
    /// When a process or Redis does not answer.
    pub async fn read(&self) -> anyhow::Result<MeterReading> {
        let mut reading = MeterReading::default();
        for url in &self.urls {
            let answer = async {
                let answer = self.http.get(url).send().await?.error_for_status()?;
                answer.text().await
            };
            let text = answer.await;
            let text = text.with_context(|| format!("--metrics: {url} gives no metrics"))?;
            let series = series(&text);
            ensure!(!series.is_empty(), "--metrics: {url} gives no metrics");
            reading.processes.push(series);
        }
        if let Some(client) = &self.redis {
            let commands = commands(client).await;
            reading.redis_commands =
                Some(commands.context("--redis-url-file: Redis does not answer")?);
        }
        Ok(reading)
    }
}

async fn commands(client: &redis::Client) -> anyhow::Result<f64> {
    let mut connection = client.get_multiplexed_async_connection().await?;
    let info: String = redis::cmd("INFO")
        .arg("stats")
        .query_async(&mut connection)
        .await?;
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("total_commands_processed:"));
    Ok(line
        .context("INFO has no number of commands")?
        .trim()
        .parse()?)
}

/// Each line of the text format that has a number: name and labels, and the number.
fn series(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| {
        let (name, number) = line.rsplit_once(' ')?;
        Some((name.to_owned(), number.parse().ok()?))
    });
    pairs.collect()
}

impl MeterGrowth {
    /// CPU milliseconds per signature of each process, in the order of their URLs.
    pub fn cpu_ms(&self, signed: f64) -> Vec<f64> {
        let pairs = self.before.processes.iter().zip(&self.after.processes);
        pairs
            .map(|(before, after)| {
                let of = |reading: &BTreeMap<String, f64>| {
                    let own = reading.iter().filter(|(name, _)| name.starts_with(CPU));
                    own.map(|(_, seconds)| seconds).sum::<f64>()
                };
                (of(after) - of(before)) * 1e3 / signed
            })
            .collect()
    }

    /// Redis commands per signature, also those of others that use it.
    pub fn redis_commands(&self, signed: f64) -> Option<f64> {
        Some((self.after.redis_commands? - self.before.redis_commands?) / signed)
    }

    /// How much each series has grown, those of all processes together.
    fn growth(&self) -> BTreeMap<String, f64> {
        let mut growth = BTreeMap::new();
        for (before, after) in self.before.processes.iter().zip(&self.after.processes) {
            for (name, now) in after {
                let grown = now - before.get(name).copied().unwrap_or_default();
                if grown > 0.0 {
                    *growth.entry(without_node(name)).or_default() += grown;
                }
            }
        }
        growth
    }

    /// What has a histogram: how often it happened, and how long it took.
    pub fn stages(&self, signed: f64) -> Vec<MeteredStage> {
        let growth = self.growth();
        let stages = growth.iter().filter_map(|(name, sum)| {
            let (family, labels) = split(name);
            let base = family.strip_suffix("_seconds_sum")?;
            let count = growth.get(&format!("{base}_seconds_count{labels}"))?;
            Some(MeteredStage {
                name: format!("{base}{labels}"),
                per_signature: count / signed,
                mean_ms: sum * 1e3 / count,
            })
        });
        stages.collect()
    }

    /// What is counted.
    pub fn counts(&self, signed: f64) -> Vec<MeteredCount> {
        let growth = self.growth().into_iter();
        let counts = growth.filter(|(name, _)| {
            let (family, _) = split(name);
            family.starts_with("covault_") && family.ends_with("_total")
        });
        let counts = counts.map(|(name, grown)| MeteredCount {
            name,
            per_signature: grown / signed,
        });
        counts.collect()
    }
}

/// The metric, and its labels in their braces.
fn split(series: &str) -> (&str, &str) {
    match series.find('{') {
        Some(place) => series.split_at(place),
        None => (series, ""),
    }
}

/// Without the label that tells one signer node from another.
fn without_node(series: &str) -> String {
    let (family, labels) = split(series);
    let labels = labels.trim_start_matches('{').trim_end_matches('}');
    let others = labels.split(',').filter(|label| {
        !label.is_empty() && !label.starts_with("node=") && !label.starts_with("name=")
    });
    let others: Vec<_> = others.collect();
    match others.is_empty() {
        true => family.to_owned(),
        false => format!("{family}{{{}}}", others.join(",")),
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn reading(texts: &[&str]) -> MeterReading {
        MeterReading {
            processes: texts.iter().map(|text| series(text)).collect(),
            redis_commands: None,
        }
    }

    #[test]
    fn figures__should_be_of_all_processes_per_signature() {
        let metered = MeterGrowth {
            before: reading(&[
                "# HELP\nprocess_cpu_seconds_total 1\na_seconds_sum{x=\"1\"} 1\na_seconds_count{x=\"1\"} 10\n",
                "covault_signer_sessions_total{node=\"n1\",kind=\"sign\"} 5\n",
            ]),
            after: reading(&[
                "process_cpu_seconds_total 3\na_seconds_sum{x=\"1\"} 2\na_seconds_count{x=\"1\"} 30\n",
                "covault_signer_sessions_total{node=\"n1\",kind=\"sign\"} 15\ncovault_signer_sessions_total{node=\"n2\",kind=\"sign\"} 10\n",
            ]),
        };
        assert_eq!(metered.cpu_ms(10.0), [200.0, 0.0]);
        let stage = MeteredStage {
            name: "a{x=\"1\"}".into(),
            per_signature: 2.0,
            mean_ms: 50.0,
        };
        assert_eq!(metered.stages(10.0), [stage]);
        let count = MeteredCount {
            name: "covault_signer_sessions_total{kind=\"sign\"}".into(),
            per_signature: 2.0,
        };
        assert_eq!(metered.counts(10.0), [count]);
        assert_eq!(metered.redis_commands(10.0), None);
    }
}
