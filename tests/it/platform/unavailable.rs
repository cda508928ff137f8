//! Without a bus nobody can sign; all that needs no signer goes on, and what waits is done when the
//! bus is back.

use serde_json::{Value, json};

use super::{
    World,
    caller::{UNAVAILABLE, WRONG_STATE},
};
use crate::support::*;

const BOB: &str = "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be";

#[tokio::test]
async fn bus_that_is_away__should_be_told_and_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let anvil = Anvil::start(folder.path(), 31337).await;
    let mut redis = Redis::start(folder.path()).await;
    let (chain, url) = (anvil.chain_argument(), redis.url());
    let arguments = ["--chain", chain.as_str(), "--redis", url.as_str()];
    let patience = [("COVAULT_SERVE_EXECUTE_WAIT_MS", "300")];
    let world = World::start_as(&arguments, &patience).await;
    let caller = world.caller();
    anvil.fund(&world.evm, 1_000_000_000_000_000_000).await;

    redis.stop();
    eventually("the service is not ready", async || {
        (caller.api.get("/readyz").await == 503).then_some(())
    })
    .await;
    assert!(!caller.bare().is_serving().await);
    assert_eq!(caller.api.get("/livez").await, 200);
    let wallet = || json!({"vaultUuid": world.dev.vault, "networkType": 1});
    caller.each("createWallet", [wallet(), wallet()]).await;
    let pay =
        || json!({"evmSendNative": {"chainId": 31337, "from": world.evm, "to": BOB, "value": "1"}});
    let made = caller
        .each("createSigningRequest", [pay(), pay()])
        .await
        .map(|made| made["signingRequest"]["uuid"].clone());
    for uuid in &made {
        let body = json!({"uuid": uuid});
        let part = "the request is still pending";
        caller
            .refused("executeSigningRequests", body, UNAVAILABLE, part)
            .await;
    }
    // Its transaction is there and waits for its signature: it can be tried as often as one likes.
    let again = json!({"signingRequestUuid": made[0]});
    eventually("the transaction is built", async || {
        let (status, _) = caller.api.post("resimulation", again.clone()).await;
        (status == 200).then_some(())
    })
    .await;
    let simulated = caller.same("resimulation", again.clone()).await;
    assert_ne!(simulated["simulation"], "");
    let details = caller
        .same("getSigningRequestDetails", json!({"uuid": made[0]}))
        .await;
    let shown = &details["signingRequest"]["simulation"];
    assert_eq!(*shown, simulated["simulation"]);

    redis.restart().await;
    for uuid in &made {
        let body = json!({"uuid": uuid});
        let outcome = eventually("the request is signed", async || {
            let (status, outcome) = caller
                .api
                .post("executeSigningRequests", body.clone())
                .await;
            (status == 200).then_some(outcome)
        })
        .await;
        assert_eq!(outcome["error"], Value::Null, "{outcome}");
        let hash = outcome["txHash"].as_str().unwrap();
        assert_eq!(anvil.receipt(hash).await["status"], "0x1");
    }
    eventually("the service is ready", async || {
        (caller.api.get("/readyz").await == 200).then_some(())
    })
    .await;
    let part = "it has ended";
    caller
        .refused("resimulation", again, WRONG_STATE, part)
        .await;
}
