//! `covault recover`: private keys from backups, with no other help.

use std::{
    io::IsTerminal as _,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context as _, bail};
use covault_core::{
    derive::KeyPath, fault::Fault, ids::VaultId, networks::Network, scheme::Scheme,
};
use covault_mpc::shares::backup::{
    self, DecryptedBackup, RecoveredKey, RecoveryReport, RejectedBackup,
};
use zeroize::Zeroizing;

use crate::{files, wiring::explain};

/// Recover private keys from the backups of a threshold of nodes.
///
/// For the case that the nodes are lost: run it on a machine without network, with files of `covault vault backup`
/// and the age identity that they are encrypted to. It needs no configuration and no other file. Afterwards that
/// machine has the whole key: move the funds.
///
/// Give it all files that you have: it names and skips files that it cannot read, that are of another epoch, or that
/// do not belong to the key.
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
    /// The key of a wallet, by its keyPath, m/<coin type of its network>/<index>, instead of the
    /// root key; may be repeated.
    #[arg(long = "path", value_name = "m/60/0")]
    paths: Vec<WalletPath>,
    /// Write the keys to this file (mode 0600), and print nothing.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print private keys although standard output is a terminal.
    #[arg(long)]
    yes_show_private_keys: bool,
}

/// The key path of a wallet.
#[derive(Clone, Debug)]
struct WalletPath {
    path: KeyPath,
    network: Network,
}

impl FromStr for WalletPath {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let path: KeyPath = text.parse()?;
        let network = path.wallet_network().ok_or_else(|| {
            let problem = "must be m/<coin type of the wallet's network>/<index>, e.g. m/60/0";
            Fault::field("keyPath", problem)
        })?;
        Ok(Self { path, network })
    }
}

pub fn run(args: Args) -> anyhow::Result<()> {
    if args.out.is_none() && !args.yes_show_private_keys && std::io::stdout().is_terminal() {
        bail!(
            "private keys would be shown on this terminal: use --out FILE, or --yes-show-private-keys"
        );
    }
    let RecoveryOutput { keys, missing } = recover(&args)?;
    eprintln!(
        "WARNING: these are whole private keys. Anyone who sees them controls the funds: move the funds to new keys now, and erase these"
    );
    match &args.out {
        Some(path) => {
            files::write_private(path, keys.as_bytes())?;
            eprintln!("written to {}", path.display());
        }
        None => super::print_line(keys.trim_end()),
    }
    if !missing.is_empty() {
        bail!(
            "not every key could be recovered: {}; the others were",
            missing.join("; ")
        );
    }
    Ok(())
}

/// What could be recovered.
struct RecoveryOutput {
    /// JSON.
    keys: Zeroizing<String>,
    /// The keys of which the backups tell and that they do not give, and why.
    missing: Vec<String>,
}

/// The backups that can be read, with their files. The others are named: one bad file must not keep
/// the rest from giving the key.
fn open(args: &Args) -> anyhow::Result<(Vec<DecryptedBackup>, Vec<&Path>)> {
    let mut identities = Vec::new();
    for path in &args.identities {
        let text = std::fs::read_to_string(path)
            .map(Zeroizing::new)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let more = backup::identities(&text).map_err(explain);
        identities.extend(more.with_context(|| path.display().to_string())?);
    }
    let (mut backups, mut files) = (Vec::new(), Vec::new());
    for path in &args.backups {
        let opened = std::fs::read(path)
            .map_err(anyhow::Error::from)
            .and_then(|sealed| backup::open(&sealed, &identities).map_err(explain));
        match opened {
            Ok(backup) => {
                backups.push(backup);
                files.push(path.as_path());
            }
            Err(problem) => warn_skipped(path, &format!("{problem:#}")),
        }
    }
    if backups.is_empty() {
        bail!("none of the files is a backup that the identities open");
    }
    Ok((backups, files))
}

fn warn_skipped(path: &Path, why: &str) {
    eprintln!("WARNING: {} is left out: {why}", path.display());
}

fn recover(args: &Args) -> anyhow::Result<RecoveryOutput> {
    let (backups, files) = open(args)?;
    let mut entries = Vec::new();
    let (mut given, mut missing) = (Vec::new(), Vec::new());
    for RecoveryReport {
        vault,
        scheme,
        key,
        rejected,
    } in backup::recover_all(&backups)
    {
        for RejectedBackup { place, why } in rejected {
            if let (Some(path), Some(backup)) = (files.get(place), backups.get(place)) {
                let node = backup.node.openssh_line("");
                warn_skipped(path, &format!("the backup of {node}: {why}"));
            }
        }
        match key {
            Ok(key) => {
                given.push((vault, scheme));
                entries.extend(entries_of(args, vault, scheme, &key)?);
            }
            Err(fault) => missing.push((vault, scheme, fault)),
        }
    }
    // A file that names a key that nobody else knows does not make a recovered one incomplete.
    let (other, missing): (Vec<_>, Vec<_>) = missing
        .into_iter()
        .partition(|(vault, scheme, _)| given.contains(&(*vault, *scheme)));
    let sentence = |(vault, scheme, fault): (VaultId, Scheme, Fault)| {
        format!(
            "the {} key of vault {vault}: {}",
            scheme.name(),
            fault.message()
        )
    };
    for other in other {
        eprintln!(
            "WARNING: some files name another public key, which is not recovered: {}",
            sentence(other)
        );
    }
    let missing: Vec<String> = missing.into_iter().map(sentence).collect();
    if entries.is_empty() {
        if missing.is_empty() {
            bail!("--path: no recovered key is of the curve of these wallets");
        }
        bail!("{}", missing.join("; "));
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
    Ok(RecoveryOutput {
        keys: text,
        missing,
    })
}

/// The root key, or the wallets' keys that were asked for.
fn entries_of(
    args: &Args,
    vault: VaultId,
    scheme: Scheme,
    key: &RecoveredKey,
) -> anyhow::Result<Vec<Zeroizing<String>>> {
    let mut entries = Vec::new();
    if args.paths.is_empty() {
        let mut fields = vec![
            ("path", Zeroizing::new("m".to_owned())),
            (
                "publicKey",
                Zeroizing::new(hex::encode(&key.root.public_key)),
            ),
            (
                "chainCode",
                Zeroizing::new(hex::encode(key.root.chain_code)),
            ),
            ("privateKey", key.private_hex()),
        ];
        fields.extend(key.xprv().map(|xprv| ("extendedPrivateKey", xprv)));
        entries.push(entry(vault, scheme, &fields));
    }
    let of_curve = |wallet: &&WalletPath| wallet.network.curve() == scheme.curve();
    for WalletPath { path, network } in args.paths.iter().filter(of_curve) {
        let child = key.child(path).map_err(explain)?;
        let fields = [
            ("path", Zeroizing::new(path.to_string())),
            ("network", Zeroizing::new(network.name().to_owned())),
            ("publicKey", Zeroizing::new(hex::encode(&child.public_key))),
            ("privateKey", child.private_hex()),
        ];
        entries.push(entry(vault, scheme, &fields));
    }
    Ok(entries)
}

/// One key as JSON. Every value is of an alphabet that needs no escaping; nothing else holds the
/// text, so that it can be wiped.
fn entry(
    vault: VaultId,
    scheme: Scheme,
    fields: &[(&str, Zeroizing<String>)],
) -> Zeroizing<String> {
    let vault = vault.to_string();
    let known = [
        ("vaultUuid", vault.as_str()),
        ("scheme", scheme.name()),
        ("curve", scheme.curve().name()),
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
