//! Metrics for Prometheus, on a listener of their own. docs/metrics.md says what each means.

mod figures;

use std::{
    collections::BTreeMap,
    fmt::{Display, Write as _},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

pub use figures::is_ahead;

use anyhow::Context as _;
use axum::{Router, extract::State, http::header, response::IntoResponse, routing::get};
use covault_actors::{
    chain_rpc::EndpointHealth,
    gateway::{
        BacklogCounts, FollowCounts, Gateway, NotificationCounts, SweepCounts, WebhookCounts,
        meter as requests,
    },
    port::{NodeHalt, NodeView},
};
use covault_core::{deposit::transfer::FollowedChain, port::Clock as _};
use covault_mpc::{bus::Bus, meter};
use futures::future::BoxFuture;
use metrics_exporter_prometheus::{
    BuildError, Matcher, PrometheusBuilder, PrometheusHandle,
    formatting::{sanitize_label_value, write_help_line, write_type_line},
};
use metrics_process::Collector;
use tokio::{net::TcpListener, task::JoinHandle};

use crate::{
    adapters::SystemClock,
    api::meter as calls,
    console,
    http::server::{self, HttpVersion, ServerLimits},
    shutdown::StopSignal,
    store_meter,
    tls::ServerTls,
    traces, wiring,
};

/// From half a millisecond to eight seconds.
const BUCKETS: [f64; 8] = [0.0005, 0.001, 0.0025, 0.01, 0.05, 0.25, 1.0, 8.0];
/// Histograms are folded so often, whether anyone asks or not.
const UPKEEP: Duration = Duration::from_secs(5);

/// What is not counted but looked at when Prometheus asks.
pub type GaugeCollector = Box<dyn Fn() -> BoxFuture<'static, String> + Send + Sync>;

struct MetricsExporter {
    recorder: PrometheusHandle,
    process: Collector,
    gauges: GaugeCollector,
}

/// Where `/metrics` is to be served; nowhere when the address is empty.
///
/// # Errors
/// When the address is invalid, or in use.
pub async fn bind(address: &str, setting: &'static str) -> anyhow::Result<Option<TcpListener>> {
    if address.is_empty() {
        return Ok(None);
    }
    wiring::listen(address).await.context(setting).map(Some)
}

/// Serves `/metrics` there until `stop`, in the clear without `tls`.
///
/// # Errors
/// When metrics cannot be recorded.
pub fn start(
    listener: Option<TcpListener>,
    tls: Option<ServerTls>,
    gauges: GaugeCollector,
    stop: StopSignal,
) -> anyhow::Result<Option<JoinHandle<anyhow::Result<()>>>> {
    let Some(listener) = listener else {
        return Ok(None);
    };
    let recorder = builder()
        .and_then(PrometheusBuilder::install_recorder)
        .context("metrics cannot be recorded")?;
    meter::describe();
    requests::describe();
    calls::describe();
    console::describe();
    store_meter::describe();
    traces::describe();
    let process = Collector::default();
    process.describe();
    tracing::info!(address = %listener.local_addr()?, "metrics are served");
    let upkeep = recorder.clone();
    let exporter = Arc::new(MetricsExporter {
        recorder,
        process,
        gauges,
    });
    let router = Router::new()
        .route("/metrics", get(scrape))
        .with_state(exporter);
    Ok(Some(tokio::spawn(async move {
        let folding = async {
            loop {
                tokio::time::sleep(UPKEEP).await;
                upkeep.run_upkeep();
            }
        };
        let version = HttpVersion::Http1;
        tokio::select! {
            served = server::serve(listener, tls, router, version, ServerLimits::OPERATORS, stop) => served,
            never = folding => never,
        }
    })))
}

/// What makes a recorder.
fn builder() -> Result<PrometheusBuilder, BuildError> {
    let calls_alone = Matcher::Full(calls::SECONDS.to_owned());
    PrometheusBuilder::new()
        .set_buckets(&BUCKETS)?
        .set_buckets_for_metric(calls_alone, &calls::BUCKETS)?
        .set_buckets_for_metric(
            Matcher::Full(requests::REQUEST_SECONDS.to_owned()),
            &calls::BUCKETS,
        )
}

async fn scrape(State(exporter): State<Arc<MetricsExporter>>) -> impl IntoResponse {
    exporter.process.collect();
    let mut text = exporter.recorder.render();
    text.push_str(&(exporter.gauges)().await);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text)
}

