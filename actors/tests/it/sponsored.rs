//! Transactions whose fee another one pays, in both roles.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_actors::gateway::Gateway;
use covault_core::{
    fault::Class,
    schema::wire::{
        self, NetworkType, create_signing_request_request::Type as Kind, signing_request::Status,
    },
};
use sui_sdk_types::{
    Address, Digest, GasPayment, ObjectReference, ProgrammableTransaction, Transaction,
    TransactionExpiration, TransactionKind,
};

use crate::world::*;

/// A transaction that does nothing, at the cost of `owner`'s coin.
fn transaction(sender: &str, owner: &str) -> Vec<u8> {
    let address = |text: &str| Address::from_hex(text).unwrap();
    let coin = ObjectReference::new(Address::new([1; 32]), 1, Digest::new([1; 32]));
    let transaction = Transaction {
        kind: TransactionKind::ProgrammableTransaction(ProgrammableTransaction {
            inputs: vec![],
            commands: vec![],
        }),
        sender: address(sender),
        gas_payment: GasPayment {
            objects: vec![coin],
            owner: address(owner),
            price: 1_000,
            budget: 5_000_000,
        },
        expiration: TransactionExpiration::None,
    };
    bcs::to_bytes(&transaction).unwrap()
}

fn sui_custom(from: &str, payload: &[u8], other_signatures: Vec<Vec<u8>>) -> Kind {
    Kind::SuiSendCustom(wire::SuiSendCustom {
        from: from.into(),
        payload: payload.to_vec(),
        other_signatures,
    })
}

/// The signatures of a transaction that the client gets to send.
async fn handed_over(gateway: &Gateway, kind: Kind) -> Vec<Vec<u8>> {
    let mut asked = request(kind);
    asked.broadcast_tx = Some(false);
    let made = created(try_create(gateway, asked, None).await.unwrap());
    let outcome = outcome(gateway, &made.uuid).await;
    assert_eq!(outcome.error, None);
    let signed: serde_json::Value = serde_json::from_str(&outcome.signed_transaction).unwrap();
    let signatures = signed["signatures"].as_array().unwrap().iter();
    let signatures = signatures.map(|one| STANDARD.decode(one.as_str().unwrap()).unwrap());
    signatures.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sponsored_sui__should_be_sent_with_both_signatures_and_never_with_one() {
    for as_sender in [true, false] {
        let world = World::new();
        let gateway = world.start().await;
        let vault = vault(&gateway, "main").await;
        let sender = wallet(&gateway, vault, NetworkType::Sui).await.address;
        let owner = wallet(&gateway, vault, NetworkType::Sui).await.address;
        world.sui.fund(1, 1_000_000_000);
        let bytes = transaction(&sender, &owner);
        let (first, last) = match as_sender {
            true => (&sender, &owner),
            false => (&owner, &sender),
        };
        let signatures = handed_over(&gateway, sui_custom(first, &bytes, vec![])).await;
        assert_eq!(signatures.len(), 1);
        for broadcast_tx in [None, Some(true)] {
            let mut asked = request(sui_custom(last, &bytes, vec![]));
            asked.broadcast_tx = broadcast_tx;
            let fault = try_create(&gateway, asked, None).await.unwrap_err();
            assert_eq!(fault.class(), &Class::Invalid);
            let said = format!("broadcastTx: must be false: {first} has to sign too");
            assert!(fault.message().starts_with(&said), "{fault}");
        }
        assert_eq!(world.sui.executed(), 0);
        let sent = create(&gateway, sui_custom(last, &bytes, signatures.clone())).await;
        assert_eq!(outcome(&gateway, &sent.uuid).await.error, None);
        assert_eq!(
            details(&gateway, &sent.uuid).await.status(),
            Status::Succeeded
        );
        assert_eq!(world.sui.executed(), 1);
        let handed = world.sui.handed.lock().unwrap().clone();
        let handed: Vec<_> = handed.into_iter().collect();
        let [handed] = handed.as_slice() else {
            panic!("{handed:?}")
        };
        let signed: serde_json::Value = serde_json::from_str(handed).unwrap();
        assert_eq!(signed["signatures"].as_array().unwrap().len(), 2);
        assert_eq!(signed["txBytes"], STANDARD.encode(&bytes));
        assert!(handed.contains(&STANDARD.encode(&signatures[0])));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sponsored_aptos__should_be_sent_with_both_signatures_and_never_with_one() {
    for as_sender in [true, false] {
        let world = World::new();
        let gateway = world.start().await;
        let vault = vault(&gateway, "main").await;
        let sender = wallet(&gateway, vault, NetworkType::Aptos).await.address;
        let payer = wallet(&gateway, vault, NetworkType::Aptos).await.address;
        // The transaction of the SDK, with this sender.
        let sdk = include_str!("../../../core/src/networks/aptos/fee_payer.json");
        let sdk: serde_json::Value = serde_json::from_str(sdk).unwrap();
        let mut raw = hex::decode(sdk["plain"]["raw"].as_str().unwrap()).unwrap();
        raw[..32].copy_from_slice(&hex::decode(&sender[2..]).unwrap());
        // It is the first one, and good for long enough.
        raw[32..40].fill(0);
        let end = raw.len() - 1;
        raw[end - 8..end].copy_from_slice(&u32::MAX.to_le_bytes().repeat(2)[..8]);
        let (first, last) = match as_sender {
            true => (&sender, &payer),
            false => (&payer, &sender),
        };
        let custom = |from: &str, other_signature: Vec<u8>| {
            Kind::AptosSendCustom(wire::AptosSendCustom {
                chain_id: 1,
                from: from.into(),
                payload: raw.clone(),
                gas_fee: None,
                fee_payer: Some(payer.clone()),
                other_signature,
                ..Default::default()
            })
        };
        let mut asked = request(custom(first, vec![]));
        asked.broadcast_tx = Some(false);
        let made = created(try_create(&gateway, asked, None).await.unwrap());
        let handed = outcome(&gateway, &made.uuid).await;
        assert_eq!((handed.error, handed.tx_hash.as_str()), (None, ""));
        let whole = hex::decode(&handed.signed_transaction[2..]).unwrap();
        // An Ed25519 authenticator has 99 bytes; that of the one who has not signed has one.
        let payer_bytes = hex::decode(&payer[2..]).unwrap();
        let own = match as_sender {
            true => &whole[raw.len() + 1..raw.len() + 100],
            false => &whole[whole.len() - 99..],
        };
        assert_eq!(whole.len(), raw.len() + 1 + 99 + 2 + payer_bytes.len() + 1);
        for broadcast_tx in [None, Some(true)] {
            let mut asked = request(custom(last, vec![]));
            asked.broadcast_tx = broadcast_tx;
            let fault = try_create(&gateway, asked, None).await.unwrap_err();
            assert_eq!(fault.class(), &Class::Invalid);
            let said = format!("broadcastTx: must be false: {first} has to sign too");
            assert!(fault.message().starts_with(&said), "{fault}");
        }
        assert!(world.aptos.handed().is_empty());
        let sent = create(&gateway, custom(last, own.to_vec())).await;
        let outcome = outcome(&gateway, &sent.uuid).await;
        assert_eq!(outcome.error, None);
        assert_eq!(world.aptos.executed(), [outcome.tx_hash]);
    }
}
