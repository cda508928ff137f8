//! A node that refuses a transaction, keeps it, and sends it when the client may have paid once more; and one that says
//! that a transaction has ended. It is one of two nodes, of which one is believed, before a real EVM node.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use covault_actors::gateway::Gateway;
use covault_core::schema::wire::{
    self, create_signing_request_request::Type as Kind, signing_request, transaction_state::Status,
};
use serde_json::{Value, json};
use tokio::net::TcpSocket;

use crate::{
    evm_anvil::{Anvil, Way},
    rebroadcast::noted,
    tracker::{NOT_FINAL_MS, a_while, stuck, until, until_status},
    world::*,
};

const WORDS: &str = "intrinsic gas too low";
/// What anvil says, too, where a wallet has nothing.
const NO_FUNDS: &str = "insufficient funds for gas * price + value";

/// What the liar does.
#[derive(Default)]
pub struct Liar {
    refuses: AtomicBool,
    /// It takes what it gets, passes it on to nobody, and says that a final block has it.
    swallows: AtomicBool,
    /// It refuses in words that are true.
    refuses_truly: AtomicBool,
    /// It says that no block and no mempool has any transaction.
    pub hides: AtomicBool,
    /// It says that the account has sent so many.
    counts: AtomicU64,
    /// It says nothing.
    is_silent: AtomicBool,
    /// It shows this in place of every whole block.
    block: Mutex<Option<Value>>,
    kept: Mutex<Vec<Value>>,
}

