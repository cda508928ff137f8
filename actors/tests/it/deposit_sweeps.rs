//! Deposits that are swept, on anvil: what arrives, what is left, what waits, and that nothing is sent twice.

use covault_actors::{
    gateway::SweepCounts,
    operations::{AddSweepAsset, ConfigureSweep, GetSweepStatus, SetSweepRules},
};
use covault_core::{
    amount::U256,
    deposit::transfer::FollowedChain,
    schema::admin::{
        AddSweepAssetRequest, ConfigureSweepRequest, GetSweepStatusRequest, SetSweepRulesRequest,
        Sweep, SweepStatus,
    },
};
use serde_json::{Value, json};

use crate::{
    deposit_chain::{Receiver, Shop, TARGET, USDT, node, pay, pay_token, world},
    evm_anvil::Anvil,
    world::{CHAIN, World, admin, call, evm_wallet, vault},
};

/// A token that keeps balances: `balanceOf` and `transfer`, and whoever calls it with recipient and amount alone makes
/// new ones.
pub const ERC20: &str = "0x60003560e01c806370a0823114610077578063a9059cbb1461005e576020356000355b80548201815581600052337fddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef60206000a3600160005260206000f35b6024353354818110610084578190033355600435610022565b6004355460005260206000f35b60006000fd";
/// Paid to a wallet as coin.
pub const COIN: u64 = 10_000_000_000_000_000;
/// More than the longest pause before something is tried again.
pub const PAUSE_MS: u64 = 3_700_000;

fn number(value: &Value) -> U256 {
    let digits = value.as_str().unwrap().trim_start_matches("0x");
    U256::from_str_radix(digits, 16).unwrap()
}

pub async fn coin_of(anvil: &Anvil, address: &str) -> U256 {
    number(
        &anvil
            .call("eth_getBalance", json!([address, "latest"]))
            .await,
    )
}

pub async fn tokens_of(anvil: &Anvil, address: &str) -> U256 {
    let data = format!("0x70a08231{:0>64}", address.trim_start_matches("0x"));
    let question = json!([{"to": USDT, "data": data}, "latest"]);
    number(&anvil.call("eth_call", question).await)
}

/// Transactions that an address has sent.
pub async fn sent(anvil: &Anvil, address: &str) -> u64 {
    let count = anvil.call("eth_getTransactionCount", json!([address, "latest"]));
    number(&count.await).to()
}

/// What an address has paid as fees in all blocks.
async fn fees_of(anvil: &Anvil, address: &str) -> U256 {
    let head = number(&anvil.call("eth_blockNumber", json!([])).await).to::<u64>();
    let mut fees = U256::ZERO;
    for block in 0..=head {
        let block = format!("{block:#x}");
        let all = anvil.call("eth_getBlockReceipts", json!([block])).await;
        for receipt in all.as_array().unwrap() {
            let from = receipt["from"].as_str().unwrap();
            if from.eq_ignore_ascii_case(address) {
                fees += number(&receipt["gasUsed"]) * number(&receipt["effectiveGasPrice"]);
            }
        }
    }
    fees
}

/// The rules of a shop, changed.
pub async fn rules(shop: &Shop, change: SetSweepRulesRequest) -> Result<(), String> {
    let request = SetSweepRulesRequest {
        token: shop.token.clone(),
        network: "EVM".into(),
        chain_id: CHAIN.to_string(),
        ..change
    };
    let done = call::<SetSweepRules>(&shop.gateway, &admin(), request).await;
    done.map(|_| ()).map_err(|fault| fault.message().to_owned())
}

pub async fn status(shop: &Shop) -> SweepStatus {
    let token = shop.token.clone();
    let request = GetSweepStatusRequest { token };
    let status = call::<GetSweepStatus>(&shop.gateway, &admin(), request).await;
    status.unwrap().chains.remove(0)
}

pub async fn sweep_of(shop: &Shop, address: &str) -> Option<Sweep> {
    let sweeps = status(shop).await.sweeps;
    sweeps.into_iter().find(|sweep| sweep.address == address)
}

pub async fn counts(shop: &Shop) -> SweepCounts {
    let all = shop.gateway.sweeps();
    all.get(&FollowedChain::Evm(CHAIN))
        .copied()
        .unwrap_or_default()
}

pub async fn enable(shop: &Shop, enabled: bool) {
    let change = SetSweepRulesRequest {
        enabled: Some(enabled),
        ..Default::default()
    };
    rules(shop, change).await.unwrap();
}

/// Gives a gas wallet one coin.
pub async fn fund(anvil: &Anvil, gas_wallet: &str) {
    let funds = json!([gas_wallet, "0xde0b6b3a7640000"]);
    anvil.call("anvil_setBalance", funds).await;
}

