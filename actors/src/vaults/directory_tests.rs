#![allow(non_snake_case)]

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

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
    services::Listeners,
    settings::OrchestratorParts,
    store::{
        Batch, CommitError, Key, KeySpace, ReadError, Row, Scan, Store, memory::MemoryStore, rows,
    },
    testing::{StoreDouble, orchestrator_parts},
    vaults::creation::VaultCreation,
};

/// A store on which commits that make a vault can be held up, and what actors read when they begin.
struct HeldStore {
    inner: MemoryStore,
    held: watch::Sender<bool>,
    held_scans: watch::Sender<bool>,
    /// Actors that wait for what they read.
    reading: AtomicUsize,
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

    async fn scan(&self, scan: &Scan) -> Result<Vec<(Key, Row)>, ReadError> {
        // The number of the next wallet.
        if scan.space == KeySpace::WalletIndex {
            self.reading.fetch_add(1, Ordering::SeqCst);
            let mut held = self.held_scans.subscribe();
            held.wait_for(|held| !held).await.unwrap();
            self.reading.fetch_sub(1, Ordering::SeqCst);
        }
        self.inner.scan(scan).await
    }
}

async fn services() -> (Arc<Services>, Arc<HeldStore>) {
    let store = Arc::new(HeldStore {
        inner: MemoryStore::new(),
        held: watch::channel(false).0,
        held_scans: watch::channel(false).0,
        reading: AtomicUsize::new(0),
    });
    let parts = OrchestratorParts {
        entropy: Arc::new(CounterEntropy::default()),
        ..orchestrator_parts(
            Arc::clone(&store) as _,
            Arc::new(ManualClock::at(43_200_000)),
        )
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
    (services, store)
}

async fn directory_of(services: &Arc<Services>) -> ActorRef<Msg> {
    let started = Actor::spawn(None, VaultDirectory, Arc::clone(services)).await;
    started.unwrap().0
}

async fn directory() -> (ActorRef<Msg>, Arc<HeldStore>) {
    let (services, store) = services().await;
    (directory_of(&services).await, store)
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
    found.unwrap().unwrap().unwrap().actor().get_id()
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

#[tokio::test(start_paused = true)]
async fn vault_that_is_being_made__should_not_be_made_after_the_stop() {
    let (services, store) = services().await;
    let directory = directory_of(&services).await;
    store.held.send_replace(true);
    let asked = directory.clone();
    let making = tokio::spawn(async move {
        let message = |reply| vault_to_make("late", reply);
        asked.call(message, None).await
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    directory.stop_and_wait(None, None).await.unwrap();
    services.tasks.close().await;
    store.held.send_replace(false);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(making.await.unwrap().unwrap().is_send_error());
    let name = store.inner.get(&rows::vault_name("late")).await.unwrap();
    assert!(name.is_none() && services.held_leases.vaults() == 0);
}

#[tokio::test(start_paused = true)]
async fn vaults_that_are_asked_for_together__should_begin_in_their_order_and_not_all_at_once() {
    const VAULTS: usize = 300;
    let (services, store) = services().await;
    let directory = directory_of(&services).await;
    let mut vaults = Vec::new();
    for number in 0..VAULTS {
        vaults.push(create(&directory, &format!("v{number}")).await.id);
    }
    directory.stop_and_wait(None, None).await.unwrap();
    store.held_scans.send_replace(true);
    let directory = directory_of(&services).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(store.reading.load(Ordering::SeqCst), STARTING_AT_ONCE);
    let asked = vaults.iter().map(|id| find(&directory, *id));
    let told = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let reading = store.reading.load(Ordering::SeqCst);
        store.held_scans.send_replace(false);
        reading
    };
    let (actors, reading) = tokio::join!(futures::future::join_all(asked), told);
    assert_eq!(reading, STARTING_FOR_CALLERS);
    let actors: HashSet<_> = actors.into_iter().collect();
    assert_eq!(actors.len(), VAULTS);
    directory.stop_and_wait(None, None).await.unwrap();
}
