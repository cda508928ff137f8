//! `GET /v1/events` over the whole router.

use std::time::Duration;

use axum::http::Method;
use futures::StreamExt as _;
use serde_json::{Value, json};
use tokio::{sync::watch, time::timeout};
use tower::ServiceExt as _;

use super::{
    routes::{TestRequest, UNLIMITED, api_with, both_sides, never, post, vault_named},
    *,
};
use crate::api::admission::{Admission, AdmissionLimits};

const PATH: &str = "/v1/events";
const LONG: Duration = Duration::from_secs(20);

/// An event as it is on the wire.
#[derive(Debug, Default, PartialEq)]
struct Told {
    id: Option<String>,
    event: Option<String>,
    data: Value,
}

/// A listener.
struct Ears {
    body: axum::body::BodyDataStream,
    text: String,
}

impl Ears {
    async fn open(app: &Router, headers: &[(&str, &str)]) -> Self {
        let mut request = Request::builder().uri(PATH);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).expect("request");
        let response = app.clone().oneshot(request).await.expect("answers");
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        assert_eq!(response.headers()["x-accel-buffering"], "no");
        Self {
            body: response.into_body().into_data_stream(),
            text: String::new(),
        }
    }

    /// The next event that is more than a comment; `None` at the end.
    async fn next(&mut self) -> Option<Told> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let mut told = Told::default();
                for line in event.lines() {
                    match line.split_once(": ") {
                        Some(("id", id)) => told.id = Some(id.to_owned()),
                        Some(("event", event)) => told.event = Some(event.to_owned()),
                        Some(("data", data)) => told.data = serde_json::from_str(data).expect(data),
                        _ => {}
                    }
                }
                self.text = rest.to_owned();
                return Some(told);
            }
            let chunk = timeout(LONG, self.body.next()).await.expect("in time")?;
            let chunk = chunk.expect("body").to_vec();
            self.text += &String::from_utf8(chunk).expect("text");
        }
    }

    /// The next event about this request.
    async fn about(&mut self, uuid: &str) -> Told {
        loop {
            let told = self.next().await.expect("an event");
            if told.data["uuid"] == uuid {
                return told;
            }
        }
    }
}

/// A request that nobody signs.
async fn create(app: &Router, from: &str) -> String {
    let body = json!({"evmMessage": {"chainId": "1", "from": from, "content": "aGVsbG8="}});
    let (status, _, body) = post("/v1/createSigningRequest", body).of(app).await;
    assert_eq!(status, 200, "{body}");
    body["signingRequest"]["uuid"].as_str().unwrap().to_owned()
}

/// A vault with an EVM wallet.
async fn wallet(app: &Router, name: &str) -> (String, String) {
    let vault = vault_named(app, name).await;
    let body = json!({"vaultUuid": vault, "networkType": "NETWORK_TYPE_EVM", "name": name});
    let (status, _, body) = post("/v1/createWallet", body).of(app).await;
    assert_eq!(status, 200, "{body}");
    let address = body["details"]["address"].as_str().unwrap().to_owned();
    (vault, address)
}

const MINE: [(&str, &str); 1] = [("x-mtoken", "platform")];

#[tokio::test]
async fn events__should_tell_what_has_changed_and_nothing_that_is_secret() {
    let api = api_with(|_| ()).await;
    let app = both_sides(&api, &never());
    let mut ears = Ears::open(&app, &MINE).await;
    let first = ears.next().await.expect("a position");
    assert!(first.id.is_some() && first.event.is_none(), "{first:?}");
    let (vault, from) = wallet(&app, "w").await;
    let uuid = create(&app, &from).await;
    let told = ears.about(&uuid).await;
    assert_eq!(told.event.as_deref(), Some("request"));
    let data = told.data.as_object().expect("object");
    let names: Vec<_> = data.keys().map(String::as_str).collect();
    let mut expected = [
        "uuid",
        "vaultUuid",
        "kind",
        "status",
        "pendingOperation",
        "requiredApprovalCount",
        "remainingApprovalCount",
        "timestamp",
    ];
    expected.sort_unstable();
    let mut names = names;
    names.sort_unstable();
    assert_eq!(names, expected);
    assert_eq!(data["vaultUuid"], json!(vault));
    assert_eq!(data["kind"], "evmMessage");
    assert!(!told.data.to_string().contains(&from));
    // No signer signs it in time.
    let mut last = told;
    while last.data["status"] == "STATUS_PENDING" {
        last = ears.about(&uuid).await;
    }
    assert_eq!(last.data["status"], "STATUS_FAILED");
    assert_eq!(last.data["pendingOperation"], "");

    // Who comes back hears all of it again, also where another process has sent the id.
    let first = first.id.expect("an id");
    let (at, rest) = first.split_once('-').expect("parts");
    let (follower, number) = rest.split_once('-').expect("parts");
    let other = format!(
        "{at}-{:016x}-{number}",
        u64::from_str_radix(follower, 16).expect("hex") ^ 1
    );
    for id in [first.clone(), other] {
        let headers = [MINE[0], ("last-event-id", id.as_str())];
        let mut again = Ears::open(&app, &headers).await;
        while again.about(&uuid).await.data["status"] == "STATUS_PENDING" {}
    }
    // And who is behind the last one nothing of it.
    let id = last.id.expect("an id");
    let headers = [MINE[0], ("last-event-id", id.as_str())];
    let mut again = Ears::open(&app, &headers).await;
    let next = create(&app, &from).await;
    loop {
        let told = again.next().await.expect("an event");
        assert_ne!(told.data["uuid"], uuid);
        if told.data["uuid"] == next {
            break;
        }
    }
}

