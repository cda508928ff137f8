//! A cluster for tests: nodes with folders, identities and a bus, and orders to sign.

#![allow(dead_code)]

pub mod counters;
#[path = "../../../tests/support/log.rs"]
pub mod log;
pub mod redis_server;
pub mod search;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use covault_core::testing::ShiftedClock;
pub use covault_core::testing::SystemEntropy;
use covault_core::{
    approval::OrderApprovals,
    derive::{ChildKey, KeyPath, RootKey},
    fault::Fault,
    ids::{RequestId, SessionId, TokenId, VaultId},
    networks::{ChainData, Network, Payload, VerifiedSignatures, WireKind},
    order::{Generation, KeygenOrder, ListedNodes, NodeId, ReshareOrder, SigningOrder},
    port::{Clock, Entropy, random_16},
    schema::wire,
    scheme::Scheme,
    signature::{Curve, Signature},
    trace::Tracer,
    turns::RequestTurn,
};
use covault_mpc::{
    attest::KeyStatements,
    bus::{Bus, memory::MemoryBus, redis::RedisBus},
    cluster::{Cluster, ClusterConfig, NodeStatus, SigningTask},
    identity::NodeIdentity,
    node::{
        ApprovalRelay, ClientSignerConfig, CurrentPeers, KeyRules, KeygenQuota, NoResumeDetector,
        Node, NodeConfig, OrderCheck, PinnedPeers, RebuildCheck, ResumeDetector, SigningCallback,
        ThresholdLimits,
    },
    policy::Spending,
    pool::CpuPool,
    preprocess::Watermarks,
};
use redis_server::RedisServer;
use secrecy::SecretString;
use tokio::{sync::watch, task::JoinHandle};

/// A clock that is wrong by this much, and that tests can move.
pub struct SkewedClock(pub i64, pub Arc<AtomicI64>);

impl Clock for SkewedClock {
    fn now_ms(&self) -> u64 {
        let moved = self.1.load(Ordering::Relaxed);
        now_ms().saturating_add_signed(self.0 + moved)
    }
}

/// Rules for keys whose thresholds and holders go up and down.
pub fn free() -> KeyRules {
    KeyRules {
        limits: ThresholdLimits {
            least_threshold: Some(2),
            most_threshold: Some(u16::MAX),
            least_spare: Some(0),
        },
        permits: false,
        ..KeyRules::default()
    }
}

pub fn now_ms() -> u64 {
    ShiftedClock::default().now_ms()
}

/// Lets everything pass, for orders that no chain would build.
pub struct AcceptAnyOrder;

impl OrderCheck for AcceptAnyOrder {
    fn check(
        &self,
        _order: &SigningOrder,
        _root: &RootKey,
        _child: &ChildKey,
        _now_ms: u64,
    ) -> Result<Vec<Spending>, Fault> {
        Ok(Vec::new())
    }
}

/// Which bus a cluster runs on.
pub enum TestBus {
    Memory(Arc<MemoryBus>),
    Redis(RedisServer),
    Other(Arc<dyn Bus>),
}

impl TestBus {
    pub fn memory() -> Self {
        Self::Memory(MemoryBus::new())
    }

    pub fn redis() -> Self {
        Self::Redis(RedisServer::start())
    }

    /// A bus for one participant.
    pub fn bus(&self) -> Arc<dyn Bus> {
        match self {
            Self::Memory(bus) => Arc::clone(bus) as Arc<dyn Bus>,
            Self::Other(bus) => Arc::clone(bus),
            Self::Redis(server) => RedisBus::connect(&server.url(), "test").unwrap(),
        }
    }
}

pub type RunningNode = (watch::Sender<bool>, JoinHandle<Result<(), Fault>>);

