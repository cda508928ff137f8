//! The life of a request's transaction on its chain after a node has accepted it.

use serde::{Deserialize, Serialize};

use crate::schema::wire::{
    self,
    transaction_state::{Part, Status},
};

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
    /// Of several transactions some did for good what they were to do, or have a block for good, and others did not: in
    /// their order.
    Partial(Vec<TransactionPart>),
}

/// What became of one of the transactions of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransactionPart {
    /// Its hash.
    pub hash: String,
    /// The block that has it for good; `None`: no block has it, and it never comes.
    pub inclusion: Option<Inclusion>,
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
            | TransactionState::Dropped
            | TransactionState::Partial(_) => true,
        }
    }

    /// Whether, as far as is known, it did nothing of what it was to do.
    pub fn is_in_vain(&self) -> bool {
        match self {
            TransactionState::Pending | TransactionState::Partial(_) => false,
            TransactionState::Mined(at) | TransactionState::Final(at) => !at.success,
            TransactionState::Replaced { .. } | TransactionState::Dropped => true,
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
            TransactionState::Partial(_) => "Partial",
        }
    }

    /// As responses show it.
    pub fn to_wire(&self) -> wire::TransactionState {
        let (status, inclusion) = match self {
            TransactionState::Pending => (Status::Pending, None),
            TransactionState::Mined(inclusion) => (Status::Mined, Some(*inclusion)),
            TransactionState::Final(inclusion) => (Status::Final, Some(*inclusion)),
            TransactionState::Replaced { .. } => (Status::Replaced, None),
            TransactionState::Dropped => (Status::Dropped, None),
            TransactionState::Partial(parts) => {
                let blocks = parts.iter().filter_map(|part| Some(part.inclusion?.block));
                let last = blocks.max().map(|block| Inclusion {
                    block,
                    success: false,
                });
                (Status::Partial, last)
            }
        };
        let replaced_by = match self {
            TransactionState::Replaced { by } => by.clone().unwrap_or_default(),
            _ => String::new(),
        };
        let parts = match self {
            TransactionState::Partial(parts) => parts.as_slice(),
            _ => &[],
        };
        wire::TransactionState {
            status: status.into(),
            block: inclusion.map(|inclusion| inclusion.block),
            success: inclusion.map(|inclusion| inclusion.success),
            replaced_by,
            parts: parts.iter().map(TransactionPart::to_wire).collect(),
        }
    }
}

impl TransactionPart {
    fn to_wire(&self) -> Part {
        let status = match self.inclusion {
            Some(_) => Status::Final,
            None => Status::Dropped,
        };
        Part {
            hash: self.hash.clone(),
            status: status.into(),
            block: self.inclusion.map(|inclusion| inclusion.block),
            success: self.inclusion.map(|inclusion| inclusion.success),
        }
    }
}
