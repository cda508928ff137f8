//! Real pools of nodes, which can do less than is asked of them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use covault_actors::{
    chain_rpc::{ChainEndpoints, ChainKey, accepted_at},
    gateway::Caller,
    operations::{CreateSigningRequest, GetBalance},
};
use covault_core::{
    fault::FaultCode,
    ids::TokenId,
    networks::{FeeLevel, Network, Queries, evm},
    schema::wire::{self, signing_request::Status},
};
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};

use crate::{
    evm_node::{chains, connect_to},
    http_double::{self, HttpResponse},
    repeated_payments::failed,
    tracker::until,
    world::*,
};

/// What it says of a transfer.
fn answer(method: &str) -> Option<Value> {
    Some(match method {
        "eth_chainId" => json!(format!("{CHAIN:#x}")),
        "eth_getTransactionCount" => json!("0x0"),
        "eth_getBlockByNumber" => json!({"baseFeePerGas": "0x3b9aca00", "number": "0x64"}),
        "eth_maxPriorityFeePerGas" => json!("0x5f5e100"),
        "eth_estimateGas" => json!("0x5208"),
        "eth_getBalance" => json!("0x7"),
        "eth_call" => json!("0x"),
        "eth_sendRawTransaction" => json!("0x00"),
        "eth_getTransactionByHash" => json!({"blockNumber": null}),
        _ => return None,
    })
}

fn answers(request: &Value) -> Value {
    let one = |call: &Value| match answer(call["method"].as_str().unwrap()) {
        Some(result) => json!({"jsonrpc": "2.0", "id": call["id"], "result": result}),
        None => json!({"jsonrpc": "2.0", "id": call["id"],
            "error": {"code": -32601, "message": "method not found"}}),
    };
    match request {
        Value::Array(calls) => calls.iter().map(one).collect(),
        call => one(call),
    }
}

/// A node that works on so many calls at once, and takes this long for each; the others wait in it, and it works on those
/// too whose caller has gone. Gives its address.
async fn slow_node(places: usize, takes: Duration) -> String {
    let (listener, url) = http_double::listen().await;
    let places = Arc::new(Semaphore::new(places));
    http_double::serve(listener, move |request| {
        let places = Arc::clone(&places);
        async move {
            let work = tokio::spawn(async move {
                let _place = places.acquire().await.unwrap();
                sleep(takes).await;
            });
            work.await.unwrap();
            Some(HttpResponse::json(200, &answers(&request.json())))
        }
    });
    url
}

fn endpoints(urls: Vec<String>, timeout_ms: u64) -> ChainEndpoints {
    ChainEndpoints {
        timeout_ms,
        ..ChainEndpoints::new(urls)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_on_slow_nodes__should_be_refused_and_not_fail_later() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 10_000;
    // As usual; the nodes have enough to do.
    (
        world.settings.tracking_first_ms,
        world.settings.tracking_most_ms,
    ) = (2_000, 60_000);
    // Together about 20 transfers a second, of six calls each.
    let nodes = [(4, 50), (2, 50)].map(|(places, ms)| slow_node(places, Duration::from_millis(ms)));
    let endpoints = endpoints(join_all(nodes).await, 1_000);
    let chains = chains(ChainKey::evm(CHAIN), endpoints);
    let gateway = world.start_with(Arc::clone(&world.store), chains).await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let until = Instant::now() + Duration::from_secs(12);
    let clients = (0..32).map(|_| async {
        let (mut accepted, mut refused) = (Vec::new(), 0_usize);
        while Instant::now() < until {
            match try_create(&gateway, request(send(&address)), None).await {
                Ok((made, _)) => accepted.push(made.uuid),
                Err(fault) => {
                    assert!(matches!(fault.code(), FaultCode::Busy { .. }), "{fault:?}");
                    refused += 1;
                }
            }
            // 320 a second.
            sleep(Duration::from_millis(100)).await;
        }
        (accepted, refused)
    });
    let clients = join_all(clients).await;
    let refused: usize = clients.iter().map(|(_, refused)| refused).sum();
    let accepted: Vec<_> = clients
        .into_iter()
        .flat_map(|(accepted, _)| accepted)
        .collect();
    eprintln!("{} accepted, {refused} refused", accepted.len());
    assert!(refused > 0);
    let mut failed = Vec::new();
    for uuid in &accepted {
        failed.extend(outcome(&gateway, uuid).await.error);
    }
    assert!(
        failed.is_empty(),
        "{} of {} failed: {:?}",
        failed.len(),
        accepted.len(),
        failed.first()
    );
    // Nodes that do something are used.
    assert!(accepted.len() > 32, "{}", accepted.len());
}

/// A node that only says so, also when it is asked for its chain by all who wait: what was accepted waits until it answers,
/// however long that takes. What says something else ends it in its time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request__should_wait_on_while_its_nodes_say_that_they_have_too_much_to_do() {
    let limit = json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32005, "message": "limit"}});
    for (status, body, is_checked, is_load) in [
        (429, json!("slow down"), true, true),
        (429, json!("slow down"), false, true),
        (503, json!("try later"), true, true),
        (200, limit, true, true),
        (500, json!("something is wrong"), true, false),
    ] {
        let mut world = World::new();
        world.settings.signing_deadline_ms = 60_000;
        let (is_busy, refused) = (
            Arc::new(AtomicBool::new(true)),
            Arc::<AtomicUsize>::default(),
        );
        let (busy, counted) = (Arc::clone(&is_busy), Arc::clone(&refused));
        let (listener, url) = http_double::listen().await;
        http_double::serve(listener, move |request| {
            let call = request.json();
            let is_spared = is_checked && call["method"] == "eth_chainId";
            let is_refused = busy.load(Ordering::SeqCst) && !is_spared;
            counted.fetch_add(usize::from(is_refused), Ordering::SeqCst);
            let answer = match is_refused {
                true => HttpResponse::json(status, &body),
                false => HttpResponse::json(200, &answers(&call)),
            };
            async move { Some(answer) }
        });
        let chains = chains(ChainKey::evm(CHAIN), endpoints(vec![url], 60_000));
        let gateway = world.start_with(Arc::clone(&world.store), chains).await;
        let vault = vault(&gateway, "main").await;
        let mut all = Vec::new();
        for _ in 0..2 {
            let address = evm_wallet(&gateway, vault).await;
            all.push(create(&gateway, send(&address)).await.uuid);
        }
        let tried = async |more| {
            let seen = refused.load(Ordering::SeqCst) + more;
            until(async || refused.load(Ordering::SeqCst) >= seen).await;
        };
        tried(1).await;
        if !is_load {
            world.pass(120_000);
            for made in &all {
                let reason = failed(&gateway, made).await;
                let words = "no chain node answered in time";
                assert!(reason.starts_with(words), "{reason}");
            }
            continue;
        }
        for _ in 0..3 {
            world.pass(120_000);
            tried(3).await;
        }
        is_busy.store(false, Ordering::SeqCst);
        for made in &all {
            assert_eq!(outcome(&gateway, made).await.error, None, "{status}");
        }
    }
}

