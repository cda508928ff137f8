//! The whole router, over the real gateway with an empty store and no signer.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use async_trait::async_trait;
use axum::http::Method;
use covault_actors::{
    chain_rpc::ChainClients,
    gateway::Gateway,
    port::{NodeBackup, NodeConfirmations, NodeView, SignerCluster, SigningAttempt},
    settings::{OrchestratorParts, OrchestratorSharing, Settings},
    store::{Store, memory::MemoryStore},
};
use covault_core::{
    approval::Rejection,
    attest::MadeKey,
    derive::RootKey,
    ids::SessionId,
    networks::VerifiedSignatures,
    order::{
        BackupOrder, KeygenOrder, NodeId, ProvenGeneration, ReshareOrder, ReshareOutcome,
        ReshareProof, SigningOrder,
    },
    signature::Curve,
    trace::Tracer,
};
use secrecy::SecretString;
use serde_json::{Value, json};
use tokio::sync::watch;
use tower::ServiceExt as _;

use super::*;
use crate::{
    adapters::{OsEntropy, SystemClock},
    api::{
        admission::{Admission, AdmissionLimits, CallRate},
        auth::Tokens,
        headers::{IDEMPOTENCY_MISMATCH, IDEMPOTENCY_REPLAYED},
        refusals::RefusalLog,
    },
};

/// The generator of the curve: everyone knows its private half.
pub(super) fn known_key(order: &KeygenOrder) -> MadeKey {
    let curve = order.scheme.curve();
    let generator = match curve {
        Curve::Secp256k1 => "0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798",
        Curve::Ed25519 => "5866666666666666666666666666666666666666666666666666666666666666",
    };
    MadeKey {
        root: RootKey {
            curve,
            public_key: hex::decode(generator).expect("hex"),
            chain_code: [7; 32],
        },
        confirmed: vec![vec![7; 64]; order.signers.len()],
    }
}

/// Has root keys and never signs.
#[derive(Default)]
pub(crate) struct NoSigners {
    pub(crate) has_bus: bool,
}

#[async_trait]
impl SignerCluster for NoSigners {
    async fn keygen(&self, order: &KeygenOrder) -> Result<MadeKey, Fault> {
        Ok(known_key(order))
    }

    async fn sign(
        &self,
        _: &SigningOrder,
        _: &SigningAttempt,
    ) -> Result<VerifiedSignatures, Fault> {
        tokio::time::sleep(Duration::from_millis(100)).await;
        Err(Fault::unavailable("no signers"))
    }

    async fn tell_of_rejection(
        &self,
        _: &Rejection,
        _: SessionId,
        _: &[NodeId],
    ) -> Result<(), Fault> {
        Ok(())
    }

    async fn reshare(&self, _: &ReshareOrder) -> Result<ReshareOutcome, Fault> {
        Err(Fault::unavailable("no signers"))
    }

    async fn activate(
        &self,
        _: &ReshareOrder,
        _: &ReshareProof,
        _: &[ProvenGeneration],
        _: &[NodeId],
    ) -> Result<NodeConfirmations, Fault> {
        Err(Fault::unavailable("no signers"))
    }

    async fn backup(&self, _: &BackupOrder) -> Result<Vec<(NodeId, NodeBackup)>, Fault> {
        Err(Fault::unavailable("no signers"))
    }

    fn nodes(&self) -> Vec<NodeView> {
        Vec::new()
    }

    fn is_bus_reachable(&self) -> bool {
        self.has_bus
    }
}

/// A process that never stops.
pub(crate) fn never() -> StopSignal {
    static NEVER: LazyLock<watch::Sender<bool>> = LazyLock::new(|| watch::Sender::new(false));
    NEVER.subscribe()
}

pub(super) async fn app() -> Router {
    app_strict(false).await
}

/// The same, strict with idempotency keys or not.
pub(super) async fn app_strict(strict_idempotency: bool) -> Router {
    app_over(Arc::<NoSigners>::default(), strict_idempotency).await
}

pub(super) async fn app_over(signers: Arc<dyn SignerCluster>, strict_idempotency: bool) -> Router {
    app_of(signers, ChainClients::default(), strict_idempotency).await
}