/// Sends something from an account whose key anvil does not have.
pub async fn send_as(anvil: &Anvil, from: &str, mut transaction: Value) {
    anvil.call("anvil_impersonateAccount", json!([from])).await;
    transaction["from"] = json!(from);
    anvil
        .call("eth_sendTransaction", json!([transaction]))
        .await;
}

/// A shop that sweeps coin and tokens, and its gas wallet, which has nothing.
pub async fn open(anvil: &Anvil, receiver: &Receiver) -> (Shop, String) {
    let (shop, gas_wallet) = open_in(world(), anvil, receiver).await;
    enable(&shop, true).await;
    (shop, gas_wallet)
}

/// The same, and nothing is swept yet.
pub async fn open_in(world: World, anvil: &Anvil, receiver: &Receiver) -> (Shop, String) {
    anvil.call("anvil_setCode", json!([USDT, ERC20])).await;
    let shop = Shop::open_in(world, receiver, &[&anvil.url], 1).await;
    let gas_wallet = prepare(&shop).await;
    (shop, gas_wallet)
}

/// Sets all that sweeps of a shop need. Its gas wallet, which has nothing.
pub async fn prepare(shop: &Shop) -> String {
    let vault = vault(&shop.gateway, "main").await;
    let gas_wallet = evm_wallet(&shop.gateway, vault).await;
    let coin = AddSweepAssetRequest {
        token: shop.token.clone(),
        network: "EVM".into(),
        chain_id: CHAIN.to_string(),
        contract: String::new(),
        minimum: (COIN / 10).to_string(),
    };
    call::<AddSweepAsset>(&shop.gateway, &admin(), coin)
        .await
        .unwrap();
    let change = SetSweepRulesRequest {
        gas_wallet: Some(gas_wallet.clone()),
        max_gas_price: Some("1000000000000000".into()),
        max_top_up: Some(COIN.to_string()),
        ..Default::default()
    };
    rules(shop, change).await.unwrap();
    gas_wallet
}

/// Waits for something while blocks are made.
pub async fn until(shop: &Shop, anvil: &Anvil, what: &str, is_so: impl AsyncFn(&Shop) -> bool) {
    shop.until(what, async |shop| {
        anvil.mine(1).await;
        is_so(shop).await
    })
    .await;
}

#[tokio::test]
async fn sweeper__should_move_all_that_was_paid_to_the_unit_and_wait_for_an_empty_gas_wallet() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let (shop, gas_wallet) = open(&anvil, &receiver).await;
    let (rich, poor) = (shop.address.clone(), shop.deposit_address("order-2").await);
    let dust = shop.deposit_address("order-3").await;
    let top_up = async |wei: String| {
        let change = SetSweepRulesRequest {
            max_top_up: Some(wei),
            ..Default::default()
        };
        rules(&shop, change).await.unwrap();
    };
    top_up("1000".into()).await;
    pay(&anvil, &rich, COIN).await;
    pay(&anvil, &dust, COIN / 10 - 1).await;
    pay_token(&anvil, USDT, &rich, 500).await;
    pay_token(&anvil, USDT, &poor, 300).await;
    until(&shop, &anvil, "the first wallet is swept", async |_| {
        tokens_of(&anvil, TARGET).await == U256::from(500)
            && coin_of(&anvil, TARGET).await > U256::ZERO
    })
    .await;
    // The coin of the wallet has paid for its token, and then for itself, and nothing is left.
    assert_eq!(coin_of(&anvil, &rich).await, U256::ZERO);
    let fees = fees_of(&anvil, &rich).await;
    assert_eq!(
        coin_of(&anvil, TARGET).await + fees,
        U256::from(COIN),
        "{fees}"
    );

    until(&shop, &anvil, "the other wallet waits", async |shop| {
        let sweep = sweep_of(shop, &poor).await;
        sweep.is_some_and(|sweep| sweep.reason.contains("more than maxTopUp"))
    })
    .await;
    top_up(COIN.to_string()).await;
    shop.world.pass(PAUSE_MS);
    until(&shop, &anvil, "the other wallet waits", async |shop| {
        let sweep = sweep_of(shop, &poor).await;
        sweep.is_some_and(|sweep| sweep.reason.contains("gas wallet cannot pay"))
    })
    .await;
    assert_eq!(sent(&anvil, &poor).await, 0);
    fund(&anvil, &gas_wallet).await;
    shop.world.pass(PAUSE_MS);
    // Gas gets twenty times as dear once the top-up is on its way.
    until(&shop, &anvil, "it is topped up", async |shop| {
        let sweep = sweep_of(shop, &poor).await;
        sweep.is_some_and(|sweep| sweep.state == "funding")
    })
    .await;
    // It is asked for before it is sent, and what is sent at the price of now is in the next block.
    shop.until("the top-up is sent", async |_| {
        let count = anvil.call("eth_getTransactionCount", json!([gas_wallet, "pending"]));
        number(&count.await) == U256::from(1)
    })
    .await;
    anvil.mine(1).await;
    let base_fee = async |wei: &str| {
        let fee = json!([wei]);
        anvil.call("anvil_setNextBlockBaseFeePerGas", fee).await;
        anvil.mine(1).await;
    };
    until(&shop, &anvil, "it waits for gas", async |shop| {
        base_fee("0x4a817c800").await;
        let sweep = sweep_of(shop, &poor).await;
        sweep.is_some_and(|sweep| sweep.reason.contains("already topped up"))
    })
    .await;
    // Empty blocks make it cheap again.
    until(&shop, &anvil, "the other wallet is swept", async |shop| {
        shop.world.pass(PAUSE_MS);
        status(shop).await.sweeps.is_empty() && tokens_of(&anvil, TARGET).await == U256::from(800)
    })
    .await;
    assert_eq!(
        (sent(&anvil, &poor).await, sent(&anvil, &gas_wallet).await),
        (1, 1)
    );
    let [left, fees] = [coin_of(&anvil, &poor).await, fees_of(&anvil, &poor).await];
    let totals = status(&shop).await.totals;
    let [coin, token] = &totals[..] else {
        panic!("{totals:?}");
    };
    assert_eq!(token.top_ups, (left + fees).to_string());
    assert_eq!((token.sweeps, token.amount.as_str()), (2, "800"));
    assert_eq!(coin.sweeps, 1);
    assert_eq!(coin.amount, coin_of(&anvil, TARGET).await.to_string());
    // Below the minimum.
    assert_eq!(sent(&anvil, &dust).await, 0);
    // What the gas wallet has sent is no deposit.
    let told = receiver.events();
    let is_coin_of = |event: &&Value, address: &str| {
        event["address"] == address && event["token_address"].is_null() && event["is_send"] == false
    };
    assert!(told.iter().any(|event| is_coin_of(&event, &rich)));
    assert!(
        !told.iter().any(|event| is_coin_of(&event, &poor)),
        "{told:?}"
    );
    // All else that it sends is one.
    send_as(&anvil, &gas_wallet, json!({"to": dust, "value": "0x5"})).await;
    until(
        &shop,
        &anvil,
        "what no sweep has asked for is told",
        async |_| {
            let told = receiver.events();
            told.iter()
                .any(|event| is_coin_of(&event, &dust) && event["amount"] == "5")
        },
    )
    .await;
}

