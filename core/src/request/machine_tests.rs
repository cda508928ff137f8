#![allow(non_snake_case)]

use std::collections::BTreeSet;

use super::{super::ApprovalMode, *};
use crate::{
    approval::{ApprovalProof, ApprovalTerms, GivenApproval},
    networks::{ChainData, Network, SigningInput, Unsigned},
    request::{Approver, NonceReservation},
    signature::Curve,
};

fn draft(broadcast: bool) -> Draft {
    Draft {
        chain_data: ChainData::Nothing,
        unsigned: Unsigned {
            bytes: vec![2, 1],
            signing: vec![SigningInput {
                curve: Curve::Secp256k1,
                message: vec![7; 32],
            }],
        },
        shared: Default::default(),
        claim: Some(NonceReservation {
            network: Network::Evm,
            chain_id: 1,
            address: "0xa".into(),
            nonce: 5,
        }),
        broadcast,
        built_at_ms: 3,
        deadline_ms: 9,
    }
}

fn signatures() -> Vec<Signature> {
    vec![Signature::Ecdsa {
        r: [1; 32],
        s: [2; 32],
        y_parity: 1,
    }]
}

fn signed() -> Signed {
    Signed {
        transaction: "0x02".into(),
        tx_hash: "0xhash".into(),
    }
}

fn session() -> SessionId {
    SessionId::from_bytes([3; 16])
}

/// A rule by which so many of treasurer, controller and director have to approve within a second.
fn rule(needs: u16) -> ApprovalRule {
    let approver = |name: &str| Approver {
        name: name.into(),
        keys: vec![format!("key of {name}")],
    };
    ApprovalRule {
        mode: match needs {
            0 => ApprovalMode::Automatic,
            needs => ApprovalMode::Manual { needs },
        },
        of: ["treasurer", "controller", "director"].map(approver).into(),
        expires_ms: 1_000,
        client_signers: Vec::new(),
        wallets: Vec::new(),
    }
}

fn automatic() -> Consent {
    Consent::new(ApprovalRule::automatic())
}

fn given(person: &str) -> PersonApproval {
    PersonApproval {
        person: person.into(),
        at_ms: 1,
        terms: ApprovalTerms {
            most_fee: 7,
            valid_until_ms: 900,
        },
        given: GivenApproval {
            list: Vec::new(),
            proof: ApprovalProof::Ssh(person.into()),
        },
    }
}

/// So many are needed, and these have approved; people are asked since the moment 0.
fn consent(needs: u16, persons: &[&str]) -> Consent {
    let mut consent = Consent::new(rule(needs)).waiting(0);
    consent.given = persons.iter().map(|person| given(person)).collect();
    consent
}

fn approves(person: &str) -> RequestEvent {
    RequestEvent::ApprovalGiven {
        approval: Box::new(given(person)),
        deadline_ms: 9,
    }
}

/// One has approved of so many, and signers hold it until the moment 501.
fn held(needs: u16) -> Consent {
    consent(needs, &["treasurer"]).held("signer-1 holds it".into(), 501, 1)
}

/// What is waited for, by how much is there already.
fn waiting() -> Vec<(&'static str, RequestState, Consent, u64)> {
    let waiting = |built| RequestState::AwaitingApproval {
        broadcast: true,
        built,
    };
    let built = Some(Box::new(BuiltDraft {
        draft: draft(true),
        attempts: 1,
    }));
    let mut again = consent(1, &["controller"]);
    again.wanted = Some("signer-2 wants 2".into());
    vec![
        ("Awaiting/nobody", waiting(None), automatic().waiting(0), 1),
        ("Awaiting/first", waiting(None), consent(2, &[]), 1),
        ("Awaiting/last", waiting(None), consent(2, &["director"]), 1),
        (
            "Awaiting/again",
            waiting(None),
            consent(2, &["treasurer"]),
            1,
        ),
        (
            "Awaiting/late",
            waiting(None),
            consent(2, &["director"]),
            1_000,
        ),
        ("Awaiting/built", waiting(built.clone()), again, 1),
        ("Awaiting/held", waiting(None), held(1), 500),
        ("Held/over", waiting(None), held(1), 501),
        ("Held/built", waiting(built), held(1), 501),
        ("Held/stale", waiting(None), held(2), 501),
    ]
}

