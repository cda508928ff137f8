//! Payments that signers hold after their approvals.

use covault_core::moment::utc;

use super::*;

async fn held_for(world: &World, hours: u64) {
    let until_ms = world.clock_ms() + hours * HOUR;
    world
        .signers
        .held_until_ms
        .store(until_ms, Ordering::SeqCst);
}

/// A request that two have approved for so many hours, and that signers hold.
async fn approved_and_held(world: &World, gateway: &Gateway, hours: u64) -> String {
    let from = manual(gateway).await;
    let uuid = create(gateway, send(&from)).await.uuid;
    let shown = waits(gateway, &uuid).await;
    let until = world.clock_ms() + hours * HOUR;
    for person in &persons()[..2] {
        approve(gateway, &uuid, person.approval(&shown, FEE, until))
            .await
            .unwrap();
    }
    until_held(gateway, &uuid).await;
    uuid
}

async fn until_held(gateway: &Gateway, uuid: &str) -> wire::SigningRequest {
    loop {
        let shown = details(gateway, uuid).await;
        assert_eq!(shown.status(), Status::Pending, "{}", shown.failed_reason);
        if shown.approval_wanted.contains("hold") || shown.approval_wanted.contains("held") {
            return shown;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held__should_wait_as_a_row_before_it_is_built_and_go_on_after_a_restart() {
    let world = World::new();
    let gateway = world.start().await;
    held_for(&world, 5).await;
    let uuid = approved_and_held(&world, &gateway, 20).await;
    let shown = details(&gateway, &uuid).await;
    let starts = "held by signer-1, signer-2 until 2";
    assert!(
        shown.approval_wanted.starts_with(starts),
        "{}",
        shown.approval_wanted
    );
    assert!(
        shown
            .approval_wanted
            .ends_with(": until then any approver can reject it")
    );
    // Nothing is missing, built, reserved or asked to be signed.
    assert_eq!(
        (
            shown.pending_operation.as_str(),
            shown.remaining_approval_count
        ),
        ("approve", 0)
    );
    assert_eq!((world.signers.requests(), world.pending().await), (0, 0));
    assert_eq!(rows(&world, KeySpace::NonceReservation).await, 0);
    let fault = try_outcome(&gateway, &admin(), &uuid).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Forbidden);
    // One more approval changes nothing about it.
    let until = world.clock_ms() + 20 * HOUR;
    let again = persons()[0].approval(&shown, FEE, until);
    approve(&gateway, &uuid, again).await.unwrap();
    let again = persons()[1].approval(&shown, FEE, until);
    approve(&gateway, &uuid, again).await.unwrap();
    until_held(&gateway, &uuid).await;
    gateway.stop().await;
    world.pass(4 * HOUR);
    let gateway = world.start().await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    until_held(&gateway, &uuid).await;
    assert_eq!(world.signers.requests(), 0);
    gateway.stop().await;
    world.pass(HOUR + 60_000);
    let gateway = world.start().await;
    let done = loop {
        match try_outcome(&gateway, &admin(), &uuid).await {
            Ok(outcome) => break outcome,
            // Held; or just becoming one of the live ones again.
            Err(fault) => assert!(
                matches!(fault.class(), Class::Forbidden | Class::Unavailable),
                "{fault}"
            ),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(done.error, None);
    assert_eq!(world.evm.nonces(), [0]);
    assert!(world.signers.told.load(Ordering::SeqCst) >= 3);
    assert_eq!(rows(&world, KeySpace::Awaiting).await, 0);
    assert_eq!(details(&gateway, &uuid).await.approval_wanted, "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held__should_not_be_built_while_signers_cannot_be_told() {
    let world = World::new();
    let gateway = world.start().await;
    held_for(&world, 5).await;
    world.signers.cannot_be_told.store(5, Ordering::SeqCst);
    approved_and_held(&world, &gateway, 20).await;
    assert_eq!(world.signers.told.load(Ordering::SeqCst), 6);
    assert_eq!(world.signers.requests(), 0);
    assert_eq!(rows(&world, KeySpace::NonceReservation).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held__should_end_when_one_who_may_approve_rejects_it() {
    let world = World::new();
    let gateway = world.start().await;
    held_for(&world, 5).await;
    let uuid = approved_and_held(&world, &gateway, 20).await;
    let vault = details(&gateway, &uuid).await.vault_uuid.unwrap();
    let challenge = rejection_challenge(vault.parse().unwrap(), uuid.parse().unwrap()).unwrap();
    reject(&gateway, &uuid, Some(persons()[2].sign(&challenge)))
        .await
        .unwrap();
    let error = outcome(&gateway, &uuid).await.error.unwrap();
    assert_eq!(code(&error), ErrorCode::AlreadyDenied);
    gateway.stop().await;
    world.pass(6 * HOUR);
    let gateway = world.start().await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(details(&gateway, &uuid).await.status(), Status::Failed);
    assert_eq!(world.signers.requests(), 0);
    assert_eq!(rows(&world, KeySpace::Awaiting).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held__should_have_people_approve_again_what_has_expired_by_then() {
    let world = World::new();
    let gateway = world.start().await;
    held_for(&world, 30).await;
    let uuid = approved_and_held(&world, &gateway, 20).await;
    gateway.stop().await;
    world.pass(30 * HOUR + 60_000);
    let gateway = world.start().await;
    let shown = loop {
        let shown = details(&gateway, &uuid).await;
        if shown.approval_wanted.contains("approve it again") {
            break shown;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(world.signers.requests(), 0);
    let until = world.clock_ms() + HOUR;
    for person in &persons()[..2] {
        approve(&gateway, &uuid, person.approval(&shown, FEE, until))
            .await
            .unwrap();
    }
    assert_eq!(outcome(&gateway, &uuid).await.error, None);
    assert_eq!(world.evm.nonces(), [0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held__should_go_on_with_the_same_transaction_where_signers_say_it_late() {
    let world = World::new();
    let gateway = world.start().await;
    held_for(&world, 5).await;
    world.signers.tells_late.store(true, Ordering::SeqCst);
    let uuid = approved_and_held(&world, &gateway, 20).await;
    let shown = details(&gateway, &uuid).await;
    assert_eq!(shown.approval_wanted, "signer-1 holds this payment");
    assert_eq!(rows(&world, KeySpace::NonceReservation).await, 0);
    gateway.stop().await;
    world.pass(5 * HOUR + 60_000);
    let gateway = world.start().await;
    // The double stops at a second digest for one request.
    let done = loop {
        match try_outcome(&gateway, &admin(), &uuid).await {
            Ok(outcome) => break outcome,
            // Held; or just becoming one of the live ones again.
            Err(fault) => assert!(
                matches!(fault.class(), Class::Forbidden | Class::Unavailable),
                "{fault}"
            ),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(done.error, None);
    assert_eq!(world.evm.nonces(), [0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held__should_show_until_when_signers_are_believed_and_not_what_they_say() {
    let world = World::new();
    let gateway = world.start().await;
    held_for(&world, 10_000 * 24).await;
    let before_ms = world.clock_ms();
    let uuid = approved_and_held(&world, &gateway, 20).await;
    let shown = details(&gateway, &uuid).await.approval_wanted;
    // No policy holds anything for longer than seven days, so a day more is the most.
    let most = [before_ms, world.clock_ms()].map(|now_ms| utc(now_ms + 8 * 24 * HOUR));
    assert!(most.iter().any(|it| shown.contains(it)), "{shown}");
}
