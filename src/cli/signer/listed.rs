//! The nodes that a signer's configuration lists: orchestrators, and peers, which are read again at SIGHUP.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use covault_core::{ids::VaultId, order::NodeId};
use covault_mpc::node::{CurrentPeers, PinnedPeers};
use rustix::io::Errno;

use crate::{
    config::{SignerSettings, SignerVaultSettings},
    files,
    shutdown::{self, StopSignal},
    wiring,
};

const POLL: Duration = Duration::from_millis(250);
/// Polls between two reminders that a file is still missing: ten seconds.
const POLLS_PER_REMINDER: u32 = 40;

/// The tables of vaults, each with the name of its setting.
///
/// # Errors
/// When one names no vault, or two the same one.
pub(super) fn vaults(
    signer: &SignerSettings,
) -> anyhow::Result<Vec<(VaultId, String, &SignerVaultSettings)>> {
    let mut vaults: Vec<(VaultId, String, _)> = Vec::new();
    for (uuid, vault) in &signer.vaults {
        let setting = format!("signer.vaults.{uuid:?}");
        let id: VaultId = uuid.parse().with_context(|| setting.clone())?;
        if vaults.iter().any(|(other, ..)| *other == id) {
            bail!("{setting}: vault {id} has another table in signer.vaults: make them one");
        }
        vaults.push((id, setting, vault));
    }
    Ok(vaults)
}

/// The .pub files that name peers, each with its setting.
pub(super) fn peer_files(signer: &SignerSettings) -> impl Iterator<Item = (String, &Path)> {
    let of_vaults = signer.vaults.iter().map(|(uuid, vault)| {
        let setting = format!("signer.vaults.{uuid:?}.peers");
        (setting, vault.peers.as_slice())
    });
    let all = iter::once(("signer.peers".to_owned(), signer.peers.as_slice()));
    all.chain(of_vaults).flat_map(|(setting, entries)| {
        let files = entries.iter().filter(|entry| !is_line(entry));
        files.map(move |file| (setting.clone(), Path::new(file)))
    })
}

fn is_line(entry: &str) -> bool {
    entry.trim_start().starts_with("ssh-")
}

/// The peers that a configuration lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ListedPeers {
    pub(super) pinned: PinnedPeers,
    /// Whom each .pub file names.
    files: BTreeMap<String, NodeId>,
}

impl ListedPeers {
    /// From files that are there; one that it has read before may be shut to it now.
    ///
    /// # Errors
    /// Naming the setting and the entry that is wrong.
    pub(super) fn read_again(&self, signer: &SignerSettings) -> anyhow::Result<Self> {
        let mut listed = Self::default();
        // None: whomever an orchestrator names.
        listed.pinned.all = listed.add("signer.peers", &signer.peers, self)?;
        for (id, setting, vault) in vaults(signer)? {
            let peers = listed.add(&format!("{setting}.peers"), &vault.peers, self)?;
            listed.pinned.vaults.extend(peers.map(|peers| (id, peers)));
        }
        Ok(listed)
    }

    /// The nodes of a setting, where it has any.
    fn add(
        &mut self,
        setting: &str,
        entries: &[String],
        before: &Self,
    ) -> anyhow::Result<Option<BTreeSet<NodeId>>> {
        let mut peers = BTreeSet::new();
        for entry in entries {
            let found = match (node(setting, entry), before.files.get(entry)) {
                // A file that has taken the place of one in another folder: no reason to refuse the rest, such as a
                // policy that allows less.
                (Err(error), Some(known)) if is_shut(&error) => {
                    tracing::warn!(
                        setting,
                        entry,
                        node = known.openssh_line(""),
                        "this file cannot be opened any more, and counts as it was read before: put the line itself \
                         into the configuration"
                    );
                    *known
                }
                (found, _) => found?,
            };
            if !is_line(entry) {
                self.files.insert(entry.clone(), found);
            }
            peers.insert(found);
        }
        Ok((!peers.is_empty()).then_some(peers))
    }
}

/// Whether a file is there and may not be opened, such as one that the sandbox does not know.
fn is_shut(error: &anyhow::Error) -> bool {
    error.root_cause().downcast_ref() == Some(&Errno::ACCESS)
}

/// The nodes that a setting names, by OpenSSH lines or .pub files.
///
/// # Errors
/// Naming the entry that is wrong.
pub(super) fn nodes<N: FromIterator<NodeId>>(
    setting: &str,
    entries: &[String],
) -> anyhow::Result<N> {
    entries.iter().map(|entry| node(setting, entry)).collect()
}

