//! Covault's orchestrator: the actors of vaults and signing requests, their store and the
//! clients of chain nodes. `src/` reaches it through [`gateway`] only.

pub mod audit;
pub mod backup;
mod batches;
pub mod chain_rpc;
mod changes;
mod commands;
mod deposits;
pub mod gateway;
mod health;
mod leases;
mod lists;
pub mod mail;
mod nodes;
mod notifications;
pub mod operations;
mod overview;
pub mod port;
mod process;
mod requests;
mod retention;
mod root;
mod services;
pub mod settings;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;
pub mod users;
mod vaults;
pub mod webhooks;