#[tokio::test]
async fn sweep__should_wait_for_gas_that_is_too_dear() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let (shop, _) = open(&anvil, &receiver).await;
    let change = SetSweepRulesRequest {
        max_gas_price: Some("10000000000".into()),
        ..Default::default()
    };
    rules(&shop, change).await.unwrap();
    let base_fee = async |wei: u64| {
        let fee = json!([format!("{wei:#x}")]);
        anvil.call("anvil_setNextBlockBaseFeePerGas", fee).await;
        anvil.mine(1).await;
    };
    pay(&anvil, &shop.address, COIN).await;
    until(&shop, &anvil, "the sweep waits", async |shop| {
        base_fee(100_000_000_000).await;
        let sweep = sweep_of(shop, &shop.address).await;
        sweep.is_some_and(|sweep| sweep.reason.contains("maxGasPrice"))
    })
    .await;
    assert_eq!(sent(&anvil, &shop.address).await, 0);
    base_fee(1_000_000_000).await;
    shop.world.pass(PAUSE_MS);
    until(&shop, &anvil, "it is swept", async |shop| {
        coin_of(&anvil, &shop.address).await.is_zero()
    })
    .await;
    let fees = fees_of(&anvil, &shop.address).await;
    assert_eq!(coin_of(&anvil, TARGET).await + fees, U256::from(COIN));
}

#[tokio::test]
async fn sweep__should_not_believe_a_price_above_the_chains_ceiling() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let (shop, _) = open(&anvil, &receiver).await;
    let token_only = shop.deposit_address("order-2").await;
    pay(&anvil, &shop.address, COIN).await;
    pay_token(&anvil, USDT, &token_only, 300).await;
    for address in [&shop.address, &token_only] {
        until(&shop, &anvil, "the sweep waits", async |shop| {
            // A million gwei: no maxGasPrice is set, and the chain's own ceiling holds.
            let fee = json!(["0x38d7ea4c68000"]);
            anvil.call("anvil_setNextBlockBaseFeePerGas", fee).await;
            anvil.mine(1).await;
            shop.world.pass(PAUSE_MS);
            let sweep = sweep_of(shop, address).await;
            sweep.is_some_and(|sweep| sweep.reason.contains("most_price"))
        })
        .await;
    }
}