/// The same with chains, over signers that never sign.
pub(super) async fn app_on(chains: ChainClients) -> Router {
    app_of(Arc::<NoSigners>::default(), chains, false).await
}

async fn app_of(
    signers: Arc<dyn SignerCluster>,
    chains: ChainClients,
    strict_idempotency: bool,
) -> Router {
    let api = api_of(signers, chains, |api| {
        api.strict_idempotency = strict_idempotency;
    });
    both_sides(&api.await, &never())
}

/// The listeners of both sides as one.
pub(crate) fn both_sides(api: &Arc<Api>, stop: &StopSignal) -> Router {
    as_one("/admin/", |side| router(api, side, stop).expect("routes"))
}

/// Both sides as one, by how the paths of operators begin.
pub(crate) fn as_one(for_operators: &'static str, side: impl Fn(ApiSide) -> Router) -> Router {
    let (clients, operators) = (side(ApiSide::Clients), side(ApiSide::Operators));
    Router::new().fallback(move |request: Request| {
        let is_for_operators = request.uri().path().starts_with(for_operators);
        let side = if is_for_operators {
            &operators
        } else {
            &clients
        };
        let side = side.clone();
        async move { side.oneshot(request).await.expect("an answer") }
    })
}

/// An API that was changed in something, over signers that never sign.
pub(crate) async fn api_with(change: impl FnOnce(&mut Api)) -> Arc<Api> {
    api_of(Arc::<NoSigners>::default(), ChainClients::default(), change).await
}

pub(crate) async fn api_of(
    signers: Arc<dyn SignerCluster>,
    chains: ChainClients,
    change: impl FnOnce(&mut Api),
) -> Arc<Api> {
    api_on(Arc::new(MemoryStore::new()), signers, chains, change).await
}

/// The same on this store.
pub(crate) async fn api_on(
    store: Arc<dyn Store>,
    signers: Arc<dyn SignerCluster>,
    chains: ChainClients,
    change: impl FnOnce(&mut Api),
) -> Arc<Api> {
    let gateway = Gateway::start(OrchestratorParts {
        store,
        signers,
        clock: Arc::new(SystemClock),
        entropy: Arc::new(OsEntropy),
        chains,
        settings: Settings {
            signing_deadline_ms: 50,
            execute_wait_ms: 1000,
            console_origin: "https://console.example.com".to_owned(),
            ..Settings::default()
        },
        webhooks: Default::default(),
        sharing: OrchestratorSharing::default(),
    })
    .await
    .expect("starts");
    let mut api = Api {
        tracer: Tracer::default(),
        gateway,
        tokens: Tokens::new(
            &SecretString::from("platform"),
            Some(&SecretString::from("admin")),
        ),
        admission: Admission::new(&UNLIMITED),
        refusals: Arc::new(RefusalLog::new()),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(OsEntropy),
        max_body_bytes: 2000,
        body_timeout: Duration::from_secs(60),
        trusted_proxies: 1,
        strict_idempotency: false,
    };
    change(&mut api);
    Arc::new(api)
}

/// No limit but on what is in progress.
pub(crate) const UNLIMITED: AdmissionLimits = AdmissionLimits {
    max_in_flight: 1000,
    max_in_flight_bytes: 1 << 20,
    max_unread_bytes: 1 << 30,
    max_listeners: 1000,
    per_token: CallRate {
        per_second: 0,
        burst: 0,
    },
    per_address: CallRate {
        per_second: 0,
        burst: 0,
    },
};

pub(super) struct TestRequest<'a> {
    pub method: Method,
    pub path: &'a str,
    pub headers: Vec<(&'a str, &'a str)>,
    pub body: String,
}

/// A well-formed POST with the platform token.
pub(super) fn post<'a>(path: &'a str, body: Value) -> TestRequest<'a> {
    TestRequest {
        method: Method::POST,
        path,
        headers: vec![
            ("x-mtoken", "platform"),
            ("content-type", "application/json"),
        ],
        body: body.to_string(),
    }
}

