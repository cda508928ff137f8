//! TON on the real virtual machine (@ton/sandbox), behind the HTTP API of toncenter.

use super::*;

const TON: &str = "NETWORK_TYPE_TON";
const FUNDS: u128 = 5_000_000_000;
/// What goes along with a jetton transfer, nanoton.
const ATTACHED: u128 = 50_000_000;
/// Rent of an account without a contract, for the time of a test, is less, nanoton.
const RENT: u128 = 1_000;
/// The opcode of a v5r1 wallet's order from outside.
const SIGNED: u64 = 0x7369_676e;

/// A node and two wallets, of which the first has coins.
struct TonFixture {
    node: ChainNode,
    dev: DevProcess,
    from: String,
    to: String,
    _folder: tempfile::TempDir,
}

/// What passed through a wallet, in nanoton.
struct AccountTotals {
    fees: u128,
    sent: u128,
    received: u128,
    /// What the wallet was told from outside, from the first on.
    orders: Vec<Value>,
}

impl TonFixture {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let node = ChainNode::start(folder.path(), "ton").await;
        let chains = [format!("ton={}/api/v2", node.url)];
        let (dev, from) = dev_with_wallet(folder.path(), &chains, TON).await;
        let to = dev.api.wallet(&dev.vault, TON).await;
        let world = Self {
            node,
            dev,
            from,
            to,
            _folder: folder,
        };
        world.give(&world.from, FUNDS).await;
        world
    }

    async fn give(&self, address: &str, amount: u128) {
        let coins = json!({"address": address, "amount": amount.to_string()});
        self.node.post("/api/v2/test/give", coins).await;
    }

    async fn state(&self, address: &str) -> String {
        let path = format!("/api/v2/getAddressState?address={address}");
        let answer = http_client().get(format!("{}{path}", self.node.url));
        let answer: Value = answer.send().await.unwrap().json().await.unwrap();
        answer["result"].as_str().unwrap().to_owned()
    }

    async fn account(&self, address: &str) -> AccountTotals {
        let question = json!({"address": address});
        let found = self.node.post("/api/v2/test/account", question).await;
        let sum = |name: &str| found[name].as_str().unwrap().parse().unwrap();
        AccountTotals {
            fees: sum("fees"),
            sent: sum("sent"),
            received: sum("received"),
            orders: found["orders"].as_array().unwrap().clone(),
        }
    }

    async fn coins(&self, address: &str) -> u128 {
        balance(&self.dev.api, TON, address, None).await
    }

    /// A transfer, with a comment of its own.
    fn native(&self, value: u128) -> Value {
        json!({"tonSendNative": {"from": self.from, "to": self.to, "value": value.to_string(),
            "comment": format!("rent {value}")}})
    }

    /// What an application made, in TON Connect's form.
    fn custom(&self, request: &Value) -> Value {
        json!({"tonSendCustom": {"from": self.from, "payload": base64(request.to_string())}})
    }

    /// That exactly so much came to the other wallet, which pays rent for its account.
    async fn assert_got(&self, amount: u128) {
        let account = self.account(&self.to).await;
        assert_eq!(account.received, amount);
        assert!(account.fees < RENT, "{}", account.fees);
        assert_eq!(self.coins(&self.to).await, amount - account.fees);
    }

    /// What all orders up to now had to be, and that nothing but `sent` and fees left the wallet.
    async fn assert_paid(&self, sent: u128) {
        let account = self.account(&self.from).await;
        assert_eq!(account.sent, sent);
        let left = self.coins(&self.from).await;
        assert_eq!(left, account.received - account.sent - account.fees);
        for (seqno, order) in account.orders.iter().enumerate() {
            assert_eq!(order["seqno"], json!(seqno), "{order}");
            assert_eq!(order["deploys"], json!(seqno == 0), "{order}");
            assert_eq!(order["opcode"], json!(SIGNED), "{order}");
        }
    }
}

/// An address in the form that wants money back which nobody takes: a tag, and a checksum (CRC-16/XMODEM).
fn bouncing_form(address: &str) -> String {
    use ::base64::{Engine as _, engine::general_purpose::URL_SAFE};
    let mut bytes = URL_SAFE.decode(address).unwrap();
    bytes[0] = 0x11;
    let checksum = bytes[..34].iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            (crc << 1) ^ (if crc & 0x8000 == 0 { 0 } else { 0x1021 })
        })
    });
    bytes[34..].copy_from_slice(&checksum.to_be_bytes());
    URL_SAFE.encode(bytes)
}

