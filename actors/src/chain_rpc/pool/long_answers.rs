//! Long answers, which are read one after the other.

use covault_core::testing::{ManualClock, SystemEntropy};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::*;
use crate::chain_rpc::answers::{AnswerBody, SHORT};

/// A node whose answers about blocks are long. Gives its address.
async fn node() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = vec![0; 4_096];
                let read = stream.read(&mut request).await.unwrap();
                let is_of_blocks = request[..read].starts_with(b"GET /blocks");
                let body = vec![b' '; if is_of_blocks { 2 * SHORT } else { 2 }];
                let head = format!(
                    "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                stream.write_all(head.as_bytes()).await.unwrap();
                // Who waits for others may never read it.
                let _ = stream.write_all(&body).await;
            });
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_that_wait_for_each_other__should_keep_no_places_from_requests() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let ports = PoolPorts {
        clock: Arc::new(ManualClock::default()),
        entropy: Arc::new(SystemEntropy),
        calls_per_node: 128,
    };
    let endpoints = ChainEndpoints {
        timeout_ms: 600_000,
        ..ChainEndpoints::new(vec![node().await])
    };
    let pool = NodePool::new(ChainKey::evm(1), &endpoints, ports).unwrap();
    let node = Arc::clone(&pool.nodes[0]);
    // Another chain's node is slow with a long answer.
    let mut other = AnswerBody::default();
    other.make_room(SHORT + 1).await;
    let call = |node: Arc<PoolNode>, call: NodeRequest| async move {
        let mut taken = |_: &NodeResponse| ParsedResponse::Value(());
        let answer = node.exchange(None, &call, &mut taken).await;
        matches!(answer, Ok(ParsedResponse::Value(())))
    };
    // As many as it is asked at once.
    let blocks = (0..16).map(|_| {
        let blocks = NodeRequest::get("/blocks", &[]).of_blocks();
        tokio::spawn(call(Arc::clone(&node), blocks))
    });
    let blocks: Vec<_> = blocks.collect();
    for _ in 0..32 {
        let asked = call(Arc::clone(&node), NodeRequest::get("/number", &[]));
        let answered = tokio::time::timeout(Duration::from_secs(120), asked).await;
        assert_eq!(answered, Ok(true));
    }
    drop(other);
    for one in blocks {
        assert!(one.await.unwrap(), "they are read in the end");
    }
}
