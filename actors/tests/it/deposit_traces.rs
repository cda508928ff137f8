//! What contracts pass on, by nodes that trace blocks, on anvil.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use covault_actors::chain_rpc::FollowPolicy;
use covault_core::deposit::transfer::FollowedChain;
use serde_json::{Value, json};

use crate::{
    deposit_balances::{FORWARDER, counted, forward, put_forwarder, reconcile, rescan},
    deposit_chain::{
        PAYER, Receiver, Shop, TRANSFER, USDT, confirmed, finalized, log, node, pay, pay_token,
        policy, value,
    },
    evm_anvil::{Anvil, Way},
    world::CHAIN,
};

fn internal(hash: &str) -> (String, String) {
    (hash.to_owned(), "internal-0".to_owned())
}

fn tracing() -> FollowPolicy {
    FollowPolicy {
        traces: true,
        ..policy()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn coins_that_contracts_pass_on__should_be_told_by_each_way_to_trace() {
    for without in ["", "debug_traceBlockByHash"] {
        let (anvil, receiver) = (node().await, Receiver::start().await);
        put_forwarder(&anvil).await;
        let url = anvil
            .behind(move |call| match call["method"].as_str() {
                Some(method) if method == without => {
                    Way::Refused("the method does not exist/is not available")
                }
                _ => Way::Open,
            })
            .await;
        let shop = Shop::open_following(&receiver, &[&url], tracing()).await;
        let to = &shop.address;
        let passed = forward(&anvil, to, 7).await;
        let coin = pay(&anvil, to, 5).await;
        // A contract that fails after it has passed everything on.
        let code = json!([FORWARDER, "0x6000600060006000346000355af160006000fd"]);
        anvil.mine(1).await;
        anvil.call("anvil_setCode", code).await;
        forward(&anvil, to, 11).await;
        anvil.mine(10).await;
        shop.until("both are final", async |_| receiver.events().len() >= 4)
            .await;
        let expected =
            [internal(&passed), value(&coin)].map(|of| (of, vec![confirmed(), finalized()]));
        assert_eq!(receiver.stages(), BTreeMap::from(expected), "{without}");
        // And it is in the books.
        assert_eq!(reconcile(&shop, &anvil).await, counted(0, 0));
        assert_eq!(receiver.events().len(), 4);
        let events = receiver.events();
        let told = events.iter().find(|event| event["index"] == "internal-0");
        let from = covault_core::networks::evm::parse_address(FORWARDER).unwrap();
        assert_eq!(told.unwrap()["from"], json!(from.to_checksum(None)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks__should_be_followed_without_traces_when_nodes_refuse_or_lose_them() {
    for way in [
        || Way::Refused("missing trie node"),
        || Way::Lost,
        || Way::Answered(Value::Null),
    ] {
        let (anvil, receiver) = (node().await, Receiver::start().await);
        let url = anvil
            .behind(move |call| match call["method"].as_str() {
                Some("debug_traceBlockByHash" | "trace_block") => way(),
                _ => Way::Open,
            })
            .await;
        let shop = Shop::open_following(&receiver, &[&url], tracing()).await;
        let coin = pay(&anvil, &shop.address, 5).await;
        anvil.mine(10).await;
        shop.until("it is final", async |_| receiver.events().len() >= 2)
            .await;
        let expected = BTreeMap::from([(value(&coin), vec![confirmed(), finalized()])]);
        assert_eq!(receiver.stages(), expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receipts_of_blocks__should_be_as_good_as_logs() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let url = anvil
        .behind(|call| match call["method"].as_str() {
            Some("eth_getLogs") => Way::Refused("not here"),
            _ => Way::Open,
        })
        .await;
    let receipts = FollowPolicy {
        receipts: true,
        ..policy()
    };
    let shop = Shop::open_following(&receiver, &[&url], receipts).await;
    let coin = pay(&anvil, &shop.address, 5).await;
    let token = pay_token(&anvil, USDT, &shop.address, 5).await;
    pay_token(&anvil, USDT, PAYER, 5).await;
    anvil.mine(10).await;
    shop.until("both are final", async |_| receiver.events().len() >= 4)
        .await;
    let expected = [value(&coin), log(&token)].map(|of| (of, vec![confirmed(), finalized()]));
    assert_eq!(receiver.stages(), BTreeMap::from(expected));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn block_that_cannot_be_traced__should_be_taken_without_beside_others_that_can() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    put_forwarder(&anvil).await;
    let are_lost = Arc::new(AtomicBool::new(false));
    let lost = Arc::clone(&are_lost);
    let traced = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&traced);
    let url = anvil
        .behind(move |call| match call["method"].as_str() {
            // Every second one.
            Some("debug_traceBlockByHash")
                if lost.load(Ordering::SeqCst)
                    && count.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) =>
            {
                Way::Lost
            }
            _ => Way::Open,
        })
        .await;
    let shop = Shop::open_following(&receiver, &[&url], tracing()).await;
    // The method is found.
    let passed = forward(&anvil, &shop.address, 7).await;
    anvil.mine(10).await;
    shop.until("it is final", async |_| receiver.events().len() == 2)
        .await;
    are_lost.store(true, Ordering::SeqCst);
    let mut expected = vec![internal(&passed)];
    for amount in 1..6 {
        expected.push(value(&pay(&anvil, &shop.address, amount).await));
        anvil.mine(1).await;
    }
    anvil.mine(10).await;
    shop.until("all are final", async |_| receiver.events().len() >= 12)
        .await;
    let expected = expected
        .into_iter()
        .map(|of| (of, vec![confirmed(), finalized()]));
    assert_eq!(receiver.stages(), expected.collect());
}

/// Puts what makes logs of the coin, as EIP-7708 has them, and a contract that passes on with such logs: of what it gets,
/// and of what it gives.
async fn put_coin_logs(anvil: &Anvil) {
    let logger = format!("0x{}fe", "ff".repeat(19));
    let code = format!("0x6040356000526020356000357f{TRANSFER}60206000a300");
    anvil.call("anvil_setCode", json!([logger, code])).await;
    let tell = format!(
        "6000600060606000600073{}5af150",
        logger.trim_start_matches("0x")
    );
    let code = format!(
        "0x336000523060205234604052{tell}30600052600035602052{tell}6000600060006000346000355af100"
    );
    anvil.call("anvil_setCode", json!([FORWARDER, code])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn coins_that_contracts_pass_on__should_be_told_once_where_the_chain_has_logs_of_its_coin() {
    for policy in [policy(), tracing()] {
        let (anvil, receiver) = (node().await, Receiver::start().await);
        put_coin_logs(&anvil).await;
        let shop = Shop::open_following(&receiver, &[&anvil.url], policy).await;
        let to = &shop.address;
        let passed = forward(&anvil, to, 7).await;
        let coin = pay(&anvil, to, 5).await;
        let token = pay_token(&anvil, USDT, to, 3).await;
        anvil.mine(10).await;
        shop.until("all are final", async |_| receiver.events().len() >= 6)
            .await;
        let by_log = (passed, "log-1".to_owned());
        let expected =
            [by_log, value(&coin), log(&token)].map(|of| (of, vec![confirmed(), finalized()]));
        assert_eq!(receiver.stages(), BTreeMap::from(expected));
        let events = receiver.events();
        let told = events.iter().find(|event| event["index"] == "log-1");
        let told = told.unwrap();
        assert_eq!(
            (&told["amount"], &told["token_address"]),
            (&json!("7"), &Value::Null)
        );
        let by = shop.gateway.follows()[&FollowedChain::Evm(CHAIN)].traces;
        assert_eq!(by, "logs");
        // And it is in the books.
        assert_eq!(reconcile(&shop, &anvil).await, counted(0, 0));
        assert_eq!(receiver.events().len(), 6);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_without_its_logs_yet__should_not_have_them_told_by_the_trace() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    put_coin_logs(&anvil).await;
    let url = anvil
        .behind(|call| match call["method"].as_str() {
            Some("eth_getLogs") => Way::Answered(json!([])),
            _ => Way::Open,
        })
        .await;
    let shop = Shop::open_following(&receiver, &[&url], tracing()).await;
    let passed = forward(&anvil, &shop.address, 7).await;
    anvil.mine(10).await;
    shop.until("it is final", async |_| receiver.events().len() >= 2)
        .await;
    let by_log = ((passed, "log-1".to_owned()), vec![confirmed(), finalized()]);
    assert_eq!(receiver.stages(), BTreeMap::from([by_log]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_told_by_its_trace__should_not_be_told_again_by_its_log() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    put_coin_logs(&anvil).await;
    let is_away = Arc::new(AtomicBool::new(false));
    let bare = Arc::new(Mutex::new(Value::Null));
    let (away, shown) = (Arc::clone(&is_away), Arc::clone(&bare));
    let url = anvil
        .behind(move |call| {
            let block = shown.lock().unwrap().clone();
            match call["method"].as_str() {
                _ if away.load(Ordering::SeqCst) => Way::Busy(503),
                Some("eth_getBlockByNumber")
                    if call["params"] == json!([block["number"], true]) =>
                {
                    Way::Answered(block)
                }
                _ => Way::Open,
            }
        })
        .await;
    let shop = Shop::open_following(&receiver, &[&url], tracing()).await;
    // Its block comes without a sign of its logs at first.
    is_away.store(true, Ordering::SeqCst);
    let passed = forward(&anvil, &shop.address, 7).await;
    anvil.mine(1).await;
    let mut block = anvil
        .call("eth_getBlockByNumber", json!(["latest", true]))
        .await;
    block["logsBloom"] = json!(format!("0x{}", "00".repeat(256)));
    *bare.lock().unwrap() = block;
    is_away.store(false, Ordering::SeqCst);
    anvil.mine(10).await;
    shop.until("it is final", async |_| receiver.events().len() >= 2)
        .await;
    let expected = receiver.stages();
    let is_traced =
        |(hash, index): &(String, String)| *hash == passed && index.starts_with("internal-");
    assert!(expected.keys().all(is_traced), "{expected:?}");
    *bare.lock().unwrap() = Value::Null;
    rescan(&shop).await;
    pay(&anvil, &shop.address, 5).await;
    anvil.mine(10).await;
    shop.until("a later one is told", async |_| {
        receiver.events().len() >= 4
    })
    .await;
    let mut stages = receiver.stages();
    stages.retain(|(_, index), _| index != "value");
    assert_eq!(stages, expected);
}
