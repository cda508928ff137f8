//! The life of a key on a cluster: refresh, reshare, replacement, repair, backup.

#![allow(non_snake_case, missing_docs)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

mod support;

use std::{
    fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU16, Ordering},
    },
};

use age::x25519::Identity;
use async_trait::async_trait;
use covault_core::{
    derive::{KeyPath, RootKey},
    fault::{Class, Fault},
    ids::SessionId,
    order::{BackupOrder, Generation, NodeId, ReshareOrder, ReshareProof},
    port::random_16,
    scheme::Scheme,
    signature::Curve,
};
use covault_mpc::{
    bus::{Address, Bus, BusError, Subscription, memory::MemoryBus},
    envelope::{Envelope, Header, Kind},
    identity::NodeIdentity,
    shares::backup,
};
use secrecy::{ExposeSecret as _, SecretString};
use support::{Medium, SystemEntropy, TestCluster, now_ms, start_cluster, verify};

/// A cluster, one key of it, and who holds its shares.
struct Life {
    test: TestCluster,
    root: RootKey,
    generation: Generation,
    /// The highest epoch that was tried.
    tried: u32,
}

type Statements = Vec<(NodeId, Vec<u8>)>;

fn session() -> SessionId {
    SessionId::from_random(random_16(&SystemEntropy))
}

impl Life {
    /// `nodes` nodes, of which the first `holders` get a key.
    async fn start(curve: Curve, nodes: usize, holders: usize, threshold: u16) -> Self {
        Self::start_on(Medium::memory(), curve, nodes, holders, threshold).await
    }

    async fn start_on(
        medium: Medium,
        curve: Curve,
        nodes: usize,
        holders: usize,
        threshold: u16,
    ) -> Self {
        let test = TestCluster::start(medium, nodes).await;
        test.until_live(nodes).await;
        let mut order = test.keygen_order(curve, threshold);
        order.signers.truncate(holders);
        let root = test.cluster.keygen(&order).await.unwrap();
        let generation = Generation {
            epoch: 0,
            threshold,
            holders: order.signers,
        };
        Self {
            test,
            root,
            generation,
            tried: 0,
        }
    }

    fn id(&self, place: usize) -> NodeId {
        self.test.nodes[place].identity.id()
    }

    /// From the places of dealers to the places of new holders.
    fn order(&mut self, dealers: &[usize], holders: &[usize], threshold: u16) -> ReshareOrder {
        self.tried += 1;
        ReshareOrder {
            vault: self.test.vault,
            session: session(),
            scheme: Scheme::default_of(self.root.curve),
            root_public_key: self.root.public_key.clone(),
            old: self.generation.clone(),
            dealers: dealers.iter().map(|place| self.id(*place)).collect(),
            new: Generation {
                epoch: self.tried,
                threshold,
                holders: holders.iter().map(|place| self.id(*place)).collect(),
            },
            issued_at_ms: now_ms(),
            expires_at_ms: now_ms() + 300_000,
        }
    }

    async fn prepare(&self, order: &ReshareOrder) -> ReshareProof {
        self.test.cluster.reshare(order).await.unwrap()
    }

    async fn reshare(&mut self, dealers: &[usize], holders: &[usize], threshold: u16) {
        let order = self.order(dealers, holders, threshold);
        let proof = self.prepare(&order).await;
        self.test.cluster.activate(&order, &proof).await.unwrap();
        self.generation = order.new;
    }

    async fn sign_as(&self, generation: &Generation, patience_ms: u64) -> Result<(), Fault> {
        let mut order = self.test.order(&self.root);
        order.epoch = generation.epoch;
        let signatures = self
            .test
            .cluster
            .sign(
                &order,
                session(),
                &generation.holders,
                generation.threshold,
                now_ms() + patience_ms,
            )
            .await?;
        verify(&order, &signatures);
        Ok(())
    }

    async fn signs(&self) {
        self.sign_as(&self.generation, 60_000).await.unwrap();
    }

    /// The epochs of a node's share files, in use and pending.
    fn files(&self, place: usize) -> (Vec<u32>, Vec<u32>) {
        let of = |extension: &str| {
            let mut epochs: Vec<u32> = fs::read_dir(self.test.nodes[place].folder.join("shares"))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .filter(|name| name.ends_with(extension))
                .map(|name| name.split('.').nth(2).unwrap().parse().unwrap())
                .collect();
            epochs.sort_unstable();
            epochs
        };
        (of(".age"), of(".pending"))
    }

