//! Many refused transactions of one wallet: few of them are kept, none is lost sight of, and they cost its requests little.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use covault_actors::{
    chain_rpc::TransactionSighting,
    gateway::Gateway,
    operations::ForgetRefusedTransaction,
    store::{Batch, Key, KeySpace, Precondition, Scan, Store},
    testing::{StoreCall, ToldStore},
};
use covault_core::{
    fault::Fault,
    ids::RequestId,
    networks::Network,
    schema::{
        admin,
        wire::{
            self, FeeLevel, create_signing_request_request::Type as Kind, transaction_state::Status,
        },
    },
};

use crate::{
    evm_anvil::Anvil,
    keeping_byzantine_node::{Liar, fails_as_paid, honest, patient, refused_by_all},
    numbers_behind::{Numbered, failed},
    rebroadcast::{aptos_wallet, pass, pay_aptos},
    tracker::until_status,
    world::*,
};

/// Counts of questions to a store.
#[derive(Default)]
struct Counts {
    /// About refused numbers and who has them: others come as time passes.
    questions: AtomicUsize,
    /// Requests that were read together with others.
    requests: AtomicUsize,
}

/// This store, and what is counted of it.
fn counted(store: &Arc<dyn Store>) -> (Arc<dyn Store>, Arc<Counts>) {
    let counts = Arc::<Counts>::default();
    let told = Arc::clone(&counts);
    let store = ToldStore::new(store, move |call: StoreCall<'_>| {
        if let (StoreCall::GetAll(keys), Some(KeySpace::Request)) = (call, call.space()) {
            told.requests.fetch_add(keys.len(), Ordering::SeqCst);
        }
        let is_commit = matches!(call, StoreCall::Commit(_));
        let counts = [KeySpace::RefusedTransaction, KeySpace::NonceReservation];
        if !is_commit && call.space().is_some_and(|space| counts.contains(&space)) {
            told.questions.fetch_add(1, Ordering::SeqCst);
        }
    });
    (store, counts)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_refusals__should_not_cost_the_next_payment_a_question_each() {
    let (anvil, mut world) = (Anvil::start().await, patient());
    let store = Arc::clone(&world.store);
    let counts;
    (world.store, counts) = counted(&store);
    let liar = Arc::new(Liar::default());
    let (bad, (good, _)) = (liar.start(&anvil).await, honest(&anvil).await);
    let (gateway, address, _) = refused_by_all(&world, &anvil, &liar, &[&good, &bad]).await;
    let all = all();
    let (key, _) = store.scan(&all).await.unwrap().pop().unwrap();
    let refused = RequestId::from_bytes(*key.bytes.last_chunk().unwrap());
    let mut more = Batch::new();
    copy_refused(&*store, &refused, 0..1_000, &mut more).await;
    store.commit(more).await.unwrap();
    let numbers = || {
        let [questions, requests] = [&counts.questions, &counts.requests];
        [questions, requests].map(|count| count.load(Ordering::SeqCst))
    };
    let before = numbers();
    let again = create(&gateway, send(&address)).await.uuid;
    assert_eq!(outcome(&gateway, &again).await.error, None);
    let [questions, requests] = numbers();
    assert!(questions - before[0] < 100, "{questions}");
    // Each once, however often the rows are looked at.
    assert!(requests - before[1] < 1_100, "{requests}");
    // All are forgotten once its number is used for good.
    anvil.mine(128).await;
    until_status(&gateway, &again, Status::Final).await;
    let next = create(&gateway, send(&address)).await.uuid;
    assert_eq!(outcome(&gateway, &next).await.error, None);
    assert!(store.scan(&all).await.unwrap().is_empty());
}

/// Adds copies of a refused transaction and of its request, in the name of requests with these ids.
pub async fn copy_refused(
    store: &dyn Store,
    refused: &RequestId,
    ids: impl IntoIterator<Item = u128>,
    batch: &mut Batch,
) {
    let rows = store.scan(&all()).await.unwrap();
    let mut rows = rows.into_iter();
    let (key, row) = rows
        .find(|(it, _)| it.bytes.ends_with(refused.as_bytes()))
        .unwrap();
    let request = Key::new(KeySpace::Request, &[refused.as_bytes()]);
    let request = store.get(&request).await.unwrap().unwrap();
    let name = &key.bytes[..key.bytes.len() - 16];
    for id in ids.into_iter().map(u128::to_be_bytes) {
        let key = Key::new(KeySpace::RefusedTransaction, &[name, &id]);
        batch.put(key, Precondition::Absent, row.value.clone());
        let key = Key::new(KeySpace::Request, &[&id]);
        batch.put(key, Precondition::Absent, request.value.clone());
    }
}

