//! What every store must do. Each store's tests call [`conformance`] with a maker of empty ones.

#![allow(non_snake_case)]

use std::{collections::BTreeSet, future::Future, sync::Arc};

use covault_core::{
    audit::{AuditChain, ChainChecker, LinkedEntry},
    ids::VaultId,
};

use super::{Batch, CommitError, Key, KeySpace, Precondition, Scan, Store};
use crate::{audit::AuditLog, store::rows};

fn key(bytes: &[u8]) -> Key {
    Key::new(KeySpace::Wallet, &[bytes])
}

fn put(name: &[u8], expect: Precondition, value: &[u8]) -> Batch {
    let mut batch = Batch::new();
    batch.put(key(name), expect, value.to_vec());
    batch
}

async fn names(store: &dyn Store, scan: &Scan) -> Vec<Vec<u8>> {
    let rows = store.scan(scan).await.unwrap();
    rows.into_iter().map(|(key, _)| key.bytes).collect()
}

/// Runs every case, each on a store of its own.
pub async fn conformance<M, F>(make: M)
where
    M: Fn() -> F,
    F: Future<Output = Arc<dyn Store>>,
{
    commit__should_count_versions(&*make().await).await;
    commit__should_take_all_of_a_batch_or_nothing(&*make().await).await;
    commit__should_check_versions(&*make().await).await;
    commit__should_check_rows_that_it_does_not_change(&*make().await).await;
    commit__should_take_batches_in_their_order(&*make().await).await;
    commit__should_store_rows_of_any_size_and_key(&*make().await).await;
    commit__should_treat_a_row_that_comes_back_as_new(&*make().await).await;
    commit__should_demand_absence_without_leaving_a_trace(&*make().await).await;
    commit__should_look_at_a_row_named_twice_as_it_was_before(&*make().await).await;
    commit__should_let_one_of_many_claim(make().await).await;
    commit__should_fail_only_what_conflicts(make().await).await;
    commit__should_keep_a_sum_that_many_change(make().await).await;
    commit__should_lose_no_concurrent_batch(make().await).await;
    append__should_number_and_link_what_concurrent_batches_add(make().await).await;
    append__should_add_all_of_a_batch_or_nothing(&*make().await).await;
    append__should_never_write_over_an_entry(&*make().await).await;
    snapshot__should_be_one_state_of_all_rows_while_others_write(&*make().await).await;
    get_all__should_give_the_rows_that_there_are(&*make().await).await;
    scan__should_stay_within_space_and_prefix(&*make().await).await;
    scan__should_page_in_both_directions(&*make().await).await;
    scan__should_order_by_bytes(&*make().await).await;
    scan__should_take_any_limit(&*make().await).await;
}

async fn commit__should_count_versions(store: &dyn Store) {
    assert_eq!(store.get(&key(b"a")).await.unwrap(), None);
    for version in 1..=3 {
        store
            .commit(put(b"a", Precondition::Any, &[version]))
            .await
            .unwrap();
        let row = store.get(&key(b"a")).await.unwrap().unwrap();
        assert_eq!(
            (row.version, row.value),
            (u64::from(version), vec![version])
        );
    }
    let mut batch = Batch::new();
    batch.delete(key(b"a"), Precondition::Version(3));
    batch.delete(key(b"never"), Precondition::Any);
    store.commit(batch).await.unwrap();
    assert_eq!(store.get(&key(b"a")).await.unwrap(), None);
    store
        .commit(put(b"empty", Precondition::Absent, b""))
        .await
        .unwrap();
    assert_eq!(store.get(&key(b"empty")).await.unwrap().unwrap().value, b"");
}

async fn commit__should_take_all_of_a_batch_or_nothing(store: &dyn Store) {
    store
        .commit(put(b"there", Precondition::Any, b"1"))
        .await
        .unwrap();
    let mut batch = put(b"first", Precondition::Absent, b"x");
    batch.delete(key(b"there"), Precondition::Any);
    batch.put(key(b"last"), Precondition::Version(1), b"x".to_vec());
    let refused = store.commit(batch).await;
    assert_eq!(refused, Err(CommitError::Conflict(key(b"last"))));
    assert_eq!(store.get(&key(b"first")).await.unwrap(), None);
    assert!(store.get(&key(b"there")).await.unwrap().is_some());
}

