//! createBatchPayment and getBatchPaymentDetails.

use covault_actors::{
    gateway::{Caller, Gateway, OperationResponse, VaultScope},
    operations::{CreateBatchPayment, GetBatchPaymentDetails, UpdateWallet},
    store::{KeySpace, Scan},
};
use covault_core::{
    fault::{Class, Fault},
    schema::wire::{
        self, NetworkType, batch_payment::Status, create_batch_payment_request::Type as Kind,
    },
};

use crate::world::*;

const TO: &str = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";

pub fn batch(from: &str, chain_id: u64) -> wire::CreateBatchPaymentRequest {
    wire::CreateBatchPaymentRequest {
        name: "salaries".into(),
        notes: Some("May".into()),
        r#type: Some(Kind::EvmBatchSendNative(wire::EvmBatchSendNative {
            chain_id,
            from: from.into(),
            recipients: vec![wire::BatchPaymentRecipient {
                address: TO.to_lowercase(),
                amount: "5".into(),
                notes: Some("rent".into()),
            }],
        })),
    }
}

async fn submit(
    caller: &Caller,
    gateway: &Gateway,
    batch: wire::CreateBatchPaymentRequest,
    key: Option<&str>,
) -> Result<(wire::BatchPayment, OperationResponse), Fault> {
    let made = call_with_key::<CreateBatchPayment>(gateway, caller, batch, key).await;
    made.map(|(response, answer)| (response.batch_payment.unwrap(), answer))
}

pub async fn shown(
    gateway: &Gateway,
    caller: &Caller,
    uuid: &str,
) -> Result<wire::BatchPayment, Fault> {
    let request = wire::GetBatchPaymentDetailsRequest { uuid: uuid.into() };
    let found = call::<GetBatchPaymentDetails>(gateway, caller, request).await?;
    Ok(found.batch_payment.unwrap())
}

