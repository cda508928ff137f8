//! Batch payments from a person's approval to the chain.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Arc, atomic::Ordering},
};

use covault_actors::{
    chain_rpc::{ChainClients, ChainEndpoints, ChainKey},
    gateway::{Caller, Gateway, Person},
    operations::{
        ApproveBatchPayment, ChangeApprovals, CreateBatchPayment, CreateUser, GetBatchPayment,
        GetSigningRequestList, ListBatchPayments, RejectBatchPayment, RejectSigningRequest,
        ResumeBatchPayment,
    },
    store::{KeySpace, Scan, Store, memory::MemoryStore},
};
use covault_core::{
    fault::{Class, Fault},
    ids::{TokenId, UserId},
    schema::{
        admin::{self, BatchPaymentSummary},
        wire::{self, NetworkType, create_batch_payment_request::Type as Kind, signing_request},
    },
    token::TokenAccess,
};
use serde_json::{Value, json};

use crate::{
    backup::{back_up, let_in, restored},
    batches::{batch, shown},
    evm_anvil::Anvil,
    evm_node::connect_to,
    faulty_store::{FaultyStore, StoreFault},
    tracker::{a_while, until},
    world::*,
};

const CONTRACT: &str = "0x00000000000000000000000000000000000000C0";
const TOKEN: &str = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";

pub async fn make(gateway: &Gateway, kind: Kind) -> String {
    let asked = wire::CreateBatchPaymentRequest {
        name: "salaries".into(),
        notes: None,
        r#type: Some(kind),
    };
    let made = call::<CreateBatchPayment>(gateway, &admin(), asked).await;
    made.unwrap().batch_payment.unwrap().uuid
}

pub async fn approve(gateway: &Gateway, uuid: &str) -> Result<BatchPaymentSummary, Fault> {
    approve_as(gateway, &admin(), uuid, None).await
}

pub async fn approve_as(
    gateway: &Gateway,
    caller: &Caller,
    uuid: &str,
    total: Option<&str>,
) -> Result<BatchPaymentSummary, Fault> {
    let asked = admin::ApproveBatchPaymentRequest {
        uuid: uuid.into(),
        callback_client_signer_public_key: None,
        total: total.map(str::to_owned),
    };
    let approved = call::<ApproveBatchPayment>(gateway, caller, asked).await?;
    Ok(approved.batch_payment.unwrap())
}

/// Somebody of the console, who has just got an account.
pub async fn person(world: &World, gateway: &Gateway, access: TokenAccess) -> Caller {
    let request = admin::CreateUserRequest {
        name: "treasurer".into(),
        role: "approver".into(),
        all_vaults: true,
        ..Default::default()
    };
    call::<CreateUser>(gateway, &admin(), request)
        .await
        .unwrap();
    let users = Scan::prefix(KeySpace::User, &[], 2);
    let users = world.store.scan(&users).await.unwrap();
    let id: [u8; 16] = users[0].0.bytes.clone().try_into().unwrap();
    Caller {
        token: TokenId::from_bytes(id),
        access,
        admin: None,
        person: Some(Person {
            id: UserId::from_bytes(id),
            name: "treasurer".to_owned(),
        }),
        ..admin()
    }
}

pub async fn reject(gateway: &Gateway, uuid: &str) -> Result<BatchPaymentSummary, Fault> {
    let asked = admin::RejectBatchPaymentRequest {
        uuid: uuid.into(),
        reason: String::new(),
    };
    let rejected = call::<RejectBatchPayment>(gateway, &admin(), asked).await?;
    Ok(rejected.batch_payment.unwrap())
}

async fn resume(gateway: &Gateway, uuid: &str) -> Result<BatchPaymentSummary, Fault> {
    let asked = admin::ResumeBatchPaymentRequest { uuid: uuid.into() };
    let resumed = call::<ResumeBatchPayment>(gateway, &admin(), asked).await?;
    Ok(resumed.batch_payment.unwrap())
}

pub async fn summary(gateway: &Gateway, uuid: &str) -> BatchPaymentSummary {
    let asked = admin::GetBatchPaymentRequest { uuid: uuid.into() };
    let found = call::<GetBatchPayment>(gateway, &admin(), asked).await;
    found.unwrap().batch_payment.unwrap()
}

