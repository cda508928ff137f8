//! A client of the platform API.

use super::outside;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

/// An HTTP client that trusts nothing beyond this machine.
pub fn http_client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    // Connections are not kept: one that the server closes for being idle breaks the next call.
    reqwest::Client::builder()
        .no_proxy()
        .pool_max_idle_per_host(0)
        .build()
        .unwrap()
}

/// The platform API with one token.
#[derive(Clone)]
pub struct ApiClient {
    pub base: String,
    pub token: String,
    http: reqwest::Client,
}

/// A status and a body.
pub type StatusAndBody = (u16, Value);

impl ApiClient {
    pub fn new(base: &str, token: &str) -> Self {
        Self {
            base: base.to_owned(),
            token: token.to_owned(),
            http: http_client(),
        }
    }

    /// The answer to one operation, or `None` when no answer came (the service was killed).
    pub async fn attempt(&self, operation: &str, body: &Value) -> Option<StatusAndBody> {
        let response = self
            .http
            .post(format!("{}/v1/{operation}", self.base))
            .header("x-mtoken", &self.token)
            .json(body)
            .send()
            .await
            .ok()?;
        let status = response.status().as_u16();
        Some((status, response.json().await.ok()?))
    }

    /// As [`ApiClient::attempt`], with an idempotency key.
    pub async fn keyed(&self, operation: &str, body: &Value, key: &str) -> Option<StatusAndBody> {
        let response = self
            .http
            .post(format!("{}/v1/{operation}", self.base))
            .header("x-mtoken", &self.token)
            .header("idempotency-key", key)
            .json(body)
            .send()
            .await
            .ok()?;
        let status = response.status().as_u16();
        Some((status, response.json().await.ok()?))
    }

    pub async fn post(&self, operation: &str, body: Value) -> StatusAndBody {
        self.attempt(operation, &body)
            .await
            .unwrap_or_else(|| panic!("{operation}: no JSON answer"))
    }

    /// An operation that must succeed.
    pub async fn ok(&self, operation: &str, body: Value) -> Value {
        let (status, answer) = self.post(operation, body.clone()).await;
        assert_eq!(status, 200, "{operation} {body}: {answer}");
        assert_eq!(answer["error"], Value::Null, "{operation} {body}: {answer}");
        answer
    }

    pub async fn raw(
        &self,
        path: &str,
        build: impl FnOnce(reqwest::RequestBuilder) -> reqwest::RequestBuilder,
    ) -> reqwest::Response {
        build(self.http.post(format!("{}{path}", self.base)))
            .send()
            .await
            .unwrap()
    }

    pub async fn get(&self, path: &str) -> u16 {
        match self.http.get(format!("{}{path}", self.base)).send().await {
            Ok(response) => response.status().as_u16(),
            Err(_) => 0,
        }
    }

    /// A new wallet's address.
    pub async fn wallet(&self, vault: &str, network: &str) -> String {
        let answer = self
            .ok(
                "createWallet",
                json!({"vaultUuid": vault, "networkType": network}),
            )
            .await;
        answer["details"]["address"].as_str().unwrap().to_owned()
    }

    /// Creates a request and gives its uuid.
    pub async fn create(&self, body: Value) -> String {
        let answer = self.ok("createSigningRequest", body).await;
        assert_eq!(
            answer["signingRequest"]["status"], "STATUS_PENDING",
            "{answer}"
        );
        answer["signingRequest"]["uuid"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// How a request ended.
    pub async fn execute(&self, uuid: &str) -> Value {
        let (status, answer) = self
            .post("executeSigningRequests", json!({"uuid": uuid}))
            .await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// Creates and executes a request that must succeed.
    pub async fn sign(&self, body: Value) -> Value {
        let uuid = self.create(body).await;
        let outcome = self.execute(&uuid).await;
        assert_eq!(outcome["error"], Value::Null, "{outcome}");
        outcome
    }

    pub async fn details(&self, uuid: &str) -> Value {
        self.ok("getSigningRequestDetails", json!({"uuid": uuid}))
            .await["signingRequest"]
            .clone()
    }
}

pub fn base64(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

/// Outside libraries find that an outcome's ECDSA signature of the SHA-256 of this content (base64) is
/// this account's.
pub fn assert_ecdsa(outcome: &Value, content: &str, account: &str, what: &str) {
    let digest = outside("sha256", json!({"content": content}))["digest"].clone();
    let signature = &first_signature(outcome)["ecdsaSignature"];
    let question = json!({"digest": digest, "signature": signature});
    let signer = outside("recover", question)["address"].clone();
    assert_eq!(signer, json!(account), "{what}");
}

/// Outside libraries accept an outcome's Ed25519 signature of this content (base64) by this address.
pub fn assert_ed25519(outcome: &Value, content: &str, address: &str, what: &str) {
    let signature = &first_signature(outcome)["eddsaSignature"];
    let question = json!({"content": content, "signature": signature, "address": address});
    assert_eq!(outside("ed25519", question)["valid"], json!(true), "{what}");
}

/// The first signature of an outcome.
pub fn first_signature(outcome: &Value) -> &Value {
    let signature = &outcome["signatures"]["signatures"][0];
    assert!(signature.is_object(), "no signature in {outcome}");
    signature
}
