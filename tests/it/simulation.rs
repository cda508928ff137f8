//! What people see of a transaction beside its payload: the call in words, and what it would do.

use ::base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::support::*;

const EVM: &str = "NETWORK_TYPE_EVM";
/// Where anvil gets a contract that answers 42 to everything.
const ANSWERS: &str = "0x00000000000000000000000000000000C0FFEE42";
const ANSWERS_CODE: &str = "0x602a60005260206000f3";
/// And one that reverts with `Error("Nope")`.
const REVERTS: &str = "0x00000000000000000000000000000000c0ffee43";
const REVERTS_CODE: &str =
    "0x6308c379a060e01b60005260206004526004602452634e6f706560e01b60445260646000fd";

/// `simulation` of a request, once it is there.
async fn simulation(api: &ApiClient, uuid: &str) -> Value {
    eventually("the simulation is shown", async || {
        let details = api.details(uuid).await;
        let shown = STANDARD
            .decode(details["simulation"].as_str().unwrap())
            .unwrap();
        (!shown.is_empty()).then(|| serde_json::from_slice(&shown).unwrap())
    })
    .await
}

#[tokio::test]
async fn simulation__should_show_what_a_real_node_says() {
    let folder = tempfile::tempdir().unwrap();
    let anvil = Anvil::start(folder.path(), 31337).await;
    for (contract, code) in [(ANSWERS, ANSWERS_CODE), (REVERTS, REVERTS_CODE)] {
        anvil.call("anvil_setCode", json!([contract, code])).await;
    }
    let mut dev = DevProcess::start(
        &folder.path().join("dev"),
        &["--chain", &anvil.chain_argument()],
    )
    .await;
    let from = dev.api.wallet(&dev.vault, EVM).await;
    anvil.fund(&from, 1_000_000_000_000_000_000).await;
    let gas =
        json!({"maxFee": "20000000000", "maxPriorityFee": "1000000000", "gasLimit": "100000"});
    let call = |to: &str, broadcast: bool| {
        json!({"broadcastTx": broadcast, "evmSendCustom": {"chainId": "31337", "from": from,
            "to": to, "value": "0", "input": base64([0xde, 0xad, 0xbe, 0xef]), "gasFee": gas}})
    };

    // That it would fail does not keep it from being signed and sent.
    let sent = dev.api.create(call(REVERTS, true)).await;
    let outcome = dev.api.execute(&sent).await;
    assert_eq!(outcome["error"], Value::Null);
    let receipt = anvil.receipt(outcome["txHash"].as_str().unwrap()).await;
    assert_eq!(receipt["status"], "0x0");

    let (status, created) = dev
        .api
        .post("createSigningRequest", call(ANSWERS, false))
        .await;
    assert_eq!(status, 200, "{created}");
    // It is there at once, and was not tried yet.
    assert_eq!(created["signingRequest"]["simulation"], "");
    let passes = created["signingRequest"]["uuid"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(dev.api.execute(&passes).await["error"], Value::Null);
    let passed = json!({"success": true, "result": format!("0x{:064x}", 42), "error": null,
        "unitsUsed": null, "logs": [], "truncated": false});
    assert_eq!(simulation(&dev.api, &passes).await, passed);

    let fails = dev.api.create(call(REVERTS, false)).await;
    let failed = simulation(&dev.api, &fails).await;
    assert_eq!(failed["success"], false);
    assert!(
        failed["error"].as_str().unwrap().contains("Nope"),
        "{failed}"
    );
    let data = failed["result"].as_str().unwrap();
    assert!(data.starts_with("0x08c379a0"), "{failed}");
    assert_eq!(dev.api.execute(&fails).await["error"], Value::Null);

    // Messages do nothing on a chain.
    let message = dev
        .api
        .create(json!({"evmMessage": {"chainId": "1", "from": from, "content": base64("hello")}}))
        .await;
    assert_eq!(dev.api.execute(&message).await["error"], Value::Null);
    assert_eq!(dev.api.details(&message).await["simulation"], "");

    assert_eq!(dev.process.terminate(), Some(0));
    dev.restart().await;
    assert_eq!(simulation(&dev.api, &passes).await, passed);
    assert_eq!(simulation(&dev.api, &fails).await, failed);
}

#[tokio::test]
async fn abi_files__should_put_calls_of_ones_own_contracts_into_words() {
    let folder = tempfile::tempdir().unwrap();
    let artifact = folder.path().join("Greeter.json");
    let abi = json!([{"type": "function", "name": "greet", "stateMutability": "nonpayable",
        "inputs": [{"name": "who", "type": "string"}, {"name": "times", "type": "uint8"}],
        "outputs": []}]);
    let text = json!({"contractName": "Greeter", "abi": abi, "bytecode": "0x"}).to_string();
    std::fs::write(&artifact, text).unwrap();
    let data = folder.path().join("dev");
    let file = artifact.to_str().unwrap();
    let dev = DevProcess::start_with(&data, &[], &[("COVAULT_EVM_ABI_FILES", file)]).await;
    let from = dev.api.wallet(&dev.vault, EVM).await;
    let shown = async |input: Value| {
        let body = json!({"broadcastTx": false, "evmSendCustom": {
            "chainId": "1", "from": from, "to": ANSWERS, "value": "0", "input": input,
            "nonce": "0", "gasFee": {"maxFee": "1", "maxPriorityFee": "1", "gasLimit": "90000"}}});
        let answer = dev.api.ok("createSigningRequest", body).await;
        let uuid = answer["signingRequest"]["uuid"]
            .as_str()
            .unwrap()
            .to_owned();
        let details = dev.api.details(&uuid).await["evmInputDataDecode"].clone();
        // The receipt says the same.
        assert_eq!(answer["signingRequest"]["evmInputDataDecode"], details);
        assert_eq!(dev.api.execute(&uuid).await["error"], Value::Null);
        details
    };
    let question = json!({"abi": abi, "function": "greet", "values": ["Ada, twice", 2]});
    let input = outside("callData", question)["data"].clone();
    let bytes = hex::decode(input.as_str().unwrap().trim_start_matches("0x")).unwrap();
    let expected = json!({"function": "greet(string \"Ada, twice\", uint8 2)", "args": [
        {"name": "who", "type": "string", "data": "Ada, twice"},
        {"name": "times", "type": "uint8", "data": "2"}]});
    assert_eq!(shown(json!(base64(bytes))).await, expected);
}

#[test]
fn abi_files__should_be_refused_by_name_when_they_are_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("Greeter.json");
    std::fs::write(&file, "{\"abi\": \"none\"}").unwrap();
    let output = covault()
        .args(["dev", "--listen", "127.0.0.1:0", "--data"])
        .arg(folder.path().join("dev"))
        .env("COVAULT_EVM_ABI_FILES", &file)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let problem = format!("evm.abi_files: {} is not a contract's ABI", file.display());
    assert!(said.contains(&problem), "{said}");
}
