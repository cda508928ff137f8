//! TLS of the listeners: one certificate and its key, in files, which are read again when they change.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use anyhow::{Context as _, bail};
use parking_lot::RwLock;
use rustls::{
    ClientConfig, DigitallySignedStruct, ServerConfig, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use secrecy::ExposeSecret as _;
use sha2::{Digest as _, Sha256};
use tokio_rustls::TlsAcceptor;

use crate::{config::TlsSettings, files};

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(10);

/// The certificate of the listeners. Cheap to clone.
#[derive(Clone)]
pub struct ServerTls(Arc<CertificateFiles>);

struct CertificateFiles {
    certificate: PathBuf,
    key: PathBuf,
    /// What is shown to clients.
    current: RwLock<Arc<CertifiedKey>>,
    /// Of what was taken from the files, or found bad.
    judged: RwLock<[u8; 32]>,
    /// Of what was in them at the last look.
    last: RwLock<[u8; 32]>,
}

impl ServerTls {
    /// The certificate that the settings name, if they do. Within a runtime its files are looked at every ten seconds,
    /// for as long as anything uses it; what two looks have found alike counts.
    ///
    /// # Errors
    /// When only one file is named, or the files do not hold a certificate and its key.
    pub fn load(settings: &TlsSettings) -> anyhow::Result<Option<Self>> {
        let TlsSettings {
            certificate_file,
            key_file,
        } = settings;
        let named = |path: &Path| !path.as_os_str().is_empty();
        match (named(certificate_file), named(key_file)) {
            (false, false) => return Ok(None),
            (true, true) => {}
            _ => bail!("tls.certificate_file and tls.key_file: set both, or neither"),
        }
        let (seen, certified) = TlsFiles::read(certificate_file, key_file)?.certified();
        let tls = Self(Arc::new(CertificateFiles {
            certificate: certificate_file.clone(),
            key: key_file.clone(),
            current: RwLock::new(Arc::new(certified?)),
            judged: RwLock::new(seen),
            last: RwLock::new(seen),
        }));
        tokio::spawn(follow(Arc::downgrade(&tls.0)));
        Ok(Some(tls))
    }

    /// What makes TLS of a connection on which one of `protocols` (ALPN, RFC 7301) is spoken.
    ///
    /// # Errors
    /// When TLS cannot be set up at all.
    pub fn acceptor(&self, protocols: &[&[u8]]) -> anyhow::Result<TlsAcceptor> {
        let certificate: Arc<dyn ResolvesServerCert> = self.0.clone();
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(certificate);
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

impl CertificateFiles {
    /// Takes what is in the files, when it is new and was there at the look before: a chain that is half written may
    /// end after any of its certificates. What cannot be used changes nothing.
    fn look(&self) {
        let contents = match TlsFiles::read(&self.certificate, &self.key) {
            Ok(contents) => contents,
            Err(error) => {
                tracing::warn!(
                    ?error,
                    "failed to reload the TLS certificate; keeping the old one"
                );
                return;
            }
        };
        let found = contents.fingerprint();
        let before = std::mem::replace(&mut *self.last.write(), found);
        if found == *self.judged.read() || found != before {
            return;
        }
        let (judged, certified) = contents.certified();
        *self.judged.write() = judged;
        match certified {
            Ok(certified) => {
                *self.current.write() = Arc::new(certified);
                tracing::info!(path = %self.certificate.display(), "the TLS certificate has changed");
            }
            Err(error) => {
                tracing::warn!(
                    ?error,
                    "the new TLS certificate is invalid; keeping the old one"
                );
            }
        }
    }
}

async fn follow(files: Weak<CertificateFiles>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(files) = files.upgrade() else {
            return;
        };
        files.look();
    }
}

/// What is in the two files.
struct TlsFiles {
    certificates: Vec<u8>,
    key: secrecy::SecretString,
}

impl TlsFiles {
    fn read(certificate: &Path, key: &Path) -> anyhow::Result<Self> {
        let certificates = std::fs::read(certificate)
            .with_context(|| format!("tls.certificate_file {}", certificate.display()))?;
        let key = files::read_secret(key).context("tls.key_file")?;
        Ok(Self { certificates, key })
    }

    fn fingerprint(&self) -> [u8; 32] {
        Sha256::new()
            .chain_update(Sha256::digest(&self.certificates))
            .chain_update(self.key.expose_secret())
            .finalize()
            .into()
    }

    /// The certificate with its key, and the fingerprint of what it was made of.
    fn certified(&self) -> ([u8; 32], anyhow::Result<CertifiedKey>) {
        (self.fingerprint(), self.parse())
    }

    fn parse(&self) -> anyhow::Result<CertifiedKey> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&self.certificates)
            .collect::<Result<_, _>>()
            .context("tls.certificate_file is not PEM")?;
        if chain.is_empty() {
            bail!("tls.certificate_file holds no certificate (PEM)");
        }
        let key = PrivateKeyDer::from_pem_slice(self.key.expose_secret().as_bytes())
            .context("tls.key_file holds no private key (PEM)")?;
        CertifiedKey::from_der(chain, key, &provider())
            .context("tls.certificate_file and tls.key_file do not belong together")
    }
}

