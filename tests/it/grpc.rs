//! gRPC as a client in another language finds it: tests/node/grpc.mjs.

use std::process::Command;

use serde_json::{Value, json};

use super::support::*;

#[tokio::test]
async fn client_in_another_language__should_find_the_platform_api() {
    let folder = tempfile::tempdir().unwrap();
    // Nothing listens there: a request that needs this chain waits.
    let chain = format!("31337=http://127.0.0.1:{}", free_port());
    let dev = DevProcess::start(&folder.path().join("dev"), &["--chain", &chain]).await;
    node_tool("node_modules/@grpc/grpc-js");
    let mut command = Command::new(node_tool("node_modules/node/bin/node"));
    command
        .arg(node_tool("grpc.mjs"))
        .env("COVAULT_GRPC", dev.info["grpcTarget"].as_str().unwrap())
        .env("COVAULT_TOKEN", &dev.api.token)
        .env("COVAULT_VAULT", &dev.vault);
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
    // What gRPC made, REST shows.
    let wallet = dev
        .api
        .ok("getWalletInfo", json!({"ref": "from-grpc"}))
        .await;
    assert_eq!(wallet["details"]["vaultUuid"], json!(dev.vault));
}
