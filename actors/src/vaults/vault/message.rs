//! A vault as operators see it.

use std::collections::{BTreeMap, BTreeSet};

use covault_core::{
    fault::Fault,
    ids::VaultId,
    order::{Generation, NodeId},
    schema::admin,
    scheme::Scheme,
    signature::Curve,
    wallet::{
        generation::{LiveKey, ReshareState},
        vault::{KeyState, Vault, VaultKey},
    },
};

use super::progress::{self, KeyProgress, is_open};
use crate::{
    nodes::status,
    port::{KeyRound, NodeView},
    services::Services,
};

/// How many holders of a generation of a vault can sign now.
fn available(vault: VaultId, generation: &Generation, nodes: &BTreeMap<NodeId, NodeView>) -> usize {
    let holders = generation.holders.iter();
    let views = holders.filter_map(|holder| nodes.get(holder));
    views.filter(|node| node.can_sign(vault)).count()
}

/// Why keys of a vault are missing, in words for people.
///
/// # Errors
/// When the store cannot be read.
pub async fn why_no_keys(services: &Services, vault: &Vault) -> Result<String, Fault> {
    if let Some(reason) = vault.failed_reason() {
        return Ok(reason.to_owned());
    }
    let progress = progress::load(services, vault.id).await?.into_values();
    let problem = progress.filter_map(|it| it.problem).next();
    Ok(problem.unwrap_or_else(|| "its keys are being generated".to_owned()))
}

/// The vault's message. Threshold and signers are those of the first key, or as the vault was asked
/// for before there is one.
///
/// # Errors
/// When the store cannot be read.
pub async fn vault_message(services: &Services, vault: &Vault) -> Result<admin::Vault, Fault> {
    let progress = progress::load(services, vault.id).await?;
    let holders = vault.keys.iter().filter_map(|key| match &key.state {
        KeyState::Ready(live) => Some(&live.generation.holders),
        _ => None,
    });
    let holders: BTreeSet<NodeId> = holders.flatten().copied().collect();
    let nodes = status::of(services, &Vec::from_iter(holders)).await?;
    let nodes: BTreeMap<NodeId, NodeView> =
        nodes.into_iter().map(|(id, row)| (id, row.node)).collect();
    let keys: Vec<admin::Key> = vault
        .keys
        .iter()
        .map(|key| key_message(vault.id, key, &progress, &nodes))
        .collect();
    let mut live = vault.keys.iter().filter_map(|key| match &key.state {
        KeyState::Ready(live) => Some(&live.generation),
        _ => None,
    });
    let (threshold, signers) = match live.next() {
        Some(Generation {
            threshold, holders, ..
        }) => (*threshold, holders),
        None => (vault.threshold, &vault.signers),
    };
    let mut schemes = vault.keys.iter().map(|key| key.scheme);
    let ecdsa = schemes.find(|scheme| scheme.curve() == Curve::Secp256k1);
    let mut waiting = keys.iter().filter(|key| key.shares.is_none());
    Ok(admin::Vault {
        approvals: Some(vault.approval.to_wire()),
        approval_changes: services.rule_changes(vault.id).await?,
        uuid: vault.id.to_string(),
        name: vault.name.clone(),
        threshold: threshold.into(),
        signers: lines(signers),
        ecdsa_backend: ecdsa.map_or("", Scheme::name).to_owned(),
        ready: vault.ready(),
        failed_reason: vault.failed_reason().map(str::to_owned),
        problem: waiting.find_map(|key| key.problem.clone()),
        keys,
    })
}

fn key_message(
    vault: VaultId,
    key: &VaultKey,
    progress: &BTreeMap<Scheme, KeyProgress>,
    nodes: &BTreeMap<NodeId, NodeView>,
) -> admin::Key {
    let live = match &key.state {
        KeyState::Ready(live) => Some(live),
        _ => None,
    };
    let work = live.and_then(work);
    let progress = progress.get(&key.scheme).filter(|_| is_open(key)).cloned();
    let KeyProgress { problem, round } = progress.unwrap_or_default();
    let unconfirmed = live.map(|live| lines(live.untold())).unwrap_or_default();
    admin::Key {
        scheme: key.scheme.name().to_owned(),
        shares: live.map(|live| shares(vault, &live.generation, nodes)),
        work,
        problem,
        round: round.map(|KeyRound { round, of }| admin::KeyRound {
            round: round.into(),
            of: of.into(),
        }),
        unconfirmed,
        leftover: live.map(leftover).unwrap_or_default(),
    }
}

fn shares(
    vault: VaultId,
    generation: &Generation,
    nodes: &BTreeMap<NodeId, NodeView>,
) -> admin::Shares {
    let Generation {
        epoch,
        threshold,
        holders,
    } = generation;
    let available = available(vault, generation, nodes);
    let frozen = nodes
        .values()
        .filter(|node| holders.contains(&node.id) && node.is_frozen(vault));
    let frozen: Vec<NodeId> = frozen.map(|node| node.id).collect();
    admin::Shares {
        epoch: *epoch,
        threshold: (*threshold).into(),
        holders: lines(holders),
        available: u32::try_from(available).unwrap_or(u32::MAX),
        frozen: lines(&frozen),
    }
}

/// As long as a run may still succeed, its nodes are no matter of concern.
fn leftover(live: &LiveKey) -> Vec<String> {
    match live.reshare {
        ReshareState::Wanted(_) | ReshareState::Preparing { .. } => Vec::new(),
        ReshareState::Idle | ReshareState::Halted { .. } => lines(&live.leftover),
    }
}

fn work(live: &LiveKey) -> Option<admin::Work> {
    let work = |step: &str| admin::Work {
        step: step.to_owned(),
        ..admin::Work::default()
    };
    match &live.reshare {
        ReshareState::Wanted(target) | ReshareState::Preparing { target, .. } => {
            Some(admin::Work {
                threshold: target.threshold.into(),
                holders: lines(&target.holders),
                ..work("preparing")
            })
        }
        ReshareState::Halted { target, reason } => Some(admin::Work {
            threshold: target.threshold.into(),
            holders: lines(&target.holders),
            reason: reason.clone(),
            ..work("halted")
        }),
        ReshareState::Idle => {
            let asked = live.activation.as_ref().is_none_or(|it| it.asked);
            (!asked || !live.is_confirmed()).then(|| work("activating"))
        }
    }
}

fn lines(nodes: &[NodeId]) -> Vec<String> {
    nodes.iter().map(|node| node.openssh_line("")).collect()
}