impl fmt::Debug for CertificateFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CertificateFiles")
    }
}

impl ResolvesServerCert for CertificateFiles {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read()))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// TLS for a client on the same machine, which trusts the certificate of this file and no other, under whatever name or
/// address it calls the service.
///
/// # Errors
/// When the file holds no certificate.
pub fn pinned_client(certificate: &Path) -> anyhow::Result<ClientConfig> {
    let pinned = CertificateDer::from_pem_file(certificate)
        .with_context(|| format!("tls.certificate_file {}", certificate.display()))?;
    let verifier = Arc::new(PinnedCertificate {
        pinned,
        provider: provider(),
    });
    Ok(ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth())
}

#[derive(Debug)]
struct PinnedCertificate {
    pinned: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedCertificate {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if *shown == self.pinned {
            return Ok(ServerCertVerified::assertion());
        }
        let problem = "the service presents a certificate other than tls.certificate_file; it loads a new one within \
                       20 seconds after it was written: try again then";
        Err(rustls::Error::General(problem.to_owned()))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::{os::unix::fs::PermissionsExt as _, sync::Once};

    use axum::{Router, routing::get};
    use tokio::{net::TcpListener, sync::watch};

    use super::*;
    use crate::http::server::{self, HttpVersion, ServerLimits};

    const LIMITS: ServerLimits = ServerLimits {
        headers: Duration::from_secs(5),
        idle: Duration::from_secs(60),
        reading: Duration::from_secs(60),
        stopping: Duration::from_secs(1),
        max_connections: 100,
        max_per_address: None,
    };

    fn fixture(name: &str) -> PathBuf {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls");
        folder.join(name)
    }

    /// Puts certificate and key `from` into the folder, the key readable by its owner alone.
    fn put(folder: &Path, certificate: &str, key: &str) -> TlsSettings {
        let settings = TlsSettings {
            certificate_file: folder.join("certificate.pem"),
            key_file: folder.join("key.pem"),
        };
        std::fs::copy(fixture(certificate), &settings.certificate_file).unwrap();
        std::fs::copy(fixture(key), &settings.key_file).unwrap();
        let owner = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&settings.key_file, owner).unwrap();
        settings
    }

    /// Who trusts one certificate calls the service at this address.
    async fn call(url: &str, trusted: &str) -> Result<String, reqwest::Error> {
        static PROVIDER: Once = Once::new();
        PROVIDER.call_once(|| {
            let _ = ring::default_provider().install_default();
        });
        let trusted = reqwest::Certificate::from_pem(&std::fs::read(fixture(trusted)).unwrap());
        let client = reqwest::Client::builder()
            .tls_certs_only([trusted.unwrap()])
            .no_proxy()
            .build()
            .unwrap();
        client.get(url).send().await?.text().await
    }

