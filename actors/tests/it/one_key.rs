//! A signer cluster that is one whole key per vault, and that watches what it is asked for.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use covault_actors::port::{NodeBackup, NodeView, Signers, SigningAttempt};
use covault_core::{
    chain::SigningInput,
    derive::RootKey,
    fault::{Class, Fault},
    ids::{RequestId, SessionId, VaultId},
    order::{
        BackupOrder, Generation, KeygenOrder, NodeId, ReshareOrder, ReshareProof, SigningOrder,
    },
    scheme::Scheme,
    signature::{Curve, Signature},
};
use curve25519_dalek::{constants::ED25519_BASEPOINT_TABLE, scalar::Scalar};
use sha2::{Digest as _, Sha256, Sha512};

/// See the module.
#[derive(Default)]
pub struct OneKey {
    seen: Mutex<Seen>,
    /// So many calls of `sign` fail before one works.
    pub failing: AtomicUsize,
    /// So many calls of `sign` panic before one works.
    pub panicking: AtomicUsize,
    /// So many calls of `keygen` fail before one works.
    pub failing_keygens: AtomicUsize,
    /// Every key generation that was asked for.
    pub keygens: Mutex<Vec<KeygenOrder>>,
    /// Key generations that are being waited for. The real cluster takes one call for a session.
    pub running: Arc<Mutex<BTreeSet<SessionId>>>,
    /// Key generations with one of these nodes do not end.
    pub dead: Mutex<BTreeSet<NodeId>>,
    /// Every call of `backup` waits here, where it is set.
    pub backups_meet: Mutex<Option<Arc<tokio::sync::Barrier>>>,
    /// Refuse every key generation.
    pub refuse_keygen: std::sync::atomic::AtomicBool,
    /// Every key generation lasts until its order ends, and then says who was missing.
    pub late_keygen: std::sync::atomic::AtomicBool,
    /// While true, no Ed25519 key is made.
    pub hold_ed25519: tokio::sync::watch::Sender<bool>,
    /// Refuse every order.
    pub refuse: std::sync::atomic::AtomicBool,
    /// The nodes' shares: what a real cluster keeps on its disks.
    pub nodes: Mutex<Nodes>,
    /// So many calls of `reshare` fail before one works.
    pub failing_reshares: AtomicUsize,
    /// So many calls of `activate` fail before one works.
    pub failing_activations: AtomicUsize,
    /// While true, `reshare` does not answer.
    pub hold_reshare: tokio::sync::watch::Sender<bool>,
    /// While true, `activate` does not answer.
    pub hold_activation: tokio::sync::watch::Sender<bool>,
    /// Nodes that are not there.
    pub away: Mutex<BTreeSet<NodeId>>,
    /// Whom the orchestrator has admitted, as it said last.
    pub admitted: Mutex<Vec<NodeId>>,
    /// Whether `sign` answers at all.
    pub silent: std::sync::atomic::AtomicBool,
}

/// A call of `keygen`; over when it is dropped, as one of the real cluster's.
struct Running(Arc<Mutex<BTreeSet<SessionId>>>, SessionId);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.lock().unwrap().remove(&self.1);
    }
}

#[derive(Default)]
struct Seen {
    inputs: BTreeMap<RequestId, Vec<SigningInput>>,
    sessions: BTreeSet<SessionId>,
    vaults: BTreeSet<VaultId>,
}

/// The generations of each vault's keys.
#[derive(Default)]
pub struct Nodes {
    /// In use.
    pub active: BTreeMap<(VaultId, Scheme), Generation>,
    /// On disk, not in use; the highest epoch that was asked for.
    pub prepared: BTreeMap<(VaultId, Scheme), ReshareOrder>,
    /// Every order that was carried out.
    pub reshares: Vec<ReshareOrder>,
}

fn statement(order: &ReshareOrder, node: &NodeId) -> Vec<u8> {
    let bytes = order.canonical_bytes().unwrap();
    Sha256::digest([bytes.as_slice(), &node.0].concat()).to_vec()
}

fn seed(vault: VaultId, curve: Curve) -> [u8; 32] {
    Sha256::digest([vault.as_bytes().as_slice(), curve.name().as_bytes()].concat()).into()
}

fn ed_scalar(vault: VaultId) -> Scalar {
    Scalar::from_bytes_mod_order(seed(vault, Curve::Ed25519))
}

fn k_scalar(vault: VaultId) -> k256::Scalar {
    let bytes = seed(vault, Curve::Secp256k1);
    *k256::SecretKey::from_slice(&bytes)
        .unwrap()
        .to_nonzero_scalar()
}

