//! What a process keeps in memory of refused transactions: hints, which begin anew with it. The directory of vaults has
//! them, and gives them to the vaults.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use covault_core::{
    ids::RequestId,
    networks::{Purpose, Resource},
};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::requests::{account::ChainAccount, void_answers::VoidAnswers};

/// Most payloads in memory: about 10 MB. With one more all are read anew.
const MOST_PAYLOADS: usize = 65_536;
/// Between two looks at the refused transactions of an account beside its requests: less than a minute, so that a wallet that
/// pays once a minute looks each time.
const LOOK_PAUSE: Duration = Duration::from_secs(55);

/// All of it.
#[derive(Default)]
pub struct RefusedLooks {
    /// What nodes have said of refused transactions that never come.
    pub void: RefusedVoid,
    /// Whose refused transactions are asked about beside its requests.
    pub ended: EndedLooks,
    /// What refused requests were to do.
    pub payloads: RefusedPayloads,
}

/// Those about the refused transactions of requests. A restart begins anew.
#[derive(Default)]
pub struct RefusedVoid(Mutex<HashMap<RequestId, VoidAnswers>>);

impl RefusedVoid {
    /// Nodes say that the transaction of this request never comes. True when that counts by now.
    pub fn add(&self, request: RequestId, settling_ms: u64) -> bool {
        let mut all = self.0.lock();
        all.retain(|_, it| !it.are_forgotten());
        let answers = all.entry(request).or_insert_with(VoidAnswers::new);
        answers.add(settling_ms)
    }

    /// They say something else, or nothing.
    pub fn clear(&self, request: RequestId) {
        self.0.lock().remove(&request);
    }
}

/// When the refused transactions of an account were last asked about beside its requests.
#[derive(Default)]
pub struct EndedLooks(Mutex<HashMap<ChainAccount, Option<Instant>>>);

impl EndedLooks {
    /// A look at those of this account begins. False while there is one, and for nearly a minute after: what nodes never say must
    /// not cost them calls with each request.
    pub fn begin(&self, account: &ChainAccount) -> bool {
        let mut all = self.0.lock();
        all.retain(|_, ended| ended.is_none_or(|ended| ended.elapsed() < LOOK_PAUSE));
        match all.entry(account.clone()) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert(None);
                true
            }
        }
    }

    /// It has ended.
    pub fn end(&self, account: &ChainAccount) {
        let mut all = self.0.lock();
        all.insert(account.clone(), Some(Instant::now()));
    }
}

/// What a refused request was to do.
pub struct RefusedPayload {
    /// What its transaction does.
    pub purpose: Purpose,
    /// SHA-256 of its payload.
    pub hash: [u8; 32],
    /// What stands for its transaction as a whole, where its client has built that.
    pub whole: Vec<Resource>,
}

/// What refused requests were to do, read from the store once: a request that has failed never changes.
#[derive(Default)]
pub struct RefusedPayloads(Mutex<HashMap<RequestId, Arc<RefusedPayload>>>);

impl RefusedPayloads {
    /// That of a request, where it was read.
    pub fn get(&self, request: RequestId) -> Option<Arc<RefusedPayload>> {
        self.0.lock().get(&request).cloned()
    }

    /// It was read.
    pub fn keep(&self, request: RequestId, payload: Arc<RefusedPayload>) {
        let mut all = self.0.lock();
        if all.len() >= MOST_PAYLOADS {
            all.clear();
        }
        all.insert(request, payload);
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::networks::Network;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_never_comes__should_be_said_several_times_and_for_long() {
        let (refused, request) = (RefusedVoid::default(), RequestId::from_random([7; 16]));
        let pass = async |seconds| tokio::time::advance(Duration::from_secs(seconds)).await;
        // Often, and not for long.
        for _ in 0..10 {
            assert!(!refused.add(request, 180_000));
        }
        pass(170).await;
        // As many requests ask at once: at two times, however many they are.
        for _ in 0..10 {
            assert!(!refused.add(request, 180_000));
        }
        pass(45).await;
        assert!(!refused.add(request, 180_000));
        pass(45).await;
        assert!(refused.add(request, 180_000));
        // For long, and not often: something else was said in between.
        refused.clear(request);
        for _ in 0..3 {
            assert!(!refused.add(request, 180_000));
            pass(100).await;
        }
        assert!(refused.add(request, 180_000));
        // What was said long ago does not go on.
        pass(600).await;
        assert!(!refused.add(request, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn looks__should_pause() {
        let account = |address: &str| ChainAccount {
            network: Network::Tron,
            chain_id: None,
            address: address.to_owned(),
        };
        let (looks, one, other) = (EndedLooks::default(), account("one"), account("other"));
        assert!(looks.begin(&one));
        // However long it takes: one at a time, of each account.
        tokio::time::advance(Duration::from_secs(3_600)).await;
        assert!(!looks.begin(&one) && looks.begin(&other));
        looks.end(&one);
        tokio::time::advance(Duration::from_secs(54)).await;
        assert!(!looks.begin(&one));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(looks.begin(&one) && !looks.begin(&other));
    }
}
