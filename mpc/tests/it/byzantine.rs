//! Nodes that are there but do not play by the rules.

use std::{sync::Arc, time::Duration};

use crate::support::{
    SystemEntropy, TestBus, TestCluster, announcement, announcement_of_client_signer, now_ms,
};
use covault_core::{fault::Class, ids::SessionId, order::NodeId, signature::Curve};
use covault_mpc::{
    envelope::{EVERYONE, Envelope, EnvelopeCodec, EnvelopeHeader, EnvelopeKind},
    node::RebuildCheck,
    preprocess::Watermarks,
};
use tokio::{task::JoinHandle, time::interval};

/// What a byzantine node does when it is asked to sign.
#[derive(Clone, Copy, PartialEq)]
pub enum Misbehavior {
    /// Nothing.
    Silent,
    /// Sends bytes that are no protocol message.
    Garbage,
    /// Sends two different messages for one slot.
    TwoFaced,
    /// Answers at once with an invalid signature.
    FalseSignature,
    /// Answers with megabytes, and many times.
    Flood,
    /// Says that it has too much to do.
    Busy,
    /// Says so, and that it is a client signer.
    BusyClientSigner,
    /// Says so once, and is silent then.
    BusyOnceClientSigner,
    /// Does nothing for the first attempt, and says of the others that it has too much to do.
    SilentThenBusy,
}

/// Takes a node's place, with its identity, but without its code.
pub async fn impersonate(test: &TestCluster, place: usize, manner: Misbehavior) -> JoinHandle<()> {
    let bus = test.medium.bus();
    let identity = Arc::clone(&test.nodes[place].identity);
    let others: Vec<NodeId> = test
        .holders()
        .into_iter()
        .filter(|holder| *holder != identity.id())
        .collect();
    let codec = EnvelopeCodec::new(identity, Arc::clone(&bus), Arc::new(SystemEntropy));
    let mut inbox = bus.subscribe(codec.id(), false).await.unwrap();
    tokio::spawn(async move {
        let mut heartbeat = interval(Duration::from_millis(200));
        let mut was_busy = false;
        loop {
            tokio::select! {
                _ = heartbeat.tick() => {
                    let body = match manner {
                        Misbehavior::BusyClientSigner | Misbehavior::BusyOnceClientSigner => announcement_of_client_signer("byzantine node", now_ms()),
                        _ => announcement("byzantine node", now_ms()),
                    };
                    let session = SessionId::from_bytes([0; 16]);
                    let header = header(EnvelopeKind::Announcement, session, 0, EVERYONE);
                    codec.send(header, &body).unwrap();
                }
                message = inbox.next() => {
                    let Ok(envelope) = Envelope::parse(message.unwrap()) else { continue };
                    let EnvelopeHeader { kind, session, attempt, from, .. } = envelope.header;
                    if kind != EnvelopeKind::SigningOrder {
                        continue;
                    }
                    let protocol = |to| header(EnvelopeKind::Protocol, session, attempt, to);
                    for to in &others {
                        match manner {
                            Misbehavior::Garbage => codec.send(protocol(*to), b"garbage").unwrap(),
                            Misbehavior::TwoFaced => {
                                // For a round that is read later: neither is looked at before.
                                let later = EnvelopeHeader { round: 2, ..protocol(*to) };
                                codec.send(later, b"one face").unwrap();
                                codec.send(later, b"another").unwrap();
                            }
                            Misbehavior::Silent
                            | Misbehavior::FalseSignature
                            | Misbehavior::Flood
                            | Misbehavior::Busy
                            | Misbehavior::BusyClientSigner
                            | Misbehavior::BusyOnceClientSigner
                            | Misbehavior::SilentThenBusy => {}
                        }
                    }
                    if manner == Misbehavior::Flood {
                        // Reply::Backup, which nobody has asked for; and Reply::Failed of another
                        // attempt, with words without end.
                        let large = (vec![7_u8; 1 << 20],);
                        let large = [&[6][..], &bcs::to_bytes(&large).unwrap()].concat();
                        let nobody: Vec<NodeId> = Vec::new();
                        let long = (&nobody, &nobody, "x".repeat(10_000), "");
                        let long = [&[3][..], &bcs::to_bytes(&long).unwrap()].concat();
                        for _ in 0..10 {
                            let _ = codec.send(header(EnvelopeKind::Reply, session, attempt, from), &large);
                            for _ in 0..50 {
                                let reply = header(EnvelopeKind::Reply, session, attempt + 1, from);
                                let _ = codec.send(reply, &long);
                            }
                        }
                    }
                    let is_busy = match manner {
                        Misbehavior::Busy | Misbehavior::BusyClientSigner => true,
                        Misbehavior::BusyOnceClientSigner => !std::mem::replace(&mut was_busy, true),
                        Misbehavior::SilentThenBusy => attempt > 0,
                        _ => false,
                    };
                    if is_busy {
                        let reply = header(EnvelopeKind::Reply, session, attempt, from);
                        codec.send(reply, &[11]).unwrap();
                    }
                    if manner == Misbehavior::FalseSignature {
                        // Reply::Signed of one Signature::Ed25519, in BCS.
                        let body = [&[0, 1, 1][..], &[7; 64]].concat();
                        codec.send(header(EnvelopeKind::Reply, session, attempt, from), &body).unwrap();
                    }
                }
            }
        }
    })
}