impl TestRequest<'_> {
    pub async fn of(self, app: &Router) -> (u16, HeaderMap, Value) {
        let mut request = Request::builder().method(self.method).uri(self.path);
        for (name, value) in self.headers {
            request = request.header(name, value);
        }
        let request = request.body(Body::from(self.body)).expect("request");
        let response = app.clone().oneshot(request).await.expect("answers");
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        assert!(!headers[REQUEST_ID].is_empty());
        let body = axum::body::to_bytes(response.into_body(), 1 << 20)
            .await
            .expect("body");
        (
            status,
            headers,
            serde_json::from_slice(&body).expect("every answer is JSON"),
        )
    }
}

#[tokio::test]
async fn refusals_of_http__should_have_the_shape_of_the_platform() {
    let app = app().await;
    let path = "/v1/getSigningRequestDetails";
    let ask = || post(path, json!({"uuid": "x"}));
    let without = |name: &str| {
        let mut ask = ask();
        ask.headers.retain(|(header, _)| *header != name);
        ask
    };
    let with = |name: &'static str, value: &'static str| {
        let mut ask = without(name);
        ask.headers.push((name, value));
        ask
    };
    let and = |name: &'static str, value: &'static str| {
        let mut ask = ask();
        ask.headers.push((name, value));
        ask
    };
    let method = |method: Method| TestRequest { method, ..ask() };
    let body = |text: &str| TestRequest {
        body: text.to_owned(),
        ..ask()
    };
    let large = "x".repeat(2001);
    for (ask, expected) in [
        (without("x-mtoken"), 401),
        (and("x-mtoken", "platform"), 401),
        (and("content-encoding", "gzip"), 415),
        (with("x-mtoken", "wrong"), 401),
        (with("x-mtoken", "admin"), 403),
        (method(Method::GET), 405),
        (method(Method::DELETE), 405),
        (without("content-type"), 415),
        (with("content-type", "text/plain"), 415),
        (body(&large), 413),
        (body("{"), 400),
        (body(""), 400),
        (body("[]"), 400),
        (self::post("/v1/getSigningRequestDetail", json!({})), 404),
        (self::post("/", json!({})), 404),
        (self::post("/admin/v1/listVaults", json!({})), 403),
        (self::post("/livez", json!({})), 405),
    ] {
        let (method, path) = (ask.method.clone(), ask.path);
        let (status, headers, body) = ask.of(&app).await;
        assert_eq!(status, expected, "{method} {path}: {body}");
        assert!(body["error"]["message"].is_string(), "{body}");
        let has_shape = path == "/v1/getSigningRequestDetails";
        assert_eq!(body.get("signingRequest").is_some(), has_shape, "{body}");
        assert_eq!(headers.contains_key("allow"), expected == 405);
    }
}

#[tokio::test]
async fn request_id__should_come_back() {
    let app = app().await;
    let mut ask = post("/v1/getWalletList", json!({}));
    ask.headers.push(("x-request-id", "my-id"));
    let (_, headers, _) = ask.of(&app).await;
    assert_eq!(headers[REQUEST_ID], "my-id");
}

#[tokio::test]
async fn readiness__should_need_the_bus() {
    let app = app().await;
    let get = |path| TestRequest {
        method: Method::GET,
        path,
        headers: Vec::new(),
        body: String::new(),
    };
    assert_eq!(get("/livez").of(&app).await.0, 200);
    let (status, _, body) = get("/readyz").of(&app).await;
    assert_eq!((status, &body["ready"]), (503, &json!(false)));
    assert!(body["reason"].as_str().expect("reason").contains("bus"));
    assert!(body["store"].is_null(), "it was not asked for: {body}");
    let (status, _, body) = get("/readyz?verbose").of(&app).await;
    assert_eq!((status, &body["ready"]), (503, &json!(false)));
    assert_eq!(body["bus"], "the bus cannot be reached", "{body}");
    assert_eq!(
        (&body["store"], &body["clients"]),
        (&json!("ok"), &json!("ok")),
        "{body}"
    );
    assert_eq!(body["leaving"], false, "{body}");
    assert!(
        body["signers"]["live"].is_u64() && body["chains"].is_object(),
        "{body}"
    );
}

