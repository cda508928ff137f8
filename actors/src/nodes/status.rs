//! How signer nodes are doing, as rows, so that every process answers the same. The node observer writes them.

use std::collections::{BTreeMap, BTreeSet};

use covault_core::{fault::Fault, order::NodeId};
use serde::{Deserialize, Serialize};

use crate::{
    port::{NodeView, UnadmittedView},
    services::Services,
    store::{KeySpace, Scan, rows},
};

/// A node as it was when the row was written: with each change of what is told of it, not with each
/// announcement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatusRow {
    /// When it was written, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The node, by the name that it announces.
    pub node: NodeView,
}

/// What is written of these nodes; those of which nothing is are left out.
///
/// # Errors
/// When the store cannot be read.
pub async fn of(
    services: &Services,
    nodes: &[NodeId],
) -> Result<BTreeMap<NodeId, NodeStatusRow>, Fault> {
    let keys: Vec<_> = nodes.iter().map(|node| rows::node_status(*node)).collect();
    let rows = services.load_all::<NodeStatusRow>(&keys).await?;
    let mut found = BTreeMap::new();
    for (node, row) in nodes.iter().zip(rows) {
        if let Some(row) = row? {
            found.insert(*node, row);
        }
    }
    Ok(found)
}

/// Of which nodes anything is written.
///
/// # Errors
/// When the store cannot be read.
pub async fn written(services: &Services) -> Result<BTreeSet<NodeId>, Fault> {
    let all = Scan::prefix(KeySpace::NodeStatus, &[], usize::MAX);
    let rows = services.store.scan(&all).await?;
    let nodes = rows.iter().filter_map(|(key, _)| rows::node_of_status(key));
    Ok(nodes.collect())
}

/// The nodes that announce themselves and were not admitted.
///
/// # Errors
/// When the store cannot be read.
pub async fn unadmitted(services: &Services) -> Result<Vec<UnadmittedView>, Fault> {
    let row = services.load(&rows::unadmitted_nodes()).await?;
    Ok(row.map(|(nodes, _)| nodes).unwrap_or_default())
}
