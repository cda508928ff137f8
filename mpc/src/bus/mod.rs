//! Transport between nodes. Never trusted: see [`crate::envelope`].
//!
//! A bus delivers each message to one node's inbox, or to everyone who listens to
//! announcements. It may lose, repeat, delay and reorder; whoever needs more builds it above.

#[cfg(test)]
pub mod conformance;
pub mod memory;
pub mod redis;

use async_trait::async_trait;
use covault_core::order::NodeId;
use tokio::sync::mpsc;

/// Messages above this size are refused.
pub const MAX_MESSAGE: usize = 8 << 20;

/// How many messages wait for a slow reader or writer before more are refused.
pub(crate) const QUEUE: usize = 1 << 14;

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// One node.
    Inbox(NodeId),
    /// Everyone who listens to announcements.
    Announcements,
}

/// Why a bus could not do it.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// Too many messages wait to be sent, or the message is too large.
    #[error("the bus cannot take the message: {0}")]
    Refused(&'static str),
    /// The bus cannot be reached, or was shut down.
    #[error("the bus is not reachable: {0}")]
    Unreachable(String),
}

/// A transport.
#[async_trait]
pub trait Bus: Send + Sync {
    /// Hands a message over for sending, without waiting for it to be sent.
    ///
    /// # Errors
    /// [`BusError::Refused`] when it is too large or too many wait.
    fn publish(&self, to: Address, message: Vec<u8>) -> Result<(), BusError>;

    /// Starts to receive what is sent to `me` from now on, and announcements if asked for.
    /// While the bus is away, the subscription waits for it.
    ///
    /// # Errors
    /// [`BusError`] when the subscription cannot be made at all.
    async fn subscribe(&self, me: NodeId, announcements: bool) -> Result<Subscription, BusError>;

    /// Whether the bus was reachable when it was last used.
    fn reachable(&self) -> bool;
}

/// Incoming messages. Dropping it ends the subscription.
pub struct Subscription {
    messages: mpsc::Receiver<Vec<u8>>,
}

impl Subscription {
    /// The subscription, and the end that feeds it.
    pub(crate) fn channel() -> (mpsc::Sender<Vec<u8>>, Self) {
        let (sender, messages) = mpsc::channel(QUEUE);
        (sender, Self { messages })
    }

    /// The next message; `None` when the bus was shut down.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        self.messages.recv().await
    }
}
