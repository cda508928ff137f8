//! Tokens of the store at the routes: what each kind opens, and where from.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tracing_subscriber::filter::LevelFilter;

use super::{
    routes::{TestRequest, app, post, vault},
    *,
};
use crate::{api::address::Peer, log_capture::LogCapture};

async fn admin(app: &Router, operation: &str, body: Value) -> (u16, Value) {
    let path = format!("/admin/v1/{operation}");
    let mut ask = post(&path, body);
    ask.headers[0] = ("x-mtoken", "admin");
    let (status, _, body) = ask.of(app).await;
    (status, body)
}

/// A new token: its text and its id.
async fn made(app: &Router, token: Value) -> (String, String) {
    let (status, body) = admin(app, "createToken", token).await;
    assert_eq!(status, 200, "{body}");
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    (text(&body["secret"]), text(&body["token"]["id"]))
}

fn token(name: &str, kind: &str) -> Value {
    json!({"name": name, "kind": kind, "allVaults": true, "access": "full"})
}

async fn status(app: &Router, path: &str, token: &str) -> u16 {
    let mut ask = post(path, json!({}));
    ask.headers[0] = ("x-mtoken", token);
    let (status, ..) = ask.of(app).await;
    status
}

const PLATFORM: &str = "/v1/getWalletList";
const SWEEP: &str = "/v1/sweep/wallets";
const ADMIN: &str = "/admin/v1/listTokens";

#[tokio::test]
async fn tokens__should_open_what_they_are_for() {
    let app = app().await;
    let (platform, id) = made(&app, token("shop", "platform")).await;
    let (sweep, _) = made(&app, token("deposits", "sweep")).await;
    let last = if platform.ends_with('x') { "y" } else { "x" };
    let broken = format!("{}{last}", &platform[..platform.len() - 1]);
    // 400: the token was taken and the body looked at.
    for (token, expected) in [
        (platform.as_str(), [400, 401, 403]),
        (&sweep, [403, 400, 403]),
        ("platform", [400, 401, 403]),
        ("admin", [403, 401, 200]),
        (&broken, [401, 401, 401]),
        ("cvp_", [401, 401, 401]),
        ("", [401, 401, 401]),
    ] {
        for (path, expected) in [PLATFORM, SWEEP, ADMIN].iter().zip(expected) {
            assert_eq!(status(&app, path, token).await, expected, "{token} {path}");
        }
    }
    // At once.
    let (ok, body) = admin(&app, "revokeToken", json!({"token": id})).await;
    assert_eq!((ok, body["token"]["revokedAtMs"].is_string()), (200, true));
    for path in [PLATFORM, SWEEP, ADMIN] {
        assert_eq!(status(&app, path, &platform).await, 401, "{path}");
    }
    let (_, listed) = admin(&app, "listTokens", json!({})).await;
    assert_eq!(listed["tokens"].as_array().map(Vec::len), Some(2));
    let shown = listed.to_string();
    assert!(!shown.contains("cvp_") && !shown.contains("cvs_") && !shown.contains("hash"));
}

#[tokio::test]
async fn missing_unknown_and_malformed_tokens__should_get_one_answer() {
    let app = app().await;
    let (good, id) = made(&app, token("shop", "platform")).await;
    admin(&app, "revokeToken", json!({"token": id})).await;
    let mut answers = Vec::new();
    for token in [
        None,
        Some(""),
        Some("x"),
        Some("cvp_x"),
        Some(good.as_str()),
    ] {
        let mut ask = post(PLATFORM, json!({}));
        ask.headers.retain(|(name, _)| *name != "x-mtoken");
        ask.headers.extend(token.map(|token| ("x-mtoken", token)));
        let (status, _, body) = ask.of(&app).await;
        answers.push((status, body));
    }
    assert_eq!(answers[0].0, 401);
    assert!(
        answers.iter().all(|answer| *answer == answers[0]),
        "{answers:?}"
    );
}

