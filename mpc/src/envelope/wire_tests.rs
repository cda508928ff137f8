//! Envelopes of every kind as older releases sent them (`tests/wire/envelope-v1-*.hex`) open for
//! ever. A format that changes after a release gets samples of its own beside these.
//!
//! `just record-wire` writes them anew, as long as nothing has been released.

use std::{fs, path::PathBuf};

use covault_core::testing::{ConstantEntropy, ManualClock};
use covault_core::{
    approval::{
        ApprovalProof, ApprovalTerms, GivenApproval, OrderApprovals, Rejection, WebAuthnAssertion,
    },
    attest::{AttestOrder, AttestedAddress},
    derive::{KeyPath, RootKey},
    fault::Fault as CoreFault,
    ids::{RequestId, SessionId, VaultId},
    networks::{ChainData, Network, SigningInput},
    order::{
        BackupOrder, Generation, KeygenOrder, ListedNodes, ProvenGeneration, ReshareOrder,
        ReshareProof, SigningOrder,
    },
    scheme::Scheme,
    signature::{Curve, Signature as CoreSignature},
    trace::TraceContext,
};

use super::*;
use crate::{
    bus::memory::MemoryBus,
    message::{
        ActivateMsg, Announcement, AttestOrderMsg, BackupOrderMsg, Ban, HaltReason, KeyExchangeMsg,
        KeygenOrderMsg, OrderReply, RejectionMsg, ReshareOrderMsg, SignOrderMsg, encode,
    },
    questions::{ApprovedRequest, NodeAnswer, NodeOutcome, NodeQuestion, NodeQuestionMsg},
};

fn codec(seed: u8) -> EnvelopeCodec {
    let identity = Arc::new(NodeIdentity::generate(&ConstantEntropy(seed)));
    EnvelopeCodec::new(identity, MemoryBus::new(), Arc::new(ConstantEntropy(seed)))
}

/// One of each kind.
fn approvals() -> OrderApprovals {
    let proofs = [
        ApprovalProof::WebAuthn {
            credential_id: vec![13; 16],
            assertion: WebAuthnAssertion {
                authenticator_data: vec![14; 37],
                client_data_json: vec![15; 5],
                signature: vec![16; 70],
            },
        },
        ApprovalProof::Ssh("a signature".into()),
        ApprovalProof::Node {
            node: NodeId([9; 32]),
            signature: vec![17; 64],
        },
    ];
    let given = proofs.map(|proof| GivenApproval {
        list: vec![[18; 32]],
        proof,
    });
    OrderApprovals {
        most_fee: 19,
        valid_until_ms: 2_000,
        given: given.into(),
    }
}

fn question(question: NodeQuestion) -> Vec<u8> {
    let at_ms = 1_234;
    encode(&NodeQuestionMsg { at_ms, question }).unwrap()
}

