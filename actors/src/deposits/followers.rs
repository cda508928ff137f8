//! Keeps a follower running for each chain that deposits are taken on.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use covault_core::deposit::transfer::FollowedChain;
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};

use super::follower::ChainFollower;
use crate::services::Services;

pub enum Msg {
    /// The follower of this chain is to be started (again).
    StartDue(FollowedChain),
}

/// The actor.
pub struct DepositFollowers;

pub struct FollowersState {
    services: Arc<Services>,
    running: HashMap<ActorId, FollowedChain>,
    failures: u32,
}

#[async_trait]
impl Actor for DepositFollowers {
    type Msg = Msg;
    type State = FollowersState;
    type Arguments = Arc<Services>;

    async fn pre_start(
        &self,
        myself: ActorRef<Msg>,
        services: Arc<Services>,
    ) -> Result<FollowersState, ActorProcessingErr> {
        if services.runs_vaults {
            for chain in services.chains.followed() {
                myself.cast(Msg::StartDue(chain))?;
            }
        }
        Ok(FollowersState {
            services,
            running: HashMap::new(),
            failures: 0,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Msg>,
        message: Msg,
        state: &mut FollowersState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Msg::StartDue(chain) => {
                let arguments = (Arc::clone(&state.services), chain);
                let spawned =
                    Actor::spawn_linked(None, ChainFollower, arguments, myself.get_cell()).await;
                match spawned {
                    Ok((actor, _)) => {
                        state.running.insert(actor.get_id(), chain);
                    }
                    Err(error) => {
                        tracing::error!(%error, %chain, "the follower of a chain failed to start");
                        state.start_later(&myself, chain);
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
        state: &mut FollowersState,
    ) -> Result<(), ActorProcessingErr> {
        if let SupervisionEvent::ActorTerminated(actor, ..)
        | SupervisionEvent::ActorFailed(actor, _) = event
            && let Some(chain) = state.running.remove(&actor.get_id())
        {
            tracing::error!(%chain, "the follower of a chain failed; restarting it from the store");
            state.start_later(&myself, chain);
        }
        Ok(())
    }
}

impl FollowersState {
    fn start_later(&mut self, myself: &ActorRef<Msg>, chain: FollowedChain) {
        self.failures = self.failures.saturating_add(1);
        let pause = self.services.backoff(self.failures);
        myself.send_after(pause, move || Msg::StartDue(chain));
    }
}
