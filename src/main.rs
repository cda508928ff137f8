//! Covault: threshold wallet signing. One binary, several roles; see `covault --help`.

mod abis;
mod adapters;
mod api;
mod approval_page;
mod approving;
mod batch_sheet;
mod bus_check;
mod callback;
mod chain_nodes;
mod cli;
mod command_bus;
mod config;
mod console;
mod files;
mod grpc;
mod health;
mod http;
mod identities;
mod listeners;
#[cfg(test)]
#[allow(dead_code)]
#[path = "../tests/support/log.rs"]
mod log_capture;
mod metrics;
mod node_questions;
mod openapi;
mod passphrase;
mod policy_reload;
mod preflight;
mod protect;
mod redis_access;
mod resumption;
mod service_manager;
mod sharing;
mod shutdown;
mod signers;
mod sockets;
mod store_meter;
mod telemetry;
mod tls;
mod token_files;
mod traces;
mod units;
mod webhooks;
mod wiring;

use std::process::ExitCode;

use covault_core::fault::Fault;
use tikv_jemallocator::Jemalloc;

/// Gives back to the system what a flood has taken; the system's own keeps it (docs/decisions/0052-the-allocator.md).
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    // Else what is free is given back only when something else is allocated.
    let _ = tikv_jemalloc_ctl::background_thread::write(true);
    match cli::run(cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let fault = error.root_cause().downcast_ref::<Fault>();
            let code = fault.map(|fault| format!(" [{}]", fault.stable_code()));
            eprintln!("covault: {error:#}{}", code.unwrap_or_default());
            match error.downcast_ref::<cli::CommandFinding>() {
                Some(finding) => ExitCode::from(finding.code()),
                None => ExitCode::FAILURE,
            }
        }
    }
}
