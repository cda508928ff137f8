//! What is refused before it reaches an operation: too much, too fast, too slow; and in the shape
//! of the sweep API below `/v1/sweep`.

use std::{net::SocketAddr, time::Duration};

use axum::http::Method;
use covault_core::schema::service::{self, Audience};
use futures::poll;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::{
    routes::{TestRequest, UNLIMITED, api_with, both_sides, never, post},
    *,
};
use crate::api::{
    address::Peer,
    admission::{Admission, AdmissionLimits, CallRate},
};

const PATH: &str = "/v1/getWalletList";
/// What a call gets that was admitted: it names no vault.
const ADMITTED: u16 = 400;

/// A request from an address.
fn request(peer: &str, token: &str, path: &str, body: Body) -> Request {
    let peer: SocketAddr = peer.parse().expect("peer");
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header("x-mtoken", token)
        .header("content-type", "application/json")
        .body(body)
        .expect("request");
    request.extensions_mut().insert(Peer(peer));
    request
}

async fn answer(app: &Router, request: Request) -> (u16, HeaderMap, Value) {
    let response = app.clone().oneshot(request).await.expect("answers");
    let (head, body) = response.into_parts();
    assert!(!head.headers[REQUEST_ID].is_empty());
    let body = axum::body::to_bytes(body, 1 << 20).await.expect("body");
    let body = serde_json::from_slice(&body).expect("JSON");
    (head.status.as_u16(), head.headers, body)
}

async fn app(terms: AdmissionLimits) -> Router {
    let api = api_with(|api| api.admission = Admission::new(&terms)).await;
    both_sides(&api, &never())
}

/// So slow that nothing comes back during a test.
const TWO: CallRate = CallRate {
    per_second: 1,
    burst: 2,
};

#[tokio::test]
async fn token__should_be_told_when_to_come_again() {
    let app = app(AdmissionLimits {
        per_token: TWO,
        ..UNLIMITED
    })
    .await;
    let ask = || post(PATH, json!({}));
    for _ in 0..2 {
        assert_eq!(ask().of(&app).await.0, ADMITTED);
    }
    let (status, headers, body) = ask().of(&app).await;
    assert_eq!(
        (status, &headers["retry-after"]),
        (429, &HeaderValue::from(1))
    );
    assert_eq!(body["detailsList"], json!([]));
    let message = body["error"]["message"].as_str().expect("message");
    assert!(
        message.starts_with("too many requests with this token"),
        "{body}"
    );
    // Another token has calls left.
    let mut admin = post("/admin/v1/listVaults", json!({}));
    admin.headers[0] = ("x-mtoken", "admin");
    assert_eq!(admin.of(&app).await.0, 200);
}

#[tokio::test]
async fn address__should_be_limited_before_its_token_is_looked_at() {
    let terms = AdmissionLimits {
        per_address: TWO,
        ..UNLIMITED
    };
    let app = app(terms).await;
    let call = |peer: &'static str, token: &'static str, path: &'static str| {
        answer(&app, request(peer, token, path, Body::from("{}")))
    };
    // The first guess uses up everything.
    assert_eq!(call("192.0.2.1:1000", "guess", PATH).await.0, 401);
    for (token, path) in [
        ("guess", PATH),
        ("platform", PATH),
        ("platform", "/nothing"),
    ] {
        let (status, headers, body) = call("192.0.2.1:2000", token, path).await;
        assert_eq!(status, 429, "{body}");
        assert_eq!(headers["retry-after"], "1");
    }
    let mut get = request("192.0.2.1:1", "platform", PATH, Body::empty());
    *get.method_mut() = Method::GET;
    assert_eq!(answer(&app, get).await.0, 429);
    // Others are not hindered, nor is who asks for health.
    assert_eq!(call("192.0.2.2:1000", "platform", PATH).await.0, ADMITTED);
    let mut livez = request("192.0.2.1:1", "", "/livez", Body::empty());
    *livez.method_mut() = Method::GET;
    assert_eq!(answer(&app, livez).await.0, 200);
}

