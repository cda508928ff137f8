//! Processes, clients and outside libraries that the tests share.

mod client;
mod cluster;
mod processes;
mod solana_stub;

pub use client::*;
pub use cluster::*;
pub use processes::*;
pub use solana_stub::*;
