//! Deposits while everything is killed: at the end the test reads the chain itself, and the receiver must have been told
//! exactly that. `just deposits-long` is the same with a thousand transfers to three hundred wallets.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use serde_json::{Value, json};

use super::{
    deposits::{Webhooks, operator, receiver},
    support::*,
};

const PAYER: &str = "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266";
const TARGET: &str = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";
/// Named by the shop. They return nothing; the last one keeps a unit of each transfer for itself.
const TOKENS: [&str; 3] = [
    "0x00000000000000000000000000000000000d0111",
    "0x00000000000000000000000000000000000d0222",
    "0x00000000000000000000000000000000000d0333",
];
/// It says that it is one of them.
const FAKE: &str = "0x00000000000000000000000000000000000fa4e0";
const TRANSFER: &str = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef";

/// How much of it: a short form for the suite.
struct Extent {
    transfers: usize,
    wallets: usize,
    kills: usize,
}

impl Extent {
    fn chosen() -> Self {
        let number = |name: &str, short: usize| match std::env::var(name) {
            Ok(text) => text.parse().unwrap(),
            Err(_) => short,
        };
        Self {
            transfers: number("COVAULT_DEPOSIT_TRANSFERS", 60),
            wallets: number("COVAULT_DEPOSIT_WALLETS", 6),
            kills: number("COVAULT_DEPOSIT_KILLS", 4),
        }
    }
}

/// Dice that fall the same each time (splitmix64).
struct Dice(u64);

impl Dice {
    fn chosen() -> Self {
        let given = std::env::var("COVAULT_DEPOSIT_SEED").ok();
        let seed = given.map_or(20, |seed| seed.parse().unwrap());
        eprintln!("COVAULT_DEPOSIT_SEED={seed}; another number rolls other dice");
        Self(seed)
    }

    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % sides as u64).unwrap()
    }
}

/// What is killed.
enum Plant {
    One(TestCluster),
    Two(Fleet),
}

impl Plant {
    fn cluster(&self) -> &TestCluster {
        match self {
            Self::One(cluster) => cluster,
            Self::Two(fleet) => &fleet.cluster,
        }
    }

    async fn kill(&mut self, dice: &mut Dice) {
        match self {
            Self::One(cluster) => {
                cluster.serve.kill();
                cluster.start_serve();
                cluster.ready().await;
            }
            Self::Two(fleet) => {
                let which = dice.roll(2);
                fleet.process(which).kill();
                // Now and then the other one has the time to take over.
                if dice.roll(2) == 0 {
                    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
                }
                fleet.restart(which);
                fleet.ready().await;
            }
        }
    }
}

/// Of which transfer something is told: hash, index, whether it is sent.
type Of = (String, String, bool);

/// What a transfer is: account, token, amount, as events have them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    account: String,
    token: Option<String>,
    amount: String,
}

async fn send(anvil: &Anvil, from: &str, to: &str, wei: usize, data: &str) {
    let transaction = json!({"from": from, "to": to, "value": format!("{wei:#x}"), "data": data, "gas": "0x186a0"});
    let hash = anvil
        .call("eth_sendTransaction", json!([transaction]))
        .await;
    // In a block: anvil loses one for good that it makes while its blocks are taken away.
    once_there(async || anvil.receipt(hash.as_str().unwrap()).await).await;
}

fn word(account: &str) -> String {
    format!("{:0>64}", account.trim_start_matches("0x"))
}

/// One transaction of some kind, with one wallet.
async fn transact(anvil: &Anvil, dice: &mut Dice, wallet: &str, other: &str) {
    let amount = 1 + dice.roll(1_000);
    match dice.roll(10) {
        0..=2 => send(anvil, PAYER, wallet, amount, "0x").await,
        kind @ (3..=5) => {
            let data = format!("0x{}{amount:064x}", word(wallet));
            send(anvil, PAYER, TOKENS[kind - 3], 0, &data).await;
        }
        // Somebody else's token, and nothing at all.
        6 => {
            let data = format!("0x{}{amount:064x}", word(wallet));
            send(anvil, PAYER, FAKE, 0, &data).await;
        }
        7 => {
            send(anvil, PAYER, wallet, 0, "0x").await;
            let data = format!("0x{}{:064x}", word(wallet), 0);
            send(anvil, PAYER, TOKENS[0], 0, &data).await;
        }
        // From the wallet to itself, and to another one.
        _ => {
            send(anvil, wallet, wallet, amount, "0x").await;
            send(anvil, wallet, other, amount, "0x").await;
        }
    }
}

/// What anvil answers once it has it.
async fn once_there(ask: impl AsyncFn() -> Value) -> Value {
    eventually("anvil has it", async || {
        Some(ask().await).filter(|answer| !answer.is_null())
    })
    .await
}

