//! How old a claims file is, in its own words: how much it has promised and until when. Other nodes
//! remember the same from announcements ([`crate::message::Announcement`]), so that a file that was
//! put back is noticed.

use std::collections::BTreeMap;

use covault_core::order::NodeId;

use super::{
    BANS,
    rows::{RowKind, RowSpace, Rows},
};

/// Height, latest time and when something was missing, of [`ClaimsAge`]: one row.
const AGE: RowSpace<(), (u64, u64, u64)> = RowSpace::new(RowKind::Age);
/// Root public key -> the latest epoch whose shares must not sign.
const BLOCKED: RowSpace<Vec<u8>, u32> = RowSpace::new(RowKind::Blocked);
/// Node -> height and announcement (an envelope) with the highest height that was heard of it.
const PEERS: RowSpace<[u8; 32], (u64, Vec<u8>)> = RowSpace::new(RowKind::Peer);

/// How long limits count as used up after spending was forgotten: as long as one looks back, 24 hours
/// and a bucket.
pub(super) const SPENDING_WINDOW_MS: u64 = 86_400_000 + super::windows::BUCKET_MS;

/// The age of a claims file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClaimsAge {
    /// Claims and bans granted so far. Never falls, unless the file is put back.
    pub height: u64,
    /// The latest time of a granted claim, in milliseconds since the Unix epoch: the time of the
    /// limits never runs back behind it.
    pub newest_ms: u64,
    /// When it was noticed that promises of this node are missing here; 0: never.
    pub forgotten_ms: u64,
}

impl ClaimsAge {
    /// The time that limits are counted at.
    pub(super) fn time(&self, now_ms: u64) -> u64 {
        now_ms.max(self.newest_ms)
    }

    /// Whether something that a limit still has to count may be missing.
    pub(super) fn lacks_spending(&self, now_ms: u64) -> bool {
        self.forgotten_ms > 0
            && self.time(now_ms) < self.forgotten_ms.saturating_add(SPENDING_WINDOW_MS)
    }

    pub(super) fn granted(&mut self, now_ms: u64) {
        self.height = self.height.saturating_add(1);
        self.newest_ms = self.time(now_ms);
    }
}

/// Epochs by root public key: no share of them, or of one before, signs.
pub(super) type BlockedEpochs = BTreeMap<Vec<u8>, u32>;
/// The highest height of other nodes, with the announcement that proves it.
pub(crate) type PeerHeights = BTreeMap<NodeId, (u64, Vec<u8>)>;