pub async fn until_over(gateway: &Gateway, uuid: &str) -> BatchPaymentSummary {
    until(async || summary(gateway, uuid).await.status != "STATUS_PENDING").await;
    summary(gateway, uuid).await
}

fn stages(summary: &BatchPaymentSummary) -> Vec<&str> {
    let requests = summary.requests.iter();
    requests.map(|request| request.stage.as_str()).collect()
}

fn rows(rows: &[(String, u64)]) -> Vec<wire::BatchPaymentRecipient> {
    let rows = rows.iter();
    rows.map(|(address, amount)| wire::BatchPaymentRecipient {
        address: address.clone(),
        amount: amount.to_string(),
        notes: None,
    })
    .collect()
}

fn bitcoin_batch(from: &str) -> Kind {
    let to = [
        "bc1qhx4s2z7z207sr6tq9uzghhd25f4r8mfajeepdt",
        "1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2",
    ];
    Kind::BtcBatchSendNative(wire::BtcBatchSendNative {
        from: from.into(),
        recipients: rows(&to.map(|to| (to.to_owned(), 2_000))),
    })
}

pub fn evm_batch(from: &str) -> Kind {
    batch(from, CHAIN).r#type.unwrap()
}

pub fn token_batch(from: &str) -> Kind {
    Kind::EvmBatchSendErc20(wire::EvmBatchSendErc20 {
        chain_id: CHAIN,
        from: from.into(),
        token_contract_address: TOKEN.into(),
        recipients: rows(&[(evm_address(1), 5), (evm_address(2), 7)]),
    })
}

fn evm_address(number: u64) -> String {
    format!("0x{:040x}", 0xa000 + number)
}

