//! Logging. Goes to stderr, so that stdout holds answers only.

use std::io::IsTerminal as _;

use tracing_subscriber::{
    filter::Targets, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

use crate::config::{LogFormat, LogSettings};

/// On a terminal, unless its user wants none (no-color.org).
fn shows_colors() -> bool {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stderr().is_terminal() && !unwanted
}

/// Starts logging.
///
/// # Errors
/// When the level is not a level or a list of `target=level`.
pub fn init(log: &LogSettings) -> anyhow::Result<()> {
    let filter: Targets = log
        .level
        .parse()
        .map_err(|error| anyhow::anyhow!("log.level {:?}: {error}", log.level))?;
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
