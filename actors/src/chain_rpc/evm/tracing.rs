//! Transfers made by contracts: by the logs of the coin where a chain has them (EIP-7708), else with the tracing method
//! that the nodes support: each method is tried once, on the first block with a transaction.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use covault_core::{
    deposit::transfer::Candidate,
    networks::evm::transfers::{BlockError, EvmBlock},
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{EvmNode, METHOD_NOT_FOUND};
use crate::chain_rpc::{
    client::ChainCall as _,
    exchange::ParsedResponse,
    jsonrpc::{RpcCall, RpcCallError},
};

/// How long a block waits for its traces.
const PATIENCE: Duration = Duration::from_secs(5);
/// Blocks so far below the newest one are taken without: else slow traces would hold a chain up for ever.
const FAR_BEHIND: u64 = 64;

/// How nodes tell what contracts pass on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TraceMethod {
    /// `debug_traceBlockByHash` with the `callTracer`.
    CallTracer,
    /// `trace_block`.
    Flat,
    /// They do not.
    Nothing,
}

/// What is known of the nodes.
#[derive(Default)]
pub(super) struct TraceSupport {
    /// `None`: not all have answered yet.
    method: Mutex<Option<TraceMethod>>,
    /// Whether it was said that traces are left out, until there are some again.
    is_said: AtomicBool,
    /// The newest block that the nodes have named.
    newest: AtomicU64,
    /// Whether a block has shown that the chain has logs of its coin.
    has_logs: AtomicBool,
}

impl TraceMethod {
    fn call(self, block: &EvmBlock) -> Option<RpcCall> {
        let at = &block.header.block;
        match self {
            Self::CallTracer => {
                let hash = format!("0x{}", hex::encode(at.hash));
                let tracer = json!({"tracer": "callTracer"});
                Some(RpcCall("debug_traceBlockByHash", json!([hash, tracer])))
            }
            Self::Flat => {
                let number = format!("{:#x}", at.number);
                Some(RpcCall("trace_block", json!([number])))
            }
            Self::Nothing => None,
        }
    }

    fn read(self, block: &EvmBlock, traces: &Value) -> Result<Vec<Candidate>, BlockError> {
        match self {
            Self::CallTracer => block.passed_on(traces),
            Self::Flat => block.passed_on_flat(traces),
            Self::Nothing => Ok(Vec::new()),
        }
    }
}

impl EvmNode {
    /// The nodes have named this block as the newest.
    pub(super) fn newest_is(&self, number: u64) {
        self.tracing.newest.store(number, Ordering::Relaxed);
    }

    /// A block has logs of the coin.
    pub(super) fn coin_logs_found(&self) {
        if !self.tracing.has_logs.swap(true, Ordering::Relaxed) {
            let chain = self.rpc.chain();
            tracing::info!(
                chain,
                "transfers by contracts are read from the logs of the coin"
            );
        }
    }

    /// Whether the chain is known to have logs of its coin.
    pub(super) fn has_coin_logs(&self) -> bool {
        self.tracing.has_logs.load(Ordering::Relaxed)
    }

    /// What contracts pass on in a block. No block waits for that: what nodes do not say at once, balances show.
    pub(super) async fn passed_on(&self, block: &EvmBlock) -> Vec<Candidate> {
        if !self.follow.traces || block.transactions.is_empty() {
            return Vec::new();
        }
        let newest = self.tracing.newest.load(Ordering::Relaxed);
        let traced = match newest.saturating_sub(block.header.block.number) > FAR_BEHIND {
            true => Err("the chain is caught up with".to_owned()),
            false => match tokio::time::timeout(PATIENCE, self.traced(block)).await {
                Ok(traced) => traced,
                Err(_) => Err("the nodes take too long".to_owned()),
            },
        };
        match traced {
            Ok(found) => {
                self.tracing.is_said.store(false, Ordering::Relaxed);
                found
            }
            Err(reason) => {
                if !self.tracing.is_said.swap(true, Ordering::Relaxed) {
                    let (chain, number) = (self.rpc.chain(), block.header.block.number);
                    tracing::warn!(
                        chain,
                        block = number,
                        reason,
                        "blocks are followed without the transfers that contracts make in them"
                    );
                }
                Vec::new()
            }
        }
    }

    async fn traced(&self, block: &EvmBlock) -> Result<Vec<Candidate>, String> {
        let known = *self.tracing.method.lock();
        let method = match known {
            Some(method) => Some(method),
            None => self.find_method(block).await,
        };
        let method = method.ok_or("the nodes do not trace it")?;
        let Some(call) = method.call(block) else {
            return Ok(Vec::new());
        };
        let call = call.reading(|traces: &Value| match method.read(block, traces) {
            Ok(found) => ParsedResponse::Value(found),
            Err(error) => {
                ParsedResponse::Malformed(format!("the node's answer is not accepted: {error}"))
            }
        });
        let traced = self.rpc.quorum(call, Vec::eq).await;
        traced.map_err(RpcCallError::into_reason)
    }

    /// The name of the method that the nodes have.
    pub(super) fn trace_method(&self) -> &'static str {
        match *self.tracing.method.lock() {
            _ if self.has_coin_logs() => "logs",
            _ if !self.follow.traces => "none",
            None => "unknown",
            Some(TraceMethod::CallTracer) => "debug_traceBlockByHash",
            Some(TraceMethod::Flat) => "trace_block",
            Some(TraceMethod::Nothing) => "none",
        }
    }

    /// A method that every node has; `None` while that is not known: another block is tried then.
    async fn find_method(&self, block: &EvmBlock) -> Option<TraceMethod> {
        let mut is_unknown = true;
        for method in [TraceMethod::CallTracer, TraceMethod::Flat] {
            let said = self.rpc.each(|node| {
                let call = method.call(block);
                async move {
                    let call = call?.reading(|traces: &Value| {
                        ParsedResponse::Value(method.read(block, traces).is_ok())
                    });
                    Some(self.rpc.at(node, call).await)
                }
            });
            let said: Vec<_> = said.await.into_iter().flatten().collect();
            if said.iter().all(|said| matches!(said, Ok(true))) {
                return Some(self.settle(method));
            }
            // One that does not know it is enough; others may be able to at another block.
            is_unknown &= said.iter().any(|said| {
                matches!(said, Err(RpcCallError::Node(error)) if error.code == METHOD_NOT_FOUND)
            });
        }
        is_unknown.then(|| self.settle(TraceMethod::Nothing))
    }

    /// What was found first stays: blocks are looked at side by side.
    fn settle(&self, method: TraceMethod) -> TraceMethod {
        let mut settled = self.tracing.method.lock();
        if let Some(before) = *settled {
            return before;
        }
        *settled = Some(method);
        let chain = self.rpc.chain();
        match method {
            TraceMethod::CallTracer => {
                tracing::info!(
                    chain,
                    "transfers by contracts are read with debug_traceBlockByHash"
                );
            }
            TraceMethod::Flat => {
                tracing::info!(chain, "transfers by contracts are read with trace_block");
            }
            TraceMethod::Nothing => {
                tracing::warn!(
                    chain,
                    "a node cannot trace blocks: transfers by contracts are seen only when balances are compared"
                );
            }
        }
        method
    }
}
