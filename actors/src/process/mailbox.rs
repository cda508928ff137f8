//! How many messages wait in the mailboxes of actors of a kind: ractor does not count them.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicIsize, AtomicUsize, Ordering},
    },
    time::Duration,
};

use ractor::{ActorRef, MessagingErr, RpcReplyPort, rpc::CallResult};
use tokio::task::JoinHandle;

/// Deeper ones count as if they were so deep.
const MOST: usize = 1024;

/// The mailboxes of all actors of a kind.
pub struct Mailboxes {
    /// How many have so many messages; those without any are not counted.
    by_depth: Box<[AtomicIsize]>,
}

impl Default for Mailboxes {
    fn default() -> Self {
        Self {
            by_depth: (0..=MOST).map(|_| AtomicIsize::new(0)).collect(),
        }
    }
}

impl Mailboxes {
    /// Messages in the deepest one, [`MOST`] at most.
    pub fn deepest(&self) -> usize {
        let has_some = |count: &AtomicIsize| count.load(Ordering::Relaxed) > 0;
        self.by_depth.iter().rposition(has_some).unwrap_or(0)
    }

    fn moved(&self, from: usize, to: usize) {
        for (depth, change) in [(to, 1), (from, -1)] {
            // Without messages, or between two depths that count as one, nothing is counted twice.
            if let (1.., Some(count)) = (depth, self.by_depth.get(depth.min(MOST))) {
                count.fetch_add(change, Ordering::Relaxed);
            }
        }
    }
}

/// The messages of one actor.
pub struct MailboxDepth {
    waiting: AtomicUsize,
    all: Arc<Mailboxes>,
}

impl MailboxDepth {
    /// That of a new actor.
    pub fn new(all: &Arc<Mailboxes>) -> Arc<Self> {
        Arc::new(Self {
            waiting: AtomicUsize::new(0),
            all: Arc::clone(all),
        })
    }
}

/// A message on its way: it waits until it is opened, or the actor ends.
pub struct Posted<M> {
    message: M,
    place: MailboxPlace,
}

struct MailboxPlace(Arc<MailboxDepth>);

impl Drop for MailboxPlace {
    fn drop(&mut self) {
        let MailboxDepth { waiting, all } = &*self.0;
        let before = waiting.fetch_sub(1, Ordering::Relaxed);
        all.moved(before, before.saturating_sub(1));
    }
}

impl<M> Posted<M> {
    fn new(message: M, depth: &Arc<MailboxDepth>) -> Self {
        let before = depth.waiting.fetch_add(1, Ordering::Relaxed);
        depth.all.moved(before, before.saturating_add(1));
        Self {
            message,
            place: MailboxPlace(Arc::clone(depth)),
        }
    }

    /// It waits no longer. Also the address of its actor.
    pub fn open(self, actor: ActorRef<Self>) -> (M, ActorMailbox<M>)
    where
        M: Send + 'static,
    {
        let mailbox = ActorMailbox::new(actor, Arc::clone(&self.place.0));
        (self.message, mailbox)
    }
}

impl<M> fmt::Debug for Posted<M> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Posted")
    }
}

/// The address of an actor whose messages are counted.
pub struct ActorMailbox<M: Send + 'static> {
    actor: ActorRef<Posted<M>>,
    depth: Arc<MailboxDepth>,
}

impl<M: Send + 'static> Clone for ActorMailbox<M> {
    fn clone(&self) -> Self {
        Self::new(self.actor.clone(), Arc::clone(&self.depth))
    }
}

