//! Vaults whose keys cannot be made as they were meant to be: a node died, or was named by mistake.

use std::sync::Arc;

use covault_actors::{
    gateway::Gateway,
    operations::{AdmitNode, CreateVault, RemoveNode, ReshareVault},
    store::memory::MemoryStore,
};
use covault_core::{
    fault::{Class, Fault},
    schema::{
        admin::{
            AdmitNodeRequest, CreateVaultRequest, Key, RemoveNodeRequest, ReshareVaultRequest,
            Vault,
        },
        wire::NetworkType,
    },
    scheme::Scheme,
    signature::Curve,
};

use crate::{
    faulty_store::{FaultyStore, StoreFault},
    world::*,
};

fn nodes(numbers: &[u8]) -> Vec<String> {
    lines(numbers.iter().copied())
}

fn create(signers: &[u8]) -> CreateVaultRequest {
    CreateVaultRequest {
        signers: nodes(signers),
        ..vault_request("main")
    }
}

fn replace(signers: &[u8]) -> CreateVaultRequest {
    CreateVaultRequest {
        replace: true,
        ..create(signers)
    }
}

async fn made(gateway: &Gateway, request: CreateVaultRequest) -> Result<Vault, Fault> {
    let made = call::<CreateVault>(gateway, &admin(), request).await?;
    Ok(made.vault.unwrap())
}

async fn view(gateway: &Gateway) -> Vault {
    vault_named(gateway, "main").await.unwrap()
}

async fn remove(gateway: &Gateway, number: u8) -> Result<(), Fault> {
    let request = RemoveNodeRequest {
        public_key: node(number).openssh_line(""),
    };
    call::<RemoveNode>(gateway, &admin(), request).await?;
    Ok(())
}

async fn admit_five(gateway: &Gateway) {
    for public_key in lines(1..=5) {
        let request = AdmitNodeRequest {
            public_key,
            ..Default::default()
        };
        call::<AdmitNode>(gateway, &admin(), request).await.unwrap();
    }
}

/// Waits until the nodes were asked for so many keys.
async fn asked(world: &World, count: usize) {
    while world.signers.keygens.lock().unwrap().len() < count {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn vault__should_get_its_keys_from_other_nodes_when_one_never_comes() {
    let world = World::new();
    world.signers.dead.lock().unwrap().insert(node(3));
    let gateway = world.start().await;
    admit_five(&gateway).await;
    let first = made(&gateway, create(&[1, 2, 3])).await.unwrap();
    asked(&world, 2).await;

    // A mistake changes nothing; the error says what to do.
    let fault = made(&gateway, create(&[1, 2, 4])).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Conflict);
    assert!(fault.message().contains("--replace"), "{fault}");
    // The node that never came is held by a vault that has no keys, and that is what is said.
    let fault = remove(&gateway, 3).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Conflict);
    let sentence = fault.message();
    assert!(sentence.contains("--replace"), "{sentence}");
    assert!(!sentence.contains("reshare"), "{sentence}");
    // Nobody is named who is not admitted.
    let fault = made(&gateway, replace(&[1, 2, 9])).await.unwrap_err();
    assert!(fault.message().contains("node admit"), "{fault}");
    let refused = call::<CreateVault>(&gateway, &stranger(), replace(&[1, 2, 4])).await;
    assert_eq!(refused.unwrap_err().class(), &Class::Forbidden);

    let replaced = made(&gateway, replace(&[1, 2, 4])).await.unwrap();
    assert_eq!(replaced.uuid, first.uuid);
    ready(&gateway, "main").await;
    let vault = view(&gateway).await;
    for key in &vault.keys {
        assert_eq!(key.shares.as_ref().unwrap().holders, nodes(&[1, 2, 4]));
    }
    // What the first ones were at is dropped.
    assert!(world.signers.running.lock().unwrap().is_empty());
    remove(&gateway, 3).await.unwrap();
    // It signs, and repeats of the two commands are told apart.
    wallet(&gateway, vault.uuid.parse().unwrap(), NetworkType::Evm).await;
    made(&gateway, create(&[1, 2, 4])).await.unwrap();
    made(&gateway, replace(&[1, 2, 4])).await.unwrap();
    let fault = made(&gateway, replace(&[1, 2, 5])).await.unwrap_err();
    assert_eq!(fault.class(), &Class::WrongState);
    gateway.stop().await;
}

