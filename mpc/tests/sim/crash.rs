//! Nodes that end at the worst moment: between a claim and what it was for, and when the disk fails.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use covault_core::{
    derive::RootKey,
    fault::{Class, Fault},
    ids::{SessionId, TokenId, VaultId},
    networks::VerifiedSignatures,
    order::{KeygenOrder, NodeId, SigningOrder},
    port::{Clock as _, random_16},
    scheme::Scheme,
    trace::Tracer,
    turns::RequestTurn,
};
use covault_mpc::{
    bus::{Bus, BusAddress, BusError, double::BusDouble, memory::MemoryBus},
    cluster::{Cluster, ClusterConfig, SigningTask},
    envelope::{Envelope, EnvelopeKind},
    identity::NodeIdentity,
    node::{KeygenQuota, NoResumeDetector, Node, NodeConfig, RebuildCheck},
    pool::CpuPool,
    preprocess::Watermarks,
};
use secrecy::SecretString;
use tokio::{sync::watch, task::JoinHandle, time::sleep};

use crate::{
    support::{raw_message, verify},
    world::{ProcessLife, SeededRng, SimClock, machine, ms},
};

/// The bus of one life, which ends instead of sending the first protocol message, if armed. Loses
/// one message, if somebody says of which kind.
struct CrashingBus {
    bus: Arc<MemoryBus>,
    life: Arc<ProcessLife>,
    armed: Arc<AtomicBool>,
    loses: LossRule,
}

type LossRule = Arc<Mutex<Option<EnvelopeKind>>>;

impl BusDouble for CrashingBus {
    fn inner(&self) -> &dyn Bus {
        &*self.bus
    }

    fn publish(&self, to: BusAddress, message: Vec<u8>) -> Result<(), BusError> {
        let kind = Envelope::parse(message.clone()).unwrap().header.kind;
        if kind == EnvelopeKind::Protocol && self.armed.swap(false, Ordering::Relaxed) {
            self.life.end();
        }
        let lost = self.loses.lock().unwrap().take_if(|lost| *lost == kind);
        if !self.life.alive() || lost.is_some() {
            return Ok(());
        }
        self.bus.publish(to, message)
    }
}

/// Two nodes and their orchestrator. What goes wrong with a node goes wrong with node 1.
pub struct CrashPair {
    pub clock: SimClock,
    pub rng: Arc<SeededRng>,
    bus: Arc<MemoryBus>,
    identities: Vec<Arc<NodeIdentity>>,
    folder: tempfile::TempDir,
    armed: Arc<AtomicBool>,
    /// What of the orchestrator's is lost, and what of node 1's.
    pub lost_orders: LossRule,
    pub lost_answers: LossRule,
    pub cluster: Arc<Cluster>,
    pub vault: VaultId,
}

type Running = (
    Arc<ProcessLife>,
    watch::Sender<bool>,
    JoinHandle<Result<(), Fault>>,
);

impl CrashPair {
    pub async fn new(seed: u64) -> Self {
        let rng = Arc::new(SeededRng::new(seed, 0));
        let clock = SimClock::start();
        let bus = MemoryBus::new();
        let identities: Vec<_> = (0..3)
            .map(|_| Arc::new(NodeIdentity::generate(&*rng)))
            .collect();
        let lost_orders = LossRule::default();
        let cluster = Cluster::start(ClusterConfig {
            identity: Arc::clone(&identities[0]),
            bus: Arc::new(CrashingBus {
                bus: Arc::clone(&bus),
                life: Arc::default(),
                armed: Arc::default(),
                loses: Arc::clone(&lost_orders),
            }),
            clock: Arc::new(clock),
            entropy: Arc::clone(&rng) as _,
            live_for: ms(3_500),
            attempt: ms(2_000),
        });
        Self {
            cluster: cluster.await.unwrap(),
            vault: VaultId::from_random(random_16(&*rng)),
            clock,
            rng,
            bus,
            identities,
            folder: tempfile::tempdir().unwrap(),
            armed: Arc::default(),
            lost_orders,
            lost_answers: LossRule::default(),
        }
    }

    fn folder(&self, place: usize) -> PathBuf {
        self.folder.path().join(place.to_string())
    }

