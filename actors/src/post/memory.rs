//! The post within one process: for one orchestrator alone, and for tests with several.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use covault_core::{fault::Fault, ids::OrchestratorId};
use tokio::runtime::Handle;

use super::{Clerk, Delivery, Parcel, Post};

/// Who takes parcels, and where it lives.
type Clerks = HashMap<OrchestratorId, (Arc<dyn Clerk>, Handle)>;

/// See the module.
#[derive(Default)]
pub struct MemoryPost {
    clerks: Mutex<Clerks>,
}

impl MemoryPost {
    /// A post for nobody yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn clerks(&self) -> MutexGuard<'_, Clerks> {
        self.clerks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Post for MemoryPost {
    async fn open(&self, me: OrchestratorId, clerk: Arc<dyn Clerk>) -> Result<(), Fault> {
        self.clerks().insert(me, (clerk, Handle::current()));
        Ok(())
    }

    async fn close(&self, me: OrchestratorId) {
        self.clerks().remove(&me);
    }

    async fn send(&self, to: OrchestratorId, parcel: Parcel, patience: Duration) -> Delivery {
        let clerk = self.clerks().get(&to).cloned();
        let Some((clerk, runtime)) = clerk else {
            return Delivery::NotDone;
        };
        // Where the recipient lives: it may end while it is at it.
        let work = runtime.spawn(async move { clerk.take(parcel).await });
        match tokio::time::timeout(patience, work).await {
            Ok(Ok(delivery)) => delivery,
            Ok(Err(_)) | Err(_) => Delivery::NotKnown,
        }
    }
}
