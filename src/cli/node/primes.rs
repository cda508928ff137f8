//! `covault node primes`: precomputes the primes of a cggmp24 key, because key generation cannot wait for
//! them.

use std::path::PathBuf;

use anyhow::bail;
use covault_core::scheme::Scheme;
use covault_mpc::{backend, shares::age_file::AgeShareStore};

use super::print_line;
use crate::{
    adapters::OsEntropy, cli::progress::ProgressSpinner, config::Config, passphrase, wiring,
};

/// Precompute the primes that cggmp24 key generation needs.
///
/// A node needs one set for each ECDSA key of a vault made with `--ecdsa-backend cggmp24`: four safe
/// primes, found by trial, which takes a minute or more of one core. They are stored encrypted in
/// the node's folder. The node may be running; it finds them when it needs them. Prints how many
/// sets there are.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Configuration file (TOML). Without it: the defaults, and COVAULT_ variables.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How many sets to make. 0 prints how many there are.
    #[arg(long, value_name = "N", default_value_t = 1)]
    count: u16,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let (config, ignored) = Config::load_for_signer(args.config.as_deref())?;
    super::super::start_logging(&config, &ignored)?;
    if backend::of(Scheme::Cggmp24).is_err() {
        bail!("{}", backend::MISSING);
    }
    let signer = &config.signer;
    let keyring = super::keyring(signer);
    if !keyring.exists() {
        bail!(
            "there is no node in {} yet: covault node init --help",
            signer.data_dir.display()
        );
    }
    let passphrase = passphrase::obtain(signer, &keyring)?;
    let primes = AgeShareStore::open(&signer.data_dir, &passphrase.secret, passphrase.work_factor)
        .and_then(|files| files.primes())
        .map_err(wiring::explain)?;
    for number in 1..=args.count {
        let what = |made| {
            format!(
                "set {number} of {}: {made} of 4 safe primes found",
                args.count
            )
        };
        let progress = ProgressSpinner::start(what(0));
        let set = backend::make_primes(&OsEntropy, |made| {
            if made > 0 {
                progress.next(what(made));
            }
        });
        let stored = set.and_then(|set| primes.add(&set, &OsEntropy));
        drop(progress);
        stored.map_err(wiring::explain)?;
    }
    print_line(primes.count().map_err(wiring::explain)?);
    Ok(())
}
