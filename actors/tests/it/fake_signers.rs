//! A signer cluster that is one whole key per vault, and that watches what it is asked for.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use covault_actors::port::{
    KeyRound, NodeBackup, NodeConfirmations, NodeView, SignerCluster, SignerHold, SigningAttempt,
};
use covault_core::{
    approval::Rejection,
    attest::{AttestOrder, MadeKey, NodeStatements},
    derive::RootKey,
    fault::{Class, Fault, FaultCode},
    ids::{RequestId, SessionId, TokenId, VaultId},
    networks::{SigningInput, VerifiedSignatures},
    order::{
        BackupOrder, Generation, KeygenOrder, LaterGenerations, NodeId, ProvenGeneration,
        ReshareOrder, ReshareOutcome, ReshareProof, SigningOrder,
    },
    rate::UnsignedWork,
    scheme::Scheme,
    signature::{Curve, Signature},
    turns::RequestTurn,
};
use curve25519_dalek::{constants::ED25519_BASEPOINT_TABLE, scalar::Scalar};
use sha2::{Digest as _, Sha256, Sha512};

use crate::world::node;

/// See the module.
#[derive(Default)]
pub struct FakeSigners {
    seen: Mutex<SignCalls>,
    /// So many calls of `sign` fail before one works.
    pub failing: AtomicUsize,
    /// So many calls of `sign` panic before one works.
    pub panicking: AtomicUsize,
    /// So many calls of `keygen` fail before one works.
    pub failing_keygens: AtomicUsize,
    /// So many calls of `keygen` panic before one works.
    pub panicking_keygens: AtomicUsize,
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
    /// Where every run is.
    pub round: Mutex<Option<KeyRound>>,
    /// While true, no Ed25519 key is made, and none is refused.
    pub hold_ed25519: tokio::sync::watch::Sender<bool>,
    /// Refuse every order.
    pub refuse: std::sync::atomic::AtomicBool,
    /// The nodes' shares: what a real cluster keeps on its disks.
    pub nodes: Mutex<NodeDisks>,
    /// So many calls of `reshare` fail before one works.
    pub failing_reshares: AtomicUsize,
    /// This many calls of `activate` lose the answer of node 2, although node 2 activates.
    pub failing_activations: AtomicUsize,
    /// Nodes that refuse to prepare new shares, after the others have: their disks are full.
    pub full: Mutex<BTreeSet<NodeId>>,
    /// While true, `reshare` does not answer.
    pub hold_reshare: tokio::sync::watch::Sender<bool>,
    /// While true, `activate` does not answer.
    pub hold_activation: tokio::sync::watch::Sender<bool>,
    /// Nodes that are not there.
    pub away: Mutex<BTreeSet<NodeId>>,
    /// Whom the orchestrator has admitted, as it said last.
    pub admitted: Mutex<Vec<NodeId>>,
    /// Whether holders state addresses.
    pub states_nothing: std::sync::atomic::AtomicBool,
    /// How many addresses each call of `attest` was about.
    pub attested: Mutex<Vec<usize>>,
    /// Whether `sign` answers at all, and how many calls have got no answer.
    pub silent: std::sync::atomic::AtomicBool,
    pub unanswered: AtomicUsize,
    /// How long they say that a request waits for them.
    pub wait: Mutex<std::time::Duration>,
    /// How much longer for each request that is not signed.
    pub wait_for_each: Mutex<std::time::Duration>,
    /// This many calls of `sign` are answered with overload.
    pub crowded: AtomicUsize,
    /// While so many are left, calls of `sign` wait; 0: none waits.
    pub crowd_stops_at: AtomicUsize,
    /// So many approvals an order has to show.
    pub wants: AtomicUsize,
    /// Until when signers hold what is approved, in milliseconds since the Unix epoch; 0: they do not.
    pub held_until_ms: AtomicU64,
    /// How often they were told of approvals.
    pub told: AtomicUsize,
    /// What they were told that people have rejected, and who of them.
    pub rejections: Mutex<Vec<(Rejection, Vec<NodeId>)>>,
    /// So many times they cannot be told.
    pub cannot_be_told: AtomicUsize,
    /// They say that they hold it, or want more, only when they are to sign.
    pub tells_late: AtomicBool,
}