/// The chains of the world, with a batch contract.
pub async fn start(world: &World, store: Arc<dyn Store>) -> Gateway {
    let chains = world.chains();
    let chains = chains.with_batch_contract(ChainKey::evm(CHAIN), CONTRACT.into());
    world.start_with(store, chains).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch__should_be_paid_once_by_one_request_after_a_person_has_approved_it() {
    let world = World::new();
    let gateway = start(&world, Arc::clone(&world.store)).await;
    let vault = vault(&gateway, "main").await;
    let bitcoin = wallet(&gateway, vault, NetworkType::Bitcoin).await.address;
    world.bitcoin.fund(&bitcoin, 3, 50_000);
    let sui = wallet(&gateway, vault, NetworkType::Sui).await.address;
    world.sui.fund(3, 5_000_000_000);
    world.sui.tokens.store(7, Ordering::SeqCst);
    let evm = evm_wallet(&gateway, vault).await;
    let sui_rows = rows(&[(format!("0x{:064x}", 7), 3), (format!("0x{:064x}", 8), 4)]);
    for kind in [
        bitcoin_batch(&bitcoin),
        Kind::SuiBatchSendNative(wire::SuiBatchSendNative {
            from: sui.clone(),
            recipients: sui_rows.clone(),
        }),
        Kind::SuiBatchSendCoin(wire::SuiBatchSendCoin {
            from: sui,
            coin_tag: format!("0x{:064x}::usd::USD", 5),
            recipients: sui_rows,
        }),
        evm_batch(&evm),
    ] {
        let requests = world.requests().await.len();
        let uuid = make(&gateway, kind).await;
        // The vault approves by itself, and a batch needs a person nevertheless.
        a_while().await;
        assert_eq!(world.requests().await.len(), requests);
        assert!(!summary(&gateway, &uuid).await.approved);
        let approved = approve(&gateway, &uuid).await.unwrap();
        assert_eq!((stages(&approved), approved.approved), (vec!["send"], true));
        let again = approve(&gateway, &uuid).await.unwrap_err();
        assert_eq!(*again.class(), Class::WrongState);
        let over = until_over(&gateway, &uuid).await;
        assert_eq!(
            (over.status.as_str(), over.failed_reason.as_str()),
            ("STATUS_SUCCEEDED", "")
        );
        assert_eq!(stages(&over), ["send"]);
        let details = shown(&gateway, &admin(), &uuid).await.unwrap();
        assert_eq!(details.approval_signing_request, None);
        let send = details.send_signing_request.unwrap();
        assert_eq!(send.uuid, over.requests[0].uuid);
        assert_eq!(send.status(), signing_request::Status::Succeeded);
        // Its id is derived, as those of sweeps are.
        let source = send.source.unwrap().r#type();
        assert_eq!(source, signing_request::source::Type::Api);
        assert_eq!(world.requests().await.len(), requests + 1);
        for refused in [
            resume(&gateway, &uuid).await,
            approve(&gateway, &uuid).await,
        ] {
            assert_eq!(*refused.unwrap_err().class(), Class::WrongState);
        }
    }
    assert_eq!(world.bitcoin.accepted(), 1);
    assert_eq!(world.sui.executed(), 2);
    assert_eq!(world.evm.accepted(), 1);
    let asked = admin::ListBatchPaymentsRequest {
        vault_uuid: vault.to_string(),
        next: None,
    };
    let listed = call::<ListBatchPayments>(&gateway, &admin(), asked)
        .await
        .unwrap();
    let kinds: Vec<_> = listed
        .batch_payments
        .iter()
        .map(|it| it.kind.as_str())
        .collect();
    assert_eq!(
        kinds,
        [
            "evmBatchSendNative",
            "suiBatchSendCoin",
            "suiBatchSendNative",
            "btcBatchSendNative"
        ]
    );
    assert_eq!(listed.next, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_batch__should_wait_for_its_allowance_and_for_others_of_the_token() {
    let world = World::new();
    world
        .evm
        .allowances
        .lock()
        .unwrap()
        .extend(["3", "0", "12", "0"].map(str::to_owned));
    let gateway = start(&world, Arc::clone(&world.store)).await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    let (first, second) = (
        make(&gateway, token_batch(&from)).await,
        make(&gateway, token_batch(&from)).await,
    );
    world.evm.holds.store(true, Ordering::SeqCst);
    let approved = approve(&gateway, &first).await.unwrap();
    assert_eq!(stages(&approved), ["resetAllowance"]);
    let other = approve(&gateway, &second).await.unwrap_err();
    assert!(other.message().contains("pays the same token"), "{other}");
    world.evm.holds.store(false, Ordering::SeqCst);
    let over = until_over(&gateway, &first).await;
    assert_eq!(
        (over.status.as_str(), over.failed_reason.as_str()),
        ("STATUS_SUCCEEDED", "")
    );
    assert_eq!(stages(&over), ["resetAllowance", "allowance", "send"]);
    let details = shown(&gateway, &admin(), &first).await.unwrap();
    let allowance = details.approval_signing_request.unwrap();
    assert_eq!(allowance.uuid, over.requests[1].uuid);
    assert_eq!(
        details.send_signing_request.unwrap().uuid,
        over.requests[2].uuid
    );
    assert_eq!(world.evm.accepted(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch__should_end_rejected_and_be_refused_without_a_contract() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    let uuid = make(&gateway, evm_batch(&from)).await;
    let refused = approve(&gateway, &uuid).await.unwrap_err();
    assert!(
        refused
            .message()
            .contains("chains.evm.31337.batch_contract"),
        "{refused}"
    );
    assert!(world.requests().await.is_empty());
    assert_eq!(summary(&gateway, &uuid).await.status, "STATUS_PENDING");
    let reject = |reason: &str| admin::RejectBatchPaymentRequest {
        uuid: uuid.clone(),
        reason: reason.into(),
    };
    let rejected = call::<RejectBatchPayment>(&gateway, &admin(), reject("too much")).await;
    let rejected = rejected.unwrap().batch_payment.unwrap();
    assert_eq!(
        (
            rejected.status.as_str(),
            rejected.failed_reason.as_str(),
            rejected.resumable
        ),
        ("STATUS_FAILED", "rejected: too much", false)
    );
    let again = call::<RejectBatchPayment>(&gateway, &admin(), reject("")).await;
    for refused in [
        again.unwrap_err(),
        approve(&gateway, &uuid).await.unwrap_err(),
        resume(&gateway, &uuid).await.unwrap_err(),
    ] {
        assert_eq!(*refused.class(), Class::WrongState);
    }
    for caller in [stranger()] {
        let asked = admin::GetBatchPaymentRequest { uuid: uuid.clone() };
        assert!(
            call::<GetBatchPayment>(&gateway, &caller, asked)
                .await
                .is_err()
        );
    }
    assert!(world.requests().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_batch__should_be_resumed_only_when_nothing_was_paid() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = wallet(&gateway, vault, NetworkType::Bitcoin).await.address;
    // The wallet has nothing yet.
    let uuid = make(&gateway, bitcoin_batch(&from)).await;
    approve(&gateway, &uuid).await.unwrap();
    let failed = until_over(&gateway, &uuid).await;
    assert_eq!(
        (failed.status.as_str(), failed.resumable),
        ("STATUS_FAILED", true),
        "{failed:?}"
    );
    assert!(!failed.failed_reason.is_empty());
    world.bitcoin.fund(&from, 3, 50_000);
    let resumed = resume(&gateway, &uuid).await.unwrap();
    assert_eq!(stages(&resumed), ["send", "send"]);
    assert_ne!(resumed.requests[0].uuid, resumed.requests[1].uuid);
    // Whoever approves it is the last who can see that nodes have lied about the first one.
    let notes = async |place: usize| {
        let request = details(&gateway, &resumed.requests[place].uuid).await;
        request.notes.unwrap()
    };
    let earlier = format!(
        "Request {} was to pay the same before: look on the chain",
        resumed.requests[0].uuid
    );
    assert!(notes(1).await.contains(&earlier));
    assert!(!notes(0).await.contains("before"));
    assert_eq!(
        *resume(&gateway, &uuid).await.unwrap_err().class(),
        Class::WrongState
    );
    let over = until_over(&gateway, &uuid).await;
    assert_eq!(over.status, "STATUS_SUCCEEDED");
    assert_eq!(world.bitcoin.accepted(), 1);
    assert_eq!(world.bitcoin.handed.lock().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch__should_say_what_to_do_when_its_client_signer_was_taken_out_of_the_rule() {
    let world = World::new();
    let gateway = world.start().await;
    let key = node(1).openssh_line("");
    let naming = |signers: &[&str]| admin::ApprovalRule {
        client_signers: signers.iter().map(|it| (*it).to_owned()).collect(),
        ..automatic()
    };
    let vault = crate::approvals::vault_with(&gateway, naming(&[&key])).await;
    let from = wallet(&gateway, vault, NetworkType::Bitcoin).await.address;
    let uuid = make(&gateway, bitcoin_batch(&from)).await;
    let asked = admin::ApproveBatchPaymentRequest {
        uuid: uuid.clone(),
        callback_client_signer_public_key: Some(key.clone()),
        total: None,
    };
    call::<ApproveBatchPayment>(&gateway, &admin(), asked)
        .await
        .unwrap();
    // The wallet has nothing yet.
    assert!(until_over(&gateway, &uuid).await.resumable);
    world.bitcoin.fund(&from, 3, 50_000);
    let change = async |signers: &[&str]| {
        let request = admin::ChangeApprovalsRequest {
            vault_uuid: vault.to_string(),
            approvals: Some(naming(signers)),
            valid_until_ms: world.clock_ms() + 3_600_000,
            signatures: Vec::new(),
        };
        call::<ChangeApprovals>(&gateway, &admin(), request)
            .await
            .unwrap();
    };
    change(&[]).await;
    let requests = world.requests().await.len();
    let refused = resume(&gateway, &uuid).await.unwrap_err();
    assert!(
        refused.message().contains("name it again and resume"),
        "{refused}"
    );
    // Nobody else decides about it.
    assert_eq!(world.requests().await.len(), requests);
    change(&[&key]).await;
    resume(&gateway, &uuid).await.unwrap();
    let over = until_over(&gateway, &uuid).await;
    assert_eq!(over.status, "STATUS_SUCCEEDED", "{over:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch__should_be_paid_once_whichever_commit_the_power_fails_at() {
    for accident in [StoreFault::Before, StoreFault::After] {
        for at in 1.. {
            let world = World::new();
            world
                .evm
                .allowances
                .lock()
                .unwrap()
                .extend(["0", "12", "0"].map(str::to_owned));
            let gateway = start(&world, Arc::clone(&world.store)).await;
            let vault = vault(&gateway, "main").await;
            let from = evm_wallet(&gateway, vault).await;
            let uuid = make(&gateway, token_batch(&from)).await;
            gateway.stop().await;

            let faulty = FaultyStore::new(Arc::clone(&world.store), at, accident);
            let gateway = start(&world, Arc::clone(&faulty) as Arc<dyn Store>).await;
            let _ = approve(&gateway, &uuid).await;
            let ended = tokio::select! {
                () = faulty.accident() => false,
                () = async {
                    while summary(&gateway, &uuid).await.status != "STATUS_SUCCEEDED" {
                        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
                    }
                } => true,
            };
            gateway.stop().await;

            let gateway = start(&world, Arc::clone(&world.store)).await;
            if !summary(&gateway, &uuid).await.approved {
                approve(&gateway, &uuid).await.unwrap();
            }
            let over = until_over(&gateway, &uuid).await;
            assert_eq!(
                over.status, "STATUS_SUCCEEDED",
                "{accident:?} {at}: {over:?}"
            );
            assert_eq!(stages(&over), ["allowance", "send"], "{accident:?} {at}");
            assert_eq!(world.evm.accepted(), 2, "{accident:?} {at}");
            assert_eq!(
                world.evm.handed.lock().unwrap().len(),
                2,
                "{accident:?} {at}"
            );
            let ids: BTreeSet<_> = world.requests().await.into_iter().collect();
            assert_eq!(ids.len(), 2, "{accident:?} {at}");
            gateway.stop().await;
            if ended {
                assert!(at > 6, "{at}");
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_requests_of_a_batch__should_wait_for_people_in_a_manual_vault() {
    let mut world = World::on(Arc::new(MemoryStore::new()));
    world.settings.console_origin = "https://console.example.com".to_owned();
    let gateway = start(&world, Arc::clone(&world.store)).await;
    let vault = crate::approvals::manual_vault(&gateway).await;
    let from = evm_wallet(&gateway, vault).await;
    let uuid = make(&gateway, evm_batch(&from)).await;
    // Another total than the batch pays is not approved, and who may only look approves nothing.
    let may = person(&world, &gateway, TokenAccess::Full).await;
    let looks = Caller {
        access: TokenAccess::ReadOnly,
        ..may.clone()
    };
    let refused = approve_as(&gateway, &may, &uuid, Some("1"))
        .await
        .unwrap_err();
    assert_eq!(
        (refused.class(), refused.path()),
        (&Class::WrongState, Some("total"))
    );
    let total = summary(&gateway, &uuid).await.total;
    let refused = approve_as(&gateway, &looks, &uuid, Some(&total)).await;
    assert_eq!(*refused.unwrap_err().class(), Class::Forbidden);
    assert!(world.requests().await.is_empty());
    let approved = approve_as(&gateway, &may, &uuid, Some(&total))
        .await
        .unwrap();
    a_while().await;
    assert_eq!(world.evm.accepted(), 0);
    let send = approved.requests[0].uuid.clone();
    let waiting = details(&gateway, &send).await;
    assert_eq!(waiting.status(), signing_request::Status::Pending);
    // Its row says what it is for; its notes, which anybody may write, do not.
    assert_eq!(waiting.batch_payment_uuid, uuid);
    let list = wire::GetSigningRequestListRequest {
        vault_uuid: vault.to_string(),
        ..Default::default()
    };
    let list = call::<GetSigningRequestList>(&gateway, &admin(), list)
        .await
        .unwrap();
    assert_eq!(list.signing_requests[0].batch_payment_uuid, uuid);
    // A rejection of the request closes the batch.
    let reject = wire::RejectSigningRequestRequest {
        uuid: send,
        ..Default::default()
    };
    call::<RejectSigningRequest>(&gateway, &admin(), reject)
        .await
        .unwrap();
    let failed = until_over(&gateway, &uuid).await;
    assert_eq!(
        (failed.status.as_str(), failed.resumable),
        ("STATUS_FAILED", false)
    );
    let refused = resume(&gateway, &uuid).await.unwrap_err();
    assert_eq!(*refused.class(), Class::WrongState);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approvals_of_one_batch_at_once__should_make_one_request_and_answer_409() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = wallet(&gateway, vault, NetworkType::Bitcoin).await.address;
    world.bitcoin.fund(&from, 3, 50_000);
    let uuid = make(&gateway, bitcoin_batch(&from)).await;
    let all = tokio::join!(
        approve(&gateway, &uuid),
        approve(&gateway, &uuid),
        approve(&gateway, &uuid),
        approve(&gateway, &uuid),
    );
    let all = [all.0, all.1, all.2, all.3];
    assert_eq!(all.iter().filter(|one| one.is_ok()).count(), 1);
    for refused in all.into_iter().filter_map(Result::err) {
        assert_eq!(*refused.class(), Class::WrongState, "{refused}");
    }
    let over = until_over(&gateway, &uuid).await;
    assert_eq!(
        (over.status.as_str(), stages(&over)),
        ("STATUS_SUCCEEDED", vec!["send"])
    );
    assert_eq!(world.bitcoin.handed.lock().unwrap().len(), 1);
}

/// How many outputs requests hold: signers are asked for a payment in the commit that reserves them.
async fn outputs_held(world: &World) -> usize {
    let all = Scan::prefix(KeySpace::Claim, &[], 100);
    world.store.scan(&all).await.unwrap().len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payment_that_signers_were_asked_for__should_not_be_resumable_when_it_ends_unsigned() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = wallet(&gateway, vault, NetworkType::Bitcoin).await.address;
    world.bitcoin.fund(&from, 3, 50_000);
    // One of them may have finished the signature before the others refused.
    world.signers.refuse.store(true, Ordering::SeqCst);
    let uuid = make(&gateway, bitcoin_batch(&from)).await;
    approve(&gateway, &uuid).await.unwrap();
    let failed = until_over(&gateway, &uuid).await;
    assert_eq!(
        (failed.status.as_str(), failed.resumable),
        ("STATUS_FAILED", false),
        "{failed:?}"
    );
    assert!(failed.failed_reason.contains("check whether"), "{failed:?}");
    world.signers.refuse.store(false, Ordering::SeqCst);
    let refused = resume(&gateway, &uuid).await.unwrap_err();
    assert_eq!(*refused.class(), Class::WrongState);
    assert_eq!(world.requests().await.len(), 1);
    assert_eq!(world.bitcoin.accepted(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_batch__should_be_closable() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = wallet(&gateway, vault, NetworkType::Bitcoin).await.address;
    let uuid = make(&gateway, bitcoin_batch(&from)).await;
    approve(&gateway, &uuid).await.unwrap();
    assert!(until_over(&gateway, &uuid).await.resumable);
    let reject = admin::RejectBatchPaymentRequest {
        uuid: uuid.clone(),
        reason: String::new(),
    };
    let closed = call::<RejectBatchPayment>(&gateway, &admin(), reject).await;
    let closed = closed.unwrap().batch_payment.unwrap();
    assert_eq!((closed.resumable, stages(&closed)), (false, vec!["send"]));
    world.bitcoin.fund(&from, 3, 50_000);
    let refused = resume(&gateway, &uuid).await.unwrap_err();
    assert_eq!(*refused.class(), Class::WrongState);
    assert_eq!(world.requests().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_a_restored_store__should_be_neither_approved_nor_resumed() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = wallet(&gateway, vault, NetworkType::Bitcoin).await.address;
    // One that has failed, one that waits, and one that is on its way.
    let failed = make(&gateway, bitcoin_batch(&from)).await;
    approve(&gateway, &failed).await.unwrap();
    assert!(until_over(&gateway, &failed).await.resumable);
    let pending = make(&gateway, bitcoin_batch(&from)).await;
    world.bitcoin.fund(&from, 3, 50_000);
    world.signers.silent.store(true, Ordering::SeqCst);
    let approved = make(&gateway, bitcoin_batch(&from)).await;
    approve(&gateway, &approved).await.unwrap();
    until(async || outputs_held(&world).await > 0).await;
    let backup = back_up(&gateway).await;
    gateway.stop().await;
    world.signers.silent.store(false, Ordering::SeqCst);

    let world = restored(&world, &backup).await;
    let gateway = world.start().await;
    let_in(&gateway, &admin()).await.unwrap();
    for uuid in [&failed, &pending, &approved] {
        let closed = summary(&gateway, uuid).await;
        assert_eq!(
            (closed.status.as_str(), closed.resumable),
            ("STATUS_FAILED", false)
        );
        assert!(closed.failed_reason.contains("restored from a backup"));
        let refused = approve(&gateway, uuid).await.unwrap_err();
        assert_eq!(*refused.class(), Class::WrongState);
        // The chain double may say of what was in doubt that it has come: then it was paid, and nothing is made.
        match resume(&gateway, uuid).await {
            Ok(ended) => assert_eq!(ended.status, "STATUS_SUCCEEDED"),
            Err(refused) => assert_eq!(*refused.class(), Class::WrongState),
        }
    }
    assert_eq!(world.requests().await.len(), 2);
    assert_eq!(world.bitcoin.accepted(), 0);
}

fn compiled(file: &str, name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let all: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    all["contracts"][name].clone()
}

/// Deploys a contract, whose arguments are words; its address.
async fn deploy(anvil: &Anvil, file: &str, name: &str, arguments: &str) -> String {
    let accounts = anvil.call("eth_accounts", json!([])).await;
    let init = compiled(file, name)["init"].as_str().unwrap().to_owned();
    let transaction = json!([{"from": accounts[0], "data": format!("{init}{arguments}")}]);
    let hash = anvil.call("eth_sendTransaction", transaction).await;
    let mut receipt = Value::Null;
    // anvil mines it in its own time.
    while receipt.is_null() {
        a_while().await;
        receipt = anvil.call("eth_getTransactionReceipt", json!([hash])).await;
    }
    assert_eq!(receipt["status"], "0x1", "{receipt}");
    receipt["contractAddress"].as_str().unwrap().to_owned()
}

async fn balance(anvil: &Anvil, token: &str, owner: &str) -> u64 {
    let data = format!("0x70a08231{:0>64}", &owner[2..]);
    let said = anvil
        .call("eth_call", json!([{"to": token, "data": data}, "latest"]))
        .await;
    let digits = said.as_str().unwrap().trim_start_matches("0x");
    u64::from_str_radix(digits, 16).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_on_anvil__should_pay_254_people_to_the_unit_and_refuse_taxed_tokens() {
    let (anvil, world) = (Anvil::start().await, World::new());
    anvil.call("evm_setAutomine", json!([true])).await;
    const TOKENS: &str = "tests/node/BatchTokens.json";
    let contract = deploy(
        &anvil,
        "deploy/contracts/CovaultBatch.json",
        "CovaultBatch",
        "",
    )
    .await;
    let code = anvil.call("eth_getCode", json!([contract, "latest"])).await;
    let built = compiled("deploy/contracts/CovaultBatch.json", "CovaultBatch");
    assert_eq!(code, built["runtime"]);
    let canonical = covault_core::networks::Network::Evm
        .rules()
        .parse_address(&contract)
        .unwrap();
    let chain = ChainKey::evm(CHAIN);
    let client = connect_to(chain, ChainEndpoints::new(vec![anvil.url.clone()]));
    let chains = ChainClients::default()
        .with(chain, client)
        .with_batch_contract(chain, canonical);
    let gateway = world.start_with(Arc::clone(&world.store), chains).await;
    let from = anvil.wallet(&gateway).await;
    let owner = format!("{:0>64}", &from[2..]);
    let supply = format!("{:064x}", 1_000_000);
    let plain = deploy(&anvil, TOKENS, "PlainToken", &format!("{owner}{supply}")).await;
    let spender = format!("{:0>64}", &contract[2..]);
    let silent = deploy(
        &anvil,
        TOKENS,
        "SilentToken",
        &format!("{owner}{spender}{supply}"),
    )
    .await;
    let taxed = deploy(&anvil, TOKENS, "TaxedToken", &format!("{owner}{supply}")).await;
    let all: Vec<_> = (1..=254)
        .map(|number| (evm_address(number), number))
        .collect();
    let few: Vec<_> = (1..=3).map(|number| (evm_address(number), 5)).collect();
    let token_batch = |token: &str, to: &[(String, u64)]| {
        Kind::EvmBatchSendErc20(wire::EvmBatchSendErc20 {
            chain_id: CHAIN,
            from: from.clone(),
            token_contract_address: token.into(),
            recipients: rows(to),
        })
    };
    // Whatever is sent is mined at once, and final after as many blocks as anvil wants.
    let over = async |kind: Kind| {
        let uuid = make(&gateway, kind).await;
        approve(&gateway, &uuid).await.unwrap();
        until(async || {
            anvil.mine(70).await;
            summary(&gateway, &uuid).await.status != "STATUS_PENDING"
        })
        .await;
        summary(&gateway, &uuid).await
    };
    let paid = over(token_batch(&plain, &all)).await;
    assert_eq!(
        (paid.status.as_str(), paid.failed_reason.as_str()),
        ("STATUS_SUCCEEDED", "")
    );
    assert_eq!(stages(&paid), ["allowance", "send"]);
    for (to, amount) in &all {
        assert_eq!(balance(&anvil, &plain, to).await, *amount);
    }
    let total: u64 = all.iter().map(|(_, amount)| amount).sum();
    assert_eq!(balance(&anvil, &plain, &from).await, 1_000_000 - total);
    assert_eq!(balance(&anvil, &plain, &contract).await, 0);

    // Returns nothing, and has an allowance of 1 that is set to 0 first.
    let paid = over(token_batch(&silent, &few)).await;
    assert_eq!(
        (paid.status.as_str(), paid.failed_reason.as_str()),
        ("STATUS_SUCCEEDED", "")
    );
    assert_eq!(stages(&paid), ["resetAllowance", "allowance", "send"]);
    assert_eq!(balance(&anvil, &silent, &few[2].0).await, 5);

    // The coin.
    let native = Kind::EvmBatchSendNative(wire::EvmBatchSendNative {
        chain_id: CHAIN,
        from: from.clone(),
        recipients: rows(&few),
    });
    let paid = over(native).await;
    assert_eq!(
        (paid.status.as_str(), stages(&paid)),
        ("STATUS_SUCCEEDED", vec!["send"])
    );
    let coin = anvil
        .call("eth_getBalance", json!([few[0].0, "latest"]))
        .await;
    assert_eq!(coin, "0x5");

    // Gives its recipients less: refused before anything of it is signed.
    let failed = over(token_batch(&taxed, &few)).await;
    assert_eq!(
        (failed.status.as_str(), failed.resumable),
        ("STATUS_FAILED", true),
        "{failed:?}"
    );
    let send = details(&gateway, &failed.requests[1].uuid).await;
    assert_eq!(send.status(), signing_request::Status::Failed);
    assert!(
        send.tx_hash.is_empty() && send.signed_transaction.is_empty(),
        "{send:?}"
    );
    assert_eq!(balance(&anvil, &taxed, &from).await, 1_000_000);
}

#[test]
fn the_batch_contract__should_be_what_its_source_compiles_to() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (source, built) in [
        (
            "deploy/contracts/CovaultBatch.sol",
            "deploy/contracts/CovaultBatch.json",
        ),
        ("tests/node/BatchTokens.sol", "tests/node/BatchTokens.json"),
    ] {
        let compiled = std::process::Command::new(root.join("tests/node/node_modules/.bin/node"))
            .args(["deploy/contracts/compile.cjs", source])
            .current_dir(&root)
            .output()
            .unwrap();
        let problems = String::from_utf8_lossy(&compiled.stderr).into_owned();
        assert!(compiled.status.success(), "{problems}");
        let compiled: Value = serde_json::from_slice(&compiled.stdout).unwrap();
        let committed = std::fs::read(root.join(built)).unwrap();
        let committed: Value = serde_json::from_slice(&committed).unwrap();
        assert_eq!(compiled, committed, "{source}");
    }
}
