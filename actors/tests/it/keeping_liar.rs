//! A node that refuses a transaction, keeps it, and sends it when the client may have paid once more; and one that says
//! that a transaction has ended. It is one of two nodes, of which one is believed, before a real EVM node.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use covault_actors::gateway::Gateway;
use covault_core::schema::wire::{signing_request, transaction_state::Status};
use serde_json::{Value, json};

use crate::{
    evm_anvil::{Anvil, Way},
    rebroadcast::noted,
    tracker::{NOT_FINAL_MS, a_while, stuck, until, until_status},
    world::*,
};

const WORDS: &str = "intrinsic gas too low";

/// What the liar does.
#[derive(Default)]
struct Liar {
    refuses: AtomicBool,
    /// It takes what it gets, passes it on to nobody, and says that a final block has it.
    swallows: AtomicBool,
    kept: Mutex<Vec<Value>>,
}

impl Liar {
    /// It stands before anvil, of which it passes on what it does not lie about.
    async fn start(self: &Arc<Self>, anvil: &Anvil) -> String {
        let liar = Arc::clone(self);
        anvil
            .behind(move |call| {
                let is_kept = liar.swallows.load(Ordering::SeqCst);
                match call["method"].as_str().unwrap() {
                    "eth_sendRawTransaction" if liar.refuses.load(Ordering::SeqCst) || is_kept => {
                        liar.kept.lock().unwrap().push(call["params"].clone());
                        match is_kept {
                            true => Way::Swallowed(json!(format!("0x{}", "11".repeat(32)))),
                            false => Way::Refused(WORDS),
                        }
                    }
                    "eth_getTransactionByHash" if is_kept => {
                        Way::Answered(json!({"blockNumber": "0x0"}))
                    }
                    "eth_getTransactionReceipt" if is_kept => {
                        Way::Answered(json!({"blockNumber": "0x0", "status": "0x1"}))
                    }
                    _ => Way::Open,
                }
            })
            .await
    }

    /// Sends all that it has kept.
    async fn sends(&self, anvil: &Anvil) {
        let kept = std::mem::take(&mut *self.kept.lock().unwrap());
        assert!(!kept.is_empty());
        for raw in kept {
            // anvil may have it already.
            let _ = anvil.ask("eth_sendRawTransaction", raw).await;
        }
    }
}

/// Another node before anvil, and whether it is silent.
async fn honest(anvil: &Anvil) -> (String, Arc<AtomicBool>) {
    let silent = Arc::new(AtomicBool::new(false));
    let is_silent = Arc::clone(&silent);
    let way = move |_: &Value| match is_silent.load(Ordering::SeqCst) {
        true => Way::Lost,
        false => Way::Open,
    };
    (anvil.behind(way).await, silent)
}

