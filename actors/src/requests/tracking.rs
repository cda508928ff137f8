//! Hands sent transactions to the tracker, and those that no block includes to the actors that help them.

use std::{fmt, panic::AssertUnwindSafe, sync::Arc};

use covault_core::{
    fault::{Class, Fault},
    ids::{RequestId, VaultId},
    networks::Resource,
};
use futures::{FutureExt as _, StreamExt as _, stream};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use crate::{chain_rpc::TrackedTransaction, requests::account::ChainAccount};

/// What the nodes say of a transaction of which nobody knows whether one has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They have it.
    Accepted,
    /// None has it, and it can still come: it is to be sent once more.
    Missing,
    /// It never comes, for good; why, in words that a person can act on, where the nodes say more than that.
    Void(Option<String>),
}

/// A request that waits for the nodes' verdict.
#[derive(Clone)]
pub struct PendingVerdict(Arc<dyn Fn(Verdict) -> bool + Send + Sync>);

impl PendingVerdict {
    /// Receives the verdict; false when its receiver is gone.
    pub fn new(tell: impl Fn(Verdict) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    /// Sends the verdict. False when its receiver is gone.
    pub fn tell(&self, verdict: Verdict) -> bool {
        (self.0)(verdict)
    }
}

impl fmt::Debug for PendingVerdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Doubt")
    }
}

/// A request whose transaction a node took, or may have taken.
#[derive(Clone, Debug)]
pub struct TrackedRequest {
    /// The vault of its wallet.
    pub vault: VaultId,
    /// It.
    pub request: RequestId,
    /// What sent the transaction.
    pub account: ChainAccount,
    /// The transaction.
    pub transaction: TrackedTransaction,
    /// Its number of the account, on networks with numbers.
    pub number: Option<u64>,
    /// What the transaction uses up, where signers may have signed it and nobody here has it: it is only watched until
    /// it can never come.
    pub unsigned: Option<Vec<Resource>>,
    /// Who waits for the verdict when it is not known whether a node took it; `None` when one did.
    pub doubt: Option<PendingVerdict>,
    /// The store may already say where it is: it was followed before this process, or this owner, began.
    pub resumed: bool,
}

/// A transaction that has waited for as many blocks as the policy of its chain lets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeedUpDue {
    /// The vault of its wallet.
    pub vault: VaultId,
    /// The request that sent it.
    pub request: RequestId,
    /// The newest block of the chain.
    pub head: u64,
}

/// A transaction that has waited for a while, perhaps behind a number of its account that no request uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GapSuspect {
    /// The request that sent it.
    pub request: RequestId,
    /// Its account.
    pub account: ChainAccount,
    /// The number before its own.
    pub below: u64,
}

/// Takes work for a task of its own. A process without vaults does none.
pub struct WorkQueue<T>(UnboundedSender<T>);

impl<T> WorkQueue<T> {
    /// Hands work over. Repeating it changes nothing.
    pub fn push(&self, work: T) {
        // The receiver is gone where no vault runs, and when the process stops; the store has it.
        let _ = self.0.send(work);
    }
}

/// A way, and where it leads to.
pub fn work_queue<T>() -> (WorkQueue<T>, UnboundedReceiver<T>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (WorkQueue(sender), receiver)
}

/// How much of it is done at the same time.
const MAX_PARALLEL: usize = 8;

/// Looks after what comes, until the process ends. `what` says in the log what failed, and `request` which request
/// it was about.
pub async fn process_all<T, F: Future<Output = Result<(), Fault>>>(
    arriving: UnboundedReceiver<T>,
    what: &'static str,
    request: impl Fn(&T) -> RequestId,
    look: impl Fn(T) -> F,
) {
    let arriving = stream::unfold(arriving, async |mut arriving| {
        let work = arriving.recv().await?;
        Some((work, arriving))
    });
    let each = |work: T| {
        let request = request(&work);
        let looked = AssertUnwindSafe(look(work)).catch_unwind();
        async move {
            match looked.await {
                Ok(Ok(())) => {}
                // Something else was faster, or it comes again.
                Ok(Err(fault))
                    if matches!(fault.class(), Class::WrongState | Class::Unavailable) =>
                {
                    tracing::debug!(%request, ?fault, "{what} has to wait");
                }
                Ok(Err(fault)) => tracing::warn!(%request, ?fault, "{what} failed"),
                Err(_) => tracing::error!(%request, "{what} panicked; this is a bug"),
            }
        }
    };
    arriving.for_each_concurrent(MAX_PARALLEL, each).await;
}
