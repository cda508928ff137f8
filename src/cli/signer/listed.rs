//! The nodes that a signer's configuration lists: orchestrators, and peers, which are read again at SIGHUP.

use std::{
    collections::BTreeSet,
    iter,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use covault_core::{ids::VaultId, order::NodeId};
use covault_mpc::node::{CurrentPeers, PinnedPeers};

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

/// The peers that a configuration pins, from files that are there.
///
/// # Errors
/// Naming the setting and the entry that is wrong.
pub(super) fn peers(signer: &SignerSettings) -> anyhow::Result<PinnedPeers> {
    let all: BTreeSet<NodeId> = nodes("signer.peers", &signer.peers)?;
    let mut pinned = PinnedPeers {
        // None: whomever an orchestrator names.
        all: (!all.is_empty()).then_some(all),
        ..PinnedPeers::default()
    };
    for (id, setting, vault) in vaults(signer)? {
        let peers: BTreeSet<NodeId> = nodes(&format!("{setting}.peers"), &vault.peers)?;
        if !peers.is_empty() {
            pinned.vaults.insert(id, peers);
        }
    }
    Ok(pinned)
}

/// The nodes that a setting names, by OpenSSH lines or .pub files.
///
/// # Errors
/// Naming the entry that is wrong.
pub(super) fn nodes<N: FromIterator<NodeId>>(
    setting: &str,
    entries: &[String],
) -> anyhow::Result<N> {
    let node = |entry: &String| {
        let of = || format!("{setting}: {entry}");
        let line = match is_line(entry) {
            true => entry.clone(),
            false => (files::read_trusted(Path::new(entry)).with_context(of)?)
                .context("there is no such file")
                .with_context(of)?,
        };
        NodeId::parse_openssh_line(&line)
            .map_err(wiring::explain)
            .with_context(of)
    };
    entries.iter().map(node).collect()
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
    if before == now {
        return;
    }
    tell("signer.peers", before.all.as_ref(), now.all.as_ref());
    let vaults: BTreeSet<_> = before.vaults.keys().chain(now.vaults.keys()).collect();
    for vault in vaults {
        let setting = format!("signer.vaults.\"{vault}\".peers");
        tell(&setting, before.vaults.get(vault), now.vaults.get(vault));
    }
}

fn tell(setting: &str, before: Option<&BTreeSet<NodeId>>, now: Option<&BTreeSet<NodeId>>) {
    let none = BTreeSet::new();
    let (old, new) = (before.unwrap_or(&none), now.unwrap_or(&none));
    for node in new.difference(old) {
        tracing::warn!(
            setting,
            node = node.openssh_line(""),
            "SIGHUP: a peer is listed now"
        );
    }
    for node in old.difference(new) {
        tracing::warn!(
            setting,
            node = node.openssh_line(""),
            "SIGHUP: a peer is no longer listed"
        );
    }
    if before.is_some() && now.is_none() {
        tracing::warn!(setting, "SIGHUP: lists no peer any more");
    }
}

/// Those files, for a process that confines itself to what it has to read.
pub(super) fn paths(signer: &SignerSettings) -> Vec<PathBuf> {
    peer_files(signer)
        .map(|(_, path)| path.to_owned())
        .collect()
}
