//! How this process is: whether it can take requests, and what is in the way.

use std::sync::atomic::{AtomicBool, Ordering};

use covault_core::fault::Fault;
use tokio::sync::Mutex;

use crate::{
    backup::restore::ClientGate,
    overview,
    services::Services,
    store::{
        Batch, Key, KeySpace, Precondition,
        overview_rows::{BackupRow, ServiceCounts},
    },
};

/// How long it is believed that the store can be written, in milliseconds.
const CACHED_MS: u64 = 1_000;

/// How the process is, part by part.
#[derive(Clone, Debug)]
pub struct Health {
    /// It gives its vaults away, and ends.
    pub is_leaving: bool,
    /// Whether the store can be written.
    pub store: Result<(), Fault>,
    /// Whether the bus was reachable when it was last used.
    pub bus: Result<(), Fault>,
    /// Signer nodes that it hears, of those that were admitted.
    pub signers: (usize, usize),
    /// Whether clients are let in: after a restore they are kept out.
    pub clients: Result<(), Fault>,
}

impl Health {
    /// Whether it can take requests.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] with the first thing that is in the way.
    pub fn ready(self) -> Result<(), Fault> {
        if self.is_leaving {
            return Err(Fault::unavailable("the service is shutting down"));
        }
        self.store?;
        if let (0, 1..) = self.signers {
            return Err(Fault::unavailable("no signer node can be reached"));
        }
        self.clients?;
        self.bus
    }
}

/// What is asked whether the process can work.
pub(crate) struct HealthCheck {
    /// Whether clients are let in.
    pub client_gate: ClientGate,
    leaving: AtomicBool,
    /// When the store was last tried, and the result.
    store: Mutex<Option<(u64, Result<(), Fault>)>>,
    /// When the overview was last read, and what it says.
    overview: Mutex<Option<(u64, Overview)>>,
}

/// How many vaults can sign, as it was last counted, and the last backup.
pub type Overview = (Option<ServiceCounts>, Option<BackupRow>);

impl HealthCheck {
    pub fn new(client_gate: ClientGate) -> Self {
        Self {
            client_gate,
            leaving: AtomicBool::new(false),
            store: Mutex::default(),
            overview: Mutex::default(),
        }
    }

    /// The process takes nothing on from now on.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::SeqCst);
    }

    /// How the process is now.
    pub async fn look(&self, services: &Services) -> Health {
        Health {
            is_leaving: self.leaving.load(Ordering::SeqCst),
            store: self.try_store(services).await,
            bus: match services.signers.is_bus_reachable() {
                true => Ok(()),
                false => Err(Fault::unavailable("the bus cannot be reached")),
            },
            signers: services.signers.node_counts(),
            clients: self.client_gate.check(services).await,
        }
    }

    /// What is written of the service as a whole. Read once in [`CACHED_MS`], however many ask.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn overview(&self, services: &Services) -> Result<Overview, Fault> {
        let mut last = self.overview.lock().await;
        if let Some((at_ms, found)) = &*last
            && services.now_ms().abs_diff(*at_ms) < CACHED_MS
        {
            return Ok(found.clone());
        }
        let counts = overview::written_counts(services).await?;
        let found = (counts, overview::last_backup(services).await?);
        *last = Some((services.now_ms(), found.clone()));
        Ok(found)
    }

    /// Whether the store can be written. Found out once in [`CACHED_MS`], however many ask.
    async fn try_store(&self, services: &Services) -> Result<(), Fault> {
        let mut last = self.store.lock().await;
        if let Some((at_ms, found)) = &*last
            && services.now_ms().abs_diff(*at_ms) < CACHED_MS
        {
            return found.clone();
        }
        let found = probe(services).await;
        // Asked again and again: said once per change.
        let was_ready = !matches!(&*last, Some((_, Err(_))));
        match &found {
            Err(fault) if was_ready => {
                tracing::warn!(?fault, "not ready: the store cannot be written");
            }
            Ok(()) if !was_ready => tracing::info!("ready again: the store can be written"),
            _ => {}
        }
        *last = Some((services.now_ms(), found.clone()));
        found
    }
}

async fn probe(services: &Services) -> Result<(), Fault> {
    let mut probe = Batch::new();
    probe.put(
        Key::new(KeySpace::Probe, &[]),
        Precondition::Any,
        Vec::new(),
    );
    services.store.commit(probe).await?;
    Ok(())
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::sync::Arc;

    use covault_core::order::NodeId;

    use super::*;
    use crate::{
        port::NodeView,
        services::Listeners,
        settings::OrchestratorParts,
        store::memory::MemoryStore,
        testing::{NoSigners, orchestrator_parts},
    };

    #[tokio::test]
    async fn readiness__should_count_nodes_without_a_copy_of_them() {
        let signers = Arc::new(NoSigners::default());
        let parts = OrchestratorParts {
            signers: Arc::clone(&signers) as _,
            ..orchestrator_parts(Arc::new(MemoryStore::new()), Arc::default())
        };
        let services = Services::new(parts, Listeners::none());
        let check = HealthCheck::new(ClientGate::default());
        let [live, away] = [true, false].map(|live| NodeView {
            live,
            ..NodeView::unseen(NodeId([u8::from(live); 32]))
        });
        *signers.nodes.lock() = vec![live, away.clone()];
        let health = check.look(&services).await;
        assert_eq!(health.signers, (1, 2));
        assert!(health.ready().is_ok());
        *signers.nodes.lock() = vec![away];
        let fault = check.look(&services).await.ready().unwrap_err();
        assert!(fault.message().contains("no signer node"), "{fault:?}");
        assert_eq!(signers.copies.load(Ordering::SeqCst), 0);
    }
}