#[tokio::test]
async fn clients_and_operators__should_not_keep_each_other_out() {
    let limits = AdmissionLimits {
        max_in_flight: 2,
        per_token: TWO,
        per_address: TWO,
        ..UNLIMITED
    };
    let api = api_with(|api| api.admission = Admission::new(&limits)).await;
    let clients = router(&api, ApiSide::Clients, &never()).expect("routes");
    let operators = operators_router(&api, Duration::from_secs(60), &never()).expect("routes");
    // Both of this machine, as behind a proxy of clients and over the socket of operators.
    let from_here = "127.0.0.1:1";
    let client = async || {
        let request = request(from_here, "platform", PATH, Body::from("{}"));
        answer(&clients, request).await.0
    };
    let operator = async || {
        let request = request(from_here, "admin", "/admin/v1/listVaults", Body::from("{}"));
        answer(&operators, request).await.0
    };
    let places = [api.admission.enter(), api.admission.enter()];
    assert!(places.iter().all(Result::is_ok));
    assert_eq!(client().await, 503);
    assert_eq!(operator().await, 200);
    drop(places);
    // Each has its own burst of two.
    assert_eq!(
        [client().await, client().await, client().await],
        [ADMITTED, ADMITTED, 429]
    );
    assert_eq!([operator().await, operator().await], [200, 429]);
}

#[tokio::test]
async fn requests_in_work__should_be_bounded_with_those_whose_body_is_on_its_way() {
    let app = app(AdmissionLimits {
        max_in_flight: 1,
        ..UNLIMITED
    })
    .await;
    let never = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
    let slow = request("192.0.2.1:1", "platform", PATH, never);
    let mut slow = Box::pin(app.clone().oneshot(slow));
    assert!(poll!(&mut slow).is_pending());
    let (status, headers, body) = post(PATH, json!({})).of(&app).await;
    assert_eq!(
        (status, &headers["retry-after"]),
        (503, &HeaderValue::from(1))
    );
    assert_eq!(
        body["error"]["message"],
        "too many requests are in progress; try again"
    );
    drop(slow);
    assert_eq!(post(PATH, json!({})).of(&app).await.0, ADMITTED);
}

#[tokio::test]
async fn pages_without_token__should_be_counted() {
    let app = app(AdmissionLimits {
        per_address: TWO,
        ..UNLIMITED
    })
    .await;
    let pages = ["/openapi.json", "/docs", "/docs/start.js"];
    for (index, path) in pages.into_iter().enumerate() {
        let mut get = request("192.0.2.1:1", "", path, Body::empty());
        *get.method_mut() = Method::GET;
        let response = app.clone().oneshot(get).await.expect("answers");
        let expected = if index < 2 { 200 } else { 429 };
        assert_eq!(response.status(), expected, "{path}");
        assert!(response.headers().contains_key(REQUEST_ID));
    }
}

#[tokio::test]
async fn large_body__should_be_refused_before_it_comes() {
    let app = app(UNLIMITED).await;
    for expects in [true, false] {
        // It never comes: only who does not wait for it can answer.
        let never = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
        let mut large = request("192.0.2.1:1", "platform", PATH, never);
        let headers = large.headers_mut();
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("2001"));
        if expects {
            headers.insert(header::EXPECT, HeaderValue::from_static("100-continue"));
        }
        let (status, _, body) = answer(&app, large).await;
        assert_eq!(status, 413, "{body}");
    }
}

#[tokio::test]
async fn headers__should_be_bounded_in_number_and_bytes() {
    let app = app(UNLIMITED).await;
    let with = |count: usize, length: usize, path: &str| {
        let mut request = request("192.0.2.1:1", "platform", path, Body::from("{}"));
        let value = HeaderValue::from_str(&"x".repeat(length)).expect("value");
        for _ in 0..count {
            request.headers_mut().append("x-more", value.clone());
        }
        request
    };
    // Two of its own.
    for (count, length, expected) in [
        (62, 1, ADMITTED),
        (63, 1, 431),
        (1, 16_000, ADMITTED),
        (1, 16_384, 431),
    ] {
        let (status, headers, body) = answer(&app, with(count, length, PATH)).await;
        assert_eq!(status, expected, "{body}");
        assert_eq!(headers["cache-control"], "no-store");
        assert!(body["error"]["message"].is_string(), "{body}");
    }
    let (status, _, body) = answer(&app, with(63, 1, "/v1/sweep/wallets")).await;
    assert_eq!((status, &body["code"]), (431, &json!(431)), "{body}");
}

