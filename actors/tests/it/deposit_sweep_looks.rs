//! How soon sweeps begin, and how little the nodes are asked for many of them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use covault_actors::chain_rpc::FollowPolicy;
use serde_json::json;
use tokio::time::Instant;

use crate::{
    deposit_chain::{Receiver, Shop, USDT, node, pay, policy, world},
    deposit_sweeps::*,
    evm_anvil::Way,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules__should_not_wait_for_the_next_poll_of_a_follower() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    anvil.call("anvil_setCode", json!([USDT, ERC20])).await;
    let rarely = FollowPolicy {
        poll_ms: 60_000,
        ..policy()
    };
    let began = Instant::now();
    let shop = Shop::open_following(&receiver, &[&anvil.url], rarely).await;
    prepare(&shop).await;
    pay(&anvil, &shop.address, COIN).await;
    anvil.mine(20).await;
    enable(&shop, true).await;
    shop.until("it is asked for", async |shop| {
        sweep_of(shop, &shop.address).await.is_some()
    })
    .await;
    let elapsed = began.elapsed();
    assert!(elapsed < Duration::from_secs(40), "{elapsed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sweeps_of_many_wallets__should_share_what_the_nodes_are_asked() {
    const WALLETS: usize = 60;
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let calls: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
    let counted = Arc::clone(&calls);
    let url = anvil
        .behind(move |call| {
            let method = call["method"].as_str().unwrap().to_owned();
            *counted.lock().unwrap().entry(method).or_default() += 1;
            Way::Open
        })
        .await;
    anvil.call("anvil_setCode", json!([USDT, ERC20])).await;
    let shop = Shop::open_in(world(), &receiver, &[&url], 1).await;
    prepare(&shop).await;
    for number in 0..WALLETS {
        let wallet = shop.deposit_address(&format!("many-{number}")).await;
        pay(&anvil, &wallet, COIN).await;
    }
    anvil.mine(20).await;
    shop.until("all are final", async |_| {
        receiver.events().len() == 2 * WALLETS
    })
    .await;
    calls.lock().unwrap().clear();
    enable(&shop, true).await;
    shop.until("all were sent", async |_| {
        let calls = calls.lock().unwrap();
        let sent = calls.get("eth_sendRawTransaction");
        sent.copied().unwrap_or_default() >= WALLETS
    })
    .await;
    let calls = calls.lock().unwrap().clone();
    let of = |method: &str| calls.get(method).copied().unwrap_or_default();
    assert_eq!(of("eth_estimateGas"), WALLETS, "{calls:?}");
    assert_eq!(of("eth_getTransactionCount"), WALLETS, "{calls:?}");
    // Those that are looked at first ask at the same time: 16, and a second look finds what was noted meanwhile.
    for shared in ["eth_maxPriorityFeePerGas", "eth_feeHistory"] {
        assert!(of(shared) <= 32, "{shared}: {calls:?}");
    }
    assert_eq!(of("eth_getBalance"), 0, "{calls:?}");
}