/// What an orchestrator shows: its bus, its nodes, its requests, and its store, where that is a file.
pub fn orchestrator_gauges(
    gateway: Gateway,
    bus: Arc<dyn Bus>,
    store: Option<PathBuf>,
) -> GaugeCollector {
    Box::new(move || {
        let (gateway, reachable, store) = (gateway.clone(), bus.reachable(), store.clone());
        Box::pin(async move {
            let mut text = PrometheusText::default();
            text.build();
            text.bus(reachable);
            text.requests(&gateway.requests());
            text.live(gateway.live());
            text.mailboxes(gateway.mailbox_depths());
            if let Some(file) = &store {
                text.store_file(file);
            }
            match gateway.overview().await {
                Ok(overview) => text.overview(&overview, SystemClock.now_ms()),
                Err(fault) => tracing::warn!(?fault, "metrics without the counts of the service"),
            }
            match gateway.nodes().await {
                Ok((nodes, unadmitted)) => {
                    text.nodes(&nodes);
                    let name = "covault_nodes_waiting";
                    text.family(name, "Nodes that announce themselves and are not admitted");
                    text.sample(name, &[], unadmitted);
                }
                // The counters are worth having anyway.
                Err(fault) => tracing::warn!(?fault, "metrics without the nodes"),
            }
            text.chain_nodes(&gateway.chain_nodes());
            text.shares(gateway.vault_share());
            text.stuck(&gateway.backlog());
            let follows = gateway.follows();
            text.deposits(&follows);
            text.balances(&follows);
            text.sweeps(&gateway.sweeps());
            text.webhooks(&gateway.webhook_counts());
            text.notifications(&gateway.notification_counts());
            match gateway.unowned_chains().await {
                Ok(chains) => text.unowned(&chains),
                Err(fault) => tracing::warn!(?fault, "metrics without who follows the chains"),
            }
            let name = "covault_event_listeners";
            text.family(name, "Event listeners");
            text.sample(name, &[], gateway.listeners());
            text.0
        })
    })
}

/// What a signer shows: its bus.
pub fn signer_gauges(bus: Arc<dyn Bus>) -> GaugeCollector {
    Box::new(move || {
        let reachable = bus.reachable();
        Box::pin(async move {
            let mut text = PrometheusText::default();
            text.build();
            text.bus(reachable);
            text.0
        })
    })
}

/// Prometheus' text format, for gauges that must vanish with what they speak of: a recorder never
/// forgets one.
#[derive(Default)]
struct PrometheusText(String);

impl PrometheusText {
    fn family(&mut self, name: &str, help: &str) {
        self.family_of("gauge", name, help);
    }

    fn family_of(&mut self, kind: &str, name: &str, help: &str) {
        write_help_line(&mut self.0, name, None, None, help);
        write_type_line(&mut self.0, name, None, None, kind);
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(label, value)| format!("{label}=\"{}\"", sanitize_label_value(value)))
            .collect();
        let labels = if labels.is_empty() {
            String::new()
        } else {
            format!("{{{}}}", labels.join(","))
        };
        // Writing into a String does not fail.
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    fn bus(&mut self, reachable: bool) {
        let name = "covault_bus_reachable";
        self.family(name, "Whether the bus was reachable when it was last used");
        self.sample(name, &[], u8::from(reachable));
    }

    fn deposits(&mut self, follows: &BTreeMap<FollowedChain, FollowCounts>) {
        let name = "covault_deposits_block";
        self.family(name, "Blocks that are followed for deposits");
        for (chain, counts) in follows {
            for (which, number) in [
                ("followed", counts.head),
                ("finalized", counts.finalized),
                ("newest", counts.newest),
            ] {
                let chain = chain.to_string();
                self.sample(name, &[("chain", &chain), ("which", which)], number);
            }
        }
        let name = "covault_deposits_failures_total";
        self.family_of("counter", name, "Attempts to read a chain that failed");
        for (chain, counts) in follows {
            self.sample(name, &[("chain", &chain.to_string())], counts.failures);
        }
        let name = "covault_deposits_stopped";
        let help = "Whether a fork below a final block has stopped a chain";
        self.family(name, help);
        for (chain, counts) in follows {
            let stopped = u8::from(counts.is_stopped);
            self.sample(name, &[("chain", &chain.to_string())], stopped);
        }
    }