#[tokio::test]
async fn tokens__should_hear_of_their_vaults_only_until_they_are_revoked() {
    let api = api_with(|_| ()).await;
    let app = both_sides(&api, &never());
    let (mine, from) = wallet(&app, "mine").await;
    let other = vault_named(&app, "other").await;
    let admin = async |path: &str, body: Value| {
        let mut ask = post(path, body);
        ask.headers = vec![("x-mtoken", "admin"), ("content-type", "application/json")];
        let (status, _, body) = ask.of(&app).await;
        assert_eq!(status, 200, "{body}");
        body
    };
    let listen = async |name: &str, vault: &str| {
        let body =
            json!({"name": name, "kind": "platform", "vaults": [vault], "access": "read-only"});
        let made = admin("/admin/v1/createToken", body).await;
        let token = made["secret"].as_str().expect("token").to_owned();
        let mut ears = Ears::open(&app, &[("x-mtoken", &token)]).await;
        ears.next().await.expect("a position");
        ears
    };
    let mut deaf = listen("deaf", &other).await;
    let mut ears = listen("ears", &mine).await;
    let seen = create(&app, &from).await;
    while ears.about(&seen).await.data["status"] == "STATUS_PENDING" {}
    for name in ["ears", "deaf"] {
        admin("/admin/v1/revokeToken", json!({"token": name})).await;
    }
    let after = create(&app, &from).await;
    while let Some(told) = ears.next().await {
        assert_ne!(told.data["uuid"], after);
    }
    while let Some(told) = deaf.next().await {
        assert_eq!(told.data, Value::Null);
    }
}

#[tokio::test]
async fn ids__should_be_ours_and_of_the_last_day() {
    let api = api_with(|_| ()).await;
    let app = both_sides(&api, &never());
    let ask = async |headers: Vec<(&str, &str)>, method| {
        let ask = TestRequest {
            method,
            path: PATH,
            headers,
            body: String::new(),
        };
        ask.of(&app).await
    };
    for id in [
        "x",
        "1",
        "1-2-3",
        "-1-0000000000000000-1",
        "+1-0000000000000000-1",
    ] {
        let (status, _, body) = ask(vec![MINE[0], ("last-event-id", id)], Method::GET).await;
        assert_eq!(status, 400, "{id}");
        let said = body["error"]["message"].as_str().unwrap();
        assert!(said.starts_with("Last-Event-ID: "), "{said}");
    }
    for (headers, expected) in [
        (vec![], 401),
        (vec![("x-mtoken", "wrong")], 401),
        (vec![("x-mtoken", "admin")], 403),
    ] {
        assert_eq!(ask(headers, Method::GET).await.0, expected);
    }
    assert_eq!(ask(vec![MINE[0]], Method::POST).await.0, 405);
    let now = api.clock.now_ms();
    for at in [0, now - 25 * 60 * 60 * 1000, now + 60 * 60 * 1000, u64::MAX] {
        let id = format!("{at}-0000000000000001-1");
        let mut ears = Ears::open(&app, &[MINE[0], ("last-event-id", &id)]).await;
        let told = ears.next().await.expect("an event");
        assert_eq!(told.event.as_deref(), Some("reset"), "{at}");
        assert!(told.id.is_some());
    }
    let id = format!("{}-0000000000000001-1", now - 23 * 60 * 60 * 1000);
    let mut ears = Ears::open(&app, &[MINE[0], ("last-event-id", &id)]).await;
    assert_eq!(ears.next().await.expect("an event").event, None);
}

#[tokio::test]
async fn listeners__should_be_bounded_leave_their_place_and_end_with_the_process() {
    let limits = AdmissionLimits {
        max_listeners: 3,
        ..UNLIMITED
    };
    let api = api_with(|api| api.admission = Admission::new(&limits)).await;
    let (stop, stopped) = watch::channel(false);
    let app = both_sides(&api, &stopped);
    let mut ears = Ears::open(&app, &MINE).await;
    let other = Ears::open(&app, &MINE).await;
    let refused = async || {
        let ask = TestRequest {
            method: Method::GET,
            path: PATH,
            headers: MINE.to_vec(),
            body: String::new(),
        };
        ask.of(&app).await
    };
    let (status, headers, body) = refused().await;
    assert_eq!(status, 503, "{body}");
    assert!(headers.contains_key("retry-after"));
    assert_eq!(api.gateway.listeners(), 2);
    drop(other);
    let next = Ears::open(&app, &MINE).await;
    assert_eq!(api.gateway.listeners(), 2);
    stop.send(true).expect("listens");
    while ears.next().await.is_some() {}
    drop((ears, next));
    assert_eq!(api.gateway.listeners(), 0);
}
