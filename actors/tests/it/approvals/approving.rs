//! What counts as an approval.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approve__should_sign_once_enough_persons_have_approved_the_same() {
    let world = World::new();
    let gateway = world.start().await;
    let from = manual(&gateway).await;
    let [treasurer, controller, director] = persons();
    world.signers.wants.store(2, Ordering::SeqCst);
    let uuid = create(&gateway, send(&from)).await.uuid;
    let shown = details(&gateway, &uuid).await;
    let until = world.clock_ms() + HOUR;

    let approval = treasurer.approval(&shown, FEE, until);
    let one = approve(&gateway, &uuid, approval.clone()).await.unwrap();
    assert_eq!(
        (one.required_approval_count, one.remaining_approval_count),
        (2, 1)
    );
    // The same person twice, also with another key: still one.
    let again = approve(&gateway, &uuid, approval).await.unwrap();
    assert_eq!(again.remaining_approval_count, 1);
    let other_key = Person::key(9).approval(&shown, FEE, until);
    let again = approve(&gateway, &uuid, other_key).await.unwrap();
    assert_eq!(again.remaining_approval_count, 1);
    assert_eq!(again.approvals.len(), 1);
    // Another fee is another approval: it does not count with the first.
    let other_fee = director.approval(&shown, FEE + 1, until);
    let again = approve(&gateway, &uuid, other_fee).await.unwrap();
    assert_eq!(again.remaining_approval_count, 1);
    assert_eq!(world.signers.requests(), 0);

    // What was given is on disk.
    gateway.stop().await;
    let gateway = world.start().await;
    let approval = controller.approval(&shown, FEE, until);
    let two = approve(&gateway, &uuid, approval).await.unwrap();
    assert_eq!(
        (two.remaining_approval_count, two.pending_operation.as_str()),
        (0, "")
    );
    assert_eq!(outcome(&gateway, &uuid).await.error, None);
    assert_eq!(world.evm.accepted(), 1);
    let done = details(&gateway, &uuid).await;
    let names: Vec<_> = done.approvals.iter().map(|it| it.person.as_str()).collect();
    assert_eq!(names, ["treasurer", "director", "controller"]);
    assert_eq!(
        world.signers.shown(&uuid),
        Some(2),
        "the order shows both, verified"
    );
    // One more changes nothing.
    let late = director.approval(&shown, FEE, until);
    let late = approve(&gateway, &uuid, late).await.unwrap();
    assert_eq!(late.status(), Status::Succeeded);
    assert_eq!(world.evm.accepted(), 1);
    assert_eq!(world.pending().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approve__should_take_one_gesture_for_several_requests() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault_with(&gateway, rule("manual", 1)).await;
    let from = evm_wallet(&gateway, vault).await;
    let until = world.clock_ms() + HOUR;
    let (mut shown, mut ids) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let uuid = create(&gateway, send(&from)).await.uuid;
        shown.push(details(&gateway, &uuid).await);
        ids.push(intent(shown.last().unwrap(), FEE, until).id().unwrap());
    }
    ids.sort_unstable();
    let proof = persons()[0].sign(&list_challenge(&ids).unwrap());
    let approval = |list: &[[u8; 32]]| wire::Approval {
        most_fee: FEE.to_string(),
        valid_until_ms: until,
        list: list.iter().map(|id| id.to_vec()).collect(),
        proof: Some(proof.clone()),
    };
    let other = create(&gateway, send(&from)).await.uuid;
    let fault = approve(&gateway, &other, approval(&ids)).await.unwrap_err();
    assert_eq!(fault.path(), Some("approval.list"), "{fault}");
    let fault = approve(&gateway, &shown[0].uuid, approval(&ids[..2])).await;
    assert!(fault.is_err());
    for request in &shown {
        approve(&gateway, &request.uuid, approval(&ids))
            .await
            .unwrap();
        assert_eq!(outcome(&gateway, &request.uuid).await.error, None);
    }
    assert_eq!(world.evm.accepted(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approve__should_refuse_what_no_signer_would_count() {
    let world = World::new();
    let gateway = world.start().await;
    let from = manual(&gateway).await;
    let [treasurer, controller, _] = persons();
    let first = create(&gateway, send(&from)).await.uuid;
    let second = create(&gateway, send(&from)).await.uuid;
    let (first, second) = (
        details(&gateway, &first).await,
        details(&gateway, &second).await,
    );
    let now = world.clock_ms();
    let until = now + HOUR;
    let good = treasurer.approval(&first, FEE, until);
    let by_key = controller.approval(&first, FEE, until);
    let with = |proof: Option<wire::PersonProof>| wire::Approval {
        proof,
        ..good.clone()
    };
    let webauthn = |change: fn(&mut wire::WebAuthnProof)| {
        let Some(ProofType::WebAuthn(mut proof)) = good.proof.clone().unwrap().r#type else {
            panic!("no passkey's");
        };
        change(&mut proof);
        with(Some(wire::PersonProof {
            r#type: Some(ProofType::WebAuthn(proof)),
        }))
    };
    let ssh = ProofType::Ssh("-----BEGIN SSH SIGNATURE-----".into());
    let subject = first.approval_subject.clone().unwrap();
    let elsewhere = |change: fn(&mut wire::ApprovalSubject)| {
        let mut subject = subject.clone();
        change(&mut subject);
        let request = wire::SigningRequest {
            approval_subject: Some(subject),
            ..first.clone()
        };
        treasurer.approval(&request, FEE, until)
    };
    let other_vault = wire::SigningRequest {
        vault_uuid: Some("00000000-0000-4000-8000-000000000000".into()),
        ..first.clone()
    };
    for (approval, path) in [
        (treasurer.approval(&second, FEE, until), "approval.proof"),
        (
            treasurer.approval(&other_vault, FEE, until),
            "approval.proof",
        ),
        (elsewhere(|it| it.payload[0] ^= 1), "approval.proof"),
        (elsewhere(|it| it.root_public_key[5] ^= 1), "approval.proof"),
        (elsewhere(|it| it.address.push('0')), "approval.proof"),
        (
            Person::passkey("stranger", 4).approval(&first, FEE, until),
            "approval.proof",
        ),
        (
            Person::key(5).approval(&first, FEE, until),
            "approval.proof",
        ),
        // A key of the treasurer's, with the controller's signature.
        (with(by_key.proof.clone()), ""),
        (
            treasurer.approval(&first, FEE, now - 1),
            "approval.validUntilMs",
        ),
        (
            treasurer.approval(&first, FEE, now + DAY + HOUR),
            "approval.validUntilMs",
        ),
        (
            wire::Approval {
                most_fee: (FEE + 1).to_string(),
                ..good.clone()
            },
            "approval.proof",
        ),
        (
            wire::Approval {
                most_fee: "-1".into(),
                ..good.clone()
            },
            "approval.mostFee",
        ),
        (
            wire::Approval {
                valid_until_ms: until + 1,
                ..good.clone()
            },
            "approval.proof",
        ),
        (
            wire::Approval {
                list: vec![vec![1; 31]],
                ..good.clone()
            },
            "approval.list",
        ),
        (
            wire::Approval {
                list: vec![vec![1; 32]; 101],
                ..good.clone()
            },
            "approval.list",
        ),
        (with(None), "approval.proof.type"),
        (
            with(Some(wire::PersonProof { r#type: Some(ssh) })),
            "approval.proof",
        ),
        (webauthn(|it| it.signature[9] ^= 1), "approval.proof"),
        (
            webauthn(|it| it.authenticator_data[32] ^= 4),
            "approval.proof",
        ),
        (
            webauthn(|it| it.client_data_json = vec![b'x'; 4_000]),
            "approval",
        ),
        // It was signed as a rejection.
        (
            with(Some(
                treasurer.sign(
                    &rejection_challenge(
                        first.vault_uuid.clone().unwrap().parse().unwrap(),
                        first.uuid.parse().unwrap(),
                    )
                    .unwrap(),
                ),
            )),
            "approval.proof",
        ),
    ] {
        if path.is_empty() {
            // It is the controller's, who has approved.
            let approved = approve(&gateway, &first.uuid, approval).await.unwrap();
            assert_eq!(approved.approvals[0].person, "controller");
            continue;
        }
        let fault = approve(&gateway, &first.uuid, approval).await.unwrap_err();
        assert_eq!(fault.class(), &Class::Invalid, "{fault}");
        let found = fault.path().unwrap_or_default();
        assert!(found.starts_with(path), "{fault}: {found}, not {path}");
    }
    // A token alone, of whatever level, approves nothing; and one that only reads brings nothing.
    let mut request = wire::ApproveSigningRequestRequest {
        uuid: first.uuid.clone(),
        approval: None,
    };
    let fault = call::<ApproveSigningRequest>(&gateway, &admin(), request.clone()).await;
    let fault = fault.unwrap_err();
    assert_eq!(fault.path(), Some("approval"), "{fault}");
    request.approval = Some(good);
    let reader = Caller {
        access: TokenAccess::ReadOnly,
        ..admin()
    };
    for (caller, class) in [(reader, Class::Forbidden), (stranger(), Class::Invalid)] {
        let fault = call::<ApproveSigningRequest>(&gateway, &caller, request.clone()).await;
        assert_eq!(fault.unwrap_err().class(), &class);
    }
    let shown = details(&gateway, &first.uuid).await;
    assert_eq!(shown.approvals.len(), 1);
    assert_eq!(world.signers.requests(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approve__should_sign_nothing_that_costs_more_than_was_approved() {
    let world = World::new();
    let gateway = world.start().await;
    let from = manual(&gateway).await;
    let uuid = create(&gateway, send(&from)).await.uuid;
    let mut shown = details(&gateway, &uuid).await;
    let until = world.clock_ms() + HOUR;
    // 20,000 wei are less than the gas costs.
    for most_fee in [20_000, FEE] {
        for person in &persons()[..2] {
            let approval = person.approval(&shown, most_fee, until);
            approve(&gateway, &uuid, approval).await.unwrap();
        }
        if most_fee == FEE {
            break;
        }
        shown = waits(&gateway, &uuid).await;
        let wanted = &shown.approval_wanted;
        assert!(
            wanted.starts_with("the transaction's fee could reach "),
            "{wanted}"
        );
        assert_eq!(world.signers.requests(), 0, "no order has left");
        assert_eq!(rows(&world, KeySpace::NonceReservation).await, 0);
    }
    assert_eq!(outcome(&gateway, &uuid).await.error, None);
    assert_eq!(world.evm.nonces(), [0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approve__should_sign_nothing_once_the_approvals_are_over() {
    let world = World::new();
    world.evm.down.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let from = manual(&gateway).await;
    let uuid = create(&gateway, send(&from)).await.uuid;
    let shown = details(&gateway, &uuid).await;
    let until = world.clock_ms() + HOUR;
    for person in &persons()[..2] {
        let approval = person.approval(&shown, FEE, until);
        approve(&gateway, &uuid, approval).await.unwrap();
    }
    // The chain, and then the service, is away for longer than they count.
    gateway.stop().await;
    world.pass(HOUR);
    world.evm.down.store(false, Ordering::SeqCst);
    let gateway = world.start().await;
    let shown = waits(&gateway, &uuid).await;
    assert_eq!(
        shown.approval_wanted,
        "0 of 2 approvals are still valid; the others have expired"
    );
    assert_eq!(world.signers.requests(), 0, "no order has left");
    let until = world.clock_ms() + HOUR;
    for person in &persons()[..2] {
        let approval = person.approval(&shown, FEE, until);
        approve(&gateway, &uuid, approval).await.unwrap();
    }
    assert_eq!(outcome(&gateway, &uuid).await.error, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approve__should_lose_none_of_several_at_once_nor_undo_a_rejection() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault_with(&gateway, rule("manual", 3)).await;
    let from = evm_wallet(&gateway, vault).await;
    let until = world.clock_ms() + HOUR;
    let mut signed = 0;
    for round in 0..24 {
        let uuid = create(&gateway, send(&from)).await.uuid;
        let shown = details(&gateway, &uuid).await;
        let [first, second, third] = persons().map(|person| person.approval(&shown, FEE, until));
        let rejects = round % 2 == 1;
        let stop = async {
            match rejects {
                true => reject(&gateway, &uuid, None).await,
                false => Ok(()),
            }
        };
        let (first, second, third, stopped) = tokio::join!(
            approve(&gateway, &uuid, first),
            approve(&gateway, &uuid, second),
            approve(&gateway, &uuid, third),
            stop
        );
        let is_rejected = rejects && stopped.is_ok();
        if !is_rejected {
            for approved in [first, second, third] {
                approved.unwrap();
            }
            assert_eq!(outcome(&gateway, &uuid).await.error, None);
            signed += 1;
            continue;
        }
        // The others were told so, or came before; nothing of it is signed.
        let ended = details(&gateway, &uuid).await;
        assert_eq!(ended.status(), Status::Failed);
        assert_eq!(world.signers.shown(&uuid), None);
    }
    assert!(signed >= 12, "{signed}");
    assert_eq!(world.evm.accepted(), signed);
    assert_eq!(world.pending().await, 0);
    assert_eq!(rows(&world, KeySpace::Awaiting).await, 0);
}