/// What the chain has, by its own word.
async fn on_chain(anvil: &Anvil, wallets: &BTreeSet<String>) -> BTreeMap<Of, Told> {
    let mut found = BTreeMap::new();
    let mut add = |of: (&str, String), from: &str, to: &str, token: Option<&str>, amount: u128| {
        if amount == 0 || from == to {
            return;
        }
        for (account, is_send) in [(from, true), (to, false)] {
            if wallets.contains(account) {
                let told = Told {
                    account: account.to_owned(),
                    token: token.map(str::to_owned),
                    amount: amount.to_string(),
                };
                found.insert((of.0.to_owned(), of.1.clone(), is_send), told);
            }
        }
    };
    let newest = hex_number(&anvil.call("eth_blockNumber", json!([])).await);
    for number in 0..=newest {
        // anvil says a moment before it has them that there are so many blocks.
        let asked = json!([format!("{number:#x}"), true]);
        let block = once_there(async || anvil.call("eth_getBlockByNumber", asked.clone()).await);
        let block = block.await;
        for transaction in block["transactions"].as_array().unwrap() {
            let hash = transaction["hash"].as_str().unwrap();
            let receipt = once_there(async || anvil.receipt(hash).await).await;
            if receipt["status"] != "0x1" {
                continue;
            }
            let text = |field: &str| {
                transaction[field]
                    .as_str()
                    .unwrap_or_default()
                    .to_lowercase()
            };
            let (from, to, value) = (text("from"), text("to"), hex_number(&transaction["value"]));
            add((hash, "value".into()), &from, &to, None, value);
            for (index, log) in receipt["logs"].as_array().unwrap().iter().enumerate() {
                let token = log["address"].as_str().unwrap().to_lowercase();
                if log["topics"][0] == TRANSFER && TOKENS.contains(&token.as_str()) {
                    let side = |topic: usize| {
                        let word = log["topics"][topic].as_str().unwrap();
                        format!("0x{}", &word[word.len() - 40..])
                    };
                    let amount = hex_number(&log["data"]);
                    let of = (hash, format!("log-{index}"));
                    add(of, &side(1), &side(2), Some(&token), amount);
                }
            }
        }
    }
    found
}

/// What the receiver was told: of each transfer what it is, and which stages in their order.
fn told(webhooks: &Webhooks) -> BTreeMap<Of, (Told, Vec<String>)> {
    let mut bodies: BTreeMap<String, String> = BTreeMap::new();
    let mut found: BTreeMap<Of, (Told, Vec<String>)> = BTreeMap::new();
    for webhook in webhooks.lock().unwrap().iter() {
        let body = webhook["body"].as_str().unwrap();
        let event: Value = serde_json::from_str(body).unwrap();
        let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
        // What comes twice is the same.
        if let Some(before) = bodies.insert(text("id"), body.to_owned()) {
            assert_eq!(before, body);
            continue;
        }
        let of = (text("tx_hash"), text("index"), event["is_send"] == true);
        let one = Told {
            account: text("address").to_lowercase(),
            token: event["token_address"].as_str().map(str::to_lowercase),
            amount: text("amount"),
        };
        let (known, stages) = found.entry(of).or_insert_with(|| (one.clone(), Vec::new()));
        assert_eq!(*known, one, "{event}");
        let stage = text("event");
        let stage = stage.split('.').nth(1).unwrap();
        stages.push(stage.to_owned());
    }
    found
}

/// Whether these stages may come in this order, and lead to a transfer that is there for good, or that is not.
fn is_right(stages: &[String], is_there: bool) -> bool {
    let (rounds, rest) = stages.as_chunks::<2>();
    let before = match rounds.split_last() {
        Some((last, before)) if is_there && *last == ["confirmed", "finalized"] => before,
        _ if is_there => return false,
        _ => rounds,
    };
    let is_taken_back = |round: &[String; 2]| *round == ["confirmed", "reverted"];
    rest.is_empty() && before.iter().all(is_taken_back)
}

