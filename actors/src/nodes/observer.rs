//! The actor that stores how signer nodes are doing, so that every process can report it. One orchestrator
//! does it for all: the one that holds the maintenance lease.
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
    port::{NodeHalt, NodeView, UnadmittedView},
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
                        tracing::warn!(?fault, "failed to store how the nodes are doing");
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
    written: Option<WrittenNodes>,
    failing: bool,
}

/// What the rows say.
struct WrittenNodes {
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
async fn load(services: &Services, lease_version: u64) -> Result<WrittenNodes, Fault> {
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
    Ok(WrittenNodes {
        lease_version,
        since_ms: services.monotonic.elapsed_ms(),
        nodes: status::of(services, &admitted).await?,
        unadmitted: status::unadmitted(services).await?,
    })
}

impl WrittenNodes {
    async fn write_changes(&mut self, services: &Services) -> Result<(), Fault> {
        let at_ms = services.now_ms();
        let heard = services.signers.nodes();
        let listened_ms = services.monotonic.elapsed_ms();
        let listened_ms = listened_ms.saturating_sub(self.since_ms);
        // Also of one whose clock is too far off that is all that is known.
        let is_silent = |node: &NodeView| {
            (node.live || node.halted.contains(&NodeHalt::ClockTooFar))
                && heard.iter().all(|heard| heard.id != node.id)
        };
        let silent = self.nodes.values().map(|row| &row.node);
        let silent = silent.filter(|node| is_silent(node) && listened_ms >= UNHEARD_MS);
        let silent: Vec<NodeView> = silent.map(away).collect();
        let mut batch = Batch::new();
        let mut news = Vec::new();
        for node in heard.into_iter().chain(silent) {
            let row = self.nodes.get(&node.id);
            let node = believed(row.map(|row| &row.node), node);
            if row.is_none_or(|row| has_changed(&row.node, &node)) {
                news.extend(
                    row.and_then(|row| NodeWarning::of(&row.node, &node))
                        .map(|it| (it, node.clone())),
                );
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
        news.iter().for_each(|(news, node)| news.log(node));
        Ok(())
    }
}

/// What people want to read in the log of a node, once for each time that it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeWarning {
    Away,
    Back,
}

impl NodeWarning {
    fn of(before: &NodeView, now: &NodeView) -> Option<Self> {
        match (before.live, now.live) {
            (true, false) => Some(Self::Away),
            (false, true) => Some(Self::Back),
            _ => None,
        }
    }

