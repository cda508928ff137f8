#![allow(non_snake_case)]

use std::collections::BTreeSet;

use super::*;
use crate::{
    networks::{ChainData, Network, SigningInput, Unsigned},
    request::NonceReservation,
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

/// Every state; those that depend on it both with and without sending.
fn states() -> Vec<(&'static str, RequestState)> {
    let mut all = vec![("Received", RequestState::Received)];
    for (broadcast, names) in [
        (
            true,
            [
                "Screened",
                "AwaitingApproval",
                "Preparing",
                "Prepared",
                "Signing",
                "Signed/send",
            ],
        ),
        (false, ["", "", "", "", "", "Signed/keep"]),
    ] {
        let of_kind = [
            RequestState::Screened { broadcast },
            RequestState::AwaitingApproval {
                broadcast,
                rule: ApprovalRule::Automatic,
            },
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
        "Succeeded",
        RequestState::Succeeded {
            signatures: signatures(),
            signed: Some(signed()),
            sent: true,
        },
    ));
    all.push(("Failed", failed("no".into(), ExecuteCode::Unspecified)));
    all
}

fn events() -> Vec<RequestEvent> {
    let reason = || "because".to_owned();
    let code = ExecuteCode::InsufficientFunds;
    vec![
        RequestEvent::PolicyPassed { broadcast: true },
        RequestEvent::ApprovalAsked {
            rule: ApprovalRule::Automatic,
        },
        RequestEvent::Approved { deadline_ms: 9 },
        RequestEvent::Rejected { reason: reason() },
        RequestEvent::Delayed { reason: reason() },
        RequestEvent::Built { draft: draft(true) },
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
    ]
}

/// Columns in the order of [`events`]: where each event leads, `.` where it is illegal.
const MATRIX: &str = "\
Received         Screened . . Failed . . . . . . . . . . Failed
Screened         . AwaitingApproval . Failed . . . . . . . . . . Failed
AwaitingApproval . . Preparing Failed . . . . . . . . . . Failed
Preparing        . . . Failed Preparing Prepared . . . . . . . Failed Failed
Prepared         . . . . . . Signing . . . . . . Failed Failed
Signing          . . . . . . . Prepared Signed . . . . Failed Failed
Signed/send      . . . . . . . . . Broadcasting . . . . .
Signed/keep      . . . . . . . . . . Succeeded . . . .
Broadcasting     . . . . Broadcasting . . . . . . Succeeded Failed . .
Succeeded        . . . . . . . . . . . . . . .
Failed           . . . . . . . . . . . . . . .
";

fn matrix() -> String {
    let mut text = String::new();
    for (name, state) in states() {
        let cells = events()
            .into_iter()
            .map(|event| match state.clone().step(event, 1) {
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
            RequestEvent::ApprovalAsked {
                rule: ApprovalRule::Automatic,
            },
            RequestEvent::Approved { deadline_ms: 9 },
            RequestEvent::Built {
                draft: draft(broadcast),
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
        [start(true), vec![gave_up()]].concat(),
        [start(true), vec![claim(), gave_up()]].concat(),
        [start(true)[..3].to_vec(), vec![delayed(), gave_up()]].concat(),
    ];
    for length in 0..=3 {
        let reject = RequestEvent::Rejected { reason: "x".into() };
        walks.push([start(true)[..length].to_vec(), vec![reject]].concat());
    }
    let restored = || RequestEvent::Restored { reason: "x".into() };
    for length in 0..=4 {
        walks.push([start(true)[..length].to_vec(), vec![restored()]].concat());
    }
    walks.push([start(true), vec![claim(), restored()]].concat());
    let mut walked = BTreeSet::new();
    for walk in walks {
        let mut state = RequestState::Received;
        for event in walk {
            let cell = (state.name(), event.name());
            state = state.step(event, 1).unwrap().next;
            walked.insert(cell);
        }
        assert!(state.is_final());
    }
    let legal = states()
        .into_iter()
        .flat_map(|(_, state)| {
            events()
                .into_iter()
                .map(move |event| (state.clone(), event))
        })
        .filter(|(state, event)| state.clone().step(event.clone(), 1).is_ok())
        .map(|(state, event)| (state.name(), event.name()))
        .collect::<BTreeSet<_>>();
    assert_eq!(walked, legal);
}

#[test]
fn past_rejection__should_say_why_wherever_the_machine_refuses() {
    for (name, state) in states() {
        let reject = RequestEvent::Rejected { reason: "x".into() };
        let can = state.clone().step(reject, 1).is_ok();
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
        state.step(event, 1).unwrap().next
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
        .step(RequestEvent::SessionLost { reason: "x".into() }, 1)
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
    let built = RequestEvent::Built { draft: draft(true) };
    let built = preparing.step(built, 1).unwrap();
    assert_eq!(built.claim, Some(ReservationChange::Take));
    assert_eq!(built.next.draft(), Some(&draft(true)));
    let freed = Some(ReservationChange::Free(Box::new(draft(true))));
    let given_up = built.next.clone().step(gave_up(), 1).unwrap();
    assert_eq!(given_up.claim, freed);
    let restored = RequestEvent::Restored { reason: "x".into() };
    let restored = built.next.clone().step(restored, 1).unwrap();
    assert_eq!(
        restored.claim,
        Some(ReservationChange::Outlive(Box::new(draft(true))))
    );
    let signed = |broadcast| RequestState::Signed {
        draft: draft(broadcast),
        signatures: signatures(),
        signed: Some(signed()),
    };
    let sending = signed(true).step(RequestEvent::SendingStarted, 1).unwrap();
    assert_eq!(sending.claim, None);
    assert_eq!(
        sending.next.clone().step(refused(), 1).unwrap().claim,
        freed
    );
    let kept = |broadcast| Some(ReservationChange::Outlive(Box::new(draft(broadcast))));
    let accepted = sending.next.step(RequestEvent::NodeAccepted, 1).unwrap();
    assert_eq!(accepted.claim, kept(true));
    let handed_over = signed(false).step(RequestEvent::HandedOver, 1).unwrap();
    assert_eq!(handed_over.claim, kept(false));
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
            .step(made(vec![], Some(signed())), 1)
            .is_err()
    );
    assert!(
        signing
            .clone()
            .step(made(other_curve, Some(signed())), 1)
            .is_err()
    );
    assert!(signing.clone().step(made(signatures(), None), 1).is_err());
    assert!(signing.step(made(signatures(), Some(signed())), 1).is_ok());
}
