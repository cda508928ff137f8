//! The nodes of a chain as one: failover, health, agreement, keys that are not shown.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use covault_actors::chain_rpc::{
    BroadcastOutcome, BroadcastRequest, CallError, ChainClient, ChainClients, ChainEndpoints,
    ChainError, ChainKey, Client, JsonRpc, NodeAuth, NodeEndpoint, NodePool, NodeRequest,
    NodeRequestBody, NodeResponse, Rest, RpcCall,
};
use covault_core::networks::{ChainData, FeeLevel, Network, Queries, Signed, evm};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    evm_node::nobody,
    http_double::{self, HttpResponse},
    world::*,
};

/// Heads and bodies of requests, as they came.
type RecordedRequests = Arc<Mutex<Vec<(String, String)>>>;

/// An HTTP server that answers what a closure says of head and body.
struct TestServer {
    url: String,
    seen: RecordedRequests,
}

impl TestServer {
    async fn start(reply: impl Fn(&str, &str) -> (u16, String) + Send + Sync + 'static) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let seen = RecordedRequests::default();
        let all = Arc::clone(&seen);
        let url = http_double::start(move |request| {
            let body = String::from_utf8_lossy(&request.body).into_owned();
            let (status, answer) = reply(&request.head, &body);
            all.lock().unwrap().push((request.head.clone(), body));
            Some(HttpResponse {
                status,
                headers: vec![("location", "/elsewhere".into())],
                body: answer.into_bytes(),
            })
        })
        .await;
        Self { url, seen }
    }

    /// Answers JSON-RPC calls with results by method.
    async fn json_rpc(result: impl Fn(&str) -> Value + Send + Sync + 'static) -> Self {
        Self::start(move |_, body| {
            let call: Value = serde_json::from_str(body).unwrap();
            let result = result(call["method"].as_str().unwrap());
            let answer = json!({"jsonrpc": "2.0", "id": call["id"], "result": result});
            (200, answer.to_string())
        })
        .await
    }

