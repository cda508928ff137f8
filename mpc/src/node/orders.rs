//! What a node does with orders, and the keys it holds.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use covault_core::{
    derive::RootKey,
    fault::{Class, Fault},
    ids::SessionId,
    order::{KeygenOrder, NodeId, SigningOrder},
};
use ed25519_dalek::Verifier as _;
use sha2::{Digest as _, Sha256};

use super::{Node, sessions::Begin};
use crate::{
    backend::{self, Index, KeygenSetup, SignSetup, Signer},
    claims::{Claim, ClaimError},
    envelope::{Envelope, Kind},
    identity::{openssh_line, verifying_key},
    message::{KeygenRequest, Reply, SignRequest, decode},
    pool::Lane,
    runner::Run,
    shares::{FIRST_EPOCH, ShareRecord},
};

/// How far another machine's clock may be ahead, in milliseconds.
const SKEW_MS: u64 = 60_000;
/// More inputs than any transaction has.
const MAX_INPUTS: usize = 10_000;

/// A key that the node holds a share of.
pub(super) struct Key {
    record: ShareRecord,
    signer: Arc<dyn Signer>,
}

/// The keys of a node.
#[derive(Default)]
pub(super) struct Keys {
    by_root: RwLock<HashMap<Vec<u8>, Arc<Key>>>,
}

impl Keys {
    pub(super) fn load(records: Vec<ShareRecord>) -> Result<Self, Fault> {
        let keys = Self::default();
        for record in records {
            keys.insert(record)?;
        }
        Ok(keys)
    }

    fn insert(&self, mut record: ShareRecord) -> Result<(), Fault> {
        let signer = backend::of(record.key.root.curve).open(&record.key)?;
        // The signer has it now; one copy is enough.
        record.key.secret = Vec::new().into();
        let root = record.key.root.public_key.clone();
        let key = Arc::new(Key { record, signer });
        let mut keys = self.by_root.write().unwrap_or_else(PoisonError::into_inner);
        let newer = keys
            .get(&root)
            .is_none_or(|known| known.record.epoch < key.record.epoch);
        if newer {
            keys.insert(root, key);
        }
        Ok(())
    }

    fn get(&self, root: &[u8]) -> Option<Arc<Key>> {
        self.by_root
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(root)
            .cloned()
    }

    fn of_session(&self, session: SessionId) -> Option<Arc<Key>> {
        let keys = self.by_root.read().unwrap_or_else(PoisonError::into_inner);
        keys.values()
            .find(|key| key.record.session == session)
            .cloned()
    }

    pub(super) fn count(&self) -> usize {
        self.by_root
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }
}

fn refused(sentence: impl Into<String>) -> Fault {
    Fault::new(Class::Invalid, sentence)
}

impl Node {
    /// Stores a new share and takes the key into use.
    pub(super) fn keep(&self, record: ShareRecord) -> Result<RootKey, Fault> {
        self.shares.save(&record)?;
        let root = record.key.root.clone();
        self.keys.insert(record)?;
        tracing::info!(node = %self.name, curve = root.curve.name(), "share stored");
        Ok(root)
    }

    /// Handles an order, on a pool thread.
    pub(super) fn order(self: &Arc<Self>, envelope: &Envelope) {
        let header = envelope.header;
        let opened = match self.post.open(envelope) {
            Ok(opened) => opened,
            Err(error) => {
                tracing::warn!(node = %self.name, %error, "order refused");
                return;
            }
        };
        let outcome = match header.kind {
            Kind::SigningOrder => decode(&opened.body)
                .ok_or_else(|| refused("the order cannot be read; are all nodes of one version?"))
                .and_then(|request| {
                    self.signing_order(header.from, header.session, header.attempt, request)
                }),
            _ => decode(&opened.body)
                .ok_or_else(|| refused("the order cannot be read; are all nodes of one version?"))
                .and_then(|request| self.keygen_order(header.from, header.session, request)),
        };
        if let Err(fault) = outcome {
            self.refuse(header.from, header.session, header.attempt, fault);
        }
    }

    fn refuse(&self, to: NodeId, session: SessionId, attempt: u32, fault: Fault) {
        tracing::warn!(node = %self.name, %session, attempt, ?fault, "order refused");
        self.reply(to, session, attempt, &Reply::Refused(fault));
    }