#[tokio::test]
async fn admin__should_tell_vaults_and_refuse_what_is_no_key() {
    let app = app().await;
    let admin = |path, body| {
        let mut ask = post(path, body);
        ask.headers[0] = ("x-mtoken", "admin");
        ask
    };
    let (status, _, body) = admin("/admin/v1/listVaults", json!({})).of(&app).await;
    assert_eq!((status, body), (200, json!({"vaults": []})));
    let (status, _, body) = admin("/admin/v1/listNodes", json!({})).of(&app).await;
    assert_eq!((status, &body["nodes"]), (200, &json!([])));
    assert_eq!(body["wantToJoin"], json!([]));
    for operation in ["/admin/v1/admitNode", "/admin/v1/removeNode"] {
        let (status, _, body) = admin(operation, json!({"publicKey": "ssh-rsa AAAA"}))
            .of(&app)
            .await;
        assert_eq!(status, 400);
        let message = body["error"]["message"].as_str().expect("message");
        assert!(message.starts_with("publicKey: "), "{body}");
    }
    let key = signer(9).openssh_line("");
    let node = json!({"publicKey": key, "name": "vienna"});
    let (status, _, body) = admin("/admin/v1/admitNode", node).of(&app).await;
    assert_eq!(status, 200, "{body}");
    let expected = json!({"publicKey": key, "name": "vienna", "live": false, "lastSeenMs": null,
        "version": "", "keys": 0, "bans": [], "clockSkewMs": "0", "halted": [], "frozenVaults": []});
    assert_eq!(body["node"], expected);
    let (_, _, body) = admin("/admin/v1/listNodes", json!({})).of(&app).await;
    assert_eq!(body["nodes"], json!([expected]));
    let (status, _, body) = admin("/admin/v1/removeNode", json!({"publicKey": key}))
        .of(&app)
        .await;
    assert_eq!((status, body), (200, json!({})));
    let vault = json!({"name": "v", "threshold": 2, "signers": ["ssh-rsa AAAA"],
        "approvals": {"mode": "automatic"}});
    let (status, _, body) = admin("/admin/v1/createVault", vault).of(&app).await;
    assert_eq!(status, 400);
    assert!(
        body["error"]["message"]
            .as_str()
            .expect("message")
            .starts_with("signers[0]"),
        "{body}"
    );
    let (status, _, body) = admin("/admin/v1/listNodes", json!({"x": 1})).of(&app).await;
    assert_eq!(status, 400, "{body}");
}

#[tokio::test]
async fn create_vault__should_take_an_ecdsa_backend_that_is_built_and_name_the_others() {
    let app = app_strict(false).await;
    let key = |last: u8| signer(last).openssh_line("");
    for seed in 1..=2 {
        let mut ask = post("/admin/v1/admitNode", json!({"publicKey": key(seed)}));
        ask.headers[0] = ("x-mtoken", "admin");
        assert_eq!(ask.of(&app).await.0, 200);
    }
    let create = async |name: &str, backend: Value| {
        let vault = json!({
            "name": name, "threshold": 2, "signers": [key(1), key(2)], "ecdsaBackend": backend,
            "approvals": {"mode": "automatic"},
        });
        let mut ask = post("/admin/v1/createVault", vault);
        ask.headers[0] = ("x-mtoken", "admin");
        let (status, _, body) = ask.of(&app).await;
        (status, body)
    };
    for backend in [Value::Null, json!("dkls23")] {
        let (status, body) = create("v", backend).await;
        assert_eq!(
            (status, &body["vault"]["ecdsaBackend"]),
            (200, &json!("dkls23")),
            "{body}"
        );
    }
    for other in ["frost-ed25519", "gg18", ""] {
        let (status, body) = create("w", json!(other)).await;
        assert_eq!(status, 400, "{body}");
        let message = body["error"]["message"].as_str().expect("message");
        assert_eq!(message, "ecdsaBackend: must be dkls23 or cggmp24");
    }
    let (status, body) = create("w", json!("cggmp24")).await;
    if cfg!(feature = "cggmp24") {
        assert_eq!(
            (status, &body["vault"]["ecdsaBackend"]),
            (200, &json!("cggmp24")),
            "{body}"
        );
    } else {
        assert_eq!(status, 400, "{body}");
        let message = body["error"]["message"].as_str().expect("message");
        assert!(
            message.starts_with("ecdsaBackend: cggmp24 is not in this build"),
            "{message}"
        );
        assert!(message.contains("--features cggmp24"), "{message}");
    }
}

/// A vault that is ready.
pub(crate) async fn vault(app: &Router) -> String {
    vault_named(app, "v").await
}