    fn live(&self) -> usize {
        let nodes = self.test.cluster.nodes();
        nodes.iter().filter(|it| it.live).count()
    }

    /// Without a word; the cluster has noticed that it was away when this returns.
    async fn crash(&mut self, place: usize) {
        let live = self.live();
        self.test.kill_node(place).await;
        self.test.until_live(live - 1).await;
    }

    async fn restart(&mut self, place: usize) {
        let live = self.live();
        self.test.stop_node(place).await;
        self.test.until_live(live - 1).await;
        self.test.start_node(place);
        self.test.until_live(live).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn life__should_refresh_and_reshare_and_erase_what_is_old() {
    let mut life = Life::start(Curve::Ed25519, 5, 3, 2).await;
    life.signs().await;
    let first = life.generation.clone();
    life.reshare(&[0, 2], &[0, 1, 2], 2).await;
    life.signs().await;
    for place in 0..3 {
        assert_eq!(life.files(place), (vec![1], vec![]));
    }
    // Orders of the old generation are refused, and told which one there is.
    let fault = life.sign_as(&first, 5_000).await.unwrap_err();
    assert!(fault.public().contains("epoch 1"), "{fault:?}");
    life.reshare(&[1, 2], &[4, 3, 2, 1, 0], 3).await;
    life.signs().await;
    // Across a restart of all.
    for place in 0..5 {
        life.restart(place).await;
    }
    life.signs().await;
    life.reshare(&[0, 3, 2], &[4, 0], 2).await;
    life.signs().await;
    for place in [1, 2, 3] {
        assert_eq!(life.files(place), (vec![], vec![]), "who has left");
    }
    let order = life.order(&[4, 0], &[4, 0], 1);
    let fault = life.test.cluster.reshare(&order).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Invalid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn life__should_replace_a_lost_node_and_repair_a_lost_share_on_secp256k1() {
    let mut life = Life::start(Curve::Secp256k1, 4, 3, 2).await;
    // Node 1 is gone with all it had; node 3 takes its place.
    life.crash(1).await;
    life.reshare(&[0, 2], &[0, 3, 2], 2).await;
    life.signs().await;
    // Node 0 has lost its shares, though not its identity.
    life.test.stop_node(0).await;
    life.test.until_live(2).await;
    fs::remove_dir_all(life.test.nodes[0].folder.join("shares")).unwrap();
    life.test.start_node(0);
    life.test.until_live(3).await;
    life.reshare(&[3, 2], &[0, 3, 2], 2).await;
    // It is needed.
    life.test.stop_node(2).await;
    life.test.until_live(2).await;
    life.signs().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn life__should_leave_the_old_shares_working_until_all_is_proven() {
    let mut life = Life::start(Curve::Ed25519, 4, 3, 2).await;
    let order = life.order(&[0, 1], &[0, 1, 3], 2);
    let proof = life.prepare(&order).await;
    let files = |life: &Life| -> Vec<_> { (0..4).map(|place| life.files(place)).collect() };
    let prepared = [
        (vec![0], vec![1]),
        (vec![0], vec![1]),
        (vec![0], vec![]),
        (vec![], vec![1]),
    ];
    assert_eq!(files(&life), prepared);
    life.signs().await;
    // Everybody dies, the orchestrator too.
    for place in 0..4 {
        life.crash(place).await;
    }
    for place in 0..4 {
        life.test.start_node(place);
    }
    life.test.cluster = start_cluster(&life.test.medium, &life.test.orchestrator).await;
    life.test.until_live(4).await;
    life.signs().await;
    assert_eq!(files(&life), prepared);

    // The orchestrator asks for it without the proof.
    let forged = |change: &dyn Fn(&mut Statements)| {
        let mut forged = proof.clone();
        change(&mut forged.0);
        forged
    };
    let other = life.order(&[0, 1], &[0, 1, 3], 2);
    let stranger = NodeIdentity::generate(&SystemEntropy);
    for forged in [
        ReshareProof::default(),
        forged(&|proof| proof.truncate(2)),
        forged(&|proof| proof[2].1[5] ^= 1),
        forged(&|proof| proof[2].1 = proof[1].1.clone()),
        forged(&|proof| {
            proof[2].1 = life.test.nodes[3]
                .identity
                .sign(&other.statement().unwrap())
                .to_vec();
        }),
        forged(&|proof| proof[2].1 = stranger.sign(&order.statement().unwrap()).to_vec()),
    ] {
        let fault = life
            .test
            .cluster
            .activate(&order, &forged)
            .await
            .unwrap_err();
        assert!(fault.public().contains("proof"), "{fault:?}");
    }
    assert_eq!(files(&life), prepared);
    life.signs().await;

    // Repeating the order gives the same proof; node 2 is away when it is shown.
    assert_eq!(life.prepare(&order).await, proof);
    life.crash(2).await;
    for _ in 0..2 {
        life.test.cluster.activate(&order, &proof).await.unwrap();
    }
    assert_eq!(life.prepare(&order).await, proof, "even now");
    let old = std::mem::replace(&mut life.generation, order.new.clone());
    life.signs().await;
    assert_eq!(life.files(2), (vec![0], vec![]));
    // Back again, it still has its old share, which is of no use to anybody, and erases it when
    // it is told.
    life.test.start_node(2);
    life.test.until_live(4).await;
    assert!(life.sign_as(&old, 3_000).await.is_err());
    life.test.cluster.activate(&order, &proof).await.unwrap();
    assert_eq!(life.files(2), (vec![], vec![]));
    life.signs().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn life__should_finish_an_activation_that_was_cut_off() {
    let mut life = Life::start(Curve::Ed25519, 3, 3, 2).await;
    let order = life.order(&[0, 1], &[0, 1, 2], 2);
    let proof = life.prepare(&order).await;
    // Node 0 dies between the rename and the erasure, node 1 before both.
    life.crash(0).await;
    life.crash(1).await;
    let shares = life.test.nodes[0].folder.join("shares");
    let pending = fs::read_dir(&shares)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|it| it == "pending"))
        .unwrap();
    fs::rename(&pending, pending.with_extension("age")).unwrap();
    assert_eq!(life.files(0), (vec![0, 1], vec![]));
    life.test.start_node(0);
    life.test.until_live(2).await;
    let fault = life
        .test
        .cluster
        .activate(&order, &proof)
        .await
        .unwrap_err();
    assert_eq!(fault.class(), &Class::Unavailable);
    assert!(fault.public().contains("node-2"), "{fault:?}");
    assert_eq!(life.files(0), (vec![1], vec![]));
    life.test.start_node(1);
    life.test.until_live(3).await;
    life.test.cluster.activate(&order, &proof).await.unwrap();
    assert_eq!(life.files(1), (vec![1], vec![]));
    life.generation = order.new;
    life.signs().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn life__should_keep_every_prepared_share_until_a_later_one_is_in_use() {
    // Two generations are prepared, and a hostile orchestrator shows one proof to one node and the
    // other to the other: the later one has both its shares all the same.
    let mut life = Life::start(Curve::Ed25519, 2, 2, 2).await;
    let first = life.order(&[0, 1], &[0, 1], 2);
    let first_proof = life.prepare(&first).await;
    let second = life.order(&[1, 0], &[1, 0], 2);
    let second_proof = life.prepare(&second).await;
    assert_eq!(life.files(0), (vec![0], vec![1, 2]));
    life.crash(1).await;
    let cluster = &life.test.cluster;
    assert!(cluster.activate(&first, &first_proof).await.is_err());
    assert_eq!(life.files(0), (vec![1], vec![2]));
    life.test.start_node(1);
    life.test.until_live(2).await;
    life.test
        .cluster
        .activate(&second, &second_proof)
        .await
        .unwrap();
    for place in 0..2 {
        assert_eq!(life.files(place), (vec![2], vec![]));
    }
    life.generation = second.new.clone();
    life.signs().await;
    // The earlier one never comes back, nor is its epoch used again.
    let fault = life
        .test
        .cluster
        .activate(&first, &first_proof)
        .await
        .unwrap_err();
    assert!(fault.public().contains("epoch 2"), "{fault:?}");
    let mut again = life.order(&[0, 1], &[0, 1], 2);
    again.old = first.old.clone();
    let fault = life.test.cluster.reshare(&again).await.unwrap_err();
    assert!(fault.public().contains("epoch 2"), "{fault:?}");
    life.signs().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn life__should_not_hand_the_key_to_nodes_that_nobody_pinned() {
    let mut life = Life::start(Curve::Ed25519, 4, 3, 2).await;
    // Nodes 0 to 2 know each other, or pin nobody at all; node 3 is the orchestrator's own.
    let pins = (0..3).map(|place| life.id(place)).collect::<Vec<_>>();
    life.test.nodes[0].peers = Some(pins.clone());
    life.test.nodes[1].peers = None;
    life.test.nodes[2].peers = Some(pins);
    for place in 0..3 {
        life.restart(place).await;
    }
    let line = life.test.nodes[3].identity.openssh_line("");
    for dealers in [[0, 1], [1, 2]] {
        let order = life.order(&dealers, &[0, 1, 3], 2);
        let fault = life.test.cluster.reshare(&order).await.unwrap_err();
        assert!(fault.public().contains(&line), "{fault:?}");
        assert!(fault.public().contains("new.holders"), "{fault:?}");
    }
    // Nor does a node give up its share for one of theirs.
    let order = life.order(&[0, 1], &[3, 0], 2);
    let statement = order.statement().unwrap();
    let proof = [3, 0].map(|place| {
        let identity = &life.test.nodes[place].identity;
        (identity.id(), identity.sign(&statement).to_vec())
    });
    let proof = ReshareProof(proof.to_vec());
    assert!(life.test.cluster.activate(&order, &proof).await.is_err());
    for place in 0..3 {
        assert_eq!(life.files(place).0, [0]);
    }
    life.signs().await;
    // Among themselves they may.
    life.reshare(&[0, 1], &[0, 1, 2], 2).await;
    life.signs().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn life__should_refuse_orders_that_do_not_fit_what_is_held() {
    let mut life = Life::start(Curve::Ed25519, 3, 3, 2).await;
    life.reshare(&[0, 1], &[0, 1, 2], 2).await;
    let mut lies: Vec<(ReshareOrder, &str)> = Vec::new();
    let mut lie = |life: &mut Life, change: &dyn Fn(&mut ReshareOrder), says: &'static str| {
        let mut order = life.order(&[0, 1], &[0, 1, 2], 2);
        change(&mut order);
        lies.push((order, says));
    };
    lie(&mut life, &|order| order.old.epoch = 0, "epoch 1");
    lie(&mut life, &|order| order.old.holders.swap(0, 2), "old");
    lie(
        &mut life,
        &|order| order.vault = covault_core::ids::VaultId::from_bytes([1; 16]),
        "vault",
    );
    lie(&mut life, &|order| order.scheme = Scheme::Dkls23, "scheme");
    lie(
        &mut life,
        &|order| order.root_public_key[3] ^= 1,
        "no share",
    );
    lie(&mut life, &|order| order.issued_at_ms += 120_000, "future");
    for (order, says) in lies {
        let fault = life.test.cluster.reshare(&order).await.unwrap_err();
        assert!(fault.public().contains(says), "{says}: {fault:?}");
    }
    for place in 0..3 {
        assert_eq!(life.files(place), (vec![1], vec![]));
    }
    life.signs().await;
}

/// A bus that keeps what some sender sends in one round of a protocol.
struct Cut {
    bus: Arc<MemoryBus>,
    round: AtomicU16,
    from: Mutex<Option<NodeId>>,
}

#[async_trait]
impl Bus for Cut {
    fn publish(&self, to: Address, message: Vec<u8>) -> Result<(), BusError> {
        let envelope = Envelope::parse(message.clone()).unwrap();
        let Header {
            kind, round, from, ..
        } = envelope.header;
        let cut = kind == Kind::Protocol
            && round == self.round.load(Ordering::Relaxed)
            && Some(from) == *self.from.lock().unwrap();
        if cut {
            return Ok(());
        }
        self.bus.publish(to, message)
    }

    async fn subscribe(&self, me: NodeId, announcements: bool) -> Result<Subscription, BusError> {
        self.bus.subscribe(me, announcements).await
    }

    fn reachable(&self) -> bool {
        self.bus.reachable()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn life__should_leave_the_old_shares_working_when_cut_off_at_any_round() {
    let bus = Arc::new(Cut {
        bus: MemoryBus::new(),
        round: AtomicU16::new(0),
        from: Mutex::default(),
    });
    let medium = Medium::Other(Arc::clone(&bus) as Arc<dyn Bus>);
    let mut life = Life::start_on(medium, Curve::Ed25519, 4, 3, 2).await;
    *bus.from.lock().unwrap() = Some(life.id(1));
    // The keys of the run, deals, echoes, parts, outcomes. Node 1 deals and leaves.
    for round in 1..=5 {
        bus.round.store(round, Ordering::Relaxed);
        let mut order = life.order(&[0, 1], &[0, 2, 3], 2);
        order.expires_at_ms = now_ms() + 1_500;
        let fault = life.test.cluster.reshare(&order).await.unwrap_err();
        assert_eq!(fault.class(), &Class::Unavailable, "{fault:?}");
        assert!(
            fault.public().contains("node-2"),
            "round {round}: {fault:?}"
        );
        for place in 0..4 {
            let in_use = if place == 3 { vec![] } else { vec![0] };
            assert_eq!(life.files(place), (in_use, vec![]), "round {round}");
        }
        bus.round.store(0, Ordering::Relaxed);
        life.signs().await;
    }
    life.reshare(&[0, 1], &[0, 2, 3], 2).await;
    life.signs().await;
}

fn backup_order(life: &Life, recipients: Vec<String>) -> BackupOrder {
    BackupOrder {
        vault: life.test.vault,
        session: session(),
        root_public_key: life.root.public_key.clone(),
        epoch: life.generation.epoch,
        holders: life.generation.holders.clone(),
        recipients,
        issued_at_ms: now_ms(),
        expires_at_ms: now_ms() + 60_000,
    }
}

/// Backup, recovery from nothing else, restoration of a node, and the refresh that it needs.
async fn backup_story(curve: Curve) {
    let mut life = Life::start(curve, 3, 3, 2).await;
    let (alice, bob) = (Identity::generate(), Identity::generate());
    let lines: Vec<String> = [&alice, &bob]
        .map(|identity| identity.to_public().to_string())
        .to_vec();
    for place in 0..2 {
        life.test.nodes[place].backup_recipients = lines.clone();
        life.restart(place).await;
    }

    // To others a node gives nothing, whatever the orchestrator says.
    let thief = Identity::generate().to_public().to_string();
    let order = backup_order(&life, vec![lines[0].clone(), thief.clone()]);
    for (_, answer) in life.test.cluster.backup(&order).await.unwrap() {
        assert!(answer.unwrap_err().public().contains("recipients"));
    }
    let order = backup_order(&life, lines.clone());
    let answers = life.test.cluster.backup(&order).await.unwrap();
    let node = answers[2].1.as_ref().unwrap_err();
    assert!(node.public().contains("backup_recipients"), "{node:?}");
    let sealed: Vec<Vec<u8>> = answers
        .into_iter()
        .take(2)
        .map(|(_, answer)| answer.unwrap())
        .collect();
    let root = life.root.clone();
    for blob in &sealed {
        assert!(!blob.windows(8).any(|it| it == &root.public_key[..8]));
        assert!(backup::open(blob, &[Identity::generate()]).is_err());
    }

    // t backups and an offline identity are all that it takes.
    let file = format!("# offline\n{}\n", bob.to_string().expose_secret());
    let identities = backup::identities(&file).unwrap();
    let open = |blob: &Vec<u8>| backup::open(blob, &identities).unwrap();
    let backups: Vec<_> = sealed.iter().map(open).collect();
    let fault = backup::recover(&backups[..1]).err().unwrap();
    assert!(fault.public().contains("too few"), "{fault:?}");
    assert!(backup::recover(&[open(&sealed[0]), open(&sealed[0])]).is_err());
    let key = backup::recover(&backups).unwrap();
    assert_eq!(key.root, root);
    let path = KeyPath::new(vec![0, 7]).unwrap();
    check_private(curve, &key.private_hex(), &root.public_key);
    let child = key.child(&path).unwrap();
    assert_eq!(child.public_key, root.child(&path).unwrap().public_key);
    check_private(curve, &child.private_hex(), &child.public_key);
    if let Some(xprv) = key.xprv() {
        check_xprv(&xprv, &path, &child.private_hex());
    }

    // Node 0 burns down and gets its share back.
    life.test.stop_node(0).await;
    life.test.until_live(2).await;
    let folder = life.test.nodes[0].folder.clone();
    fs::remove_dir_all(&folder).unwrap();
    let passphrase = SecretString::from("a passphrase");
    let (this, other) = (life.id(0), life.id(1));
    assert!(backup::restore(&folder, &passphrase, 2, &other, &backups[0]).is_err());
    backup::restore(&folder, &passphrase, 2, &this, &backups[0]).unwrap();
    let fault = backup::restore(&folder, &passphrase, 2, &this, &backups[0]).unwrap_err();
    assert_eq!(fault.class(), &Class::Conflict);
    life.test.start_node(0);
    life.test.until_live(3).await;
    life.test.stop_node(2).await;
    life.test.until_live(2).await;
    // It does not sign: what it has signed since the backup is not known to it.
    let fault = life.sign_as(&life.generation, 3_000).await.unwrap_err();
    assert!(fault.public().contains("restored"), "{fault:?}");
    // But it deals: with node 2 gone for good, it takes both.
    life.reshare(&[0, 1], &[0, 1], 2).await;
    life.signs().await;
    // Backups of two generations do not mix.
    let order = backup_order(&life, lines);
    let answers = life.test.cluster.backup(&order).await.unwrap();
    let newer = open(answers[1].1.as_ref().unwrap());
    let fault = backup::recover(&[open(&sealed[0]), newer]).err().unwrap();
    assert!(fault.public().contains("epochs 0 and 1"), "{fault:?}");
}

/// That a private key has this public one, by libraries that did not recover it.
fn check_private(curve: Curve, private: &str, public: &[u8]) {
    let bytes: [u8; 32] = hex::decode(private).unwrap().try_into().unwrap();
    match curve {
        Curve::Secp256k1 => {
            use k256::ecdsa::{
                Signature, SigningKey,
                signature::hazmat::{PrehashSigner as _, PrehashVerifier as _},
            };
            let key = SigningKey::from_slice(&bytes).unwrap();
            let point = key.verifying_key().to_sec1_point(true);
            assert_eq!(point.as_bytes(), public);
            let signature: Signature = key.sign_prehash(&[3; 32]).unwrap();
            key.verifying_key()
                .verify_prehash(&[3; 32], &signature)
                .unwrap();
        }
        Curve::Ed25519 => {
            use ed25519_dalek::hazmat::{ExpandedSecretKey, raw_sign};
            let scalar =
                Option::from(curve25519_dalek::Scalar::from_canonical_bytes(bytes)).unwrap();
            let expanded = ExpandedSecretKey {
                scalar,
                hash_prefix: [5; 32],
            };
            let key = ed25519_dalek::VerifyingKey::from(&expanded);
            assert_eq!(key.as_bytes().as_slice(), public);
            let signature = raw_sign::<sha2::Sha512>(&expanded, b"message", &key);
            key.verify_strict(b"message", &signature).unwrap();
        }
    }
}

/// That an outside library derives the same child from the extended key.
fn check_xprv(xprv: &str, path: &KeyPath, child: &str) {
    let bytes = bs58::decode(xprv).with_check(None).into_vec().unwrap();
    assert!(xprv.starts_with("xprv") && bytes.len() == 78);
    let mut secret =
        generic_ec::Scalar::<generic_ec::curves::Secp256k1>::from_be_bytes_mod_order(&bytes[46..]);
    let root: hd_wallet::ExtendedKeyPair<_> = hd_wallet::ExtendedSecretKey {
        secret_key: generic_ec::SecretScalar::new(&mut secret),
        chain_code: bytes[13..45].try_into().unwrap(),
    }
    .into();
    let derived = <hd_wallet::Slip10 as hd_wallet::HdWallet<_>>::derive_child_key_pair_with_path(
        &root,
        path.indices().iter().copied(),
    );
    let secret: &generic_ec::Scalar<_> = derived.secret_key().secret_key.as_ref();
    assert_eq!(hex::encode(secret.to_be_bytes()), child);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn life__should_give_the_key_back_from_backups_on_ed25519() {
    backup_story(Curve::Ed25519).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn life__should_give_the_key_back_from_backups_on_secp256k1() {
    backup_story(Curve::Secp256k1).await;
}
