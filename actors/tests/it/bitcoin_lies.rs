//! The Bitcoin client with a node that lies about what outputs are worth.

use std::sync::Arc;

use covault_actors::rpc::{ChainClient, ChainError, Endpoint};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::bitcoin_node::{Bitcoind, Wallet, connect};

/// Passes questions on to a node, and the answers back, with other amounts in what it lists.
/// Stops with the test's runtime.
async fn liar(node: &Bitcoind, truth: &'static str, lie: &'static str) -> Endpoint {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let honest = node.endpoint().url;
    tokio::spawn(async move {
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        while let Ok((mut stream, _)) = listener.accept().await {
            let (http, honest) = (http.clone(), honest.clone());
            tokio::spawn(async move {
                let (head, body) = read(&mut stream).await;
                let path = head.split(' ').nth(1).unwrap();
                let login = head
                    .lines()
                    .find_map(|line| line.split_once("authorization: "));
                let request = http.post(format!("{honest}{path}"));
                let request = request.header("authorization", login.unwrap().1);
                let answer = request.body(body.clone()).send().await.unwrap();
                let status = answer.status();
                let mut answer = answer.text().await.unwrap();
                if body.contains("listunspent") {
                    answer = answer.replace(truth, lie);
                }
                let head = format!(
                    "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                    answer.len()
                );
                let _ = stream.write_all((head + &answer).as_bytes()).await;
            });
        }
    });
    Endpoint {
        url,
        ..node.endpoint()
    }
}

/// Head and body of a request.
async fn read(stream: &mut TcpStream) -> (String, String) {
    let mut text = String::new();
    loop {
        let mut chunk = [0; 4096];
        let count = stream.read(&mut chunk).await.unwrap();
        text += std::str::from_utf8(&chunk[..count]).unwrap();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let mut lines = head.lines();
        let length = lines.find_map(|line| line.strip_prefix("content-length: "));
        if count == 0 || Some(body.len()) == length.and_then(|length| length.parse().ok()) {
            return (head.to_owned(), body.to_owned());
        }
    }
}

#[tokio::test]
async fn bitcoin_outputs__should_not_be_spent_when_a_node_lies_about_what_they_are_worth() {
    let folder = tempfile::tempdir().unwrap();
    let node = Bitcoind::rich(folder.path(), &[]).await;
    let wallet = Wallet::new(21);
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
        let client: Arc<dyn ChainClient> = connect(vec![liar(&node, truth, lie).await], 1);
        match client.facts(&wallet.needs(), 0).await {
            Err(ChainError::Unknown(reason)) => {
                assert!(reason.contains("check the node"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
        // Others outvote it.
        let nodes = vec![
            liar(&node, truth, lie).await,
            node.endpoint(),
            node.endpoint(),
        ];
        assert_eq!(wallet.values(&connect(nodes, 2)).await, [50_000, 60_000]);
    }
    let honest = liar(&node, "no such text", "").await;
    assert_eq!(
        wallet.values(&connect(vec![honest], 1)).await,
        [50_000, 60_000]
    );
}
