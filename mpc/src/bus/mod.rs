//! Transport between nodes. Never trusted: see [`crate::envelope`].
//!
//! A bus delivers each message to one node's inbox, or to everyone who listens to
//! announcements. It may lose, repeat, delay and reorder; anyone who needs more builds it above.

#[cfg(test)]
pub mod conformance;
#[cfg(feature = "simulation")]
pub mod double;
pub mod memory;
pub mod redis;
pub mod servers;

use std::sync::Arc;

use async_trait::async_trait;
use covault_core::order::NodeId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Messages above this size are refused, and dropped when they come. An order shows a payload up to
/// three times (payload, unsigned bytes, what is signed), and a request has up to 1 MiB; protocols need
/// much less.
pub const MAX_MESSAGE: usize = 4 << 20;

/// How many messages wait for a slow reader or writer before more are refused.
pub(crate) const QUEUE: usize = 1 << 14;
/// How many bytes wait for a slow reader, or for a slow writer.
pub(crate) const QUEUE_BYTES: usize = 64 << 20;

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BusAddress {
    /// One node.
    Inbox(NodeId),
    /// Everyone who listens to announcements.
    Announcements,
}

/// Why a bus could not do it.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// The message is too large.
    #[error("the bus cannot take the message: {0}")]
    Refused(&'static str),
    /// Too many messages wait to be sent: it may be tried again.
    #[error("the bus cannot take the message now: {0}")]
    Full(&'static str),
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
    /// [`BusError::Refused`] when it is too large, [`BusError::Full`] when too many wait.
    fn publish(&self, to: BusAddress, message: Vec<u8>) -> Result<(), BusError>;

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
    messages: mpsc::Receiver<(Vec<u8>, OwnedSemaphorePermit)>,
}

/// The sending end of a subscription. It holds a limited number of messages and bytes.
#[derive(Clone)]
pub(crate) struct SubscriptionSender {
    messages: mpsc::Sender<(Vec<u8>, OwnedSemaphorePermit)>,
    bytes: Arc<Semaphore>,
}

impl SubscriptionSender {
    fn size(message: &[u8]) -> u32 {
        u32::try_from(message.len()).unwrap_or(u32::MAX)
    }

    /// Hands a message over, or drops it when the reader is slow; false when the reader is gone.
    pub(crate) fn offer(&self, message: Vec<u8>) -> bool {
        let bytes = Arc::clone(&self.bytes);
        match bytes.try_acquire_many_owned(Self::size(&message)) {
            Ok(room) => !matches!(
                self.messages.try_send((message, room)),
                Err(mpsc::error::TrySendError::Closed(_))
            ),
            Err(_) => !self.messages.is_closed(),
        }
    }

    /// Hands a message over when there is room; false when the reader is gone. One that is too
    /// large is dropped.
    pub(crate) async fn feed(&self, message: Vec<u8>) -> bool {
        if message.len() > MAX_MESSAGE {
            tracing::warn!(bytes = message.len(), "a message is too large; dropped");
            return true;
        }
        let bytes = Arc::clone(&self.bytes);
        tokio::select! {
            () = self.messages.closed() => false,
            room = bytes.acquire_many_owned(Self::size(&message)) => match room {
                Ok(room) => self.messages.send((message, room)).await.is_ok(),
                Err(_) => false,
            },
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.messages.is_closed()
    }
}

impl Subscription {
    /// The subscription, and the end that feeds it.
    pub(crate) fn channel() -> (SubscriptionSender, Self) {
        let (sender, messages) = mpsc::channel(QUEUE);
        let feeder = SubscriptionSender {
            messages: sender,
            bytes: Arc::new(Semaphore::new(QUEUE_BYTES)),
        };
        (feeder, Self { messages })
    }

    /// The next message; `None` when the bus was shut down.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        self.messages.recv().await.map(|(message, _)| message)
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn subscription__should_hold_so_many_bytes_and_no_more() {
        let (feeder, mut inbox) = Subscription::channel();
        let many = 2 * QUEUE_BYTES / MAX_MESSAGE;
        for _ in 0..many {
            assert!(feeder.offer(vec![0; MAX_MESSAGE]));
        }
        assert!(feeder.feed(vec![0; MAX_MESSAGE + 1]).await);
        for _ in 0..QUEUE_BYTES / MAX_MESSAGE {
            assert_eq!(inbox.next().await.unwrap().len(), MAX_MESSAGE);
        }
        // The rest was dropped, and there is room again.
        assert!(feeder.feed(vec![1]).await);
        assert_eq!(inbox.next().await.unwrap(), [1]);
        drop(inbox);
        assert!(!feeder.feed(vec![1]).await);
        assert!(!feeder.offer(vec![1]));
    }
}
