//! The store: never twice, whatever happens.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Arc, mpsc},
};

use covault_core::ids::{RequestId, SessionId};
use proptest::prelude::*;
use zeroize::Zeroizing;

use super::*;
use crate::test_support::SystemEntropy;

/// Memory that outlives the database on it, and tells when the database has closed it.
#[derive(Debug)]
struct SharedMemory {
    bytes: Arc<redb::backends::InMemoryBackend>,
    closed: mpsc::Sender<()>,
}

impl redb::StorageBackend for SharedMemory {
    fn len(&self) -> io::Result<u64> {
        self.bytes.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.bytes.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.bytes.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.bytes.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.bytes.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        // The test may be over.
        let _ = self.closed.send(());
        Ok(())
    }
}

/// A store that can be restarted.
struct TestStore {
    bytes: Arc<redb::backends::InMemoryBackend>,
    open: Option<(Claims, NonceStore, mpsc::Receiver<()>)>,
    sessions: u32,
}

impl TestStore {
    fn new() -> Self {
        let mut store = Self {
            bytes: Arc::default(),
            open: None,
            sessions: 0,
        };
        store.restart();
        store
    }

    fn restart(&mut self) {
        if let Some((claims, _, closed)) = self.open.take() {
            drop(claims);
            // Until the memory is let go: it is closed once when it was laid out, too.
            while closed.recv().is_ok() {}
        }
        let (sender, closed) = mpsc::channel();
        let claims = Claims::on(SharedMemory {
            bytes: Arc::clone(&self.bytes),
            closed: sender,
        })
        .unwrap();
        let nonces = NonceStore::new(b"keyring", &claims).unwrap();
        self.open = Some((claims, nonces, closed));
    }

    fn parts(&self) -> (&Claims, &NonceStore) {
        let (claims, nonces, _) = self.open.as_ref().unwrap();
        (claims, nonces)
    }

    fn keep(&self, of: &ShareEpoch, made: Vec<PreprocessedNonce>) -> Vec<u64> {
        let (claims, nonces) = self.parts();
        let batch = nonces.keep(claims, of, made, &SystemEntropy);
        let batch = futures::executor::block_on(batch).unwrap();
        batch.into_iter().map(|(id, _)| id).collect()
    }

    /// In a session of its own.
    fn take(&mut self, of: &ShareEpoch, ids: &[u64]) -> Result<Vec<PreprocessedNonce>, ClaimError> {
        self.sessions += 1;
        self.take_in(self.sessions, of, ids)
    }

    fn take_in(
        &self,
        session: u32,
        of: &ShareEpoch,
        ids: &[u64],
    ) -> Result<Vec<PreprocessedNonce>, ClaimError> {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&session.to_be_bytes());
        let claim = Claim {
            session: SessionId::from_bytes(id),
            attempt: 0,
            digest: Some((RequestId::from_bytes(id), [1; 32])),
            transaction: None,
            spending: Vec::new(),
            now_ms: 1,
            root: Vec::new(),
            approved_until_ms: None,
            hold: None,
        };
        let take = NonceSelection {
            of: of.clone(),
            ids: ids.to_vec(),
        };
        let (claims, nonces) = self.parts();
        let taken = futures::executor::block_on(nonces.claim(claims, claim, Some(take)))?;
        Ok(nonces.open(taken).unwrap())
    }
}

fn shares(epoch: u32) -> ShareEpoch {
    ShareEpoch {
        root: vec![5; 32],
        epoch,
    }
}

fn made(text: &str) -> PreprocessedNonce {
    PreprocessedNonce {
        commitments: format!("commitments of {text}").into_bytes(),
        secret: Zeroizing::new(format!("secret of {text}").into_bytes()),
    }
}

