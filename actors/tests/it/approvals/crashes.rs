//! The process ends at any commit.

use super::*;

/// More than a request takes that nothing is in the way of.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs what clients do until the store has had its accident. False when they were done without it: what vaults do
/// beside them takes some commits more in one run than in another.
async fn until_accident(
    store: &FaultyStore,
    clients: impl Future<Output = ()> + Send + 'static,
) -> bool {
    let mut clients = tokio::spawn(clients);
    let mut happened = tokio::time::timeout(Duration::from_secs(60), async {
        tokio::select! {
            () = store.accident() => true,
            _ = &mut clients => false,
        }
    })
    .await
    .unwrap_or(false);
    if !happened {
        let soon = tokio::time::timeout(Duration::from_secs(2), store.accident());
        happened = soon.await.is_ok();
    }
    // What they are told of the accident they hear a moment later.
    let hear = Duration::from_millis(100);
    let has_ended = clients.is_finished() || tokio::time::timeout(hear, &mut clients).await.is_ok();
    if !has_ended {
        assert!(happened, "clients neither end nor come to the accident");
        clients.abort();
        let _ = clients.await;
    }
    happened
}

/// Of twice as many accidents as there were commits in a run without one.
fn assert_hits_most(accidents: usize, commits: usize) {
    assert!(
        accidents > commits * 3 / 2,
        "{accidents} accidents, {commits} commits"
    );
}

/// Who was told that the approval is taken.
type Told = Arc<std::sync::Mutex<Vec<&'static str>>>;