/// Every state with who has agreed, and the moment; those that depend on it both with and without sending.
fn cases() -> Vec<(&'static str, RequestState, Consent, u64)> {
    let mut all = waiting();
    all.extend(states().into_iter().map(|(name, state)| {
        // There are people who could be asked.
        (name, state, consent(0, &[]), 1)
    }));
    all
}

/// Every state but that which waits for people; those that depend on it both with and without sending.
fn states() -> Vec<(&'static str, RequestState)> {
    let mut all = vec![("Received", RequestState::Received)];
    for (broadcast, names) in [
        (
            true,
            [
                "Screened",
                "Preparing",
                "Prepared",
                "Signing",
                "Signed/send",
            ],
        ),
        (false, ["", "", "", "", "Signed/keep"]),
    ] {
        let of_kind = [
            RequestState::Screened { broadcast },
            RequestState::Preparing {
                broadcast,
                deadline_ms: 9,
            },
            RequestState::Prepared {
                draft: draft(broadcast),
                attempts: 1,
            },
            RequestState::Signing {
                draft: draft(broadcast),
                attempt: 1,
                session: session(),
            },
            RequestState::Signed {
                draft: draft(broadcast),
                signatures: signatures(),
                signed: Some(signed()),
            },
        ];
        all.extend(
            names
                .into_iter()
                .zip(of_kind)
                .filter(|(name, _)| !name.is_empty()),
        );
    }
    all.push((
        "Broadcasting",
        RequestState::Broadcasting {
            draft: draft(true),
            signatures: signatures(),
            signed: signed(),
        },
    ));
    all.push((
        "InDoubt",
        RequestState::InDoubt {
            draft: Box::new(draft(true)),
            reason: "no".into(),
            code: ExecuteCode::AlreadyDenied,
        },
    ));
    for (name, sent, handed_over) in [
        ("Succeeded/sent", true, None),
        ("Succeeded/kept", false, Some(Box::new(draft(false)))),
    ] {
        all.push((
            name,
            RequestState::Succeeded {
                signatures: signatures(),
                signed: Some(signed()),
                sent,
                handed_over,
            },
        ));
    }
    all.push(("Failed", failed("no".into(), ExecuteCode::Unspecified)));
    all
}

fn events() -> Vec<RequestEvent> {
    let reason = || "because".to_owned();
    let code = ExecuteCode::InsufficientFunds;
    vec![
        RequestEvent::PolicyPassed { broadcast: true },
        RequestEvent::ApprovalAsked { rule: rule(2) },
        RequestEvent::Approved { deadline_ms: 9 },
        approves("treasurer"),
        RequestEvent::ApprovalWanted { reason: reason() },
        RequestEvent::ApprovalHeld {
            until_ms: 500,
            reason: reason(),
        },
        RequestEvent::HoldEnded { deadline_ms: 9 },
        RequestEvent::ApprovalExpired,
        RequestEvent::Rejected { reason: reason() },
        RequestEvent::Delayed { reason: reason() },
        RequestEvent::Built {
            draft: draft(true).into(),
        },
        RequestEvent::SessionClaimed {
            session: session(),
            deadline_ms: 9,
        },
        RequestEvent::SessionLost { reason: reason() },
        RequestEvent::SignaturesMade {
            signatures: signatures(),
            signed: Some(signed()),
        },
        RequestEvent::SendingStarted,
        RequestEvent::HandedOver,
        RequestEvent::NodeAccepted,
        RequestEvent::NodeRefused {
            reason: reason(),
            code,
        },
        RequestEvent::GaveUp {
            reason: reason(),
            code,
        },
        RequestEvent::Restored { reason: reason() },
        RequestEvent::NeverComes {
            reason: Some(reason()),
        },
        RequestEvent::FoundFinal {
            signatures: signatures(),
            signed: signed(),
        },
    ]
}

