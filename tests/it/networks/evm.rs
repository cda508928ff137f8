//! EVM against a real node, anvil, behind an address with two faces.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use axum::{Json, Router, extract::State, http::StatusCode, response::IntoResponse};

use super::*;

const EVM: &str = "NETWORK_TYPE_EVM";
const TO: &str = "0x00000000000000000000000000000000C0FFEE09";

/// A load balancer before anvil: transactions go to a node that takes them and whose answers are lost, and
/// questions about them to one that is behind.
struct TwoFaced {
    target: String,
    http: reqwest::Client,
    /// Hashes are not known.
    is_behind: AtomicBool,
    /// Transactions that came.
    sends: AtomicUsize,
}

impl TwoFaced {
    /// Starts before a node. Gives the address too.
    async fn start(target: &str) -> (Arc<Self>, String) {
        let proxy = Arc::new(Self {
            target: target.to_owned(),
            http: http_client(),
            is_behind: AtomicBool::new(true),
            sends: AtomicUsize::new(0),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new()
            .fallback(answer)
            .with_state(Arc::clone(&proxy));
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        (proxy, url)
    }
}

async fn answer(
    State(proxy): State<Arc<TwoFaced>>,
    Json(request): Json<Value>,
) -> axum::response::Response {
    let method = request["method"].as_str().unwrap_or_default();
    let is_behind = proxy.is_behind.load(Ordering::SeqCst);
    if is_behind
        && matches!(
            method,
            "eth_getTransactionByHash" | "eth_getTransactionReceipt"
        )
    {
        let nothing = json!({"jsonrpc": "2.0", "id": request["id"], "result": null});
        return Json(nothing).into_response();
    }
    let said = proxy.http.post(&proxy.target).json(&request).send().await;
    let said: Value = said.unwrap().json().await.unwrap();
    if method == "eth_sendRawTransaction" && proxy.sends.fetch_add(1, Ordering::SeqCst) == 0 {
        return StatusCode::BAD_GATEWAY.into_response();
    }
    Json(said).into_response()
}

#[tokio::test]
async fn evm_payments__should_never_fail_although_they_are_mined() {
    for is_final in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let anvil = Anvil::start(folder.path(), 31337).await;
        let (proxy, url) = TwoFaced::start(&anvil.url).await;
        let chain = format!("31337={url}");
        let (dev, from) = dev_with_wallet(folder.path(), &[chain], EVM).await;
        anvil.fund(&from, 1_000_000_000_000_000_000).await;
        let payment = json!({"evmSendNative": {
            "chainId": "31337", "from": from, "to": TO, "value": "5"}});
        let uuid = dev.api.create(payment).await;
        eventually("it was sent again", async || {
            (proxy.sends.load(Ordering::SeqCst) >= 4).then_some(())
        })
        .await;
        assert_eq!(anvil.balance(TO).await, 5, "it is mined");
        assert_eq!(dev.api.details(&uuid).await["status"], "STATUS_PENDING");
        if is_final {
            // The hash is still not known; the final block has it.
            anvil.call("anvil_mine", json!(["0x100"])).await;
        } else {
            proxy.is_behind.store(false, Ordering::SeqCst);
        }
        let outcome = dev.api.execute(&uuid).await;
        assert_eq!(outcome["error"], Value::Null, "{outcome}");
        let hash = outcome["txHash"].as_str().unwrap();
        assert_eq!(anvil.receipt(hash).await["status"], "0x1");
        assert_eq!(anvil.balance(TO).await, 5);
    }
}
