//! Stellar and TON in memory, each with one account: its transactions are taken in the order of their numbers, none
//! twice.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use covault_actors::chain_rpc::{
    BroadcastOutcome, BroadcastRequest, ChainClient, ChainError, TrackedTransaction,
    TransactionSighting,
};
use covault_core::networks::{ChainData, ChainMoment, Network, Queries, stellar, ton};

use crate::chain_double::FINAL;

/// See the module.
pub struct NumberedDouble {
    network: Network,
    /// The number of the next transaction.
    next: Mutex<u64>,
}

impl NumberedDouble {
    pub fn new(network: Network, next: u64) -> Arc<Self> {
        Arc::new(Self {
            network,
            next: Mutex::new(next),
        })
    }

    /// The number of the next transaction.
    pub fn next(&self) -> u64 {
        *self.next.lock().unwrap()
    }
}

#[async_trait]
impl ChainClient for NumberedDouble {
    async fn chain_data(&self, queries: &Queries, now_ms: u64) -> Result<ChainData, ChainError> {
        let (next, end_s) = (self.next(), now_ms / 1_000 + 300);
        Ok(match queries {
            Queries::Stellar(queries) => ChainData::Stellar(stellar::ChainData {
                sequence: next - 1,
                base_fee: 100,
                max_time: end_s,
                destination_exists: queries.destination.as_ref().map(|_| true),
            }),
            Queries::Ton(ton::Queries::Transaction(queries)) => {
                let said = ton::TransactionChainData {
                    seqno: next.try_into().unwrap(),
                    deployed: true,
                    valid_until: queries.valid_until.then(|| end_s.try_into().unwrap()),
                    recipient_deployed: queries.recipient.as_ref().map(|_| true),
                    jetton: None,
                };
                ChainData::Ton(ton::ChainData::Transaction(said))
            }
            other => panic!("nothing is known about {other:?}"),
        })
    }

    async fn broadcast(&self, broadcast_request: &BroadcastRequest) -> BroadcastOutcome {
        let rules = self.network.rules();
        let number = rules.sent_number(&broadcast_request.signed, "").unwrap();
        let mut next = self.next.lock().unwrap();
        if number > Some(*next) {
            return BroadcastOutcome::Unknown("an earlier one is not there yet".into());
        }
        assert_eq!(number, Some(*next), "two transactions with one number");
        *next += 1;
        BroadcastOutcome::Accepted
    }

    async fn next_number(&self, _: &str, _: ChainMoment) -> Result<Option<u64>, ChainError> {
        Ok(Some(self.next()))
    }

    async fn sightings(
        &self,
        transactions: &[TrackedTransaction],
        _now_ms: u64,
    ) -> Vec<Result<TransactionSighting, ChainError>> {
        transactions.iter().map(|_| Ok(FINAL)).collect()
    }

    async fn balance(&self, _address: &str, _token: Option<&str>) -> Result<String, ChainError> {
        Ok("0".into())
    }
}
