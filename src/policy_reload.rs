//! A policy that is read again while its process runs: only from a file that is whole, and with words of what changes.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use covault_mpc::{node::CurrentPolicy, policy::Policy};
use tokio::signal::unix::Signal;

/// A file must say the same for so long: one that is written in place is not whole in between.
const SETTLED: Duration = Duration::from_millis(500);
/// So many sentences are logged of each kind.
const MOST_TOLD: usize = 20;

/// Says in the log what a process signs.
pub fn tell(path: &Path, policy: &Policy) {
    tracing::info!(path = %path.display(), %policy, "this process's policy");
    if policy.raw_signing() {
        tracing::warn!("raw signing is on: no limit of the policy holds for a rawMessage");
    }
}

/// What a file says now, in place of what is in force.
///
/// # Errors
/// When it cannot be used, or is being written.
pub async fn read_settled<T: PartialEq>(
    present: &T,
    what: &str,
    read: impl Fn() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let found = read()?;
    if found != *present {
        tokio::time::sleep(SETTLED).await;
        anyhow::ensure!(
            read()? == found,
            "{what} changes while it is read; send SIGHUP again once it is written"
        );
    }
    Ok(found)
}

/// Has this policy hold from now on, and says what it changes.
pub fn replace(current: &CurrentPolicy, path: &Path, policy: Policy) {
    let before = current.get();
    let (old, new) = (before.0.sentences(), policy.sentences());
    let changed = before.0 != policy;
    current.replace(policy);
    tell(path, &current.get().0);
    tracing::info!(changed, "the policy was read again");
    tell_rules("no longer in the policy", old.difference(&new));
    tell_rules("new in the policy", new.difference(&old));
}

fn tell_rules<'a>(what: &str, rules: impl Iterator<Item = &'a String>) {
    let rules: BTreeSet<_> = rules.collect();
    for rule in rules.iter().take(MOST_TOLD) {
        tracing::warn!(rule, "{what}");
    }
    let more = rules.len().saturating_sub(MOST_TOLD);
    if more > 0 {
        tracing::warn!(more, "{what}: more");
    }
}

/// Reads a policy again at each SIGHUP. What is wrong then changes nothing.
pub fn on_hangup(
    mut hangup: Signal,
    path: PathBuf,
    current: Arc<CurrentPolicy>,
    read: impl Fn() -> anyhow::Result<Policy> + Send + Sync + 'static,
) {
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            match read_settled(&current.get().0, "the policy file", &read).await {
                Ok(policy) => replace(&current, &path, policy),
                Err(error) => tracing::error!("the policy stays as it was: {error:#}"),
            }
        }
    });
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn file_that_is_being_written__should_not_be_taken_for_a_policy() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("policy.toml");
        let whole = "version = 2\nonly_listed_assets = true\n[[limits]]\nasset = \"evm:1\"\nper_request = \"5\"\n";
        let half = "version = 2\n";
        let read = || {
            let text = fs::read_to_string(&file)?;
            Policy::parse(&text).map_err(|fault| anyhow::anyhow!("{fault}"))
        };
        fs::write(&file, whole).expect("written");
        let current = CurrentPolicy::new(read().expect("a policy"));
        let present = current.get();
        fs::write(&file, half).expect("written");
        let writer = async {
            tokio::time::sleep(SETTLED / 2).await;
            fs::write(&file, whole).expect("written");
        };
        let (found, ()) = tokio::join!(read_settled(&present.0, "the policy file", read), writer);
        let problem = found.expect_err("it grew").to_string();
        assert!(problem.contains("changes while it is read"), "{problem}");
        assert_eq!(
            read_settled(&present.0, "", read).await.expect("whole"),
            current.get().0
        );
        fs::write(&file, half).expect("written");
        let found = read_settled(&present.0, "", read)
            .await
            .expect("it stays so");
        let gone = current.get().0.sentences();
        let gone: Vec<_> = gone.difference(&found.sentences()).cloned().collect();
        assert!(
            gone.iter()
                .any(|rule| rule.contains("evm:1: at most 5 per request")),
            "{gone:?}"
        );
    }
}
