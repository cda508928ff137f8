//! Whether the service can take requests.

use covault_core::fault::Fault;
use tokio::sync::Mutex;

use crate::{
    services::Services,
    store::{Batch, Key, KeySpace, Precondition},
};

/// How long readiness is believed, in milliseconds.
const CACHED_MS: u64 = 1_000;

/// When it was last checked, and the result.
#[derive(Default)]
pub(super) struct Readiness(Mutex<Option<(u64, Result<(), Fault>)>>);

impl Readiness {
    /// Whether the store can be written. Found out once in [`CACHED_MS`], however many ask.
    pub(super) async fn check(&self, services: &Services) -> Result<(), Fault> {
        let mut last = self.0.lock().await;
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
