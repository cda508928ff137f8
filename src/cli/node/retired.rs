//! `covault node retired`: the shares that later generations have replaced.

use std::path::PathBuf;

use covault_mpc::shares::{ShareStore as _, age_file::AgeShareStore, backup};

use super::{keyring, print_line};
use crate::{config::Config, files, identities::existing_identity, passphrase, wiring::explain};

/// List the shares of a node that later generations have replaced, and export them for recovery.
///
/// They sign nothing and deal nothing. The node keeps them, sealed, for signer.keep_retired_days, in case a reshare
/// was a mistake, or an attack that you permitted: --out writes each as a backup, encrypted to the recipients. The
/// backups of a threshold of nodes, of one epoch, give the key (`covault recover`). Then move the funds, because the
/// holders of the later generation still have the key as well. The node may be running.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The node's configuration file. Without it: the defaults, and COVAULT_ variables.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The folder for the backups.
    #[arg(long, value_name = "DIR", requires = "recipients")]
    out: Option<PathBuf>,
    /// age recipients ("age1...") whose identities are kept offline, separated by commas.
    #[arg(
        long = "recipient",
        value_name = "AGE1...,AGE1...",
        value_delimiter = ','
    )]
    recipients: Vec<String>,
    /// Erase them all before their retention time is over: only when every holder has signed with its present share.
    #[arg(long, conflicts_with = "out")]
    erase: bool,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let (config, _) = Config::load_for_signer(args.config.as_deref())?;
    let signer = &config.signer;
    let identity = existing_identity(&config)?;
    let passphrase = passphrase::obtain(signer, &keyring(signer))?;
    let shares = AgeShareStore::open(&signer.data_dir, &passphrase.secret, passphrase.work_factor)
        .map_err(explain)?;
    if args.erase {
        print_line(shares.erase_retired(u64::MAX, &[]).map_err(explain)?);
        return Ok(());
    }
    let retired = shares.retired().map_err(explain)?;
    if let Some(out) = &args.out {
        files::make_folder(out)?;
    }
    for share in &retired {
        let record = &share.record;
        let what = format!(
            "{}  {}  epoch {}  {}-of-{}  {}  retired at {} ms since 1970",
            record.vault,
            record.scheme.name(),
            record.epoch,
            record.threshold,
            record.holders.len(),
            if share.was_in_use {
                "was in use"
            } else {
                "was prepared"
            },
            share.at_ms
        );
        let Some(out) = &args.out else {
            print_line(what);
            continue;
        };
        let sealed =
            backup::of_retired(share, &identity.id(), &args.recipients).map_err(explain)?;
        let path = out.join(format!(
            "{}.{}.epoch-{}.{}.{}.age",
            record.vault,
            record.scheme.name(),
            record.epoch,
            hex::encode(identity.id().0.get(..4).unwrap_or_default()),
            share.at_ms
        ));
        files::write_private(&path, &sealed)?;
        print_line(path.display());
    }
    Ok(())
}
