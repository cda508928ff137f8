//! Vaults, wallets and balances.

use std::{collections::BTreeSet, sync::Arc};

use covault_actors::{
    chain_rpc::{ChainClients, ChainKey},
    operations::{CreateVault, CreateWallet, GetBalance, GetWalletInfo, GetWalletList, ListVaults},
    store::{Batch, KeySpace, Precondition, Scan, memory::MemoryStore},
};
use covault_core::{
    fault::{Class, Fault},
    schema::{
        admin::ListVaultsRequest,
        wire::{self, NetworkType, get_wallet_info_request::Wallet as AuditActor},
    },
    signature::Curve,
};

use crate::world::*;

async fn list(
    gateway: &covault_actors::gateway::Gateway,
    request: wire::GetWalletListRequest,
) -> Result<Vec<wire::Wallet>, Fault> {
    let listed = call::<GetWalletList>(gateway, &admin(), request).await?;
    Ok(listed.details_list)
}

fn info(wallet: AuditActor) -> wire::GetWalletInfoRequest {
    wire::GetWalletInfoRequest {
        wallet: Some(wallet),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wallets__should_be_numbered_and_listed_in_the_order_of_creation() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let mut made = Vec::new();
    for number in 0..5 {
        let network = if number % 2 == 0 {
            NetworkType::Evm
        } else {
            NetworkType::Solana
        };
        made.push(wallet(&gateway, vault, network).await);
    }
    assert_eq!(
        made.iter()
            .map(|wallet| wallet.key_path.as_str())
            .collect::<Vec<_>>(),
        ["m/60/0", "m/501/1", "m/60/2", "m/501/3", "m/60/4"]
    );
    let asked = |page, limit| wire::GetWalletListRequest {
        vault_uuid: vault.to_string(),
        page,
        limit,
    };
    assert_eq!(list(&gateway, asked(None, None)).await.unwrap(), made);
    assert_eq!(
        list(&gateway, asked(Some(0), Some(2))).await.unwrap(),
        made[..2]
    );
    assert_eq!(
        list(&gateway, asked(Some(2), Some(2))).await.unwrap(),
        made[2..4]
    );
    assert_eq!(
        list(&gateway, asked(Some(3), Some(2))).await.unwrap(),
        made[4..]
    );
    assert!(
        list(&gateway, asked(Some(4), Some(2)))
            .await
            .unwrap()
            .is_empty()
    );
    assert!(
        list(&gateway, asked(Some(i64::MAX), Some(100)))
            .await
            .is_ok_and(|found| found.is_empty())
    );
    for (page, limit) in [(None, Some(101)), (None, Some(-1)), (Some(-1), None)] {
        assert_eq!(
            list(&gateway, asked(page, limit))
                .await
                .unwrap_err()
                .class(),
            &Class::Invalid
        );
    }
    // The numbering goes on after a restart.
    gateway.stop().await;
    let gateway = world.start().await;
    assert_eq!(
        wallet(&gateway, vault, NetworkType::Evm).await.key_path,
        "m/60/5"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wallets__should_be_numbered_by_two_processes_on_one_store() {
    let world = World::on(Arc::new(MemoryStore::shared()));
    let one = world.start().await;
    let vault = vault(&one, "main").await;
    let two = world.start().await;
    ready(&two, "main").await;
    for _ in 0..3 {
        wallet(&one, vault, NetworkType::Evm).await;
    }
    // Whichever it came to: they are numbered where the vault is.
    let made = wallet(&two, vault, NetworkType::Evm).await;
    assert_eq!(made.key_path, "m/60/3");
    let calls = (0..20).map(|number| {
        let gateway = if number % 2 == 0 { &one } else { &two };
        wallet(gateway, vault, NetworkType::Evm)
    });
    let made = futures::future::join_all(calls).await;
    let paths: BTreeSet<_> = made.into_iter().map(|wallet| wallet.key_path).collect();
    assert_eq!(paths.len(), 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wallets__should_be_listed_also_beside_one_that_cannot_be_read() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let first = wallet(&gateway, vault, NetworkType::Evm).await;
    let rows = Scan::prefix(KeySpace::Wallet, &[], 1);
    let (key, _) = world.store.scan(&rows).await.unwrap().remove(0);
    let mut batch = Batch::new();
    batch.put(key, Precondition::Any, vec![0xff; 3]);
    world.store.commit(batch).await.unwrap();
    let second = wallet(&gateway, vault, NetworkType::Evm).await;
    let all = wire::GetWalletListRequest {
        vault_uuid: vault.to_string(),
        ..Default::default()
    };
    assert_eq!(list(&gateway, all).await.unwrap(), [second]);
    let found =
        call::<GetWalletInfo>(&gateway, &admin(), info(AuditActor::Address(first.address))).await;
    assert_eq!(found.unwrap_err().class(), &Class::Bug);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wallets__should_be_found_by_address_and_ref() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let request = wallet_request(vault, NetworkType::Evm, "order-1");
    let made = call::<CreateWallet>(&gateway, &admin(), request).await;
    let made = made.unwrap().details.unwrap();
    for by in [
        AuditActor::Address(made.address.clone()),
        AuditActor::Address(made.address.to_lowercase()),
        AuditActor::Ref("order-1".into()),
    ] {
        let found = call::<GetWalletInfo>(&gateway, &admin(), info(by.clone())).await;
        assert_eq!(found.unwrap().details.as_ref(), Some(&made));
        let found = call::<GetWalletInfo>(&gateway, &stranger(), info(by)).await;
        assert_eq!(found.unwrap_err().class(), &Class::Invalid);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wallets__should_refuse_a_ref_that_is_taken_also_in_a_race() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let calls = (0..20).map(|_| async {
        let request = wallet_request(vault, NetworkType::Evm, "r");
        call::<CreateWallet>(&gateway, &admin(), request).await
    });
    let outcomes = futures::future::join_all(calls).await;
    let refused = outcomes
        .iter()
        .filter_map(|outcome| outcome.as_ref().err())
        .collect::<Vec<_>>();
    assert_eq!(refused.len(), 19);
    for fault in refused {
        assert_eq!(
            (fault.class(), fault.message()),
            (&Class::Conflict, "duplicate wallet ref")
        );
    }
    // Empty references are no references.
    wallet(&gateway, vault, NetworkType::Evm).await;
    wallet(&gateway, vault, NetworkType::Evm).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wallets__should_refuse_what_cannot_be_made() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let good = || wire::CreateWalletRequest {
        vault_uuid: vault.to_string(),
        network_type: NetworkType::Evm.into(),
        ..Default::default()
    };
    let refused = async |change: &dyn Fn(&mut wire::CreateWalletRequest)| {
        let mut request = good();
        change(&mut request);
        let made = call::<CreateWallet>(&gateway, &admin(), request).await;
        let fault = made.unwrap_err();
        assert_eq!(fault.class(), &Class::Invalid, "{fault:?}");
        fault.message().to_owned()
    };
    assert!(
        refused(&|request| request.network_type = 0)
            .await
            .starts_with("networkType: ")
    );
    assert!(
        refused(&|request| request.vault_uuid = String::new())
            .await
            .starts_with("vaultUuid: ")
    );
    assert_eq!(
        refused(&|request| request.vault_uuid = "x".into()).await,
        "Invalid uuid"
    );
    let unknown = "00000000-0000-4000-8000-000000000000";
    assert_eq!(
        refused(&|request| request.vault_uuid = unknown.into()).await,
        "Invalid uuid"
    );
    assert!(
        refused(&|request| request.name = "n".repeat(86))
            .await
            .starts_with("name: ")
    );
    assert!(
        refused(&|request| request.r#ref = "r".repeat(501))
            .await
            .starts_with("ref: ")
    );
    let key = "ssh-ed25519 AAAA".to_owned();
    let callback =
        refused(&|request| request.callback_client_signer_public_key = key.clone()).await;
    assert!(
        callback.starts_with("callbackClientSignerPublicKey: "),
        "{callback}"
    );
    let made = call::<CreateWallet>(&gateway, &stranger(), good()).await;
    assert_eq!(made.unwrap_err().class(), &Class::Forbidden);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vaults__should_be_made_once_per_name() {
    let world = World::new();
    let gateway = world.start().await;
    let id = vault(&gateway, "main").await;
    assert_eq!(vault(&gateway, "main").await, id);
    let mut other = vault_request("main");
    other.threshold = 3;
    let made = call::<CreateVault>(&gateway, &admin(), other.clone()).await;
    assert_eq!(made.unwrap_err().class(), &Class::Conflict);
    let made = call::<CreateVault>(&gateway, &stranger(), other).await;
    assert_eq!(made.unwrap_err().class(), &Class::Forbidden);
    let mut slower = vault_request("main");
    slower.ecdsa_backend = Some("cggmp24".into());
    let made = call::<CreateVault>(&gateway, &admin(), slower).await;
    assert_eq!(made.unwrap_err().class(), &Class::Conflict);
    let listed = call::<ListVaults>(&gateway, &admin(), ListVaultsRequest::default()).await;
    let ids: Vec<_> = listed
        .unwrap()
        .vaults
        .into_iter()
        .map(|vault| vault.uuid)
        .collect();
    assert_eq!(ids, [id.to_string()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vaults__should_be_listed_from_any_name_on() {
    let world = World::new();
    let gateway = world.start().await;
    let names: Vec<_> = (10..40).map(|number| format!("v{number}")).collect();
    for name in &names {
        vault(&gateway, name).await;
    }
    for (after, expected) in [
        (None, &names[..]),
        (Some("v12"), &names[3..]),
        (Some("v125"), &names[3..]),
        (Some("v39"), &names[..0]),
    ] {
        let request = ListVaultsRequest {
            after: after.map(str::to_owned),
        };
        let listed = call::<ListVaults>(&gateway, &admin(), request).await;
        let listed = listed.unwrap().vaults.into_iter();
        let listed: Vec<_> = listed.map(|vault| vault.name).collect();
        assert_eq!(listed, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn create_vault__should_give_a_slow_scheme_more_time_for_its_key() {
    let mut world = World::new();
    world.settings.keygen_deadline_ms = 100_000;
    let gateway = world.start().await;
    let mut request = vault_request("main");
    request.ecdsa_backend = Some("cggmp24".into());
    assert!(admit(&gateway).await);
    call::<CreateVault>(&gateway, &admin(), request)
        .await
        .unwrap();
    ready(&gateway, "main").await;
    let orders = world.signers.keygens.lock().unwrap();
    for (curve, given_ms) in [(Curve::Ed25519, 100_000), (Curve::Secp256k1, 400_000)] {
        let mut orders = orders.iter();
        let order = orders.find(|order| order.scheme.curve() == curve).unwrap();
        assert_eq!(order.expires_at_ms - order.issued_at_ms, given_ms);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn balance__should_be_that_of_a_known_evm_chain() {
    let world = World::new();
    let chains: ChainClients = world
        .chains()
        .with(ChainKey::evm(10), Arc::clone(&world.evm) as _);
    let gateway = world.start_with(Arc::clone(&world.store), chains).await;
    let address = "0x00000000000000000000000000000000000000aa";
    let asked = |chain_id, token: Option<&str>| wire::GetBalanceRequest {
        network_type: NetworkType::Evm.into(),
        chain_id,
        wallet_address: address.into(),
        token_address: token.map(str::to_owned),
    };
    let balance = async |request| {
        let found = call::<GetBalance>(&gateway, &admin(), request).await;
        let found = found.map(|response| response.balance);
        found.map_err(|fault| (fault.class().clone(), fault.message().to_owned()))
    };
    assert_eq!(balance(asked(Some(10), None)).await.unwrap(), "1000");
    assert_eq!(
        balance(asked(Some(31337), Some(address))).await.unwrap(),
        "5"
    );
    let invalid = Err((Class::Invalid, "Invalid chain id".to_owned()));
    assert_eq!(balance(asked(Some(424_242), None)).await, invalid);
    assert_eq!(balance(asked(Some(-1), None)).await, invalid);
    assert!(
        balance(asked(None, None))
            .await
            .unwrap_err()
            .1
            .starts_with("chainId: ")
    );
    assert_eq!(
        balance(asked(Some(1), None)).await.unwrap_err().0,
        Class::Invalid
    );
    // The chain id of Solana may be left out, and no node is configured for Sonic SVM.
    for (chain_id, expected) in [
        (None, Ok("1000".to_owned())),
        (Some(101), Ok("1000".to_owned())),
        (Some(1), invalid.clone()),
        (
            Some(0),
            Err((
                Class::Invalid,
                "chainId: no node is configured for Sonic SVM (chains.sonic.rpc)".to_owned(),
            )),
        ),
    ] {
        let mut solana = asked(chain_id, None);
        solana.network_type = NetworkType::Solana.into();
        solana.wallet_address = "11111111111111111111111111111111".into();
        assert_eq!(balance(solana).await, expected, "{chain_id:?}");
    }
    let mut token = asked(None, Some("mint"));
    token.network_type = NetworkType::Solana.into();
    token.wallet_address = "11111111111111111111111111111111".into();
    assert!(
        balance(token)
            .await
            .unwrap_err()
            .1
            .starts_with("tokenAddress: ")
    );
    let mut wrong = asked(Some(10), None);
    wrong.wallet_address = "0x12".into();
    assert!(
        balance(wrong)
            .await
            .unwrap_err()
            .1
            .starts_with("walletAddress: ")
    );
}
