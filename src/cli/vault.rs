//! `covault vault`: making and listing vaults, and the life of their keys.

pub mod approvals;
mod backup;
mod change;
mod lifecycle;

use anyhow::{Context as _, bail};

use super::{
    answer, answer_json,
    client::{AdminClient, ConnectionArgs},
    hint, one_line, print_line,
    progress::{self, ProgressSpinner},
    public_key, table,
};
use covault_actors::operations::{CreateVault, ListVaults};
use covault_core::schema::admin::{self, Vault};

/// Vaults.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Make a vault: its signers generate its two root keys together.
    ///
    /// Waits until the keys exist and prints the vault's uuid. Names are unique; with the name of an existing vault
    /// it waits for that one.
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
        /// The protocol of its ECDSA key: dkls23, or cggmp24 for keys that are rarely used and of high value. cggmp24
        /// relies on other code and other assumptions and takes seconds per signature; its shares cannot be
        /// refreshed. It needs a build with `--features cggmp24`, and primes on every node (covault node primes).
        #[arg(long, value_name = "BACKEND", value_parser = ["dkls23", "cggmp24"])]
        ecdsa_backend: Option<String>,
        /// For an existing vault that lacks keys: generate the missing ones with these signers and this threshold
        /// instead of those named first. For a node that died, or was named by mistake.
        #[arg(long)]
        replace: bool,
        #[command(flatten)]
        approvals: approvals::ApprovalArgs,
        /// Print the vault as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        target: ConnectionArgs,
    },
    /// List vaults.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        target: ConnectionArgs,
    },
    /// Show a vault: who approves, each key's scheme, epoch, threshold, holders, and what is in progress.
    Show {
        #[command(flatten)]
        which: VaultSelector,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        target: ConnectionArgs,
    },
    /// Give a vault's nodes new shares of the same keys; the old ones are retired.
    ///
    /// Shares stolen earlier from fewer nodes than the threshold become worthless. Keys and addresses stay the same,
    /// and signing continues. It also gives a new share to a node that has lost its own (--lost), or was restored from
    /// a backup. All holders must be live.
    Refresh(lifecycle::VaultKeysArgs),
    /// Give a vault's keys to another set of nodes, or change the threshold.
    ///
    /// Keys and addresses stay the same, and signing continues. The operator of each node that takes part has to permit
    /// it (`covault node permit`): the command says where, and what to run. Nodes that leave retire their shares; a
    /// node that is offline keeps its share, so wipe it. To replace a lost node, name the others and the new one: a
    /// threshold of the present holders has to be live, and all of the new ones.
    Reshare {
        #[command(flatten)]
        set: lifecycle::NewHoldersArgs,
        #[command(flatten)]
        vault_keys: lifecycle::VaultKeysArgs,
    },
    /// Change who approves a vault's requests: propose, have as many people sign as the present rule needs, apply.
    #[command(subcommand)]
    Approvals(change::Command),
    /// Back up a vault's keys: every node encrypts its shares to recipients kept offline.
    ///
    /// `covault recover` computes the private keys from a threshold of the files, `covault node restore` gives one
    /// node its share back. Backups belong to one epoch: make new ones after each refresh or reshare.
    Backup(backup::Args),
}

/// A vault.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub struct VaultSelector {
    /// The vault's name.
    #[arg(long)]
    name: Option<String>,
    /// The vault's uuid.
    #[arg(long, value_name = "UUID")]
    vault: Option<String>,
}

impl VaultSelector {
    /// Finds it.
    async fn find(&self, client: &AdminClient) -> anyhow::Result<Vault> {
        let fits = |vault: &Vault| match (&self.name, &self.vault) {
            (Some(name), _) => vault.name == *name,
            (None, uuid) => Some(&vault.uuid) == uuid.as_ref(),
        };
        vaults(client)
            .await?
            .into_iter()
            .find(fits)
            .context("there is no such vault: covault vault list")
    }
}

/// The uuids of vaults that are named by name or uuid.
///
/// # Errors
/// When one is not there.
pub async fn uuids(client: &AdminClient, which: &[String]) -> anyhow::Result<Vec<String>> {
    let vaults = vaults(client).await?;
    let uuid = |which: &String| {
        let fits = |vault: &&Vault| vault.uuid.eq_ignore_ascii_case(which) || vault.name == *which;
        vaults
            .iter()
            .find(fits)
            .map(|vault| vault.uuid.clone())
            .with_context(|| format!("there is no vault {which:?}: covault vault list"))
    };
    which.iter().map(uuid).collect()
}

/// All of them, by name.
///
/// # Errors
/// When they cannot be listed.
pub async fn vaults(client: &AdminClient) -> anyhow::Result<Vec<Vault>> {
    let mut all: Vec<Vault> = Vec::new();
    loop {
        let after = all.last().map(|vault| vault.name.clone());
        let request = admin::ListVaultsRequest { after };
        let page = client.call::<ListVaults>(&request).await?.vaults;
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page);
    }
}

pub async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create {
            name,
            threshold,
            signers,
            ecdsa_backend,
            replace,
            approvals,
            json,
            target,
        } => {
            let signers: Result<Vec<_>, _> =
                signers.iter().map(|signer| public_key(signer)).collect();
            let request = admin::CreateVaultRequest {
                name,
                threshold: threshold.into(),
                signers: signers?,
                ecdsa_backend,
                replace,
                approvals: Some(approvals.rule()?),
            };
            create(&request, json, target).await
        }
        Command::List { json, target } => list(json, target).await,
        Command::Show {
            which,
            json,
            target,
        } => lifecycle::show(which, json, target).await,
        Command::Refresh(vault_keys) => lifecycle::refresh(vault_keys).await,
        Command::Reshare { set, vault_keys } => lifecycle::reshare(vault_keys, set).await,
        Command::Approvals(command) => change::run(command).await,
        Command::Backup(args) => backup::run(args).await,
    }
}

