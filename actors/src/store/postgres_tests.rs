#![allow(non_snake_case)]

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Notify,
};

use super::*;
use covault_core::{
    audit::{AuditChain, ChainChecker},
    ids::VaultId,
};

#[path = "postgres/short_commit_tests.rs"]
mod short_commits;

use super::{
    group::CommitGroup,
    transaction::{LostCommit, commit, settle},
};
use crate::{
    audit::AuditLog,
    store::{KeySpace, Precondition, conformance::conformance},
};

#[path = "../../../tests/support/ports.rs"]
mod ports;
#[path = "../../../tests/support/postgres.rs"]
mod server_for_tests;
use server_for_tests::{Postgres, tells_password};

fn options(url: &str) -> Options {
    Options {
        url: SecretString::from(url),
        readers: NonZeroU32::new(4).unwrap(),
        // Longer than anything takes on a busy machine.
        patience: Duration::from_secs(60),
        alone: true,
    }
}

fn brief(url: &str, patience: Duration) -> Options {
    Options {
        patience,
        ..options(url)
    }
}

/// Why a store is not opened. On a busy machine it takes a while until that is known.
async fn refusal(url: &str) -> String {
    let mut patience = Duration::from_millis(600);
    loop {
        let refused = PostgresStore::open(brief(url, patience)).await;
        let words = words(&refused.err().expect(url));
        assert!(!tells_password(&words), "{words}");
        if !words.contains("does not answer") || patience > Duration::from_secs(60) {
            return words;
        }
        patience *= 2;
    }
}

async fn open(url: &str) -> PostgresStore {
    PostgresStore::open(options(url)).await.unwrap()
}

fn key(name: &[u8]) -> Key {
    Key::new(KeySpace::Request, &[name])
}

fn put(name: &[u8], expect: Precondition, value: &[u8]) -> Batch {
    let mut batch = Batch::new();
    batch.put(key(name), expect, value.to_vec());
    batch
}

fn database(url: &str) -> &str {
    url.rsplit('/').next().unwrap()
}

/// What the entries of a chain say, which is whole.
async fn chain(store: &PostgresStore, chain: AuditChain) -> Vec<Vec<u8>> {
    let log = AuditLog(store);
    let mut checker = ChainChecker::new(chain, vec![]);
    let mut bodies = Vec::new();
    loop {
        let next = u64::try_from(bodies.len()).unwrap() + 1;
        let page = log.entries(chain, next).await.unwrap();
        if page.is_empty() {
            break;
        }
        for (number, linked) in page {
            assert_eq!(number, linked.number);
            checker.take(&linked);
            bodies.push(linked.body);
        }
    }
    let report = checker.end(log.head(chain).await.unwrap());
    assert_eq!(report.breaks, []);
    bodies
}

