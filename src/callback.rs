//! The callback of a client signer: a POST with the request, signed, to which 200 alone is a yes.

use std::{net::IpAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use async_trait::async_trait;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use covault_core::{
    port::Clock,
    schema::{json, wire},
};
use covault_mpc::{identity::NodeIdentity, node::SigningCallback};
use hmac::{Hmac, Mac as _};
use prost::Message as _;
use reqwest::{StatusCode, Url, header::CONTENT_TYPE, redirect::Policy};
use secrecy::{ExposeSecret as _, SecretString};
use sha2::Sha256;

use crate::config::{CallbackFormat, CallbackSettings};

/// How long it has to answer. Its body is not waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// What a secret of Standard Webhooks begins with.
const SECRET_PREFIX: &str = "whsec_";

/// The program behind a URL.
pub struct HttpCallback {
    http: reqwest::Client,
    url: Url,
    format: CallbackFormat,
    identity: Arc<NodeIdentity>,
    secret: Option<Hmac<Sha256>>,
    clock: Arc<dyn Clock>,
}

/// A URL that can be called. An invalid one is not repeated: it may hold a password.
///
/// # Errors
/// When it is neither http nor https.
pub fn http_url(text: &str) -> anyhow::Result<Url> {
    let url = Url::parse(text).ok();
    let url = url.filter(|url| matches!(url.scheme(), "http" | "https"));
    url.context("callback-url must be an http or https URL")
}

impl HttpCallback {
    /// A callback that is asked in this node's name.
    ///
    /// # Errors
    /// When URL or secret cannot be used.
    pub fn new(
        settings: CallbackSettings,
        identity: Arc<NodeIdentity>,
        clock: Arc<dyn Clock>,
    ) -> anyhow::Result<Self> {
        let url = http_url(&settings.url)?;
        if url.scheme() == "http" && !is_near(&url) {
            tracing::warn!(
                "callback-url is http to another network: anyone on the network path could approve every request; use https"
            );
        }
        let http = reqwest::Client::builder()
            // Whoever else it leads to, or goes through, is not who was named.
            .redirect(Policy::none())
            .no_proxy()
            // A connection that the other side has just closed would be a no, for good.
            .pool_max_idle_per_host(0)
            .build()
            .context("no HTTP client for the callback")?;
        Ok(Self {
            http,
            url,
            format: settings.format,
            identity,
            secret: settings.secret.as_ref().map(secret).transpose()?,
            clock,
        })
    }

    /// The headers that show who asks: contract of webhooks, with the request as id.
    fn signatures(&self, id: &str, body: &[u8]) -> [(&'static str, String); 5] {
        let seconds = self.clock.now_ms() / 1000;
        let signed = [format!("{id}.{seconds}.").as_bytes(), body].concat();
        let base64 = |bytes: &[u8]| BASE64_STANDARD.encode(bytes);
        let mut signatures = format!("v1a,{}", base64(&self.identity.sign(&signed)));
        if let Some(secret) = &self.secret {
            let mac = secret.clone().chain_update(&signed).finalize();
            signatures = format!("v1,{} {signatures}", base64(&mac.into_bytes()));
        }
        [
            ("Signature", base64(&self.identity.sign(body))),
            ("Signature-Algorithm", "Ed25519".to_owned()),
            ("webhook-id", id.to_owned()),
            ("webhook-timestamp", seconds.to_string()),
            ("webhook-signature", signatures),
        ]
    }
}

/// Whether the host is this machine, or of a private network, as far as its name shows it.
fn is_near(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    match host.trim_matches(['[', ']']).parse() {
        Ok(IpAddr::V4(ip)) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        Ok(IpAddr::V6(ip)) => {
            ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local()
        }
        Err(_) => !host.contains('.'),
    }
}

fn secret(text: &SecretString) -> anyhow::Result<Hmac<Sha256>> {
    let text = text.expose_secret();
    let bytes = text.strip_prefix(SECRET_PREFIX);
    let bytes = bytes.and_then(|text| BASE64_STANDARD.decode(text).ok());
    let bytes = bytes.context("callback-secret-file must hold whsec_ and base64")?;
    ensure!(
        bytes.len() >= 24,
        "callback-secret-file must hold 24 bytes or more, in base64"
    );
    Hmac::new_from_slice(&bytes).context("callback-secret-file")
}

#[async_trait]
impl SigningCallback for HttpCallback {
    async fn ask(&self, request: &wire::SigningRequest) -> Result<(), String> {
        let (kind, body) = match self.format {
            CallbackFormat::Protobuf => ("application/octet-stream", request.encode_to_vec()),
            CallbackFormat::Json => {
                let text = json::encode(request).map_err(|fault| fault.message().to_owned())?;
                ("application/json", text.into_bytes())
            }
        };
        let mut post = self.http.post(self.url.clone()).header(CONTENT_TYPE, kind);
        for (name, value) in self.signatures(&request.uuid, &body) {
            post = post.header(name, value);
        }
        let answered = tokio::time::timeout(PATIENCE, post.body(body).send()).await;
        match answered {
            Err(_) => Err(format!("it did not answer within {} s", PATIENCE.as_secs())),
            Ok(Err(error)) => Err(format!(
                "it gave no answer ({})",
                causes(&error.without_url())
            )),
            // Its body, of whatever length, is left where it is.
            Ok(Ok(answer)) if answer.status() == StatusCode::OK => Ok(()),
            Ok(Ok(answer)) => {
                let status = answer.status().as_u16();
                Err(format!("it answered {status}, and only 200 is a yes"))
            }
        }
    }
}

/// What went wrong, down to its first cause.
fn causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::{os::unix::fs::PermissionsExt as _, sync::Mutex};

    use covault_core::testing::SystemEntropy;
    use ed25519_dalek::{Signature, Verifier as _};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;
    use crate::{adapters::SystemClock, config::TlsSettings, tls::ServerTls};

    const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1ub3BxcnN0dXY=";

    /// What a program answers.
    enum Answer {
        Status(&'static str),
        /// This one, and 10 MB behind it.
        Large(&'static str),
        Nothing,
        /// Headers without an end, one by one.
        Slowly,
    }

    /// Answers one request. What it was asked.
    async fn program(answer: Answer) -> (String, Arc<Mutex<Vec<u8>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/decide", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&seen);
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut read = vec![0; 64 << 10];
            let length = stream.read(&mut read).await.unwrap();
            noted.lock().unwrap().extend_from_slice(&read[..length]);
            match answer {
                Answer::Status(line) => {
                    let text = format!(
                        "HTTP/1.1 {line}\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n"
                    );
                    stream.write_all(text.as_bytes()).await.unwrap();
                    tokio::time::sleep(Duration::from_secs(30)).await;
                }
                Answer::Large(line) => {
                    let text = format!("HTTP/1.1 {line}\r\ncontent-length: {}\r\n\r\n", 10 << 20);
                    stream.write_all(text.as_bytes()).await.unwrap();
                    while stream.write_all(&[0; 1 << 10]).await.is_ok() {}
                }
                Answer::Nothing => tokio::time::sleep(Duration::from_secs(30)).await,
                Answer::Slowly => {
                    stream.write_all(b"HTTP/1.1 200 OK\r\n").await.unwrap();
                    while stream.write_all(b"a: b\r\n").await.is_ok() {
                        tokio::time::sleep(Duration::from_millis(200)).await;
                    }
                }
            }
        });
        (url, seen)
    }

    fn callback(
        url: &str,
        format: CallbackFormat,
    ) -> anyhow::Result<(HttpCallback, Arc<NodeIdentity>)> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let identity = Arc::new(NodeIdentity::generate(&SystemEntropy));
        let settings = CallbackSettings {
            vault: covault_core::ids::VaultId::from_bytes([1; 16]),
            url: url.to_owned(),
            format,
            secret: Some(SECRET.into()),
        };
        let callback = HttpCallback::new(settings, Arc::clone(&identity), Arc::new(SystemClock))?;
        Ok((callback, identity))
    }

    fn request() -> wire::SigningRequest {
        wire::SigningRequest {
            uuid: "00000000-0000-4000-8000-000000000001".to_owned(),
            ..Default::default()
        }
    }

    async fn asked(answer: Answer) -> Result<(), String> {
        let (url, _) = program(answer).await;
        let (callback, _) = callback(&url, CallbackFormat::Protobuf).unwrap();
        callback.ask(&request()).await
    }

    #[tokio::test]
    async fn callback__should_take_200_for_a_yes_and_nothing_else() {
        assert_eq!(asked(Answer::Status("200 OK")).await, Ok(()));
        // Its body says nothing.
        assert_eq!(asked(Answer::Large("200 OK")).await, Ok(()));
        for line in [
            "201 Created",
            "204 No Content",
            "301 Moved",
            "307 Moved",
            "401 No",
            "500 No",
        ] {
            let status = &line[..3];
            let no = format!("it answered {status}, and only 200 is a yes");
            assert_eq!(asked(Answer::Status(line)).await, Err(no));
        }
        // A name that leads to a private address is the operator's own.
        let (url, _) = program(Answer::Status("200 OK")).await;
        let named = url.replace("127.0.0.1", "localhost");
        let (local, _) = callback(&named, CallbackFormat::Protobuf).unwrap();
        assert_eq!(local.ask(&request()).await, Ok(()));
        let no = "it answered 500, and only 200 is a yes".to_owned();
        assert_eq!(asked(Answer::Large("500 No")).await, Err(no));
        // Nobody there.
        let (callback, _) = callback("http://127.0.0.1:9/x", CallbackFormat::Json).unwrap();
        let no = callback.ask(&request()).await.unwrap_err();
        assert!(
            no.starts_with("it gave no answer (") && !no.contains("/x"),
            "{no}"
        );
    }

    #[tokio::test]
    async fn callback__should_not_wait_longer_than_five_seconds() {
        let began = tokio::time::Instant::now();
        let silent = "it did not answer within 5 s".to_owned();
        // 199 is no final answer: one may follow, and does not.
        let (nothing, slow, interim) = tokio::join!(
            asked(Answer::Nothing),
            asked(Answer::Slowly),
            asked(Answer::Status("199 Later"))
        );
        assert_eq!(nothing, Err(silent.clone()));
        assert_eq!(slow, Err(silent.clone()));
        assert_eq!(interim, Err(silent));
        assert!(began.elapsed() >= PATIENCE);
    }

    /// A connection that the other side closes just then would be a no, for good.
    #[tokio::test]
    async fn callback__should_be_asked_on_a_connection_of_its_own_each_time() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        tokio::spawn(async move {
            // Kept open, and never answered again.
            let mut idle = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut read = vec![0; 64 << 10];
                assert!(stream.read(&mut read).await.unwrap() > 0);
                let text = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                stream.write_all(text).await.unwrap();
                idle.push(stream);
            }
        });
        let (callback, _) = callback(&url, CallbackFormat::Protobuf).unwrap();
        for _ in 0..3 {
            assert_eq!(callback.ask(&request()).await, Ok(()));
        }
    }

    #[test]
    fn callback__should_be_warned_about_where_plain_http_leaves_the_private_network() {
        for (url, near) in [
            ("http://localhost:8088/", true),
            ("http://decider/", true),
            ("http://127.0.0.1/", true),
            ("http://10.1.2.3/", true),
            ("http://192.168.1.2/", true),
            ("http://[::1]:80/", true),
            ("http://[fd00::1]/", true),
            ("http://decider.example.com/", false),
            ("http://8.8.8.8/", false),
            ("http://[2001:4860::1]/", false),
        ] {
            assert_eq!(is_near(&Url::parse(url).unwrap()), near, "{url}");
        }
    }

    #[tokio::test]
    async fn callback__should_be_a_no_where_nobody_vouches_for_its_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let [certificate_file, key_file] = ["a.pem", "a.key"].map(|name| {
            let path = folder.path().join(name);
            let text = std::fs::read(format!("{}/tests/tls/{name}", env!("CARGO_MANIFEST_DIR")));
            std::fs::write(&path, text.unwrap()).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            path
        });
        let settings = TlsSettings {
            certificate_file,
            key_file,
        };
        let tls = ServerTls::load(&settings).unwrap().unwrap();
        let acceptor = tls.acceptor(&[b"http/1.1"]).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/", listener.local_addr().unwrap());
        let serving = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            // It would say yes.
            let mut stream = acceptor.accept(stream).await?;
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                .await
        });
        let (callback, _) = callback(&url, CallbackFormat::Protobuf).unwrap();
        let no = callback.ask(&request()).await.unwrap_err();
        assert!(
            no.starts_with("it gave no answer (") && no.contains("certificate"),
            "{no}"
        );
        assert!(serving.await.unwrap().is_err());
    }

    #[tokio::test]
    async fn callback__should_be_signed_in_each_way_that_webhooks_are() {
        for (format, kind) in [
            (CallbackFormat::Protobuf, "application/octet-stream"),
            (CallbackFormat::Json, "application/json"),
        ] {
            let (url, seen) = program(Answer::Status("200 OK")).await;
            let (callback, identity) = callback(&url, format).unwrap();
            callback.ask(&request()).await.unwrap();
            let seen = seen.lock().unwrap().clone();
            let end = seen
                .windows(4)
                .position(|four| four == b"\r\n\r\n")
                .unwrap();
            let (head, body) = (String::from_utf8_lossy(&seen[..end]), &seen[end + 4..]);
            assert!(head.starts_with("POST /decide HTTP/1.1"), "{head}");
            let header = |name: &str| {
                let lines = head.lines().filter_map(|line| line.split_once(": "));
                let mut found = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name));
                found
                    .next()
                    .unwrap_or_else(|| panic!("{name}: {head}"))
                    .1
                    .to_owned()
            };
            assert_eq!(header("content-type"), kind);
            match format {
                CallbackFormat::Protobuf => {
                    assert_eq!(wire::SigningRequest::decode(body).unwrap(), request());
                }
                CallbackFormat::Json => {
                    let shown: serde_json::Value = serde_json::from_slice(body).unwrap();
                    assert_eq!(shown["uuid"], request().uuid);
                }
            }
            let key = identity.id().verifying_key().unwrap();
            let verify = |text: &str, signed: &[u8]| {
                let signature = BASE64_STANDARD.decode(text).unwrap();
                key.verify(signed, &Signature::from_slice(&signature).unwrap())
                    .unwrap();
            };
            assert_eq!(header("signature-algorithm"), "Ed25519");
            verify(&header("signature"), body);
            let (id, time) = (header("webhook-id"), header("webhook-timestamp"));
            assert_eq!(id, request().uuid);
            let signed = [format!("{id}.{time}.").as_bytes(), body].concat();
            let signatures = header("webhook-signature");
            let (hmac, own) = signatures.split_once(' ').unwrap();
            verify(own.strip_prefix("v1a,").unwrap(), &signed);
            let mut mac =
                Hmac::<Sha256>::new_from_slice(b"0123456789abcdefghijklmnopqrstuv").unwrap();
            mac.update(&signed);
            let wanted = BASE64_STANDARD.encode(mac.finalize().into_bytes());
            assert_eq!(hmac.strip_prefix("v1,"), Some(wanted.as_str()));
        }
    }

    #[test]
    fn callback__should_be_an_http_url_and_not_be_repeated() {
        for url in ["", "ftp://me:hunter2@host/", "host:80", "http://"] {
            let error = callback(url, CallbackFormat::Json)
                .err()
                .unwrap()
                .to_string();
            assert_eq!(error, "callback-url must be an http or https URL", "{url}");
        }
        assert!(secret(&"whsec_AAAA".into()).is_err());
        assert!(secret(&"0123".into()).is_err());
    }
}