#[test]
fn nonces__should_come_out_once_and_not_after_a_restart() {
    let mut store = TestStore::new();
    let ids = store.keep(&shares(0), vec![made("a"), made("b"), made("c")]);
    assert_eq!(ids, [0, 1, 2]);
    let taken = store.take(&shares(0), &[1]).unwrap();
    assert_eq!(taken[0].secret.as_slice(), b"secret of b");
    assert_eq!(taken[0].commitments, b"commitments of b");
    for _ in 0..2 {
        let again = store.take(&shares(0), &[1]);
        assert_eq!(again.err(), Some(ClaimError::NonceMissing));
        store.restart();
    }
    // What was left is still there, in its order.
    let taken = store.take(&shares(0), &[2, 0]).unwrap();
    assert_eq!(taken[0].secret.as_slice(), b"secret of c");
    assert_eq!(taken[1].secret.as_slice(), b"secret of a");
    // Numbers go on although all are gone.
    store.restart();
    assert_eq!(store.keep(&shares(0), vec![made("d")]), [3]);
    assert_eq!(store.keep(&shares(7), vec![made("e")]), [4]);
}

#[test]
fn nonces__should_be_gone_when_their_claim_is_refused() {
    let mut store = TestStore::new();
    store.keep(&shares(0), (0..6).map(|_| made("any")).collect());
    store.take_in(1, &shares(0), &[0]).unwrap();
    // The session was run; a number is named twice; one of them is not there.
    let refused = store.take_in(1, &shares(0), &[1]);
    assert_eq!(refused.err(), Some(ClaimError::SessionUsed));
    let refused = store.take(&shares(0), &[2, 2]);
    assert_eq!(refused.err(), Some(ClaimError::NonceMissing));
    let refused = store.take(&shares(0), &[3, 99]);
    assert_eq!(refused.err(), Some(ClaimError::NonceMissing));
    for id in 0..4 {
        let refused = store.take(&shares(0), &[id]);
        assert_eq!(refused.err(), Some(ClaimError::NonceMissing), "{id}");
    }
    assert!(store.take(&shares(0), &[4, 5]).is_ok());
}

#[test]
fn nonces__should_be_bound_to_their_epoch_and_key() {
    let mut store = TestStore::new();
    store.keep(&shares(0), vec![made("old"), made("older")]);
    store.keep(&shares(1), vec![made("new")]);
    let other = ShareEpoch {
        root: vec![6; 32],
        epoch: 0,
    };
    for of in [&shares(1), &other] {
        let refused = store.take(of, &[0]);
        assert_eq!(refused.err(), Some(ClaimError::NonceMissing));
    }
    // A new epoch burns the old one's, for good.
    let (claims, nonces) = store.parts();
    futures::executor::block_on(nonces.burn_others(claims, &[shares(1)])).unwrap();
    assert_eq!(nonces.levels(), [(shares(1), 1)]);
    for _ in 0..2 {
        let refused = store.take(&shares(0), &[0]);
        assert_eq!(refused.err(), Some(ClaimError::NonceMissing));
        store.restart();
    }
    assert_eq!(store.parts().1.levels(), [(shares(1), 1)]);
    assert!(store.take(&shares(1), &[2]).is_ok());
    // And so does everything, when nothing is in use.
    store.keep(&shares(1), vec![made("last")]);
    let (claims, nonces) = store.parts();
    futures::executor::block_on(nonces.burn_others(claims, &[])).unwrap();
    assert!(nonces.levels().is_empty());
}

#[test]
fn nonces__should_go_when_they_are_below_what_will_be_named() {
    let store = TestStore::new();
    store.keep(&shares(0), (0..8).map(|_| made("any")).collect());
    let (claims, nonces) = store.parts();
    let of = shares(0);
    let burned = nonces.burn_epoch(claims, &of, Some(5));
    futures::executor::block_on(burned).unwrap();
    let left: Vec<u64> = nonces.ready(&shares(0)).iter().map(|(id, _)| *id).collect();
    assert_eq!(left, [5, 6, 7]);
}

