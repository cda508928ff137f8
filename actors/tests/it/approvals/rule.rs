//! Who decides, and that nobody else does.

use covault_actors::operations::ReplaceTransaction;

use super::*;

fn people(count: u8) -> Vec<admin::Approver> {
    let person = |number| admin::Approver {
        name: format!("person {number}"),
        keys: vec![Person::key(number).line()],
    };
    (1..=count).map(person).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vaults__should_be_made_by_who_says_who_approves() {
    let world = World::new();
    let gateway = world.start().await;
    assert!(admit(&gateway).await);
    let make = async |approvals: Option<admin::ApprovalRule>| {
        let request = admin::CreateVaultRequest {
            approvals,
            ..vault_request("manual")
        };
        call::<CreateVault>(&gateway, &admin(), request).await
    };
    let changed = |change: fn(&mut admin::ApprovalRule)| {
        let mut rule = rule("manual", 2);
        change(&mut rule);
        Some(rule)
    };
    for (approvals, sentence) in [
        (None, "approvals: is required"),
        (changed(|it| it.mode.clear()), "approvals.mode: must be"),
        (
            changed(|it| it.needs = 0),
            "approvals.needs: must be 1 to 3",
        ),
        (
            changed(|it| it.needs = 4),
            "approvals.needs: must be 1 to 3",
        ),
        (
            changed(|it| it.needs = 70_000),
            "approvals.needs: must be 1 to 3",
        ),
        (
            changed(|it| it.of.clear()),
            "approvals.of: names no approver",
        ),
        (
            changed(|it| it.of[1].name.clear()),
            "approvals.of[1].name: is required",
        ),
        (
            changed(|it| it.of[1].name = "treasurer".into()),
            "approvals.of[1].name: names an approver twice",
        ),
        (
            changed(|it| it.of[2].keys.clear()),
            "approvals.of[2].keys: must be 1 to 16",
        ),
        (
            changed(|it| it.of[2].keys[0] = "ssh-rsa AAAA".into()),
            "approvals.of[2].keys[0]: must be an OpenSSH line",
        ),
        (
            changed(|it| it.of[2].keys.push(Person::key(9).line())),
            "approvals.of[2].keys[1]: is named twice",
        ),
        (
            changed(|it| it.of = people(101)),
            "approvals.of: more than 100 approvers",
        ),
        (
            changed(|it| it.expires_ms = 1),
            "approvals.expiresMs: must be a minute",
        ),
        (
            changed(|it| it.mode = "automatic".into()),
            "approvals.needs: must be 0",
        ),
        (
            changed(|it| it.client_signers = vec![node(1).openssh_line(""), "ssh-rsa AAAA".into()]),
            "approvals.clientSigners[1]: must be an OpenSSH line",
        ),
        (
            changed(|it| it.client_signers = vec![node(1).openssh_line("bot"); 2]),
            "approvals.clientSigners[1]: is named twice",
        ),
        (
            changed(|it| it.client_signers = (1..=17).map(|n| node(n).openssh_line("")).collect()),
            "approvals.clientSigners: more than 16",
        ),
    ] {
        let fault = make(approvals).await.unwrap_err();
        assert_eq!(fault.class(), &Class::Invalid, "{fault}");
        assert!(
            fault.message().starts_with(sentence),
            "{fault}, not {sentence}"
        );
    }
    let request = admin::CreateVaultRequest {
        approvals: changed(|it| it.of = people(100)),
        ..vault_request("as many as there can be")
    };
    let made = call::<CreateVault>(&gateway, &admin(), request).await;
    let shown = made.unwrap().vault.unwrap().approvals.unwrap();
    assert_eq!(shown.of, people(100));
    let made = make(Some(rule("manual", 2))).await.unwrap();
    let shown = made.vault.unwrap().approvals.unwrap();
    assert_eq!(shown.expires_ms, 72 * HOUR);
    let expected = admin::ApprovalRule {
        expires_ms: 72 * HOUR,
        ..rule("manual", 2)
    };
    assert_eq!(shown, expected);
    // Repeating gives the same vault; with another rule it is refused.
    make(Some(rule("manual", 2))).await.unwrap();
    let fault = make(Some(automatic())).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Conflict, "{fault}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manual__should_sign_nothing_for_a_client_that_creates_looks_and_rejects() {
    let world = World::new();
    let gateway = world.start().await;
    let from = manual(&gateway).await;
    for kind in [send(&from), raw(&from)] {
        // Without a callback key, as published clients do.
        let made = create(&gateway, kind).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let shown = details(&gateway, &made.uuid).await;
        assert_eq!(shown.status(), Status::Pending);
        assert_eq!(shown.pending_operation, "approve");
        let counts = (
            shown.required_approval_count,
            shown.remaining_approval_count,
        );
        assert_eq!(counts, (2, 2));
        let refused = try_outcome(&gateway, &admin(), &made.uuid).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.class(), &Class::Forbidden);
        assert_eq!(refused.message(), "ClientSignerPublicKey is required");
        reject(&gateway, &made.uuid, None).await.unwrap();
        let shown = details(&gateway, &made.uuid).await;
        assert_eq!(shown.status(), Status::Failed);
        assert_eq!(
            (shown.approval_subject, shown.pending_operation.as_str()),
            (None, "")
        );
        let error = outcome(&gateway, &made.uuid).await.error.unwrap();
        assert_eq!(code(&error), ErrorCode::AlreadyDenied);
        // Too late for everybody.
        let late = persons()[0].approval(
            &wire::SigningRequest {
                approval_subject: made.approval_subject.clone(),
                ..shown
            },
            0,
            world.clock_ms() + HOUR,
        );
        let fault = approve(&gateway, &made.uuid, late).await.unwrap_err();
        assert_eq!(fault.class(), &Class::WrongState);
    }
    assert_eq!(world.signers.requests(), 0, "nothing may have been signed");
    assert_eq!(world.evm.accepted(), 0);
    assert_eq!(rows(&world, KeySpace::NonceReservation).await, 0);
    assert_eq!(rows(&world, KeySpace::Awaiting).await, 0);
}