async fn commit__should_check_versions(store: &dyn Store) {
    let conflict = Err(CommitError::Conflict(key(b"a")));
    assert_eq!(
        store.commit(put(b"a", Precondition::Version(1), b"")).await,
        conflict
    );
    store
        .commit(put(b"a", Precondition::Absent, b""))
        .await
        .unwrap();
    assert_eq!(
        store.commit(put(b"a", Precondition::Absent, b"")).await,
        conflict
    );
    assert_eq!(
        store.commit(put(b"a", Precondition::Version(2), b"")).await,
        conflict
    );
    store
        .commit(put(b"a", Precondition::Version(1), b""))
        .await
        .unwrap();
    let mut delete = Batch::new();
    delete.delete(key(b"a"), Precondition::Version(1));
    assert_eq!(store.commit(delete).await, conflict);
}

async fn commit__should_check_rows_that_it_does_not_change(store: &dyn Store) {
    let guarded = || {
        let mut batch = put(b"b", Precondition::Any, b"");
        batch.check(key(b"a"), Precondition::Version(1));
        batch
    };
    assert!(store.commit(guarded()).await.is_err());
    store
        .commit(put(b"a", Precondition::Any, b""))
        .await
        .unwrap();
    store.commit(guarded()).await.unwrap();
    assert_eq!(store.get(&key(b"a")).await.unwrap().unwrap().version, 1);
}

async fn commit__should_take_batches_in_their_order(store: &dyn Store) {
    // Handed over one after the other, without waiting in between.
    let last = futures::future::join_all((1..=50u8).map(|number| {
        let mut batch = put(b"a", Precondition::Any, &[number]);
        batch.put(key(&[number]), Precondition::Absent, vec![]);
        store.commit(batch)
    }));
    assert!(last.await.iter().all(Result::is_ok));
    let row = store.get(&key(b"a")).await.unwrap().unwrap();
    assert_eq!((row.version, row.value), (50, vec![50]));
    // Each one expects what the one before it made.
    let chain = futures::future::join_all((50..100u64).map(|version| {
        let value = version.to_be_bytes();
        store.commit(put(b"a", Precondition::Version(version), &value))
    }));
    assert!(chain.await.iter().all(Result::is_ok));
    assert_eq!(store.get(&key(b"a")).await.unwrap().unwrap().version, 100);
}

async fn commit__should_store_rows_of_any_size_and_key(store: &dyn Store) {
    let sizes = [0, 1, 2_000, 100_000, 1 << 20, 5 << 20];
    let value = |size: usize| -> Vec<u8> { (0..size).map(|at| (at * 31 % 251) as u8).collect() };
    let names = [
        vec![],
        vec![0],
        vec![0, 0],
        vec![0xff; 1_100],
        (0..=255).collect(),
        b"a\\'\"\n%_".to_vec(),
    ];
    for (name, size) in names.iter().zip(sizes) {
        store
            .commit(put(name, Precondition::Absent, &value(size)))
            .await
            .unwrap();
    }
    for (name, size) in names.iter().zip(sizes) {
        let row = store.get(&key(name)).await.unwrap().unwrap();
        assert!(row.value == value(size), "{size} bytes");
    }
    let mut batch = Batch::new();
    for number in 0..600u16 {
        let name = [b"many".as_slice(), &number.to_be_bytes()].concat();
        batch.put(key(&name), Precondition::Absent, value(200));
    }
    store.commit(batch).await.unwrap();
    let many = Scan::prefix(KeySpace::Wallet, b"many", 1_000);
    assert_eq!(store.scan(&many).await.unwrap().len(), 600);
    // Nothing at all is a batch too.
    store.commit(Batch::new()).await.unwrap();
}

async fn commit__should_treat_a_row_that_comes_back_as_new(store: &dyn Store) {
    for _ in 0..3 {
        store
            .commit(put(b"a", Precondition::Absent, b""))
            .await
            .unwrap();
        store
            .commit(put(b"a", Precondition::Any, b""))
            .await
            .unwrap();
        assert_eq!(store.get(&key(b"a")).await.unwrap().unwrap().version, 2);
        let mut delete = Batch::new();
        delete.delete(key(b"a"), Precondition::Version(2));
        store.commit(delete).await.unwrap();
    }
    // No row is ever of version 0.
    let never = put(b"a", Precondition::Version(0), b"");
    assert!(store.commit(never.clone()).await.is_err());
    store
        .commit(put(b"a", Precondition::Any, b""))
        .await
        .unwrap();
    assert!(store.commit(never).await.is_err());
}