#[tokio::test]
async fn answers__should_not_be_kept_by_caches() {
    let app = app(UNLIMITED).await;
    let get = |path| TestRequest {
        method: Method::GET,
        ..post(path, json!({}))
    };
    let mut admin = post("/admin/v1/listVaults", json!({}));
    admin.headers[0] = ("x-mtoken", "admin");
    for (request, expected) in [
        (admin, 200),
        (post(PATH, json!({})), 400),
        (post("/v1/sweep/wallets", json!({})), 401),
        (get(PATH), 405),
        (post("/nothing", json!({})), 404),
        (get("/livez"), 200),
        (get("/openapi.json"), 200),
    ] {
        let (status, headers, body) = request.of(&app).await;
        assert_eq!(status, expected, "{body}");
        assert_eq!(headers["cache-control"], "no-store");
    }
}

/// A name that turns the direction of writing looks like another one to who approves it.
#[tokio::test]
async fn names_refs_and_notes__should_not_mislead_who_reads_them() {
    let app = app(UNLIMITED).await;
    let vault = "6f9619ff-8b86-4d01-b42d-00c04fc964ff";
    let raw = json!({"from": "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be", "content": "", "ecdsaHashFunction": 2});
    let recipients =
        json!([{"address": "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be", "amount": "1"}]);
    let batch = json!({
        "chainId": 1, "from": "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be", "recipients": recipients,
    });
    for bad in ["a\u{202e}b", "a\u{0}b"] {
        let mut noted = batch.clone();
        noted["recipients"][0]["notes"] = json!(bad);
        let wallet = |field: &str| json!({"vaultUuid": vault, "networkType": 1, field: bad});
        for (path, body, field) in [
            ("/v1/createWallet", wallet("name"), "name"),
            ("/v1/createWallet", wallet("ref"), "ref"),
            (
                "/v1/updateWallet",
                json!({"address": "a", "name": bad}),
                "name",
            ),
            (
                "/v1/createSigningRequest",
                json!({"rawMessage": raw, "notes": bad}),
                "notes",
            ),
            (
                "/v1/replaceTransaction",
                json!({"uuid": vault, "action": "ACTION_CANCEL", "notes": bad}),
                "notes",
            ),
            (
                "/v1/createBatchPayment",
                json!({"evmBatchSendNative": batch, "name": bad}),
                "name",
            ),
            (
                "/v1/createBatchPayment",
                json!({"evmBatchSendNative": batch, "notes": bad}),
                "notes",
            ),
            (
                "/v1/createBatchPayment",
                json!({"evmBatchSendNative": noted}),
                "evmBatchSendNative.recipients[0].notes",
            ),
            (
                "/admin/v1/createToken",
                json!({"name": bad, "kind": "platform", "allVaults": true, "access": "full"}),
                "name",
            ),
        ] {
            let mut ask = post(path, body);
            if path.starts_with("/admin") {
                ask.headers[0] = ("x-mtoken", "admin");
            }
            let (status, _, answer) = ask.of(&app).await;
            assert_eq!(status, 400, "{path} {answer}");
            let message = answer["error"]["message"].as_str().expect("message");
            assert!(
                message.starts_with(&format!("{field}: must not have")),
                "{path} {answer}"
            );
        }
    }
}

#[tokio::test]
async fn slow_body__should_be_given_up() {
    let api = api_with(|api| api.body_timeout = Duration::from_millis(10)).await;
    let app = both_sides(&api, &never());
    for (path, shape) in [(PATH, "/error/message"), ("/v1/sweep/wallets", "/reason")] {
        let never = futures::stream::pending::<Result<Bytes, std::io::Error>>();
        let request = request("192.0.2.1:1", "platform", path, Body::from_stream(never));
        let (status, _, body) = answer(&app, request).await;
        // Nothing of a sweep body is read without a sweep token.
        let expected = if path == PATH { 408 } else { 401 };
        assert_eq!(status, expected, "{body}");
        assert!(body.pointer(shape).expect("shape").is_string(), "{body}");
    }
}

#[tokio::test]
async fn unavailable__should_say_when_to_try_again() {
    let api = api_with(|_| ()).await;
    let app = both_sides(&api, &never());
    let ready = TestRequest {
        method: Method::GET,
        ..post("/readyz", json!({}))
    };
    let (status, headers, _) = ready.of(&app).await;
    assert_eq!(
        (status, &headers["retry-after"]),
        (503, &HeaderValue::from(1))
    );
}

