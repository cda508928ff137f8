//! People who approve on the page of a signer node: what orchestrators tell the node, and what comes of the approval.

use std::sync::Arc;

use covault_core::{
    approval::{Approval, ApprovalTerms, testing::TestPasskey, words},
    derive::RootKey,
    fault::FaultCode,
    order::SigningOrder,
    signature::Curve,
};
use covault_mpc::{
    node::{ApprovalRelay, PolicyCheck, ToldRequest},
    policy::Policy,
    questions::{ApprovedRequest, NodeAnswer, NodeOutcome, NodeQuestion},
    veto::VetoStore,
};

use crate::support::{TestBus, TestCluster, now_ms, verify};

const PAGE: &str = "https://approve.signer-1.example.com";
const HOUR_MS: u64 = 3_600_000;

/// The treasurer's passkey of the node's page.
fn of_page() -> TestPasskey {
    TestPasskey::new("treasurer@node", 1).at("approve.signer-1.example.com", &[PAGE])
}

/// The same person's of the console.
fn of_console() -> TestPasskey {
    TestPasskey::new("treasurer@console", 2)
}

/// Three nodes that sign what the treasurer has approved on a page of a node; the first has one.
async fn cluster() -> (TestCluster, Arc<ApprovalRelay>, RootKey) {
    let lines = [of_page(), of_console()].map(|key| key.line().line().unwrap());
    let policy = format!(
        "version = 2\nraw_signing = true\nnode_origins = [\"{PAGE}\"]\n[[approver]]\nname = \"treasurer\"\n\
         keys = [\"{}\", \"{}\"]\n[[approval]]\nneeds = 1\nof = [\"treasurer\"]\nway = [\"node\"]\n",
        lines[0], lines[1]
    );
    let policy = Arc::new(PolicyCheck(Policy::parse(&policy).unwrap()));
    let mut test = TestCluster::start_with(TestBus::memory(), 3, policy).await;
    let relay = Arc::new(ApprovalRelay::default());
    test.stop_node(0).await;
    test.nodes[0].approval_relay = Some(Arc::clone(&relay));
    test.start_node(0);
    test.until_live(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    (test, relay, root)
}

/// An order that approvals of the next hours are for, and the bytes that are told of it.
fn waiting(test: &TestCluster, root: &RootKey, content: &[u8]) -> (SigningOrder, Vec<u8>) {
    let mut order = test.raw_message(root, 0, content);
    order.approvals.valid_until_ms = now_ms() + 23 * HOUR_MS;
    let told = order.payload.clone();
    (order, told)
}

/// What the person's browser does on the node's page: signs what the node was told of the request.
fn approve_told(
    order: &SigningOrder,
    told: &ToldRequest,
    passkey: &TestPasskey,
) -> covault_core::approval::GivenApproval {
    let approval = Approval::new(
        order.vault,
        &order.root_public_key,
        order.request,
        order.network,
        &order.address,
        &told.request,
        terms(order),
    );
    passkey.given(passkey.assert(&approval.id().unwrap()))
}

fn terms(order: &SigningOrder) -> ApprovalTerms {
    ApprovalTerms {
        most_fee: order.approvals.most_fee,
        valid_until_ms: order.approvals.valid_until_ms,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node__should_learn_what_waits_and_bring_the_approval_that_its_page_has_got() {
    let (test, relay, root) = cluster().await;
    let (mut order, told) = waiting(&test, &root, b"what waits");
    assert!(relay.holds(order.vault, &order.root_public_key).unwrap());
    let other = covault_core::ids::VaultId::from_bytes([9; 16]);
    assert!(!relay.holds(other, &order.root_public_key).unwrap());
    assert!(!relay.holds(order.vault, &[9; 32]).unwrap());
    // The orchestrator: it tells of the request, and stores one approval.
    let mut questions = test.cluster.questions().unwrap();
    let (cluster, node, request) = (
        Arc::clone(&test.cluster),
        test.nodes[0].identity.id(),
        order.request,
    );
    let served = tokio::spawn(async move {
        let mut stored = None;
        while let Some(asked) = questions.recv().await {
            assert_eq!(asked.node, node);
            let answer = match &asked.question {
                NodeQuestion::Pending { requests: of } => {
                    assert!(of.is_empty() || *of == [request]);
                    NodeAnswer::Pending {
                        requests: vec![told.clone()],
                        more: false,
                    }
                }
                NodeQuestion::Approve { given, .. } if stored.is_none() => {
                    stored = Some(given.clone());
                    let outcomes = vec![NodeOutcome::Done { missing: 0 }];
                    NodeAnswer::Done { outcomes }
                }
                NodeQuestion::Approve { .. } | NodeQuestion::Reject { .. } => NodeAnswer::Refused {
                    problem: "the request does not wait any more".into(),
                },
            };
            cluster.answer(&asked, &answer).unwrap();
            if matches!(answer, NodeAnswer::Refused { .. }) {
                break;
            }
        }
        stored.unwrap()
    });
    let told = relay.pending(&[]).await.unwrap().requests;
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].by, [test.orchestrator.id()]);
    assert_eq!(relay.pending(&[request]).await.unwrap().requests, told);
    // With a passkey of the console it is not signed: another page may have shown another payment.
    order.approvals.given = vec![of_console().approve(&order)];
    let fault = test.sign(&order, 2, 60_000).await.unwrap_err();
    assert_eq!(fault.code(), FaultCode::ApprovalsMissing);
    assert!(fault.message().contains("by way of node"), "{fault:?}");
    assert!(fault.message().contains("by way of console"), "{fault:?}");
    let given = approve_told(&order, &told[0], &of_page());
    let bring = async || {
        let approved = ApprovedRequest {
            request,
            terms: terms(&order),
        };
        let question = NodeQuestion::Approve {
            requests: vec![approved],
            given: given.clone(),
        };
        relay.act(vec![(told[0].by[0], question)]).await.unwrap()
    };
    let by = test.orchestrator.id();
    let outcomes = vec![NodeOutcome::Done { missing: 0 }];
    assert_eq!(bring().await, [(by, NodeAnswer::Done { outcomes })]);
    let problem = "the request does not wait any more".into();
    assert_eq!(bring().await, [(by, NodeAnswer::Refused { problem })]);
    order.approvals.given = vec![served.await.unwrap()];
    verify(&order, &test.sign(&order, 2, 60_000).await.unwrap());
}

/// The page and the node have one store of what is never signed, so nothing is signed while the disk takes its time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejection__should_be_in_force_at_the_node_from_when_its_page_has_it() {
    let (test, relay, root) = cluster().await;
    let (mut order, request) = waiting(&test, &root, b"what is rejected");
    let told = ToldRequest {
        by: vec![test.orchestrator.id()],
        request,
    };
    order.approvals.given = vec![approve_told(&order, &told, &of_page())];
    // Without the node of the page there are too few.
    let other = VetoStore::of(&test.nodes[2].folder);
    other.veto(order.request).unwrap();
    let vetoes = relay.vetoes().unwrap();
    // The disk takes none, so it is in force and the node tries again.
    let rejected = test.nodes[0].folder.join("rejected");
    std::os::unix::fs::symlink("/tmp", &rejected).unwrap();
    vetoes.reject(order.vault, "treasurer", &[order.request]);
    vetoes.write(|_| ()).unwrap_err();
    let fault = test.sign(&order, 2, 20_000).await.unwrap_err();
    assert!(fault.message().contains("never signs it"), "{fault:?}");
    let written = |node_folder: &std::path::Path| {
        let store = VetoStore::of(node_folder);
        store.are_written(order.vault, &[order.request])
    };
    assert!(!written(&test.nodes[0].folder).unwrap());
    std::fs::remove_file(&rejected).unwrap();
    for tries in 0.. {
        if written(&test.nodes[0].folder).unwrap() {
            break;
        }
        assert!(
            tries < 1_200,
            "the node writes it when the disk works again"
        );
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(ApprovalRelay::default().vetoes().is_err());
}

/// The page shows the bytes that are hashed: who is told one payment has not approved another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lie__should_be_worth_nothing_to_an_orchestrator_that_tells_1_and_asks_for_1000() {
    let (test, relay, root) = cluster().await;
    let (mut order, meant) = waiting(&test, &root, b"pay 1,000 to the orchestrator");
    let (_, lie) = waiting(&test, &root, b"pay 1 to the grocer");
    let mut questions = test.cluster.questions().unwrap();
    let cluster = Arc::clone(&test.cluster);
    let told = lie.clone();
    tokio::spawn(async move {
        while let Some(asked) = questions.recv().await {
            let requests = vec![told.clone()];
            let answer = NodeAnswer::Pending {
                requests,
                more: false,
            };
            cluster.answer(&asked, &answer).unwrap();
        }
    });
    let told = relay.pending(&[order.request]).await.unwrap().requests;
    assert_eq!(told[0].request, lie);
    let words_of = |payload: &[u8]| {
        let approval = Approval::new(
            order.vault,
            &order.root_public_key,
            order.request,
            order.network,
            &order.address,
            payload,
            terms(&order),
        );
        words(&approval.payload_sha256)
    };
    assert_ne!(words_of(&lie), words_of(&meant));
    order.approvals.given = vec![approve_told(&order, &told[0], &of_page())];
    let fault = test.sign(&order, 2, 60_000).await.unwrap_err();
    assert!(
        fault
            .message()
            .contains("approvals[0].clientDataJSON.challenge"),
        "{fault:?}"
    );
}
