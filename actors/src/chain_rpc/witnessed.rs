//! What ends something for good is believed of two nodes, wherever a chain has two: that a transaction is final, or
//! never comes, after which nobody looks after it any more.
//!
//! All else is believed of as many nodes as configuration has agree, so that one of two that is silent stops no
//! payment. So the nodes are asked as ever first; only about what has ended by what they say are they asked again,
//! and as many as it takes have to say it then (docs/decisions/0030-doubt-about-a-broadcast.md).

use std::{future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;
use covault_core::{
    networks::{ChainData, ChainMoment, Payload, Queries},
    signature::Signature,
};
use tokio::time::{Instant, timeout_at};

use super::{
    BlockSource, BroadcastOutcome, BroadcastRequest, ChainClient, ChainError, EndpointHealth,
    FeeEstimate, SimulationOutcome, SimulationRequest, TrackedTransaction, TransactionSighting,
};

/// So many transactions are asked for again at once.
const AT_ONCE: usize = 16;
/// How long that may take in all: a node that is silent must not hold up what else is asked. The rest comes next.
const PATIENCE: Duration = Duration::from_secs(10);

tokio::task_local! {
    static WITNESSED: ();
}

/// Has what is asked within agreed on by as many nodes as it takes to end something for good.
pub(super) async fn witnessed<F: Future>(work: F) -> F::Output {
    WITNESSED.scope((), work).await
}

/// Whether the present question is one of [`witnessed`].
pub(super) fn is_witnessed() -> bool {
    WITNESSED.try_with(|()| ()).is_ok()
}

/// A chain's client whose nodes are more than have to agree elsewhere: it says of no transaction that it has ended by
/// fewer of them than that takes. Every method of the trait has to be here; one that is left out would answer as if the
/// chain did not have it.
pub(super) struct EndsWitnessed(pub(super) Arc<dyn ChainClient>);

#[async_trait]
impl ChainClient for EndsWitnessed {
    async fn chain_data(&self, queries: &Queries, now_ms: u64) -> Result<ChainData, ChainError> {
        self.0.chain_data(queries, now_ms).await
    }

    async fn preflight(&self, payload: &Payload) -> Result<(), ChainError> {
        self.0.preflight(payload).await
    }

    /// What ends a request is counted there: see `NodePool::submit`.
    async fn broadcast(&self, broadcast_request: &BroadcastRequest) -> BroadcastOutcome {
        self.0.broadcast(broadcast_request).await
    }

    /// A number that is free too early makes of two transactions one, and never two payments of one.
    async fn next_number(
        &self,
        address: &str,
        since: ChainMoment,
    ) -> Result<Option<u64>, ChainError> {
        self.0.next_number(address, since).await
    }

    async fn sightings(
        &self,
        transactions: &[TrackedTransaction],
        now_ms: u64,
    ) -> Vec<Result<TransactionSighting, ChainError>> {
        let mut sightings = self.0.sightings(transactions, now_ms).await;
        let ended = |sighting: &Result<TransactionSighting, ChainError>| {
            sighting.as_ref().is_ok_and(TransactionSighting::is_end)
        };
        let of_each = transactions.iter().zip(&mut sightings);
        let (asked, said): (Vec<_>, Vec<_>) = of_each
            .filter(|(_, said)| ended(said))
            .map(|(transaction, said)| (transaction.clone(), said))
            .unzip();
        if asked.is_empty() {
            return sightings;
        }
        let end = Instant::now() + PATIENCE;
        let mut again = Vec::new();
        for some in asked.chunks(AT_ONCE) {
            match timeout_at(end, witnessed(self.0.sightings(some, now_ms))).await {
                Ok(more) => again.extend(more),
                Err(_) => break,
            }
        }
        let mut again = again.into_iter();
        for said in said {
            let again = again.next();
            let again = again.unwrap_or_else(|| Err(ChainError::unknown("a node is silent")));
            let one = std::mem::replace(said, Err(ChainError::unknown("not said")));
            *said = confirmed(one, again);
        }
        sightings
    }

    async fn signatures_in_block(
        &self,
        transaction: &TrackedTransaction,
        by: Option<&str>,
    ) -> Result<Vec<Signature>, ChainError> {
        witnessed(self.0.signatures_in_block(transaction, by)).await
    }

    async fn fee_estimates(&self) -> Result<[FeeEstimate; 3], ChainError> {
        self.0.fee_estimates().await
    }

    async fn head(&self) -> Result<Option<u64>, ChainError> {
        self.0.head().await
    }

    async fn balance(&self, address: &str, token: Option<&str>) -> Result<String, ChainError> {
        self.0.balance(address, token).await
    }

    async fn simulate(&self, trial: &SimulationRequest) -> Option<SimulationOutcome> {
        self.0.simulate(trial).await
    }

    fn health(&self) -> Vec<EndpointHealth> {
        self.0.health()
    }

    fn blocks(&self) -> Option<&dyn BlockSource> {
        self.0.blocks()
    }
}

/// What is to be said of a transaction that has ended by `said`, once more nodes were asked `again`: without their word
/// a block has it that may go, or nothing is known. Whoever hears that it failed may pay again.
fn confirmed(
    said: Result<TransactionSighting, ChainError>,
    again: Result<TransactionSighting, ChainError>,
) -> Result<TransactionSighting, ChainError> {
    match (said, again) {
        (_, Ok(again)) => Ok(again),
        (Ok(TransactionSighting::Final(inclusion)), Err(_)) if inclusion.success => {
            Ok(TransactionSighting::Mined(inclusion))
        }
        (_, Err(error)) => Err(ChainError::unknown(format!(
            "it failed or never comes by what one node says, and more have to: {}",
            error.into_reason()
        ))),
    }
}
