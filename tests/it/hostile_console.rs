//! A console whose server lies: a proxy in front of the real one shows a payment of 1 and has one of 1,000 approved.

use std::{fs, path::Path, sync::Arc};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{Method, StatusCode, header, request::Parts},
    response::Response,
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::Mutex};

use super::{
    console::{add_to_policy, create},
    support::*,
};

const TO: &str = "0x00000000000000000000000000000000c0ffEE19";
const ETHER: u128 = 1_000_000_000_000_000_000;

/// The page that is shown, and the request that it is said to be of and that is asked for.
#[derive(Clone)]
struct Lie {
    shown: String,
    asked: String,
}

/// What stands between browsers and the console.
struct HostileProxy {
    console: String,
    http: reqwest::Client,
    lie: Mutex<Option<Lie>>,
}

impl HostileProxy {
    /// Listens on `port` before the console at this port, and tells the truth as long as it has no lie.
    async fn start(port: u16, console: u16) -> Arc<Self> {
        let proxy = Arc::new(Self {
            console: format!("http://127.0.0.1:{console}"),
            http: http_client(),
            lie: Mutex::default(),
        });
        let app = Router::new().fallback(pass).with_state(Arc::clone(&proxy));
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        proxy
    }

    async fn ask(&self, of: &Parts, path: &str, body: Vec<u8>) -> reqwest::Response {
        let url = format!("{}{path}", self.console);
        let mut headers = of.headers.clone();
        headers.remove(header::HOST);
        headers.remove(header::CONTENT_LENGTH);
        let passed_on = self.http.request(of.method.clone(), url);
        passed_on.headers(headers).body(body).send().await.unwrap()
    }
}

async fn pass(State(proxy): State<Arc<HostileProxy>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().unwrap().to_string();
    // A stream would never end.
    if path.starts_with("/events") {
        let response = Response::builder().status(StatusCode::NOT_FOUND);
        return response.body(Body::empty()).unwrap();
    }
    let body = to_bytes(body, 1 << 20).await.unwrap().to_vec();
    let lie = proxy.lie.lock().await.clone();
    let is_of =
        |lie: &Lie| parts.method == Method::GET && path == format!("/requests/{}", lie.asked);
    let lie = lie.filter(is_of);
    let from = lie.as_ref().map(|lie| format!("/requests/{}", lie.shown));
    let from = from.unwrap_or_else(|| path.clone());
    let answer = proxy.ask(&parts, &from, body).await;
    let mut response = Response::builder().status(answer.status());
    for (name, value) in answer.headers() {
        if *name != header::CONTENT_LENGTH && *name != header::TRANSFER_ENCODING {
            response = response.header(name, value);
        }
    }
    let mut bytes = answer.bytes().await.unwrap().to_vec();
    if let Some(lie) = lie {
        let real = proxy.ask(&parts, &path, Vec::new()).await;
        let real = real.text().await.unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let shown = |text: &str| {
            let (_, rest) = text.split_once("data-shown=\"").unwrap();
            rest.split('"').next().unwrap().to_owned()
        };
        let text = text.replace(&shown(&text), &shown(&real));
        bytes = text.replace(&lie.shown, &lie.asked).into_bytes();
    }
    response.body(Body::from(bytes)).unwrap()
}

