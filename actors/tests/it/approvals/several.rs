//! Several requests in one call.

use covault_actors::operations::{ApproveSigningRequests, RejectSigningRequests};

use super::*;
use crate::processes::{self, Process, owned};

/// What became of each: the approvals that it lacks, or why it is as it was.
type Results = Result<Vec<Result<u32, String>>, Fault>;

fn results(results: Vec<wire::SigningRequestResult>, uuids: &[&str]) -> Vec<Result<u32, String>> {
    let names: Vec<_> = results.iter().map(|it| it.uuid.as_str()).collect();
    assert_eq!(names, uuids);
    let each = results.into_iter().map(|it| match it.error {
        Some(error) => Err(error.message),
        None => Ok(it.remaining_approval_count),
    });
    each.collect()
}

async fn approve_all(
    gateway: &Gateway,
    caller: &Caller,
    uuids: &[&str],
    approval: Option<wire::Approval>,
) -> Results {
    let request = wire::ApproveSigningRequestsRequest {
        uuids: uuids.iter().map(|&uuid| uuid.to_owned()).collect(),
        approval,
    };
    let answer = call::<ApproveSigningRequests>(gateway, caller, request).await?;
    Ok(results(answer.results, uuids))
}

async fn reject_all(
    gateway: &Gateway,
    uuids: &[&str],
    rejection: Option<wire::PersonProof>,
) -> Results {
    let request = wire::RejectSigningRequestsRequest {
        uuids: uuids.iter().map(|&uuid| uuid.to_owned()).collect(),
        rejection,
        reason: String::new(),
    };
    let answer = call::<RejectSigningRequests>(gateway, &admin(), request).await?;
    Ok(results(answer.results, uuids))
}

/// Requests of one wallet as they are shown, and the approval of some of them by the treasurer, with one gesture.
async fn waiting<const N: usize>(gateway: &Gateway, from: &str) -> [wire::SigningRequest; N] {
    let mut shown = Vec::new();
    for _ in 0..N {
        let uuid = create(gateway, send(from)).await.uuid;
        shown.push(details(gateway, &uuid).await);
    }
    shown.try_into().unwrap()
}

