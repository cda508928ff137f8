//! What every command has: its caller, its idempotency record, and what its commit holds besides its effect.

pub mod answer;
pub mod caller;
pub mod command_commit;
pub mod idempotency;
pub mod tokens;
