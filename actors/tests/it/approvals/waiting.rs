//! Requests that wait: what they take up, and how they are listed.

use covault_actors::gateway::Person as ConsolePerson;
use covault_actors::{
    store::{Batch, CommitError, Key, ReadError, Row, redb::RedbStore},
    testing::{MuteStore, StoreDouble},
};
use covault_core::schema::wire::create_signing_request_request::Type as Kind;
use covault_core::{fault::FaultCode, ids::TokenId};
use futures::StreamExt as _;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::AtomicBool,
};
use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting__should_hold_no_place_and_be_listed_page_by_page() {
    let mut world = World::new();
    world.settings.max_live_requests = 4;
    let gateway = world.start().await;
    let vault = vault_with(&gateway, rule("manual", 1)).await;
    let from = evm_wallet(&gateway, vault).await;
    let mut made = Vec::new();
    for _ in 0..50 {
        made.push(create(&gateway, send(&from)).await.uuid);
        world.pass(1);
    }
    assert_eq!(rows(&world, KeySpace::Awaiting).await, 50);
    assert_eq!(world.pending().await, 0);
    let uuid = vault.to_string();
    for (caller, vault) in [(admin(), ""), (admin(), uuid.as_str())] {
        assert_eq!(all_pages(&gateway, &caller, vault, 20).await, made);
    }
    let own = Caller {
        vaults: VaultScope::Only(vec![vault]),
        ..admin()
    };
    assert_eq!(pending(&gateway, &own, "", "", 100).await.unwrap(), made);
    assert!(
        pending(&gateway, &stranger(), "", "", 100)
            .await
            .unwrap()
            .is_empty()
    );
    for (vault, after, limit, path) in [
        ("", "", 101, "limit"),
        ("", "", -1, "limit"),
        ("", "x", 1, "after"),
    ] {
        let fault = pending(&gateway, &admin(), vault, after, limit).await;
        assert_eq!(fault.unwrap_err().path(), Some(path));
    }
    let fault = pending(&gateway, &stranger(), &uuid, "", 1)
        .await
        .unwrap_err();
    assert_eq!(fault.class(), &Class::Forbidden);
    let all = wire::GetSigningRequestListRequest {
        vault_uuid: uuid,
        ..Default::default()
    };
    let all = call::<GetSigningRequestList>(&gateway, &admin(), all).await;
    let all = all.unwrap().signing_requests;
    assert!(all.iter().all(|it| it.approval_subject.is_none()));
    assert!(all.iter().all(|it| it.pending_operation == "approve"));

    // Who is decided about leaves the list.
    let until = world.clock_ms() + HOUR;
    let shown = details(&gateway, &made[0]).await;
    approve(
        &gateway,
        &made[0],
        persons()[0].approval(&shown, FEE, until),
    )
    .await
    .unwrap();
    reject(&gateway, &made[1], None).await.unwrap();
    assert_eq!(outcome(&gateway, &made[0]).await.error, None);
    assert_eq!(
        pending(&gateway, &admin(), "", "", 100).await.unwrap(),
        made[2..]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vault_of_which_much_waits__should_hide_no_other() {
    let world = World::new();
    let gateway = world.start().await;
    let mut wallets = Vec::new();
    assert!(admit(&gateway).await);
    for name in ["first", "second", "third"] {
        let request = admin::CreateVaultRequest {
            approvals: Some(rule("manual", 1)),
            ..vault_request(name)
        };
        let made = call::<CreateVault>(&gateway, &admin(), request).await;
        let vault = made.unwrap().vault.unwrap().uuid.parse().unwrap();
        ready(&gateway, name).await;
        wallets.push((vault, evm_wallet(&gateway, vault).await));
    }
    let mut made = Vec::new();
    for number in 0..75 {
        // Most of them are of one vault.
        let (_, from) = &wallets[[0, 0, 1, 0, 2][number % 5]];
        made.push(create(&gateway, send(from)).await.uuid);
        world.pass(1);
    }
    let some = Caller {
        vaults: VaultScope::Only(wallets.iter().map(|(vault, _)| *vault).collect()),
        ..admin()
    };
    for caller in [admin(), some] {
        assert_eq!(pending(&gateway, &caller, "", "", 0).await.unwrap(), made);
        for most in [1, 7, 100] {
            assert_eq!(all_pages(&gateway, &caller, "", most).await, made);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_of_pending__should_go_on_where_it_ended_though_its_last_request_expires_later_now() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault_with(&gateway, rule("manual", 1)).await;
    let from = evm_wallet(&gateway, vault).await;
    let mut made = Vec::new();
    for _ in 0..6 {
        made.push(create(&gateway, send(&from)).await.uuid);
        world.pass(1);
    }
    let (page, next) = pending_after(&gateway, &admin(), "", 3).await.unwrap();
    assert_eq!(page, made[..3]);
    // Signers want more of the last one of the page: it expires behind all others from now on.
    world.pass(HOUR);
    world.signers.wants.store(2, Ordering::SeqCst);
    let shown = details(&gateway, &made[2]).await;
    let approval = persons()[0].approval(&shown, FEE, world.clock_ms() + HOUR);
    approve(&gateway, &made[2], approval).await.unwrap();
    let wanted = async || {
        let shown = details(&gateway, &made[2]).await;
        shown.pending_operation == "approve" && !shown.approval_wanted.is_empty()
    };
    while !wanted().await {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let (rest, end) = pending_after(&gateway, &admin(), &next, 100).await.unwrap();
    assert_eq!(rest, [&made[3..], &made[2..3]].concat());
    assert_eq!(end, "");
    for after in ["x", "1.2.3", format!("{next}.1").as_str()] {
        let fault = pending_after(&gateway, &admin(), after, 1)
            .await
            .unwrap_err();
        assert_eq!(fault.path(), Some("after"));
        assert_eq!(fault.message(), "after: is not the `next` of a page");
    }
    // It opens nothing to those who see nothing.
    let (page, _) = pending_after(&gateway, &stranger(), &next, 100)
        .await
        .unwrap();
    assert!(page.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_mine__should_be_what_a_person_can_still_approve() {
    let world = super::telling::world();
    let gateway = world.start().await;
    let vault = manual_vault(&gateway).await;
    let from = evm_wallet(&gateway, vault).await;
    let mut others = rule("manual", 1);
    others.of.truncate(1);
    others.of[0].name = "somebody".into();
    let request = admin::CreateVaultRequest {
        approvals: Some(others),
        ..vault_request("others")
    };
    let made = call::<CreateVault>(&gateway, &admin(), request).await;
    let other = made.unwrap().vault.unwrap().uuid.parse().unwrap();
    ready(&gateway, "others").await;
    let elsewhere = evm_wallet(&gateway, other).await;
    let mut ids = BTreeMap::new();
    for name in ["treasurer", "controller", "somebody", "clerk"] {
        let id = super::telling::user(&gateway, &world, name, "approver").await;
        ids.insert(name, id);
    }
    let person = |name: &str| Caller {
        token: TokenId::from_bytes(*ids[name].as_bytes()),
        admin: None,
        person: Some(ConsolePerson {
            id: ids[name],
            name: name.into(),
        }),
        ..admin()
    };
    let mine = async |name: &str, limit: i64| {
        let mut request = wire::GetPendingSigningRequestsRequest {
            limit: Some(limit),
            only_mine: true,
            ..Default::default()
        };
        let mut found = Vec::new();
        loop {
            let who = person(name);
            let page = call::<GetPendingSigningRequests>(&gateway, &who, request.clone()).await;
            let page = page.unwrap();
            let listed = i64::try_from(page.signing_requests.len()).unwrap();
            assert!(limit == 0 || listed <= limit);
            found.extend(page.signing_requests.into_iter().map(|it| it.uuid));
            if page.next.is_empty() {
                return found;
            }
            request.after = page.next;
        }
    };
    let (mut here, mut there) = (Vec::new(), Vec::new());
    for _ in 0..6 {
        // Those of others lie between.
        there.push(create(&gateway, send(&elsewhere)).await.uuid);
        there.push(create(&gateway, send(&elsewhere)).await.uuid);
        here.push(create(&gateway, send(&from)).await.uuid);
        world.pass(1);
    }
    for limit in [0, 1, 4, 100] {
        assert_eq!(mine("treasurer", limit).await, here, "{limit}");
        assert_eq!(mine("clerk", limit).await, [""; 0], "{limit}");
    }
    let found: BTreeSet<_> = mine("somebody", 5).await.into_iter().collect();
    assert_eq!(found, there.into_iter().collect());
    // What the person has approved waits for others; when that no longer counts, it waits for the person again.
    let shown = details(&gateway, &here[0]).await;
    let until = world.clock_ms() + HOUR;
    approve(
        &gateway,
        &here[0],
        persons()[0].approval(&shown, FEE, until),
    )
    .await
    .unwrap();
    assert_eq!(mine("treasurer", 100).await, here[1..]);
    assert_eq!(mine("controller", 100).await, here);
    world.pass(HOUR);
    assert_eq!(mine("treasurer", 100).await, here);
    // A token is nobody.
    let request = wire::GetPendingSigningRequestsRequest {
        only_mine: true,
        ..Default::default()
    };
    let fault = call::<GetPendingSigningRequests>(&gateway, &admin(), request).await;
    assert_eq!(fault.unwrap_err().path(), Some("onlyMine"));
}

/// What waits for people is in nobody's line; once they approve, it is as if it had just come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approvals__should_be_refused_while_signers_or_nodes_could_not_keep_up() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 40_000;
    let gateway = world.start().await;
    let manual = vault_with(&gateway, rule("manual", 2)).await;
    let from = evm_wallet(&gateway, manual).await;
    let uuid = create(&gateway, send(&from)).await.uuid;
    let shown = details(&gateway, &uuid).await;
    let until = world.clock_ms() + HOUR;
    let [treasurer, controller, _] = persons();
    let busy = |refused: Result<wire::SigningRequest, Fault>| {
        matches!(refused.unwrap_err().code(), FaultCode::Busy { .. })
    };
    *world.signers.wait.lock().unwrap() = Duration::from_secs(30);
    // The first one sets nothing going.
    approve(&gateway, &uuid, treasurer.approval(&shown, FEE, until))
        .await
        .unwrap();
    let last = controller.approval(&shown, FEE, until);
    assert!(busy(approve(&gateway, &uuid, last.clone()).await));
    *world.signers.wait.lock().unwrap() = Duration::ZERO;

    // A crowd before nodes that answer nobody.
    let places = Arc::new(Semaphore::new(0));
    *world.evm.pace.lock().unwrap() = Some((Arc::clone(&places), Duration::ZERO));
    let crowd = vault(&gateway, "crowd").await;
    let other = evm_wallet(&gateway, crowd).await;
    let mut accepted = 0;
    let refused = loop {
        match try_create(&gateway, request(send(&other)), None).await {
            Ok(_) if accepted < 20 => accepted += 1,
            // As time passes, it is clearer that they are slow.
            Ok(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            Err(fault) => break fault,
        }
    };
    assert!(matches!(refused.code(), FaultCode::Busy { .. }));
    assert!(busy(approve(&gateway, &uuid, last.clone()).await));
    let waits = details(&gateway, &uuid).await;
    assert_eq!(waits.remaining_approval_count, 1);
    // What was refused can be repeated.
    places.add_permits(1_000);
    while let Err(fault) = approve(&gateway, &uuid, last.clone()).await {
        assert!(matches!(fault.code(), FaultCode::Busy { .. }), "{fault:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(outcome(&gateway, &uuid).await.error, None);
}

/// What the same token creates must not keep its people from having what they agree to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approvals__should_go_before_new_requests_of_the_same_token() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 600_000;
    let gateway = world.start().await;
    let manual = vault_with(&gateway, rule("manual", 1)).await;
    let from = evm_wallet(&gateway, manual).await;
    let uuid = create(&gateway, send(&from)).await.uuid;
    let shown = details(&gateway, &uuid).await;
    *world.signers.wait.lock().unwrap() = Duration::from_secs(350);
    let new = try_create(&gateway, request(send(&from)), None).await;
    assert!(matches!(new.unwrap_err().code(), FaultCode::Busy { .. }));
    let [treasurer, ..] = persons();
    let approval = treasurer.approval(&shown, FEE, world.clock_ms() + HOUR);
    approve(&gateway, &uuid, approval).await.unwrap();
    assert_eq!(outcome(&gateway, &uuid).await.error, None);
}

/// What people approve late, and what waits on, is not before all that came meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_made_long_ago__should_not_keep_those_of_today_waiting() {
    const DEADLINE: u64 = 600_000;
    let mut world = World::new();
    world.settings.signing_deadline_ms = DEADLINE;
    let gateway = world.start().await;
    let manual = vault_with(&gateway, rule("manual", 1)).await;
    let from = evm_wallet(&gateway, manual).await;
    let uuid = create(&gateway, send(&from)).await.uuid;
    let shown = details(&gateway, &uuid).await;
    world.pass(2 * HOUR);
    world.signers.crowded.store(2, Ordering::SeqCst);
    let [treasurer, ..] = persons();
    let now_ms = world.clock_ms();
    let approval = treasurer.approval(&shown, FEE, now_ms + HOUR);
    approve(&gateway, &uuid, approval).await.unwrap();
    assert_eq!(outcome(&gateway, &uuid).await.error, None);
    let turns = world.signers.turns(&uuid);
    let [first, .., last] = turns.as_slice() else {
        panic!("it was to wait on: {turns:?}");
    };
    assert!(first.accepted_ms >= now_ms - DEADLINE);
    assert_eq!(first.accepted_ms, last.accepted_ms);
    // After a third of its time, and where it gets new time after two thirds.
    assert!(first.overdue_ms >= now_ms + DEADLINE / 3);
    assert!(last.overdue_ms >= now_ms + DEADLINE / 3 * 2);
}

/// A store that reads no request from the next commit of one on, once it is armed.
struct ClosedStore {
    inner: Arc<dyn Store>,
    armed: AtomicBool,
    closed: watch::Sender<bool>,
    /// That commit is stored.
    landed: watch::Sender<bool>,
}

#[async_trait::async_trait]
impl StoreDouble for ClosedStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    async fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        let mut writes = batch.writes().iter();
        let is_request = writes.any(|write| write.key.space == KeySpace::Request);
        let is_it = is_request && self.armed.swap(false, Ordering::SeqCst);
        if is_it {
            self.closed.send_replace(true);
        }
        let outcome = self.inner.commit(batch).await;
        if is_it {
            self.landed.send_replace(true);
        }
        outcome
    }

    async fn get(&self, key: &Key) -> Result<Option<Row>, ReadError> {
        if key.space == KeySpace::Request {
            let mut closed = self.closed.subscribe();
            closed.wait_for(|closed| !closed).await.unwrap();
        }
        self.inner.get(key).await
    }
}

/// The vault may take its time to read what people have approved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approvals__should_count_from_their_commit_on() {
    let mut world = World::new();
    world.settings.max_live_requests = 1;
    let store = Arc::new(ClosedStore {
        inner: Arc::clone(&world.store),
        armed: AtomicBool::new(false),
        closed: watch::channel(false).0,
        landed: watch::channel(false).0,
    });
    let gateway = world.start_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let manual = vault_with(&gateway, rule("manual", 1)).await;
    let from = evm_wallet(&gateway, manual).await;
    let other = evm_wallet(&gateway, vault(&gateway, "other").await).await;
    let uuid = create(&gateway, send(&from)).await.uuid;
    let shown = details(&gateway, &uuid).await;
    let [treasurer, ..] = persons();
    let approval = treasurer.approval(&shown, FEE, world.clock_ms() + HOUR);
    store.armed.store(true, Ordering::SeqCst);
    let approving = approve(&gateway, &uuid, approval);
    let meanwhile = async {
        let mut landed = store.landed.subscribe();
        landed.wait_for(|landed| *landed).await.unwrap();
        // It is committed, and not read again yet.
        let asked = try_create(&gateway, request(send(&other)), None);
        let refused = tokio::time::timeout(Duration::from_secs(60), asked).await;
        store.closed.send_replace(false);
        let fault = refused.expect("it was let in").unwrap_err();
        assert_eq!(fault.class(), &Class::Unavailable, "{fault:?}");
    };
    let (approved, ()) = tokio::join!(approving, meanwhile);
    approved.unwrap();
    assert_eq!(outcome(&gateway, &uuid).await.error, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_people_approved__should_go_on_although_the_answer_of_the_store_was_lost() {
    let world = World::new();
    // The next commit about what waits for people is taken, and its answer lost, once this is so.
    let armed = Arc::new(AtomicBool::new(false));
    let is_armed = Arc::clone(&armed);
    let store = MuteStore::new(&world.store, move |batch: &Batch| {
        let mut writes = batch.writes().iter();
        writes.any(|write| write.key.space == KeySpace::Awaiting)
            && is_armed.swap(false, Ordering::SeqCst)
    });
    let gateway = world.start_on(store).await;
    let manual = vault_with(&gateway, rule("manual", 1)).await;
    let from = evm_wallet(&gateway, manual).await;
    let uuid = create(&gateway, send(&from)).await.uuid;
    let shown = details(&gateway, &uuid).await;
    let approval = persons()[0].approval(&shown, FEE, world.clock_ms() + HOUR);
    armed.store(true, Ordering::SeqCst);
    let fault = approve(&gateway, &uuid, approval).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Unavailable);
    assert_eq!(outcome(&gateway, &uuid).await.error, None);
    assert_eq!(world.evm.nonces(), [0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_without_a_limit__should_have_all_that_wait_or_say_that_it_is_too_large() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault_with(&gateway, rule("manual", 1)).await;
    let from = evm_wallet(&gateway, vault).await;
    let mut made = Vec::new();
    for _ in 0..230 {
        made.push(create(&gateway, send(&from)).await.uuid);
        world.pass(1);
    }
    let vault = vault.to_string();
    for vault in ["", &vault] {
        assert_eq!(
            pending(&gateway, &admin(), vault, "", 0).await.unwrap(),
            made
        );
    }
    // More than 4 MiB of them: no part is given for the whole.
    for _ in 0..75 {
        let Kind::RawMessage(mut message) = raw(&from) else {
            unreachable!()
        };
        message.content = vec![7; 60_000];
        create(&gateway, Kind::RawMessage(message)).await;
    }
    let fault = pending(&gateway, &admin(), "", "", 0).await.unwrap_err();
    assert_eq!(fault.path(), Some("limit"));
    let page = pending(&gateway, &admin(), "", "", 100).await.unwrap();
    assert_eq!(page, made[..100]);
}

/// What the process has in memory, in kilobytes.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let words = line.unwrap().split_whitespace().nth(1);
    words.unwrap().parse().unwrap()
}

/// `just bench-waiting`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn waiting__should_give_pages_of_100_000_as_fast_as_of_100() {
    const ALL: usize = 100_000;
    let folder = tempfile::tempdir().unwrap();
    let open = || Arc::new(RedbStore::open(&folder.path().join("store.redb")).unwrap());
    let world = World::on(open());
    let gateway = world.start().await;
    let vault = vault_with(&gateway, rule("manual", 2)).await;
    let from = evm_wallet(&gateway, vault).await;
    let before = memory();
    // Messages: no chain is asked about them.
    let made = futures::stream::iter(0..ALL).map(|_| create(&gateway, raw(&from)));
    let made: Vec<_> = made.buffer_unordered(256).map(|it| it.uuid).collect().await;
    println!("{} kB more for {ALL} that wait", memory() - before);
    let measure = async |gateway: &Gateway, what: &str| {
        let (mut times, mut after, mut seen) = (Vec::new(), String::new(), 0);
        loop {
            let began = Instant::now();
            let page = pending_after(gateway, &admin(), &after, 100).await.unwrap();
            times.push(began.elapsed());
            seen += page.0.len();
            after = page.1;
            if after.is_empty() {
                break;
            }
        }
        times.sort_unstable();
        let (middle, most) = (times[times.len() / 2], times[times.len() - 1]);
        println!(
            "{what}: {seen} in {} pages, {middle:?} each, {most:?} at most",
            times.len()
        );
        assert_eq!(seen, made.len());
    };
    measure(&gateway, "as made").await;
    gateway.stop().await;
    let began = Instant::now();
    let gateway = world.start().await;
    let listed = pending(&gateway, &admin(), "", "", 100).await.unwrap();
    println!(
        "started and listed {} after {:?}",
        listed.len(),
        began.elapsed()
    );
    measure(&gateway, "after a restart").await;
}