/// The text of a fault, with its cause.
fn words(fault: &Fault) -> String {
    format!("{} {}", fault.message(), fault.cause().unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres__should_conform() {
    let server = Postgres::start();
    conformance(|| async { Arc::new(open(&server.database()).await) as Arc<dyn Store> }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres__should_find_everything_again_and_keep_others_away() {
    let server = Postgres::start();
    let url = server.database();
    {
        let store = open(&url).await;
        store
            .commit(put(b"a", Precondition::Absent, b"value"))
            .await
            .unwrap();
        let words = refusal(&url).await;
        assert!(words.contains("another orchestrator"), "{words}");
        // The first one does not suffer for it.
        store
            .commit(put(b"a", Precondition::Version(1), b"again"))
            .await
            .unwrap();
    }
    let store = open(&url).await;
    let row = store.get(&key(b"a")).await.unwrap().unwrap();
    assert_eq!(
        (row.version, row.value.as_slice()),
        (2, b"again".as_slice())
    );
}

#[tokio::test]
async fn open__should_say_what_is_wrong_and_no_password() {
    let server = Postgres::start();
    let url = server.database();
    let with = |old: &str, new: &str| url.replace(old, new);
    assert!(refusal("redis://localhost").await.contains("store.url"));
    assert!(refusal("nonsense").await.contains("store.url"));
    let unknown = refusal(&format!("{url}?sslmod=require")).await;
    assert!(unknown.contains("\"sslmod\""), "{unknown}");
    let mode = refusal(&format!("{url}?sslmode=strict")).await;
    assert!(mode.contains("store.url"), "{mode}");
    let nowhere = with(database(&url), "");
    assert!(refusal(&nowhere).await.contains("names no database"));
    let missing = refusal(&with(database(&url), "missing")).await;
    assert!(missing.contains("\"missing\" does not exist"), "{missing}");
    let password = refusal(&with("of-the-tests", "wrong")).await;
    assert!(password.contains("password authentication"), "{password}");
    let port = refusal(&with(&server.port().to_string(), "1")).await;
    assert!(port.contains("refused"), "{port}");
    let latin = server.database_with("ENCODING 'LATIN1'");
    assert!(refusal(&latin).await.contains("LATIN1"));
}

#[tokio::test]
async fn open__should_refuse_a_schema_that_is_not_its_own() {
    let server = Postgres::start();
    let url = server.database();
    drop(open(&url).await);
    let ask = |sql: &str| server.query(database(&url), sql);
    ask(
        "INSERT INTO covault.migrations (version, description, success, checksum, execution_time) \
         VALUES (99, 'later', true, '', 0)",
    );
    let fault = PostgresStore::open(options(&url)).await.err().unwrap();
    let newer = words(&fault);
    assert!(
        newer.contains("version 99") && newer.contains("restore the backup"),
        "{newer}"
    );
    ask("DELETE FROM covault.migrations WHERE version = 99");
    ask("UPDATE covault.migrations SET checksum = '\\x00' WHERE version = 1");
    let fault = PostgresStore::open(options(&url)).await.err().unwrap();
    assert!(words(&fault).contains("changed by hand"), "{fault:?}");
}

#[tokio::test]
async fn open__should_make_do_with_a_schema_of_its_own() {
    let server = Postgres::start();
    let url = server.database();
    server.query(
        database(&url),
        "CREATE ROLE humble LOGIN PASSWORD 'humble-pa55'; CREATE SCHEMA covault AUTHORIZATION humble",
    );
    let (_, place) = url.split_once('@').unwrap();
    let url = format!("postgres://humble:humble-pa55@{place}");
    let store = open(&url).await;
    store
        .commit(put(b"a", Precondition::Absent, b""))
        .await
        .unwrap();
    drop(store);
    assert!(open(&url).await.get(&key(b"a")).await.unwrap().is_some());
}

#[tokio::test]
async fn open__should_refuse_a_server_that_loses_what_it_confirms() {
    let mut server = Postgres::start();
    let url = server.database();
    server.configure("synchronous_commit = off");
    server.restart();
    let store = open(&url).await;
    store
        .commit(put(b"a", Precondition::Absent, b""))
        .await
        .unwrap();
    let ours: String = sqlx::query_scalar("SELECT current_setting('synchronous_commit')")
        .fetch_one(&store.shared.pool())
        .await
        .unwrap();
    assert_eq!(ours, "on");
    drop(store);
    server.configure("fsync = off");
    server.restart();
    let fault = PostgresStore::open(options(&url)).await.err().unwrap();
    assert!(words(&fault).contains("fsync"), "{fault:?}");
}

/// What lies between the store and its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Road {
    Free,
    /// What comes from the server is lost; the connection ends after it.
    AnswersLost,
    /// What goes to the server is lost; the connection ends after it.
    QuestionsLost,
    /// What goes to the server arrives later, though the connection has ended here.
    QuestionsLate,
}

struct Proxy {
    url: String,
    road: Arc<AtomicU8>,
    /// How many messages pass before the accident.
    before: Arc<AtomicUsize>,
    accidents: Arc<AtomicUsize>,
    late: Arc<Notify>,
}

impl Proxy {
    async fn before(server: &Postgres, url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (ours, theirs) = (listener.local_addr().unwrap().port(), server.port());
        let url = url.replace(&format!(":{theirs}/"), &format!(":{ours}/"));
        let road = Arc::new(AtomicU8::new(Road::Free as u8));
        let before = Arc::new(AtomicUsize::new(0));
        let accidents = Arc::new(AtomicUsize::new(0));
        let late = Arc::new(Notify::new());
        let counts = (Arc::clone(&before), Arc::clone(&accidents));
        let shared = (Arc::clone(&road), counts, Arc::clone(&late));
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let server = TcpStream::connect(("127.0.0.1", theirs)).await;
                let (road, counts, late) = shared.clone();
                // While the server is away, connections end.
                if let Ok(server) = server {
                    tokio::spawn(carry(client, server, road, counts, late));
                }
            }
        });
        Self {
            url,
            road,
            before,
            accidents,
            late,
        }
    }

    /// Sets what happens after some messages.
    fn set(&self, road: Road, before: usize) {
        self.before.store(before, Ordering::SeqCst);
        self.road.store(road as u8, Ordering::SeqCst);
    }

    fn accidents(&self) -> usize {
        self.accidents.load(Ordering::SeqCst)
    }
}