/// The words of the payload within what a page shows; those of the command line are on a line of their own.
fn has_words(text: &str, words: &str) -> bool {
    let spaced = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    spaced(text).contains(words)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_console__should_get_an_approval_and_no_signature_where_nodes_show_what_is_signed()
{
    let [port, console_port, node_port] = [free_port(), free_port(), free_port()];
    let origin = format!("http://localhost:{port}");
    let node_origin = format!("http://localhost:{node_port}");
    let page =
        format!("approve_listen = \"127.0.0.1:{node_port}\"\napprove_origin = \"{node_origin}\"\n");
    let console =
        format!("\n[console]\nlisten = \"127.0.0.1:{console_port}\"\norigin = \"{origin}\"\n");
    let policy = format!("node_origins = [\"{node_origin}\"]\n");
    let cluster = TestCluster::start_prepared(60_000, &policy, |folder: &Path| {
        configure(&folder.join("signer-1.toml"), "signer", &page, "");
        let file = folder.join("serve.toml");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text + &console).unwrap();
    })
    .await;
    let proxy = HostileProxy::start(port, console_port).await;
    let folder = cluster.folder.path();
    let policy = folder.join("policy.toml");

    // One person, with a passkey for the console and one for the page of the node.
    let (link, node_link) = tokio::task::block_in_place(|| {
        let mut command = covault();
        command.args(["node", "approver-link", "treasurer@node-1", "--config"]);
        let (done, out, err) = outcome_of(command.arg(folder.join("signer-1.toml")));
        assert!(done, "{out}{err}");
        (
            create(&cluster, "treasurer", "approver"),
            out.trim().to_owned(),
        )
    });
    let (mut browser, mut at_node) = (
        Browsers::start(&origin, "hostile-console"),
        Browsers::start(&node_origin, "hostile-console-node"),
    );
    let enrolled = [
        browser.ask("enrol", "treasurer", json!({"link": link})),
        at_node.ask("enrol", "treasurer", json!({"link": node_link})),
    ];
    let lines = enrolled.map(|enrolled| add_to_policy(&policy, &enrolled));
    let rule = "\n[[approval]]\nneeds = 1\nof = [\"treasurer\"]\nway = [\"node\"]\n";
    fs::write(&policy, fs::read_to_string(&policy).unwrap() + rule).unwrap();
    for signer in &cluster.signers {
        signer.signal("HUP");
    }
    let people = lines.map(|line| format!("treasurer={line}"));
    let words = ["--approver", &people[0], "--approver", &people[1]];
    let vault = tokio::task::block_in_place(|| cluster.create_vault_with("treasury", &words));
    let api = &cluster.api;
    let from = api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    let payment = |coins: u128, nonce: u64| {
        // Of a chain without nodes: nothing but signers stands in its way.
        json!({"evmSendNative": {"chainId": "987654321", "from": from, "to": TO, "nonce": nonce.to_string(),
            "value": (coins * ETHER).to_string(), "gasFee": {"maxFee": "100", "maxPriorityFee": "1", "gasLimit": "21000"}}})
    };
    let one = api.create(payment(1, 0)).await;
    let thousand = api.create(payment(1_000, 1)).await;
    *proxy.lie.lock().await = Some(Lie {
        shown: one.clone(),
        asked: thousand.clone(),
    });

    // The page of the larger payment shows the smaller one, with its words, and the person believes it.
    browser.ask("signIn", "treasurer", json!({}));
    let path = json!({"path": format!("/requests/{thousand}")});
    let lied = browser.ask("open", "treasurer", path.clone());
    let lied = lied["text"].as_str().unwrap();
    assert!(
        lied.contains("1 coins of this chain") && !lied.contains("1000 coins"),
        "{lied}"
    );
    let fee = json!({"uuids": [thousand], "fee": "0.00001"});
    let approved = browser.ask("approve", "treasurer", fee.clone());
    assert_eq!(approved["said"], "1 of 1 done", "{approved}");
    assert_eq!(api.details(&one).await["approvals"], json!([]));
    let given = api.details(&thousand).await["approvals"][0]["person"].clone();
    assert_eq!(given, "treasurer");

    // Signers take the word of their own pages alone.
    eventually("the signers ask for more", async || {
        let wanted = api.details(&thousand).await["approvalWanted"].to_string();
        let is_it = wanted.contains("wants 1 of treasurer by way of node");
        is_it.then_some(())
    })
    .await;
    // The command line and the node show the real one, under other words.
    let token = folder.join("token");
    write_secret(&token, &api.token);
    let shown = |uuid: &str| {
        let mut command = covault();
        command.args(["approve", uuid, "--key", "none", "--most-fee", "1"]);
        command
            .args(["--url", &api.base, "--token-file"])
            .arg(&token);
        let (done, _, err) = tokio::task::block_in_place(|| outcome_of(&mut command));
        assert!(!done, "{err}");
        let words = err
            .lines()
            .find_map(|line| line.trim().strip_prefix("words "));
        let words = words.unwrap_or_else(|| panic!("{err}")).trim().to_owned();
        (err, words)
    };
    let ((small, small_words), (large, large_words)) = (shown(&one), shown(&thousand));
    let value = (1_000 * ETHER).to_string();
    assert!(large.contains(&value) && !small.contains(&value), "{large}");
    assert_ne!(small_words, large_words);
    assert!(
        has_words(lied, &small_words) && !has_words(lied, &large_words),
        "{lied}"
    );
    at_node.ask("signIn", "treasurer", json!({}));
    let told = at_node.ask("open", "treasurer", path);
    let told = told["text"].as_str().unwrap();
    assert!(told.contains(&value), "{told}");
    assert!(
        has_words(told, &large_words) && !has_words(told, &small_words),
        "{told}"
    );

    // No signature has come of it.
    let shown = api.details(&thousand).await;
    assert_eq!(
        (
            &shown["status"],
            &shown["signatures"],
            &shown["signedTransaction"]
        ),
        (&json!("STATUS_PENDING"), &json!([]), &json!("")),
        "{shown}"
    );
    // What the person sees and approves there is signed.
    let approved = at_node.ask(
        "approve",
        "treasurer",
        json!({"uuids": [one], "fee": "0.00001"}),
    );
    assert_eq!(approved["said"], "1 of 1 done", "{approved}");
    let outcome = api.execute(&one).await;
    assert_eq!(outcome["error"], Value::Null, "{outcome}");
    assert_eq!(api.details(&thousand).await["status"], "STATUS_PENDING");
}
