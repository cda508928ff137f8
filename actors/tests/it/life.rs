//! Refresh, reshare and repair: the shares change, keys and addresses do not, requests go on, and
//! whatever is interrupted goes on after a restart.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use covault_actors::gateway::{
    Command, Gateway, KeyView, Query, Receipt, Reshare, ShareBackup, VaultView, View, WorkView,
};
use covault_core::{
    fault::{Class, Fault},
    ids::VaultId,
    order::NodeId,
    schema::wire::NetworkType,
    scheme::Scheme,
};

use crate::world::*;

pub fn node(number: u8) -> NodeId {
    NodeId([number; 32])
}

pub fn refresh() -> Reshare {
    Reshare {
        to: None,
        lost: vec![],
        schemes: vec![],
    }
}

pub fn to(threshold: u16, numbers: &[u8]) -> Reshare {
    Reshare {
        to: Some((threshold, numbers.iter().copied().map(node).collect())),
        ..refresh()
    }
}

pub async fn reshare(
    gateway: &Gateway,
    vault: VaultId,
    reshare: Reshare,
) -> Result<VaultView, Fault> {
    let command = Command::ReshareVault {
        vault: vault.to_string(),
        reshare,
    };
    match gateway.submit(&admin(), command, None).await?.receipt {
        Receipt::Vault(view) => Ok(view),
        other => panic!("{other:?}"),
    }
}

pub async fn cancel(gateway: &Gateway, vault: VaultId) -> Result<VaultView, Fault> {
    let command = Command::CancelReshare {
        vault: vault.to_string(),
    };
    match gateway.submit(&admin(), command, None).await?.receipt {
        Receipt::Vault(view) => Ok(view),
        other => panic!("{other:?}"),
    }
}

pub async fn view(gateway: &Gateway) -> VaultView {
    match gateway.view(&admin(), Query::Vault("main".into())).await {
        Ok(View::Vault(vault)) => vault,
        other => panic!("{other:?}"),
    }
}

