//! What an orchestrator needs to share its store with others.

use std::sync::Arc;

use anyhow::Context as _;
use covault_actors::{
    gateway::command_bus::{CommandBus, memory::MemoryCommandBus},
    port::TokioMonotonicClock,
    settings::OrchestratorSharing,
};
use covault_core::trace::Tracer;
use covault_mpc::identity::NodeIdentity;
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};

use crate::{
    adapters::OsEntropy,
    command_bus::{self, RedisCommandBus},
    config::{Config, StoreKind},
    files,
    redis_access::RedisAccess,
    telemetry::ProcessLog,
};

/// Reads the secret, where there is one, and makes nothing.
///
/// # Errors
/// As [`from_config`]; when processes are to share a store that is one process's.
pub fn check(config: &Config) -> anyhow::Result<()> {
    let cluster = &config.cluster;
    if let Some(path) = cluster.secret_file() {
        let secret = files::read_secret(path).context("cluster.secret_file")?;
        command_bus::check_secret(&secret)
            .with_context(|| format!("cluster.secret_file {}", path.display()))?;
    }
    if cluster.roles.run_vaults() {
        return Ok(());
    }
    anyhow::ensure!(cluster.secret_file().is_some(), NO_SECRET);
    anyhow::ensure!(
        config.store.kind == StoreKind::Postgres,
        "store.kind: a process without vaults (cluster.roles = \"http\") needs the store of the processes with vaults; use \
         \"postgres\""
    );
    Ok(())
}

const NO_SECRET: &str = "cluster.secret_file: is empty, and a process without vaults (cluster.roles = \"http\") sends \
    commands to other processes; name the file with the secret that they all share";

/// As the configuration says.
///
/// # Errors
/// When the secret cannot be read, is invalid, or is missing where it is needed.
pub fn from_config(
    config: &Config,
    identity: &NodeIdentity,
    tracer: Tracer,
) -> anyhow::Result<OrchestratorSharing> {
    let cluster = &config.cluster;
    let mut fingerprint = None;
    let command_bus: Arc<dyn CommandBus> = match cluster.secret_file() {
        Some(path) => {
            let secret = files::read_secret(path).context("cluster.secret_file")?;
            fingerprint = Some(fingerprint_of(&secret));
            let bus = RedisAccess::load(&config.bus)?.command_bus()?;
            let command_bus = RedisCommandBus::new(bus, Arc::new(OsEntropy), &secret);
            Arc::new(command_bus.with_context(|| format!("{}", path.display()))?)
        }
        None => {
            anyhow::ensure!(cluster.roles.run_vaults(), NO_SECRET);
            Arc::new(MemoryCommandBus::new())
        }
    };
    Ok(OrchestratorSharing {
        name: cluster.name.clone(),
        // The folder that it lies in is locked, and no two processes may have the same.
        home: Some(identity.id().0),
        monotonic: Arc::new(TokioMonotonicClock::default()),
        command_bus,
        secret_fingerprint: fingerprint,
        log: Arc::new(ProcessLog),
        tracer,
        runs_vaults: cluster.roles.run_vaults(),
    })
}

/// What tells a secret of 256 random bits from another one: nobody finds it by what is left of its hash.
fn fingerprint_of(secret: &SecretString) -> [u8; 8] {
    let mut hash = Sha256::new();
    hash.update(b"covault cluster secret\0");
    hash.update(
        secret
            .expose_secret()
            .trim()
            .to_ascii_lowercase()
            .as_bytes(),
    );
    let mut fingerprint = [0; 8];
    let bytes = hash.finalize();
    fingerprint
        .iter_mut()
        .zip(bytes)
        .for_each(|(to, from)| *to = from);
    fingerprint
}

#[cfg(test)]
#[allow(non_snake_case, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn fingerprint__should_tell_secrets_apart_and_not_how_they_are_written() {
        let of = |text: &str| fingerprint_of(&SecretString::from(text));
        assert_eq!(of("00ff"), of("00FF\n"));
        assert_ne!(of("00ff"), of("00fe"));
    }
}
