//! The Bitcoin client with a node that lies about what outputs are worth, or what blocks want, and with one that can tell.

use std::sync::Arc;

use covault_actors::chain_rpc::{
    ChainClient, ChainClients, ChainEndpoints, ChainError, ChainKey, NodeEndpoint,
};
use covault_core::networks::{ChainData, FeeLevel, Network, Payload, bitcoin};
use serde_json::{Value, json};

use crate::{
    bitcoin_node::{Bitcoind, TestWallet, connect},
    coin_control::names,
    http_double::{self, HttpResponse},
    world::*,
};

/// Passes questions on to a node, and the answers back, with other amounts in what it lists.
async fn lying_node(node: &Bitcoind, truth: &'static str, lie: &'static str) -> NodeEndpoint {
    lying_about(node, "listunspent", truth, lie).await
}

/// Passes questions on to a node, and the answers back, with a lie where this is asked.
/// Stops with the test's runtime.
async fn lying_about(
    node: &Bitcoind,
    method: &'static str,
    truth: &'static str,
    lie: &'static str,
) -> NodeEndpoint {
    let (listener, url) = http_double::listen().await;
    let honest = node.endpoint().url;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    http_double::serve(listener, move |request| {
        let asked = http
            .post(format!("{honest}{}", request.target()))
            .header("authorization", request.header("authorization").unwrap())
            .body(request.body.clone());
        async move {
            let answer = asked.send().await.unwrap();
            let status = answer.status().as_u16();
            let mut body = answer.text().await.unwrap();
            if String::from_utf8_lossy(&request.body).contains(method) {
                body = body.replace(truth, lie);
            }
            Some(HttpResponse {
                status,
                headers: vec![],
                body: body.into_bytes(),
            })
        }
    });
    NodeEndpoint {
        url,
        ..node.endpoint()
    }
}

