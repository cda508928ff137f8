//! Tests of clusters, nodes and backends in one binary; simulated clusters are in `sim`.

#![allow(non_snake_case, missing_docs)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods
)]

mod approval_page;
mod attest;
mod byzantine;
mod byzantine_node;
mod cggmp24;
mod claims_power;
mod client_signer;
mod cluster;
mod cross_network;
mod crowd;
#[path = "../../../tests/support/disk.rs"]
mod disk;
mod distrust;
mod dkls23_rules;
mod freeze;
mod fuzz;
mod holds;
mod keygen_quota;
mod life;
mod mutations;
mod nonce_crash;
mod pair_keys;
mod peers;
mod pool;
mod rounds;
mod secrets;
#[path = "../support/mod.rs"]
mod support;
mod transport;
mod witness;
#[path = "../sim/words.rs"]
mod words;
