//! Sends spans to an OTLP/HTTP receiver, in batches. Nobody waits for that: what finds no room, or is not taken, is dropped.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use covault_core::{
    port::Entropy as _,
    trace::{EndedSpan, FactValue, SpanFact, SpanName, SpanSink},
};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{AnyValue, KeyValue, any_value::Value},
    resource::v1::Resource,
    trace::v1::{ResourceSpans, ScopeSpans, Span, Status, span::SpanKind, status::StatusCode},
};
use prost::Message as _;
use reqwest::{Url, header::CONTENT_TYPE, redirect::Policy};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{TracedProcess, count};
use crate::adapters::OsEntropy;

/// Spans that wait to be sent, at most.
const QUEUE: usize = 4096;
/// Spans of one message.
const BATCH: usize = 512;
/// How long spans wait for others that go with them.
const PAUSE: Duration = Duration::from_millis(500);
/// How long the receiver has to take a message.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the last spans of a process have.
const PARTING: Duration = Duration::from_secs(1);
/// The flag of W3C Trace Context that a trace is recorded.
const SAMPLED: u32 = 1;

struct QueuedSpans(mpsc::Sender<EndedSpan>);

impl SpanSink for QueuedSpans {
    #[expect(
        clippy::disallowed_methods,
        reason = "the adapter that reads the clock for spans"
    )]
    fn now_ns(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        u64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
    }

    fn fill_id(&self, id: &mut [u8]) {
        OsEntropy.fill(id);
    }

    fn take(&self, span: EndedSpan) {
        if self.0.try_send(span).is_err() {
            count("dropped", 1);
        }
    }
}

/// Sends spans until it is dropped.
pub struct SpanSender {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl SpanSender {
    /// See [`super::Traces::finish`].
    pub async fn finish(self) {
        // It may have ended.
        let _ = self.stop.send(());
        let _ = timeout(PARTING, self.task).await;
    }
}

/// Begins to take spans, and to send them.
///
/// # Errors
/// When there is no HTTP client.
pub fn start(
    url: Url,
    process: &TracedProcess<'_>,
) -> anyhow::Result<(Arc<dyn SpanSink>, SpanSender)> {
    let http = reqwest::Client::builder()
        .redirect(Policy::none())
        .no_proxy()
        .timeout(PATIENCE)
        .build()
        .context("log.otlp_url: no HTTP client")?;
    let (queue, spans) = mpsc::channel(QUEUE);
    let (stop, stopped) = oneshot::channel();
    let receiver = SpanReceiver {
        http,
        url,
        resource: resource(process),
        is_away: false,
    };
    let task = tokio::spawn(receiver.feed(spans, stopped));
    Ok((Arc::new(QueuedSpans(queue)), SpanSender { stop, task }))
}

/// What spans are sent to.
struct SpanReceiver {
    http: reqwest::Client,
    url: Url,
    resource: Resource,
    /// It has not taken the last message.
    is_away: bool,
}

impl SpanReceiver {
    async fn feed(
        mut self,
        mut spans: mpsc::Receiver<EndedSpan>,
        mut stopped: oneshot::Receiver<()>,
    ) {
        loop {
            let is_last = tokio::select! {
                () = sleep(PAUSE) => false,
                _ = &mut stopped => true,
            };
            loop {
                let batch: Vec<EndedSpan> = std::iter::from_fn(|| spans.try_recv().ok())
                    .take(BATCH)
                    .collect();
                if batch.is_empty() {
                    break;
                }
                self.send(batch).await;
            }
            if is_last {
                return;
            }
        }
    }

