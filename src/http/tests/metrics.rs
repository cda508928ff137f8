//! What is counted of calls.

use axum::http::Method;
use futures::poll;
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::json;
use tower::ServiceExt as _;

use super::{
    routes::{TestRequest, app, post},
    *,
};

#[tokio::test]
async fn calls__should_be_counted_by_operation_and_status() {
    let recorder = PrometheusBuilder::new()
        .set_buckets(&[1.0])
        .expect("buckets")
        .build_recorder();
    // The runtime of a test has one thread.
    let _guard = ::metrics::set_default_local_recorder(&recorder);
    let app = app().await;
    for _ in 0..2 {
        post("/v1/getWalletList", json!({})).of(&app).await;
    }
    let get = TestRequest {
        method: Method::GET,
        ..post("/v1/getWalletList", json!({}))
    };
    get.of(&app).await;
    let mut nobody = post("/v1/sweep/wallets", json!({}));
    nobody.headers.remove(0);
    nobody.of(&app).await;
    let mut admin = post("/admin/v1/listVaults", json!({}));
    admin.headers[0] = ("x-mtoken", "admin");
    admin.of(&app).await;
    for path in ["/v1/one", "/v1/two", "/three"] {
        post(path, json!({})).of(&app).await;
    }
    let never = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
    let request = Request::post("/v1/getBalance")
        .header("x-mtoken", "platform")
        .header("content-type", "application/json")
        .body(never)
        .expect("request");
    let mut gone = Box::pin(app.clone().oneshot(request));
    assert!(poll!(&mut gone).is_pending());
    drop(gone);

    let text = recorder.handle().render();
    let counted = |operation: &str, code: &str| {
        format!(
            "covault_api_calls_total{{transport=\"rest\",operation=\"{operation}\",code=\"{code}\"}}"
        )
    };
    let timed = |operation: &str, outcome: &str| {
        format!(
            "covault_api_call_seconds_count{{transport=\"rest\",operation=\"{operation}\",outcome=\"{outcome}\"}}"
        )
    };
    let expected = [
        (counted("getWalletList", "400"), 2),
        (counted("getWalletList", "405"), 1),
        (counted("createDepositWallet", "401"), 1),
        (counted("listVaults", "200"), 1),
        (counted("none", "404"), 3),
        (counted("getBalance", "gone"), 1),
        (timed("getWalletList", "refused"), 3),
        (timed("listVaults", "done"), 1),
        (timed("getBalance", "gone"), 1),
    ];
    for (name, value) in &expected {
        let line = format!("{name} {value}");
        assert!(text.lines().any(|it| it == line), "{line}: {text}");
    }
    let counters = text
        .lines()
        .filter(|line| line.starts_with("covault_api_calls_total{"));
    assert_eq!(counters.count(), 6, "{text}");
}
