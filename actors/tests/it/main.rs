//! The orchestrator through its gateway, with a real store, real signatures by one whole key
//! per vault, and chains that are doubles.

#![allow(
    non_snake_case,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs
)]

mod aptos_double;
mod aptos_node;
mod archives;
mod audit;
mod backup;
mod batches;
mod bitcoin_byzantine;
mod bitcoin_node;
mod chain_double;
mod deposits;
#[path = "../../../tests/support/disk.rs"]
mod disk;
mod endpoints;
mod evm_node;
mod failures;
mod fake_signers;
mod faulty_store;
mod held_store;
mod http_double;
mod idempotency;
mod late_answer;
mod lists;
mod nodes;
mod nonces;
mod plans;
#[path = "../../../tests/support/postgres.rs"]
mod postgres;
mod power_cuts;
mod processes;
mod proofs;
mod rebroadcast;
mod rejections;
mod requests;
mod reservations;
mod reshare_failures;
mod reshares;
mod restarts;
mod revocations;
mod several;
mod several_postgres;
mod simulating_nodes;
mod simulations;
mod solana_node;
mod stellar_node;
mod sui_double;
mod sui_node;
mod tokens;
mod ton_node;
mod tron_node;
mod trouble;
mod utxo_double;
mod wallets;
mod world;