/// A call of `keygen`; over when it is dropped, as one of the real cluster's.
struct SessionGuard(Arc<Mutex<BTreeSet<SessionId>>>, SessionId);

impl Drop for SessionGuard {
    fn drop(&mut self) {
        self.0.lock().unwrap().remove(&self.1);
    }
}

#[derive(Default)]
struct SignCalls {
    /// The approvals that the last order of each request showed.
    approvals: BTreeMap<RequestId, usize>,
    inputs: BTreeMap<RequestId, Vec<SigningInput>>,
    recipients: BTreeMap<RequestId, Vec<u32>>,
    client_signers: BTreeMap<RequestId, NodeId>,
    sessions: BTreeSet<SessionId>,
    vaults: BTreeSet<VaultId>,
    /// How long signers have for what they were asked last.
    times_ms: BTreeMap<RequestId, u64>,
    /// Where each stood when they were asked, in order.
    turns: BTreeMap<RequestId, Vec<RequestTurn>>,
}

/// What is on the nodes' disks.
#[derive(Default)]
pub struct NodeDisks {
    /// Of each key, by node.
    pub shares: BTreeMap<(VaultId, Scheme), BTreeMap<NodeId, NodeDisk>>,
    /// Every order that was carried out.
    pub reshares: Vec<ReshareOrder>,
    /// Every run that was requested, whatever its outcome.
    pub runs: usize,
    /// Epochs that were used up elsewhere.
    pub foreign: BTreeSet<u32>,
}

/// A node's shares of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDisk {
    /// In use.
    pub active: Option<Generation>,
    /// Not in use.
    pub prepared: Vec<ReshareOrder>,
    /// The last epoch that it was told.
    known: Option<u32>,
}

impl NodeDisks {
    /// What the dealers know and the order does not: what was done elsewhere.
    fn later(&self, order: &ReshareOrder) -> Option<LaterGenerations> {
        let disk = &self.shares[&(order.vault, order.scheme)][order.dealers.first()?];
        let used = disk.prepared.iter().map(|it| it.new.epoch);
        let used = used.filter(|epoch| self.foreign.contains(epoch)).max();
        let active = disk.active.as_ref()?.epoch;
        let of_key = |it: &&ReshareOrder| it.root_public_key == order.root_public_key;
        let ways = self.reshares.iter().filter(of_key);
        let proven: Vec<ProvenGeneration> = ways
            .filter(|it| it.old == order.old && it.new.epoch == active)
            .map(|it| ProvenGeneration {
                order: it.clone(),
                proof: proof(it),
            })
            .collect();
        let later = LaterGenerations {
            epoch: used.unwrap_or_default(),
            reason: Fault::field("new.epoch", "was used"),
            proven,
        };
        let is_later = !later.proven.is_empty() || used >= Some(order.new.epoch);
        is_later.then_some(later)
    }

    /// A node's shares of a key: the epoch of what is in use, and of what is prepared.
    pub fn epochs(&self, key: (VaultId, Scheme), node: &NodeId) -> (Option<u32>, Vec<u32>) {
        let disk = self.shares[&key].get(node).cloned().unwrap_or_default();
        let prepared = disk.prepared.iter().map(|order| order.new.epoch);
        (disk.active.map(|active| active.epoch), prepared.collect())
    }

    /// That all the holders of a generation use it.
    pub fn use_it(&self, key: (VaultId, Scheme), generation: &Generation) -> bool {
        let mut holders = generation.holders.iter();
        holders.all(|node| {
            let disk = self.shares[&key].get(node);
            disk.is_some_and(|disk| disk.active.as_ref() == Some(generation))
        })
    }
}