fn node(setting: &str, entry: &str) -> anyhow::Result<NodeId> {
    let of = || format!("{setting}: {entry}");
    let read = || {
        let text = files::read_trusted(Path::new(entry)).map_err(|error| match is_shut(&error) {
            true => error.context(
                "signer.sandbox lets a node that runs open what is in the folders of its configuration and policy, and \
                 what was listed when it started: put the line itself into the configuration",
            ),
            false => error,
        });
        text?.context("there is no such file")
    };
    let line = match is_line(entry) {
        true => entry.to_owned(),
        false => read().with_context(of)?,
    };
    NodeId::parse_openssh_line(&line)
        .map_err(wiring::explain)
        .with_context(of)
}

/// Waits for files that settings name: nodes that wait for each other make theirs at the same time. False when the process
/// was stopped meanwhile.
///
/// # Errors
/// When others could have written one.
pub(super) async fn wait_for<'a>(
    named: impl Iterator<Item = (String, &'a Path)>,
    stop: &mut StopSignal,
) -> anyhow::Result<bool> {
    for (setting, path) in named {
        for poll in 0_u32.. {
            let found = files::read_trusted(path);
            if found
                .with_context(|| format!("{setting}: {}", path.display()))?
                .is_some()
            {
                break;
            }
            if poll % POLLS_PER_REMINDER == 0 {
                tracing::warn!(path = %path.display(), "waiting for a public key that {setting} names: start the process that has it, or copy the file here");
            }
            tokio::select! {
                () = shutdown::requested(stop) => return Ok(false),
                () = tokio::time::sleep(POLL) => {}
            }
        }
    }
    Ok(true)
}

/// Waits for the files of the orchestrators, likewise.
///
/// # Errors
/// As [`wait_for`].
pub(super) async fn wait_for_orchestrators(
    signer: &SignerSettings,
    stop: &mut StopSignal,
) -> anyhow::Result<bool> {
    let files = signer.orchestrators.iter().filter(|entry| !is_line(entry));
    let named = files.map(|file| ("signer.orchestrators".to_owned(), Path::new(file)));
    wait_for(named, stop).await
}

/// Has these peers be in force from now on, and says what that changes.
pub(super) fn replace(current: &CurrentPeers, peers: PinnedPeers) {
    let before = current.replace(peers);
    let now = current.get();
    for change in changes(&before, &now) {
        change.log();
    }
}

/// What is other than before in who may be a peer.
#[derive(Debug, PartialEq, Eq)]
struct PeerChange {
    /// `None`: for every vault without peers of its own.
    vault: Option<VaultId>,
    /// What says so now.
    setting: String,
    node: Option<NodeId>,
    what: &'static str,
}

const COME: &str = "a peer is listed now";
const GONE: &str = "a peer is no longer listed";
const ONLY_LISTED: &str = "any node could be a peer, and those that are listed now alone can";
const ANYONE: &str = "any node that an orchestrator names can be a peer now";

impl PeerChange {
    fn log(&self) {
        let vaults = self.vault.map_or_else(
            || "all without peers of their own".to_owned(),
            |it| it.to_string(),
        );
        let node = self.node.map(|node| node.openssh_line(""));
        tracing::warn!(
            setting = self.setting,
            vaults,
            node,
            "SIGHUP: {}",
            self.what
        );
    }
}

/// By what is in force: peers of a vault's own stand in place of the others.
fn changes(before: &PinnedPeers, now: &PinnedPeers) -> Vec<PeerChange> {
    let own: BTreeSet<_> = before.vaults.keys().chain(now.vaults.keys()).collect();
    let all = (None, before.all.as_ref(), now.all.as_ref());
    let of_vaults = own
        .into_iter()
        .map(|vault| (Some(*vault), before.of(*vault), now.of(*vault)));
    let mut changes = Vec::new();
    for (vault, old, new) in iter::once(all).chain(of_vaults) {
        let setting = vault.map_or_else(|| "signer.peers".to_owned(), |vault| now.setting(vault));
        let mut add = |node: Option<&NodeId>, what| {
            let (setting, node) = (setting.clone(), node.copied());
            changes.push(PeerChange {
                vault,
                setting,
                node,
                what,
            });
        };
        match (old, new) {
            (None, None) => {}
            (Some(_), None) => add(None, ANYONE),
            (None, Some(new)) => {
                add(None, ONLY_LISTED);
                new.iter().for_each(|node| add(Some(node), COME));
            }
            (Some(old), Some(new)) => {
                new.difference(old).for_each(|node| add(Some(node), COME));
                old.difference(new).for_each(|node| add(Some(node), GONE));
            }
        }
    }
    changes
}

