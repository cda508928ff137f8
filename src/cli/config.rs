//! `covault config`: configuration files, without a running service.

use std::path::PathBuf;

use comfy_table::{Table, presets::NOTHING};

use super::{CommandFinding, print_line};
use crate::config::{Config, ConfigError};

/// Configuration files.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Check a file and the COVAULT_ variables: every problem at once. Touches neither folders nor the network.
    ///
    /// Exit code 0: nothing is wrong; 1: something is.
    Check {
        /// Configuration file (TOML). Without it: the defaults, and COVAULT_ variables.
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        /// What is to run with it.
        #[arg(long, value_enum, default_value_t = CheckedRole::Serve)]
        role: CheckedRole,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print the settings in force, each with its origin. Secrets are not shown.
    Show {
        /// Configuration file (TOML). Without it: the defaults, and COVAULT_ variables.
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// What a configuration is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum CheckedRole {
    /// The orchestrator: covault serve
    Serve,
    /// A signer node: covault signer
    Signer,
}

/// Runs the command.
///
/// # Errors
/// What is wrong.
pub fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Check { file, role, json } => {
            let loaded = match role {
                CheckedRole::Serve => Config::load(file.as_deref()),
                CheckedRole::Signer => Config::load_for_signer(file.as_deref()),
            };
            let checked = loaded.and_then(|(config, ignored)| {
                if role == CheckedRole::Signer {
                    config.signer.check_secure()?;
                }
                Ok(ignored)
            });
            let name = file.map_or_else(
                || "the environment".to_owned(),
                |file| file.display().to_string(),
            );
            for variable in report(&name, checked, json)? {
                eprintln!("{variable}: unknown variable, ignored");
            }
            Ok(())
        }
        Command::Show { file, json } => {
            let shown = Config::shown(file.as_deref())?;
            if json {
                let entry = |setting: &crate::config::ShownSetting| serde_json::json!({"setting": setting.path, "value": setting.value, "origin": setting.origin});
                let entries: Vec<_> = shown.iter().map(entry).collect();
                print_line(format_args!("{:#}", serde_json::Value::from(entries)));
                return Ok(());
            }
            let mut table = Table::new();
            table
                .load_style(NOTHING)
                .set_header(["SETTING", "VALUE", "ORIGIN"]);
            for setting in &shown {
                table.add_row([&setting.path, &setting.value, &setting.origin]);
            }
            for line in table.lines() {
                print_line(line.trim_end());
            }
            Ok(())
        }
    }
}

/// Says what is wrong, a line for each problem.
fn report<T>(name: &str, checked: Result<T, ConfigError>, json: bool) -> anyhow::Result<T> {
    let problems = checked.as_ref().err().map(ConfigError::each);
    let problems = problems.unwrap_or_default();
    if json {
        let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
        let report = serde_json::json!({"file": name, "problems": problems});
        print_line(format_args!("{report:#}"));
    } else if checked.is_ok() {
        print_line(format_args!("{name}: no problem found"));
    } else {
        problems.iter().for_each(print_line);
    }
    let error = match checked {
        Ok(found) => return Ok(found),
        Err(error) => error,
    };
    let count = error.each().len();
    let problems = if count == 1 { "problem" } else { "problems" };
    Err(CommandFinding::error(format!("{name}: {count} {problems}")).into())
}
