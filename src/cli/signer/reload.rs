//! What a signer node reads again at SIGHUP: its log settings, its policy and its peers. All of it counts, or none.

use std::{path::PathBuf, sync::Arc};

use covault_mpc::{
    node::{CurrentPeers, CurrentPolicy},
    policy::Policy,
};
use tokio::signal::unix::Signal;

use super::listed::{self, ListedPeers};
use crate::{
    config::{Config, LogSettings, ShownSetting, SignerSettings},
    policy_reload, telemetry, wiring,
};

/// What counts without a start, beside the peers of vaults.
const READ_AGAIN: [&str; 3] = ["log.level", "log.access", "signer.peers"];

/// A signer's configuration as it is in force.
pub(super) struct InForce {
    /// Where it is; `None`: the defaults and the environment.
    file: Option<PathBuf>,
    signer: SignerSettings,
    /// As it was last read.
    read: ReadAgain,
    /// What it was started with; nothing where that cannot be shown.
    settings: Option<Vec<ShownSetting>>,
    policy: Arc<CurrentPolicy>,
    peers: Arc<CurrentPeers>,
    /// One that has gone is missed; where there was none, none is.
    had_policy: bool,
}

/// What of the configuration counts without a start.
#[derive(Debug, PartialEq)]
struct ReadAgain {
    log: LogSettings,
    peers: ListedPeers,
}

impl InForce {
    /// `settings`: what it was started with. Policy and peers are replaced where they are used.
    pub(super) fn new(
        file: Option<PathBuf>,
        settings: Option<Vec<ShownSetting>>,
        config: &Config,
        (policy, peers, listed): (Arc<CurrentPolicy>, Arc<CurrentPeers>, ListedPeers),
    ) -> Self {
        let signer = config.signer.clone();
        let (path, named) = signer.policy_file();
        let read = ReadAgain {
            log: config.log.clone(),
            peers: listed,
        };
        Self {
            settings,
            had_policy: named || path.exists(),
            file,
            signer,
            read,
            policy,
            peers,
        }
    }

    /// Reads it again at once, as it may have changed since it was read, and at each SIGHUP.
    pub(super) async fn reload_on_hangup(mut self, mut hangup: Signal) {
        self.reload().await;
        tokio::spawn(async move {
            while hangup.recv().await.is_some() {
                self.reload().await;
            }
        });
    }

    async fn reload(&mut self) {
        let (read, policy) = match self.read().await {
            Ok(read) => read,
            Err(error) => {
                tracing::error!(
                    "SIGHUP: nothing was changed; policy, peers and log settings stay as they were: {error:#}"
                );
                return;
            }
        };
        telemetry::change_at_hangup(&read.log);
        if let Some(policy) = policy {
            policy_reload::replace(&self.policy, &self.signer.policy_file().0, policy);
        }
        listed::replace(&self.peers, read.peers.pinned.clone());
        self.read = read;
        let now = Config::shown(self.file.as_deref()).ok();
        let both = self.settings.as_deref().zip(now.as_deref());
        let later = both.map_or_else(Vec::new, |(before, now)| later_settings(before, now));
        if !later.is_empty() {
            tracing::warn!(
                settings = later.join(", "),
                "SIGHUP: these settings have other values now, which count from the next start on"
            );
        }
    }

    /// What the files say now. Nothing of it is used where one of them is wrong.
    async fn read(&self) -> anyhow::Result<(ReadAgain, Option<Policy>)> {
        let read = || {
            let Config {
                log, mut signer, ..
            } = Config::load_for_signer(self.file.as_deref())?.0;
            // What a node must not be without, no file takes from one that runs.
            signer.development &= self.signer.development;
            signer.check_secure()?;
            let peers = self.read.peers.read_again(&signer)?;
            anyhow::Ok(ReadAgain { log, peers })
        };
        let config = policy_reload::read_settled(&self.read, "the configuration", read).await?;
        // Another file would be one of the next start.
        let (path, _) = self.signer.policy_file();
        let has_policy = self.had_policy || path.exists();
        let policy = if has_policy {
            let read = || wiring::policy_again(&self.signer);
            let present = self.policy.get();
            Some(policy_reload::read_settled(&present.0, "the policy file", read).await?)
        } else {
            None
        };
        Ok((config, policy))
    }
}