    /// Starts node 1 or 2.
    pub fn start(&self, place: usize) -> Running {
        let life = Arc::new(ProcessLife::default());
        let (armed, loses) = match place {
            1 => (Arc::clone(&self.armed), Arc::clone(&self.lost_answers)),
            _ => (Arc::default(), LossRule::default()),
        };
        let config = NodeConfig {
            approval_relay: None,
            tracer: Tracer::default(),
            client: None,
            keygen_quota: KeygenQuota::default(),
            name: format!("node-{place}"),
            identity: Arc::clone(&self.identities[place]),
            bus: Arc::new(CrashingBus {
                bus: Arc::clone(&self.bus),
                life: Arc::clone(&life),
                armed,
                loses,
            }),
            clock: Arc::new(self.clock),
            entropy: Arc::clone(&self.rng) as _,
            pool: CpuPool::simulated(machine(&self.rng, &life, Some([place as u8; 32]), false)),
            folder: self.folder(place),
            passphrase: SecretString::from("a passphrase"),
            work_factor: 1,
            trusted: vec![self.identities[0].id()],
            peers: Arc::default(),
            backup_recipients: Vec::new(),
            rules: crate::support::free(),
            check: Arc::new(RebuildCheck),
            heartbeat: ms(1_000),
            nonces: Watermarks { low: 0, high: 0 },
            resumption: Arc::new(NoResumeDetector),
        };
        let (shutdown, receiver) = watch::channel(false);
        (life, shutdown, tokio::spawn(Node::run(config, receiver)))
    }

    pub fn holders(&self) -> Vec<NodeId> {
        vec![self.identities[1].id(), self.identities[2].id()]
    }

    pub async fn keygen(&self) -> RootKey {
        let now_ms = self.clock.now_ms();
        let order = KeygenOrder {
            vault: self.vault,
            session: SessionId::from_random(random_16(&*self.rng)),
            scheme: Scheme::FrostEd25519,
            threshold: 2,
            signers: self.holders(),
            issued_at_ms: now_ms,
            expires_at_ms: now_ms + 60_000,
        };
        self.cluster.keygen(&order).await.unwrap().root
    }

    pub fn order(&self, root: &RootKey, content: &[u8]) -> SigningOrder {
        let mut order = raw_message(self.vault, root, 1, content);
        order.issued_at_ms = self.clock.now_ms();
        order.expires_at_ms = order.issued_at_ms + 120_000;
        order
    }

    pub async fn sign(
        &self,
        order: &SigningOrder,
        patience_ms: u64,
    ) -> Result<VerifiedSignatures, Fault> {
        let session = SessionId::from_random(random_16(&*self.rng));
        let deadline_ms = self.clock.now_ms() + patience_ms;
        let holders = self.holders();
        let cluster = &self.cluster;
        cluster
            .sign(
                order,
                SigningTask {
                    client_signer: None,
                    scheme: Scheme::default_of(order.network.curve()),
                    session,
                    holders: &holders,
                    threshold: 2,
                    deadline_ms,
                    token: TokenId::from_bytes([1; 16]),
                    turn: RequestTurn::new(order.request.time_ms(), deadline_ms),
                    trace: None,
                },
            )
            .await
    }
}

pub fn run<F: Future<Output = ()>>(story: F) {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(story);
}

#[test]
fn node__should_keep_its_claim_when_it_dies_before_its_first_message_leaves() {
    for seed in 0..20 {
        run(async {
            let pair = CrashPair::new(seed).await;
            let (life, _first, node) = pair.start(1);
            let _second = pair.start(2);
            let root = pair.keygen().await;
            let order = pair.order(&root, b"the first");

            // It has claimed the digest; nothing of it has left.
            pair.armed.store(true, Ordering::Relaxed);
            assert!(pair.sign(&order, 1_500).await.is_err());
            assert!(!life.alive());
            node.abort();
            let _ = node.await;

            // Another digest for this request is refused by it alone: by the other, too, if it was
            // asked. The same digest is signed, in a new session.
            let _again = pair.start(1);
            sleep(ms(1_500)).await;
            let mut rival = pair.order(&root, b"the second");
            rival.request = order.request;
            let fault = pair.sign(&rival, 20_000).await.unwrap_err();
            assert_eq!(fault.class(), &Class::WrongState, "{fault:?}");
            verify(&order, &pair.sign(&order, 20_000).await.unwrap());
        });
    }
}

#[test]
fn node__should_end_when_its_disk_fails_and_come_back_when_it_works() {
    run(async {
        let pair = CrashPair::new(7).await;
        let (life, _first, node) = pair.start(1);
        let _second = pair.start(2);
        let root = pair.keygen().await;
        verify(
            &pair.order(&root, b"before"),
            &pair
                .sign(&pair.order(&root, b"before"), 20_000)
                .await
                .unwrap(),
        );
        life.disk.fill(true);
        let order = pair.order(&root, b"meanwhile");
        let fault = pair.sign(&order, 3_000).await.unwrap_err();
        assert_eq!(fault.class(), &Class::Unavailable, "{fault:?}");
        // It has ended by itself, and says why.
        let fault = node.await.unwrap().unwrap_err();
        assert_eq!(fault.class(), &Class::Unavailable);
        assert!(fault.message().contains("is the disk full"), "{fault:?}");
        // What was requested in the meantime is signed once it is back.
        let _again = pair.start(1);
        sleep(ms(1_500)).await;
        verify(&order, &pair.sign(&order, 20_000).await.unwrap());
    });
}
