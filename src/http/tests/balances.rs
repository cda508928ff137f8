//! getBalance: which chain and token are meant, and what is refused. The nodes say what they were
//! asked.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use axum::Router;
use covault_actors::chain_rpc::{
    BroadcastOutcome, BroadcastRequest, ChainClient, ChainClients, ChainError, ChainKey,
    ChainRefusal, TrackedTransaction, TransactionSighting,
};
use covault_core::{
    fault::ExecuteCode,
    networks::{ChainData, Queries},
};
use serde_json::{Value, json};

use super::routes::{app_on, post};

type CallLog = Arc<Mutex<Vec<String>>>;

/// Has `balance` of everything, but for the tokens and chains that it refuses.
struct StubChainClient {
    chain: ChainKey,
    asked: CallLog,
    refuses_tokens: bool,
    refuses_all: bool,
    is_down: bool,
}

#[async_trait]
impl ChainClient for StubChainClient {
    async fn chain_data(&self, _: &Queries, _: u64) -> Result<ChainData, ChainError> {
        Err(ChainError::Unknown("not asked here".into()))
    }

    async fn sightings(
        &self,
        _: &[TrackedTransaction],
        _: u64,
    ) -> Vec<Result<TransactionSighting, ChainError>> {
        Vec::new()
    }

    async fn broadcast(&self, _: &BroadcastRequest) -> BroadcastOutcome {
        BroadcastOutcome::Unknown("not asked here".into())
    }

    async fn balance(&self, address: &str, token: Option<&str>) -> Result<String, ChainError> {
        let question = format!("{} {address} {}", self.chain, token.unwrap_or("-"));
        self.asked.lock().expect("lock").push(question);
        let refused = |reason: &str| {
            Err(ChainError::Refused(ChainRefusal {
                reason: reason.into(),
                code: ExecuteCode::Unspecified,
            }))
        };
        if self.is_down {
            return Err(ChainError::Unknown("no node answers".into()));
        }
        if self.refuses_all {
            return refused("the node is on another chain");
        }
        if self.refuses_tokens && token.is_some() {
            return refused("there is no token at this address");
        }
        Ok("115792089237316195423570985008687907853269984665640564039457584007913129639935".into())
    }
}

fn all_chains() -> Vec<ChainKey> {
    let named = ChainKey::NAMED.iter().map(|(_, chain)| *chain);
    named.chain([1, 56, 31337].map(ChainKey::evm)).collect()
}

/// The API over nodes of these chains.
async fn app_with(
    chains: Vec<ChainKey>,
    change: impl Fn(&mut StubChainClient),
) -> (Router, CallLog) {
    let asked = CallLog::default();
    let mut connected = ChainClients::default();
    for chain in chains {
        let mut coins = StubChainClient {
            chain,
            asked: Arc::clone(&asked),
            refuses_tokens: false,
            refuses_all: false,
            is_down: false,
        };
        change(&mut coins);
        connected = connected.with(chain, Arc::new(coins));
    }
    (app_on(connected).await, asked)
}

async fn ask(app: &Router, body: Value) -> (u16, Value) {
    let (status, _, answer) = post("/v1/getBalance", body).of(app).await;
    (status, answer)
}

const EVM: &str = "0xf487A86D0657ee2f86770860EE633c5933e4D67C";
const USDC: &str = "0xA0b86991c6218b36c1d19D4a2e9Eb0cE3606eB48";
const BITCOIN: &str = "bc1q2v4ywqppj0g770xez8plhavd6s4u0g8l74ylpk";
const TRON: &str = "THzTXf73sKMCzyNaDGFn84jWuRZTJq6fxL";
const USDT: &str = "TR7NHqjeKQxGTCi8q8ZY4pL8otSzgjLj6t";
const APTOS: &str = "0x50fad405492e779413ce1d4d91c4e4b0d32ecd399b931d488cd4a07161f42c51";
const ASSET: &str = "0x357b0b74bc833e95a115ad22604854d6b0fca151cecd94111770e5d6ffc9dc2b";
const SUI: &str = "0x559b58c97f8a3dee4d7e09196e8bba1e7d30b8de78b58321aa86481933dc2ea6";
const SOLANA: &str = "CxvTXCepdDTH4PXUwU2Pf3FBi87L7VwXtzsgeAm1xVsS";
const MINT: &str = "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v";
const TON: &str = "UQCxG8G0pRw6U30C3DVcKsPdU-r2oGX3SQz5_F07rk2xXcc8";
const JETTON: &str = "EQCxE6mUtQJKFnGfaROTKOt1lZbDiiX1kCixRv7Nw2Id_sDs";
const STELLAR: &str = "GAPM4TUV6XTYQTOIGHZ4M7NI6EYJMXRZCIBXBQFOESIYLVTHW5PZSES2";
const ISSUER: &str = "GA5ZSEJYB37JRC5AVCIA5MOP4RHTM335X2KGX3IHOJAPP5RE34K4KZVN";

