//! Sui, against a stub that checks and runs every transaction with Sui's own SDK.

use std::collections::BTreeSet;

use super::*;

const SUI: &str = "NETWORK_TYPE_SUI";
const INSUFFICIENT_GAS_FEE: &str = "EXECUTE_SIGNING_REQUESTS_ERROR_CODE_INSUFFICIENT_GAS_FEE";
const TOKEN: &str = "0x5a5a::usd::USD";
/// What the node says, MIST per unit of gas.
const PRICE: u64 = 750;

/// A node and the two wallets.
struct SuiFixture {
    dev: DevProcess,
    node: ChainNode,
    from: String,
    to: String,
    _folder: tempfile::TempDir,
}

impl SuiFixture {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let node = ChainNode::start(folder.path(), "sui").await;
        let chains = [format!("sui={}", node.url)];
        let (dev, from) = dev_with_wallet(folder.path(), &chains, SUI).await;
        let to = dev.api.wallet(&dev.vault, SUI).await;
        Self {
            dev,
            node,
            from,
            to,
            _folder: folder,
        }
    }

    /// Makes a coin object of the wallet's.
    async fn give(&self, token: Option<&str>, amount: u64) {
        let coin = json!({"address": self.from, "type": token, "amount": amount.to_string()});
        self.node.post("/test/give", coin).await;
    }

    /// Sets what the wallet has outside of coin objects.
    async fn funds(&self, token: Option<&str>, amount: u64) {
        let funds = json!({"address": self.from, "type": token, "amount": amount.to_string()});
        self.node.post("/test/funds", funds).await;
    }

    async fn coins(&self, address: &str) -> Vec<Value> {
        let coins = self
            .node
            .post("/test/coins", json!({"address": address}))
            .await;
        coins.as_array().unwrap().clone()
    }

    async fn units(&self, address: &str, token: Option<&str>) -> i128 {
        i128::try_from(balance(&self.dev.api, SUI, address, token).await).unwrap()
    }

    fn native(&self, value: u64) -> Value {
        json!({"suiSendNative": {"from": self.from, "to": self.to, "value": value.to_string()}})
    }

    fn token(&self, amount: u64) -> Value {
        json!({"suiSendCoin": {"from": self.from, "to": self.to, "coinTag": TOKEN,
            "amount": amount.to_string()}})
    }

    /// All transactions that were executed, in order.
    async fn executed(&self) -> Vec<Value> {
        let executed = self.node.post("/test/executed", json!({})).await;
        executed.as_array().unwrap().clone()
    }

    /// What was executed under the hash that a request ended with.
    async fn outcome(&self, sent: &Value) -> Value {
        let executed = self.executed().await;
        let mut found = executed
            .into_iter()
            .filter(|one| one["digest"] == sent["txHash"]);
        found.next().unwrap_or_else(|| panic!("{sent}"))
    }

    /// Sends what must succeed and cost what the node says, with `amount` MIST besides.
    async fn pays(&self, payload: Value, amount: i128) -> Value {
        let before = self.units(&self.from, None).await;
        let sent = self.dev.api.sign(payload).await;
        let executed = self.outcome(&sent).await;
        assert_eq!(executed["success"], true, "{executed}");
        let left = self.units(&self.from, None).await;
        assert_eq!(before - left, amount + fee(&executed), "{executed}");
        executed
    }

    /// A payment of the first wallet whose gas the second one pays. Who signs last, as sender or as owner of the gas,
    /// has the signature of the other one.
    async fn pays_with_a_sponsor(&self, as_sender: bool) {
        const STRANGER: &str = "0x00000000000000000000000000000000000000000000000000000000c0ffee09";
        let Self { from, to, .. } = self;
        let api = &self.dev.api;
        for owner in [from, to] {
            let coin = json!({"address": owner, "type": null, "amount": "50000000"});
            self.node.post("/test/give", coin).await;
        }
        let (own, gas) = (self.coins(from).await, self.coins(to).await);
        let large = |coin: &&Value| coin["balance"] == "50000000";
        let [spent, gas] = [&own, &gas].map(|coins| coins.iter().find(large).unwrap());
        let question = json!({"form": "bcs", "from": from, "to": STRANGER, "amount": "1003",
            "coins": [gas], "price": 800, "budget": 5_000_000, "spent": spent, "gasOwner": to});
        let made = outside("suiTransaction", question);
        let [first, last] = if as_sender { [to, from] } else { [from, to] };
        let mut handed_over = json!({"broadcastTx": false,
            "suiSendCustom": {"from": first, "payload": made["payload"]}});
        let handed = api.sign(handed_over.clone()).await;
        let signed: Value =
            serde_json::from_str(handed["signedTransaction"].as_str().unwrap()).unwrap();
        // One signature is not enough.
        handed_over["suiSendCustom"]["from"] = json!(last);
        handed_over["broadcastTx"] = json!(true);
        let (status, answer) = api.post("createSigningRequest", handed_over).await;
        assert_eq!(status, 400, "{answer}");
        let before = [self.units(from, None).await, self.units(to, None).await];
        let got = self.units(STRANGER, None).await;
        let sent = api
            .sign(
                json!({"suiSendCustom": {"from": last, "payload": made["payload"],
                "otherSignatures": signed["signatures"]}}),
            )
            .await;
        let executed = self.outcome(&sent).await;
        assert_eq!(executed["success"], true, "{executed}");
        assert_eq!(self.units(from, None).await, before[0] - 1_003);
        assert_eq!(self.units(to, None).await, before[1] - fee(&executed));
        assert_eq!(self.units(STRANGER, None).await, got + 1_003);
    }

    /// No execution was refused.
    async fn was_never_refused(&self) {
        let refusals = self.node.post("/test/refusals", json!({})).await;
        assert_eq!(refusals, json!([]));
    }

    /// A payment that the SDK made, out of these coins.
    fn foreign(&self, form: &str, amount: u64, coins: &[Value]) -> Value {
        let question = json!({"form": form, "from": self.from, "to": self.to,
            "amount": amount.to_string(), "coins": coins, "price": 800, "budget": 5_000_000});
        outside("suiTransaction", question)
    }
}