#[test]
fn nonces__should_not_lie_open_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("claims.redb");
    let claims = Claims::open(&path, true).unwrap();
    let nonces = NonceStore::new(b"keyring", &claims).unwrap();
    let secrets: Vec<[u8; 64]> = (0..50)
        .map(|_| {
            let mut secret = [0; 64];
            SystemEntropy.fill(&mut secret);
            secret
        })
        .collect();
    let made = secrets.iter().map(|secret| PreprocessedNonce {
        commitments: secret.iter().map(|byte| byte ^ 0xff).collect(),
        secret: Zeroizing::new(secret.to_vec()),
    });
    let of = shares(0);
    let kept = nonces.keep(&claims, &of, made.collect(), &SystemEntropy);
    futures::executor::block_on(kept).unwrap();
    let file = std::fs::read(&path).unwrap();
    let windows: BTreeSet<&[u8]> = file.windows(16).collect();
    for secret in &secrets {
        let commitments: Vec<u8> = secret.iter().map(|byte| byte ^ 0xff).collect();
        // A page may end in the middle of them.
        let mut parts = commitments.windows(16);
        assert!(
            parts.any(|part| windows.contains(part)),
            "the file was read"
        );
        assert!(!secret.windows(16).any(|part| windows.contains(part)));
    }
    // Nor do they open with another keyring.
    let take = NonceSelection {
        of: shares(0),
        ids: vec![0],
    };
    let claim = Claim {
        session: SessionId::from_bytes([1; 16]),
        attempt: 0,
        digest: None,
        transaction: None,
        spending: Vec::new(),
        now_ms: 1,
        root: Vec::new(),
        approved_until_ms: None,
        hold: None,
    };
    let taken = futures::executor::block_on(nonces.claim(&claims, claim, Some(take))).unwrap();
    let thief = NonceStore::new(b"another keyring", &claims).unwrap();
    assert!(thief.open(taken).is_err());
}

#[derive(Clone, Debug)]
enum StoreStep {
    Make(u8, u8),
    /// Some of the numbers that there ever were, and of those that there were not.
    Take(u8, Vec<u64>),
    Burn(u8),
    Restart,
}

fn step() -> impl Strategy<Value = StoreStep> {
    let epoch = 0..3_u8;
    prop_oneof![
        3 => (epoch.clone(), 1..6_u8).prop_map(|(epoch, count)| StoreStep::Make(epoch, count)),
        6 => (epoch.clone(), prop::collection::vec(0..40_u64, 1..4))
            .prop_map(|(epoch, ids)| StoreStep::Take(epoch, ids)),
        1 => epoch.prop_map(StoreStep::Burn),
        2 => Just(StoreStep::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn nonces__should_never_come_out_twice(steps in prop::collection::vec(step(), 1..60)) {
        let mut store = TestStore::new();
        let mut next = 0;
        // What should be there: number -> (epoch, name).
        let mut model: BTreeMap<u64, (u8, String)> = BTreeMap::new();
        let mut out: BTreeSet<Vec<u8>> = BTreeSet::new();
        for step in steps {
            match step {
                StoreStep::Make(epoch, count) => {
                    let names: Vec<String> =
                        (0..u64::from(count)).map(|more| format!("nonce {}", next + more)).collect();
                    let ids = store.keep(
                        &shares(epoch.into()),
                        names.iter().map(|name| made(name)).collect(),
                    );
                    for (id, name) in ids.into_iter().zip(names) {
                        prop_assert_eq!(id, next, "numbers grow by one, for ever");
                        next += 1;
                        model.insert(id, (epoch, name));
                    }
                }
                StoreStep::Take(epoch, ids) => {
                    let distinct: BTreeSet<u64> = ids.iter().copied().collect();
                    let there = distinct.len() == ids.len()
                        && ids.iter().all(|id| model.get(id).is_some_and(|(of, _)| *of == epoch));
                    let taken = store.take(&shares(epoch.into()), &ids);
                    prop_assert_eq!(taken.is_ok(), there);
                    for nonce in taken.into_iter().flatten() {
                        prop_assert!(out.insert(nonce.secret.to_vec()), "a nonce came out twice");
                    }
                    model.retain(|id, (of, _)| *of != epoch || !distinct.contains(id));
                }
                StoreStep::Burn(epoch) => {
                    let (claims, nonces) = store.parts();
                    let of = shares(epoch.into());
                    let burned = nonces.burn_epoch(claims, &of, None);
                    futures::executor::block_on(burned).unwrap();
                    model.retain(|_, (of, _)| *of != epoch);
                }
                StoreStep::Restart => store.restart(),
            }
            let ready: BTreeSet<u64> = store
                .parts()
                .1
                .levels()
                .iter()
                .flat_map(|(of, _)| store.parts().1.ready(of))
                .map(|(id, _)| id)
                .collect();
            prop_assert_eq!(ready, model.keys().copied().collect::<BTreeSet<_>>());
        }
    }
}