/// A node that can be stopped and started.
pub struct TestNode {
    pub identity: Arc<NodeIdentity>,
    /// How wrong its clock is, in milliseconds.
    pub skew_ms: i64,
    /// How far it was moved since, also while it runs.
    pub moved_ms: Arc<AtomicI64>,
    pub folder: PathBuf,
    /// To whom it encrypts backups.
    pub backup_recipients: Vec<String>,
    /// What it lets an orchestrator make of keys. At first everything, without a permit.
    pub rules: KeyRules,
    /// Whom it knows; everybody when empty, and nobody is pinned when `None`.
    pub peers: Option<Vec<NodeId>>,
    /// Whom it knows for some vaults.
    pub vault_peers: BTreeMap<VaultId, BTreeSet<NodeId>>,
    /// The same as it was last started with, or told since.
    pub current_peers: Arc<CurrentPeers>,
    /// Makes it a client signer.
    pub callback: Option<Arc<dyn SigningCallback>>,
    /// Connects a page on which people approve, from the next start on.
    pub approval_relay: Option<Arc<ApprovalRelay>>,
    /// Of its spans.
    pub tracer: Tracer,
    name: String,
    running: Option<RunningNode>,
}

pub struct TestCluster {
    pub medium: TestBus,
    pub cluster: Arc<Cluster>,
    pub orchestrator: Arc<NodeIdentity>,
    pub nodes: Vec<TestNode>,
    pub vault: VaultId,
    /// Nonces that a node which is started makes ahead.
    pub watermarks: Watermarks,
    /// How many keys a node which is started makes.
    pub keygen_quota: KeygenQuota,
    /// Other orchestrators that such a node obeys.
    pub also_trusted: Vec<NodeId>,
    pub pool: Arc<CpuPool>,
    check: Arc<dyn OrderCheck>,
    entropy: Arc<dyn Entropy>,
    /// What tells nodes that are started that their machine was resumed.
    pub resumption: Arc<dyn ResumeDetector>,
    _folder: tempfile::TempDir,
}

/// How an order is to be signed for the one token that there is here.
pub fn task(
    scheme: Scheme,
    session: SessionId,
    holders: &[NodeId],
    threshold: u16,
    deadline_ms: u64,
) -> SigningTask<'_> {
    SigningTask {
        client_signer: None,
        scheme,
        session,
        holders,
        threshold,
        deadline_ms,
        token: TokenId::from_bytes([1; 16]),
        turn: RequestTurn::new(now_ms(), deadline_ms),
        trace: None,
    }
}

impl TestCluster {
    pub async fn start(medium: TestBus, count: usize) -> Self {
        Self::start_with(medium, count, Arc::new(RebuildCheck)).await
    }

    pub async fn start_with(medium: TestBus, count: usize, check: Arc<dyn OrderCheck>) -> Self {
        let watermarks = Watermarks { low: 8, high: 32 };
        Self::start_pooled(medium, count, check, watermarks).await
    }

    pub async fn start_pooled(
        medium: TestBus,
        count: usize,
        check: Arc<dyn OrderCheck>,
        watermarks: Watermarks,
    ) -> Self {
        Self::start_made(medium, count, check, watermarks, Arc::new(SystemEntropy)).await
    }

    /// Nodes that draw their randomness from this.
    pub async fn start_drawing(
        medium: TestBus,
        count: usize,
        check: Arc<dyn OrderCheck>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        let watermarks = Watermarks { low: 8, high: 32 };
        Self::start_made(medium, count, check, watermarks, entropy).await
    }