async fn commit__should_demand_absence_without_leaving_a_trace(store: &dyn Store) {
    let demand = |name: &[u8]| {
        let mut batch = put(name, Precondition::Any, b"");
        batch.check(key(b"absent"), Precondition::Absent);
        batch
    };
    let both = futures::future::join(store.commit(demand(b"a")), store.commit(demand(b"b")));
    assert_eq!(both.await, (Ok(()), Ok(())));
    assert_eq!(store.get(&key(b"absent")).await.unwrap(), None);
    let make = put(b"absent", Precondition::Absent, b"");
    let all = [
        store.commit(demand(b"c")),
        store.commit(make),
        store.commit(demand(b"d")),
    ];
    let all = futures::future::join_all(all).await;
    let conflict = Err(CommitError::Conflict(key(b"absent")));
    assert_eq!(all, [Ok(()), Ok(()), conflict.clone()]);
    for (name, outcome) in [(b"absent", conflict), (b"nobody", Ok(()))] {
        let mut once = put(b"a", Precondition::Any, b"");
        once.check_once(key(name), Precondition::Absent);
        assert_eq!(store.commit(once).await, outcome);
    }
    assert_eq!(store.get(&key(b"nobody")).await.unwrap(), None);
    assert_eq!(
        names(store, &Scan::prefix(KeySpace::Wallet, b"", 10)).await,
        [b"a".as_slice(), b"absent", b"b", b"c"]
    );
}

async fn commit__should_look_at_a_row_named_twice_as_it_was_before(store: &dyn Store) {
    // Not to be done; but what is done must be the same everywhere.
    let mut batch = put(b"a", Precondition::Absent, b"1");
    batch.put(key(b"a"), Precondition::Absent, b"2".to_vec());
    batch.delete(key(b"b"), Precondition::Any);
    batch.delete(key(b"b"), Precondition::Absent);
    store.commit(batch).await.unwrap();
    assert_eq!(store.get(&key(b"a")).await.unwrap().unwrap().value, b"2");
    let mut batch = put(b"a", Precondition::Any, b"3");
    batch.delete(key(b"a"), Precondition::Any);
    store.commit(batch).await.unwrap();
    assert_eq!(store.get(&key(b"a")).await.unwrap(), None);
}

async fn commit__should_let_one_of_many_claim(store: Arc<dyn Store>) {
    let tries = (0..64u8).map(|number| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            store
                .commit(put(b"claim", Precondition::Absent, &[number]))
                .await
        })
    });
    let mut won = Vec::new();
    for (number, outcome) in (0u8..).zip(futures::future::join_all(tries).await) {
        if outcome.unwrap().is_ok() {
            won.push(number);
        }
    }
    assert_eq!(won.len(), 1);
    assert_eq!(store.get(&key(b"claim")).await.unwrap().unwrap().value, won);
}

async fn commit__should_fail_only_what_conflicts(store: Arc<dyn Store>) {
    store
        .commit(put(b"there", Precondition::Any, b""))
        .await
        .unwrap();
    let tries = (0..90u8).map(|number| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            let mut batch = put(&[1, number], Precondition::Absent, b"");
            batch.check(key(b"there"), Precondition::Version(1));
            match number % 3 {
                0 => batch.put(key(b"there"), Precondition::Absent, vec![]),
                1 => batch.check(key(&[2, number]), Precondition::Version(7)),
                _ => batch.put(key(&[2, number]), Precondition::Any, vec![]),
            };
            store.commit(batch).await
        })
    });
    for (number, outcome) in (0u8..).zip(futures::future::join_all(tries).await) {
        let expected = match number % 3 {
            0 => Err(CommitError::Conflict(key(b"there"))),
            1 => Err(CommitError::Conflict(key(&[2, number]))),
            _ => Ok(()),
        };
        assert_eq!(outcome.unwrap(), expected, "{number}");
        let made = store.get(&key(&[1, number])).await.unwrap().is_some();
        assert_eq!(made, number % 3 == 2, "{number}");
    }
}

