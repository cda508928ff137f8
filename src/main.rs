//! Covault: threshold wallet signing. One binary, several roles; see `covault --help`.

mod abis;
mod adapters;
mod api;
mod chain_nodes;
mod cli;
mod command_bus;
mod config;
mod files;
mod grpc;
mod http;
mod metrics;
mod openapi;
mod passphrase;
mod protect;
mod resumption;
mod sharing;
mod shutdown;
mod signers;
mod telemetry;
mod wiring;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    match cli::run(cli::Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("covault: {error:#}");
            match error.downcast_ref::<cli::IntegrityError>() {
                Some(_) => ExitCode::from(3),
                None => ExitCode::FAILURE,
            }
        }
    }
}
