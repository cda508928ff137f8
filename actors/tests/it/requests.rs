//! Signing requests from creation to their end.

use covault_actors::operations::{
    CreateSigningRequest, GetSigningRequestDetails, GetSigningRequestList,
};
use covault_core::{
    fault::{Class, FaultCode},
    schema::wire::{
        self, NetworkType,
        create_signing_request_request::Type as Kind,
        error::Code,
        signature_container::sign_response::Signature,
        signing_request::{Status, source},
    },
};
use std::{
    sync::{Arc, atomic::Ordering},
    task::Poll,
    time::Duration,
};

use covault_actors::store::Store;

use crate::{
    faulty_store::{FaultyStore, StoreFault},
    world::*,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raw_message__should_be_signed_by_the_wallets_key() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let wallet = wallet(&gateway, vault, NetworkType::Evm).await;
    let mut asked = request(raw(&wallet.address.to_lowercase()));
    asked.notes = Some("for the books".into());
    let pending = created(try_create(&gateway, asked, None).await.unwrap());
    assert_eq!(pending.status(), Status::Pending);
    assert_eq!(pending.notes.as_deref(), Some("for the books"));
    assert_eq!(pending.vault_uuid, Some(vault.to_string()));
    assert_eq!(pending.source.unwrap().r#type(), source::Type::Api);
    assert_eq!(pending.signatures, None);
    let Some(wire::signing_request::Type::RawMessage(echo)) = pending.r#type else {
        panic!("no echo")
    };
    assert_eq!(echo.from, wallet.address, "the echo is canonical");

    let outcome = outcome(&gateway, &pending.uuid).await;
    assert_eq!((outcome.error, outcome.tx_hash.as_str()), (None, ""));
    let signatures = outcome.signatures.unwrap();
    let Some(Signature::EcdsaSignature(signature)) = &signatures.signatures[0].signature else {
        panic!("{signatures:?}")
    };
    let scalar = |text: &str| <[u8; 32]>::try_from(hex::decode(&text[2..]).unwrap()).unwrap();
    let parsed =
        k256::ecdsa::Signature::from_scalars(scalar(&signature.r), scalar(&signature.s)).unwrap();
    let key = k256::ecdsa::VerifyingKey::from_sec1_bytes(&wallet.public_key).unwrap();
    use k256::ecdsa::signature::Verifier as _;
    key.verify(b"hello", &parsed).unwrap();

    let done = details(&gateway, &pending.uuid).await;
    assert_eq!(done.status(), Status::Succeeded);
    assert_eq!(done.signatures, Some(signatures));
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raw_message__should_be_signed_with_ed25519_by_a_solana_wallet() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let wallet = wallet(&gateway, vault, NetworkType::Solana).await;
    let pending = create(&gateway, raw(&wallet.address)).await;
    let signatures = outcome(&gateway, &pending.uuid).await.signatures.unwrap();
    let Some(Signature::EddsaSignature(signature)) = &signatures.signatures[0].signature else {
        panic!("{signatures:?}")
    };
    let key =
        ed25519_dalek::VerifyingKey::from_bytes(&wallet.public_key.try_into().unwrap()).unwrap();
    let signature = ed25519_dalek::Signature::from_slice(signature).unwrap();
    key.verify_strict(b"hello", &signature).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raw_message__should_cost_two_commits_and_a_transfer_four() {
    let mut world = World::new();
    // What becomes of the transaction later is stored too.
    world.settings.tracking_first_ms = 3_600_000;
    let store = FaultyStore::new(Arc::clone(&world.store), usize::MAX, StoreFault::Before);
    let gateway = world.start_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let before = store.commits();
    let pending = create(&gateway, raw(&address)).await;
    outcome(&gateway, &pending.uuid).await;
    assert_eq!(store.commits() - before, 2);
    let pending = create(&gateway, send(&address)).await;
    outcome(&gateway, &pending.uuid).await;
    assert_eq!(store.commits() - before, 2 + 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evm_send_native__should_be_built_signed_and_sent() {
    let mut world = World::new();
    world.evm = world.evm.clone().with_history(7);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let pending = create(&gateway, send(&address)).await;
    let outcome = outcome(&gateway, &pending.uuid).await;
    assert_eq!(outcome.error, None);
    assert!(outcome.tx_hash.starts_with("0x"));
    assert_eq!(world.evm.nonces(), (0..8).collect::<Vec<_>>());
    // What was sent can be read, so that the client can send it to other nodes too.
    assert!(outcome.signed_transaction.starts_with("0x02"));
    let shown = details(&gateway, &pending.uuid).await;
    assert_eq!(shown.tx_hash, outcome.tx_hash);
    assert_eq!(shown.signed_transaction, outcome.signed_transaction);
    let read = wire::GetSigningRequestListRequest {
        vault_uuid: vault.to_string(),
        ..Default::default()
    };
    let list = call::<GetSigningRequestList>(&gateway, &admin(), read)
        .await
        .unwrap();
    assert_eq!(list.signing_requests[0].tx_hash, outcome.tx_hash);
    assert_eq!(list.signing_requests[0].signed_transaction, "");
    assert_eq!(world.pending().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evm_send_native__should_hand_over_the_transaction_when_it_is_not_to_be_sent() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let mut asked = request(send(&address));
    asked.broadcast_tx = Some(false);
    let pending = created(try_create(&gateway, asked, None).await.unwrap());
    let outcome = outcome(&gateway, &pending.uuid).await;
    assert!(outcome.signed_transaction.starts_with("0x02"));
    assert!(outcome.tx_hash.starts_with("0x"));
    assert_eq!(world.evm.accepted(), 0);
    assert!(world.evm.handed.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn solana_send_native__should_be_built_signed_and_sent() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = wallet(&gateway, vault, NetworkType::Solana).await.address;
    let kind = Kind::SolanaSendNative(wire::SolanaSendNative {
        to: from.clone(),
        from,
        value: "1".into(),
        chain_id: 101,
        ..Default::default()
    });
    let pending = create(&gateway, kind).await;
    let outcome = outcome(&gateway, &pending.uuid).await;
    assert_eq!(outcome.error, None);
    assert!(!outcome.tx_hash.is_empty());
    assert_eq!(world.solana.accepted(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn create__should_refuse_what_it_cannot_do_and_store_nothing() {
    let world = World::new();
    let gateway = world.start().await;
    let first = vault(&gateway, "main").await;
    let other = vault(&gateway, "other").await;
    let address = evm_wallet(&gateway, first).await;
    let refused = async |asked: wire::CreateSigningRequestRequest| {
        let fault = try_create(&gateway, asked, None).await.unwrap_err();
        (fault.class().clone(), fault.message().to_owned())
    };
    let invalid = |sentence: &str| (Class::Invalid, sentence.to_owned());

    let nothing = wire::CreateSigningRequestRequest::default();
    assert_eq!(
        refused(nothing).await,
        invalid("exactly one payload kind is required")
    );

    let unknown = raw("0x00000000000000000000000000000000000000aa");
    assert_eq!(
        refused(request(unknown)).await,
        invalid("rawMessage.from: is not the address of a wallet")
    );

    let mut elsewhere = request(raw(&address));
    elsewhere.vault_uuid = Some(other.to_string());
    assert_eq!(
        refused(elsewhere).await,
        invalid("rawMessage.from: is not a wallet of this vault")
    );

    let mut malformed = request(raw(&address));
    malformed.vault_uuid = Some("x".into());
    assert_eq!(refused(malformed).await, invalid("Invalid uuid"));

    let mut callback = request(raw(&address));
    callback.callback_client_signer_public_key = Some("ssh-ed25519 AAAA".into());
    let (class, sentence) = refused(callback).await;
    assert_eq!(class, Class::Invalid);
    assert!(
        sentence.starts_with("callbackClientSignerPublicKey: "),
        "{sentence}"
    );

    let mut custom = send_native(&address);
    custom.chain_id = 424_242;
    let (_, sentence) = refused(request(Kind::EvmSendNative(custom))).await;
    assert!(sentence.starts_with("evmSendNative.gasFee: "), "{sentence}");

    // Ethereum is known, but no node for it is configured.
    let mut ethereum = send_native(&address);
    ethereum.chain_id = 1;
    let (class, sentence) = refused(request(Kind::EvmSendNative(ethereum))).await;
    assert_eq!(class, Class::Invalid);
    assert!(
        sentence.starts_with("evmSendNative.chainId: no node is configured for EVM chain 1"),
        "{sentence}"
    );

    assert!(world.requests().await.is_empty());
    assert_eq!(world.pending().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evm_send_native__should_be_signed_for_a_chain_without_a_node_when_it_brings_everything() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    for chain_id in [1, 424_242] {
        let mut payload = send_native(&address);
        payload.chain_id = chain_id;
        payload.nonce = Some(0);
        payload.gas_fee = Some(wire::EvmGas {
            max_fee: Some("100".into()),
            max_priority_fee: Some("1".into()),
            gas_limit: Some("21000".into()),
            ..Default::default()
        });
        let mut asked = request(Kind::EvmSendNative(payload));
        // Custom chains are never broadcast; a known one is unless told otherwise.
        asked.broadcast_tx = (chain_id == 1).then_some(false);
        let pending = created(try_create(&gateway, asked, None).await.unwrap());
        let outcome = outcome(&gateway, &pending.uuid).await;
        assert!(
            outcome.signed_transaction.starts_with("0x02"),
            "{outcome:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests__should_be_invisible_outside_of_the_scope_of_the_token() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let pending = create(&gateway, raw(&address)).await;
    let asked = wire::GetSigningRequestDetailsRequest { uuid: pending.uuid };
    let shown = call::<GetSigningRequestDetails>(&gateway, &stranger(), asked).await;
    assert_eq!(shown.unwrap_err().message(), "Invalid uuid");
    let asked = request(raw(&address));
    let made = call::<CreateSigningRequest>(&gateway, &stranger(), asked).await;
    assert_eq!(
        made.unwrap_err().message(),
        "rawMessage.from: is not the address of a wallet"
    );
    for uuid in ["", "x", "00000000-0000-4000-8000-000000000000"] {
        let outcome = try_outcome(&gateway, &admin(), uuid).await;
        assert_eq!(outcome.unwrap_err().message(), "Invalid uuid");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outcome__should_say_still_pending_when_the_patience_ends() {
    let world = World::new();
    world.signers.silent.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let pending = create(&gateway, raw(&address)).await;
    let outcome = try_outcome(&gateway, &admin(), &pending.uuid).await;
    let fault = outcome.unwrap_err();
    assert_eq!(fault.class(), &Class::Unavailable);
    assert!(fault.message().contains("still pending"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn create__should_refuse_more_live_requests_than_the_settings_allow() {
    let mut world = World::new();
    world.settings.max_live_requests = 2;
    world.signers.silent.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    for _ in 0..2 {
        create(&gateway, raw(&address)).await;
    }
    let fault = try_create(&gateway, request(raw(&address)), None)
        .await
        .unwrap_err();
    assert_eq!(fault.class(), &Class::Unavailable);
}

/// What is accepted has half of its time in reserve.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn create__should_refuse_what_signers_would_come_to_too_late() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 20_000;
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    for (wait_ms, seconds) in [
        (0, None),
        (10_000, None),
        (10_001, Some(1)),
        (25_500, Some(16)),
        (u64::MAX, Some(60)),
    ] {
        *world.signers.wait.lock().unwrap() = Duration::from_millis(wait_ms);
        let made = try_create(&gateway, request(raw(&address)), None).await;
        let Some(seconds) = seconds else {
            let made = created(made.unwrap());
            assert_eq!(outcome(&gateway, &made.uuid).await.error, None);
            continue;
        };
        let fault = made.unwrap_err();
        assert_eq!(fault.class(), &Class::Unavailable, "{wait_ms}");
        assert_eq!(fault.code(), FaultCode::Busy { seconds }, "{wait_ms}");
    }
}

/// What has only waited in line is no failure, however long that was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request__should_wait_on_when_signers_become_slower() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let left = || world.signers.crowded.load(Ordering::SeqCst);
    world.signers.crowded.store(10, Ordering::SeqCst);
    world.signers.crowd_stops_at.store(5, Ordering::SeqCst);
    let made = create(&gateway, raw(&address)).await;
    let mut seen = 10;
    while left() > 5 {
        if left() < seen {
            seen = left();
            // More than all of its time. The double says if a session comes twice, or another digest.
            world.pass(70_000);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let shown = details(&gateway, &made.uuid).await;
    assert_eq!(shown.status(), Status::Pending);
    // Also over a restart.
    gateway.stop().await;
    world.signers.crowd_stops_at.store(0, Ordering::SeqCst);
    let gateway = world.start().await;
    assert_eq!(outcome(&gateway, &made.uuid).await.error, None);
    assert_eq!(left(), 0);
    let time_ms = world.signers.time_ms(&made.uuid);
    assert!(time_ms > 15_000, "{time_ms}");
    // Signers that never come to it do not keep it for ever.
    world.signers.crowded.store(1_000, Ordering::SeqCst);
    let made = create(&gateway, raw(&address)).await;
    let failed = outcome(&gateway, &made.uuid).await;
    let reason = failed.error.unwrap().message;
    assert!(reason.contains("overloaded"), "{reason}");
    assert_eq!(left(), 1_000 - 31);
}

/// What no block can have any more would only take the time of others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request__should_not_be_signed_once_its_transaction_has_expired() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let solana = wallet(&gateway, vault, NetworkType::Solana).await.address;
    let aptos = wallet(&gateway, vault, NetworkType::Aptos).await.address;
    let transfers = [
        Kind::SolanaSendNative(wire::SolanaSendNative {
            to: solana.clone(),
            from: solana,
            value: "1".into(),
            chain_id: 101,
            ..Default::default()
        }),
        Kind::AptosSendNative(wire::AptosSendNative {
            chain_id: 1,
            from: aptos.clone(),
            to: aptos,
            value: "5".into(),
            gas_fee: Some(wire::AptosGas {
                max_gas_amount: Some("2000".into()),
                gas_unit_price: Some("160".into()),
                ..Default::default()
            }),
            ..Default::default()
        }),
    ];
    for kind in transfers {
        world.signers.crowded.store(10, Ordering::SeqCst);
        world.signers.crowd_stops_at.store(9, Ordering::SeqCst);
        let left = || world.signers.crowded.load(Ordering::SeqCst);
        let made = create(&gateway, kind).await;
        while left() == 10 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        world.pass(1_000_000);
        world.signers.crowd_stops_at.store(0, Ordering::SeqCst);
        let failed = outcome(&gateway, &made.uuid).await;
        let reason = failed.error.unwrap().message;
        assert!(reason.contains("expired before it was signed"), "{reason}");
        // No signer was asked again, but perhaps by the session that had begun.
        assert!(left() >= 8, "{}", left());
    }
    assert_eq!(world.solana.accepted(), 0);
}

/// Whatever the deadline is, what is accepted is signed soon; a few are no crowd.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn create__should_be_refused_where_a_crowd_waits_for_longer_than_it_should() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 600_000;
    world.settings.most_wait_ms = 5_000;
    world.signers.silent.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let evm = evm_wallet(&gateway, vault).await;
    *world.signers.wait_for_each.lock().unwrap() = Duration::from_millis(200);
    let mut accepted = 0;
    let fault = loop {
        match try_create(&gateway, request(raw(&evm)), None).await {
            Ok(_) => accepted += 1,
            Err(fault) => break fault,
        }
    };
    // 64 wait for 12.8 seconds.
    assert_eq!(accepted, 64);
    assert_eq!(fault.code(), FaultCode::Busy { seconds: 8 });
    // Thousands may be refused each second: none of them waits for another thread.
    let again = try_create(&gateway, request(raw(&evm)), None);
    let Poll::Ready(Err(fault)) = futures::poll!(std::pin::pin!(again)) else {
        panic!("it waits");
    };
    assert!(matches!(fault.code(), FaultCode::Busy { .. }), "{fault:?}");
    gateway.stop().await;
}

/// A token has no more for having many vaults.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn create__should_count_a_token_once_however_many_vaults_it_has() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 600_000;
    world.settings.most_wait_ms = 5_000;
    world.signers.silent.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let mut wallets = Vec::new();
    for name in ["one", "two", "three"] {
        wallets.push(evm_wallet(&gateway, vault(&gateway, name).await).await);
    }
    *world.signers.wait_for_each.lock().unwrap() = Duration::from_secs(1);
    let mut accepted = 0;
    let fault = loop {
        let from = &wallets[accepted % wallets.len()];
        match try_create(&gateway, request(raw(from)), None).await {
            Ok(_) => accepted += 1,
            Err(fault) => break fault,
        }
    };
    assert_eq!(accepted, 64);
    assert!(matches!(fault.code(), FaultCode::Busy { .. }), "{fault:?}");
    gateway.stop().await;
}

/// What waits for a chain that hangs is no work for signers yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_that_hangs__should_not_make_signers_look_overloaded() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 600_000;
    world.settings.most_wait_ms = 5_000;
    world.evm.down.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let evm = evm_wallet(&gateway, vault).await;
    *world.signers.wait_for_each.lock().unwrap() = Duration::from_millis(100);
    for _ in 0..100 {
        create(&gateway, send(&evm)).await;
    }
    let made = create(&gateway, raw(&evm)).await;
    assert_eq!(outcome(&gateway, &made.uuid).await.error, None);
    gateway.stop().await;
}

/// The key of the other curve has signers' time of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn create__should_not_count_inputs_of_the_other_curve() {
    let world = World::new();
    world.signers.silent.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let evm = evm_wallet(&gateway, vault).await;
    let solana = wallet(&gateway, vault, wire::NetworkType::Solana).await;
    *world.signers.wait_for_each.lock().unwrap() = Duration::from_secs(1);
    let mut accepted = 0;
    let fault = loop {
        match try_create(&gateway, request(raw(&evm)), None).await {
            Ok(_) => accepted += 1,
            Err(fault) => break fault,
        }
    };
    assert!(matches!(fault.code(), FaultCode::Busy { .. }), "{fault:?}");
    assert_eq!(accepted, 11, "half of the deadline, and one more");
    for _ in 0..accepted {
        create(&gateway, raw(&solana.address)).await;
    }
    let fault = try_create(&gateway, request(raw(&solana.address)), None).await;
    assert!(matches!(fault.unwrap_err().code(), FaultCode::Busy { .. }));
    gateway.stop().await;
}

/// One transaction may be hundreds of signatures.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn create__should_count_all_inputs_that_signers_have_to_sign() {
    let world = World::new();
    world.signers.silent.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let evm = evm_wallet(&gateway, vault).await;
    let bitcoin = wallet(&gateway, vault, wire::NetworkType::Bitcoin).await;
    world.bitcoin.fund(&bitcoin.address, 5, 100_000);
    *world.signers.wait_for_each.lock().unwrap() = Duration::from_secs(10);
    let spend = Kind::BtcSendNative(wire::BtcSendNative {
        from: bitcoin.address.clone(),
        to: bitcoin.address.clone(),
        amount: "450000".into(),
        network_fee: 2,
        ..Default::default()
    });
    let made = create(&gateway, spend).await;
    // One request, which is five times ten seconds of work; ten are the most.
    while world.signers.unanswered.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let fault = try_create(&gateway, request(raw(&evm)), None).await;
    let fault = fault.unwrap_err();
    assert!(matches!(fault.code(), FaultCode::Busy { .. }), "{fault:?}");
    // As after a restart.
    gateway.stop().await;
    let before = world.signers.unanswered.load(Ordering::SeqCst);
    let gateway = world.start().await;
    while world.signers.unanswered.load(Ordering::SeqCst) == before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let fault = try_create(&gateway, request(raw(&evm)), None).await;
    assert!(matches!(fault.unwrap_err().code(), FaultCode::Busy { .. }));
    gateway.stop().await;
    world.signers.silent.store(false, Ordering::SeqCst);
    let gateway = world.start().await;
    assert_eq!(outcome(&gateway, &made.uuid).await.error, None);
    create(&gateway, raw(&evm)).await;
}

/// The code that executeSigningRequests reports.
pub fn code(error: &wire::Error) -> wire::ExecuteSigningRequestsErrorCode {
    match error.code {
        Some(Code::ExecuteSigningRequestsErrorCode(code)) => code.try_into().unwrap(),
        other => panic!("{other:?}"),
    }
}

/// There may be any number of those: their live places were given back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_no_node_takes__should_count_what_they_cost() {
    let mut world = World::new();
    world.settings.max_live_bytes = 40 * 9_000;
    world.evm.stuck.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let mut made = Vec::new();
    let fault = loop {
        match try_create(&gateway, request(send(&address)), None).await {
            Ok(one) => made.push(created(one)),
            Err(fault) => break fault,
        }
        assert!(made.len() < 40, "there is no bound");
    };
    assert!(fault.message().contains("for others"), "{fault}");
    assert!(made.len() > 10, "{}", made.len());
    world.evm.stuck.store(false, Ordering::SeqCst);
    for one in &made {
        assert_eq!(outcome(&gateway, &one.uuid).await.error, None);
    }
    created(
        try_create(&gateway, request(send(&address)), None)
            .await
            .unwrap(),
    );
    gateway.stop().await;
}

/// Also where it was sent: who looks for it in a block, or sends it once more, needs it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_sent__should_show_its_signed_transaction_in_outcome_and_details() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let made = create(&gateway, send(&address)).await;
    assert_eq!(made.signed_transaction, "");
    let outcome = outcome(&gateway, &made.uuid).await;
    let details = details(&gateway, &made.uuid).await;
    assert_eq!((outcome.error, world.evm.nonces()), (None, vec![0]));
    assert!(outcome.signed_transaction.starts_with("0x02"));
    assert_eq!(details.signed_transaction, outcome.signed_transaction);
    assert_eq!(details.tx_hash, outcome.tx_hash);
    gateway.stop().await;
}