    #[tokio::test]
    async fn listener__should_speak_tls_and_take_a_new_certificate_without_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let settings = put(folder.path(), "a.pem", "a.key");
        let tls = ServerTls::load(&settings).unwrap().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/", listener.local_addr().unwrap());
        let plain = url.replace("https", "http");
        let (stop, stopped) = watch::channel(false);
        let router = Router::new().route("/", get(|| async { "here" }));
        let version = HttpVersion::Http1;
        let served = server::serve(
            listener,
            Some(tls.clone()),
            router,
            version,
            LIMITS,
            stopped,
        );
        let served = tokio::spawn(served);
        assert_eq!(call(&url, "a.pem").await.unwrap(), "here");
        assert!(call(&url, "b.pem").await.is_err(), "it is not b");
        assert!(
            call(&plain, "a.pem").await.is_err(),
            "nothing is served in the clear"
        );
        // Half of the change: the old one stays.
        put(folder.path(), "b.pem", "a.key");
        tls.0.look();
        tls.0.look();
        assert_eq!(call(&url, "a.pem").await.unwrap(), "here");
        put(folder.path(), "b.pem", "b.key");
        tls.0.look();
        assert_eq!(call(&url, "a.pem").await.unwrap(), "here");
        tls.0.look();
        assert_eq!(call(&url, "b.pem").await.unwrap(), "here");
        assert!(call(&url, "a.pem").await.is_err());
        // The command line on the same machine knows the certificate from its file.
        let config = pinned_client(&settings.certificate_file).unwrap();
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(config)
            .build()
            .unwrap();
        assert!(client.get(&url).send().await.is_ok());
        let other = pinned_client(&fixture("a.pem")).unwrap();
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(other)
            .build()
            .unwrap();
        assert!(client.get(&url).send().await.is_err());
        stop.send(true).unwrap();
        served.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_chain__should_not_be_shown_half() {
        let folder = tempfile::tempdir().unwrap();
        let settings = put(folder.path(), "a.pem", "a.key");
        let tls = ServerTls::load(&settings).unwrap().unwrap();
        let shown = || tls.0.current.read().cert.len();
        let before = CertificateDer::from_pem_file(fixture("a.pem")).unwrap();
        let chain = [fixture("b.pem"), fixture("a.pem")].map(|path| std::fs::read(path).unwrap());
        put(folder.path(), "b.pem", "b.key");
        tls.0.look();
        std::fs::write(&settings.certificate_file, chain.concat()).unwrap();
        tls.0.look();
        assert_eq!(tls.0.current.read().cert, [before], "neither of both");
        tls.0.look();
        assert_eq!(shown(), 2);
        // What was written and taken back was never there.
        put(folder.path(), "b.pem", "b.key");
        tls.0.look();
        std::fs::write(&settings.certificate_file, chain.concat()).unwrap();
        tls.0.look();
        put(folder.path(), "b.pem", "b.key");
        tls.0.look();
        assert_eq!(shown(), 2);
        tls.0.look();
        assert_eq!(shown(), 1);
    }

    #[tokio::test]
    async fn load__should_refuse_what_is_no_certificate_with_its_key() {
        let folder = tempfile::tempdir().unwrap();
        let good = put(folder.path(), "a.pem", "a.key");
        assert!(ServerTls::load(&good).unwrap().is_some());
        let none = TlsSettings {
            certificate_file: PathBuf::new(),
            key_file: PathBuf::new(),
        };
        assert!(ServerTls::load(&none).unwrap().is_none());
        let half = TlsSettings {
            key_file: PathBuf::new(),
            ..good.clone()
        };
        assert!(ServerTls::load(&half).is_err());
        for (certificate, key) in [("a.pem", "b.key"), ("a.key", "a.key"), ("a.pem", "a.pem")] {
            let bad = put(folder.path(), certificate, key);
            assert!(ServerTls::load(&bad).is_err(), "{certificate} {key}");
        }
        let open = put(folder.path(), "a.pem", "a.key");
        let all = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(&open.key_file, all).unwrap();
        assert!(ServerTls::load(&open).is_err(), "others can read the key");
    }
}
