//! Covault as its users see it: the real binary, real processes, a real Redis and a real chain
//! node, checked by libraries that Covault does not use (tests/node).
//!
//! `bash tests/run` installs what these tests need and runs them.
#![allow(
    non_snake_case,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests wait for real processes, stop at the first surprise, and are named thing__should_..."
)]

mod address_proofs;
mod alerts;
mod approver_removed;
mod audit;
mod backup;
mod clear;
mod client_signer;
mod closed;
mod cluster;
mod config;
mod console;
mod crash;
mod crowd;
mod deposit_oracle;
mod deposits;
mod dev;
mod enrolment;
mod errors;
mod events;
mod few_files;
mod freeze;
mod grpc;
mod hostile_console;
#[allow(dead_code, reason = "doubles of chains' nodes use the rest")]
#[path = "../support/http_double.rs"]
mod http_double;
mod life;
mod life_crash;
mod load;
mod manual_approval;
mod networks;
mod node_page;
mod nodes;
mod openapi;
mod operating;
mod orchestrators;
mod pages;
mod platform;
mod policy;
mod postgres;
#[cfg(feature = "cggmp24")]
mod primes;
mod protect;
mod restore;
mod screens;
mod secrets;
mod sentences;
mod service_manager;
mod simulation;
mod support;
mod tokens;
#[cfg(feature = "otlp")]
mod traces;
#[allow(dead_code, reason = "doubles of chains' nodes use the rest")]
#[path = "../support/tron_bank.rs"]
mod tron_bank;
#[allow(dead_code, reason = "doubles of chains' nodes use the rest")]
#[path = "../support/tron_chain.rs"]
mod tron_chain;
mod tron_sweeps;
// Releases pass for no other version.
#[cfg(debug_assertions)]
mod upgrade;
mod vault_requests;
