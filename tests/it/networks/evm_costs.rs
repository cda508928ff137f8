//! What payments cost on a real EVM node, anvil, behind an address that answers some questions itself, and what is
//! refused because it would pay nothing.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use axum::{Json, Router, extract::State};

use super::{
    evm::{TO, payment, sent, sent_hash},
    *,
};

const GWEI: u128 = 1_000_000_000;
/// What the node says that is not to be believed: 1,000,000 gwei.
const ABSURD: &str = "0x38d7ea4c68000";
/// Has code that writes the length of what it is called with thrice, and code that returns 0, 1 and nothing.
const WRITES: (&str, &str) = (
    "0x00000000000000000000000000000000c0ffee10",
    "0x3660015536600255366003550000",
);
const SAYS_NO: (&str, &str) = (
    "0x00000000000000000000000000000000c0ffee11",
    "0x600060005260206000f3",
);
const SAYS_YES: (&str, &str) = (
    "0x00000000000000000000000000000000c0ffee12",
    "0x600160005260206000f3",
);
const SAYS_NOTHING: (&str, &str) = ("0x00000000000000000000000000000000c0ffee13", "0x00");
const NO_CODE: &str = "0x00000000000000000000000000000000c0ffee14";

/// An address before a node that answers some methods itself: what it says, or that it does not know the method.
#[derive(Clone)]
struct Meddler {
    target: String,
    http: reqwest::Client,
    own: Arc<Mutex<BTreeMap<&'static str, Option<Value>>>>,
}

