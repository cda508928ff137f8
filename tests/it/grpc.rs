//! gRPC as a client in another language finds it: tests/node/grpc.mjs.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use serde_json::{Value, json};

use super::support::*;

#[tokio::test]
async fn client_in_another_language__should_find_the_platform_api() {
    let folder = tempfile::tempdir().unwrap();
    let dev = client_finds_the_platform_api(folder.path(), None).await;
    // What gRPC made, REST shows.
    let wallet = dev
        .api
        .ok("getWalletInfo", json!({"ref": "from-grpc"}))
        .await;
    assert_eq!(wallet["details"]["vaultUuid"], json!(dev.vault));
}

/// Published clients of the platform API always use TLS.
#[tokio::test]
async fn client_in_another_language__should_find_it_over_tls_and_compressed() {
    let folder = tempfile::tempdir().unwrap();
    let certificate = folder.path().join("certificate.pem");
    let key = folder.path().join("key.pem");
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls");
    fs::copy(fixtures.join("a.pem"), &certificate).unwrap();
    fs::copy(fixtures.join("a.key"), &key).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let dev = client_finds_the_platform_api(folder.path(), Some((&certificate, &key))).await;
    assert!(dev.api.base.starts_with("https://"));
    let trusted = reqwest::Certificate::from_pem(&fs::read(&certificate).unwrap());
    let client = reqwest::Client::builder()
        .tls_certs_only([trusted.unwrap()])
        .no_proxy()
        .build()
        .unwrap();
    let url = format!("{}/v1/getWalletInfo", dev.api.base);
    let asked = client.post(url).header("x-mtoken", &dev.api.token);
    let answer = asked.json(&json!({"ref": "from-grpc"})).send().await;
    assert_eq!(answer.unwrap().status().as_u16(), 200);
}

/// Runs tests/node/grpc.mjs against a new service, with a certificate and its key where it is to speak TLS.
async fn client_finds_the_platform_api(folder: &Path, tls: Option<(&Path, &Path)>) -> DevProcess {
    // Nothing listens there: a request that needs this chain waits.
    let chain = format!("31337=http://127.0.0.1:{}", free_port());
    let tls = tls.map(|(certificate, key)| [certificate, key].map(|it| it.to_str().unwrap()));
    let variables: Vec<_> = tls
        .iter()
        .flat_map(|[certificate, key]| {
            [
                ("COVAULT_TLS_CERTIFICATE_FILE", *certificate),
                ("COVAULT_TLS_KEY_FILE", *key),
            ]
        })
        .collect();
    let dev = DevProcess::start_with(&folder.join("dev"), &["--chain", &chain], &variables).await;
    node_tool("node_modules/@grpc/grpc-js");
    let mut command = Command::new(node_tool("node_modules/node/bin/node"));
    command
        .arg(node_tool("grpc.mjs"))
        .env("COVAULT_GRPC", dev.info["grpcTarget"].as_str().unwrap())
        .env("COVAULT_TOKEN", &dev.api.token)
        .env("COVAULT_VAULT", &dev.vault);
    if let Some([certificate, _]) = tls {
        command.env("COVAULT_CERTIFICATE", certificate);
    }
    let output = tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let seen: Value = serde_json::from_slice(&output.stdout).unwrap();
    let invalid = json!({"code": "INVALID_ARGUMENT", "details": "Invalid uuid"});
    let expected = json!({
        "nonce": {"value": "0"},
        "signedNonce": 0,
        "executed": 200,
        "status": "STATUS_SUCCEEDED",
        "rejected": null,
        "afterwards": "STATUS_FAILED",
        "denied": "EXECUTE_SIGNING_REQUESTS_ERROR_CODE_ALREADY_DENIED",
        "rejectedTwice": "FAILED_PRECONDITION",
        "rejectedFinished": "FAILED_PRECONDITION",
        "noToken": "UNAUTHENTICATED",
        "wrongToken": "UNAUTHENTICATED",
        "badUuid": invalid,
        "unknownUuid": invalid,
        "duplicate": "ALREADY_EXISTS",
        "replayed": [[], ["true"]],
        "requestId": ["again-1"],
        "health": true,
        "services": ["PlatformAPI", "SweepAPI"],
    });
    assert_eq!(seen, expected);
    dev
}
