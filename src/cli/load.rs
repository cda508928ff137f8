//! `covault load`: drives signing requests through a running service, verifies every signature, and reports.

mod drive;
mod meters;
mod report;
mod workload;

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};

use self::{
    drive::{LoadDriver, LoadPace},
    meters::ProcessMeters,
    report::{LoadLimits, LoadReport},
    workload::{LoadScenario, LoadWorkload},
};
use super::{CommandFinding, client::PlatformConnectionArgs, hint, print_line};

/// Drive signing requests through a running service, verify every signature, and report rates and latencies.
///
/// Signs only what has no effect: messages, and transactions of a chain that does not exist (4294967295), which are
/// never sent. The signers' policies must allow them. Wallets of its own are created in the vault at the first run and
/// used again by later ones.
///
/// Closed loop (--clients): each client makes its next request when the last one is signed. Open loop (--rate): requests
/// are made when they are due, however many are in flight, and latency counts from that moment.
///
/// Exit code 0: all was signed and the limits were met; 5: a limit was missed; 1: nothing was signed, or a signature or
/// an answer was wrong.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  covault load --url http://127.0.0.1:8080 --token-file token --vault UUID --scenario ecdsa --clients 32
  covault load --config serve.toml --vault UUID --scenario mixed --rate 50 --seconds 300 --html load.html \\
      --metrics http://127.0.0.1:9090/metrics --least-rate 49 --most-p99-ms 500")]
pub struct Args {
    /// The vault whose keys sign (covault vault list).
    #[arg(long, value_name = "UUID")]
    vault: String,
    /// What is signed.
    #[arg(long, value_enum, default_value_t = LoadScenario::Ecdsa)]
    scenario: LoadScenario,
    /// Closed loop: clients that wait for one request each.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: u32,
    /// Open loop: requests per second, instead of clients.
    #[arg(long, value_name = "N", conflicts_with = "clients", value_parser = rate)]
    rate: Option<f64>,
    /// How long is measured.
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// How long requests are made before that, which do not count.
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(0..=3_600))]
    warm_up: u64,
    /// Wallets of each network that take turns.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    wallets: u32,
    /// Metrics of a process (http://HOST:PORT/metrics): its CPU time, histograms and counters per signature are in the
    /// report. Of the orchestrator and each signer, as you like.
    #[arg(long, value_name = "URL")]
    metrics: Vec<String>,
    /// A file with the URL of the Redis that they use: its commands per signature are in the report.
    #[arg(long, value_name = "FILE")]
    redis_url_file: Option<PathBuf>,
    /// Print the report as JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Write the report as a page, with plots.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    limits: LoadLimits,
    #[command(flatten)]
    service: PlatformConnectionArgs,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "is not a number".to_owned())?;
    match rate.is_finite() && (0.01..=100_000.0).contains(&rate) {
        true => Ok(rate),
        false => Err("must be from 0.01 to 100000".to_owned()),
    }
}

/// Runs the command.
///
/// # Errors
/// When the service cannot be used, and as exit codes.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let client = Arc::new(args.service.client()?);
    if let Some(reason) = client.not_ready().await? {
        anyhow::bail!("the service takes no work now: {reason}");
    }
    hint(format_args!("preparing wallets of {}", args.scenario));
    let workload = LoadWorkload::prepare(&client, &args.vault, args.scenario, args.wallets).await?;
    let meters = ProcessMeters::new(args.metrics, args.redis_url_file.as_deref())?;
    let pace = args
        .rate
        .map_or(LoadPace::Closed(args.clients), LoadPace::Open);
    let driver = Arc::new(LoadDriver::new(client, workload));
    let (warm_up, time) = (
        Duration::from_secs(args.warm_up),
        Duration::from_secs(args.seconds),
    );
    let measured = driver.run(pace, warm_up, time, &meters).await?;
    let report = LoadReport::new(args.scenario, pace, measured, &args.limits);
    if let Some(file) = &args.html {
        let written = fs::write(file, report.page()?);
        written.with_context(|| format!("--html: {} cannot be written", file.display()))?;
        hint(format_args!("the report is in {}", file.display()));
    }
    if args.json {
        print_line(serde_json::to_string_pretty(&report)?);
    } else {
        report.lines().iter().for_each(print_line);
    }
    let wrong = report.wrong();
    ensure!(wrong == 0, "{wrong} signatures or answers are wrong");
    ensure!(report.signed() > 0, "nothing was signed");
    match report.missed() {
        missed if missed.is_empty() => Ok(()),
        missed => Err(CommandFinding::degraded(missed.join("; ")).into()),
    }
}