impl Meddler {
    /// Starts before a node. Gives the address too.
    async fn start(target: &str) -> (Self, String) {
        let proxy = Self {
            target: target.to_owned(),
            http: http_client(),
            own: Arc::default(),
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(proxy.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        (proxy, url)
    }

    /// From now on it answers these methods and no others.
    fn says(&self, own: impl IntoIterator<Item = (&'static str, Option<Value>)>) {
        *self.own.lock().unwrap() = own.into_iter().collect();
    }
}

async fn answer(State(proxy): State<Meddler>, Json(request): Json<Value>) -> Json<Value> {
    let method = request["method"].as_str().unwrap_or_default();
    let own = proxy.own.lock().unwrap().get(method).cloned();
    let id = &request["id"];
    Json(match own {
        Some(Some(said)) => json!({"jsonrpc": "2.0", "id": id, "result": said}),
        Some(None) => json!({"jsonrpc": "2.0", "id": id,
            "error": {"code": -32601, "message": "the method does not exist"}}),
        None => {
            let said = proxy.http.post(&proxy.target).json(&request).send();
            said.await.unwrap().json().await.unwrap()
        }
    })
}

/// A cluster whose chain is anvil behind a meddler.
struct Costs {
    anvil: Anvil,
    proxy: Meddler,
    dev: DevProcess,
    from: String,
    _folder: tempfile::TempDir,
}

impl Costs {
    /// With settings of the orchestrator.
    async fn start(settings: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let anvil = Anvil::start(folder.path(), 31337).await;
        for (contract, code) in [WRITES, SAYS_NO, SAYS_YES, SAYS_NOTHING] {
            anvil.call("anvil_setCode", json!([contract, code])).await;
        }
        let (proxy, url) = Meddler::start(&anvil.url).await;
        let (data, chain) = (folder.path().join("dev"), format!("31337={url}"));
        let dev = DevProcess::start_with(&data, &["--chain", &chain], settings).await;
        let from = dev.api.wallet(&dev.vault, "NETWORK_TYPE_EVM").await;
        anvil.fund(&from, 1_000_000_000_000_000_000).await;
        Self {
            anvil,
            proxy,
            dev,
            from,
            _folder: folder,
        }
    }

    /// A payment of 5 wei with these fees.
    fn pay(&self, gas_fee: &Value) -> Value {
        let mut payment = payment(&self.from);
        payment["evmSendNative"]["gasFee"] = gas_fee.clone();
        payment
    }

    /// The transaction of a request that is sent, as the node has it.
    async fn transaction(&self, request: Value) -> Value {
        let (_, hash) = sent(&self.dev, request).await;
        self.by_hash(&hash).await
    }

    async fn by_hash(&self, hash: &str) -> Value {
        self.anvil
            .call("eth_getTransactionByHash", json!([hash]))
            .await
    }

    /// Whatever the node lies about, nothing is signed, and the reason can be seen.
    async fn assert_absurd_prices_are_held(&self) {
        let absurd = || Some(json!(ABSURD));
        let tip = |tip| ("eth_maxPriorityFeePerGas", tip);
        let paid = |paid: Option<Value>| {
            let reward = |paid| json!({"reward": [[paid, paid, paid]]});
            ("eth_feeHistory", paid.map(reward))
        };
        let block = |base_fee: Value| {
            let mut block = json!({"number": "0x1", "gasLimit": "0x1c9c380"});
            if !base_fee.is_null() {
                block["baseFeePerGas"] = base_fee;
            }
            ("eth_getBlockByNumber", Some(block))
        };
        let gas_price = || ("eth_gasPrice", absurd());
        let (count, before) = (self.count().await, self.anvil.balance(&self.from).await);
        for lies in [
            vec![tip(absurd()), paid(None)],
            vec![tip(absurd()), paid(absurd())],
            vec![tip(None), paid(absurd())],
            vec![tip(None), paid(None), gas_price()],
            vec![block(json!(ABSURD))],
            // As on a chain without a base fee.
            vec![block(Value::Null), gas_price()],
        ] {
            self.proxy.says(lies.clone());
            self.assert_held().await;
            let (status, answer) = self.dev.api.post("estimateFee", chain()).await;
            assert_eq!(status, 503, "{lies:?}: {answer}");
            let message = answer["error"]["message"].as_str().unwrap();
            assert!(message.contains("most_price"), "{lies:?}: {message}");
        }
        assert_eq!(self.count().await, count, "nothing was sent");
        assert_eq!(self.anvil.balance(&self.from).await, before);
    }

    /// Signers refuse what the orchestrator believes.
    async fn assert_signers_hold_absurd_prices(&self) {
        let (count, before) = (self.count().await, self.anvil.balance(&self.from).await);
        let tip = ("eth_maxPriorityFeePerGas", Some(json!(ABSURD)));
        self.proxy.says([tip, ("eth_feeHistory", None)]);
        let (_, reason) = refusal(&self.dev.api, self.pay(&Value::Null)).await;
        // On a chain that nobody knows that is reached before the ceiling of prices.
        let words = "fee: could take more than this signer's policy allows for evm";
        assert!(reason.contains(words), "{reason}");
        assert_eq!(self.count().await, count, "nothing was sent");
        assert_eq!(self.anvil.balance(&self.from).await, before);
        self.proxy.says([]);
    }

    /// What estimateFee says of this level.
    async fn estimate(&self, level: &str) -> Value {
        self.dev.api.ok("estimateFee", chain()).await[level].clone()
    }

    /// A payment waits for another price than the one that the node names, and says so.
    async fn assert_held(&self) {
        let uuid = self.dev.api.create(self.pay(&Value::Null)).await;
        let reason = eventually("it says why it waits", async || {
            let stuck = self.dev.command(&["request", "stuck", "--json"]);
            let stuck: Value = serde_json::from_str(&stuck).ok()?;
            let stuck = stuck["requests"].as_array()?.clone();
            let mut mine = stuck.iter().filter(|one| one["uuid"] == uuid.as_str());
            Some(mine.next()?["reason"].as_str()?.to_owned())
        })
        .await;
        assert!(
            reason.contains("above the accepted maximum of")
                && reason.contains("(chains.evm.31337.most_price)"),
            "{reason}"
        );
        let rejected = json!({"uuid": uuid});
        self.dev.api.ok("rejectSigningRequest", rejected).await;
    }

    /// The base fee of the latest block.
    async fn base_fee(&self) -> u128 {
        let latest = json!(["latest", false]);
        let block = self.anvil.call("eth_getBlockByNumber", latest).await;
        hex_number(&block["baseFeePerGas"])
    }

    /// How many transactions of the wallet there are, in blocks or not.
    async fn count(&self) -> u128 {
        let asked = json!([self.from, "pending"]);
        hex_number(&self.anvil.call("eth_getTransactionCount", asked).await)
    }
}

/// What estimateFee is asked for.
fn chain() -> Value {
    json!({"networkType": "NETWORK_TYPE_EVM", "chainId": "31337"})
}

fn tip(transaction: &Value) -> u128 {
    hex_number(&transaction["maxPriorityFeePerGas"])
}

fn most(transaction: &Value) -> u128 {
    hex_number(&transaction["maxFeePerGas"])
}

#[tokio::test]
async fn evm_prices__should_have_a_ceiling_whatever_the_node_says() {
    let it = Costs::start(&[]).await;
    let lie = || ("eth_maxPriorityFeePerGas", Some(json!(ABSURD)));
    // Compared with what blocks have paid.
    it.proxy.says([lie()]);
    let before = it.anvil.balance(&it.from).await;
    let transaction = it.transaction(it.pay(&Value::Null)).await;
    assert!(tip(&transaction) <= 3 * GWEI, "{transaction}");
    it.anvil
        .receipt(transaction["hash"].as_str().unwrap())
        .await;
    let cost = before - it.anvil.balance(&it.from).await;
    assert!(0 < cost && cost <= 21_000 * 6 * GWEI + 5, "{cost}");

    // Nothing true to compare it with, or another price that is a lie.
    it.assert_absurd_prices_are_held().await;
    // A request that brings its own prices needs none of the node's.
    it.proxy.says([lie(), ("eth_feeHistory", None)]);
    let own = json!({"maxFee": (5 * GWEI).to_string(), "maxPriorityFee": GWEI.to_string()});
    let transaction = it.transaction(it.pay(&own)).await;
    assert_eq!(
        (tip(&transaction), most(&transaction)),
        (GWEI, 5 * GWEI),
        "{transaction}"
    );
    assert_eq!(transaction["gas"], "0x5208", "that is the node's word");

    // A node that does not know the method: what blocks have paid, and else the gas price less the base fee.
    it.proxy.says([("eth_maxPriorityFeePerGas", None)]);
    let transaction = it.transaction(it.pay(&Value::Null)).await;
    assert!(tip(&transaction) <= 3 * GWEI, "{transaction}");
    it.proxy
        .says([("eth_maxPriorityFeePerGas", None), ("eth_feeHistory", None)]);
    let base_fee = it.base_fee().await;
    let price = hex_number(&it.anvil.call("eth_gasPrice", json!([])).await);
    let transaction = it.transaction(it.pay(&Value::Null)).await;
    assert_eq!(tip(&transaction), price - base_fee, "{transaction}");
    assert_eq!(most(&transaction), 2 * base_fee + tip(&transaction));

    // A level, and what estimateFee says of it.
    it.proxy.says([]);
    for (level, gas_fee) in [
        ("slow", json!({"feeLevel": "FEE_LEVEL_SLOW"})),
        ("normal", Value::Null),
        ("fast", json!({"feeLevel": "FEE_LEVEL_FAST"})),
    ] {
        let estimate = it.estimate(level).await;
        let transaction = it.transaction(it.pay(&gas_fee)).await;
        let offered = [most(&transaction), tip(&transaction)].map(|wei| wei.to_string());
        let named = [&estimate["mostPrice"], &estimate["priorityPrice"]];
        assert_eq!(offered.map(Value::from).each_ref(), named, "{level}");
    }

    // Any part of the fees: the rest is the node's.
    let transaction = it.transaction(it.pay(&json!({"gasLimit": "50000"}))).await;
    assert_eq!(transaction["gas"], "0xc350");
    assert!(tip(&transaction) <= 3 * GWEI, "{transaction}");
    let base_fee = it.base_fee().await;
    let own = json!({"maxPriorityFee": (2 * GWEI).to_string()});
    let transaction = it.transaction(it.pay(&own)).await;
    assert_eq!(tip(&transaction), 2 * GWEI);
    assert_eq!(most(&transaction), 2 * base_fee + 2 * GWEI);
    let own = json!({"maxFee": (7 * GWEI).to_string()});
    let transaction = it.transaction(it.pay(&own)).await;
    assert_eq!(
        (&transaction["type"], hex_number(&transaction["gasPrice"])),
        (&json!("0x0"), 7 * GWEI)
    );
    assert_eq!(transaction["gas"], "0x5208");

    // A request with the nonce of one that waits brings no fees, and nodes take it in its place.
    it.anvil.call("evm_setAutomine", json!([false])).await;
    let (uuid, hash) = sent(&it.dev, it.pay(&Value::Null)).await;
    let first = it.by_hash(&hash).await;
    let mut other = it.pay(&Value::Null);
    other["evmSendNative"]["nonce"] = json!(hex_number(&first["nonce"]).to_string());
    other["evmSendNative"]["value"] = json!("6");
    let second = it.transaction(other).await;
    for price in [tip, most] {
        let eighth = price(&first) + price(&first).div_ceil(8);
        assert!(price(&second) >= eighth, "{first} {second}");
    }
    assert_eq!(it.by_hash(&hash).await, Value::Null, "it is replaced");
    let received = it.anvil.balance(TO).await;
    it.anvil.call("anvil_mine", json!(["0x1"])).await;
    assert_eq!(it.anvil.balance(TO).await, received + 6);
    assert_eq!(sent_hash(&it.dev, &uuid).await, hash, "it is remembered");
}

#[tokio::test]
async fn evm_calls__should_have_a_reserve_of_gas_and_token_transfers_that_pay_nothing_be_refused() {
    // An orchestrator that believes any price.
    let any = (
        "COVAULT_CHAINS_EVM_31337_MOST_PRICE",
        "1000000000000000000000",
    );
    let it = Costs::start(&[any]).await;
    it.assert_signers_hold_absurd_prices().await;
    // A quarter more than the node estimates, and no more than a block has.
    let call = |length: usize| {
        let input = vec![7; length];
        let asked = json!([{"from": it.from, "to": WRITES.0, "data": format!("0x{}", "07".repeat(length))}]);
        let request = json!({"evmSendCustom": {"chainId": "31337", "from": it.from, "to": WRITES.0,
            "value": "0", "input": base64(input)}});
        (asked, request)
    };
    let (asked, request) = call(4);
    let estimate = hex_number(&it.anvil.call("eth_estimateGas", asked).await);
    let transaction = it.transaction(request).await;
    assert_eq!(hex_number(&transaction["gas"]), estimate + estimate / 4);
    let hash = transaction["hash"].as_str().unwrap();
    assert_eq!(it.anvil.receipt(hash).await["status"], "0x1");
    let (asked, request) = call(5);
    let estimate = hex_number(&it.anvil.call("eth_estimateGas", asked).await);
    let block = estimate + estimate / 8;
    let set = json!([format!("{block:#x}")]);
    it.anvil.call("evm_setBlockGasLimit", set).await;
    it.anvil.call("anvil_mine", json!(["0x1"])).await;
    let transaction = it.transaction(request).await;
    assert_eq!(hex_number(&transaction["gas"]), block);
    let hash = transaction["hash"].as_str().unwrap();
    assert_eq!(it.anvil.receipt(hash).await["status"], "0x1");
    let set = json!(["0x1c9c380"]);
    it.anvil.call("evm_setBlockGasLimit", set).await;
    it.anvil.call("anvil_mine", json!(["0x1"])).await;

    let pay = |token: &str, to: &str, gas_fee: Value| {
        json!({"evmSendErc20": {"chainId": "31337", "from": it.from, "to": to,
            "tokenContractAddress": token, "amount": "5", "gasFee": gas_fee}})
    };
    let count = it.count().await;
    // Nobody gets it back from these.
    let zero = format!("0x{}", "0".repeat(40));
    for (token, to, words) in [
        (
            SAYS_YES.0,
            SAYS_YES.0,
            "must not be the token's own contract",
        ),
        (SAYS_YES.0, zero.as_str(), "must not be the zero address"),
    ] {
        let body = pay(token, to, Value::Null);
        let (status, answer) = it.dev.api.post("createSigningRequest", body).await;
        assert_eq!(status, 400, "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert_eq!(message, format!("evmSendErc20.to: {words}"));
    }
    // Also when the request brings everything, so that nothing else is asked.
    let all = json!({"maxFee": (9 * GWEI).to_string(), "maxPriorityFee": GWEI.to_string(),
        "gasLimit": "100000"});
    for gas_fee in [Value::Null, all] {
        for (token, words) in [
            (
                NO_CODE,
                "there is no token contract at tokenContractAddress",
            ),
            (
                SAYS_NO.0,
                "the token refuses the transfer: it returns false",
            ),
        ] {
            let (_, reason) = refusal(&it.dev.api, pay(token, TO, gas_fee.clone())).await;
            assert_eq!(reason, words);
        }
    }
    assert_eq!(it.count().await, count, "nothing was sent");
    // Tokens that return true, or nothing as some do, are paid.
    for token in [SAYS_YES.0, SAYS_NOTHING.0] {
        let (_, hash) = sent(&it.dev, pay(token, TO, Value::Null)).await;
        assert_eq!(it.anvil.receipt(&hash).await["status"], "0x1");
    }
    assert_eq!(it.count().await, count + 2);

    // What was handed over and is given up leaves its number to the next one.
    let mut handed_over = it.pay(&Value::Null);
    handed_over["broadcastTx"] = json!(false);
    let uuid = it.dev.api.create(handed_over).await;
    sent_hash(&it.dev, &uuid).await;
    let given_up = json!({"uuid": uuid});
    it.dev.api.ok("rejectSigningRequest", given_up).await;
    let transaction = it.transaction(it.pay(&Value::Null)).await;
    assert_eq!(hex_number(&transaction["nonce"]), count + 2);
    let hash = transaction["hash"].as_str().unwrap();
    assert_eq!(it.anvil.receipt(hash).await["status"], "0x1");
}
