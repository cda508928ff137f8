//! The signer nodes that operators have admitted. Only these are used; the cluster ignores others.

pub mod observer;
pub mod status;

use std::collections::{BTreeMap, HashSet};

use covault_core::{
    audit::AuditChain,
    fault::{Class, Fault, FaultCode},
    field,
    order::NodeId,
    wallet::{
        generation::ReshareState,
        vault::{KeyState, Vault},
    },
};
use serde::{Deserialize, Serialize};

use crate::{
    audit::{self, AuditActor, AuditNote},
    port::NodeView,
    services::Services,
    store::{Batch, CommitError, KeySpace, Precondition, Scan, rows},
};

/// Most nodes of one orchestrator.
pub const MAX_NODES: usize = 1000;
/// Vaults that are read at once.
const VAULTS_AT_ONCE: usize = 100;
/// Vaults that one refusal names.
const MAX_NAMED_VAULTS: usize = 20;
/// Characters of a node's name.
const MAX_NAME: usize = 64;

/// A node that an operator has admitted, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmittedNode {
    /// Identity.
    pub id: NodeId,
    /// What the operator calls it; empty: what it calls itself.
    pub name: String,
    /// When it was admitted, in milliseconds since the Unix epoch.
    pub at_ms: u64,
}

/// A change of the list of nodes. A vault cannot be made with a node that is being removed: see
/// [`pin_rows`].
#[derive(Clone, Debug)]
pub enum NodeChange {
    /// A node may be used from now on.
    Admit {
        /// The node.
        id: NodeId,
        /// What the operator calls it; empty: what it calls itself, or was called before.
        name: String,
    },
    /// A node is no longer used.
    Remove(NodeId),
}

/// Makes a change; on disk, and known to the cluster, when it returns.
///
/// # Errors
/// [`Class::Invalid`] for a name that is too long or a node that is not there, [`Class::Conflict`]
/// naming the vaults that still need the node.
pub async fn change(services: &Services, change: NodeChange, by: &AuditActor) -> Result<(), Fault> {
    match change {
        NodeChange::Admit { id, name } => admit(services, id, &name, by).await?,
        NodeChange::Remove(id) => remove(services, id, by).await?,
    }
    sync_admitted(services).await
}

/// Tells the cluster who is admitted.
///
/// # Errors
/// [`Class::Unavailable`] when the store cannot be read.
pub async fn sync_admitted(services: &Services) -> Result<(), Fault> {
    services.signers.admit(&admitted_ids(services).await?);
    Ok(())
}

/// Who is admitted.
///
/// # Errors
/// [`Class::Unavailable`] when the store cannot be read.
pub async fn admitted_ids(services: &Services) -> Result<Vec<NodeId>, Fault> {
    Ok(admitted(services)
        .await?
        .iter()
        .map(|node| node.id)
        .collect())
}

/// Refuses nodes that were not admitted.
///
/// # Errors
/// [`Class::Invalid`] naming the field, the first such node and the command that admits it.
pub async fn check_admitted(
    services: &Services,
    field: &str,
    nodes: &[NodeId],
) -> Result<(), Fault> {
    pin_rows(services, &mut Batch::new(), field, nodes).await
}

/// Has a commit that names nodes fail when one of them is removed first, here or in another
/// process: it writes their rows as they are, and a removal demands the version it has looked at.
///
/// # Errors
/// As [`check_admitted`].
pub async fn pin_rows(
    services: &Services,
    batch: &mut Batch,
    field: &str,
    nodes: &[NodeId],
) -> Result<(), Fault> {
    let keys: Vec<_> = nodes.iter().map(|node| rows::node(*node)).collect();
    let admitted = services.store.get_all(&keys).await?;
    let missing = nodes
        .iter()
        .find(|node| !admitted.contains_key(&rows::node(**node)));
    if let Some(node) = missing {
        let line = node.openssh_line("");
        let problem =
            format!("{line} is not admitted; admit it first: covault node admit '{line}'");
        return Err(Fault::field(field, problem));
    }
    for (key, row) in admitted {
        batch.put(key, Precondition::Version(row.version), row.value);
    }
    Ok(())
}

/// Every admitted node as this process hears it, by name: for its metrics.
///
/// # Errors
/// [`Class::Unavailable`] when the store cannot be read.
pub async fn heard(services: &Services) -> Result<Vec<NodeView>, Fault> {
    let heard = services.signers.nodes().into_iter();
    let heard = heard.map(|node| (node.id, node)).collect();
    Ok(named(admitted(services).await?, heard))
}

/// Every admitted node as it is written down, by name: the same in every process.
///
/// # Errors
/// [`Class::Unavailable`] when the store cannot be read.
pub async fn written(services: &Services) -> Result<Vec<NodeView>, Fault> {
    let admitted = admitted(services).await?;
    let ids: Vec<NodeId> = admitted.iter().map(|node| node.id).collect();
    let written = status::of(services, &ids).await?.into_iter();
    let written = written.map(|(id, row)| (id, row.node)).collect();
    Ok(named(admitted, written))
}

