//! The actor above all others: keeps the directory running.

use std::sync::Arc;

use async_trait::async_trait;
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::watch;

use crate::{
    context::Context,
    directory::{self, Directory},
};

/// Messages.
pub enum Msg {
    /// The directory is to be started (again).
    StartDue,
}

/// Where the directory can be found; `None` while it starts again.
pub type DirectoryAddress = Option<ActorRef<directory::Msg>>;

/// The actor.
pub struct Root;

/// Its state.
pub struct Live {
    context: Arc<Context>,
    address: watch::Sender<DirectoryAddress>,
    failures: u32,
}

#[async_trait]
impl Actor for Root {
    type Msg = Msg;
    type State = Live;
    type Arguments = (Arc<Context>, watch::Sender<DirectoryAddress>);

    async fn pre_start(
        &self,
        myself: ActorRef<Msg>,
        (context, address): (Arc<Context>, watch::Sender<DirectoryAddress>),
    ) -> Result<Live, ActorProcessingErr> {
        myself.cast(Msg::StartDue)?;
        Ok(Live {
            context,
            address,
            failures: 0,
        })
    }

    async fn handle(&self, myself: ActorRef<Msg>, message: Msg, live: &mut Live) -> Result<(), ActorProcessingErr> {
        match message {
            Msg::StartDue => {
                let context = Arc::clone(&live.context);
                match Actor::spawn_linked(None, Directory, context, myself.get_cell()).await {
                    Ok((actor, _)) => {
                        live.address.send_replace(Some(actor));
                    }
                    Err(error) => {
                        tracing::error!(%error, "the directory does not start");
                        live.start_later(&myself);
                    }
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
            SupervisionEvent::ActorTerminated(..) | SupervisionEvent::ActorFailed(..) => {
                tracing::error!("the directory ended; it starts again from the store");
                live.address.send_replace(None);
                live.start_later(&myself);
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }
}

impl Live {
    fn start_later(&mut self, myself: &ActorRef<Msg>) {
        self.failures = self.failures.saturating_add(1);
        myself.send_after(self.context.pause(self.failures), || Msg::StartDue);
    }
}
