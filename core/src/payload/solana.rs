//! Solana and Sonic SVM payload kinds.

/// A checked Solana payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SolanaPayload {}
