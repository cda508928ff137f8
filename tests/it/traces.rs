//! Traces of real processes, as an OTLP/HTTP receiver gets them (docs/tracing.md).

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode as HttpStatus},
    routing::post,
};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value as Fact},
    trace::v1::{Span, status::StatusCode},
};
use prost::Message as _;
use serde_json::json;

use super::support::*;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";
const AMOUNT: &str = "987654321987";
const RECIPIENT: &str = "0x00000000000000000000000000000000C0FFEE03";

/// A span, and which process it is of.
#[derive(Clone, Debug)]
struct Received {
    service: String,
    node: String,
    span: Span,
}

impl Received {
    fn id(&self) -> String {
        hex::encode(&self.span.span_id)
    }

    fn parent(&self) -> String {
        hex::encode(&self.span.parent_span_id)
    }

    fn fact(&self, key: &str) -> Option<String> {
        fact(&self.span.attributes, key)
    }
}

fn fact(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.clone()?.value? {
        Fact::StringValue(text) => Some(text),
        Fact::IntValue(number) => Some(number.to_string()),
        other => panic!("{key}: {other:?}"),
    }
}

#[derive(Clone, Default)]
struct Taken {
    spans: Arc<Mutex<Vec<Received>>>,
    bytes: Arc<Mutex<Vec<u8>>>,
    /// Takes nothing any longer.
    is_away: Arc<AtomicBool>,
}

/// A receiver of traces.
struct Receiver {
    url: String,
    taken: Taken,
}

impl Receiver {
    async fn start() -> Self {
        let taken = Taken::default();
        let router = Router::new()
            .route("/v1/traces", post(take))
            .with_state(taken.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, taken }
    }

    fn spans(&self) -> Vec<Received> {
        self.taken.spans.lock().unwrap().clone()
    }

    fn of(&self, name: &str) -> Vec<Received> {
        let mut spans = self.spans();
        spans.retain(|received| received.span.name == name);
        spans
    }
}

async fn take(State(taken): State<Taken>, headers: HeaderMap, body: Bytes) -> HttpStatus {
    if taken.is_away.load(Ordering::SeqCst) {
        // Nobody follows it.
        return HttpStatus::TEMPORARY_REDIRECT;
    }
    assert_eq!(headers["content-type"], "application/x-protobuf");
    taken.bytes.lock().unwrap().extend_from_slice(&body);
    for of_process in ExportTraceServiceRequest::decode(body)
        .unwrap()
        .resource_spans
    {
        let resource = of_process.resource.unwrap().attributes;
        assert_eq!(
            fact(&resource, "service.version").unwrap(),
            env!("CARGO_PKG_VERSION")
        );
        let spans = of_process
            .scope_spans
            .into_iter()
            .flat_map(|scope| scope.spans);
        taken
            .spans
            .lock()
            .unwrap()
            .extend(spans.map(|span| Received {
                service: fact(&resource, "service.name").unwrap(),
                node: fact(&resource, "covault.node").unwrap_or_default(),
                span,
            }));
    }
    HttpStatus::OK
}

/// Has every process of a cluster send its traces there; of those that begin here none.
fn traced(folder: &Path, url: &str) {
    for name in ["serve", "signer-1", "signer-2", "signer-3"] {
        let path = folder.join(format!("{name}.toml"));
        let text = fs::read_to_string(&path).unwrap();
        let log = format!("[log]\notlp_url = {url:?}\notlp_sample = 0\n");
        fs::write(&path, format!("{text}\n{log}")).unwrap();
    }
}

/// Creates a request as part of a caller's trace.
async fn create(api: &ApiClient, body: &serde_json::Value, traceparent: &str) -> String {
    let answer = api.raw("/v1/createSigningRequest", |request| {
        let request = request.header("x-mtoken", &api.token).json(body);
        request.header("traceparent", traceparent)
    });
    let answer: serde_json::Value = answer.await.json().await.unwrap();
    let uuid = answer["signingRequest"]["uuid"].as_str();
    uuid.unwrap_or_else(|| panic!("{answer}")).to_owned()
}

async fn create_and_execute(
    api: &ApiClient,
    body: &serde_json::Value,
    traceparent: &str,
) -> String {
    let uuid = create(api, body, traceparent).await;
    let outcome = api.execute(&uuid).await;
    assert_eq!(outcome["error"], serde_json::Value::Null, "{outcome}");
    outcome["txHash"].as_str().unwrap_or_default().to_owned()
}

