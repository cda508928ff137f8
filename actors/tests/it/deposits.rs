//! Deposit wallets, watch addresses and what sweep tokens have configured.

use std::sync::Arc;

use covault_actors::{
    gateway::{Caller, Gateway},
    operations::{
        AddWatchAddress, ConfigureSweep, CreateDepositWallet, GetWalletList, RevokeToken, ShowSweep,
    },
    store::{Batch, KeySpace, Precondition, Scan, redb::RedbStore},
};
use covault_core::{
    deposit::DepositNetwork,
    fault::{Class, Fault},
    ids::VaultId,
    schema::{
        admin::{
            ConfigureSweepRequest, ConfigureSweepResponse, CreateTokenRequest, RevokeTokenRequest,
            ShowSweepRequest, Token,
        },
        wire,
    },
    token::TokenKind,
    wallet::{Wallet, WalletStatus},
};
use serde::{Deserialize, Serialize};

use crate::{
    tokens::{make, new_token, with},
    world::*,
};

const TARGET: &str = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";
const TRON: &str = "TR7NHqjeKQxGTCi8q8ZY4pL8otSzgjLj6t";

async fn deposit(
    gateway: &Gateway,
    caller: &Caller,
    network: &str,
    reference: &str,
) -> Result<wire::CreateDepositWalletResponse, Fault> {
    let request = wire::CreateDepositWalletRequest {
        network: network.into(),
        r#ref: reference.into(),
        ..Default::default()
    };
    call::<CreateDepositWallet>(gateway, caller, request).await
}

async fn watch(
    gateway: &Gateway,
    caller: &Caller,
    address: &str,
) -> Result<wire::AddWatchAddressResponse, Fault> {
    let request = wire::AddWatchAddressRequest {
        network: "TRON".into(),
        address: address.into(),
    };
    call::<AddWatchAddress>(gateway, caller, request).await
}

fn nothing(token: &Token, network: DepositNetwork) -> ConfigureSweepRequest {
    ConfigureSweepRequest {
        token: token.id.clone(),
        network: network.name().into(),
        ..Default::default()
    }
}

fn whole(token: &Token, network: DepositNetwork, vault: VaultId) -> ConfigureSweepRequest {
    let target = match network {
        DepositNetwork::Evm => TARGET,
        DepositNetwork::Tron => TRON,
    };
    ConfigureSweepRequest {
        vault_uuid: Some(vault.to_string()),
        target: Some(target.into()),
        webhook: Some("https://example.com/hook".into()),
        ..nothing(token, network)
    }
}

async fn configure(
    gateway: &Gateway,
    change: ConfigureSweepRequest,
) -> Result<ConfigureSweepResponse, Fault> {
    call::<ConfigureSweep>(gateway, &admin(), change).await
}

async fn made(gateway: &Gateway, name: &str, kind: TokenKind) -> Token {
    make(gateway, new_token(name, kind)).await.token.unwrap()
}

/// A sweep token with both networks configured.
async fn sweeper(gateway: &Gateway, name: &str, vault: VaultId) -> Token {
    let token = made(gateway, name, TokenKind::Sweep).await;
    for network in DepositNetwork::ALL {
        configure(gateway, whole(&token, network, vault))
            .await
            .unwrap();
    }
    token
}

async fn count(world: &World, space: KeySpace) -> usize {
    let all = Scan::prefix(space, &[], 10_000);
    world.store.scan(&all).await.unwrap().len()
}

