//! Sweeps on TRON from the outside: real processes and a double of TRON's nodes. The orchestrator is killed whenever
//! something has come a step further.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::Mutex,
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};

use super::{
    deposits::{events, operator, receiver},
    support::*,
    tron_bank::{ACTIVATION, Bank},
    tron_chain::{USDT, account},
};

const TREASURY: &str = "TJRabPrwbZy45sbavfcjinPJC18kjpRTv8";
const TRX: u64 = 1_000_000;
/// Looks after which nothing more comes without another block.
const QUIET_LOOKS: usize = 5;

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(now.unwrap().as_millis()).unwrap()
}

/// What an address has sent: TRX and USDT.
fn sent(bank: &Mutex<Bank>, from: &str) -> (usize, usize) {
    let bank = bank.lock().unwrap();
    let all = bank.taken.iter().filter(|sent| sent.from == account(from));
    let usdt = all.clone().filter(|sent| sent.is_usdt).count();
    (all.count() - usdt, usdt)
}

/// A token whose deposits are swept, with its secret, and its gas wallet, which has 100 TRX.
async fn configure(
    cluster: &TestCluster,
    vault: &str,
    bank: &Mutex<Bank>,
    hook: &str,
) -> (String, String) {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let run = |text: &str, more: &[&str]| {
        let mut words = words(text);
        words.extend(more.iter().map(|word| (*word).to_owned()));
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        operator(cluster, &words)
    };
    let made = run(
        "token create --name shop --kind sweep --vault treasury --access full",
        &[],
    );
    let token = made.split_whitespace().last().unwrap().to_owned();
    run(
        "sweep configure --token shop --network TRON --vault treasury",
        &["--target", TREASURY, "--webhook", hook],
    );
    let add = "sweep asset add --token shop --chain TRON --minimum";
    run(add, &["1000000"]);
    run(add, &["100", "--contract", USDT]);
    let gas_wallet = cluster.api.wallet(vault, "NETWORK_TYPE_TRON").await;
    bank.lock().unwrap().endow(&gas_wallet, 100 * TRX);
    run(
        "sweep rules --token shop --chain TRON --enabled true --max-gas-price 500 --max-top-up 50000000",
        &["--gas-wallet", &gas_wallet],
    );
    bank.lock().unwrap().endow(TREASURY, 0);
    (token, gas_wallet)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tron_sweeps__should_be_made_once_when_the_orchestrator_is_killed_at_each_step() {
    let (bank, url) = Bank::start(now_ms()).await;
    let (webhooks, hook) = receiver().await;
    let prepare = |folder: &Path| {
        let tables = format!(
            "[chains.tron]\nrpc = [{url:?}]\nconfirmations = 2\ndeposit_poll_ms = 100\n\
             [webhooks]\nallow = [\"127.0.0.1/32\"]\n"
        );
        let path = folder.join("serve.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{tables}\n{text}")).unwrap();
    };
    // Signers let money go to the target and to wallets of the vault alone.
    let policy = format!("own_wallets = true\nrecipients.tron = [\"{TREASURY}\"]\n");
    let mut cluster = TestCluster::start_prepared(60_000, &policy, prepare).await;
    let vault = cluster.create_vault("treasury");
    cluster.until_live(&[0, 1, 2]).await;
    let (token, gas_wallet) = configure(&cluster, &vault, &bank, &hook).await;
    let api = ApiClient::new(&cluster.api.base, &token);
    let mut wallets = Vec::new();
    for order in ["order-1", "order-2"] {
        let body = json!({"network": "TRON", "ref": order});
        let (status, answer) = api.post("sweep/wallets", body).await;
        assert_eq!(status, 200, "{answer}");
        wallets.push(answer["address"].as_str().unwrap().to_owned());
    }
    let [tokens, coin] = &wallets[..] else {
        panic!("{wallets:?}");
    };
    bank.lock().unwrap().pay(tokens, 300, true);
    bank.lock().unwrap().pay(coin, 50 * TRX, false);
    let burnt_by_payers = {
        let mut bank = bank.lock().unwrap();
        bank.mine(now_ms());
        bank.burnt
    };
    // What is in the row of each sweep, what a node has taken, and what was told. A block is made only where nothing comes
    // of the last one any more, so that no step is over before it was seen.
    let (mut before, mut looks, mut killed_in) = (Value::Null, 0, BTreeSet::new());
    let deadline = now_ms() + 480_000;
    loop {
        let status = operator(&cluster, &["sweep", "status", "--token", "shop", "--json"]);
        let status: Value = serde_json::from_str(&status).unwrap();
        let sweeps = status["chains"][0]["sweeps"].as_array().unwrap().clone();
        let taken = bank.lock().unwrap().taken.len();
        let told = events(&webhooks).len();
        let at = (bank.lock().unwrap().usdt(TREASURY), sweeps.is_empty());
        if at == (300, true) && bank.lock().unwrap().trx(TREASURY) == 50 * TRX {
            break;
        }
        assert!(now_ms() < deadline, "waited in vain: {status}");
        let states: Vec<_> = sweeps.iter().map(|sweep| &sweep["state"]).collect();
        let now = json!([states, taken, told]);
        looks += 1;
        if now != before {
            let states = states.iter().filter_map(|state| state.as_str());
            killed_in.extend(states.map(str::to_owned));
            killed_in.extend([format!("{taken} taken"), format!("{told} told")]);
            looks = 0;
            cluster.serve.kill();
            cluster.start_serve();
            cluster.ready().await;
        } else if looks >= QUIET_LOOKS {
            looks = 0;
            bank.lock().unwrap().mine(now_ms());
        }
        before = now;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // It is over: nothing follows.
    for _ in 0..10 {
        bank.lock().unwrap().mine(now_ms());
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    for state in ["4 told", "funding", "moving", "3 taken"] {
        assert!(killed_in.contains(state), "{state}: {killed_in:?}");
    }
    assert_eq!(sent(&bank, &gas_wallet), (1, 0));
    assert_eq!(sent(&bank, tokens), (0, 1));
    assert_eq!(sent(&bank, coin), (1, 0));
    let top_up = bank.lock().unwrap().taken.clone();
    let top_up = top_up.iter().find(|sent| sent.from == account(&gas_wallet));
    {
        // To the unit.
        let bank = bank.lock().unwrap();
        let left = bank.trx(&gas_wallet);
        assert_eq!(left, 100 * TRX - top_up.unwrap().amount - ACTIVATION);
        let there = left + bank.trx(tokens) + bank.trx(coin) + bank.trx(TREASURY);
        assert_eq!(there + bank.burnt - burnt_by_payers, 150 * TRX);
    }
    eventually("all is told", async || {
        (finals(&webhooks).len() == 4).then_some(())
    })
    .await;
    let expected = [
        (coin.clone(), false, 50 * TRX),
        (coin.clone(), true, 50 * TRX),
        (tokens.clone(), false, 300),
        (tokens.clone(), true, 300),
    ];
    let mut expected = expected.map(|(of, is_send, amount)| (of, is_send, amount.to_string()));
    expected.sort();
    assert_eq!(finals(&webhooks), expected);
}

/// What was told for good: address, whether it was sent, amount.
fn finals(webhooks: &super::deposits::Webhooks) -> Vec<(String, bool, String)> {
    let all = events(webhooks);
    let finals = all
        .iter()
        .filter(|event| event["event"] == "transfer.finalized.v1");
    let text = |event: &Value, field: &str| event[field].as_str().unwrap().to_owned();
    let finals = finals.map(|event| {
        let is_send = event["is_send"] == true;
        (text(event, "address"), is_send, text(event, "amount"))
    });
    let mut finals: Vec<_> = finals.collect();
    finals.sort();
    finals
}
