//! What nodes of a chain hide, or say too late, about deposits.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use covault_actors::{chain_rpc::ChainClients, gateway::FollowCounts, store::memory::MemoryStore};
use covault_core::deposit::transfer::FollowedChain;
use serde_json::{Value, json};

use crate::{
    deposit_chain::{
        PAYER, Receiver, Shop, TRANSFER, USDT, chains, confirmed, finalized, log, node, pay,
        pay_token, value, world,
    },
    evm_anvil::Way,
    world::CHAIN,
};

fn counts(shop: &Shop) -> FollowCounts {
    shop.gateway.follows()[&FollowedChain::Evm(CHAIN)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payment_before_the_nodes_first_answered__should_be_told() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let is_away = Arc::new(AtomicBool::new(true));
    let away = Arc::clone(&is_away);
    let url = anvil
        .behind(move |_| match away.load(Ordering::SeqCst) {
            true => Way::Lost,
            false => Way::Open,
        })
        .await;
    let shop = Shop::open_unfollowed(world(), &receiver, &[&url], 1).await;
    let coin = pay(&anvil, &shop.address, 5).await;
    let token = pay_token(&anvil, USDT, &shop.address, 5).await;
    // The payment is in a block that is final long before the nodes answer.
    anvil.mine(30).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    is_away.store(false, Ordering::SeqCst);
    shop.until("both are final", async |_| receiver.events().len() >= 4)
        .await;
    let expected = [value(&coin), log(&token)].map(|of| (of, vec![confirmed(), finalized()]));
    assert_eq!(receiver.stages(), BTreeMap::from(expected));
}

/// A node that has no logs, whatever it is asked, and perhaps no receipts of whole blocks.
fn without_logs(has_receipts: bool) -> impl Fn(&Value) -> Way + Send + Sync + 'static {
    move |call| match call["method"].as_str() {
        Some("eth_getLogs") => Way::Answered(json!([])),
        Some("eth_getBlockReceipts") if !has_receipts => {
            Way::Refused("the method eth_getBlockReceipts does not exist")
        }
        _ => Way::Open,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs__should_not_be_believed_to_be_none_where_the_bloom_has_them() {
    for has_receipts in [true, false] {
        let (anvil, receiver) = (node().await, Receiver::start().await);
        let url = anvil.behind(without_logs(has_receipts)).await;
        let shop = Shop::open(&receiver, &[&url], 1).await;
        let token = pay_token(&anvil, USDT, &shop.address, 5).await;
        let coin = pay(&anvil, &shop.address, 5).await;
        anvil.mine(10).await;
        shop.until("both are final", async |_| receiver.events().len() >= 4)
            .await;
        let expected = [value(&coin), log(&token)].map(|of| (of, vec![confirmed(), finalized()]));
        assert_eq!(
            receiver.stages(),
            BTreeMap::from(expected),
            "{has_receipts}"
        );
    }
}

/// A method, and what is answered to it.
type Lie = (&'static str, Option<Value>);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lies_of_a_node__should_invent_nothing_and_lose_nothing_once_it_is_well() {
    let anvil = node().await;
    // `None`: it answers 502.
    let lie: Arc<Mutex<Option<Lie>>> = Arc::default();
    let told = Arc::clone(&lie);
    let is_lying = Arc::new(AtomicBool::new(false));
    let lied = Arc::clone(&is_lying);
    let url = anvil
        .behind(move |call| match &*told.lock().unwrap() {
            Some((method, answer)) if call["method"] == *method => {
                lied.store(true, Ordering::SeqCst);
                answer.clone().map_or(Way::Lost, Way::Answered)
            }
            _ => Way::Open,
        })
        .await;
    let receiver = Receiver::start().await;
    let shop = Shop::open(&receiver, &[&url], 1).await;
    let word = |text: &str| format!("0x{:0>64}", text.trim_start_matches("0x"));
    let mut expected = BTreeMap::new();
    let invented = json!([{
        "address": USDT, "topics": [format!("0x{TRANSFER}"), word(PAYER), word(&shop.address)],
        "data": word("0x64"), "blockHash": word("0xbad"), "blockNumber": "0x15",
        "transactionHash": word("0xbad"), "transactionIndex": "0x0", "logIndex": "0x0", "removed": false,
    }]);
    for (method, answer) in [
        // Another block's logs, and no word at all.
        ("eth_getLogs", Some(invented)),
        ("eth_getLogs", Some(Value::Null)),
        // A head that goes back, and one that is far ahead.
        ("eth_blockNumber", Some(json!("0x1"))),
        ("eth_blockNumber", Some(json!("0xffffff"))),
        // Receipts of nothing.
        ("eth_getTransactionReceipt", Some(Value::Null)),
        // It is broken, in parts.
        ("eth_getBlockByNumber", None),
        ("eth_getLogs", None),
    ] {
        is_lying.store(false, Ordering::SeqCst);
        *lie.lock().unwrap() = Some((method, answer));
        let coin = pay(&anvil, &shop.address, 5).await;
        let token = pay_token(&anvil, USDT, &shop.address, 5).await;
        anvil.mine(3).await;
        shop.until("it has lied", async |_| is_lying.load(Ordering::SeqCst))
            .await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        *lie.lock().unwrap() = None;
        anvil.mine(10).await;
        for of in [value(&coin), log(&token)] {
            expected.insert(of, vec![confirmed(), finalized()]);
        }
        let count = 2 * expected.len();
        shop.until("all are final", async |_| receiver.events().len() >= count)
            .await;
        assert_eq!(receiver.stages(), expected, "{method}");
    }
}

/// The lies of one node, while two others tell the truth and two have to agree: nothing is held up, either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lies_of_one_node_of_three__should_change_nothing() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let lie: Arc<Mutex<Option<Lie>>> = Arc::default();
    let told = Arc::clone(&lie);
    let lies = Arc::new(AtomicU64::new(0));
    let lied = Arc::clone(&lies);
    let liar = anvil
        .behind(move |call| match &*told.lock().unwrap() {
            Some((method, answer)) if call["method"] == *method => {
                lied.fetch_add(1, Ordering::SeqCst);
                answer.clone().map_or(Way::Lost, Way::Answered)
            }
            _ => Way::Open,
        })
        .await;
    let urls = [liar.as_str(), &anvil.url, &anvil.url];
    let shop = Shop::open(&receiver, &urls, 2).await;
    let mut expected = BTreeMap::new();
    // The last two by turns: another chain each time.
    let fork = |number: u64| {
        let hash = format!("0x{number:064x}");
        json!({"number": "0x15", "hash": hash, "parentHash": hash, "timestamp": "0x1", "transactions": []})
    };
    for (method, answer) in [
        ("eth_getLogs", Some(Value::Null)),
        ("eth_getLogs", Some(json!([]))),
        ("eth_blockNumber", Some(json!("0x1"))),
        ("eth_blockNumber", Some(json!("0xffffff"))),
        ("eth_getTransactionReceipt", Some(Value::Null)),
        ("eth_getBlockByNumber", None),
        ("eth_getBlockByNumber", Some(fork(1))),
        ("eth_getBlockByNumber", Some(fork(2))),
    ] {
        *lie.lock().unwrap() = Some((method, answer));
        let coin = pay(&anvil, &shop.address, 5).await;
        let token = pay_token(&anvil, USDT, &shop.address, 5).await;
        anvil.mine(10).await;
        for of in [value(&coin), log(&token)] {
            expected.insert(of, vec![confirmed(), finalized()]);
        }
        let count = 2 * expected.len();
        shop.until("all are final", async |_| receiver.events().len() >= count)
            .await;
        assert_eq!(receiver.stages(), expected, "{method}");
    }
    // A node that answers badly is asked less often.
    assert!(lies.load(Ordering::SeqCst) > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn liar_beside_an_honest_node__should_neither_hide_nor_invent_anything() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let word = |text: &str| format!("0x{:0>64}", text.trim_start_matches("0x"));
    let (calls, address) = (AtomicU64::new(0), Arc::new(Mutex::new(String::new())));
    let customer = Arc::clone(&address);
    // By turns it hides what there is, and has one more, in the very block that it is asked for.
    let lies = move |call: &Value| {
        let block = call["params"][0]["blockHash"].clone();
        if call["method"] != "eth_getLogs" || block.is_null() {
            return Way::Open;
        }
        let to = word(&customer.lock().unwrap());
        let invented = json!([{
            "address": USDT, "topics": [format!("0x{TRANSFER}"), word(PAYER), to],
            "data": word("0x64"), "blockHash": block, "blockNumber": "0x15",
            "transactionHash": word("0xbad"), "transactionIndex": "0x0", "logIndex": "0x0", "removed": false,
        }]);
        match calls.fetch_add(1, Ordering::SeqCst) % 2 {
            0 => Way::Answered(invented),
            _ => Way::Answered(json!([])),
        }
    };
    let liar = anvil.behind(lies).await;
    let urls = [liar.as_str(), &anvil.url, &anvil.url];
    let shop = Shop::open(&receiver, &urls, 2).await;
    address.lock().unwrap().clone_from(&shop.address);
    let mut expected = BTreeMap::new();
    for _ in 0..3 {
        let token = pay_token(&anvil, USDT, &shop.address, 5).await;
        anvil.mine(10).await;
        expected.insert(log(&token), vec![confirmed(), finalized()]);
        let count = 2 * expected.len();
        shop.until("it is final", async |_| receiver.events().len() >= count)
            .await;
    }
    assert_eq!(receiver.stages(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_stuck_node_of_three__should_stop_neither_blocks_nor_finality() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let first = anvil
        .call("eth_getBlockByNumber", json!(["0x0", false]))
        .await;
    let stuck = anvil
        .behind(move |call| match call["method"].as_str() {
            Some("eth_blockNumber") => Way::Answered(json!("0x0")),
            Some("eth_getBlockByNumber") if call["params"][0] == "finalized" => {
                Way::Answered(first.clone())
            }
            _ => Way::Open,
        })
        .await;
    let urls = [stuck.as_str(), &anvil.url, &anvil.url];
    let shop = Shop::open(&receiver, &urls, 2).await;
    let coin = pay(&anvil, &shop.address, 5).await;
    anvil.mine(10).await;
    shop.until("it is final", async |_| receiver.events().len() >= 2)
        .await;
    let expected = BTreeMap::from([(value(&coin), vec![confirmed(), finalized()])]);
    assert_eq!(receiver.stages(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_is_a_block_behind__should_be_waited_for_without_a_failure() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let newest = Arc::new(AtomicU64::new(20));
    let at = Arc::clone(&newest);
    let behind = anvil
        .behind(move |call| {
            let newest = at.load(Ordering::SeqCst);
            let asked = call["params"][0].as_str().unwrap_or_default();
            let asked = u64::from_str_radix(asked.trim_start_matches("0x"), 16);
            match call["method"].as_str() {
                Some("eth_blockNumber") => Way::Answered(json!(format!("{newest:#x}"))),
                Some("eth_getBlockByNumber") if asked.is_ok_and(|number| number > newest) => {
                    Way::Answered(Value::Null)
                }
                _ => Way::Open,
            }
        })
        .await;
    let shop = Shop::open(&receiver, &[&anvil.url, &behind], 2).await;
    shop.until("all is followed", async |shop| counts(shop).head == 20)
        .await;
    let before = counts(&shop).failures;
    let coin = pay(&anvil, &shop.address, 5).await;
    for number in 21..=30 {
        anvil.mine(1).await;
        tokio::time::sleep(Duration::from_millis(120)).await;
        assert_eq!(counts(&shop).head, number - 1);
        newest.store(number, Ordering::SeqCst);
        shop.until("the block is followed", async |shop| {
            counts(shop).head == number
        })
        .await;
    }
    assert_eq!(counts(&shop).failures, before);
    shop.until("it is final", async |_| receiver.events().len() >= 2)
        .await;
    let expected = BTreeMap::from([(value(&coin), vec![confirmed(), finalized()])]);
    assert_eq!(receiver.stages(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chain__should_be_followed_by_a_process_that_has_it_in_its_configuration() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let mut shared = world();
    shared.store = Arc::new(MemoryStore::shared());
    let mut shop = Shop::open_in(shared, &receiver, &[&anvil.url], 1).await;
    let mut others = Vec::new();
    let mut expected = BTreeMap::new();
    // Which of the processes would be preferred is chance.
    for _ in 0..4 {
        let store = Arc::clone(&shop.world.store);
        others.push(shop.world.start_with(store, ChainClients::default()).await);
        shop.gateway.leave().await;
        shop.gateway.stop().await;
        let store = Arc::clone(&shop.world.store);
        let chains = chains(&shop.world, &[&anvil.url], 1);
        shop.gateway = shop.world.start_with(store, chains).await;
        let coin = pay(&anvil, &shop.address, 5).await;
        expected.insert(value(&coin), vec![confirmed(), finalized()]);
        anvil.mine(10).await;
        let count = 2 * expected.len();
        shop.until("it is final", async |_| receiver.events().len() >= count)
            .await;
        let owned = BTreeMap::from([(FollowedChain::Evm(CHAIN), false)]);
        shop.until("all know that", async |_| {
            others.last().unwrap().unowned_chains().await.unwrap() == owned
        })
        .await;
    }
    assert_eq!(receiver.stages(), expected);
}
