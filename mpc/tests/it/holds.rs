//! Real nodes that hold payments after their approvals, and that are told of them before there is a transaction.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use covault_core::{
    approval::{Rejection, rejections_challenge, testing::TestPasskey},
    fault::{Fault, FaultCode},
    ids::{RequestId, SessionId, VaultId},
    networks::ChainData,
    order::{NodeId, SigningOrder},
    port::random_16,
    signature::Curve,
};
use covault_mpc::{
    cluster::{Cluster, ClusterHold},
    node::PolicyCheck,
    policy::Policy,
    pool::Priority,
    veto::{Veto, VetoStore},
};
use tracing_subscriber::filter::LevelFilter;

use crate::{
    support::{SystemEntropy, TestBus, TestCluster, log::LogCapture, now_ms, verify},
    witness::hostile_cluster,
};

const HOUR_MS: u64 = 3_600_000;
const PATIENCE: Duration = Duration::from_secs(20);

fn policy(hold: &str) -> Arc<PolicyCheck> {
    let line = TestPasskey::new("treasurer", 1).line().line().unwrap();
    let text = format!(
        "version = 2\nraw_signing = true\n[[approver]]\nname = \"treasurer\"\nkeys = [\"{line}\"]\n\
         [[approval]]\nneeds = 1\nof = [\"treasurer\"]\n{hold}"
    );
    Arc::new(PolicyCheck(Policy::parse(&text).unwrap()))
}

fn approve(order: SigningOrder) -> SigningOrder {
    approve_for(order, 23)
}

fn approve_for(mut order: SigningOrder, hours: u64) -> SigningOrder {
    order.request = RequestId::from_random(random_16(&SystemEntropy));
    order.approvals.valid_until_ms = now_ms() + hours * HOUR_MS;
    order.approvals.given = vec![TestPasskey::new("treasurer", 1).approve(&order)];
    order
}

/// Tells all nodes of the approvals of an order that has no transaction yet; until when they hold it.
async fn tell(test: &TestCluster, order: &SigningOrder) -> Option<u64> {
    let answer = told(&test.cluster, test, order, (2, None), PATIENCE).await;
    answer.unwrap().map(|hold| hold.until_ms)
}