/// What the orchestrator's metrics say of the spans with this outcome.
async fn counted(port: u16, outcome: &str) -> u64 {
    let url = format!("http://127.0.0.1:{port}/metrics");
    let text = http_client()
        .get(url)
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    let start = format!("covault_trace_spans_total{{outcome=\"{outcome}\"}} ");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(&start));
    lines
        .next()
        .unwrap_or_else(|| panic!("{text}"))
        .parse()
        .unwrap()
}

fn assert_holds_none(bytes: &[u8], forbidden: &[(&str, &[u8])]) {
    for (what, text) in forbidden {
        assert!(!text.is_empty(), "{what}");
        let found = bytes
            .windows(text.len())
            .any(|part| part.eq_ignore_ascii_case(text));
        assert!(!found, "{what} is in the traces");
    }
}

#[tokio::test]
async fn payment__should_be_one_trace_of_its_caller_from_serve_to_the_signers() {
    let receiver = Receiver::start().await;
    let anvil_folder = tempfile::tempdir().unwrap();
    let anvil = Anvil::start(anvil_folder.path(), 31337).await;
    let metrics = free_port();
    let cluster = TestCluster::start_prepared(60_000, "raw_signing = true", |folder| {
        traced(folder, &receiver.url);
        let path = folder.join("serve.toml");
        let text = fs::read_to_string(&path).unwrap();
        let listen = format!("[serve]\nmetrics_listen = \"127.0.0.1:{metrics}\"");
        let chain = format!("[chains.evm.31337]\nrpc = [\"{}\"]", anvil.url);
        fs::write(
            &path,
            format!("{}\n{chain}\n", text.replace("[serve]", &listen)),
        )
        .unwrap();
    })
    .await;
    let vault = cluster.create_vault("payouts");
    let from = cluster.api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    anvil.fund(&from, 1_000_000_000_000_000_000).await;
    let message = json!({"evmMessage": {"chainId": 1, "from": from, "content": base64("hello")}});

    // Nothing of those whose callers record nothing, or say nothing that can be read.
    for traceparent in [
        format!("00-{TRACE}-{CALLER}-00"),
        format!("00-{TRACE}-{CALLER}"),
        format!("00-{}-{CALLER}-01", "0".repeat(32)),
    ] {
        create_and_execute(&cluster.api, &message, &traceparent).await;
    }
    let payment = json!({"evmSendNative": {"chainId": "31337", "from": from, "to": RECIPIENT, "value": AMOUNT}});
    let sampled = format!("00-{TRACE}-{CALLER}-01");
    let hash = create_and_execute(&cluster.api, &payment, &sampled).await;
    eventually("the whole trace comes", async || {
        let nodes: BTreeSet<String> = receiver.of("sign").into_iter().map(|it| it.node).collect();
        (nodes.len() >= 2 && receiver.of("request").len() == 1).then_some(())
    })
    .await;

    let all = receiver.spans();
    for received in &all {
        assert_eq!(hex::encode(&received.span.trace_id), TRACE, "{received:?}");
        let Span {
            start_time_unix_nano: began,
            end_time_unix_nano: ended,
            ..
        } = received.span;
        assert!(began <= ended, "{received:?}");
        let failed = received.span.status.as_ref().unwrap().code == StatusCode::Error as i32;
        // A second set of signers may be asked where the first is slow, and fail.
        assert!(
            !failed || received.service == "covault-signer",
            "{received:?}"
        );
    }
    let one = |name: &str| {
        let found = receiver.of(name);
        assert_eq!(found.len(), 1, "{name}: {all:#?}");
        found[0].clone()
    };
    let (call, request, session) = (one("call"), one("request"), one("session"));
    assert_eq!(call.parent(), CALLER);
    assert_eq!(
        call.fact("covault.operation").unwrap(),
        "createSigningRequest"
    );
    assert_eq!(request.parent(), call.id());
    assert_eq!(request.fact("covault.vault").unwrap(), vault);
    assert_eq!(request.fact("covault.kind").unwrap(), "evmSendNative");
    assert_eq!(request.fact("covault.outcome").unwrap(), "Succeeded");
    for part in [one("build"), session.clone(), one("broadcast")] {
        assert_eq!(part.parent(), request.id(), "{part:?}");
    }
    let commits = receiver.of("commit");
    assert!(commits.len() >= 3, "{commits:?}");
    assert!(commits.iter().all(|commit| commit.parent() == request.id()));
    for received in &all {
        let is_of_signer = matches!(received.span.name.as_str(), "sign" | "claim" | "round");
        let service = if is_of_signer {
            "covault-signer"
        } else {
            "covault-orchestrator"
        };
        assert_eq!(received.service, service, "{received:?}");
    }
    let mut nodes = BTreeSet::new();
    for sign in receiver.of("sign") {
        assert_eq!(sign.parent(), session.id());
        assert_eq!(
            sign.fact("covault.request"),
            request.fact("covault.request")
        );
        let has = |part: &str| {
            let mut parts = receiver.of(part).into_iter();
            parts.any(|it| it.parent() == sign.id() && it.node == sign.node)
        };
        if has("claim") && has("round") {
            nodes.insert(sign.node);
        }
    }
    assert!(nodes.len() >= 2, "{all:#?}");
    assert!(nodes.iter().all(|node| node.starts_with("signer-")));

    let bytes = receiver.taken.bytes.lock().unwrap().clone();
    let raw = |text: &str| hex::decode(text.trim_start_matches("0x")).unwrap();
    let (own, to, tx) = (raw(&from), raw(RECIPIENT), raw(&hash));
    assert_holds_none(
        &bytes,
        &[
            ("the sender", from.trim_start_matches("0x").as_bytes()),
            ("the sender's bytes", &own),
            (
                "the recipient",
                RECIPIENT.trim_start_matches("0x").as_bytes(),
            ),
            ("the recipient's bytes", &to),
            ("the amount", AMOUNT.as_bytes()),
            ("the transaction", hash.trim_start_matches("0x").as_bytes()),
            ("the transaction's bytes", &tx),
            ("the token", cluster.api.token.as_bytes()),
            ("the admin token", cluster.admin_token.as_bytes()),
        ],
    );
    assert_eq!(counted(metrics, "dropped").await, 0);
    assert!(counted(metrics, "sent").await > 0);

    // Without the receiver requests go on, and what it does not take is counted.
    receiver.taken.is_away.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        create_and_execute(&cluster.api, &message, &sampled).await;
    }
    eventually("what is dropped is counted", async || {
        (counted(metrics, "dropped").await > 0).then_some(())
    })
    .await;
    let log = cluster.serve.log();
    let said = log.matches("the receiver does not take traces").count();
    assert_eq!(said, 1, "{log}");
}