    async fn start_made(
        medium: TestBus,
        count: usize,
        check: Arc<dyn OrderCheck>,
        watermarks: Watermarks,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let orchestrator = Arc::new(NodeIdentity::generate(&SystemEntropy));
        let cluster = start_cluster(&medium, &orchestrator).await;
        let nodes = (1..=count)
            .map(|number| TestNode {
                identity: Arc::new(NodeIdentity::generate(&SystemEntropy)),
                skew_ms: 0,
                moved_ms: Arc::default(),
                name: format!("node-{number}"),
                folder: folder.path().join(number.to_string()),
                backup_recipients: Vec::new(),
                rules: free(),
                peers: Some(Vec::new()),
                vault_peers: BTreeMap::new(),
                current_peers: Arc::default(),
                callback: None,
                approval_relay: None,
                tracer: Tracer::default(),
                running: None,
            })
            .collect();
        let mut cluster = Self {
            medium,
            cluster,
            orchestrator,
            nodes,
            vault: VaultId::from_random(random_16(&SystemEntropy)),
            watermarks,
            keygen_quota: KeygenQuota {
                keys_per_vault_per_day: 10_000,
                keys_per_day: 10_000,
                unused_keys: 10_000,
            },
            also_trusted: Vec::new(),
            pool: CpuPool::per_core().unwrap(),
            check,
            entropy,
            resumption: Arc::new(NoResumeDetector),
            _folder: folder,
        };
        for place in 0..count {
            cluster.start_node(place);
        }
        cluster
    }

    /// Starts a node from its folder.
    pub fn start_node(&mut self, place: usize) {
        let folder = self.nodes[place].folder.clone();
        self.nodes[place].running = Some(self.start_from(place, folder));
    }

    /// Starts a process of a node from this folder.
    pub fn start_from(&self, place: usize, folder: PathBuf) -> RunningNode {
        let (shutdown, receiver) = watch::channel(false);
        let everybody = self.holders();
        let node = &self.nodes[place];
        let peers = node.peers.clone().map(|peers| match peers.as_slice() {
            [] => everybody,
            _ => peers,
        });
        node.current_peers.replace(PinnedPeers {
            all: peers.map(BTreeSet::from_iter),
            vaults: node.vault_peers.clone(),
        });
        let config = NodeConfig {
            approval_relay: node.approval_relay.clone(),
            tracer: node.tracer.clone(),
            client: node.callback.clone().map(|callback| ClientSignerConfig {
                vault: self.vault,
                callback,
            }),
            keygen_quota: self.keygen_quota,
            name: node.name.clone(),
            identity: Arc::clone(&node.identity),
            bus: self.medium.bus(),
            clock: Arc::new(SkewedClock(node.skew_ms, Arc::clone(&node.moved_ms))),
            entropy: Arc::clone(&self.entropy),
            pool: Arc::clone(&self.pool),
            folder,
            passphrase: SecretString::from("a passphrase"),
            work_factor: 2,
            trusted: [&[self.orchestrator.id()], self.also_trusted.as_slice()].concat(),
            peers: Arc::clone(&node.current_peers),
            check: Arc::clone(&self.check),
            backup_recipients: node.backup_recipients.clone(),
            rules: node.rules.clone(),
            heartbeat: Duration::from_millis(200),
            nonces: self.watermarks,
            resumption: Arc::clone(&self.resumption),
        };
        (shutdown, tokio::spawn(Node::run(config, receiver)))
    }

    /// Stops a node in good order.
    pub async fn stop_node(&mut self, place: usize) {
        let (shutdown, task) = self.nodes[place].running.take().unwrap();
        shutdown.send(true).unwrap();
        task.await.unwrap().unwrap();
    }

    /// How a node has ended by itself.
    pub async fn ended(&mut self, place: usize) -> Result<(), Fault> {
        let (_shutdown, task) = self.nodes[place].running.take().unwrap();
        task.await.unwrap()
    }

    /// Stops a node without a word.
    pub async fn kill_node(&mut self, place: usize) {
        let (_shutdown, task) = self.nodes[place].running.take().unwrap();
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    }

    pub fn holders(&self) -> Vec<NodeId> {
        self.nodes.iter().map(|node| node.identity.id()).collect()
    }

    pub fn keygen_order(&self, curve: Curve, threshold: u16) -> KeygenOrder {
        KeygenOrder {
            vault: self.vault,
            session: SessionId::from_random(random_16(&SystemEntropy)),
            scheme: Scheme::default_of(curve),
            threshold,
            signers: self.holders(),
            issued_at_ms: now_ms(),
            expires_at_ms: now_ms() + 120_000,
        }
    }