pub fn root(vault: VaultId, curve: Curve) -> RootKey {
    let public_key = match curve {
        Curve::Secp256k1 => {
            use k256::elliptic_curve::sec1::ToSec1Point as _;
            let secret = k256::SecretKey::from_slice(&seed(vault, curve)).unwrap();
            secret.public_key().to_sec1_point(true).as_bytes().to_vec()
        }
        Curve::Ed25519 => (&ed_scalar(vault) * ED25519_BASEPOINT_TABLE)
            .compress()
            .to_bytes()
            .to_vec(),
    };
    RootKey {
        curve,
        public_key,
        chain_code: seed(vault, curve),
    }
}

fn take(counter: &AtomicUsize) -> bool {
    counter
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            left.checked_sub(1)
        })
        .is_ok()
}

impl OneKey {
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// How many different requests were ever signed or asked for.
    pub fn requests(&self) -> usize {
        self.seen.lock().unwrap().inputs.len()
    }

    pub fn sessions(&self) -> usize {
        self.seen.lock().unwrap().sessions.len()
    }
}

#[async_trait]
impl Signers for OneKey {
    async fn keygen(&self, order: &KeygenOrder) -> Result<RootKey, Fault> {
        if take(&self.failing_keygens) {
            return Err(Fault::unavailable("not enough signers"));
        }
        if !self.running.lock().unwrap().insert(order.session) {
            return Err(Fault::bug("two calls for one session"));
        }
        let _running = Running(Arc::clone(&self.running), order.session);
        self.keygens.lock().unwrap().push(order.clone());
        let dead = |node: &NodeId| self.dead.lock().unwrap().contains(node);
        if order.signers.iter().any(dead) {
            std::future::pending::<()>().await;
        }
        if self.refuse_keygen.load(Ordering::SeqCst) {
            return Err(Fault::new(Class::Invalid, "the order has expired"));
        }
        if self.late_keygen.load(Ordering::SeqCst) {
            let whole = order.expires_at_ms - order.issued_at_ms;
            tokio::time::sleep(std::time::Duration::from_millis(whole + 20)).await;
            return Err(Fault::unavailable("not enough signers: missing node-2"));
        }
        if order.scheme.curve() == Curve::Ed25519 {
            let mut held = self.hold_ed25519.subscribe();
            held.wait_for(|held| !held).await.unwrap();
        }
        self.seen.lock().unwrap().vaults.insert(order.vault);
        self.nodes
            .lock()
            .unwrap()
            .active
            .entry((order.vault, order.scheme))
            .or_insert_with(|| Generation {
                epoch: 0,
                threshold: order.threshold,
                holders: order.signers.clone(),
            });
        Ok(root(order.vault, order.scheme.curve()))
    }

    async fn sign(
        &self,
        order: &SigningOrder,
        attempt: &SigningAttempt,
    ) -> Result<Vec<Signature>, Fault> {
        {
            let mut seen = self.seen.lock().unwrap();
            assert!(
                seen.sessions.insert(attempt.session),
                "a session was used twice"
            );
            let first = seen
                .inputs
                .entry(order.request)
                .or_insert_with(|| order.inputs.clone());
            assert_eq!(first, &order.inputs, "a second digest for one request");
        }
        let scheme = Scheme::default_of(order.network.curve());
        let active = self.nodes.lock().unwrap().active[&(order.vault, scheme)].clone();
        if active.epoch != order.epoch {
            return Err(Fault::field(
                "epoch",
                format!("the shares are of epoch {}", active.epoch),
            ));
        }
        assert_eq!(
            (attempt.threshold, &attempt.holders),
            (active.threshold, &active.holders)
        );
        order
            .verify(&root(order.vault, order.network.curve()))
            .expect("the order is sound");
        tokio::task::yield_now().await;
        if take(&self.panicking) {
            panic!("the cluster has a bug");
        }
        if self.silent.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if self.refuse.load(Ordering::SeqCst) {
            return Err(Fault::new(
                Class::Invalid,
                "the signers' policy forbids this",
            ));
        }
        if take(&self.failing) {
            return Err(Fault::unavailable("not enough signers: missing node-2"));
        }
        let tweak = root(order.vault, order.network.curve())
            .child(&order.path)
            .unwrap()
            .tweak;
        Ok(order
            .inputs
            .iter()
            .map(|input| sign(order, &tweak, input))
            .collect())
    }

