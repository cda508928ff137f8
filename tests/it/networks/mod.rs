//! Every network end to end: the HTTP API, real threshold signatures, and a node that takes what
//! was signed or refuses it as the network would.

mod aptos;
mod bitcoin;
mod evm;
mod evm_costs;
mod places;
mod solana;
mod stellar;
mod sui;
mod ton;
mod tron;

use serde_json::{Value, json};

use super::support::*;

/// A `covault dev` with nodes, and a wallet of `network` in it.
async fn dev_with_wallet(
    folder: &std::path::Path,
    chains: &[String],
    network: &str,
) -> (DevProcess, String) {
    let arguments: Vec<&str> = chains
        .iter()
        .flat_map(|chain| ["--chain", chain.as_str()])
        .collect();
    let dev = DevProcess::start(&folder.join("dev"), &arguments).await;
    let wallet = dev.api.wallet(&dev.vault, network).await;
    (dev, wallet)
}

/// getBalance, as a number.
async fn balance(api: &ApiClient, network: &str, address: &str, token: Option<&str>) -> u128 {
    let mut question = json!({"networkType": network, "walletAddress": address});
    if let Some(token) = token {
        question["tokenAddress"] = json!(token);
    }
    let answer = api.ok("getBalance", question).await;
    answer["balance"].as_str().unwrap().parse().unwrap()
}

/// Has a transaction signed and not sent, and gives what the node said that tried it.
async fn simulated(api: &ApiClient, mut body: Value) -> Value {
    use ::base64::{Engine as _, engine::general_purpose::STANDARD};
    body["broadcastTx"] = json!(false);
    let uuid = api.create(body).await;
    let outcome = api.execute(&uuid).await;
    assert_eq!(outcome["error"], Value::Null, "{outcome}");
    eventually("the simulation is shown", async || {
        let shown = api.details(&uuid).await["simulation"].clone();
        let shown = STANDARD.decode(shown.as_str().unwrap()).unwrap();
        (!shown.is_empty()).then(|| serde_json::from_slice(&shown).unwrap())
    })
    .await
}

/// Creates a request that must fail, and gives its code and reason.
async fn refusal(api: &ApiClient, body: Value) -> (String, String) {
    let uuid = api.create(body).await;
    let outcome = api.execute(&uuid).await;
    let code = outcome["error"]["executeSigningRequestsErrorCode"]
        .as_str()
        .unwrap_or_else(|| panic!("{outcome}"));
    let details = api.details(&uuid).await;
    assert_eq!(details["status"], "STATUS_FAILED");
    (
        code.to_owned(),
        details["failedReason"].as_str().unwrap().to_owned(),
    )
}

/// Has a transaction signed and sent that a block has and that fails there: its request has succeeded, and what is shown of
/// the transaction says that it did nothing.
async fn fails_on_chain(api: &ApiClient, body: Value) {
    let uuid = api.create(body).await;
    let outcome = api.execute(&uuid).await;
    assert_eq!(outcome["error"], Value::Null, "{outcome}");
    let details = eventually("the transaction is final", async || {
        let details = api.details(&uuid).await;
        (details["transactionState"]["status"] == "STATUS_FINAL").then_some(details)
    })
    .await;
    assert_eq!(details["status"], "STATUS_SUCCEEDED", "{details}");
    assert_eq!(details["transactionState"]["success"], false, "{details}");
}

const INSUFFICIENT_FUNDS: &str = "EXECUTE_SIGNING_REQUESTS_ERROR_CODE_INSUFFICIENT_FUNDS";