#[tokio::test]
async fn sweep__should_have_its_own_shape_of_errors_wherever_they_come_from() {
    let app = app(AdmissionLimits {
        per_address: TWO,
        ..UNLIMITED
    })
    .await;
    let paths: Vec<String> = service::operations()
        .expect("schema")
        .iter()
        .filter(|operation| operation.audience() == Audience::Sweep)
        .map(|operation| operation.http_path().to_owned())
        .collect();
    assert_eq!(paths, ["/v1/sweep/wallets", "/v1/sweep/addWatchAddress"]);
    let check = |answer: (u16, HeaderMap, Value), expected: (u16, &str), reason: &str| {
        let (status, _, body) = answer;
        assert_eq!(status, expected.0, "{body}");
        let keys: Vec<_> = body.as_object().expect("object").keys().collect();
        assert_eq!(keys, ["code", "error", "reason"]);
        assert_eq!(body["code"], json!(expected.0));
        assert_eq!(body["error"], json!(expected.1));
        let given = body["reason"].as_str().expect("reason");
        assert!(given.starts_with(reason), "{body}");
    };
    for path in &paths {
        let ask = || post(path, json!({}));
        let get = TestRequest {
            method: Method::GET,
            ..ask()
        };
        let get = get.of(&app).await;
        assert_eq!(get.1["allow"], "POST");
        check(get, (405, "Method Not Allowed"), "wrong method");
        let unauthorized = (401, "Unauthorized");
        for token in ["wrong", "platform"] {
            let mut other = ask();
            other.headers[0].1 = token;
            if token == "wrong" {
                check(other.of(&app).await, unauthorized, "unauthenticated");
            } else {
                let (status, _, body) = other.of(&app).await;
                assert!(matches!(status, 401 | 403), "{body}");
                assert_eq!(body["code"], json!(status));
            }
        }
        // An address of its own per path.
        let peer = if path.ends_with("wallets") {
            "192.0.2.1:1"
        } else {
            "192.0.2.2:1"
        };
        for expected in [unauthorized, (429, "Too Many Requests")] {
            let request = request(peer, "wrong", path, Body::from("{}"));
            check(answer(&app, request).await, expected, "");
        }
    }
    for path in [
        "/v1/sweep",
        "/v1/sweep/",
        "/v1/sweep/wallet",
        "/v1/sweep/wallets/x",
    ] {
        check(
            post(path, json!({})).of(&app).await,
            (404, "Not Found"),
            "unknown path",
        );
    }
    let (_, _, body) = post("/v1/sweeps", json!({})).of(&app).await;
    assert!(body["error"]["message"].is_string(), "{body}");
}

#[tokio::test]
async fn sweep__should_refuse_bodies_in_its_shape() {
    let app = app(UNLIMITED).await;
    let token = json!({"name": "t", "kind": "sweep", "allVaults": true, "access": "full"});
    let mut ask = post("/admin/v1/createToken", token);
    ask.headers[0] = ("x-mtoken", "admin");
    let (_, _, made) = ask.of(&app).await;
    let token = made["secret"].as_str().expect("secret");
    let large = "x".repeat(2001);
    for (body, kind, status, error, reason) in [
        ("{", "application/json", 400, "Bad Request", ""),
        (
            "{\"x\": 1}",
            "application/json",
            400,
            "Bad Request",
            "x: unknown field",
        ),
        (
            "{}",
            "text/plain",
            415,
            "Unsupported Media Type",
            "wrong content type",
        ),
        (
            &large,
            "application/json",
            413,
            "Payload Too Large",
            "the body is larger",
        ),
    ] {
        let ask = TestRequest {
            method: Method::POST,
            path: "/v1/sweep/addWatchAddress",
            headers: vec![("x-mtoken", token), ("content-type", kind)],
            body: body.to_owned(),
        };
        let (given, _, answer) = ask.of(&app).await;
        assert_eq!(given, status, "{answer}");
        assert_eq!(answer["code"], json!(status));
        assert_eq!(answer["error"], json!(error));
        let given = answer["reason"].as_str().expect("reason");
        assert!(given.starts_with(reason) && !given.is_empty(), "{answer}");
    }
}

#[tokio::test]
async fn sweep__should_say_nothing_of_our_own_faults() {
    let operations = service::operations().expect("schema");
    let sweep = operations
        .iter()
        .find(|operation| operation.audience() == Audience::Sweep);
    let failure = HttpError::from(Fault::bug("a secret of ours"));
    let response = failure.into_response(sweep, "r-9");
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let body = axum::body::to_bytes(response.into_body(), 1000).await;
    let body: Value = serde_json::from_slice(&body.expect("body")).expect("json");
    let expected = json!({
        "code": 500, "error": "Internal Server Error", "reason": "internal server error",
    });
    assert_eq!(body, expected);
}
