//! Assertions of passkey-client, good and broken, and how webauthn-rs-core judges each.

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as B64};
use p256::ecdsa::{SigningKey, signature::Signer as _};
use passkey_authenticator::{Authenticator, UiHint, UserCheck, UserValidationMethod};
use passkey_client::{Client, DefaultClientData};
use passkey_crypto::AvailableBackend;
use passkey_types::{Passkey, ctap2, ctap2::Ctap2Error, webauthn};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use url::Url;
use webauthn_rs_core::{
    WebauthnCore,
    proto::{
        AuthenticationState, COSEAlgorithm, Credential, PublicKeyCredential,
        RegisterPublicKeyCredential, UserVerificationPolicy,
    },
};

const RP_ID: &str = "console.example.com";
const ORIGIN: &str = "https://console.example.com";

struct User {
    verified: bool,
}

#[async_trait::async_trait]
impl UserValidationMethod for User {
    type PasskeyItem = Passkey;

    async fn check_user<'a>(
        &self,
        _hint: UiHint<'a, Passkey>,
        presence: bool,
        verification: bool,
    ) -> Result<UserCheck, Ctap2Error> {
        Ok(UserCheck {
            presence,
            verification: verification && self.verified,
        })
    }

    fn is_presence_enabled(&self) -> bool {
        true
    }

    fn is_verification_enabled(&self) -> Option<bool> {
        Some(self.verified)
    }
}

fn challenge() -> [u8; 32] {
    Sha256::digest(b"an approval").into()
}

fn core() -> WebauthnCore {
    let origins = vec![Url::parse(ORIGIN).unwrap()];
    WebauthnCore::new_unsafe_experts_only(
        "Covault",
        RP_ID,
        origins,
        Duration::from_secs(60),
        None,
        None,
    )
}