fn samples() -> Vec<(&'static str, EnvelopeKind, bool, Vec<u8>)> {
    let node = codec(2).id();
    let root = RootKey {
        curve: Curve::Ed25519,
        public_key: vec![3; 32],
        chain_code: [4; 32],
    };
    let sign = SignOrderMsg {
        order: SigningOrder {
            request: RequestId::from_bytes([1; 16]),
            vault: VaultId::from_bytes([2; 16]),
            epoch: 3,
            network: Network::Solana,
            root_public_key: root.public_key.clone(),
            path: KeyPath::of_wallet(Network::Solana, 7).unwrap(),
            public_key: vec![5; 32],
            address: "an address".into(),
            payload: vec![6; 9],
            chain_data: ChainData::Nothing,
            unsigned: vec![7; 3],
            inputs: vec![SigningInput {
                curve: Curve::Ed25519,
                message: vec![8; 40],
            }],
            recipient_indices: vec![9],
            approvals: approvals(),
            issued_at_ms: 1_000,
            expires_at_ms: 2_000,
        },
        session: SessionId::from_bytes([7; 16]),
        signers: vec![node, NodeId([9; 32])],
        nonces: vec![vec![11], vec![12]],
        attempt_ms: 3_000,
        sent_at_ms: 1_500,
        trace: Some(TraceContext {
            trace: [13; 16],
            span: [14; 8],
        }),
    };
    let keygen = KeygenOrderMsg {
        order: KeygenOrder {
            vault: VaultId::from_bytes([2; 16]),
            session: SessionId::from_bytes([7; 16]),
            scheme: Scheme::Cggmp24,
            threshold: 2,
            signers: vec![node, NodeId([9; 32])],
            issued_at_ms: 1_000,
            expires_at_ms: 2_000,
        },
        sent_at_ms: 1_500,
    };
    let announcement = Announcement {
        name: "node-1".into(),
        at_ms: 1_234,
        leaving: false,
        boot: [1; 16],
        version: "0.1.0".into(),
        keys: 2,
        bans: vec![Ban {
            key: [3; 8],
            peer: NodeId([9; 32]),
        }],
        count: 4,
        height: 5,
        halted: vec![HaltReason::Twice],
        others: vec![[6; 16]],
        threads: 2,
        frozen: vec![VaultId::from_bytes([7; 16])],
        listed: ListedNodes::new([&node], Some([&NodeId([9; 32])])),
    };
    let generation = |epoch| Generation {
        epoch,
        threshold: 2,
        holders: vec![node, NodeId([9; 32])],
    };
    let order = ReshareOrder {
        vault: VaultId::from_bytes([2; 16]),
        session: SessionId::from_bytes([7; 16]),
        scheme: Scheme::Dkls23,
        root_public_key: vec![3; 33],
        old: generation(0),
        dealers: vec![node, NodeId([9; 32])],
        new: generation(1),
        issued_at_ms: 1_000,
        expires_at_ms: 2_000,
    };
    let reshare = ReshareOrderMsg {
        order: order.clone(),
        sent_at_ms: 1_500,
    };
    let proof = ReshareProof(vec![(node, vec![5; 64])]);
    let activate = ActivateMsg {
        before: vec![ProvenGeneration {
            order: order.clone(),
            proof: proof.clone(),
        }],
        order,
        proof,
        sent_at_ms: 1_500,
    };
    let backup = BackupOrderMsg {
        order: BackupOrder {
            vault: VaultId::from_bytes([2; 16]),
            session: SessionId::from_bytes([7; 16]),
            root_public_key: vec![3; 33],
            epoch: 1,
            holders: vec![node],
            recipients: vec!["age1".into()],
            issued_at_ms: 1_000,
            expires_at_ms: 2_000,
        },
        sent_at_ms: 1_500,
    };
    let attest = AttestOrderMsg {
        order: AttestOrder {
            session: SessionId::from_bytes([7; 16]),
            vault: VaultId::from_bytes([2; 16]),
            epoch: 4,
            root_public_key: vec![3; 33],
            threshold: 2,
            holders: vec![node, NodeId([9; 32])],
            confirmed: vec![vec![5; 64], vec![6; 64]],
            addresses: vec![AttestedAddress {
                path: KeyPath::new(vec![60, 7]).unwrap(),
                network: Network::Evm,
                address: "0x00".into(),
                reference: "order 5".into(),
            }],
        },
        sent_at_ms: 1_500,
    };
    let signature = CoreSignature::Ecdsa {
        r: [1; 32],
        s: [2; 32],
        y_parity: 1,
    };
    let failed = OrderReply::Failed {
        culprits: vec![node],
        missing: vec![NodeId([9; 32])],
        reason: "timed out".into(),
        evidence: "{}".into(),
    };
    let reply = |reply: OrderReply| encode(&reply).unwrap();
    vec![
        (
            "signing-order",
            EnvelopeKind::SigningOrder,
            true,
            encode(&sign).unwrap(),
        ),
        (
            "keygen-order",
            EnvelopeKind::KeygenOrder,
            true,
            encode(&keygen).unwrap(),
        ),
        (
            "protocol",
            EnvelopeKind::Protocol,
            false,
            b"a commitment".to_vec(),
        ),
        (
            "protocol-sealed",
            EnvelopeKind::Protocol,
            true,
            b"a fragment".to_vec(),
        ),
        (
            "reply-signed",
            EnvelopeKind::Reply,
            true,
            reply(OrderReply::Signed(vec![signature])),
        ),
        (
            "reply-key-made",
            EnvelopeKind::Reply,
            true,
            reply(OrderReply::KeyMade {
                root,
                transcript: [4; 32],
                signature: vec![5; 64],
            }),
        ),
        (
            "reply-refused",
            EnvelopeKind::Reply,
            true,
            reply(OrderReply::Refused(CoreFault::field("inputs", "differ"))),
        ),
        (
            "reshare-order",
            EnvelopeKind::ReshareOrder,
            true,
            encode(&reshare).unwrap(),
        ),
        (
            "activate",
            EnvelopeKind::Activate,
            true,
            encode(&activate).unwrap(),
        ),
        (
            "backup-order",
            EnvelopeKind::BackupOrder,
            true,
            encode(&backup).unwrap(),
        ),
        (
            "reply-prepared",
            EnvelopeKind::Reply,
            true,
            reply(OrderReply::Prepared(vec![6; 64])),
        ),
        (
            "reply-activated",
            EnvelopeKind::Reply,
            true,
            reply(OrderReply::Activated),
        ),
        (
            "reply-backup",
            EnvelopeKind::Reply,
            true,
            reply(OrderReply::Backup(vec![7; 9])),
        ),
        (
            "attest-order",
            EnvelopeKind::AttestOrder,
            true,
            encode(&attest).unwrap(),
        ),
        (
            "reply-attested",
            EnvelopeKind::Reply,
            true,
            reply(OrderReply::Attested(vec![8; 128])),
        ),
        (
            "rejection",
            EnvelopeKind::Rejection,
            true,
            encode(&RejectionMsg {
                rejection: Rejection {
                    vault: VaultId::from_bytes([2; 16]),
                    requests: vec![RequestId::from_bytes([3; 16])],
                    proof: ApprovalProof::Ssh("a signature".into()),
                },
            })
            .unwrap(),
        ),
        ("reply-failed", EnvelopeKind::Reply, true, reply(failed)),
        (
            "reply-busy",
            EnvelopeKind::Reply,
            true,
            reply(OrderReply::Busy),
        ),
        (
            "reply-approved",
            EnvelopeKind::Reply,
            true,
            reply(OrderReply::Approved(vec![9; 64])),
        ),
        (
            "reply-noted",
            EnvelopeKind::Reply,
            true,
            reply(OrderReply::Noted {
                held_until_ms: 1_700_000_000_000,
            }),
        ),
        (
            "reply-round",
            EnvelopeKind::Reply,
            true,
            reply(OrderReply::Round { round: 2, of: 5 }),
        ),
        (
            "question-pending",
            EnvelopeKind::Question,
            true,
            question(NodeQuestion::Pending {
                requests: vec![RequestId::from_bytes([1; 16])],
            }),
        ),
        (
            "question-approve",
            EnvelopeKind::Question,
            true,
            question(NodeQuestion::Approve {
                requests: vec![ApprovedRequest {
                    request: RequestId::from_bytes([1; 16]),
                    terms: ApprovalTerms {
                        most_fee: 19,
                        valid_until_ms: 2_000,
                    },
                }],
                given: approvals().given.remove(0),
            }),
        ),
        (
            "question-reject",
            EnvelopeKind::Question,
            true,
            question(NodeQuestion::Reject {
                requests: vec![RequestId::from_bytes([1; 16])],
                reason: "a reason".into(),
                proof: approvals().given.remove(0).proof,
            }),
        ),
        (
            "answer-pending",
            EnvelopeKind::Answer,
            true,
            encode(&NodeAnswer::Pending {
                requests: vec![vec![6; 9]],
                more: true,
            })
            .unwrap(),
        ),
        (
            "answer-done",
            EnvelopeKind::Answer,
            true,
            encode(&NodeAnswer::Done {
                outcomes: vec![
                    NodeOutcome::Done { missing: 1 },
                    NodeOutcome::Refused {
                        problem: "a sentence".into(),
                    },
                ],
            })
            .unwrap(),
        ),
        (
            "answer-refused",
            EnvelopeKind::Answer,
            true,
            encode(&NodeAnswer::Refused {
                problem: "a sentence".into(),
            })
            .unwrap(),
        ),
        (
            "key-exchange",
            EnvelopeKind::KeyExchange,
            false,
            encode(&KeyExchangeMsg {
                at_ms: 1_000,
                made_ms: 900,
                key: [1; 32],
                yours: Some([2; 32]),
                wants_answer: true,
            })
            .unwrap(),
        ),
        (
            "announcement",
            EnvelopeKind::Announcement,
            false,
            encode(&announcement).unwrap(),
        ),
    ]
}

