//! What stands behind a number that no request uses, on networks whose transactions end by themselves: the next request
//! takes the number, or one of the service's that pays nobody else. Where neither comes nothing waits for longer than its
//! time and nothing is called done that is not.

use std::sync::{Arc, atomic::Ordering};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_actors::{
    chain_rpc::{ChainClient, ChainClients, ChainKey},
    gateway::Gateway,
    operations::ReplaceTransaction,
    store::{KeySpace, Scan},
};
use covault_core::{
    networks::Network,
    schema::wire::{
        self, NetworkType, create_signing_request_request::Type as Kind,
        replace_transaction_request::Action, signing_request, transaction_state::Status,
    },
};

use crate::{
    backup::{back_up, claims, let_in, restored},
    numbered_double::NumberedDouble,
    rebroadcast::{aptos_wallet, noted, pass, pay_aptos, sent},
    tracker::{GAP_MS, a_while, fillers, until, until_status},
    world::*,
};

/// Longer than a transaction of these networks lives.
pub const LIFE_MS: u64 = 1_000_000;

/// Until a request has failed, and why.
pub async fn failed(gateway: &Gateway, uuid: &str) -> String {
    assert!(outcome(gateway, uuid).await.error.is_some());
    let shown = details(gateway, uuid).await;
    assert_eq!(shown.status(), signing_request::Status::Failed);
    shown.failed_reason
}

