//! Another rule for who decides.

use covault_actors::operations::{ChangeApprovals, CreateWallet, ListVaults, ReplaceTransaction};
use covault_core::{
    approval::testing::{TestSshKey, TestSshKind},
    audit::AuditChain,
    request::{ApprovalRule, RuleChange},
};

use super::*;
use crate::audit::{event, whole};

fn key(number: u8) -> TestSshKey {
    TestSshKey::new(TestSshKind::Ed25519, number)
}

/// These persons, each with the key of its number.
fn of(mode: &str, needs: u32, persons: &[u8]) -> admin::ApprovalRule {
    let person = |number: &u8| admin::Approver {
        name: format!("person {number}"),
        keys: vec![key(*number).line()],
    };
    admin::ApprovalRule {
        mode: mode.into(),
        needs,
        of: persons.iter().map(person).collect(),
        ..Default::default()
    }
}

async fn change(
    gateway: &Gateway,
    change: &RuleChange,
    signatures: &[u8],
) -> Result<admin::ApprovalRule, Fault> {
    let challenge = change.challenge().unwrap();
    let request = admin::ChangeApprovalsRequest {
        vault_uuid: change.vault.to_string(),
        approvals: Some(change.next.to_wire()),
        valid_until_ms: change.valid_until_ms,
        signatures: signatures
            .iter()
            .map(|it| key(*it).sign(&challenge))
            .collect(),
    };
    let changed = call::<ChangeApprovals>(gateway, &admin(), request).await?;
    Ok(changed.vault.unwrap().approvals.unwrap())
}

fn parsed(rule: admin::ApprovalRule) -> ApprovalRule {
    ApprovalRule::parse(Some(rule)).unwrap()
}

async fn rule_of(gateway: &Gateway) -> ApprovalRule {
    let request = admin::ListVaultsRequest { after: None };
    let vaults = call::<ListVaults>(gateway, &admin(), request)
        .await
        .unwrap();
    parsed(vaults.vaults[0].approvals.clone().unwrap())
}

