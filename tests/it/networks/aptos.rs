//! Aptos and Movement on nodes that read and check what they get with the network's own SDK.

use std::time::{SystemTime, UNIX_EPOCH};

use super::*;

const APTOS: &str = "NETWORK_TYPE_APTOS";
const INSUFFICIENT_GAS_FEE: &str = "EXECUTE_SIGNING_REQUESTS_ERROR_CODE_INSUFFICIENT_GAS_FEE";
const FUNDS: u128 = 100_000_000;
/// What the nodes say, octa per unit of gas.
const PRICE: u128 = 100;

/// A node of one of the chains, and the two wallets.
struct AptosFixture<'a> {
    id: u64,
    node: &'a ChainNode,
    api: &'a ApiClient,
    from: String,
    to: String,
}

impl AptosFixture<'_> {
    async fn get(&self, path: &str) -> Value {
        let url = format!("{}/v1{path}", self.node.url);
        let response = http_client().get(url).send().await.unwrap();
        response.json().await.unwrap()
    }

    /// getBalance, as a number.
    async fn units(&self, address: &str, token: Option<&str>) -> u128 {
        let mut question =
            json!({"networkType": APTOS, "chainId": self.id, "walletAddress": address});
        if let Some(token) = token {
            question["tokenAddress"] = json!(token);
        }
        let answer = self.api.ok("getBalance", question).await;
        answer["balance"].as_str().unwrap().parse().unwrap()
    }

    /// The account's number on the chain.
    async fn number(&self) -> u64 {
        let account = self.get(&format!("/accounts/{}", self.from)).await;
        account["sequence_number"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap()
    }

    /// A payload of this chain, from the wallet.
    fn payload(&self, kind: &str, fields: &Value) -> Value {
        let mut payload = json!({"chainId": self.id, "from": self.from});
        for (name, value) in fields.as_object().unwrap() {
            payload[name] = value.clone();
        }
        json!({ kind: payload })
    }

    fn native(&self, value: u128) -> Value {
        let fields = json!({"to": self.to, "value": value.to_string()});
        self.payload("aptosSendNative", &fields)
    }

    /// Sends, and waits until it is executed. The API calls it done once the node has it.
    async fn send(&self, payload: Value) -> Value {
        let sent = self.api.sign(payload).await;
        self.executed(sent["txHash"].as_str().unwrap()).await
    }

    async fn executed(&self, hash: &str) -> Value {
        eventually("the transaction is executed", async || {
            let found = self.get(&format!("/transactions/by_hash/{hash}")).await;
            (found["type"] == "user_transaction").then_some(found)
        })
        .await
    }

    /// Sends what must succeed and cost what it says, with `amount` octa besides.
    async fn pays(&self, payload: Value, amount: u128) -> Value {
        let before = self.units(&self.from, None).await;
        let executed = self.send(payload).await;
        assert_eq!(executed["success"], true, "{executed}");
        let left = self.units(&self.from, None).await;
        assert_eq!(before - left, amount + fee(&executed), "{executed}");
        executed
    }

    /// A call of the nodes' own module, in JSON.
    async fn call(&self, function: &str, arguments: Value) -> Value {
        let till = self.node.post("/test/till", json!({})).await;
        let json = json!({
            "type": "entry_function_payload",
            "function": format!("{}::till::{function}", till["address"].as_str().unwrap()),
            "type_arguments": ["0x1::fungible_asset::Metadata"],
            "arguments": arguments,
        });
        let fields = json!({"payload": base64(json.to_string())});
        self.payload("aptosSendCustom", &fields)
    }

    /// A transaction that the SDK made, in BCS.
    fn foreign(&self, fields: &Value, amount: u128, seconds: u64) -> Value {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let mut question = json!({"chainId": self.id, "from": self.from, "to": self.to,
            "amount": amount.to_string(), "gas": 1500, "price": 120,
            "expires": now.as_secs() + seconds});
        for (name, value) in fields.as_object().unwrap() {
            question[name] = value.clone();
        }
        let made = outside("aptosTransaction", question);
        self.payload("aptosSendCustom", &json!({"payload": made["transaction"]}))
    }
}

fn field(executed: &Value, name: &str) -> u128 {
    executed[name].as_str().unwrap().parse().unwrap()
}

fn fee(executed: &Value) -> u128 {
    field(executed, "gas_used") * field(executed, "gas_unit_price")
}

async fn give(node: &ChainNode, address: &str) {
    let coins = json!({"address": address, "amount": FUNDS.to_string()});
    node.post("/test/give", coins).await;
}

