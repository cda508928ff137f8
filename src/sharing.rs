//! What an orchestrator needs to share its store with others.

use std::sync::Arc;

use anyhow::Context as _;
use covault_actors::{
    port::TokioSteady,
    post::{Post, memory::MemoryPost},
    settings::Sharing,
};
use covault_mpc::identity::NodeIdentity;

use crate::{adapters::OsEntropy, config::Config, files, post::BusPost, wiring};

/// Separates the keys of the post from those of the signers' bus.
const NAMESPACE: &str = "covault-post";

/// As the configuration says.
///
/// # Errors
/// When the secret cannot be read, is none, or is missing where it is needed.
pub fn of(config: &Config, identity: &NodeIdentity) -> anyhow::Result<Sharing> {
    let cluster = &config.cluster;
    let post: Arc<dyn Post> = match cluster.secret_file() {
        Some(path) => {
            let secret = files::read_secret(path).context("cluster.secret_file")?;
            let bus = wiring::redis_bus_for(&config.bus.redis_url, NAMESPACE)?;
            let post = BusPost::new(bus, Arc::new(OsEntropy), &secret);
            Arc::new(post.with_context(|| format!("{}", path.display()))?)
        }
        None => {
            anyhow::ensure!(
                cluster.roles.run_vaults(),
                "a process without vaults sends commands to others: cluster.secret_file must name \
                 the secret that all of them share"
            );
            Arc::new(MemoryPost::new())
        }
    };
    Ok(Sharing {
        name: cluster.name.clone(),
        // The folder that it lies in is locked, and no two processes may have the same.
        home: Some(identity.id().0),
        steady: Arc::new(TokioSteady::default()),
        post,
        runs_vaults: cluster.roles.run_vaults(),
    })
}