#[tokio::test]
async fn allowlist__should_hold_for_the_client_behind_trusted_proxies() {
    let inner = app().await;
    let mut wanted = token("shop", "platform");
    wanted["allow"] = json!(["192.0.2.0/24", "2001:db8::/32"]);
    let (token, id) = made(&inner, wanted).await;
    let from = async |peer: &str, forwarded: Option<&str>| {
        let peer = Peer(peer.parse().expect("peer"));
        let app = inner.clone().layer(Extension(peer));
        let mut ask = post(PLATFORM, json!({}));
        ask.headers[0] = ("x-mtoken", &token);
        ask.headers
            .extend(forwarded.map(|line| ("x-forwarded-for", line)));
        let (status, _, body) = ask.of(&app).await;
        if status == 403 {
            assert_eq!(body["error"]["message"], "IP is not allowed");
        }
        status
    };
    // One proxy is trusted: what it appended counts, whatever the client wrote.
    let proxy = "10.0.0.1:4000";
    for (peer, forwarded, expected) in [
        (proxy, Some("192.0.2.9"), 400),
        (proxy, Some("203.0.113.1, 192.0.2.9"), 400),
        (proxy, Some("2001:db8::7"), 400),
        (proxy, Some("192.0.2.9, 203.0.113.1"), 403),
        (proxy, Some("192.0.2.9, garbage"), 403),
        (proxy, None, 403),
        ("192.0.2.9:4000", None, 400),
        ("[::ffff:192.0.2.9]:4000", None, 400),
    ] {
        assert_eq!(
            from(peer, forwarded).await,
            expected,
            "{peer} {forwarded:?}"
        );
    }
    // An address that is not known is on no list.
    assert_eq!(status(&inner, PLATFORM, &token).await, 403);
    // The token comes first.
    admin(&inner, "revokeToken", json!({"token": id})).await;
    assert_eq!(from(proxy, Some("203.0.113.1")).await, 401);
}

#[tokio::test]
async fn scope_and_access__should_hold_at_the_routes() {
    let app = app().await;
    let vault = vault(&app).await;
    let mut wanted = token("reader", "platform");
    wanted["access"] = json!("read-only");
    let (reader, _) = made(&app, wanted).await;
    let wanted = json!({"name": "scoped", "kind": "platform", "access": "full", "vaults": [vault]});
    let (scoped, _) = made(&app, wanted).await;
    let wallet = json!({"vaultUuid": vault, "networkType": "NETWORK_TYPE_EVM"});
    let call = async |token: &str, path: &str, body: &Value| {
        let mut ask: TestRequest = post(path, body.clone());
        ask.headers[0] = ("x-mtoken", token);
        let (status, _, body) = ask.of(&app).await;
        (status, body["error"]["message"].clone())
    };
    assert_eq!(call(&scoped, "/v1/createWallet", &wallet).await.0, 200);
    let refused = (403, json!("this token is read-only"));
    assert_eq!(call(&reader, "/v1/createWallet", &wallet).await, refused);
    let uuid = json!({"uuid": vault});
    assert_eq!(
        call(&reader, "/v1/executeSigningRequests", &uuid).await,
        refused
    );
    let list = json!({"vaultUuid": vault});
    assert_eq!(call(&reader, PLATFORM, &list).await.0, 200);
    let elsewhere = json!({"vaultUuid": "7c9e6679-7425-40de-944b-e07fc1f90ae7"});
    assert_eq!(call(&scoped, PLATFORM, &elsewhere).await.0, 403);
}

#[tokio::test]
async fn create_token__should_name_the_field_that_is_wrong() {
    let app = app().await;
    let with = |field: &str, value: Value| {
        let mut token = token("shop", "platform");
        token[field] = value;
        token
    };
    for (request, start) in [
        (with("name", json!("")), "name: "),
        (with("kind", json!("root")), "kind: "),
        (with("kind", json!("admin")), "role: "),
        (with("access", json!("write")), "access: "),
        (with("allow", json!(["192.0.2.0/24", "x"])), "allow[1]: "),
        (with("allVaults", json!(false)), "vaults: "),
        (with("vaults", json!(["x"])), "vaults: "),
        (
            json!({"name": "a", "kind": "sweep", "access": "full", "vaults": ["x"]}),
            "vaults[0]: ",
        ),
        (with("expiresAtMs", json!(1)), "expiresAtMs: "),
        (with("secret", json!("x")), "secret: unknown field"),
    ] {
        let (status, body) = admin(&app, "createToken", request).await;
        let message = body["error"]["message"].as_str().expect("message");
        assert!(
            status == 400 && message.starts_with(start),
            "{start} {body}"
        );
    }
}

