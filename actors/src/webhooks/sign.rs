//! Keys, secrets and the headers with the signatures of webhooks.

use std::fmt;

use base64::{
    Engine as _,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use covault_core::{fault::Fault, order::NodeId};
use ed25519_dalek::{Signer as _, SigningKey};
use hmac::{Hmac, Mac as _};
use secrecy::SecretString;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// What a secret of Standard Webhooks begins with.
const SECRET_PREFIX: &str = "whsec_";

/// The Ed25519 keys of the service: the present one, and while keys are changed the next one. They are erased when
/// dropped.
pub struct WebhookKeys {
    keys: Vec<SigningKey>,
}

impl fmt::Debug for WebhookKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WebhookKeys({})", self.keys.len())
    }
}

impl WebhookKeys {
    /// Of the seeds of the present key, and of the next one while keys are changed.
    pub fn new(present: &[u8; 32], next: Option<&[u8; 32]>) -> Self {
        let seeds = [Some(present), next].into_iter().flatten();
        Self {
            keys: seeds.map(SigningKey::from_bytes).collect(),
        }
    }

    /// The public keys.
    pub fn public(&self) -> Vec<[u8; 32]> {
        let keys = self.keys.iter();
        keys.map(|key| key.verifying_key().to_bytes()).collect()
    }

    fn sign(&self, message: &[u8]) -> impl Iterator<Item = String> {
        let keys = self.keys.iter();
        keys.map(|key| BASE64_STANDARD.encode(key.sign(message).to_bytes()))
    }
}

/// The secret of a token's webhooks, by which its receiver checks `v1`.
#[derive(Clone)]
pub struct WebhookSecret([u8; 32]);

impl WebhookSecret {
    /// Of its bytes.
    pub fn new(secret: [u8; 32]) -> Self {
        Self(secret)
    }

    /// As Standard Webhooks write it: `whsec_` and base64.
    pub fn text(&self) -> SecretString {
        format!("{SECRET_PREFIX}{}", BASE64_STANDARD.encode(self.0)).into()
    }

    fn mac(&self, message: &[u8]) -> Result<String, Fault> {
        let mac = Hmac::<Sha256>::new_from_slice(&self.0).map_err(Fault::bug)?;
        let mac = mac.chain_update(message).finalize();
        Ok(BASE64_STANDARD.encode(mac.into_bytes()))
    }
}

impl Drop for WebhookSecret {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.0);
    }
}

/// The headers of a webhook: `Signature` over the raw body, and those of Standard Webhooks, with the HMAC of the secret
/// and a signature of each key, over id, time and body.
///
/// # Errors
/// [`covault_core::fault::Class::Bug`] when there is no key.
pub fn headers(
    keys: &WebhookKeys,
    secret: &WebhookSecret,
    id: &str,
    now_ms: u64,
    body: &[u8],
) -> Result<[(&'static str, String); 5], Fault> {
    let seconds = now_ms / 1_000;
    let signed = [format!("{id}.{seconds}.").as_bytes(), body].concat();
    let mut signatures = vec![format!("v1,{}", secret.mac(&signed)?)];
    signatures.extend(
        keys.sign(&signed)
            .map(|signature| format!("v1a,{signature}")),
    );
    let over_body = keys.sign(body).next();
    Ok([
        (
            "Signature",
            over_body.ok_or_else(|| Fault::bug("webhooks without a key"))?,
        ),
        ("Signature-Algorithm", "Ed25519".to_owned()),
        ("webhook-id", id.to_owned()),
        ("webhook-timestamp", seconds.to_string()),
        ("webhook-signature", signatures.join(" ")),
    ])
}

/// Public keys as a JWK set (RFC 8037), each with its OpenSSH line.
pub fn key_set(public: &[[u8; 32]]) -> Value {
    let key = |public: &[u8; 32]| {
        json!({
            "kty": "OKP",
            "crv": "Ed25519",
            "alg": "EdDSA",
            "use": "sig",
            "kid": hex::encode(Sha256::digest(public).get(..8).unwrap_or_default()),
            "x": BASE64_URL_SAFE_NO_PAD.encode(public),
            "ssh": NodeId(*public).openssh_line("covault-webhooks"),
        })
    };
    json!({"keys": public.iter().map(key).collect::<Vec<_>>()})
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use ed25519_dalek::{Signature, Verifier as _};
    use secrecy::ExposeSecret as _;

    use super::*;

    #[test]
    fn headers__should_verify_by_each_key_and_by_the_secret() {
        let keys = WebhookKeys::new(&[1; 32], Some(&[2; 32]));
        let secret = WebhookSecret::new([3; 32]);
        let body = br#"{"id":"evt_1"}"#;
        let headers = headers(&keys, &secret, "evt_1", 1_700_000_000_999, body).unwrap();
        let header = |name: &str| {
            let found = headers.iter().find(|(header, _)| *header == name);
            found.unwrap().1.clone()
        };
        assert_eq!(header("webhook-timestamp"), "1700000000");
        assert_eq!(
            (header("webhook-id"), header("Signature-Algorithm")),
            ("evt_1".into(), "Ed25519".into())
        );
        let verifies = |seed: u8, message: &[u8], signature: &str| {
            let key = SigningKey::from_bytes(&[seed; 32]).verifying_key();
            let signature = BASE64_STANDARD.decode(signature).unwrap();
            let signature = Signature::from_slice(&signature).unwrap();
            key.verify(message, &signature).is_ok()
        };
        assert!(verifies(1, body, &header("Signature")));
        let signed = [b"evt_1.1700000000.".as_slice(), body].concat();
        let all = header("webhook-signature");
        let [v1, first, second] = all.split(' ').collect::<Vec<_>>().try_into().unwrap();
        assert!(verifies(1, &signed, first.strip_prefix("v1a,").unwrap()));
        assert!(verifies(2, &signed, second.strip_prefix("v1a,").unwrap()));
        assert!(!verifies(2, &signed, first.strip_prefix("v1a,").unwrap()));
        // By the text that the receiver got.
        let text = secret.text();
        let bytes = BASE64_STANDARD
            .decode(text.expose_secret().strip_prefix("whsec_").unwrap())
            .unwrap();
        let mac = Hmac::<Sha256>::new_from_slice(&bytes)
            .unwrap()
            .chain_update(&signed);
        let given = BASE64_STANDARD
            .decode(v1.strip_prefix("v1,").unwrap())
            .unwrap();
        assert!(mac.verify_slice(&given).is_ok());
    }

    #[test]
    fn key_set__should_be_that_of_rfc_8037() {
        // RFC 8037, appendix A.2.
        let public = BASE64_URL_SAFE_NO_PAD
            .decode("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo")
            .unwrap();
        let set = key_set(&[public.try_into().unwrap()]);
        let key = &set["keys"][0];
        assert_eq!(key["x"], "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo");
        assert_eq!(
            (&key["kty"], &key["crv"]),
            (&json!("OKP"), &json!("Ed25519"))
        );
        let line = key["ssh"].as_str().unwrap();
        assert!(NodeId::parse_openssh_line(line).is_ok(), "{line}");
    }

    #[test]
    fn secrets__should_not_be_shown() {
        let keys = WebhookKeys::new(&[1; 32], None);
        assert_eq!(format!("{keys:?}"), "WebhookKeys(1)");
    }
}
