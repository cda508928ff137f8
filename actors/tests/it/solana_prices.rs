//! What Solana nodes say of fees: limit and price of computation, and what tokens take.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_actors::chain_rpc::{ChainEndpoints, ChainError, ChainKey, FeeEstimate};
use covault_core::networks::{
    ChainData, FeeLevel, Queries,
    solana::{
        self,
        token::{TOKEN_2022, TransferFee},
    },
};
use serde_json::{Value, json};

use crate::{
    evm_node::{EvmTestNode, both_ways, connect_to},
    solana_node::{JsonRpcReply, base58, healthy, key, value},
};

/// What a transfer of a lamport asks.
fn transfer_queries(level: FeeLevel) -> Queries {
    Queries::Solana(solana::Queries {
        chain_id: 101,
        blockhash: true,
        token: None,
        compute: Some(solana::ComputeQueries {
            from: base58(&key(1)),
            to: base58(&key(2)),
            amount: 1,
            level,
        }),
    })
}

/// A node of this machine that names these prices, and says this of what it tries.
async fn pricing(prices: JsonRpcReply, tried: JsonRpcReply) -> EvmTestNode {
    EvmTestNode::start(move |method, params| match method {
        "getRecentPrioritizationFees" => prices.clone(),
        "simulateTransaction" => tried.clone(),
        _ => healthy(method, params),
    })
    .await
}

fn paid(prices: impl IntoIterator<Item = u64>) -> JsonRpcReply {
    let block = |price| json!({"slot": 3, "prioritizationFee": price});
    Ok(prices.into_iter().map(block).collect())
}

fn passes(units: u64) -> JsonRpcReply {
    value(json!({"err": null, "logs": [], "unitsConsumed": units}))
}

