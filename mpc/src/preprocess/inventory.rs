//! Which nonces the nodes have made ahead, and which of them were named in requests.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use covault_core::{order::NodeId, port::Clock};
use parking_lot::{Mutex, MutexGuard, RwLock};

use super::MAX_POOL_SIZE;

/// How often a node is asked about one key, in milliseconds.
const ASK_MS: u64 = 1_000;
/// How long a node's nonces are left alone after another did not know them, in milliseconds: it
/// has asked for them.
const SKIP_MS: u64 = 1_000;
/// Keys whose nonces are known. More are signed with in two rounds.
const MAX_KEYS: usize = 10_000;

/// Nonces of one node that a request could name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NonceLevel {
    /// The root public key that they are for.
    pub root: Vec<u8>,
    /// Generation of its shares.
    pub epoch: u32,
    /// Whose they are.
    pub node: NodeId,
    /// How many.
    pub known: usize,
}

/// To be asked of a node: which nonces it has, that it may forget those below this number.
pub(crate) struct NonceQuery {
    pub node: NodeId,
    pub spent_below: u64,
}

#[derive(Default)]
struct KnownNonces {
    ids: BTreeSet<u64>,
    /// No lower number is ever named: numbers grow, and are named in their order.
    spent_below: u64,
    asked_ms: Option<u64>,
    skipped_until_ms: u64,
}

struct KeyNonces {
    epoch: u32,
    /// In order: whom to ask must not depend on chance.
    nodes: BTreeMap<NodeId, KnownNonces>,
}

/// What is known of all keys that sign.
pub(crate) struct NonceInventory {
    clock: Arc<dyn Clock>,
    pools: Mutex<HashMap<Vec<u8>, KeyNonces>>,
    /// Whose nonces are of interest.
    nodes: RwLock<HashSet<NodeId>>,
}

impl KnownNonces {
    fn ask(&mut self, node: NodeId, now_ms: u64) -> Option<NonceQuery> {
        let lately = |asked_ms: u64| now_ms.abs_diff(asked_ms) < ASK_MS;
        if self.asked_ms.is_some_and(lately) {
            return None;
        }
        self.asked_ms = Some(now_ms);
        Some(NonceQuery {
            node,
            spent_below: self.spent_below,
        })
    }
}

impl NonceInventory {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            pools: Mutex::default(),
            nodes: RwLock::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, KeyNonces>> {
        self.pools.lock()
    }

    /// From now on the nonces of these nodes for this key are of interest.
    pub(crate) fn want(&self, root: &[u8], epoch: u32, holders: &[NodeId]) {
        let mut pools = self.lock();
        if pools.len() >= MAX_KEYS && !pools.contains_key(root) {
            return;
        }
        let pool = pools.entry(root.to_vec()).or_insert_with(|| KeyNonces {
            epoch,
            nodes: BTreeMap::new(),
        });
        if pool.epoch != epoch {
            pool.epoch = epoch;
            for known in pool.nodes.values_mut() {
                known.ids.clear();
                known.asked_ms = None;
            }
            pool.nodes.retain(|node, _| holders.contains(node));
        }
        for holder in holders {
            if pool.nodes.contains_key(holder) {
                continue;
            }
            pool.nodes.insert(*holder, KnownNonces::default());
            self.nodes.write().insert(*holder);
        }
    }

    /// Whether a message of this node about nonces is worth a look.
    pub(crate) fn expects(&self, node: &NodeId) -> bool {
        self.nodes.read().contains(node)
    }

    /// Notes what a node, who is certain, has ready; it has nothing below `floor`.
    pub(crate) fn heard(
        &self,
        node: &NodeId,
        (root, epoch): (Vec<u8>, u32),
        floor: u64,
        mut ids: Vec<u64>,
    ) {
        // No node has more.
        ids.truncate(MAX_POOL_SIZE);
        let mut pools = self.lock();
        let known = pools
            .get_mut(&root)
            .filter(|pool| pool.epoch == epoch)
            .and_then(|pool| pool.nodes.get_mut(node));
        let Some(known) = known else { return };
        known.ids = known.ids.split_off(&floor);
        let new = ids.into_iter().filter(|id| *id >= known.spent_below);
        known.ids.extend(new);
        while known.ids.len() > MAX_POOL_SIZE {
            known.ids.pop_first();
        }
    }