/// Promises of this node are missing here.
#[derive(Clone, Debug, Default)]
pub(crate) struct LostClaims {
    /// The height that a peer has seen.
    pub seen: u64,
    /// Shares that must not sign: root public key and epoch, and all epochs before.
    pub blocked: Vec<(Vec<u8>, u32)>,
    /// Bans that were forgotten: root public key, and who.
    pub bans: Vec<(Vec<u8>, NodeId)>,
    /// Now, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

pub(super) fn load(rows: &Rows) -> Result<(ClaimsAge, BlockedEpochs, PeerHeights), redb::Error> {
    let mut age = ClaimsAge::default();
    if let Some(row) = rows.get(&AGE, &())? {
        (age.height, age.newest_ms, age.forgotten_ms) = row;
    }
    let mut blocked = BlockedEpochs::new();
    rows.visit(&BLOCKED, |root, epoch| {
        blocked.insert(root, epoch);
    })?;
    let mut peers = PeerHeights::new();
    rows.visit(&PEERS, |node, seen| {
        peers.insert(NodeId(node), seen);
    })?;
    Ok((age, blocked, peers))
}

pub(super) fn store(rows: &mut Rows, age: &ClaimsAge) -> Result<(), redb::Error> {
    let row = (age.height, age.newest_ms, age.forgotten_ms);
    rows.put(&AGE, &(), &row)
}

pub(super) fn block(blocked: &mut BlockedEpochs, root: &[u8], epoch: u32) -> u32 {
    let until = blocked.entry(root.to_vec()).or_default();
    *until = (*until).max(epoch);
    *until
}

/// Notes what is missing. The height is above the one that was seen from then on: the same sign does
/// not count twice.
pub(super) fn forget(
    rows: &mut Rows,
    forgotten: &LostClaims,
    age: &mut ClaimsAge,
) -> Result<(), redb::Error> {
    for (root, epoch) in &forgotten.blocked {
        let known = rows.get(&BLOCKED, root)?.unwrap_or_default();
        rows.put(&BLOCKED, root, &known.max(*epoch))?;
    }
    for (root, node) in &forgotten.bans {
        rows.put(&BANS, &(root.clone(), node.0), &forgotten.now_ms)?;
    }
    age.height = age.height.max(forgotten.seen).saturating_add(1);
    age.forgotten_ms = age.time(forgotten.now_ms);
    Ok(())
}

pub(super) fn remember(rows: &mut Rows, peers: &PeerHeights) -> Result<(), redb::Error> {
    for (node, seen) in peers {
        rows.put(&PEERS, &node.0, seen)?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::{path::Path, time::Duration};

    use covault_core::ids::{RequestId, SessionId};

    use super::*;
    use crate::claims::{Claim, ClaimError, Claims};

    fn claim(session: u8, now_ms: u64) -> Claim {
        Claim {
            session: SessionId::from_bytes([session; 16]),
            attempt: 0,
            digest: None,
            transaction: None,
            spending: Vec::new(),
            now_ms,
            root: vec![5; 33],
            approved_until_ms: None,
            hold: None,
        }
    }

    async fn reopen(path: &Path) -> Claims {
        for _ in 0..500 {
            if let Ok(claims) = Claims::open(path, true) {
                return claims;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the claims file stays locked");
    }

    #[tokio::test]
    async fn claims__should_know_their_age_and_what_is_missing_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("claims.redb");
        let (root, peer) = ([5; 33], NodeId([6; 32]));
        let claims = reopen(&path).await;
        assert_eq!(claims.age(), ClaimsAge::default());
        claims.claim(claim(1, 5_000)).await.unwrap();
        // Its time never runs back, and what is refused is no promise.
        claims.claim(claim(2, 4_000)).await.unwrap();
        claims.claim(claim(2, 9_000)).await.unwrap_err();
        claims.ban(&root, peer, 1).await.unwrap();
        let age = claims.age();
        assert_eq!((age.height, age.newest_ms), (3, 5_000));
        let seen = PeerHeights::from([(peer, (7, vec![1, 2]))]);
        claims.remember(seen.clone()).await.unwrap();
        let forgotten = LostClaims {
            seen: 100,
            blocked: vec![(root.to_vec(), 4), (root.to_vec(), 2)],
            bans: vec![(root.to_vec(), NodeId([7; 32]))],
            now_ms: 3_000,
        };
        claims.forgotten(forgotten).await.unwrap();
        drop(claims);
        let claims = reopen(&path).await;
        let age = claims.age();
        assert_eq!((age.height, age.forgotten_ms), (101, 5_000));
        assert!(age.lacks_spending(5_000 + SPENDING_WINDOW_MS - 1));
        assert!(!age.lacks_spending(5_000 + SPENDING_WINDOW_MS));
        assert!(claims.blocked(&root, 2) && claims.blocked(&root, 4));
        assert!(!claims.blocked(&root, 5) && !claims.blocked(&[4; 33], 0));
        assert!(claims.banned(&root, &NodeId([7; 32])) && claims.banned(&root, &peer));
        assert_eq!(claims.stored_peers(), seen);
        // What an approval was used for may be missing too, until it is over.
        let request = |number: u8, now_ms, approved: bool| Claim {
            digest: Some((RequestId::from_bytes([number; 16]), [number; 32])),
            approved_until_ms: approved.then_some(u64::MAX),
            ..claim(number, now_ms)
        };
        let unknown = Err(ClaimError::SpendingUnknown);
        assert_eq!(claims.claim(request(7, 6_000, true)).await, unknown);
        claims.claim(request(7, 6_000, false)).await.unwrap();
        let later = 5_000 + SPENDING_WINDOW_MS;
        claims.claim(request(8, later, true)).await.unwrap();
    }
}
