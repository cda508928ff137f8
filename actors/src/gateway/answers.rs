//! The input of the gateway, and what it reports about itself.

use std::collections::BTreeMap;

use crate::{
    chain_rpc::ChainKey,
    process::counters::{DroppedCounts, OpenTransactions},
};

/// A request message as a client sent it.
#[derive(Clone, Copy, Debug)]
pub enum RequestBody<'a> {
    /// The JSON mapping of the schema.
    Json(&'a [u8]),
    /// Protobuf.
    Protobuf(&'a [u8]),
}

/// How a message is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Json,
    Protobuf,
}

/// What is stuck, or was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BacklogCounts {
    /// Requests that cannot make progress now.
    pub waiting: usize,
    /// Outcomes of transactions that nodes had forgotten.
    pub forgotten: DroppedCounts,
    /// Transactions that a node accepted and that are not final, by chain.
    pub transactions: BTreeMap<ChainKey, OpenTransactions>,
}
