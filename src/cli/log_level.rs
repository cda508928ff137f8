//! `covault log-level`: what a running orchestrator writes into its log.

use covault_actors::operations::{GetStatus, SetLogLevel};
use covault_core::schema::admin::{GetStatusRequest, SetLogLevelRequest};

use super::{answer, client::ConnectionArgs, one_line, print_line};

/// Print the log level of a running orchestrator, or change it until the process ends (calls a running orchestrator).
///
/// Of several processes it is the one that answers. Every process reads log.level of its file again at SIGHUP.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The new level: trace, debug, info, warn, error or off, alone or by target, as in info,covault_mpc=debug.
    #[arg(value_name = "LEVEL")]
    level: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    orchestrator: ConnectionArgs,
}

/// Runs the command.
///
/// # Errors
/// When the orchestrator does not answer, or knows no such level.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let client = args.orchestrator.client()?;
    let Some(level) = args.level else {
        let status = client.call::<GetStatus>(&GetStatusRequest {}).await?;
        if args.json {
            print_line(serde_json::json!({ "logLevel": status.log_level }));
        } else {
            print_line(one_line(&status.log_level));
        }
        return Ok(());
    };
    let request = SetLogLevelRequest {
        level: level.clone(),
    };
    let changed = client.call::<SetLogLevel>(&request).await?;
    answer(args.json, &changed, |changed| {
        format!("{level} (before: {})", one_line(&changed.before))
    })
}
