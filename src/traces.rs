//! Where the spans of this process go (docs/tracing.md).

#[cfg(feature = "otlp")]
mod export;

use covault_core::trace::Tracer;
use metrics::{counter, describe_counter};

use crate::config::LogSettings;

const SPANS: &str = "covault_trace_spans_total";

/// Tells the recorder what the numbers mean, and shows them before the first span.
pub fn describe() {
    describe_counter!(
        SPANS,
        "Spans of requests that are traced, by what became of them: sent, or dropped (no room, or the receiver did not take them)"
    );
    count("sent", 0);
    count("dropped", 0);
}

fn count(outcome: &'static str, spans: usize) {
    counter!(SPANS, "outcome" => outcome).increment(u64::try_from(spans).unwrap_or(u64::MAX));
}

/// What a process says of itself in its traces.
#[cfg_attr(
    not(feature = "otlp"),
    expect(dead_code, reason = "this build sends none")
)]
pub struct TracedProcess<'a> {
    /// `covault-orchestrator` or `covault-signer`.
    pub service: &'static str,
    /// What operators call it.
    pub name: &'a str,
}

/// Records spans, and sends them until it is dropped.
#[derive(Default)]
pub struct Traces {
    pub tracer: Tracer,
    #[cfg(feature = "otlp")]
    sender: Option<export::SpanSender>,
}

impl Traces {
    /// Begins, where the settings name a receiver.
    ///
    /// # Errors
    /// When the receiver's URL is wrong, or there is no HTTP client for it.
    #[cfg(feature = "otlp")]
    pub fn start(log: &LogSettings, process: &TracedProcess<'_>) -> anyhow::Result<Self> {
        let url = log.otlp_endpoint();
        let url = url.map_err(|problem| anyhow::anyhow!("log.otlp_url: {problem}"))?;
        let Some(url) = url else {
            return Ok(Self::default());
        };
        let (sink, sender) = export::start(url, process)?;
        Ok(Self {
            tracer: Tracer::new(sink, log.otlp_sample),
            sender: Some(sender),
        })
    }

    /// This build sends none, and refuses settings that name a receiver.
    ///
    /// # Errors
    /// None.
    #[cfg(not(feature = "otlp"))]
    pub fn start(_: &LogSettings, _: &TracedProcess<'_>) -> anyhow::Result<Self> {
        Ok(Self::default())
    }

    /// Sends what is still here, for a moment at most.
    pub async fn finish(self) {
        #[cfg(feature = "otlp")]
        if let Some(sender) = self.sender {
            sender.finish().await;
        }
    }
}