/// The nodes by the names that operators gave them, else by their own.
fn named(admitted: Vec<AdmittedNode>, mut nodes: BTreeMap<NodeId, NodeView>) -> Vec<NodeView> {
    let node = |AdmittedNode { id, name, at_ms: _ }| {
        let mut node = nodes.remove(&id).unwrap_or_else(|| NodeView::unseen(id));
        if !name.is_empty() {
            node.name = name;
            node.named = true;
        }
        node
    };
    let mut nodes: Vec<NodeView> = admitted.into_iter().map(node).collect();
    nodes.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
    nodes
}

async fn admitted(services: &Services) -> Result<Vec<AdmittedNode>, Fault> {
    let all = Scan::prefix(KeySpace::Node, &[], MAX_NODES);
    let rows = services.store.scan(&all).await?;
    rows.iter()
        .map(|(_, row)| rows::decode(&row.value))
        .collect()
}

async fn admit(services: &Services, id: NodeId, name: &str, by: &AuditActor) -> Result<(), Fault> {
    let name = name.trim();
    field::label("name", name, MAX_NAME)?;
    let key = rows::node(id);
    let (node, expect) = match services.load::<AdmittedNode>(&key).await? {
        Some((known, _)) if name.is_empty() || known.name == name => return Ok(()),
        Some((known, version)) => (
            AdmittedNode {
                name: name.to_owned(),
                ..known
            },
            Precondition::Version(version),
        ),
        None => {
            if admitted(services).await?.len() >= MAX_NODES {
                return Err(Fault::new(
                    Class::Limited,
                    format!("{MAX_NODES} nodes are admitted; remove some first"),
                ));
            }
            let node = AdmittedNode {
                id,
                name: name.to_owned(),
                at_ms: services.now_ms(),
            };
            (node, Precondition::Absent)
        }
    };
    let mut batch = Batch::new();
    batch.put(key, expect, rows::encode(&node)?);
    let event = match expect {
        Precondition::Absent => "NodeAdmitted",
        _ => "NodeNamed",
    };
    AuditNote::new(by, audit::node(&id), event)
        .fact("name", name)
        .add_to(&mut batch, AuditChain::Service, services.now_ms())?;
    commit(services, batch).await
}

/// The first of these names, and how many more there are.
fn some_names(mut names: Vec<String>) -> String {
    names.sort_unstable();
    let more = names.len().saturating_sub(MAX_NAMED_VAULTS);
    names.truncate(MAX_NAMED_VAULTS);
    let names = names.join(", ");
    match more {
        0 => names,
        more => format!("{names} and {more} more"),
    }
}

async fn remove(services: &Services, id: NodeId, by: &AuditActor) -> Result<(), Fault> {
    let key = rows::node(id);
    let Some((_, version)) = services.load::<AdmittedNode>(&key).await? else {
        return Err(Fault::field(
            "publicKey",
            "is not the key of an admitted node",
        ));
    };
    // Vaults with shares on it, and vaults whose keys it is to make.
    let (mut holds, mut makes) = (Vec::new(), Vec::new());
    let mut next = Some(Scan::prefix(KeySpace::Vault, &[], VAULTS_AT_ONCE));
    while let Some(scan) = next {
        let page = services.store.scan(&scan).await?;
        for (_, row) in &page {
            let vault: Vault = rows::decode(&row.value)?;
            if needed_by(&vault).contains(&id) {
                holds.push(vault.name);
            } else if !vault.ready() && vault.signers.contains(&id) {
                makes.push(vault.name);
            }
        }
        next = scan.rest(&page);
    }
    let mut reasons = Vec::new();
    if !holds.is_empty() {
        reasons.push(format!(
            "the node holds shares of: {}; give them to another node first (covault vault reshare)",
            some_names(holds)
        ));
    }
    if !makes.is_empty() {
        reasons.push(format!(
            "vaults without keys name the node as a signer: {}; name other signers first (covault vault create \
             --replace)",
            some_names(makes)
        ));
    }
    if !reasons.is_empty() {
        return Err(Fault::new(Class::Conflict, reasons.join(". Also, ")));
    }
    let mut batch = Batch::new();
    batch.delete(key, Precondition::Version(version));
    batch.delete(rows::node_status(id), Precondition::Any);
    AuditNote::new(by, audit::node(&id), "NodeRemoved").add_to(
        &mut batch,
        AuditChain::Service,
        services.now_ms(),
    )?;
    commit(services, batch).await
}

/// The nodes that have shares of a vault's keys, or get some.
fn needed_by(vault: &Vault) -> HashSet<NodeId> {
    let mut nodes = HashSet::new();
    for key in &vault.keys {
        let KeyState::Ready(live) = &key.state else {
            continue;
        };
        nodes.extend(&live.generation.holders);
        if let ReshareState::Wanted(target) | ReshareState::Preparing { target, .. } = &live.reshare
        {
            nodes.extend(&target.holders);
        }
        // Those that leave are to be told that they have to erase their shares, unless they are away.
        if live.activation.as_ref().is_some_and(|it| !it.asked) {
            nodes.extend(live.untold());
        }
    }
    nodes
}

async fn commit(services: &Services, batch: Batch) -> Result<(), Fault> {
    match services.store.commit(batch).await {
        Ok(()) => Ok(()),
        Err(CommitError::Conflict(_)) => Err(Fault::new(
            Class::Conflict,
            "another call changed the node at the same time; read it again",
        )
        .with_code(FaultCode::ChangedMeanwhile)),
        Err(error) => Err(error.into()),
    }
}