fn proof(order: &ReshareOrder) -> ReshareProof {
    let parties = order.parties().into_iter();
    let signed = parties.map(|node| (node, statement(order, &node)));
    ReshareProof(signed.collect())
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

pub fn take(counter: &AtomicUsize) -> bool {
    counter
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            left.checked_sub(1)
        })
        .is_ok()
}

impl NodeDisk {
    /// As a node does that is shown a proof.
    fn learn(&mut self, node: &NodeId, order: &ReshareOrder) -> Result<(), Fault> {
        if self.active.as_ref() == Some(&order.new) {
            return Ok(());
        }
        // Word that was on its way when a later generation came.
        if self.known > Some(order.new.epoch) {
            return Err(Fault::field("new.epoch", "is older than the one in use"));
        }
        let epoch = self.active.as_ref().map(|active| active.epoch);
        assert!(
            epoch < Some(order.new.epoch),
            "two generations of one epoch"
        );
        self.known = Some(order.new.epoch);
        self.active = None;
        if order.new.holders.contains(node) {
            assert!(self.prepared.contains(order), "nobody has this");
            self.active = Some(order.new.clone());
        }
        self.prepared.retain(|it| it.new.epoch > order.new.epoch);
        Ok(())
    }
}

impl FakeSigners {
    /// Refuses what shows fewer approvals than they want.
    fn has_enough(&self, shown: usize) -> Result<(), Fault> {
        if shown >= self.wants.load(Ordering::SeqCst) {
            return Ok(());
        }
        let sentence = "signer-2 wants 2 of treasurer, controller, director";
        Err(Fault::field("approvals", sentence).with_code(FaultCode::ApprovalsMissing))
    }

    pub fn is_away(&self, node: &NodeId) -> bool {
        self.away.lock().unwrap().contains(node)
    }

    /// As many nodes as are needed use the shares that the order names.
    fn check_shares(
        &self,
        key: (VaultId, Scheme),
        epoch: u32,
        attempt: &SigningAttempt,
    ) -> Result<(), Fault> {
        let generation = Generation {
            epoch,
            threshold: attempt.threshold,
            holders: attempt.holders.clone(),
        };
        let nodes = self.nodes.lock().unwrap();
        let in_use = attempt
            .holders
            .iter()
            .filter(|node| !self.is_away(node))
            .filter_map(|node| nodes.shares[&key].get(node)?.active.as_ref());
        let in_use: Vec<_> = in_use.collect();
        if let Some(later) = in_use.iter().find(|active| active.epoch > epoch) {
            return Err(Fault::field(
                "epoch",
                format!("the shares are of epoch {}", later.epoch),
            ));
        }
        let signing = in_use.iter().filter(|active| ***active == generation);
        if signing.count() < usize::from(attempt.threshold) {
            return Err(Fault::unavailable("not enough signers: missing shares"));
        }
        Ok(())
    }

    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// The client signer that had to take part in a request.
    pub fn client_signer(&self, request: &str) -> Option<NodeId> {
        let seen = self.seen.lock().unwrap();
        seen.client_signers.get(&request.parse().unwrap()).copied()
    }

    /// How many different requests were ever signed or asked for.
    pub fn requests(&self) -> usize {
        self.seen.lock().unwrap().inputs.len()
    }

    /// Which wallets of its own vault a request was said to pay.
    pub fn recipients(&self, request: &str) -> Vec<u32> {
        let seen = self.seen.lock().unwrap();
        seen.recipients[&request.parse().unwrap()].clone()
    }

    /// How long signers had for the request, from when they were asked.
    pub fn time_ms(&self, request: &str) -> u64 {
        let seen = self.seen.lock().unwrap();
        seen.times_ms[&request.parse().unwrap()]
    }

    /// Where a request stood each time when signers were asked.
    pub fn turns(&self, request: &str) -> Vec<RequestTurn> {
        self.seen.lock().unwrap().turns[&request.parse().unwrap()].clone()
    }