/// Network type, chain id, address and token as a client sends them (null: left out), and the
/// question that the nodes get for them.
fn rules() -> Vec<(&'static str, Value, String, Value, String)> {
    let rule =
        |network: &'static str, chain_id: Value, address: &str, token: Value, asked: &str| {
            (
                network,
                chain_id,
                address.to_owned(),
                token,
                asked.to_owned(),
            )
        };
    let plain = |network: &'static str, chain_id: Value, address: &str, chain: &str| {
        rule(
            network,
            chain_id,
            address,
            Value::Null,
            &format!("{chain} {address} -"),
        )
    };
    let lower = EVM.to_lowercase();
    let usdc = json!(USDC.to_lowercase());
    let credit = json!(format!("USDC:{ISSUER}"));
    vec![
        // EVM: the chain id is required, as a number or text, and names a known chain.
        plain("EVM", json!("1"), EVM, "EVM chain 1"),
        plain("EVM", json!(56), EVM, "EVM chain 56"),
        plain("EVM", json!("31337"), EVM, "EVM chain 31337"),
        rule(
            "EVM",
            json!("1"),
            &lower,
            usdc,
            &format!("EVM chain 1 {EVM} {USDC}"),
        ),
        rule(
            "EVM",
            json!("1"),
            EVM,
            json!(""),
            &format!("EVM chain 1 {EVM} -"),
        ),
        // Aptos: 1 unless it says otherwise.
        plain("APTOS", Value::Null, APTOS, "Aptos"),
        plain("APTOS", json!("1"), APTOS, "Aptos"),
        plain("APTOS", json!(126), APTOS, "Movement"),
        rule(
            "APTOS",
            Value::Null,
            APTOS,
            json!(ASSET),
            &format!("Aptos {APTOS} {ASSET}"),
        ),
        rule(
            "APTOS",
            json!("126"),
            APTOS,
            json!(format!(
                "{}::asset::USDC",
                ASSET.to_uppercase().replace("0X", "0x")
            )),
            &format!("Movement {APTOS} {ASSET}::asset::USDC"),
        ),
        // Solana: it may name one.
        plain("SOLANA", Value::Null, SOLANA, "Solana"),
        plain("SOLANA", json!("101"), SOLANA, "Solana"),
        plain("SOLANA", json!("0"), SOLANA, "Sonic SVM"),
        plain("SOLANA", json!(0), SOLANA, "Sonic SVM"),
        rule(
            "SOLANA",
            Value::Null,
            SOLANA,
            json!(MINT),
            &format!("Solana {SOLANA} {MINT}"),
        ),
        // The others: a chain id means nothing, whatever it is.
        plain("BITCOIN", Value::Null, BITCOIN, "Bitcoin"),
        plain("BITCOIN", json!("12345"), BITCOIN, "Bitcoin"),
        plain("TRON", json!(-5), TRON, "Tron"),
        rule(
            "TRON",
            Value::Null,
            TRON,
            json!(USDT),
            &format!("Tron {TRON} {USDT}"),
        ),
        rule(
            "TRON",
            Value::Null,
            TRON,
            json!("1002000"),
            &format!("Tron {TRON} 1002000"),
        ),
        plain("SUI", json!("1"), SUI, "Sui"),
        rule(
            "SUI",
            Value::Null,
            SUI,
            json!("0xabc::tok::TOK"),
            &format!("Sui {SUI} 0x{:0>64}::tok::TOK", "abc"),
        ),
        // The coin by another name.
        rule(
            "SUI",
            Value::Null,
            SUI,
            json!("0x2::sui::SUI"),
            &format!("Sui {SUI} -"),
        ),
        plain("TON", json!("1"), TON, "TON"),
        rule(
            "TON",
            Value::Null,
            TON,
            json!(JETTON),
            &format!("TON {TON} {JETTON}"),
        ),
        plain("STELLAR", json!("1"), STELLAR, "Stellar"),
        rule(
            "STELLAR",
            Value::Null,
            STELLAR,
            credit,
            &format!("Stellar {STELLAR} USDC:{ISSUER}"),
        ),
    ]
}

