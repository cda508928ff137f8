//! estimateFee: which chain is meant, what is shown, and what is not handed on.

use std::sync::Arc;

use async_trait::async_trait;
use axum::Router;
use covault_actors::chain_rpc::{
    BroadcastOutcome, BroadcastRequest, ChainClient, ChainClients, ChainError, ChainKey,
    FeeEstimate, TrackedTransaction, TransactionSighting,
};
use covault_core::networks::{ChainData, Queries};
use serde_json::{Value, json};

use super::routes::{app_on, post};

/// Names these prices.
struct StubChainClient(Result<[FeeEstimate; 3], ChainError>);

#[async_trait]
impl ChainClient for StubChainClient {
    async fn chain_data(&self, _: &Queries, _: u64) -> Result<ChainData, ChainError> {
        Err(ChainError::Unknown("not asked here".into()))
    }

    async fn sightings(
        &self,
        _: &[TrackedTransaction],
        _: u64,
    ) -> Vec<Result<TransactionSighting, ChainError>> {
        Vec::new()
    }

    async fn broadcast(&self, _: &BroadcastRequest) -> BroadcastOutcome {
        BroadcastOutcome::Unknown("not asked here".into())
    }

    async fn fee_estimates(&self) -> Result<[FeeEstimate; 3], ChainError> {
        self.0.clone()
    }

    async fn balance(&self, _: &str, _: Option<&str>) -> Result<String, ChainError> {
        Err(ChainError::Unknown("not asked here".into()))
    }
}

fn estimate(price: u128) -> FeeEstimate {
    FeeEstimate {
        price,
        most_price: 2 * price,
        priority_price: None,
        transfer_fee: price.saturating_mul(21_000),
    }
}

fn prices(levels: [u128; 3]) -> StubChainClient {
    StubChainClient(Ok(levels.map(estimate)))
}

async fn app(chain: ChainKey, client: StubChainClient) -> Router {
    app_on(ChainClients::default().with(chain, Arc::new(client))).await
}

async fn ask(app: &Router, body: Value) -> (u16, Value) {
    let (status, _, answer) = post("/v1/estimateFee", body).of(app).await;
    (status, answer)
}

#[tokio::test]
async fn estimates__should_be_shown_by_level() {
    let mut levels = [1, 2, 3].map(estimate);
    levels[2].priority_price = Some(1);
    let app = app(ChainKey::evm(1), StubChainClient(Ok(levels))).await;
    let shown = |price: u64, priority: Value| {
        json!({"price": price.to_string(), "mostPrice": (2 * price).to_string(),
            "priorityPrice": priority, "transferFee": (21_000 * price).to_string()})
    };
    for chain_id in [json!("1"), json!(1)] {
        let body = json!({"networkType": "NETWORK_TYPE_EVM", "chainId": chain_id});
        let expected = json!({
            "slow": shown(1, Value::Null),
            "normal": shown(2, Value::Null),
            "fast": shown(3, json!("1")),
            "priceUnit": "wei per unit of gas",
            "error": null,
        });
        assert_eq!(ask(&app, body).await, (200, expected));
    }
}

#[tokio::test]
async fn estimates__should_be_of_a_chain_that_is_known_and_reached() {
    let app = app(ChainKey::SONIC, prices([1, 2, 3])).await;
    let sonic = json!({"networkType": "NETWORK_TYPE_SOLANA", "chainId": 0});
    let (status, answer) = ask(&app, sonic).await;
    assert_eq!((status, &answer["error"]), (200, &Value::Null), "{answer}");
    let unit = "micro-lamports per unit of computation";
    assert_eq!(answer["priceUnit"], unit);
    for (body, words) in [
        (json!({}), "networkType: is required"),
        (
            json!({"networkType": "NETWORK_TYPE_EVM"}),
            "chainId: is required",
        ),
        (
            json!({"networkType": "NETWORK_TYPE_EVM", "chainId": 424_242}),
            "Invalid chain id",
        ),
        (
            json!({"networkType": "NETWORK_TYPE_SOLANA", "chainId": 5}),
            "Invalid chain id",
        ),
        (
            json!({"networkType": "NETWORK_TYPE_EVM", "chainId": 1}),
            "chainId: ",
        ),
        (json!({"networkType": "NETWORK_TYPE_TON"}), "networkType: "),
    ] {
        let (status, answer) = ask(&app, body.clone()).await;
        assert_eq!(status, 400, "{body} {answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.starts_with(words), "{body} {message}");
        for level in ["slow", "normal", "fast"] {
            assert_eq!(answer[level], Value::Null);
        }
    }
}

#[tokio::test]
async fn estimates__should_not_be_handed_on_above_the_ceiling() {
    let body = json!({"networkType": "NETWORK_TYPE_EVM", "chainId": 1});
    const GWEI: u128 = 1_000_000_000;
    // What is offered counts, which is twice as much here: 1,000 gwei at most.
    let fits = app(ChainKey::evm(1), prices([1, 2, 500 * GWEI])).await;
    assert_eq!(ask(&fits, body.clone()).await.0, 200);
    for (levels, words) in [
        ([1, 2, 500 * GWEI + 1], "for the level fast"),
        ([1, u128::MAX / 4, 2], "for the level normal"),
    ] {
        let dear = app(ChainKey::evm(1), prices(levels)).await;
        let (status, answer) = ask(&dear, body.clone()).await;
        assert_eq!(status, 503, "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        for words in [
            words,
            "maximum of 1000000000000",
            "most_price",
            "wei per unit of gas",
        ] {
            assert!(message.contains(words), "{message}");
        }
        assert_eq!(answer["slow"], Value::Null);
    }
    let down = StubChainClient(Err(ChainError::Unknown("no node answers".into())));
    let down = app(ChainKey::evm(1), down).await;
    let (status, answer) = ask(&down, body).await;
    let message = answer["error"]["message"].as_str().unwrap();
    assert_eq!(status, 503);
    assert!(message.contains("no node answers"), "{message}");
}
