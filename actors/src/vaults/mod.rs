//! Vaults: which are here, the actor of each, its wallets and the proofs of their addresses.

pub mod address_proofs;
pub mod directory;
pub mod vault;
pub mod vault_actors;
pub mod wallets;
