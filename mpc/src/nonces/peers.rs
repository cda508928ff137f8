//! What peers have committed to ahead.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use covault_core::order::NodeId;

use super::{MOST, table::ShareEpoch};
use crate::backend::Commitments;

/// How many are parsed at a time: two points each, about a millisecond together.
const CHUNK: usize = 16;
/// Bytes of one nonce's commitments at most.
const MAX_COMMITMENTS: usize = 128;

#[derive(Clone)]
enum Heard {
    Raw(Vec<u8>),
    Parsed(Arc<Commitments>),
}

type ByPeer = HashMap<(ShareEpoch, NodeId), BTreeMap<u64, Heard>>;

/// Commitments of peers by number, in memory: at most [`MOST`] of each peer and key.
#[derive(Default)]
pub(crate) struct PeerNonces(Mutex<ByPeer>);

impl PeerNonces {
    fn lock(&self) -> MutexGuard<'_, ByPeer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a batch whose sender is certain, and holds a share of the key. What was heard first of
    /// a number stays: whoever says two things about one breaks its own signatures only.
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
                known.entry(id).or_insert(Heard::Raw(commitments));
            }
        }
        while known.len() > MOST {
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
                    Heard::Raw(bytes) => Some((*id, bytes.clone())),
                    Heard::Parsed(_) => None,
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
        for (id, commitments) in parsed {
            match (known.get_mut(&id), commitments) {
                (Some(heard), Some(commitments)) => *heard = Heard::Parsed(Arc::new(commitments)),
                (Some(_), None) => {
                    tracing::warn!(?peer, "a peer's commitments cannot be read");
                    known.remove(&id);
                }
                (None, _) => {}
            }
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
        let found: Vec<Heard> = {
            let mut peers = self.lock();
            let known = peers.get_mut(&(of.clone(), peer))?;
            let found: Option<Vec<_>> = ids.iter().map(|id| known.get(id).cloned()).collect();
            let found = found?;
            known.retain(|id, _| !ids.contains(id));
            found
        };
        found
            .into_iter()
            .map(|heard| match heard {
                Heard::Parsed(commitments) => Some(commitments),
                Heard::Raw(bytes) => Commitments::parse(bytes).map(Arc::new),
            })
            .collect()
    }

    /// Forgets what belongs to none of these shares.
    pub(crate) fn retain(&self, current: &[ShareEpoch]) {
        self.lock().retain(|(of, _), _| current.contains(of));
    }
}