fn gesture(shown: &[&wire::SigningRequest], until: u64) -> wire::Approval {
    let ids = shown.iter().map(|it| intent(it, FEE, until).id().unwrap());
    let mut ids: Vec<_> = ids.collect();
    ids.sort_unstable();
    wire::Approval {
        most_fee: FEE.to_string(),
        valid_until_ms: until,
        list: ids.iter().map(|id| id.to_vec()).collect(),
        proof: Some(persons()[0].sign(&list_challenge(&ids).unwrap())),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approve_requests__should_say_of_each_what_became_of_it() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault_with(&gateway, rule("manual", 1)).await;
    let from = evm_wallet(&gateway, vault).await;
    let until = world.clock_ms() + HOUR;
    let [a, b, ended, unsigned] = waiting(&gateway, &from).await;
    reject(&gateway, &ended.uuid, None).await.unwrap();
    let approval = gesture(&[&a, &b, &ended], until);
    let unknown = "00000000-0000-4000-8000-000000000000";
    let uuids = [
        a.uuid.as_str(),
        &ended.uuid,
        unknown,
        &unsigned.uuid,
        &b.uuid,
    ];

    // Who may see none of them learns nothing of them.
    let stranger = Caller {
        vaults: VaultScope::Only(vec![VaultId::from_bytes([7; 16])]),
        ..admin()
    };
    let seen = approve_all(&gateway, &stranger, &uuids, Some(approval.clone())).await;
    assert_eq!(seen.unwrap(), vec![Err("Invalid uuid".to_owned()); 5]);

    let got = approve_all(&gateway, &admin(), &uuids, Some(approval.clone())).await;
    let got = got.unwrap();
    assert_eq!((&got[0], &got[4]), (&Ok(0), &Ok(0)));
    let said = |place: usize| got[place].clone().unwrap_err();
    assert_eq!(said(1), "the request has ended and cannot be approved");
    assert_eq!(said(2), "Invalid uuid");
    assert!(said(3).starts_with("approval.list"), "{}", said(3));
    for one in [&a, &b] {
        assert_eq!(outcome(&gateway, &one.uuid).await.error, None);
    }
    assert_eq!(details(&gateway, &unsigned.uuid).await.approvals, []);
    assert_eq!(world.evm.accepted(), 2);
    // Again: those that are done need no more.
    let again = approve_all(&gateway, &admin(), &[&a.uuid, &b.uuid], Some(approval)).await;
    assert_eq!(again.unwrap(), [Ok(0), Ok(0)]);
    assert_eq!(world.evm.accepted(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_about_several__should_be_refused_as_a_whole_before_anything_is_done() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault_with(&gateway, rule("manual", 1)).await;
    let from = evm_wallet(&gateway, vault).await;
    let other = admin::CreateVaultRequest {
        approvals: Some(rule("manual", 1)),
        ..vault_request("other")
    };
    let other = call::<CreateVault>(&gateway, &admin(), other).await;
    ready(&gateway, "other").await;
    let other = other.unwrap().vault.unwrap().uuid.parse().unwrap();
    let other = evm_wallet(&gateway, other).await;
    let until = world.clock_ms() + HOUR;
    let [a, b] = waiting(&gateway, &from).await;
    let [of_other] = waiting(&gateway, &other).await;
    let approval = gesture(&[&a, &b, &of_other], until);
    let [a, b, of_other] = [a, b, of_other].map(|it| it.uuid);
    let many: Vec<String> = (0..101)
        .map(|number| format!("00000000-0000-4000-8000-{number:012}"))
        .collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (uuids, problem) in [
        (&[][..], "uuids: must be 1 to 100 signing requests"),
        (&many, "uuids: must be 1 to 100 signing requests"),
        (&[&a, "nonsense"], "uuids[1]: Invalid uuid"),
        (&[&a, &b, &a], "uuids[2]: is named twice"),
        (&[&a, &of_other], "uuids[1]: belongs to another vault"),
    ] {
        let refused = approve_all(&gateway, &admin(), uuids, Some(approval.clone())).await;
        for refused in [refused, reject_all(&gateway, uuids, None).await] {
            let fault = refused.unwrap_err();
            assert_eq!(*fault.class(), Class::Invalid);
            assert!(fault.message().starts_with(problem), "{fault:?}");
        }
    }
    let refused = approve_all(&gateway, &admin(), &[&a, &b], None).await;
    let fault = refused.unwrap_err();
    assert!(fault.message().starts_with("approval: is required"));
    for uuid in [&a, &b, &of_other] {
        let shown = details(&gateway, uuid).await;
        assert_eq!((shown.status(), shown.approvals), (Status::Pending, vec![]));
    }
    // Each vault's with the same gesture.
    for uuids in [&[&*a, &*b][..], &[&*of_other]] {
        let done = approve_all(&gateway, &admin(), uuids, Some(approval.clone())).await;
        assert!(done.unwrap().iter().all(|it| *it == Ok(0)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reject_requests__should_end_those_that_a_person_has_rejected_together_and_no_others() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault_with(&gateway, rule("manual", 1)).await;
    let from = evm_wallet(&gateway, vault).await;
    let [a, b, c] = waiting(&gateway, &from).await;
    let [a, b, c] = [a, b, c].map(|it| it.uuid);
    let together = |uuids: &[&str]| {
        let ids: Vec<_> = uuids.iter().map(|uuid| uuid.parse().unwrap()).collect();
        rejections_challenge(vault, &ids).unwrap()
    };
    let proof = persons()[0].sign(&together(&[&a, &b]));
    // More than was rejected, or less, was not rejected; nor is a rejection of an approver's list an approval.
    for uuids in [&[&*a, &*b, &*c][..], &[&*a], &[&*a, &*c]] {
        let refused = reject_all(&gateway, uuids, Some(proof.clone())).await;
        for refused in refused.unwrap() {
            let problem = refused.unwrap_err();
            assert!(problem.starts_with("rejection.proof"), "{problem}");
        }
    }
    let stranger = Person::key(77).sign(&together(&[&a, &b]));
    let refused = reject_all(&gateway, &[&a, &b], Some(stranger)).await;
    assert!(refused.unwrap().iter().all(Result::is_err));

    let told = || world.signers.rejections.lock().unwrap().len();
    // One of the list is nobody's: its signers are not told, whatever they would take.
    let unknown = "01a21782-0000-7000-8000-000000000001";
    let with_unknown = persons()[0].sign(&together(&[&c, unknown]));
    let done = reject_all(&gateway, &[&c, unknown], Some(with_unknown)).await;
    assert_eq!(done.unwrap()[0], Ok(0));
    assert_eq!(told(), 0);
    let done = reject_all(&gateway, &[&b, &a], Some(proof.clone())).await;
    assert_eq!(done.unwrap(), [Ok(0), Ok(0)]);
    assert_eq!(told(), 1);
    // A call that is repeated tells them again: they may not have heard of it.
    let done = reject_all(&gateway, &[&b, &a], Some(proof.clone())).await;
    assert!(done.unwrap().iter().all(Result::is_err));
    assert_eq!(told(), 2);
    for uuid in [&a, &b] {
        let shown = details(&gateway, uuid).await;
        assert_eq!(shown.status(), Status::Failed);
        assert!(shown.failed_reason.starts_with("rejected by treasurer"));
    }
    let again = reject_all(&gateway, &[&a], None).await.unwrap();
    let problem = again[0].clone().unwrap_err();
    assert!(problem.contains("already rejected"), "{problem}");
    assert_eq!(world.signers.requests(), 0);
}

/// A new vault with a request that waits, through this process.
async fn waiting_in(gateway: Gateway, name: String) -> (VaultId, String) {
    assert!(admit(&gateway).await);
    let request = admin::CreateVaultRequest {
        approvals: Some(rule("manual", 1)),
        ..vault_request(&name)
    };
    let made = call::<CreateVault>(&gateway, &admin(), request).await;
    let vault: VaultId = made.unwrap().vault.unwrap().uuid.parse().unwrap();
    ready(&gateway, &name).await;
    let from = evm_wallet(&gateway, vault).await;
    (vault, create(&gateway, send(&from)).await.uuid)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_about_several__should_run_where_the_callers_vault_is_whatever_else_they_name_first()
{
    let world = processes::world();
    let (one, two) = (Process::start(&world).await, Process::start(&world).await);
    let mut of_each: [Option<(VaultId, String)>; 2] = [None, None];
    for number in 0.. {
        if of_each.iter().all(Option::is_some) {
            break;
        }
        let made = one.inside(waiting_in(one.gateway.clone(), format!("v{number}")));
        let made = made.await.unwrap();
        let owner = owned(&world, made.0, &[&one, &two]).await;
        of_each[owner] = Some(made);
    }
    let [(vault, own), (_, foreign)] = of_each.map(Option::unwrap);
    let caller = Caller {
        vaults: VaultScope::Only(vec![vault]),
        ..admin()
    };
    let request = wire::RejectSigningRequestsRequest {
        uuids: vec![foreign.clone(), own.clone()],
        rejection: None,
        reason: String::new(),
    };
    let gateway = two.gateway.clone();
    let answer =
        two.inside(async move { call::<RejectSigningRequests>(&gateway, &caller, request).await });
    let answer = answer.await.unwrap().unwrap();
    let said = results(answer.results, &[&foreign, &own]);
    assert_eq!(said, [Err("Invalid uuid".to_owned()), Ok(0)]);
}
