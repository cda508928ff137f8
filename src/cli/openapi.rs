//! `covault openapi`: the OpenAPI document, without a running service.

use super::answer;
use crate::{openapi, wiring};

/// Prints the document.
///
/// # Errors
/// None but a broken schema.
pub fn run() -> anyhow::Result<()> {
    let document = openapi::document().map_err(wiring::explain)?;
    answer(format_args!("{document:#}"));
    Ok(())
}