/// Columns in the order of [`events`]: where each event leads, `.` where it is illegal.
const MATRIX: &str = "\
Awaiting/nobody  . . Preparing . . . . . Failed . . . . . . . . . Failed Failed . .
Awaiting/first   . . . AwaitingApproval . . . . Failed . . . . . . . . . Failed Failed . .
Awaiting/last    . . . Preparing . . . . Failed . . . . . . . . . Failed Failed . .
Awaiting/again   . . . AwaitingApproval . . . . Failed . . . . . . . . . Failed Failed . .
Awaiting/late    . . . . . . . Failed Failed . . . . . . . . . Failed Failed . .
Awaiting/built   . . . Prepared . . . . InDoubt . . . . . . . . . InDoubt InDoubt . .
Awaiting/held    . . . Preparing . . . . Failed . . . . . . . . . Failed Failed . .
Held/over        . . . Preparing . . Preparing . Failed . . . . . . . . . Failed Failed . .
Held/built       . . . Prepared . . Prepared . InDoubt . . . . . . . . . InDoubt InDoubt . .
Held/stale       . . . AwaitingApproval . . AwaitingApproval . Failed . . . . . . . . . Failed Failed . .
Received         Screened . . . . . . . Failed . . . . . . . . . . Failed . .
Screened         . AwaitingApproval . . . . . . Failed . . . . . . . . . . Failed . .
Preparing        . . . . AwaitingApproval AwaitingApproval . . Failed Preparing Prepared . . . . . . . Failed Failed . .
Prepared         . . . . . . . . . . . Signing . . . . . . Failed InDoubt . .
Signing          . . . . AwaitingApproval AwaitingApproval . . . . . . Prepared Signed . . . . Failed InDoubt . .
Signed/send      . . . . . . . . . . . . . . Broadcasting . . . . . . .
Signed/keep      . . . . . . . . . . . . . . . Succeeded . . . . . .
Broadcasting     . . . . . . . . . Broadcasting . . . . . . Succeeded Failed . . . .
InDoubt          . . . . . . . . . . . . . . . . . . . . Failed Succeeded
Succeeded/sent   . . . . . . . . . . . . . . . . . . . . . .
Succeeded/kept   . . . . . . . . Failed . . . . . . . . . . . . .
Failed           . . . . . . . . . . . . . . . . . . . . . .
";

fn matrix() -> String {
    let mut text = String::new();
    for (name, state, consent, now_ms) in cases() {
        let cells = events()
            .into_iter()
            .map(|event| match state.clone().step(&consent, event, now_ms) {
                Ok(step) => step.next.name(),
                Err(_) => ".",
            })
            .collect::<Vec<_>>();
        text.push_str(&format!("{name:<16} {}\n", cells.join(" ")));
    }
    text
}

#[test]
fn step__should_have_exactly_the_transitions_of_the_matrix() {
    let names = events().iter().map(RequestEvent::name).collect::<Vec<_>>();
    println!("{:<16} {}\n{}", "", names.join(" "), matrix());
    assert_eq!(matrix(), MATRIX);
}