/// Aptos, with a transaction that waits behind a number whose request was refused: its uuid and hash.
async fn behind_a_refused_one() -> (World, Gateway, String, (String, String)) {
    let world = World::new();
    world.aptos.is_asked.store(true, Ordering::SeqCst);
    world.aptos.refuses_next.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let address = aptos_wallet(&gateway).await;
    let first = create(&gateway, pay_aptos(&address)).await.uuid;
    let behind = create(&gateway, pay_aptos(&address)).await.uuid;
    let taken = outcome(&gateway, &behind).await;
    assert_eq!(taken.error, None);
    failed(&gateway, &first).await;
    world.aptos.refuses_next.store(false, Ordering::SeqCst);
    until_status(&gateway, &behind, Status::Pending).await;
    assert!(world.aptos.executed().is_empty());
    (world, gateway, address, (behind, taken.tx_hash))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aptos_transactions_behind_a_refused_number__should_come_with_the_next_request() {
    let (world, gateway, address, (behind, hash)) = behind_a_refused_one().await;
    let next = sent(&gateway, pay_aptos(&address)).await;
    assert_eq!(world.aptos.executed(), [next, hash]);
    until_status(&gateway, &behind, Status::Final).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aptos_transactions_behind_a_refused_number__should_come_before_their_time_is_over() {
    let (world, gateway, address, (behind, hash)) = behind_a_refused_one().await;
    let vault = details(&gateway, &behind).await.vault_uuid.unwrap();
    a_while().await;
    assert!(fillers(&gateway, &vault).await.is_empty(), "not at once");
    pass(&world, GAP_MS);
    until_status(&gateway, &behind, Status::Final).await;
    let fillers = fillers(&gateway, &vault).await;
    assert_eq!(fillers.len(), 1);
    let Some(signing_request::Type::AptosSendNative(moved)) = &fillers[0].r#type else {
        panic!("{:?}", fillers[0].r#type);
    };
    assert_eq!(
        (moved.to.as_str(), moved.value.as_str()),
        (address.as_str(), "1")
    );
    let filler = outcome(&gateway, &fillers[0].uuid).await.tx_hash;
    assert_eq!(world.aptos.executed(), [filler, hash]);
    // The payment that was refused has another number when it is made again.
    let again = sent(&gateway, pay_aptos(&address)).await;
    assert_eq!(world.aptos.executed()[2], again);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aptos_transactions_behind_a_refused_number__should_end_with_their_time() {
    let (world, gateway, address, (behind, hash)) = behind_a_refused_one().await;
    let vault = details(&gateway, &behind).await.vault_uuid.unwrap();
    // Nothing fills the gap: nodes refuse that, too.
    world.aptos.refuses_next.store(true, Ordering::SeqCst);
    pass(&world, GAP_MS);
    until(async || fillers(&gateway, &vault).await.len() == 1).await;
    let filler = fillers(&gateway, &vault).await.remove(0);
    failed(&gateway, &filler.uuid).await;
    until_status(&gateway, &behind, Status::Pending).await;
    pass(&world, LIFE_MS);
    until_status(&gateway, &behind, Status::Dropped).await;
    assert!(noted(&world, "Dropped", "it has expired").await);
    assert_eq!(world.followed().await, 0);
    world.aptos.refuses_next.store(false, Ordering::SeqCst);
    // Its number is free at once: what comes now waits behind nothing.
    world.aptos.halted.store(true, Ordering::SeqCst);
    let mut next = Vec::new();
    for _ in 0..3 {
        next.push(sent(&gateway, pay_aptos(&address)).await);
    }
    world.aptos.execute();
    assert_eq!(world.aptos.executed(), next);
    assert!(!next.contains(&hash));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_expired_transactions__should_be_free_when_none_of_all_for_it_can_come() {
    let (world, gateway, address, (behind, _)) = behind_a_refused_one().await;
    let asked = wire::ReplaceTransactionRequest {
        uuid: behind.clone(),
        action: Action::SpeedUp.into(),
        most_fee: None,
        notes: None,
    };
    let made = call::<ReplaceTransaction>(&gateway, &admin(), asked).await;
    let faster = made.unwrap().signing_request.unwrap().uuid;
    assert_eq!(outcome(&gateway, &faster).await.error, None);
    pass(&world, LIFE_MS);
    for uuid in [&behind, &faster] {
        until_status(&gateway, uuid, Status::Dropped).await;
    }
    world.aptos.halted.store(true, Ordering::SeqCst);
    let first = sent(&gateway, pay_aptos(&address)).await;
    let second = sent(&gateway, pay_aptos(&address)).await;
    world.aptos.execute();
    assert_eq!(world.aptos.executed(), [first, second]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_an_expired_transaction__should_stay_with_another_one_that_can_still_come() {
    for comes in [true, false] {
        let (world, gateway, address, (behind, _)) = behind_a_refused_one().await;
        // Nodes have lost it, and its client gives the number to one that lasts longer.
        world.aptos.forget();
        let Kind::AptosSendNative(payment) = pay_aptos(&address) else {
            unreachable!()
        };
        // Not the payment that was refused, which would have to have that one's number.
        let longer = Kind::AptosSendNative(wire::AptosSendNative {
            value: "6".into(),
            sequence_number: Some(1),
            expiration_timestamp_secs: Some(world.clock_ms() / 1_000 + 3_000),
            ..payment
        });
        let longer = create(&gateway, longer).await.uuid;
        let taken = outcome(&gateway, &longer).await;
        assert_eq!(taken.error, None);
        // Nothing fills the gap.
        world.aptos.refuses_next.store(true, Ordering::SeqCst);
        pass(&world, LIFE_MS);
        until_status(&gateway, &behind, Status::Dropped).await;
        if !comes {
            pass(&world, 3_000_000);
            until_status(&gateway, &longer, Status::Dropped).await;
        }
        world.aptos.refuses_next.store(false, Ordering::SeqCst);
        world.aptos.halted.store(true, Ordering::SeqCst);
        let mut expected = vec![sent(&gateway, pay_aptos(&address)).await];
        expected.extend(comes.then_some(taken.tx_hash));
        expected.push(sent(&gateway, pay_aptos(&address)).await);
        world.aptos.execute();
        assert_eq!(world.aptos.executed(), expected, "{comes}");
    }
}

/// An account of Stellar or TON that has sent some, and how it pays.
pub struct Numbered {
    pub world: World,
    pub gateway: Gateway,
    pub chain: Arc<NumberedDouble>,
    network: Network,
    pub from: String,
}

impl Numbered {
    pub async fn start(network: Network, world: World) -> Self {
        let chain = NumberedDouble::new(network, Arc::clone(&world.clock), 7);
        let gateway = Self::open(network, &world, &chain).await;
        let vault = vault(&gateway, "main").await;
        let kind = match network {
            Network::Stellar => NetworkType::Stellar,
            _ => NetworkType::Ton,
        };
        let from = wallet(&gateway, vault, kind).await.address;
        Self {
            world,
            gateway,
            chain,
            network,
            from,
        }
    }

    async fn open(network: Network, world: &World, chain: &Arc<NumberedDouble>) -> Gateway {
        let client = Arc::clone(chain) as Arc<dyn ChainClient>;
        let chains = ChainClients::default().with(ChainKey::of(network, None), client);
        world.start_with(Arc::clone(&world.store), chains).await
    }

    /// Ends the process, and begins another one with this world's store.
    async fn go_on(&mut self, world: World) {
        self.gateway.stop().await;
        self.world = world;
        self.gateway = Self::open(self.network, &self.world, &self.chain).await;
    }

    pub async fn pay(&self) -> String {
        self.pay_value("5").await
    }

    pub async fn pay_value(&self, value: &str) -> String {
        let value = value.to_owned();
        let (from, to) = (self.from.clone(), self.from.clone());
        let kind = match self.network {
            Network::Stellar => Kind::StellarSendNative(wire::StellarSendNative {
                from,
                to,
                value,
                ..Default::default()
            }),
            _ => Kind::TonSendNative(wire::TonSendNative {
                from,
                to,
                value,
                ..Default::default()
            }),
        };
        create(&self.gateway, kind).await.uuid
    }

    /// Payments of 5 and of 6, which are refused with two numbers.
    async fn two_refused(&self) {
        self.chain.pace_ms.store(u64::MAX, Ordering::SeqCst);
        let mut refused = Vec::new();
        for value in ["5", "6"] {
            let uuid = self.pay_value(value).await;
            let waits = async || {
                let waits = try_outcome(&self.gateway, &admin(), &uuid).await;
                waits.is_err_and(|why| why.message().contains("an earlier one is not there yet"))
            };
            until(waits).await;
            refused.push(uuid);
        }
        self.chain.refuses_all.store(true, Ordering::SeqCst);
        for uuid in &refused {
            pass(&self.world, GAP_MS);
            failed(&self.gateway, uuid).await;
        }
        self.chain.refuses_all.store(false, Ordering::SeqCst);
        self.chain.pace_ms.store(0, Ordering::SeqCst);
    }

    /// Waits until a payment waits for this.
    pub async fn waits_for(&self, uuid: &str, words: &str) {
        let waits = async || {
            let waits = try_outcome(&self.gateway, &admin(), uuid).await;
            waits.is_err_and(|why| why.message().contains(words))
        };
        until(waits).await;
        let shown = details(&self.gateway, uuid).await;
        assert_eq!(shown.signed_transaction, "");
    }

    /// A payment that waits behind a number whose request was refused.
    async fn behind_a_refused_one(&self) -> String {
        self.chain.refuses.store(true, Ordering::SeqCst);
        let first = self.pay().await;
        let behind = self.pay().await;
        failed(&self.gateway, &first).await;
        self.chain.refuses.store(false, Ordering::SeqCst);
        assert_eq!(self.chain.next(), 7);
        let shown = details(&self.gateway, &behind).await;
        assert_eq!(shown.status(), signing_request::Status::Pending);
        behind
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payments_of_stellar_and_ton_behind_a_refused_number__should_come_with_the_next_request() {
    for network in [Network::Stellar, Network::Ton] {
        let it = Numbered::start(network, World::new()).await;
        let behind = it.behind_a_refused_one().await;
        let next = it.pay().await;
        let mut hashes = Vec::new();
        for uuid in [&next, &behind] {
            let outcome = outcome(&it.gateway, uuid).await;
            assert_eq!(outcome.error, None);
            hashes.push(outcome.tx_hash);
        }
        assert_eq!(it.chain.taken(), hashes, "{network:?}");
        assert_eq!(it.chain.refused.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payments_of_stellar_and_ton_behind_a_refused_number__should_come_before_their_time_is_over()
 {
    for network in [Network::Stellar, Network::Ton] {
        let it = Numbered::start(network, World::new()).await;
        let behind = it.behind_a_refused_one().await;
        let vault = details(&it.gateway, &behind).await.vault_uuid.unwrap();
        a_while().await;
        assert!(fillers(&it.gateway, &vault).await.is_empty(), "not at once");
        pass(&it.world, GAP_MS);
        let paid = outcome(&it.gateway, &behind).await;
        assert_eq!(paid.error, None, "{network:?}");
        let fillers = fillers(&it.gateway, &vault).await;
        assert_eq!(fillers.len(), 1);
        let filler = outcome(&it.gateway, &fillers[0].uuid).await.tx_hash;
        assert_eq!(it.chain.taken(), [filler, paid.tx_hash]);
        let (to, value) = match &fillers[0].r#type {
            Some(signing_request::Type::StellarSendNative(moved)) => (&moved.to, &moved.value),
            Some(signing_request::Type::TonSendNative(moved)) => (&moved.to, &moved.value),
            other => panic!("{other:?}"),
        };
        let least = match network {
            Network::Ton => "0",
            _ => "0.0000001",
        };
        assert_eq!((to, value.as_str()), (&it.from, least));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payments_of_stellar_and_ton_behind_a_refused_number__should_fail_with_their_time() {
    for network in [Network::Stellar, Network::Ton] {
        let it = Numbered::start(network, World::new()).await;
        let behind = it.behind_a_refused_one().await;
        a_while().await;
        let shown = details(&it.gateway, &behind).await;
        assert_eq!(shown.status(), signing_request::Status::Pending);
        pass(&it.world, LIFE_MS);
        let reason = failed(&it.gateway, &behind).await;
        assert!(
            reason.contains("transaction has expired") || reason.contains("expired"),
            "{network:?}: {reason}"
        );
        assert!(it.chain.taken().is_empty());
        // Both numbers are free.
        let (first, second) = (it.pay().await, it.pay().await);
        for uuid in [first, second] {
            assert_eq!(outcome(&it.gateway, &uuid).await.error, None);
        }
        assert_eq!(it.chain.next(), 9);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_of_stellar_or_ton_after_a_refused_one__should_have_its_number_whatever_is_offered()
 {
    for network in [Network::Stellar, Network::Ton] {
        let it = Numbered::start(network, World::new()).await;
        it.chain.refuses_all.store(true, Ordering::SeqCst);
        let refused = it.pay().await;
        failed(&it.gateway, &refused).await;
        it.chain.refuses_all.store(false, Ordering::SeqCst);
        // The node that has kept its bytes offers the number after.
        it.chain.overstates.store(1, Ordering::SeqCst);
        let again = it.pay().await;
        let paid = outcome(&it.gateway, &again).await;
        assert_eq!(paid.error, None, "{network:?}");
        assert_eq!((it.chain.next(), it.chain.taken()), (8, vec![paid.tx_hash]));
        // It is used for good, and what is offered counts again: 10, before which nothing is sent here.
        until_status(&it.gateway, &again, Status::Final).await;
        it.chain.overstates.store(0, Ordering::SeqCst);
        assert_eq!(outcome(&it.gateway, &it.pay().await).await.error, None);
        assert_eq!(it.chain.next(), 9);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_that_is_made_again__should_have_its_own_number_of_several_that_were_refused() {
    for network in [Network::Stellar, Network::Ton] {
        let it = Numbered::start(network, World::new()).await;
        it.two_refused().await;
        // The second one first: with the number of the first one, its earlier bytes could come besides.
        let second = it.pay_value("6").await;
        // Alone it would wait on the chain until its time is over.
        let words = "can still come with nonce 8";
        it.waits_for(&second, words).await;
        let first = it.pay_value("5").await;
        let mut hashes = Vec::new();
        for uuid in [first, second] {
            let paid = outcome(&it.gateway, &uuid).await;
            assert_eq!(paid.error, None, "{network:?}");
            hashes.push(paid.tx_hash);
        }
        assert_eq!(it.chain.taken(), hashes);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_that_is_made_again_alone__should_go_once_the_refused_one_is_over() {
    // Also where the machine sleeps between the chain's answer and what is built on it, which would be over then.
    for (network, sleeps) in [
        (Network::Stellar, false),
        (Network::Ton, false),
        (Network::Stellar, true),
        (Network::Ton, true),
    ] {
        let mut world = World::new();
        world.settings.signing_deadline_ms = 2 * LIFE_MS;
        let it = Numbered::start(network, world).await;
        it.two_refused().await;
        let again = it.pay_value("6").await;
        it.waits_for(&again, "can still come with nonce 8").await;
        match sleeps {
            true => it.chain.sleeps_ms.store(LIFE_MS, Ordering::SeqCst),
            false => pass(&it.world, LIFE_MS),
        }
        let paid = outcome(&it.gateway, &again).await;
        assert_eq!(paid.error, None, "{network:?} {sleeps}");
        assert_eq!((it.chain.next(), it.chain.taken()), (8, vec![paid.tx_hash]));
    }
}

/// An envelope of another source, of which this address pays itself 5: in XDR by hand.
fn envelope_of_another(address: &str, sequence: u64, ends_s: u64) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let (mut bytes, mut bits, mut left) = (Vec::new(), 0_u32, 0);
    for letter in address.bytes() {
        let value = LETTERS.iter().position(|it| *it == letter).unwrap();
        bits = (bits << 5) | u32::try_from(value).unwrap();
        left += 5;
        if left >= 8 {
            left -= 8;
            bytes.push((bits >> left) as u8);
            bits &= (1 << left) - 1;
        }
    }
    let own = bytes[1..33].to_vec();
    let int = |value: u32| value.to_be_bytes().to_vec();
    let long = |value: u64| value.to_be_bytes().to_vec();
    // The point of RFC 8032's first test vector.
    let other = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
    let other = (0..32).map(|at| u8::from_str_radix(&other[2 * at..2 * at + 2], 16).unwrap());
    let envelope = [
        [int(2), int(0), other.collect(), int(100), long(sequence)].concat(),
        // Its time, no memo, one operation of the wallet: Payment of the chain's coin.
        [int(1), long(0), long(ends_s), int(0), int(1)].concat(),
        [int(1), int(0), own.clone(), int(1), int(0), own, int(0)].concat(),
        // No extension, no signatures.
        [long(5), int(0), int(0)].concat(),
    ];
    STANDARD.encode(envelope.concat())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_envelope_of_another_source__should_not_be_a_number_of_the_wallet() {
    let it = Numbered::start(Network::Stellar, World::new()).await;
    it.chain.refuses_all.store(true, Ordering::SeqCst);
    let all = Scan::prefix(KeySpace::RefusedTransaction, &[], 10);
    let remembered = async || it.world.store.scan(&all).await.unwrap().len();
    let ends_s = it.world.clock_ms() / 1_000 + 300;
    let theirs = Kind::StellarSendCustom(wire::StellarSendCustom {
        from: it.from.clone(),
        tx_base64: envelope_of_another(&it.from, 9, ends_s),
    });
    let theirs = create(&it.gateway, theirs).await.uuid;
    assert!(failed(&it.gateway, &theirs).await.contains("cannot pay"));
    assert_eq!(remembered().await, 0);
    failed(&it.gateway, &it.pay().await).await;
    assert_eq!(remembered().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_an_expired_doubt__should_be_free_while_one_node_is_away() {
    for network in [Network::Stellar, Network::Ton] {
        let it = Numbered::start(network, World::new()).await;
        // One node refuses the first one, and the other is away.
        it.chain.refuses.store(true, Ordering::SeqCst);
        it.chain.is_blind.store(true, Ordering::SeqCst);
        let doubted = it.pay().await;
        let waits = async || {
            let waits = try_outcome(&it.gateway, &admin(), &doubted).await;
            waits.is_err_and(|why| why.message().contains("the node is busy"))
        };
        until(waits).await;
        pass(&it.world, LIFE_MS);
        it.chain.refuses.store(false, Ordering::SeqCst);
        let next = it.pay().await;
        let paid = outcome(&it.gateway, &next).await;
        assert_eq!(paid.error, None, "{network:?}");
        assert_eq!(it.chain.taken(), [paid.tx_hash]);
        let shown = details(&it.gateway, &doubted).await;
        assert_eq!(shown.status(), signing_request::Status::Pending);
        assert!(noted(&it.world, "Freed", "nonce 7 is free again").await);
        // The other node is back.
        it.chain.is_blind.store(false, Ordering::SeqCst);
        failed(&it.gateway, &doubted).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_sent_since_a_backup__should_succeed_where_its_hash_needs_no_signature() {
    for network in [Network::Stellar, Network::Ton] {
        let mut it = Numbered::start(network, World::new()).await;
        it.world.signers.silent.store(true, Ordering::SeqCst);
        let uuid = it.pay().await;
        until(async || claims(&it.world).await == 1).await;
        let backup = back_up(&it.gateway).await;
        it.world.signers.silent.store(false, Ordering::SeqCst);
        it.go_on(it.world.clone()).await;
        let sent = outcome(&it.gateway, &uuid).await;
        assert_eq!(sent.error, None);
        let restored = restored(&it.world, &backup).await;
        it.go_on(restored).await;
        if network == Network::Ton {
            // Nodes are not asked for its signature.
            a_while().await;
            let shown = details(&it.gateway, &uuid).await;
            assert_eq!(shown.status(), signing_request::Status::Pending);
            continue;
        }
        for _ in 0..2 {
            until_status(&it.gateway, &uuid, Status::Final).await;
            let shown = details(&it.gateway, &uuid).await;
            assert_eq!(shown.status(), signing_request::Status::Succeeded);
            assert_eq!(shown.tx_hash, sent.tx_hash);
            // What is shown is true: nobody here has them.
            assert_eq!(shown.signed_transaction, "");
            assert_eq!(shown.signatures, None);
            assert_eq!(it.world.followed().await, 0);
            it.go_on(it.world.clone()).await;
        }
        // The next one is built after it, and nothing is sent without its bytes.
        let_in(&it.gateway, &admin()).await.unwrap();
        pass(&it.world, GAP_MS);
        let next = it.pay().await;
        assert_eq!(outcome(&it.gateway, &next).await.error, None);
        assert_eq!(it.chain.next(), 9);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_asked_for_again_after_a_restore__should_succeed_once() {
    let mut it = Numbered::start(Network::Stellar, World::new()).await;
    let ends_s = it.world.clock_ms() / 1_000 + 300;
    it.chain.ends_s.store(ends_s, Ordering::SeqCst);
    it.world.signers.silent.store(true, Ordering::SeqCst);
    let first = it.pay().await;
    until(async || claims(&it.world).await == 1).await;
    let backup = back_up(&it.gateway).await;
    let restored = restored(&it.world, &backup).await;
    it.go_on(restored).await;
    it.world.signers.silent.store(false, Ordering::SeqCst);
    let_in(&it.gateway, &admin()).await.unwrap();
    // The very same transaction, whose hash is known of both.
    let again = it.pay().await;
    let paid = outcome(&it.gateway, &again).await;
    assert_eq!(paid.error, None);
    let reason = failed(&it.gateway, &first).await;
    let words = format!("nonce 7 was used by the transaction {}", paid.tx_hash);
    assert!(reason.contains(&words), "{reason}");
    assert_eq!(it.chain.taken(), [paid.tx_hash]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eighty_payments_of_stellar_and_ton__should_all_come_one_after_the_other() {
    const PAYMENTS: u64 = 80;
    // Each takes nearly the time that its turn has: all together four times what one transaction lives.
    for (network, turn_ms) in [(Network::Stellar, 14_000), (Network::Ton, 19_000)] {
        let mut world = World::new();
        world.settings.signing_deadline_ms = 600_000;
        let it = Numbered::start(network, world).await;
        // It takes none before all are signed.
        it.chain.pace_ms.store(u64::MAX, Ordering::SeqCst);
        let payments = (0..PAYMENTS).map(|_| it.pay());
        let payments = futures::future::join_all(payments).await;
        for uuid in &payments {
            let waits = async || {
                let waits = try_outcome(&it.gateway, &admin(), uuid).await;
                waits.is_err_and(|why| why.message().contains("an earlier one is not there yet"))
            };
            until(waits).await;
        }
        it.chain.pace_ms.store(turn_ms, Ordering::SeqCst);
        for number in 0..PAYMENTS {
            let next = 7 + number;
            assert_eq!(it.chain.next(), next, "no faster than its ledgers");
            pass(&it.world, turn_ms);
            until(async || it.chain.next() == next + 1).await;
        }
        for uuid in &payments {
            assert_eq!(outcome(&it.gateway, uuid).await.error, None, "{network:?}");
        }
    }
}