    fn log(self, node: &NodeView) {
        let (name, key) = (&node.name, node.id.openssh_line(""));
        match self {
            Self::Away => tracing::warn!(%name, node = key, "a node is away"),
            Self::Back => tracing::info!(%name, node = key, "a node is back"),
        }
    }
}

/// A node of which nothing is heard any more.
fn away(node: &NodeView) -> NodeView {
    let mut away = NodeView {
        live: false,
        ..node.clone()
    };
    away.halted.retain(|halt| *halt != NodeHalt::ClockTooFar);
    away
}

/// Of a node whose clock is too far off nothing is believed but that: the rest stays as it is written.
fn believed(written: Option<&NodeView>, heard: NodeView) -> NodeView {
    match written {
        Some(written) if heard.halted.contains(&NodeHalt::ClockTooFar) => {
            let mut node = away(written);
            node.skew_ms = heard.skew_ms;
            node.halted.push(NodeHalt::ClockTooFar);
            node
        }
        _ => heard,
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

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::{
        ids::VaultId,
        testing::{ConstantEntropy, ManualClock},
    };

    use super::*;
    use crate::{
        audit::AuditActor,
        nodes::NodeChange,
        port::SignerCluster,
        services::Listeners,
        settings::{OrchestratorParts, OrchestratorSharing},
        store::{Store, memory::MemoryStore},
        testing::{NoSigners, orchestrator_parts},
    };

    struct World {
        services: Arc<Services>,
        signers: Arc<NoSigners>,
        clock: Arc<ManualClock>,
        monotonic: Arc<ManualClock>,
    }

    impl World {
        fn on(store: &Arc<MemoryStore>) -> Self {
            let signers = Arc::new(NoSigners::default());
            let (clock, monotonic) = (Arc::new(ManualClock::at(1_000_000)), Arc::default());
            let parts = OrchestratorParts {
                signers: Arc::clone(&signers) as Arc<dyn SignerCluster>,
                entropy: Arc::new(ConstantEntropy(1)),
                sharing: OrchestratorSharing {
                    monotonic: Arc::clone(&monotonic) as _,
                    ..OrchestratorSharing::default()
                },
                ..orchestrator_parts(Arc::clone(store) as _, Arc::clone(&clock))
            };
            Self {
                services: Arc::new(Services::new(parts, Listeners::none())),
                signers,
                clock,
                monotonic,
            }
        }

        fn observer(&self) -> NodeObserverState {
            NodeObserverState {
                services: Arc::clone(&self.services),
                written: None,
                failing: false,
            }
        }

        async fn change(&self, change: NodeChange) {
            let by = AuditActor::service();
            nodes::change(&self.services, change, &by).await.unwrap();
        }

        /// The row of the node, and how often it was written.
        async fn row(&self, id: NodeId) -> Option<(NodeStatusRow, u64)> {
            let key = rows::node_status(id);
            self.services.load(&key).await.unwrap()
        }
    }

    fn id(number: u8) -> NodeId {
        NodeId([number; 32])
    }

    fn live(number: u8, seen_ms: u64) -> NodeView {
        NodeView {
            live: true,
            last_seen_ms: Some(seen_ms),
            ..NodeView::unseen(id(number))
        }
    }

    async fn admit(world: &World, number: u8) {
        let name = String::new();
        let id = id(number);
        world.change(NodeChange::Admit { id, name }).await;
    }

    #[test]
    fn news__should_be_that_a_node_has_left_or_come_back() {
        let (here, away) = (live(1, 5), NodeView::unseen(id(1)));
        let later = live(1, 6);
        assert_eq!(NodeWarning::of(&here, &away), Some(NodeWarning::Away));
        assert_eq!(NodeWarning::of(&away, &here), Some(NodeWarning::Back));
        assert_eq!(NodeWarning::of(&here, &later), None);
        assert_eq!(NodeWarning::of(&away, &away), None);
    }

    #[tokio::test]
    async fn row__should_be_written_for_each_change_and_not_for_each_announcement() {
        let world = World::on(&Arc::new(MemoryStore::new()));
        admit(&world, 1).await;
        let mut observer = world.observer();
        let mut writes = 0;
        let mut tells = async |node: NodeView, changes: bool| {
            world.signers.nodes.lock().splice(.., [node.clone()]);
            world.clock.advance(1_000);
            observer.look().await.unwrap();
            writes += u64::from(changes);
            let (row, version) = world.row(id(1)).await.unwrap();
            assert_eq!(version, writes, "{node:?}");
            if changes {
                assert_eq!(row.node, node);
                assert_eq!(row.at_ms, world.services.now_ms());
            }
        };
        let seen = |ms| live(1, ms);
        tells(seen(1), true).await;
        for ms in 2..50 {
            let skew_ms = i64::try_from(ms % 7).unwrap() * 100;
            tells(
                NodeView {
                    skew_ms,
                    ..seen(ms)
                },
                false,
            )
            .await;
        }
        let moved = |ms| NodeView {
            skew_ms: -1_000,
            ..seen(ms)
        };
        tells(moved(51), true).await;
        let halted = NodeView {
            halted: vec![NodeHalt::Clock],
            ..moved(52)
        };
        tells(halted.clone(), true).await;
        let frozen = NodeView {
            frozen: vec![VaultId::from_bytes([3; 16])],
            ..halted
        };
        tells(frozen.clone(), true).await;
        let gone = NodeView {
            live: false,
            last_seen_ms: Some(60),
            ..frozen
        };
        tells(gone.clone(), true).await;
        tells(gone, false).await;
    }

    #[tokio::test]
    async fn node__should_not_be_away_because_another_process_has_just_begun_to_listen() {
        let store = Arc::new(MemoryStore::new());
        let world = World::on(&store);
        for number in [1, 2] {
            admit(&world, number).await;
        }
        *world.signers.nodes.lock() = vec![live(1, 5), live(2, 5)];
        world.observer().look().await.unwrap();
        // It starts again, and has heard nobody yet; in the meantime a node was removed in another place.
        let world = World::on(&store);
        world.change(NodeChange::Remove(id(2))).await;
        let row = rows::encode(&world.row(id(1)).await.unwrap().0).unwrap();
        let mut batch = Batch::new();
        batch.put(rows::node_status(id(2)), Precondition::Any, row);
        store.commit(batch).await.unwrap();
        let mut observer = world.observer();
        observer.look().await.unwrap();
        let is_live = async || world.row(id(1)).await.unwrap().0.node.live;
        assert!(is_live().await);
        assert!(world.row(id(2)).await.is_none());
        world.monotonic.advance(UNHEARD_MS - 1);
        observer.look().await.unwrap();
        assert!(is_live().await);
        world.monotonic.advance(1);
        observer.look().await.unwrap();
        let (row, _) = world.row(id(1)).await.unwrap();
        assert!(!row.node.live && row.node.last_seen_ms == Some(5));
    }

    #[tokio::test]
    async fn node_whose_clock_is_too_far_off__should_be_away_once_it_is_silent() {
        let store = Arc::new(MemoryStore::new());
        let world = World::on(&store);
        for number in [1, 2] {
            admit(&world, number).await;
        }
        let before = NodeView {
            version: "1.2.3".into(),
            halted: vec![NodeHalt::Claims],
            ..live(1, 5)
        };
        *world.signers.nodes.lock() = vec![before.clone()];
        world.observer().look().await.unwrap();
        // Another process has heard it by a wrong clock only, and another node never by a right one.
        let world = World::on(&store);
        let off = |number, skew_ms| NodeView {
            skew_ms,
            halted: vec![NodeHalt::ClockTooFar],
            bans: vec![([1; 8], id(3))],
            ..NodeView::unseen(id(number))
        };
        *world.signers.nodes.lock() = vec![off(1, 180_000), off(2, -180_000)];
        let mut observer = world.observer();
        observer.look().await.unwrap();
        let row = async |number| world.row(id(number)).await.unwrap();
        // All of it but its clock is as it was written.
        let shown = NodeView {
            live: false,
            skew_ms: 180_000,
            halted: vec![NodeHalt::Claims, NodeHalt::ClockTooFar],
            ..before
        };
        assert_eq!(row(1).await.0.node, shown);
        assert_eq!(row(2).await.0.node, off(2, -180_000));
        let version = row(1).await.1;
        observer.look().await.unwrap();
        assert_eq!(row(1).await.1, version, "nothing has changed");
        // They stop.
        world.signers.nodes.lock().clear();
        world.monotonic.advance(UNHEARD_MS);
        observer.look().await.unwrap();
        assert_eq!(row(1).await.0.node.halted, [NodeHalt::Claims]);
        assert_eq!(row(2).await.0.node.halted, []);
    }

    #[tokio::test]
    async fn unadmitted__should_be_written_when_others_want_to_join() {
        let world = World::on(&Arc::new(MemoryStore::new()));
        let mut observer = world.observer();
        let version = async || {
            let row = world.services.store.get(&rows::unadmitted_nodes()).await;
            row.unwrap().map(|row| row.version)
        };
        observer.look().await.unwrap();
        assert_eq!(version().await, None);
        for (seen_ms, name, expected) in [(1, "a", 1), (2, "a", 1), (3, "b", 2)] {
            *world.signers.unadmitted.lock() = vec![UnadmittedView {
                id: id(1),
                name: name.into(),
                last_seen_ms: seen_ms,
            }];
            observer.look().await.unwrap();
            assert_eq!(version().await, Some(expected), "{seen_ms}");
        }
        world.signers.unadmitted.lock().clear();
        observer.look().await.unwrap();
        let told = status::unadmitted(&world.services).await.unwrap();
        assert_eq!(told, []);
    }
}
