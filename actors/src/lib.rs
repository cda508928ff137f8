//! Covault's orchestrator: the actors of vaults and signing requests, their store and the
//! clients of chain nodes. `src/` reaches it through [`gateway`] only.

mod account_queues;
pub mod audit;
pub mod backup;
mod backups;
mod balances;
pub mod command_bus;
mod command_commit;
mod context;
mod deposits;
mod directory;
mod expiry;
pub mod gateway;
mod idempotency;
mod leases;
mod lists;
mod nodes;
pub mod operations;
pub mod port;
mod proofs;
mod rebroadcast;
mod request_store;
mod reservations;
mod restore;
mod retention;
mod root;
mod routing;
mod rows;
pub mod rpc;
pub mod settings;
mod signing;
mod simulations;
pub mod store;
mod tokens;
mod tx_builder;
mod vault;
mod wallets;
