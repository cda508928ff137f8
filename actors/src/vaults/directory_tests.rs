#![allow(non_snake_case)]

use covault_core::testing::{CounterEntropy, ManualClock};

use super::*;
use crate::{
    audit::AuditActor,
    chain_rpc::ChainClients,
    services::Listeners,
    settings::{OrchestratorParts, OrchestratorSharing, Settings},
    store::memory::MemoryStore,
    testing::NoSigners,
};

#[tokio::test]
async fn directory__should_never_run_two_actors_for_one_vault() {
    let parts = OrchestratorParts {
        store: Arc::new(MemoryStore::new()),
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
    let create = |reply| {
        Msg::CreateVault(Box::new(NewVault {
            name: "main".into(),
            threshold: 2,
            signers: vec![NodeId([1; 32]), NodeId([2; 32])],
            ecdsa: covault_core::scheme::Scheme::Dkls23,
            approval: ApprovalRule::automatic(),
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
