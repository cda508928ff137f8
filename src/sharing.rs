//! What an orchestrator needs to share its store with others.

use std::sync::Arc;

use anyhow::Context as _;
use covault_actors::{
    gateway::command_bus::{CommandBus, memory::MemoryCommandBus},
    port::TokioMonotonicClock,
    settings::OrchestratorSharing,
};
use covault_mpc::identity::NodeIdentity;

use crate::{
    adapters::OsEntropy, command_bus::RedisCommandBus, config::Config, files,
    redis_access::RedisAccess,
};

/// As the configuration says.
///
/// # Errors
/// When the secret cannot be read, is invalid, or is missing where it is needed.
pub fn from_config(
    config: &Config,
    identity: &NodeIdentity,
) -> anyhow::Result<OrchestratorSharing> {
    let cluster = &config.cluster;
    let command_bus: Arc<dyn CommandBus> = match cluster.secret_file() {
        Some(path) => {
            let secret = files::read_secret(path).context("cluster.secret_file")?;
            let bus = RedisAccess::load(&config.bus)?.command_bus()?;
            let command_bus = RedisCommandBus::new(bus, Arc::new(OsEntropy), &secret);
            Arc::new(command_bus.with_context(|| format!("{}", path.display()))?)
        }
        None => {
            anyhow::ensure!(
                cluster.roles.run_vaults(),
                "a process without vaults sends commands to others: cluster.secret_file must name \
                 the secret that all of them share"
            );
            Arc::new(MemoryCommandBus::new())
        }
    };
    Ok(OrchestratorSharing {
        name: cluster.name.clone(),
        // The folder that it lies in is locked, and no two processes may have the same.
        home: Some(identity.id().0),
        monotonic: Arc::new(TokioMonotonicClock::default()),
        command_bus,
        runs_vaults: cluster.roles.run_vaults(),
    })
}
