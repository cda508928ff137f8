//! Commits of one statement, which is written by what the rows most likely are.

use super::*;
use crate::store::memory::MemoryStore;

async fn through(proxy: &Proxy) -> PostgresStore {
    let shared = Options {
        alone: false,
        ..options(&proxy.url)
    };
    PostgresStore::open(shared).await.unwrap()
}

/// How many messages a commit takes on the connection that writes.
async fn round_trips(proxy: &Proxy, store: &PostgresStore, batch: Batch) -> usize {
    proxy.set(Road::QuestionsLost, 100);
    store.commit(batch).await.unwrap();
    let left = proxy.before.load(Ordering::SeqCst);
    proxy.set(Road::Free, 0);
    assert_eq!(proxy.accidents(), 0);
    100 - left
}

#[tokio::test]
async fn commit__should_take_one_round_trip_where_its_rows_can_be_guessed() {
    let server = Postgres::start();
    let url = server.database();
    let proxy = Proxy::before(&server, &url).await;
    let store = through(&proxy).await;
    let batch = |number: u8| {
        let mut batch = put(&[number], Precondition::Absent, b"new");
        batch.put(key(b"old"), Precondition::Any, vec![number]);
        batch.check(key(&[1]), Precondition::Version(1));
        batch.delete(key(&[number - 1]), Precondition::Any);
        batch.append(AuditChain::Service, vec![number]);
        batch
    };
    store
        .commit(put(&[1], Precondition::Absent, b""))
        .await
        .unwrap();
    // Statements are prepared once, for both ways.
    let mut begins = put(&[2], Precondition::Absent, b"");
    begins.append(AuditChain::Service, vec![]);
    begins.check(key(b"never"), Precondition::Absent);
    store.commit(begins).await.unwrap();
    store.commit(batch(3)).await.unwrap();

    assert_eq!(round_trips(&proxy, &store, batch(4)).await, 1);
    let mut once = batch(5);
    once.check_once(key(b"never"), Precondition::Absent);
    assert_eq!(round_trips(&proxy, &store, once).await, 1);
    // What must stay absent has to be held until the commit.
    let mut held = batch(6);
    held.check(key(b"never"), Precondition::Absent);
    assert_eq!(round_trips(&proxy, &store, held).await, 5);
    // What was never seen might be there, and might come.
    let mut gone = batch(7);
    gone.delete(key(b"never"), Precondition::Any);
    assert_eq!(round_trips(&proxy, &store, gone).await, 4);
    // The first entry of a chain: where it ends is not known.
    let mut chain = batch(8);
    chain.append(AuditChain::Vault(VaultId::from_bytes([7; 16])), vec![]);
    assert_eq!(round_trips(&proxy, &store, chain).await, 4);
    // A guess that was wrong: another process has written.
    let other = open_shared(&url).await;
    other
        .commit(put(b"old", Precondition::Any, b""))
        .await
        .unwrap();
    assert_eq!(round_trips(&proxy, &store, batch(9)).await, 5);
    assert_eq!(round_trips(&proxy, &store, batch(10)).await, 1);
    let old = store.get(&key(b"old")).await.unwrap().unwrap();
    assert_eq!((old.version, old.value), (9, vec![10]));
    for (name, is_there) in [(&[10][..], true), (&[9], false), (b"never", false)] {
        assert_eq!(store.get(&key(name)).await.unwrap().is_some(), is_there);
    }
}

