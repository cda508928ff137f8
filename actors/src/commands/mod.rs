//! What every command has: who calls, its idempotency record, and what its commit holds beside its
//! effect.

pub mod answer;
pub mod caller;
pub mod command_commit;
pub mod idempotency;
pub mod tokens;
