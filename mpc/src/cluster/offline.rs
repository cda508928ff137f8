//! Runs that need all of their nodes from beginning to end: key generations and reshares. A node
//! that starts again has forgotten the run, which would otherwise only end with its deadline,
//! minutes later.

use std::time::Duration;

use covault_core::{fault::Fault, order::NodeId};
use tokio::time::sleep;

use super::{ClusterInner, POLL_INTERVAL, REPLY_GRACE_MS, select_signers::AttemptFailures};

/// A node that was not heard for so long, in milliseconds, is waited for no longer. More than a bus
/// takes that starts again.
const OFFLINE_MS: u64 = 15_000;

impl ClusterInner {
    /// What becomes of `run`, or sooner that one of its nodes has left it.
    pub(super) async fn unless_offline<T>(
        &self,
        parties: &[NodeId],
        run: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        tokio::select! {
            // The run first: what it has is good, no matter who is gone since.
            biased;
            outcome = run => outcome,
            offline = self.offline(parties) => {
                let failures = AttemptFailures::of_silent(&offline);
                let fault = self.node_registry.too_few(parties, parties.len(), &failures, None);
                Err(fault.caused_by("a node has restarted or is offline"))
            }
        }
    }

    /// Waits until all of these nodes are there, and then until some are not as they were.
    async fn offline(&self, parties: &[NodeId]) -> Vec<NodeId> {
        while !parties.iter().all(|party| self.node_registry.live(party)) {
            sleep(POLL_INTERVAL).await;
        }
        let starts: Vec<_> = parties
            .iter()
            .map(|party| self.node_registry.start_of(party))
            .collect();
        loop {
            sleep(POLL_INTERVAL).await;
            let as_it_was = |party, start| {
                self.node_registry.start_of(party) == start
                    && self.node_registry.heard_within(party, OFFLINE_MS)
            };
            let offline: Vec<NodeId> = parties
                .iter()
                .zip(&starts)
                .filter(|(party, start)| !as_it_was(party, **start))
                .map(|(party, _)| *party)
                .collect();
            if !offline.is_empty() {
                // What they have said before they went may still be on its way.
                sleep(Duration::from_millis(REPLY_GRACE_MS)).await;
                return offline;
            }
        }
    }
}