    async fn reshare(&self, order: &ReshareOrder) -> Result<ReshareProof, Fault> {
        order.check().expect("the order is sound");
        let mut held = self.hold_reshare.subscribe();
        held.wait_for(|held| !held).await.unwrap();
        if take(&self.failing_reshares) {
            return Err(Fault::unavailable("node-2 did not answer"));
        }
        let key = (order.vault, order.scheme);
        let mut nodes = self.nodes.lock().unwrap();
        assert_eq!(
            root(order.vault, order.scheme.curve()).public_key,
            order.root_public_key
        );
        if nodes.active[&key] != order.old {
            return Err(Fault::field("old.epoch", "is not the one in use"));
        }
        match nodes.prepared.get(&key) {
            Some(prepared) if prepared == order => {}
            Some(prepared) if prepared.new.epoch >= order.new.epoch => {
                panic!("an epoch was used twice")
            }
            _ => {
                nodes.prepared.insert(key, order.clone());
                nodes.reshares.push(order.clone());
            }
        }
        let holders = order.new.holders.iter();
        Ok(ReshareProof(
            holders
                .map(|node| (*node, statement(order, node)))
                .collect(),
        ))
    }

    async fn activate(&self, order: &ReshareOrder, proof: &ReshareProof) -> Result<(), Fault> {
        for (node, signed) in &proof.0 {
            assert_eq!(signed, &statement(order, node), "a forged proof");
        }
        assert_eq!(proof.0.len(), order.new.holders.len());
        let mut held = self.hold_activation.subscribe();
        held.wait_for(|held| !held).await.unwrap();
        let failing = take(&self.failing_activations);
        let key = (order.vault, order.scheme);
        let mut nodes = self.nodes.lock().unwrap();
        if nodes.active[&key].epoch < order.new.epoch {
            assert_eq!(nodes.prepared.get(&key), Some(order), "nobody has this");
            nodes.active.insert(key, order.new.clone());
        }
        if failing {
            return Err(Fault::unavailable("node-2 has not confirmed"));
        }
        Ok(())
    }

    async fn backup(&self, order: &BackupOrder) -> Result<Vec<(NodeId, NodeBackup)>, Fault> {
        let meet = self.backups_meet.lock().unwrap().clone();
        if let Some(meet) = meet {
            meet.wait().await;
        }
        let holders = order.holders.iter().map(|node| {
            let backup = if self.away.lock().unwrap().contains(node) {
                Err(Fault::unavailable("is away"))
            } else {
                Ok(order.recipients.concat().into_bytes())
            };
            (*node, backup)
        });
        Ok(holders.collect())
    }

    fn admit(&self, nodes: &[NodeId]) {
        *self.admitted.lock().unwrap() = nodes.to_vec();
    }

    fn nodes(&self) -> Vec<NodeView> {
        let away = self.away.lock().unwrap().clone();
        (1..=5)
            .map(|number| NodeView {
                id: NodeId([number; 32]),
                name: format!("node-{number}"),
                live: !away.contains(&NodeId([number; 32])),
                last_seen_ms: Some(1),
                ..NodeView::unseen(NodeId([number; 32]))
            })
            .collect()
    }
}

fn sign(order: &SigningOrder, tweak: &[u8; 32], input: &SigningInput) -> Signature {
    match input.curve {
        Curve::Secp256k1 => {
            use k256::elliptic_curve::PrimeField as _;
            let tweak =
                Option::<k256::Scalar>::from(k256::Scalar::from_repr((*tweak).into())).unwrap();
            let secret = k_scalar(order.vault) + tweak;
            let key = k256::ecdsa::SigningKey::from_slice(&secret.to_repr()).unwrap();
            let (signature, recovery) = key.sign_prehash_recoverable(&input.message);
            let (r, s) = signature.split_bytes();
            Signature::Ecdsa {
                r: r.into(),
                s: s.into(),
                y_parity: u8::from(recovery.is_y_odd()),
            }
        }
        // RFC 8032 section 5.1.6 with a scalar that is no hash of a seed.
        Curve::Ed25519 => {
            let secret = ed_scalar(order.vault) + Scalar::from_bytes_mod_order(*tweak);
            let wide = |parts: &[&[u8]]| {
                let mut hash = Sha512::new();
                parts.iter().for_each(|part| hash.update(part));
                Scalar::from_bytes_mod_order_wide(&hash.finalize().into())
            };
            let nonce = wide(&[secret.as_bytes(), &input.message]);
            let r = (&nonce * ED25519_BASEPOINT_TABLE).compress().to_bytes();
            let challenge = wide(&[&r, &order.public_key, &input.message]);
            Signature::Ed25519 {
                r,
                s: (nonce + challenge * secret).to_bytes(),
            }
        }
    }
}
