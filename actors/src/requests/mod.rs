//! Signing requests: how each is built, what it holds, and the actor that has it signed and sent.

pub mod account_queues;
pub mod rebroadcast;
pub mod request_store;
pub mod reservations;
pub mod signing;
pub mod simulations;
pub mod tx_builder;
