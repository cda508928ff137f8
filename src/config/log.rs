//! What is logged, and where traces go.

use std::net::IpAddr;

use reqwest::Url;
use serde::Deserialize;
use tracing_subscriber::filter::{LevelFilter, Targets};

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct LogSettings {
    pub level: String,
    pub format: LogFormat,
    pub access: bool,
    pub otlp_url: String,
    pub otlp_sample: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}

impl LogSettings {
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Err(problem) = level_filter(&self.level) {
            problems.push(format!("log.level: {problem}"));
        }
        match self.otlp_endpoint() {
            Err(problem) => problems.push(format!("log.otlp_url: {problem}")),
            Ok(Some(_)) if !cfg!(feature = "otlp") => problems.push(
                "log.otlp_url: this build sends no traces; use the program of a release, or build with --features otlp"
                    .to_owned(),
            ),
            Ok(_) => {}
        }
        if !(0.0..=1.0).contains(&self.otlp_sample) {
            problems.push(format!(
                "log.otlp_sample: {} is no part of the requests; use 0.0 for none to 1.0 for all",
                self.otlp_sample
            ));
        }
        problems
    }

    /// Where traces are sent; `None`: nowhere.
    ///
    /// # Errors
    /// What is wrong with the URL, which is not repeated: it may hold a password.
    pub fn otlp_endpoint(&self) -> Result<Option<Url>, String> {
        if self.otlp_url.is_empty() {
            return Ok(None);
        }
        let url = Url::parse(&self.otlp_url).ok();
        let url = url.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let Some(mut url) = url else {
            return Err(
                "is no URL of http or https; use one such as http://127.0.0.1:4318".to_owned(),
            );
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err("holds a user or password, which would be shown; use a receiver on this machine, which adds them".to_owned());
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err("holds a query or fragment; use the URL without it".to_owned());
        }
        if url.scheme() == "http" && !is_this_machine(&url) {
            return Err(
                "is http to another machine; use https, or a receiver on this machine".to_owned(),
            );
        }
        if url.path() == "/" {
            url.set_path("/v1/traces");
        }
        Ok(Some(url))
    }
}

fn is_this_machine(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// The longest list of log levels, in bytes.
const MOST_LEVELS: usize = 500;

/// What a list of log levels lets through.
///
/// # Errors
/// What is wrong with it: a word that is no level is never taken for a target, which would silence the log.
pub fn level_filter(levels: &str) -> Result<Targets, String> {
    if levels.len() > MOST_LEVELS {
        return Err(format!("is longer than {MOST_LEVELS} bytes"));
    }
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-');
    let mut filter = Targets::new();
    for part in levels.split(',') {
        let (target, level) = part.split_once('=').unwrap_or(("", part));
        // No other white space: a level is written into the log.
        let (target, level) = (target.trim_matches(' '), level.trim_matches(' '));
        let parsed = level.parse::<LevelFilter>().ok();
        let Some(parsed) = parsed.filter(|_| !level.is_empty()) else {
            return Err(format!(
                "{level:?} is not a level; use trace, debug, info, warn, error or off, alone or as target=level"
            ));
        };
        if !part.contains('=') {
            filter = filter.with_default(parsed);
        } else if !target.is_empty() && target.chars().all(is_part) {
            filter = filter.with_target(target, parsed);
        } else {
            return Err(format!(
                "{target:?} is not a target; use one such as covault_mpc"
            ));
        }
    }
    Ok(filter)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn endpoint(url: &str) -> Result<Option<String>, String> {
        let log = LogSettings {
            level: "info".to_owned(),
            format: LogFormat::Text,
            access: false,
            otlp_url: url.to_owned(),
            otlp_sample: 0.01,
        };
        let endpoint = log.otlp_endpoint();
        endpoint.map(|url| url.map(|url| url.to_string()))
    }

    #[test]
    fn receiver_of_traces__should_be_over_https_or_on_this_machine() {
        assert_eq!(endpoint(""), Ok(None));
        for (url, wanted) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://[::1]:4318/", "http://[::1]:4318/v1/traces"),
            ("http://localhost:4318/otlp", "http://localhost:4318/otlp"),
            (
                "https://collector.example",
                "https://collector.example/v1/traces",
            ),
        ] {
            assert_eq!(endpoint(url), Ok(Some(wanted.to_owned())), "{url}");
        }
    }

    #[test]
    fn wrong_receiver_of_traces__should_be_refused_without_saying_its_password() {
        for url in [
            "collector:4318",
            "grpc://127.0.0.1:4317",
            "http://collector:4318",
            "http://10.0.0.1:4318",
            "https://anna:hunter2@collector.example",
            "https://hunter2@collector.example",
            "https://collector.example/?token=hunter2",
            "https://collector.example/#hunter2",
            "https://[hunter2",
        ] {
            let problem = endpoint(url).expect_err(url);
            assert!(!problem.contains("hunter2"), "{problem}");
        }
    }
}
