//! Processes, clients and outside libraries that the tests share.

mod browsers;
mod chains;
mod client;
mod cluster;
mod events;
mod fleet;
mod grpc;
#[path = "../../support/ports.rs"]
mod ports;
#[path = "../../support/postgres.rs"]
pub mod postgres;
mod processes;
#[path = "../../../mpc/tests/support/search.rs"]
pub mod search;
mod solana_stub;
mod tmux;

pub use browsers::*;
pub use chains::*;
pub use client::*;
pub use cluster::*;
pub use events::*;
pub use fleet::*;
pub use grpc::*;
pub use ports::free_port;
pub use processes::*;
pub use solana_stub::*;
pub use tmux::*;