pub(super) async fn vault_named(app: &Router, name: &str) -> String {
    let key = |last: u8| signer(last).openssh_line("");
    let body = json!({"name": name, "threshold": 2, "signers": [key(1), key(2), key(3)],
        "approvals": {"mode": "automatic"}});
    for seed in 1..=3 {
        let mut ask = post("/admin/v1/admitNode", json!({"publicKey": key(seed)}));
        ask.headers[0] = ("x-mtoken", "admin");
        assert_eq!(ask.of(app).await.0, 200);
    }
    loop {
        let mut ask = post("/admin/v1/createVault", body.clone());
        ask.headers[0] = ("x-mtoken", "admin");
        let (status, _, answer) = ask.of(app).await;
        assert_eq!(status, 200, "{answer}");
        if answer["vault"]["ready"] == json!(true) {
            return answer["vault"]["uuid"].as_str().expect("uuid").to_owned();
        }
        tokio::task::yield_now().await;
    }
}

pub(crate) fn signer(seed: u8) -> covault_core::order::NodeId {
    use covault_mpc::identity::NodeIdentity;
    NodeIdentity::generate(&covault_core::testing::ConstantEntropy(seed)).id()
}

#[tokio::test]
async fn idempotency_key__should_give_the_first_answer_again() {
    for strict in [false, true] {
        let app = app_strict(strict).await;
        let vault = vault(&app).await;
        let create = |key: &'static str, name: &'static str| {
            let body = json!({"vaultUuid": vault, "networkType": "NETWORK_TYPE_EVM", "name": name});
            let mut ask = post("/v1/createWallet", body);
            ask.headers.push(("idempotency-key", key));
            ask.of(&app)
        };
        let (status, headers, first) = create("a", "one").await;
        assert_eq!(status, 200, "{first}");
        assert_eq!(first["error"], Value::Null);
        assert!(!headers.contains_key(IDEMPOTENCY_REPLAYED));
        let (status, headers, again) = create("a", "one").await;
        assert_eq!((status, &again), (200, &first));
        assert_eq!(headers[IDEMPOTENCY_REPLAYED], "true");
        assert!(!headers.contains_key(IDEMPOTENCY_MISMATCH));
        let (status, headers, other) = create("a", "two").await;
        if strict {
            assert_eq!(status, 422, "{other}");
        } else {
            assert_eq!((status, &other), (200, &first));
            assert_eq!(headers[IDEMPOTENCY_MISMATCH], "true");
        }
        let (_, _, second) = create("b", "one").await;
        assert_ne!(second["details"]["address"], first["details"]["address"]);
    }
}

#[tokio::test]
async fn failed_request__should_be_reported_by_execute_with_status_200() {
    let app = app().await;
    let vault = vault(&app).await;
    let body = json!({"vaultUuid": vault, "networkType": "NETWORK_TYPE_SOLANA"});
    let (_, _, wallet) = post("/v1/createWallet", body).of(&app).await;
    let from = &wallet["details"]["address"];
    let body = json!({"solanaMessage": {"from": from, "content": "aGk"}});
    let (status, _, created) = post("/v1/createSigningRequest", body).of(&app).await;
    assert_eq!(
        (status, &created["signingRequest"]["status"]),
        (200, &json!("STATUS_PENDING"))
    );
    let uuid = json!({"uuid": created["signingRequest"]["uuid"]});
    let (status, _, outcome) = post("/v1/executeSigningRequests", uuid.clone())
        .of(&app)
        .await;
    assert_eq!(status, 200, "{outcome}");
    assert_eq!(outcome["signatures"], Value::Null);
    let code = &outcome["error"]["executeSigningRequestsErrorCode"];
    assert_eq!(*code, "EXECUTE_SIGNING_REQUESTS_ERROR_CODE_UNSPECIFIED");
    let (_, _, details) = post("/v1/getSigningRequestDetails", uuid).of(&app).await;
    assert_eq!(details["signingRequest"]["status"], "STATUS_FAILED");
    assert_eq!(
        details["signingRequest"]["failedReason"],
        outcome["error"]["message"]
    );
    assert_eq!(
        details["signingRequest"]["solanaMessage"]["content"],
        "aGk="
    );
}