fn hashes(outcomes: &[Value]) -> Vec<Value> {
    let hashes = outcomes.iter().map(|outcome| outcome["txHash"].clone());
    hashes.collect()
}

#[tokio::test]
async fn ton__should_deploy_the_wallet_and_move_coins_and_jettons_by_the_exact_amount() {
    let world = TonFixture::start().await;
    let TonFixture { from, to, node, .. } = &world;
    let api = &world.dev.api;
    assert_eq!(world.coins(from).await, FUNDS);
    assert_eq!(world.state(from).await, "uninitialized");

    // The first transaction brings the contract, the second has the next number.
    let mut sent = 0;
    let mut done = Vec::new();
    for amount in [1_234_567_891, 100_000_001] {
        done.push(api.sign(world.native(amount)).await);
        sent += amount;
        assert_eq!(world.state(from).await, "active");
        world.assert_got(sent).await;
        world.assert_paid(sent).await;
    }
    // The fees of all that was paid, and nothing else.
    let AccountTotals { fees, orders, .. } = world.account(from).await;
    assert_eq!(world.coins(from).await, FUNDS - sent - fees);
    let normal: Vec<_> = orders.iter().map(|order| order["hash"].clone()).collect();
    assert_eq!(hashes(&done), normal);

    // Jettons: the owner's jetton wallet is notified, and returns what it does not use.
    let minted = json!({"owner": from, "amount": "1000000"});
    let minted = node.post("/api/v2/test/mint", minted).await;
    let jetton = minted["minter"].as_str().unwrap();
    assert_eq!(balance(api, TON, from, Some(jetton)).await, 1_000_000);
    assert_eq!(balance(api, TON, to, Some(jetton)).await, 0);
    let send = |amount: u64, decimals: u8| {
        json!({"tonSendToken": {"from": from, "to": to, "mintAddress": jetton,
            "amount": amount.to_string(), "comment": "jettons", "decimals": decimals.to_string()}})
    };
    api.sign(send(250_001, 6)).await;
    sent += ATTACHED;
    for (owner, expected) in [(to, 250_001), (from, 749_999)] {
        assert_eq!(balance(api, TON, owner, Some(jetton)).await, expected);
    }
    world.assert_paid(sent).await;

    // What cannot be is refused before it is signed.
    for (payload, words) in [
        (send(749_999, 9), "decimals"),
        (send(750_000, 6), "holds 749999"),
        (world.native(FUNDS), "nanoton"),
    ] {
        let (code, reason) = refusal(api, payload).await;
        let is_funds = words != "decimals";
        assert_eq!(code == INSUFFICIENT_FUNDS, is_funds, "{reason}");
        assert!(reason.contains(words), "{reason}");
    }
    let mut no_jetton = send(1, 6);
    no_jetton["tonSendToken"]["mintAddress"] = json!(to);
    let (_, reason) = refusal(api, no_jetton).await;
    assert!(
        reason.contains("mintAddress: is not the master"),
        "{reason}"
    );
    let question = json!({"networkType": TON, "walletAddress": from, "tokenAddress": to});
    let (status, answer) = api.post("getBalance", question).await;
    assert_eq!(status, 400, "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("tokenAddress: is not"), "{message}");

    // What fills a gap uses a number, and pays nobody.
    let mut nothing = world.native(0);
    nothing["tonSendNative"]["to"] = json!(from);
    let orders = world.account(from).await.orders.len();
    api.sign(nothing).await;
    assert_eq!(world.account(from).await.orders.len(), orders + 1);
    world.assert_paid(sent).await;

    // A wallet that has the amount and not the fee would send nothing, and pay for that.
    let (all, orders) = (world.coins(from).await, world.account(from).await.orders);
    for too_much in [all, all - 2_000_000] {
        let (code, reason) = refusal(api, world.native(too_much)).await;
        assert_eq!(code, INSUFFICIENT_FUNDS);
        assert!(reason.contains("plus fees of about"), "{reason}");
    }
    assert_eq!(world.account(from).await.orders.len(), orders.len());
    world.assert_paid(sent).await;
    // With the nanoton of the notification about the jettons.
    let got = 1_334_567_893;
    world.assert_got(got).await;
    // Where no contract is nothing comes back, also when the address asks for it.
    assert_eq!(world.state(to).await, "uninitialized");
    let mut bouncing = world.native(70_000_007);
    bouncing["tonSendNative"]["to"] = json!(bouncing_form(to));
    api.sign(bouncing).await;
    let (sent, got) = (sent + 70_000_007, got + 70_000_007);
    world.assert_paid(sent).await;
    world.assert_got(got).await;
    // What an application made is sent as it is: where it would come back it is refused.
    let request = json!({"messages": [{"address": bouncing_form(to), "amount": "7"}]});
    let (_, reason) = refusal(api, world.custom(&request)).await;
    assert!(reason.contains("where no contract is"), "{reason}");
    // Its carriage costs more than is known before: a block has it, the number is used and the fee paid, and nothing else.
    let cargo = node.post("/api/v2/test/cargo", json!({"cells": 60})).await;
    let (all, orders) = (world.coins(from).await, world.account(from).await.orders);
    let message =
        json!({"address": to, "amount": (all - 10_000_000).to_string(), "payload": cargo});
    fails_on_chain(api, world.custom(&json!({"messages": [message]}))).await;
    let fees = all - world.coins(from).await;
    assert!((1..200_000_000).contains(&fees), "{fees}");
    assert_eq!(world.account(from).await.orders.len(), orders.len() + 1);
    world.assert_paid(sent).await;
    world.assert_got(got).await;
    // The rest can be sent.
    let rest = world.coins(from).await - 10_000_000;
    api.sign(world.native(rest)).await;
    world.assert_paid(sent + rest).await;
    world.assert_got(got + rest).await;
}

#[tokio::test]
async fn ton_transactions_of_one_wallet__should_go_one_after_the_other() {
    let world = TonFixture::start().await;
    let api = &world.dev.api;
    let to = &world.to;
    let amounts = (1..=5u128).map(|number| number * 10_000_000);
    let sends = amounts.map(|amount| {
        let (api, payload) = (api.clone(), world.native(amount));
        async move { api.sign(payload).await }
    });
    let done = futures::future::join_all(sends).await;
    let mut sent: u128 = 150_000_000;
    world.assert_paid(sent).await;
    world.assert_got(sent).await;
    let orders = world.account(&world.from).await.orders;
    assert_eq!(orders.len(), done.len());
    for hash in hashes(&done) {
        assert!(orders.iter().any(|order| order["hash"] == hash), "{hash}");
    }

    // What an application made: two messages in one order.
    let request = json!({"messages": [
        {"address": to, "amount": "7000000"},
        {"address": to, "amount": "8000000"},
    ]});
    api.sign(world.custom(&request)).await;
    sent += 15_000_000;
    world.assert_paid(sent).await;
    world.assert_got(sent).await;

    // Handed over: the node does not see it, and the next one waits for its number.
    let mut handed = world.native(1_000_000);
    handed["broadcastTx"] = json!(false);
    let handed = api.sign(handed).await;
    world.assert_paid(sent).await;
    let next = api.create(world.native(2_000_000)).await;
    let boc = json!({"boc": handed["signedTransaction"]});
    let answer = world.node.post("/api/v2/sendBoc", boc).await;
    assert_eq!(answer["ok"], true, "{answer}");
    let next = api.execute(&next).await;
    assert_eq!(next["error"], Value::Null, "{next}");
    sent += 3_000_000;
    world.assert_paid(sent).await;
    world.assert_got(sent).await;
    let orders = world.account(&world.from).await.orders;
    let last: Vec<_> = orders
        .iter()
        .rev()
        .take(2)
        .map(|order| &order["hash"])
        .collect();
    assert_eq!(last, [&next["txHash"], &handed["txHash"]]);
}

#[tokio::test]
async fn ton_transactions_that_are_lost_on_the_way__should_be_sent_again() {
    let world = TonFixture::start().await;
    let api = &world.dev.api;
    world
        .node
        .post("/api/v2/test/lose", json!({"count": 1}))
        .await;
    let (first, second) = (world.native(1_000_001), world.native(2_000_002));
    let (first, second) = (api.create(first).await, api.create(second).await);
    let (first, second) = tokio::join!(api.execute(&first), api.execute(&second));
    for outcome in [&first, &second] {
        assert_eq!(outcome["error"], Value::Null, "{outcome}");
    }
    let orders = world.account(&world.from).await.orders;
    let arrived: Vec<_> = orders.iter().map(|order| &order["hash"]).collect();
    assert_eq!(arrived, [&first["txHash"], &second["txHash"]]);
    world.assert_paid(3_000_003).await;
    world.assert_got(3_000_003).await;
}
