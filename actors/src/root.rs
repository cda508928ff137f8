//! The root supervisor: keeps the directory, the lease manager, the observers of nodes and service, the retention job, the
//! followers of chains, the delivery of webhooks and of notifications running.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, SpawnErr, SupervisionEvent};
use tokio::sync::watch;

use crate::{
    deposits::DepositFollowers,
    leases::{LeaseManager, LeaseManagerMsg},
    nodes::observer::NodeObserver,
    notifications::NotificationDelivery,
    overview::observer::ServiceObserver,
    retention::RetentionJob,
    services::Services,
    vaults::directory::{DirectoryAddress, VaultDirectory},
    webhooks::WebhookDelivery,
};

/// An actor that runs as long as the orchestrator does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Child {
    VaultDirectory,
    RetentionJob,
    LeaseManager,
    NodeObserver,
    ServiceObserver,
    DepositFollowers,
    WebhookDelivery,
    NotificationDelivery,
}

impl Child {
    const ALL: [Self; 8] = [
        Self::VaultDirectory,
        Self::RetentionJob,
        Self::LeaseManager,
        Self::NodeObserver,
        Self::ServiceObserver,
        Self::DepositFollowers,
        Self::WebhookDelivery,
        Self::NotificationDelivery,
    ];

    /// As the log calls it.
    fn name(self) -> &'static str {
        match self {
            Self::VaultDirectory => "vault directory",
            Self::RetentionJob => "retention job",
            Self::LeaseManager => "lease manager",
            Self::NodeObserver => "node observer",
            Self::ServiceObserver => "service observer",
            Self::DepositFollowers => "followers of chains",
            Self::WebhookDelivery => "delivery of webhooks",
            Self::NotificationDelivery => "delivery of notifications",
        }
    }
}

pub enum Msg {
    /// This actor is to be started (again).
    StartDue(Child),
    /// The orchestrator is stopping: others are to know and to have its vaults, and it takes no more.
    Leave,
}

/// The actor.
pub struct RootSupervisor;

pub struct RootState {
    services: Arc<Services>,
    address: watch::Sender<DirectoryAddress>,
    running: HashMap<ActorId, Child>,
    lease_manager: Option<ActorRef<LeaseManagerMsg>>,
    leaving: bool,
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
        for child in Child::ALL {
            myself.cast(Msg::StartDue(child))?;
        }
        Ok(RootState {
            services,
            address,
            running: HashMap::new(),
            lease_manager: None,
            leaving: false,
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
            Msg::StartDue(child) => match state.start(child, myself.get_cell()).await {
                Ok(actor) => {
                    state.running.insert(actor, child);
                }
                Err(error) => {
                    tracing::error!(%error, "{} failed to start", child.name());
                    state.start_later(&myself, child);
                }
            },
            Msg::Leave => {
                state.leaving = true;
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
                if let Some(child) = state.running.remove(&actor.get_id()) {
                    tracing::error!("{} failed; restarting it from the store", child.name());
                    if child == Child::VaultDirectory {
                        state.address.send_replace(None);
                    }
                    state.start_later(&myself, child);
                }
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }
}

impl RootState {
    async fn start(&mut self, child: Child, me: ActorCell) -> Result<ActorId, SpawnErr> {
        let services = Arc::clone(&self.services);
        Ok(match child {
            Child::VaultDirectory => {
                let (actor, _) = Actor::spawn_linked(None, VaultDirectory, services, me).await?;
                self.address.send_replace(Some(actor.clone()));
                actor.get_id()
            }
            Child::RetentionJob => {
                let (actor, _) = Actor::spawn_linked(None, RetentionJob, services, me).await?;
                actor.get_id()
            }
            Child::LeaseManager => {
                let arguments = (services, self.address.subscribe());
                let (actor, _) = Actor::spawn_linked(None, LeaseManager, arguments, me).await?;
                if self.leaving {
                    let _ = actor.cast(LeaseManagerMsg::Leave);
                }
                self.lease_manager = Some(actor.clone());
                actor.get_id()
            }
            Child::NodeObserver => {
                let (actor, _) = Actor::spawn_linked(None, NodeObserver, services, me).await?;
                actor.get_id()
            }
            Child::ServiceObserver => {
                let (actor, _) = Actor::spawn_linked(None, ServiceObserver, services, me).await?;
                actor.get_id()
            }
            Child::DepositFollowers => {
                let (actor, _) = Actor::spawn_linked(None, DepositFollowers, services, me).await?;
                actor.get_id()
            }
            Child::WebhookDelivery => {
                let (actor, _) = Actor::spawn_linked(None, WebhookDelivery, services, me).await?;
                actor.get_id()
            }
            Child::NotificationDelivery => {
                let delivery = NotificationDelivery;
                let (actor, _) = Actor::spawn_linked(None, delivery, services, me).await?;
                actor.get_id()
            }
        })
    }

    fn start_later(&mut self, myself: &ActorRef<Msg>, child: Child) {
        self.failures = self.failures.saturating_add(1);
        let pause = self.services.backoff(self.failures);
        myself.send_after(pause, move || Msg::StartDue(child));
    }
}