/// What the gas cost; negative where more storage came back.
fn fee(executed: &Value) -> i128 {
    executed["fee"].as_str().unwrap().parse().unwrap()
}

fn field(executed: &Value, name: &str) -> u64 {
    executed[name].as_str().unwrap().parse().unwrap()
}

fn used(executed: &Value) -> impl Iterator<Item = &str> {
    let used = executed["used"].as_array().unwrap();
    used.iter().map(|name| name.as_str().unwrap())
}

#[tokio::test]
async fn sui__should_move_coins_and_tokens_by_the_exact_amount() {
    let chain = SuiFixture::start().await;
    let SuiFixture { dev, from, to, .. } = &chain;
    let api = &dev.api;
    let (code, reason) = refusal(api, chain.native(1)).await;
    assert_eq!(code, INSUFFICIENT_FUNDS, "{reason}");

    // Five coins are more than a page of the node's.
    for amount in [1_000_000_000, 5, 2_000_000_000, 7, 0] {
        chain.give(None, amount).await;
    }
    assert_eq!(chain.units(from, None).await, 3_000_000_012);

    // No more coins than are needed.
    let executed = chain.pays(chain.native(2_500_000_001), 2_500_000_001).await;
    assert_eq!(chain.units(to, None).await, 2_500_000_001);
    assert_eq!(field(&executed, "price"), PRICE);
    assert_eq!(used(&executed).count(), 2);
    assert_eq!(chain.coins(from).await.len(), 4);

    // With a gas fee of the client's.
    let mut payment = chain.native(5);
    payment["suiSendNative"]["gasFee"] = json!({"budget": "7000001", "price": "1001"});
    let executed = chain.pays(payment, 5).await;
    assert_eq!(field(&executed, "price"), 1_001);
    assert_eq!(field(&executed, "budget"), 7_000_001);

    // A token in coins, then in an address balance too, then only there.
    for amount in [600, 300, 100] {
        chain.give(Some(TOKEN), amount).await;
    }
    assert_eq!(chain.units(from, Some(TOKEN)).await, 1_000);
    chain.pays(chain.token(650), 0).await;
    assert_eq!(chain.units(to, Some(TOKEN)).await, 650);
    assert_eq!(chain.units(from, Some(TOKEN)).await, 350);
    chain.funds(Some(TOKEN), 300).await;
    chain.pays(chain.token(400), 0).await;
    assert_eq!(chain.units(to, Some(TOKEN)).await, 1_050);
    assert_eq!(chain.units(from, Some(TOKEN)).await, 250);
    chain.pays(chain.token(250), 0).await;
    assert_eq!(chain.units(to, Some(TOKEN)).await, 1_300);
    assert_eq!(chain.units(from, Some(TOKEN)).await, 0);

    // SUI outside of coins is spent with them, and pays for gas alone.
    let held = chain.units(from, None).await;
    chain.funds(None, 1_000_000_000).await;
    assert_eq!(chain.units(from, None).await, held + 1_000_000_000);
    let amount = u64::try_from(held).unwrap() + 1;
    chain.pays(chain.native(amount), amount.into()).await;
    chain.give(Some(TOKEN), 10).await;
    chain.pays(chain.token(10), 0).await;
    // Without any coin object, the expiration keeps a transaction from coming twice.
    chain.funds(Some(TOKEN), 10).await;
    let executed = chain.pays(chain.token(3), 0).await;
    assert_eq!(executed["expiration"], "ValidDuring");
    assert_eq!(used(&executed).count(), 0);
    chain.was_never_refused().await;

    // More than there is.
    for too_much in [chain.native(50_000_000_000), chain.token(8)] {
        let (code, reason) = refusal(api, too_much).await;
        assert_eq!(code, INSUFFICIENT_FUNDS, "{reason}");
    }
    // All but a little is gone.
    chain.funds(None, 0).await;
    let left = u64::try_from(chain.units(from, None).await).unwrap();
    let mut payment = chain.native(left - 2_100_000);
    payment["suiSendNative"]["gasFee"] = json!({"budget": "2100000", "price": PRICE.to_string()});
    chain.pays(payment, (left - 2_100_000).into()).await;
    chain.give(None, 1_000).await;
    let (code, reason) = refusal(api, chain.token(7)).await;
    assert_eq!(code, INSUFFICIENT_GAS_FEE, "{reason}");
    assert_eq!(chain.units(from, Some(TOKEN)).await, 7);
}