    /// Names nonces for `inputs` inputs: a list per signer, or none at all when one signer has too
    /// few; and who is to be asked for more. No nonce is named twice.
    pub(crate) fn name(
        &self,
        root: &[u8],
        signers: &[NodeId],
        inputs: usize,
    ) -> (Vec<Vec<u64>>, Vec<NonceQuery>) {
        let now_ms = self.clock.now_ms();
        let mut pools = self.lock();
        let Some(pool) = pools.get_mut(root) else {
            return (Vec::new(), Vec::new());
        };
        let mut asks = Vec::new();
        let mut enough = true;
        for signer in signers {
            let Some(known) = pool.nodes.get_mut(signer) else {
                enough = false;
                continue;
            };
            if known.ids.len() < inputs {
                enough = false;
                asks.extend(known.ask(*signer, now_ms));
            }
            enough &= now_ms >= known.skipped_until_ms;
        }
        if !enough {
            return (Vec::new(), asks);
        }
        let mut named = Vec::with_capacity(signers.len());
        for signer in signers {
            let Some(known) = pool.nodes.get_mut(signer) else {
                return (Vec::new(), asks);
            };
            let mut ids = Vec::with_capacity(inputs);
            while ids.len() < inputs {
                let Some(id) = known.ids.pop_first() else {
                    return (Vec::new(), asks);
                };
                known.spent_below = id.saturating_add(1);
                ids.push(id);
            }
            named.push(ids);
        }
        (named, asks)
    }

    /// `reporter` could not use nonces of `of`.
    pub(crate) fn lacking(&self, root: &[u8], reporter: NodeId, of: NodeId) -> Option<NonceQuery> {
        let now_ms = self.clock.now_ms();
        let mut pools = self.lock();
        let known = pools.get_mut(root)?.nodes.get_mut(&of)?;
        if reporter == of {
            // What we know of it is old.
            known.ids.clear();
            return known.ask(of, now_ms);
        }
        known.skipped_until_ms = now_ms.saturating_add(SKIP_MS);
        None
    }

    pub(crate) fn levels(&self) -> Vec<NonceLevel> {
        let pools = self.lock();
        let levels = pools.iter().flat_map(|(root, pool)| {
            pool.nodes.iter().map(|(node, known)| NonceLevel {
                root: root.clone(),
                epoch: pool.epoch,
                node: *node,
                known: known.ids.len(),
            })
        });
        levels.collect()
    }