/// All refused transactions that are remembered.
fn all() -> Scan {
    Scan::prefix(KeySpace::RefusedTransaction, &[], 2_000)
}

/// A program repeats what its wallet cannot pay, at another fee each time. Of what the chain takes once the newest are
/// remembered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_refusals_of_one_payment__should_be_few_rows() {
    let it = Numbered::start(Network::Stellar, World::new()).await;
    let remembered = async || it.world.store.scan(&all()).await.unwrap().len();
    it.chain.refuses_all.store(true, Ordering::SeqCst);
    let mut newest = String::new();
    for level in [FeeLevel::Slow, FeeLevel::Normal]
        .into_iter()
        .cycle()
        .take(40)
    {
        let payment = Kind::StellarSendNative(wire::StellarSendNative {
            from: it.from.clone(),
            to: it.from.clone(),
            value: "5".into(),
            fee_level: level.into(),
            ..Default::default()
        });
        newest = create(&it.gateway, payment).await.uuid;
        failed(&it.gateway, &newest).await;
        pass(&it.world, 1_000);
    }
    // The last one came after the newest were left.
    assert_eq!(remembered().await, 17);
    let rows = it.world.store.scan(&all()).await.unwrap();
    let newest: RequestId = newest.parse().unwrap();
    assert!(
        rows.iter()
            .any(|(key, _)| key.bytes.ends_with(newest.as_bytes()))
    );
    it.chain.refuses_all.store(false, Ordering::SeqCst);
    let paid = it.pay().await;
    until_status(&it.gateway, &paid, Status::Final).await;
    // The number of all of them is used for good.
    assert_eq!(outcome(&it.gateway, &it.pay().await).await.error, None);
    assert_eq!((it.chain.next(), remembered().await), (9, 0));
}

/// Different payments of a program that repeats them in turn, and how often each was refused before, by a copy of its rows.
const PAYMENTS: u64 = 20;
const BEFORE: u64 = 53;

/// A wallet with more refusals of few payments than are kept, of which the first payment was refused once more.
struct Crowded {
    it: Numbered,
    store: Arc<dyn Store>,
    counts: Arc<Counts>,
    /// Those of the first payment that are remembered, from the older to the newer one.
    first: [String; 2],
}

impl Crowded {
    async fn start() -> Self {
        let mut world = World::new();
        world.settings.signing_deadline_ms = 600_000;
        let store = Arc::clone(&world.store);
        let counts;
        (world.store, counts) = counted(&store);
        let it = Numbered::start(Network::Stellar, world).await;
        it.chain.refuses_all.store(true, Ordering::SeqCst);
        let (mut copies, mut first) = (Batch::new(), None);
        for payment in 0..PAYMENTS {
            let refused = it.pay_value(&(5 + payment).to_string()).await;
            failed(&it.gateway, &refused).await;
            let id = refused.parse().unwrap();
            // Not many of one payment beside each other.
            let ids = (0..BEFORE).map(|before| u128::from(before * PAYMENTS + payment));
            copy_refused(&*store, &id, ids, &mut copies).await;
            first.get_or_insert(refused);
        }
        store.commit(copies).await.unwrap();
        let again = it.pay_value("5").await;
        failed(&it.gateway, &again).await;
        let crowded = Self {
            first: [first.unwrap(), again],
            it,
            store,
            counts,
        };
        assert_eq!(crowded.remembered().await as u64, PAYMENTS + 1);
        crowded.it.chain.refuses_all.store(false, Ordering::SeqCst);
        crowded
    }

    async fn remembered(&self) -> usize {
        self.store.scan(&all()).await.unwrap().len()
    }

    async fn forget(&self, uuid: &str, older: u64) -> Result<usize, Fault> {
        forget_refused(&self.it.gateway, uuid, older).await
    }
}

/// An operator has looked this one up, and knows that so many older ones are not kept: how many are forgotten.
pub async fn forget_refused(gateway: &Gateway, uuid: &str, older: u64) -> Result<usize, Fault> {
    let forget = admin::ForgetRefusedTransactionRequest {
        uuid: uuid.to_owned(),
        older,
    };
    let answer = call::<ForgetRefusedTransaction>(gateway, &admin(), forget).await?;
    Ok(answer.tx_hashes.len())
}

