//! `covault vault show | refresh | reshare`: who holds a vault's shares, and new ones.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, bail, ensure};
use covault_actors::operations::{CancelReshare, ListNodes, ReshareVault};
use covault_core::{
    order::NodeId,
    request::ApprovalRule,
    schema::admin::{self, Key, Node, Shares, Vault},
    scheme::Scheme,
};

use super::{VaultSelector, change};
use crate::{
    cli::{
        answer_json, approve,
        client::{AdminClient, ConnectionArgs},
        print_line,
        progress::{self, ProgressSpinner},
        public_key,
    },
    wiring::explain,
};

/// The steps of a reshare, as the admin API names them.
const PREPARING: &str = "preparing";
const HALTED: &str = "halted";

fn step(key: &Key) -> Option<&str> {
    key.work.as_ref().map(|work| work.step.as_str())
}

/// What refresh and reshare have in common.
#[derive(Debug, clap::Args)]
pub struct VaultKeysArgs {
    #[command(flatten)]
    which: VaultSelector,
    /// Present holders that have lost their share (as --signers): they deal nothing, and get a new share if they are
    /// among the new holders, with a permit of their operators (`covault node permit`). Not needed for a node that is
    /// offline.
    #[arg(long, value_name = "KEY,...", value_delimiter = ',')]
    lost: Vec<String>,
    /// Only the key of this scheme (frost-ed25519, dkls23); may be repeated. Else every key that can
    /// have new shares: cggmp24 keys cannot.
    #[arg(long = "scheme", value_name = "SCHEME")]
    schemes: Vec<String>,
    /// How many seconds to wait for completion. After that it continues in the background.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    /// Print the vault as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: ConnectionArgs,
}

/// Another set of holders.
#[derive(Debug, clap::Args)]
pub struct NewHoldersArgs {
    /// How many signers are needed for a signature; 2 or more.
    #[arg(long, value_name = "N", required_unless_present = "cancel")]
    threshold: Option<u16>,
    /// The nodes that get a share, separated by commas: OpenSSH lines ("ssh-ed25519 AAAA...", as
    /// `covault node list` prints them) or paths of .pub files.
    #[arg(
        long,
        value_name = "KEY,KEY,KEY",
        value_delimiter = ',',
        required_unless_present = "cancel"
    )]
    signers: Vec<String>,
    /// One of --signers that is a client signer: the vault's rule names it from now on, so that requests can. May be
    /// repeated. Where people approve the vault's requests, have them agree first: covault vault approvals propose
    /// --keep-people --client-signer KEY.
    #[arg(long, value_name = "KEY")]
    client_signer: Vec<String>,
    /// Cancel the refresh or reshare in progress, unless its new shares sign already.
    #[arg(long, conflicts_with_all = ["threshold", "signers", "client_signer", "lost", "schemes"])]
    cancel: bool,
    /// Do not ask before a lower threshold, in a context that asks (covault context).
    #[arg(long)]
    yes: bool,
}

pub async fn refresh(vault_keys: VaultKeysArgs) -> anyhow::Result<()> {
    run_reshare(vault_keys, None, Vec::new(), &[], true).await
}

pub async fn reshare(vault_keys: VaultKeysArgs, set: NewHoldersArgs) -> anyhow::Result<()> {
    if set.cancel {
        return cancel(vault_keys).await;
    }
    let signers = lines(&set.signers)?;
    let client_signers = lines(&set.client_signer)?;
    if !client_signers.is_empty() {
        let nodes: Vec<_> = signers
            .iter()
            .map(|it| node(it))
            .collect::<Result<_, _>>()?;
        for line in &client_signers {
            ensure!(
                nodes.contains(&node(line)?),
                "--client-signer {line:?} is not one of --signers"
            );
        }
    }
    run_reshare(vault_keys, set.threshold, signers, &client_signers, set.yes).await
}

