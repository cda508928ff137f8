//! updateWallet: names, and archived wallets, which sign nothing.

use std::sync::{Arc, atomic::Ordering};

use covault_actors::{
    gateway::{Caller, Gateway},
    operations::{CreateWallet, GetBalance, GetWalletInfo, UpdateWallet},
    store::{Batch, KeySpace, Precondition, Scan},
};
use covault_core::{
    fault::{Class, Fault},
    schema::wire::{
        self, NetworkType, get_wallet_info_request, signing_request::Status,
        wallet::Status as WalletStatus,
    },
};

use crate::world::*;

const ARCHIVED: &str = "STATUS_ARCHIVED";
const ACTIVE: &str = "STATUS_ACTIVE";

async fn update(
    gateway: &Gateway,
    address: &str,
    name: &str,
    status: &str,
) -> Result<wire::Wallet, Fault> {
    update_as(gateway, &admin(), address, name, status).await
}

async fn update_as(
    gateway: &Gateway,
    caller: &Caller,
    address: &str,
    name: &str,
    status: &str,
) -> Result<wire::Wallet, Fault> {
    let request = wire::UpdateWalletRequest {
        address: address.into(),
        name: name.into(),
        status: status.into(),
    };
    let updated = call::<UpdateWallet>(gateway, caller, request).await?;
    Ok(updated.details.unwrap())
}

async fn info(gateway: &Gateway, address: &str) -> wire::Wallet {
    let request = wire::GetWalletInfoRequest {
        wallet: Some(get_wallet_info_request::Wallet::Address(address.into())),
    };
    let info = call::<GetWalletInfo>(gateway, &admin(), request).await;
    info.unwrap().details.unwrap()
}