#[test]
#[allow(non_snake_case)]
fn envelope__should_open_what_old_releases_sent() {
    let (sender, recipient) = (codec(1), codec(2));
    for (name, kind, sealed, body) in samples() {
        let header = EnvelopeHeader {
            kind,
            sealed,
            epoch: 4,
            session: SessionId::from_bytes([7; 16]),
            attempt: 1,
            round: 2,
            sequence: 3,
            from: sender.id(),
            to: if kind == EnvelopeKind::Announcement {
                EVERYONE
            } else {
                recipient.id()
            },
        };
        let written = hex::encode(sender.write(&header, &[&body]).unwrap());
        let sample = sample(name, &written);
        let envelope = Envelope::parse(hex::decode(&sample).unwrap()).unwrap();
        assert_eq!(envelope.header, header, "{name}");
        let opened = recipient.open(&envelope).unwrap();
        assert_eq!(*opened.body, body, "{name}");
        assert_eq!(
            sample, written,
            "{name}: this version writes it differently"
        );
    }
}

/// What a file holds; written first where samples are recorded.
fn sample(name: &str, written: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join(format!("../tests/wire/envelope-v1-{name}.hex"));
    if std::env::var_os("COVAULT_RECORD_WIRE").is_some() {
        fs::write(&path, format!("{written}\n")).unwrap();
    }
    let sample = fs::read_to_string(&path)
        .unwrap_or_else(|_| panic!("{} is missing: just record-wire", path.display()));
    sample.trim().to_owned()
}

