//! Processes, clients and outside libraries that the tests share.

mod client;
mod processes;

pub use client::*;
pub use processes::*;

mod solana_stub;
pub use solana_stub::*;
