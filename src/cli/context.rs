//! `covault context`: the orchestrators that commands call, by name.

use serde::Serialize;

use super::{hint, print_line, table};
use crate::config::contexts::{CONTEXTS, Contexts};

/// Contexts, as a person has written them into ~/.config/covault/contexts.toml.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List the contexts, and which one is in use.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Use a context from now on, wherever neither --config, --url nor COVAULT_ADDR names an orchestrator.
    Use {
        /// Its name in contexts.toml.
        #[arg(value_name = "NAME", required_unless_present = "none")]
        name: Option<String>,
        /// Use none.
        #[arg(long, conflicts_with = "name")]
        none: bool,
    },
}

/// A context as a program reads it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ListedContext<'a> {
    name: &'a str,
    addr: &'a str,
    token_file: String,
    confirm: bool,
    in_use: bool,
}

pub async fn run(command: Command) -> anyhow::Result<()> {
    let contexts = Contexts::of_this_person()?;
    match command {
        Command::List { json } => {
            let listed = contexts.all.iter().map(|(name, context)| ListedContext {
                name,
                addr: &context.addr,
                token_file: context.token_file.display().to_string(),
                confirm: context.confirm,
                in_use: contexts.current.as_ref() == Some(name),
            });
            let listed: Vec<_> = listed.collect();
            if json {
                print_line(serde_json::to_string_pretty(&listed)?);
            } else if listed.is_empty() {
                hint(format_args!(
                    "no contexts yet: write ~/.config/covault/{CONTEXTS}"
                ));
            } else {
                let header = ["IN USE", "NAME", "ADDRESS", "TOKEN", "CONFIRM"];
                print_line(table(header, listed.into_iter().map(row)));
            }
            Ok(())
        }
        Command::Use { name, none: _ } => {
            contexts.choose(name.as_deref())?;
            match name {
                Some(name) => print_line(format_args!("commands call {name} from now on")),
                None => print_line("commands use no context from now on"),
            }
            Ok(())
        }
    }
}

fn row(context: ListedContext<'_>) -> [String; 5] {
    let word = |is: bool| if is { "yes" } else { "-" }.to_owned();
    [
        word(context.in_use),
        context.name.to_owned(),
        context.addr.to_owned(),
        context.token_file,
        word(context.confirm),
    ]
}
