//! The actor above all others: keeps the directory, the lease manager and the reaper running.

use std::sync::Arc;

use async_trait::async_trait;
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::watch;

use crate::{
    leases::{LeaseManager, LeaseManagerMsg},
    retention::RetentionJob,
    services::Services,
    vaults::directory::{self, Directory},
};

/// Messages.
pub enum Msg {
    /// The directory is to be started (again).
    StartDue,
    /// The reaper is to be started (again).
    ReaperDue,
    /// Starts the lease manager (again).
    KeeperDue,
    /// The orchestrator is stopping: others are to know, and it takes no vaults any more.
    Leave,
}

/// Where the directory can be found; `None` while it starts again.
pub type DirectoryAddress = Option<ActorRef<directory::Msg>>;

/// The actor.
pub struct Root;

/// Its state.
pub struct Live {
    services: Arc<Services>,
    address: watch::Sender<DirectoryAddress>,
    retention: Option<ActorId>,
    lease_manager: Option<ActorRef<LeaseManagerMsg>>,
    failures: u32,
}

#[async_trait]
impl Actor for Root {
    type Msg = Msg;
    type State = Live;
    type Arguments = (Arc<Services>, watch::Sender<DirectoryAddress>);

    async fn pre_start(
        &self,
        myself: ActorRef<Msg>,
        (services, address): (Arc<Services>, watch::Sender<DirectoryAddress>),
    ) -> Result<Live, ActorProcessingErr> {
        myself.cast(Msg::StartDue)?;
        myself.cast(Msg::ReaperDue)?;
        myself.cast(Msg::KeeperDue)?;
        Ok(Live {
            services,
            address,
            retention: None,
            lease_manager: None,
            failures: 0,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Msg>,
        message: Msg,
        live: &mut Live,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Msg::StartDue => {
                let services = Arc::clone(&live.services);
                match Actor::spawn_linked(None, Directory, services, myself.get_cell()).await {
                    Ok((actor, _)) => {
                        live.address.send_replace(Some(actor));
                    }
                    Err(error) => {
                        tracing::error!(%error, "the directory does not start");
                        live.start_later(&myself, || Msg::StartDue);
                    }
                }
            }
            Msg::ReaperDue => {
                let services = Arc::clone(&live.services);
                match Actor::spawn_linked(None, RetentionJob, services, myself.get_cell()).await {
                    Ok((actor, _)) => live.retention = Some(actor.get_id()),
                    Err(error) => {
                        tracing::error!(%error, "the reaper does not start");
                        live.start_later(&myself, || Msg::ReaperDue);
                    }
                }
            }
            Msg::KeeperDue => {
                let arguments = (Arc::clone(&live.services), live.address.subscribe());
                match Actor::spawn_linked(None, LeaseManager, arguments, myself.get_cell()).await {
                    Ok((actor, _)) => live.lease_manager = Some(actor),
                    Err(error) => {
                        tracing::error!(%error, "the lease manager does not start");
                        live.start_later(&myself, || Msg::KeeperDue);
                    }
                }
            }
            Msg::Leave => {
                if let Some(lease_manager) = &live.lease_manager {
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
        live: &mut Live,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorTerminated(actor, ..)
            | SupervisionEvent::ActorFailed(actor, _) => {
                if live.retention == Some(actor.get_id()) {
                    tracing::error!("the reaper ended; it starts again");
                    live.start_later(&myself, || Msg::ReaperDue);
                } else if live
                    .lease_manager
                    .as_ref()
                    .map(|lease_manager| lease_manager.get_id())
                    == Some(actor.get_id())
                {
                    tracing::error!("the lease manager ended; it starts again");
                    live.start_later(&myself, || Msg::KeeperDue);
                } else {
                    tracing::error!("the directory ended; it starts again from the store");
                    live.address.send_replace(None);
                    live.start_later(&myself, || Msg::StartDue);
                }
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }
}

impl Live {
    fn start_later(&mut self, myself: &ActorRef<Msg>, message: fn() -> Msg) {
        self.failures = self.failures.saturating_add(1);
        myself.send_after(self.services.pause(self.failures), message);
    }
}
