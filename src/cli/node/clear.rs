//! `covault node clear-unused`: keys that were made and never signed.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
};

use anyhow::Context as _;
use covault_core::{ids::VaultId, port::Clock as _};
use covault_mpc::{
    claims::Claims,
    key_records::KeyRecord,
    shares::{ShareRecord, ShareStore as _, age_file::AgeShareStore},
};

use super::keyring;
use crate::{
    adapters::SystemClock,
    cli::{ago, print_line},
    config::Config,
    files, passphrase,
    wiring::explain,
};

/// List a node's keys, and clear those that never signed.
///
/// A hostile orchestrator can make a node generate keys without end; the node refuses more than signer.unused_keys
/// that never signed. This lists the keys by vault, with their age and last use, and moves the shares of unused ones
/// into the folder "cleared" of the node's folder, from which the node does not load them. The node must be stopped.
///
/// "Never signed" is of this node: other holders may have signed with the key. And a key that never
/// signed may hold money: its addresses can be paid to as soon as they are known. Clear
/// only keys of vaults that `covault vault list`, asked of an orchestrator that you trust, does not
/// show. To bring a key back, stop the node and move its file back into the folder "shares".
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The node's configuration file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Clear the unused keys of this vault; may be repeated.
    #[arg(long = "vault", value_name = "UUID")]
    vaults: Vec<String>,
    /// Clear every unused key that is older than this.
    #[arg(long, value_name = "DAYS")]
    older_than: Option<u64>,
    /// Clear the keys. Without it: only print what would be cleared.
    #[arg(long)]
    yes: bool,
}

const DAY_MS: u64 = 86_400_000;

pub fn run(args: Args) -> anyhow::Result<()> {
    let (config, _) = Config::load_for_signer(args.config.as_deref())?;
    let node = &config.signer;
    let vaults: Vec<VaultId> = args
        .vaults
        .iter()
        .map(|uuid| uuid.parse().context("--vault is not a uuid"))
        .collect::<anyhow::Result<_>>()?;
    let _folder_lock = files::lock_node_folder(&node.data_dir)?;
    let passphrase = passphrase::obtain(node, &keyring(node))?;
    let shares = AgeShareStore::open(&node.data_dir, &passphrase.secret, passphrase.work_factor)
        .map_err(explain)?;
    let records = shares.load_all().map_err(explain)?;
    let notes = if records.is_empty() {
        HashMap::new()
    } else {
        Claims::key_records(&node.data_dir.join("claims.redb")).map_err(explain)?
    };
    let now_ms = SystemClock.now_ms();
    let mut by_vault: BTreeMap<VaultId, Vec<(&ShareRecord, Option<&KeyRecord>)>> = BTreeMap::new();
    for record in &records {
        let note = notes.get(&record.key.root.public_key);
        by_vault
            .entry(record.vault)
            .or_default()
            .push((record, note));
    }
    let mut cleared: usize = 0;
    for (vault, keys) in by_vault {
        print_line(format_args!("vault {vault}"));
        for (record, note) in keys {
            let chosen = is_unused(record, note)
                && (vaults.contains(&vault)
                    || args
                        .older_than
                        .is_some_and(|days| is_older(note, days, now_ms)));
            let what = match (chosen, args.yes) {
                (false, _) => "",
                (true, false) => "; would be cleared",
                (true, true) => "; cleared",
            };
            if chosen && args.yes {
                shares
                    .clear(record.vault, &record.key.root)
                    .map_err(explain)?;
            }
            cleared = cleared.saturating_add(usize::from(chosen));
            print_line(format_args!("  {}{what}", describe(record, note, now_ms)));
        }
    }
    print_line(match (cleared, args.yes) {
        (0, _) => format!("{} keys, nothing to clear", records.len()),
        (_, false) => format!("{cleared} keys would be cleared: repeat the command with --yes"),
        (_, true) => format!(
            "{cleared} keys cleared; their shares are in {}",
            node.data_dir.join("cleared").display()
        ),
    });
    Ok(())
}

/// Made here by key generation, and never asked for a signature.
fn is_unused(record: &ShareRecord, note: Option<&KeyRecord>) -> bool {
    match note {
        Some(note) => note.used_ms.is_none(),
        // The node ended before it had noted the key. What came by a reshare may be used elsewhere.
        None => record.order.is_none() && !record.restored,
    }
}

/// One whose age is not known is cleared by its vault only.
fn is_older(note: Option<&KeyRecord>, days: u64, now_ms: u64) -> bool {
    note.is_some_and(|note| now_ms.saturating_sub(note.made_ms) > days.saturating_mul(DAY_MS))
}

fn describe(record: &ShareRecord, note: Option<&KeyRecord>, now_ms: u64) -> String {
    let since = |ms: u64| ago(now_ms.saturating_sub(ms));
    let (made, used) = match note {
        Some(note) => (
            format!(
                "made {} for {}",
                since(note.made_ms),
                note.orchestrator.openssh_line("")
            ),
            match note.used_ms {
                Some(used_ms) => format!("last signed {}", since(used_ms)),
                None => "never signed".to_owned(),
            },
        ),
        None if is_unused(record, note) => ("made".to_owned(), "never signed".to_owned()),
        None => ("came by a reshare".to_owned(), "may have signed".to_owned()),
    };
    format!(
        "{} epoch {}: {made}, {used}",
        record.scheme.name(),
        record.epoch
    )
}
