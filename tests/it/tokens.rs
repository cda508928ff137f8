//! API tokens and deposits as operators and clients see them.

use serde_json::{Value, json};

use super::support::*;

const EVM: &str = "NETWORK_TYPE_EVM";
const TARGET: &str = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";

/// The status of a call with a token, as a proxy passes it on.
async fn from(dev: &DevProcess, token: &str, forwarded: &str) -> u16 {
    let list = json!({"vaultUuid": dev.vault});
    let call = dev.api.raw("/v1/getWalletList", |request| {
        request
            .header("x-mtoken", token)
            .header("x-forwarded-for", forwarded)
            .json(&list)
    });
    call.await.status().as_u16()
}

#[tokio::test]
async fn tokens__should_be_made_used_listed_and_revoked_and_never_be_logged() {
    let folder = tempfile::tempdir().unwrap();
    let variables = [
        ("COVAULT_LOG_LEVEL", "trace"),
        ("COVAULT_SERVE_TRUSTED_PROXIES", "1"),
    ];
    let dev = DevProcess::start_with(&folder.path().join("dev"), &[], &variables).await;
    let create = |name: &str, kind: &str, access: &str, more: &[&str]| {
        let mut words = vec!["token", "create", "--name", name, "--kind", kind];
        words.extend(["--vault", dev.vault.as_str(), "--access", access]);
        words.extend(more);
        let (done, out, err) = dev.ask(&words);
        assert!(done, "{words:?}: {out}\n{err}");
        // Alone on standard output, and there only.
        let token = out.trim().to_owned();
        assert_eq!((out.lines().count(), token.len()), (1, 53), "{out}");
        assert!(
            err.contains("not shown again") && !err.contains(&token),
            "{err}"
        );
        token
    };
    let more = ["--allow", "203.0.113.0/24", "--expires", "90d"];
    let shop = create("shop", "platform", "full", &more);
    let reader = create("reader", "platform", "read-only", &[]);
    let sweep = create("deposits", "sweep", "full", &[]);

    // Where from, and what.
    assert!(shop.starts_with("cvp_") && sweep.starts_with("cvs_"));
    assert_eq!(from(&dev, &shop, "203.0.113.5").await, 200);
    assert_eq!(from(&dev, &shop, "203.0.113.5, 198.51.100.1").await, 403);
    assert_eq!(from(&dev, &reader, "198.51.100.1").await, 200);
    assert_eq!(from(&dev, &sweep, "198.51.100.1").await, 403);
    let wallet = dev.api.wallet(&dev.vault, EVM).await;
    let content = base64("hello");
    let message = json!({"evmMessage": {"chainId": "1", "from": wallet, "content": content}});
    let uuid = dev.api.create(message).await;
    dev.api.execute(&uuid).await;
    let reader_api = ApiClient::new(&dev.api.base, &reader);
    let seen = reader_api.details(&uuid).await;
    assert_eq!(seen["status"], "STATUS_SUCCEEDED");
    assert_eq!(seen["signatures"], Value::Null);
    assert!(dev.api.details(&uuid).await["signatures"].is_object());
    let (status, _) = reader_api
        .post("executeSigningRequests", json!({"uuid": uuid}))
        .await;
    assert_eq!(status, 403);

    // Deposits.
    let deposits = ApiClient::new(&dev.api.base, &sweep);
    let order = json!({"network": "EVM", "ref": "order-1"});
    assert_eq!(deposits.post("sweep/wallets", order.clone()).await.0, 400);
    let configure = [
        "sweep",
        "configure",
        "--token",
        "deposits",
        "--network",
        "evm",
        "--vault",
        &dev.vault,
        "--target",
        TARGET,
    ];
    let shown = dev.command(&configure);
    assert!(shown.contains(TARGET) && shown.contains("EVM"), "{shown}");
    let again = dev.command(&["sweep", "show", "--token", "deposits"]);
    assert_eq!(again, shown);
    let (status, made) = deposits.post("sweep/wallets", order.clone()).await;
    assert_eq!((status, &made["ref"]), (200, &json!("order-1")), "{made}");
    assert_eq!(deposits.post("sweep/wallets", order).await, (200, made));

    // Listed without a secret; what is wrong is said.
    let list = dev.command(&["token", "list"]);
    for word in [
        "shop",
        "reader",
        "deposits",
        "read-only",
        "203.0.113.0/24",
        "never",
    ] {
        assert!(list.contains(word), "{word}: {list}");
    }
    let list = dev.command(&["token", "list", "--json"]);
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list["tokens"].as_array().unwrap().len(), 3);
    let twice = [
        "token",
        "create",
        "--name",
        "shop",
        "--kind",
        "platform",
        "--all-vaults",
        "--access",
        "full",
    ];
    let (done, _, err) = dev.ask(&twice);
    assert!(
        !done && err.contains("a token of this name exists"),
        "{err}"
    );

    // At once.
    dev.command(&["token", "revoke", "shop"]);
    assert_eq!(from(&dev, &shop, "203.0.113.5").await, 401);
    let list = dev.command(&["token", "list"]);
    assert!(list.contains("revoked"), "{list}");
    let log = dev.process.log();
    for token in [&shop, &reader, &sweep] {
        assert!(!log.contains(&token[4..]), "a token is in the log");
    }
}
