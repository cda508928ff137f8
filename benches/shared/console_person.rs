//! A person of the console without a browser: a passkey in software, over HTTP.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use covault_core::approval::{PasskeyPublicKey, testing::TestPasskey};
use serde_json::{Value, json};

use crate::support::{TestCluster, base64, covault, outcome_of};

/// What comes before a point of P-256 in DER.
const P256_SPKI: &str = "3059301306072a8648ce3d020106082a8648ce3d030107034200";

fn text(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// A person who has enrolled.
pub struct ConsolePerson {
    http: reqwest::Client,
    origin: String,
    passkey: TestPasskey,
    handle: String,
    /// The cookie of the session; empty before signing in.
    cookie: String,
}

impl ConsolePerson {
    /// Creates the user and enrols; the console is at `http://localhost:PORT`, which is its origin.
    pub async fn enrol(cluster: &TestCluster, port: u16, name: &str, role: &str) -> Self {
        let mut command = covault();
        command.args(["user", "create", name, "--role", role, "--all-vaults"]);
        command
            .args(["--config"])
            .arg(cluster.folder.path().join("serve.toml"));
        let (done, out, err) = tokio::task::block_in_place(|| outcome_of(&mut command));
        assert!(done, "{out}{err}");
        let link = out
            .trim()
            .split_once('#')
            .expect("a secret behind #")
            .1
            .to_owned();
        let origin = format!("http://localhost:{port}");
        let passkey = TestPasskey::new(&format!("{name}@key-1"), 1).at("localhost", &[&origin]);
        let mut person = Self {
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
            origin,
            passkey,
            handle: String::new(),
            cookie: String::new(),
        };
        let begun = person.post("/enrol/begin", &json!({"link": link})).await;
        person.handle = begun["publicKey"]["user"]["id"]
            .as_str()
            .unwrap()
            .to_owned();
        let PasskeyPublicKey::Es256(point) = &person.passkey.passkey.public_key else {
            panic!("P-256 alone");
        };
        let key = [hex::decode(P256_SPKI).unwrap().as_slice(), point].concat();
        let new = json!({
            "keyName": person.passkey.passkey.name,
            "credentialId": text(&person.passkey.passkey.credential_id),
            "publicKey": text(&key),
            "backupEligible": false,
        });
        let proof = person.post("/enrol/prove", &new).await;
        let form = json!({"link": link, "passkey": new, "credential": person.answer(&proof)});
        person.post("/enrol", &form).await;
        person
    }

    /// What the passkey makes of a challenge.
    fn answer(&self, options: &Value) -> Value {
        let challenge = options["publicKey"]["challenge"].as_str().unwrap();
        let challenge = BASE64_URL_SAFE_NO_PAD.decode(challenge).unwrap();
        let assertion = self.passkey.assert(&challenge.try_into().unwrap());
        json!({
            "id": text(&self.passkey.passkey.credential_id),
            "response": {
                "authenticatorData": text(&assertion.authenticator_data),
                "clientDataJSON": text(&assertion.client_data_json),
                "signature": text(&assertion.signature),
                "userHandle": self.handle,
            },
        })
    }

    /// A request as the console's own script makes it.
    pub fn posting(&self, path: &str, body: &Value) -> reqwest::RequestBuilder {
        let request = self.http.post(format!("{}{path}", self.origin));
        request
            .header("cookie", &self.cookie)
            .header("origin", &self.origin)
            .header("sec-fetch-site", "same-origin")
            .header("accept", "application/json")
            .json(body)
    }

    async fn post(&self, path: &str, body: &Value) -> Value {
        let answer = self.posting(path, body).send().await.unwrap();
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        assert_eq!(status.as_u16(), 200, "{path}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    /// The form of a try to sign in that is right but for its signature, which another key has made.
    pub async fn wrong_sign_in(&self) -> Value {
        let begun = self.post("/sign-in/begin", &json!({})).await;
        let mut credential = self.answer(&begun);
        let other = TestPasskey::new("another", 2).at("localhost", &[&self.origin]);
        credential["response"]["signature"] = json!(text(&other.assert(&[7; 32]).signature));
        json!({"token": begun["token"], "credential": credential})
    }

    /// Sends such a form as one of many: each from an address of its own, behind the console's proxy, and every other one
    /// with a credential that nobody has. None is refused before its signature is verified.
    pub fn try_of_many(&self, wrong: &Value, number: u64) -> reqwest::RequestBuilder {
        let mut form = wrong.clone();
        if number % 2 == 1 {
            form["credential"]["id"] = json!(text(format!("nobody's {number:032}").as_bytes()));
        }
        let [.., a, b, c] = number.to_be_bytes();
        let address = format!("10.{a}.{b}.{c}");
        self.posting("/sign-in", &form)
            .header("x-forwarded-for", address)
    }

    /// Signs in.
    pub async fn sign_in(&mut self) {
        let begun = self.post("/sign-in/begin", &json!({})).await;
        let form = json!({"token": begun["token"], "credential": self.answer(&begun)});
        let answer = self.posting("/sign-in", &form).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 200);
        let line = answer.headers()["set-cookie"].to_str().unwrap();
        self.cookie = line.split(';').next().unwrap().to_owned();
    }

    /// Where the console is.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The line of the passkey, for rules.
    pub fn line(&self) -> String {
        self.passkey.line().line().unwrap()
    }

    /// The passkey, as the virtual authenticator of a browser takes it.
    pub fn for_a_browser(&self) -> Value {
        let handle = BASE64_URL_SAFE_NO_PAD.decode(&self.handle).unwrap();
        json!({
            "credentialId": base64(&self.passkey.passkey.credential_id),
            "rpId": "localhost",
            "privateKey": base64(self.passkey.pkcs8().unwrap()),
            "userHandle": base64(handle),
        })
    }

    /// A page; the request is not sent yet.
    pub fn page(&self, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.get(format!("{}{path}", self.origin));
        request.header("cookie", &self.cookie)
    }
}