/// A wallet of a vault in which two people approve, or the client signer that is node 1.
async fn with_client_signer(gateway: &Gateway) -> String {
    let named = admin::ApprovalRule {
        client_signers: vec![node(1).openssh_line("bot")],
        ..rule("manual", 2)
    };
    let vault = vault_with(gateway, named).await;
    evm_wallet(gateway, vault).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_signer__should_decide_in_place_of_the_people_of_its_vault() {
    let world = World::new();
    let gateway = world.start().await;
    let from = with_client_signer(&gateway).await;
    let make = async |key: String| {
        let request = wire::CreateSigningRequestRequest {
            callback_client_signer_public_key: Some(key),
            ..request(raw(&from))
        };
        let made = call::<CreateSigningRequest>(&gateway, &admin(), request).await;
        made.map(|made| made.signing_request.unwrap())
    };
    let line = node(1).openssh_line("");
    let bare = line.trim_start_matches("ssh-ed25519 ").to_owned();
    for key in [format!("{line} production"), line.clone(), bare] {
        let made = make(key).await.unwrap();
        assert_eq!(made.callback_client_signer_public_key, Some(line.clone()));
        assert_eq!(
            (
                made.required_approval_count,
                made.pending_operation.as_str()
            ),
            (0, "")
        );
        assert_eq!(outcome(&gateway, &made.uuid).await.error, None);
        assert_eq!(world.signers.client_signer(&made.uuid), Some(node(1)));
        let shown = details(&gateway, &made.uuid).await;
        assert_eq!(shown.callback_client_signer_public_key, Some(line.clone()));
    }
    // Whom nobody has given a share cannot take part.
    let fault = make(node(99).openssh_line("")).await.unwrap_err();
    assert_eq!(
        fault.message(),
        "callbackClientSignerPublicKey: holds no share of this key of the vault; reshare the vault to it first"
    );
    // An empty key is none.
    let made = make(String::new()).await.unwrap();
    assert_eq!(made.callback_client_signer_public_key, None);
    assert_eq!(waits(&gateway, &made.uuid).await.required_approval_count, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_signer__should_decide_about_what_replaces_its_transaction_too() {
    let world = World::new();
    *world.evm.sighting.lock().unwrap() = Some(TransactionSighting::Waiting);
    world.evm.replaceable.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let from = with_client_signer(&gateway).await;
    let line = node(1).openssh_line("");
    let request = wire::CreateSigningRequestRequest {
        callback_client_signer_public_key: Some(line.clone()),
        ..request(send(&from))
    };
    let made = call::<CreateSigningRequest>(&gateway, &admin(), request).await;
    let made = made.unwrap().signing_request.unwrap();
    assert_eq!(outcome(&gateway, &made.uuid).await.error, None);
    let asked = wire::ReplaceTransactionRequest {
        uuid: made.uuid,
        action: wire::replace_transaction_request::Action::SpeedUp.into(),
        most_fee: None,
        notes: None,
    };
    let made = call::<ReplaceTransaction>(&gateway, &admin(), asked).await;
    let made = made.unwrap().signing_request.unwrap();
    assert_eq!(made.callback_client_signer_public_key, Some(line));
    assert_eq!(made.required_approval_count, 0);
    assert_eq!(outcome(&gateway, &made.uuid).await.error, None);
    assert_eq!(world.signers.client_signer(&made.uuid), Some(node(1)));
}