    fn check_signature(&self, from: &NodeId, bytes: &[u8], signature: &[u8]) -> Result<(), Fault> {
        let genuine = ed25519_dalek::Signature::from_slice(signature).is_ok_and(|signature| {
            verifying_key(from).is_ok_and(|key| key.verify(bytes, &signature).is_ok())
        });
        genuine
            .then_some(())
            .ok_or_else(|| refused("the order's signature is wrong"))
    }

    fn check_time(&self, issued_at_ms: u64, expires_at_ms: u64) -> Result<(), Fault> {
        let now_ms = self.clock.now_ms();
        if now_ms >= expires_at_ms {
            return Err(refused("the order has expired"));
        }
        if issued_at_ms > now_ms.saturating_add(SKEW_MS) {
            return Err(refused("the order is from the future; check the clocks"));
        }
        Ok(())
    }

    fn signing_order(
        self: &Arc<Self>,
        from: NodeId,
        session: SessionId,
        attempt: u32,
        request: SignRequest,
    ) -> Result<(), Fault> {
        let SignRequest {
            order,
            signature,
            signers,
            deadline_ms,
        } = request;
        let canonical = order.canonical_bytes()?;
        self.check_signature(&from, &canonical, &signature)?;
        self.check_time(order.issued_at_ms, order.expires_at_ms)?;
        let key = self
            .keys
            .get(&order.root_public_key)
            .ok_or_else(|| refused("no share of this key"))?;
        let record = &key.record;
        if record.vault != order.vault {
            return Err(refused("the key is another vault's"));
        }
        if record.epoch != order.epoch {
            return Err(refused(format!("the shares are of epoch {}", record.epoch)));
        }
        if order.inputs.is_empty() || order.inputs.len() > MAX_INPUTS {
            return Err(refused("the order has no inputs, or too many"));
        }
        if order
            .inputs
            .iter()
            .any(|input| input.curve != record.key.root.curve)
        {
            return Err(refused("an input needs another curve"));
        }
        let indices = self.indices(record, &signers)?;
        self.check.check(&order, &record.key.root)?;

        let order_id: [u8; 32] = Sha256::digest(&canonical).into();
        let sessions = (0_u32..)
            .zip(&order.inputs)
            .map(|(input, what)| {
                let context = Sha256::new()
                    .chain_update(b"covault/sign")
                    .chain_update(order_id)
                    .chain_update(session.as_bytes())
                    .chain_update(attempt.to_be_bytes())
                    .chain_update(input.to_be_bytes())
                    .finalize()
                    .into();
                key.signer.sign(SignSetup {
                    context,
                    signers: indices.clone(),
                    path: order.path.clone(),
                    message: what.message.clone(),
                })
            })
            .collect::<Result<Vec<_>, Fault>>()?;
        let peers = self.peers(&signers, &indices);
        let run = Run::signing(sessions, peers, order.root_public_key.clone());
        let until_ms = deadline_ms.min(order.expires_at_ms);
        let begin = Begin {
            key: (session, attempt),
            run,
            orchestrator: from,
            until_ms,
            lane: Lane::Signing,
            record: None,
        };
        self.claim_then_begin(digests(&order), begin);
        Ok(())
    }

    /// The signers' indices. We must be one of them, none may be banned.
    fn indices(&self, record: &ShareRecord, signers: &[NodeId]) -> Result<Vec<Index>, Fault> {
        if signers.len() != usize::from(record.threshold) || !signers.contains(&self.post.id()) {
            return Err(refused("the order names other signers than needed"));
        }
        let root = &record.key.root.public_key;
        let banned: Vec<String> = signers
            .iter()
            .filter(|signer| self.claims.banned(root, signer))
            .map(|signer| openssh_line(signer, ""))
            .collect();
        if !banned.is_empty() {
            let sentence = "a signer is banned from this key because it cheated";
            return Err(Fault::new(Class::Peer { culprits: banned }, sentence));
        }
        signers
            .iter()
            .map(|signer| {
                record
                    .index_of(signer)
                    .ok_or_else(|| refused("a signer holds no share of the key"))
            })
            .collect()
    }