/// As a node answers at a time when one token has asked for much more than it can do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_on_a_slow_chain__should_leave_turns_for_other_tokens_and_for_balances() {
    const CROWD: usize = 300;
    let mut world = World::new();
    // None is refused, and none has waited for so long that it goes before others.
    world.settings.signing_deadline_ms = 600_000;
    (
        world.settings.tracking_first_ms,
        world.settings.tracking_most_ms,
    ) = (60_000, 60_000);
    // About 6 transfers a second.
    let node = slow_node(4, Duration::from_millis(100)).await;
    let chains = chains(ChainKey::evm(CHAIN), endpoints(vec![node], 60_000));
    let gateway = world.start_with(Arc::clone(&world.store), chains).await;
    let crowded = evm_wallet(&gateway, vault(&gateway, "crowded").await).await;
    let quiet = evm_wallet(&gateway, vault(&gateway, "quiet").await).await;
    let crowd = (0..CROWD).map(|_| create(&gateway, send(&crowded)));
    let crowd = join_all(crowd).await;
    let other = Caller {
        token: TokenId::from_bytes([3; 16]),
        ..admin()
    };
    let asked = wire::GetBalanceRequest {
        network_type: wire::NetworkType::Evm.into(),
        chain_id: Some(CHAIN.try_into().unwrap()),
        wallet_address: quiet.clone(),
        ..Default::default()
    };
    for _ in 0..3 {
        let balance = call::<GetBalance>(&gateway, &other, asked.clone()).await;
        assert_eq!(balance.unwrap().balance, "7");
    }
    let made = call::<CreateSigningRequest>(&gateway, &other, request(send(&quiet))).await;
    let made = made.unwrap().signing_request.unwrap();
    assert_eq!(outcome(&gateway, &made.uuid).await.error, None);
    let mut waiting = 0;
    for one in &crowd {
        let shown = details(&gateway, &one.uuid).await;
        waiting += usize::from(shown.status() == Status::Pending);
    }
    // In the order in which they came, it would be after all of them.
    assert!(waiting > CROWD / 10, "{waiting} of {CROWD} wait");
}

