//! The two JSON-RPC methods of a Solana node that a transfer needs. It keeps what was sent, for
//! the network's own SDK to check.

use std::sync::{Arc, Mutex};

use axum::{Json, Router, extract::State, routing::post};
use serde_json::{Value, json};

pub struct SolanaStub {
    pub url: String,
    sent: Arc<Mutex<Vec<String>>>,
}

impl SolanaStub {
    pub const BLOCKHASH: &str = "B6SMJHxrVJ3t3MXbarfPBmeBKs2k8EtpjZEo2uByrReR";

    pub async fn start() -> Self {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let router = Router::new()
            .route("/", post(answer))
            .with_state(sent.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, sent }
    }

    /// The transactions that were sent, base64.
    pub fn sent(&self) -> Vec<String> {
        self.sent.lock().unwrap().clone()
    }
}

async fn answer(
    State(sent): State<Arc<Mutex<Vec<String>>>>,
    Json(call): Json<Value>,
) -> Json<Value> {
    let result = match call["method"].as_str() {
        Some("getLatestBlockhash") => json!({"context": {"slot": 1}, "value": {
            "blockhash": SolanaStub::BLOCKHASH, "lastValidBlockHeight": 1000}}),
        Some("getGenesisHash") => json!("5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d"),
        Some("sendTransaction") => {
            let transaction = call["params"][0].as_str().unwrap().to_owned();
            assert_eq!(call["params"][1]["encoding"], "base64");
            let parsed = super::outside("solanaTransaction", json!({"transaction": transaction}));
            assert_eq!(parsed["valid"], json!(true));
            sent.lock().unwrap().push(transaction.clone());
            // The node answers with the first signature.
            use base64::Engine as _;
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(transaction)
                .unwrap();
            json!(bs58::encode(&bytes[1..65]).into_string())
        }
        _ => {
            return Json(json!({"jsonrpc": "2.0", "id": call["id"],
                "error": {"code": -32601, "message": "Method not found"}}));
        }
    };
    Json(json!({"jsonrpc": "2.0", "id": call["id"], "result": result}))
}
