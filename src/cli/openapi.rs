//! `covault openapi`: the OpenAPI documents, without a running service.

use super::print_line;
use crate::{openapi, wiring};

/// Prints a document.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The document of the admin API, not of the platform API.
    #[arg(long)]
    admin: bool,
}

/// Prints the document.
///
/// # Errors
/// None but a broken schema.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let document = if args.admin {
        openapi::admin_document()
    } else {
        openapi::document()
    };
    let document = document.map_err(wiring::explain)?;
    print_line(format_args!("{document:#}"));
    Ok(())
}
