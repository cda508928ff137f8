//! Signers that want more than the vault does.

use super::*;
use crate::tracker::{GAP_MS, a_while, fillers, numbered};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signers__should_have_people_asked_again_with_the_same_transaction() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault_with(&gateway, rule("automatic", 0)).await;
    let from = evm_wallet(&gateway, vault).await;
    let [treasurer, _, director] = persons();
    let wants = |count| world.signers.wants.store(count, Ordering::SeqCst);
    wants(2);
    let uuid = create(&gateway, send(&from)).await.uuid;
    let shown = waits(&gateway, &uuid).await;
    assert_eq!(
        shown.approval_wanted,
        "approvals: signer-2 wants 2 of treasurer, controller, director"
    );
    let fault = try_outcome(&gateway, &admin(), &uuid).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Forbidden);
    // Its number is nobody's as long as people think, and its row costs nothing.
    assert_eq!(rows(&world, KeySpace::NonceReservation).await, 0);
    assert_eq!(world.pending().await, 0);
    let until = world.clock_ms() + HOUR;
    // The vault wants none, so that each one more has the signers asked again.
    approve(&gateway, &uuid, treasurer.approval(&shown, FEE, until))
        .await
        .unwrap();
    let shown = waits(&gateway, &uuid).await;
    assert_eq!(shown.approvals.len(), 1);
    assert_eq!(
        (
            shown.required_approval_count,
            shown.remaining_approval_count
        ),
        (2, 1)
    );
    gateway.stop().await;
    let gateway = world.start().await;
    approve(&gateway, &uuid, director.approval(&shown, FEE, until))
        .await
        .unwrap();
    // The double stops at a second digest for one request.
    assert_eq!(outcome(&gateway, &uuid).await.error, None);
    assert_eq!(world.evm.nonces(), [0]);
    assert_eq!(details(&gateway, &uuid).await.approval_wanted, "");

    // Another transaction takes the nonce in the meantime: never two transactions for one request.
    let waiting = create(&gateway, send(&from)).await.uuid;
    let shown = waits(&gateway, &waiting).await;
    world.signers.wants.store(0, Ordering::SeqCst);
    let other = create(&gateway, send(&from)).await.uuid;
    assert_eq!(outcome(&gateway, &other).await.error, None);
    let approval = treasurer.approval(&shown, FEE, until);
    let fault = approve(&gateway, &waiting, approval).await.unwrap_err();
    assert_eq!(fault.class(), &Class::WrongState);
    assert!(fault.message().contains("create it again"), "{fault}");
    // The one that signers were asked for could still come, until the other one is final.
    *world.evm.unheard.lock().unwrap() = Some(TransactionSighting::Replaced(None));
    let hash = details(&gateway, &other).await.tx_hash;
    let error = outcome(&gateway, &waiting).await.error.unwrap();
    let expected = "another request has used its nonce, outputs or objects while it waited for approvals; nonce 1 \
                    was used by the transaction ";
    assert_eq!(error.message, format!("{expected}{hash}, which is final"));
    assert_eq!(world.evm.nonces(), [0, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signers__should_have_people_asked_again_before_there_is_a_transaction() {
    let world = World::new();
    let gateway = world.start().await;
    // The vault wants fewer than its signers.
    let vault = vault_with(&gateway, rule("manual", 1)).await;
    let from = evm_wallet(&gateway, vault).await;
    let [treasurer, _, director] = persons();
    world.signers.wants.store(2, Ordering::SeqCst);
    let uuid = create(&gateway, send(&from)).await.uuid;
    let shown = waits(&gateway, &uuid).await;
    let until = world.clock_ms() + HOUR;
    approve(&gateway, &uuid, treasurer.approval(&shown, FEE, until))
        .await
        .unwrap();
    let shown = waits(&gateway, &uuid).await;
    assert_eq!(
        shown.approval_wanted,
        "approvals: signer-2 wants 2 of treasurer, controller, director"
    );
    assert_eq!(shown.remaining_approval_count, 1);
    // A transaction would be over on some chains before the next one comes.
    assert_eq!((world.signers.requests(), world.pending().await), (0, 0));
    assert_eq!(rows(&world, KeySpace::NonceReservation).await, 0);
    let other = create(&gateway, send(&from)).await.uuid;
    let wanted = waits(&gateway, &other).await;
    let given = [&treasurer, &director].map(|one| one.approval(&wanted, FEE, until));
    let [first, second] = given;
    approve(&gateway, &other, first).await.unwrap();
    waits(&gateway, &other).await;
    approve(&gateway, &other, second).await.unwrap();
    assert_eq!(outcome(&gateway, &other).await.error, None);
    // The number that it would have had is used by now, and it gets the next one.
    approve(&gateway, &uuid, director.approval(&shown, FEE, until))
        .await
        .unwrap();
    assert_eq!(outcome(&gateway, &uuid).await.error, None);
    assert_eq!(world.evm.nonces(), [0, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signers__should_end_a_request_of_which_nobody_could_approve_more() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    world.signers.wants.store(2, Ordering::SeqCst);
    let uuid = create(&gateway, send(&from)).await.uuid;
    let error = outcome(&gateway, &uuid).await.error.unwrap();
    assert!(error.message.contains("signer-2 wants 2"), "{error:?}");
}

/// A request for which a signer has wanted approvals, in a vault that asks for none.
async fn wanted(world: &World, gateway: &Gateway) -> (String, wire::SigningRequest) {
    let vault = vault_with(gateway, rule("automatic", 0)).await;
    let from = evm_wallet(gateway, vault).await;
    world.signers.wants.store(1, Ordering::SeqCst);
    let uuid = create(gateway, send(&from)).await.uuid;
    let shown = waits(gateway, &uuid).await;
    (from, shown)
}

/// Signers that want less may have signed what is given up: a hostile one can send it whenever it likes.
async fn stays_in_doubt(world: &World, gateway: &Gateway, uuid: &str) {
    world.evm.asked_for(40).await;
    tokio::time::sleep(Duration::from_millis(2 * world.settings.settling_ms)).await;
    let shown = details(gateway, uuid).await;
    assert_eq!(shown.status(), Status::Pending, "{}", shown.failed_reason);
    assert_eq!(shown.pending_operation, "");
    let fault = try_outcome(gateway, &admin(), uuid).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Unavailable);
    assert!(
        fault
            .message()
            .contains("may already have signed its transaction"),
        "{fault}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doubt__should_end_once_another_transaction_has_used_the_number_and_name_it() {
    let world = World::new();
    *world.evm.unheard.lock().unwrap() = Some(TransactionSighting::Missing);
    let gateway = world.start().await;
    let (from, shown) = wanted(&world, &gateway).await;
    reject(&gateway, &shown.uuid, None).await.unwrap();
    stays_in_doubt(&world, &gateway, &shown.uuid).await;
    for fault in [
        reject(&gateway, &shown.uuid, None).await.unwrap_err(),
        approve(
            &gateway,
            &shown.uuid,
            persons()[0].approval(&shown, FEE, world.clock_ms() + HOUR),
        )
        .await
        .unwrap_err(),
    ] {
        assert_eq!(fault.class(), &Class::WrongState);
    }
    assert!(
        pending(&gateway, &admin(), "", "", 10)
            .await
            .unwrap()
            .is_empty()
    );
    // Its number is another one's, whose transaction is not final yet.
    world.signers.wants.store(0, Ordering::SeqCst);
    *world.evm.sighting.lock().unwrap() = Some(TransactionSighting::Waiting);
    let other = create(&gateway, send(&from)).await.uuid;
    assert_eq!(outcome(&gateway, &other).await.error, None);
    assert_eq!(world.evm.nonces(), [0]);
    let hash = details(&gateway, &other).await.tx_hash;
    *world.evm.unheard.lock().unwrap() = Some(TransactionSighting::Replaced(Some(hash.clone())));
    stays_in_doubt(&world, &gateway, &shown.uuid).await;
    gateway.stop().await;
    let gateway = world.start().await;
    stays_in_doubt(&world, &gateway, &shown.uuid).await;
    *world.evm.sighting.lock().unwrap() = Some(FINAL);
    let error = outcome(&gateway, &shown.uuid).await.error.unwrap();
    assert_eq!(code(&error), ErrorCode::AlreadyDenied);
    let reason =
        "rejected before it was signed (rejectSigningRequest); nonce 0 was used by the transaction";
    assert_eq!(error.message, format!("{reason} {hash}, which is final"));
    assert_eq!(world.pending().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doubt__should_stay_while_only_a_transaction_that_nobody_here_made_has_used_the_number() {
    let world = World::new();
    let gateway = world.start().await;
    let (_, shown) = wanted(&world, &gateway).await;
    // It expires; and a hostile signer has sent it, or will.
    gateway.stop().await;
    world.pass(72 * HOUR);
    let gateway = world.start().await;
    while details(&gateway, &shown.uuid).await.pending_operation == "approve" {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    for by in [None, Some("0x77".to_owned())] {
        *world.evm.unheard.lock().unwrap() = Some(TransactionSighting::Replaced(by));
        stays_in_doubt(&world, &gateway, &shown.uuid).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gaps__should_get_one_filler_about_which_people_are_asked() {
    let world = World::new();
    *world.evm.sighting.lock().unwrap() = Some(TransactionSighting::Waiting);
    let gateway = world.start().await;
    let vault = vault_with(&gateway, rule("automatic", 0)).await;
    let from = evm_wallet(&gateway, vault).await;
    numbered(&gateway, &from, 1).await;
    world.signers.wants.store(1, Ordering::SeqCst);
    let vault = vault.to_string();
    world.pass(GAP_MS);
    let filler = loop {
        if let [filler] = fillers(&gateway, &vault).await.as_slice() {
            break filler.uuid.clone();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let shown = waits(&gateway, &filler).await;
    gateway.stop().await;
    let gateway = world.start().await;
    for _ in 0..3 {
        world.pass(GAP_MS);
        a_while().await;
    }
    assert_eq!(fillers(&gateway, &vault).await.len(), 1);
    let approval = persons()[0].approval(&shown, FEE, world.clock_ms() + HOUR);
    approve(&gateway, &filler, approval).await.unwrap();
    assert_eq!(outcome(&gateway, &filler).await.error, None);
    assert_eq!(world.evm.nonces(), [0, 1]);
}