async fn commit__should_keep_a_sum_that_many_change(store: Arc<dyn Store>) {
    const ACCOUNTS: u8 = 4;
    let mut batch = Batch::new();
    for account in 0..ACCOUNTS {
        batch.put(key(&[account]), Precondition::Absent, vec![100]);
    }
    store.commit(batch).await.unwrap();
    let movers = (0..8u8).map(|mover| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            let (from, to) = (mover % ACCOUNTS, (mover + 1 + mover / 4) % ACCOUNTS);
            let mut moved = 0;
            while moved < 5 {
                let a = store.get(&key(&[from])).await.unwrap().unwrap();
                let b = store.get(&key(&[to])).await.unwrap().unwrap();
                let mut batch = Batch::new();
                let less = vec![a.value[0] - 1];
                batch.put(key(&[from]), Precondition::Version(a.version), less);
                let more = vec![b.value[0] + 1];
                batch.put(key(&[to]), Precondition::Version(b.version), more);
                match store.commit(batch).await {
                    Ok(()) => moved += 1,
                    Err(CommitError::Conflict(_)) => tokio::task::yield_now().await,
                    Err(error) => panic!("{error}"),
                }
            }
        })
    });
    for mover in futures::future::join_all(movers).await {
        mover.unwrap();
    }
    let rows = store.scan(&Scan::prefix(KeySpace::Wallet, b"", 10)).await;
    let rows = rows.unwrap();
    let sum: u32 = rows.iter().map(|(_, row)| u32::from(row.value[0])).sum();
    let changes: u64 = rows.iter().map(|(_, row)| row.version - 1).sum();
    assert_eq!((sum, changes), (400, 2 * 8 * 5));
}

async fn commit__should_lose_no_concurrent_batch(store: Arc<dyn Store>) {
    let writes = (0..500u16).map(|number| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            let mut batch = put(&number.to_be_bytes(), Precondition::Absent, b"");
            batch.put(
                key(b"\xffshared"),
                Precondition::Any,
                number.to_be_bytes().to_vec(),
            );
            store.commit(batch).await
        })
    });
    for outcome in futures::future::join_all(writes).await {
        outcome.unwrap().unwrap();
    }
    let all = names(&*store, &Scan::prefix(KeySpace::Wallet, b"", 1000)).await;
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 501);
    assert_eq!(
        store
            .get(&key(b"\xffshared"))
            .await
            .unwrap()
            .unwrap()
            .version,
        500
    );
}

fn vault_chain(number: u8) -> AuditChain {
    AuditChain::Vault(VaultId::from_bytes([number; 16]))
}

/// The entries of a chain, after checking that it is whole.
async fn entries(store: &dyn Store, chain: AuditChain) -> Vec<LinkedEntry> {
    let log = AuditLog(store);
    let mut checker = ChainChecker::new(chain, vec![]);
    let mut all = Vec::new();
    for (number, linked) in log.entries(chain, 0).await.unwrap() {
        assert_eq!(number, linked.number, "it lies under its number");
        checker.take(&linked);
        all.push(linked);
    }
    let report = checker.end(log.head(chain).await.unwrap());
    assert_eq!(report.breaks, []);
    all
}

async fn append__should_number_and_link_what_concurrent_batches_add(store: Arc<dyn Store>) {
    let writes = (0..200u8).map(|number| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            let mut batch = put(&[number], Precondition::Absent, b"");
            batch.append(vault_chain(number % 2), vec![number]);
            if number % 10 == 0 {
                batch.append(AuditChain::Service, vec![number, 0]);
                batch.append(AuditChain::Service, vec![number, 1]);
            }
            store.commit(batch).await
        })
    });
    for outcome in futures::future::join_all(writes).await {
        outcome.unwrap().unwrap();
    }
    for number in 0..2 {
        let chain = entries(&*store, vault_chain(number)).await;
        assert_eq!(chain.len(), 100);
        let bodies: BTreeSet<_> = chain.iter().map(|linked| &linked.body).collect();
        assert_eq!(bodies.len(), 100, "each once");
    }
    let service = entries(&*store, AuditChain::Service).await;
    assert_eq!(service.len(), 40);
    for pair in service.chunks(2) {
        assert_eq!(pair[0].body[0], pair[1].body[0], "in the order of a batch");
        assert_eq!((pair[0].body[1], pair[1].body[1]), (0, 1));
    }
    let chains = AuditLog(&*store).chains(None).await.unwrap();
    let chains: Vec<AuditChain> = chains.into_iter().map(|(chain, _)| chain).collect();
    assert_eq!(
        chains,
        [AuditChain::Service, vault_chain(0), vault_chain(1)]
    );
    let rest = AuditLog(&*store)
        .chains(Some(vault_chain(0)))
        .await
        .unwrap();
    assert_eq!(rest.len(), 1);
    let last = AuditLog(&*store)
        .entries(vault_chain(1), 100)
        .await
        .unwrap();
    assert_eq!(last.len(), 1);
}