pub async fn until(gateway: &Gateway, wanted: impl Fn(&VaultView) -> bool) -> VaultView {
    let looking = async {
        loop {
            let vault = view(gateway).await;
            if wanted(&vault) {
                return vault;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    match tokio::time::timeout(Duration::from_secs(20), looking).await {
        Ok(vault) => vault,
        Err(_) => panic!("in vain: {:?}", view(gateway).await),
    }
}

pub fn idle(vault: &VaultView) -> bool {
    vault.ready && vault.keys.iter().all(|key| key.work.is_none())
}

/// Nothing in work, and every node knows of the shares that sign.
pub fn known(vault: &VaultView) -> bool {
    idle(vault) && vault.keys.iter().all(|key| key.unconfirmed.is_empty())
}

/// Whether a node has no share of any key, in use or prepared.
pub fn has_nothing(world: &World, id: VaultId, number: u8) -> bool {
    let nodes = world.signers.nodes.lock().unwrap();
    let mut keys = nodes.shares.keys().filter(|key| key.0 == id);
    keys.all(|key| nodes.epochs(*key, &node(number)) == (None, vec![]))
}

pub fn epochs(vault: &VaultView) -> Vec<u32> {
    let keys = vault.keys.iter();
    keys.map(|key| key.generation.as_ref().unwrap().epoch)
        .collect()
}

/// A vault, and two nodes more than it has.
pub async fn new_vault(gateway: &Gateway) -> VaultId {
    let id = vault(gateway, "main").await;
    assert!(admit_more(gateway).await);
    id
}

pub async fn admit_more(gateway: &Gateway) -> bool {
    for number in 4..=5 {
        let command = Command::AdmitNode {
            id: node(number),
            name: String::new(),
        };
        if gateway.submit(&admin(), command, None).await.is_err() {
            return false;
        }
    }
    true
}

/// Signs on both curves; the double refuses shares of any but the active generation.
pub async fn signs(gateway: &Gateway, addresses: &[String; 2]) {
    for address in addresses {
        let made = create(gateway, raw(address)).await;
        assert_eq!(outcome(gateway, &made.uuid).await.error, None);
    }
}

pub async fn addresses(gateway: &Gateway, vault: VaultId) -> [String; 2] {
    [
        wallet(gateway, vault, NetworkType::Evm).await.address,
        wallet(gateway, vault, NetworkType::Solana).await.address,
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reshare__should_change_who_signs_and_no_key() {
    let world = World::new();
    let gateway = world.start().await;
    let id = new_vault(&gateway).await;
    let wallets = addresses(&gateway, id).await;
    reshare(&gateway, id, refresh()).await.unwrap();
    let refreshed = until(&gateway, idle).await;
    assert_eq!(epochs(&refreshed), [1, 1]);
    signs(&gateway, &wallets).await;
    for (number, (threshold, numbers)) in [(3, &[1, 2, 3, 4, 5][..]), (2, &[4, 5])]
        .into_iter()
        .enumerate()
    {
        reshare(&gateway, id, to(threshold, numbers)).await.unwrap();
        let now = until(&gateway, idle).await;
        let epoch = u32::try_from(number).unwrap() + 2;
        assert_eq!(epochs(&now), [epoch, epoch]);
        let holders: Vec<NodeId> = numbers.iter().copied().map(node).collect();
        assert_eq!((now.threshold, now.signers), (threshold, holders));
        signs(&gateway, &wallets).await;
    }
    // Wallets of the same index are the same: the root keys stayed.
    for orders in world.signers.nodes.lock().unwrap().reshares.windows(3) {
        assert_eq!(
            orders[0].scheme == orders[2].scheme,
            orders[0].root_public_key == orders[2].root_public_key
        );
    }
    // Who holds a share cannot be removed; who gave it away can.
    for (number, removed) in [(5, false), (1, true)] {
        let command = Command::RemoveNode(node(number));
        let outcome = gateway.submit(&admin(), command, None).await;
        assert_eq!(outcome.is_ok(), removed, "{outcome:?}");
    }
    let fault = reshare(&gateway, id, to(2, &[1, 4])).await.unwrap_err();
    assert!(fault.message().contains("not admitted"), "{fault}");
    // The call that made the vault still names it.
    assert_eq!(vault(&gateway, "main").await, id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests__should_be_signed_while_shares_change_under_them() {
    let world = World::new();
    let gateway = world.start().await;
    let id = new_vault(&gateway).await;
    let wallets = addresses(&gateway, id).await;
    world.signers.hold_reshare.send_replace(true);
    reshare(&gateway, id, refresh()).await.unwrap();
    signs(&gateway, &wallets).await;
    // New shares are decided and no node knows: requests wait.
    world.signers.hold_activation.send_replace(true);
    world.signers.hold_reshare.send_replace(false);
    let telling = |vault: &VaultView| {
        let mut keys = vault.keys.iter();
        keys.all(|key| key.work == Some(WorkView::Telling))
    };
    assert_eq!(epochs(&until(&gateway, telling).await), [1, 1]);
    let waiting = create(&gateway, raw(&wallets[0])).await;
    let sessions = world.signers.sessions();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(world.signers.sessions(), sessions, "nobody would sign");
    // One node is away when all are told: the others sign.
    world
        .signers
        .failing_activations
        .store(20, Ordering::SeqCst);
    world.signers.hold_activation.send_replace(false);
    assert_eq!(outcome(&gateway, &waiting.uuid).await.error, None);
    signs(&gateway, &wallets).await;
    until(&gateway, idle).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request__should_outlive_a_refusal_for_shares_that_were_replaced() {
    let world = World::new();
    let gateway = world.start().await;
    let id = new_vault(&gateway).await;
    let wallets = addresses(&gateway, id).await;
    // The nodes are ahead of what the orchestrator knows: told, and the answer was lost.
    world.signers.hold_activation.send_replace(true);
    reshare(&gateway, id, refresh()).await.unwrap();
    until(&gateway, |vault| {
        vault
            .keys
            .iter()
            .all(|key| key.work == Some(WorkView::Telling))
    })
    .await;
    gateway.stop().await;
    // A new process tells them again before anybody signs.
    let gateway = world.start().await;
    let made = create(&gateway, raw(&wallets[0])).await;
    world.signers.hold_activation.send_replace(false);
    assert_eq!(outcome(&gateway, &made.uuid).await.error, None);
    assert_eq!(epochs(&until(&gateway, idle).await), [1, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_run__should_be_repeated_with_a_new_epoch_and_say_why() {
    let world = World::new();
    let gateway = world.start().await;
    let id = new_vault(&gateway).await;
    world.signers.failing_reshares.store(6, Ordering::SeqCst);
    world.signers.hold_reshare.send_replace(true);
    let problem = |key: &KeyView| key.problem.clone().unwrap_or_default();
    reshare(&gateway, id, refresh()).await.unwrap();
    // Repeating the wish changes nothing; another one is refused.
    reshare(&gateway, id, refresh()).await.unwrap();
    let other = reshare(&gateway, id, to(2, &[1, 2])).await.unwrap_err();
    assert_eq!(other.class(), &Class::WrongState);
    world.signers.hold_reshare.send_replace(false);
    until(&gateway, |vault| {
        idle(vault) || vault.keys.iter().any(|key| problem(key).contains("node-2"))
    })
    .await;
    let done = until(&gateway, idle).await;
    assert!(
        done.keys.iter().all(|key| key.problem.is_none()),
        "{done:?}"
    );
    // Six runs failed, of two keys.
    assert_eq!(epochs(&done).iter().sum::<u32>(), 8);
    let orders = world.signers.nodes.lock().unwrap().reshares.clone();
    assert_eq!(orders.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reshare__should_name_who_is_away_and_be_cancelled() {
    let world = World::new();
    let gateway = world.start().await;
    let id = new_vault(&gateway).await;
    let wallets = addresses(&gateway, id).await;
    assert_eq!(
        cancel(&gateway, id).await.unwrap_err().class(),
        &Class::WrongState
    );
    world
        .signers
        .away
        .lock()
        .unwrap()
        .extend([node(3), node(4)]);
    reshare(&gateway, id, to(2, &[1, 2, 4])).await.unwrap();
    let stuck = until(&gateway, |vault| {
        vault.keys.iter().all(|key| key.problem.is_some())
    })
    .await;
    let problem = stuck.keys[0].problem.clone().unwrap();
    assert!(problem.contains("node-4 (0404"), "{problem}");
    assert!(!problem.contains("node-3"), "{problem}");
    let expected = WorkView::Preparing {
        threshold: 2,
        holders: vec![node(1), node(2), node(4)],
    };
    assert_eq!(stuck.keys[0].work.as_ref(), Some(&expected));
    let cancelled = cancel(&gateway, id).await.unwrap();
    assert!(idle(&cancelled) && cancelled.keys[0].problem.is_none());
    // To those who are there; the one that lost its share deals nothing.
    world.signers.away.lock().unwrap().remove(&node(4));
    let unknown = Reshare {
        lost: vec![node(4)],
        ..to(2, &[1, 2, 4])
    };
    let refusal = reshare(&gateway, id, unknown).await.unwrap_err();
    assert!(refusal.message().starts_with("lost: "), "{refusal}");
    let replace = Reshare {
        lost: vec![node(3)],
        ..to(2, &[1, 2, 4])
    };
    reshare(&gateway, id, replace).await.unwrap();
    until(&gateway, idle).await;
    signs(&gateway, &wallets).await;
    let orders = world.signers.nodes.lock().unwrap().reshares.clone();
    assert!(orders.iter().all(|order| !order.dealers.contains(&node(3))));
    // Too few that hold shares: says who is away.
    world
        .signers
        .away
        .lock()
        .unwrap()
        .extend([node(1), node(2)]);
    reshare(&gateway, id, to(2, &[4, 5])).await.unwrap();
    let says = |key: &KeyView| {
        let problem = key.problem.as_ref();
        problem.is_some_and(|it| it.contains("1 of 2") && it.contains("node-1"))
    };
    until(&gateway, |vault| vault.keys.iter().all(says)).await;
    world.signers.away.lock().unwrap().clear();
    until(&gateway, idle).await;
    signs(&gateway, &wallets).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_reshare__should_replace_a_node_that_never_confirms() {
    let world = World::new();
    let gateway = world.start().await;
    let id = new_vault(&gateway).await;
    let wallets = addresses(&gateway, id).await;
    world
        .signers
        .failing_activations
        .store(usize::MAX, Ordering::SeqCst);
    reshare(&gateway, id, refresh()).await.unwrap();
    until(&gateway, |vault| {
        vault.keys.iter().all(|key| key.problem.is_some())
    })
    .await;
    signs(&gateway, &wallets).await;
    reshare(&gateway, id, to(2, &[1, 3, 4])).await.unwrap();
    until(&gateway, |vault| epochs(vault) == [2, 2]).await;
    world.signers.failing_activations.store(0, Ordering::SeqCst);
    until(&gateway, idle).await;
    signs(&gateway, &wallets).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn life__should_be_for_operators_and_for_keys_that_are_there() {
    let world = World::new();
    let gateway = world.start().await;
    let id = new_vault(&gateway).await;
    for command in [
        Command::ReshareVault {
            vault: id.to_string(),
            reshare: refresh(),
        },
        Command::CancelReshare {
            vault: id.to_string(),
        },
        Command::BackupVault {
            vault: id.to_string(),
            recipients: vec!["age1".into()],
        },
    ] {
        let fault = gateway
            .submit(&stranger(), command, None)
            .await
            .unwrap_err();
        assert_eq!(fault.class(), &Class::Forbidden);
    }
    let scheme = Reshare {
        schemes: vec![Scheme::Cggmp24],
        ..refresh()
    };
    let fault = reshare(&gateway, id, scheme).await.unwrap_err();
    assert!(fault.message().starts_with("schemes: "), "{fault}");
    let one = Reshare {
        schemes: vec![Scheme::FrostEd25519],
        ..refresh()
    };
    reshare(&gateway, id, one).await.unwrap();
    let done = until(&gateway, idle).await;
    assert_eq!(epochs(&done).iter().sum::<u32>(), 1);

    world.signers.away.lock().unwrap().insert(node(2));
    // Both keys are asked for before either is answered: a silent node is waited for once.
    let meet = Arc::new(tokio::sync::Barrier::new(2));
    *world.signers.backups_meet.lock().unwrap() = Some(meet);
    let command = |recipients| Command::BackupVault {
        vault: id.to_string(),
        recipients,
    };
    let operator = admin();
    let made = gateway.submit(&operator, command(vec!["age1".into()]), None);
    let made = tokio::time::timeout(Duration::from_secs(60), made)
        .await
        .expect("both keys are asked for at once")
        .unwrap();
    let Receipt::Backups(backups) = made.receipt else {
        panic!("{made:?}")
    };
    let found = |backup: &ShareBackup| (backup.node, backup.backup.is_ok(), backup.threshold);
    let expected = [1, 2, 3].map(|number| (node(number), number != 2, 2));
    assert_eq!(
        backups.iter().map(found).collect::<Vec<_>>(),
        [expected, expected].concat()
    );
    let fault = gateway
        .submit(&admin(), command(vec![]), None)
        .await
        .unwrap_err();
    assert!(fault.message().starts_with("recipients: "), "{fault}");
}

#[tokio::test]
async fn refresh__should_be_of_the_keys_that_have_one() {
    let world = World::new();
    let gateway = world.start().await;
    assert!(admit(&gateway).await);
    let command = Command::CreateVault {
        name: "main".into(),
        threshold: 2,
        signers: (1..=3).map(node).collect(),
        ecdsa: Scheme::Cggmp24,
    };
    let made = gateway.submit(&admin(), command, None).await.unwrap();
    let Receipt::Vault(made) = made.receipt else {
        panic!("{made:?}")
    };
    ready(&gateway, "main").await;
    reshare(&gateway, made.id, refresh()).await.unwrap();
    let done = until(&gateway, |vault| {
        idle(vault) && epochs(vault).iter().sum::<u32>() == 1
    });
    for key in done.await.keys {
        let refreshed = key.generation.unwrap().epoch == 1;
        assert_eq!(refreshed, key.scheme == Scheme::FrostEd25519);
    }
    gateway.stop().await;
}
