//! A signer node.

use std::{path::PathBuf, sync::Arc, time::Duration};

use covault_core::{
    derive::RootKey,
    fault::Fault,
    order::{NodeId, SigningOrder},
    port::{Clock, Entropy},
};
use secrecy::SecretString;
use tokio::sync::watch;

use crate::{bus::Bus, identity::NodeIdentity, pool::CpuPool};

/// Decides whether what an order shows is what it asks to sign.
pub trait OrderCheck: Send + Sync {
    /// Checks an order for a key that the node holds.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] naming what does not match.
    fn check(&self, order: &SigningOrder, root: &RootKey) -> Result<(), Fault>;
}

/// Rebuilds everything from payload and facts ([`SigningOrder::verify`]).
pub struct Rebuild;

impl OrderCheck for Rebuild {
    fn check(&self, order: &SigningOrder, root: &RootKey) -> Result<(), Fault> {
        order.verify(root)
    }
}

/// What a node needs.
pub struct NodeConfig {
    /// The name it announces.
    pub name: String,
    /// Its identity.
    pub identity: Arc<NodeIdentity>,
    /// The bus it listens on.
    pub bus: Arc<dyn Bus>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The source of randomness.
    pub entropy: Arc<dyn Entropy>,
    /// Threads for cryptography; nodes of one process share them.
    pub pool: Arc<CpuPool>,
    /// Its own folder: keyring, share files, claims. Made when missing.
    pub folder: PathBuf,
    /// Opens the keyring.
    pub passphrase: SecretString,
    /// scrypt's work factor (log2 N) when the keyring is made; 18 takes about a second. Lower
    /// ones are for random passphrases only.
    pub work_factor: u8,
    /// The orchestrators it takes orders from.
    pub trusted: Vec<NodeId>,
    /// What is checked before a share is used; [`Rebuild`] outside tests.
    pub check: Arc<dyn OrderCheck>,
    /// How often it announces itself.
    pub heartbeat: Duration,
}

/// A signer node.
pub struct Node {}

impl Node {
    /// Opens the folder and serves orders until `shutdown` turns true.
    ///
    /// # Errors
    /// Only when it cannot start: folder, keyring or claims unusable. A bad message or order
    /// never ends it.
    pub async fn run(config: NodeConfig, shutdown: watch::Receiver<bool>) -> Result<(), Fault> {
        let _ = (config, shutdown);
        todo!()
    }
}
