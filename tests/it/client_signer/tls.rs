//! The program behind a certificate: a yes counts only from where the certificate is right.

use std::{fs, path::Path, process::Command, sync::Arc};

use serde_json::json;
use tokio::net::TcpListener;
use tokio_rustls::{TlsAcceptor, rustls};

use super::{super::support::*, Program, World};

fn openssl(folder: &Path, words: &str) {
    let mut command = Command::new("openssl");
    let output = command
        .args(words.split_whitespace())
        .current_dir(folder)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "openssl {words}: {said}");
}

/// NAME.pem and NAME.key: an authority of one's own.
fn authority(folder: &Path, name: &str) {
    openssl(
        folder,
        &format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN={name} \
             -addext keyUsage=critical,keyCertSign -keyout {name}.key -out {name}.pem"
        ),
    );
}

/// NAME.pem and NAME.key: what the authority says of `host`, for so many days.
fn certificate(folder: &Path, name: &str, issuer: &str, host: &str, days: u32) {
    openssl(
        folder,
        &format!(
            "req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"
        ),
    );
    let said = format!(
        "subjectAltName=DNS:{host}\nextendedKeyUsage=serverAuth\nbasicConstraints=CA:FALSE\n"
    );
    fs::write(folder.join("extensions"), said).unwrap();
    openssl(
        folder,
        &format!(
            "x509 -req -in {name}.csr -CA {issuer}.pem -CAkey {issuer}.key -extfile extensions -days {days} -out {name}.pem"
        ),
    );
}

/// The program, which would say yes, also behind this certificate; its port.
async fn serve(program: &Arc<Program>, folder: &Path, name: &str) -> u16 {
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
    let chain = CertificateDer::from_pem_file(folder.join(format!("{name}.pem"))).unwrap();
    let key = PrivateKeyDer::from_pem_file(folder.join(format!("{name}.key"))).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let program = Arc::clone(program);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            if let Ok(stream) = acceptor.accept(stream).await {
                tokio::spawn(Arc::clone(&program).answer(stream));
            }
        }
    });
    port
}

#[tokio::test]
async fn client_signer__should_take_a_yes_over_tls_from_the_right_certificate_alone() {
    let mut world = World::start().await;
    let api = world.cluster.api.clone();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    authority(folder, "trusted");
    authority(folder, "untrusted");
    certificate(folder, "right", "trusted", "localhost", 30);
    certificate(folder, "wrong-name", "trusted", "elsewhere.example", 30);
    // It ends when it begins.
    certificate(folder, "expired", "trusted", "localhost", 0);
    certificate(folder, "unknown", "untrusted", "localhost", 30);
    let root = folder.join("trusted.pem");
    let mut before = world.program.url.clone();
    for (name, says) in [
        ("right", None),
        ("wrong-name", Some("not valid for name")),
        ("expired", Some("certificate expired")),
        ("unknown", Some("UnknownIssuer")),
    ] {
        let port = serve(&world.program, folder, name).await;
        let url = format!("https://localhost:{port}/decide");
        let text = fs::read_to_string(&world.config).unwrap();
        write_secret(&world.config, &text.replace(&before, &url));
        before = url;
        world.client.kill();
        world.client = World::launch_with(&world.config, &[("SSL_CERT_FILE", root.as_path())]);
        let uuid = api.create(world.message(name, &world.key)).await;
        let Some(says) = says else {
            world.assert_signed(&uuid).await;
            assert_eq!(world.program.count(&uuid), 1);
            continue;
        };
        let outcome = api.execute(&uuid).await;
        let said = outcome["error"]["message"].as_str().unwrap_or_default();
        assert!(
            said.contains("refused to sign: the callback denied it: it gave no answer (")
                && said.contains(says),
            "{name}: {outcome}"
        );
        // It was told nothing of the request.
        assert_eq!(world.program.count(&uuid), 0, "{name}");
        let shown = api.details(&uuid).await;
        assert_eq!(shown["status"], "STATUS_FAILED", "{shown}");
        assert_eq!(shown["signatures"], json!(null), "{shown}");
    }
}