#[tokio::test]
async fn vault__should_keep_the_key_that_is_there_when_the_other_is_made_elsewhere() {
    let world = World::new();
    world.signers.hold_ed25519.send_replace(true);
    let gateway = world.start().await;
    admit_five(&gateway).await;
    made(&gateway, create(&[1, 2, 3])).await.unwrap();
    let there = |vault: &Vault, curve: Curve| {
        let of_curve = |key: &&Key| Scheme::parse(&key.scheme).unwrap().curve() == curve;
        vault.keys.iter().find(of_curve)?.shares.clone()
    };
    while there(&view(&gateway).await, Curve::Secp256k1).is_none() {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    let vault = view(&gateway).await.uuid.parse().unwrap();
    let before = wallet(&gateway, vault, NetworkType::Evm).await;
    made(&gateway, replace(&[3, 4, 5])).await.unwrap();
    world.signers.hold_ed25519.send_replace(false);
    ready(&gateway, "main").await;
    let shown = view(&gateway).await;
    let holders = |curve| there(&shown, curve).unwrap().holders;
    assert_eq!(holders(Curve::Secp256k1), nodes(&[1, 2, 3]));
    assert_eq!(holders(Curve::Ed25519), nodes(&[3, 4, 5]));
    let again = wallet(&gateway, vault, NetworkType::Evm).await;
    assert_ne!(again.address, before.address);
    gateway.stop().await;
}

#[tokio::test]
async fn vault__should_be_of_one_set_whatever_fails_while_it_is_replaced() {
    // Admissions (5), the vault, two claims; the ninth commit replaces the set.
    for accident in [
        StoreFault::Before,
        StoreFault::After,
        StoreFault::StumbleBefore,
        StoreFault::StumbleAfter,
    ] {
        let inner: Arc<MemoryStore> = Arc::new(MemoryStore::new());
        let store = FaultyStore::new(Arc::clone(&inner) as _, 9, accident);
        let world = World::on(Arc::clone(&inner) as _);
        // What a new store gets is there.
        world.start().await.stop().await;
        world.signers.dead.lock().unwrap().insert(node(3));
        let gateway = world.start_on(Arc::clone(&store) as _).await;
        admit_five(&gateway).await;
        made(&gateway, create(&[1, 2, 3])).await.unwrap();
        asked(&world, 2).await;
        assert_eq!(store.commits(), 8);
        assert!(made(&gateway, replace(&[1, 2, 4])).await.is_err());
        store.accident().await;
        gateway.stop().await;

        // From what is on disk: the old set or the new one, and the command can be repeated.
        let gateway = world.start_on(Arc::clone(&inner) as _).await;
        while made(&gateway, replace(&[1, 2, 4])).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        ready(&gateway, "main").await;
        for key in view(&gateway).await.keys {
            assert_eq!(key.shares.unwrap().holders, nodes(&[1, 2, 4]));
        }
        gateway.stop().await;
    }
}

#[tokio::test]
async fn keygen__should_go_on_in_the_same_run_when_the_actor_starts_again() {
    // Three admissions, the vault, two claims; the key that is made first gets lost on its way to
    // the disk, and the vault's actor starts again while the other key is being made.
    let inner: Arc<MemoryStore> = Arc::new(MemoryStore::new());
    let store = FaultyStore::new(Arc::clone(&inner) as _, 7, StoreFault::StumbleBefore);
    let world = World::on(Arc::clone(&inner) as _);
    // What a new store gets is there.
    world.start().await.stop().await;
    world.signers.hold_ed25519.send_replace(true);
    let gateway = world.start_on(Arc::clone(&store) as _).await;
    assert!(admit(&gateway).await);
    made(&gateway, create(&[1, 2, 3])).await.unwrap();
    store.accident().await;
    asked(&world, 4).await;
    world.signers.hold_ed25519.send_replace(false);
    ready(&gateway, "main").await;
    let keygens = world.signers.keygens.lock().unwrap().clone();
    for scheme in [Scheme::Dkls23, Scheme::FrostEd25519] {
        let of = keygens.iter().filter(|order| order.scheme == scheme);
        let mut sessions: Vec<_> = of.map(|order| order.session).collect();
        assert_eq!(sessions.len(), 2, "{scheme:?}");
        sessions.dedup();
        assert_eq!(sessions.len(), 1, "{scheme:?}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn reshare__should_be_refused_when_a_node_was_removed_before_it() {
    let world = World::new();
    let gateway = world.start().await;
    let id = vault(&gateway, "main").await;
    admit_five(&gateway).await;
    remove(&gateway, 5).await.unwrap();
    let reshare = async |signers: &[u8]| {
        let request = ReshareVaultRequest {
            vault_uuid: id.to_string(),
            threshold: Some(2),
            signers: nodes(signers),
            ..Default::default()
        };
        call::<ReshareVault>(&gateway, &admin(), request).await
    };
    let fault = reshare(&[1, 2, 5]).await.unwrap_err();
    assert!(fault.message().starts_with("signers: "), "{fault}");
    // Removals and reshares at the same time: whichever comes first, no vault names a node that is gone.
    for _ in 0..20 {
        let reshare_request = reshare(&[1, 2, 4]);
        let remove = remove(&gateway, 4);
        let (wished, removed) = tokio::join!(reshare_request, remove);
        assert!(wished.is_err() || removed.is_err());
        if wished.is_ok() {
            break;
        }
        admit_five(&gateway).await;
    }
    gateway.stop().await;
}