async fn append__should_add_all_of_a_batch_or_nothing(store: &dyn Store) {
    let mut batch = put(b"a", Precondition::Absent, b"");
    batch.append(AuditChain::Service, b"first".to_vec());
    store.commit(batch.clone()).await.unwrap();
    assert!(store.commit(batch).await.is_err(), "the row is there");
    let bodies = |all: Vec<LinkedEntry>| all.into_iter().map(|it| it.body).collect::<Vec<_>>();
    let all = entries(store, AuditChain::Service).await;
    assert_eq!(bodies(all), [b"first".to_vec()]);
    // A batch of nothing else.
    let mut batch = Batch::new();
    batch.append(AuditChain::Service, b"second".to_vec());
    batch.check(key(b"a"), Precondition::Version(1));
    store.commit(batch).await.unwrap();
    let all = entries(store, AuditChain::Service).await;
    assert_eq!(bodies(all), [b"first".to_vec(), b"second".to_vec()]);
    // A head can be demanded like any row.
    let mut batch = Batch::new();
    batch.check(rows::audit_head(AuditChain::Service), Precondition::Absent);
    batch.append(AuditChain::Service, b"again".to_vec());
    let conflict = CommitError::Conflict(rows::audit_head(AuditChain::Service));
    assert_eq!(store.commit(batch).await, Err(conflict));
    assert_eq!(entries(store, AuditChain::Service).await.len(), 2);
}

async fn append__should_never_write_over_an_entry(store: &dyn Store) {
    let mut batch = Batch::new();
    batch.append(AuditChain::Service, b"first".to_vec());
    batch.append(AuditChain::Service, b"second".to_vec());
    store.commit(batch).await.unwrap();
    let first = entries(store, AuditChain::Service).await[0].clone();
    for head in [
        None,
        Some(rows::encode(&first.head()).unwrap()),
        Some(b"x".to_vec()),
    ] {
        let mut harm = Batch::new();
        let name = rows::audit_head(AuditChain::Service);
        match head {
            None => harm.delete(name, Precondition::Any),
            Some(head) => harm.put(name, Precondition::Any, head),
        };
        store.commit(harm).await.unwrap();
        let mut batch = put(b"a", Precondition::Absent, b"");
        batch.append(vault_chain(1), b"other".to_vec());
        batch.append(AuditChain::Service, b"third".to_vec());
        let refused = store.commit(batch).await.unwrap_err();
        let CommitError::Unavailable(problem) = refused else {
            panic!("{refused:?}");
        };
        assert!(
            problem.contains("the audit log service is damaged"),
            "{problem}"
        );
        assert_eq!(store.get(&key(b"a")).await.unwrap(), None);
        assert!(entries(store, vault_chain(1)).await.is_empty());
        let left = AuditLog(store)
            .entries(AuditChain::Service, 0)
            .await
            .unwrap();
        assert_eq!(left.len(), 2);
    }
}

