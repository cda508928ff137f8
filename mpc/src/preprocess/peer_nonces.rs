//! What peers have committed to ahead.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use covault_core::order::NodeId;
use parking_lot::{Mutex, MutexGuard};

use super::MAX_POOL_SIZE;
use crate::{backend::Commitments, shares::ShareEpoch};

/// How many are parsed at a time: two points each, about a millisecond together.
const CHUNK: usize = 16;
/// Bytes of one nonce's commitments at most.
const MAX_COMMITMENTS: usize = 128;

#[derive(Clone)]
enum PeerNonce {
    Raw(Vec<u8>),
    Parsed(Arc<Commitments>),
}

type NoncesByPeer = HashMap<(ShareEpoch, NodeId), BTreeMap<u64, PeerNonce>>;

/// Commitments of peers by number, in memory: at most [`MAX_POOL_SIZE`] of each peer and key.
#[derive(Default)]
pub(crate) struct PeerNonces(Mutex<NoncesByPeer>);

impl PeerNonces {
    fn lock(&self) -> MutexGuard<'_, NoncesByPeer> {
        self.0.lock()
    }

    /// Notes a batch whose sender is certain, and holds a share of the key. What was heard first of
    /// a number stays: anyone who says two things about one breaks its own signatures only.
    pub(crate) fn heard(
        &self,
        of: ShareEpoch,
        peer: NodeId,
        floor: u64,
        nonces: Vec<(u64, Vec<u8>)>,
    ) {
        let mut peers = self.lock();
        let known = peers.entry((of, peer)).or_default();
        *known = known.split_off(&floor);
        for (id, commitments) in nonces {
            if id >= floor && commitments.len() <= MAX_COMMITMENTS {
                known.entry(id).or_insert(PeerNonce::Raw(commitments));
            }
        }
        while known.len() > MAX_POOL_SIZE {
            known.pop_first();
        }
    }

    /// Parses some that were not yet; false when none is left. For a thread that has nothing
    /// better to do: what is needed earlier is parsed when it is needed.
    pub(crate) fn parse_some(&self, of: &ShareEpoch, peer: NodeId) -> bool {
        let place = (of.clone(), peer);
        let raw: Vec<(u64, Vec<u8>)> = match self.lock().get(&place) {
            Some(known) => known
                .iter()
                .filter_map(|(id, heard)| match heard {
                    PeerNonce::Raw(bytes) => Some((*id, bytes.clone())),
                    PeerNonce::Parsed(_) => None,
                })
                .take(CHUNK)
                .collect(),
            None => return false,
        };
        let more = raw.len() == CHUNK;
        let parsed: Vec<(u64, Option<Commitments>)> = raw
            .into_iter()
            .map(|(id, bytes)| (id, Commitments::parse(bytes)))
            .collect();
        let mut peers = self.lock();
        let Some(known) = peers.get_mut(&place) else {
            return false;
        };
        let mut unreadable = 0_usize;
        for (id, commitments) in parsed {
            match (known.get_mut(&id), commitments) {
                (Some(heard), Some(commitments)) => {
                    *heard = PeerNonce::Parsed(Arc::new(commitments))
                }
                (Some(_), None) => {
                    unreadable = unreadable.saturating_add(1);
                    known.remove(&id);
                }
                (None, _) => {}
            }
        }
        drop(peers);
        if unreadable > 0 {
            tracing::debug!(?peer, unreadable, "a peer's commitments cannot be read");
        }
        more
    }

    /// Takes out commitments for a session; `None`, and nothing is taken, when one is not known.
    pub(crate) fn take(
        &self,
        of: &ShareEpoch,
        peer: NodeId,
        ids: &[u64],
    ) -> Option<Vec<Arc<Commitments>>> {
        let found: Vec<PeerNonce> = {
            let mut peers = self.lock();
            let known = peers.get_mut(&(of.clone(), peer))?;
            let found: Option<Vec<_>> = ids.iter().map(|id| known.get(id).cloned()).collect();
            let found = found?;
            for id in ids {
                known.remove(id);
            }
            found
        };
        found
            .into_iter()
            .map(|heard| match heard {
                PeerNonce::Parsed(commitments) => Some(commitments),
                PeerNonce::Raw(bytes) => Commitments::parse(bytes).map(Arc::new),
            })
            .collect()
    }

    /// Forgets what belongs to none of these shares.
    pub(crate) fn retain(&self, current: &[ShareEpoch]) {
        self.lock().retain(|(of, _), _| current.contains(of));
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use frost_ed25519::{keys::SigningShare, round1};

    use super::*;
    use crate::{entropy::EntropyRng, test_support::SystemEntropy};

    const PEER: NodeId = NodeId([1; 32]);

    fn shares(epoch: u32) -> ShareEpoch {
        ShareEpoch {
            root: vec![5; 32],
            epoch,
        }
    }

    fn commitments() -> Vec<u8> {
        let mut one = [0; 32];
        one[0] = 1;
        let share = SigningShare::deserialize(&one).unwrap();
        let (_, commitments) = round1::commit(&share, &mut EntropyRng(&SystemEntropy));
        commitments.serialize().unwrap()
    }

    fn batch(ids: std::ops::Range<u64>) -> Vec<(u64, Vec<u8>)> {
        ids.map(|id| (id, commitments())).collect()
    }

    #[test]
    fn take__should_give_all_or_none_and_each_once() {
        let peers = PeerNonces::default();
        peers.heard(shares(0), PEER, 0, batch(0..40));
        let take = |ids: &[u64]| peers.take(&shares(0), PEER, ids);
        assert!(take(&[3, 99]).is_none());
        // Parsed ahead or not.
        assert!(peers.parse_some(&shares(0), PEER));
        assert_eq!(take(&[3, 39]).unwrap().len(), 2);
        assert!(take(&[3]).is_none());
        assert!(peers.take(&shares(1), PEER, &[4]).is_none());
        assert!(peers.take(&shares(0), NodeId([2; 32]), &[4]).is_none());
        while peers.parse_some(&shares(0), PEER) {}
        assert!(take(&[4, 38]).is_some());
        peers.retain(&[shares(1)]);
        assert!(take(&[5]).is_none());
    }

    #[test]
    fn heard__should_be_bounded_and_keep_what_was_said_first() {
        let peers = PeerNonces::default();
        let first = batch(7..8);
        peers.heard(shares(0), PEER, 0, first.clone());
        peers.heard(shares(0), PEER, 0, batch(7..8));
        let taken = peers.take(&shares(0), PEER, &[7]).unwrap();
        let parsed = Commitments::parse(first[0].1.clone()).unwrap();
        assert!(taken[0].same(&parsed));
        // What cannot be read is not there, nor is what is too large, used up, or too much.
        peers.heard(shares(0), PEER, 0, vec![(8, vec![1; 9]), (9, vec![0; 200])]);
        assert!(peers.take(&shares(0), PEER, &[8]).is_none());
        assert!(peers.take(&shares(0), PEER, &[9]).is_none());
        peers.heard(shares(0), PEER, 20, batch(15..25));
        assert!(peers.take(&shares(0), PEER, &[19]).is_none());
        let one = commitments();
        let many = (100..100 + 2 * MAX_POOL_SIZE as u64).map(|id| (id, one.clone()));
        peers.heard(shares(0), PEER, 0, many.collect());
        assert_eq!(
            peers.lock().values().map(BTreeMap::len).sum::<usize>(),
            MAX_POOL_SIZE
        );
    }
}
