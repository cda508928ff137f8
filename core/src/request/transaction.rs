//! What becomes of a request's transaction on its chain after a node has taken it.

use serde::{Deserialize, Serialize};

use crate::schema::wire::{self, transaction_state::Status};

/// Where a transaction is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransactionState {
    /// Not mined yet, but it may be.
    Pending,
    /// Mined in a block that may still be reorganised away.
    Mined(Inclusion),
    /// Mined in a final block.
    Final(Inclusion),
    /// Another transaction used its number or what it spends, for good: it never comes.
    Replaced {
        /// The hash of the other one, where the chain's nodes could say it.
        by: Option<String>,
    },
    /// Its time is over for good, and no block has it: it never comes.
    Dropped,
}

/// A place in a chain, and the transaction's result there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inclusion {
    /// The number of the block: its height, slot, ledger, version or checkpoint, as the chain counts.
    pub block: u64,
    /// Whether it did what it was to do; `false` when it was reverted or failed, and only cost its fee.
    pub success: bool,
}

impl TransactionState {
    /// Whether it never changes again.
    pub fn is_settled(&self) -> bool {
        match self {
            TransactionState::Pending | TransactionState::Mined(_) => false,
            TransactionState::Final(_)
            | TransactionState::Replaced { .. }
            | TransactionState::Dropped => true,
        }
    }

    /// Its name, for logs, metrics and the audit log.
    pub fn name(&self) -> &'static str {
        match self {
            TransactionState::Pending => "Pending",
            TransactionState::Mined(_) => "Mined",
            TransactionState::Final(_) => "Final",
            TransactionState::Replaced { .. } => "Replaced",
            TransactionState::Dropped => "Dropped",
        }
    }

    /// As responses show it.
    pub fn to_wire(&self) -> wire::TransactionState {
        let (status, inclusion) = match self {
            TransactionState::Pending => (Status::Pending, None),
            TransactionState::Mined(inclusion) => (Status::Mined, Some(inclusion)),
            TransactionState::Final(inclusion) => (Status::Final, Some(inclusion)),
            TransactionState::Replaced { .. } => (Status::Replaced, None),
            TransactionState::Dropped => (Status::Dropped, None),
        };
        let replaced_by = match self {
            TransactionState::Replaced { by } => by.clone().unwrap_or_default(),
            _ => String::new(),
        };
        wire::TransactionState {
            status: status.into(),
            block: inclusion.map(|inclusion| inclusion.block),
            success: inclusion.map(|inclusion| inclusion.success),
            replaced_by,
        }
    }
}