#[tokio::test]
async fn sui_payments_of_one_wallet_at_once__should_never_use_one_object_twice() {
    let chain = SuiFixture::start().await;
    let SuiFixture { dev, from, to, .. } = &chain;
    let funds: i128 = 4_000_000_000;
    for _ in 0..4 {
        chain.give(None, 1_000_000_000).await;
    }
    let sends = (1..=5u64).map(|amount| dev.api.sign(chain.native(amount)));
    let sent = futures::future::join_all(sends).await;
    assert_eq!(chain.units(to, None).await, 15);
    let executed = chain.executed().await;
    assert_eq!(executed.len(), 5);
    let hashes: BTreeSet<_> = sent.iter().map(|one| one["txHash"].to_string()).collect();
    assert_eq!(hashes.len(), 5);
    let names: Vec<_> = executed.iter().flat_map(used).collect();
    assert_eq!(
        names.iter().collect::<BTreeSet<_>>().len(),
        names.len(),
        "{names:?}"
    );
    let paid: i128 = executed.iter().map(fee).sum();
    assert_eq!(chain.units(from, None).await, funds - 15 - paid);

    // Equal payments out of address balances use no object: each has a nonce of its own.
    chain.funds(None, 1_000_000_000).await;
    chain.funds(Some(TOKEN), 100).await;
    let sends = (0..4).map(|_| dev.api.sign(chain.token(20)));
    let sent = futures::future::join_all(sends).await;
    let hashes: BTreeSet<_> = sent.iter().map(|one| one["txHash"].to_string()).collect();
    assert_eq!(hashes.len(), 4);
    assert_eq!(chain.units(to, Some(TOKEN)).await, 80);
    assert_eq!(chain.units(from, Some(TOKEN)).await, 20);
    chain.was_never_refused().await;
}

