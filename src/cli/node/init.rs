//! `covault node init`: a signer node's folder.

use std::path::PathBuf;

use covault_mpc::shares::age_file::AgeShareStore;

use super::print_line;
use crate::{
    config::{Config, SignerSettings},
    files, identities, passphrase, wiring,
};

/// Make a signer node: its identity, and a keyring encrypted with a passphrase.
///
/// Prints the node's public key, which the operator of the orchestrator needs to admit it. The
/// passphrase comes from the file that signer.passphrase_file names, or else from the systemd
/// credential "covault-passphrase" or the file data_dir/passphrase, or else it is asked for on
/// the terminal, twice. It overwrites nothing: repeating it prints the key again.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Configuration file (TOML). Without it: the defaults, and COVAULT_ variables.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The node's name in the printed line. Default: signer.name.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let (config, ignored) = Config::load_for_signer(args.config.as_deref())?;
    super::super::start_logging(&config, &ignored)?;
    let signer = &config.signer;
    let name = args.name.as_deref().unwrap_or(&signer.name);
    let has_key = config.client_signer.private_key().is_some();
    let keyring = keyring(signer);
    let line = if (has_key || signer.identity_file().exists()) && keyring.exists() {
        let line = identities::existing_identity(&config)?.openssh_line(name);
        eprintln!(
            "the node in {} already exists; nothing was changed",
            signer.data_dir.display()
        );
        line
    } else {
        let _folder_lock = files::lock_node_folder(&signer.data_dir)?;
        let passphrase = passphrase::obtain(signer, &keyring)?;
        AgeShareStore::open(&signer.data_dir, &passphrase.secret, passphrase.work_factor)
            .map_err(wiring::explain)?;
        let line = identities::signer_identity(&config, name)?.openssh_line(name);
        eprintln!(
            "created the node in {}; without its passphrase its shares are lost",
            signer.data_dir.display()
        );
        line
    };
    eprintln!(
        "its public key is below; the operator of the orchestrator admits it with\n  covault node admit '{line}'"
    );
    print_line(line);
    Ok(())
}

/// Where the keyring is, or will be.
pub fn keyring(signer: &SignerSettings) -> PathBuf {
    signer.data_dir.join(covault_mpc::shares::age_file::KEYRING)
}