#[tokio::test]
async fn sweep__should_wait_when_the_gas_wallet_is_of_another_vault() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let (shop, gas_wallet) = open(&anvil, &receiver).await;
    fund(&anvil, &gas_wallet).await;
    let other = vault(&shop.gateway, "other").await;
    let request = ConfigureSweepRequest {
        token: shop.token.clone(),
        network: "EVM".into(),
        vault_uuid: Some(other.to_string()),
        ..Default::default()
    };
    call::<ConfigureSweep>(&shop.gateway, &admin(), request)
        .await
        .unwrap();
    let address = shop.deposit_address("order-2").await;
    pay_token(&anvil, USDT, &address, 300).await;
    until(&shop, &anvil, "the sweep waits", async |shop| {
        let sweep = sweep_of(shop, &address).await;
        sweep.is_some_and(|sweep| sweep.reason.contains("belongs to another vault"))
    })
    .await;
    assert_eq!(sent(&anvil, &gas_wallet).await, 0);
}

#[tokio::test]
async fn rules__should_name_what_is_wrong() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let shop = Shop::open(&receiver, &[&anvil.url], 1).await;
    let of = SetSweepRulesRequest::default;
    let address = Some(shop.address.clone());
    for (change, problem) in [
        (
            SetSweepRulesRequest {
                enabled: Some(true),
                ..of()
            },
            "enabled: gasWallet is not set: fees of tokens are paid from it",
        ),
        (
            SetSweepRulesRequest {
                method: Some("delegate7702".into()),
                ..of()
            },
            "method: delegate7702 is not built yet; use topup",
        ),
        (
            SetSweepRulesRequest {
                gas_wallet: address,
                ..of()
            },
            "gasWallet: is a deposit wallet",
        ),
        (
            SetSweepRulesRequest {
                gas_wallet: Some(TARGET.into()),
                ..of()
            },
            "gasWallet: is not the address of a wallet",
        ),
        (
            SetSweepRulesRequest {
                max_cost_percent: Some(0),
                ..of()
            },
            "maxCostPercent: must be from 1 to 100",
        ),
        (
            SetSweepRulesRequest {
                max_gas_price: Some("x".into()),
                ..of()
            },
            "maxGasPrice: ",
        ),
    ] {
        let fault = rules(&shop, change).await.unwrap_err();
        assert!(fault.starts_with(problem), "{fault}");
    }
    let minimum = |minimum: &str| AddSweepAssetRequest {
        token: shop.token.clone(),
        network: "EVM".into(),
        chain_id: CHAIN.to_string(),
        contract: USDT.into(),
        minimum: minimum.into(),
    };
    let add = async |asset| {
        let done = call::<AddSweepAsset>(&shop.gateway, &admin(), asset).await;
        done.map(|_| ()).map_err(|fault| fault.message().to_owned())
    };
    add(minimum("0")).await.unwrap();
    let enable = || SetSweepRulesRequest {
        enabled: Some(true),
        ..of()
    };
    let fault = rules(&shop, enable()).await.unwrap_err();
    assert!(fault.contains("a token has the minimum 0"), "{fault}");
    add(minimum("1")).await.unwrap();
    let vault = vault(&shop.gateway, "main").await;
    let gas_wallet = evm_wallet(&shop.gateway, vault).await;
    let mut change = SetSweepRulesRequest {
        gas_wallet: Some(gas_wallet.clone()),
        ..enable()
    };
    let fault = rules(&shop, change.clone()).await.unwrap_err();
    assert!(fault.starts_with("enabled: maxTopUp is not set"), "{fault}");
    change.max_top_up = Some("5".into());
    let fault = rules(&shop, change.clone()).await.unwrap_err();
    assert!(
        fault.starts_with("enabled: maxGasPrice is not set"),
        "{fault}"
    );
    change.max_gas_price = Some("5".into());
    rules(&shop, change).await.unwrap();
    // What one setting demands, another call does not take away.
    let none = SetSweepRulesRequest {
        max_top_up: Some(String::new()),
        ..of()
    };
    let fault = rules(&shop, none).await.unwrap_err();
    assert!(fault.starts_with("enabled: maxTopUp is not set"), "{fault}");
    let fault = add(minimum("0")).await.unwrap_err();
    assert!(fault.starts_with("minimum: must be above 0"), "{fault}");
    for (target, problem) in [
        (&shop.address, "target: is a deposit wallet"),
        (
            &gas_wallet,
            "target: is the gas wallet of the sweeps on EVM chain",
        ),
    ] {
        let request = ConfigureSweepRequest {
            token: shop.token.clone(),
            network: "EVM".into(),
            target: Some(target.clone()),
            ..Default::default()
        };
        let fault = call::<ConfigureSweep>(&shop.gateway, &admin(), request).await;
        let fault = fault.map(|_| ()).unwrap_err().message().to_owned();
        assert!(fault.starts_with(problem), "{fault}");
    }
}
