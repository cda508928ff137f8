#![allow(non_snake_case)]

use std::sync::atomic::{AtomicU8, Ordering};

use covault_core::{
    attest::MadeKey,
    order::{BackupOrder, KeygenOrder, Proven, ReshareOrder, ReshareProof, Reshared, SigningOrder},
    port::{Clock, Entropy},
    signature::Signature,
};

use super::*;
use crate::{
    audit::AuditActor,
    chain_rpc::ChainClients,
    port::{NodeBackup, NodeConfirmations, NodeView, SignerCluster, SigningAttempt},
    settings::{OrchestratorParts, OrchestratorSharing, Settings},
    store::memory::MemoryStore,
};

struct NoSigners;

#[async_trait]
impl SignerCluster for NoSigners {
    async fn keygen(&self, _: &KeygenOrder) -> Result<MadeKey, Fault> {
        std::future::pending().await
    }

    async fn sign(&self, _: &SigningOrder, _: &SigningAttempt) -> Result<Vec<Signature>, Fault> {
        std::future::pending().await
    }

    async fn reshare(&self, _: &ReshareOrder) -> Result<Reshared, Fault> {
        std::future::pending().await
    }

    async fn activate(
        &self,
        _: &ReshareOrder,
        _: &ReshareProof,
        _: &[Proven],
        _: &[NodeId],
    ) -> Result<NodeConfirmations, Fault> {
        std::future::pending().await
    }

    async fn backup(&self, _: &BackupOrder) -> Result<Vec<(NodeId, NodeBackup)>, Fault> {
        std::future::pending().await
    }

    fn nodes(&self) -> Vec<NodeView> {
        vec![]
    }
}

struct NoonClock;

impl Clock for NoonClock {
    fn now_ms(&self) -> u64 {
        43_200_000
    }
}

struct CountingEntropy(AtomicU8);

impl Entropy for CountingEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(self.0.fetch_add(1, Ordering::SeqCst));
    }
}

#[tokio::test]
async fn directory__should_never_run_two_actors_for_one_vault() {
    let services = Arc::new(Services::new(OrchestratorParts {
        store: Arc::new(MemoryStore::new()),
        signers: Arc::new(NoSigners),
        clock: Arc::new(NoonClock),
        entropy: Arc::new(CountingEntropy(AtomicU8::new(0))),
        chains: ChainClients::default(),
        settings: Settings::default(),
        sharing: OrchestratorSharing::default(),
    }));
    for number in 1..=2 {
        let admit = nodes::NodeChange::Admit {
            id: NodeId([number; 32]),
            name: String::new(),
        };
        nodes::change(&services, admit, &AuditActor::service())
            .await
            .unwrap();
    }
    let (directory, _) = Actor::spawn(None, VaultDirectory, services).await.unwrap();
    let create = |reply| {
        Msg::CreateVault(Box::new(NewVault {
            name: "main".into(),
            threshold: 2,
            signers: vec![NodeId([1; 32]), NodeId([2; 32])],
            ecdsa: covault_core::scheme::Scheme::Dkls23,
            replace: false,
            by: AuditActor::service(),
            reply,
        }))
    };
    let vault = directory
        .call(create, None)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let VaultCreation::Vault(vault) = vault else {
        panic!("{vault:?}")
    };
    let find = async || {
        let message = |reply| Msg::GetVault(vault.id, reply);
        let found = directory.call(message, None).await.unwrap().unwrap();
        found.unwrap().get_id()
    };
    let first = find().await;
    directory.cast(Msg::RestartDue(vault.id)).unwrap();
    directory.cast(Msg::Resume).unwrap();
    assert_eq!(find().await, first);
    directory.stop_and_wait(None, None).await.unwrap();
}
