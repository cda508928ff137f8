//! The command line: one file per command.

mod address;
mod approve;
mod audit;
mod backup;
mod batch;
mod chain;
mod client;
mod client_signer;
mod completions;
mod config;
mod context;
mod deposits;
mod dev;
mod doctor;
mod examples;
mod health;
mod load;
mod log_level;
mod node;
mod openapi;
mod policy;
mod progress;
mod recover;
mod redis_acl;
mod request;
mod serve;
mod signer;
mod status;
mod sweep;
mod token;
mod top;
mod user;
mod vault;
mod wallet;
mod webhook;

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use futures::future::LocalBoxFuture;

pub use self::examples::parse;
use crate::{config::Config, protect, telemetry};

/// The end of `covault --help`, in the words of docs/exit-codes.md.
const EXIT_CODES: &str = "Exit codes:
  0    done; all is well
  1    an error: stderr says what is wrong and what to do
  2    the command line is wrong
  3    alarm: something was changed that nobody may change (audit verify, backup verify)
  5    it signs, but something needs attention (status, doctor, chain list), or a limit was missed (load)
  6    it cannot sign, not at all or not for some vault (status, doctor, health, chain list)
  7    the request failed (request watch)
  130  ended by a second SIGINT or SIGTERM (serve, signer, dev)";

/// Self-hosted threshold (MPC) wallet signing.
///
/// Signer nodes generate wallet keys as shares; no machine ever has a whole key. An orchestrator takes requests over
/// HTTP and has them signed by any t of n signers.
#[derive(Debug, Parser)]
#[command(name = "covault", version, propagate_version = true)]
pub struct Cli {
    /// Leave out progress and hints on stderr. What is wrong, or needs care, is said anyway.
    #[arg(long, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Dev(dev::Args),
    Serve(serve::Args),
    Signer(signer::Args),
    ClientSigner(client_signer::Args),
    /// Vaults: create, list, refresh, reshare, back up (calls a running orchestrator).
    #[command(subcommand)]
    Vault(vault::Command),
    /// Signer nodes: create and restore one here; admit, remove, list them (calls a running orchestrator).
    #[command(subcommand)]
    Node(node::Command),
    /// API tokens: create, list, revoke (calls a running orchestrator).
    #[command(subcommand)]
    Token(token::Command),
    /// Users of the console: create, link, list, revoke (calls a running orchestrator).
    #[command(subcommand)]
    User(user::Command),
    /// Signing requests: list, show, watch; those that make no progress (calls a running orchestrator).
    #[command(subcommand)]
    Request(request::Command),
    /// Wallets: create, list (calls a running orchestrator).
    #[command(subcommand)]
    Wallet(wallet::Command),
    /// Chains: which have nodes, and how these answer.
    #[command(subcommand)]
    Chain(chain::Command),
    /// Batch payments: list, show, approve, resume, reject (calls a running orchestrator).
    #[command(subcommand)]
    Batch(batch::Command),
    Approve(approve::ApproveArgs),
    Reject(approve::RejectArgs),
    Pending(approve::PendingArgs),
    /// Sweep tokens: configure deposits and events (calls a running orchestrator).
    #[command(subcommand)]
    Sweep(sweep::Command),
    /// Deposits: look through blocks again (calls a running orchestrator).
    #[command(subcommand)]
    Deposits(deposits::Command),
    /// Webhooks: events about deposits, and their delivery (calls a running orchestrator).
    #[command(subcommand)]
    Webhook(webhook::Command),
    /// The audit log: verify it, export it.
    #[command(subcommand)]
    Audit(audit::Command),
    /// The orchestrator's own store: back up, check, restore.
    #[command(subcommand)]
    Backup(backup::Command),
    /// Addresses: check that one belongs to a vault (offline).
    #[command(subcommand)]
    Address(address::Command),
    Recover(recover::Args),
    Status(status::Args),
    Top(top::Args),
    LogLevel(log_level::Args),
    Doctor(doctor::Args),
    RedisAcl(redis_acl::Args),
    Health(health::Args),
    Load(load::Args),
    /// Contexts: which orchestrator commands call where nothing else names one (docs/tokens.md, "Contexts").
    #[command(subcommand)]
    Context(context::Command),
    /// Configuration files: check one, print the settings in force.
    #[command(subcommand)]
    Config(config::Command),
    /// The policy file of a signer node: what it allows and limits, and why it refuses a request.
    #[command(subcommand)]
    Policy(policy::Command),
    /// Print the OpenAPI document of the API. A running service serves it at /openapi.json, and a page to read and
    /// try it at /docs.
    Openapi(openapi::Args),
    Completions(completions::CompletionsArgs),
    Man(completions::ManArgs),
}

