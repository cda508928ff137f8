//! Refresh, reshare and repair: the shares change, keys and addresses do not, requests go on, and
//! whatever is interrupted goes on after a restart.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use covault_actors::{
    gateway::{Caller, Gateway},
    operations::{AdmitNode, BackupVault, CancelReshare, CreateVault, RemoveNode, ReshareVault},
};
use covault_core::{
    fault::{Class, Fault},
    ids::VaultId,
    schema::{
        admin::{self, Key, ReshareVaultRequest as Reshare, ShareBackup, Vault, Work},
        wire::NetworkType,
    },
};

use crate::world::*;

pub fn refresh() -> Reshare {
    Reshare::default()
}

pub fn to(threshold: u32, numbers: &[u8]) -> Reshare {
    Reshare {
        threshold: Some(threshold),
        signers: lines(numbers.iter().copied()),
        ..refresh()
    }
}

pub async fn reshare(gateway: &Gateway, vault: VaultId, reshare: Reshare) -> Result<Vault, Fault> {
    reshare_as(gateway, &admin(), vault, reshare).await
}

async fn reshare_as(
    gateway: &Gateway,
    caller: &Caller,
    vault: VaultId,
    reshare: Reshare,
) -> Result<Vault, Fault> {
    let request = Reshare {
        vault_uuid: vault.to_string(),
        ..reshare
    };
    let answer = call::<ReshareVault>(gateway, caller, request).await?;
    Ok(answer.vault.unwrap())
}

pub async fn cancel(gateway: &Gateway, vault: VaultId) -> Result<Vault, Fault> {
    cancel_as(gateway, &admin(), vault).await
}

async fn cancel_as(gateway: &Gateway, caller: &Caller, vault: VaultId) -> Result<Vault, Fault> {
    let vault_uuid = vault.to_string();
    let request = admin::CancelReshareRequest { vault_uuid };
    let answer = call::<CancelReshare>(gateway, caller, request).await?;
    Ok(answer.vault.unwrap())
}

async fn backup(
    gateway: &Gateway,
    caller: &Caller,
    vault: VaultId,
    recipients: Vec<String>,
) -> Result<Vec<ShareBackup>, Fault> {
    let vault_uuid = vault.to_string();
    let request = admin::BackupVaultRequest {
        vault_uuid,
        recipients,
    };
    let answer = call::<BackupVault>(gateway, caller, request).await?;
    Ok(answer.backups)
}

/// Removes a node.
pub async fn remove(gateway: &Gateway, number: u8) -> Result<(), Fault> {
    let public_key = node(number).openssh_line("");
    let request = admin::RemoveNodeRequest { public_key };
    let removed = call::<RemoveNode>(gateway, &admin(), request).await;
    removed.map(|_| ())
}

pub async fn view(gateway: &Gateway) -> Vault {
    vault_named(gateway, "main").await.unwrap()
}

