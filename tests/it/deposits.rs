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
    http::{HeaderMap, StatusCode},
};
use serde_json::{Value, json};

use super::support::*;

const PAYER: &str = "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266";
const TARGET: &str = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";
const TOKEN: &str = "0x00000000000000000000000000000000000d0111";
/// Runtime code: whoever calls it with recipient and amount makes it say that so much was transferred.
const CODE: &str = "0x602035600052600035337fddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef60206000a300";

/// Webhooks as they came, in the form that the verifiers take.
type Webhooks = Arc<Mutex<Vec<Value>>>;

/// A receiver that says 200, and its address.
async fn receiver() -> (Webhooks, String) {
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
fn events(webhooks: &Webhooks) -> Vec<Value> {
    let mut events: Vec<Value> = Vec::new();
    for webhook in webhooks.lock().unwrap().iter() {
        let event: Value = serde_json::from_str(webhook["body"].as_str().unwrap()).unwrap();
        if events.iter().all(|other| other["id"] != event["id"]) {
            events.push(event);
        }
    }
    events
}

/// What the verifiers of docs/ print about a webhook.
fn verified(webhook: &Value) -> [String; 2] {
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = project.join("tests/python/venv/bin/python");
    [
        (Path::new("node"), "docs/verify-webhook.mjs"),
        (&python, "docs/verify_webhook.py"),
    ]
    .map(|(program, file)| {
        let mut child = Command::new(program)
            .arg(project.join(file))
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

/// An operator's command against the orchestrator of a cluster, which must succeed; what it prints.
fn operator(cluster: &TestCluster, arguments: &[&str]) -> String {
    let mut command = covault();
    command.args(arguments).arg("--config");
    let config = cluster.folder.path().join("serve.toml");
    let (done, out, err) = outcome_of(command.arg(config));
    assert!(done, "{arguments:?}: {out}\n{err}");
    out
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
    let mut cluster = TestCluster::start_prepared(60_000, "", prepare).await;
    cluster.create_vault("treasury");
    cluster.until_live(&[0, 1, 2]).await;
    let made = operator(
        &cluster,
        &[
            "token", "create", "--name", "shop", "--kind", "sweep", "--vault", "treasury",
            "--access", "full",
        ],
    );
    let token = made.split_whitespace().last().unwrap().to_owned();
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
    let api = ApiClient::new(&cluster.api.base, &token);
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
    let mut webhook = webhooks.lock().unwrap()[0].clone();
    let event: Value = serde_json::from_str(webhook["body"].as_str().unwrap()).unwrap();
    let id = event["id"].as_str().unwrap().to_owned();
    webhook["secret"] = json!(secret);
    webhook["keys"] = keys;
    assert_eq!(verified(&webhook), [id.clone(), id]);
    let mut others = vec![webhook.clone(); 5];
    others[0]["body"] = json!(format!("{} ", webhook["body"].as_str().unwrap()));
    others[1]["secret"] = json!("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=");
    others[2]["keys"]["keys"][0]["x"] = json!("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo");
    others[3]["headers"]["webhook-timestamp"] = json!("1700000000");
    others[4]["headers"]["webhook-id"] = json!("evt_00");
    for other in others {
        for said in verified(&other) {
            assert!(said.starts_with("refused: "), "{said}: {other}");
        }
    }
    let listed = operator(&cluster, &["webhook", "list", "--token", "shop"]);
    assert_eq!(listed.matches("  delivered  ").count(), 4, "{listed}");
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