async fn snapshot__should_be_one_state_of_all_rows_while_others_write(store: &dyn Store) {
    let empty = store.snapshot().await.unwrap();
    let mut batch = Batch::new();
    let mut wanted = Vec::new();
    for space in [KeySpace::Vault, KeySpace::Wallet, KeySpace::FirstWallet] {
        for number in 0..40u8 {
            let name = Key::new(space, &[&[number, 0xff]]);
            batch.put(name, Precondition::Absent, vec![number; 100]);
            wanted.push((space as u8, vec![number, 0xff], vec![number; 100]));
        }
    }
    store.commit(batch).await.unwrap();
    let snapshot = store.snapshot().await.unwrap();
    let mut batch = put(&[3, 0xff], Precondition::Any, b"later");
    batch.delete(key(&[4, 0xff]), Precondition::Any);
    batch.put(key(&[0, 0, 0]), Precondition::Any, b"later".to_vec());
    store.commit(batch).await.unwrap();
    assert!(empty.rows(None, 1000).await.unwrap().is_empty());
    let mut found = Vec::new();
    let mut last = None;
    loop {
        let page = snapshot.rows(last.as_ref(), 1000).await.unwrap();
        // As many as fit.
        assert!(page.len() <= 11, "{}", page.len());
        let Some(row) = page.last() else {
            break;
        };
        last = Some(row.clone());
        found.extend(page.into_iter().map(|row| (row.space, row.key, row.value)));
    }
    assert_eq!(found, wanted);
    // A row that is larger than what is asked for comes alone.
    assert_eq!(snapshot.rows(None, 1).await.unwrap().len(), 1);
    let now = store.snapshot().await.unwrap();
    assert_eq!(now.rows(None, 1 << 20).await.unwrap().len(), 120);
}

async fn get_all__should_give_the_rows_that_there_are(store: &dyn Store) {
    let mut batch = Batch::new();
    for name in [b"a".as_slice(), b"ab", b"b", b""] {
        batch.put(key(name), Precondition::Absent, name.to_vec());
        let other = Key::new(KeySpace::Request, &[name]);
        batch.put(other, Precondition::Absent, b"of another kind".to_vec());
    }
    store.commit(batch).await.unwrap();
    store
        .commit(put(b"b", Precondition::Any, b"new"))
        .await
        .unwrap();
    let asked = [b"b".as_slice(), b"a", b"", b"c", b"a"];
    let of = |space| asked.map(|name| Key::new(space, &[name]));
    let found = store.get_all(&of(KeySpace::Wallet)).await.unwrap();
    let told = found.iter().map(|(key, row)| {
        assert_eq!(key.space, KeySpace::Wallet);
        (key.bytes.as_slice(), row.version, row.value.as_slice())
    });
    let wanted: [(&[u8], u64, &[u8]); 3] = [(b"", 1, b""), (b"a", 1, b"a"), (b"b", 2, b"new")];
    assert_eq!(told.collect::<Vec<_>>(), wanted);
    let none = store.get_all(&[]).await.unwrap();
    assert!(none.is_empty());
    let none = store.get_all(&of(KeySpace::Vault)).await.unwrap();
    assert!(none.is_empty());
    // Of several kinds.
    let mixed = [
        of(KeySpace::Request),
        of(KeySpace::Vault),
        of(KeySpace::Wallet),
    ]
    .concat();
    let mut all = store.get_all(&of(KeySpace::Request)).await.unwrap();
    assert_eq!(all.len(), 3);
    all.extend(found);
    assert_eq!(store.get_all(&mixed).await.unwrap(), all);
}

async fn scan__should_stay_within_space_and_prefix(store: &dyn Store) {
    let mut batch = Batch::new();
    for name in [
        b"a".as_slice(),
        b"ab",
        b"ac\xff",
        b"ac\xff\xff",
        b"b",
        b"\xff\xff",
    ] {
        batch.put(key(name), Precondition::Any, name.to_vec());
    }
    batch.put(
        Key::new(KeySpace::VaultName, &[b"ab"]),
        Precondition::Any,
        vec![],
    );
    batch.put(
        Key::new(KeySpace::WalletAddress, &[b"ab"]),
        Precondition::Any,
        vec![],
    );
    store.commit(batch).await.unwrap();
    let found = async |prefix: &[u8], reverse| {
        let scan = Scan {
            reverse,
            ..Scan::prefix(KeySpace::Wallet, prefix, 100)
        };
        names(store, &scan).await
    };
    assert_eq!(
        found(b"a", false).await,
        [b"a".as_slice(), b"ab", b"ac\xff", b"ac\xff\xff"]
    );
    assert_eq!(
        found(b"a", true).await,
        [b"ac\xff\xff".as_slice(), b"ac\xff", b"ab", b"a"]
    );
    assert_eq!(
        found(b"ac\xff", false).await,
        [b"ac\xff".as_slice(), b"ac\xff\xff"]
    );
    assert_eq!(
        found(b"ac\xff", true).await,
        [b"ac\xff\xff".as_slice(), b"ac\xff"]
    );
    assert_eq!(found(b"\xff", true).await, [b"\xff\xff".as_slice()]);
    assert_eq!(found(b"", false).await.len(), 6);
    assert_eq!(found(b"", true).await.len(), 6);
    assert!(found(b"c", false).await.is_empty());
    assert!(found(b"c", true).await.is_empty());
}