async fn told(
    cluster: &Cluster,
    test: &TestCluster,
    order: &SigningOrder,
    needed: (u16, Option<NodeId>),
    patience: Duration,
) -> Result<Option<ClusterHold>, Fault> {
    let told = SigningOrder {
        chain_data: ChainData::Nothing,
        unsigned: Vec::new(),
        inputs: Vec::new(),
        ..order.clone()
    };
    let session = SessionId::from_random(random_16(&SystemEntropy));
    let holders = test.holders();
    cluster
        .tell_of_approvals(&told, session, &holders, needed, patience)
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes__should_hold_what_they_were_told_of_over_a_restart() {
    let mut test = TestCluster::start_with(TestBus::memory(), 3, policy("hold_hours = 2")).await;
    test.until_live(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let order = approve(test.raw_message(&root, 0, b"what is held"));
    let before_ms = now_ms();
    let until_ms = tell(&test, &order).await.unwrap();
    // All have been told by now. Each counts for itself, and none of them anew.
    let ends = before_ms + 2 * HOUR_MS..=now_ms() + 2 * HOUR_MS;
    assert!(ends.contains(&until_ms));
    let held = async |test: &TestCluster| {
        let fault = test.sign(&order, 2, 20_000).await.unwrap_err();
        let FaultCode::Held { until_ms } = fault.code() else {
            panic!("{fault:?}");
        };
        assert!(
            fault.message().contains("holds this payment until "),
            "{fault:?}"
        );
        assert!(
            fault
                .message()
                .contains("until then treasurer can reject it"),
            "{fault:?}"
        );
        until_ms
    };
    assert!(ends.contains(&held(&test).await));
    for place in 0..3 {
        test.stop_node(place).await;
        test.start_node(place);
    }
    test.until_live(3).await;
    assert!(ends.contains(&held(&test).await));
    assert!(ends.contains(&tell(&test, &order).await.unwrap()));
}

/// People take longer than a transaction is good on some chains.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes__should_ask_for_more_people_before_there_is_a_transaction() {
    let keys = [1, 2].map(|key| TestPasskey::new("treasurer", key).line().line().unwrap());
    let text = format!(
        "version = 2\nraw_signing = true\n[[approver]]\nname = \"treasurer\"\nkeys = [\"{}\"]\n[[approver]]\nname \
         = \"controller\"\nkeys = [\"{}\"]\n[[approval]]\nneeds = 2\nof = [\"treasurer\", \"controller\"]\n",
        keys[0], keys[1]
    );
    let policy = Arc::new(PolicyCheck(Policy::parse(&text).unwrap()));
    let test = TestCluster::start_with(TestBus::memory(), 3, policy).await;
    test.until_live(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let mut order = approve(test.raw_message(&root, 0, b"what two approve"));
    let answer = told(&test.cluster, &test, &order, (2, None), PATIENCE).await;
    let fault = answer.unwrap_err();
    assert_eq!(fault.code(), FaultCode::ApprovalsMissing);
    let wants = "wants 2 of treasurer, controller (approved: treasurer)";
    assert!(fault.message().matches(wants).count() >= 2, "{fault:?}");
    // As a client signer, whose approval comes when it signs.
    let must = Some(test.holders()[0]);
    let answer = told(&test.cluster, &test, &order, (2, must), PATIENCE).await;
    assert_eq!(answer.unwrap(), None);
    order
        .approvals
        .given
        .push(TestPasskey::new("treasurer", 2).approve(&order));
    assert_eq!(tell(&test, &order).await, None);
    verify(&order, &test.sign(&order, 2, 60_000).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notice__should_be_repeated_where_signers_are_busy() {
    let test = TestCluster::start_with(TestBus::memory(), 3, policy("hold_hours = 2")).await;
    test.until_live(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let order = approve(test.raw_message(&root, 0, b"what is held"));
    // Every thread has something else to do, for longer than an eighth of the time that they have.
    for _ in 0..2 * std::thread::available_parallelism().unwrap().get() {
        test.pool.spawn(Priority::Signing, || {
            std::thread::sleep(Duration::from_secs(3));
        });
    }
    assert!(tell(&test, &order).await.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_veto__should_stop_a_request_that_an_orchestrator_goes_on_with() {
    let mut test = TestCluster::start_with(TestBus::memory(), 3, policy("")).await;
    test.until_live(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let order = approve(test.raw_message(&root, 0, b"what is vetoed"));
    // No rule holds it, and telling of it claims and signs nothing.
    assert_eq!(tell(&test, &order).await, None);
    // As many nodes as it takes to stop the others.
    for place in 0..2 {
        VetoStore::of(&test.nodes[place].folder)
            .veto(order.request)
            .unwrap();
    }
    for restarted in [false, true] {
        if restarted {
            for place in 0..2 {
                test.kill_node(place).await;
                test.start_node(place);
            }
            test.until_live(3).await;
        }
        let fault = test.sign(&order, 2, 20_000).await.unwrap_err();
        assert!(
            fault.message().contains("has vetoed the request"),
            "{fault:?}"
        );
    }
    // Another request of the same is another decision.
    let other = approve(order);
    verify(&other, &test.sign(&other, 2, 60_000).await.unwrap());
}

/// A rejection of a request of the order's vault, with this key of the treasurer.
fn reject(order: &SigningOrder, requests: &[RequestId], key: u8) -> Rejection {
    let passkey = TestPasskey::new("treasurer", key);
    let challenge = rejections_challenge(order.vault, requests).unwrap();
    Rejection {
        vault: order.vault,
        requests: requests.to_vec(),
        proof: passkey.given(passkey.assert(&challenge)).proof,
    }
}

/// The orchestrator passes it on, and does not obey it then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejection__should_stop_its_requests_at_the_nodes_that_were_told_of_it() {
    let log = LogCapture::start_with_threads(LevelFilter::INFO);
    let mut test = TestCluster::start_with(TestBus::memory(), 3, policy("hold_hours = 2")).await;
    test.until_live(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let order = approve(test.raw_message(&root, 0, b"what is rejected"));
    let (other, together) = (approve(order.clone()), approve(order.clone()));
    let holders = test.holders();
    let tell_of = async |rejection: Rejection| {
        let session = SessionId::from_random(random_16(&SystemEntropy));
        let told = test
            .cluster
            .tell_of_rejection(&rejection, session, &holders, PATIENCE);
        told.await.unwrap();
    };
    // Of nobody that they know, of what was signed of another request, and of a vault of which they have no share.
    tell_of(reject(&other, &[other.request], 5)).await;
    let proof = reject(&order, &[order.request], 1).proof;
    let stolen = reject(&other, &[other.request], 1);
    tell_of(Rejection { proof, ..stolen }).await;
    let mut elsewhere = other.clone();
    elsewhere.vault = VaultId::from_bytes([9; 16]);
    tell_of(reject(&elsewhere, &[other.request], 1)).await;
    tell_of(reject(&order, &[order.request, together.request], 1)).await;
    let stored = |place: usize, request| {
        let store = VetoStore::of(&test.nodes[place].folder);
        store.of_request(order.vault, request).unwrap()
    };
    let line = format!("request={}", order.request);
    let said = || {
        let mut said = log.lines(&line);
        said.retain(|it| it.contains("rejected by a person"));
        said
    };
    for tries in 0.. {
        let all = (0..3).all(|place| stored(place, together.request) == Some(Veto::Person));
        if all && log.lines("a rejection was not taken").len() == 9 && said().len() == 3 {
            break;
        }
        assert!(tries < 1_200, "{}", log.text());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for place in 0..3 {
        assert_eq!(stored(place, order.request), Some(Veto::Person));
        assert_eq!(stored(place, other.request), None);
    }
    // The disk is written to beside the threads that sign; what is refused is refused on them.
    let on_signing_threads = |it: &&String| it.contains(" covault-mpc-");
    assert_eq!(
        said().iter().filter(on_signing_threads).count(),
        0,
        "{}",
        log.text()
    );
    let refused = log.lines("a rejection was not taken");
    assert_eq!(refused.iter().filter(on_signing_threads).count(), 9);
    for place in 0..3 {
        test.kill_node(place).await;
        test.start_node(place);
    }
    test.until_live(3).await;
    for order in [&order, &together] {
        let fault = test.sign(order, 2, 20_000).await.unwrap_err();
        let sentence = "a person has rejected the request: this node never signs it";
        assert!(fault.message().contains(sentence), "{fault:?}");
    }
    let fault = test.sign(&other, 2, 20_000).await.unwrap_err();
    assert!(matches!(fault.code(), FaultCode::Held { .. }), "{fault:?}");
}

/// Nobody is told that it is done before it would outlive the node, and the node obeys it before that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejection__should_be_obeyed_by_a_node_whose_disk_fails_and_be_said_to_be_unwritten() {
    let log = LogCapture::start_with_threads(LevelFilter::INFO);
    let mut test = TestCluster::start_with(TestBus::memory(), 3, policy("hold_hours = 2")).await;
    test.until_live(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let order = approve(test.raw_message(&root, 0, b"what is rejected"));
    // Looking works there, and writing does not.
    let folders: Vec<_> = test.nodes.iter().map(|node| node.folder.clone()).collect();
    for folder in &folders {
        std::os::unix::fs::symlink("/tmp", folder.join("rejected")).unwrap();
    }
    let rejection = reject(&order, &[order.request], 1);
    let tell_of = async |test: &TestCluster| {
        let session = SessionId::from_random(random_16(&SystemEntropy));
        let (holders, patience) = (test.holders(), Duration::from_secs(2));
        let cluster = &test.cluster;
        let told = cluster.tell_of_rejection(&rejection, session, &holders, patience);
        told.await
    };
    let fault = tell_of(&test).await.unwrap_err();
    let problem = "a rejection is not on the disk of ";
    assert!(fault.message().contains(problem), "{fault:?}");
    assert!(!log.lines("rejections cannot be written to disk").is_empty());
    let are_written = || {
        let mut stores = folders.iter().map(|folder| VetoStore::of(folder));
        stores.all(|store| store.are_written(order.vault, &[order.request]).unwrap())
    };
    assert!(!are_written());
    let refused = async |test: &TestCluster| {
        let sentence = "a person has rejected the request: this node never signs it";
        let fault = test.sign(&order, 2, 20_000).await.unwrap_err();
        assert!(fault.message().contains(sentence), "{fault:?}");
    };
    refused(&test).await;
    for folder in &folders {
        std::fs::remove_file(folder.join("rejected")).unwrap();
    }
    tell_of(&test).await.unwrap();
    assert!(are_written());
    for place in 0..3 {
        test.kill_node(place).await;
        test.start_node(place);
    }
    test.until_live(3).await;
    refused(&test).await;
}

/// Whoever can veto a request has to learn of it, also where an orchestrator tells nobody before it is to be signed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes__should_name_in_their_log_every_request_whose_time_has_begun() {
    let log = LogCapture::start(LevelFilter::INFO);
    let test = TestCluster::start_with(TestBus::memory(), 3, policy("hold_hours = 2")).await;
    test.until_live(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    for is_told in [false, true] {
        let order = approve(test.raw_message(&root, 0, b"what is held"));
        if is_told {
            tell(&test, &order).await.unwrap();
        } else {
            test.sign(&order, 2, 20_000).await.unwrap_err();
        }
        // A line of each node that counts.
        let is_logged = || {
            let lines = log.lines(&format!("request={}", order.request));
            let held = lines.iter().filter(|line| line.contains("payment held"));
            held.count() >= 2
        };
        for tries in 0.. {
            if is_logged() {
                break;
            }
            assert!(tries < 1_200, "{}", log.text());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// A node that does not believe its clock signs nothing. The time of a hold does not begin by it either: it would be over as
/// soon as the clock is right again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds__should_not_begin_by_a_clock_that_is_not_believed() {
    let log = LogCapture::start(LevelFilter::INFO);
    let test = TestCluster::start_with(TestBus::memory(), 3, policy("hold_hours = 2")).await;
    test.until_live(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let back_ms = -12 * 3_600_000;
    test.nodes[0].moved_ms.store(back_ms, Ordering::Relaxed);
    let hostile = hostile_cluster(&test, back_ms).await;
    let mut order = approve_for(test.raw_message(&root, 0, b"what is held"), 11);
    order.issued_at_ms = order.issued_at_ms.saturating_add_signed(back_ms);
    order.expires_at_ms = order.expires_at_ms.saturating_add_signed(back_ms);
    // As if all three were needed, so that the word of one shows.
    for _ in 0..100 {
        let answer = told(&hostile, &test, &order, (3, None), Duration::from_secs(1)).await;
        let is_held = answer.is_ok_and(|hold| hold.is_some());
        assert!(!is_held, "a hold begins 12 hours ago");
        let refused = log.lines("order refused");
        let clock = "the clock of this node was moved by";
        if refused.iter().any(|line| line.contains(clock)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{}", log.text());
}
