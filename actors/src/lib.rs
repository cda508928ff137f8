//! Covault's orchestrator: the actors of vaults and signing requests, their store and the
//! clients of chain nodes. `src/` reaches it through [`gateway`] only.

mod account;
mod appointments;
pub mod audit;
pub mod backup;
mod balances;
mod batches;
pub mod chain_rpc;
mod changes;
mod commands;
mod counters;
mod deposits;
mod fees;
pub mod gateway;
mod leases;
mod limits;
mod lists;
mod node_observer;
mod nodes;
pub mod operations;
pub mod port;
mod refused_payloads;
mod requests;
mod retention;
mod root;
mod services;
pub mod settings;
mod shares;
pub mod store;
mod tasks;
#[cfg(feature = "testing")]
pub mod testing;
mod tokens;
mod tracking;
pub mod users;
mod vaults;
mod void_answers;
mod waiters;
pub mod webhooks;
