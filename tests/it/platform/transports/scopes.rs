//! What is refused for who asks.

use serde_json::{Value, json};

use super::{BOB, Fixtures};
use crate::platform::{
    World,
    caller::{ApiCaller, ExpectedError, FORBIDDEN, INVALID, UNAUTHENTICATED, UNAVAILABLE},
};
use crate::support::*;

/// Which token opens what, and from where.
pub async fn of_tokens(world: &World, caller: &ApiCaller, made: &Fixtures) {
    const PLATFORM: [&str; 19] = [
        "createSigningRequest",
        "getSigningRequestDetails",
        "getSigningRequestList",
        "executeSigningRequests",
        "getPendingSigningRequests",
        "approveSigningRequest",
        "approveSigningRequests",
        "rejectSigningRequest",
        "rejectSigningRequests",
        "replaceTransaction",
        "resimulation",
        "createBatchPayment",
        "getBatchPaymentDetails",
        "createWallet",
        "updateWallet",
        "getWalletInfo",
        "getWalletList",
        "getBalance",
        "estimateFee",
    ];
    const SWEEP: [&str; 2] = ["sweep/wallets", "sweep/addWatchAddress"];
    let new = |name: &str, kind: &str, access: &str, allow: &str| {
        let mut words = vec!["--name", name, "--kind", kind, "--access", access];
        if !allow.is_empty() {
            words.extend(["--allow", allow]);
        }
        caller.with(&world.token(&words).token)
    };
    let elsewhere = "192.0.2.0/24,2001:db8::/32";
    let away = new("away", "platform", "full", elsewhere);
    let sweep_away = new("sweep-away", "sweep", "full", elsewhere);
    let reader = new("reader", "platform", "read-only", "");
    let sweep_reader = new("sweep-reader", "sweep", "read-only", "");
    let admin = caller.with(world.dev.info["adminToken"].as_str().unwrap());
    for operation in PLATFORM {
        let refused = async |who: &ApiCaller, how: ExpectedError, part: &str| {
            who.refused(operation, json!({}), how, part).await;
        };
        for token in ["", "nonsense"] {
            refused(&caller.with(token), UNAUTHENTICATED, "unauthenticated").await;
        }
        refused(&away, FORBIDDEN, "IP is not allowed").await;
        refused(&made.sweep, FORBIDDEN, "a sweep token").await;
        refused(&admin, FORBIDDEN, "an admin token").await;
    }
    for operation in SWEEP {
        for other in [&caller.with("nonsense"), caller, &admin] {
            let reason = "unauthenticated";
            other
                .refused(operation, json!({}), UNAUTHENTICATED, reason)
                .await;
        }
        let reason = "IP is not allowed";
        sweep_away
            .refused(operation, json!({}), FORBIDDEN, reason)
            .await;
        let reason = "this token is read-only";
        sweep_reader
            .refused(operation, json!({}), FORBIDDEN, reason)
            .await;
    }
    // A reader reads, and no signature with it.
    let uuid = json!({"uuid": made.signed});
    for (operation, body) in [
        (
            "createWallet",
            json!({"vaultUuid": world.dev.vault, "networkType": 1}),
        ),
        ("updateWallet", json!({"address": world.evm, "name": "x"})),
        ("createSigningRequest", world.message("not by a reader")),
        ("executeSigningRequests", uuid.clone()),
        ("approveSigningRequest", json!({"uuid": made.waiting})),
        ("approveSigningRequests", json!({"uuids": [made.waiting]})),
        ("rejectSigningRequest", json!({"uuid": made.waiting})),
        ("rejectSigningRequests", json!({"uuids": [made.waiting]})),
        (
            "replaceTransaction",
            json!({"uuid": made.signed, "action": "ACTION_CANCEL"}),
        ),
        ("resimulation", json!({"signingRequestUuid": made.waiting})),
        ("createBatchPayment", json!({"name": "x"})),
    ] {
        let part = "this token is read-only";
        // What is wrong with a message may be told first.
        let body = match operation {
            "createBatchPayment" => json!({"name": "x", "evmBatchSendNative": {"chainId": 1,
                "from": world.evm, "recipients": [{"address": BOB, "amount": "1"}]}}),
            _ => body,
        };
        reader.refused(operation, body, FORBIDDEN, part).await;
    }
    let seen = reader.same("getSigningRequestDetails", uuid).await;
    assert_eq!(seen["signingRequest"]["status"], "STATUS_SUCCEEDED");
    assert!(seen["signingRequest"].get("signatures").is_none(), "{seen}");
}

