//! The input of the gateway, and what it reports about itself.

use std::collections::BTreeMap;

use covault_core::fault::Fault;

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

/// How the process is, part by part.
#[derive(Clone, Debug)]
pub struct Health {
    /// It gives its vaults away, and ends.
    pub is_leaving: bool,
    /// Whether the store can be written.
    pub store: Result<(), Fault>,
    /// Signer nodes that it hears, of those that were admitted.
    pub signers: (usize, usize),
    /// Whether clients are let in: after a restore they are kept out.
    pub clients: Result<(), Fault>,
}

impl Health {
    /// Whether it can take requests.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] with the first thing that is in the way.
    pub fn ready(self) -> Result<(), Fault> {
        if self.is_leaving {
            return Err(Fault::unavailable("the service is shutting down"));
        }
        self.store?;
        if let (0, 1..) = self.signers {
            return Err(Fault::unavailable("no signer node can be reached"));
        }
        self.clients
    }
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
