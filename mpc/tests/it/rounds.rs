//! How far runs for keys and new shares are, as their nodes say.

use std::{pin::pin, time::Duration};

use covault_core::{ids::SessionId, signature::Curve};
use tokio::time::timeout;

use crate::support::{TestBus, TestCluster};

/// The rounds that a run is seen in, one after the other.
async fn rounds<T>(
    test: &TestCluster,
    session: SessionId,
    run: impl Future<Output = T>,
) -> (T, Vec<(u16, u16)>) {
    let (mut run, mut seen) = (pin!(run), Vec::new());
    loop {
        if let Ok(outcome) = timeout(Duration::from_millis(1), &mut run).await {
            return (outcome, seen);
        }
        if let Some(round) = test.cluster.round(&session)
            && seen.last() != Some(&round)
        {
            seen.push(round);
        }
    }
}

fn assert_told(seen: &[(u16, u16)]) {
    // A quick round may be missed.
    assert!(seen.len() >= 2, "{seen:?}");
    assert!(seen.is_sorted(), "{seen:?}");
    let (_, of) = seen[0];
    assert!(
        seen.iter().all(|(round, all)| round <= all && *all == of),
        "{seen:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs__should_tell_their_rounds_as_long_as_they_last() {
    let test = TestCluster::start(TestBus::memory(), 3).await;
    let order = test.keygen_order(Curve::Secp256k1, 2);
    assert_eq!(test.cluster.round(&order.session), None);
    let (made, seen) = rounds(&test, order.session, test.cluster.keygen(&order)).await;
    assert_told(&seen);
    assert_eq!(test.cluster.round(&order.session), None);

    let root = made.unwrap().root;
    let order = test.refresh_order(&root, 0, 2);
    let (proof, seen) = rounds(&test, order.session, test.cluster.reshare(&order)).await;
    assert!(proof.is_ok(), "{proof:?}");
    assert_told(&seen);
}
