//! Vaults: which are here, the actor of each, its wallets and the proofs of their addresses; and what the service asks
//! of them itself.

pub mod address_proofs;
pub mod admission;
pub mod capacity;
pub mod creation;
pub mod directory;
pub mod gaps;
pub mod management;
pub mod speed_ups;
pub mod unfinished;
pub mod vault;
pub mod vault_actors;
pub mod wallets;
