//! Contract sections 4 and 6: who may call what, from where.

use serde_json::{Value, json};

use super::World;
use crate::support::*;

async fn status(api: &ApiClient, operation: &str, body: Value) -> (u16, String) {
    let (status, answer) = api.post(operation, body).await;
    let message = answer["error"]["message"].as_str().unwrap_or_default();
    (status, message.to_owned())
}

#[tokio::test]
async fn tokens__should_open_what_they_were_made_for_until_they_are_revoked() {
    let world = World::start().await;
    let vault = &world.dev.vault;
    let wallets = json!({"vaultUuid": vault});
    let full = world.token(&["--name", "shop", "--kind", "platform", "--access", "full"]);
    let form = full.token.strip_prefix("cvp_").unwrap();
    assert!(form.len() == 49 && form.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    let uuid = full.create(world.message("with a token of its own")).await;
    full.execute(&uuid).await;
    full.ok("getWalletList", wallets.clone()).await;

    // Nobody learns why another one is refused.
    let mut wrong = full.token.clone();
    let last = if wrong.ends_with('0') { '1' } else { '0' };
    wrong.pop();
    wrong.push(last);
    for token in [
        &wrong,
        "",
        "cvp_",
        &full.token[1..],
        &full.token.to_lowercase(),
    ] {
        let api = ApiClient::new(&full.base, token);
        let refused = status(&api, "getWalletList", wallets.clone()).await;
        assert_eq!(refused, (401, "unauthenticated".to_owned()), "{token}");
    }

    // Looks, and sees no signature.
    let reader = world.token(&[
        "--name",
        "auditor",
        "--kind",
        "platform",
        "--access",
        "read-only",
    ]);
    let seen = reader.details(&uuid).await;
    assert_eq!(seen["signatures"], Value::Null);
    assert_eq!(seen["status"], "STATUS_SUCCEEDED");
    assert_ne!(full.details(&uuid).await["signatures"], Value::Null);
    let listed = reader.ok("getSigningRequestList", wallets.clone()).await;
    assert_eq!(listed["signingRequests"][0], seen);
    for (operation, body) in [
        (
            "createWallet",
            json!({"vaultUuid": vault, "networkType": 1}),
        ),
        ("updateWallet", json!({"address": world.evm, "name": "x"})),
        ("createSigningRequest", world.message("not by a reader")),
        ("executeSigningRequests", json!({"uuid": uuid})),
        ("rejectSigningRequest", json!({"uuid": uuid})),
        (
            "replaceTransaction",
            json!({"uuid": uuid, "action": "ACTION_CANCEL"}),
        ),
        ("createBatchPayment", json!({"name": "x"})),
    ] {
        let (status, answer) = reader.post(operation, body).await;
        assert_eq!(status, 403, "{operation}: {answer}");
    }

    // A sweep token opens nothing here, and this one's nothing there.
    let sweep = world.token(&["--name", "deposits", "--kind", "sweep", "--access", "full"]);
    assert!(sweep.token.starts_with("cvs_"));
    assert_eq!(
        status(&sweep, "getWalletList", wallets.clone()).await.0,
        403
    );
    let (code, answer) = full
        .post("sweep/wallets", json!({"network": "EVM", "ref": "a"}))
        .await;
    assert_eq!(
        (code, answer),
        (
            401,
            json!({"code": 401, "error": "Unauthorized", "reason": "unauthenticated"})
        )
    );

    // From elsewhere.
    let away = world.token(&[
        "--name",
        "away",
        "--kind",
        "platform",
        "--access",
        "full",
        "--allow",
        "192.0.2.0/24,2001:db8::/32",
    ]);
    let refused = status(&away, "getWalletList", wallets.clone()).await;
    assert_eq!(refused, (403, "IP is not allowed".to_owned()));
    let here = world.token(&[
        "--name",
        "here",
        "--kind",
        "platform",
        "--access",
        "full",
        "--allow",
        "127.0.0.0/8",
    ]);
    here.ok("getWalletList", wallets.clone()).await;

    // A header that nobody vouches for counts for nothing.
    let forged = away
        .raw("/v1/getWalletList", |request| {
            request
                .header("x-mtoken", &away.token)
                .header("x-forwarded-for", "192.0.2.7")
                .json(&wallets)
        })
        .await;
    assert_eq!(forged.status().as_u16(), 403);

    let list = world.command(&["token", "list"]);
    for name in ["shop", "auditor", "deposits", "away", "here"] {
        assert!(list.contains(name), "{list}");
    }
    for api in [&full, &reader, &sweep] {
        assert!(!list.contains(&api.token[..20]), "{list}");
    }
    world.command(&["token", "revoke", "shop"]);
    let refused = status(&full, "getWalletList", wallets.clone()).await;
    assert_eq!(refused, (401, "unauthenticated".to_owned()));

    // In logs and files there is only a hash.
    let log = world.dev.process.log();
    for api in [&full, &reader, &sweep, &away] {
        assert!(!log.contains(&api.token));
    }
}
