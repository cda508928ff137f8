//! The clients' `simulate` against nodes that speak real HTTP.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_actors::chain_rpc::{
    ChainClient, ChainEndpoints, ChainKey, SimulationOutcome, SimulationRequest,
};
use covault_core::{
    networks::{ChainData, DynNetworkRules, Network, Payload, WireKind, evm, solana, stellar},
    schema::wire,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{
    evm_node::{EvmTestNode, connect_to},
    world::CHAIN,
};

type JsonRpcReply = Result<Value, (i64, String)>;

/// The generators of the curves.
fn public_key(network: Network) -> Vec<u8> {
    hex::decode(match network {
        Network::Evm => "0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798",
        _ => "5866666666666666666666666666666666666666666666666666666666666666",
    })
    .unwrap()
}

fn address(network: Network, chain: &dyn DynNetworkRules) -> String {
    chain.address(&public_key(network)).unwrap()
}

fn trial(
    network: Network,
    chain: &dyn DynNetworkRules,
    kind: WireKind,
    chain_data: ChainData,
) -> SimulationRequest {
    let payload = Payload::parse(&kind).unwrap();
    let public_key = public_key(network);
    let unsigned = chain.build(&payload, &chain_data, &public_key).unwrap();
    SimulationRequest {
        payload,
        chain_data,
        unsigned,
        public_key,
    }
}

fn evm_trial(max_priority_fee: Option<&str>, to: &str) -> SimulationRequest {
    let kind = WireKind::EvmSendCustom(wire::EvmSendCustom {
        chain_id: CHAIN,
        from: address(Network::Evm, &evm::Evm),
        to: to.into(),
        value: "255".into(),
        input: vec![0xab],
        gas_fee: Some(wire::EvmGas {
            max_fee: Some("4000".into()),
            max_priority_fee: max_priority_fee.map(Into::into),
            gas_limit: Some("60000".into()),
            ..Default::default()
        }),
        nonce: Some(7),
    });
    let chain_data = evm::ChainData {
        nonce: None,
        eip1559: true,
        fees: None,
    };
    trial(Network::Evm, &evm::Evm, kind, chain_data.into())
}

const TO: &str = "0x00000000000000000000000000000000000000bb";

fn evm_client(node: &EvmTestNode) -> Arc<dyn ChainClient> {
    connect_to(
        ChainKey::evm(CHAIN),
        ChainEndpoints::new(vec![node.url.clone()]),
    )
}

/// A node of the test chain that has `count` transactions of every account.
async fn evm_node(
    count: &'static str,
    call: impl Fn() -> JsonRpcReply + Send + Sync + 'static,
) -> EvmTestNode {
    EvmTestNode::start(move |method, _| match method {
        "eth_chainId" => Ok(json!(format!("{CHAIN:#x}"))),
        "eth_getTransactionCount" => Ok(json!(count)),
        "eth_call" => call(),
        other => Err((-32601, format!("{other} not found"))),
    })
    .await
}

#[tokio::test]
async fn evm__should_call_the_whole_transaction() {
    let node = evm_node("0x7", || Ok(json!("0x2a"))).await;
    let client = evm_client(&node);
    let from = address(Network::Evm, &evm::Evm);
    let fees = json!({"maxFeePerGas": "0xfa0", "maxPriorityFeePerGas": "0x3"});
    for (trial, prices, to) in [
        (evm_trial(Some("3"), TO), fees.clone(), Some(TO)),
        (evm_trial(None, TO), json!({"gasPrice": "0xfa0"}), Some(TO)),
        (evm_trial(Some("3"), ""), fees, None),
    ] {
        let found = client.simulate(&trial).await;
        assert_eq!(found, Some(SimulationOutcome::passes(Some("0x2a".into()))));
        let (method, mut params) = node.calls.lock().unwrap().pop().unwrap();
        assert_eq!(method, "eth_call");
        // Addresses are case-insensitive to nodes.
        if let Some(to) = params[0]["to"].as_str() {
            params[0]["to"] = json!(to.to_lowercase());
        }
        let mut expected = prices;
        expected["from"] = json!(from);
        expected["value"] = json!("0xff");
        expected["data"] = json!("0xab");
        expected["gas"] = json!("0xea60");
        if let Some(to) = to {
            expected["to"] = json!(to);
        }
        assert_eq!(params, json!([expected, "latest"]));
    }
}

#[tokio::test]
async fn evm__should_say_why_a_transaction_would_fail() {
    for words in [
        "execution reverted: Nope",
        "insufficient funds for gas * price + value",
    ] {
        let node = evm_node("0x7", move || Err((3, words.into()))).await;
        let found = evm_client(&node).simulate(&evm_trial(Some("3"), TO)).await;
        assert_eq!(found, Some(SimulationOutcome::fails(words)));
    }
}

#[tokio::test]
async fn evm__should_say_nothing_where_nothing_is_known() {
    let of = async |node: EvmTestNode| evm_client(&node).simulate(&evm_trial(Some("3"), TO)).await;
    // Its number is used: it is this very transaction that the call runs into.
    let mined = evm_node("0x8", || Err((3, "execution reverted".into()))).await;
    assert_eq!(of(mined).await, None);
    for (code, words) in [
        (-32601, "the method eth_call does not exist"),
        (-32602, "invalid argument"),
        (-32005, "rate limit exceeded"),
        (-32000, "header not found"),
        (-32603, "internal error"),
    ] {
        let node = evm_node("0x7", move || Err((code, words.into()))).await;
        assert_eq!(of(node).await, None, "{words}");
    }
    let nonsense = evm_node("0x7", || Ok(json!({"result": 5}))).await;
    assert_eq!(of(nonsense).await, None);
    let elsewhere = EvmTestNode::start(|_, _| Ok(json!("0x1"))).await;
    assert_eq!(of(elsewhere).await, None);
}

#[tokio::test]
async fn a_node_that_cannot_simulate__should_be_none_the_worse_for_it() {
    let first = evm_node("0x7", || Err((-32005, "rate limit exceeded".into()))).await;
    let second = evm_node("0x7", || Ok(json!("0x"))).await;
    let urls = vec![first.url.clone(), second.url.clone()];
    let client = connect_to(ChainKey::evm(CHAIN), ChainEndpoints::new(urls));
    for _ in 0..5 {
        assert_eq!(client.simulate(&evm_trial(Some("3"), TO)).await, None);
    }
    // One node is asked, once each time, and the other is not.
    assert_eq!(
        first
            .methods()
            .iter()
            .filter(|method| *method == "eth_call")
            .count(),
        5
    );
    assert!(second.methods().is_empty());
    assert!(client.health().iter().all(|node| node.failures == 0));

    // Nor is one that is silent.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let mut endpoints = ChainEndpoints::new(vec![url]);
    endpoints.timeout_ms = 100;
    let client = connect_to(ChainKey::evm(CHAIN), endpoints);
    assert_eq!(client.simulate(&evm_trial(Some("3"), TO)).await, None);
    assert!(client.health().iter().all(|node| node.failures == 0));
}

fn solana_trial(lamports: u64) -> SimulationRequest {
    let from = address(Network::Solana, &solana::Solana);
    let kind = WireKind::SolanaSendNative(wire::SolanaSendNative {
        to: bs58::encode([9; 32]).into_string(),
        from,
        value: lamports.to_string(),
        ..Default::default()
    });
    let chain_data = solana::ChainData {
        recent_blockhash: bs58::encode([7; 32]).into_string(),
        token: None,
        compute: None,
    };
    trial(Network::Solana, &solana::Solana, kind, chain_data.into())
}

/// As if the client had brought the transactions.
fn solana_custom(of: &[&SimulationRequest]) -> SimulationRequest {
    let texts = of.iter().map(|one| STANDARD.encode(&one.unsigned.bytes));
    let kind = WireKind::SolanaSendCustom(wire::SolanaSendCustom {
        from: of[0].payload.from().into(),
        tx_base64: texts.collect(),
        ..Default::default()
    });
    trial(Network::Solana, &solana::Solana, kind, ChainData::Nothing)
}

#[tokio::test]
async fn solana__should_simulate_one_transaction_unsigned() {
    let answer = json!({"context": {"slot": 1}, "value": {
        "err": null, "logs": ["Program 11111111111111111111111111111111 success"],
        "unitsConsumed": 150, "returnData": {"data": ["Kg==", "base64"], "programId": "x"}}});
    let node = EvmTestNode::start(move |_, _| Ok(answer.clone())).await;
    let client = connect_to(
        ChainKey::SOLANA,
        ChainEndpoints::new(vec![node.url.clone()]),
    );
    let trial = solana_trial(5);
    let found = client.simulate(&trial).await.unwrap();
    let expected = SimulationOutcome {
        units_used: Some("150".into()),
        logs: vec!["Program 11111111111111111111111111111111 success".into()],
        ..SimulationOutcome::passes(Some("Kg==".into()))
    };
    assert_eq!(found, expected);
    let calls = node.calls.lock().unwrap().clone();
    let options = json!({"encoding": "base64", "commitment": "confirmed",
        "sigVerify": false, "replaceRecentBlockhash": false});
    let text = STANDARD.encode(&trial.unsigned.bytes);
    assert_eq!(
        calls,
        [("simulateTransaction".to_owned(), json!([text, options]))]
    );

    // Several depend on each other.
    let several = solana_custom(&[&trial, &solana_trial(6)]);
    assert_eq!(client.simulate(&several).await, None);
    assert_eq!(node.calls.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn solana__should_tell_failures_from_what_says_nothing() {
    let own = solana_trial(5);
    let custom = solana_custom(&[&own]);
    let error = json!({"InstructionError": [0, {"Custom": 1}]});
    let words = r#"{"InstructionError":[0,{"Custom":1}]}"#;
    for (trial, err, expected) in [
        (&own, error.clone(), Some(words)),
        (&custom, error, Some(words)),
        (&own, json!("AccountNotFound"), Some("AccountNotFound")),
        (&own, json!("AlreadyProcessed"), None),
        (&custom, json!("AlreadyProcessed"), None),
        // A node that is behind, and a transaction that came too late.
        (&own, json!("BlockhashNotFound"), None),
        (
            &custom,
            json!("BlockhashNotFound"),
            Some("BlockhashNotFound"),
        ),
    ] {
        let said = json!({"context": {"slot": 1}, "value": {"err": err, "logs": null}});
        let node = EvmTestNode::start(move |_, _| Ok(said.clone())).await;
        let client = connect_to(
            ChainKey::SOLANA,
            ChainEndpoints::new(vec![node.url.clone()]),
        );
        let found = client.simulate(trial).await;
        assert_eq!(found, expected.map(SimulationOutcome::fails), "{err}");
    }
}

/// A call of a contract's function `f`, in XDR by hand.
fn contract_call() -> Vec<u8> {
    let int = |value: u32| value.to_be_bytes().to_vec();
    let key = public_key(Network::Stellar);
    [
        // A v1 envelope: source, fee, sequence number, no conditions, no memo.
        [int(2), int(0), key, int(100)].concat(),
        [vec![0; 7], vec![42], int(0), int(0)].concat(),
        // One operation of the source: InvokeHostFunction of InvokeContract.
        [int(1), int(0), int(24), int(0)].concat(),
        [int(1), vec![5; 32], int(1), b"f\0\0\0".to_vec()].concat(),
        // No arguments, no authorizations; no extension, no signatures.
        [int(0), int(0), int(0), int(0)].concat(),
    ]
    .concat()
}

fn stellar_trial() -> SimulationRequest {
    let kind = WireKind::StellarSendCustom(wire::StellarSendCustom {
        from: address(Network::Stellar, &stellar::Stellar),
        tx_base64: STANDARD.encode(contract_call()),
    });
    trial(
        Network::Stellar,
        &stellar::Stellar,
        kind,
        ChainData::Nothing,
    )
}

async fn stellar_node(answer: Value) -> (EvmTestNode, Arc<dyn ChainClient>) {
    let node = EvmTestNode::start(move |method, _| match method {
        "getNetwork" => Ok(json!({
            "passphrase": "Public Global Stellar Network ; September 2015"})),
        "simulateTransaction" => Ok(answer.clone()),
        other => Err((-32601, other.to_owned())),
    })
    .await;
    let chain = ChainKey::of(Network::Stellar, None);
    let client = connect_to(chain, ChainEndpoints::new(vec![node.url.clone()]));
    (node, client)
}

#[tokio::test]
async fn stellar__should_simulate_calls_of_contracts_and_nothing_else() {
    let ledger = json!({"latestLedger": 5, "minResourceFee": "58181",
        "results": [{"auth": [], "xdr": "AAAAAwAAACo="}]});
    let (node, client) = stellar_node(ledger.clone()).await;
    let found = client.simulate(&stellar_trial()).await;
    assert_eq!(
        found,
        Some(SimulationOutcome::passes(Some("AAAAAwAAACo=".into())))
    );
    let asked = node.calls.lock().unwrap().pop().unwrap();
    let expected = json!({"transaction": STANDARD.encode(contract_call())});
    assert_eq!(asked, ("simulateTransaction".to_owned(), expected));

    let kind = WireKind::StellarSendNative(wire::StellarSendNative {
        from: address(Network::Stellar, &stellar::Stellar),
        to: "GA5ZSEJYB37JRC5AVCIA5MOP4RHTM335X2KGX3IHOJAPP5RE34K4KZVN".into(),
        value: "1".into(),
        ..Default::default()
    });
    let chain_data = stellar::ChainData {
        sequence: 1,
        base_fee: 100,
        max_time: 5,
        destination_exists: Some(true),
    };
    let payment = trial(Network::Stellar, &stellar::Stellar, kind, chain_data.into());
    assert_eq!(client.simulate(&payment).await, None);

    let words = "HostError: Error(Contract, #10)";
    let mut archived = ledger;
    archived["restorePreamble"] = json!({"minResourceFee": "1", "transactionData": "AAAA"});
    for (answer, expected) in [
        (json!({"latestLedger": 5, "error": words}), Some(words)),
        (
            archived,
            Some("entries of the ledger that it needs are archived, and must be restored first"),
        ),
        (json!({}), None),
    ] {
        let (_node, client) = stellar_node(answer).await;
        let found = client.simulate(&stellar_trial()).await;
        assert_eq!(found, expected.map(SimulationOutcome::fails));
    }
}