#[tokio::test]
async fn bitcoin_outputs__should_not_be_spent_when_a_node_lies_about_what_they_are_worth() {
    let folder = tempfile::tempdir().unwrap();
    let node = Bitcoind::rich(folder.path(), &[]).await;
    let wallet = TestWallet::new(21);
    for satoshi in [50_000, 60_000] {
        node.pay(&wallet.address, satoshi).await;
    }
    node.mine(1).await;
    // In one try one of them is called poorer, in the next the other: that is CVE-2020-14199.
    for (truth, lie) in [
        (r#""amount":0.00060000"#, r#""amount":0.00010000"#),
        (r#""amount":0.00050000"#, r#""amount":0.00010000"#),
        (r#""amount":0.00050000"#, r#""amount":0.00050001"#),
    ] {
        let client: Arc<dyn ChainClient> = connect(vec![lying_node(&node, truth, lie).await], 1);
        match client.chain_data(&wallet.queries(), 0).await {
            Err(ChainError::Unknown(reason)) => {
                assert!(reason.contains("check the node"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
        // Others outvote it.
        let nodes = vec![
            lying_node(&node, truth, lie).await,
            node.endpoint(),
            node.endpoint(),
        ];
        assert_eq!(wallet.values(&connect(nodes, 2)).await, [50_000, 60_000]);
    }
    let honest = lying_node(&node, "no such text", "").await;
    assert_eq!(
        wallet.values(&connect(vec![honest], 1)).await,
        [50_000, 60_000]
    );
}

#[tokio::test]
async fn a_price_on_bitcoin__should_be_believed_up_to_a_ceiling_also_that_of_a_child() {
    let folder = tempfile::tempdir().unwrap();
    let node = Bitcoind::rich(folder.path(), &[]).await;
    let wallet = TestWallet::new(22);
    node.pay(&wallet.address, 1_000_000).await;
    node.mine(1).await;
    wallet.outputs(&node.client()).await;
    // Another wallet's payment, in no block.
    let incoming = node.pay(&wallet.address, 1_000_000).await;
    let inputs = node.outputs_of(&incoming, &wallet.address).await;
    let unknown = r#""errors":["Insufficient data or no feerate found"]"#;
    for (method, truth, lie, inputs, is_believed) in [
        ("estimatesmartfee", "", "", &[][..], true),
        (
            "estimatesmartfee",
            unknown,
            r#""feerate":0.02000000"#,
            &[],
            true,
        ),
        (
            "estimatesmartfee",
            unknown,
            r#""feerate":0.02000001"#,
            &[],
            false,
        ),
        (
            "estimatesmartfee",
            unknown,
            r#""feerate":1.00000000"#,
            &[],
            false,
        ),
        ("getmempoolentry", "", "", &inputs, true),
        // Its parent is large, and pays nothing.
        (
            "getmempoolentry",
            r#""vsize":"#,
            r#""vsize":1000"#,
            &inputs,
            false,
        ),
    ] {
        let liar = match truth {
            "" => node.endpoint(),
            truth => lying_about(&node, method, truth, lie).await,
        };
        let chain = ChainKey::of(Network::Bitcoin, None);
        let endpoints = ChainEndpoints {
            nodes: vec![liar],
            ..ChainEndpoints::new(Vec::new())
        };
        let ports = World::new().ports();
        let chains = ChainClients::connect(&[(chain, endpoints)].into(), &ports).unwrap();
        let client = chains.get(Network::Bitcoin, None).unwrap();
        let payload = Payload::parse(&names(&wallet.address, 10_000, inputs, None)).unwrap();
        let queries = Network::Bitcoin.rules().queries(&payload);
        let chain_data = client.chain_data(&queries, 0).await.unwrap();
        let problem = chains.price_problem(Network::Bitcoin, &payload, &chain_data);
        assert_eq!(problem.is_none(), is_believed, "{lie}: {problem:?}");
        if let Some(problem) = problem {
            assert!(problem.contains("chains.bitcoin.most_price"), "{problem}");
            assert!(problem.contains("sat/vB"), "{problem}");
        }
        if method == "estimatesmartfee" {
            let estimates = client.fee_estimates().await.unwrap();
            let problem = chains.estimate_problem(chain, &estimates);
            assert_eq!(problem.is_none(), is_believed, "{lie}: {problem:?}");
        }
    }
}

/// A node that has seen enough blocks to estimate: these rates, in BTC per 1,000 virtual bytes, for 24, 6 and 2 of them.
async fn estimating(node: &Bitcoind, rates: [f64; 3]) -> NodeEndpoint {
    let (listener, url) = http_double::listen().await;
    let honest = node.endpoint().url;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    http_double::serve(listener, move |request| {
        let asked = http
            .post(format!("{honest}{}", request.target()))
            .header("authorization", request.header("authorization").unwrap())
            .body(request.body.clone());
        async move {
            let answer = asked.send().await.unwrap().bytes().await.unwrap();
            let mut said: Value = serde_json::from_slice(&answer).unwrap();
            let rate = |call: &Value| {
                let mut blocks = [24, 6, 2].iter();
                let level = blocks.position(|blocks| call["params"][0] == *blocks)?;
                (call["method"] == "estimatesmartfee").then(|| rates[level])
            };
            for call in request.json().as_array().into_iter().flatten() {
                if let Some(rate) = rate(call) {
                    let mut answers = said.as_array_mut().unwrap().iter_mut();
                    let answer = answers.find(|one| one["id"] == call["id"]);
                    answer.unwrap()["result"] = json!({"feerate": rate});
                }
            }
            Some(HttpResponse::json(200, &said))
        }
    });
    NodeEndpoint {
        url,
        ..node.endpoint()
    }
}

#[tokio::test]
async fn bitcoin_prices__should_be_of_their_level() {
    let folder = tempfile::tempdir().unwrap();
    let node = Bitcoind::rich(folder.path(), &[]).await;
    let wallet = TestWallet::new(23);
    for (rates, expected) in [
        ([0.00003, 0.00007, 0.0002], [3, 7, 20]),
        // In order, whatever the node says, and no less than its mempool takes.
        ([0.00007, 0.00003, 0.00000001], [7, 7, 7]),
    ] {
        let client = connect(vec![estimating(&node, rates).await], 1);
        let estimates = client.fee_estimates().await.unwrap();
        let told = estimates.map(|one| (one.price, one.transfer_fee));
        assert_eq!(told, expected.map(|rate| (rate, 141 * rate)));
        for level in FeeLevel::ALL {
            let queries = bitcoin::Queries {
                from: wallet.address.clone(),
                inputs: Vec::new(),
                fee_level: Some(level),
            };
            let found = match client.chain_data(&queries.into(), 0).await.unwrap() {
                ChainData::Bitcoin(found) => found.fee_rate.map(u128::from),
                other => panic!("{other:?}"),
            };
            assert_eq!(found, Some(1_000 * level.of(expected)), "{level:?}");
        }
    }
}