fn node(line: &str) -> anyhow::Result<NodeId> {
    NodeId::parse_openssh_line(line).map_err(explain)
}

fn lines(nodes: &[String]) -> anyhow::Result<Vec<String>> {
    nodes.iter().map(|node| public_key(node)).collect()
}

async fn cancel(vault_keys: VaultKeysArgs) -> anyhow::Result<()> {
    let client = vault_keys.target.client()?;
    let vault = vault_keys.which.find(&client).await?;
    let request = admin::CancelReshareRequest {
        vault_uuid: vault.uuid,
    };
    let vault = super::made(client.call::<CancelReshare>(&request).await?.vault)?;
    if let Some(key) = vault.keys.iter().find(|key| key.work.is_some()) {
        bail!(
            "it is too late for the {} key: its new shares are already active. The other keys are unchanged",
            key.scheme
        );
    }
    eprintln!("cancelled; the current shares keep signing");
    if vault.keys.iter().any(|key| !key.leftover.is_empty()) {
        eprintln!(
            "nodes may have new shares already (`covault vault show` names them): a refresh makes these worthless"
        );
    }
    if vault_keys.json {
        return answer_json(&vault);
    }
    Ok(())
}

async fn run_reshare(
    vault_keys: VaultKeysArgs,
    threshold: Option<u16>,
    signers: Vec<String>,
    client_signers: &[String],
    yes: bool,
) -> anyhow::Result<()> {
    let client = vault_keys.target.client()?;
    let before = vault_keys.which.find(&client).await?;
    let present = before.keys.iter().filter_map(|key| key.shares.as_ref());
    let present = present.map(|shares| shares.threshold).max().unwrap_or(0);
    if let Some(lower) = threshold.map(u32::from).filter(|next| *next < present) {
        let deed = format!("{lower} nodes sign for the vault alone, not {present}");
        client.confirm(&deed, &before.name, yes)?;
    }
    change::name_client_signers(&client, &before, client_signers).await?;
    let name = before.name.clone();
    let request = admin::ReshareVaultRequest {
        vault_uuid: before.uuid.clone(),
        threshold: threshold.map(u32::from),
        signers,
        lost: lines(&vault_keys.lost)?,
        schemes: vault_keys.schemes.clone(),
    };
    let mut vault = super::made(client.call::<ReshareVault>(&request).await?.vault)?;
    let selected = |key: &&Key| {
        if vault_keys.schemes.is_empty() {
            reshares(key)
        } else {
            vault_keys.schemes.contains(&key.scheme)
        }
    };
    for key in before.keys.iter().filter(|key| !reshares(key)) {
        eprintln!(
            "vault {name}: its {} shares stay as they are and where they are: this backend has no refresh, repair or reshare",
            key.scheme
        );
    }
    let old = epochs(before.keys.iter().filter(selected));
    let progress = ProgressSpinner::start(format!("vault {name}: resharing"));
    let started = tokio::time::Instant::now();
    loop {
        let keys: Vec<&Key> = vault.keys.iter().filter(selected).collect();
        if keys.iter().all(|key| key.work.is_none()) {
            drop(progress);
            check_outcome(&name, &keys, &old)?;
            return print_outcome(&vault, &keys, vault_keys.json);
        }
        if let Some((scheme, reason)) = halted(&keys) {
            drop(progress);
            bail!(
                "vault {name}: no new shares for the {scheme} key: {reason}. The present shares keep signing. Fix \
                 the cause and repeat the command, or cancel: `covault vault reshare --cancel`"
            );
        }
        let (doing, problem) = (state(&keys), problem(&keys));
        progress.next_after(format!("vault {name}: {doing}"), problem.as_deref());
        let told = progress::with_problem(&doing, problem.as_deref());
        if started.elapsed() > Duration::from_secs(vault_keys.timeout) {
            drop(progress);
            if keys.iter().all(|key| step(key) != Some(PREPARING)) {
                eprintln!(
                    "vault {name}: the new shares are active; {told}. The orchestrator keeps notifying these nodes"
                );
                check_outcome(&name, &keys, &old)?;
                return print_outcome(&vault, &keys, vault_keys.json);
            }
            bail!(
                "vault {name}: not finished yet: {told}. The present shares keep signing, and the reshare continues \
                 in the background; `covault vault show` shows its state, `covault vault reshare --cancel` ends it"
            );
        }
        tokio::time::sleep(progress::poll_interval(started)).await;
        vault = match find_again(&client, &vault.uuid).await {
            Ok(vault) => vault,
            // It may be starting again: what is in progress continues then.
            Err(problem) => {
                progress.next(format!("vault {name}: {problem:#}"));
                continue;
            }
        };
    }
}