    async fn send(&mut self, batch: Vec<EndedSpan>) {
        let spans = batch.len();
        let request = self
            .http
            .post(self.url.clone())
            .header(CONTENT_TYPE, "application/x-protobuf")
            .body(message(&self.resource, batch).encode_to_vec());
        let problem = match request.send().await {
            Ok(answer) if answer.status().is_success() => None,
            // Also where it sends us elsewhere.
            Ok(answer) => Some(format!("it answers {}", answer.status())),
            // The URL is known, and may be long.
            Err(error) => Some(error.without_url().to_string()),
        };
        count(if problem.is_none() { "sent" } else { "dropped" }, spans);
        match (&problem, self.is_away) {
            (Some(error), false) => tracing::warn!(
                %error,
                host = self.url.host_str(),
                "log.otlp_url: the receiver does not take traces; they are dropped until it does"
            ),
            (None, true) => tracing::info!("log.otlp_url: the receiver takes traces again"),
            _ => {}
        }
        self.is_away = problem.is_some();
    }
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

fn resource(process: &TracedProcess<'_>) -> Resource {
    let TracedProcess { service, name } = *process;
    let text = |key, text: &str| attribute(key, Value::StringValue(text.to_owned()));
    let named = (!name.is_empty()).then(|| text("covault.node", name));
    let attributes = [
        text("service.name", service),
        text("service.version", env!("CARGO_PKG_VERSION")),
    ];
    Resource {
        attributes: attributes.into_iter().chain(named).collect(),
        ..Resource::default()
    }
}

fn message(resource: &Resource, batch: Vec<EndedSpan>) -> ExportTraceServiceRequest {
    let scope_spans = ScopeSpans {
        spans: batch.into_iter().map(span).collect(),
        ..ScopeSpans::default()
    };
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(resource.clone()),
            scope_spans: vec![scope_spans],
            ..ResourceSpans::default()
        }],
    }
}

fn span(ended: EndedSpan) -> Span {
    let EndedSpan {
        name,
        context,
        parent,
        began_ns,
        ended_ns,
        facts,
        failed,
    } = ended;
    let kind = match name {
        SpanName::Call | SpanName::Sign => SpanKind::Server,
        SpanName::Session | SpanName::Broadcast => SpanKind::Client,
        SpanName::Request
        | SpanName::Build
        | SpanName::Commit
        | SpanName::Claim
        | SpanName::Round => SpanKind::Internal,
    };
    let code = match failed {
        true => StatusCode::Error,
        false => StatusCode::Unset,
    };
    let facts = facts.into_iter().map(SpanFact::shown);
    Span {
        trace_id: context.trace.to_vec(),
        span_id: context.span.to_vec(),
        parent_span_id: parent.map_or_else(Vec::new, |parent| parent.to_vec()),
        flags: SAMPLED,
        name: name.name().to_owned(),
        kind: kind.into(),
        start_time_unix_nano: began_ns,
        end_time_unix_nano: ended_ns,
        attributes: facts
            .map(|(key, value)| {
                attribute(
                    key,
                    match value {
                        FactValue::Text(text) => Value::StringValue(text),
                        FactValue::Number(number) => Value::IntValue(number.into()),
                    },
                )
            })
            .collect(),
        status: Some(Status {
            message: String::new(),
            code: code.into(),
        }),
        ..Span::default()
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::trace::{TraceParent, Tracer};
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn full_queue__should_drop_spans_count_them_and_hold_nobody_up() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let (queue, mut spans) = mpsc::channel(1);
        let tracer = Tracer::new(Arc::new(QueuedSpans(queue)), 1.0);
        metrics::with_local_recorder(&recorder, || {
            for _ in 0..3 {
                drop(tracer.begin(SpanName::Request, TraceParent::Unknown));
            }
        });
        let text = recorder.handle().render();
        let dropped = "covault_trace_spans_total{outcome=\"dropped\"} 2";
        assert!(text.contains(dropped), "{text}");
        assert!(spans.try_recv().is_ok());
        assert!(spans.try_recv().is_err());
    }

    #[test]
    fn receiver_that_is_away__should_cost_the_spans_and_nothing_else() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            runtime.block_on(async {
                // Nothing listens there.
                let url = Url::parse("http://127.0.0.1:1/v1/traces").expect("a URL");
                let process = TracedProcess {
                    service: "covault-signer",
                    name: "a",
                };
                let (sink, sender) = start(url, &process).expect("a client");
                let tracer = Tracer::new(sink, 1.0);
                drop(tracer.begin(SpanName::Sign, TraceParent::Unknown));
                sender.finish().await;
                // After that nobody takes them.
                drop(tracer.begin(SpanName::Sign, TraceParent::Unknown));
            });
        });
        let text = recorder.handle().render();
        let dropped = "covault_trace_spans_total{outcome=\"dropped\"} 2";
        assert!(text.contains(dropped), "{text}");
    }
}