impl<M: Send + 'static> ActorMailbox<M> {
    /// `depth` is the one that the actor was started with.
    pub fn new(actor: ActorRef<Posted<M>>, depth: Arc<MailboxDepth>) -> Self {
        Self { actor, depth }
    }

    /// The actor itself.
    pub fn actor(&self) -> &ActorRef<Posted<M>> {
        &self.actor
    }

    /// Sends a message.
    ///
    /// # Errors
    /// When the actor has ended.
    pub fn cast(&self, message: M) -> Result<(), MessagingErr<Posted<M>>> {
        self.actor.cast(Posted::new(message, &self.depth))
    }

    /// Sends a question, and waits for the answer.
    ///
    /// # Errors
    /// When the actor has ended.
    pub async fn call<T: Send + 'static>(
        &self,
        message: impl FnOnce(RpcReplyPort<T>) -> M,
        timeout: Option<Duration>,
    ) -> Result<CallResult<T>, MessagingErr<Posted<M>>> {
        let post = |reply| Posted::new(message(reply), &self.depth);
        self.actor.call(post, timeout).await
    }

    /// Sends a message after a while. Until then it does not wait for the actor.
    pub fn send_after(
        &self,
        pause: Duration,
        message: impl FnOnce() -> M + Send + 'static,
    ) -> JoinHandle<Result<(), MessagingErr<Posted<M>>>> {
        let depth = Arc::clone(&self.depth);
        self.actor
            .send_after(pause, move || Posted::new(message(), &depth))
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use async_trait::async_trait;
    use ractor::{Actor, ActorProcessingErr};
    use tokio::sync::Semaphore;

    use super::*;

    /// It is busy with each message until the test lets it go on.
    struct BusyActor(Arc<Semaphore>);

    #[async_trait]
    impl Actor for BusyActor {
        type Msg = Posted<Option<RpcReplyPort<()>>>;
        type State = ();
        type Arguments = ();

        async fn pre_start(
            &self,
            _: ActorRef<Self::Msg>,
            (): (),
        ) -> Result<(), ActorProcessingErr> {
            Ok(())
        }

        async fn handle(
            &self,
            myself: ActorRef<Self::Msg>,
            posted: Self::Msg,
            (): &mut (),
        ) -> Result<(), ActorProcessingErr> {
            let (message, _) = posted.open(myself);
            self.0.acquire().await?.forget();
            if let Some(reply) = message {
                let _ = reply.send(());
            }
            Ok(())
        }
    }

    async fn busy(
        all: &Arc<Mailboxes>,
    ) -> (ActorMailbox<Option<RpcReplyPort<()>>>, Arc<Semaphore>) {
        let gate = Arc::new(Semaphore::new(0));
        let spawned = Actor::spawn(None, BusyActor(Arc::clone(&gate)), ()).await;
        let depth = MailboxDepth::new(all);
        (ActorMailbox::new(spawned.unwrap().0, depth), gate)
    }

    async fn until(all: &Mailboxes, depth: usize) {
        while all.deepest() != depth {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn mailboxes__should_tell_how_many_messages_wait_in_the_deepest() {
        let all = Arc::default();
        let ((one, gate), (other, _closed)) = (busy(&all).await, busy(&all).await);
        assert_eq!(all.deepest(), 0);
        for _ in 0..4 {
            one.cast(None).unwrap();
        }
        for _ in 0..2 {
            other.cast(None).unwrap();
        }
        // The first one is being handled, and waits no longer.
        until(&all, 3).await;
        gate.add_permits(3);
        until(&all, 1).await;
        // What ends with its actor waits for nobody.
        other.actor().kill();
        gate.add_permits(1);
        until(&all, 0).await;
        gate.add_permits(1);
        let answer = one.call(Some, None).await.unwrap();
        assert!(matches!(answer, CallResult::Success(())));
        until(&all, 0).await;
        let later = one.send_after(Duration::from_millis(1), || None);
        assert_eq!(all.deepest(), 0);
        later.await.unwrap().unwrap();
        until(&all, 0).await;
        for _ in 0..MOST + 2 {
            one.cast(None).unwrap();
        }
        until(&all, MOST).await;
        gate.add_permits(MOST + 3);
        until(&all, 0).await;
    }
}
