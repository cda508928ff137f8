//! The console over its whole router: a person with a passkey, and everyone else.

#![allow(non_snake_case)]

mod attacks;
mod batches;
mod earlier_tries;
mod fees;
mod gestures;
mod lists;
mod pages;
mod people;
mod reads;
mod tokens;

use axum::{
    body::Body,
    http::{HeaderMap, Request},
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use covault_actors::chain_rpc::ChainClients;
use covault_actors::operations::{
    AdmitNode, CreateSigningRequest, CreateUser, CreateVault, CreateWallet, LinkUser, Operation,
    RevokeUser, SignOutUser,
};
use covault_actors::store::{Store, memory::MemoryStore};
use covault_core::{
    amount::U256,
    approval::{
        PasskeyPublicKey, WebAuthnAssertion,
        testing::{ORIGIN, RP_ID, TestPasskey},
    },
    schema::{admin, wire},
};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::*;
use crate::http::tests::routes::{NoSigners, api_on, never, signer};

/// What a client is answered.
pub struct Said {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Said {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("{}", self.text))
    }
}

/// Sends a request with these headers.
pub async fn send(
    app: &Router,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: String,
) -> Said {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body)).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let body = axum::body::to_bytes(response.into_body(), 1 << 22)
        .await
        .unwrap();
    Said {
        status,
        headers,
        text: String::from_utf8(body.to_vec()).unwrap(),
    }
}

/// A console, and the service behind it.
pub struct World {
    pub api: Arc<Api>,
    app: Router,
}

/// A person with a passkey, who may have signed in.
pub struct PersonWithPasskey {
    pub passkey: TestPasskey,
    pub handle: String,
    pub cookie: String,
    pub form_token: String,
    pub line: String,
}

