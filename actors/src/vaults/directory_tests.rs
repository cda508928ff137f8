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
    audit::By,
    chain_rpc::Chains,
    port::{Confirmations, NodeBackup, NodeView, Signers, SigningAttempt},
    settings::{Orchestrator, Settings, Sharing},
    store::memory::MemoryStore,
};

struct Nobody;

#[async_trait]
impl Signers for Nobody {
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
    ) -> Result<Confirmations, Fault> {
        std::future::pending().await
    }

    async fn backup(&self, _: &BackupOrder) -> Result<Vec<(NodeId, NodeBackup)>, Fault> {
        std::future::pending().await
    }

    fn nodes(&self) -> Vec<NodeView> {
        vec![]
    }
}

struct Noon;

impl Clock for Noon {
    fn now_ms(&self) -> u64 {
        43_200_000
    }
}

struct Count(AtomicU8);

impl Entropy for Count {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(self.0.fetch_add(1, Ordering::SeqCst));
    }
}

#[tokio::test]
async fn directory__should_never_run_two_actors_for_one_vault() {
    let services = Arc::new(Services::new(Orchestrator {
        store: Arc::new(MemoryStore::new()),
        signers: Arc::new(Nobody),
        clock: Arc::new(Noon),
        entropy: Arc::new(Count(AtomicU8::new(0))),
        chains: Chains::default(),
        settings: Settings::default(),
        sharing: Sharing::default(),
    }));
    for number in 1..=2 {
        let admit = nodes::Change::Admit {
            id: NodeId([number; 32]),
            name: String::new(),
        };
        nodes::change(&services, admit, &By::service())
            .await
            .unwrap();
    }
    let (directory, _) = Actor::spawn(None, Directory, services).await.unwrap();
    let create = |reply| {
        Msg::CreateVault(Box::new(NewVault {
            name: "main".into(),
            threshold: 2,
            signers: vec![NodeId([1; 32]), NodeId([2; 32])],
            ecdsa: covault_core::scheme::Scheme::Dkls23,
            replace: false,
            by: By::service(),
            reply,
        }))
    };
    let vault = directory
        .call(create, None)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let Made::Vault(vault) = vault else {
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