async fn scan__should_page_in_both_directions(store: &dyn Store) {
    let mut batch = Batch::new();
    for number in 0..10u8 {
        batch.put(key(&[7, number]), Precondition::Any, vec![]);
    }
    batch.put(key(&[6]), Precondition::Any, vec![]);
    batch.put(key(&[8]), Precondition::Any, vec![]);
    store.commit(batch).await.unwrap();
    let found = async |from: Option<&[u8]>, reverse, skip, limit| {
        let scan = Scan {
            from: from.map(<[u8]>::to_vec),
            reverse,
            skip,
            ..Scan::prefix(KeySpace::Wallet, &[7], limit)
        };
        let names = names(store, &scan).await;
        names
            .into_iter()
            .map(|name| *name.last().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(found(None, false, 0, 3).await, [0, 1, 2]);
    assert_eq!(found(None, false, 3, 3).await, [3, 4, 5]);
    assert_eq!(found(None, false, 9, 3).await, [9]);
    assert!(found(None, false, 10, 3).await.is_empty());
    assert!(found(None, false, 0, 0).await.is_empty());
    assert_eq!(found(Some(&[7, 4]), false, 0, 2).await, [4, 5]);
    assert_eq!(found(Some(&[7, 4]), true, 0, 2).await, [4, 3]);
    assert_eq!(found(Some(&[7, 4]), true, 1, 2).await, [3, 2]);
    // A start outside of the prefix cuts nothing or everything.
    assert_eq!(found(Some(&[6]), false, 0, 2).await, [0, 1]);
    assert_eq!(found(Some(&[8]), true, 0, 2).await, [9, 8]);
    assert!(found(Some(&[8]), false, 0, 2).await.is_empty());
    assert!(found(Some(&[6]), true, 0, 2).await.is_empty());
}

async fn scan__should_order_by_bytes(store: &dyn Store) {
    // Every byte, alone and behind another: no order of characters, no sign.
    let mut wanted = vec![vec![]];
    for byte in 0..=255u8 {
        wanted.push(vec![byte]);
        if byte % 5 == 0 {
            wanted.extend((0..=255u8).step_by(15).map(|next| vec![byte, next]));
        }
    }
    let mut batch = Batch::new();
    for at in 0..wanted.len() {
        // Not in their order; the number has no factor in common with how many there are.
        let name = &wanted[at * 10_007 % wanted.len()];
        batch.put(key(name), Precondition::Any, vec![]);
    }
    store.commit(batch).await.unwrap();
    wanted.sort();
    let scan = Scan::prefix(KeySpace::Wallet, b"", 10_000);
    assert_eq!(names(store, &scan).await, wanted);
    wanted.reverse();
    let scan = Scan {
        reverse: true,
        ..scan
    };
    assert_eq!(names(store, &scan).await, wanted);
}

async fn scan__should_take_any_limit(store: &dyn Store) {
    let mut batch = Batch::new();
    for number in 0..5u8 {
        batch.put(key(&[number]), Precondition::Any, vec![]);
    }
    store.commit(batch).await.unwrap();
    let count = async |skip, limit| {
        let scan = Scan {
            skip,
            ..Scan::prefix(KeySpace::Wallet, b"", limit)
        };
        names(store, &scan).await.len()
    };
    assert_eq!(count(0, usize::MAX).await, 5);
    assert_eq!(count(2, usize::MAX).await, 3);
    assert_eq!(count(usize::MAX, usize::MAX).await, 0);
    assert_eq!(count(0, 0).await, 0);
}