/// How often the rule was changed, as operators see it.
async fn changes_of(gateway: &Gateway) -> u64 {
    let request = admin::ListVaultsRequest { after: None };
    let vaults = call::<ListVaults>(gateway, &admin(), request).await;
    vaults.unwrap().vaults[0].approval_changes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change__should_need_as_many_people_as_the_rule_in_force_and_nobody_elses_yes() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault_with(&gateway, of("manual", 2, &[1, 2, 3])).await;
    let from = evm_wallet(&gateway, vault).await;
    let before = create(&gateway, send(&from)).await;
    let until = world.clock_ms() + HOUR;
    let wanted = RuleChange {
        vault,
        changes: 0,
        present: rule_of(&gateway).await,
        next: parsed(of("manual", 1, &[4])),
        valid_until_ms: until,
    };
    let refused = async |by: &RuleChange, signatures: &[u8], starts: &str| {
        let fault = change(&gateway, by, signatures).await.unwrap_err();
        assert_eq!(*fault.class(), Class::Invalid);
        assert!(fault.message().starts_with(starts), "{fault:?}");
    };
    let wants = "signatures: the vault's rule wants 2 of person 1, person 2, person 3, and ";
    for (signatures, starts) in [
        (&[][..], wants),
        (&[1], wants),
        (&[1, 1], wants),
        // Whom the new rule names decides nothing yet.
        (&[1, 4], "signatures[1]: "),
        (&[1, 2, 9], "signatures[2]: "),
        (&[1; 17], "signatures: more than 16"),
    ] {
        refused(&wanted, signatures, starts).await;
    }
    let automatic = RuleChange {
        next: ApprovalRule::automatic(),
        ..wanted.clone()
    };
    refused(&automatic, &[], wants).await;
    // What they have signed is this change, of this vault, from the rule in force, until then.
    let challenge = wanted.challenge().unwrap();
    let stolen = async |by: RuleChange| {
        let signatures = [1, 2].map(|it| key(it).sign(&challenge)).to_vec();
        let request = admin::ChangeApprovalsRequest {
            vault_uuid: vault.to_string(),
            approvals: Some(by.next.to_wire()),
            valid_until_ms: by.valid_until_ms,
            signatures,
        };
        let fault = call::<ChangeApprovals>(&gateway, &admin(), request).await;
        let fault = fault.unwrap_err();
        assert!(fault.message().starts_with("signatures[0]: "), "{fault:?}");
    };
    stolen(automatic).await;
    stolen(RuleChange {
        valid_until_ms: until + 1,
        ..wanted.clone()
    })
    .await;
    let elsewhere = RuleChange {
        vault: VaultId::from_bytes([9; 16]),
        ..wanted.clone()
    };
    let later = RuleChange {
        changes: 1,
        ..wanted.clone()
    };
    let from_another = RuleChange {
        present: parsed(of("manual", 1, &[1, 2, 3])),
        ..wanted.clone()
    };
    for other in [elsewhere, later, from_another] {
        let challenge = other.challenge().unwrap();
        let request = admin::ChangeApprovalsRequest {
            vault_uuid: vault.to_string(),
            approvals: Some(wanted.next.to_wire()),
            valid_until_ms: until,
            signatures: [1, 2].map(|it| key(it).sign(&challenge)).to_vec(),
        };
        let fault = call::<ChangeApprovals>(&gateway, &admin(), request).await;
        assert!(fault.unwrap_err().message().starts_with("signatures[0]: "));
    }
    for (valid_until_ms, problem) in [
        (world.clock_ms(), "validUntilMs: is over"),
        (until + DAY, "validUntilMs: is more than 24 hours ahead"),
    ] {
        let dated = RuleChange {
            valid_until_ms,
            ..wanted.clone()
        };
        refused(&dated, &[1, 2], problem).await;
    }
    assert_eq!(rule_of(&gateway).await, wanted.present);

    let changed = change(&gateway, &wanted, &[3, 1]).await.unwrap();
    assert_eq!(parsed(changed), wanted.next);
    // The same once more changes nothing, and the signatures are good for no way back.
    change(&gateway, &wanted, &[3, 1]).await.unwrap();
    gateway.stop().await;
    let gateway = world.start().await;
    assert_eq!(rule_of(&gateway).await, wanted.next);

    // Those of before keep their rule; those from now on have the new one.
    let after = create(&gateway, send(&from)).await;
    let counts = async |uuid: &str| details(&gateway, uuid).await.required_approval_count;
    assert_eq!(
        (counts(&before.uuid).await, counts(&after.uuid).await),
        (2, 1)
    );
    // Only person 4 changes it from now on.
    let back = RuleChange {
        changes: 1,
        present: wanted.next.clone(),
        next: wanted.present.clone(),
        ..wanted.clone()
    };
    let fault = change(&gateway, &back, &[1, 2]).await.unwrap_err();
    assert!(fault.message().starts_with("signatures[0]: "), "{fault:?}");
    change(&gateway, &back, &[4]).await.unwrap();
    assert_eq!(rule_of(&gateway).await, wanted.present);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change__should_be_the_operators_where_the_rule_needs_nobody() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault_with(&gateway, of("automatic", 0, &[1])).await;
    let mut to = RuleChange {
        vault,
        changes: 0,
        present: rule_of(&gateway).await,
        next: parsed(of("manual", 1, &[1])),
        valid_until_ms: 0,
    };
    // A rule that cannot be met is none.
    let impossible = admin::ChangeApprovalsRequest {
        vault_uuid: vault.to_string(),
        approvals: Some(of("manual", 2, &[1])),
        valid_until_ms: 0,
        signatures: Vec::new(),
    };
    let fault = call::<ChangeApprovals>(&gateway, &admin(), impossible).await;
    let fault = fault.unwrap_err();
    assert!(
        fault
            .message()
            .starts_with("approvals.needs: must be 1 to 1")
    );
    change(&gateway, &to, &[]).await.unwrap();
    assert_eq!(rule_of(&gateway).await, to.next);
    // Not back without that person.
    std::mem::swap(&mut to.present, &mut to.next);
    to.changes = 1;
    to.valid_until_ms = world.clock_ms() + HOUR;
    change(&gateway, &to, &[]).await.unwrap_err();
    change(&gateway, &to, &[1]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signatures__should_count_for_one_change_and_for_none_that_comes_later() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault_with(&gateway, of("manual", 1, &[1])).await;
    let (old, new) = (rule_of(&gateway).await, parsed(of("manual", 1, &[1, 2])));
    let there = RuleChange {
        vault,
        changes: 0,
        present: old.clone(),
        next: new.clone(),
        valid_until_ms: world.clock_ms() + HOUR,
    };
    // Signed at the same time, and not used.
    let other = RuleChange {
        next: parsed(of("manual", 1, &[1, 3])),
        ..there.clone()
    };
    let back = RuleChange {
        changes: 1,
        present: new.clone(),
        next: old.clone(),
        ..there.clone()
    };
    assert_eq!(changes_of(&gateway).await, 0);
    change(&gateway, &there, &[1]).await.unwrap();
    // Repeated, it is done, and is no change.
    change(&gateway, &there, &[1]).await.unwrap();
    assert_eq!(changes_of(&gateway).await, 1);
    change(&gateway, &back, &[2]).await.unwrap();
    assert_eq!(
        (rule_of(&gateway).await, changes_of(&gateway).await),
        (old.clone(), 2)
    );
    // The rule is what it was when they signed; that it was changed in between is not forgotten by a restart either.
    for restarted in [false, true] {
        let gateway = if restarted {
            gateway.stop().await;
            world.start().await
        } else {
            gateway.clone()
        };
        for used in [&there, &other] {
            let fault = change(&gateway, used, &[1]).await.unwrap_err();
            assert!(fault.message().starts_with("signatures[0]: "), "{fault:?}");
        }
        assert_eq!(rule_of(&gateway).await, old);
        if restarted {
            let signed_again = RuleChange {
                changes: 2,
                ..there.clone()
            };
            change(&gateway, &signed_again, &[1]).await.unwrap();
            assert_eq!(rule_of(&gateway).await, new);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_signers__should_be_those_whom_the_people_of_the_vault_have_named() {
    let world = World::new();
    *world.evm.sighting.lock().unwrap() = Some(TransactionSighting::Waiting);
    world.evm.replaceable.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let line = |number| node(number).openssh_line("");
    let naming = |signers: &[u8]| admin::ApprovalRule {
        client_signers: signers.iter().map(|it| line(*it)).collect(),
        ..of("manual", 2, &[1, 2, 3])
    };
    let vault = vault_with(&gateway, naming(&[1])).await;
    let from = evm_wallet(&gateway, vault).await;
    let make = async |signer: u8| {
        let request = wire::CreateSigningRequestRequest {
            callback_client_signer_public_key: Some(line(signer)),
            ..request(send(&from))
        };
        let made = call::<CreateSigningRequest>(&gateway, &admin(), request).await;
        made.map(|made| made.signing_request.unwrap().uuid)
    };
    let wallet = async |signer: u8| {
        let request = wire::CreateWalletRequest {
            vault_uuid: vault.to_string(),
            callback_client_signer_public_key: line(signer),
            network_type: wire::NetworkType::Evm.into(),
            ..Default::default()
        };
        call::<CreateWallet>(&gateway, &admin(), request).await
    };
    let not_named =
        "callbackClientSignerPublicKey: is not a client signer of the vault's approval rule";
    // Every holder of a share could say that it is one, and yes to anything.
    let fault = make(2).await.unwrap_err();
    assert_eq!(
        (fault.class(), fault.message()),
        (&Class::Invalid, not_named)
    );
    assert_eq!(wallet(2).await.unwrap_err().message(), not_named);
    wallet(1).await.unwrap();
    let uuid = make(1).await.unwrap();
    assert_eq!(outcome(&gateway, &uuid).await.error, None);

    // Nobody names one but as many people as approve.
    let wanted = RuleChange {
        vault,
        changes: 0,
        present: rule_of(&gateway).await,
        next: parsed(naming(&[2])),
        valid_until_ms: world.clock_ms() + HOUR,
    };
    let fault = change(&gateway, &wanted, &[1]).await.unwrap_err();
    assert!(fault.message().starts_with("signatures: "), "{fault:?}");
    let others = RuleChange {
        next: parsed(naming(&[1, 2])),
        ..wanted.clone()
    };
    let request = admin::ChangeApprovalsRequest {
        vault_uuid: vault.to_string(),
        approvals: Some(others.next.to_wire()),
        valid_until_ms: wanted.valid_until_ms,
        signatures: [1, 2]
            .map(|it| key(it).sign(&wanted.challenge().unwrap()))
            .to_vec(),
    };
    let fault = call::<ChangeApprovals>(&gateway, &admin(), request).await;
    assert!(fault.unwrap_err().message().starts_with("signatures[0]: "));
    assert_eq!(make(2).await.unwrap_err().message(), not_named);
    let changed = change(&gateway, &wanted, &[1, 2]).await.unwrap();
    assert_eq!(changed.client_signers, [line(2)]);
    assert_eq!(make(1).await.unwrap_err().message(), not_named);

    // What the one before has decided is replaced by who decides now, and that is not it.
    let asked = wire::ReplaceTransactionRequest {
        uuid,
        action: wire::replace_transaction_request::Action::SpeedUp.into(),
        most_fee: None,
        notes: None,
    };
    let made = call::<ReplaceTransaction>(&gateway, &admin(), asked).await;
    let made = made.unwrap().signing_request.unwrap();
    assert_eq!(made.callback_client_signer_public_key, None);
    assert_eq!(waits(&gateway, &made.uuid).await.required_approval_count, 2);

    let uuid = make(2).await.unwrap();
    assert_eq!(outcome(&gateway, &uuid).await.error, None);
    assert_eq!(world.signers.client_signer(&uuid), Some(node(2)));
    // The log names them by themselves, however many people there are.
    let log = whole(&*world.store, "").await;
    let mut entries = log[&AuditChain::Vault(vault)].iter();
    let entry = entries
        .find(|it| event(it) == "ApprovalRuleChanged")
        .unwrap();
    let fact = |name: &str| {
        let mut facts = entry.events[0].facts.iter();
        facts
            .find(|(known, _)| known == name)
            .map(|(_, fact)| fact.as_str())
    };
    assert_eq!(fact("clientSignersBefore"), Some(line(1).as_str()));
    assert_eq!(fact("clientSigners"), Some(line(2).as_str()));
    assert_eq!(fact("people"), None);
    // Nobody else is named by an automatic rule, either.
    let named = parsed(naming(&[2]));
    assert!(named.describe().ends_with(&line(2)), "{}", named.describe());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wallets__should_be_signed_for_by_the_stricter_of_their_rule_and_the_vaults() {
    let world = World::new();
    let gateway = world.start().await;
    let naming = |mode: &str, needs, wallets: &[(&str, u32)]| {
        let wallets = wallets.iter().map(|(address, needs)| {
            let address = (*address).to_owned();
            let needs = *needs;
            admin::WalletApprovals { address, needs }
        });
        admin::ApprovalRule {
            wallets: wallets.collect(),
            ..of(mode, needs, &[1, 2, 3])
        }
    };
    // A new vault has none yet.
    let named = admin::CreateVaultRequest {
        approvals: Some(naming("automatic", 0, &[("0xab", 1)])),
        ..vault_request("other")
    };
    assert!(admit(&gateway).await);
    let fault = call::<CreateVault>(&gateway, &admin(), named).await;
    assert_eq!(fault.unwrap_err().path(), Some("approvals.wallets"));

    let vault = vault_with(&gateway, naming("automatic", 0, &[])).await;
    let (hot, cold) = (
        evm_wallet(&gateway, vault).await,
        evm_wallet(&gateway, vault).await,
    );
    let to = async |mode: &str, needs, wallets: &[(&str, u32)], by: &[u8]| {
        let changes = changes_of(&gateway).await;
        let wanted = RuleChange {
            vault,
            changes,
            present: rule_of(&gateway).await,
            next: parsed(naming(mode, needs, wallets)),
            valid_until_ms: world.clock_ms() + HOUR,
        };
        change(&gateway, &wanted, by).await
    };
    // What is no wallet of the vault would protect nothing.
    let fault = to("automatic", 0, &[(&cold, 2), ("0xab", 1)], &[]).await;
    let fault = fault.unwrap_err();
    assert_eq!(
        fault.path(),
        Some("approvals.wallets[1].address"),
        "{fault}"
    );
    let changed = to("automatic", 0, &[(&cold, 2)], &[]).await.unwrap();
    assert_eq!(
        changed.wallets,
        naming("automatic", 0, &[(&cold, 2)]).wallets
    );
    // The one is signed for at once, the other waits for two.
    let uuid = create(&gateway, send(&hot)).await.uuid;
    assert_eq!(outcome(&gateway, &uuid).await.error, None);
    let uuid = create(&gateway, send(&cold)).await.uuid;
    let waiting = waits(&gateway, &uuid).await;
    assert_eq!(waiting.required_approval_count, 2);
    let signed = world.signers.requests();
    // As many people change it as the wallet that needs most.
    for too_few in [&[][..], &[1]] {
        let fault = to("automatic", 0, &[], too_few).await.unwrap_err();
        assert!(fault.message().contains("wants 2 of"), "{fault}");
    }
    // Less than the vault needs changes nothing.
    to("manual", 3, &[(&cold, 2), (&hot, 1)], &[1, 2])
        .await
        .unwrap();
    for from in [&hot, &cold] {
        let uuid = create(&gateway, send(from)).await.uuid;
        assert_eq!(waits(&gateway, &uuid).await.required_approval_count, 3);
    }
    assert_eq!(world.signers.requests(), signed);
    // What was taken back is in the log.
    to("manual", 3, &[], &[1, 2, 3]).await.unwrap();
    let log = whole(&*world.store, "").await;
    let mut entries = log[&AuditChain::Vault(vault)].iter().rev();
    let entry = entries
        .find(|it| event(it) == "ApprovalRuleChanged")
        .unwrap();
    let fact = |of: &str| {
        let found = entry.events[0].facts.iter().find(|(name, _)| name == of);
        found.unwrap().1.clone()
    };
    assert_eq!(
        fact("walletsBefore"),
        format!("2 from {cold}\n1 from {hot}")
    );
    let mut gone = [(&cold, 2), (&hot, 1)];
    gone.sort_unstable();
    let gone = gone.map(|(address, needs)| format!("{address} removed, which had {needs}"));
    assert_eq!(fact("walletsChanged"), gone.join(", "));
}

#[test]
fn wallets__should_be_named_once_and_need_as_many_as_there_are() {
    let refused = |mode: &str, persons: &[u8], wallets: &[(&str, u32)]| {
        let wallets = wallets.iter().map(|(address, needs)| {
            let address = (*address).to_owned();
            let needs = *needs;
            admin::WalletApprovals { address, needs }
        });
        let rule = admin::ApprovalRule {
            wallets: wallets.collect(),
            ..of(mode, 0, persons)
        };
        let fault = ApprovalRule::parse(Some(rule)).unwrap_err();
        fault.path().unwrap_or_default().to_owned()
    };
    let all = [1, 2, 3];
    assert_eq!(refused("automatic", &[], &[("a", 1)]), "approvals.of");
    let needs = "approvals.wallets[0].needs";
    for wrong in [0, 4, 70_000] {
        assert_eq!(refused("automatic", &all, &[("a", wrong)]), needs);
    }
    let address = "approvals.wallets[0].address";
    for wrong in ["", "a\u{7}", &"a".repeat(129)] {
        assert_eq!(refused("automatic", &all, &[(wrong, 1)]), address);
    }
    let twice = [("a", 1), ("a", 2)];
    assert_eq!(
        refused("automatic", &all, &twice),
        "approvals.wallets[1].address"
    );
    let names: Vec<_> = (0..101).map(|number| number.to_string()).collect();
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
    assert_eq!(refused("automatic", &all, &many), "approvals.wallets");
}

#[tokio::test]
async fn log__should_name_whom_a_change_adds_however_many_people_there_are() {
    let world = World::new();
    let gateway = world.start().await;
    // Names of the greatest length: both rules are cut to the same text.
    let many = |last: u8| admin::ApprovalRule {
        of: (1..=40_u8)
            .chain([last])
            .map(|number| admin::Approver {
                name: format!("{number:085}"),
                keys: vec![key(number).line()],
            })
            .collect(),
        client_signers: vec![node(last - 50).openssh_line("")],
        ..of("automatic", 0, &[])
    };
    let vault = vault_with(&gateway, many(51)).await;
    let wanted = RuleChange {
        vault,
        changes: 0,
        present: rule_of(&gateway).await,
        next: parsed(many(52)),
        valid_until_ms: world.clock_ms() + HOUR,
    };
    change(&gateway, &wanted, &[]).await.unwrap();
    let log = whole(&*world.store, "").await;
    let mut entries = log[&AuditChain::Vault(vault)].iter();
    let entry = entries
        .find(|it| event(it) == "ApprovalRuleChanged")
        .unwrap();
    let facts: std::collections::BTreeMap<_, _> = entry.events[0].facts.iter().cloned().collect();
    assert_eq!(facts["from"], facts["to"]);
    assert!(facts["from"].ends_with("..."));
    assert_eq!(
        facts["people"],
        format!("{:085} added, {:085} removed", 52, 51)
    );
    assert_eq!(facts["clientSignersBefore"], node(1).openssh_line(""));
    assert_eq!(facts["clientSigners"], node(2).openssh_line(""));
}