fn question(network: &str, chain_id: &Value, address: &str, token: &Value) -> Value {
    let mut body = json!({
        "networkType": format!("NETWORK_TYPE_{network}"),
        "walletAddress": address,
    });
    if !chain_id.is_null() {
        body["chainId"] = chain_id.clone();
    }
    if !token.is_null() {
        body["tokenAddress"] = token.clone();
    }
    body
}

#[tokio::test]
async fn get_balance__should_ask_the_chain_that_the_request_means() {
    let (app, asked) = app_with(all_chains(), |_| {}).await;
    for (network, chain_id, address, token, expected) in rules() {
        let body = question(network, &chain_id, &address, &token);
        let (status, answer) = ask(&app, body.clone()).await;
        assert_eq!(status, 200, "{body}: {answer}");
        // Every digit of it, as text, and no error.
        let most = "115792089237316195423570985008687907853269984665640564039457584007913129639935";
        assert_eq!(answer, json!({"balance": most, "error": null}), "{body}");
        let questions = std::mem::take(&mut *asked.lock().expect("lock"));
        assert_eq!(questions, [expected], "{body}");
    }
}

#[tokio::test]
async fn get_balance__should_name_the_field_that_is_wrong() {
    let (app, asked) = app_with(all_chains(), |_| {}).await;
    let none = Value::Null;
    let chain_id = "Invalid chain id";
    let cases = [
        // Required for EVM; those that are not known have no balances.
        (
            "EVM",
            none.clone(),
            EVM,
            none.clone(),
            "chainId: is required for NETWORK_TYPE_EVM",
        ),
        ("EVM", json!("424242"), EVM, none.clone(), chain_id),
        ("EVM", json!("0"), EVM, none.clone(), chain_id),
        ("EVM", json!("-1"), EVM, none.clone(), chain_id),
        ("EVM", json!("one"), EVM, none.clone(), "chainId"),
        (
            "EVM",
            json!("99999999999999999999"),
            EVM,
            none.clone(),
            "chainId",
        ),
        ("APTOS", json!("2"), APTOS, none.clone(), chain_id),
        ("APTOS", json!("0"), APTOS, none.clone(), chain_id),
        ("APTOS", json!("-126"), APTOS, none.clone(), chain_id),
        ("SOLANA", json!("1"), SOLANA, none.clone(), chain_id),
        ("SOLANA", json!("102"), SOLANA, none.clone(), chain_id),
        // Addresses of another network, with a typing error, or none.
        ("EVM", json!("1"), TRON, none.clone(), "walletAddress: "),
        ("EVM", json!("1"), "", none.clone(), "walletAddress: "),
        (
            "EVM",
            json!("1"),
            "0xF487A86D0657ee2f86770860EE633c5933e4D67C",
            none.clone(),
            "walletAddress: ",
        ),
        (
            "BITCOIN",
            none.clone(),
            "bc1q2v4ywqppj0g770xez8plhavd6s4u0g8l74ylpj",
            none.clone(),
            "walletAddress: ",
        ),
        (
            "TRON",
            none.clone(),
            "THzTXf73sKMCzyNaDGFn84jWuRZTJq6fxM",
            none.clone(),
            "walletAddress: ",
        ),
        (
            "APTOS",
            none.clone(),
            "0x12345",
            none.clone(),
            "walletAddress: ",
        ),
        ("SUI", none.clone(), SOLANA, none.clone(), "walletAddress: "),
        ("SOLANA", none.clone(), EVM, none.clone(), "walletAddress: "),
        (
            "TON",
            none.clone(),
            "UQCxG8G0pRw6U30C3DVcKsPdU-r2oGX3SQz5_F07rk2xXcc9",
            none.clone(),
            "walletAddress: ",
        ),
        (
            "STELLAR",
            none.clone(),
            "GAPM4TUV6XTYQTOIGHZ4M7NI6EYJMXRZCIBXBQFOESIYLVTHW5PZSES3",
            none.clone(),
            "walletAddress: ",
        ),
        // Tokens likewise.
        ("EVM", json!("1"), EVM, json!(USDT), "tokenAddress: "),
        (
            "BITCOIN",
            none.clone(),
            BITCOIN,
            json!(USDC),
            "tokenAddress: Bitcoin has no tokens",
        ),
        ("TRON", none.clone(), TRON, json!(USDC), "tokenAddress: "),
        (
            "APTOS",
            none.clone(),
            APTOS,
            json!("usdc"),
            "tokenAddress: ",
        ),
        (
            "SUI",
            none.clone(),
            SUI,
            json!("0x2::sui"),
            "tokenAddress: ",
        ),
        (
            "SOLANA",
            none.clone(),
            SOLANA,
            json!("USDC"),
            "tokenAddress: ",
        ),
        ("TON", none.clone(), TON, json!("USDT"), "tokenAddress: "),
        (
            "STELLAR",
            none.clone(),
            STELLAR,
            json!("USDC"),
            "tokenAddress: ",
        ),
        (
            "STELLAR",
            none.clone(),
            STELLAR,
            json!(ISSUER),
            "tokenAddress: ",
        ),
        // Networks.
        (
            "UNKNOWN",
            none.clone(),
            EVM,
            none.clone(),
            "networkType: is required",
        ),
        ("DOGECOIN", none.clone(), EVM, none, "networkType"),
    ];
    for (network, chain_id, address, token, problem) in cases {
        let body = question(network, &chain_id, address, &token);
        let (status, answer) = ask(&app, body.clone()).await;
        assert_eq!(status, 400, "{body}: {answer}");
        assert_eq!(answer["balance"], "", "{body}: {answer}");
        let message = answer["error"]["message"].as_str().expect("message");
        assert!(message.starts_with(problem), "{body}: {message}");
    }
    let (status, answer) = ask(&app, json!({"walletAddress": EVM, "chainId": "1"})).await;
    assert_eq!(status, 400, "{answer}");
    assert_eq!(answer["error"]["message"], "networkType: is required");
    // No node was asked for any of it.
    assert!(asked.lock().expect("lock").is_empty());
}