#[test]
fn step__should_be_exercised_in_every_legal_cell_by_walks_from_the_start() {
    let policy = |broadcast| RequestEvent::PolicyPassed { broadcast };
    let start = |broadcast| {
        vec![
            policy(broadcast),
            RequestEvent::ApprovalAsked { rule: rule(0) },
            RequestEvent::Approved { deadline_ms: 9 },
            RequestEvent::Built {
                draft: draft(broadcast).into(),
            },
        ]
    };
    let claim = || RequestEvent::SessionClaimed {
        session: session(),
        deadline_ms: 9,
    };
    let lost = || RequestEvent::SessionLost { reason: "x".into() };
    let delayed = || RequestEvent::Delayed { reason: "x".into() };
    let made = || RequestEvent::SignaturesMade {
        signatures: signatures(),
        signed: Some(signed()),
    };
    let gave_up = || RequestEvent::GaveUp {
        reason: "x".into(),
        code: ExecuteCode::Unspecified,
    };
    let refused = || RequestEvent::NodeRefused {
        reason: "x".into(),
        code: ExecuteCode::Unspecified,
    };
    let mut walks = vec![
        [
            start(true),
            vec![
                claim(),
                made(),
                RequestEvent::SendingStarted,
                RequestEvent::NodeAccepted,
            ],
        ]
        .concat(),
        [
            start(true),
            vec![
                claim(),
                made(),
                RequestEvent::SendingStarted,
                delayed(),
                refused(),
            ],
        ]
        .concat(),
        [
            start(false),
            vec![claim(), lost(), claim(), made(), RequestEvent::HandedOver],
        ]
        .concat(),
        [
            start(false),
            vec![
                claim(),
                made(),
                RequestEvent::HandedOver,
                RequestEvent::Rejected { reason: "x".into() },
            ],
        ]
        .concat(),
        [start(true), vec![gave_up()]].concat(),
        [start(true), vec![claim(), gave_up()]].concat(),
        [start(true)[..3].to_vec(), vec![delayed(), gave_up()]].concat(),
    ];
    for length in 0..=3 {
        let reject = RequestEvent::Rejected { reason: "x".into() };
        walks.push([start(true)[..length].to_vec(), vec![reject]].concat());
    }
    let restored = || RequestEvent::Restored { reason: "x".into() };
    let never = || RequestEvent::NeverComes { reason: None };
    for length in 0..=3 {
        walks.push([start(true)[..length].to_vec(), vec![restored()]].concat());
    }
    walks.push([start(true), vec![restored(), never()]].concat());
    walks.push([start(true), vec![claim(), restored(), never()]].concat());
    let found = || RequestEvent::FoundFinal {
        signatures: signatures(),
        signed: signed(),
    };
    walks.push([start(true), vec![claim(), restored(), found()]].concat());
    let wanted = || RequestEvent::ApprovalWanted { reason: "x".into() };
    let is_held = || RequestEvent::ApprovalHeld {
        until_ms: 1,
        reason: "x".into(),
    };
    let hold_ended = || RequestEvent::HoldEnded { deadline_ms: 9 };
    walks.push(
        [
            start(true)[..1].to_vec(),
            vec![
                RequestEvent::ApprovalAsked { rule: rule(2) },
                approves("treasurer"),
                approves("director"),
            ],
            start(true)[3..].to_vec(),
            vec![
                claim(),
                wanted(),
                approves("controller"),
                claim(),
                is_held(),
                hold_ended(),
                claim(),
                wanted(),
                gave_up(),
                RequestEvent::NeverComes { reason: None },
            ],
        ]
        .concat(),
    );
    walks.push(
        [
            start(true)[..1].to_vec(),
            vec![
                RequestEvent::ApprovalAsked { rule: rule(1) },
                approves("treasurer"),
                wanted(),
                approves("director"),
                is_held(),
                hold_ended(),
                is_held(),
                approves("controller"),
                gave_up(),
            ],
        ]
        .concat(),
    );
    walks.push(
        [
            start(true)[..1].to_vec(),
            vec![
                RequestEvent::ApprovalAsked {
                    rule: ApprovalRule {
                        expires_ms: 0,
                        ..rule(2)
                    },
                },
                RequestEvent::ApprovalExpired,
            ],
        ]
        .concat(),
    );
    let mut walked = BTreeSet::new();
    for walk in walks {
        let (mut state, mut consent) = (RequestState::Received, automatic());
        for event in walk {
            let cell = (state.name(), event.name());
            let step = state.step(&consent, event, 1).unwrap();
            (state, consent) = (step.next, step.consent.unwrap_or(consent));
            walked.insert(cell);
        }
        assert!(state.is_final());
    }
    let legal = cases()
        .into_iter()
        .flat_map(|case| events().into_iter().map(move |event| (case.clone(), event)))
        .filter(|((_, state, consent, now_ms), event)| {
            let stepped = state.clone().step(consent, event.clone(), *now_ms);
            stepped.is_ok()
        })
        .map(|((_, state, ..), event)| (state.name(), event.name()))
        .collect::<BTreeSet<_>>();
    assert_eq!(walked, legal);
}

