//! What is refused for what it asks.

use serde_json::{Value, json};

use super::{AWAY, BOB, Fixtures};
use crate::platform::{
    World,
    caller::{ApiCaller, EXISTS, ExpectedError, INVALID, TOO_LARGE, UNAVAILABLE, WRONG_STATE},
};
use crate::support::*;

const NOBODY: &str = "00000000-0000-4000-8000-000000000000";

pub async fn check(world: &World, caller: &ApiCaller, made: &Fixtures) {
    let (vault, evm) = (&world.dev.vault, &world.evm);
    let message = |text: &str| world.message(text)["evmMessage"].clone();
    let digest = base64([1; 32]);
    let recipient = json!({"address": BOB, "amount": "1", "notes": ""});
    let archived = json!({"evmMessage": {"chainId": 1, "from": made.wallet, "content": "AA=="}});
    let pay = |chain: u64, to: &str| json!({"evmSendNative": {"chainId": chain, "from": evm, "to": to, "value": "1"}});
    let wallet = |more: Value| {
        let mut wallet = json!({"vaultUuid": vault, "networkType": 1});
        let (known, more) = (wallet.as_object_mut(), more.as_object().cloned());
        known.unwrap().extend(more.unwrap());
        wallet
    };
    for operation in [
        "getSigningRequestDetails",
        "executeSigningRequests",
        "approveSigningRequest",
        "rejectSigningRequest",
        "replaceTransaction",
        "getBatchPaymentDetails",
    ] {
        // A batch is no request, and a request no batch.
        let other = match operation {
            "getBatchPaymentDetails" => &made.signed,
            _ => &made.batch,
        };
        for uuid in ["", "nonsense", NOBODY, other] {
            let body = json!({"uuid": uuid});
            caller
                .refused(operation, body, INVALID, "Invalid uuid")
                .await;
        }
    }
    let cases: Vec<(&str, Value, ExpectedError, &str)> = vec![
        (
            "resimulation",
            json!({"signingRequestUuid": NOBODY}),
            INVALID,
            "Invalid uuid",
        ),
        (
            "getSigningRequestList",
            json!({"vaultUuid": NOBODY}),
            INVALID,
            "Invalid uuid",
        ),
        (
            "getSigningRequestList",
            json!({"vaultUuid": vault, "limit": 101}),
            INVALID,
            "limit: ",
        ),
        (
            "getWalletList",
            json!({"vaultUuid": vault, "limit": 101}),
            INVALID,
            "limit: ",
        ),
        (
            "getWalletList",
            json!({"vaultUuid": vault, "page": -1}),
            INVALID,
            "page: ",
        ),
        (
            "getWalletList",
            json!({}),
            INVALID,
            "vaultUuid: is required",
        ),
        (
            "createWallet",
            json!({"vaultUuid": vault}),
            INVALID,
            "networkType: ",
        ),
        (
            "createWallet",
            wallet(json!({"callbackClientSignerPublicKey": "ssh-ed25519 AAAA"})),
            INVALID,
            "callbackClientSignerPublicKey: ",
        ),
        (
            "createWallet",
            wallet(json!({"ref": "both-2"})),
            EXISTS,
            "duplicate wallet ref",
        ),
        (
            "updateWallet",
            json!({"address": evm}),
            INVALID,
            "nothing to change: give name, status or both",
        ),
        (
            "updateWallet",
            json!({"address": evm, "status": "STATUS_PENDING"}),
            INVALID,
            "status: ",
        ),
        (
            "updateWallet",
            json!({"address": BOB, "name": "x"}),
            INVALID,
            "address: ",
        ),
        ("getWalletInfo", json!({}), INVALID, "exactly one"),
        (
            "getWalletInfo",
            json!({"ref": "nobody's"}),
            INVALID,
            "ref: is not that of a wallet",
        ),
        (
            "getWalletInfo",
            json!({"address": "nonsense"}),
            INVALID,
            "address: ",
        ),
        ("createSigningRequest", json!({}), INVALID, "exactly one"),
        (
            "createSigningRequest",
            json!({"rawMessage": {"from": evm, "content": "AA=="}}),
            INVALID,
            "rawMessage.ecdsaHashFunction: ",
        ),
        (
            "createSigningRequest",
            json!({"rawMessage": {"from": BOB, "content": digest, "ecdsaHashFunction": 1}}),
            INVALID,
            "rawMessage.from: ",
        ),
        (
            "createSigningRequest",
            pay(1, "0x12"),
            INVALID,
            "evmSendNative.to: ",
        ),
        // Another chain than the known ones needs gasFee and nonce.
        (
            "createSigningRequest",
            pay(424_242, BOB),
            INVALID,
            "evmSendNative.",
        ),
        (
            "createSigningRequest",
            json!({"vaultUuid": "nonsense", "evmMessage": message("x")}),
            INVALID,
            "Invalid uuid",
        ),
        (
            "createSigningRequest",
            archived,
            WRONG_STATE,
            "the wallet is archived",
        ),
        (
            "createSigningRequest",
            json!({"notes": "n".repeat(2 << 20), "evmMessage": message("x")}),
            TOO_LARGE,
            " is larger than 1048576 bytes",
        ),
        (
            "getPendingSigningRequests",
            json!({"vaultUuid": NOBODY}),
            INVALID,
            "Invalid uuid",
        ),
        (
            "approveSigningRequests",
            json!({"uuids": []}),
            INVALID,
            "uuids: must be 1 to 100 signing requests",
        ),
        (
            "rejectSigningRequests",
            json!({"uuids": [made.waiting, made.signed, made.waiting]}),
            INVALID,
            "uuids[2]: is named twice",
        ),
        (
            "approveSigningRequest",
            json!({"uuid": made.waiting}),
            WRONG_STATE,
            "the request is not waiting for approval; ",
        ),
        (
            "rejectSigningRequest",
            json!({"uuid": made.signed}),
            WRONG_STATE,
            "the request cannot be rejected: ",
        ),
        (
            "replaceTransaction",
            json!({"uuid": made.signed}),
            INVALID,
            "action: must be ACTION_SPEED_UP or ACTION_CANCEL",
        ),
        (
            "replaceTransaction",
            json!({"uuid": made.signed, "action": "ACTION_CANCEL", "mostFee": "1.5"}),
            INVALID,
            "mostFee: must be a whole number in the smallest unit, digits only",
        ),
        (
            "replaceTransaction",
            json!({"uuid": made.signed, "action": "ACTION_CANCEL"}),
            INVALID,
            "uuid: the request signs a message, which is on no chain",
        ),
        (
            "replaceTransaction",
            json!({"uuid": made.waiting, "action": "ACTION_SPEED_UP"}),
            WRONG_STATE,
            "uuid: it is not signed yet; rejectSigningRequest ends it",
        ),
        (
            "resimulation",
            json!({"signingRequestUuid": made.signed}),
            WRONG_STATE,
            "the request cannot be simulated again: it has ended",
        ),
        (
            "resimulation",
            json!({"signingRequestUuid": made.waiting}),
            WRONG_STATE,
            "the request cannot be simulated again: its transaction is not built yet",
        ),
        (
            "createBatchPayment",
            json!({"name": "x"}),
            INVALID,
            "exactly one",
        ),
        (
            "createBatchPayment",
            json!({"evmBatchSendNative": {"chainId": 424_242, "from": evm, "recipients": [recipient]}}),
            INVALID,
            "Invalid chain id",
        ),
        (
            "createBatchPayment",
            json!({"evmBatchSendNative": {"chainId": 1, "from": evm, "recipients": [recipient, {}]}}),
            INVALID,
            "evmBatchSendNative.recipients[1].",
        ),
        (
            "getBalance",
            json!({"walletAddress": evm}),
            INVALID,
            "networkType: ",
        ),
        (
            "getBalance",
            json!({"networkType": 1, "walletAddress": evm}),
            INVALID,
            "chainId: ",
        ),
        (
            "getBalance",
            json!({"networkType": 1, "walletAddress": evm, "chainId": 424_242}),
            INVALID,
            "Invalid chain id",
        ),
        (
            "getBalance",
            json!({"networkType": 1, "walletAddress": "x", "chainId": 1}),
            INVALID,
            "walletAddress: ",
        ),
        (
            "estimateFee",
            json!({"chainId": 1}),
            INVALID,
            "networkType: ",
        ),
        (
            "estimateFee",
            json!({"networkType": 1, "chainId": 424_242}),
            INVALID,
            "Invalid chain id",
        ),
        // No node, and one that does not answer.
        (
            "estimateFee",
            json!({"networkType": 1, "chainId": AWAY}),
            UNAVAILABLE,
            "no chain node answered",
        ),
        (
            "getBalance",
            json!({"networkType": 1, "walletAddress": evm, "chainId": 1}),
            INVALID,
            "chainId: no node is configured",
        ),
        (
            "getBalance",
            json!({"networkType": 1, "walletAddress": evm, "chainId": AWAY}),
            UNAVAILABLE,
            "no chain node answered",
        ),
    ];
    for (operation, body, how, part) in cases {
        caller.refused(operation, body, how, part).await;
    }
}
