//! Logging. Goes to stderr, so that stdout holds answers only. What is written can be changed while the process runs.

use std::{io::IsTerminal as _, path::PathBuf, sync::OnceLock};

use anyhow::Context as _;
use covault_actors::port::LogControl;
use covault_core::fault::Fault;
use parking_lot::Mutex;
use tokio::signal::unix::Signal;
use tracing::Level;
use tracing_subscriber::{
    Registry, filter::Targets, fmt, layer::SubscriberExt as _, reload, util::SubscriberInitExt as _,
};

use crate::config::{Config, LogFormat, LogSettings, level_filter};

/// On a terminal, unless its user wants none (no-color.org).
fn shows_colors() -> bool {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stderr().is_terminal() && !unwanted
}

/// Calls of clients and what they were answered: on the level debug, faults of our own on info.
pub const ACCESS: &str = "covault::access";

/// What is written, and how it is changed. Of this process: it has one log.
static FILTER: OnceLock<LogFilter> = OnceLock::new();

struct LogFilter {
    handle: reload::Handle<Targets, Registry>,
    /// What is in force.
    now: Mutex<LogSettings>,
    /// The level of the configuration, as it was last read.
    configured: Mutex<String>,
}

/// Starts logging.
///
/// # Errors
/// When the level is not a level or a list of `target=level`.
pub fn init(log: &LogSettings) -> anyhow::Result<()> {
    let (filter, handle) = reload::Layer::new(filter(log)?);
    let registry = tracing_subscriber::registry().with(filter);
    let started = match log.format {
        LogFormat::Text => registry
            .with(
                fmt::layer()
                    .with_writer(std::io::stderr)
                    .with_ansi(shows_colors()),
            )
            .try_init(),
        LogFormat::Json => registry
            .with(fmt::layer().json().with_writer(std::io::stderr))
            .try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("logging could not be started: {error}"))?;
    let started = LogFilter {
        handle,
        now: Mutex::new(log.clone()),
        configured: Mutex::new(log.level.clone()),
    };
    // Only the first one has started.
    let _ = FILTER.set(started);
    Ok(())
}

/// Writes what these settings say from now on; the form of lines stays, and where traces go. `Some`: the level and whether calls are logged, as
/// they were before, where that has changed.
///
/// # Errors
/// As [`init`]; nothing has changed then.
pub fn change(log: &LogSettings) -> anyhow::Result<Option<LogSettings>> {
    let Some(LogFilter { handle, now, .. }) = FILTER.get() else {
        return Ok(None);
    };
    let mut now = now.lock();
    let wanted = LogSettings {
        format: now.format,
        otlp_url: now.otlp_url.clone(),
        otlp_sample: now.otlp_sample,
        ..log.clone()
    };
    if *now == wanted {
        return Ok(None);
    }
    let filter = filter(&wanted)?;
    handle.reload(filter).context("the log cannot be changed")?;
    Ok(Some(std::mem::replace(&mut *now, wanted)))
}

/// The same at SIGHUP, with words of it.
pub fn change_at_hangup(log: &LogSettings) {
    if let Some(filter) = FILTER.get() {
        filter.configured.lock().clone_from(&log.level);
    }
    match change(log) {
        Ok(Some(before)) => tracing::info!(
            before = before.level,
            level = log.level,
            access = log.access,
            "SIGHUP: the log settings were changed"
        ),
        Ok(None) => {}
        Err(error) => tracing::error!("SIGHUP: the log stays as it was: {error:#}"),
    }
}

/// Reads the log settings of an orchestrator again at each SIGHUP. What is wrong then changes nothing.
pub fn on_hangup(mut hangup: Signal, file: Option<PathBuf>) {
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            match Config::load(file.as_deref()) {
                Ok((config, _)) => {
                    change_at_hangup(&config.log);
                    tracing::info!("SIGHUP: the log settings were read again");
                }
                Err(error) => {
                    tracing::error!("SIGHUP: the log settings stay as they were: {error}");
                }
            }
        }
    });
}

/// The log of this process, for operators.
#[derive(Clone, Copy, Debug)]
pub struct ProcessLog;

impl ProcessLog {
    fn settings(self) -> Option<LogSettings> {
        FILTER.get().map(|filter| filter.now.lock().clone())
    }
}

impl LogControl for ProcessLog {
    fn level(&self) -> String {
        self.settings().map_or_else(String::new, |log| log.level)
    }

    fn configured(&self) -> String {
        FILTER
            .get()
            .map_or_else(String::new, |filter| filter.configured.lock().clone())
    }

    fn check(&self, level: &str) -> Result<(), Fault> {
        let filter = level_filter(level);
        filter
            .map(drop)
            .map_err(|problem| Fault::field("level", problem))
    }

    fn set_level(&self, level: &str) -> Result<(), Fault> {
        self.check(level)?;
        let Some(log) = self.settings() else {
            return Err(Fault::bug("nothing is logged"));
        };
        let level = level.to_owned();
        let changed = change(&LogSettings { level, ..log });
        changed
            .map(drop)
            .map_err(|error| Fault::field("level", error))
    }
}

fn filter(log: &LogSettings) -> anyhow::Result<Targets> {
    let filter = level_filter(&log.level);
    let filter = filter.map_err(|problem| anyhow::anyhow!("log.level: {problem}"))?;
    Ok(if log.access {
        filter.with_target(ACCESS, Level::DEBUG)
    } else {
        filter
    })
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn access__should_be_logged_where_it_is_wanted() {
        let shown = |level: &str, access| {
            let log = LogSettings {
                level: level.to_owned(),
                format: LogFormat::Text,
                access,
                otlp_url: String::new(),
                otlp_sample: 0.0,
            };
            let filter = filter(&log).expect("levels");
            [Level::INFO, Level::DEBUG].map(|level| filter.would_enable(ACCESS, &level))
        };
        assert_eq!(shown("info", false), [true, false]);
        assert_eq!(shown("info", true), [true, true]);
        assert_eq!(shown("warn", false), [false, false]);
        assert_eq!(shown("warn", true), [true, true]);
        assert_eq!(shown("warn,covault=debug", false), [true, true]);
    }

    #[test]
    fn level__should_be_one() {
        for level in ["debug", "off", "info,covault_mpc=trace"] {
            assert_eq!(ProcessLog.check(level), Ok(()), "{level}");
        }
        let long = "info,".repeat(101);
        for level in [
            "infoo",
            "info,covault_mpc=loud",
            "info,",
            "",
            "warn\nall is well",
            &long,
        ] {
            let fault = ProcessLog.check(level).expect_err(level);
            assert!(!fault.message().contains('\n'), "{fault:?}");
        }
    }

    #[test]
    fn blanks_in_a_level__should_silence_nothing() {
        for level in [
            "covault_mpc=debug, info",
            "info,covault_mpc= debug",
            " info , covault_mpc = debug ",
        ] {
            assert_eq!(ProcessLog.check(level), Ok(()), "{level}");
            let filter = level_filter(level).expect(level);
            assert!(filter.would_enable("other", &Level::WARN), "{level}");
            assert!(filter.would_enable("covault_mpc", &Level::DEBUG), "{level}");
        }
    }
}
