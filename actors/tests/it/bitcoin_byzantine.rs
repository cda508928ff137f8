//! The Bitcoin client with a node that lies about what outputs are worth.

use std::sync::Arc;

use covault_actors::chain_rpc::{ChainClient, ChainError, NodeEndpoint};

use crate::{
    bitcoin_node::{Bitcoind, TestWallet, connect},
    http_double::{self, HttpResponse},
};

/// Passes questions on to a node, and the answers back, with other amounts in what it lists.
/// Stops with the test's runtime.
async fn lying_node(node: &Bitcoind, truth: &'static str, lie: &'static str) -> NodeEndpoint {
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
            if String::from_utf8_lossy(&request.body).contains("listunspent") {
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