/// The chain has one of the first payment that was refused so long ago that it is not kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_refusals_of_many_payments__should_not_forget_that_there_were_older_ones() {
    let crowded = Crowded::start().await;
    let it = &crowded.it;
    it.chain.takes("an older one");
    let before = crowded.counts.requests.load(Ordering::SeqCst);
    let again = it.pay_value("5").await;
    it.waits_for(&again, "nonce 7 is used on the chain, perhaps by")
        .await;
    it.waits_for(&again, "53 older ones of the same payment are not kept")
        .await;
    assert_eq!(it.chain.taken(), ["an older one"], "paid once");
    // What was refused is read from the store once.
    let read = crowded.counts.requests.load(Ordering::SeqCst) - before;
    assert!(read < PAYMENTS as usize, "{read}");
    // What was never refused is nobody's second payment.
    assert_eq!(
        outcome(&it.gateway, &it.pay_value("99").await).await.error,
        None
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgetting_a_refused_one__should_keep_that_there_were_older_ones() {
    let crowded = Crowded::start().await;
    let (it, [first, last]) = (&crowded.it, &crowded.first);
    // Nothing is forgotten before its operator says how many of them nobody can look up here.
    for older in [0, 52] {
        let problem = crowded.forget(first, older).await.unwrap_err();
        let words = "older: 53 older ones of the same payment are not kept";
        assert!(problem.message().starts_with(words), "{problem:?}");
    }
    let problem = crowded.forget(last, 53).await.unwrap_err();
    let words = "older: all refused transactions of the same payment are kept; leave it out";
    assert_eq!(problem.message(), words);
    assert_eq!(crowded.remembered().await as u64, PAYMENTS + 1);
    assert_eq!(crowded.forget(first, 53).await.unwrap(), 1);
    it.chain.takes("an older one");
    // The other one says so now.
    let again = it.pay_value("5").await;
    it.waits_for(&again, last).await;
    it.waits_for(&again, "53 older ones of the same payment are not kept")
        .await;
    it.waits_for(&again, "(--older 53)").await;
    assert!(crowded.forget(last, 0).await.is_err());
    assert_eq!(crowded.forget(last, 53).await.unwrap(), 1);
    assert_eq!(outcome(&it.gateway, &again).await.error, None);
}

/// One that can come for long is not left out for newer ones that cannot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_ones_with_a_later_end__should_outlive_newer_ones() {
    let it = Numbered::start(Network::Stellar, World::new()).await;
    it.chain.refuses_all.store(true, Ordering::SeqCst);
    let ends_s = it.world.clock_ms() / 1_000 + 1_000_000;
    it.chain.ends_s.store(ends_s, Ordering::SeqCst);
    let first = it.pay().await;
    failed(&it.gateway, &first).await;
    it.chain.ends_s.store(0, Ordering::SeqCst);
    for _ in 0..20 {
        failed(&it.gateway, &it.pay().await).await;
    }
    let rows = it.world.store.scan(&all()).await.unwrap();
    assert_eq!(rows.len(), 17);
    let first: RequestId = first.parse().unwrap();
    let mut keys = rows.iter().map(|(key, _)| &key.bytes);
    assert!(keys.any(|key| key.ends_with(first.as_bytes())));
}

/// Its nodes are asked in several calls, which several machines behind one address may answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_number__should_not_be_over_by_one_look() {
    let world = World::new();
    world.aptos.is_asked.store(true, Ordering::SeqCst);
    world.aptos.refuse.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let address = aptos_wallet(&gateway).await;
    let refused = create(&gateway, pay_aptos(&address)).await.uuid;
    failed(&gateway, &refused).await;
    world.aptos.refuse.store(false, Ordering::SeqCst);
    // The one that has refused it sends it in the moment in which it is paid again, and another machine does not have it yet.
    let hash = world.aptos.handed().remove(0);
    world.aptos.executes_what_it_kept(&hash);
    let said = [
        TransactionSighting::Replaced(None),
        TransactionSighting::Replaced(None),
    ];
    world.aptos.says.lock().unwrap().extend(said);
    let again = create(&gateway, pay_aptos(&address)).await.uuid;
    let reason = failed(&gateway, &again).await;
    let words = format!("the transaction {hash} of request {refused}");
    assert!(reason.contains(&words), "{reason}");
    assert_eq!(world.aptos.executed(), [hash], "paid once");
    assert!(world.aptos.says.lock().unwrap().is_empty());
}

/// With two nodes one of them can keep it waiting for ever; with three the word of the others is enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_that_one_of_three_nodes_hides__should_be_settled_by_the_two_others() {
    let (anvil, world) = (Anvil::start().await, patient());
    let liar = Arc::new(Liar::default());
    let bad = liar.start(&anvil).await;
    let [one, other] = [honest(&anvil).await.0, honest(&anvil).await.0];
    let nodes = [bad.as_str(), &one, &other];
    let (gateway, address, refused) = refused_by_all(&world, &anvil, &liar, &nodes).await;
    liar.sends(&anvil).await;
    liar.hides.store(true, Ordering::SeqCst);
    anvil.mine(128).await;
    let again = create(&gateway, send(&address)).await.uuid;
    fails_as_paid(&gateway, &again, &refused).await;
    assert_eq!(anvil.received().await, "0x5", "paid once");
}