impl Liar {
    /// It stands before anvil, of which it passes on what it does not lie about.
    pub async fn start(self: &Arc<Self>, anvil: &Anvil) -> String {
        let liar = Arc::clone(self);
        anvil
            .behind(move |call| {
                let is_kept = liar.swallows.load(Ordering::SeqCst);
                let count = liar.counts.load(Ordering::SeqCst);
                match call["method"].as_str().unwrap() {
                    _ if liar.is_silent.load(Ordering::SeqCst) => Way::Lost,
                    "eth_sendRawTransaction" if liar.refuses_truly.load(Ordering::SeqCst) => {
                        liar.kept.lock().unwrap().push(call["params"].clone());
                        Way::Refused(NO_FUNDS)
                    }
                    "eth_getTransactionByHash" | "eth_getTransactionReceipt"
                        if liar.hides.load(Ordering::SeqCst) =>
                    {
                        Way::Answered(Value::Null)
                    }
                    "eth_getBlockByNumber" if call["params"][1] == true => {
                        let block = liar.block.lock().unwrap().clone();
                        block.map_or(Way::Open, Way::Answered)
                    }
                    "eth_getTransactionCount" if count > 0 => {
                        Way::Answered(json!(format!("{count:#x}")))
                    }
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

    /// Sends what it has kept in place of what anvil has. The service sends that again, perhaps in between.
    async fn takes_over(&self, anvil: &Anvil) {
        let kept = std::mem::take(&mut *self.kept.lock().unwrap());
        assert!(!kept.is_empty());
        for raw in kept {
            for tries in 0.. {
                anvil.call("anvil_dropAllTransactions", json!([])).await;
                let answer = anvil.ask("eth_sendRawTransaction", raw.clone()).await;
                if answer.unwrap().get("error").is_none() {
                    break;
                }
                assert!(tries < 1_000, "anvil does not take it");
            }
        }
    }

    /// Sends all that it has kept.
    pub async fn sends(&self, anvil: &Anvil) {
        let kept = std::mem::take(&mut *self.kept.lock().unwrap());
        assert!(!kept.is_empty());
        for raw in kept {
            // anvil may have it already.
            let _ = anvil.ask("eth_sendRawTransaction", raw).await;
        }
    }
}

/// Another node before anvil, and whether it is silent.
pub async fn honest(anvil: &Anvil) -> (String, Arc<AtomicBool>) {
    let silent = Arc::new(AtomicBool::new(false));
    let is_silent = Arc::clone(&silent);
    let way = move |_: &Value| match is_silent.load(Ordering::SeqCst) {
        true => Way::Lost,
        false => Way::Open,
    };
    (anvil.behind(way).await, silent)
}

/// A world in which what waits has time.
pub fn patient() -> World {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 600_000;
    world
}

async fn status(gateway: &Gateway, uuid: &str) -> signing_request::Status {
    details(gateway, uuid).await.status()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_of_two_nodes_refuses_and_sends_later__should_be_paid_once() {
    let (anvil, world) = (Anvil::start().await, patient());
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
    assert!(reason.contains("a node refuses it (node 1: "), "{reason}");
    assert!(reason.contains(WORDS), "{reason}");
    assert!(reason.contains("2 nodes must refuse it"), "{reason}");
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
    let (anvil, world) = (Anvil::start().await, patient());
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
    let (anvil, world) = (Anvil::start().await, patient());
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
    let (anvil, world) = (Anvil::start().await, patient());
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

async fn refused_by_both(
    world: &World,
    anvil: &Anvil,
    liar: &Arc<Liar>,
) -> (Gateway, String, String) {
    let (bad, (good, _)) = (liar.start(anvil).await, honest(anvil).await);
    // The last one that is asked is asked first about what is built next.
    refused_by_all(world, anvil, liar, &[&good, &bad]).await
}

/// A payment that these nodes refuse, as its wallet has nothing: the liar, which is one of them, has the bytes. Then somebody
/// fills the wallet.
pub async fn refused_by_all(
    world: &World,
    anvil: &Anvil,
    liar: &Liar,
    nodes: &[&str],
) -> (Gateway, String, String) {
    let gateway = Anvil::start_on_all(world, nodes).await;
    let address = anvil.wallet(&gateway).await;
    anvil
        .call("anvil_setBalance", json!([address, "0x0"]))
        .await;
    liar.refuses_truly.store(true, Ordering::SeqCst);
    let refused = create(&gateway, send(&address)).await.uuid;
    let ended = outcome(&gateway, &refused).await;
    assert!(ended.error.is_some());
    assert_eq!(
        status(&gateway, &refused).await,
        signing_request::Status::Failed
    );
    assert_eq!(liar.kept.lock().unwrap().len(), 1);
    liar.refuses_truly.store(false, Ordering::SeqCst);
    let funds = json!([address, "0xde0b6b3a7640000"]);
    anvil.call("anvil_setBalance", funds).await;
    (gateway, address, refused)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_after_a_refused_one__should_have_its_number_whatever_one_of_two_nodes_says() {
    let (anvil, world) = (Anvil::start().await, patient());
    let liar = Arc::new(Liar::default());
    let (gateway, address, _) = refused_by_both(&world, &anvil, &liar).await;
    liar.counts.store(1, Ordering::SeqCst);
    let again = create(&gateway, send(&address)).await.uuid;
    assert_eq!(outcome(&gateway, &again).await.error, None);
    // Now it sends the first one.
    liar.sends(&anvil).await;
    anvil.mine(1).await;
    until_status(&gateway, &again, Status::Mined).await;
    anvil.mine(128).await;
    until_status(&gateway, &again, Status::Final).await;
    assert_eq!(anvil.received().await, "0x5", "paid once");
    // Its number is used for good, and that of the next one is asked for as ever.
    let next = create(&gateway, send(&address)).await.uuid;
    assert_eq!(outcome(&gateway, &next).await.error, None);
    anvil.mine(1).await;
    assert_eq!(anvil.received().await, "0xa");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_payment_that_is_mined_before_it_is_made_again__should_not_be_paid_twice() {
    let (anvil, world) = (Anvil::start().await, patient());
    let liar = Arc::new(Liar::default());
    let (gateway, address, refused) = refused_by_both(&world, &anvil, &liar).await;
    liar.sends(&anvil).await;
    anvil.mine(128).await;
    assert_eq!(anvil.received().await, "0x5");
    // However often a program repeats what has failed.
    for _ in 0..2 {
        let again = create(&gateway, send(&address)).await.uuid;
        assert!(outcome(&gateway, &again).await.error.is_some());
        let shown = details(&gateway, &again).await;
        assert_eq!(shown.status(), signing_request::Status::Failed);
        assert!(
            shown.failed_reason.contains(&refused)
                && shown.failed_reason.contains("is on the chain after all"),
            "{}",
            shown.failed_reason
        );
        assert_eq!(shown.signed_transaction, "");
    }
    // The one that is called failed shows where it is.
    let shown = details(&gateway, &refused).await;
    assert_eq!(shown.status(), signing_request::Status::Failed);
    let place = shown.transaction_state.unwrap();
    assert_eq!((place.status(), place.success), (Status::Final, Some(true)));
    assert!(noted(&world, "MinedLate", "nonce 0 is used by now").await);
    // Another payment of the wallet goes on.
    let other = Kind::EvmSendNative(wire::EvmSendNative {
        value: "6".into(),
        ..send_native(&address)
    });
    let other = create(&gateway, other).await.uuid;
    assert_eq!(outcome(&gateway, &other).await.error, None);
    anvil.mine(1).await;
    assert_eq!(anvil.received().await, "0xb");
    // A day later the same may be paid again.
    world.pass(86_400_000);
    let later = create(&gateway, send(&address)).await.uuid;
    assert_eq!(outcome(&gateway, &later).await.error, None);
    anvil.mine(1).await;
    assert_eq!(anvil.received().await, "0x10");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_node_refused_while_the_other_was_away__should_not_fail_by_refusals() {
    let (anvil, world) = (Anvil::start().await, patient());
    let (good, _) = honest(&anvil).await;
    // Bound, so that nobody else gets the port, and not listening yet.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let away = format!("http://{}", socket.local_addr().unwrap());
    let gateway = Anvil::start_on_all(&world, &[&good, &away]).await;
    let address = anvil.wallet(&gateway).await;
    let empty = json!([address, "0x0"]);
    anvil.call("anvil_setBalance", empty).await;
    let payment = create(&gateway, send(&address)).await.uuid;
    until(async || noted(&world, "Delayed", "2 nodes must refuse it").await).await;
    assert_eq!(
        status(&gateway, &payment).await,
        signing_request::Status::Pending
    );
    // It is there again, and has never seen the transaction: both refuse it now, and the one that got it before may have
    // kept it.
    let listener = socket.listen(64).unwrap();
    anvil.behind_at(listener, |_| Way::Open);
    until(async || {
        world.pass(1_000);
        noted(&world, "Delayed", "an earlier attempt may have reached").await
    })
    .await;
    a_while().await;
    assert_eq!(
        status(&gateway, &payment).await,
        signing_request::Status::Pending
    );
    // Who was told that it failed would pay again now. It is the same payment that comes, once.
    let funds = json!([address, "0xde0b6b3a7640000"]);
    anvil.call("anvil_setBalance", funds).await;
    until(async || {
        world.pass(1_000);
        status(&gateway, &payment).await == signing_request::Status::Succeeded
    })
    .await;
    anvil.mine(1).await;
    assert_eq!(anvil.received().await, "0x5");
    // The wallet goes on.
    let next = create(&gateway, send(&address)).await.uuid;
    assert_eq!(outcome(&gateway, &next).await.error, None);
}

/// Another payment than [`send`].
fn other_payment(address: &str) -> Kind {
    Kind::EvmSendNative(wire::EvmSendNative {
        value: "6".into(),
        ..send_native(address)
    })
}

/// Waits until a request waits for this.
async fn waits_for(gateway: &Gateway, uuid: &str, words: &str) {
    until(async || {
        let waits = try_outcome(gateway, &admin(), uuid).await;
        waits.is_err_and(|why| why.message().contains(words))
    })
    .await;
    let shown = details(gateway, uuid).await;
    assert_eq!(shown.signed_transaction, "");
}

/// Until a payment has failed as another one of the same is on the chain.
pub async fn fails_as_paid(gateway: &Gateway, uuid: &str, refused: &str) {
    assert!(outcome(gateway, uuid).await.error.is_some());
    let shown = details(gateway, uuid).await;
    assert!(
        shown.failed_reason.contains(refused)
            && shown.failed_reason.contains("is on the chain after all"),
        "{}",
        shown.failed_reason
    );
    assert_eq!(shown.signed_transaction, "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_that_its_refused_first_try_replaced__should_not_be_paid_a_second_time() {
    let (anvil, world) = (Anvil::start().await, patient());
    let liar = Arc::new(Liar::default());
    let (gateway, address, refused) = refused_by_both(&world, &anvil, &liar).await;
    // With another limit: the double's signatures of the very same transaction are the same.
    let limited = Kind::EvmSendNative(wire::EvmSendNative {
        gas_fee: Some(wire::EvmGas {
            gas_limit: Some("21001".into()),
            ..Default::default()
        }),
        ..send_native(&address)
    });
    let again = create(&gateway, limited).await.uuid;
    assert_eq!(outcome(&gateway, &again).await.error, None);
    // The first one takes its place, as one with a higher price would.
    liar.takes_over(&anvil).await;
    anvil.mine(128).await;
    until_status(&gateway, &again, Status::Replaced).await;
    assert_eq!(anvil.received().await, "0x5");
    let third = create(&gateway, send(&address)).await.uuid;
    fails_as_paid(&gateway, &third, &refused).await;
    anvil.mine(1).await;
    assert_eq!(anvil.received().await, "0x5", "paid once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_made_again__should_wait_while_another_one_has_its_refused_number() {
    for comes in [true, false] {
        let (anvil, world) = (Anvil::start().await, patient());
        let liar = Arc::new(Liar::default());
        let (gateway, address, refused) = refused_by_both(&world, &anvil, &liar).await;
        let other = create(&gateway, other_payment(&address)).await.uuid;
        assert_eq!(outcome(&gateway, &other).await.error, None);
        let again = create(&gateway, send(&address)).await.uuid;
        let words = "the same payment was refused with nonce 0, which request";
        waits_for(&gateway, &again, words).await;
        if comes {
            // The first one takes the place of the other one, and its liar names a third.
            let third = format!("0x{}", "77".repeat(32));
            let named = json!([{"from": address, "nonce": "0x0", "hash": third}]);
            *liar.block.lock().unwrap() = Some(json!({"transactions": named}));
            liar.takes_over(&anvil).await;
            anvil.mine(128).await;
            until_status(&gateway, &other, Status::Replaced).await;
            let shown = details(&gateway, &other).await.transaction_state.unwrap();
            assert_eq!(shown.replaced_by, "", "one node's word");
            fails_as_paid(&gateway, &again, &refused).await;
            anvil.mine(1).await;
            assert_eq!(anvil.received().await, "0x5", "paid once");
        } else {
            anvil.mine(1).await;
            assert_eq!(outcome(&gateway, &again).await.error, None);
            anvil.mine(1).await;
            assert_eq!(anvil.received().await, "0xb");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_that_was_refused_far_ahead__should_wait_when_it_is_made_again_with_another_number()
 {
    let (anvil, world) = (Anvil::start().await, patient());
    let gateway = Anvil::start_on_all(&world, &[&honest(&anvil).await.0]).await;
    let address = anvil.wallet(&gateway).await;
    let empty = json!([address, "0x0"]);
    anvil.call("anvil_setBalance", empty).await;
    let with_nonce = |nonce| {
        Kind::EvmSendNative(wire::EvmSendNative {
            nonce: Some(nonce),
            ..send_native(&address)
        })
    };
    let refused = create(&gateway, with_nonce(40)).await.uuid;
    assert!(outcome(&gateway, &refused).await.error.is_some());
    let funds = json!([address, "0xde0b6b3a7640000"]);
    anvil.call("anvil_setBalance", funds).await;
    // With the next number it could be paid twice, once the wallet gets to that of the refused one.
    let again = create(&gateway, send(&address)).await.uuid;
    let words = "can still come with nonce 40, and 40 nonces before it are not used";
    waits_for(&gateway, &again, words).await;
    let named = create(&gateway, with_nonce(0)).await.uuid;
    assert!(outcome(&gateway, &named).await.error.is_some());
    let shown = details(&gateway, &named).await;
    let words = format!("the same payment of request {refused} was refused with nonce 40");
    assert!(
        shown.failed_reason.contains(&words) && shown.failed_reason.contains("or name nonce 40"),
        "{}",
        shown.failed_reason
    );
    assert_eq!(shown.signed_transaction, "");
    // Another amount is another payment.
    let other = create(&gateway, other_payment(&address)).await.uuid;
    assert_eq!(outcome(&gateway, &other).await.error, None);
    // With its own number the chain takes one of the two.
    let own = create(&gateway, with_nonce(40)).await.uuid;
    assert_eq!(outcome(&gateway, &own).await.error, None);
    assert_eq!(outcome(&gateway, &again).await.error, None);
    anvil.mine(1).await;
    assert_eq!(anvil.received().await, "0xb");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_pays_something_else__should_go_on_while_one_node_hides_a_refused_transaction() {
    let (anvil, world) = (Anvil::start().await, patient());
    let liar = Arc::new(Liar::default());
    let (gateway, address, refused) = refused_by_both(&world, &anvil, &liar).await;
    liar.sends(&anvil).await;
    liar.hides.store(true, Ordering::SeqCst);
    anvil.mine(128).await;
    let again = create(&gateway, send(&address)).await.uuid;
    waits_for(&gateway, &again, "nonce 0 is used on the chain, perhaps by").await;
    let other = create(&gateway, other_payment(&address)).await.uuid;
    assert_eq!(outcome(&gateway, &other).await.error, None);
    anvil.mine(1).await;
    assert_eq!(anvil.received().await, "0xb");
    // However long it does: what pays the same waits on.
    world.pass(3 * 86_400_000);
    let more = create(&gateway, other_payment(&address)).await.uuid;
    assert_eq!(outcome(&gateway, &more).await.error, None);
    let words = format!("covault request forget-refused {refused}");
    let third = create(&gateway, send(&address)).await.uuid;
    for uuid in [&again, &third] {
        waits_for(&gateway, uuid, &words).await;
    }
    liar.hides.store(false, Ordering::SeqCst);
    fails_as_paid(&gateway, &again, &refused).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number_that_is_used__should_not_be_free_because_nodes_count_differently() {
    let (anvil, world) = (Anvil::start().await, patient());
    let liar = Arc::new(Liar::default());
    let (gateway, address, refused) = refused_by_both(&world, &anvil, &liar).await;
    liar.sends(&anvil).await;
    anvil.mine(128).await;
    // As nodes do, too, that are asked before and after a block.
    liar.counts.store(3, Ordering::SeqCst);
    let again = create(&gateway, send(&address)).await.uuid;
    fails_as_paid(&gateway, &again, &refused).await;
    assert_eq!(anvil.received().await, "0x5", "paid once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number_that_may_be_used__should_not_be_given_while_a_node_is_silent() {
    let (anvil, world) = (Anvil::start().await, patient());
    let liar = Arc::new(Liar::default());
    let (gateway, address, refused) = refused_by_both(&world, &anvil, &liar).await;
    liar.sends(&anvil).await;
    anvil.mine(128).await;
    liar.is_silent.store(true, Ordering::SeqCst);
    let again = create(&gateway, send(&address)).await.uuid;
    waits_for(
        &gateway,
        &again,
        "not known whether its nonce is used by now",
    )
    .await;
    // What pays something else does not wait for the silent one.
    let other = create(&gateway, other_payment(&address)).await.uuid;
    assert_eq!(outcome(&gateway, &other).await.error, None);
    anvil.mine(1).await;
    assert_eq!(anvil.received().await, "0xb");
    liar.is_silent.store(false, Ordering::SeqCst);
    fails_as_paid(&gateway, &again, &refused).await;
    assert_eq!(anvil.received().await, "0xb", "paid once");
}