    /// How many approvals the last order of a request showed.
    pub fn shown(&self, uuid: &str) -> Option<usize> {
        let seen = self.seen.lock().unwrap();
        seen.approvals.get(&uuid.parse().unwrap()).copied()
    }

    pub fn sessions(&self) -> usize {
        self.seen.lock().unwrap().sessions.len()
    }
}

#[async_trait]
impl SignerCluster for FakeSigners {
    fn round(&self, _: &SessionId) -> Option<KeyRound> {
        *self.round.lock().unwrap()
    }

    async fn keygen(&self, order: &KeygenOrder) -> Result<MadeKey, Fault> {
        if take(&self.failing_keygens) {
            return Err(Fault::unavailable("not enough signers"));
        }
        assert!(!take(&self.panicking_keygens), "the cluster has a bug");
        if !self.running.lock().unwrap().insert(order.session) {
            return Err(Fault::bug("two calls for one session"));
        }
        let _running = SessionGuard(Arc::clone(&self.running), order.session);
        self.keygens.lock().unwrap().push(order.clone());
        let dead = |node: &NodeId| self.dead.lock().unwrap().contains(node);
        if order.signers.iter().any(dead) {
            std::future::pending::<()>().await;
        }
        let refused = self.refuse_keygen.load(Ordering::SeqCst);
        if order.scheme.curve() == Curve::Ed25519 {
            let mut held = self.hold_ed25519.subscribe();
            held.wait_for(|held| !held).await.unwrap();
        }
        if refused {
            return Err(Fault::new(Class::Invalid, "the order has expired"));
        }
        if self.late_keygen.load(Ordering::SeqCst) {
            let whole = order.expires_at_ms - order.issued_at_ms;
            tokio::time::sleep(std::time::Duration::from_millis(whole + 20)).await;
            return Err(Fault::unavailable("not enough signers: missing node-2"));
        }
        self.seen.lock().unwrap().vaults.insert(order.vault);
        let mut nodes = self.nodes.lock().unwrap();
        let made = NodeDisk {
            active: Some(Generation {
                epoch: 0,
                threshold: order.threshold,
                holders: order.signers.clone(),
            }),
            ..NodeDisk::default()
        };
        let disks = order.signers.iter().map(|node| (*node, made.clone()));
        nodes
            .shares
            .entry((order.vault, order.scheme))
            .or_insert_with(|| disks.collect());
        Ok(MadeKey {
            root: root(order.vault, order.scheme.curve()),
            confirmed: vec![vec![7; 64]; order.signers.len()],
        })
    }