#[test]
fn step__should_count_persons_who_may_approve_once_and_not_for_ever() {
    let step = |case: &str, event: RequestEvent| {
        let found = waiting().into_iter().find(|(name, ..)| *name == case);
        let (_, state, consent, now_ms) = found.unwrap();
        state.step(&consent, event, now_ms)
    };
    let persons = |step: &RequestStep| {
        let consent = step.consent.as_ref().unwrap();
        let given = consent.given.iter().map(|it| it.person.clone());
        given.collect::<Vec<_>>()
    };
    let again = step("Awaiting/again", approves("treasurer")).unwrap();
    assert_eq!(again.next.name(), "AwaitingApproval", "one person twice");
    assert_eq!(persons(&again), ["treasurer"]);
    let last = step("Awaiting/last", approves("treasurer")).unwrap();
    assert_eq!(last.next.name(), "Preparing");
    assert_eq!(persons(&last), ["director", "treasurer"]);
    // Not one of those who are named, an approval that is over, and one of an automatic vault without persons.
    assert!(step("Awaiting/last", approves("stranger")).is_err());
    assert!(step("Awaiting/nobody", approves("treasurer")).is_err());
    assert!(step("Awaiting/late", approves("treasurer")).is_err());
    // What was given before is over by now: one more is not enough.
    let fresh = RequestEvent::ApprovalGiven {
        approval: Box::new(PersonApproval {
            terms: ApprovalTerms {
                valid_until_ms: 5_000,
                ..given("treasurer").terms
            },
            ..given("treasurer")
        }),
        deadline_ms: 9,
    };
    let asked = Consent {
        expires_at_ms: 2_000,
        ..consent(2, &["director"])
    };
    let (_, state, ..) = waiting().remove(1);
    let late = state.step(&asked, fresh.clone(), 1_000).unwrap();
    assert_eq!(late.next.name(), "AwaitingApproval");
    // Nor does any count that comes when the request has expired.
    assert!(step("Awaiting/late", fresh).is_err());
    // Nobody but people gets a manual request on, and nobody ends it before its time.
    let approved = RequestEvent::Approved { deadline_ms: 9 };
    assert!(step("Awaiting/last", approved.clone()).is_err());
    assert!(step("Awaiting/built", approved).is_err());
    assert!(step("Awaiting/last", RequestEvent::ApprovalExpired).is_err());
    let expired = step("Awaiting/late", RequestEvent::ApprovalExpired).unwrap();
    let RequestState::Failed { reason, code, .. } = expired.next else {
        panic!("{:?}", expired.next);
    };
    assert_eq!(code, ExecuteCode::AlreadyDenied);
    assert_eq!(
        reason,
        "not approved in time: 0 of 2 approvals when it expired"
    );
}

#[test]
fn step__should_wait_while_signers_hold_it_and_go_on_with_approvals_that_hold() {
    let preparing = RequestState::Preparing {
        broadcast: true,
        deadline_ms: 9,
    };
    let event = RequestEvent::ApprovalHeld {
        until_ms: 501,
        reason: "signer-1 holds it".into(),
    };
    let asked = preparing
        .step(&consent(1, &["treasurer"]), event, 50)
        .unwrap();
    let consent = asked.consent.unwrap();
    assert_eq!(consent.wanted.as_deref(), Some("signer-1 holds it"));
    // People have all of their time after it; no approval is missing.
    assert_eq!((consent.due_ms(), consent.expires_at_ms), (501, 1_501));
    assert_eq!((consent.required(50), consent.count(50)), (1, 1));
    let ended = RequestEvent::HoldEnded { deadline_ms: 700 };
    let early = asked.next.clone().step(&consent, ended.clone(), 500);
    assert!(early.is_err(), "not before its time");
    let on = asked
        .next
        .clone()
        .step(&consent, ended.clone(), 501)
        .unwrap();
    assert_eq!(on.effect, Some(RequestEffect::Prepare));
    let released = on.consent.unwrap();
    assert_eq!((released.held_until_ms, released.wanted), (0, None));
    // The approval is over by then: people are asked again, and the hold is not begun anew.
    let late = asked
        .next
        .clone()
        .step(&consent, ended.clone(), 901)
        .unwrap();
    assert_eq!((late.next.name(), late.effect), ("AwaitingApproval", None));
    let asks = late.consent.unwrap();
    assert!(asks.wanted.as_ref().unwrap().contains("approve it again"));
    assert_eq!((asks.due_ms(), asks.required(901)), (1_501, 1));
    assert!(late.next.step(&asks, ended, 902).is_err(), "once");
    // Whoever may approve can end it.
    let veto = RequestEvent::Rejected {
        reason: "no".into(),
    };
    assert_eq!(
        asked.next.step(&consent, veto, 60).unwrap().next.name(),
        "Failed"
    );
}

