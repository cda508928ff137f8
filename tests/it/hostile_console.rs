//! A console whose server lies, in real browsers against the real programs: it shows a payment of 1 and has the passkey
//! sign one of 1,000.

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, Method, Response, StatusCode, header},
};
use serde_json::{Value, json};

use super::{
    console::{ETHER, FEE, TO, add_to_policy, create, payment},
    manual_approval::{new_key, person},
    support::*,
};

/// What the server does: on the page of this request it shows another one.
#[derive(Clone)]
struct Lie {
    real: String,
    shown: String,
}

/// A proxy in front of the console, which rewrites its answers.
struct HostileServer {
    /// The console behind it.
    console: String,
    http: reqwest::Client,
    lie: Mutex<Option<Lie>>,
}

/// Headers that are about one connection, or change with a body.
const OF_A_CONNECTION: [header::HeaderName; 5] = [
    header::HOST,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::ACCEPT_ENCODING,
];

fn passed_on(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    for name in OF_A_CONNECTION {
        headers.remove(name);
    }
    headers
}

impl HostileServer {
    async fn start(port: u16, console: String) -> Arc<Self> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none());
        let server = Arc::new(Self {
            console,
            http: http.build().unwrap(),
            lie: Mutex::default(),
        });
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await;
        let routes = Router::new()
            .fallback(answer)
            .with_state(Arc::clone(&server));
        tokio::spawn(axum::serve(listener.unwrap(), routes).into_future());
        server
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> (StatusCode, HeaderMap, Bytes) {
        let request = self.http.request(method, format!("{}{path}", self.console));
        let answer = request.headers(headers).body(body).send().await.unwrap();
        let (status, headers) = (answer.status(), passed_on(answer.headers()));
        (status, headers, answer.bytes().await.unwrap())
    }
}

/// What the console has written down of a request on its page: a gesture is refused when it is of anything else.
fn mark_of(page: &str) -> &str {
    let (_, mark) = page.split_once("data-shown=\"").unwrap();
    mark.split('"').next().unwrap()
}

async fn answer(State(server): State<Arc<HostileServer>>, request: Request) -> Response<Body> {
    let (head, body) = request.into_parts();
    let path = head.uri.path_and_query().unwrap().as_str();
    // It never ends, and this proxy passes on whole answers.
    if path == "/events" {
        return Response::builder().status(503).body(Body::empty()).unwrap();
    }
    let body = to_bytes(body, 1 << 20).await.unwrap();
    let headers = passed_on(&head.headers);
    let asked = server.ask(head.method, path, headers.clone(), body).await;
    let (status, answered, mut bytes) = asked;
    let lie = server.lie.lock().unwrap().clone();
    if let Some(Lie { real, shown }) = lie
        && path == format!("/requests/{real}")
    {
        let other = format!("/requests/{shown}");
        let other = server.ask(Method::GET, &other, headers, Bytes::new()).await;
        let page = str::from_utf8(&bytes).unwrap();
        let other = str::from_utf8(&other.2).unwrap();
        let rewritten = other.replace(&shown, &real);
        bytes = rewritten.replace(mark_of(other), mark_of(page)).into();
    }
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    *response.headers_mut() = answered;
    response
}

