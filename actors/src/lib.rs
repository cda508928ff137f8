//! Covault's orchestrator: the actors of vaults and signing requests, their store and the
//! clients of chain nodes. `src/` reaches it through [`gateway`] only.

pub mod gateway;
pub mod port;
pub mod rpc;
pub mod settings;
pub mod store;
