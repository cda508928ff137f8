//! `covault node evidence`.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use covault_mpc::evidence::Equivocation;

use super::print_line;

/// Check a report that a node has signed two conflicting messages in a signing session.
///
/// Nodes keep such reports in the folder `evidence` of their data, and tell them their orchestrators, which log them.
/// A report has two envelopes that the accused node has signed. It proves a lie of that node, no matter who gives it
/// to you; a report that proves nothing may itself be a lie.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The report.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let file = args.file.display();
    let text =
        std::fs::read_to_string(&args.file).with_context(|| format!("cannot read {file}"))?;
    let Some(accused) = Equivocation::read(&text).and_then(|report| report.accused()) else {
        bail!(
            "{file} shows nothing: it does not hold two different envelopes that one node has signed for one place"
        );
    };
    print_line(format_args!(
        "{} has signed two different messages for one place: it is byzantine, or another process has its identity",
        accused.openssh_line("")
    ));
    Ok(())
}