#[tokio::test]
async fn aptos__should_move_coins_and_assets_by_the_exact_amount() {
    let folder = tempfile::tempdir().unwrap();
    let node = ChainNode::start_with(folder.path(), "aptos", &["1"]).await;
    let chains = [format!("aptos={}/v1", node.url)];
    let (dev, from) = dev_with_wallet(folder.path(), &chains, APTOS).await;
    let api = &dev.api;
    let to = api.wallet(&dev.vault, APTOS).await;
    let chain = AptosFixture {
        id: 1,
        node: &node,
        api,
        from: from.clone(),
        to: to.clone(),
    };
    give(&node, &from).await;
    assert_eq!(chain.units(&from, None).await, FUNDS);

    // To an account that is not there yet.
    let amount: u128 = 12_345_678;
    let executed = chain.pays(chain.native(amount), amount).await;
    assert_eq!(chain.units(&to, None).await, amount);
    let used = field(&executed, "gas_used");
    assert_eq!(field(&executed, "gas_unit_price"), PRICE);
    assert_eq!(field(&executed, "max_gas_amount"), used + used.div_ceil(2));

    // With a gas fee of the client's.
    let mut payment = chain.native(5);
    payment["aptosSendNative"]["gasFee"] = json!({"maxGasAmount": "2001", "gasUnitPrice": "150"});
    let executed = chain.pays(payment, 5).await;
    assert_eq!(field(&executed, "gas_unit_price"), 150);
    assert_eq!(field(&executed, "max_gas_amount"), 2_001);

    // A coin by its type, and a fungible asset.
    let coin = format!("0x{}::usd::USD<u8, 0x1::string::String>", "5a".repeat(32));
    node.post(
        "/test/coin",
        json!({"type": coin, "owner": from, "amount": "1000000"}),
    )
    .await;
    let asset = node
        .post("/test/asset", json!({"owner": from, "amount": "1000000"}))
        .await;
    for token in [coin.as_str(), asset["metadata"].as_str().unwrap()] {
        let send = |amount: &str| {
            let fields = json!({"to": to, "coinTag": token, "amount": amount});
            chain.payload("aptosSendCoin", &fields)
        };
        chain.pays(send("250001"), 0).await;
        assert_eq!(chain.units(&to, Some(token)).await, 250_001, "{token}");
        assert_eq!(chain.units(&from, Some(token)).await, 749_999, "{token}");
        let (code, reason) = refusal(api, send("750000")).await;
        assert_eq!(code, INSUFFICIENT_FUNDS, "{reason}");
    }

    // A call in JSON, whose arguments are encoded by what the node says that it takes.
    let shop = format!("0x{}", "c7".repeat(32));
    let arguments = json!([
        shop,
        to,
        "777",
        "Kaffee ☕",
        [1, "18446744073709551615"],
        23
    ]);
    chain.pays(chain.call("pay", arguments).await, 800).await;
    assert_eq!(chain.units(&to, None).await, amount + 5 + 777);
    assert_eq!(chain.units(&shop, None).await, 23);
    let memos = node.post("/test/memos", json!({})).await;
    assert_eq!(
        memos,
        json!([{"from": from, "shop": shop, "to": to, "amount": "777", "memo": "Kaffee ☕",
            "lines": ["1", "18446744073709551615"], "tip": "23", "of": "0x1::fungible_asset::Metadata"}])
    );

    // What fills a gap uses a number, and pays nobody.
    let mut nothing = chain.native(1);
    nothing["aptosSendNative"]["to"] = json!(from);
    chain.pays(nothing, 0).await;

    // What cannot be is refused before it is signed.
    for (function, memo, words) in [
        ("pay", "", "ENO_MEMO"),
        ("count", "for", "not an entry function"),
        ("take", "for", "no such function"),
    ] {
        let arguments = json!([shop, to, "1", memo, [], null]);
        let (_, reason) = refusal(api, chain.call(function, arguments).await).await;
        assert!(reason.contains(words), "{reason}");
    }
    let (code, reason) = refusal(api, chain.native(FUNDS)).await;
    assert_eq!(code, INSUFFICIENT_FUNDS, "{reason}");
    let all = chain.units(&from, None).await;
    let (code, reason) = refusal(api, chain.native(all)).await;
    assert_eq!(code, INSUFFICIENT_GAS_FEE, "{reason}");

    let mut payment = chain.native(5);
    payment["aptosSendNative"]["gasFee"] = json!({"maxGasAmount": "2001", "gasUnitPrice": "150"});
    let tried = simulated(api, payment).await;
    assert_eq!(
        (&tried["success"], &tried["error"]),
        (&json!(true), &Value::Null)
    );
    assert!(
        tried["unitsUsed"].as_str().is_some_and(|gas| gas != "0"),
        "{tried}"
    );
}