    fn balances(&mut self, follows: &BTreeMap<FollowedChain, FollowCounts>) {
        let done = follows.iter().filter_map(|(chain, counts)| {
            let (at_ms, counts) = counts.reconciled?;
            Some((chain.to_string(), at_ms, counts))
        });
        let done: Vec<_> = done.collect();
        let name = "covault_deposits_block_timestamp_seconds";
        self.family(name, "Time of the newest block that was followed");
        for (chain, counts) in follows.iter().filter(|(_, counts)| counts.head_ms > 0) {
            let seconds = counts.head_ms / 1_000;
            self.sample(name, &[("chain", &chain.to_string())], seconds);
        }
        let name = "covault_deposits_traces";
        self.family(name, "How nodes report what contracts transfer");
        for (chain, counts) in follows {
            self.sample(
                name,
                &[("chain", &chain.to_string()), ("by", counts.traces)],
                1,
            );
        }
        let name = "covault_deposits_unexplained";
        self.family(name, "Balances that the transfers do not explain");
        for (chain, _, counts) in &done {
            for (which, count) in [("found", counts.found), ("missing", counts.missing)] {
                self.sample(name, &[("chain", chain), ("which", which)], count);
            }
        }
        let name = "covault_deposits_reconciled_timestamp_seconds";
        self.family(name, "When all balances were last compared");
        for (chain, at_ms, _) in &done {
            self.sample(name, &[("chain", chain)], at_ms / 1_000);
        }
    }

    fn sweeps(&mut self, sweeps: &BTreeMap<FollowedChain, SweepCounts>) {
        let name = "covault_sweeps";
        self.family(name, "Sweeps of deposit wallets that have not ended");
        for (chain, counts) in sweeps {
            for (state, count) in [
                ("due", counts.due),
                ("funding", counts.funding),
                ("moving", counts.moving),
                ("paused", counts.paused),
                ("held", counts.held),
            ] {
                let labels = [("chain", &*chain.to_string()), ("state", state)];
                self.sample(name, &labels, count);
            }
        }
        let name = "covault_sweeps_failed";
        self.family(
            name,
            "Deposit wallets that could not be checked for sweeping",
        );
        for (chain, counts) in sweeps {
            self.sample(name, &[("chain", &chain.to_string())], counts.failed);
        }
        let name = "covault_sweeps_oldest_wait_timestamp_seconds";
        self.family(name, "When the sweep that has waited longest began to wait");
        for (chain, counts) in sweeps {
            if let Some(since_ms) = counts.oldest_wait_ms {
                let seconds = since_ms / 1_000;
                self.sample(name, &[("chain", &chain.to_string())], seconds);
            }
        }
    }

    fn webhooks(&mut self, counts: &WebhookCounts) {
        let name = "covault_webhooks_total";
        self.family_of("counter", name, "Outcomes of webhooks that were sent");
        for (which, count) in [
            ("delivered", counts.delivered),
            ("failed", counts.failed),
            ("dead", counts.dead),
        ] {
            self.sample(name, &[("result", which)], count);
        }
        if let Some(waiting) = counts.waiting {
            let name = "covault_webhooks_waiting";
            self.family(name, "Events waiting to be sent to webhooks");
            self.sample(name, &[], waiting);
        }
    }

    fn notifications(&mut self, counts: &NotificationCounts) {
        let name = "covault_notifications_total";
        self.family_of("counter", name, "Outcomes of messages to people");
        for (which, count) in [
            ("delivered", counts.delivered),
            ("failed", counts.failed),
            ("dead", counts.given_up),
        ] {
            self.sample(name, &[("result", which)], count);
        }
        if let Some(waiting) = counts.waiting {
            let name = "covault_notifications_waiting";
            self.family(name, "What people are to be told");
            self.sample(name, &[], waiting);
        }
    }

    fn unowned(&mut self, chains: &BTreeMap<FollowedChain, bool>) {
        let name = "covault_deposits_unowned";
        let help = "Whether no process follows a chain that should be followed";
        self.family(name, help);
        for (chain, is_unowned) in chains {
            let unowned = u8::from(*is_unowned);
            self.sample(name, &[("chain", &chain.to_string())], unowned);
        }
    }

    fn shares(&mut self, (vaults, orchestrators): (usize, usize)) {
        let name = "covault_vaults_here";
        self.family(name, "Vaults that run in this process");
        self.sample(name, &[], vaults);
        let name = "covault_orchestrators";
        self.family(name, "Processes with vaults that this one sees alive");
        self.sample(name, &[], orchestrators);
    }

    fn stuck(&mut self, stuck: &BacklogCounts) {
        let BacklogCounts {
            waiting,
            forgotten,
            transactions,
        } = stuck;
        let name = "covault_open_transactions";
        let help = "Transactions that a node accepted and that are not final";
        self.family(name, help);
        for (chain, open) in transactions {
            for (state, count) in [
                ("pending", open.pending),
                ("mined", open.mined),
                ("overdue", open.overdue),
            ] {
                self.sample(
                    name,
                    &[("chain", &chain.to_string()), ("state", state)],
                    count,
                );
            }
        }
        let name = "covault_requests_waiting";
        self.family(name, "Requests that cannot make progress now");
        self.sample(name, &[], waiting);
        let name = "covault_forgotten_transactions_total";
        let help = "Transactions that a node had accepted, and that no node knew later";
        self.family_of("counter", name, help);
        for (outcome, count) in [
            ("taken", forgotten.taken),
            ("refused", forgotten.refused),
            ("expired", forgotten.expired),
        ] {
            self.sample(name, &[("outcome", outcome)], count);
        }
    }