    fn peers(&self, signers: &[NodeId], indices: &[Index]) -> HashMap<NodeId, Index> {
        let pairs = signers.iter().copied().zip(indices.iter().copied());
        pairs
            .filter(|(signer, _)| *signer != self.post.id())
            .collect()
    }

    fn keygen_order(
        self: &Arc<Self>,
        from: NodeId,
        session: SessionId,
        request: KeygenRequest,
    ) -> Result<(), Fault> {
        let KeygenRequest { order, signature } = request;
        let canonical = order.canonical_bytes()?;
        self.check_signature(&from, &canonical, &signature)?;
        if order.session != session {
            return Err(refused("the order is for another session"));
        }
        if let Some(key) = self.keys.of_session(session) {
            // It has succeeded before.
            let record = &key.record;
            if record.vault != order.vault
                || record.key.root.curve != order.curve
                || record.threshold != order.threshold
                || record.holders != order.signers
            {
                return Err(refused("the session made another key"));
            }
            self.reply(from, session, 0, &Reply::KeyMade(record.key.root.clone()));
            return Ok(());
        }
        if self.sessions.begun((session, 0)) {
            // Running, or just over: the answer is on its way.
            return Ok(());
        }
        self.check_time(order.issued_at_ms, order.expires_at_ms)?;
        let KeygenOrder {
            vault,
            curve,
            threshold,
            signers,
            expires_at_ms,
            ..
        } = order;
        let parties = Index::try_from(signers.len()).map_err(|_| refused("too many signers"))?;
        let indices: Vec<Index> = (1..=parties).collect();
        let mut distinct = signers.clone();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() != signers.len() {
            return Err(refused("a signer is named twice"));
        }
        let place = signers.iter().position(|signer| *signer == self.post.id());
        let me = place
            .and_then(|place| indices.get(place).copied())
            .ok_or_else(|| refused("we are not one of the signers"))?;
        let setup = KeygenSetup {
            context: Sha256::digest(&canonical).into(),
            me,
            threshold: Index::try_from(threshold).map_err(|_| refused("too many signers"))?,
            parties,
        };
        let run = Run::keygen(
            backend::of(curve).keygen(setup)?,
            self.peers(&signers, &indices),
        );
        let record = move |key| ShareRecord {
            vault,
            epoch: FIRST_EPOCH,
            session,
            threshold,
            holders: signers,
            key,
        };
        let begin = Begin {
            key: (session, 0),
            run,
            orchestrator: from,
            until_ms: expires_at_ms,
            lane: Lane::Keygen,
            record: Some(Box::new(record)),
        };
        self.claim_then_begin(None, begin);
        Ok(())
    }

    /// Nothing of the share is used before the claim is on disk.
    fn claim_then_begin(
        self: &Arc<Self>,
        digests: Option<(covault_core::ids::RequestId, Vec<[u8; 32]>)>,
        begin: Begin,
    ) {
        let node = Arc::clone(self);
        let (session, attempt) = begin.key;
        let claim = Claim {
            session,
            attempt,
            digests,
            now_ms: self.clock.now_ms(),
        };
        self.runtime.spawn(async move {
            match node.claims.claim(claim).await {
                Ok(()) => {
                    let pool = Arc::clone(&node.pool);
                    pool.spawn(begin.lane, move || node.begin(begin));
                }
                Err(error) => {
                    let fault = match &error {
                        ClaimError::SessionUsed => {
                            Fault::new(Class::WrongState, "this session was run before")
                        }
                        ClaimError::OtherDigest(_) => Fault::new(
                            Class::WrongState,
                            "this request was to sign something else before; it never will",
                        ),
                        ClaimError::Store(_) => Fault::unavailable("a signer's disk failed"),
                    };
                    node.refuse(begin.orchestrator, session, attempt, fault.caused_by(error));
                }
            }
        });
    }
}

/// What the claims remember of an order: key and message of each input.
fn digests(order: &SigningOrder) -> Option<(covault_core::ids::RequestId, Vec<[u8; 32]>)> {
    let digests = order.inputs.iter().map(|input| {
        Sha256::new()
            .chain_update(b"covault/claim")
            .chain_update(Sha256::digest(&order.public_key))
            .chain_update(Sha256::digest(&input.message))
            .finalize()
            .into()
    });
    Some((order.request, digests.collect()))
}