fn header(kind: EnvelopeKind, session: SessionId, attempt: u32, to: NodeId) -> EnvelopeHeader {
    let round = u16::from(kind == EnvelopeKind::Protocol);
    EnvelopeHeader {
        kind,
        sealed: false,
        epoch: 0,
        session,
        attempt,
        round,
        sequence: 0,
        from: to,
        to,
    }
}

async fn cluster_with_byzantine_node(manner: Misbehavior) -> (TestCluster, JoinHandle<()>) {
    // With nonces made ahead there is no later round.
    let watermarks = match manner {
        Misbehavior::TwoFaced => Watermarks { low: 0, high: 0 },
        _ => Watermarks { low: 8, high: 32 },
    };
    let check = Arc::new(RebuildCheck);
    let mut test = TestCluster::start_pooled(TestBus::memory(), 3, check, watermarks).await;
    test.until_live(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    test.stop_node(1).await;
    test.until_live(2).await;
    let byzantine = impersonate(&test, 1, manner).await;
    test.until_live(3).await;
    // No matter which node is asked first: the two honest ones sign in the end.
    for _ in 0..6 {
        test.sign_well(&root, 2).await;
    }
    // With one honest node there is nothing to be had, and the fault says who it was.
    test.stop_node(2).await;
    test.until_live(2).await;
    let fault = test.sign(&test.order(&root), 2, 4_000).await.unwrap_err();
    let line = test.nodes[1].identity.openssh_line("");
    assert!(fault.message().contains(&line), "{fault:?}");
    // The honest node lives.
    test.start_node(2);
    test.until_live(3).await;
    test.sign_well(&root, 2).await;
    (test, byzantine)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster__should_sign_around_a_node_that_hangs() {
    cluster_with_byzantine_node(Misbehavior::Silent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster__should_sign_around_a_node_that_sends_garbage() {
    cluster_with_byzantine_node(Misbehavior::Garbage).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster__should_sign_around_a_node_that_equivocates() {
    cluster_with_byzantine_node(Misbehavior::TwoFaced).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster__should_not_take_a_false_signature() {
    cluster_with_byzantine_node(Misbehavior::FalseSignature).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster__should_name_those_who_broke_the_protocol() {
    let mut test = TestCluster::start(TestBus::memory(), 2).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    test.stop_node(1).await;
    // The real node's farewell first, or the byzantine node would be seen under its name.
    test.until_live(1).await;
    let _byzantine = impersonate(&test, 1, Misbehavior::Garbage).await;
    test.until_live(2).await;
    let fault = test.sign(&test.order(&root), 2, 20_000).await.unwrap_err();
    let culprits = vec![test.nodes[1].identity.openssh_line("")];
    assert_eq!(fault.class(), &Class::Peer { culprits }, "{fault:?}");
    assert!(
        fault
            .message()
            .starts_with("signers broke the protocol: byzantine node (ssh-ed25519 ")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster__should_sign_around_a_node_that_floods_the_orchestrator() {
    cluster_with_byzantine_node(Misbehavior::Flood).await;
}