/// Whether a key can get new shares.
fn reshares(key: &Key) -> bool {
    Scheme::parse(&key.scheme).is_none_or(Scheme::reshares)
}

async fn find_again(client: &AdminClient, uuid: &str) -> anyhow::Result<Vault> {
    super::vaults(client)
        .await?
        .into_iter()
        .find(|vault| vault.uuid == uuid)
        .context("the orchestrator no longer lists the vault")
}

fn epochs<'a>(keys: impl Iterator<Item = &'a Key>) -> BTreeMap<String, u32> {
    keys.filter_map(|key| Some((key.scheme.clone(), key.shares.as_ref()?.epoch)))
        .collect()
}

/// Whether every key has newer shares than before.
fn check_outcome(name: &str, keys: &[&Key], old: &BTreeMap<String, u32>) -> anyhow::Result<()> {
    for key in keys {
        let Some(shares) = &key.shares else { continue };
        if old.get(&key.scheme) >= Some(&shares.epoch) {
            bail!(
                "vault {name}: it was cancelled; the {} key keeps its old shares",
                key.scheme
            );
        }
        if !key.unconfirmed.is_empty() {
            eprintln!(
                "vault {name}: not every node has confirmed its {} shares; offline nodes may still have old ones and are told when they return. `covault vault show` names them",
                key.scheme
            );
        }
    }
    Ok(())
}

/// Prints what there is now.
fn print_outcome(vault: &Vault, keys: &[&Key], json: bool) -> anyhow::Result<()> {
    if json {
        return answer_json(vault);
    }
    for key in keys {
        if let Some(shares) = &key.shares {
            print_line(sentence(&key.scheme, shares));
        }
    }
    Ok(())
}

/// The first key that is given up, and why.
fn halted<'a>(keys: &[&'a Key]) -> Option<(&'a str, &'a str)> {
    keys.iter().find_map(|key| match &key.work {
        Some(work) if work.step == HALTED => Some((key.scheme.as_str(), work.reason.as_str())),
        _ => None,
    })
}

fn sentence(scheme: &str, shares: &Shares) -> String {
    format!(
        "{scheme}  epoch {}  {}-of-{}",
        shares.epoch,
        shares.threshold,
        shares.holders.len()
    )
}

/// Whether enough holders can sign, in words.
pub fn ability(shares: &Shares) -> String {
    let Shares {
        threshold,
        holders,
        available,
        ..
    } = shares;
    let can = if available < threshold {
        "CANNOT SIGN NOW"
    } else {
        "can sign"
    };
    format!(
        "{can}: {available} of {} holders can, {threshold} are needed",
        holders.len()
    )
}

/// Which round the run for a key or its next shares is in, as an addition.
fn round(key: &Key) -> String {
    let round = progress::round_in_words(key);
    round.map(|round| format!(", {round}")).unwrap_or_default()
}

/// What is in progress for these keys, in words.
fn state(keys: &[&Key]) -> String {
    let states = keys.iter().filter_map(|key| {
        let doing = match step(key)? {
            PREPARING => "resharing",
            HALTED => "failed",
            _ => "activating the new shares",
        };
        Some(format!("{}: {doing}{}", key.scheme, round(key)))
    });
    states.collect::<Vec<_>>().join("; ")
}