/// How many calls it has now, and how many it had at once at most.
#[derive(Default)]
struct AtOnce {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// Ends when the call does, or is given up.
struct OneOf(Arc<AtOnce>);

impl OneOf {
    fn new(counts: &Arc<AtOnce>) -> Self {
        let now = counts.now.fetch_add(1, Ordering::SeqCst) + 1;
        counts.most.fetch_max(now, Ordering::SeqCst);
        Self(Arc::clone(counts))
    }
}

impl Drop for OneOf {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_hangs_with_estimates__should_be_none_the_worse_for_other_calls() {
    let estimates = Arc::<AtOnce>::default();
    let counted = Arc::clone(&estimates);
    let (listener, url) = http_double::listen().await;
    http_double::serve(listener, move |request| {
        let counted = Arc::clone(&counted);
        async move {
            let call = request.json();
            if call["method"] == "eth_estimateGas" {
                let _one = OneOf::new(&counted);
                // A little longer than it is waited for.
                sleep(Duration::from_millis(2_200)).await;
                return None;
            }
            Some(HttpResponse::json(200, &answers(&call)))
        }
    });
    let client = connect_to(ChainKey::evm(CHAIN), endpoints(vec![url], 2_000));
    let queries = Queries::Evm(evm::Queries {
        chain_id: CHAIN,
        from: "0x00000000000000000000000000000000000000bb".into(),
        nonce: true,
        fees: Some(evm::EvmCall {
            to: Some("0x00000000000000000000000000000000000000aa".into()),
            value: "5".into(),
            data: Vec::new(),
        }),
        level: FeeLevel::default(),
    });
    let crowd = (0..200).map(|_| accepted_at(0, client.chain_data(&queries, 0)));
    let crowd = join_all(crowd);
    let others = async {
        sleep(Duration::from_millis(100)).await;
        for _ in 0..10 {
            let asked = client.balance("0x00000000000000000000000000000000000000bb", None);
            assert_eq!(asked.await.as_deref(), Ok("7"));
            sleep(Duration::from_millis(500)).await;
        }
    };
    // The crowd goes on for much longer.
    let crowd = timeout(Duration::from_secs(5), crowd);
    let (crowd, ()) = tokio::join!(crowd, others);
    assert!(crowd.is_err());
    // A quarter of 128; as many were given up, and the node does not know it yet.
    let most = estimates.most.load(Ordering::SeqCst);
    assert!((1..=96).contains(&most), "{most}");
    let health = client.health();
    assert_eq!((health[0].errors, health[0].failures), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_limits_its_callers__should_not_get_more_at_once_than_to_begin_with() {
    let calls = Arc::<AtOnce>::default();
    let counted = Arc::clone(&calls);
    let (listener, url) = http_double::listen().await;
    http_double::serve(listener, move |request| {
        let counted = Arc::clone(&counted);
        async move {
            let call = request.json();
            if call["method"] != "eth_getBalance" {
                return Some(HttpResponse::json(200, &answers(&call)));
            }
            let _one = OneOf::new(&counted);
            sleep(Duration::from_millis(20)).await;
            // With a status that says that all is well.
            let error = json!({"code": -32005, "message": "limit exceeded"});
            let answer = json!({"jsonrpc": "2.0", "id": call["id"], "error": error});
            Some(HttpResponse::json(200, &answer))
        }
    });
    let client = connect_to(ChainKey::evm(CHAIN), endpoints(vec![url], 60_000));
    let address = "0x00000000000000000000000000000000000000bb";
    let crowd = (0..300).map(|_| accepted_at(0, client.balance(address, None)));
    for asked in join_all(crowd).await {
        assert!(asked.is_err());
    }
    let most = calls.most.load(Ordering::SeqCst);
    assert!((1..=16).contains(&most), "{most}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_that_were_sent__should_be_asked_for_before_a_crowd_of_requests() {
    let world = World::new();
    let sighted = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&sighted);
    let (listener, url) = http_double::listen().await;
    http_double::serve(listener, move |request| {
        let calls = request.json();
        let is_sighting = |call: &Value| call["method"] == "eth_getTransactionByHash";
        if calls
            .as_array()
            .is_some_and(|calls| calls.iter().any(is_sighting))
        {
            counted.fetch_add(1, Ordering::SeqCst);
        }
        async move {
            sleep(Duration::from_millis(10)).await;
            Some(HttpResponse::json(200, &answers(&calls)))
        }
    });
    let chains = chains(ChainKey::evm(CHAIN), endpoints(vec![url], 2_000));
    let client = Arc::clone(chains.get(Network::Evm, Some(CHAIN)).unwrap());
    let gateway = world.start_with(Arc::clone(&world.store), chains).await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let made = create(&gateway, send(&address)).await;
    assert_eq!(outcome(&gateway, &made.uuid).await.error, None);
    // More than the node ever does at once, all of requests that were accepted long ago.
    let crowd = (0..512).map(|_| async {
        loop {
            let _ = accepted_at(1, client.balance(&address, None)).await;
        }
    });
    let followed = async {
        sleep(Duration::from_millis(500)).await;
        let before = sighted.load(Ordering::SeqCst);
        while sighted.load(Ordering::SeqCst) < before + 3 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        _ = join_all(crowd) => {}
        followed = timeout(Duration::from_secs(30), followed) => assert!(followed.is_ok()),
    }
}