async fn deposits_are_told_as_they_are(
    mut plant: Plant,
    anvil: &Anvil,
    hook: &str,
    webhooks: &Webhooks,
) {
    let (extent, mut dice) = (Extent::chosen(), Dice::chosen());
    plant.cluster().create_vault("treasury");
    plant.cluster().until_live(&[0, 1, 2]).await;
    let make = "token create --name shop --kind sweep --vault treasury --access full";
    let words = |text: &'static str| text.split(' ').collect::<Vec<_>>();
    let made = operator(plant.cluster(), &words(make));
    let token = made.split_whitespace().last().unwrap().to_owned();
    let mut configure: Vec<&str> =
        words("sweep configure --token shop --network EVM --vault treasury --target");
    configure.extend([TARGET, "--webhook", hook]);
    operator(plant.cluster(), &configure);
    for contract in TOKENS {
        let mut add = words("sweep asset add --token shop --chain 31337 --minimum 1 --contract");
        add.push(contract);
        operator(plant.cluster(), &add);
    }
    let api = ApiClient::new(&plant.cluster().api.base, &token);
    let mut wallets = Vec::new();
    for number in 0..extent.wallets {
        let wallet = eventually("the vault has its keys", async || {
            let body = json!({"network": "EVM", "ref": format!("order-{number}")});
            let (status, answer) = api.post("sweep/wallets", body).await;
            (status == 200).then_some(answer)
        })
        .await;
        let address = wallet["address"].as_str().unwrap().to_lowercase();
        anvil
            .call("anvil_impersonateAccount", json!([address]))
            .await;
        // So that it can send: a deposit as any other.
        send(anvil, PAYER, &address, 1_000_000_000_000_000_000, "0x").await;
        wallets.push(address);
    }
    // What they are paid first stays.
    anvil.call("anvil_mine", json!(["0x4"])).await;
    let every = (extent.transfers / (extent.kills + 1)).max(1);
    for number in 1..=extent.transfers {
        let wallet = &wallets[dice.roll(wallets.len())];
        let other = &wallets[dice.roll(wallets.len())];
        transact(anvil, &mut dice, wallet, other).await;
        if dice.roll(12) == 0 {
            let depth = 1 + dice.roll(3);
            anvil.call("anvil_reorg", json!([depth, []])).await;
            anvil.call("anvil_dropAllTransactions", json!([])).await;
            anvil.call("anvil_mine", json!(["0x1"])).await;
        }
        if number % every == 0 && number / every <= extent.kills {
            plant.kill(&mut dice).await;
        }
    }
    anvil.call("anvil_mine", json!(["0x90"])).await;
    let canonical = on_chain(anvil, &wallets.iter().cloned().collect()).await;
    assert!(
        canonical.len() > extent.transfers / 3,
        "{}",
        canonical.len()
    );
    eventually("all that is on the chain is told as final", async || {
        let told = told(webhooks);
        let is_final = |of: &Of| {
            let stages = told.get(of).map(|(_, stages)| stages);
            stages.is_some_and(|stages| stages.last().is_some_and(|last| last == "finalized"))
        };
        canonical.keys().all(is_final).then_some(())
    })
    .await;
    for (of, (is, stages)) in told(webhooks) {
        let expected = canonical.get(&of);
        assert!(is_right(&stages, expected.is_some()), "{of:?}: {stages:?}");
        assert!(
            expected.is_none_or(|expected| *expected == is),
            "{of:?}: {is:?}"
        );
    }
}

async fn chain(folder: &Path) -> Anvil {
    let anvil = Anvil::start(folder, 31337).await;
    anvil.call("anvil_mine", json!(["0x50"])).await;
    let token = format!(
        "0x60003560e01c6370a08231146054576020356000355401600035556041361460525760203560005260003533\
         7f{}60206000a35b005b6004355460005260206000f3",
        TRANSFER.trim_start_matches("0x")
    );
    // It tells of all but one unit, and of that one, which goes elsewhere.
    let log = format!("337f{}60206000a3", TRANSFER.trim_start_matches("0x"));
    let with_fee = format!("0x600160203503600052600035{log}60016000526077{log}00");
    let [plain @ .., keeps_some] = TOKENS;
    for address in plain.into_iter().chain([FAKE]) {
        anvil.call("anvil_setCode", json!([address, token])).await;
    }
    anvil
        .call("anvil_setCode", json!([keeps_some, with_fee]))
        .await;
    anvil
}

fn tables(anvil: &Anvil) -> String {
    format!(
        "[chains.evm.31337]\nrpc = [{:?}]\nconfirmations = 2\ndeposit_poll_ms = 100\n[webhooks]\nallow = [\"127.0.0.1/32\"]\n",
        anvil.url
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deposits__should_be_told_as_the_chain_has_them_whatever_is_killed_on_redb() {
    let folder = tempfile::tempdir().unwrap();
    let anvil = chain(folder.path()).await;
    let (webhooks, hook) = receiver().await;
    let prepare = |folder: &Path| {
        let path = folder.join("serve.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{}\n{text}", tables(&anvil))).unwrap();
    };
    let cluster = TestCluster::start_prepared(60_000, "", prepare).await;
    deposits_are_told_as_they_are(Plant::One(cluster), &anvil, &hook, &webhooks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deposits__should_be_told_as_the_chain_has_them_whichever_of_two_orchestrators_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let anvil = chain(folder.path()).await;
    let (webhooks, hook) = receiver().await;
    let fleet = Fleet::start(&["all", "all"], &tables(&anvil), None).await;
    deposits_are_told_as_they_are(Plant::Two(fleet), &anvil, &hook, &webhooks).await;
}
