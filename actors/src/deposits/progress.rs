//! What reading a chain led to, or why it failed.

use covault_core::fault::Fault;

use crate::chain_rpc::ChainError;

/// What a look came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowProgress {
    /// There is more to do at once.
    Behind,
    /// The newest block was followed.
    AtHead,
    /// It is not to be done here.
    Idle,
}

/// Why reading a chain failed.
#[derive(Debug)]
pub enum FollowError {
    /// The nodes do not answer, or are not believed: another look may help.
    Nodes(String),
    /// The store, or a bug.
    Service(Fault),
    /// Nothing can be said of this chain until a person has checked it.
    Stopped(String),
}

impl From<Fault> for FollowError {
    fn from(fault: Fault) -> Self {
        Self::Service(fault)
    }
}

impl From<ChainError> for FollowError {
    fn from(error: ChainError) -> Self {
        Self::Nodes(error.into_reason())
    }
}
