//! A batch of as many payments of a token as there can be, by a file in a browser, on a real anvil.

use super::*;

/// Rows of a file at most.
const ROWS: u64 = 254;
const SUPPLY: u64 = 1_000_000;

fn recipient(number: u64) -> String {
    format!("0x{:040x}", 0xba7c_0000_0000 + number)
}

/// Deploys the plain token of the tests, all of which this address has.
async fn deploy(anvil: &Anvil, owner: &str) -> String {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/node/BatchTokens.json");
    let built: Value = serde_json::from_str(&fs::read_to_string(built).unwrap()).unwrap();
    let init = built["contracts"]["PlainToken"]["init"].as_str().unwrap();
    let data = format!("{init}{:0>64}{SUPPLY:064x}", &owner[2..]);
    let accounts = anvil.call("eth_accounts", json!([])).await;
    let transaction = json!([{"from": accounts[0], "data": data}]);
    let hash = anvil.call("eth_sendTransaction", transaction).await;
    let hash = hash.as_str().unwrap().to_owned();
    let receipt = eventually("the token is deployed", async || {
        let receipt = anvil.receipt(&hash).await;
        receipt.is_object().then_some(receipt)
    })
    .await;
    receipt["contractAddress"].as_str().unwrap().to_owned()
}

async fn balance(anvil: &Anvil, token: &str, owner: &str) -> u64 {
    let data = format!("0x70a08231{:0>64}", &owner[2..]);
    let call = json!([{"to": token, "data": data}, "latest"]);
    let said = anvil.call("eth_call", call).await;
    u64::from_str_radix(said.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
}

/// The batch, until it has the request of this stage.
async fn request_of(anvil: &Anvil, api: &ApiClient, batch: &str, stage: &str) -> String {
    eventually("the batch goes on", async || {
        // What comes next waits until what came before is final.
        anvil.call("anvil_mine", json!(["0x46"])).await;
        let found = api
            .ok("getBatchPaymentDetails", json!({"uuid": batch}))
            .await;
        let batch = &found["batchPayment"];
        assert_ne!(batch["status"], "STATUS_FAILED", "{batch}");
        Some(batch[stage]["uuid"].as_str()?.to_owned())
    })
    .await
}

#[allow(
    clippy::print_stdout,
    reason = "how long the check took, for who reads the log"
)]
pub async fn pay(stage: &mut ConsoleStage<'_>) {
    let ConsoleStage {
        anvil,
        api,
        people,
        vault,
        from,
    } = stage;
    let token = deploy(anvil, from).await;
    let mut file = "recipient,amount,notes\n".to_owned();
    for number in 1..=ROWS {
        file += &format!("{},{number},salary {number}\n", recipient(number));
    }
    let ask = json!({"vault": vault, "token": token, "file": file});
    let made = people.ask("tokenBatch", "treasurer", ask);
    let total = ROWS * (ROWS + 1) / 2;
    let checked = made["checked"].as_str().unwrap();
    for part in [
        &format!("to {ROWS} recipients"),
        &format!("{total} in the smallest unit"),
    ] {
        assert!(checked.contains(part), "{part}: {checked}");
    }
    println!("{ROWS} rows were checked in {} ms", made["checkedMs"]);
    let path = made["path"].as_str().unwrap();
    let batch = path.rsplit('/').next().unwrap();
    for stage in ["approvalSigningRequest", "sendSigningRequest"] {
        let uuid = request_of(anvil, api, batch, stage).await;
        for who in ["treasurer", "controller"] {
            let approve = json!({"uuids": [uuid], "fee": "0.1"});
            let done = people.ask("approve", who, approve);
            assert_eq!(done["said"], "1 of 1 done", "{stage}: {done}");
        }
        let outcome = api.execute(&uuid).await;
        assert_eq!(outcome["error"], Value::Null, "{stage}: {outcome}");
    }
    eventually("the batch is paid", async || {
        anvil.call("anvil_mine", json!(["0x46"])).await;
        let found = api
            .ok("getBatchPaymentDetails", json!({"uuid": batch}))
            .await;
        (found["batchPayment"]["status"] == "STATUS_SUCCEEDED").then_some(())
    })
    .await;
    let page = people.ask("open", "treasurer", json!({"path": path}));
    let (head, _) = page["text"].as_str().unwrap().split_once('\n').unwrap();
    assert!(head.contains("paid"), "{page}");
    for number in 1..=ROWS {
        let paid = balance(anvil, &token, &recipient(number)).await;
        assert_eq!(paid, number);
    }
    assert_eq!(balance(anvil, &token, from).await, SUPPLY - total);
    assert_eq!(balance(anvil, &token, CONTRACT).await, 0);
}