#[tokio::test]
async fn sweep__should_make_a_deposit_wallet_once_it_is_configured() {
    let app = app().await;
    let vault = vault(&app).await;
    let (token, id) = made(&app, token("deposits", "sweep")).await;
    let call = async |path: &str, body: Value| {
        let mut ask = post(path, body);
        ask.headers[0] = ("x-mtoken", &token);
        let (status, _, body) = ask.of(&app).await;
        (status, body)
    };
    let wallet = json!({"network": "EVM", "ref": "order-1"});
    assert_eq!(call(SWEEP, wallet.clone()).await.0, 400);
    let target = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";
    let evm = json!({"token": id, "network": "EVM", "vaultUuid": vault, "target": target});
    let (status, body) = admin(&app, "configureSweep", evm).await;
    assert_eq!(status, 200, "{body}");
    let tron = json!({"token": id, "network": "TRON", "webhook": "https://example.com/hook"});
    let (status, mut body) = admin(&app, "configureSweep", tron).await;
    assert_eq!(status, 200, "{body}");
    // The secret of its webhooks is shown once.
    let secret = body.as_object_mut().unwrap().remove("webhookSecret");
    assert!(secret.unwrap().as_str().unwrap().starts_with("whsec_"));
    let expected = json!([
        {"network": "EVM", "vaultUuid": vault, "target": target, "webhook": null, "assets": []},
        {"network": "TRON", "vaultUuid": null, "target": null, "webhook": "https://example.com/hook", "assets": []},
    ]);
    assert_eq!(body["networks"], expected);
    let (_, shown) = admin(&app, "showSweep", json!({"token": "deposits"})).await;
    assert_eq!(shown, body);
    let (status, made) = call(SWEEP, wallet.clone()).await;
    assert_eq!(status, 200, "{made}");
    assert_eq!(
        (&made["network"], &made["ref"]),
        (&json!("EVM"), &json!("order-1"))
    );
    assert_eq!(call(SWEEP, wallet).await, (200, made));
    let tron = "TR7NHqjeKQxGTCi8q8ZY4pL8otSzgjLj6t";
    let (status, watch) = call(
        "/v1/sweep/addWatchAddress",
        json!({"network": "TRON", "address": tron}),
    )
    .await;
    assert_eq!((status, &watch["address"]), (200, &json!(tron)), "{watch}");
    assert!(watch["uuid"].is_string());
}

#[tokio::test]
async fn refused_admin_tokens__should_be_in_the_log_by_name_and_never_as_they_are() {
    let app = app().await;
    let written = LogCapture::start(LevelFilter::INFO);
    let admin_token = |name: &str, allow: &str| {
        json!({"name": name, "kind": "admin", "role": "viewer", "allow": [allow],
            "expiresAtMs": "4000000000000"})
    };
    let (anna, _) = made(&app, admin_token("anna", "127.0.0.1")).await;
    let (bert, _) = made(&app, admin_token("bert", "192.0.2.0/24")).await;
    let (carl, id) = made(&app, admin_token("carl", "127.0.0.1")).await;
    admin(&app, "revokeToken", json!({"token": id})).await;
    let (shop, _) = made(&app, token("shop", "platform")).await;
    let here = app.layer(Extension(Peer(SocketAddr::from(([127, 0, 0, 1], 1)))));
    let lines = || written.lines("refused a call for its admin token");
    const REVOKE: &str = "/admin/v1/revokeToken";
    for (path, token, expected, words) in [
        // A viewer gives no commands, nor reads the audit log, whoever has the token.
        (
            REVOKE,
            &anna,
            403,
            ["anna", "revokeToken", "read_only_token"],
        ),
        (
            ADMIN,
            &bert,
            403,
            ["bert", "listTokens", "IP is not allowed"],
        ),
        (ADMIN, &carl, 401, ["carl", "listTokens", "is revoked"]),
        (
            ADMIN,
            &"guess".to_owned(),
            401,
            ["127.0.0.1", "listTokens", "unauthenticated"],
        ),
        (
            ADMIN,
            &shop,
            403,
            ["shop", "listTokens", "use an admin token"],
        ),
    ] {
        let before = lines().len();
        for _ in 0..3 {
            assert_eq!(status(&here, path, token).await, expected, "{words:?}");
        }
        let said = lines();
        assert_eq!(said.len(), before + 1, "{words:?}: {said:#?}");
        for word in words {
            assert!(said[before].contains(word), "{word}: {}", said[before]);
        }
    }
    // What is refused to clients is not of interest here, but for an admin token that is tried there.
    let before = lines().len();
    assert_eq!(status(&here, PLATFORM, "guess").await, 401);
    assert_eq!(status(&here, ADMIN, &anna).await, 200);
    assert_eq!(lines().len(), before);
    let elsewhere = here.layer(Extension(Peer(SocketAddr::from(([127, 0, 0, 9], 1)))));
    assert_eq!(status(&elsewhere, PLATFORM, &anna).await, 403);
    for secret in [&anna, &bert, &carl, &shop, "guess"] {
        assert!(!written.text().contains(secret), "{secret}");
    }
}
