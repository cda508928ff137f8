//! Client signers: nodes that sign nothing before their callback has said yes.

use std::{
    collections::{BTreeMap, VecDeque},
    path::Path,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use covault_core::{
    approval::{
        ApprovalProof, GivenApproval,
        testing::{TestSshKey, TestSshKind},
    },
    derive::RootKey,
    fault::{Class, ExecuteCode, Fault, FaultCode},
    ids::{SessionId, VaultId},
    networks::VerifiedSignatures,
    order::{NodeId, SigningOrder},
    port::{Entropy, random_16},
    schema::wire,
    scheme::Scheme,
    signature::Curve,
};
use covault_mpc::{
    cluster::{HaltReason, NodeStatus, SigningTask},
    identity::NodeIdentity,
    node::{CurrentPolicy, SigningCallback},
    policy::Policy,
};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use crate::byzantine::{Misbehavior, impersonate};
use crate::support::{SystemEntropy, TestBus, TestCluster, now_ms, task, verify};

/// Answers what it was told to, a yes when that is used up, and notes what it is asked.
#[derive(Default)]
struct ScriptedCallback {
    answers: Mutex<VecDeque<Result<(), String>>>,
    asked: Mutex<Vec<wire::SigningRequest>>,
}

#[async_trait]
impl SigningCallback for ScriptedCallback {
    async fn ask(&self, request: &wire::SigningRequest) -> Result<(), String> {
        self.asked.lock().push(request.clone());
        self.answers.lock().pop_front().unwrap_or(Ok(()))
    }
}

impl ScriptedCallback {
    fn count(&self) -> usize {
        self.asked.lock().len()
    }

    fn will_refuse(&self) {
        let no = "it answered 401, and only 200 is a yes";
        self.answers.lock().push_back(Err(no.to_owned()));
    }
}

/// Three nodes, of which the last is a client signer.
async fn world(
    callback: &Arc<ScriptedCallback>,
    check: Arc<CurrentPolicy>,
) -> (TestCluster, NodeId) {
    let mut test = TestCluster::start_with(TestBus::memory(), 3, check).await;
    test.until_live(3).await;
    test.stop_node(2).await;
    test.nodes[2].callback = Some(Arc::clone(callback) as Arc<dyn SigningCallback>);
    test.start_node(2);
    test.until(|nodes| {
        let mut halted = nodes
            .iter()
            .filter(|it| it.halted == [HaltReason::ClientSigner]);
        halted.any(|it| it.live)
    })
    .await;
    let id = test.nodes[2].identity.id();
    (test, id)
}

fn raw_signing(more: &str) -> Policy {
    Policy::parse(&format!("version = 2\nraw_signing = true\n{more}")).unwrap()
}

fn lax() -> Arc<CurrentPolicy> {
    Arc::new(CurrentPolicy::new(raw_signing("")))
}

async fn sign_with(
    test: &TestCluster,
    order: &SigningOrder,
    client_signer: NodeId,
) -> Result<VerifiedSignatures, Fault> {
    let session = SessionId::from_random(random_16(&SystemEntropy));
    let scheme = Scheme::default_of(order.network.curve());
    let holders = test.holders();
    let named = SigningTask {
        client_signer: Some(client_signer),
        ..task(scheme, session, &holders, 2, now_ms() + 60_000)
    };
    test.cluster.sign(order, named).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_signer__should_sign_what_names_it_once_its_callback_has_said_yes_and_nothing_else()
{
    let callback = Arc::new(ScriptedCallback::default());
    let (mut test, client) = world(&callback, lax()).await;
    for curve in [Curve::Secp256k1, Curve::Ed25519] {
        let root = test.keygen(curve, 2).await;
        let asked = callback.count();
        // The others sign what does not name it.
        for _ in 0..5 {
            test.sign_well(&root, 2).await;
        }
        assert_eq!(callback.count(), asked);
        let order = test.order(&root);
        let signatures = sign_with(&test, &order, client).await.unwrap();
        verify(&order, &signatures);
        // It was shown what it verified, and was asked once, however often the request comes and whatever dies.
        test.kill_node(2).await;
        test.start_node(2);
        verify(&order, &sign_with(&test, &order, client).await.unwrap());
        assert_eq!(callback.count(), asked + 1);
        let shown = callback.asked.lock().last().cloned().unwrap();
        assert_eq!(shown.uuid, order.request.to_string());
        assert_eq!(shown.vault_uuid, Some(test.vault.to_string()));
        let line = Some(client.openssh_line(""));
        assert_eq!(shown.callback_client_signer_public_key, line);
        let Some(wire::signing_request::Type::RawMessage(message)) = shown.r#type else {
            panic!("{shown:?}");
        };
        assert_eq!(message.from, order.address);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_of_a_callback__should_hold_for_the_request_over_restarts() {
    let callback = Arc::new(ScriptedCallback::default());
    let (mut test, client) = world(&callback, lax()).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let order = test.order(&root);
    callback.will_refuse();
    for _ in 0..3 {
        let fault = sign_with(&test, &order, client).await.unwrap_err();
        assert_eq!(
            fault.execute_code(),
            ExecuteCode::AlreadyDenied,
            "{fault:?}"
        );
        assert!(
            fault.message().ends_with(
                "refused to sign: the callback denied it: it answered 401, and only 200 is a yes"
            ),
            "{fault:?}"
        );
        test.kill_node(2).await;
        test.start_node(2);
    }
    assert_eq!(callback.count(), 1);
    // It was asked about this payload.
    let mut other = test.order(&root);
    other.request = order.request;
    let fault = sign_with(&test, &other, client).await.unwrap_err();
    assert!(
        fault
            .message()
            .contains("asked about another payload of this request"),
        "{fault:?}"
    );
    // And another request is another question.
    let next = test.order(&root);
    verify(&next, &sign_with(&test, &next, client).await.unwrap());
    assert_eq!(callback.count(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_signer__should_say_that_it_alone_is_missing() {
    let callback = Arc::new(ScriptedCallback::default());
    let (mut test, client) = world(&callback, lax()).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    test.stop_node(0).await;
    // Two are there, and one of them signs only what names it.
    let order = test.order(&root);
    let fault = test.sign(&order, 2, 1_500).await.unwrap_err();
    let line = client.openssh_line("");
    let (before, after) = fault
        .message()
        .split_once("signing only what names them: ")
        .unwrap();
    assert!(
        before.starts_with("not enough signers: 1 of 2 needed answered; missing: "),
        "{fault:?}"
    );
    assert!(after.contains(&line), "{fault:?}");
    verify(&order, &sign_with(&test, &order, client).await.unwrap());
    // Of another vault it makes no key.
    test.start_node(0);
    test.until_live(3).await;
    let mut order = test.keygen_order(Curve::Ed25519, 2);
    order.vault = VaultId::from_random(random_16(&SystemEntropy));
    let fault = test.cluster.keygen(&order).await.unwrap_err();
    assert!(
        fault.message().contains(&format!(
            "vault: is not {}, the only vault of this client signer",
            test.vault
        )),
        "{fault:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies__should_be_able_to_demand_the_yes_of_a_client_signer() {
    let callback = Arc::new(ScriptedCallback::default());
    let check = lax();
    let (test, client) = world(&callback, Arc::clone(&check)).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let line = client.openssh_line("");
    // All three have it, the client signer itself too.
    check.replace(raw_signing(&format!(
        "[[approver]]\nname = \"bot\"\nkeys = [\"{line}\"]\n\
         [[approval]]\nneeds = 1\nof = [\"bot\"]\nway = [\"client\"]\n"
    )));
    let order = test.order(&root);
    let fault = test.sign(&order, 2, 10_000).await.unwrap_err();
    assert_eq!(fault.code(), FaultCode::ApprovalsMissing, "{fault:?}");
    assert!(
        fault.message().contains("wants 1 of bot by way of client"),
        "{fault:?}"
    );
    assert_eq!(callback.count(), 0);
    verify(&order, &sign_with(&test, &order, client).await.unwrap());
    assert_eq!(callback.count(), 1);
}

/// A yes is good for one signature, and whether it was used stood in the claims that are missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_signer__should_not_use_a_yes_again_after_its_claims_were_put_back() {
    let callback = Arc::new(ScriptedCallback::default());
    let (mut test, client) = world(&callback, lax()).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let folder = test.nodes[2].folder.clone();
    let (path, kept) = (folder.join("claims.redb"), folder.join("kept.redb"));
    test.stop_node(2).await;
    let_go(&path).await;
    std::fs::copy(&path, &kept).unwrap();
    test.start_node(2);
    let mut order = test.order(&root);
    verify(&order, &sign_with(&test, &order, client).await.unwrap());
    assert_eq!(callback.count(), 1);
    // Announcements are heard.
    tokio::time::sleep(Duration::from_millis(700)).await;
    test.stop_node(2).await;
    let_go(&path).await;
    std::fs::copy(&kept, &path).unwrap();
    test.start_node(2);
    let halted = |nodes: &[NodeStatus]| {
        let node = nodes.iter().find(|it| it.id == client && it.live);
        node.map(|it| it.halted.clone()).unwrap_or_default()
    };
    test.until(|nodes| halted(nodes).contains(&HaltReason::Claims))
        .await;
    let refresh = test.refresh_order(&root, 0, 2);
    let proof = test.cluster.reshare(&refresh).await.unwrap();
    let holders = test.holders();
    let told = test
        .cluster
        .distribute_activation(&refresh, &proof, &[], &holders);
    for (node, confirmed) in told.await.unwrap() {
        assert!(confirmed.is_ok(), "{node:?}: {confirmed:?}");
    }
    test.until(|nodes| halted(nodes) == [HaltReason::ClientSigner])
        .await;
    // What it noted is not given out again,
    order.epoch = 1;
    let noted = sign_with(&test, &order, client).await.unwrap_err();
    // and what it gave out before is not taken.
    let mut order = test.order(&root);
    order.epoch = 1;
    order.approvals.valid_until_ms = now_ms() + 600_000;
    let statement = ApprovalProof::node_statement(&order.approval().id().unwrap());
    order.approvals.given.push(GivenApproval {
        list: Vec::new(),
        proof: ApprovalProof::Node {
            node: client,
            signature: test.nodes[2].identity.sign(&statement).to_vec(),
        },
    });
    let given = sign_with(&test, &order, client).await.unwrap_err();
    for fault in [noted, given] {
        assert!(
            fault
                .message()
                .contains("claims of the node went missing since"),
            "{fault:?}"
        );
    }
    assert_eq!(callback.count(), 1);
}

/// A node closes its claims file a moment after it has ended.
async fn let_go(path: &Path) {
    while std::fs::File::open(path).unwrap().try_lock().is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Makes the key that [`TestSshKey`] has of this number.
struct SshSeed(u8);

impl Entropy for SshSeed {
    fn fill(&self, bytes: &mut [u8]) {
        let seed = Sha256::digest([b"ssh".as_slice(), &[self.0]].concat());
        bytes.copy_from_slice(&seed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn persons_signature_with_the_key_of_a_client_signer__should_not_be_its_yes() {
    let callback = Arc::new(ScriptedCallback::default());
    let mut test = TestCluster::start_with(TestBus::memory(), 3, lax()).await;
    test.until_live(3).await;
    for place in 0..3 {
        test.stop_node(place).await;
    }
    test.nodes[2].identity = Arc::new(NodeIdentity::generate(&SshSeed(9)));
    test.nodes[2].folder = test.nodes[2].folder.with_extension("ssh");
    test.nodes[2].callback = Some(Arc::clone(&callback) as Arc<dyn SigningCallback>);
    for place in 0..3 {
        test.start_node(place);
    }
    let client = test.nodes[2].identity.id();
    let key = TestSshKey::new(TestSshKind::Ed25519, 9);
    assert!(key.line().starts_with(&client.openssh_line("")));
    let holders = test.holders();
    test.until(|nodes| {
        let live = |id: &NodeId| nodes.iter().any(|it| it.live && it.id == *id);
        holders.iter().all(live)
    })
    .await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let mut order = test.order(&root);
    order.approvals.valid_until_ms = now_ms() + 600_000;
    let approval = key.approve(&order);
    order.approvals.given.push(approval);
    callback.will_refuse();
    let fault = sign_with(&test, &order, client).await.unwrap_err();
    assert_eq!(
        fault.execute_code(),
        ExecuteCode::AlreadyDenied,
        "{fault:?}"
    );
    assert_eq!(callback.count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_without_a_callback__should_be_refused_where_a_client_signer_is_named() {
    let callback = Arc::new(ScriptedCallback::default());
    let (test, _) = world(&callback, lax()).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let order = test.order(&root);
    let fault = sign_with(&test, &order, test.holders()[0]).await;
    let fault = fault.unwrap_err();
    assert_eq!(fault.class(), &Class::WrongState, "{fault:?}");
    assert!(fault.message().contains("is no client signer"), "{fault:?}");
    assert_eq!(callback.count(), 0);
}

/// Lets nobody go on before the test says so, and counts who is there.
struct SlowCallback {
    inside: Mutex<BTreeMap<String, usize>>,
    most: Mutex<usize>,
    gate: Semaphore,
}

#[async_trait]
impl SigningCallback for SlowCallback {
    async fn ask(&self, request: &wire::SigningRequest) -> Result<(), String> {
        {
            let mut inside = self.inside.lock();
            *inside.entry(request.uuid.clone()).or_default() += 1;
            let mut most = self.most.lock();
            *most = inside.len().max(*most);
        }
        let permit = self.gate.acquire().await.unwrap();
        permit.forget();
        self.inside.lock().remove(&request.uuid);
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_signer_with_too_many_questions__should_be_waited_for() {
    let callback = Arc::new(ScriptedCallback::default());
    let (mut test, client) = world(&callback, lax()).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    test.stop_node(2).await;
    test.until_live(2).await;
    let busy = impersonate(&test, 2, Misbehavior::BusyClientSigner).await;
    test.until_live(3).await;
    question_is_busy(&test, &root, client).await;
    busy.abort();
    // Also where its time ends between a question and its answer.
    let _busy = impersonate(&test, 2, Misbehavior::BusyOnceClientSigner).await;
    question_is_busy(&test, &root, client).await;
}

/// Asks the client signer for longer than it takes to ask it twice.
async fn question_is_busy(test: &TestCluster, root: &RootKey, client: NodeId) {
    let order = test.order(root);
    let holders = test.holders();
    let session = SessionId::from_random(random_16(&SystemEntropy));
    let scheme = Scheme::default_of(Curve::Ed25519);
    let named = SigningTask {
        client_signer: Some(client),
        ..task(scheme, session, &holders, 2, now_ms() + 3_000)
    };
    let fault = test.cluster.sign(&order, named).await.unwrap_err();
    assert!(matches!(fault.code(), FaultCode::Busy { .. }), "{fault:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callback__should_be_asked_about_64_requests_at_once_while_others_wait() {
    let callback = Arc::new(SlowCallback {
        inside: Mutex::default(),
        most: Mutex::default(),
        gate: Semaphore::new(0),
    });
    let mut test = TestCluster::start_with(TestBus::memory(), 3, lax()).await;
    test.until_live(3).await;
    test.stop_node(2).await;
    test.nodes[2].callback = Some(Arc::clone(&callback) as Arc<dyn SigningCallback>);
    test.start_node(2);
    test.until_live(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let client = test.nodes[2].identity.id();
    let orders: Vec<SigningOrder> = (0..70).map(|_| test.order(&root)).collect();
    let signing = orders.iter().map(|order| sign_with(&test, order, client));
    let watching = async {
        while callback.inside.lock().len() < 64 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(callback.inside.lock().len(), 64);
        callback.gate.add_permits(70);
    };
    let (signed, ()) = tokio::join!(futures::future::join_all(signing), watching);
    for (order, signatures) in orders.iter().zip(signed) {
        verify(order, &signatures.unwrap());
    }
    assert_eq!(*callback.most.lock(), 64);
}
