//! Several orchestrators on a real PostgreSQL: what must hold on any store that can be shared.

use crate::{
    postgres::Postgres,
    processes::world_on,
    several::{commit_in_flight, kill, spread, stalled_owner, stop, under_load},
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
