//! The bus of one process.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use covault_core::order::NodeId;
use parking_lot::Mutex;

use super::{Bus, BusAddress, BusError, MAX_MESSAGE, Subscription, SubscriptionSender};

/// A bus in memory. Messages to nodes that do not listen are lost.
#[derive(Default)]
pub struct MemoryBus {
    listeners: Mutex<HashMap<BusAddress, Vec<SubscriptionSender>>>,
}

impl MemoryBus {
    /// An empty bus.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }
}

#[async_trait]
impl Bus for MemoryBus {
    fn publish(&self, to: BusAddress, message: Vec<u8>) -> Result<(), BusError> {
        if message.len() > MAX_MESSAGE {
            return Err(BusError::Refused("too large"));
        }
        let mut listeners = self.listeners.lock();
        let Some(senders) = listeners.get_mut(&to) else {
            return Ok(());
        };
        // A full queue belongs to a reader that does not read: it loses messages, alone.
        senders.retain(|sender| sender.offer(message.clone()));
        if senders.is_empty() {
            listeners.remove(&to);
        }
        Ok(())
    }

    async fn subscribe(&self, me: NodeId, announcements: bool) -> Result<Subscription, BusError> {
        let (sender, subscription) = Subscription::channel();
        let mut listeners = self.listeners.lock();
        if announcements {
            listeners
                .entry(BusAddress::Announcements)
                .or_default()
                .push(sender.clone());
        }
        listeners
            .entry(BusAddress::Inbox(me))
            .or_default()
            .push(sender);
        Ok(subscription)
    }

    fn reachable(&self) -> bool {
        true
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn memory_bus__should_conform() {
        let bus = MemoryBus::new();
        super::super::conformance::run(|| bus.clone()).await;
    }
}