    async fn sign(
        &self,
        order: &SigningOrder,
        attempt: &SigningAttempt,
    ) -> Result<VerifiedSignatures, Fault> {
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
            let recipients = order.recipient_indices.clone();
            seen.recipients.insert(order.request, recipients);
            if let Some(signer) = attempt.client_signer {
                seen.client_signers.insert(order.request, signer);
            }
            let time = attempt.deadline_ms.saturating_sub(order.issued_at_ms);
            seen.times_ms.insert(order.request, time);
            let turns = seen.turns.entry(order.request).or_default();
            turns.push(attempt.turn);
            order.approvals.check_bounds().expect("so many fit");
            let id = order.approval().id().unwrap();
            for given in &order.approvals.given {
                given.challenge(&id).expect("it is about this order");
            }
            let shown = order.approvals.given.len();
            seen.approvals.insert(order.request, shown);
            self.has_enough(shown)?;
        }
        let until_ms = self.held_until_ms.load(Ordering::SeqCst);
        if until_ms > order.issued_at_ms {
            let fault = Fault::new(Class::Invalid, "signer-1 holds this payment");
            return Err(fault.with_code(FaultCode::Held { until_ms }));
        }
        let scheme = Scheme::default_of(order.network.curve());
        self.check_shares((order.vault, scheme), order.epoch, attempt)?;
        order
            .verify(&root(order.vault, order.network.curve()))
            .expect("the order is sound");
        tokio::task::yield_now().await;
        if take(&self.panicking) {
            panic!("the cluster has a bug");
        }
        if self.silent.load(Ordering::SeqCst) {
            self.unanswered.fetch_add(1, Ordering::SeqCst);
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
        let left = |count: &AtomicUsize| count.load(Ordering::SeqCst);
        while left(&self.crowded) > 0 && left(&self.crowded) == left(&self.crowd_stops_at) {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        if take(&self.crowded) {
            let fault = Fault::unavailable("signers overloaded");
            return Err(fault.with_code(FaultCode::Busy { seconds: 5 }));
        }
        let tweak = root(order.vault, order.network.curve())
            .child(&order.path)
            .unwrap()
            .tweak;
        let inputs = order.inputs.iter();
        let signatures = inputs.map(|input| sign(order, &tweak, input));
        VerifiedSignatures::verify(&order.public_key, &order.inputs, signatures.collect())
    }

    fn expected_wait(
        &self,
        _scheme: Scheme,
        of: &Generation,
        _party: (VaultId, TokenId),
        _client_signer: Option<NodeId>,
        unsigned: UnsignedWork,
    ) -> Option<std::time::Duration> {
        assert!(!of.holders.is_empty());
        let for_each = *self.wait_for_each.lock().unwrap();
        let wait = for_each.saturating_mul(unsigned.of_vault.try_into().unwrap());
        Some(wait.saturating_add(*self.wait.lock().unwrap()))
    }

    async fn reshare(&self, order: &ReshareOrder) -> Result<ReshareOutcome, Fault> {
        order.check().expect("the order is sound");
        let mut held = self.hold_reshare.subscribe();
        held.wait_for(|held| !held).await.unwrap();
        if take(&self.failing_reshares) {
            return Err(Fault::unavailable("node-2 did not answer"));
        }
        let key = (order.vault, order.scheme);
        assert_eq!(
            root(order.vault, order.scheme.curve()).public_key,
            order.root_public_key
        );
        let parties = order.parties();
        if parties.iter().any(|party| self.is_away(party)) {
            return Err(Fault::unavailable("somebody is away"));
        }
        let mut nodes = self.nodes.lock().unwrap();
        nodes.runs += 1;
        if let Some(later) = nodes.later(order) {
            return Ok(ReshareOutcome::Behind(later));
        }
        let disks = nodes.shares.get_mut(&key).unwrap();
        for dealer in &order.dealers {
            if disks[dealer].active.as_ref() != Some(&order.old) {
                return Err(Fault::field("old.epoch", "is not the one in use"));
            }
        }
        let full = self.full.lock().unwrap().clone();
        for node in order.new.holders.iter().filter(|node| !full.contains(node)) {
            let disk = disks.entry(*node).or_default();
            if !disk.prepared.contains(order) {
                let used = disk.prepared.iter().map(|it| it.new.epoch);
                let used = used.chain(disk.active.iter().map(|it| it.epoch));
                assert!(
                    used.max() < Some(order.new.epoch),
                    "an epoch was used twice"
                );
                disk.prepared.push(order.clone());
            }
        }
        if let Some(node) = order.new.holders.iter().find(|node| full.contains(node)) {
            let sentence = format!("node-{} refused: its disk is full", node.0[0]);
            return Err(Fault::new(Class::Invalid, sentence));
        }
        if !nodes.reshares.contains(order) {
            nodes.reshares.push(order.clone());
        }
        Ok(ReshareOutcome::Made(proof(order)))
    }

    async fn activate(
        &self,
        order: &ReshareOrder,
        proof: &ReshareProof,
        _: &[ProvenGeneration],
        told: &[NodeId],
    ) -> Result<NodeConfirmations, Fault> {
        for (node, signed) in &proof.0 {
            assert_eq!(signed, &statement(order, node), "a forged proof");
        }
        assert_eq!(proof.0.len(), order.parties().len());
        let mut held = self.hold_activation.subscribe();
        held.wait_for(|held| !held).await.unwrap();
        let lost = take(&self.failing_activations).then_some(node(2));
        let mut nodes = self.nodes.lock().unwrap();
        let disks = nodes.shares.get_mut(&(order.vault, order.scheme)).unwrap();
        let mut tell = |node: &NodeId| {
            if self.is_away(node) {
                return Err(Fault::unavailable("is away"));
            }
            disks.entry(*node).or_default().learn(node, order)?;
            match lost == Some(*node) {
                true => Err(Fault::unavailable("node-2 has not confirmed")),
                false => Ok(()),
            }
        };
        Ok(told.iter().map(|node| (*node, tell(node))).collect())
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

    async fn tell_of_approvals(
        &self,
        order: &SigningOrder,
        _session: SessionId,
        _of: &Generation,
        _client_signer: Option<NodeId>,
        _patience: std::time::Duration,
    ) -> Result<Option<SignerHold>, Fault> {
        assert!(order.tells_of_approvals() && !order.approvals.given.is_empty());
        let id = order.approval().id().unwrap();
        for given in &order.approvals.given {
            given.challenge(&id).expect("it is about this order");
        }
        self.told.fetch_add(1, Ordering::SeqCst);
        if take(&self.cannot_be_told) {
            return Err(Fault::unavailable("signers could not be told"));
        }
        if !self.tells_late.load(Ordering::SeqCst) {
            self.has_enough(order.approvals.given.len())?;
        }
        let until_ms = self.held_until_ms.load(Ordering::SeqCst);
        let held = until_ms > order.issued_at_ms && !self.tells_late.load(Ordering::SeqCst);
        Ok(held.then(|| SignerHold {
            until_ms,
            by: vec!["signer-1".into(), "signer-2".into()],
        }))
    }

    async fn tell_of_rejection(
        &self,
        rejection: &Rejection,
        _session: SessionId,
        holders: &[NodeId],
    ) -> Result<(), Fault> {
        let told = (rejection.clone(), holders.to_vec());
        self.rejections.lock().unwrap().push(told);
        if take(&self.cannot_be_told) {
            return Err(Fault::unavailable("signers could not be told"));
        }
        Ok(())
    }

    fn admit(&self, nodes: &[NodeId]) {
        *self.admitted.lock().unwrap() = nodes.to_vec();
    }

    async fn attest(
        &self,
        order: &AttestOrder,
        of: &Generation,
        _patience: std::time::Duration,
    ) -> Result<Vec<NodeStatements>, Fault> {
        tokio::task::yield_now().await;
        if self.states_nothing.load(Ordering::SeqCst) {
            return Err(Fault::unavailable("not enough signers"));
        }
        assert_eq!(
            (order.threshold, &order.holders),
            (of.threshold, &of.holders)
        );
        assert!(!order.confirmed.is_empty());
        for statement in order.statements() {
            let root = root(order.vault, statement.network.curve());
            statement.verify(&root).expect("the order is sound");
        }
        let count = order.addresses.len();
        self.attested.lock().unwrap().push(count);
        let holders = of.holders.iter().take(of.threshold.into());
        Ok(holders.map(|node| (*node, vec![[7; 64]; count])).collect())
    }

    fn nodes(&self) -> Vec<NodeView> {
        let away = self.away.lock().unwrap().clone();
        (1..=5)
            .map(|number| NodeView {
                id: node(number),
                name: format!("node-{number}"),
                live: !away.contains(&node(number)),
                last_seen_ms: Some(1),
                ..NodeView::unseen(node(number))
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
            // As with FROST another request has another signature of the same message.
            let request = order.request.as_bytes();
            let nonce = wide(&[secret.as_bytes(), request, &input.message]);
            let r = (&nonce * ED25519_BASEPOINT_TABLE).compress().to_bytes();
            let challenge = wide(&[&r, &order.public_key, &input.message]);
            Signature::Ed25519 {
                r,
                s: (nonce + challenge * secret).to_bytes(),
            }
        }
    }
}