fn is_archived(fault: &Fault, kind: &str) {
    assert_eq!(fault.class(), &Class::WrongState, "{fault}");
    assert_eq!(
        fault.message(),
        format!(
            "{kind}.from: the wallet is archived; make it active again with updateWallet first"
        )
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn update__should_change_what_is_asked_and_nothing_else() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let request = wallet_request(vault, NetworkType::Evm, "order-1");
    let made = call::<CreateWallet>(&gateway, &admin(), request).await;
    let mut expected = made.unwrap().details.unwrap();
    let address = expected.address.clone();

    // An address is taken in any form of its network.
    let lower = address.to_lowercase();
    let renamed = update(&gateway, &lower, &"ü".repeat(85), "").await.unwrap();
    expected.name = "ü".repeat(85);
    assert_eq!(renamed, expected);
    for _ in 0..2 {
        let archived = update(&gateway, &address, "", ARCHIVED).await.unwrap();
        expected.status = WalletStatus::Archived.into();
        assert_eq!(archived, expected);
    }
    gateway.stop().await;

    let gateway = world.start().await;
    assert_eq!(info(&gateway, &address).await, expected);
    expected.name = "both".into();
    expected.status = WalletStatus::Active.into();
    let both = update(&gateway, &address, "both", ACTIVE).await.unwrap();
    assert_eq!(both, expected);
    assert_eq!(info(&gateway, &address).await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn update__should_refuse_what_it_cannot_do_and_change_nothing() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let made = wallet(&gateway, vault, NetworkType::Evm).await;
    let address = made.address.as_str();
    let unknown = "0x00000000000000000000000000000000000000aa";
    for (address, name, status, expected) in [
        ("", "n", "", "address: is required"),
        (
            address,
            "",
            "",
            "nothing to change: give name, status or both",
        ),
        (address, &"ü".repeat(86), "", "name: has more than 85"),
        (address, "n", "STATUS_PENDING", "status: must be "),
        (address, "n", "active", "status: must be "),
        (unknown, "n", "", "address: is not that of a wallet"),
        ("nonsense", "n", "", "address: is not an address"),
    ] {
        let fault = update(&gateway, address, name, status).await.unwrap_err();
        assert_eq!(fault.class(), &Class::Invalid);
        assert!(fault.message().starts_with(expected), "{fault}");
    }
    let fault = update_as(&gateway, &stranger(), address, "mine", "").await;
    let fault = fault.unwrap_err();
    assert_eq!(fault.message(), "address: is not that of a wallet");
    assert_eq!(info(&gateway, address).await, made);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archived_wallet__should_sign_nothing_until_it_is_active_again() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let other = evm_wallet(&gateway, vault).await;
    update(&gateway, &address, "", ARCHIVED).await.unwrap();

    // With an idempotency key, which stays free.
    for (kind, name) in [
        (raw(&address), "rawMessage"),
        (send(&address), "evmSendNative"),
    ] {
        let fault = try_create(&gateway, request(kind), Some("k"))
            .await
            .unwrap_err();
        is_archived(&fault, name);
    }
    assert!(world.requests().await.is_empty());
    assert_eq!(info(&gateway, &address).await.address, address);
    let balance = wire::GetBalanceRequest {
        network_type: NetworkType::Evm.into(),
        chain_id: Some(CHAIN as i64),
        wallet_address: address.clone(),
        token_address: None,
    };
    let balance = call::<GetBalance>(&gateway, &admin(), balance).await;
    assert_eq!(balance.unwrap().balance, "1000");
    let pending = create(&gateway, raw(&other)).await;
    assert_eq!(outcome(&gateway, &pending.uuid).await.error, None);

    update(&gateway, &address, "", ACTIVE).await.unwrap();
    let (made, answer) = try_create(&gateway, request(raw(&address)), Some("k"))
        .await
        .unwrap();
    assert!(!answer.replayed);
    assert_eq!(outcome(&gateway, &made.uuid).await.error, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive__should_end_what_is_not_built_and_leave_what_is_being_signed() {
    let world = World::new();
    world.signers.failing.store(20, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let other = evm_wallet(&gateway, vault).await;
    let signing = create(&gateway, raw(&address)).await;
    world.evm.down.store(true, Ordering::SeqCst);
    let waiting = create(&gateway, send(&address)).await;
    let others = create(&gateway, send(&other)).await;
    update(&gateway, &address, "", ARCHIVED).await.unwrap();

    // It ends although the chain is still down.
    let error = outcome(&gateway, &waiting.uuid).await.error.unwrap();
    assert_eq!(
        error.message,
        "the wallet was archived before the request was signed"
    );
    assert_eq!(
        crate::requests::code(&error),
        wire::ExecuteSigningRequestsErrorCode::AlreadyDenied
    );
    assert_eq!(outcome(&gateway, &signing.uuid).await.error, None);
    world.evm.down.store(false, Ordering::SeqCst);
    assert_eq!(outcome(&gateway, &others.uuid).await.error, None);
    assert_eq!(world.evm.accepted(), 1);
    assert_eq!(world.pending().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive__should_end_what_was_waiting_also_after_a_restart() {
    let world = World::new();
    world.evm.down.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let waiting = create(&gateway, send(&address)).await;
    gateway.stop().await;

    // The process ended between the commit of the archive and the end of the request: the rows are
    // those of a wallet that another world archived.
    let archive = World::on(Arc::clone(&world.store));
    let before = rows(&world, KeySpace::Outbox).await;
    archive.evm.down.store(true, Ordering::SeqCst);
    let gateway = archive.start().await;
    update(&gateway, &address, "", ARCHIVED).await.unwrap();
    outcome(&gateway, &waiting.uuid).await;
    gateway.stop().await;
    let mut batch = Batch::new();
    for (key, value) in before {
        batch.put(key, Precondition::Any, value);
    }
    for (key, value) in waiting_again(&world).await {
        batch.put(key, Precondition::Any, value);
    }
    world.store.commit(batch).await.unwrap();

    let gateway = world.start().await;
    let error = outcome(&gateway, &waiting.uuid).await.error.unwrap();
    assert!(error.message.starts_with("the wallet was archived"));
}

async fn rows(world: &World, space: KeySpace) -> Vec<(covault_actors::store::Key, Vec<u8>)> {
    let all = Scan::prefix(space, &[], 1_000);
    let rows = world.store.scan(&all).await.unwrap();
    rows.into_iter()
        .map(|(key, row)| (key, row.value))
        .collect()
}

/// The failed request as it was when it waited for the chain.
async fn waiting_again(world: &World) -> Vec<(covault_actors::store::Key, Vec<u8>)> {
    use covault_core::request::{RequestState, SigningRequest};
    let requests = rows(world, KeySpace::Request).await;
    requests
        .into_iter()
        .map(|(key, value)| {
            // A version byte stands before the value.
            let mut request: SigningRequest = bcs::from_bytes(&value[1..]).unwrap();
            request.state = RequestState::Preparing {
                broadcast: true,
                deadline_ms: u64::MAX,
            };
            let value = [&value[..1], &bcs::to_bytes(&request).unwrap()].concat();
            (key, value)
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive__should_hold_against_requests_that_race_with_it() {
    for round in 0..10 {
        let world = World::new();
        let gateway = world.start().await;
        let vault = vault(&gateway, "main").await;
        let address = evm_wallet(&gateway, vault).await;
        let creates: Vec<_> = (0..20)
            .map(|number| {
                let (gateway, address) = (gateway.clone(), address.clone());
                tokio::spawn(async move {
                    let kind = if number % 2 == 0 {
                        raw(&address)
                    } else {
                        send(&address)
                    };
                    try_create(&gateway, request(kind), None).await
                })
            })
            .collect();
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        update(&gateway, &address, "", ARCHIVED).await.unwrap();
        let known = world.requests().await.len();
        let mut accepted = Vec::new();
        for made in futures::future::join_all(creates).await {
            match made.unwrap() {
                Ok(made) => accepted.push(made.0.uuid),
                Err(fault) => assert_eq!(fault.class(), &Class::WrongState, "{fault}"),
            }
        }
        // Nothing came into the store after the answer.
        assert_eq!(
            (world.requests().await.len(), accepted.len()),
            (known, known)
        );
        let mut succeeded = 0;
        for uuid in &accepted {
            outcome(&gateway, uuid).await;
            let shown = details(&gateway, uuid).await;
            match shown.status() {
                Status::Succeeded => succeeded += 1,
                Status::Failed => {
                    assert!(shown.failed_reason.starts_with("the wallet was archived"));
                    assert_eq!(shown.signatures, None);
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(succeeded <= accepted.len());
        let fault = try_create(&gateway, request(raw(&address)), None)
            .await
            .unwrap_err();
        is_archived(&fault, "rawMessage");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_names__should_hold_up_no_request() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let names = (0..30).map(|number| {
        let (gateway, address) = (gateway.clone(), address.clone());
        tokio::spawn(async move {
            let name = format!("name {number}");
            update(&gateway, &address, &name, "").await.unwrap();
        })
    });
    let creates = (0..30).map(|_| {
        let (gateway, address) = (gateway.clone(), address.clone());
        tokio::spawn(async move { create(&gateway, send(&address)).await.uuid })
    });
    let (names, creates): (Vec<_>, Vec<_>) = (names.collect(), creates.collect());
    for named in names {
        named.await.unwrap();
    }
    for made in creates {
        let uuid = made.await.unwrap();
        assert_eq!(outcome(&gateway, &uuid).await.error, None);
    }
    assert_eq!(world.evm.accepted(), 30);
}