/// Runs a command to its end.
///
/// # Errors
/// Whatever ended it, with what to do about it.
pub fn run(cli: Cli) -> anyhow::Result<()> {
    QUIET.store(cli.quiet, Ordering::Relaxed);
    #[cfg(debug_assertions)]
    crate::config::credentials::pass_for_version();
    // Fails only when a provider is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // What holds for the threads of a process is set before they are there. Many commands have keys,
    // shares, tokens or passphrases in their memory: it is nobody else's to see.
    let protection = protect::memory();
    // Boxed: the runtime is compiled for one kind of future, not into each command.
    let work: LocalBoxFuture<'_, anyhow::Result<()>> = match cli.command {
        Command::Dev(args) => Box::pin(dev::run(args)),
        Command::Serve(args) => Box::pin(serve::run(args, protection)),
        Command::Signer(args) => return signer::run(args, protection),
        Command::ClientSigner(args) => return client_signer::run(args, protection),
        Command::Vault(command) => Box::pin(vault::run(command)),
        Command::Node(command) => Box::pin(node::run(command)),
        Command::Token(command) => Box::pin(token::run(command)),
        Command::User(command) => Box::pin(user::run(command)),
        Command::Request(command) => Box::pin(request::run(command)),
        Command::Wallet(command) => Box::pin(wallet::run(command)),
        Command::Chain(command) => Box::pin(chain::run(command)),
        Command::Batch(command) => Box::pin(batch::run(command)),
        Command::Approve(args) => Box::pin(approve::approve(args)),
        Command::Reject(args) => Box::pin(approve::reject(args)),
        Command::Pending(args) => Box::pin(approve::pending(args)),
        Command::Sweep(command) => Box::pin(sweep::run(command)),
        Command::Deposits(command) => Box::pin(deposits::run(command)),
        Command::Webhook(command) => Box::pin(webhook::run(command)),
        Command::Audit(command) => Box::pin(audit::run(command)),
        Command::Backup(command) => Box::pin(backup::run(command)),
        Command::Address(command) => return address::run(command),
        Command::Recover(args) => return recover::run(args),
        Command::Policy(command) => Box::pin(policy::run(command)),
        Command::Openapi(args) => return openapi::run(&args),
        Command::Status(args) => Box::pin(status::run(args)),
        Command::Top(args) => Box::pin(top::run(args)),
        Command::LogLevel(args) => Box::pin(log_level::run(args)),
        Command::RedisAcl(args) => Box::pin(redis_acl::run(args)),
        Command::Doctor(args) => Box::pin(doctor::run(args)),
        Command::Health(args) => Box::pin(health::run(args)),
        Command::Load(args) => Box::pin(load::run(args)),
        Command::Context(command) => Box::pin(context::run(command)),
        Command::Config(command) => return config::run(command),
        Command::Completions(args) => return completions::completions(&args),
        Command::Man(args) => return completions::man(&args),
    };
    runtime()?.block_on(work)
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the asynchronous runtime cannot be started")
}

/// Starts logging, and says which variables of the environment mean nothing.
fn start_logging(config: &Config, ignored: &[String]) -> anyhow::Result<()> {
    telemetry::init(&config.log)?;
    for name in ignored {
        tracing::warn!(name, "unknown COVAULT_ environment variable ignored");
    }
    Ok(())
}

/// A node's key as the API takes it: an OpenSSH line, or what a .pub file holds.
fn public_key(key: &str) -> anyhow::Result<String> {
    let key = key.trim();
    if key.starts_with("ssh-") {
        return Ok(key.to_owned());
    }
    std::fs::read_to_string(key)
        .map(|line| line.trim().to_owned())
        .with_context(|| {
            format!("{key:?} is neither an OpenSSH line (ssh-ed25519 AAAA...) nor a file that can be read")
        })
}

/// The exit code of what cannot sign.
const CANNOT_SIGN: u8 = 6;

/// A command did what it was asked to, and what it found has an exit code of its own.
#[derive(Debug, thiserror::Error)]
#[error("{sentence}")]
pub struct CommandFinding {
    code: u8,
    sentence: String,
}

impl CommandFinding {
    /// Something is wrong that the command was to look for.
    fn error(sentence: String) -> Self {
        Self { code: 1, sentence }
    }

    /// Someone has changed what nobody may change.
    fn alarm(sentence: String) -> Self {
        Self { code: 3, sentence }
    }

