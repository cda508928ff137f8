//! Addresses come with statements of the signers, or get them later.

use std::sync::atomic::Ordering;

use covault_actors::{
    gateway::Gateway,
    operations::{ConfigureSweep, CreateDepositWallet, CreateWallet, GetWalletInfo, GetWalletList},
    store::{KeySpace, Scan},
};
use covault_core::{
    fault::{Class, Fault},
    ids::VaultId,
    schema::{
        admin::ConfigureSweepRequest,
        wire::{self, NetworkType, get_wallet_info_request::Wallet as AuditActor},
    },
    token::TokenKind,
};
use futures::future::join_all;

use crate::{
    tokens::{make, new_token, with},
    world::*,
};

const TARGET: &str = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";

async fn create(
    gateway: &Gateway,
    vault: VaultId,
    network: NetworkType,
    reference: &str,
    require_address_proof: bool,
) -> Result<wire::Wallet, Fault> {
    let request = wire::CreateWalletRequest {
        require_address_proof,
        ..wallet_request(vault, network, reference)
    };
    let made = call::<CreateWallet>(gateway, &admin(), request).await?;
    Ok(made.details.unwrap())
}

async fn info(gateway: &Gateway, address: &str) -> wire::Wallet {
    let request = wire::GetWalletInfoRequest {
        wallet: Some(AuditActor::Address(address.into())),
    };
    let info = call::<GetWalletInfo>(gateway, &admin(), request).await;
    info.unwrap().details.unwrap()
}

async fn list(gateway: &Gateway, vault: VaultId) -> Vec<wire::Wallet> {
    let request = wire::GetWalletListRequest {
        vault_uuid: vault.to_string(),
        ..Default::default()
    };
    let list = call::<GetWalletList>(gateway, &admin(), request).await;
    list.unwrap().details_list
}

async fn count(world: &World, space: KeySpace) -> usize {
    let all = Scan::prefix(space, &[], 10_000);
    world.store.scan(&all).await.unwrap().len()
}

fn assert_proven(wallet: &wire::Wallet, reference: &str) {
    let proof = wallet.address_proof.as_ref().expect("a proof");
    assert_eq!(proof.address, wallet.address);
    assert_eq!(proof.key_path, wallet.key_path);
    assert_eq!(proof.vault_uuid, wallet.vault_uuid);
    assert_eq!(proof.network_type, wallet.network_type);
    assert_eq!(proof.r#ref, reference);
    assert_eq!((proof.threshold, proof.epoch), (2, 0));
    assert_eq!(proof.statements.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wallets__should_come_with_proofs_that_share_batches() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let refs: Vec<String> = (0..300).map(|number| format!("order {number}")).collect();
    let made = refs.iter().map(|reference| {
        let networks = [NetworkType::Evm, NetworkType::Solana];
        let network = networks[reference.len() % 2];
        create(&gateway, vault, network, reference, true)
    });
    for (reference, wallet) in refs.iter().zip(join_all(made).await) {
        let wallet = wallet.unwrap();
        assert_proven(&wallet, reference);
        assert_eq!(info(&gateway, &wallet.address).await, wallet);
    }
    for wallet in list(&gateway, vault).await {
        assert_proven(&wallet, &wallet.r#ref);
    }
    let batches = world.signers.attested.lock().unwrap().clone();
    assert_eq!(batches.iter().sum::<usize>(), 300);
    assert!(batches.len() < 150, "{batches:?}");
    assert!(batches.iter().all(|count| *count <= 128), "{batches:?}");
    assert_eq!(count(&world, KeySpace::ProofWanted).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wallet_without_proof__should_get_it_when_the_signers_are_back() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    world.signers.states_nothing.store(true, Ordering::SeqCst);

    // A call that requires a proof fails, and the reference stays free.
    for _ in 0..2 {
        let refused = create(&gateway, vault, NetworkType::Evm, "one", true).await;
        let fault = refused.unwrap_err();
        assert_eq!(fault.class(), &Class::Unavailable);
        assert!(
            fault.message().starts_with("requireAddressProof: "),
            "{fault}"
        );
    }
    assert_eq!(count(&world, KeySpace::Wallet).await, 0);
    assert_eq!(count(&world, KeySpace::ProofWanted).await, 0);

    let evm = create(&gateway, vault, NetworkType::Evm, "one", false)
        .await
        .unwrap();
    let solana = create(&gateway, vault, NetworkType::Solana, "", false)
        .await
        .unwrap();
    for wallet in [&evm, &solana] {
        assert_eq!(wallet.address_proof, None);
        assert_eq!(&info(&gateway, &wallet.address).await, wallet);
    }
    assert_eq!(count(&world, KeySpace::ProofWanted).await, 2);
    drop(gateway);

    // The process that made them is gone.
    let gateway = world.start().await;
    assert_eq!(info(&gateway, &evm.address).await.address_proof, None);
    world.signers.states_nothing.store(false, Ordering::SeqCst);
    // Vaults of a process that has stopped are taken over when a call needs them.
    create(&gateway, vault, NetworkType::Evm, "two", true)
        .await
        .unwrap();
    while count(&world, KeySpace::ProofWanted).await > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    assert_proven(&info(&gateway, &evm.address).await, "one");
    assert_proven(&info(&gateway, &solana.address).await, "");
    assert_eq!(count(&world, KeySpace::AddressProof).await, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deposit_wallet__should_have_a_proof_of_its_reference() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let made = make(&gateway, new_token("shop", TokenKind::Sweep)).await;
    let token = made.token.unwrap();
    let request = ConfigureSweepRequest {
        token: token.id.clone(),
        network: "EVM".into(),
        vault_uuid: Some(vault.to_string()),
        target: Some(TARGET.into()),
        webhook: None,
        new_webhook_secret: false,
    };
    call::<ConfigureSweep>(&gateway, &admin(), request)
        .await
        .unwrap();
    let caller = with(&token);
    let deposit = async |reference: &str, require_address_proof: bool| {
        let request = wire::CreateDepositWalletRequest {
            network: "EVM".into(),
            r#ref: reference.into(),
            require_address_proof,
        };
        call::<CreateDepositWallet>(&gateway, &caller, request).await
    };
    let made = deposit("order-1", true).await.unwrap();
    let proof = made.address_proof.clone().expect("a proof");
    assert_eq!(
        (proof.address.as_str(), proof.r#ref.as_str()),
        (made.address.as_str(), "order-1")
    );
    assert_eq!(deposit("order-1", true).await.unwrap(), made);

    world.signers.states_nothing.store(true, Ordering::SeqCst);
    let refused = deposit("order-2", true).await.unwrap_err();
    assert_eq!(refused.class(), &Class::Unavailable);
    assert_eq!(count(&world, KeySpace::Deposit).await, 1);
    let made = deposit("order-2", false).await.unwrap();
    assert_eq!(made.address_proof, None);
    let refused = deposit("order-2", true).await.unwrap_err();
    assert_eq!(refused.class(), &Class::Unavailable);
    world.signers.states_nothing.store(false, Ordering::SeqCst);
    while count(&world, KeySpace::ProofWanted).await > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    let later = deposit("order-2", true).await.unwrap();
    assert_eq!(later.address, made.address);
    assert_eq!(later.address_proof.expect("a proof").r#ref, "order-2");
}