async fn carry(
    mut client: TcpStream,
    mut server: TcpStream,
    road: Arc<AtomicU8>,
    (before, accidents): (Arc<AtomicUsize>, Arc<AtomicUsize>),
    late: Arc<Notify>,
) {
    let (mut up, mut down) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    // One accident, then all is well again for other connections.
    let accident = |kind: Road| {
        if road.load(Ordering::SeqCst) != kind as u8 {
            return false;
        }
        let less = |before: usize| before.checked_sub(1);
        if before
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
            .is_ok()
        {
            return false;
        }
        let happens = road
            .compare_exchange(
                kind as u8,
                Road::Free as u8,
                Ordering::SeqCst,
                Ordering::SeqCst,
            )
            .is_ok();
        accidents.fetch_add(usize::from(happens), Ordering::SeqCst);
        happens
    };
    loop {
        tokio::select! {
            read = client.read(&mut up) => {
                let Ok(count @ 1..) = read else { return };
                if accident(Road::QuestionsLost) {
                    return;
                }
                if accident(Road::QuestionsLate) {
                    drop(client);
                    late.notified().await;
                    // It may have ended the session.
                    let _ = server.write_all(&up[..count]).await;
                    let _ = server.read(&mut down).await;
                    return;
                }
                if server.write_all(&up[..count]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut down) => {
                let Ok(count @ 1..) = read else { return };
                if accident(Road::AnswersLost) {
                    return;
                }
                if client.write_all(&down[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit__should_happen_once_when_its_answer_or_question_is_lost() {
    let server = Postgres::start();
    let url = server.database();
    let proxy = Proxy::before(&server, &url).await;
    let store = open(&proxy.url).await;
    store
        .commit(put(b"warm", Precondition::Any, b""))
        .await
        .unwrap();
    let mut rounds = 0u8;
    for road in [Road::AnswersLost, Road::QuestionsLost, Road::QuestionsLate] {
        // Each message of a commit, from the first to the last.
        for before in 0.. {
            proxy.set(road, before);
            let accidents = proxy.accidents();
            rounds += 1;
            let name = [rounds];
            let mut batch = put(&name, Precondition::Absent, b"once");
            batch.put(key(b"count"), Precondition::Any, vec![rounds]);
            batch.append(AuditChain::Service, vec![rounds]);
            batch.delete(key(b"never"), Precondition::Any);
            let mut other = put(b"warm", Precondition::Version(7_777), b"never");
            other.append(AuditChain::Service, b"never".to_vec());
            // A refusal is remembered too.
            let both = futures::future::join(store.commit(batch), store.commit(other)).await;
            let conflict = Err(CommitError::Conflict(key(b"warm")));
            assert_eq!(both, (Ok(()), conflict), "{road:?} after {before}");
            let over = proxy.accidents() == accidents;
            proxy.set(Road::Free, 0);
            proxy.late.notify_waiters();
            assert!(store.get(&key(&name)).await.unwrap().is_some());
            let count = store.get(&key(b"count")).await.unwrap().unwrap();
            assert_eq!(count.version, u64::from(rounds), "{road:?} after {before}");
            // Every statement is known to the next session, so that there is one message of each.
            store
                .commit(put(b"warm", Precondition::Any, b""))
                .await
                .unwrap();
            if over {
                assert!(before >= 4, "{before}: too few messages for a commit");
                break;
            }
        }
    }
    // Also what arrived late has changed nothing.
    store
        .commit(put(b"warm", Precondition::Any, b""))
        .await
        .unwrap();
    let count = store.get(&key(b"count")).await.unwrap().unwrap();
    assert_eq!(count.version, u64::from(rounds));
    let told = chain(&store, AuditChain::Service).await;
    let wanted: Vec<_> = (1..=rounds).map(|round| vec![round]).collect();
    assert_eq!(told, wanted);
}

#[tokio::test]
async fn commit__should_not_happen_after_it_was_given_up() {
    let server = Postgres::start();
    let url = server.database();
    let store = open(&url).await;
    store
        .commit(put(b"a", Precondition::Absent, b""))
        .await
        .unwrap();
    let PostgresState { server, id, .. } = &*store.shared;
    let mut session = server.connect("late").await.unwrap();
    let mut settled = Vec::new();
    for number in [1, 1, 2, 2] {
        let (outcome, _) = settle(&mut session, id, number).await.unwrap();
        settled.push(outcome);
    }
    let [taken, given_up] = [LostCommit::Taken, LostCommit::GivenUp].map(|outcome| [outcome; 2]);
    assert_eq!(settled, [taken, given_up].concat());
    let (reply, _) = oneshot::channel();
    let late = put(b"late", Precondition::Any, b"");
    let batch = Arc::new(Mutex::new(Some(late)));
    let mut waiting = VecDeque::from([CommitJob { batch, reply }]);
    let mut late = CommitGroup::take(&mut waiting).unwrap();
    let mut written = WrittenRows::default();
    let refused = commit(&mut session, id, 2, &mut late, &mut written);
    assert_eq!(refused.await.unwrap_err().effect, StatementEffect::Unknown);
    assert_eq!(store.get(&key(b"late")).await.unwrap(), None);
    let mut outcome = async |number| settle(&mut session, id, number).await.unwrap().0;
    assert_eq!(outcome(5).await, LostCommit::Behind);
    assert_eq!(outcome(1).await, LostCommit::Replaced);
    // The number that was given up is not used again.
    assert_eq!(outcome(4).await, LostCommit::GivenUp);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers__should_not_be_held_up_by_one_that_stalls_in_the_middle_of_a_commit() {
    let server = Postgres::start();
    let store = open(&server.database()).await;
    store
        .commit(put(b"a", Precondition::Absent, b""))
        .await
        .unwrap();
    let mut stalled = store.shared.server.connect("stalled").await.unwrap();
    for statement in ["BEGIN", "SELECT 1 FROM covault.rows FOR UPDATE"] {
        sqlx::query(statement).execute(&mut stalled).await.unwrap();
    }
    let change = store.commit(put(b"a", Precondition::Version(1), b""));
    timeout(Duration::from_secs(30), change)
        .await
        .unwrap()
        .unwrap();
    let ended = sqlx::query("COMMIT").execute(&mut stalled).await;
    assert!(ended.is_err(), "its session has ended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres__should_lose_and_double_nothing_when_it_is_killed_under_load() {
    let mut server = Postgres::start();
    let url = server.database();
    let store = Arc::new(open(&url).await);
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicUsize::new(0));
    let writers: Vec<_> = (0..8u8)
        .map(|writer| {
            let (store, stop, done) = (Arc::clone(&store), Arc::clone(&stop), Arc::clone(&done));
            tokio::spawn(async move {
                let mut taken = 0u64;
                while !stop.load(Ordering::SeqCst) {
                    // A version that is not the next one is a batch lost, or taken twice.
                    let expect = match taken {
                        0 => Precondition::Absent,
                        version => Precondition::Version(version),
                    };
                    let mut batch = put(&[writer], expect, &taken.to_be_bytes());
                    let name = [&[writer], taken.to_be_bytes().as_slice()].concat();
                    batch.put(key(&name), Precondition::Absent, vec![]);
                    batch.append(AuditChain::Service, name);
                    match store.commit(batch).await {
                        Ok(()) => taken += 1,
                        Err(CommitError::Unavailable(_)) => {
                            let found = store.get(&key(&[writer])).await.unwrap();
                            let found = found.map_or(0, |row| row.version);
                            assert!(found == taken || found == taken + 1);
                            taken = found;
                        }
                        Err(conflict) => panic!("{conflict}"),
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                }
                taken
            })
        })
        .collect();
    for round in 0..4 {
        let before = done.load(Ordering::SeqCst);
        while done.load(Ordering::SeqCst) < before + 200 {
            assert!(!writers.iter().any(tokio::task::JoinHandle::is_finished));
            sleep(Duration::from_millis(5)).await;
        }
        if round % 2 == 0 {
            server.kill();
        } else {
            server.stop();
        }
        tokio::task::block_in_place(|| server.restart());
    }
    stop.store(true, Ordering::SeqCst);
    let outcomes = futures::future::join_all(writers).await;
    let entries = chain(&store, AuditChain::Service).await;
    for (writer, outcome) in (0..).zip(outcomes) {
        let taken = outcome.unwrap();
        let row = store.get(&key(&[writer])).await.unwrap().unwrap();
        assert_eq!(row.version, taken);
        let all = Scan::prefix(KeySpace::Request, &[writer], usize::MAX);
        let all = store.scan(&all).await.unwrap().len();
        assert_eq!(u64::try_from(all).unwrap(), taken + 1);
        let told = entries.iter().filter(|body| body[0] == writer).count();
        assert_eq!(u64::try_from(told).unwrap(), taken, "an entry per change");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres__should_answer_in_time_and_settle_what_it_left_open() {
    let server = Postgres::start();
    let url = server.database();
    let store = PostgresStore::open(brief(&url, Duration::from_secs(4))).await;
    let store = Arc::new(store.unwrap());
    store
        .commit(put(b"a", Precondition::Absent, b""))
        .await
        .unwrap();
    for round in 0..2u8 {
        server.freeze();
        let write = put(&[1, round], Precondition::Absent, b"");
        let mut many = vec![];
        for number in 0..20u8 {
            let store = Arc::clone(&store);
            let batch = match number {
                0 => write.clone(),
                number => put(&[2, round, number], Precondition::Absent, b""),
            };
            many.push(tokio::spawn(async move { store.commit(batch).await }));
        }
        for outcome in futures::future::join_all(many).await {
            let outcome = outcome.unwrap();
            assert!(
                matches!(outcome, Err(CommitError::Unavailable(_))),
                "{outcome:?}"
            );
        }
        let read = store.get(&key(b"a")).await;
        assert!(read.is_err(), "{read:?}");
        server.thaw();
        // What is found from now on stays.
        let found = loop {
            if let Ok(found) = store.get(&key(&[1, round])).await {
                break found;
            }
        };
        store
            .commit(put(&[3, round], Precondition::Any, b""))
            .await
            .unwrap();
        assert_eq!(store.get(&key(&[1, round])).await.unwrap(), found);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres__should_stop_for_good_when_confirmed_commits_are_lost() {
    let mut server = Postgres::start();
    let url = server.database();
    let store = open(&url).await;
    store
        .commit(put(b"a", Precondition::Absent, b""))
        .await
        .unwrap();
    server.stop();
    server.save("older");
    server.restart();
    store
        .commit(put(b"a", Precondition::Version(1), b""))
        .await
        .unwrap();
    store
        .commit(put(b"a", Precondition::Version(2), b""))
        .await
        .unwrap();
    server.stop();
    server.put_back("older");
    server.restart();
    let outcome = store.commit(put(b"b", Precondition::Any, b"")).await;
    let lost = |words: String| assert!(words.contains("has lost commits"), "{words}");
    lost(outcome.unwrap_err().to_string());
    lost(store.get(&key(b"a")).await.unwrap_err().to_string());
    lost(
        store
            .commit(put(b"b", Precondition::Any, b""))
            .await
            .unwrap_err()
            .to_string(),
    );
    assert_eq!(
        server.query(database(&url), "SELECT count(*) FROM covault.rows"),
        "1"
    );
    // Who starts again has decided to go on with what is there.
    drop(store);
    let store = open(&url).await;
    assert_eq!(store.get(&key(b"a")).await.unwrap().unwrap().version, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres__should_not_let_a_writer_back_that_was_replaced() {
    let server = Postgres::start();
    // By one that is alone, or one of several.
    for alone in [true, false] {
        replaced(&server, alone).await;
    }
}

async fn replaced(server: &Postgres, alone: bool) {
    let url = server.database();
    let first = PostgresStore::open(brief(&url, Duration::from_secs(4)))
        .await
        .unwrap();
    first
        .commit(put(b"a", Precondition::Absent, b"1"))
        .await
        .unwrap();
    // The first one loses its session and does not notice; another one takes over.
    server.query(
        database(&url),
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() \
         AND pid <> pg_backend_pid()",
    );
    let second = Options {
        alone,
        ..options(&url)
    };
    let second = PostgresStore::open(second).await.unwrap();
    second
        .commit(put(b"a", Precondition::Version(1), b"2"))
        .await
        .unwrap();
    let stale = first.commit(put(b"a", Precondition::Any, b"stale")).await;
    assert!(
        matches!(stale, Err(CommitError::Unavailable(_))),
        "{stale:?}"
    );
    assert_eq!(second.get(&key(b"a")).await.unwrap().unwrap().value, b"2");
    drop(second);
    // Also when nobody is there.
    let refused = loop {
        match first.commit(put(b"a", Precondition::Any, b"stale")).await {
            Err(CommitError::Unavailable(reason)) if reason.contains("taken over") => break reason,
            Err(CommitError::Unavailable(_)) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(first.get(&key(b"a")).await.unwrap_err(), ReadError(refused));
    let now = server.query(database(&url), "SELECT version FROM covault.rows");
    assert_eq!(now, "2");
}

/// Two processes on one database.
async fn two(url: &str) -> [Arc<PostgresStore>; 2] {
    let shared = || Options {
        alone: false,
        ..options(url)
    };
    let [a, b] = [PostgresStore::open(shared()), PostgresStore::open(shared())];
    [Arc::new(a.await.unwrap()), Arc::new(b.await.unwrap())]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers__should_never_both_act_on_what_the_other_changes() {
    let server = Postgres::start();
    let [first, second] = two(&server.database()).await;
    for round in 0..150u8 {
        let (x, y) = ([round, 0], [round, 1]);
        let versions = round % 2 == 0;
        if versions {
            let mut both = put(&x, Precondition::Absent, b"");
            both.put(key(&y), Precondition::Absent, vec![]);
            first.commit(both).await.unwrap();
        }
        // Each looks at one row and writes the other, in opposite order.
        let expect = if versions {
            Precondition::Version(1)
        } else {
            Precondition::Absent
        };
        let batch = |seen: &[u8], written: &[u8], seen_first: bool| {
            let mut batch = Batch::new();
            if seen_first {
                batch.check(key(seen), expect);
            }
            batch.put(key(written), Precondition::Any, vec![1]);
            if !seen_first {
                batch.check(key(seen), expect);
            }
            batch
        };
        let (one, other) = tokio::join!(
            first.commit(batch(&x, &y, true)),
            second.commit(batch(&y, &x, round % 4 < 2)),
        );
        let won = usize::from(one.is_ok()) + usize::from(other.is_ok());
        assert_eq!(won, 1, "round {round}: {one:?} {other:?}");
        for lost in [one, other].into_iter().filter_map(Result::err) {
            assert!(matches!(lost, CommitError::Conflict(_)), "{lost:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers__should_add_to_one_chain_without_losing_an_entry() {
    const EACH: u8 = 200;
    let server = Postgres::start();
    let url = server.database();
    let stores = two(&url).await;
    let vault = AuditChain::Vault(VaultId::from_bytes([7; 16]));
    let mut work = Vec::new();
    // Both begin the chains, at the same time.
    for (which, store) in (0..).zip(&stores) {
        for number in 0..EACH {
            let store = Arc::clone(store);
            work.push(tokio::spawn(async move {
                let name = [which, number];
                let mut batch = put(&name, Precondition::Absent, b"");
                let of = if number % 2 == 0 {
                    vault
                } else {
                    AuditChain::Service
                };
                batch.append(of, name.to_vec());
                if number % 5 == 0 {
                    batch.append(vault, [name.as_slice(), b"more"].concat());
                }
                store.commit(batch).await
            }));
        }
    }
    for done in futures::future::join_all(work).await {
        done.unwrap().unwrap();
    }
    let mut bodies = Vec::new();
    for of in [AuditChain::Service, vault] {
        bodies.extend(chain(&stores[0], of).await);
    }
    let all = bodies.len();
    bodies.sort_unstable();
    bodies.dedup();
    assert_eq!(bodies.len(), all, "each once");
    assert_eq!(all, 2 * (usize::from(EACH) + usize::from(EACH) / 5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot__should_end_with_whoever_took_it() {
    let server = Postgres::start();
    let url = server.database();
    let store = open(&url).await;
    store
        .commit(put(b"a", Precondition::Absent, b"value"))
        .await
        .unwrap();
    let taken = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'covault backup%' \
                 AND state = 'idle in transaction'";
    let snapshot = store.snapshot().await.unwrap();
    assert_eq!(snapshot.rows(None, 1000).await.unwrap().len(), 1);
    assert_eq!(server.query(database(&url), taken), "1");
    drop(snapshot);
    let gone = async {
        while server.query(database(&url), taken) != "0" {
            sleep(PAUSE).await;
        }
    };
    timeout(Duration::from_secs(60), gone).await.unwrap();
    // One whose session the server has ended says so.
    let snapshot = store.snapshot().await.unwrap();
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE application_name LIKE 'covault backup%'";
    server.query(database(&url), end);
    snapshot.rows(None, 1000).await.unwrap_err();
    // The store itself goes on.
    store
        .commit(put(b"a", Precondition::Version(1), b"again"))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers__should_not_wait_for_each_other_to_look_at_a_token() {
    use sqlx::Connection as _;

    let server = Postgres::start();
    let url = server.database();
    let store = open(&url).await;
    let token = Key::new(KeySpace::Token, &[b"t"]);
    let mut made = Batch::new();
    made.put(token.clone(), Precondition::Absent, vec![]);
    store.commit(made).await.unwrap();
    // As another process has it in the middle of a commit.
    let mut other = PgConnection::connect(&url).await.unwrap();
    let mut other = other.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM covault.rows WHERE space = $1 FOR SHARE")
        .bind(KeySpace::Token as i16)
        .execute(&mut *other)
        .await
        .unwrap();
    let mut rebroadcast_cache = put(b"a", Precondition::Any, b"");
    rebroadcast_cache.check(token.clone(), Precondition::Version(1));
    store.commit(rebroadcast_cache).await.unwrap();
    // Who changes it does wait.
    let mut revoked = Batch::new();
    revoked.put(token, Precondition::Version(1), vec![]);
    let mut revoked = std::pin::pin!(store.commit(revoked));
    let waits = timeout(Duration::from_millis(200), &mut revoked).await;
    assert!(waits.is_err(), "{waits:?}");
    other.rollback().await.unwrap();
    revoked.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers__should_share_rows_without_losing_a_change() {
    let server = Postgres::start();
    let stores = two(&server.database()).await;
    let lease = key(b"lease");
    let mut made = Batch::new();
    made.put(lease.clone(), Precondition::Absent, vec![]);
    stores[0].commit(made).await.unwrap();
    // Four tasks on each: rows in common, made, changed and deleted, in all orders.
    let tasks = (0..8usize).map(|task| {
        let store = Arc::clone(&stores[task % 2]);
        let lease = lease.clone();
        tokio::spawn(async move {
            let mut done = 0u64;
            for step in 0..60usize {
                let mut names = [0u8, 1, 2].map(|name| [9, name]);
                names.rotate_left((task + step) % 3);
                let mut batch = Batch::new();
                batch.check(lease.clone(), Precondition::Version(1));
                for name in names {
                    batch.put(key(&name), Precondition::Any, vec![]);
                }
                let (mine, theirs) = ((task + step) % 5, (task + step + 1) % 5);
                batch.put(key(&[8, mine as u8]), Precondition::Any, vec![]);
                batch.delete(key(&[8, theirs as u8]), Precondition::Any);
                match store.commit(batch).await {
                    Ok(()) => done += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            done
        })
    });
    let done: u64 = futures::future::join_all(tasks)
        .await
        .into_iter()
        .map(Result::unwrap)
        .sum();
    assert_eq!(done, 480);
    for name in 0..3u8 {
        let row = stores[1].get(&key(&[9, name])).await.unwrap().unwrap();
        assert_eq!(row.version, 480);
    }
    // Another process takes the lease: a commit that checks the old version is fenced off.
    stores[1]
        .commit({
            let mut batch = Batch::new();
            batch.put(lease.clone(), Precondition::Version(1), vec![2]);
            batch
        })
        .await
        .unwrap();
    let mut stale = put(b"stale", Precondition::Any, b"");
    stale.check(lease.clone(), Precondition::Version(1));
    let refused = stores[0].commit(stale).await;
    assert_eq!(refused, Err(CommitError::Conflict(lease)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit__should_refuse_what_cannot_be_stored_and_nothing_else() {
    let server = Postgres::start();
    let url = server.database();
    let store = open(&url).await;
    let (long, short) = (vec![1; MAX_KEY + 1], vec![1; MAX_KEY]);
    let both = futures::future::join(
        store.commit(put(&long, Precondition::Any, b"")),
        store.commit(put(&short, Precondition::Any, b"")),
    );
    let (long, short) = both.await;
    assert!(matches!(long, Err(CommitError::Unavailable(_))), "{long:?}");
    assert_eq!(short, Ok(()));
    // What only the database can know is one batch's trouble as well.
    server.query(
        database(&url),
        "ALTER TABLE covault.rows ADD CHECK (value <> '\\xbad0')",
    );
    let all = (0..40u8).map(|number| {
        let value: &[u8] = if number == 7 { b"\xba\xd0" } else { b"good" };
        store.commit(put(&[2, number], Precondition::Absent, value))
    });
    for (number, outcome) in futures::future::join_all(all).await.into_iter().enumerate() {
        assert_eq!(outcome.is_ok(), number != 7, "{number}: {outcome:?}");
    }
    let all = Scan::prefix(KeySpace::Request, &[2], 100);
    assert_eq!(store.scan(&all).await.unwrap().len(), 39);
}
