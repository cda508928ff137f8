//! Signing requests: how each is built, what it holds, and the actor that has it signed and sent.

pub mod account;
pub mod account_queues;
pub mod approval_waits;
pub mod awaiting;
pub mod batch_claim;
pub mod failures;
pub mod followed;
pub mod rebroadcast;
pub mod recipients;
pub mod refused;
pub mod replacement_claim;
pub mod replacing;
pub mod request_store;
pub mod reservations;
pub mod search_terms;
pub mod signing;
pub mod simulations;
pub mod stuck;
pub mod sweep_claim;
pub mod tracker;
pub mod tracking;
pub mod tx_builder;
pub mod void_answers;