    /// By chain and number: the address of a node may hold a key.
    fn chain_nodes(&mut self, nodes: &[EndpointHealth]) {
        let mut family =
            |kind: &str, name: &str, help: &str, value: &dyn Fn(&EndpointHealth) -> u64| {
                self.family_of(kind, name, help);
                for node in nodes {
                    let labels = [
                        ("chain", node.chain.as_str()),
                        ("node", &node.node.to_string()),
                    ];
                    self.sample(name, &labels, value(node));
                }
            };
        family(
            "gauge",
            "covault_chain_node_up",
            "Whether the chain's node answered when it was last asked",
            &|node| u64::from(node.failures == 0),
        );
        family(
            "gauge",
            "covault_chain_node_failures",
            "Failed calls to the chain's node since its last answer",
            &|node| u64::from(node.failures),
        );
        family(
            "counter",
            "covault_chain_node_answers_total",
            "Answers of the chain's node",
            &|node| node.answers,
        );
        family(
            "counter",
            "covault_chain_node_errors_total",
            "Calls that the chain's node did not answer, or answered unusably",
            &|node| node.errors,
        );
        family(
            "counter",
            "covault_chain_node_dissents_total",
            "Answers of the chain's node that disagreed with those of others",
            &|node| node.dissents,
        );
        family(
            "counter",
            "covault_chain_node_left_out_total",
            "Transactions that other nodes accepted and that the chain's node was too slow to receive at once",
            &|node| node.left_out,
        );
    }

    fn nodes(&mut self, nodes: &[NodeView]) {
        let labels: Vec<(String, String, &NodeView)> = nodes
            .iter()
            .map(|node| {
                let line = node.id.openssh_line("");
                let key = line.rsplit(' ').next().unwrap_or_default().to_owned();
                // What a node calls itself could be another name every minute, each a new series.
                let name = if node.named {
                    node.name.clone()
                } else {
                    hex::encode(node.id.0.get(..4).unwrap_or_default())
                };
                (key, name, node)
            })
            .collect();
        let mut family = |name: &str, help: &str, value: &dyn Fn(&NodeView) -> Option<String>| {
            self.family(name, help);
            for (key, called, node) in &labels {
                if let Some(value) = value(node) {
                    self.sample(name, &[("node", key), ("name", called)], value);
                }
            }
        };
        family(
            "covault_node_up",
            "Whether the node announced itself recently",
            &|node| Some(u8::from(node.live).to_string()),
        );
        family(
            "covault_node_last_seen_seconds",
            "When the node last announced itself, in seconds since the Unix epoch",
            &|node| node.last_seen_ms.map(|ms| (ms / 1000).to_string()),
        );
        family(
            "covault_node_clock_skew_seconds",
            "How far the node's clock is ahead of the orchestrator's",
            &|node| {
                let milli = u32::try_from(node.skew_ms.unsigned_abs()).unwrap_or(u32::MAX);
                let seconds = f64::from(milli) / 1000.0;
                let signed = if node.skew_ms < 0 { -seconds } else { seconds };
                node.last_seen_ms.map(|_| signed.to_string())
            },
        );
        family(
            "covault_node_halted",
            "Whether the node signs nothing, or not with all shares: its clock is wrong, an older copy of its claims \
             file was restored, or it runs twice",
            &|node| {
                let mut halts = node.halted.iter();
                let halted = halts.any(|halt| *halt != NodeHalt::ClientSigner);
                node.last_seen_ms.map(|_| u8::from(halted).to_string())
            },
        );
        family(
            "covault_node_duplicate",
            "Whether two processes have the node's identity",
            &|node| {
                let twice = node.halted.contains(&NodeHalt::DuplicateIdentity);
                node.last_seen_ms.map(|_| u8::from(twice).to_string())
            },
        );
        family(
            "covault_node_keys",
            "Keys that the node says it holds a share of",
            &|node| node.last_seen_ms.map(|_| node.keys.to_string()),
        );
        family(
            "covault_node_bans",
            "Peers that the node says it has banned for cheating",
            &|node| node.last_seen_ms.map(|_| node.bans.len().to_string()),
        );
    }
}

#[cfg(test)]
mod tests;