async fn open_shared(url: &str) -> PostgresStore {
    let shared = Options {
        alone: false,
        ..options(url)
    };
    PostgresStore::open(shared).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_commit__should_happen_once_when_its_answer_or_question_is_lost() {
    let server = Postgres::start();
    let proxy = Proxy::before(&server, &server.database()).await;
    let store = through(&proxy).await;
    let mut changes = 0u8;
    let mut change = |expect: &Precondition| {
        changes += 1;
        let mut batch = put(&[changes], *expect, b"");
        batch.put(key(b"count"), Precondition::Any, vec![changes]);
        batch.append(AuditChain::Service, vec![changes]);
        batch
    };
    for road in [Road::AnswersLost, Road::QuestionsLost, Road::QuestionsLate] {
        for _ in 0..2 {
            // What was known of rows went with the connection.
            for _ in 0..2 {
                store.commit(change(&Precondition::Any)).await.unwrap();
            }
            let accidents = proxy.accidents();
            proxy.set(road, 0);
            let refused = put(b"count", Precondition::Version(1), b"never");
            let batch = change(&Precondition::Absent);
            let both = futures::future::join(store.commit(batch), store.commit(refused)).await;
            let conflict = Err(CommitError::Conflict(key(b"count")));
            assert_eq!(both, (Ok(()), conflict), "{road:?}");
            assert_eq!(proxy.accidents(), accidents + 1);
            proxy.late.notify_waiters();
        }
    }
    store.commit(change(&Precondition::Any)).await.unwrap();
    let count = store.get(&key(b"count")).await.unwrap().unwrap();
    assert_eq!(count.version, u64::from(changes));
    let told = chain(&store, AuditChain::Service).await;
    let wanted: Vec<_> = (1..=changes).map(|change| vec![change]).collect();
    assert_eq!(told, wanted);
}

/// Numbers that look random, the same ones each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }

    /// Changes and demands of some of a few rows, in versions that they may have.
    fn batch(&mut self, step: u16) -> Batch {
        let mut batch = Batch::new();
        let from = self.below(6);
        for number in from..from + 1 + self.below(3) {
            let key = key(&[u8::try_from(number % 6).unwrap()]);
            let expect = match self.below(4) {
                0 => Precondition::Absent,
                1 => Precondition::Version(1 + self.below(3)),
                _ => Precondition::Any,
            };
            match self.below(6) {
                0 => batch.delete(key, expect),
                1 => batch.check(key, expect),
                2 => batch.check_once(key, expect),
                _ => batch.put(key, expect, step.to_be_bytes().to_vec()),
            };
        }
        if self.below(3) == 0 {
            batch.append(AuditChain::Service, step.to_be_bytes().to_vec());
        }
        batch
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_writers__should_do_what_one_store_in_memory_does_whatever_they_guess() {
    let server = Postgres::start();
    let stores = two(&server.database()).await;
    let model = MemoryStore::shared();
    let mut dice = Dice(17);
    for step in 0..250u16 {
        // Each writes for a while: then its guesses are right, and those of the other one are not.
        let store = &stores[usize::from(step / 5 % 2)];
        let [first, second] = [dice.batch(step), dice.batch(step)];
        let wanted = (
            model.commit(first.clone()).await,
            model.commit(second.clone()).await,
        );
        let said = format!("step {step}: {first:?} {second:?}");
        let done = futures::future::join(store.commit(first), store.commit(second)).await;
        assert_eq!(done, wanted, "{said}");
        for space in [KeySpace::Request, KeySpace::AuditHead, KeySpace::AuditEntry] {
            let all = Scan::prefix(space, &[], usize::MAX);
            let rows = store.scan(&all).await.unwrap();
            assert_eq!(rows, model.scan(&all).await.unwrap(), "{said}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_commits__should_never_both_act_on_what_the_other_changes() {
    let server = Postgres::start();
    let [first, second] = two(&server.database()).await;
    let conflicts = |outcome: &Result<(), CommitError>| match outcome {
        Ok(()) => 0,
        Err(CommitError::Conflict(_)) => 1,
        Err(other) => panic!("{other}"),
    };
    for round in 0..40u8 {
        let [x, y, z] = [0, 1, 2].map(|name| key(&[round, name]));
        // Each makes both rows.
        let make = |keys: [&Key; 2]| {
            let mut batch = Batch::new();
            for key in keys {
                batch.put(key.clone(), Precondition::Absent, vec![]);
            }
            batch
        };
        let both = tokio::join!(first.commit(make([&x, &y])), second.commit(make([&y, &x])));
        assert_eq!(
            conflicts(&both.0) + conflicts(&both.1),
            1,
            "{round}: {both:?}"
        );
        // Each looks at one and changes the other.
        let act = |seen: &Key, changed: &Key| {
            let mut batch = Batch::new();
            batch.check(seen.clone(), Precondition::Version(1));
            batch.put(changed.clone(), Precondition::Version(1), vec![]);
            batch
        };
        let both = tokio::join!(first.commit(act(&x, &y)), second.commit(act(&y, &x)));
        assert_eq!(
            conflicts(&both.0) + conflicts(&both.1),
            1,
            "{round}: {both:?}"
        );
        // One ends what the other makes while it looks at the same row. Whoever was first, none is there.
        let now = first.get(&x).await.unwrap().unwrap();
        let expect = Precondition::Version(now.version);
        let mut ends = Batch::new();
        ends.put(x.clone(), expect, vec![]);
        ends.delete(z.clone(), Precondition::Any);
        let mut makes = Batch::new();
        makes.check(x.clone(), expect);
        makes.put(z.clone(), Precondition::Absent, vec![]);
        let both = tokio::join!(first.commit(ends), second.commit(makes));
        assert_eq!(both.0, Ok(()), "{round}");
        assert_eq!(first.get(&z).await.unwrap(), None, "{round}: {both:?}");
    }
}
