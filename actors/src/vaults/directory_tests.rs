#![allow(non_snake_case)]

use std::time::Duration;

use async_trait::async_trait;
use covault_core::{
    fault::Fault,
    order::NodeId,
    request::ApprovalRule,
    testing::{CounterEntropy, ManualClock},
    wallet::vault::Vault,
};
use tokio::sync::watch;

use super::*;
use crate::{
    audit::AuditActor,
    chain_rpc::ChainClients,
    services::Listeners,
    settings::{OrchestratorParts, OrchestratorSharing, Settings},
    store::{Batch, CommitError, KeySpace, Store, memory::MemoryStore},
    testing::{NoSigners, StoreDouble},
    vaults::creation::VaultCreation,
};

/// A store on which commits that make a vault can be held up.
struct HeldStore {
    inner: MemoryStore,
    held: watch::Sender<bool>,
}

#[async_trait]
impl StoreDouble for HeldStore {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }

    async fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        let mut writes = batch.writes().iter();
        if writes.any(|write| write.key.space == KeySpace::VaultName) {
            let mut held = self.held.subscribe();
            held.wait_for(|held| !held).await.unwrap();
        }
        self.inner.commit(batch).await
    }
}

async fn directory() -> (ActorRef<Msg>, Arc<HeldStore>) {
    let store = Arc::new(HeldStore {
        inner: MemoryStore::new(),
        held: watch::channel(false).0,
    });
    let parts = OrchestratorParts {
        store: Arc::clone(&store) as Arc<dyn Store>,
        signers: Arc::<NoSigners>::default(),
        clock: Arc::new(ManualClock::at(43_200_000)),
        entropy: Arc::new(CounterEntropy::default()),
        chains: ChainClients::default(),
        settings: Settings::default(),
        webhooks: Default::default(),
        sharing: OrchestratorSharing::default(),
    };
    let services = Arc::new(Services::new(parts, Listeners::none()));
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
    (directory, store)
}

fn vault_to_make(name: &str, reply: RpcReplyPort<Result<VaultCreation, Fault>>) -> Msg {
    Msg::CreateVault(Box::new(NewVault {
        name: name.into(),
        threshold: 2,
        signers: vec![NodeId([1; 32]), NodeId([2; 32])],
        ecdsa: covault_core::scheme::Scheme::Dkls23,
        approval: ApprovalRule::automatic(),
        replace: false,
        by: AuditActor::service(),
        reply,
    }))
}

async fn create(directory: &ActorRef<Msg>, name: &str) -> Box<Vault> {
    let message = |reply| vault_to_make(name, reply);
    let made = directory.call(message, None).await.unwrap().unwrap();
    match made.unwrap() {
        VaultCreation::Vault(vault) => vault,
        other => panic!("{other:?}"),
    }
}

/// Waits for a minute at most.
async fn find(directory: &ActorRef<Msg>, id: VaultId) -> ActorId {
    let message = |reply| Msg::GetVault(id, reply);
    let found = directory.call(message, Some(Duration::from_secs(60))).await;
    found.unwrap().unwrap().unwrap().get_id()
}

#[tokio::test]
async fn directory__should_never_run_two_actors_for_one_vault() {
    let (directory, _) = directory().await;
    let vault = create(&directory, "main").await;
    let first = find(&directory, vault.id).await;
    directory.cast(Msg::RestartDue(vault.id)).unwrap();
    directory.cast(Msg::Resume).unwrap();
    assert_eq!(find(&directory, vault.id).await, first);
    directory.stop_and_wait(None, None).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_vault_that_is_being_made__should_hold_up_no_other_vault() {
    let (directory, store) = directory().await;
    let vault = create(&directory, "main").await;
    store.held.send_replace(true);
    let names = ["second", "second", "third"];
    let making = names.map(|name| {
        let directory = directory.clone();
        tokio::spawn(async move { create(&directory, name).await.id })
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    find(&directory, vault.id).await;
    assert!(making.iter().all(|making| !making.is_finished()));
    store.held.send_replace(false);
    let made = futures::future::join_all(making).await.into_iter();
    let made: Vec<_> = made.map(Result::unwrap).collect();
    assert_eq!(made[0], made[1], "one of a name");
    assert_ne!(made[0], made[2]);
    directory.stop_and_wait(None, None).await.unwrap();
}