fn says(fault: &Fault, class: Class, reason: &str) {
    assert_eq!((fault.class(), fault.message()), (&class, reason));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deposit_wallet__should_be_one_per_token_network_and_ref_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    // What was stopped may hold the file for a moment longer.
    let open = async || loop {
        match RedbStore::open(&folder.path().join("store.redb")) {
            Ok(store) => break Arc::new(store),
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
        }
    };
    let world = World::on(open().await);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let token = sweeper(&gateway, "shop", vault).await;
    let other = with(&sweeper(&gateway, "other", vault).await);
    let caller = with(&token);
    let first = deposit(&gateway, &caller, "EVM", "order-1").await.unwrap();
    assert_eq!(
        (first.network.as_str(), first.r#ref.as_str()),
        ("EVM", "order-1")
    );
    let mut addresses = vec![first.address.clone()];
    for (caller, network, reference) in [
        (&caller, "EVM", "order-2"),
        (&caller, "TRON", "order-1"),
        (&other, "EVM", "order-1"),
        (&other, "TRON", "order-1"),
    ] {
        let made = deposit(&gateway, caller, network, reference).await.unwrap();
        assert!(!addresses.contains(&made.address), "{made:?}");
        addresses.push(made.address);
    }
    // They are ordinary wallets of the vault, without a ref of their own.
    let list = wire::GetWalletListRequest {
        vault_uuid: vault.to_string(),
        ..Default::default()
    };
    let wallets = call::<GetWalletList>(&gateway, &admin(), list).await;
    let wallets = wallets.unwrap().details_list;
    let listed: Vec<_> = wallets
        .iter()
        .map(|wallet| wallet.address.clone())
        .collect();
    assert_eq!(listed, addresses);
    assert!(wallets.iter().all(|wallet| wallet.r#ref.is_empty()));
    gateway.stop().await;
    drop((gateway, world));
    let world = World::on(open().await);
    let gateway = world.start().await;
    let again = deposit(&gateway, &caller, "EVM", "order-1").await.unwrap();
    assert_eq!(again, first);
    assert_eq!(count(&world, KeySpace::Wallet).await, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deposit_wallet__should_be_one_for_calls_at_the_same_time() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let caller = with(&sweeper(&gateway, "shop", vault).await);
    let calls = (0..50).map(|_| deposit(&gateway, &caller, "TRON", "r"));
    let answers = futures::future::join_all(calls).await;
    let first = answers[0].clone().unwrap();
    assert!(answers.into_iter().all(|answer| answer.unwrap() == first));
    assert_eq!(count(&world, KeySpace::Wallet).await, 1);
    // No key path was used up for nothing.
    let next = wallet(&gateway, vault, wire::NetworkType::Evm).await;
    assert_eq!(next.key_path, "m/60/1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deposit_wallet__should_be_one_for_two_processes_on_one_store() {
    let world = World::new();
    let one = world.start().await;
    let vault = vault(&one, "main").await;
    let token = sweeper(&one, "shop", vault).await;
    let two = world.start().await;
    ready(&two, "main").await;
    let caller = with(&token);
    let calls = (0..20).map(|number| {
        let gateway = if number % 2 == 0 { &one } else { &two };
        // A conflict is to be answered by calling again, as its reason says.
        let caller = &caller;
        async move {
            loop {
                match deposit(gateway, caller, "EVM", "r").await {
                    Ok(wallet) => return wallet,
                    Err(fault) if *fault.class() == Class::Unavailable => {}
                    Err(fault) => says(&fault, Class::Conflict, "wallet address conflict; retry"),
                }
            }
        }
    });
    let answers = futures::future::join_all(calls).await;
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    assert_eq!(count(&world, KeySpace::Wallet).await, 1);
    assert_eq!(count(&world, KeySpace::Deposit).await, 1);
}

#[derive(Serialize, Deserialize)]
enum VersionedValue<T> {
    V1(T),
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deposit_wallet__should_be_refused_with_the_reasons_of_the_api() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let token = made(&gateway, "shop", TokenKind::Sweep).await;
    let caller = with(&token);
    let refused = async |network: &str, reference: &str| {
        deposit(&gateway, &caller, network, reference)
            .await
            .unwrap_err()
    };
    for (network, reference, reason) in [
        ("", "r", "network required"),
        ("SUI", "r", "network unsupported"),
        ("EVM", "", "ref required"),
        ("EVM", "a b", "ref invalid"),
        ("EVM", "r", "sweep config not configured"),
    ] {
        says(&refused(network, reference).await, Class::Invalid, reason);
    }
    // A vault alone is not enough, nor the other network's configuration.
    let evm = DepositNetwork::Evm;
    let part = ConfigureSweepRequest {
        target: None,
        ..whole(&token, evm, vault)
    };
    configure(&gateway, part).await.unwrap();
    configure(&gateway, whole(&token, DepositNetwork::Tron, vault))
        .await
        .unwrap();
    says(
        &refused("EVM", "r").await,
        Class::Invalid,
        "sweep config not configured",
    );
    let rest = ConfigureSweepRequest {
        target: Some(TARGET.to_lowercase()),
        ..nothing(&token, evm)
    };
    let view = configure(&gateway, rest).await.unwrap();
    let route = view.networks[0].clone();
    assert_eq!(
        (route.network.as_str(), route.vault_uuid),
        (evm.name(), Some(vault.to_string()))
    );
    assert_eq!(route.target.as_deref(), Some(TARGET));
    assert!(deposit(&gateway, &caller, "EVM", "r").await.is_ok());
    // An archived wallet.
    let wallets = world
        .store
        .scan(&Scan::prefix(KeySpace::Wallet, &[], 10))
        .await
        .unwrap();
    let (key, row) = wallets[0].clone();
    let VersionedValue::V1(wallet) = bcs::from_bytes::<VersionedValue<Wallet>>(&row.value).unwrap();
    let archived = VersionedValue::V1(Wallet {
        status: WalletStatus::Archived,
        ..wallet
    });
    let mut batch = Batch::new();
    batch.put(
        key,
        Precondition::Version(row.version),
        bcs::to_bytes(&archived).unwrap(),
    );
    world.store.commit(batch).await.unwrap();
    says(
        &refused("EVM", "r").await,
        Class::Invalid,
        "wallet disabled",
    );
    assert!(deposit(&gateway, &caller, "EVM", "r2").await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch__should_be_one_per_token_and_address() {
    let world = World::new();
    let gateway = world.start().await;
    let token = made(&gateway, "shop", TokenKind::Sweep).await;
    let caller = with(&token);
    let fault = watch(&gateway, &caller, TRON).await.unwrap_err();
    says(&fault, Class::Invalid, "webhook not configured");
    // The webhook of the other network does not count.
    for (network, works) in [(DepositNetwork::Evm, false), (DepositNetwork::Tron, true)] {
        let change = ConfigureSweepRequest {
            webhook: Some("https://example.com/hook".into()),
            ..nothing(&token, network)
        };
        configure(&gateway, change).await.unwrap();
        assert_eq!(watch(&gateway, &caller, TRON).await.is_ok(), works);
    }
    let calls = (0..50).map(|_| watch(&gateway, &caller, TRON));
    let answers = futures::future::join_all(calls).await;
    let first = answers[0].clone().unwrap();
    assert!(answers.into_iter().all(|answer| answer.unwrap() == first));
    assert_eq!(
        (first.address.as_str(), first.network.as_str()),
        (TRON, "TRON")
    );
    let other = made(&gateway, "other", TokenKind::Sweep).await;
    let change = ConfigureSweepRequest {
        webhook: Some("https://example.com/".into()),
        ..nothing(&other, DepositNetwork::Tron)
    };
    configure(&gateway, change).await.unwrap();
    let second = watch(&gateway, &with(&other), TRON).await.unwrap();
    assert_ne!(second.uuid, first.uuid);
    gateway.stop().await;
    let gateway = world.start().await;
    assert_eq!(watch(&gateway, &caller, TRON).await.unwrap(), first);
    assert_eq!(count(&world, KeySpace::Watch).await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn configuration__should_name_the_field_that_is_wrong_and_change_nothing_then() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let other = crate::world::vault(&gateway, "other").await;
    let bound = CreateTokenRequest {
        vaults: vec![vault.to_string()],
        all_vaults: false,
        ..new_token("shop", TokenKind::Sweep)
    };
    let token = make(&gateway, bound).await.token.unwrap();
    let platform = made(&gateway, "platform", TokenKind::Platform).await;
    let evm = DepositNetwork::Evm;
    let with_vault = |vault: VaultId| ConfigureSweepRequest {
        vault_uuid: Some(vault.to_string()),
        ..nothing(&token, evm)
    };
    let with_target = |target: &str| ConfigureSweepRequest {
        target: Some(target.into()),
        ..nothing(&token, evm)
    };
    let with_webhook = |url: &str| ConfigureSweepRequest {
        vault_uuid: Some(vault.to_string()),
        webhook: Some(url.into()),
        ..nothing(&token, evm)
    };
    for (change, start) in [
        (nothing(&platform, evm), "token: is not a sweep token"),
        (with_vault(VaultId::from_bytes([9; 16])), "vaultUuid: "),
        (with_vault(other), "vaultUuid: is outside the scope"),
        (with_target(TRON), "target: "),
        (
            with_target("0x0000000000000000000000000000000000000000"),
            "target: is the zero address",
        ),
        (with_webhook("ftp://example.com"), "webhook: "),
    ] {
        let fault = configure(&gateway, change).await.unwrap_err();
        assert!(fault.message().starts_with(start), "{fault}");
    }
    let view = configure(&gateway, nothing(&token, evm)).await.unwrap();
    assert!(view.networks.is_empty());
    let view = configure(&gateway, whole(&token, evm, vault))
        .await
        .unwrap();
    let request = ShowSweepRequest {
        token: "shop".into(),
    };
    let shown = call::<ShowSweep>(&gateway, &admin(), request)
        .await
        .unwrap();
    assert_eq!((shown.token, shown.networks), (view.token, view.networks));
    // An empty URL takes the webhook away, and nothing else.
    let without = ConfigureSweepRequest {
        webhook: Some(String::new()),
        ..nothing(&token, evm)
    };
    let view = configure(&gateway, without).await.unwrap();
    let route = &view.networks[0];
    assert!(route.webhook.is_none() && route.target.is_some());
    let request = RevokeTokenRequest {
        token: "shop".into(),
    };
    call::<RevokeToken>(&gateway, &admin(), request)
        .await
        .unwrap();
    let fault = configure(&gateway, nothing(&token, evm)).await.unwrap_err();
    assert_eq!(fault.message(), "token: was revoked");
}