/// base64url, as browsers write it.
pub fn text(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// The challenge of options.
pub fn challenge(options: &Value) -> [u8; 32] {
    let challenge = options["publicKey"]["challenge"].as_str().unwrap();
    let challenge = BASE64_URL_SAFE_NO_PAD.decode(challenge).unwrap();
    challenge.try_into().unwrap()
}

/// What the script sends of an assertion.
pub fn credential(passkey: &TestPasskey, assertion: &WebAuthnAssertion, handle: &str) -> Value {
    json!({
        "id": text(&passkey.passkey.credential_id),
        "response": {
            "authenticatorData": text(&assertion.authenticator_data),
            "clientDataJSON": text(&assertion.client_data_json),
            "signature": text(&assertion.signature),
            "userHandle": handle,
        },
    })
}

/// The answer to options.
pub fn answer(passkey: &TestPasskey, options: &Value, handle: &str) -> Value {
    credential(passkey, &passkey.assert(&challenge(options)), handle)
}

impl World {
    pub async fn new() -> Self {
        Self::behind(0).await
    }

    /// Behind so many proxies.
    pub async fn behind(trusted_proxies: usize) -> Self {
        Self::with(trusted_proxies, ChainClients::default()).await
    }

    /// With chains.
    pub async fn with(trusted_proxies: usize, chains: ChainClients) -> Self {
        Self::on(Arc::new(MemoryStore::new()), trusted_proxies, chains).await
    }

    /// On a store.
    pub async fn on(store: Arc<dyn Store>, trusted_proxies: usize, chains: ChainClients) -> Self {
        Self::with_api(store, trusted_proxies, chains, |_| {}).await
    }

    /// With another API.
    pub async fn with_api(
        store: Arc<dyn Store>,
        trusted_proxies: usize,
        chains: ChainClients,
        change: impl FnOnce(&mut Api),
    ) -> Self {
        let api = api_on(store, Arc::<NoSigners>::default(), chains, |api| {
            api.max_body_bytes = 1 << 20;
            api.trusted_proxies = 0;
            change(api);
        })
        .await;
        let place = PageOrigin {
            origin: ORIGIN.to_owned(),
            rp_id: RP_ID.to_owned(),
            trusted_proxies,
        };
        let setting = |path: &str, value: &str, origin: &str| ShownSetting {
            path: path.to_owned(),
            value: value.to_owned(),
            origin: origin.to_owned(),
        };
        let settings = vec![
            setting("serve.listen", "\"127.0.0.1:8080\"", "default"),
            setting("serve.simulate", "false", "covault.toml"),
            setting(
                "bus.redis_url",
                "\"redis://redis:6379/(hidden)\"",
                "COVAULT_BUS_REDIS_URL",
            ),
        ];
        let app = router(&api, place, settings, &never());
        Self { api, app }
    }

    /// A request with these headers.
    pub async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Said {
        send(&self.app, method, path, headers, body).await
    }

    pub async fn get(&self, path: &str, cookie: &str) -> Said {
        let cookie = format!("{}={cookie}", sessions::COOKIE);
        self.send("GET", path, &[("cookie", &cookie)], String::new())
            .await
    }

    /// What the script posts.
    pub async fn post(&self, path: &str, cookie: &str, body: &Value) -> Said {
        let cookie = format!("{}={cookie}", sessions::COOKIE);
        let headers = [
            ("cookie", cookie.as_str()),
            ("origin", ORIGIN),
            ("sec-fetch-site", "same-origin"),
            ("content-type", "application/json"),
            ("accept", "application/json"),
        ];
        self.send("POST", path, &headers, body.to_string()).await
    }

    /// What an operator, or a program with a token for everything, calls.
    pub async fn call<O: Operation>(&self, request: &O::Request) -> O::Response {
        let caller = Caller::service("test");
        let called = self
            .api
            .gateway
            .call_typed::<O>(&caller, request, None)
            .await;
        called.unwrap().0
    }

    /// The secret of a link for a new person.
    pub async fn invite(&self, name: &str, role: &str, vaults: &[&str]) -> String {
        let request = admin::CreateUserRequest {
            name: name.into(),
            role: role.into(),
            vaults: vaults.iter().map(|&vault| vault.to_owned()).collect(),
            all_vaults: vaults.is_empty(),
        };
        secret(self.call::<CreateUser>(&request).await.link)
    }

    /// The secret of another link.
    pub async fn link(&self, name: &str) -> String {
        let request = admin::LinkUserRequest { name: name.into() };
        secret(self.call::<LinkUser>(&request).await.link)
    }

    pub async fn revoke(&self, name: &str) {
        let request = admin::RevokeUserRequest { name: name.into() };
        self.call::<RevokeUser>(&request).await;
    }

    /// The whole of an enrolment: user handle, and what the page shows.
    pub async fn enrol(&self, passkey: &TestPasskey, link: &str) -> (String, Said) {
        let begun = self.post("/enrol/begin", "", &json!({"link": link})).await;
        assert_eq!(begun.status, 200, "{}", begun.text);
        let begun = begun.json();
        let handle = begun["publicKey"]["user"]["id"]
            .as_str()
            .unwrap()
            .to_owned();
        let new = new_passkey(passkey);
        let proof = self.post("/enrol/prove", "", &new).await;
        assert_eq!(proof.status, 200, "{}", proof.text);
        let proof = answer(passkey, &proof.json(), &handle);
        let body = json!({"link": link, "passkey": new, "credential": proof});
        (handle, self.post("/enrol", "", &body).await)
    }

    /// Signs in; the answer.
    pub async fn try_sign_in(&self, passkey: &TestPasskey, handle: &str, cookie: &str) -> Said {
        let begun = self.post("/sign-in/begin", cookie, &json!({})).await.json();
        let credential = answer(passkey, &begun, handle);
        let body = json!({"token": begun["token"], "credential": credential});
        self.post("/sign-in", cookie, &body).await
    }

    /// A person who has enrolled and signed in.
    pub async fn person(&self, name: &str, role: &str, vaults: &[&str]) -> PersonWithPasskey {
        let link = self.invite(name, role, vaults).await;
        let passkey = TestPasskey::new(&format!("{name}@key-1"), 1);
        let (handle, enrolled) = self.enrol(&passkey, &link).await;
        assert_eq!(enrolled.status, 200, "{}", enrolled.text);
        let line = enrolled.json()["line"].as_str().unwrap().to_owned();
        let signed_in = self.try_sign_in(&passkey, &handle, "").await;
        assert_eq!(signed_in.status, 200, "{}", signed_in.text);
        let cookie = cookie_of(&signed_in);
        let page = self.get("/account", &cookie).await;
        PersonWithPasskey {
            passkey,
            handle,
            form_token: form_token(&page),
            cookie,
            line,
        }
    }

    /// A vault with keys, whose requests so many of these people approve.
    pub async fn vault(&self, name: &str, needs: u32, people: &[(&str, &str)]) -> String {
        for seed in 1..=3 {
            let request = admin::AdmitNodeRequest {
                public_key: signer(seed).openssh_line(""),
                name: String::new(),
            };
            self.call::<AdmitNode>(&request).await;
        }
        let approver = |(name, line): &(&str, &str)| admin::Approver {
            name: (*name).to_owned(),
            keys: vec![(*line).to_owned()],
        };
        let request = admin::CreateVaultRequest {
            name: name.into(),
            threshold: 2,
            signers: (1..=3).map(|seed| signer(seed).openssh_line("")).collect(),
            approvals: Some(admin::ApprovalRule {
                mode: "manual".into(),
                needs,
                of: people.iter().map(approver).collect(),
                ..Default::default()
            }),
            ..Default::default()
        };
        loop {
            let vault = self.call::<CreateVault>(&request).await.vault.unwrap();
            if vault.ready {
                return vault.uuid;
            }
            tokio::task::yield_now().await;
        }
    }

    pub async fn wallet(&self, vault: &str, name: &str) -> String {
        let request = wire::CreateWalletRequest {
            vault_uuid: vault.into(),
            network_type: wire::NetworkType::Evm.into(),
            name: name.into(),
            ..Default::default()
        };
        self.call::<CreateWallet>(&request)
            .await
            .details
            .unwrap()
            .address
    }

    /// A payment of so many wei that waits for people, on a chain without nodes.
    pub async fn payment(&self, from: &str, to: &str, wei: u128, notes: &str) -> String {
        let kind = wire::create_signing_request_request::Type::EvmSendNative(wire::EvmSendNative {
            chain_id: 987_654_321,
            from: from.into(),
            to: to.into(),
            value: wei.to_string(),
            gas_fee: Some(wire::EvmGas {
                max_fee: Some("100".into()),
                max_priority_fee: Some("1".into()),
                gas_limit: Some("21000".into()),
                ..Default::default()
            }),
            nonce: Some(0),
        });
        let request = wire::CreateSigningRequestRequest {
            notes: Some(notes.into()),
            r#type: Some(kind),
            ..Default::default()
        };
        let made = self.call::<CreateSigningRequest>(&request).await;
        made.signing_request.unwrap().uuid
    }

    /// A call of a contract that pays an address a wei so many times, which waits for people.
    pub async fn many_payments(&self, from: &str, to: u8, times: u64) -> String {
        let word = |number: u64| U256::from(number).to_be_bytes::<32>();
        let mut data = hex::decode("e63d38ed").unwrap();
        for number in [64, 64 + 32 * (times + 1), times] {
            data.extend(word(number));
        }
        (0..times).for_each(|_| data.extend(word(to.into())));
        data.extend(word(times));
        (0..times).for_each(|_| data.extend(word(1)));
        let kind = wire::create_signing_request_request::Type::EvmSendCustom(wire::EvmSendCustom {
            chain_id: 987_654_321,
            from: from.into(),
            to: "0xD152f549545093347A162Dce210e7293f1452150".into(),
            value: times.to_string(),
            input: data,
            gas_fee: Some(wire::EvmGas {
                max_fee: Some("100".into()),
                max_priority_fee: Some("1".into()),
                gas_limit: Some("2100000".into()),
                ..Default::default()
            }),
            nonce: Some(0),
        });
        let request = wire::CreateSigningRequestRequest {
            r#type: Some(kind),
            ..Default::default()
        };
        let made = self.call::<CreateSigningRequest>(&request).await;
        made.signing_request.unwrap().uuid
    }

    /// A message of this wallet that waits for people.
    pub async fn message(&self, from: &str, content: &str, notes: &str) -> String {
        let kind = wire::create_signing_request_request::Type::EvmMessage(wire::EvmMessage {
            chain_id: 1,
            from: from.into(),
            content: content.into(),
            r#type: Default::default(),
        });
        let request = wire::CreateSigningRequestRequest {
            notes: Some(notes.into()),
            r#type: Some(kind),
            ..Default::default()
        };
        let made = self.call::<CreateSigningRequest>(&request).await;
        made.signing_request.unwrap().uuid
    }
}

fn secret(link: Option<admin::UserLink>) -> String {
    let url = link.unwrap().url;
    let (page, secret) = url.split_once('#').unwrap();
    assert_eq!(page, format!("{ORIGIN}/enrol"));
    secret.to_owned()
}

/// What the script says of a passkey that was made.
pub fn new_passkey(passkey: &TestPasskey) -> Value {
    let begin = "3059301306072a8648ce3d020106082a8648ce3d030107034200";
    let PasskeyPublicKey::Es256(point) = &passkey.passkey.public_key else {
        panic!("P-256 alone");
    };
    let der = [hex::decode(begin).unwrap().as_slice(), point].concat();
    json!({
        "keyName": passkey.passkey.name,
        "credentialId": text(&passkey.passkey.credential_id),
        "publicKey": text(&der),
        "backupEligible": passkey.passkey.backup_eligible,
    })
}

/// The cookie that an answer sets.
pub fn cookie_of(said: &Said) -> String {
    let line = said.headers["set-cookie"].to_str().unwrap();
    let (pair, terms) = line.split_once("; ").unwrap();
    assert!(
        terms.starts_with("Path=/; Secure; HttpOnly; SameSite=Strict"),
        "{terms}"
    );
    pair.strip_prefix("__Host-covault-session=")
        .unwrap()
        .to_owned()
}

/// The token in the forms of a page.
pub fn form_token(page: &Said) -> String {
    let begin = "name=\"form_token\" value=\"";
    let (_, rest) = page
        .text
        .split_once(begin)
        .unwrap_or_else(|| panic!("{}", page.text));
    rest.split('"').next().unwrap().to_owned()
}
