//! Logging. Goes to stderr, so that stdout holds answers only.

use std::io::IsTerminal as _;

use tracing::Level;
use tracing_subscriber::{
    filter::Targets, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

use crate::config::{LogFormat, LogSettings};

/// On a terminal, unless its user wants none (no-color.org).
fn shows_colors() -> bool {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stderr().is_terminal() && !unwanted
}

/// Calls of clients and what they were answered: on the level debug, faults of our own on info.
pub const ACCESS: &str = "covault::access";

/// Starts logging.
///
/// # Errors
/// When the level is not a level or a list of `target=level`.
pub fn init(log: &LogSettings) -> anyhow::Result<()> {
    let filter = filter(log)?;
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
    started.map_err(|error| anyhow::anyhow!("logging could not be started: {error}"))
}

fn filter(log: &LogSettings) -> anyhow::Result<Targets> {
    let filter: Targets = log
        .level
        .parse()
        .map_err(|error| anyhow::anyhow!("log.level {:?}: {error}", log.level))?;
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
}