/// Why earlier tries for these keys have failed.
fn problem(keys: &[&Key]) -> Option<String> {
    let problems = keys.iter().filter(|key| key.work.is_some());
    let problems = problems.filter_map(|key| {
        let problem = key.problem.as_ref()?;
        Some(format!("{}: {problem}", key.scheme))
    });
    let problems = problems.collect::<Vec<_>>().join("; ");
    Some(problems).filter(|problems| !problems.is_empty())
}

/// Prints a vault with its keys and who holds their shares.
pub async fn show(which: VaultSelector, json: bool, target: ConnectionArgs) -> anyhow::Result<()> {
    let client = target.client()?;
    let vault = which.find(&client).await?;
    if json {
        return answer_json(&vault);
    }
    let request = admin::ListNodesRequest {};
    let nodes = client.call::<ListNodes>(&request).await?.nodes;
    print_line(format_args!(
        "{}  {}  {}",
        vault.uuid,
        vault.name,
        if vault.ready { "ready" } else { "not ready" }
    ));
    if vault.approvals.is_some() {
        let rule = ApprovalRule::parse(vault.approvals.clone()).map_err(explain)?;
        let rule = approve::visible(&format!("approvals: {}", change::in_words(&rule)));
        print_line(rule.trim_end());
    }
    for key in &vault.keys {
        match &key.shares {
            Some(shares) => {
                print_line(sentence(&key.scheme, shares));
                for holder in &shares.holders {
                    print_line(format_args!("  {}", describe_holder(holder, &nodes)));
                }
                print_line(format_args!("  {}", ability(shares)));
            }
            None => print_line(format_args!("{}  no key yet{}", key.scheme, round(key))),
        }
        if let Some(work) = &key.work {
            let to = format!("{}-of-{}, for", work.threshold, work.holders.len());
            match work.step.as_str() {
                PREPARING => {
                    print_line(format_args!("  in progress{}: reshare, {to}", round(key)));
                }
                HALTED => {
                    print_line(format_args!(
                        "  failed; repeat the command to retry: {}",
                        work.reason
                    ));
                    print_line(format_args!("  it was a reshare, {to}"));
                }
                _ => print_line("  in progress: activating these shares"),
            }
            for holder in &work.holders {
                print_line(format_args!("    {}", describe_holder(holder, &nodes)));
            }
        }
        if let Some(problem) = &key.problem {
            print_line(format_args!("  last problem: {problem}"));
        }
        let list = |what: &str, of: &[String]| {
            if !of.is_empty() {
                print_line(format_args!("  {what}"));
            }
            for node in of {
                print_line(format_args!("    {}", describe_holder(node, &nodes)));
            }
        };
        let frozen = key.shares.as_ref().map(|shares| shares.frozen.as_slice());
        list(
            "frozen by their operators, each on the node's own machine (covault node thaw):",
            frozen.unwrap_or_default(),
        );
        list(
            "not confirmed yet (who holds none of these shares may still have old ones):",
            &key.unconfirmed,
        );
        list(
            "may have shares of a run that did not succeed (a refresh makes them worthless):",
            &key.leftover,
        );
    }
    Ok(())
}

/// A node with its state and name, where the orchestrator knows it.
fn describe_holder(holder: &str, nodes: &[Node]) -> String {
    let id = |line: &str| NodeId::parse_openssh_line(line).ok();
    let same = nodes
        .iter()
        .find(|node| id(&node.public_key).is_some_and(|node| Some(node) == id(holder)));
    match same {
        Some(node) => {
            let state = if node.live { "live" } else { "offline" };
            format!("{state}  {}  {holder}", node.name)
        }
        None => format!("offline  (never seen)  {holder}"),
    }
}
