//! Solana and Sonic SVM on the real virtual machine with the real programs (LiteSVM).

use super::*;

const SOLANA: &str = "NETWORK_TYPE_SOLANA";
/// Base fee of one signature.
const FEE: u128 = 5_000;
/// What an account of a token costs: rent for 165 bytes.
const ACCOUNT: u128 = 2_039_280;

async fn lamports(node: &ChainNode, address: &str) -> u128 {
    let answer = node.call("getBalance", json!([address])).await;
    answer["value"].as_u64().unwrap().into()
}

async fn held(api: &ApiClient, chain_id: u64, address: &str, token: Option<&str>) -> u128 {
    let mut question =
        json!({"networkType": SOLANA, "chainId": chain_id, "walletAddress": address});
    if let Some(token) = token {
        question["tokenAddress"] = json!(token);
    }
    let answer = api.ok("getBalance", question).await;
    answer["balance"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn solana__should_move_coins_and_tokens_by_the_exact_amount() {
    moves_exactly("solana", 101).await;
}

#[tokio::test]
async fn sonic__should_move_coins_and_tokens_by_the_exact_amount() {
    moves_exactly("sonicSvm", 0).await;
}

/// `family` is how the network's payload kinds begin.
async fn moves_exactly(family: &str, chain_id: u64) {
    let folder = tempfile::tempdir().unwrap();
    let node = ChainNode::start(folder.path(), "solana").await;
    let name = if chain_id == 0 { "sonic" } else { "solana" };
    let chains = [format!("{name}={}", node.url)];
    let (dev, from) = dev_with_wallet(folder.path(), &chains, SOLANA).await;
    let api = &dev.api;
    let to = api.wallet(&dev.vault, SOLANA).await;
    let send_native = format!("{family}SendNative");
    let send_token = format!("{family}SendSplToken");
    let funds: u128 = 10_000_000_000;
    node.call("test_airdrop", json!([from, funds.to_string()]))
        .await;
    assert_eq!(held(api, chain_id, &from, None).await, funds);

    let amount: u128 = 1_234_567_891;
    let sent = api
        .sign(json!({&send_native: {"from": from, "to": to, "value": amount.to_string()}}))
        .await;
    assert_eq!(lamports(&node, &to).await, amount);
    assert_eq!(lamports(&node, &from).await, funds - amount - FEE);
    let statuses = node
        .call("getSignatureStatuses", json!([[sent["txHash"]]]))
        .await;
    assert!(statuses["value"][0].is_object(), "{sent}");
    let mut left = funds - amount - FEE;

    // Both token programs: to a wallet without an account of the token, then to one with.
    for program in ["token", "token-2022"] {
        let mint = node
            .call("test_mint", json!([from, 6, "1000000", program]))
            .await["mint"]
            .as_str()
            .unwrap()
            .to_owned();
        for (amount, pays) in [(250_001u128, true), (1, false)] {
            api.sign(
                json!({&send_token: {"from": from, "to": to, "mintAddress": mint,
                "amount": amount.to_string(), "decimals": 6, "chainId": chain_id}}),
            )
            .await;
            let before = left;
            left = lamports(&node, &from).await;
            let paid = before - left;
            if pays {
                assert!(paid >= ACCOUNT + FEE, "{paid}");
            } else {
                assert_eq!(paid, FEE);
            }
            node.call("test_nextBlock", json!([])).await;
        }
        assert_eq!(held(api, chain_id, &to, Some(&mint)).await, 250_002);
        assert_eq!(held(api, chain_id, &from, Some(&mint)).await, 749_998);
        let (_, reason) = refusal(
            api,
            json!({&send_token: {"from": from, "to": to, "mintAddress": mint,
                "amount": "1", "decimals": 9, "chainId": chain_id}}),
        )
        .await;
        assert!(reason.contains("decimals"), "{reason}");
    }

    // More than there is.
    let (code, reason) = refusal(
        api,
        json!({&send_native: {"from": from, "to": to, "value": "900000000000"}}),
    )
    .await;
    assert_eq!(code, INSUFFICIENT_FUNDS, "{reason}");

    let send =
        |value: u128| json!({&send_native: {"from": from, "to": to, "value": value.to_string()}});
    let tried = simulated(api, send(3)).await;
    assert_eq!(
        (&tried["success"], &tried["error"]),
        (&json!(true), &Value::Null)
    );
    // 150 for the transfer, and for its limit.
    assert_eq!(tried["unitsUsed"], "300");
    let log = "Program 11111111111111111111111111111111 success";
    assert_eq!(tried["logs"][3], log, "{tried}");
    // More than the balance: it is signed anyway, and the simulation shows the outcome.
    let tried = simulated(api, send(funds * 2)).await;
    assert_eq!(tried["success"], false);
    assert!(
        tried["error"]
            .as_str()
            .is_some_and(|error| !error.is_empty()),
        "{tried}"
    );
}

#[tokio::test]
async fn solana_transfers__should_pay_for_computation_by_their_level() {
    pays_by_level("solana", "solana").await;
}

#[tokio::test]
async fn sonic_transfers__should_pay_for_computation_by_their_level() {
    pays_by_level("sonicSvm", "sonic").await;
}

/// `family` is how the network's payload kinds begin, and `chain` its setting.
async fn pays_by_level(family: &str, chain: &str) {
    let folder = tempfile::tempdir().unwrap();
    let node = ChainNode::start(folder.path(), "solana").await;
    let chains = [format!("{chain}={}", node.url)];
    let send_native = format!("{family}SendNative");
    let (dev, from) = dev_with_wallet(folder.path(), &chains, SOLANA).await;
    let api = &dev.api;
    let to = api.wallet(&dev.vault, SOLANA).await;
    node.call("test_airdrop", json!([from, "10000000000"]))
        .await;
    // One of 150 blocks takes 1,000,000 micro-lamports per unit, the next 2,000,000, and so on.
    let prices: Vec<u64> = (1..=150).map(|block| block * 1_000_000 / 30).collect();
    node.call("test_priorityFees", json!([prices])).await;
    let mut paid = Vec::new();
    for level in [
        "FEE_LEVEL_SLOW",
        "FEE_LEVEL_UNSPECIFIED",
        "FEE_LEVEL_NORMAL",
        "FEE_LEVEL_FAST",
    ] {
        let before = lamports(&node, &from).await;
        api.sign(json!({&send_native:
            {"from": from, "to": to, "value": "1000000", "feeLevel": level}}))
            .await;
        paid.push(before - lamports(&node, &from).await - 1_000_000 - FEE);
        node.call("test_nextBlock", json!([])).await;
    }
    // 450 units and a fifth, at 0.5, 2.5 and 4.5 lamports: the 15th, 75th and 135th block.
    assert_eq!(paid, [270, 1350, 1350, 2430]);

    // What no chain ever asked for is not paid.
    node.call("test_priorityFees", json!([vec![u64::MAX / 4096; 150]]))
        .await;
    let before = lamports(&node, &from).await;
    let dear = api
        .create(json!({&send_native: {"from": from, "to": to, "value": "1000000"}}))
        .await;
    let reason = eventually("the request says why it waits", async || {
        let said = dev
            .admin("listStuckRequests", &json!({}))
            .await
            .1
            .to_string();
        let setting = format!("chains.{chain}.most_price");
        (said.contains(&setting) && said.contains(&dear)).then_some(said)
    })
    .await;
    assert!(
        reason.contains("micro-lamports per unit of computation"),
        "{reason}"
    );
    assert_eq!(lamports(&node, &from).await, before);
}

#[tokio::test]
async fn token_2022__should_have_its_transfer_fee_shown_and_its_refusals_named() {
    shows_transfer_fees("solana", "solana", 101).await;
}

#[tokio::test]
async fn token_2022_on_sonic__should_have_its_transfer_fee_shown_and_its_refusals_named() {
    shows_transfer_fees("sonicSvm", "sonic", 0).await;
}

/// As `pays_by_level`.
async fn shows_transfer_fees(family: &str, chain: &str, chain_id: u64) {
    let folder = tempfile::tempdir().unwrap();
    let node = ChainNode::start(folder.path(), "solana").await;
    let chains = [format!("{chain}={}", node.url)];
    let send_token = format!("{family}SendSplToken");
    let (dev, from) = dev_with_wallet(folder.path(), &chains, SOLANA).await;
    let api = &dev.api;
    let to = api.wallet(&dev.vault, SOLANA).await;
    node.call("test_airdrop", json!([from, "10000000000"]))
        .await;
    // 2.5 percent.
    let mint = node
        .call("test_mint", json!([from, 6, "1000000", "token-2022", 250]))
        .await["mint"]
        .as_str()
        .unwrap()
        .to_owned();
    let send = |to: &str, amount: &str| {
        json!({&send_token:
            {"from": from, "to": to, "mintAddress": mint, "amount": amount}})
    };
    for (amount, fee, opened) in [("100001", "2501", true), ("40", "1", false)] {
        let uuid = api.create(send(&to, amount)).await;
        let outcome = api.execute(&uuid).await;
        assert_eq!(outcome["error"], Value::Null, "{outcome} {opened}");
        assert_eq!(api.details(&uuid).await["tokenTransferFee"], fee);
        node.call("test_nextBlock", json!([])).await;
    }
    assert_eq!(held(api, chain_id, &to, Some(&mint)).await, 97_500 + 39);
    assert_eq!(
        held(api, chain_id, &from, Some(&mint)).await,
        1_000_000 - 100_041
    );

    let demanding = node.call("test_memoHolder", json!([mint])).await;
    let before = lamports(&node, &from).await;
    let (_, reason) = refusal(api, send(demanding.as_str().unwrap(), "5")).await;
    assert!(
        reason.contains("to: its account for this token requires a memo"),
        "{reason}"
    );
    assert_eq!(lamports(&node, &from).await, before, "nothing was sent");

    let other = node
        .call("test_mint", json!([from, 6, "9", "token-2022"]))
        .await;
    let uuid = api
        .create(json!({&send_token:
            {"from": from, "to": to, "mintAddress": other["mint"], "amount": "5"}}))
        .await;
    api.execute(&uuid).await;
    assert_eq!(api.details(&uuid).await["tokenTransferFee"], Value::Null);
}

#[tokio::test]
async fn equal_solana_payments__should_both_arrive() {
    let folder = tempfile::tempdir().unwrap();
    let node = ChainNode::start(folder.path(), "solana").await;
    let chains = [format!("solana={}", node.url)];
    let (dev, from) = dev_with_wallet(folder.path(), &chains, SOLANA).await;
    let api = &dev.api;
    let to = api.wallet(&dev.vault, SOLANA).await;
    node.call("test_airdrop", json!([from, "10000000000"]))
        .await;
    let payment = json!({"solanaSendNative": {"from": from, "to": to, "value": "1000000"}});
    let first = api.sign(payment.clone()).await;
    // With the blockhash of the first it would be the first.
    let second = api.create(payment).await;
    let (outcome, ()) = tokio::join!(api.execute(&second), async {
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        node.call("test_nextBlock", json!([])).await;
    });
    assert_eq!(outcome["error"], Value::Null, "{outcome}");
    assert_ne!(outcome["txHash"], first["txHash"]);
    assert_eq!(lamports(&node, &to).await, 2_000_000);
}

#[tokio::test]
async fn solana_transactions_made_elsewhere__should_keep_what_others_signed() {
    let folder = tempfile::tempdir().unwrap();
    let node = ChainNode::start(folder.path(), "solana").await;
    let chains = [format!("sonic={}", node.url)];
    let (dev, from) = dev_with_wallet(folder.path(), &chains, SOLANA).await;
    let api = &dev.api;
    node.call("test_airdrop", json!([from, "10000000000"]))
        .await;
    let mut left: u128 = 10_000_000_000;
    for version in ["legacy", "v0"] {
        let blockhash = node.call("test_nextBlock", json!([])).await;
        // The wallet pays the fee and sends; another account, which has signed, gets.
        let made = outside(
            "solanaForeign",
            json!({"from": from, "lamports": 7_000_000, "blockhash": blockhash, "version": version}),
        );
        let sent = api
            .sign(json!({"sonicSvmSendCustom": {"from": from, "txBase64": [made["transaction"]]}}))
            .await;
        let other = made["other"].as_str().unwrap();
        assert_eq!(lamports(&node, other).await, 7_000_000, "{version}");
        left -= 7_000_000 + 2 * FEE;
        assert_eq!(lamports(&node, &from).await, left, "{version}");
        assert!(!sent["txHash"].as_str().unwrap().is_empty());
    }
}
