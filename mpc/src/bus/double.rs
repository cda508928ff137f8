//! Buses of tests. Only with the feature `simulation`, which no program has.

use async_trait::async_trait;
use covault_core::order::NodeId;

use super::{Bus, BusAddress, BusError, Subscription};

/// A bus in front of another one, which does something to what is published.
pub trait BusDouble: Send + Sync {
    /// The bus behind.
    fn inner(&self) -> &dyn Bus;

    /// See [`Bus::publish`].
    ///
    /// # Errors
    /// As there.
    fn publish(&self, to: BusAddress, message: Vec<u8>) -> Result<(), BusError>;
}

#[async_trait]
impl<D: BusDouble> Bus for D {
    fn publish(&self, to: BusAddress, message: Vec<u8>) -> Result<(), BusError> {
        BusDouble::publish(self, to, message)
    }

    async fn subscribe(&self, me: NodeId, announcements: bool) -> Result<Subscription, BusError> {
        self.inner().subscribe(me, announcements).await
    }

    fn reachable(&self) -> bool {
        self.inner().reachable()
    }
}
