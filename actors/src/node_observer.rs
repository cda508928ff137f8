//! The actor that writes down how signer nodes are doing, for every process to tell. One orchestrator does it
//! for all: the one that has the maintenance lease.
//!
//! It writes a node's row when something has changed that is told of it, never for an announcement alone, and all
//! that has changed since the last look in one commit: however much nodes announce, there is no more than
//! one in a look.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use covault_core::{fault::Fault, order::NodeId};
use ractor::{Actor, ActorProcessingErr, ActorRef};

use crate::{
    leases::{self, LeaseScope},
    nodes::{self, status, status::NodeStatusRow},
    port::{NodeView, UnadmittedView},
    services::Services,
    store::{Batch, Precondition, rows},
};

/// How far a clock must have moved against the orchestrator's to be written again, in milliseconds:
/// less is the delay of announcements.
const SKEW_CHANGE_MS: u64 = 1_000;
/// How long this process listens for nodes that another one has heard before it calls them away, in milliseconds of
/// the steady clock: they announce themselves every second.
const UNHEARD_MS: u64 = 10_000;

pub enum Msg {
    /// It is time to look.
    LookDue,
}

pub struct NodeObserver;

#[async_trait]
impl Actor for NodeObserver {
    type Msg = Msg;
    type State = NodeObserverState;
    type Arguments = Arc<Services>;

    async fn pre_start(
        &self,
        myself: ActorRef<Msg>,
        services: Arc<Services>,
    ) -> Result<NodeObserverState, ActorProcessingErr> {
        myself.cast(Msg::LookDue)?;
        Ok(NodeObserverState {
            services,
            written: None,
            failing: false,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Msg>,
        message: Msg,
        state: &mut NodeObserverState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Msg::LookDue => {
                let looked = state.look().await;
                if let Err(fault) = &looked {
                    // What was written is not known now.
                    state.written = None;
                    // Once an outage is enough.
                    if !state.failing {
                        tracing::warn!(?fault, "failed to write down how the nodes are doing");
                    }
                }
                state.failing = looked.is_err();
                let pause = Duration::from_millis(state.services.settings.heartbeat_ms);
                myself.send_after(pause, || Msg::LookDue);
            }
        }
        Ok(())
    }
}

pub struct NodeObserverState {
    services: Arc<Services>,
    /// Under the present lease.
    written: Option<Written>,
    failing: bool,
}

/// What the rows say.
struct Written {
    lease_version: u64,
    /// When this process began to write them, by the steady clock.
    since_ms: u64,
    nodes: BTreeMap<NodeId, NodeStatusRow>,
    unadmitted: Vec<UnadmittedView>,
}

impl NodeObserverState {
    async fn look(&mut self) -> Result<(), Fault> {
        let here = leases::maintenance_lease(&self.services).await?;
        let lease = self.services.held_leases.get(LeaseScope::Maintenance);
        let (Some(here), Some(lease)) = (here, lease) else {
            self.written = None;
            return Ok(());
        };
        let lease_version = lease.version();
        let known = self.written.take();
        let mut written = match known.filter(|known| known.lease_version == lease_version) {
            Some(written) => written,
            None => load(&here, lease_version).await?,
        };
        written.write_changes(&here).await?;
        self.written = Some(written);
        Ok(())
    }
}

/// What there is, without nodes that have been removed since.
async fn load(services: &Services, lease_version: u64) -> Result<Written, Fault> {
    let admitted = nodes::admitted_ids(services).await?;
    let mut batch = Batch::new();
    for node in status::written(services).await? {
        if !admitted.contains(&node) {
            batch.delete(rows::node_status(node), Precondition::Any);
        }
    }
    if !batch.writes().is_empty() {
        services.store.commit(batch).await?;
    }
    Ok(Written {
        lease_version,
        since_ms: services.monotonic.elapsed_ms(),
        nodes: status::of(services, &admitted).await?,
        unadmitted: status::unadmitted(services).await?,
    })
}

impl Written {
    async fn write_changes(&mut self, services: &Services) -> Result<(), Fault> {
        let at_ms = services.now_ms();
        let heard = services.signers.nodes();
        let listened_ms = services.monotonic.elapsed_ms();
        let listened_ms = listened_ms.saturating_sub(self.since_ms);
        let is_silent =
            |node: &NodeView| node.live && heard.iter().all(|heard| heard.id != node.id);
        let silent = self.nodes.values().map(|row| &row.node);
        let silent = silent.filter(|node| is_silent(node) && listened_ms >= UNHEARD_MS);
        let silent: Vec<NodeView> = silent
            .map(|node| NodeView {
                live: false,
                ..node.clone()
            })
            .collect();
        let mut batch = Batch::new();
        for node in heard.into_iter().chain(silent) {
            let row = self.nodes.get(&node.id);
            if row.is_none_or(|row| has_changed(&row.node, &node)) {
                let row = NodeStatusRow { at_ms, node };
                let key = rows::node_status(row.node.id);
                batch.put(key, Precondition::Any, rows::encode(&row)?);
                self.nodes.insert(row.node.id, row);
            }
        }
        let unadmitted = services.signers.unadmitted();
        let names = |of: &[UnadmittedView]| -> Vec<_> {
            let names = of.iter().map(|node| (node.id, node.name.clone()));
            names.collect()
        };
        if names(&unadmitted) != names(&self.unadmitted) {
            let key = rows::unadmitted_nodes();
            batch.put(key, Precondition::Any, rows::encode(&unadmitted)?);
            self.unadmitted = unadmitted;
        }
        if !batch.writes().is_empty() {
            services.store.commit(batch).await?;
        }
        Ok(())
    }
}

/// Whether anything but the time has changed.
fn has_changed(written: &NodeView, heard: &NodeView) -> bool {
    let moved = written.skew_ms.abs_diff(heard.skew_ms) >= SKEW_CHANGE_MS;
    let heard = NodeView {
        last_seen_ms: written.last_seen_ms,
        skew_ms: if moved {
            heard.skew_ms
        } else {
            written.skew_ms
        },
        ..heard.clone()
    };
    heard != *written
}
