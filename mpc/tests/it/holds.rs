//! Real nodes that hold payments after their approvals, and that are told of them before there is a transaction.

use std::{sync::Arc, time::Duration};

use covault_core::{
    approval::testing::TestPasskey,
    fault::FaultCode,
    ids::{RequestId, SessionId},
    networks::ChainData,
    order::SigningOrder,
    port::random_16,
    signature::Curve,
};
use covault_mpc::{node::PolicyCheck, policy::Policy, veto::VetoStore};

use crate::support::{SystemEntropy, TestBus, TestCluster, now_ms, verify};

const HOUR_MS: u64 = 3_600_000;

fn policy(hold: &str) -> Arc<PolicyCheck> {
    let line = TestPasskey::new("treasurer", 1).line().line().unwrap();
    let text = format!(
        "version = 2\nraw_signing = true\n[[approver]]\nname = \"treasurer\"\nkeys = [\"{line}\"]\n\
         [[approval]]\nneeds = 1\nof = [\"treasurer\"]\n{hold}"
    );
    Arc::new(PolicyCheck(Policy::parse(&text).unwrap()))
}

fn approve(mut order: SigningOrder) -> SigningOrder {
    order.request = RequestId::from_random(random_16(&SystemEntropy));
    order.approvals.valid_until_ms = now_ms() + 23 * HOUR_MS;
    order.approvals.given = vec![TestPasskey::new("treasurer", 1).approve(&order)];
    order
}

/// Tells all nodes of the approvals of an order that has no transaction yet; until when they hold it.
async fn tell(test: &TestCluster, order: &SigningOrder) -> Option<u64> {
    let told = SigningOrder {
        chain_data: ChainData::Nothing,
        unsigned: Vec::new(),
        inputs: Vec::new(),
        ..order.clone()
    };
    let session = SessionId::from_random(random_16(&SystemEntropy));
    let patience = Duration::from_secs(20);
    let holders = test.holders();
    let told = test
        .cluster
        .tell_of_approvals(&told, session, &holders, (2, None), patience);
    told.await.unwrap().map(|hold| {
        assert_eq!(hold.by.len(), 3);
        hold.until_ms
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes__should_hold_what_they_were_told_of_over_a_restart() {
    let mut test = TestCluster::start_with(TestBus::memory(), 3, policy("hold_hours = 2")).await;
    test.until_live(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let order = approve(test.raw_message(&root, 0, b"what is held"));
    let before_ms = now_ms();
    let until_ms = tell(&test, &order).await.unwrap();
    assert!((before_ms..=now_ms()).contains(&(until_ms - 2 * HOUR_MS)));
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
    // Each node counts for itself.
    assert!(held(&test).await.abs_diff(until_ms) < 5_000);
    for place in 0..3 {
        test.stop_node(place).await;
        test.start_node(place);
    }
    test.until_live(3).await;
    assert!(held(&test).await.abs_diff(until_ms) < 5_000);
    assert!(tell(&test, &order).await.unwrap().abs_diff(until_ms) < 5_000);
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