#[tokio::test]
async fn sui_transactions_made_elsewhere__should_be_signed_and_sent_as_they_are() {
    let chain = SuiFixture::start().await;
    let SuiFixture {
        node,
        dev,
        from,
        to,
        ..
    } = &chain;
    let api = &dev.api;
    chain.give(None, 1_000_000_000).await;
    let custom =
        |made: &Value| json!({"suiSendCustom": {"from": from, "payload": made["payload"]}});
    let mut arrived = 0;
    for (form, amount) in [("bcs", 1_001), ("json", 2_002)] {
        let made = chain.foreign(form, amount, &chain.coins(from).await);
        let executed = chain.pays(custom(&made), amount.into()).await;
        assert_eq!(field(&executed, "price"), 800);
        arrived += i128::from(amount);
        assert_eq!(chain.units(to, None).await, arrived);
    }

    // Coins that another request holds are not signed for again; those that are used elsewhere are
    // the node's to refuse.
    let coins = chain.coins(from).await;
    chain.pays(chain.native(1), 1).await;
    arrived += 1;
    let held = custom(&chain.foreign("bcs", 5, &coins));
    let (status, answer) = api.post("createSigningRequest", held).await;
    assert_eq!(status, 409, "{answer}");
    let coins = chain.coins(from).await;
    node.post("/test/use", json!({"objectId": coins[0]["objectId"]}))
        .await;
    let stale = custom(&chain.foreign("bcs", 5, &coins));
    let (_, reason) = refusal(api, stale).await;
    assert!(reason.contains("used one of its objects"), "{reason}");

    // What fails on the chain was taken, and costs its gas.
    let before = chain.units(from, None).await;
    let made = chain.foreign("json", 90_000_000_000, &chain.coins(from).await);
    let sent = api.sign(custom(&made)).await;
    let executed = chain.outcome(&sent).await;
    assert_eq!(executed["success"], false);
    let left = chain.units(from, None).await;
    assert_eq!(before - left, fee(&executed));
    assert!(fee(&executed) > 0);
    assert_eq!(chain.units(to, None).await, arrived);

    // Not sent: the node accepts it from any sender, and nothing else under its signature.
    let count = chain.executed().await.len();
    let mut payment = chain.native(77);
    payment["broadcastTx"] = json!(false);
    let handed = api.sign(payment).await;
    assert_eq!(chain.executed().await.len(), count);
    let signed = handed["signedTransaction"].as_str().unwrap();
    let text: Value = serde_json::from_str(signed).unwrap();
    let other = chain.foreign("bcs", 78, &chain.coins(from).await);
    let forged = json!({"txBytes": other["bytes"], "signatures": text["signatures"]}).to_string();
    let answer = outside("suiExecute", json!({"url": node.url, "signed": forged}));
    let refused = answer["error"].as_str().unwrap_or_default();
    assert!(refused.contains("Invalid user signature"), "{answer}");
    assert_eq!(chain.units(to, None).await, arrived);
    let answer = outside("suiExecute", json!({"url": node.url, "signed": signed}));
    assert_eq!(
        answer,
        json!({"digest": handed["txHash"], "success": true}),
        "{signed}"
    );
    assert_eq!(chain.units(to, None).await, arrived + 77);
    for as_sender in [true, false] {
        chain.pays_with_a_sponsor(as_sender).await;
    }
}
