//! The root supervisor: keeps the directory, the lease manager, the node observer and the retention job running.

use std::sync::Arc;

use async_trait::async_trait;
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::watch;

use crate::{
    leases::{LeaseManager, LeaseManagerMsg},
    node_observer::NodeObserver,
    retention::RetentionJob,
    services::Services,
    vaults::directory::{DirectoryAddress, VaultDirectory},
};

pub enum Msg {
    /// The directory is to be started (again).
    DirectoryDue,
    /// The retention job is to be started (again).
    RetentionDue,
    /// The node observer is to be started (again).
    NodeObserverDue,
    /// Starts the lease manager (again).
    LeaseManagerDue,
    /// The orchestrator is stopping: others are to know, and it takes no more vaults.
    Leave,
}

/// The actor.
pub struct RootSupervisor;

pub struct RootState {
    services: Arc<Services>,
    address: watch::Sender<DirectoryAddress>,
    retention: Option<ActorId>,
    node_observer: Option<ActorId>,
    lease_manager: Option<ActorRef<LeaseManagerMsg>>,
    failures: u32,
}

#[async_trait]
impl Actor for RootSupervisor {
    type Msg = Msg;
    type State = RootState;
    type Arguments = (Arc<Services>, watch::Sender<DirectoryAddress>);

    async fn pre_start(
        &self,
        myself: ActorRef<Msg>,
        (services, address): (Arc<Services>, watch::Sender<DirectoryAddress>),
    ) -> Result<RootState, ActorProcessingErr> {
        myself.cast(Msg::DirectoryDue)?;
        myself.cast(Msg::RetentionDue)?;
        myself.cast(Msg::LeaseManagerDue)?;
        myself.cast(Msg::NodeObserverDue)?;
        Ok(RootState {
            services,
            address,
            retention: None,
            node_observer: None,
            lease_manager: None,
            failures: 0,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Msg>,
        message: Msg,
        state: &mut RootState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Msg::DirectoryDue => {
                let services = Arc::clone(&state.services);
                match Actor::spawn_linked(None, VaultDirectory, services, myself.get_cell()).await {
                    Ok((actor, _)) => {
                        state.address.send_replace(Some(actor));
                    }
                    Err(error) => {
                        tracing::error!(%error, "vault directory failed to start");
                        state.start_later(&myself, || Msg::DirectoryDue);
                    }
                }
            }
            Msg::RetentionDue => {
                let services = Arc::clone(&state.services);
                match Actor::spawn_linked(None, RetentionJob, services, myself.get_cell()).await {
                    Ok((actor, _)) => state.retention = Some(actor.get_id()),
                    Err(error) => {
                        tracing::error!(%error, "retention job failed to start");
                        state.start_later(&myself, || Msg::RetentionDue);
                    }
                }
            }
            Msg::NodeObserverDue => {
                let services = Arc::clone(&state.services);
                match Actor::spawn_linked(None, NodeObserver, services, myself.get_cell()).await {
                    Ok((actor, _)) => state.node_observer = Some(actor.get_id()),
                    Err(error) => {
                        tracing::error!(%error, "node observer failed to start");
                        state.start_later(&myself, || Msg::NodeObserverDue);
                    }
                }
            }
            Msg::LeaseManagerDue => {
                let arguments = (Arc::clone(&state.services), state.address.subscribe());
                match Actor::spawn_linked(None, LeaseManager, arguments, myself.get_cell()).await {
                    Ok((actor, _)) => state.lease_manager = Some(actor),
                    Err(error) => {
                        tracing::error!(%error, "lease manager failed to start");
                        state.start_later(&myself, || Msg::LeaseManagerDue);
                    }
                }
            }
            Msg::Leave => {
                if let Some(lease_manager) = &state.lease_manager {
                    let _ = lease_manager.cast(LeaseManagerMsg::Leave);
                }
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Msg>,
        event: SupervisionEvent,
        state: &mut RootState,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorTerminated(actor, ..)
            | SupervisionEvent::ActorFailed(actor, _) => {
                if state.retention == Some(actor.get_id()) {
                    tracing::error!("retention job failed; restarting it");
                    state.start_later(&myself, || Msg::RetentionDue);
                } else if state.node_observer == Some(actor.get_id()) {
                    tracing::error!("node observer failed; restarting it");
                    state.start_later(&myself, || Msg::NodeObserverDue);
                } else if state
                    .lease_manager
                    .as_ref()
                    .map(|lease_manager| lease_manager.get_id())
                    == Some(actor.get_id())
                {
                    tracing::error!("lease manager failed; restarting it");
                    state.start_later(&myself, || Msg::LeaseManagerDue);
                } else {
                    tracing::error!("vault directory failed; restarting it from the store");
                    state.address.send_replace(None);
                    state.start_later(&myself, || Msg::DirectoryDue);
                }
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }
}

impl RootState {
    fn start_later(&mut self, myself: &ActorRef<Msg>, message: fn() -> Msg) {
        self.failures = self.failures.saturating_add(1);
        myself.send_after(self.services.backoff(self.failures), message);
    }
}
