//! What is going on, for a person who waits: a spinner on a terminal, lines elsewhere.

use std::{io::IsTerminal as _, time::Duration};

use indicatif::ProgressBar;
use tokio::time::Instant;

use super::{hint, is_quiet};

/// How long to wait before an orchestrator is asked again how something stands that takes seconds
/// or minutes: each question is a line in its log.
pub fn poll_interval(started: Instant) -> Duration {
    (started.elapsed() / 20).clamp(Duration::from_millis(250), Duration::from_secs(3))
}

/// Tells on stderr what is being waited for, until dropped.
pub struct ProgressSpinner {
    spinner: Option<ProgressBar>,
}

impl ProgressSpinner {
    /// Starts with `what`.
    pub fn start(what: impl Into<String>) -> Self {
        let what = what.into();
        if is_quiet() || !std::io::stderr().is_terminal() {
            hint(what);
            return Self { spinner: None };
        }
        let spinner = ProgressBar::new_spinner().with_message(what);
        spinner.enable_steady_tick(Duration::from_millis(100));
        Self {
            spinner: Some(spinner),
        }
    }

    /// Goes on to `what`.
    pub fn next(&self, what: impl Into<String>) {
        match &self.spinner {
            Some(spinner) => spinner.set_message(what.into()),
            None => hint(what.into()),
        }
    }
}

impl Drop for ProgressSpinner {
    fn drop(&mut self) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
    }
}