    /// To give the same nodes new shares of a key, instead of those of `epoch`.
    pub fn refresh_order(&self, root: &RootKey, epoch: u32, threshold: u16) -> ReshareOrder {
        let generation = |epoch| Generation {
            epoch,
            threshold,
            holders: self.holders(),
        };
        ReshareOrder {
            vault: self.vault,
            session: SessionId::from_random(random_16(&SystemEntropy)),
            scheme: Scheme::default_of(root.curve),
            root_public_key: root.public_key.clone(),
            old: generation(epoch),
            dealers: self.holders()[..usize::from(threshold)].to_vec(),
            new: generation(epoch + 1),
            issued_at_ms: now_ms(),
            expires_at_ms: now_ms() + 120_000,
        }
    }

    pub async fn keygen(&self, curve: Curve, threshold: u16) -> RootKey {
        self.cluster
            .keygen(&self.keygen_order(curve, threshold))
            .await
            .unwrap()
            .root
    }

    /// The nodes' signatures over their statements about a key; of a node that has no share: none.
    pub fn confirmed(&self, root: &RootKey) -> Vec<Vec<u8>> {
        let of = format!("root: {}\n", hex::encode(&root.public_key));
        let signature = |node: &TestNode| {
            let found = KeyStatements::load(&node.folder, &node.identity.id());
            let keys = found.map_or(Vec::new(), |found| found.keys);
            let key = keys.into_iter().find(|key| key.statement.contains(&of))?;
            Some(hex::decode(key.signature).unwrap())
        };
        self.nodes.iter().filter_map(signature).collect()
    }

    /// A rawMessage that no order had before.
    pub fn order(&self, root: &RootKey) -> SigningOrder {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let mut content = [0x11; 32];
        content[..8].copy_from_slice(&number.to_be_bytes());
        self.raw_message(root, u32::try_from(number % 7).unwrap(), &content)
    }

    /// A rawMessage of the vault's wallet with this index.
    pub fn raw_message(&self, root: &RootKey, wallet: u32, content: &[u8]) -> SigningOrder {
        raw_message(self.vault, root, wallet, content)
    }

    pub async fn sign(
        &self,
        order: &SigningOrder,
        threshold: u16,
        patience_ms: u64,
    ) -> Result<VerifiedSignatures, Fault> {
        let session = SessionId::from_random(random_16(&SystemEntropy));
        let deadline_ms = now_ms() + patience_ms;
        let (scheme, holders) = (Scheme::default_of(order.network.curve()), self.holders());
        let task = SigningTask {
            turn: RequestTurn::new(order.request.time_ms(), deadline_ms),
            ..task(scheme, session, &holders, threshold, deadline_ms)
        };
        self.cluster.sign(order, task).await
    }

    /// Signs a fresh order and verifies the signature.
    pub async fn sign_well(&self, root: &RootKey, threshold: u16) {
        let order = self.order(root);
        let signatures = self.sign(&order, threshold, 60_000).await.unwrap();
        verify(&order, &signatures);
    }

    /// Waits until the cluster sees exactly so many live nodes.
    pub async fn until_live(&self, count: usize) {
        self.until(|nodes| nodes.iter().filter(|node| node.live).count() == count)
            .await;
    }