#[tokio::test]
async fn get_balance__should_say_which_chain_has_no_node() {
    let (app, _) = app_with(Vec::new(), |_| {}).await;
    for (network, chain_id, address, chain, setting) in [
        ("EVM", json!("1"), EVM, "EVM chain 1", "chains.evm.1.rpc"),
        (
            "BITCOIN",
            Value::Null,
            BITCOIN,
            "Bitcoin",
            "chains.bitcoin.rpc",
        ),
        ("TRON", Value::Null, TRON, "Tron", "chains.tron.rpc"),
        ("APTOS", Value::Null, APTOS, "Aptos", "chains.aptos.rpc"),
        (
            "APTOS",
            json!("126"),
            APTOS,
            "Movement",
            "chains.movement.rpc",
        ),
        ("SUI", Value::Null, SUI, "Sui", "chains.sui.rpc"),
        ("SOLANA", Value::Null, SOLANA, "Solana", "chains.solana.rpc"),
        (
            "SOLANA",
            json!("0"),
            SOLANA,
            "Sonic SVM",
            "chains.sonic.rpc",
        ),
        ("TON", Value::Null, TON, "TON", "chains.ton.rpc"),
        (
            "STELLAR",
            Value::Null,
            STELLAR,
            "Stellar",
            "chains.stellar.rpc",
        ),
    ] {
        let body = question(network, &chain_id, address, &Value::Null);
        let (status, answer) = ask(&app, body.clone()).await;
        assert_eq!(status, 400, "{body}: {answer}");
        let field = match network {
            "EVM" | "APTOS" | "SOLANA" => "chainId",
            _ => "networkType",
        };
        let expected = format!("{field}: no node is configured for {chain} ({setting})");
        assert_eq!(answer["error"]["message"], expected, "{body}");
    }
}

#[tokio::test]
async fn get_balance__should_tell_a_wrong_token_from_nodes_that_cannot() {
    let token = question("EVM", &json!("1"), EVM, &json!(USDC));
    let coin = question("EVM", &json!("1"), EVM, &Value::Null);
    let evm = || vec![ChainKey::evm(1)];

    let (app, _) = app_with(evm(), |coins| coins.refuses_tokens = true).await;
    let (status, answer) = ask(&app, token.clone()).await;
    assert_eq!(status, 400, "{answer}");
    assert_eq!(
        answer["error"]["message"],
        "tokenAddress: there is no token at this address"
    );

    let (app, _) = app_with(evm(), |coins| coins.refuses_all = true).await;
    for body in [&token, &coin] {
        let (status, answer) = ask(&app, body.clone()).await;
        assert_eq!(status, 503, "{answer}");
        assert_eq!(answer["error"]["message"], "the node is on another chain");
    }

    let (app, _) = app_with(evm(), |coins| coins.is_down = true).await;
    for body in [&token, &coin] {
        let (status, answer) = ask(&app, body.clone()).await;
        assert_eq!(status, 503, "{answer}");
        let message = answer["error"]["message"].as_str().expect("message");
        assert!(message.contains("try again"), "{message}");
    }
}
