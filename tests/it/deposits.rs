//! Deposits from the outside: `covault serve`, signers, a real EVM node, and a receiver of webhooks that checks them by
//! the programs that docs/ gives to receivers.

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, HeaderName, StatusCode},
};
use serde_json::{Value, json};
use standardwebhooks::Webhook;

use super::support::*;

const PAYER: &str = "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266";
const TARGET: &str = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";
const TOKEN: &str = "0x00000000000000000000000000000000000d0111";
/// Runtime code of a token that keeps balances: `balanceOf` and `transfer`, and whoever calls it with recipient and amount
/// alone makes new ones.
const CODE: &str = "0x60003560e01c806370a0823114610077578063a9059cbb1461005e576020356000355b80548201815581600052337fddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef60206000a3600160005260206000f35b6024353354818110610084578190033355600435610022565b6004355460005260206000f35b60006000fd";

/// Webhooks as they came, in the form that the verifiers take.
pub type Webhooks = Arc<Mutex<Vec<Value>>>;

/// A receiver that says 200, and its address.
pub async fn receiver() -> (Webhooks, String) {
    let webhooks = Webhooks::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook?key=1", listener.local_addr().unwrap());
    let router = Router::new()
        .fallback(take)
        .with_state(Arc::clone(&webhooks));
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (webhooks, url)
}

async fn take(State(webhooks): State<Webhooks>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let headers: serde_json::Map<String, Value> = headers
        .iter()
        .map(|(name, value)| (name.to_string(), json!(value.to_str().unwrap())))
        .collect();
    let body = String::from_utf8(body.to_vec()).unwrap();
    webhooks
        .lock()
        .unwrap()
        .push(json!({"headers": headers, "body": body}));
    StatusCode::OK
}

/// The events that came, once each, in their order.
pub fn events(webhooks: &Webhooks) -> Vec<Value> {
    let mut events: Vec<Value> = Vec::new();
    for webhook in webhooks.lock().unwrap().iter() {
        let event: Value = serde_json::from_str(webhook["body"].as_str().unwrap()).unwrap();
        if events.iter().all(|other| other["id"] != event["id"]) {
            events.push(event);
        }
    }
    events
}

/// What each of these programs prints about a webhook.
fn said<const N: usize>(programs: [&[&str]; N], webhook: &Value) -> [String; N] {
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    programs.map(|words| {
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .current_dir(project)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let text = webhook.to_string();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    })
}

const PYTHON: &str = "tests/python/venv/bin/python";

