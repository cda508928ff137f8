//! `covault client-signer`: a signer node that asks a program of its operator.

use std::path::PathBuf;

use super::signer;
use crate::protect::ProcessProtection;

/// Run a client signer: a signer node that signs nothing before your own program has said yes.
///
/// Takes the file of the public product's client signer as it is (vault-uuid, ssh.private-key, ssh.password, callback-url,
/// http-health.listening-addr). What a signer node needs beside that stands in the same file, under the names of Covault's own
/// configuration: bus.redis_url, signer.data_dir, signer.orchestrators, signer.peers, signer.least_threshold,
/// signer.policy_file. It gets its share by a reshare of the vault to its key. docs/client-signer.md tells more.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Configuration file: YAML (.yml, .yaml), or TOML.
    // The alias is the option of the public product's client signer: a container is started as before.
    #[arg(long, value_name = "FILE", visible_alias = "config-path")]
    config: PathBuf,
}

pub fn run(args: Args, protection: ProcessProtection) -> anyhow::Result<()> {
    signer::run_node(Some(args.config), true, protection)
}