    /// It works, and not all of it.
    fn degraded(sentence: String) -> Self {
        Self { code: 5, sentence }
    }

    /// Some of it cannot sign.
    fn cannot_sign(sentence: String) -> Self {
        Self {
            code: CANNOT_SIGN,
            sentence,
        }
    }

    /// The request that was watched has failed.
    fn request_failed(sentence: String) -> Self {
        Self { code: 7, sentence }
    }

    /// The exit code of the process.
    pub fn code(&self) -> u8 {
        self.code
    }
}

/// Prints a response message as JSON.
fn answer_json<T: prost::Message + prost::Name>(message: &T) -> anyhow::Result<()> {
    let text = covault_core::schema::json::encode(message).map_err(crate::wiring::explain)?;
    let json: serde_json::Value = serde_json::from_str(&text)?;
    print_line(format_args!("{json:#}"));
    Ok(())
}

/// Prints what an orchestrator has answered: as JSON where that is wanted, else in words.
fn answer<T, S>(json: bool, message: &T, words: impl FnOnce(&T) -> S) -> anyhow::Result<()>
where
    T: prost::Message + prost::Name,
    S: std::fmt::Display,
{
    if json {
        return answer_json(message);
    }
    print_line(words(message));
    Ok(())
}

/// A text of the service's as part of a line.
fn one_line(text: &str) -> String {
    approve::visible(text).replace('\n', " ")
}

/// A table for people: the header, then a line for each row.
fn table<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = comfy_table::Table::new();
    table
        .load_style(comfy_table::presets::NOTHING)
        .set_header(header);
    for row in rows {
        table.add_row(row);
    }
    // Each cell begins with a blank, the first as well.
    let lines = table.lines().map(|line| line.trim().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether progress and hints are left out. Of this process: it runs one command.
static QUIET: AtomicBool = AtomicBool::new(false);

fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Tells on stderr what a person may do next; scripts can leave it out.
fn hint(text: impl std::fmt::Display) {
    if !is_quiet() {
        eprintln!("{text}");
    }
}

/// Prints a command's answer.
fn print_line(text: impl std::fmt::Display) {
    use std::io::Write as _;
    // A reader that has gone (`covault dev | head -1`) is no reason to end.
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// "12 s ago".
fn ago(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..120 => format!("{seconds} s ago"),
        120..7200 => format!("{} min ago", seconds / 60),
        7200..172_800 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn cli__should_be_well_formed() {
        super::Cli::command().debug_assert();
    }

    /// Those that have no orchestrator answer them, or whose output is a document, a file or a secret already.
    const WITHOUT_JSON: &[&str] = &[
        "address verify",
        "audit export",
        "audit verify",
        "backup create",
        "backup restore",
        "backup verify",
        "client-signer",
        "completions",
        "context use",
        "dev",
        "man",
        "node approver-link",
        "node clear-unused",
        "node evidence",
        "node forget-prepared",
        "node freeze",
        "node init",
        "node permit",
        "node primes",
        "node restore",
        "node retired",
        "node thaw",
        "node veto",
        "openapi",
        "policy approver",
        "policy check",
        "recover",
        "redis-acl",
        "serve",
        "signer",
        "top",
        "vault approvals propose",
        "vault approvals sign",
        "vault backup",
    ];

    /// The commands below one, by their whole names, that do not print JSON.
    fn without_json(command: &clap::Command, name: &str) -> Vec<String> {
        let below =
            |sub: &clap::Command| without_json(sub, format!("{name} {}", sub.get_name()).trim());
        if command.has_subcommands() {
            return command.get_subcommands().flat_map(below).collect();
        }
        let has_json = command
            .get_arguments()
            .any(|argument| argument.get_long() == Some("json"));
        if has_json {
            Vec::new()
        } else {
            vec![name.to_owned()]
        }
    }

    #[test]
    fn commands__should_print_json_where_an_orchestrator_answers() {
        let mut found = without_json(&super::Cli::command(), "");
        found.sort();
        assert_eq!(found, WITHOUT_JSON);
    }

    #[test]
    fn exit_codes__should_be_those_of_the_docs() {
        let page = include_str!("../../docs/exit-codes.md");
        let first = |line: &str| line.split('|').nth(1).map(|cell| cell.trim().to_owned());
        let of_page: Vec<_> = page.lines().skip(4).filter_map(first).collect();
        let help = super::EXIT_CODES.lines().skip(1);
        let of_help: Vec<_> = help
            .filter_map(|line| line.split_whitespace().next())
            .collect();
        assert_eq!(of_help, of_page);
    }
}