#[test]
fn step__should_give_back_what_a_request_holds_while_a_signer_wants_more_approvals() {
    let signing = RequestState::Signing {
        draft: draft(true),
        attempt: 3,
        session: session(),
    };
    let wanted = RequestEvent::ApprovalWanted {
        reason: "signer-2 wants 2 of treasurer, controller, director".into(),
    };
    let nobody = automatic();
    let refused = signing.clone().step(&nobody, wanted.clone(), 1);
    assert!(refused.is_err(), "nobody could give one");
    let before = consent(1, &["treasurer"]);
    let asked = signing.step(&before, wanted, 50).unwrap();
    let freed = ReservationChange::Free(Box::new(draft(true)));
    assert_eq!(asked.claim, Some(freed));
    assert_eq!(asked.effect, None);
    let consent = asked.consent.unwrap();
    assert_eq!(consent.expires_at_ms, 1_050);
    assert_eq!((consent.required(50), consent.count(50)), (2, 1));
    let back = asked.next.step(&consent, approves("director"), 60).unwrap();
    assert_eq!(back.claim, Some(ReservationChange::Take));
    assert_eq!(back.consent.unwrap().wanted, None);
    let prepared = RequestState::Prepared {
        draft: draft(true),
        attempts: 3,
    };
    assert_eq!(back.next, prepared, "the only one that it ever signs");
}

#[test]
fn step__should_not_call_failed_what_signers_may_have_signed() {
    let mut cases = waiting().into_iter();
    let built = cases.find(|(name, ..)| *name == "Awaiting/built");
    let (_, built, ..) = built.unwrap();
    let reject = RequestEvent::Rejected {
        reason: "no".into(),
    };
    let step = built.step(&consent(1, &[]), reject.clone(), 1).unwrap();
    assert_eq!(step.claim, None, "it holds nothing since it waits");
    assert_eq!(step.effect, Some(RequestEffect::Doubt));
    assert!(!step.next.is_final());
    let void = RequestEvent::NeverComes {
        reason: Some("nonce 5 was used".into()),
    };
    let failed = step.next.step(&automatic(), void, 2).unwrap();
    let RequestState::Failed { reason, code, .. } = failed.next else {
        panic!("{:?}", failed.next);
    };
    assert_eq!(reason, "no; nonce 5 was used");
    assert_eq!(code, ExecuteCode::AlreadyDenied);
    // A message is on no chain, and what signers never saw they have not signed.
    let mut message = draft(false);
    message.unsigned.bytes.clear();
    let built = Some(Box::new(BuiltDraft {
        draft: message,
        attempts: 1,
    }));
    for built in [built, None] {
        let waiting = RequestState::AwaitingApproval {
            broadcast: false,
            built,
        };
        let step = waiting.step(&consent(1, &[]), reject.clone(), 1).unwrap();
        assert_eq!(step.next.name(), "Failed");
    }
}

#[test]
fn past_rejection__should_say_why_wherever_the_machine_refuses() {
    for (name, state, consent, now_ms) in cases() {
        let reject = RequestEvent::Rejected { reason: "x".into() };
        let can = state.clone().step(&consent, reject, now_ms).is_ok();
        assert_eq!(state.past_rejection().is_none(), can, "{name}");
    }
}

#[test]
fn step__should_never_change_the_draft_once_it_is_built() {
    let prepared = RequestState::Prepared {
        draft: draft(true),
        attempts: 4,
    };
    let claim = |state: RequestState| {
        let event = RequestEvent::SessionClaimed {
            session: session(),
            deadline_ms: 20,
        };
        state.step(&automatic(), event, 1).unwrap().next
    };
    let signing = claim(prepared);
    let RequestState::Signing {
        draft: first,
        attempt: 5,
        ..
    } = signing.clone()
    else {
        panic!("{signing:?}");
    };
    assert_eq!(first.unsigned, draft(true).unsigned);
    let lost = signing
        .step(
            &automatic(),
            RequestEvent::SessionLost { reason: "x".into() },
            1,
        )
        .unwrap();
    assert_eq!(lost.claim, None);
    let RequestState::Signing {
        draft: second,
        attempt: 6,
        ..
    } = claim(lost.next)
    else {
        panic!("no second attempt");
    };
    assert_eq!(second.unsigned, first.unsigned);
    assert_eq!(second.claim, first.claim);
}

