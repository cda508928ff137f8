//! Covault's orchestrator: the actors of vaults and signing requests, their store and the
//! clients of chain nodes. `src/` reaches it through [`gateway`] only.

mod balances;
mod batches;
mod building;
mod claims;
mod commands;
mod context;
mod deposits;
mod directory;
mod dropped;
mod expiry;
pub mod gateway;
mod idempotency;
mod lanes;
mod ledger;
mod lists;
mod nodes;
mod operations;
mod pledge;
pub mod port;
mod reaper;
mod request_index;
mod root;
mod rows;
pub mod rpc;
pub mod settings;
mod signing;
mod simulations;
pub mod store;
mod tokens;
mod vault;
mod views;
mod wallets;