/// How pages write an amount in the smallest unit.
fn in_wei(wei: u128) -> String {
    format!("({wei} in the smallest unit")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_console__should_get_an_approval_and_no_signature_where_nodes_show_what_is_signed()
{
    let keys = tempfile::tempdir().unwrap();
    let anvil = Anvil::start(keys.path(), 31337).await;
    let (console_port, port, node_port) = (free_port(), free_port(), free_port());
    let origin = format!("http://localhost:{port}");
    let node_origin = format!("http://localhost:{node_port}");
    let policy = format!("node_origins = [{node_origin:?}]\n");
    let tables = format!(
        "[chains.evm.31337]\nrpc = [{:?}]\n[console]\nlisten = \"127.0.0.1:{console_port}\"\norigin = {origin:?}\n",
        anvil.url
    );
    let page =
        format!("approve_listen = \"127.0.0.1:{node_port}\"\napprove_origin = {node_origin:?}\n");
    let prepare = |folder: &Path| {
        let file = folder.join("serve.toml");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("{text}\n{tables}")).unwrap();
        configure(&folder.join("signer-1.toml"), "signer", &page, "");
    };
    let cluster = TestCluster::start_prepared(60_000, &policy, prepare).await;
    cluster.until_live(&[0, 1, 2]).await;
    let folder = cluster.folder.path();
    let server = HostileServer::start(port, format!("http://127.0.0.1:{console_port}")).await;
    let mut console = Browsers::start(&origin, "hostile-console");
    let mut node = Browsers::start(&node_origin, "hostile-console-node");

    // One person, with a passkey for each of the two pages.
    let policy = folder.join("policy.toml");
    let link = create(&cluster, "treasurer", "approver");
    let on_console = console.ask("enrol", "treasurer", json!({"link": link}));
    let mut command = covault();
    command.args(["node", "approver-link", "treasurer@node-1", "--config"]);
    let (done, link, err) = outcome_of(command.arg(folder.join("signer-1.toml")));
    assert!(done, "{link}{err}");
    let on_node = node.ask("enrol", "treasurer", json!({"link": link.trim()}));
    let lines = [on_console, on_node].map(|enrolled| add_to_policy(&policy, &enrolled));
    let rule = "[[approval]]\nneeds = 1\nof = [\"treasurer\"]\nway = [\"node\"]\n";
    let text = fs::read_to_string(&policy).unwrap();
    fs::write(&policy, format!("{text}\n{rule}")).unwrap();
    for signer in &cluster.signers {
        signer.signal("HUP");
    }
    let approvers = lines.map(|line| format!("treasurer={line}"));
    let rule = ["--approver", &approvers[0], "--approver", &approvers[1]];
    let vault = cluster.create_vault_with("treasury", &rule);
    let api = &cluster.api;
    let from = api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    anvil.fund(&from, 2_000 * ETHER).await;
    let small = api.create(payment(&from, ETHER, "")).await;
    let large = api.create(payment(&from, 1_000 * ETHER, "")).await;

    // The person sees 1 on the console, and approves 1,000.
    *server.lie.lock().unwrap() = Some(Lie {
        real: large.clone(),
        shown: small.clone(),
    });
    let path = json!({"path": format!("/requests/{large}")});
    console.ask("signIn", "treasurer", json!({}));
    let lied = console.ask("compare", "treasurer", path.clone());
    let said = lied["text"].as_str().unwrap();
    assert!(said.contains(&in_wei(ETHER)), "{lied}");
    assert!(!said.contains(&in_wei(1_000 * ETHER)), "{lied}");
    let approve = json!({"uuids": [large], "fee": FEE});
    let done = console.ask("approve", "treasurer", approve);
    assert_eq!(done["said"], "1 of 1 done", "{done}");
    let details = api.details(&large).await;
    assert_eq!(details["approvals"][0]["person"], "treasurer", "{details}");

    // The signers want what a node's page has shown.
    eventually("the signers ask for more", async || {
        let wanted = api.details(&large).await["approvalWanted"].to_string();
        let is_it = wanted.contains("wants 1 of treasurer by way of node");
        (is_it && wanted.contains("by way of console")).then_some(())
    })
    .await;

    // The node's page and the person's own machine show the real one, with words that are not the console's.
    node.ask("signIn", "treasurer", json!({}));
    let shown = node.ask("compare", "treasurer", path);
    let said = shown["text"].as_str().unwrap();
    assert!(said.contains(&in_wei(1_000 * ETHER)), "{shown}");
    assert!(!said.contains(&in_wei(ETHER)), "{shown}");
    assert_ne!(shown["words"], lied["words"]);
    let key = new_key(keys.path(), "treasurer");
    let words = ["approve", &large, "--key", &key, "--most-fee", "1"];
    let (done, _, printed) = person(api, folder, &words);
    assert!(!done && printed.contains("--yes"), "{printed}");
    let value = format!("\"value\": \"{}\"", 1_000 * ETHER);
    assert!(printed.contains(&value), "{printed}");
    let words = shown["words"].as_str().unwrap();
    assert!(words.split(' ').count() == 8, "{words}");
    assert!(printed.contains(words), "{words}: {printed}");

    // So it is rejected there, and was never signed. What the person means is approved there, and signed.
    let reject = json!({"uuid": large, "reason": "the console showed another amount"});
    node.ask("reject", "treasurer", reject);
    let details = api.details(&large).await;
    assert_eq!(details["status"], "STATUS_FAILED", "{details}");
    assert_eq!(details["signatures"], Value::Null, "{details}");
    assert_eq!(anvil.balance(TO).await, 0);
    let approve = json!({"uuids": [small], "fee": FEE});
    let done = node.ask("approve", "treasurer", approve);
    assert_eq!(done["said"], "1 of 1 done", "{done}");
    let outcome = api.execute(&small).await;
    assert_eq!(outcome["error"], Value::Null, "{outcome}");
    let hash = outcome["txHash"].as_str().unwrap();
    assert_eq!(anvil.receipt(hash).await["status"], "0x1");
    assert_eq!(anvil.balance(TO).await, ETHER);
}