    /// Asks every holder, as after a start.
    pub(crate) fn ask_all(&self, root: &[u8]) -> Vec<NonceQuery> {
        let now_ms = self.clock.now_ms();
        let mut pools = self.lock();
        let nodes = pools
            .get_mut(root)
            .into_iter()
            .flat_map(|pool| &mut pool.nodes);
        nodes
            .filter_map(|(node, known)| known.ask(*node, now_ms))
            .collect()
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use covault_core::testing::ManualClock;

    const ROOT: &[u8] = &[9; 32];

    fn node(number: u8) -> NodeId {
        NodeId([number; 32])
    }

    fn preprocess() -> (Arc<ManualClock>, NonceInventory) {
        let clock = Arc::new(ManualClock::default());
        clock.0.store(1_000_000, Ordering::Relaxed);
        let preprocess = NonceInventory::new(Arc::clone(&clock) as Arc<dyn Clock>);
        preprocess.want(ROOT, 0, &[node(1), node(2)]);
        (clock, preprocess)
    }

    fn hear(preprocess: &NonceInventory, from: u8, ids: std::ops::Range<u64>) {
        preprocess.heard(&node(from), (ROOT.to_vec(), 0), 0, ids.collect());
    }

    #[test]
    fn name__should_never_give_a_number_twice() {
        let (_, preprocess) = preprocess();
        hear(&preprocess, 1, 0..10);
        hear(&preprocess, 2, 100..110);
        let signers = [node(1), node(2)];
        let mut seen = BTreeSet::new();
        loop {
            let (named, _) = preprocess.name(ROOT, &signers, 3);
            if named.is_empty() {
                break;
            }
            assert_eq!((named[0].len(), named[1].len()), (3, 3));
            for id in named.into_iter().flatten() {
                assert!(seen.insert(id), "{id} twice");
            }
            // The node says again what it has, also what was named and is on its way.
            hear(&preprocess, 1, 0..10);
            hear(&preprocess, 2, 100..110);
        }
        assert_eq!(seen.len(), 18);
        // Not after a change of epoch and back either.
        preprocess.want(ROOT, 1, &signers);
        preprocess.want(ROOT, 0, &signers);
        hear(&preprocess, 1, 0..10);
        hear(&preprocess, 2, 100..110);
        let (named, _) = preprocess.name(ROOT, &signers, 1);
        assert_eq!(named, [[9], [109]]);
    }

    #[test]
    fn name__should_ask_who_has_too_few_and_not_too_often() {
        let (clock, preprocess) = preprocess();
        hear(&preprocess, 1, 5..8);
        let signers = [node(1), node(2)];
        let asked = |inputs| {
            let (named, asks) = preprocess.name(ROOT, &signers, inputs);
            assert!(named.is_empty());
            asks.into_iter()
                .map(|ask| (ask.node, ask.spent_below))
                .collect::<Vec<_>>()
        };
        assert_eq!(asked(1), [(node(2), 0)]);
        assert_eq!(asked(1), []);
        assert_eq!(asked(4), [(node(1), 0)]);
        clock.0.fetch_add(ASK_MS, Ordering::Relaxed);
        assert_eq!(asked(1), [(node(2), 0)]);
        hear(&preprocess, 2, 0..9);
        assert_eq!(preprocess.name(ROOT, &signers, 3).0.len(), 2);
        clock.0.fetch_add(ASK_MS, Ordering::Relaxed);
        // What was named may go there.
        assert_eq!(asked(1), [(node(1), 8)]);
    }

    #[test]
    fn lacking__should_forget_what_is_gone_and_spare_what_is_unknown() {
        let (clock, preprocess) = preprocess();
        let signers = [node(1), node(2)];
        hear(&preprocess, 1, 0..9);
        hear(&preprocess, 2, 0..9);
        assert!(preprocess.lacking(ROOT, node(1), node(2)).is_none());
        assert!(preprocess.name(ROOT, &signers, 1).0.is_empty());
        clock.0.fetch_add(SKIP_MS, Ordering::Relaxed);
        assert_eq!(preprocess.name(ROOT, &signers, 1).0, [[0], [0]]);
        assert_eq!(
            preprocess
                .lacking(ROOT, node(1), node(1))
                .unwrap()
                .spent_below,
            1
        );
        assert!(preprocess.name(ROOT, &signers, 1).0.is_empty());
    }

    #[test]
    fn heard__should_ignore_unadmitted_nodes_other_epochs_and_other_keys() {
        let (_, preprocess) = preprocess();
        preprocess.heard(&node(3), (ROOT.to_vec(), 0), 0, vec![1]);
        preprocess.heard(&node(1), (ROOT.to_vec(), 1), 0, vec![1]);
        preprocess.heard(&node(1), (vec![1], 0), 0, vec![1]);
        assert!(preprocess.levels().iter().all(|level| level.known == 0));
        assert!(preprocess.expects(&node(1)) && !preprocess.expects(&node(3)));
        preprocess.heard(&node(1), (ROOT.to_vec(), 0), 0, (0..10_000).collect());
        assert_eq!(
            preprocess.levels().iter().map(|level| level.known).max(),
            Some(MAX_POOL_SIZE)
        );
        // A node that began again.
        preprocess.heard(&node(1), (ROOT.to_vec(), 0), 20_000, vec![20_001]);
        let levels = preprocess.levels();
        let level = levels.iter().find(|level| level.node == node(1));
        assert_eq!(level.map(|level| level.known), Some(1));
    }
}
