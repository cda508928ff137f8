//! How the service is as a whole, as operators are told.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use covault_actors::{
    gateway::Gateway,
    operations::GetStatus,
    store::KeySpace,
    testing::{StoreCall, ToldStore},
};
use covault_core::schema::admin;
use tokio::time::Instant;

use crate::{
    backup::back_up,
    many_vaults::{copy_vault, numbered},
    world::*,
};

async fn status(gateway: &Gateway) -> admin::GetStatusResponse {
    let request = admin::GetStatusRequest {};
    call::<GetStatus>(gateway, &admin(), request).await.unwrap()
}

/// What is told once this is so.
async fn told(
    gateway: &Gateway,
    is_so: impl Fn(&admin::GetStatusResponse) -> bool,
) -> admin::GetStatusResponse {
    let begun = Instant::now();
    loop {
        let status = status(gateway).await;
        if is_so(&status) {
            return status;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{status:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn vaults(status: &admin::GetStatusResponse) -> admin::VaultCounts {
    status.vaults.clone().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status__should_tell_of_vaults_failures_and_the_last_backup() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 100;
    let gateway = world.start().await;
    let main = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, main).await;
    let well = told(&gateway, |it| vaults(it).ready == 1).await;
    assert_eq!((&well.not_ready, &well.store_problem), (&None, &None));
    assert_eq!(well.nodes.len(), 3);
    assert_eq!((well.last_backup, well.failures.len()), (None, 0));

    world.signers.away.lock().unwrap().insert(node(3));
    let tight = told(&gateway, |it| vaults(it).no_spare == 1).await;
    assert_eq!(vaults(&tight).without_spare, ["main"]);
    world.signers.away.lock().unwrap().insert(node(2));
    let short = told(&gateway, |it| vaults(it).short == 1).await;
    let [reason] = &vaults(&short).cannot_sign[..] else {
        panic!("{short:#?}");
    };
    assert!(
        reason.starts_with("main: 1 of 2 signers that ")
            && reason.ends_with(" needs are available"),
        "{reason}"
    );
    world.signers.away.lock().unwrap().clear();
    told(&gateway, |it| vaults(it).ready == 1).await;

    world.signers.failing.store(usize::MAX, Ordering::SeqCst);
    let mut failed = Vec::new();
    for _ in 0..12 {
        let pending = create(&gateway, raw(&from)).await;
        outcome(&gateway, &pending.uuid).await.error.unwrap();
        failed.push(pending.uuid);
    }
    let last = failed.last().unwrap();
    let after = told(&gateway, |it| {
        it.failures
            .first()
            .is_some_and(|failure| failure.uuid == *last)
    })
    .await;
    assert_eq!(after.failures.len(), 10);
    let failure = &after.failures[0];
    assert_eq!(
        (failure.vault.as_str(), failure.class.as_str()),
        ("main", "unspecified")
    );
    assert_eq!(failure.reason, "not enough signers: missing …");
    assert!(!format!("{:?}", after.failures).contains(&from));
    let requests = after.requests.unwrap();
    assert_eq!((requests.unsigned, requests.awaiting), (0, 0));

    back_up(&gateway).await;
    let backup = status(&gateway).await.last_backup.unwrap();
    assert!(backup.bytes > 1_000, "{backup:?}");
    // A process that starts says what the one before it has written down.
    gateway.stop().await;
    let again = world.start().await;
    let after = status(&again).await;
    assert_eq!(after.last_backup, Some(backup));
    assert_eq!(after.failures.len(), 10);
    again.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_vaults__should_not_be_read_for_an_answer() {
    const VAULTS: usize = 10_000;
    let world = World::new();
    let gateway = world.start().await;
    let template = vault(&gateway, &numbered(0)).await;
    gateway.stop().await;
    copy_vault(&*world.store, template, 1..VAULTS).await;
    let scans = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&scans);
    let store = ToldStore::new(&world.store, move |call: StoreCall<'_>| {
        if let StoreCall::Scan(scan) = call
            && scan.space == KeySpace::Vault
        {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let gateway = world.start_on(store).await;
    let all = u64::try_from(VAULTS).unwrap();
    let first = told(&gateway, |it| vaults(it).ready == all).await;
    // The next count comes after a hundred times as long as this one took.
    let before = scans.load(Ordering::SeqCst);
    let begun = Instant::now();
    for _ in 0..20 {
        assert_eq!(status(&gateway).await.vaults, first.vaults);
    }
    let each = begun.elapsed() / 20;
    eprintln!("{VAULTS} vaults: an answer takes {each:?}");
    assert_eq!(scans.load(Ordering::SeqCst), before);
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overview__should_be_read_once_a_second_however_many_ask() {
    let world = World::new();
    let reads = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&reads);
    let store = ToldStore::new(&world.store, move |call: StoreCall<'_>| {
        if let StoreCall::Get(key) = call
            && key.space == KeySpace::Overview
        {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let gateway = world.start_on(store).await;
    let begun = Instant::now();
    for _ in 0..100 {
        gateway.overview().await.unwrap();
    }
    let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap();
    let reads = reads.load(Ordering::SeqCst);
    assert!(reads <= 2 * (seconds + 2), "{reads}");
    gateway.stop().await;
}
