//! What is going on, for a person who waits: a spinner on a terminal, a line for each phase elsewhere.

use std::{io::IsTerminal as _, time::Duration};

use covault_core::{
    schema::admin::{Key, KeyRound},
    scheme::Scheme,
};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{hint, is_quiet};

/// How long to wait before an orchestrator is asked again how something stands that takes seconds
/// or minutes: each question is a line in its log.
pub fn poll_interval(started: Instant) -> Duration {
    (started.elapsed() / 20).clamp(Duration::from_millis(250), Duration::from_secs(3))
}

/// Tells on stderr what is being waited for, and for how long by now, until dropped.
pub struct ProgressSpinner {
    spinner: Option<ProgressBar>,
    started: Instant,
    /// The last phase and what was wrong before it, where there is no terminal.
    told: Mutex<ToldPhase>,
}

/// What was said last: each is said once.
struct ToldPhase {
    what: String,
    problem: Option<String>,
}

impl ToldPhase {
    /// What is to be said of this phase, after a try with this problem.
    fn news(&mut self, what: &str, problem: Option<&str>) -> Option<String> {
        let news = problem.filter(|problem| self.problem.as_deref() != Some(problem));
        if news.is_none() && self.what == what {
            return None;
        }
        what.clone_into(&mut self.what);
        if let Some(news) = news {
            self.problem = Some(news.to_owned());
        }
        Some(with_problem(what, news))
    }
}

impl ProgressSpinner {
    /// Starts with `what`.
    pub fn start(what: impl Into<String>) -> Self {
        let what = what.into();
        let is_shown = !is_quiet() && std::io::stderr().is_terminal();
        let spinner = is_shown.then(|| spinner(what.clone()));
        if spinner.is_none() {
            hint(&what);
        }
        Self {
            spinner,
            started: Instant::now(),
            told: Mutex::new(ToldPhase {
                what,
                problem: None,
            }),
        }
    }

    /// Goes on to another phase; nothing where it is still the same.
    pub fn next(&self, what: impl Into<String>) {
        self.next_after(what, None);
    }

    /// The same, after a try with this problem. Where there is no terminal it is said once, and not with each phase.
    pub fn next_after(&self, what: impl Into<String>, problem: Option<&str>) {
        let what = what.into();
        if let Some(spinner) = &self.spinner {
            spinner.set_message(with_problem(&what, problem));
            return;
        }
        if let Some(news) = self.told.lock().news(&what, problem) {
            hint(format_args!("{news}, {}", seconds(self.started.elapsed())));
        }
    }

    /// How far the present phase is; it is no line of its own.
    pub fn count(&self, what: impl Into<String>) {
        if let Some(spinner) = &self.spinner {
            spinner.set_message(what.into());
        }
    }
}

/// A phase, and what was wrong before it.
pub fn with_problem(what: &str, problem: Option<&str>) -> String {
    match problem {
        Some(problem) => format!("{what}; retrying: {problem}"),
        None => what.to_owned(),
    }
}

fn spinner(what: String) -> ProgressBar {
    let plain = ProgressStyle::default_spinner();
    let style = plain
        .template("{spinner} {msg}, {passed}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner());
    let passed = |state: &ProgressState, out: &mut dyn std::fmt::Write| {
        // It writes into memory.
        let _ = write!(out, "{}", seconds(state.elapsed()));
    };
    let spinner = ProgressBar::new_spinner().with_style(style.with_key("passed", passed));
    spinner.set_message(what);
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

fn seconds(passed: Duration) -> String {
    format!("{} s", passed.as_secs())
}

impl Drop for ProgressSpinner {
    fn drop(&mut self) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
    }
}

/// How far keys are that are being made, as in `ed25519 ready, secp256k1: round 3 of 5`.
pub fn keys_in_words(keys: &[Key]) -> String {
    let words = keys.iter().map(|key| {
        let scheme = Scheme::parse(&key.scheme);
        let name = scheme.map_or(key.scheme.as_str(), |scheme| scheme.curve().name());
        match (&key.shares, round_in_words(key)) {
            (Some(_), _) => format!("{name} ready"),
            (None, Some(round)) => format!("{name}: {round}"),
            (None, None) => format!("{name}: waiting for its nodes"),
        }
    });
    words.collect::<Vec<_>>().join(", ")
}

/// Where the run for a key, or for new shares of it, is.
pub fn round_in_words(key: &Key) -> Option<String> {
    let KeyRound { round, of } = key.round.as_ref()?;
    Some(format!("round {round} of {of}"))
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::schema::admin::Shares;

    use super::*;

    #[test]
    fn phases_and_problems__should_each_be_said_once() {
        let mut told = ToldPhase {
            what: "resharing".into(),
            problem: None,
        };
        let refused = Some("graz refused");
        for (what, problem, news) in [
            ("resharing", None, None),
            ("round 1 of 5", None, Some("round 1 of 5")),
            (
                "resharing",
                refused,
                Some("resharing; retrying: graz refused"),
            ),
            ("round 1 of 5", refused, Some("round 1 of 5")),
            ("round 1 of 5", refused, None),
            (
                "round 1 of 5",
                Some("linz is away"),
                Some("round 1 of 5; retrying: linz is away"),
            ),
        ] {
            assert_eq!(told.news(what, problem).as_deref(), news);
        }
    }

    #[test]
    fn keys__should_be_told_by_curve_and_round() {
        let key = |scheme: &str, is_ready: bool, round: Option<u32>| Key {
            scheme: scheme.into(),
            shares: is_ready.then(Shares::default),
            round: round.map(|round| KeyRound { round, of: 5 }),
            ..Key::default()
        };
        let told = |ecdsa| keys_in_words(&[key("frost-ed25519", true, None), ecdsa]);
        assert_eq!(
            told(key("dkls23", false, Some(3))),
            "ed25519 ready, secp256k1: round 3 of 5"
        );
        assert_eq!(
            told(key("dkls23", false, None)),
            "ed25519 ready, secp256k1: waiting for its nodes"
        );
        assert_eq!(
            told(key("a scheme to come", true, None)),
            "ed25519 ready, a scheme to come ready"
        );
    }
}