#[test]
#[allow(non_snake_case)]
fn pair_key__should_be_that_of_old_releases() {
    let clock = Arc::new(ManualClock::at(1_000));
    let [sender, recipient] = [1, 2].map(|seed| codec(seed).with_pair_keys(clock.clone()));
    let (ours, theirs) = (&sender.pair_keys, &recipient.pair_keys);
    let (ours, theirs) = (ours.as_ref().unwrap(), theirs.as_ref().unwrap());
    // Halves of constant bytes: both derive the same keys every time.
    let offer = ours.offer(&recipient.id).unwrap();
    let answer = theirs.take(&sender.id, &offer).unwrap();
    ours.take(&recipient.id, &answer).unwrap();
    let header = EnvelopeHeader {
        kind: EnvelopeKind::Protocol,
        sealed: true,
        epoch: 4,
        session: SessionId::from_bytes([7; 16]),
        attempt: 1,
        round: 2,
        sequence: 3,
        from: sender.id(),
        to: recipient.id(),
    };
    let key = ours.outgoing(&recipient.id, 0).unwrap();
    let written = hex::encode(sender.write_with(&header, &[b"body"], &key).unwrap());
    let sample = sample("protocol-paired", &written);
    let envelope = Envelope::parse(hex::decode(&sample).unwrap()).unwrap();
    assert_eq!(envelope.header, header);
    assert_eq!(*recipient.open(&envelope).unwrap().body, b"body");
    assert_eq!(sample, written, "this version writes it differently");
}
