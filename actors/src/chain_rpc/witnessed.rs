//! What ends something for good is believed of two nodes, wherever a chain has two: that a transaction is final, or
//! can never be mined, after which nobody follows it.
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
    FeeEstimate, SimulationOutcome, SimulationRequest, TokenFacts, TrackedTransaction,
    TransactionSighting, TransferBurn,
};

/// So many transactions are asked for again at once.
const AT_ONCE: usize = 16;
/// How long that may take in all: a node that is silent must not hold up what else is asked. The rest comes next.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

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
pub(super) struct EndsWitnessed {
    client: Arc<dyn ChainClient>,
    /// [`PATIENCE`].
    patience: Duration,
}

impl EndsWitnessed {
    pub(super) fn new(client: Arc<dyn ChainClient>) -> Self {
        Self {
            client,
            patience: PATIENCE,
        }
    }
}

#[async_trait]
impl ChainClient for EndsWitnessed {
    async fn chain_data(&self, queries: &Queries, now_ms: u64) -> Result<ChainData, ChainError> {
        self.client.chain_data(queries, now_ms).await
    }

    async fn preflight(&self, payload: &Payload) -> Result<(), ChainError> {
        self.client.preflight(payload).await
    }

    /// What ends a request is counted there: see `NodePool::submit`.
    async fn broadcast(&self, broadcast_request: &BroadcastRequest) -> BroadcastOutcome {
        self.client.broadcast(broadcast_request).await
    }

    /// A number that is free too early makes of two transactions one, and never two payments of one.
    async fn next_number(
        &self,
        address: &str,
        since: ChainMoment,
    ) -> Result<Option<u64>, ChainError> {
        self.client.next_number(address, since).await
    }

    async fn sightings(
        &self,
        transactions: &[TrackedTransaction],
        now_ms: u64,
    ) -> Vec<Result<TransactionSighting, ChainError>> {
        let mut sightings = self.client.sightings(transactions, now_ms).await;
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
        let end = Instant::now() + self.patience;
        let mut again = Vec::new();
        for some in asked.chunks(AT_ONCE) {
            match timeout_at(end, witnessed(self.client.sightings(some, now_ms))).await {
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
        witnessed(self.client.signatures_in_block(transaction, by)).await
    }

    async fn fee_estimates(&self) -> Result<[FeeEstimate; 3], ChainError> {
        self.client.fee_estimates().await
    }

    async fn head(&self) -> Result<Option<u64>, ChainError> {
        self.client.head().await
    }

    async fn balance(&self, address: &str, token: Option<&str>) -> Result<String, ChainError> {
        self.client.balance(address, token).await
    }

    async fn allowance(
        &self,
        owner: &str,
        token: &str,
        spender: &str,
    ) -> Result<String, ChainError> {
        self.client.allowance(owner, token, spender).await
    }

    async fn gas_of(&self, queries: &Queries) -> Result<u64, ChainError> {
        self.client.gas_of(queries).await
    }

    async fn data_fee(&self) -> Result<u128, ChainError> {
        self.client.data_fee().await
    }

    async fn transfer_burn(&self, payload: &Payload) -> Result<TransferBurn, ChainError> {
        self.client.transfer_burn(payload).await
    }

    async fn token_facts(&self, token: &str) -> Result<Option<TokenFacts>, ChainError> {
        self.client.token_facts(token).await
    }

    async fn simulate(&self, trial: &SimulationRequest) -> Option<SimulationOutcome> {
        self.client.simulate(trial).await
    }

    fn health(&self) -> Vec<EndpointHealth> {
        self.client.health()
    }

    fn blocks(&self) -> Option<&dyn BlockSource> {
        self.client.blocks()
    }
}

/// What is to be said of a transaction that has ended by `said`, once more nodes were asked `again`: without their word
/// a block has it that may go, or nothing is known. Anyone who hears that it failed may pay again.
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
            "one node says that it failed or can never be mined, and more nodes must say so: {}",
            error.into_reason()
        ))),
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::networks::Signed;

    use super::*;
    use crate::chain_rpc::Inclusion;

    /// What is left out answers as if the chain had nothing of it: such as no fee for data.
    #[test]
    fn every_method_of_a_client__should_be_passed_on() {
        let (_, client) = include_str!("mod.rs")
            .split_once("pub trait ChainClient")
            .unwrap();
        let (client, _) = client.split_once("\n}\n").unwrap();
        let methods = client.lines().filter_map(|line| {
            let line = line.strip_prefix("    ")?;
            let line = line.strip_prefix("async ").unwrap_or(line);
            line.strip_prefix("fn ")?.split_once('(')
        });
        let methods: Vec<_> = methods.map(|(name, _)| name).collect();
        assert!(methods.len() > 10, "{methods:?}");
        for method in methods {
            let passed_on = format!("self.client.{method}(");
            assert!(
                include_str!("witnessed.rs").contains(&passed_on),
                "{method}"
            );
        }
    }

    /// It says this of all transactions by one node's word, and nothing by that of two.
    struct OneWord(TransactionSighting);

    #[async_trait]
    impl ChainClient for OneWord {
        async fn chain_data(&self, _: &Queries, _: u64) -> Result<ChainData, ChainError> {
            Err(ChainError::unknown("not asked"))
        }

        async fn broadcast(&self, _: &BroadcastRequest) -> BroadcastOutcome {
            BroadcastOutcome::Unknown("not sent".into())
        }

        async fn sightings(
            &self,
            transactions: &[TrackedTransaction],
            _: u64,
        ) -> Vec<Result<TransactionSighting, ChainError>> {
            if is_witnessed() {
                // The other node is silent.
                return std::future::pending().await;
            }
            transactions.iter().map(|_| Ok(self.0.clone())).collect()
        }

        async fn balance(&self, _: &str, _: Option<&str>) -> Result<String, ChainError> {
            Err(ChainError::unknown("not asked"))
        }
    }

    async fn said(sighting: TransactionSighting) -> Vec<Result<TransactionSighting, ChainError>> {
        let client = EndsWitnessed {
            client: Arc::new(OneWord(sighting)),
            patience: Duration::from_millis(50),
        };
        let one = TrackedTransaction {
            signed: Signed {
                transaction: "0x02".into(),
                tx_hash: "0x12".into(),
            },
            from: "0x01".into(),
            sent_at_ms: 0,
        };
        // More than are asked for at once: all of them together have that time.
        let many = vec![one; 20 * AT_ONCE];
        let within = Duration::from_secs(20);
        let said = tokio::time::timeout(within, client.sightings(&many, 0)).await;
        let said = said.expect("a silent node holds up the round");
        assert_eq!(said.len(), many.len());
        said
    }

    fn inclusion(success: bool) -> Inclusion {
        Inclusion { block: 7, success }
    }

    #[tokio::test]
    async fn a_silent_node__should_not_hold_up_a_round_for_longer_than_its_patience() {
        for one in said(TransactionSighting::Final(inclusion(true))).await {
            assert_eq!(one, Ok(TransactionSighting::Mined(inclusion(true))));
        }
    }

    #[tokio::test]
    async fn no_transaction__should_have_failed_in_its_block_by_the_word_of_one_node() {
        for sighting in [
            TransactionSighting::Final(inclusion(false)),
            TransactionSighting::Mined(inclusion(false)),
            TransactionSighting::Replaced(None),
            TransactionSighting::Expired,
        ] {
            for one in said(sighting).await {
                let reason = one.expect_err("one node said it").into_reason();
                assert!(reason.contains("one node says"), "{reason}");
            }
        }
    }
}
