//! `covault node keys`: what clients pin of a node.

use std::path::PathBuf;

use covault_mpc::attest::KeyStatements;

use super::print_line;
use crate::{cli::hint, config::Config, identities, wiring};

/// Print the node's identity key, and its signed statements about the keys that it holds shares of.
///
/// Run it on each node's machine: it uses no network, and the node may be running. Clients pin the identity keys of
/// all holders, and vault, root public key, chain code and threshold of these statements; with them `covault address
/// verify` detects every address that is not the vault's. Compare the statements of all holders: they must be
/// identical.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The node's configuration file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let (config, _) = Config::load_for_signer(args.config.as_deref())?;
    let signer = &config.signer;
    let identity = identities::existing_identity(&config)?;
    let found = KeyStatements::load(&signer.data_dir, &identity.id()).map_err(wiring::explain)?;
    if args.json {
        print_line(serde_json::to_string_pretty(&found)?);
        return Ok(());
    }
    print_line(identity.openssh_line(&signer.name));
    for key in &found.keys {
        print_line(format_args!(
            "\n{}signature: {}",
            key.statement, key.signature
        ));
    }
    if found.keys.is_empty() {
        hint("the node holds no share of a key yet");
    }
    Ok(())
}