/// How webauthn-rs-core judges it, where the user must have been verified.
fn judge(credential: &Credential, answer: &Value, expected: &[u8; 32]) -> Result<(), String> {
    let core = core();
    let builder = core
        .new_challenge_authenticate_builder(
            vec![credential.clone()],
            Some(UserVerificationPolicy::Required),
        )
        .map_err(|error| format!("{error:?}"))?;
    let (_, state) = core.generate_challenge_authenticate(builder).unwrap();
    // Its challenges are drawn; ours says what is approved.
    let mut state = serde_json::to_value(&state).unwrap();
    state["challenge"] = json!(B64.encode(expected));
    let state: AuthenticationState = serde_json::from_value(state).unwrap();
    let answer: PublicKeyCredential =
        serde_json::from_value(answer.clone()).map_err(|error| error.to_string())?;
    core.authenticate_credential(&answer, &state)
        .map(|_| ())
        .map_err(|error| format!("{error:?}"))
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let origin = Url::parse(ORIGIN).unwrap();
    let mut vectors = Vec::new();
    let auth = Authenticator::new(
        ctap2::Aaguid::new_empty(),
        None::<Passkey>,
        User { verified: true },
        AvailableBackend,
    );
    let mut client = Client::new(auth);
    // Enrolment: made by the one, taken by the other.
    let core = core();
    let builder = core
        .new_challenge_register_builder(b"treasurer", "treasurer", "treasurer")
        .unwrap()
        .user_verification_policy(UserVerificationPolicy::Required)
        .credential_algorithms(vec![COSEAlgorithm::ES256]);
    let (asked, state) = core.generate_challenge_register(builder).unwrap();
    let mut asked = serde_json::to_value(&asked).unwrap();
    asked["publicKey"].as_object_mut().unwrap().remove("hints");
    let asked: webauthn::CredentialCreationOptions = serde_json::from_value(asked).unwrap();
    let made = client
        .register(&origin, asked, DefaultClientData)
        .await
        .unwrap();
    let spki = made.response.public_key.clone().unwrap().to_vec();
    let id = made.raw_id.clone();
    let mut made = serde_json::to_value(&made).unwrap();
    made.as_object_mut()
        .unwrap()
        .remove("clientExtensionResults");
    let made: RegisterPublicKeyCredential = serde_json::from_value(made).unwrap();
    let credential = core.register_credential(&made, &state, None).unwrap();
    let eligible = credential.backup_eligible;
    let authenticate = |challenge: [u8; 32], verification| webauthn::CredentialRequestOptions {
        public_key: webauthn::PublicKeyCredentialRequestOptions {
            challenge: challenge.to_vec().into(),
            timeout: None,
            rp_id: Some(RP_ID.into()),
            allow_credentials: Some(vec![webauthn::PublicKeyCredentialDescriptor {
                ty: webauthn::PublicKeyCredentialType::PublicKey,
                id: id.clone(),
                transports: None,
            }]),
            user_verification: verification,
            hints: None,
            attestation: Default::default(),
            attestation_formats: Default::default(),
            extensions: Default::default(),
        },
    };
    let key = client.authenticator().store().clone().unwrap().key;
    let d = key
        .params
        .iter()
        .find(|(label, _)| *label == coset::Label::Int(-4))
        .and_then(|(_, value)| value.as_bytes())
        .unwrap()
        .clone();
    let key = SigningKey::from_slice(&d).unwrap();

    let mut add = |name: &str, data: Vec<u8>, client_data: Vec<u8>, signature: Vec<u8>| {
        let answer = json!({
            "id": B64.encode(&*id), "rawId": B64.encode(&*id), "type": "public-key",
            "response": {
                "authenticatorData": B64.encode(&data),
                "clientDataJSON": B64.encode(&client_data),
                "signature": B64.encode(&signature),
                "userHandle": null,
            },
        });
        let judged = judge(&credential, &answer, &challenge());
        eprintln!("{name}: {judged:?}");
        vectors.push(json!({
            "name": name, "rpId": RP_ID, "origin": ORIGIN, "challenge": hex::encode(challenge()),
            "spki": hex::encode(&spki), "backupEligible": eligible,
            "authenticatorData": hex::encode(&data), "clientDataJSON": hex::encode(&client_data),
            "signature": hex::encode(&signature), "good": judged.is_ok(),
        }));
    };
    let required = webauthn::UserVerificationRequirement::Required;
    let made = client
        .authenticate(
            &origin,
            authenticate(challenge(), required),
            DefaultClientData,
        )
        .await
        .unwrap();
    let data = made.response.authenticator_data.to_vec();
    let client_data = made.response.client_data_json.to_vec();
    let signature = made.response.signature.to_vec();
    add(
        "as it was made",
        data.clone(),
        client_data.clone(),
        signature.clone(),
    );
    let other = client
        .authenticate(&origin, authenticate([7; 32], required), DefaultClientData)
        .await
        .unwrap();
    add(
        "of another challenge",
        other.response.authenticator_data.to_vec(),
        other.response.client_data_json.to_vec(),
        other.response.signature.to_vec(),
    );
    let mut flipped = signature.clone();
    *flipped.last_mut().unwrap() ^= 1;
    add(
        "another signature",
        data.clone(),
        client_data.clone(),
        flipped,
    );
    let mut counted = data.clone();
    *counted.last_mut().unwrap() ^= 1;
    add(
        "another counter than was signed",
        counted,
        client_data.clone(),
        signature.clone(),
    );
    let spaced = [client_data.as_slice(), b" "].concat();
    add(
        "other JSON than was signed",
        data.clone(),
        spaced.clone(),
        signature.clone(),
    );
    // With its key, what it does not make by itself.
    let sign = |data: &[u8], client_data: &[u8]| {
        let message = [data, &Sha256::digest(client_data)[..]].concat();
        let signature: p256::ecdsa::Signature = key.sign(&message);
        signature
    };
    let der = |signature: p256::ecdsa::Signature| signature.to_der().as_bytes().to_vec();
    let mut signed = |name: &str, data: Vec<u8>, client_data: Vec<u8>| {
        let signature = der(sign(&data, &client_data));
        add(name, data, client_data, signature);
    };
    signed("space behind the JSON", data.clone(), spaced);
    let flags = |change: u8| {
        let mut data = data.clone();
        data[32] ^= change;
        data
    };
    for (name, change) in [
        ("user not present", 1),
        ("user not verified", 4),
        ("flag BE differs from enrolment", 8),
        ("flag BS differs", 16),
        ("flags BE and BS differ", 24),
        ("flag AT without attested data", 64),
        ("flag ED without extensions", 128),
    ] {
        signed(name, flags(change), client_data.clone());
    }
    let mut rp = data.clone();
    rp[..32].copy_from_slice(&Sha256::digest(b"example.com"));
    signed("of another rp id", rp, client_data.clone());
    signed("a byte less", data[..36].to_vec(), client_data.clone());
    signed(
        "a byte more",
        [data.as_slice(), &[0]].concat(),
        client_data.clone(),
    );
    let text = String::from_utf8(client_data.clone()).unwrap();
    let encoded = B64.encode(challenge());
    for (name, from, to) in [
        ("type webauthn.create", "webauthn.get", "webauthn.create"),
        ("of another origin", ORIGIN, "https://example.com"),
        ("of a subdomain", ORIGIN, "https://a.console.example.com"),
        ("of http", ORIGIN, "http://console.example.com"),
        (
            "of another port",
            ORIGIN,
            "https://console.example.com:8443",
        ),
        (
            "crossOrigin true",
            "\"crossOrigin\":false",
            "\"crossOrigin\":true",
        ),
        ("challenge with padding", &encoded, &format!("{encoded}=")),
        ("an unknown member", "{", "{\"more\":1,"),
        ("type twice", "{", "{\"type\":\"webauthn.get\","),
        ("no object", "{", "["),
    ] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "{name}");
        signed(name, data.clone(), changed.into_bytes());
    }
    let signature = sign(&data, &client_data);
    let (r, s) = signature.split_scalars();
    for high in [false, true] {
        let is_high = bool::from(p256::elliptic_curve::scalar::IsHigh::is_high(&*s));
        let s = if is_high == high { s } else { -s };
        let signature = p256::ecdsa::Signature::from_scalars(r, s).unwrap();
        let name = if high { "a high s" } else { "a low s" };
        add(name, data.clone(), client_data.clone(), der(signature));
    }
    add(
        "a signature not in DER",
        data.clone(),
        client_data.clone(),
        signature.to_bytes().to_vec(),
    );
    let long = [der(signature), vec![0]].concat();
    add(
        "a byte behind the DER",
        data.clone(),
        client_data.clone(),
        long,
    );
    println!("{}", serde_json::to_string_pretty(&vectors).unwrap());
}
