//! Requests are found again by who pays, whom they pay, and the hash of their transaction.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, atomic::Ordering},
};

use async_trait::async_trait;
use covault_actors::{
    gateway::{Caller, Gateway, RecipientHistory, VaultScope},
    operations::RejectSigningRequest,
    store::{Batch, CommitError, Key, KeySpace, Precondition, Scan, Store},
    testing::StoreDouble,
};
use covault_core::{
    amount::U256,
    ids::{RequestId, VaultId},
    networks::{
        Network,
        outflow::{Asset, ChainScope},
    },
    request::{Inclusion, TransactionState},
    schema::wire::{self, create_signing_request_request::Type as Kind},
};

use crate::{chain_double::decoded, world::*};

const TO: &str = "0x00000000000000000000000000000000c0ffEE19";
const MOST: usize = 100;

/// A store that notes which commits had rows of the index, each by how many.
struct NotingStore {
    inner: Arc<dyn Store>,
    commits: Mutex<Vec<usize>>,
}

#[async_trait]
impl StoreDouble for NotingStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    async fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        let writes = batch.writes().iter();
        let rows = writes.filter(|write| write.key.space == KeySpace::RequestTerm);
        let rows = rows.count();
        if rows > 0 {
            self.commits.lock().unwrap().push(rows);
        }
        self.inner.commit(batch).await
    }
}

fn payment(from: &str, value: &str) -> Kind {
    Kind::EvmSendNative(wire::EvmSendNative {
        to: TO.into(),
        value: value.into(),
        ..send_native(from)
    })
}

/// The requests of a vault that have a word, the newest first.
async fn found(gateway: &Gateway, vault: VaultId, term: &str) -> Vec<String> {
    let caller = admin();
    let words = BTreeSet::from([term.to_owned()]);
    let pages = gateway.pages(&caller);
    let found = pages.requests_about(vault, &words, None, MOST).await;
    let found = found.unwrap();
    found.iter().map(|(_, id)| id.to_string()).collect()
}

/// What the vault had to do with [`TO`] before the request.
async fn history(gateway: &Gateway, vault: VaultId, before: &str, most: usize) -> RecipientHistory {
    history_on(CHAIN, gateway, vault, before, most).await
}

