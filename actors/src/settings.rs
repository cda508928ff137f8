//! What configuration decides about the orchestrator.

use std::sync::Arc;

use covault_core::{
    networks::evm::calls::AbiTable,
    port::{Clock, Entropy},
    trace::Tracer,
};

use crate::{
    chain_rpc::ChainClients,
    gateway::command_bus::{CommandBus, memory::MemoryCommandBus},
    port::{FixedLog, LogControl, MonotonicClock, SignerCluster, TokioMonotonicClock},
    store::Store,
    webhooks::WebhookParts,
};

/// Everything [`crate::gateway::Gateway::start`] is wired from.
pub struct OrchestratorParts {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The cluster of signer nodes.
    pub signers: Arc<dyn SignerCluster>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Randomness for ids.
    pub entropy: Arc<dyn Entropy>,
    /// The clients of chain nodes.
    pub chains: ChainClients,
    /// Limits and deadlines.
    pub settings: Settings,
    /// What webhooks are sent with.
    pub webhooks: WebhookParts,
    /// How it shares the store with others.
    pub sharing: OrchestratorSharing,
}

/// What an orchestrator needs that may share its store with others.
pub struct OrchestratorSharing {
    /// What operators call this machine; shown to them.
    pub name: String,
    /// What no other process has at the same time, if there is anything: one that dies and starts
    /// again with it does not wait for what it had.
    pub home: Option<[u8; 32]>,
    /// The clock by which others are judged.
    pub monotonic: Arc<dyn MonotonicClock>,
    /// How commands get to the orchestrator that has their vault.
    pub command_bus: Arc<dyn CommandBus>,
    /// Tells the secret that all orchestrators of a store share from another one, and says nothing else of it; `None`:
    /// there is none.
    pub secret_fingerprint: Option<[u8; 8]>,
    /// What this process writes into its log.
    pub log: Arc<dyn LogControl>,
    /// Records what requests spend their time with.
    pub tracer: Tracer,
    /// Whether vaults run here. Otherwise this process only passes commands on, and answers
    /// questions from the store.
    pub runs_vaults: bool,
}

impl Default for OrchestratorSharing {
    fn default() -> Self {
        Self {
            name: String::new(),
            home: None,
            monotonic: Arc::new(TokioMonotonicClock::default()),
            command_bus: Arc::new(MemoryCommandBus::new()),
            secret_fingerprint: None,
            log: Arc::new(FixedLog),
            tracer: Tracer::default(),
            runs_vaults: true,
        }
    }
}

/// Limits and deadlines. `Settings::default()` is what an operator gets who sets nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long a request may take from its approval to its signatures, in milliseconds.
    /// After that it ends FAILED.
    pub signing_deadline_ms: u64,
    /// How long a new request may have to wait for signers before it is refused with 503, in milliseconds; never
    /// longer than half of `signing_deadline_ms`, and five eighths of it for what people approved. For a token with less than
    /// 64 inputs to sign that is all.
    pub most_wait_ms: u64,
    /// How long one key generation may take, in milliseconds; [`Scheme::patience`] times as long with
    /// a slow scheme. After that a new one starts.
    ///
    /// [`Scheme::patience`]: covault_core::scheme::Scheme::patience
    pub keygen_deadline_ms: u64,
    /// Most signing requests that may be live at once; more are refused with 503. Those that are
    /// signed and wait for a chain node do not count.
    pub max_live_requests: usize,
    /// Most bytes that live requests may hold: their payloads and notes, and 8 KiB of each; more are refused with 503.
    pub max_live_bytes: usize,
    /// The domain that a message is signed for which names none (tonMessage); empty: none.
    pub message_domain: String,
    /// The origin of the console, which links to it begin with; empty: there is none.
    pub console_origin: String,
    /// The EVM calls that are put into words.
    pub calls: AbiTable,
    /// Whether transactions are tried on a node while they are signed.
    pub simulate: bool,
    /// Most commands that may be in progress at once; more are refused with 503.
    pub max_commands: usize,
    /// How long a command may wait for its actor, in milliseconds.
    pub command_timeout_ms: u64,
    /// How long executeSigningRequests waits for the outcome, in milliseconds.
    pub execute_wait_ms: u64,
    /// For how long the nodes have to say that a transaction can never come, in milliseconds, before its
    /// request fails that may have reached one.
    pub settling_ms: u64,
    /// First pause before the nodes are asked about a transaction that one accepted, in milliseconds.
    /// Doubles while nothing happens to it.
    pub tracking_first_ms: u64,
    /// Longest pause between two such questions, in milliseconds.
    pub tracking_most_ms: u64,
    /// First pause before something that failed is tried again, in milliseconds. Doubles.
    pub retry_first_ms: u64,
    /// Longest pause between tries, in milliseconds.
    pub retry_most_ms: u64,
    /// How often an orchestrator writes to its store that it is alive, in milliseconds.
    pub heartbeat_ms: u64,
    /// After so long without that, in milliseconds, the others take over its vaults.
    pub lease_ms: u64,
    /// Longest pause before a webhook is tried for the second time, in milliseconds. Doubles.
    pub webhook_retry_first_ms: u64,
    /// Longest pause between two tries of a webhook, in milliseconds.
    pub webhook_retry_most_ms: u64,
    /// How often it is looked what people are to be told, in milliseconds.
    pub notify_interval_ms: u64,
    /// Whether people are also told amounts and addresses.
    pub notify_details: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            signing_deadline_ms: 60_000,
            most_wait_ms: 5_000,
            keygen_deadline_ms: 120_000,
            max_live_requests: 10_000,
            max_live_bytes: 256 << 20,
            message_domain: String::new(),
            console_origin: String::new(),
            calls: AbiTable::built_in().clone(),
            simulate: true,
            max_commands: 2_000,
            command_timeout_ms: 30_000,
            execute_wait_ms: 30_000,
            settling_ms: 180_000,
            tracking_first_ms: 2_000,
            tracking_most_ms: 60_000,
            retry_first_ms: 250,
            retry_most_ms: 15_000,
            heartbeat_ms: 1_000,
            lease_ms: 5_000,
            webhook_retry_first_ms: 5_000,
            webhook_retry_most_ms: 60 * 60 * 1_000,
            notify_interval_ms: 5_000,
            notify_details: false,
        }
    }
}
