//! `covault vault`: making and listing vaults.

use std::time::Duration;

use anyhow::{Context as _, bail};

use super::{answer, client::Target, progress::Progress, public_key};
use crate::http::admin::{CreateVault, Vault, VaultAnswer, VaultsAnswer};

const POLL: Duration = Duration::from_millis(250);

/// Vaults.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Make a vault: its signers generate its two root keys together.
    ///
    /// Waits until the keys exist and prints the vault's uuid. Names are unique; repeating a
    /// name waits for the vault that has it.
    Create {
        /// The vault's name.
        #[arg(long)]
        name: String,
        /// How many signers are needed for a signature; 2 or more.
        #[arg(long, value_name = "N")]
        threshold: u16,
        /// The nodes that get a share, separated by commas: OpenSSH lines ("ssh-ed25519 AAAA...",
        /// as `covault node list` prints them) or paths of .pub files. Admit them first.
        #[arg(
            long,
            value_name = "KEY,KEY,KEY",
            value_delimiter = ',',
            required = true
        )]
        signers: Vec<String>,
        /// What makes and uses its ECDSA key: dkls23, or cggmp24 for keys that are rarely used and
        /// of high value. cggmp24 rests on other code and other assumptions and takes seconds per
        /// signature; its shares cannot be refreshed. It needs a build with `--features cggmp24`,
        /// and primes on every node (covault node primes).
        #[arg(long, value_name = "BACKEND", value_parser = ["dkls23", "cggmp24"])]
        ecdsa_backend: Option<String>,
        #[command(flatten)]
        target: Target,
    },
    /// List vaults.
    List {
        #[command(flatten)]
        target: Target,
    },
}

pub async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create {
            name,
            threshold,
            signers,
            ecdsa_backend,
            target,
        } => create(&name, threshold, &signers, ecdsa_backend, target).await,
        Command::List { target } => list(target).await,
    }
}

async fn create(
    name: &str,
    threshold: u16,
    signers: &[String],
    ecdsa_backend: Option<String>,
    target: Target,
) -> anyhow::Result<()> {
    let client = target.client()?;
    let signers: Result<Vec<_>, _> = signers.iter().map(|signer| public_key(signer)).collect();
    let request = CreateVault {
        name: name.to_owned(),
        threshold,
        signers: signers?,
        ecdsa_backend,
    };
    let VaultAnswer { mut vault } = client.call("createVault", &request).await?;
    let progress = Progress::start(format!(
        "vault {name}: {} signers generate its keys",
        vault.signers.len()
    ));
    let mut told = None;
    loop {
        if vault.problem.is_some() && vault.problem != told {
            let problem = vault.problem.as_deref().unwrap_or_default();
            progress.next(format!(
                "vault {name}: no keys yet, trying again: {problem}"
            ));
            told.clone_from(&vault.problem);
        }
        if let Some(reason) = vault.failed_reason {
            bail!("vault {name} has no keys: {reason}");
        }
        if vault.ready {
            break;
        }
        tokio::time::sleep(POLL).await;
        let VaultsAnswer { vaults } = client.call("listVaults", &serde_json::json!({})).await?;
        vault = vaults
            .into_iter()
            .find(|other| other.uuid == vault.uuid)
            .context("the orchestrator has lost the vault")?;
    }
    drop(progress);
    answer(vault.uuid);
    Ok(())
}

async fn list(target: Target) -> anyhow::Result<()> {
    let VaultsAnswer { vaults } = target
        .client()?
        .call("listVaults", &serde_json::json!({}))
        .await?;
    if vaults.is_empty() {
        eprintln!("no vaults yet: covault vault create --help");
    }
    for vault in vaults {
        let Vault {
            uuid,
            name,
            threshold,
            signers,
            ecdsa_backend,
            ready,
            failed_reason,
            problem,
        } = vault;
        let state = match (ready, failed_reason, problem) {
            (true, ..) => "ready".to_owned(),
            (false, Some(reason), _) => format!("failed: {reason}"),
            (false, None, Some(problem)) => format!("generating keys; last problem: {problem}"),
            (false, None, None) => "generating keys".to_owned(),
        };
        answer(format_args!(
            "{uuid}  {threshold}-of-{}  {ecdsa_backend}  {name}  {state}",
            signers.len()
        ));
    }
    Ok(())
}
