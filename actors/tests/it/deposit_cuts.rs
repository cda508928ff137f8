//! Deposits on a store that loses its power, or stumbles, at any commit of following and telling, and over orchestrators
//! that come and go.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use covault_actors::{
    operations::{AddSweepAsset, RescanDeposits, RestartDeposits, StopRescan},
    store::memory::MemoryStore,
};
use covault_core::{
    deposit::transfer::FollowedChain,
    fault::{Class, Fault},
    schema::admin::{
        AddSweepAssetRequest, RescanDepositsRequest, RestartDepositsRequest, StopRescanRequest,
    },
};

use serde_json::Value;

use crate::{
    deposit_chain::{
        FAKE, Receiver, Shop, USDT, chains, confirmed, finalized, log, node, pay, pay_token,
        reverted, value, world,
    },
    evm_anvil::Way,
    faulty_store::{FaultyStore, StoreFault},
    world::*,
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

async fn rescan(shop: &Shop, from: u64, to: u64) -> Result<(), Fault> {
    let request = RescanDepositsRequest {
        network: "EVM".into(),
        chain_id: CHAIN.to_string(),
        from,
        to,
    };
    let done = call::<RescanDeposits>(&shop.gateway, &admin(), request).await;
    done.map(|_| ())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rescan__should_tell_what_was_not_known_then_and_nothing_twice() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let shop = Shop::open(&receiver, &[&anvil.url], 1).await;
    let known = pay_token(&anvil, USDT, &shop.address, 5).await;
    let unknown = pay_token(&anvil, FAKE, &shop.address, 6).await;
    // More than one window.
    anvil.mine(40).await;
    shop.until("what is known is final", async |_| {
        receiver.events().len() == 2
    })
    .await;
    let asset = AddSweepAssetRequest {
        token: shop.token.clone(),
        network: "EVM".into(),
        chain_id: CHAIN.to_string(),
        contract: FAKE.into(),
        minimum: "1".into(),
    };
    call::<AddSweepAsset>(&shop.gateway, &admin(), asset)
        .await
        .unwrap();
    for (from, to, field) in [(9, 8, "from"), (1, 60, "to")] {
        let fault = rescan(&shop, from, to).await.unwrap_err();
        assert_eq!(
            (fault.class(), fault.path()),
            (&Class::Invalid, Some(field))
        );
    }
    for _ in 0..2 {
        // The newest block that is final comes with a look at the chain.
        let asked = async |shop: &Shop| rescan(shop, 0, 50).await.is_ok();
        shop.until("block 50 is final", asked).await;
        shop.until("it has come to its end", async |shop| {
            match rescan(shop, 50, 50).await {
                Ok(()) => true,
                Err(fault) => {
                    assert_eq!(*fault.class(), Class::WrongState, "{fault}");
                    false
                }
            }
        })
        .await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let expected = [log(&known), log(&unknown)].map(|of| (of, vec![confirmed(), finalized()]));
    assert_eq!(receiver.stages(), BTreeMap::from(expected));
    assert_eq!(receiver.requests().len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart__should_follow_the_other_chain_after_a_fork_below_what_was_final() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let shop = Shop::open(&receiver, &[&anvil.url], 1).await;
    let first = pay(&anvil, &shop.address, 5).await;
    anvil.mine(10).await;
    shop.until("it is final", async |_| receiver.events().len() == 2)
        .await;
    // Confirmed, and not final: it is gone with the others.
    let second = pay(&anvil, &shop.address, 6).await;
    anvil.mine(2).await;
    shop.until("it is confirmed", async |_| receiver.events().len() == 3)
        .await;
    let raw = anvil
        .call("eth_getRawTransactionByHash", serde_json::json!([first]))
        .await;
    anvil.call("anvil_reorg", serde_json::json!([12, []])).await;
    anvil
        .call("anvil_dropAllTransactions", serde_json::json!([]))
        .await;
    anvil.mine(1).await;
    let is_stopped = |shop: &Shop| shop.gateway.follows()[&FollowedChain::Evm(CHAIN)].is_stopped;
    shop.until("it is stopped", async |shop| is_stopped(shop))
        .await;
    let restart = async |from: u64| {
        let request = RestartDepositsRequest {
            network: "EVM".into(),
            chain_id: CHAIN.to_string(),
            from,
        };
        call::<RestartDeposits>(&shop.gateway, &admin(), request).await
    };
    let fault = restart(30).await.unwrap_err();
    assert_eq!(
        (fault.class(), fault.path()),
        (&Class::Invalid, Some("from"))
    );
    restart(15).await.unwrap();
    shop.until("it goes on", async |shop| !is_stopped(shop))
        .await;
    // The first one is in another block now, and another payment comes.
    anvil
        .call("eth_sendRawTransaction", serde_json::json!([raw]))
        .await;
    anvil.mine(1).await;
    let third = pay(&anvil, &shop.address, 7).await;
    anvil.mine(12).await;
    shop.until("all is told", async |_| receiver.events().len() >= 6)
        .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let expected = BTreeMap::from([
        (value(&first), vec![confirmed(), finalized()]),
        (value(&second), vec![confirmed(), reverted()]),
        (value(&third), vec![confirmed(), finalized()]),
    ]);
    assert_eq!(receiver.stages(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token__should_be_of_a_chain_that_somebody_follows() {
    let receiver = Receiver::start().await;
    // Its nodes need not answer.
    let nodes = ["http://127.0.0.1:1"];
    let shop = Shop::open_unfollowed(world(), &receiver, &nodes, 1).await;
    let name = async |network: &str, chain_id: &str, contract: &str| {
        let asset = AddSweepAssetRequest {
            token: shop.token.clone(),
            network: network.into(),
            chain_id: chain_id.into(),
            contract: contract.into(),
            minimum: "1".into(),
        };
        call::<AddSweepAsset>(&shop.gateway, &admin(), asset).await
    };
    name("EVM", &CHAIN.to_string(), FAKE).await.unwrap();
    for (network, chain_id, contract) in [
        ("EVM", "31338", FAKE),
        ("TRON", "", "TR7NHqjeKQxGTCi8q8ZY4pL8otSzgjLj6t"),
    ] {
        let fault = name(network, chain_id, contract).await.unwrap_err();
        assert_eq!(
            (fault.class(), fault.path()),
            (&Class::Invalid, Some("chainId")),
            "{fault}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rescan__should_go_on_until_the_nodes_have_all_of_its_blocks() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let is_pruned = Arc::new(AtomicBool::new(false));
    let pruned = Arc::clone(&is_pruned);
    let url = anvil
        .behind(move |call| {
            let asked = call["params"][0].as_str().unwrap_or_default();
            let asked = u64::from_str_radix(asked.trim_start_matches("0x"), 16);
            let is_old = asked.is_ok_and(|number| (3..20).contains(&number));
            match call["method"].as_str() {
                Some("eth_getBlockByNumber") if is_old && pruned.load(Ordering::SeqCst) => {
                    Way::Answered(Value::Null)
                }
                _ => Way::Open,
            }
        })
        .await;
    let mut shop = Shop::open(&receiver, &[&url], 1).await;
    // Before anybody named the token.
    let late = pay_token(&anvil, FAKE, &shop.address, 5).await;
    anvil.mine(10).await;
    let coin = pay(&anvil, &shop.address, 5).await;
    anvil.mine(10).await;
    shop.until("it is final", async |_| receiver.events().len() == 2)
        .await;
    let asset = AddSweepAssetRequest {
        token: shop.token.clone(),
        network: "EVM".into(),
        chain_id: CHAIN.to_string(),
        contract: FAKE.into(),
        minimum: "1".into(),
    };
    call::<AddSweepAsset>(&shop.gateway, &admin(), asset)
        .await
        .unwrap();
    is_pruned.store(true, Ordering::SeqCst);
    let rescan = async |shop: &Shop| {
        let request = RescanDepositsRequest {
            network: "EVM".into(),
            chain_id: CHAIN.to_string(),
            from: 0,
            to: 24,
        };
        call::<RescanDeposits>(&shop.gateway, &admin(), request).await
    };
    let stop = async |shop: &Shop| {
        let request = StopRescanRequest {
            network: "EVM".into(),
            chain_id: CHAIN.to_string(),
        };
        call::<StopRescan>(&shop.gateway, &admin(), request).await
    };
    assert_eq!(stop(&shop).await.unwrap_err().class(), &Class::WrongState);
    rescan(&shop).await.unwrap();
    // The chain is followed all the same.
    let next = pay(&anvil, &shop.address, 6).await;
    anvil.mine(10).await;
    shop.until("the next one is final", async |_| {
        receiver.events().len() == 4
    })
    .await;
    assert_eq!(rescan(&shop).await.unwrap_err().class(), &Class::WrongState);
    // It can be ended, and begun anew.
    stop(&shop).await.unwrap();
    rescan(&shop).await.unwrap();
    is_pruned.store(false, Ordering::SeqCst);
    // A new process does not wait until it asks again.
    shop.restart(&[&url]).await;
    shop.until("it is told", async |_| receiver.events().len() == 6)
        .await;
    let both = vec![confirmed(), finalized()];
    let expected = [value(&coin), value(&next), log(&late)].map(|of| (of, both.clone()));
    assert_eq!(receiver.stages(), BTreeMap::from(expected));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_added_while_a_node_is_silent__should_be_told_from_the_next_block_on() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let [is_held, is_asked, is_free] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
    let (held, asked, free) = (is_held.clone(), is_asked.clone(), is_free.clone());
    let url = anvil
        .behind(move |call| match call["method"].as_str() {
            Some("eth_blockNumber") if held.load(Ordering::SeqCst) => {
                asked.store(true, Ordering::SeqCst);
                Way::Held(free.clone())
            }
            _ => Way::Open,
        })
        .await;
    let shop = Shop::open(&receiver, &[&url], 1).await;
    is_held.store(true, Ordering::SeqCst);
    shop.until("the node is silent", async |_| {
        is_asked.load(Ordering::SeqCst)
    })
    .await;
    let asset = AddSweepAssetRequest {
        token: shop.token.clone(),
        network: "EVM".into(),
        chain_id: CHAIN.to_string(),
        contract: FAKE.into(),
        minimum: "1".into(),
    };
    call::<AddSweepAsset>(&shop.gateway, &admin(), asset)
        .await
        .unwrap();
    let token = pay_token(&anvil, FAKE, &shop.address, 5).await;
    anvil.mine(10).await;
    is_held.store(false, Ordering::SeqCst);
    is_free.store(true, Ordering::SeqCst);
    shop.until("it is final", async |_| receiver.events().len() == 2)
        .await;
    let expected = BTreeMap::from([(log(&token), vec![confirmed(), finalized()])]);
    assert_eq!(receiver.stages(), expected);
}