async fn stored(world: &World) -> usize {
    let all = Scan::prefix(KeySpace::Batch, &[], 1_000);
    world.store.scan(&all).await.unwrap().len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch__should_wait_for_a_person_and_be_shown() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    let asked = batch(&from.to_lowercase(), CHAIN);
    let (first, _) = submit(&admin(), &gateway, asked, None).await.unwrap();
    assert_eq!(first.status(), Status::Pending);
    assert_eq!(
        (first.name.as_str(), first.notes.as_str()),
        ("salaries", "May")
    );
    assert_eq!(first.failed_reason, "");
    assert_eq!(first.approval_signing_request, None);
    assert_eq!(first.send_signing_request, None);
    assert!(first.creation_timestamp > 0);
    let Some(wire::batch_payment::Type::EvmBatchSendNative(echo)) = &first.r#type else {
        panic!("{first:?}")
    };
    assert_eq!((&echo.from, echo.chain_id), (&from, CHAIN));
    assert_eq!(echo.recipients[0].address, TO);
    assert_eq!(echo.recipients[0].notes.as_deref(), Some("rent"));
    gateway.stop().await;

    let gateway = world.start().await;
    assert_eq!(shown(&gateway, &admin(), &first.uuid).await.unwrap(), first);
    let mut owner = stranger();
    owner.vaults = VaultScope::Only(vec![vault]);
    assert_eq!(shown(&gateway, &owner, &first.uuid).await.unwrap(), first);
    // Nobody signs anything for it.
    assert!(world.requests().await.is_empty());
    for (caller, uuid) in [
        (stranger(), first.uuid.as_str()),
        (admin(), "x"),
        (admin(), "00000000-0000-4000-8000-000000000000"),
    ] {
        let fault = shown(&gateway, &caller, uuid).await.unwrap_err();
        assert_eq!(
            (fault.class(), fault.message()),
            (&Class::Invalid, "Invalid uuid")
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch__should_be_refused_when_it_cannot_be_paid() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    let refused = async |caller: &Caller, asked: wire::CreateBatchPaymentRequest| {
        let fault = submit(caller, &gateway, asked, Some("k"))
            .await
            .unwrap_err();
        (fault.class().clone(), fault.message().to_owned())
    };
    let invalid = |sentence: &str| (Class::Invalid, sentence.to_owned());
    let nothing = wire::CreateBatchPaymentRequest::default();
    assert_eq!(
        refused(&admin(), nothing).await,
        invalid("exactly one batch kind is required")
    );
    assert_eq!(
        refused(&admin(), batch(&from, 424_242)).await,
        invalid("Invalid chain id")
    );
    let not_ours = invalid("evmBatchSendNative.from: is not the address of a wallet");
    assert_eq!(refused(&admin(), batch(TO, CHAIN)).await, not_ours);
    assert_eq!(refused(&stranger(), batch(&from, CHAIN)).await, not_ours);
    let mut named = batch(&from, CHAIN);
    named.name = "n".repeat(86);
    assert_eq!(
        refused(&admin(), named).await,
        invalid("name: has more than 85 characters")
    );
    let mut empty = batch(&from, CHAIN);
    if let Some(Kind::EvmBatchSendNative(payment)) = &mut empty.r#type {
        payment.recipients[0].amount = "0".into();
    }
    assert_eq!(
        refused(&admin(), empty).await,
        invalid("evmBatchSendNative.recipients[0].amount: must be more than 0")
    );
    let archive = wire::UpdateWalletRequest {
        address: from.clone(),
        name: String::new(),
        status: "STATUS_ARCHIVED".into(),
    };
    call::<UpdateWallet>(&gateway, &admin(), archive)
        .await
        .unwrap();
    let (class, sentence) = refused(&admin(), batch(&from, CHAIN)).await;
    assert_eq!(class, Class::WrongState);
    assert!(sentence.starts_with("evmBatchSendNative.from: the wallet is archived"));
    assert_eq!(stored(&world).await, 0);

    // The key is still free.
    let other = evm_wallet(&gateway, vault).await;
    let (first, answer) = submit(&admin(), &gateway, batch(&other, CHAIN), Some("k"))
        .await
        .unwrap();
    assert!(!answer.replayed);
    let (again, answer) = submit(&admin(), &gateway, batch(&other, CHAIN), Some("k"))
        .await
        .unwrap();
    assert!(answer.replayed);
    assert_eq!(first, again);
    assert_eq!(stored(&world).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch__should_be_taken_on_every_network_that_has_batches() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let evm = evm_wallet(&gateway, vault).await;
    let bitcoin = wallet(&gateway, vault, NetworkType::Bitcoin).await.address;
    let sui = wallet(&gateway, vault, NetworkType::Sui).await.address;
    let to = |address: &str| {
        vec![wire::BatchPaymentRecipient {
            address: address.into(),
            amount: "1000".into(),
            notes: None,
        }]
    };
    for kind in [
        Kind::EvmBatchSendErc20(wire::EvmBatchSendErc20 {
            chain_id: 1,
            recipients: to(&evm),
            token_contract_address: TO.into(),
            from: evm,
        }),
        Kind::BtcBatchSendNative(wire::BtcBatchSendNative {
            recipients: to(&bitcoin),
            from: bitcoin,
        }),
        Kind::SuiBatchSendNative(wire::SuiBatchSendNative {
            recipients: to(&sui),
            from: sui.clone(),
        }),
        Kind::SuiBatchSendCoin(wire::SuiBatchSendCoin {
            recipients: to(&sui),
            coin_tag: "0x2::sui::SUI".into(),
            from: sui,
        }),
    ] {
        let asked = wire::CreateBatchPaymentRequest {
            r#type: Some(kind),
            ..Default::default()
        };
        let (first, _) = submit(&admin(), &gateway, asked, None).await.unwrap();
        assert_eq!(shown(&gateway, &admin(), &first.uuid).await.unwrap(), first);
    }
    assert_eq!(stored(&world).await, 4);
}