/// The verifier in Go, built in a folder: that takes a while.
fn go_verifier(folder: &Path) -> String {
    let program = folder.join("verify").display().to_string();
    let built = Command::new("go")
        .args(["build", "-o", &program, "docs/verify_webhook.go"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("GOCACHE", folder.join("go-cache"))
        .env("GOFLAGS", "")
        .env("GO111MODULE", "off")
        .output()
        .unwrap_or_else(|why| panic!("go: bash tests/run installs it: {why}"));
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{said}");
    program
}

/// What the verifiers of docs/ print about a webhook.
fn verified(webhook: &Value, go: &str) -> [String; 3] {
    let programs: [&[&str]; 3] = [
        &["node", "docs/verify-webhook.mjs"],
        &[PYTHON, "docs/verify_webhook.py"],
        &[go],
    ];
    said(programs, webhook)
}

/// What the libraries of Standard Webhooks of three languages, and those for Ed25519, make of a webhook.
fn verified_by_libraries(webhook: &Value) -> [String; 3] {
    let programs: [&[&str]; 2] = [
        &["node", "tests/node/standard-webhooks.mjs"],
        &[PYTHON, "tests/python/standard_webhooks.py"],
    ];
    let [node, python] = said(programs, webhook);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let headers: HeaderMap = webhook["headers"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, value)| {
            (
                name.parse::<HeaderName>().unwrap(),
                text(value).parse().unwrap(),
            )
        })
        .collect();
    let body = text(&webhook["body"]);
    let rust = Webhook::new(&text(&webhook["secret"])).unwrap();
    let rust = match rust.verify(body.as_bytes(), &headers) {
        Ok(()) => {
            let event: Value = serde_json::from_str(&body).unwrap();
            text(&event["id"])
        }
        Err(error) => format!("refused: {error}"),
    };
    [node, python, rust]
}

/// An operator's command against the orchestrator of a cluster, which must succeed; what it prints.
pub fn operator(cluster: &TestCluster, arguments: &[&str]) -> String {
    let mut command = covault();
    command.args(arguments).arg("--config");
    let config = cluster.folder.path().join("serve.toml");
    let (done, out, err) = outcome_of(command.arg(config));
    assert!(done, "{arguments:?}: {out}\n{err}");
    out
}

/// Has the cluster sweep the wallet that tokens were paid to, and in the long form more wallets, one after the other, while
/// its orchestrator is killed whenever a sweep has come a step further.
async fn sweep(cluster: &mut TestCluster, anvil: &Anvil, vault: &str, first: &str, token: &str) {
    let rounds = std::env::var("COVAULT_SWEEP_ROUNDS").ok();
    let is_long = rounds.is_some();
    let rounds = rounds.map_or(1, |rounds| rounds.parse::<u64>().unwrap());
    let gas_wallet = cluster.api.wallet(vault, "NETWORK_TYPE_EVM").await;
    let funds = json!([gas_wallet, "0xde0b6b3a7640000"]);
    anvil.call("anvil_setBalance", funds).await;
    let rules = [
        "sweep",
        "rules",
        "--token",
        "shop",
        "--chain",
        "31337",
        "--enabled",
        "true",
        "--gas-wallet",
        &gas_wallet,
        "--max-gas-price",
        "1000000000000000",
        "--max-top-up",
        "10000000000000000",
    ];
    operator(cluster, &rules);
    let number = async |method: &str, params: Value| {
        let said = anvil.call(method, params).await;
        let digits = said.as_str().unwrap().trim_start_matches("0x").to_owned();
        u64::from_str_radix(digits.trim_start_matches('0'), 16).unwrap_or_default()
    };
    let tokens_of = async |address: &str| {
        let data = format!("0x70a08231{:0>64}", &address[2..]);
        number("eth_call", json!([{"to": TOKEN, "data": data}, "latest"])).await
    };
    let sent =
        async |address: &str| number("eth_getTransactionCount", json!([address, "latest"])).await;
    for round in 1..=rounds {
        let address = match round {
            1 => first.to_owned(),
            _ => {
                let api = ApiClient::new(&cluster.api.base, token);
                let body = json!({"network": "EVM", "ref": format!("sweep-{round}")});
                let (status, answer) = api.post("sweep/wallets", body).await;
                assert_eq!(status, 200, "{answer}");
                let address = answer["address"].as_str().unwrap().to_owned();
                let data = format!("0x{:0>64}{:064x}", &address[2..], 7);
                let paid = json!({"from": PAYER, "to": TOKEN, "data": data, "gas": "0x186a0"});
                send(anvil, paid).await;
                address
            }
        };
        let mut before = String::new();
        for turn in 0.. {
            // Also those that make blocks final.
            anvil.call("anvil_mine", json!(["0x28"])).await;
            let status = operator(cluster, &["sweep", "status", "--token", "shop", "--json"]);
            let status: Value = serde_json::from_str(&status).unwrap();
            let sweep = &status["chains"][0]["sweeps"][0];
            let state = sweep["state"].as_str().unwrap_or_default().to_owned();
            assert!(turn < 2_400, "waited in vain: {status}");
            if state.is_empty() && tokens_of(TARGET).await == 7 * round {
                break;
            }
            if state != before && is_long {
                cluster.serve.kill();
                cluster.start_serve();
                cluster.ready().await;
            }
            before = state;
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        assert_eq!(tokens_of(&address).await, 0);
        assert_eq!((sent(&address).await, sent(&gas_wallet).await), (1, round));
    }
}

async fn send(anvil: &Anvil, transaction: Value) -> String {
    let hash = anvil
        .call("eth_sendTransaction", json!([transaction]))
        .await;
    hash.as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deposits__should_reach_their_receiver_signed_also_over_a_crash() {
    let chain_folder = tempfile::tempdir().unwrap();
    let go = go_verifier(chain_folder.path());
    let anvil = Anvil::start(chain_folder.path(), 31337).await;
    anvil.call("anvil_mine", json!(["0x50"])).await;
    anvil.call("anvil_setCode", json!([TOKEN, CODE])).await;
    let (webhooks, hook) = receiver().await;
    let url = anvil.url.clone();
    let prepare = |folder: &Path| {
        let tables = format!(
            "[chains.evm.31337]\nrpc = [{url:?}]\nconfirmations = 3\ndeposit_poll_ms = 100\n\
             [webhooks]\nallow = [\"127.0.0.1/32\"]\n"
        );
        let path = folder.join("serve.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{tables}\n{text}")).unwrap();
    };
    // Signers let money go to the target and to wallets of the vault alone.
    let policy = format!("own_wallets = true\nrecipients.evm = [\"{TARGET}\"]\n");
    let mut cluster = TestCluster::start_prepared(60_000, &policy, prepare).await;
    let vault = cluster.create_vault("treasury");
    cluster.until_live(&[0, 1, 2]).await;
    let made = operator(
        &cluster,
        &[
            "token", "create", "--name", "shop", "--kind", "sweep", "--vault", "treasury",
            "--access", "full",
        ],
    );
    let shop = made.split_whitespace().last().unwrap().to_owned();
    let configure = [
        "sweep",
        "configure",
        "--token",
        "shop",
        "--network",
        "EVM",
        "--vault",
        "treasury",
        "--target",
        TARGET,
        "--webhook",
        &hook,
    ];
    let configured = operator(&cluster, &configure);
    let secret = configured.lines().last().unwrap().to_owned();
    assert!(secret.starts_with("whsec_"), "{configured}");
    assert!(
        !operator(&cluster, &configure).contains("whsec_"),
        "shown once"
    );
    operator(
        &cluster,
        &[
            "sweep",
            "asset",
            "add",
            "--token",
            "shop",
            "--chain",
            "31337",
            "--contract",
            TOKEN,
            "--minimum",
            "1",
        ],
    );
    let api = ApiClient::new(&cluster.api.base, &shop);
    let wallet = eventually("the vault has its keys", async || {
        let body = json!({"network": "EVM", "ref": "order-7"});
        let (status, answer) = api.post("sweep/wallets", body).await;
        (status == 200).then_some(answer)
    })
    .await;
    let address = wallet["address"].as_str().unwrap().to_owned();

    let coin = send(
        &anvil,
        json!({"from": PAYER, "to": address, "value": "0x5"}),
    )
    .await;
    let data = format!("0x{:0>64}{:064x}", &address[2..], 7);
    let token = send(
        &anvil,
        json!({"from": PAYER, "to": TOKEN, "data": data, "gas": "0x186a0"}),
    )
    .await;
    anvil.call("anvil_mine", json!(["0x4"])).await;
    eventually("both are confirmed", async || {
        (events(&webhooks).len() >= 2).then_some(())
    })
    .await;
    // What was confirmed becomes final while nobody looks.
    cluster.serve.kill();
    anvil.call("anvil_mine", json!(["0x80"])).await;
    cluster.start_serve();
    cluster.ready().await;
    eventually("both are final", async || {
        (events(&webhooks).len() >= 4).then_some(())
    })
    .await;
    let told: Vec<_> = events(&webhooks)
        .iter()
        .map(|event| {
            assert_eq!(event["address"], json!(address));
            assert_eq!(event["ref"], "order-7");
            let text = |field: &str| event[field].as_str().unwrap().to_owned();
            (text("tx_hash"), text("event"), text("amount"))
        })
        .collect();
    for (hash, amount) in [(&coin, "5"), (&token, "7")] {
        let of: Vec<_> = told.iter().filter(|(of, ..)| of == hash).collect();
        let stages: Vec<_> = of.iter().map(|(_, stage, _)| stage.as_str()).collect();
        assert_eq!(stages, ["transfer.confirmed.v1", "transfer.finalized.v1"]);
        assert!(of.iter().all(|(_, _, is)| is == amount), "{of:?}");
    }

    // Checked by what docs/ gives to receivers.
    let keys = http_client()
        .get(format!("{}/v1/webhooks/keys", cluster.api.base))
        .send()
        .await
        .unwrap();
    assert_eq!(keys.status(), 200);
    let keys: Value = keys.json().await.unwrap();
    // One that was sent just now: five minutes are not long on a busy machine.
    let before = webhooks.lock().unwrap().len();
    let test = ["webhook", "test", "--token", "shop", "--network", "EVM"];
    operator(&cluster, &test);
    let mut webhook = webhooks.lock().unwrap()[before].clone();
    let event: Value = serde_json::from_str(webhook["body"].as_str().unwrap()).unwrap();
    let id = event["id"].as_str().unwrap().to_owned();
    webhook["secret"] = json!(secret);
    webhook["keys"] = keys;
    let all = [id.clone(), id.clone(), id];
    assert_eq!(verified(&webhook, &go), all);
    assert_eq!(verified_by_libraries(&webhook), all);
    let mut others = vec![webhook.clone(); 5];
    others[0]["body"] = json!(format!("{} ", webhook["body"].as_str().unwrap()));
    others[1]["secret"] = json!("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=");
    others[2]["keys"]["keys"][0]["x"] = json!("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo");
    others[3]["headers"]["webhook-timestamp"] = json!("1700000000");
    others[4]["headers"]["webhook-id"] = json!("evt_00");
    for other in &others {
        for said in verified(other, &go) {
            assert!(said.starts_with("refused: "), "{said}: {other}");
        }
    }
    // Of a setting that was left empty: anybody can sign with it.
    let mut unset = webhook.clone();
    (unset["secret"], unset["keys"]) = (json!("whsec_"), Value::Null);
    for said in verified(&unset, &go) {
        assert!(said.contains("the secret is too short"), "{said}");
    }
    // What `v1` covers.
    for other in [&others[0], &others[1], &others[3], &others[4]] {
        for said in verified_by_libraries(other) {
            assert!(said.starts_with("refused: "), "{said}: {other}");
        }
    }
    let [by_ed25519, ..] = verified_by_libraries(&others[2]);
    assert_eq!(by_ed25519, "refused: v1a is wrong");
    let listed = operator(&cluster, &["webhook", "list", "--token", "shop"]);
    assert_eq!(listed.matches("  delivered  ").count(), 4, "{listed}");

    let before = events(&webhooks).len();
    sweep(&mut cluster, &anvil, &vault, &address, &shop).await;
    // What the gas wallet has paid is no deposit: only tokens have moved.
    for event in &events(&webhooks)[before..] {
        assert!(!event["token_address"].is_null(), "{event}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks__should_not_be_configured_for_addresses_that_are_not_public() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(&folder.path().join("dev"), &[]).await;
    dev.token(&[
        "--name",
        "shop",
        "--kind",
        "sweep",
        "--access",
        "full",
        "--all-vaults",
    ]);
    for url in [
        "http://169.254.169.254/latest/meta-data",
        "http://2852039166/",
        "http://[::ffff:169.254.169.254]/",
        "http://10.0.0.1/hook",
    ] {
        let words = [
            "sweep",
            "configure",
            "--token",
            "shop",
            "--network",
            "EVM",
            "--webhook",
            url,
        ];
        let (done, out, err) = dev.ask(&words);
        assert!(!done && err.contains("webhook: "), "{url}: {out}\n{err}");
    }
}