/// Those files, for a process that confines itself to what it has to read.
pub(super) fn paths(signer: &SignerSettings) -> Vec<PathBuf> {
    peer_files(signer)
        .map(|(_, path)| path.to_owned())
        .collect()
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::thread;

    use landlock::{AccessFs, Ruleset, RulesetAttr as _};

    use super::*;
    use crate::config::Config;

    fn nodes(numbers: &[u8]) -> BTreeSet<NodeId> {
        numbers.iter().map(|number| NodeId([*number; 32])).collect()
    }

    #[test]
    fn file_that_is_shut__should_count_as_it_was_read_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let write = |name, number| {
            let line = NodeId([number; 32]).openssh_line("");
            std::fs::write(path(name), line).expect("written");
        };
        let (config, _) = Config::load_for_signer(None).expect("loads");
        let listing = |names: &[&str]| {
            let mut signer = config.signer.clone();
            signer.peers = names.iter().map(|name| path(name)).collect();
            signer
        };
        write("one.pub", 1);
        let before = ListedPeers::default().read_again(&listing(&["one.pub"]));
        let before = before.expect("it is there");
        write("two.pub", 2);
        let (same, more) = (listing(&["one.pub"]), listing(&["one.pub", "two.pub"]));
        let known = before.clone();
        // Landlock holds for this thread alone: it can open neither.
        let shut = thread::spawn(move || {
            let rules = Ruleset::default().handle_access(AccessFs::ReadFile);
            let rules = rules
                .and_then(Ruleset::create)
                .expect("a kernel with landlock");
            rules.restrict_self().expect("it is confined");
            [same, more].map(|signer| known.read_again(&signer))
        });
        let [same, more] = shut.join().expect("it has ended");
        assert_eq!(same.expect("it was read before"), before);
        let more = format!("{:#}", more.expect_err("it was never read"));
        assert!(
            more.contains("signer.peers")
                && more.contains("two.pub")
                && more.contains("signer.sandbox"),
            "{more}"
        );
        // What is there and says something else is no such thing.
        write("one.pub", 3);
        let now = before
            .read_again(&listing(&["one.pub"]))
            .expect("it is there");
        assert_eq!(now.pinned.all, Some(nodes(&[3])));
        std::fs::remove_file(path("one.pub")).expect("removed");
        assert!(before.read_again(&listing(&["one.pub"])).is_err());
    }

    #[test]
    fn changes__should_be_by_the_peers_in_force_of_a_vault() {
        let vault = VaultId::from_bytes([7; 16]);
        let listed = |all: &[u8], own: &[u8]| PinnedPeers {
            all: (!all.is_empty()).then(|| nodes(all)),
            vaults: (!own.is_empty())
                .then(|| (vault, nodes(own)))
                .into_iter()
                .collect(),
        };
        let found = |before: &PinnedPeers, now: &PinnedPeers| -> Vec<_> {
            let found = changes(before, now).into_iter();
            found
                .map(|it| {
                    (
                        it.vault.is_some(),
                        it.setting,
                        it.node.map(|node| node.0[0]),
                        it.what,
                    )
                })
                .collect()
        };
        let (all, own) = ("signer.peers", format!("signer.vaults.\"{vault}\".peers"));
        let change =
            |of_vault, setting: &str, node, what| (of_vault, setting.to_owned(), node, what);
        // The table of a vault goes: the others become its peers, and none has gone.
        let (with, without) = (listed(&[1, 2, 3], &[1]), listed(&[1, 2, 3], &[]));
        let come = [2, 3].map(|node| change(true, all, Some(node), COME));
        assert_eq!(found(&with, &without), come);
        let gone = [2, 3].map(|node| change(true, &own, Some(node), GONE));
        assert_eq!(found(&without, &with), gone);
        assert_eq!(found(&with, &with), []);
        // A table that lists the same, or one that only it has.
        assert_eq!(found(&without, &listed(&[1, 2, 3], &[1, 2, 3])), []);
        assert_eq!(
            found(&without, &listed(&[1, 2, 3], &[1, 2, 3, 4])),
            [change(true, &own, Some(4), COME)]
        );
        // Whom a vault of its own has is not those of the others.
        assert_eq!(
            found(&with, &listed(&[1, 4], &[1])),
            [(4, COME), (2, GONE), (3, GONE)].map(|(node, what)| change(
                false,
                all,
                Some(node),
                what
            ))
        );
        // A list where anyone was let in lets nobody in: it shuts others out.
        let (anyone, some) = (listed(&[], &[]), listed(&[1], &[]));
        let only = [(None, ONLY_LISTED), (Some(1), COME)];
        assert_eq!(
            found(&anyone, &some),
            only.map(|(node, what)| change(false, all, node, what))
        );
        assert_eq!(found(&some, &anyone), [change(false, all, None, ANYONE)]);
        assert_eq!(
            found(&listed(&[], &[1]), &anyone),
            [change(true, all, None, ANYONE)]
        );
    }
}
