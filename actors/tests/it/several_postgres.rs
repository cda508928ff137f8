//! Several orchestrators on a real PostgreSQL: what must hold on any store that can be shared.

use std::{sync::atomic::Ordering, time::Duration};

use futures::{StreamExt as _, stream};
use tokio::time::Instant;

use crate::{
    delayed_port::DelayedPort,
    many_vaults::{copy_vault, numbered},
    postgres::Postgres,
    processes::{Process, world_on, world_on_database},
    several::{commit_in_flight, kill, leave, spread, stalled_owner, stop, under_load},
    world::*,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vaults_on_postgres__should_be_spread_and_be_used_through_every_process() {
    let server = Postgres::start();
    spread(&world_on(&server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_on_postgres__should_be_taken_over_after_the_lease_time_and_not_before() {
    let server = Postgres::start();
    kill(&world_on(&server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_on_postgres__should_hand_over_at_once() {
    let server = Postgres::start();
    stop(&world_on(&server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_on_postgres__should_give_its_vaults_to_anybody_alive_and_go_on_with_calls() {
    let server = Postgres::start();
    leave(&world_on(&server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_owner_on_postgres__should_commit_nothing_once_another_has_the_vault() {
    let server = Postgres::start();
    stalled_owner(&world_on(&server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_in_flight_on_postgres__should_be_refused_when_the_vault_went_meanwhile() {
    let server = Postgres::start();
    commit_in_flight(&world_on(&server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_on_postgres__should_lose_nothing_and_do_nothing_twice() {
    let server = Postgres::start();
    let world = world_on(&server).await;
    under_load(&world, async |process| process.kill(), 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restart_on_postgres__should_lose_nothing_and_do_nothing_twice() {
    let server = Postgres::start();
    let world = world_on(&server).await;
    under_load(&world, async |process| process.stop().await, 3).await;
}

/// A world that is not quicker than outside of tests, on a database to which each way takes longer.
async fn world_behind(server: &Postgres, delayed: &DelayedPort) -> World {
    let mut world = world_on_database(delayed.url(&server.database())).await;
    let defaults = covault_actors::settings::Settings::default();
    world.settings.heartbeat_ms = defaults.heartbeat_ms;
    world.settings.lease_ms = defaults.lease_ms;
    world.settings.execute_wait_ms = defaults.execute_wait_ms;
    world.settings.tracking_first_ms = defaults.tracking_first_ms;
    world.settings.tracking_most_ms = defaults.tracking_most_ms;
    world
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: just measure-transfers"]
#[expect(clippy::disallowed_methods, reason = "how late the database is")]
async fn transfers__should_be_measured_behind_a_delay() {
    let delay_ms = std::env::var("COVAULT_DELAY_MS").map_or(10, |text| text.parse().unwrap());
    let each = Duration::from_secs(10);
    let server = Postgres::start();
    let delayed = DelayedPort::to(server.port()).await;
    let world = world_behind(&server, &delayed).await;
    let process = Process::start(&world).await;
    process.let_run();
    let vault = process.vault("main").await;
    let wallets = stream::iter(0..64).map(|_| process.evm_wallet(vault));
    let wallets: Vec<String> = wallets.buffered(8).collect().await;
    delayed.delay_by(delay_ms);
    for clients in [1, 8, 64] {
        let (begun, before) = (Instant::now(), delayed.questions());
        let work = wallets.iter().take(clients).map(async |wallet| {
            let mut taken = Vec::new();
            while begun.elapsed() < each {
                let started = Instant::now();
                let made = process.create(wallet).await;
                assert!(process.outcome(&made).await);
                taken.push(started.elapsed());
            }
            taken
        });
        let mut taken = futures::future::join_all(work).await.concat();
        let seconds = begun.elapsed().as_secs_f64();
        taken.sort_unstable();
        let trips = delayed.questions() - before;
        eprintln!(
            "{clients} wallets, PostgreSQL {delay_ms} ms away: {:.1} transfers per second, half of them within {:?}, \
             {:.1} round trips for each",
            taken.len() as f64 / seconds,
            taken[taken.len() / 2],
            trips as f64 / taken.len() as f64
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: just measure-vaults"]
#[expect(clippy::disallowed_methods, reason = "how many there are to be")]
async fn vaults__should_be_measured_while_they_move() {
    let vaults = std::env::var("COVAULT_VAULTS").map_or(10_000, |text| text.parse().unwrap());
    let server = Postgres::start();
    let delayed = DelayedPort::to(server.port()).await;
    delayed.delay_by(10);
    let world = world_behind(&server, &delayed).await;
    let here = |process: &Process| process.gateway.vault_share().0;
    let until = async |what: &str, is: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !is() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        eprintln!("{what}: {:.1} s", begun.elapsed().as_secs_f64());
    };

    let mut zero = Process::start(&world).await;
    zero.let_run();
    let template = zero.vault(&numbered(0)).await;
    let last = zero.vault("last").await;
    let from = zero.evm_wallet(last).await;
    world.signers.silent.store(true, Ordering::SeqCst);
    let unfinished = zero.create(&from).await;
    while world.signers.unanswered.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    zero.stop().await;
    world.signers.silent.store(false, Ordering::SeqCst);
    copy_vault(&*world.store, template, 1..vaults - 1).await;

    let (mut one, begun) = (Process::start(&world).await, Instant::now());
    one.let_run();
    until(&format!("a process starts with {vaults} vaults"), &|| {
        here(&one) == vaults
    })
    .await;
    assert!(one.outcome(&unfinished).await);
    eprintln!("what was unfinished is signed: {:?}", begun.elapsed());
    let two = Process::start(&world).await;
    two.let_run();
    let most_away = std::cell::Cell::new(0);
    until("half of them move to a second process", &|| {
        let there = here(&one) + here(&two);
        most_away.set(most_away.get().max(vaults.saturating_sub(there)));
        here(&two) > vaults / 3 && there == vaults
    })
    .await;
    eprintln!(
        "of those {} at most were nowhere at a time",
        most_away.get()
    );
    let (begun, left) = (Instant::now(), here(&one));
    one.leave().await;
    eprintln!("the first one has given all away: {:?}", begun.elapsed());
    one.stop().await;
    eprintln!("the first one stops: {:?}", begun.elapsed());
    until(&format!("its {left} are with the second"), &|| {
        here(&two) == vaults
    })
    .await;
    let pending = two.create(&from).await;
    assert!(two.outcome(&pending).await);
    eprintln!(
        "the one that was made last has signed: {:?} after the stop began",
        begun.elapsed()
    );

    let mut three = Process::start(&world).await;
    three.let_run();
    until("half of them move to a third process", &|| {
        here(&three) > vaults / 3 && here(&two) + here(&three) == vaults
    })
    .await;
    let left = here(&three);
    three.kill();
    until(
        &format!("its {left} are with the second after kill -9, lease time included"),
        &|| here(&two) == vaults,
    )
    .await;
    let pending = two.create(&from).await;
    assert!(two.outcome(&pending).await);
}
