//! Requests that people reject, or do not approve in time.

use covault_core::audit::AuditChain;

use super::*;
use crate::audit::whole;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reject__should_end_a_request_in_the_name_of_a_person_who_may_approve() {
    let world = World::new();
    let gateway = world.start().await;
    let from = manual(&gateway).await;
    let [treasurer, controller, _] = persons();
    let uuid = create(&gateway, send(&from)).await.uuid;
    let shown = details(&gateway, &uuid).await;
    let approval = treasurer.approval(&shown, FEE, world.clock_ms() + HOUR);
    approve(&gateway, &uuid, approval.clone()).await.unwrap();
    let vault = shown.vault_uuid.clone().unwrap().parse().unwrap();
    let challenge = rejection_challenge(vault, uuid.parse().unwrap()).unwrap();
    // Neither a stranger's signature nor one that was made for an approval.
    for proof in [Person::key(5).sign(&challenge), approval.proof.unwrap()] {
        let fault = reject(&gateway, &uuid, Some(proof)).await.unwrap_err();
        let path = fault.path().unwrap_or_default();
        assert!(path.starts_with("rejection.proof"), "{fault}");
    }
    assert!(world.signers.rejections.lock().unwrap().is_empty());
    // That signers do not hear of it keeps nothing from ending.
    world.signers.cannot_be_told.store(1, Ordering::SeqCst);
    reject(&gateway, &uuid, Some(controller.sign(&challenge)))
        .await
        .unwrap();
    let told = world.signers.rejections.lock().unwrap().clone();
    let [(told, to)] = &told[..] else {
        panic!("{told:?}");
    };
    assert_eq!(told.vault, vault);
    assert_eq!(told.requests, [uuid.parse().unwrap()]);
    assert_eq!(told.challenge().unwrap(), challenge);
    assert_eq!(to.len(), 3);
    let shown = details(&gateway, &uuid).await;
    assert_eq!(shown.status(), Status::Failed);
    assert_eq!(
        shown.failed_reason,
        "rejected by controller (rejectSigningRequest)"
    );
    let error = outcome(&gateway, &uuid).await.error.unwrap();
    assert_eq!(code(&error), ErrorCode::AlreadyDenied);
    assert_eq!(world.signers.requests(), 0);
    // The log names both persons, beside the token that brought what they have signed.
    let log = whole(&*world.store, "").await;
    let subject = format!("request:{uuid}");
    for (event, said) in [
        ("ApprovalGiven", "approved by treasurer"),
        ("Rejected", "rejected by controller (rejectSigningRequest)"),
    ] {
        let mut entries = log[&AuditChain::Vault(vault)].iter();
        let entry = entries.find(|it| it.events[0].event == event && it.subject == subject);
        let entry = entry.unwrap_or_else(|| panic!("no {event}: {log:?}"));
        let mut facts = entry.events[0].facts.iter();
        assert!(facts.any(|(_, fact)| fact == said), "{entry:?}");
        assert_eq!(entry.by, "operator");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expiry__should_end_what_nobody_approves_in_time_also_after_a_restart() {
    let world = World::new();
    let gateway = world.start().await;
    let from = manual(&gateway).await;
    let uuid = create(&gateway, send(&from)).await.uuid;
    let shown = details(&gateway, &uuid).await;
    // From when people are asked.
    let asked = shown.approval_expiry_timestamp - 72 * HOUR;
    assert!((shown.creation_timestamp..shown.creation_timestamp + 10_000).contains(&asked));
    gateway.stop().await;
    world.pass(71 * HOUR);
    let gateway = world.start().await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(details(&gateway, &uuid).await.status(), Status::Pending);
    gateway.stop().await;
    world.pass(HOUR);
    let gateway = world.start().await;
    let error = loop {
        match try_outcome(&gateway, &admin(), &uuid).await {
            Ok(outcome) => break outcome.error.unwrap(),
            Err(fault) => assert_eq!(fault.class(), &Class::Forbidden),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(code(&error), ErrorCode::AlreadyDenied);
    assert!(
        error.message.starts_with("not approved in time"),
        "{error:?}"
    );
    assert_eq!(rows(&world, KeySpace::Awaiting).await, 0);
    assert_eq!(world.signers.requests(), 0);
}
