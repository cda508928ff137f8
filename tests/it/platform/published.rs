//! Programs that others wrote for the public product send these bodies, and read these fields of the answers.

use serde_json::{Value, json};

use super::*;

/// Has a digest signed, and finds its own address behind R, S and V.
async fn a_bot_that_signs_digests(world: &World) {
    let digest = [7_u8; 32];
    let body = json!({
        "rawMessage": {
            "from": world.evm,
            "content": base64(digest),
            "ecdsaHashFunction": "ECDSA_HASH_FUNCTION_USE_MESSAGE_DIRECTLY",
        },
        "vaultUuid": world.dev.vault,
        "callbackClientSignerPublicKey": "",
    });
    let outcome = world.api().sign(body).await;
    let signature = &first_signature(&outcome)["ecdsaSignature"];
    let digest = format!("0x{}", "07".repeat(32));
    let signer = outside("recover", json!({"digest": digest, "signature": signature}));
    assert_eq!(signer["address"], json!(world.evm));
}

/// Calls a contract with gas settings of its own, looks at what is to be signed, and waits for the hash.
async fn a_keeper_that_calls_a_contract(world: &World, anvil: &Anvil) {
    let to = "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be";
    let input = base64([0x27_u8, 0x2e, 0x36, 0x61, 0, 0, 0, 1]);
    let call = json!({
        "vaultUuid": world.dev.vault,
        "callbackClientSignerPublicKey": "",
        "broadcastTx": true,
        "evmSendCustom": {"chainId": "8453", "from": world.evm, "to": to, "input": input, "value": "0",
            "gasFee": {"gasLimit": "300000", "maxFee": "5000000000"}},
    });
    let uuid = world.api().create(call).await;
    let shown = world.api().details(&uuid).await["evmSendCustom"].clone();
    assert_eq!(shown["to"], to);
    assert_eq!(shown["input"], json!(input));
    assert_eq!(shown["value"], "0");
    let outcome = world.api().execute(&uuid).await;
    assert_eq!(outcome["error"], Value::Null, "{outcome}");
    let receipt = anvil.receipt(outcome["txHash"].as_str().unwrap()).await;
    assert_eq!(receipt["status"], "0x1");
}

/// Writes its messages with a generator's names, leaves out what is zero, and names no vault.
async fn a_generated_client(world: &World) {
    let body = json!({
        "evm_send_erc20": {"chain_id": "8453", "from": world.evm, "to": world.evm,
            "token_contract_address": "0x2791bca1f2de4661ed88a30c99a7a9449aa84174", "amount": "1000000"},
        "notes": "sending 1 USDC for testing",
    });
    let created = world.api().ok("createSigningRequest", body).await;
    let request = &created["signingRequest"];
    assert_eq!(request["status"], "STATUS_PENDING");
    assert_eq!(request["vaultUuid"], json!(world.dev.vault));
    assert_eq!(request["notes"], "sending 1 USDC for testing");
    // On this chain there is no such token, which the outcome says.
    let outcome = world.api().execute(request["uuid"].as_str().unwrap()).await;
    let message = outcome["error"]["message"].as_str().unwrap();
    assert!(message.contains("tokenContractAddress"), "{outcome}");
    assert_eq!(outcome["txHash"], "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_of_the_public_product__should_get_what_they_read() {
    let folder = tempfile::tempdir().unwrap();
    let anvil = Anvil::start(folder.path(), 8453).await;
    let chain = format!("8453={}", anvil.url);
    let world = World::start_with(&["--chain", &chain]).await;
    anvil.fund(&world.evm, 1_000_000_000_000_000_000).await;
    a_bot_that_signs_digests(&world).await;
    a_keeper_that_calls_a_contract(&world, &anvil).await;
    a_generated_client(&world).await;
}