    /// Waits until what the nodes' heartbeats say is so.
    pub async fn until(&self, so: impl Fn(&[NodeStatus]) -> bool) {
        // Two minutes: a busy machine may take long to start nodes.
        for _ in 0..2_400 {
            if so(&self.cluster.nodes()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the nodes are {:?}", self.cluster.nodes());
    }
}

/// A rawMessage of the vault's wallet with this index, of EVM or Solana.
pub fn raw_message(vault: VaultId, root: &RootKey, wallet: u32, content: &[u8]) -> SigningOrder {
    let network = match root.curve {
        Curve::Secp256k1 => Network::Evm,
        Curve::Ed25519 => Network::Solana,
    };
    let path = KeyPath::of_wallet(network, wallet).unwrap();
    let chain = network.rules();
    let public_key = root.child(&path).unwrap().public_key;
    let address = chain.address(&public_key).unwrap();
    let payload = Payload::parse(&WireKind::RawMessage(wire::RawMessage {
        from: address.clone(),
        content: content.to_vec(),
        ecdsa_hash_function: match root.curve {
            Curve::Secp256k1 => wire::EcdsaHashFunction::Sha256.into(),
            Curve::Ed25519 => wire::EcdsaHashFunction::Unspecified.into(),
        },
    }))
    .unwrap();
    let unsigned = chain
        .build(&payload, &ChainData::Nothing, &public_key)
        .unwrap();
    SigningOrder {
        request: RequestId::from_time(now_ms(), random_16(&SystemEntropy)),
        vault,
        epoch: 0,
        network,
        root_public_key: root.public_key.clone(),
        path,
        public_key,
        address,
        payload: payload.encode(),
        chain_data: ChainData::Nothing,
        unsigned: unsigned.bytes,
        inputs: unsigned.signing,
        recipient_indices: Vec::new(),
        approvals: OrderApprovals::default(),
        issued_at_ms: now_ms(),
        expires_at_ms: now_ms() + 600_000,
    }
}

/// The body of an announcement, as a node that is not ours would write it.
pub fn announcement(name: &str, at_ms: u64) -> Vec<u8> {
    announcement_with(name, at_ms, Vec::new())
}

pub fn announcement_of_client_signer(name: &str, at_ms: u64) -> Vec<u8> {
    // HaltReason::ClientSigner, in BCS.
    announcement_with(name, at_ms, vec![4])
}

fn announcement_with(name: &str, at_ms: u64, halted: Vec<u8>) -> Vec<u8> {
    let (leaving, boot, version, keys) = (false, [9_u8; 16], env!("CARGO_PKG_VERSION"), 1_u32);
    let bans: Vec<([u8; 8], NodeId)> = Vec::new();
    let (count, height, others) = (at_ms, 0_u64, Vec::<[u8; 16]>::new());
    let (frozen, listed) = (Vec::<VaultId>::new(), ListedNodes::default());
    let claims = (count, height, halted, others, 1_u16, frozen, listed);
    bcs::to_bytes(&(name, at_ms, leaving, boot, version, keys, bans, claims)).unwrap()
}

pub async fn start_cluster(medium: &TestBus, orchestrator: &Arc<NodeIdentity>) -> Arc<Cluster> {
    start_cluster_on(medium.bus(), orchestrator).await
}

pub async fn start_cluster_on(bus: Arc<dyn Bus>, orchestrator: &Arc<NodeIdentity>) -> Arc<Cluster> {
    Cluster::start(ClusterConfig {
        identity: Arc::clone(orchestrator),
        bus,
        clock: Arc::new(ShiftedClock::default()),
        entropy: Arc::new(SystemEntropy),
        live_for: Duration::from_millis(1500),
        attempt: Duration::from_secs(2),
    })
    .await
    .unwrap()
}

pub fn verify(order: &SigningOrder, signatures: &[Signature]) {
    assert_eq!(order.inputs.len(), signatures.len());
    for (input, signature) in order.inputs.iter().zip(signatures) {
        match signature {
            Signature::Ecdsa { r, s, y_parity } => {
                use k256::ecdsa::{RecoveryId, VerifyingKey};
                let plain = k256::ecdsa::Signature::from_scalars(*r, *s).unwrap();
                let id = RecoveryId::new(*y_parity == 1, false);
                let key = VerifyingKey::recover_from_prehash(&input.message, &plain, id).unwrap();
                assert_eq!(
                    key,
                    VerifyingKey::from_sec1_bytes(&order.public_key).unwrap()
                );
            }
            Signature::Ed25519 { .. } => {
                let key = ed25519_dalek::VerifyingKey::try_from(&order.public_key[..]).unwrap();
                let plain = ed25519_dalek::Signature::from_bytes(&signature.to_bytes());
                key.verify_strict(&input.message, &plain).unwrap();
            }
        }
    }
}