/// The settings that differ and count from a start on.
fn later_settings(before: &[ShownSetting], now: &[ShownSetting]) -> Vec<String> {
    let value = |settings: &[ShownSetting], path: &str| {
        let mut found = settings.iter().filter(|setting| setting.path == path);
        found.next().map(|setting| setting.value.clone())
    };
    let mut paths: Vec<_> = before
        .iter()
        .chain(now)
        .map(|it| it.path.as_str())
        .collect();
    paths.sort_unstable();
    paths.dedup();
    let is_read_again = |path: &str| {
        READ_AGAIN.contains(&path)
            || (path.starts_with("signer.vaults.") && path.ends_with(".peers"))
    };
    let differs = |path: &&str| !is_read_again(path) && value(before, path) != value(now, path);
    paths
        .into_iter()
        .filter(differs)
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::{collections::BTreeSet, time::Duration};

    use covault_core::order::NodeId;

    use super::*;

    const POLICY: &str = "version = 2\n";

    fn setting(path: &str, value: &str) -> ShownSetting {
        ShownSetting {
            path: path.into(),
            value: value.into(),
            origin: "file".into(),
        }
    }

    #[test]
    fn later_settings__should_name_what_counts_from_the_next_start_on() {
        let before = [
            setting("log.level", "\"info\""),
            setting("signer.peers", "[]"),
            setting("signer.name", "\"a\""),
        ];
        let now = [
            setting("log.level", "\"debug\""),
            setting("signer.peers", "[\"b.pub\"]"),
            setting("signer.orchestrators", "[\"c.pub\"]"),
            setting("signer.name", "\"a\""),
            setting("signer.vaults.x.least_spare", "2"),
            setting("signer.vaults.x.peers", "[]"),
        ];
        assert_eq!(
            later_settings(&before, &now),
            ["signer.orchestrators", "signer.vaults.x.least_spare"]
        );
        assert!(later_settings(&before, &before).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn configuration_that_is_wrong__should_change_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, policy) = (
            folder.path().join("signer.toml"),
            folder.path().join("policy.toml"),
        );
        let line = |number| NodeId([number; 32]).openssh_line("");
        let write_all = |level: &str, rules: &str, peers: &[String], development: bool| {
            std::fs::write(
                &file,
                format!(
                    "[log]\nlevel = {level:?}\n[signer]\npolicy_file = {policy:?}\nleast_threshold = 2\npeers = {peers:?}\n\
                     development = {development}\n"
                ),
            )
            .expect("written");
            std::fs::write(&policy, rules).expect("written");
        };
        let write_with =
            |level: &str, rules: &str, peers: &[String]| write_all(level, rules, peers, false);
        let write = |level: &str, rules: &str| write_with(level, rules, &[line(1)]);
        write("info", POLICY);
        let (config, _) = Config::load_for_signer(Some(&file)).expect("loads");
        let current = Arc::new(CurrentPolicy::new(Policy::production()));
        let listed = ListedPeers::default().read_again(&config.signer);
        let listed = listed.expect("one");
        let peers = Arc::new(CurrentPeers::new(listed.pinned.clone()));
        let followed = (current, Arc::clone(&peers), listed);
        let mut in_force = InForce::new(Some(file.clone()), None, &config, followed);
        let (read, _) = in_force.read().await.expect("it is as it was");
        assert_eq!(read.log.level, "info");
        write("debug", POLICY);
        let (read, _) = in_force.read().await.expect("it is right");
        assert_eq!(read.log.level, "debug");
        // A file that is being written: its log settings alone are other than those in force.
        let (found, ()) = tokio::join!(in_force.read(), async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            write("warn", POLICY);
        });
        let problem = format!("{:#}", found.expect_err("it changes"));
        assert!(problem.contains("changes while it is read"), "{problem}");
        write("infoo", POLICY);
        assert!(in_force.read().await.is_err());
        write("debug", "version = 2\nraw_singing = true\n");
        assert!(in_force.read().await.is_err());
        // One that is no key, a file that is not there, and none at all: the node was started as one that needs some.
        let missing = folder.path().join("missing.pub").display().to_string();
        for wrong in [&["ssh-rsa AAAA".to_owned()][..], &[line(1), missing], &[]] {
            write_with("debug", POLICY, wrong);
            in_force.reload().await;
            let read = in_force.read().await.expect_err("it is wrong");
            assert!(format!("{read:#}").contains("signer.peers"), "{read:#}");
            assert_eq!(peers.get().all.as_ref().map(BTreeSet::len), Some(1));
        }
        // It was not started for development: nobody unpins the peers of one that holds money.
        write_all("debug", POLICY, &[], true);
        in_force.reload().await;
        let read = in_force
            .read()
            .await
            .expect_err("it is not for development");
        assert!(format!("{read:#}").contains("signer.peers"), "{read:#}");
        assert_eq!(peers.get().all.as_ref().map(BTreeSet::len), Some(1));
        std::fs::write(folder.path().join("six.pub"), line(6)).expect("written");
        write_with("debug", POLICY, &["six.pub".to_owned(), line(3)]);
        in_force.reload().await;
        let listed = [3, 6].map(|number| NodeId([number; 32]));
        assert_eq!(peers.get().all, Some(BTreeSet::from(listed)));
        std::fs::remove_file(&file).expect("removed");
        assert!(in_force.read().await.is_err());
    }
}
