//! A node that refuses a transaction, keeps its bytes, and sends them once the client has paid again, on networks without
//! numbers: the chain takes one of the two, or the second one waits until the first one can no longer come.

use std::sync::{Arc, atomic::Ordering};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_actors::{
    chain_rpc::{ChainClient, ChainClients, ChainKey, TransactionSighting},
    gateway::Gateway,
    store::{Batch, Key, KeySpace, Precondition, Scan},
};
use covault_core::{
    fault::Class,
    networks::{Network, Payload, WireKind},
    schema::wire::{
        self, NetworkType, create_signing_request_request::Type as Kind, signing_request,
        transaction_state::Status,
    },
};
use serde_json::json;

use crate::{
    evm_anvil::Anvil,
    keeping_byzantine_node::{honest, patient},
    many_refusals::forget_refused,
    rebroadcast::noted,
    timed_double::{LIFE_MS, TimedDouble},
    tracker::{until, until_status},
    world::*,
};

/// Until a request has failed, and why; nothing of it was signed, unless it was sent.
pub async fn failed(gateway: &Gateway, uuid: &str) -> String {
    assert!(outcome(gateway, uuid).await.error.is_some());
    let shown = details(gateway, uuid).await;
    assert_eq!(shown.status(), signing_request::Status::Failed);
    shown.failed_reason
}

/// Until a request waits for this, unsigned.
pub async fn waits_for(gateway: &Gateway, uuid: &str, words: &str) {
    until(async || {
        let waits = try_outcome(gateway, &admin(), uuid).await;
        waits.is_err_and(|why| why.message().contains(words))
    })
    .await;
    assert_eq!(details(gateway, uuid).await.signed_transaction, "");
}

/// How many refused transactions are remembered.
pub async fn remembered(world: &World) -> usize {
    let all = Scan::prefix(KeySpace::RefusedTransaction, &[], 10);
    world.store.scan(&all).await.unwrap().len()
}

/// A wallet of TRON, Solana or Sonic SVM, whose chain this is.
struct Timed {
    world: World,
    gateway: Gateway,
    chain: Arc<TimedDouble>,
    key: ChainKey,
    from: String,
}

impl Timed {
    async fn all() -> Vec<Self> {
        Self::settling(180_000).await
    }

    /// All, where it takes so many milliseconds until it counts that nodes say that something never comes.
    async fn settling(settling_ms: u64) -> Vec<Self> {
        let mut all = Vec::new();
        for (key, kind) in [
            (ChainKey::of(Network::Tron, None), NetworkType::Tron),
            (ChainKey::SOLANA, NetworkType::Solana),
            (ChainKey::SONIC, NetworkType::Solana),
        ] {
            let mut world = World::new();
            world.settings.signing_deadline_ms = 300_000;
            world.settings.settling_ms = settling_ms;
            let chain = TimedDouble::new(Arc::clone(&world.clock));
            let client = Arc::clone(&chain) as Arc<dyn ChainClient>;
            let chains = ChainClients::default().with(key, client);
            let gateway = world.start_with(Arc::clone(&world.store), chains).await;
            let vault = vault(&gateway, "main").await;
            let from = wallet(&gateway, vault, kind).await.address;
            all.push(Self {
                world,
                gateway,
                chain,
                key,
                from,
            });
        }
        all
    }

    async fn pay(&self, value: &str) -> String {
        let (from, value) = (self.from.clone(), value.to_owned());
        let kind = match self.key.network {
            Network::Tron => Kind::TronSendNative(wire::TronSendNative {
                from,
                to: "TR7NHqjeKQxGTCi8q8ZY4pL8otSzgjLj6t".into(),
                value,
            }),
            _ => {
                let payment = wire::SolanaSendNative {
                    chain_id: self.key.chain_id.unwrap_or_default(),
                    from,
                    to: "CxvTXCepdDTH4PXUwU2Pf3FBi87L7VwXtzsgeAm1xVsS".into(),
                    value,
                    ..Default::default()
                };
                match self.key {
                    ChainKey::SONIC => Kind::SonicSvmSendNative(payment),
                    _ => Kind::SolanaSendNative(payment),
                }
            }
        };
        create(&self.gateway, kind).await.uuid
    }