pub async fn until(gateway: &Gateway, wanted: impl Fn(&Vault) -> bool) -> Vault {
    let looking = async {
        loop {
            let vault = view(gateway).await;
            if wanted(&vault) {
                return vault;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    match tokio::time::timeout(Duration::from_secs(120), looking).await {
        Ok(vault) => vault,
        Err(_) => panic!("in vain: {:?}", view(gateway).await),
    }
}

pub fn idle(vault: &Vault) -> bool {
    vault.ready && vault.keys.iter().all(|key| key.work.is_none())
}

/// Nothing in progress, and every node knows of the shares that sign.
pub fn known(vault: &Vault) -> bool {
    idle(vault) && vault.keys.iter().all(|key| key.unconfirmed.is_empty())
}

/// Whether a node has no share of any key, in use or prepared.
pub fn has_nothing(world: &World, id: VaultId, number: u8) -> bool {
    let nodes = world.signers.nodes.lock().unwrap();
    let mut keys = nodes.shares.keys().filter(|key| key.0 == id);
    keys.all(|key| nodes.epochs(*key, &node(number)) == (None, vec![]))
}

pub fn epochs(vault: &Vault) -> Vec<u32> {
    let keys = vault.keys.iter();
    keys.map(|key| key.shares.as_ref().unwrap().epoch).collect()
}

/// New shares sign, and not every node has confirmed it.
fn activating(vault: &Vault) -> bool {
    let mut works = vault.keys.iter().map(|key| key.work.as_ref());
    works.all(|work| work.is_some_and(|work| work.step == "activating"))
}

/// A vault, and two nodes more than it has.
pub async fn new_vault(gateway: &Gateway) -> VaultId {
    let id = vault(gateway, "main").await;
    assert!(admit_more(gateway).await);
    id
}

pub async fn admit_more(gateway: &Gateway) -> bool {
    for public_key in lines(4..=5) {
        let name = String::new();
        let request = admin::AdmitNodeRequest { public_key, name };
        let admitted = call::<AdmitNode>(gateway, &admin(), request).await;
        if admitted.is_err() {
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
        let holders = lines(numbers.iter().copied());
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
        let outcome = remove(&gateway, number).await;
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
    assert_eq!(epochs(&until(&gateway, activating).await), [1, 1]);
    let waiting = create(&gateway, raw(&wallets[0])).await;
    let sessions = world.signers.sessions();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(world.signers.sessions(), sessions, "nobody would sign");
    // One node is offline during activation: the others sign.
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
    until(&gateway, activating).await;
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
    let problem = |key: &Key| key.problem.clone().unwrap_or_default();
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
    let away = format!("node-4 ({})", node(4).openssh_line(""));
    assert!(problem.contains(&away), "{problem}");
    assert!(!problem.contains("node-3"), "{problem}");
    let expected = Work {
        step: "preparing".into(),
        threshold: 2,
        holders: lines([1, 2, 4]),
        reason: String::new(),
    };
    assert_eq!(stuck.keys[0].work.as_ref(), Some(&expected));
    let cancelled = cancel(&gateway, id).await.unwrap();
    assert!(idle(&cancelled) && cancelled.keys[0].problem.is_none());
    // To those who are there; the one that lost its share deals nothing.
    world.signers.away.lock().unwrap().remove(&node(4));
    let unknown = Reshare {
        lost: lines([4]),
        ..to(2, &[1, 2, 4])
    };
    let refusal = reshare(&gateway, id, unknown).await.unwrap_err();
    assert!(refusal.message().starts_with("lost: "), "{refusal}");
    let replace = Reshare {
        lost: lines([3]),
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
    let says = |key: &Key| {
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
    let recipients = vec!["age1".to_owned()];
    let backed_up = backup(&gateway, &stranger(), id, recipients.clone()).await;
    for refused in [
        reshare_as(&gateway, &stranger(), id, refresh()).await.err(),
        cancel_as(&gateway, &stranger(), id).await.err(),
        backed_up.err(),
    ] {
        assert_eq!(refused.unwrap().class(), &Class::Forbidden);
    }
    let scheme = Reshare {
        schemes: vec!["cggmp24".into()],
        ..refresh()
    };
    let fault = reshare(&gateway, id, scheme).await.unwrap_err();
    assert!(fault.message().starts_with("schemes: "), "{fault}");
    let one = Reshare {
        schemes: vec!["frost-ed25519".into()],
        ..refresh()
    };
    reshare(&gateway, id, one).await.unwrap();
    let done = until(&gateway, idle).await;
    assert_eq!(epochs(&done).iter().sum::<u32>(), 1);

    world.signers.away.lock().unwrap().insert(node(2));
    // Both keys are asked for before either is answered: a silent node is waited for once.
    let meet = Arc::new(tokio::sync::Barrier::new(2));
    *world.signers.backups_meet.lock().unwrap() = Some(meet);
    let operator = admin();
    let made = backup(&gateway, &operator, id, recipients);
    let backups = tokio::time::timeout(Duration::from_secs(60), made)
        .await
        .expect("both keys are asked for at once")
        .unwrap();
    let found = |made: &ShareBackup| {
        assert_eq!(made.backup.is_some(), made.problem.is_none());
        (
            made.public_key.clone(),
            made.backup.is_some(),
            made.threshold,
        )
    };
    let expected = [1, 2, 3].map(|number| {
        let line = node(number).openssh_line(&format!("node-{number}"));
        (line, number != 2, 2)
    });
    assert_eq!(
        backups.iter().map(found).collect::<Vec<_>>(),
        [expected.clone(), expected].concat()
    );
    let fault = backup(&gateway, &operator, id, vec![]).await.unwrap_err();
    assert!(fault.message().starts_with("recipients: "), "{fault}");
}

#[tokio::test]
async fn refresh__should_be_of_the_keys_that_have_one() {
    let world = World::new();
    let gateway = world.start().await;
    assert!(admit(&gateway).await);
    let request = admin::CreateVaultRequest {
        ecdsa_backend: Some("cggmp24".into()),
        ..vault_request("main")
    };
    let made = call::<CreateVault>(&gateway, &admin(), request).await;
    let id = made.unwrap().vault.unwrap().uuid.parse().unwrap();
    ready(&gateway, "main").await;
    reshare(&gateway, id, refresh()).await.unwrap();
    let done = until(&gateway, |vault| {
        idle(vault) && epochs(vault).iter().sum::<u32>() == 1
    });
    for key in done.await.keys {
        let refreshed = key.shares.unwrap().epoch == 1;
        assert_eq!(refreshed, key.scheme == "frost-ed25519");
    }
    gateway.stop().await;
}
