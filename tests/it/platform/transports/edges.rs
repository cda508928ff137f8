//! Texts at their limits.

use serde_json::{Value, json};

use super::{BOB, Fixtures};
use crate::platform::{
    World,
    caller::{ApiCaller, INVALID},
};

const ISSUER: &str = "GA5ZSEJYB37JRC5AVCIA5MOP4RHTM335X2KGX3IHOJAPP5RE34K4KZVN";

/// Texts with as much as they may have, and with one more: characters, but bytes where the network
/// counts those.
pub async fn check(world: &World, caller: &ApiCaller, made: &Fixtures) {
    let vault = &world.dev.vault;
    let new = async |network: &str| caller.api.wallet(vault, network).await;
    let (stellar, ton) = (
        new("NETWORK_TYPE_STELLAR").await,
        new("NETWORK_TYPE_TON").await,
    );
    let named = |name: &str| json!({"vaultUuid": vault, "networkType": 1, "name": name});
    let referred = |text: &str| json!({"vaultUuid": vault, "networkType": 1, "ref": text});
    let renamed = |name: &str| json!({"address": world.evm, "name": name});
    let batch = |name: &str, notes: &str, rent: &str| {
        json!({"name": name, "notes": notes, "evmBatchSendNative": {"chainId": 1, "from": world.evm,
            "recipients": [{"address": BOB, "amount": "1", "notes": rent}]}})
    };
    let trust = |memo: &str| json!({"stellarChangeTrust": {"from": stellar, "assetCode": "USDC", "assetIssuer": ISSUER, "memo": memo}});
    let native = |memo: &str| json!({"stellarSendNative": {"from": stellar, "to": ISSUER, "value": "1", "memo": memo}});
    let asset = |memo: &str| json!({"stellarSendAsset": {"from": stellar, "to": ISSUER, "assetCode": "USDC", "assetIssuer": ISSUER, "amount": "1", "memo": memo}});
    let coins = |comment: &str| json!({"tonSendNative": {"from": ton, "to": ton, "value": "1", "comment": comment}});
    let order = |text: &str| json!({"network": "EVM", "ref": text});
    let rents = "evmBatchSendNative.recipients[0].notes";
    type Ask<'a> = &'a dyn Fn(&str) -> Value;
    let cases: &[(&str, &str, usize, Ask<'_>)] = &[
        ("createWallet", "name", 85, &named),
        ("createWallet", "ref", 500, &referred),
        ("updateWallet", "name", 85, &renamed),
        ("createBatchPayment", "name", 85, &|it| batch(it, "", "")),
        ("createBatchPayment", "notes", 1000, &|it| batch("", it, "")),
        ("createBatchPayment", rents, 500, &|it| batch("", "", it)),
    ];
    for (operation, field, most, ask) in cases {
        // Of 3 and of 4 bytes; and another text for each transport: a ref is used once.
        let longest = ["鍵", "\u{1F511}"].map(|letter| ask(&letter.repeat(*most)));
        caller.each(operation, longest).await;
        let problem = format!("{field}: has more than {most} characters");
        let longer = ask(&"\u{1F511}".repeat(most + 1));
        caller.refused(operation, longer, INVALID, &problem).await;
    }
    let cases: &[(&str, usize, Ask<'_>)] = &[
        ("stellarChangeTrust.memo", 28, &trust),
        ("stellarSendNative.memo", 28, &native),
        ("stellarSendAsset.memo", 28, &asset),
        ("tonSendNative.comment", 1024, &coins),
    ];
    for (field, most, ask) in cases {
        let longest = [ask(&"m".repeat(*most)), ask(&"ж".repeat(most / 2))];
        for made in caller.each("createSigningRequest", longest).await {
            let uuid = json!({"uuid": made["signingRequest"]["uuid"]});
            caller.api.ok("rejectSigningRequest", uuid).await;
        }
        for longer in ["m".repeat(most + 1), "ж".repeat(most / 2 + 1)] {
            let problem = format!("{field}: is too long: at most {most} bytes");
            let operation = "createSigningRequest";
            caller
                .refused(operation, ask(&longer), INVALID, &problem)
                .await;
        }
    }
    let longest = ["a", "@"].map(|letter| order(&letter.repeat(128)));
    made.sweep.each("sweep/wallets", longest).await;
    for wrong in ["a".repeat(129), "鍵".repeat(42)] {
        made.sweep
            .refused("sweep/wallets", order(&wrong), INVALID, "ref invalid")
            .await;
    }
}