#[test]
fn step__should_take_when_built_free_what_failed_and_keep_what_is_in_the_world() {
    let gave_up = || RequestEvent::GaveUp {
        reason: "too slow".into(),
        code: ExecuteCode::Unspecified,
    };
    let refused = || RequestEvent::NodeRefused {
        reason: "no".into(),
        code: ExecuteCode::Unspecified,
    };
    let preparing = RequestState::Preparing {
        broadcast: true,
        deadline_ms: 9,
    };
    let built = RequestEvent::Built {
        draft: draft(true).into(),
    };
    let built = preparing.step(&automatic(), built, 1).unwrap();
    assert_eq!(built.claim, Some(ReservationChange::Take));
    assert_eq!(built.next.draft(), Some(&draft(true)));
    let freed = Some(ReservationChange::Free(Box::new(draft(true))));
    let given_up = built.next.clone().step(&automatic(), gave_up(), 1).unwrap();
    assert_eq!(given_up.claim, freed);
    let restored = RequestEvent::Restored { reason: "x".into() };
    let restored = built.next.clone().step(&automatic(), restored, 1).unwrap();
    assert_eq!(
        restored.claim,
        Some(ReservationChange::Outlive(Box::new(draft(true))))
    );
    let signed = |broadcast| RequestState::Signed {
        draft: draft(broadcast),
        signatures: signatures(),
        signed: Some(signed()),
    };
    let sending = signed(true)
        .step(&automatic(), RequestEvent::SendingStarted, 1)
        .unwrap();
    assert_eq!(sending.claim, None);
    assert_eq!(
        sending
            .next
            .clone()
            .step(&automatic(), refused(), 1)
            .unwrap()
            .claim,
        freed
    );
    let kept = |broadcast| Some(ReservationChange::Outlive(Box::new(draft(broadcast))));
    let accepted = sending
        .next
        .step(&automatic(), RequestEvent::NodeAccepted, 1)
        .unwrap();
    assert_eq!(accepted.claim, kept(true));
    let handed_over = signed(false)
        .step(&automatic(), RequestEvent::HandedOver, 1)
        .unwrap();
    assert_eq!(handed_over.claim, kept(false));
}

/// The signature of a message is on no chain, which could show later that it was not made.
#[test]
fn a_message_of_a_restored_backup__should_fail() {
    let mut message = draft(false);
    message.unsigned.bytes.clear();
    let signing = RequestState::Signing {
        draft: message,
        attempt: 1,
        session: session(),
    };
    let restored = RequestEvent::Restored { reason: "x".into() };
    let restored = signing.step(&automatic(), restored, 1).unwrap();
    assert_eq!(restored.next, failed("x".into(), ExecuteCode::Unspecified));
}

#[test]
fn step__should_refuse_signatures_that_do_not_fit_the_draft() {
    let signing = RequestState::Signing {
        draft: draft(true),
        attempt: 1,
        session: session(),
    };
    let made = |signatures, signed| RequestEvent::SignaturesMade { signatures, signed };
    let other_curve = vec![Signature::Ed25519 {
        r: [1; 32],
        s: [1; 32],
    }];
    assert!(
        signing
            .clone()
            .step(&automatic(), made(vec![], Some(signed())), 1)
            .is_err()
    );
    assert!(
        signing
            .clone()
            .step(&automatic(), made(other_curve, Some(signed())), 1)
            .is_err()
    );
    assert!(
        signing
            .clone()
            .step(&automatic(), made(signatures(), None), 1)
            .is_err()
    );
    assert!(
        signing
            .step(&automatic(), made(signatures(), Some(signed())), 1)
            .is_ok()
    );
}