/// A token of another vault sees nothing of this one; and that vault waits for a signer that never
/// comes.
pub async fn of_another_vault(world: &World, caller: &ApiCaller, made: &Fixtures) {
    let admin = async |operation: &str, body: Value| {
        let (status, answer) = world.dev.admin(operation, &body).await;
        assert_eq!(status, 200, "{operation}");
        answer
    };
    let nodes = admin("listNodes", json!({})).await;
    let present = nodes["nodes"][0]["publicKey"].clone();
    // The generator of the curve.
    let wire = [
        b"\0\0\0\x0bssh-ed25519\0\0\0\x20\x58".as_slice(),
        &[0x66; 31],
    ];
    let absent = json!(format!("ssh-ed25519 {}", base64(wire.concat())));
    admin("admitNode", json!({"publicKey": absent})).await;
    let vault = json!({"name": "other", "threshold": 2, "signers": [present, absent],
        "approvals": {"mode": "automatic"}});
    let vault = admin("createVault", vault).await["vault"]["uuid"].clone();
    let token = format!(
        "--name other --kind platform --access full --vault {}",
        vault.as_str().unwrap()
    );
    let token = world.dev.token(&token.split(' ').collect::<Vec<_>>());
    let other = caller.with(&token.token);

    let outside = "outside the scope of this token";
    let no_wallet = "is not the address of a wallet";
    let this = &world.dev.vault;
    let recipient = json!({"address": BOB, "amount": "1"});
    for (operation, body, how, part) in [
        (
            "getSigningRequestDetails",
            json!({"uuid": made.signed}),
            INVALID,
            "Invalid uuid",
        ),
        (
            "executeSigningRequests",
            json!({"uuid": made.signed}),
            INVALID,
            "Invalid uuid",
        ),
        (
            "approveSigningRequest",
            json!({"uuid": made.waiting}),
            INVALID,
            "Invalid uuid",
        ),
        (
            "rejectSigningRequest",
            json!({"uuid": made.waiting}),
            INVALID,
            "Invalid uuid",
        ),
        (
            "replaceTransaction",
            json!({"uuid": made.signed, "action": "ACTION_CANCEL"}),
            INVALID,
            "Invalid uuid",
        ),
        (
            "resimulation",
            json!({"signingRequestUuid": made.waiting}),
            INVALID,
            "Invalid uuid",
        ),
        (
            "getBatchPaymentDetails",
            json!({"uuid": made.batch}),
            INVALID,
            "Invalid uuid",
        ),
        (
            "getWalletInfo",
            json!({"address": world.evm}),
            INVALID,
            "is not that of a wallet",
        ),
        (
            "getWalletInfo",
            json!({"ref": "both-1"}),
            INVALID,
            "is not that of a wallet",
        ),
        (
            "updateWallet",
            json!({"address": world.evm, "name": "mine"}),
            INVALID,
            "is not that of a wallet",
        ),
        (
            "createSigningRequest",
            world.message("x"),
            INVALID,
            no_wallet,
        ),
        (
            "createBatchPayment",
            json!({"evmBatchSendNative": {"chainId": 1, "from": world.evm, "recipients": [recipient]}}),
            INVALID,
            no_wallet,
        ),
        (
            "createSigningRequest",
            json!({"vaultUuid": this, "evmMessage": world.message("x")["evmMessage"]}),
            FORBIDDEN,
            outside,
        ),
        (
            "createWallet",
            json!({"vaultUuid": this, "networkType": 1}),
            FORBIDDEN,
            outside,
        ),
        (
            "getWalletList",
            json!({"vaultUuid": this}),
            FORBIDDEN,
            outside,
        ),
        (
            "getSigningRequestList",
            json!({"vaultUuid": this}),
            FORBIDDEN,
            outside,
        ),
        // Its own has no keys yet: not enough signers.
        (
            "createWallet",
            json!({"vaultUuid": vault, "networkType": 1}),
            UNAVAILABLE,
            "keys are still being generated",
        ),
    ] {
        other.refused(operation, body, how, part).await;
    }
    let empty = other
        .same("getWalletList", json!({"vaultUuid": vault}))
        .await;
    assert_eq!(empty["detailsList"], json!([]));
    // Over sweep in its own shape.
    let route = format!(
        "sweep configure --token deposits --network EVM --vault {}",
        vault.as_str().unwrap()
    );
    world.command(&route.split(' ').collect::<Vec<_>>());
    let order = json!({"network": "EVM", "ref": "order-2"});
    let part = "keys are still being generated";
    made.sweep
        .refused("sweep/wallets", order, UNAVAILABLE, part)
        .await;
    let route = "sweep configure --token deposits --network EVM --vault default";
    world.command(&route.split(' ').collect::<Vec<_>>());
}