/// Makes a request and has two persons approve it, as far as the store lets them.
async fn approved_by_two(world: &World, gateway: &Gateway, told: &Told) -> Result<String, Fault> {
    let from = manual(gateway).await;
    let uuid = try_create(gateway, request(send(&from)), None)
        .await?
        .0
        .uuid;
    let shown = details(gateway, &uuid).await;
    let until = world.clock_ms() + HOUR;
    for (person, name) in persons().iter().zip(["treasurer", "controller"]) {
        approve(gateway, &uuid, person.approval(&shown, FEE, until)).await?;
        told.lock().unwrap().push(name);
    }
    Ok(uuid)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crashes__should_lose_no_approval_and_count_none_twice() {
    let world = World::new();
    let store = FaultyStore::new(Arc::clone(&world.store), usize::MAX, StoreFault::Before);
    let gateway = world.start_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let uuid = approved_by_two(&world, &gateway, &Told::default()).await;
    assert_eq!(outcome(&gateway, &uuid.unwrap()).await.error, None);
    gateway.stop().await;
    let (commits, mut accidents) = (store.commits(), 0);
    for at in 1..=commits {
        for accident in [StoreFault::Before, StoreFault::After] {
            let what = format!("{accident:?} commit {at} of {commits}");
            let world = World::on(Arc::new(MemoryStore::new()));
            let store = FaultyStore::new(Arc::clone(&world.store), at, accident);
            let gateway = world.start_on(Arc::clone(&store) as Arc<dyn Store>).await;
            let (running, of_clients) = (gateway.clone(), world.clone());
            let told = Told::default();
            let of_people = Arc::clone(&told);
            let clients = async move {
                let _ = approved_by_two(&of_clients, &running, &of_people).await;
            };
            accidents += usize::from(until_accident(&store, clients).await);
            gateway.stop().await;

            let gateway = world.start().await;
            for id in world.requests().await {
                let uuid = id.to_string();
                let shown = details(&gateway, &uuid).await;
                let told = told.lock().unwrap().clone();
                let has = |name: &&str| shown.approvals.iter().any(|it| it.person == **name);
                assert!(told.iter().all(has), "{what}: {told:?} {shown:?}");
                // Both again: what is known is known once.
                if shown.pending_operation == "approve" {
                    assert_eq!(world.signers.requests(), 0, "{what}");
                    assert!(shown.approvals.len() < 2, "{what}");
                    let until = world.clock_ms() + HOUR;
                    let persons = persons();
                    for person in [&persons[0], &persons[0], &persons[1]] {
                        let waiting = details(&gateway, &uuid).await.pending_operation;
                        assert_eq!(waiting, "approve", "{what}: one person is enough");
                        let approval = person.approval(&shown, FEE, until);
                        let given = approve(&gateway, &uuid, approval).await;
                        given.unwrap_or_else(|fault| panic!("{what}: {fault:?}"));
                    }
                }
                let ends = tokio::time::timeout(PATIENCE, outcome(&gateway, &uuid)).await;
                let ended = ends.unwrap_or_else(|_| panic!("{what}: approved, and never goes on"));
                assert_eq!(ended.error, None, "{what}");
                let done = details(&gateway, &uuid).await;
                assert_eq!(done.approvals.len(), 2, "{what}");
                assert_eq!(world.evm.nonces(), [0], "{what}");
            }
            assert_eq!(world.pending().await, 0, "{what}");
            assert_eq!(rows(&world, KeySpace::Awaiting).await, 0, "{what}");
            gateway.stop().await;
        }
    }
    assert_hits_most(accidents, commits);
}

/// Makes a request of which signers want an approval, rejects it, and makes another one, as far as the store lets it.
async fn rejected_and_overtaken(world: &World, gateway: &Gateway) -> Result<(), Fault> {
    let vault = vault_with(gateway, rule("automatic", 0)).await;
    let from = evm_wallet(gateway, vault).await;
    world.signers.wants.store(1, Ordering::SeqCst);
    let made = try_create(gateway, request(send(&from)), None).await?;
    let uuid = made.0.uuid;
    waits(gateway, &uuid).await;
    reject(gateway, &uuid, None).await?;
    world.signers.wants.store(0, Ordering::SeqCst);
    let other = try_create(gateway, request(send(&from)), None).await?;
    outcome(gateway, &other.0.uuid).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crashes__should_call_nothing_failed_that_signers_may_have_signed() {
    let on = |store| {
        let world = World::on(store);
        *world.evm.sighting.lock().unwrap() = Some(TransactionSighting::Waiting);
        *world.evm.unheard.lock().unwrap() = Some(TransactionSighting::Replaced(None));
        world
    };
    let world = on(Arc::new(MemoryStore::new()));
    let store = FaultyStore::new(Arc::clone(&world.store), usize::MAX, StoreFault::Before);
    let gateway = world.start_on(Arc::clone(&store) as Arc<dyn Store>).await;
    rejected_and_overtaken(&world, &gateway).await.unwrap();
    gateway.stop().await;
    let (commits, mut accidents) = (store.commits(), 0);
    for at in 1..=commits {
        for accident in [StoreFault::Before, StoreFault::After] {
            let what = format!("{accident:?} commit {at} of {commits}");
            let world = on(Arc::new(MemoryStore::new()));
            let store = FaultyStore::new(Arc::clone(&world.store), at, accident);
            let gateway = world.start_on(Arc::clone(&store) as Arc<dyn Store>).await;
            let (running, of_clients) = (gateway.clone(), world.clone());
            let clients = async move {
                let _ = rejected_and_overtaken(&of_clients, &running).await;
            };
            accidents += usize::from(until_accident(&store, clients).await);
            gateway.stop().await;

            world.signers.wants.store(0, Ordering::SeqCst);
            let gateway = world.start().await;
            tokio::time::sleep(Duration::from_millis(2 * world.settings.settling_ms)).await;
            let (mut doubted, mut done) = (Vec::new(), Vec::new());
            for id in world.requests().await {
                let shown = details(&gateway, &id.to_string()).await;
                assert_ne!(shown.status(), Status::Failed, "{what}: {shown:?}");
                if shown.status() == Status::Succeeded {
                    done.push(shown.tx_hash);
                } else if shown.pending_operation.is_empty() {
                    doubted.push(shown.uuid);
                }
            }
            *world.evm.sighting.lock().unwrap() = Some(FINAL);
            for uuid in doubted {
                let ends = async {
                    // Without an error it was just being signed.
                    if let Some(error) = outcome(&gateway, &uuid).await.error {
                        assert!(error.message.contains("was used by"), "{error:?}");
                    }
                };
                let ended = tokio::time::timeout(Duration::from_secs(2), ends).await;
                // Without another one it stays in doubt.
                assert!(ended.is_ok() || done.is_empty(), "{what}");
            }
            gateway.stop().await;
        }
    }
    assert_hits_most(accidents, commits);
}