async fn status(gateway: &Gateway, uuid: &str) -> signing_request::Status {
    details(gateway, uuid).await.status()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_of_two_nodes_refuses_and_sends_later__should_be_paid_once() {
    let (anvil, world) = (Anvil::start().await, World::new());
    let liar = Arc::new(Liar::default());
    let (bad, (good, silent)) = (liar.start(&anvil).await, honest(&anvil).await);
    let gateway = Anvil::start_on_all(&world, &[&bad, &good]).await;
    let address = anvil.wallet(&gateway).await;
    liar.refuses.store(true, Ordering::SeqCst);
    // The other one takes it.
    let first = create(&gateway, send(&address)).await.uuid;
    assert_eq!(outcome(&gateway, &first).await.error, None);
    assert_eq!(
        status(&gateway, &first).await,
        signing_request::Status::Succeeded
    );
    // The other one says nothing. Facts come of the liar, which is believed about these.
    silent.store(true, Ordering::SeqCst);
    let second = create(&gateway, send(&address)).await.uuid;
    until(async || noted(&world, "Delayed", WORDS).await).await;
    assert_eq!(
        status(&gateway, &second).await,
        signing_request::Status::Pending
    );
    let waiting = stuck(&gateway).await;
    let reason = &waiting.iter().find(|it| it.uuid == second).unwrap().reason;
    assert!(
        reason.contains("a node does not take it (node 1: "),
        "{reason}"
    );
    assert!(reason.contains(WORDS), "{reason}");
    assert!(reason.contains("2 nodes have to say the same"), "{reason}");
    // A client pays again what has failed; this one has not. Now the liar sends what it has kept.
    liar.sends(&anvil).await;
    anvil.mine(1).await;
    silent.store(false, Ordering::SeqCst);
    for uuid in [&first, &second] {
        assert_eq!(outcome(&gateway, uuid).await.error, None);
        until_status(&gateway, uuid, Status::Mined).await;
    }
    anvil.mine(128).await;
    for uuid in [&first, &second] {
        until_status(&gateway, uuid, Status::Final).await;
    }
    assert_eq!(anvil.received().await, "0xa", "each was paid once");
    assert_eq!(world.followed().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_of_two_nodes_refuses__should_be_sent_to_the_other_one_once_that_is_back() {
    let (anvil, world) = (Anvil::start().await, World::new());
    let liar = Arc::new(Liar::default());
    let (bad, (good, silent)) = (liar.start(&anvil).await, honest(&anvil).await);
    let gateway = Anvil::start_on_all(&world, &[&bad, &good]).await;
    let address = anvil.wallet(&gateway).await;
    liar.refuses.store(true, Ordering::SeqCst);
    silent.store(true, Ordering::SeqCst);
    let payment = create(&gateway, send(&address)).await.uuid;
    until(async || noted(&world, "Delayed", WORDS).await).await;
    a_while().await;
    assert_eq!(
        status(&gateway, &payment).await,
        signing_request::Status::Pending
    );
    silent.store(false, Ordering::SeqCst);
    assert_eq!(outcome(&gateway, &payment).await.error, None);
    anvil.mine(128).await;
    until_status(&gateway, &payment, Status::Final).await;
    assert_eq!(anvil.received().await, "0x5");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_of_two_nodes_swallows__should_get_to_the_other_one_at_once() {
    let (anvil, world) = (Anvil::start().await, World::new());
    let liar = Arc::new(Liar::default());
    let (bad, (good, _)) = (liar.start(&anvil).await, honest(&anvil).await);
    let gateway = Anvil::start_on_all(&world, &[&bad, &good]).await;
    let address = anvil.wallet(&gateway).await;
    liar.swallows.store(true, Ordering::SeqCst);
    let payment = create(&gateway, send(&address)).await.uuid;
    assert_eq!(outcome(&gateway, &payment).await.error, None);
    // Transactions of other networks would be over long before anybody looks.
    until(async || anvil.waiting().await == "0x1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_of_two_nodes_swallows_and_calls_final__should_get_to_the_other_one() {
    let (anvil, world) = (Anvil::start().await, World::new());
    let liar = Arc::new(Liar::default());
    let (bad, (good, silent)) = (liar.start(&anvil).await, honest(&anvil).await);
    let gateway = Anvil::start_on_all(&world, &[&bad, &good]).await;
    let address = anvil.wallet(&gateway).await;
    liar.swallows.store(true, Ordering::SeqCst);
    silent.store(true, Ordering::SeqCst);
    let payment = create(&gateway, send(&address)).await.uuid;
    assert_eq!(outcome(&gateway, &payment).await.error, None);
    until_status(&gateway, &payment, Status::Mined).await;
    a_while().await;
    assert_eq!(world.followed().await, 1, "it is not believed to be final");
    assert_eq!(anvil.waiting().await, "0x0");
    // What was sent to it at once is lost.
    silent.store(false, Ordering::SeqCst);
    world.pass(NOT_FINAL_MS);
    until(async || anvil.waiting().await == "0x1").await;
    let listed = stuck(&gateway).await;
    assert!(
        listed[0].reason.contains("does not become final"),
        "{listed:?}"
    );
    liar.swallows.store(false, Ordering::SeqCst);
    anvil.mine(128).await;
    until_status(&gateway, &payment, Status::Final).await;
    assert_eq!(anvil.received().await, "0x5");
}
