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

mod admin_tokens;
mod approvals;
mod aptos_double;
mod aptos_node;
mod aptos_replaced;
mod archives;
mod audit;
mod backup;
mod batch_payments;
mod batch_turns;
mod batches;
mod bitcoin_byzantine;
mod bitcoin_node;
mod bitcoin_replaced;
mod bitcoin_sightings;
mod chain_double;
mod coin_control;
#[path = "../../../tests/support/delayed_port.rs"]
mod delayed_port;
mod deposit_balances;
mod deposit_chain;
mod deposit_cuts;
mod deposit_nodes;
mod deposit_sweep_looks;
mod deposit_sweep_top_ups;
mod deposit_sweep_trouble;
mod deposit_sweeps;
mod deposit_traces;
mod deposit_tron;
mod deposit_tron_balances;
mod deposit_tron_sweeps;
mod deposit_webhooks;
mod deposits;
#[path = "../../../tests/support/disk.rs"]
mod disk;
mod endpoints;
mod evm_anvil;
mod evm_node;
mod evm_word;
mod failures;
mod fake_signers;
mod faulty_store;
mod found_again;
mod giving_up;
mod held_store;
#[path = "../../../tests/support/http_double.rs"]
mod http_double;
mod idempotency;
mod keeping_byzantine_node;
mod late_answer;
mod lists;
#[path = "../../../tests/support/log.rs"]
mod log;
mod mail;
mod many_refusals;
mod many_vaults;
mod nodes;
mod nonces;
mod numbered_double;
mod numbers_behind;
mod one_witness;
mod one_word;
mod overview;
mod plans;
#[path = "../../../tests/support/ports.rs"]
mod ports;
#[path = "../../../tests/support/postgres.rs"]
mod postgres;
mod power_cuts;
mod processes;
mod proofs;
mod rebroadcast;
mod rejections;
mod repeated_outputs;
mod repeated_payments;
mod replacing;
mod requests;
mod reservations;
mod reshare_failures;
mod reshares;
mod restarts;
mod resuming;
mod revocations;
mod rivals;
mod round_trips;
mod several;
mod several_postgres;
mod simulating_nodes;
mod simulations;
mod slow_nodes;
mod solana_node;
mod solana_parts;
mod solana_prices;
mod sponsored;
mod stellar_node;
mod sui_double;
mod sui_node;
mod timed_double;
mod tokens;
mod ton_node;
mod tracker;
#[path = "../../../tests/support/tron_bank.rs"]
mod tron_bank;
#[path = "../../../tests/support/tron_chain.rs"]
mod tron_chain;
mod tron_node;
mod trouble;
mod unseen;
mod users;
mod utxo_double;
mod wallets;
mod warnings;
mod world;
