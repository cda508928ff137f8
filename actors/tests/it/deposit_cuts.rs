//! Deposits on a store that loses its power, or stumbles, at any commit of following and telling, and over orchestrators
//! that come and go.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use covault_actors::store::memory::MemoryStore;

use crate::{
    deposit_chain::{
        Receiver, Shop, USDT, chains, confirmed, finalized, log, node, pay, pay_token, value, world,
    },
    faulty_store::{FaultyStore, StoreFault},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn power_cuts__should_lose_no_deposit_and_tell_none_twice() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let mut shop = Shop::open(&receiver, &[&anvil.url], 1).await;
    let mut paid = Vec::new();
    let accidents = [
        StoreFault::Before,
        StoreFault::After,
        StoreFault::StumbleBefore,
        StoreFault::StumbleAfter,
    ];
    for at in [1, 2, 3, 4, 5, 7, 9, 12] {
        for accident in accidents {
            shop.gateway.stop().await;
            let inner = Arc::clone(&shop.world.store);
            let store = FaultyStore::new(inner, at, accident);
            let chains = chains(&shop.world, &[&anvil.url], 1);
            paid.push(value(&pay(&anvil, &shop.address, 5).await));
            paid.push(log(&pay_token(&anvil, USDT, &shop.address, 5).await));
            anvil.mine(4).await;
            match shop
                .world
                .try_start_with(Arc::clone(&store) as _, chains)
                .await
            {
                Ok(gateway) => {
                    shop.gateway = gateway;
                    let patience = Duration::from_millis(600);
                    let _ = tokio::time::timeout(patience, store.accident()).await;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                // The power went while it started.
                Err(fault) => assert!(!fault.message().is_empty()),
            }
        }
    }
    shop.gateway.stop().await;
    let chains = chains(&shop.world, &[&anvil.url], 1);
    let store = Arc::clone(&shop.world.store);
    shop.gateway = shop.world.start_with(store, chains).await;
    anvil.mine(10).await;
    let count = 2 * paid.len();
    shop.until("all are final", async |_| receiver.events().len() >= count)
        .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let expected: BTreeMap<_, _> = paid
        .into_iter()
        .map(|of| (of, vec![confirmed(), finalized()]))
        .collect();
    assert_eq!(receiver.stages(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orchestrators__should_hand_a_chain_over_without_losing_a_deposit() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let mut shared = world();
    shared.store = Arc::new(MemoryStore::shared());
    let mut shop = Shop::open_in(shared, &receiver, &[&anvil.url], 1).await;
    let mut paid = Vec::new();
    for _ in 0..4 {
        paid.push(value(&pay(&anvil, &shop.address, 5).await));
        paid.push(log(&pay_token(&anvil, USDT, &shop.address, 5).await));
        anvil.mine(1).await;
        let chains = chains(&shop.world, &[&anvil.url], 1);
        let store = Arc::clone(&shop.world.store);
        let next = shop.world.start_with(store, chains).await;
        let before = std::mem::replace(&mut shop.gateway, next);
        anvil.mine(1).await;
        before.leave().await;
        before.stop().await;
        anvil.mine(1).await;
    }
    anvil.mine(10).await;
    let count = 2 * paid.len();
    shop.until("all are final", async |_| receiver.events().len() >= count)
        .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let expected: BTreeMap<_, _> = paid
        .into_iter()
        .map(|of| (of, vec![confirmed(), finalized()]))
        .collect();
    assert_eq!(receiver.stages(), expected);
}