#[tokio::test]
async fn call_over_grpc__should_be_part_of_its_callers_trace() {
    let receiver = Receiver::start().await;
    let folder = tempfile::tempdir().unwrap();
    let mut command = covault();
    command
        .args(["dev", "--listen", "127.0.0.1:0", "--data"])
        .arg(folder.path().join("dev"))
        .env("COVAULT_LOG_OTLP_URL", &receiver.url)
        .env("COVAULT_LOG_OTLP_SAMPLE", "0");
    let _dev = Process::start(&mut command, &folder.path().join("log"));
    let info: serde_json::Value = eventually("dev is ready", async || {
        let text = fs::read_to_string(folder.path().join("dev/dev.json")).ok()?;
        serde_json::from_str(&text).ok()
    })
    .await;
    let text = |field: &str| info[field].as_str().unwrap();
    let grpc = GrpcClient::new(text("grpcTarget"), text("platformToken"));
    let vault = json!({"vaultUuid": text("vaultUuid")});
    let sampled = format!("00-{TRACE}-{CALLER}-01");
    let metadata = [("traceparent", sampled.as_str())];
    grpc.call("getWalletList", &vault, &metadata).await.unwrap();
    // What is wrong fails, and says no more than that.
    let unknown = json!({"vaultUuid": "none"});
    grpc.call("getWalletList", &unknown, &metadata)
        .await
        .unwrap_err();
    let calls = eventually("both calls come", async || {
        Some(receiver.of("call")).filter(|calls| calls.len() == 2)
    })
    .await;
    for call in &calls {
        assert_eq!(hex::encode(&call.span.trace_id), TRACE);
        assert_eq!(call.parent(), CALLER);
        assert_eq!(call.fact("covault.transport").unwrap(), "grpc");
    }
    let failed = |call: &&Received| call.fact("covault.outcome").is_some();
    let failed: Vec<&Received> = calls.iter().filter(failed).collect();
    assert_eq!(failed.len(), 1, "{calls:?}");
    assert_eq!(
        failed[0].span.status.as_ref().unwrap().code,
        StatusCode::Error as i32
    );
}