    fn calls(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

fn endpoints(urls: &[&str], agree: usize) -> ChainEndpoints {
    ChainEndpoints {
        agree,
        timeout_ms: 2_000,
        ..ChainEndpoints::new(urls.iter().map(|url| (*url).to_owned()).collect())
    }
}

fn pool(endpoints: &ChainEndpoints) -> NodePool {
    let chain = ChainKey::of(Network::Bitcoin, None);
    NodePool::new(chain, endpoints, World::new().ports()).unwrap()
}

fn client(chain: ChainKey, endpoints: ChainEndpoints) -> Arc<dyn ChainClient> {
    let chains =
        ChainClients::connect(&[(chain, endpoints)].into(), &World::new().ports()).unwrap();
    Arc::clone(chains.get(chain.network, chain.chain_id).unwrap())
}

/// A node of the EVM chain of the tests at which the account has sent so many transactions.
async fn evm_node(count: &'static str, base_fee: &'static str) -> TestServer {
    TestServer::json_rpc(move |method| match method {
        "eth_chainId" => json!(format!("{CHAIN:#x}")),
        "eth_getTransactionCount" => json!(count),
        "eth_getBlockByNumber" => json!({"baseFeePerGas": base_fee}),
        "eth_getBalance" => json!("0x10"),
        other => panic!("{other}"),
    })
    .await
}

fn nonce_wanted() -> Queries {
    Queries::Evm(evm::Queries {
        chain_id: CHAIN,
        from: "0x00000000000000000000000000000000000000aa".into(),
        nonce: true,
        fees: None,
        level: FeeLevel::Normal,
    })
}

async fn nonce(urls: &[&str], agree: usize) -> (Result<u64, ChainError>, Vec<u64>) {
    let client = client(ChainKey::evm(CHAIN), endpoints(urls, agree));
    let nonce = match client.chain_data(&nonce_wanted(), 0).await {
        Ok(ChainData::Evm(chain_data)) => Ok(chain_data.nonce.unwrap()),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error),
    };
    let health = client.health();
    (nonce, health.iter().map(|node| node.dissents).collect())
}

#[tokio::test]
async fn nodes__should_have_to_agree_where_configuration_wants_it() {
    let gwei = "0x3b9aca00";
    let (four, also_four) = (evm_node("0x4", gwei).await, evm_node("0x4", gwei).await);
    let five = evm_node("0x5", gwei).await;
    let dead = nobody().await;
    let (four, also, five) = (&*four.url, &*also_four.url, &*five.url);
    assert_eq!(nonce(&[five, four], 1).await.0, Ok(5), "one is believed");
    assert_eq!(nonce(&[four, also, five], 2).await, (Ok(4), vec![0; 3]));
    // Outvoted, wherever it stands.
    assert_eq!(nonce(&[five, four, also], 2).await, (Ok(4), vec![1, 0, 0]));
    let refused = |found: Result<u64, ChainError>, words: &str| match found {
        Err(ChainError::Unknown(reason)) => {
            assert!(reason.contains(words), "{reason}");
            assert!(reason.starts_with("EVM chain 31337: "), "{reason}");
            assert!(!reason.contains("127.0.0.1"), "{reason}");
        }
        other => panic!("{other:?}"),
    };
    let disagree = "disagree about eth_getTransactionCount";
    refused(nonce(&[four, five], 2).await.0, disagree);
    refused(nonce(&[four, five, also], 3).await.0, disagree);
    refused(
        nonce(&[four, &dead], 2).await.0,
        "1 of the 2 nodes that have to agree",
    );
    assert_eq!(nonce(&[four, &dead, also], 2).await.0, Ok(4));
}

#[tokio::test]
async fn prices__should_agree_when_they_are_near() {
    let one = evm_node("0x4", "0x3b9aca00").await;
    let near = evm_node("0x4", "0x4b9aca00").await;
    let absurd = evm_node("0x4", "0xde0b6b3a7640000").await;
    assert_eq!(nonce(&[&one.url, &near.url], 2).await.0, Ok(4));
    match nonce(&[&one.url, &absurd.url], 2).await.0 {
        Err(ChainError::Unknown(reason)) => {
            assert!(reason.contains("eth_getBlockByNumber"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn pool__should_be_refused_when_more_have_to_agree_than_there_are() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    for (urls, agree, setting) in [
        (vec!["http://a"], 2, "chains.evm.31337.agree: "),
        (vec!["http://a"], 0, "chains.evm.31337.agree: "),
        (vec![], 1, "chains.evm.31337.rpc: "),
    ] {
        let endpoints = endpoints(&urls, agree);
        let fault = NodePool::new(ChainKey::evm(CHAIN), &endpoints, World::new().ports());
        let fault = fault.err().unwrap();
        assert!(fault.message().starts_with(setting), "{fault}");
    }
}

#[tokio::test]
async fn a_node_that_fails__should_be_asked_last_and_counted() {
    let bad = TestServer::start(|_, _| (503, "busy".into())).await;
    let good = TestServer::start(|_, _| (200, r#"{"result": 7}"#.into())).await;
    let pool = pool(&endpoints(&[&bad.url, &good.url], 1));
    let rpc = Client::new(pool, JsonRpc::default());
    for _ in 0..3 {
        let call = RpcCall("getblockcount", json!([]));
        assert_eq!(rpc.ask(call).await, Ok(json!(7)));
    }
    assert_eq!((bad.calls(), good.calls()), (1, 3));
    let health = rpc.health();
    assert_eq!(
        health
            .iter()
            .map(|node| (node.node, node.failures, node.answers, node.errors))
            .collect::<Vec<_>>(),
        [(1, 1, 0, 1), (2, 0, 3, 0)]
    );
    assert_eq!(health[0].chain, "Bitcoin");
    assert!(
        good.seen.lock().unwrap()[0]
            .1
            .contains(r#""jsonrpc":"2.0""#)
    );
    // As the only node it is asked anyway: twice for one query and once for sending.
    let alone = Client::new(self::pool(&endpoints(&[&bad.url], 1)), JsonRpc::default());
    assert!(
        alone
            .ask(RpcCall("getblockcount", json!([])))
            .await
            .is_err()
    );
    assert_eq!(bad.calls(), 3);
    assert!(
        alone
            .submit(RpcCall("sendraw", json!([])), |_| None)
            .await
            .0
            .is_err()
    );
    assert_eq!(bad.calls(), 4);
}

/// A node that says nothing while it `hangs`. Counts its calls, and how many it had at once at most.
struct HangingNode {
    url: String,
    hangs: Arc<AtomicBool>,
    calls: Arc<AtomicUsize>,
    at_once: Arc<AtomicUsize>,
}

impl HangingNode {
    async fn start() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (listener, url) = http_double::listen().await;
        let hangs = Arc::new(AtomicBool::new(true));
        let (calls, at_once) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let node = Self {
            url,
            hangs: Arc::clone(&hangs),
            calls: Arc::clone(&calls),
            at_once: Arc::clone(&at_once),
        };
        let now = Arc::<AtomicUsize>::default();
        http_double::serve(listener, move |_| {
            calls.fetch_add(1, Ordering::SeqCst);
            let (hangs, now) = (Arc::clone(&hangs), Arc::clone(&now));
            at_once.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            async move {
                // Less long than the pool waits, so that it is over when the next call comes.
                for _ in 0..8 {
                    if !hangs.load(Ordering::SeqCst) {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                now.fetch_sub(1, Ordering::SeqCst);
                let answered = !hangs.load(Ordering::SeqCst);
                answered.then(|| HttpResponse::json(200, &json!({"result": 7})))
            }
        });
        node
    }

    fn calls(&self) -> usize {
        self.calls.swap(0, Ordering::SeqCst)
    }
}

fn impatient(urls: &[&str]) -> ChainEndpoints {
    ChainEndpoints {
        timeout_ms: 500,
        ..endpoints(urls, 1)
    }
}

/// Puts so many questions at the same time. Returns how many were answered, and in which time.
async fn ask_at_once(rpc: &Client<JsonRpc>, count: usize) -> (usize, Duration) {
    let begun = Instant::now();
    let asked = (0..count).map(|_| rpc.ask(RpcCall("getblockcount", json!([]))));
    let answers = futures::future::join_all(asked).await;
    (
        answers.iter().filter(|it| it.is_ok()).count(),
        begun.elapsed(),
    )
}

#[tokio::test]
async fn a_node_that_hangs__should_be_asked_for_its_chain_once_for_all_who_wait() {
    let hanging = HangingNode::start().await;
    let good = TestServer::json_rpc(|_| json!(7)).await;
    let rpc = Client::new(
        pool(&impatient(&[&hanging.url, &good.url])),
        JsonRpc::default(),
    );
    let rpc = rpc.checked(RpcCall("getblockhash", json!([0])), |_| Ok(None));
    let (answered, time) = ask_at_once(&rpc, 40).await;
    assert_eq!((answered, hanging.calls()), (40, 1));
    // One after the other they would wait for 40 times half a second.
    assert!(time < Duration::from_secs(5), "{time:?}");
    let health = rpc.health();
    assert_eq!((health[0].errors, health[1].answers), (1, 40));
}

#[tokio::test]
async fn a_node_that_hangs__should_get_few_calls_and_nobody_waits_for_it() {
    let hanging = HangingNode::start().await;
    let rpc = Client::new(pool(&impatient(&[&hanging.url])), JsonRpc::default());
    assert_eq!(ask_at_once(&rpc, 1_000).await.0, 0);
    let most = hanging.at_once.load(Ordering::SeqCst);
    // The node sees a moment later that a call was given up, and the next one has its place by then.
    assert!(most <= 2 * 128, "{most} at once");
    // From now on one call at a time tries it.
    hanging.calls();
    let has_ended = AtomicBool::new(false);
    let tried = async {
        let answer = rpc.ask(RpcCall("getblockcount", json!([]))).await;
        has_ended.store(true, Ordering::SeqCst);
        answer
    };
    let others = async {
        while hanging.calls.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        let mut refused = 0;
        while refused < 50 && !has_ended.load(Ordering::SeqCst) {
            let (answer, lost) = rpc.submit(RpcCall("sendraw", json!([])), |_| None).await;
            assert!(answer.is_err() && !lost);
            refused += usize::from(!has_ended.load(Ordering::SeqCst));
        }
        refused
    };
    let (answer, refused) = tokio::join!(tried, others);
    assert!(answer.is_err());
    // Nobody else waits until the node's time is over.
    assert!(refused > 0);
    assert!(hanging.calls() <= 2);
    hanging.hangs.store(false, Ordering::SeqCst);
    assert_eq!(ask_at_once(&rpc, 1).await.0, 1);
    // As many as there are places for at once: others would wait, and a busy machine has no time for that.
    assert_eq!(ask_at_once(&rpc, 128).await.0, 128);
}

#[tokio::test]
async fn keys__should_be_shown_to_the_node_and_to_nobody_else() {
    let server = TestServer::start(|_, _| (401, "who are you".into())).await;
    let node = |access, path: &str| NodeEndpoint {
        url: format!("{}{path}", server.url),
        access,
    };
    let endpoints = ChainEndpoints {
        nodes: vec![
            node(
                NodeAuth::Header {
                    name: "X-API-Key".into(),
                    value: "top-secret".into(),
                },
                "/v2?key=top-secret",
            ),
            node(NodeAuth::Login("user:top-secret".into()), ""),
        ],
        ..ChainEndpoints::new(vec![])
    };
    let rest = Client::new(pool(&endpoints), Rest::default());
    let call = NodeRequest::get("/getMasterchainInfo", &[("a", "b")]);
    let error = format!("{:?}", rest.ask(call).await.unwrap_err());
    assert!(error.contains("HTTP 401"), "{error}");
    assert!(!error.contains("secret"), "{error}");
    let seen = server.seen.lock().unwrap();
    let first = &seen[0].0;
    assert!(
        first.starts_with("GET /v2/getMasterchainInfo?key=top-secret&a=b "),
        "{first}"
    );
    assert!(first.contains("x-api-key: top-secret"), "{first}");
    let second = &seen[1].0;
    assert!(
        second.contains("authorization: Basic dXNlcjp0b3Atc2VjcmV0"),
        "{second}"
    );
}

#[tokio::test]
async fn rest__should_take_a_status_for_an_answer_and_follow_nobody() {
    let server = TestServer::start(|head, body| match head.split(' ').nth(1) {
        Some("/missing") => (404, r#"{"error_code": "account_not_found"}"#.into()),
        Some("/moved") => (307, "over there".into()),
        Some("/long") => (200, "x".repeat(9 << 20)),
        _ => (200, format!("\"{body}\"")),
    })
    .await;
    let rest = Client::new(pool(&endpoints(&[&server.url], 1)), Rest::default());
    let missing = rest.ask(NodeRequest::get("/missing", &[])).await.unwrap();
    assert_eq!((missing.status, missing.is_success()), (404, false));
    assert_eq!(
        missing.json::<Value>().unwrap()["error_code"],
        "account_not_found"
    );
    assert_eq!(
        rest.ask(NodeRequest::get("/moved", &[]))
            .await
            .unwrap()
            .status,
        307
    );
    let long = rest.ask(NodeRequest::get("/long", &[])).await.unwrap_err();
    assert_eq!(
        long,
        CallError::TooLong("Bitcoin: the node's answer is too long".into())
    );
    let bytes = NodeRequest::post(
        "/submit",
        NodeRequestBody::Bytes("application/octet-stream", b"ab".into()),
    );
    let (answer, doubt) = rest.submit(bytes, |_| None).await;
    assert_eq!((answer.unwrap().words().as_str(), doubt), ("\"ab\"", false));
    let seen = server.seen.lock().unwrap();
    let (head, _) = seen.last().unwrap();
    assert!(head.contains("content-type: application/octet-stream"));
}

#[tokio::test]
async fn rest__should_use_nodes_of_its_chain_only() {
    let answer = |id: u64| move |_: &str, _: &str| (200, json!({"chain_id": id}).to_string());
    let wrong = TestServer::start(answer(2)).await;
    let right = TestServer::start(answer(1)).await;
    let check = |answer: &NodeResponse| match answer
        .json::<Value>()
        .and_then(|it| it["chain_id"].as_u64())
    {
        Some(1) => Ok(None),
        Some(id) => Ok(Some(format!("the node is on chain {id}"))),
        None => Err("the node named no chain".into()),
    };
    let rest = Client::new(
        pool(&endpoints(&[&wrong.url, &right.url], 1)),
        Rest::default(),
    );
    let rest = rest.checked(NodeRequest::get("/", &[]), check);
    assert!(rest.ask(NodeRequest::get("/accounts", &[])).await.is_ok());
    assert!(
        rest.any(NodeRequest::get("/accounts", &[]), |_| Ok(true))
            .await
            .unwrap()
    );
    let heads = wrong.seen.lock().unwrap().clone();
    assert!(heads.iter().all(|(head, _)| head.starts_with("GET / ")));
    let rest = Client::new(pool(&endpoints(&[&wrong.url], 1)), Rest::default());
    let rest = rest.checked(NodeRequest::get("/", &[]), check);
    match rest.ask(NodeRequest::get("/accounts", &[])).await {
        Err(CallError::WrongChain(reason)) => assert_eq!(reason, "the node is on chain 2"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn solana__should_add_up_what_the_accounts_of_an_owner_hold() {
    let account = |amount: &str| {
        let info = json!({"tokenAmount": {"amount": amount, "decimals": 6}});
        json!({"pubkey": "p", "account": {"data": {"parsed": {"info": info}}}})
    };
    let node = TestServer::json_rpc(move |method| match method {
        "getBalance" => json!({"context": {"slot": 1}, "value": 18_446_744_073_709_551_615u64}),
        "getTokenAccountsByOwner" => json!({
            "context": {"slot": 1},
            "value": [account("18446744073709551615"), account("2")]
        }),
        other => panic!("{other}"),
    })
    .await;
    let client = client(ChainKey::SOLANA, endpoints(&[&node.url], 1));
    let owner = "11111111111111111111111111111111";
    let mint = "So11111111111111111111111111111111111111112";
    assert_eq!(
        client.balance(owner, None).await.unwrap(),
        "18446744073709551615"
    );
    assert_eq!(
        client.balance(owner, Some(mint)).await.unwrap(),
        "18446744073709551617"
    );
    let seen = node.seen.lock().unwrap();
    let call: Value = serde_json::from_str(&seen[1].1).unwrap();
    assert_eq!(call["params"][0], owner);
    assert_eq!(call["params"][1], json!({"mint": mint}));
}

#[tokio::test]
async fn solana__should_say_the_decimals_of_a_mint() {
    let client_of = async |decimals: u64| {
        let node = TestServer::json_rpc(move |method| match method {
            "getTokenSupply" => json!({
                "context": {"slot": 1},
                "value": {"amount": "100000", "decimals": decimals, "uiAmountString": "1"},
            }),
            other => panic!("{other}"),
        });
        let node = node.await;
        (client(ChainKey::SOLANA, endpoints(&[&node.url], 1)), node)
    };
    let mint = "So11111111111111111111111111111111111111112";
    let (client, node) = client_of(6).await;
    let facts = client
        .token_facts(mint)
        .await
        .unwrap()
        .expect("it is asked");
    assert_eq!((facts.decimals, facts.symbol.as_str()), (6, ""));
    let seen = node.seen.lock().unwrap()[0].1.clone();
    let call: Value = serde_json::from_str(&seen).unwrap();
    assert_eq!(call["params"][0], mint);
    // More than any amount has digits.
    let (client, _node) = client_of(78).await;
    assert!(client.token_facts(mint).await.is_err());
}

#[tokio::test]
async fn solana__should_say_when_there_is_no_such_token() {
    let answer = r#"{"error": {"code": -32602, "message": "Invalid param: could not find mint"}}"#;
    let node = TestServer::start(move |_, _| (200, answer.into())).await;
    let client = client(ChainKey::SONIC, endpoints(&[&node.url], 1));
    match client.balance("a", Some("b")).await {
        Err(ChainError::Refused(refusal)) => {
            assert_eq!(refusal.reason, "is not a token of Sonic SVM");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn sending__should_say_when_a_node_may_have_it() {
    let lost = TestServer::start(|_, body| {
        // What is asked before anything is sent.
        match body.contains("getAccountInfo") {
            true => (200, json!({"error": {"code": -32601}}).to_string()),
            false => (502, String::new()),
        }
    })
    .await;
    let refusing = TestServer::start(|_, body| {
        let call: Value = serde_json::from_str(body).unwrap();
        let answer = match call["method"].as_str().unwrap() {
            "sendTransaction" => {
                json!({"error": {"code": -32002, "message": "Insufficient funds for fee"}})
            }
            _ => json!({"result": {"value": [null]}}),
        };
        (200, answer.to_string())
    })
    .await;
    let broadcast_request = BroadcastRequest {
        signed: Signed {
            transaction: "AQ==".into(),
            tx_hash: "hash".into(),
        },
        chain_data: ChainData::Nothing,
        age_ms: 0,
        now_ms: 0,
        retried: false,
    };
    // The first node may have it, and cannot be asked.
    let doubtful = client(ChainKey::SOLANA, endpoints(&[&lost.url, &refusing.url], 1));
    assert!(matches!(
        doubtful.broadcast(&broadcast_request).await,
        BroadcastOutcome::Unknown(_)
    ));
    let clear = client(ChainKey::SOLANA, endpoints(&[&refusing.url], 1));
    assert!(matches!(
        clear.broadcast(&broadcast_request).await,
        BroadcastOutcome::Refused(_)
    ));
}
