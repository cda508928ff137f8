//! `covault doctor`: problems of a machine, its files and its neighbours that could keep a process from
//! working well.

mod files;
pub(super) mod neighbours;
mod service;

use std::{path::PathBuf, time::Duration};

use serde::Serialize;
use tokio::time::timeout;

use super::{CommandFinding, config::CheckedRole, one_line, print_line};
use crate::config::{Config, StoreKind};

/// So long may each of the questions to others take.
const PATIENCE: Duration = Duration::from_secs(5);
/// And all questions to one of them.
const PATIENCE_WITH_ALL: Duration = Duration::from_secs(12);

/// Check what could keep this machine's process from working well: disk, files, limits, bus, clock, chain nodes; and, where
/// the orchestrator runs, its nodes, their versions, its vaults and the age of its backup.
///
/// Reads the configuration, and writes nothing but a file of 4 KiB in the data folder, which it deletes. May run beside
/// the process. Exit code 0: nothing found; 5: something to fix soon; 6: something that keeps it from working.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Configuration file (TOML). Without it: the defaults, and COVAULT_ variables.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// What runs, or is to run, with it.
    #[arg(long, value_enum, default_value_t = CheckedRole::Serve)]
    role: CheckedRole,
    /// The file that holds an admin token, for the running orchestrator; in place of the token that its first start has made.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    Warn,
    Fail,
}

/// What was looked at, and what was found.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Check {
    state: State,
    what: String,
    found: String,
    /// What to do; empty where nothing is to be done.
    mend: String,
}

impl Check {
    fn ok(what: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            state: State::Ok,
            what: what.into(),
            found: found.into(),
            mend: String::new(),
        }
    }

    fn warn(what: &str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            state: State::Warn,
            mend: mend.into(),
            ..Self::ok(what, found)
        }
    }

    fn fail(what: &str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            state: State::Fail,
            mend: mend.into(),
            ..Self::ok(what, found)
        }
    }
}

/// Runs the command.
///
/// # Errors
/// When the configuration cannot be used, and as exit codes.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let (config, _) = match args.role {
        CheckedRole::Serve => Config::load(args.config.as_deref())?,
        CheckedRole::Signer => Config::load_for_signer(args.config.as_deref())?,
    };
    let mut checks = files::checks(&config, args.role);
    let postgres = async {
        if args.role == CheckedRole::Serve && config.store.kind == StoreKind::Postgres {
            vec![neighbours::postgres(&config).await]
        } else {
            Vec::new()
        }
    };
    let service = async {
        match args.role {
            CheckedRole::Serve => {
                service::checks(args.config.clone(), args.token_file.clone()).await
            }
            CheckedRole::Signer => Vec::new(),
        }
    };
    // Together they take as long as the slowest.
    let (bus, chains, postgres, service) = tokio::join!(
        in_time("bus", neighbours::bus(&config.bus)),
        in_time("chain nodes", neighbours::chains(&config, args.role)),
        in_time("PostgreSQL", postgres),
        in_time("orchestrator", service)
    );
    for found in [bus, chains, postgres, service] {
        checks.extend(found);
    }
    if args.json {
        print_line(serde_json::to_string_pretty(&checks)?);
    } else {
        let lines = checks.iter().flat_map(lines);
        lines.for_each(print_line);
    }
    finding(&checks).map_or(Ok(()), |finding| Err(finding.into()))
}

/// Some of it are words of those that were asked: they make no lines of their own.
fn lines(check: &Check) -> Vec<String> {
    let Check {
        state,
        what,
        found,
        mend,
    } = check;
    let state = match state {
        State::Ok => "ok  ",
        State::Warn => "warn",
        State::Fail => "FAIL",
    };
    let mut lines = vec![one_line(&format!("{state}  {what}: {found}"))];
    if !mend.is_empty() {
        lines.push(one_line(&format!("      {mend}")));
    }
    lines
}

fn finding(checks: &[Check]) -> Option<CommandFinding> {
    let count = |state| checks.iter().filter(|check| check.state == state).count();
    let (warnings, failures) = (count(State::Warn), count(State::Fail));
    let sentence = format!("{failures} to fix before it works, {warnings} to fix soon");
    if failures > 0 {
        Some(CommandFinding::cannot_sign(sentence))
    } else if warnings > 0 {
        Some(CommandFinding::degraded(sentence))
    } else {
        None
    }
}

/// The checks of a neighbour, or that it took too long to answer all questions.
async fn in_time(what: &str, checks: impl Future<Output = Vec<Check>>) -> Vec<Check> {
    timeout(PATIENCE_WITH_ALL, checks)
        .await
        .unwrap_or_else(|_| {
            let seconds = PATIENCE_WITH_ALL.as_secs();
            vec![Check::fail(
                what,
                format!("not all questions were answered in {seconds} s"),
                "see whether it is overloaded, and the network between",
            )]
        })
}

/// What a question comes to that has a limit of time.
async fn within<T>(question: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let answered = timeout(PATIENCE, question).await;
    answered.unwrap_or_else(|_| Err(format!("no answer in {} s", PATIENCE.as_secs())))
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn finding__should_be_the_worst_of_all() {
        let (ok, warn, fail) = (
            Check::ok("disk", "5 GiB are free"),
            Check::warn("bus", "slow", "nearer"),
            Check::fail("clock", "off", "set it"),
        );
        assert_eq!(lines(&ok), ["ok    disk: 5 GiB are free"]);
        assert_eq!(lines(&fail), ["FAIL  clock: off", "      set it"]);
        let told = Check::fail("chain", "no\nok    store: fine\u{1b}[2J", "a\nb");
        assert_eq!(
            lines(&told),
            ["FAIL  chain: no ok    store: fine\\u{1b}[2J", "      a b"]
        );
        let code = |checks: &[Check]| finding(checks).map_or(0, |finding| finding.code());
        assert_eq!(code(&[]), 0);
        let checks = [ok, warn, fail];
        assert_eq!(code(&checks[..1]), 0);
        assert_eq!(code(&checks[..2]), 5);
        assert_eq!(code(&checks), 6);
    }

    #[tokio::test(start_paused = true)]
    async fn neighbour__should_be_waited_for_no_longer_than_all_may_take() {
        let started = tokio::time::Instant::now();
        let found = in_time("bus", std::future::pending()).await;
        assert!(started.elapsed() < Duration::from_secs(15));
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].state, found[0].what.as_str()),
            (State::Fail, "bus")
        );
        let fine = vec![Check::ok("bus", "it answers")];
        assert_eq!(in_time("bus", async { fine }).await.len(), 1);
    }
}