async fn budget(nodes: &[&EvmTestNode], level: FeeLevel) -> Result<(u32, u64), ChainError> {
    let urls = nodes.iter().map(|node| node.url.clone()).collect();
    let client = connect_to(ChainKey::SOLANA, ChainEndpoints::new(urls));
    match client.chain_data(&transfer_queries(level), 0).await? {
        ChainData::Solana(found) => {
            let compute = found.compute.unwrap();
            Ok((compute.unit_limit, compute.unit_price))
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn solana_facts__should_have_limit_and_price_of_the_computation() {
    let node = pricing(paid(1..=101), passes(451)).await;
    for (level, price) in [
        (FeeLevel::Slow, 11),
        (FeeLevel::Normal, 51),
        (FeeLevel::Fast, 91),
    ] {
        // A fifth more, rounded up.
        assert_eq!(budget(&[&node], level).await, Ok((542, price)));
    }
    let calls = node.calls.lock().unwrap();
    let asked = |wanted: &str| {
        let mut calls = calls.iter();
        let (_, params) = calls.find(|(method, _)| method == wanted).unwrap();
        params.clone()
    };
    assert_eq!(
        asked("getRecentPrioritizationFees"),
        json!([[base58(&key(1)), base58(&key(2))]])
    );
    let tried = asked("simulateTransaction");
    let bytes = STANDARD.decode(tried[0].as_str().unwrap()).unwrap();
    assert!(solana::wire::WireTransaction::parse(&bytes).is_ok());
    assert_eq!(
        tried[1],
        json!({"encoding": "base64", "commitment": "confirmed", "sigVerify": false,
            "replaceRecentBlockhash": true})
    );
    // The newest blockhash there is.
    let place = |wanted: &str| calls.iter().position(|(method, _)| method == wanted);
    assert!(place("simulateTransaction") < place("getLatestBlockhash"));
}

#[tokio::test]
async fn solana_estimates__should_be_what_blocks_took() {
    let node = pricing(paid((1..=101).map(|block| block * 1_000_000)), passes(450)).await;
    let client = connect_to(
        ChainKey::SOLANA,
        ChainEndpoints::new(vec![node.url.clone()]),
    );
    let estimate = |price: u64| FeeEstimate {
        price: price.into(),
        most_price: price.into(),
        priority_price: None,
        // 540 units, by the million.
        transfer_fee: 5_000 + 540 * u128::from(price) / 1_000_000,
    };
    let estimates = client.fee_estimates().await;
    assert_eq!(
        estimates,
        Ok([11, 51, 91].map(|price| estimate(price * 1_000_000)))
    );
    let calls = node.calls.lock().unwrap();
    assert_eq!(
        calls[0],
        ("getRecentPrioritizationFees".into(), json!([[]]))
    );
}

#[tokio::test]
async fn solana_facts__should_have_a_bounded_limit_whatever_a_node_says() {
    let no = || Err((-32601, "Method not found".to_owned()));
    for (prices, tried, expected) in [
        // Nothing is known: what the kind can take at most, and no price.
        (no(), no(), (10_000, 0)),
        (
            paid([]),
            value(json!({"err": "AccountNotFound", "unitsConsumed": 0})),
            (10_000, 0),
        ),
        (paid([7]), passes(0), (10_000, 7)),
        (paid([7]), passes(u64::MAX), (10_000, 7)),
        (paid([7]), passes(1_400_000), (10_000, 7)),
        (paid([u64::MAX]), passes(450), (540, u64::MAX)),
        // Less than any transfer takes: it would fail, and cost its fee.
        (paid([7]), passes(1), (540, 7)),
    ] {
        let node = pricing(prices, tried).await;
        assert_eq!(budget(&[&node], FeeLevel::Normal).await, Ok(expected));
    }
}

#[tokio::test]
async fn a_solana_price__should_not_be_taken_from_a_node_in_trouble_or_alone() {
    for prices in [
        Err((-32005, "Node is behind".to_owned())),
        Ok(json!([{"slot": 3}])),
        Ok(json!([{"slot": 3, "prioritizationFee": 1e40}])),
    ] {
        let node = pricing(prices, passes(450)).await;
        let outcome = budget(&[&node], FeeLevel::Normal).await;
        assert!(
            matches!(outcome, Err(ChainError::Unknown(_))),
            "{outcome:?}"
        );
    }
    let honest = pricing(paid([1_000_000; 9]), passes(450)).await;
    let liar = pricing(paid([9_999_999; 9]), passes(450)).await;
    for client in both_ways(ChainKey::SOLANA, &liar.url, &honest.url) {
        let outcome = client
            .chain_data(&transfer_queries(FeeLevel::Fast), 0)
            .await;
        assert!(
            matches!(outcome, Err(ChainError::Unknown(_))),
            "{outcome:?}"
        );
    }
}

#[tokio::test]
async fn a_solana_limit__should_be_no_lower_than_the_highest_of_the_nodes_that_have_to_agree() {
    let no = || Err((-32601, "Method not found".to_owned()));
    let fails = || value(json!({"err": "AccountNotFound", "unitsConsumed": 0}));
    for (tried, expected) in [
        (passes(2_000), 2_400),
        (passes(1_900), 2_280),
        // The most of its kind, where one does not say it.
        (no(), 10_000),
        (fails(), 10_000),
        (passes(u64::MAX), 10_000),
    ] {
        let honest = pricing(paid([7]), tried).await;
        let liar = pricing(paid([7]), passes(500)).await;
        for client in both_ways(ChainKey::SOLANA, &liar.url, &honest.url) {
            let queries = transfer_queries(FeeLevel::Normal);
            let ChainData::Solana(found) = client.chain_data(&queries, 0).await.unwrap() else {
                panic!("no facts of Solana")
            };
            assert_eq!(found.compute.unwrap().unit_limit, expected);
        }
    }
}

/// A mint of Token-2022 that takes 1 percent, and 2.5 from epoch 9 on.
fn mint_with_fees() -> Value {
    let mut mint = vec![0; 165];
    mint[44..46].copy_from_slice(&[6, 1]);
    mint.extend([1, 1, 0, 108, 0]);
    mint.extend([5; 72]);
    for (epoch, basis_points) in [(3_u64, 100_u16), (9, 250)] {
        mint.extend(epoch.to_le_bytes());
        mint.extend(700_u64.to_le_bytes());
        mint.extend(basis_points.to_le_bytes());
    }
    json!({"owner": TOKEN_2022.to_string(), "data": [STANDARD.encode(&mint), "base64"]})
}

#[tokio::test]
async fn solana_facts__should_have_the_transfer_fee_of_the_present_epoch() {
    for (epoch, basis_points) in [(8, 100), (9, 250)] {
        let node = EvmTestNode::start(move |method, params| match method {
            "getMultipleAccounts" => {
                let mut accounts = vec![Value::Null; 6];
                accounts[0] = mint_with_fees();
                value(json!(accounts))
            }
            "getEpochInfo" => Ok(json!({"epoch": epoch, "slotIndex": 1})),
            _ => healthy(method, params),
        })
        .await;
        let client = connect_to(ChainKey::SOLANA, ChainEndpoints::new(vec![node.url]));
        let queries = Queries::Solana(solana::Queries {
            chain_id: 101,
            blockhash: false,
            token: Some(solana::token::TokenQueries {
                mint: base58(&key(3)),
                sender: base58(&key(1)),
                recipient: base58(&key(2)),
            }),
            compute: None,
        });
        let found = client.chain_data(&queries, 0).await.unwrap();
        let ChainData::Solana(solana::ChainData {
            token: Some(token), ..
        }) = found
        else {
            panic!("{found:?}")
        };
        let expected = TransferFee {
            basis_points,
            most: 700,
        };
        assert_eq!(token.transfer_fee, Some(expected));
    }
}
