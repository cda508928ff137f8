//! A cluster with a key whose shares change.

use std::fs;

use covault_core::{
    attest::MadeKey,
    derive::RootKey,
    fault::Fault,
    ids::SessionId,
    order::{Generation, NodeId, ReshareOrder, ReshareOutcome, ReshareProof},
    port::random_16,
    scheme::Scheme,
    signature::Curve,
    wallet::generation::{LiveKey, ReshareTarget},
};

use crate::support::{SystemEntropy, TestBus, TestCluster, now_ms, task, verify};

/// A cluster, one key of it, and who holds its shares.
pub struct LifecycleFixture {
    pub test: TestCluster,
    pub root: RootKey,
    pub generation: Generation,
    /// The highest epoch that was tried.
    pub tried: u32,
}

pub type Statements = Vec<(NodeId, Vec<u8>)>;

pub fn session() -> SessionId {
    SessionId::from_random(random_16(&SystemEntropy))
}

impl LifecycleFixture {
    /// `nodes` nodes, of which the first `holders` get a key.
    pub async fn start(curve: Curve, nodes: usize, holders: usize, threshold: u16) -> Self {
        Self::start_on(TestBus::memory(), curve, nodes, holders, threshold).await
    }

    pub async fn start_on(
        medium: TestBus,
        curve: Curve,
        nodes: usize,
        holders: usize,
        threshold: u16,
    ) -> Self {
        let test = TestCluster::start(medium, nodes).await;
        test.until_live(nodes).await;
        let mut order = test.keygen_order(curve, threshold);
        order.signers.truncate(holders);
        let root = test.cluster.keygen(&order).await.unwrap().root;
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

    pub fn id(&self, place: usize) -> NodeId {
        self.test.nodes[place].identity.id()
    }

    /// From the places of dealers to the places of new holders.
    pub fn order(&mut self, dealers: &[usize], holders: &[usize], threshold: u16) -> ReshareOrder {
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

    pub async fn prepare(&self, order: &ReshareOrder) -> ReshareProof {
        self.test.cluster.reshare(order).await.unwrap()
    }

    /// Shows the nodes a proof.
    pub async fn distribute_activation(
        &self,
        order: &ReshareOrder,
        proof: &ReshareProof,
        nodes: &[NodeId],
    ) -> Vec<(NodeId, Result<(), Fault>)> {
        self.test
            .cluster
            .distribute_activation(order, proof, &[], nodes)
            .await
            .unwrap()
    }

    pub async fn reshare(&mut self, dealers: &[usize], holders: &[usize], threshold: u16) {
        let order = self.order(dealers, holders, threshold);
        let proof = self.prepare(&order).await;
        self.test.cluster.activate(&order, &proof).await.unwrap();
        self.generation = order.new;
    }

    /// What the store of an orchestrator says that knows of no generation but the first.
    pub fn first_store(&self) -> LiveKey {
        let made = MadeKey {
            root: self.root.clone(),
            confirmed: Vec::new(),
        };
        let Generation {
            threshold, holders, ..
        } = self.generation.clone();
        LiveKey::new(made, threshold, holders)
    }

    /// Refreshes as an orchestrator does, from what its store says, with nodes 0 and 1 as dealers.
    pub async fn refresh(&mut self, store: &mut LiveKey) {
        let Generation {
            threshold, holders, ..
        } = store.generation.clone();
        let lost = Vec::new();
        let target = ReshareTarget {
            threshold,
            holders: holders.clone(),
            lost,
        };
        store.want(target).unwrap();
        let mut refusals = Vec::new();
        for _ in 0..10 {
            let mut order = self.order(&[0, 1], &[], threshold);
            order.old = store.generation.clone();
            order.new.holders.clone_from(&holders);
            order.new.epoch = store.next_epoch;
            store.begin(order.clone()).unwrap();
            let outcome = self.test.cluster.reshare_or_learn(&order).await;
            match outcome.unwrap() {
                ReshareOutcome::Behind(later) => {
                    refusals.push(later.reason.message().to_owned());
                    store.learned(&order, later).unwrap();
                }
                ReshareOutcome::Made(proof) => {
                    self.test.cluster.activate(&order, &proof).await.unwrap();
                    store.prepared(&order, proof).unwrap();
                    self.generation = order.new;
                    return;
                }
            }
        }
        panic!("no refresh, and no end of it: {refusals:#?}");
    }

    pub async fn sign_as(&self, generation: &Generation, patience_ms: u64) -> Result<(), Fault> {
        let mut order = self.test.order(&self.root);
        order.epoch = generation.epoch;
        let signatures = self
            .test
            .cluster
            .sign(
                &order,
                task(
                    Scheme::default_of(order.network.curve()),
                    session(),
                    &generation.holders,
                    generation.threshold,
                    now_ms() + patience_ms,
                ),
            )
            .await?;
        verify(&order, &signatures);
        Ok(())
    }

    pub async fn signs(&self) {
        self.sign_as(&self.generation, 60_000).await.unwrap();
    }

    /// The epochs of a node's share files, in use and pending.
    pub fn files(&self, place: usize) -> (Vec<u32>, Vec<u32>) {
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

    /// The epochs of a node's retired shares.
    pub fn retired(&self, place: usize) -> Vec<u32> {
        let folder = self.test.nodes[place].folder.join("retired");
        let mut epochs: Vec<u32> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .map(|name| name.split('.').nth(2).unwrap().parse().unwrap())
            .collect();
        epochs.sort_unstable();
        epochs
    }

    pub fn live(&self) -> usize {
        let nodes = self.test.cluster.nodes();
        nodes.iter().filter(|it| it.live).count()
    }

    /// Without a word; the cluster has noticed that it was away when this returns.
    pub async fn crash(&mut self, place: usize) {
        let live = self.live();
        self.test.kill_node(place).await;
        self.test.until_live(live - 1).await;
    }

    pub async fn restart(&mut self, place: usize) {
        let live = self.live();
        self.test.stop_node(place).await;
        self.test.until_live(live - 1).await;
        self.test.start_node(place);
        self.test.until_live(live).await;
    }
}