async fn history_on(
    chain: u64,
    gateway: &Gateway,
    vault: VaultId,
    before: &str,
    most: usize,
) -> RecipientHistory {
    let coin = Asset::coin(ChainScope {
        network: Network::Evm,
        chain_id: Some(chain),
    });
    let but = (vault, before.parse().unwrap(), u64::MAX);
    let caller = admin();
    let pages = gateway.pages(&caller);
    pages.history_of(but, TO, &coin, most).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests__should_be_found_by_whom_they_pay_and_by_their_hash_from_the_commits_that_say_so()
{
    let world = World::new();
    let store = Arc::new(NotingStore {
        inner: Arc::clone(&world.store),
        commits: Mutex::default(),
    });
    let gateway = world.start_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let vault_id = vault(&gateway, "main").await;
    let other = vault(&gateway, "other").await;
    let from = evm_wallet(&gateway, vault_id).await;
    assert_eq!(*store.commits.lock().unwrap(), [0_usize; 0]);

    let mut made = Vec::new();
    for value in ["5", "7"] {
        world.clock.ahead_ms.fetch_add(1, Ordering::SeqCst);
        let request = create(&gateway, payment(&from, value)).await;
        let hash = outcome(&gateway, &request.uuid).await.tx_hash;
        made.insert(0, (request.uuid, hash));
    }
    // Two rows in the commit of each request, and one in that which signs it.
    assert_eq!(*store.commits.lock().unwrap(), [2, 1, 2, 1]);
    let uuids: Vec<_> = made.iter().map(|(uuid, _)| uuid.clone()).collect();
    for term in [TO.to_owned(), TO.to_lowercase(), TO.to_uppercase()] {
        assert_eq!(found(&gateway, vault_id, &term).await, uuids, "{term}");
    }
    for (uuid, hash) in &made {
        assert_eq!(found(&gateway, vault_id, hash).await, [uuid.as_str()]);
    }
    // Neither a beginning of a word, nor another vault.
    assert!(found(&gateway, vault_id, &TO[..20]).await.is_empty());
    assert!(found(&gateway, vault_id, "").await.is_empty());
    assert!(found(&gateway, other, TO).await.is_empty());
    let stranger = Caller {
        vaults: VaultScope::Only(vec![other]),
        ..admin()
    };
    let words = BTreeSet::from([TO.to_owned()]);
    let pages = gateway.pages(&stranger);
    let hidden = pages.requests_about(vault_id, &words, None, MOST).await;
    assert_eq!(hidden.unwrap_err().message(), "Invalid uuid");

    // Messages pay nobody and have no hash: only who signs them is known.
    world.clock.ahead_ms.fetch_add(1, Ordering::SeqCst);
    let message = create(&gateway, raw(&from)).await;
    outcome(&gateway, &message.uuid).await;
    assert_eq!(*store.commits.lock().unwrap(), [2, 1, 2, 1, 1]);
    let mut signed = vec![message.uuid];
    signed.extend(uuids);
    assert_eq!(found(&gateway, vault_id, &from).await, signed);
    assert!(found(&gateway, other, &from).await.is_empty());
}

/// What nodes refuse may be in a block all the same, and then it is looked for by the hash that the chain shows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_transaction__should_be_found_by_its_hash() {
    let world = World::new();
    world.evm.refuse.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault_id = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault_id).await;
    let request = create(&gateway, payment(&from, "5")).await;
    let failed = outcome(&gateway, &request.uuid).await;
    assert!(failed.error.is_some(), "{failed:?}");
    let handed = world.evm.handed.lock().unwrap().first().cloned();
    let hash = decoded(&handed.unwrap()).tx_hash().to_string();
    assert_eq!(found(&gateway, vault_id, &hash).await, [request.uuid]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_a_wallet__should_follow_with_those_that_pay_it_page_by_page() {
    let world = World::new();
    let gateway = world.start().await;
    let vault_id = vault(&gateway, "main").await;
    let [cash, savings] = [
        evm_wallet(&gateway, vault_id).await,
        evm_wallet(&gateway, vault_id).await,
    ];
    let mut about_cash = Vec::new();
    for number in 0..7_u32 {
        world.clock.ahead_ms.fetch_add(1, Ordering::SeqCst);
        // What another wallet pays to somebody else is not about this one.
        let (from, to) = match number {
            2 => (&savings, cash.as_str()),
            4 => (&savings, TO),
            // A wallet that pays itself is listed once.
            5 => (&cash, cash.as_str()),
            _ => (&cash, TO),
        };
        let mut kind = send_native(from);
        kind.to = to.into();
        let request = create(&gateway, Kind::EvmSendNative(kind)).await;
        if number != 4 {
            about_cash.insert(0, request.uuid);
        }
    }
    let caller = admin();
    let pages = gateway.pages(&caller);
    let words = BTreeSet::from([cash.clone()]);
    for most in [1, 2, 4, 100] {
        let (mut before, mut found) = (None, Vec::new());
        loop {
            let page = pages.requests_about(vault_id, &words, before, most).await;
            let page = page.unwrap();
            assert!(page.len() <= most);
            found.extend(page.iter().map(|(_, id)| id.to_string()));
            match page.last() {
                Some(last) => before = Some(*last),
                None => break,
            }
        }
        assert_eq!(found, about_cash, "{most}");
    }
    // Whom it has paid is another question.
    let paid = found(&gateway, vault_id, TO).await;
    assert!(!paid.contains(&about_cash[1]), "{paid:?}");
    let nobody = "00000000-0000-4000-8000-000000000000";
    let coin = Asset::coin(ChainScope {
        network: Network::Evm,
        chain_id: Some(CHAIN),
    });
    let but = (vault_id, nobody.parse().unwrap(), u64::MAX);
    let history = pages.history_of(but, &cash, &coin, MOST).await.unwrap();
    assert_eq!((history.looked, history.signed + history.others), (2, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_of_a_recipient__should_count_what_was_signed_and_leave_out_what_cannot_be_read() {
    let world = World::new();
    let gateway = world.start().await;
    let vault_id = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault_id).await;
    let nobody = "00000000-0000-4000-8000-000000000000";
    let none = history(&gateway, vault_id, nobody, MOST).await;
    assert_eq!((none.signed, none.others, none.last_at_ms), (0, 0, None));

    let mut uuids = Vec::new();
    for value in ["5", "7", "11"] {
        world.clock.ahead_ms.fetch_add(1, Ordering::SeqCst);
        let request = create(&gateway, payment(&from, value)).await;
        outcome(&gateway, &request.uuid).await;
        uuids.push(request.uuid);
    }
    let all = history(&gateway, vault_id, nobody, MOST).await;
    assert_eq!((all.signed, all.amount), (3, U256::from(23_u8)));
    assert!(!all.is_cut && all.last_at_ms.is_some(), "{all:?}");
    // What is asked about is not counted.
    let but_last = history(&gateway, vault_id, &uuids[2], MOST).await;
    assert_eq!((but_last.signed, but_last.amount), (2, U256::from(12_u8)));
    assert!(but_last.last_at_ms < all.last_at_ms);
    let newest = history(&gateway, vault_id, nobody, 2).await;
    assert_eq!((newest.signed, newest.amount), (2, U256::from(18_u8)));
    assert!(newest.is_cut);

    // On another chain the same address may be somebody else's.
    let elsewhere = history_on(CHAIN + 1, &gateway, vault_id, nobody, MOST).await;
    assert_eq!((elsewhere.signed, elsewhere.others), (0, 0));

    // What was signed and came to nothing was no payment.
    let at = |success| Inclusion { block: 9, success };
    for (state, signed) in [
        (TransactionState::Pending, 3),
        (TransactionState::Final(at(true)), 3),
        (TransactionState::Mined(at(false)), 2),
        (TransactionState::Final(at(false)), 2),
        (TransactionState::Dropped, 2),
        (TransactionState::Replaced { by: None }, 2),
        (TransactionState::Pending, 3),
    ] {
        let id: RequestId = uuids[0].parse().unwrap();
        let row = Key::new(KeySpace::Transaction, &[id.as_bytes()]);
        let value = bcs::to_bytes(&(0_u8, &state, 0_u64, None::<String>, None::<u64>)).unwrap();
        let mut batch = Batch::new();
        batch.put(row, Precondition::Any, value);
        world.store.commit(batch).await.unwrap();
        let found = history(&gateway, vault_id, nobody, MOST).await;
        assert_eq!(
            (found.signed, found.others),
            (signed, 3 - signed),
            "{state:?}"
        );
    }

    // A row that cannot be read hides no other.
    let id: RequestId = uuids[1].parse().unwrap();
    let mut batch = Batch::new();
    let row = Key::new(KeySpace::Request, &[id.as_bytes()]);
    assert!(world.store.get(&row).await.unwrap().is_some());
    batch.put(row, Precondition::Any, vec![255; 9]);
    world.store.commit(batch).await.unwrap();
    let rest = history(&gateway, vault_id, nobody, MOST).await;
    assert_eq!((rest.signed, rest.amount), (2, U256::from(16_u8)));
    // Nor does a row of the index whose key is none.
    let part = Scan::prefix(KeySpace::RequestTerm, vault_id.as_bytes(), 1);
    let (key, _) = world.store.scan(&part).await.unwrap().remove(0);
    let prefix = &key.bytes[..32];
    let mut batch = Batch::new();
    let torn = Key::new(KeySpace::RequestTerm, &[prefix, &[255; 3]]);
    batch.put(torn, Precondition::Any, vec![255]);
    world.store.commit(batch).await.unwrap();
    assert_eq!(history(&gateway, vault_id, nobody, MOST).await, rest);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_of_a_recipient__should_not_count_a_rejected_request_as_a_payment() {
    let world = World::new();
    world.evm.down.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault_id = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault_id).await;
    let request = create(&gateway, payment(&from, "5")).await;
    let nobody = "00000000-0000-4000-8000-000000000000";
    let waiting = history(&gateway, vault_id, nobody, MOST).await;
    assert_eq!((waiting.signed, waiting.others), (0, 1));
    let reject = wire::RejectSigningRequestRequest {
        uuid: request.uuid,
        rejection: None,
    };
    let rejected = call::<RejectSigningRequest>(&gateway, &admin(), reject).await;
    rejected.unwrap();
    let failed = history(&gateway, vault_id, nobody, MOST).await;
    assert_eq!(
        (failed.signed, failed.others, failed.amount),
        (0, 1, U256::ZERO)
    );
}
