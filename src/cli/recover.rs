//! `covault recover`: private keys from backups, with no other help.

use std::{io::IsTerminal as _, path::PathBuf};

use anyhow::{Context as _, bail};
use covault_core::derive::KeyPath;
use covault_mpc::shares::backup::{self, Backup};
use zeroize::Zeroizing;

use crate::{files, wiring::explain};

/// Recover private keys from the backups of a threshold of nodes.
///
/// For the day when the nodes are gone: on a machine without network, with files of
/// `covault vault backup` and the age identity that they are encrypted to. It needs no
/// configuration and no other file. Afterwards a key is whole on that machine: move the funds.
///
/// The keys are printed as JSON. secp256k1: "privateKey" (hex, as wallets import it) and
/// "extendedPrivateKey" (BIP-32, xprv...). Ed25519: "privateKey" is the scalar (32 bytes,
/// little-endian, hex), which signs as the second half of an expanded key (RFC 8032 section 5.1.5); there
/// is no seed, because the key was never made from one. A wallet's key is at its keyPath: --path.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Backups of a threshold of nodes; several keys' files may be given together.
    #[arg(long = "backup", value_name = "FILE", num_args = 1.., required = true)]
    backups: Vec<PathBuf>,
    /// age identity files ("AGE-SECRET-KEY-1...").
    #[arg(long = "identity", value_name = "FILE", num_args = 1.., required = true)]
    identities: Vec<PathBuf>,
    /// The key of a wallet, by its keyPath, instead of the root key; may be repeated.
    #[arg(long = "path", value_name = "m/0")]
    paths: Vec<KeyPath>,
    /// Write the keys to this file, for its owner only, and print nothing.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print private keys although standard output is a terminal.
    #[arg(long)]
    yes_show_private_keys: bool,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    if args.out.is_none() && !args.yes_show_private_keys && std::io::stdout().is_terminal() {
        bail!(
            "private keys would be shown on this terminal: use --out FILE, or --yes-show-private-keys"
        );
    }
    let keys = recover(&args)?;
    eprintln!(
        "WARNING: these are whole private keys. Whoever sees them has the funds: move the funds to new keys now, and erase these"
    );
    match &args.out {
        Some(path) => {
            files::write_private(path, keys.as_bytes())?;
            eprintln!("written to {}", path.display());
        }
        None => super::answer(keys.trim_end()),
    }
    Ok(())
}

fn recover(args: &Args) -> anyhow::Result<Zeroizing<String>> {
    let mut identities = Vec::new();
    for path in &args.identities {
        let text = std::fs::read_to_string(path)
            .map(Zeroizing::new)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let more = backup::identities(&text).map_err(explain);
        identities.extend(more.with_context(|| path.display().to_string())?);
    }
    let mut keys: Vec<Vec<Backup>> = Vec::new();
    for path in &args.backups {
        let sealed =
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let share = backup::open(&sealed, &identities)
            .map_err(explain)
            .with_context(|| path.display().to_string())?;
        let same = |shares: &&mut Vec<Backup>| {
            shares.first().is_some_and(|first| {
                first.vault == share.vault && first.root.public_key == share.root.public_key
            })
        };
        match keys.iter_mut().find(same) {
            Some(shares) => shares.push(share),
            None => keys.push(vec![share]),
        }
    }
    let mut entries = Vec::new();
    for shares in &keys {
        let Some(first) = shares.first() else {
            continue;
        };
        let root = backup::recover(shares)
            .map_err(explain)
            .with_context(|| format!("the {} key of vault {}", first.scheme.name(), first.vault))?;
        if args.paths.is_empty() {
            let mut fields = vec![
                ("path", Zeroizing::new("m".to_owned())),
                (
                    "publicKey",
                    Zeroizing::new(hex::encode(&root.root.public_key)),
                ),
                (
                    "chainCode",
                    Zeroizing::new(hex::encode(root.root.chain_code)),
                ),
                ("privateKey", root.private_hex()),
            ];
            fields.extend(root.xprv().map(|xprv| ("extendedPrivateKey", xprv)));
            entries.push(entry(first, &fields));
        }
        for path in &args.paths {
            let child = root.child(path).map_err(explain)?;
            let fields = [
                ("path", Zeroizing::new(path.to_string())),
                ("publicKey", Zeroizing::new(hex::encode(&child.public_key))),
                ("privateKey", child.private_hex()),
            ];
            entries.push(entry(first, &fields));
        }
    }
    let mut text = Zeroizing::new(String::with_capacity(1024 * (entries.len() + 1)));
    text.push_str("[\n");
    for (number, entry) in entries.iter().enumerate() {
        if number > 0 {
            text.push_str(",\n");
        }
        text.push_str(entry);
    }
    text.push_str("\n]\n");
    Ok(text)
}

/// One key as JSON. Every value is of an alphabet that needs no escaping; nothing else holds the
/// text, so that it can be wiped.
fn entry(share: &Backup, fields: &[(&str, Zeroizing<String>)]) -> Zeroizing<String> {
    let vault = share.vault.to_string();
    let known = [
        ("vaultUuid", vault.as_str()),
        ("scheme", share.scheme.name()),
        ("curve", share.root.curve.name()),
    ];
    let fields = fields.iter().map(|(name, value)| (*name, value.as_str()));
    let mut text = Zeroizing::new(String::with_capacity(1024));
    for (number, (name, value)) in known.into_iter().chain(fields).enumerate() {
        text.push_str(if number == 0 { "  {\n" } else { ",\n" });
        for part in ["    \"", name, "\": \"", value, "\""] {
            text.push_str(part);
        }
    }
    text.push_str("\n  }");
    text
}