/// The vault of an answer.
fn made(vault: Option<Vault>) -> anyhow::Result<Vault> {
    vault.context("the response has no vault")
}

async fn create(
    request: &admin::CreateVaultRequest,
    json: bool,
    target: ConnectionArgs,
) -> anyhow::Result<()> {
    let client = target.client()?;
    let name = &request.name;
    let mut vault = made(client.call::<CreateVault>(request).await?.vault)?;
    if vault.ecdsa_backend == "cggmp24" {
        eprintln!(
            "NOTE: cggmp24 shares cannot be refreshed, repaired, reshared or restored to a node. When fewer than {} of these nodes are left, only `covault recover` with backups gives the key: make them now (covault vault backup), and read \"Vaults with cggmp24\" in docs/operating-keys.md",
            vault.threshold
        );
    }
    let signers = vault.signers.len();
    if usize::try_from(vault.threshold).is_ok_and(|threshold| threshold <= signers / 2) {
        eprintln!(
            "NOTE: with {} of {signers} signers, two sets of nodes that share no node can each sign: limits apply \
             to each set separately, and signers whose policy requires approvals make no such key. With a threshold \
             of more than {} there are no such sets",
            vault.threshold,
            signers / 2
        );
    }
    if vault
        .approvals
        .as_ref()
        .is_some_and(|rule| rule.mode == "manual")
    {
        eprintln!(
            "NOTE: the orchestrator holds to this rule, and a hostile one would not. Put the same persons and keys into the policy file of each signer ([[approver]] and [[approval]]; docs/approvals.md): then signers verify every approval themselves"
        );
    }
    let progress = ProgressSpinner::start(format!(
        "vault {name}: {} signers generate its keys",
        vault.signers.len()
    ));
    let started = tokio::time::Instant::now();
    loop {
        let keys = progress::keys_in_words(&vault.keys);
        progress.next_after(format!("vault {name}: {keys}"), vault.problem.as_deref());
        if let Some(reason) = &vault.failed_reason {
            bail!("vault {name} has no keys: {reason}");
        }
        if vault.ready {
            break;
        }
        tokio::time::sleep(progress::poll_interval(started)).await;
        vault = vaults(&client)
            .await?
            .into_iter()
            .find(|other| other.uuid == vault.uuid)
            .context("the orchestrator no longer lists the vault")?;
    }
    drop(progress);
    answer(json, &vault, |vault| vault.uuid.clone())
}

async fn list(json: bool, target: ConnectionArgs) -> anyhow::Result<()> {
    let vaults = vaults(&target.client()?).await?;
    if json {
        return answer_json(&admin::ListVaultsResponse { vaults });
    }
    if vaults.is_empty() {
        hint("no vaults yet: covault vault create --help");
        return Ok(());
    }
    let header = ["UUID", "NAME", "SIGNERS", "ECDSA", "APPROVAL", "STATE"];
    print_line(table(header, vaults.into_iter().map(row)));
    Ok(())
}

/// A vault as a line of the list.
fn row(vault: Vault) -> [String; 6] {
    let Vault {
        uuid,
        name,
        threshold,
        signers,
        ecdsa_backend,
        ready,
        failed_reason,
        problem,
        keys,
        approvals,
        approval_changes: _,
    } = vault;
    let approval = match approvals.unwrap_or_default() {
        rule if rule.needs == 0 => "automatic".to_owned(),
        rule => format!("{} of {}", rule.needs, rule.of.len()),
    };
    let state = match (ready, failed_reason, problem) {
        (true, ..) if keys.iter().any(|key| key.work.is_some()) => {
            "ready; new shares are in progress (covault vault show)".to_owned()
        }
        (true, ..) => keys
            .iter()
            .filter_map(|key| key.shares.as_ref())
            .find(|shares| shares.available < shares.threshold)
            .map_or_else(|| "ready".to_owned(), lifecycle::ability),
        (false, Some(reason), _) => format!("failed: {reason}"),
        (false, None, Some(problem)) => format!("generating keys; last problem: {problem}"),
        (false, None, None) => "generating keys".to_owned(),
    };
    [
        uuid,
        one_line(&name),
        format!("{threshold} of {}", signers.len()),
        ecdsa_backend,
        approval,
        one_line(&state),
    ]
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn list__should_have_a_header_and_a_line_for_each_vault() {
        let vault = |name: &str, ready: bool| Vault {
            uuid: "f6b7d0e4-4d1e-4f0e-9d38-0f1d7e6b3c01".into(),
            name: name.into(),
            threshold: 2,
            signers: vec![String::new(); 3],
            ecdsa_backend: "dkls23".into(),
            ready,
            problem: Some("a node said\nUUID NAME".into()),
            ..Default::default()
        };
        let header = ["UUID", "NAME", "SIGNERS", "ECDSA", "APPROVAL", "STATE"];
        let shown = table(
            header,
            [vault("treasury", true), vault("new", false)].map(row),
        );
        let lines: Vec<_> = shown.lines().map(str::trim).collect();
        assert_eq!(lines.len(), 3, "{shown}");
        assert!(
            lines[0].starts_with("UUID") && lines[0].ends_with("STATE"),
            "{shown}"
        );
        assert!(
            lines[1].contains("treasury") && lines[1].ends_with("ready"),
            "{shown}"
        );
        assert!(
            lines[2].contains("2 of 3") && lines[2].contains("dkls23"),
            "{shown}"
        );
        let problem = "generating keys; last problem: a node said UUID NAME";
        assert!(lines[2].ends_with(problem), "{shown}");
    }
}