#[tokio::test]
async fn aptos_transactions_of_one_wallet__should_all_arrive_with_consecutive_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let node = ChainNode::start_with(folder.path(), "aptos", &["1"]).await;
    let chains = [format!("aptos={}/v1", node.url)];
    let (dev, from) = dev_with_wallet(folder.path(), &chains, APTOS).await;
    let api = &dev.api;
    let to = api.wallet(&dev.vault, APTOS).await;
    let chain = AptosFixture {
        id: 1,
        node: &node,
        api,
        from: from.clone(),
        to: to.clone(),
    };
    give(&node, &from).await;

    let sends = (1..=8u128).map(|amount| chain.send(chain.native(amount)));
    let executed = futures::future::join_all(sends).await;
    let numbers = |executed: &[Value]| {
        let numbers = executed.iter().map(|one| field(one, "sequence_number"));
        let mut numbers: Vec<_> = numbers.collect();
        numbers.sort_unstable();
        numbers
    };
    assert_eq!(numbers(&executed), (0..8).collect::<Vec<_>>());
    let paid: u128 = executed.iter().map(fee).sum();
    assert_eq!(chain.units(&to, None).await, 36);
    assert_eq!(chain.units(&from, None).await, FUNDS - 36 - paid);

    // Made elsewhere, with the number after the next: it waits until that is used.
    let next = chain.number().await;
    let later = chain.foreign(&json!({"number": next + 1}), 1_000, 600);
    let later = api.sign(later).await;
    let between = chain.send(chain.native(100)).await;
    let later = chain.executed(later["txHash"].as_str().unwrap()).await;
    let numbers = numbers(&[between, later.clone()]);
    assert_eq!(numbers, [u128::from(next), u128::from(next) + 1]);
    assert_eq!(chain.units(&to, None).await, 1_136);
    // Its gas is its own.
    assert_eq!(field(&later, "max_gas_amount"), 1_500);
    assert_eq!(field(&later, "gas_unit_price"), 120);

    // Orderless: no number, but a nonce.
    let orderless = chain.foreign(&json!({"nonce": "77"}), 10_000, 55);
    chain.pays(orderless, 10_000).await;
    assert_eq!(chain.number().await, next + 2);
    assert_eq!(chain.units(&to, None).await, 11_136);

    // A number that is gone.
    let (_, reason) = refusal(api, chain.foreign(&json!({"number": 0}), 1, 600)).await;
    assert!(reason.contains("SEQUENCE_NUMBER_TOO_OLD"), "{reason}");
}

#[tokio::test]
async fn movement__should_move_coins_by_the_exact_amount() {
    let folder = tempfile::tempdir().unwrap();
    let aptos = ChainNode::start_with(folder.path(), "aptos", &["1"]).await;
    let node = ChainNode::start_with(folder.path(), "aptos", &["126"]).await;
    let chains = [
        format!("aptos={}/v1", aptos.url),
        format!("movement={}/v1", node.url),
    ];
    let (dev, from) = dev_with_wallet(folder.path(), &chains, APTOS).await;
    let api = &dev.api;
    let to = api.wallet(&dev.vault, APTOS).await;
    let chain = AptosFixture {
        id: 126,
        node: &node,
        api,
        from: from.clone(),
        to: to.clone(),
    };
    // Its account is not there.
    let (code, reason) = refusal(api, chain.native(1)).await;
    assert_eq!(code, INSUFFICIENT_GAS_FEE, "{reason}");

    give(&node, &from).await;
    chain.pays(chain.native(1_000_001), 1_000_001).await;
    let arguments = json!([to, to, "77", "tea", [], null]);
    chain.pays(chain.call("pay", arguments).await, 77).await;
    let number = chain.number().await;
    chain
        .pays(chain.foreign(&json!({"number": number}), 900, 600), 900)
        .await;
    assert_eq!(chain.units(&to, None).await, 1_000_978);

    // The same wallet on the other chain has nothing.
    let other = AptosFixture {
        id: 1,
        node: &aptos,
        ..chain
    };
    assert_eq!(other.units(&from, None).await, 0);
}