    /// Sends a transaction that its client has built, of Solana or Sonic SVM.
    async fn send_built(&self, lamports: u8, blockhash: u8) -> String {
        let custom = wire::SolanaSendCustom {
            tx_base64: vec![built(&self.from, lamports, blockhash)],
            from: self.from.clone(),
            chain_id: self.key.chain_id.unwrap_or_default(),
        };
        let kind = match self.key {
            ChainKey::SONIC => Kind::SonicSvmSendCustom(custom),
            _ => Kind::SolanaSendCustom(custom),
        };
        create(&self.gateway, kind).await.uuid
    }

    /// A payment that all nodes refuse, of which one keeps the bytes: its uuid and hash.
    async fn refused(&self) -> (String, String) {
        self.chain.refuses.store(true, Ordering::SeqCst);
        let refused = self.pay("5").await;
        assert_eq!(
            failed(&self.gateway, &refused).await,
            "the sender cannot pay"
        );
        self.chain.refuses.store(false, Ordering::SeqCst);
        let mut sent = self.chain.sent();
        assert_eq!(sent.len(), 1);
        (refused, sent.remove(0))
    }

    /// Lets as much time pass as it takes that a request which waits for this refused one gets new time, and waits until it
    /// has looked again. False once it waits no more.
    async fn goes_on(&self, uuid: &str, hash: &str) -> bool {
        let is_over = async || {
            let status = details(&self.gateway, uuid).await.status();
            status != signing_request::Status::Pending
        };
        self.world
            .pass(self.world.settings.signing_deadline_ms / 5 * 4);
        // A look that has begun before is one of them.
        let seen = self.chain.looks(hash) + 2;
        until(async || self.chain.looks(hash) >= seen || is_over().await).await;
        !is_over().await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_made_again__should_go_by_itself_once_the_refused_one_can_no_longer_come() {
    for it in Timed::all().await {
        let (_, hash) = it.refused().await;
        let again = it.pay("5").await;
        waits_for(&it.gateway, &again, "can still come with the transaction").await;
        // Longer than a request has to be built: it only waits.
        for _ in 0..2 {
            assert!(it.goes_on(&again, &hash).await, "{}", it.key);
        }
        waits_for(&it.gateway, &again, &hash).await;
        // What pays something else does not wait.
        let other = it.pay("6").await;
        assert_eq!(outcome(&it.gateway, &other).await.error, None, "{}", it.key);
        assert_eq!(it.chain.sent().len(), 2, "{}", it.key);
        while it.goes_on(&again, &hash).await {}
        let paid = outcome(&it.gateway, &again).await;
        assert_eq!(paid.error, None, "{}", it.key);
        // The node that has kept the first one comes too late.
        assert!(!it.chain.takes_what_it_kept(&hash));
        assert!(it.chain.blocks().contains(&paid.tx_hash));
        assert_eq!(remembered(&it.world).await, 0, "{}", it.key);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_that_came_after_it_was_refused__should_not_be_paid_a_second_time() {
    for it in Timed::all().await {
        let (refused, hash) = it.refused().await;
        let again = it.pay("5").await;
        waits_for(&it.gateway, &again, "can still come with the transaction").await;
        assert!(it.chain.takes_what_it_kept(&hash));
        let third = it.pay("5").await;
        for uuid in [&again, &third] {
            let reason = failed(&it.gateway, uuid).await;
            let words = format!("the transaction {hash} of request {refused}");
            assert!(reason.contains(&words), "{}: {reason}", it.key);
            assert!(reason.contains("is on the chain after all: nothing was signed now"));
            assert_eq!(details(&it.gateway, uuid).await.signed_transaction, "");
        }
        // The one that is called failed shows where it is.
        until_status(&it.gateway, &refused, Status::Final).await;
        assert_eq!(it.chain.blocks(), [hash]);
        // No operator makes it undone.
        let answer = forget_refused(&it.gateway, &refused, 0).await;
        let problem = answer.unwrap_err();
        assert_eq!(problem.class(), &Class::WrongState);
        assert!(
            problem
                .message()
                .starts_with("uuid: its transaction is on the chain")
        );
        // A day later the same may be paid again.
        it.world.pass(86_400_000);
        let later = it.pay("5").await;
        assert_eq!(outcome(&it.gateway, &later).await.error, None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_made_again__should_fail_unsigned_where_nodes_never_agree_on_the_refused_one() {
    for it in Timed::all().await {
        let (_, hash) = it.refused().await;
        it.chain.is_blind.store(true, Ordering::SeqCst);
        let again = it.pay("5").await;
        waits_for(&it.gateway, &again, "can still come with the transaction").await;
        while it.goes_on(&again, &hash).await {}
        let reason = failed(&it.gateway, &again).await;
        assert!(reason.contains(&hash), "{reason}");
        assert_eq!(it.chain.sent(), [hash], "{}", it.key);
    }
}

/// One node has sent it, and says for days that it is nowhere: two have to say what became of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_that_one_node_hides__should_not_be_paid_after_days_until_an_operator_says_so() {
    for it in Timed::all().await {
        let (refused, hash) = it.refused().await;
        assert!(it.chain.takes_what_it_kept(&hash));
        it.chain.is_blind.store(true, Ordering::SeqCst);
        it.world.pass(8 * 86_400_000);
        // Others go on, and nothing is forgotten for these.
        let other = it.pay("6").await;
        assert_eq!(outcome(&it.gateway, &other).await.error, None, "{}", it.key);
        let words = format!("covault request forget-refused {refused}");
        let again = it.pay("5").await;
        waits_for(&it.gateway, &again, &words).await;
        it.world.pass(2 * 86_400_000);
        let third = it.pay("5").await;
        waits_for(&it.gateway, &third, &words).await;
        assert_eq!(it.chain.sent().len(), 2, "{}", it.key);
        assert!(!noted(&it.world, "MinedLate", &hash).await);
        assert_eq!(forget_refused(&it.gateway, &refused, 0).await, Ok(1));
        assert!(noted(&it.world, "RefusedForgotten", &hash).await);
        let nothing = forget_refused(&it.gateway, &refused, 0).await.unwrap_err();
        assert_eq!(
            nothing.message(),
            "uuid: no transaction of this request is remembered as refused"
        );
        for uuid in [&again, &third] {
            assert_eq!(outcome(&it.gateway, uuid).await.error, None, "{}", it.key);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_became_of_a_refused_payment__should_be_found_out_beside_other_payments() {
    for comes in [true, false] {
        for it in Timed::all().await {
            let (refused, hash) = it.refused().await;
            if comes {
                assert!(it.chain.takes_what_it_kept(&hash));
            }
            it.world.pass(3 * 86_400_000);
            let other = it.pay("6").await;
            assert_eq!(outcome(&it.gateway, &other).await.error, None, "{}", it.key);
            if comes {
                until_status(&it.gateway, &refused, Status::Final).await;
                let again = it.pay("5").await;
                assert!(failed(&it.gateway, &again).await.contains(&hash));
                // It is over a day later, whatever is paid.
                it.world.pass(86_400_000);
                let other = it.pay("7").await;
                assert_eq!(outcome(&it.gateway, &other).await.error, None);
            }
            until(async || remembered(&it.world).await == 0).await;
        }
    }
}

/// A transaction of Solana as a client builds it: a transfer of so many lamports, with this blockhash.
fn built(from: &str, lamports: u8, blockhash: u8) -> String {
    let mut bytes = vec![1];
    bytes.extend([0; 64]);
    bytes.extend([1, 0, 1, 3]);
    bytes.extend(bs58::decode(from).into_vec().unwrap());
    bytes.extend([2; 32]);
    bytes.extend([0; 32]);
    bytes.extend([blockhash; 32]);
    bytes.extend([1, 2, 2, 0, 1, 12, 2, 0, 0, 0, lamports, 0, 0, 0, 0, 0, 0, 0]);
    STANDARD.encode(bytes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_client_built_anew_after_a_refusal__should_wait_until_the_first_one_is_over() {
    for it in Timed::all().await {
        if it.key.network == Network::Tron {
            continue;
        }
        let send = async |lamports, blockhash| it.send_built(lamports, blockhash).await;
        it.chain.refuses.store(true, Ordering::SeqCst);
        let first = send(5, 7).await;
        failed(&it.gateway, &first).await;
        it.chain.refuses.store(false, Ordering::SeqCst);
        let hash = it.chain.sent().remove(0);
        let again = send(5, 8).await;
        waits_for(&it.gateway, &again, "can still come with the transaction").await;
        // It does something else.
        assert_eq!(outcome(&it.gateway, &send(6, 8).await).await.error, None);
        assert!(it.chain.takes_what_it_kept(&hash));
        assert!(failed(&it.gateway, &again).await.contains(&hash));
        assert_eq!(it.chain.blocks().len(), 2, "done once");
    }
}

/// Its client has the very same transaction sent again, which the chain takes once: what became of it is no news.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_refused_and_sent_again_as_it_is__should_not_stop_the_next_one() {
    for it in Timed::all().await {
        if it.key.network == Network::Tron {
            continue;
        }
        it.chain.refuses.store(true, Ordering::SeqCst);
        let first = it.send_built(5, 7).await;
        failed(&it.gateway, &first).await;
        it.chain.refuses.store(false, Ordering::SeqCst);
        it.chain.is_slow.store(true, Ordering::SeqCst);
        let same = it.send_built(5, 7).await;
        assert_eq!(outcome(&it.gateway, &same).await.error, None, "{}", it.key);
        // The chain may still take the first one in its place.
        let next = it.send_built(5, 8).await;
        waits_for(&it.gateway, &next, "can still come with the transaction").await;
        it.chain.is_slow.store(false, Ordering::SeqCst);
        until_status(&it.gateway, &same, Status::Final).await;
        // The message of both is used up.
        assert_eq!(outcome(&it.gateway, &next).await.error, None, "{}", it.key);
        assert_eq!(remembered(&it.world).await, 0, "{}", it.key);
        assert!(!noted(&it.world, "MinedLate", &first).await);
        assert_eq!(it.chain.blocks().len(), 2, "{}", it.key);
    }
}

/// One message with two signatures: the chain takes the first one, by which nobody here asks any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_came_by_its_first_signature__should_not_be_paid_again_when_the_second_is_dropped() {
    for it in Timed::settling(0).await {
        if it.key.network == Network::Tron {
            continue;
        }
        it.chain.refuses.store(true, Ordering::SeqCst);
        let first = it.send_built(5, 7).await;
        failed(&it.gateway, &first).await;
        it.chain.refuses.store(false, Ordering::SeqCst);
        let hash = it.chain.sent().remove(0);
        assert!(it.chain.takes_what_it_kept(&hash));
        let same = it.send_built(5, 7).await;
        let sent = outcome(&it.gateway, &same).await;
        assert_eq!(sent.error, None, "{}", it.key);
        assert_ne!(sent.tx_hash, hash, "another signature");
        it.world.pass(LIFE_MS);
        until_status(&it.gateway, &same, Status::Dropped).await;
        let again = it.send_built(5, 8).await;
        let reason = failed(&it.gateway, &again).await;
        assert!(reason.contains(&hash), "{}: {reason}", it.key);
        assert_eq!(it.chain.blocks(), [hash], "{}: paid once", it.key);
    }
}

/// A program sends it again and again: it pushes out nothing that pays something else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_bytes_refused_many_times__should_be_few_rows() {
    for it in Timed::all().await {
        if it.key.network == Network::Tron {
            continue;
        }
        it.chain.refuses.store(true, Ordering::SeqCst);
        for _ in 0..20 {
            let refused = it.send_built(5, 7).await;
            failed(&it.gateway, &refused).await;
        }
        let all = Scan::prefix(KeySpace::RefusedTransaction, &[], 100);
        let rows = it.world.store.scan(&all).await.unwrap();
        assert_eq!(rows.len(), 17, "{}", it.key);
    }
}

/// Nothing ties two transactions of TRON together, and its node is asked in several calls, which several nodes behind one
/// address may answer: one that is behind says that it is nowhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_payment__should_not_be_over_by_one_look() {
    let mut all = Timed::all().await.into_iter();
    let it = all.find(|it| it.key.network == Network::Tron).unwrap();
    let (refused, hash) = it.refused().await;
    assert!(it.chain.takes_what_it_kept(&hash));
    let said = [
        TransactionSighting::Expired,
        TransactionSighting::Expired,
        TransactionSighting::Expired,
    ];
    it.chain.says.lock().unwrap().extend(said);
    let again = it.pay("5").await;
    let reason = failed(&it.gateway, &again).await;
    let words = format!("the transaction {hash} of request {refused}");
    assert!(reason.contains(&words), "{reason}");
    assert_eq!(it.chain.sent(), [hash], "paid once");
}

/// Its client counts by itself, and pays the same twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_payments_with_numbers_of_their_own__should_be_made_again_after_both_were_refused() {
    let (anvil, world) = (Anvil::start().await, patient());
    let gateway = Anvil::start_on_all(&world, &[&honest(&anvil).await.0]).await;
    let address = anvil.wallet(&gateway).await;
    let funds = |value: &str| anvil.call("anvil_setBalance", json!([address, value]));
    let with_nonce = |nonce| {
        Kind::EvmSendNative(wire::EvmSendNative {
            nonce: Some(nonce),
            ..send_native(&address)
        })
    };
    funds("0x0").await;
    let refused = create(&gateway, with_nonce(0)).await.uuid;
    failed(&gateway, &refused).await;
    // As if another one had been on its way with the next number when the nodes refused this one.
    let all = Scan::prefix(KeySpace::RefusedTransaction, &[], 10);
    let (key, row) = world.store.scan(&all).await.unwrap().pop().unwrap();
    let (account, request) = key.bytes.split_last_chunk::<16>().unwrap();
    let (account, _) = account.split_last_chunk::<8>().unwrap();
    let mut batch = Batch::new();
    let next = Key::new(
        KeySpace::RefusedTransaction,
        &[account, &1_u64.to_be_bytes(), request],
    );
    batch.put(next, Precondition::Absent, row.value);
    world.store.commit(batch).await.unwrap();
    funds("0xde0b6b3a7640000").await;
    assert_eq!(remembered(&world).await, 2);
    for nonce in [0, 1] {
        let again = create(&gateway, with_nonce(nonce)).await.uuid;
        assert_eq!(outcome(&gateway, &again).await.error, None, "{nonce}");
    }
    anvil.mine(1).await;
    assert_eq!(anvil.received().await, "0xa");
}

/// A contract decides what it does, and another number or fee makes it no other call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_made_again__should_have_the_number_that_it_was_refused_with() {
    let (anvil, world) = (Anvil::start().await, patient());
    let gateway = Anvil::start_on_all(&world, &[&honest(&anvil).await.0]).await;
    let address = anvil.wallet(&gateway).await;
    let funds = |value: &str| anvil.call("anvil_setBalance", json!([address, value]));
    let call = |nonce, limit: &str| {
        let payment = send_native(&address);
        Kind::EvmSendCustom(wire::EvmSendCustom {
            chain_id: payment.chain_id,
            from: payment.from,
            to: payment.to,
            value: payment.value,
            input: vec![1],
            gas_fee: Some(wire::EvmGas {
                gas_limit: Some(limit.into()),
                ..Default::default()
            }),
            nonce,
        })
    };
    // Enough for the call when it is tried, and not for its fee.
    funds("0xa").await;
    let refused = create(&gateway, call(Some(0), "50000")).await.uuid;
    failed(&gateway, &refused).await;
    funds("0xde0b6b3a7640000").await;
    let named = create(&gateway, call(Some(1), "60000")).await.uuid;
    let reason = failed(&gateway, &named).await;
    assert!(reason.contains("was refused with nonce 0"), "{reason}");
    let again = create(&gateway, call(None, "60000")).await.uuid;
    assert_eq!(outcome(&gateway, &again).await.error, None);
    anvil.mine(1).await;
    assert_eq!(anvil.received().await, "0x5");
}

/// Two of them cost a fee and no payment: none waits for an earlier one that was refused.
#[test]
fn what_fills_a_gap__should_be_known_by_what_it_is() {
    let from = "0x00000000000000000000000000000000000000bb";
    let payload = Payload::parse(&WireKind::EvmSendNative(send_native(from))).unwrap();
    let rules = Network::Evm.rules();
    let filler = rules.gap_filler(&payload).unwrap();
    assert_ne!(filler, payload);
    assert_eq!(rules.gap_filler(&filler), Some(filler));
}
