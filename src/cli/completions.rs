//! `covault completions` and `covault man`: what shells and `man` know of the commands.

use std::{io::Write as _, path::PathBuf};

use anyhow::Context as _;
use clap::{Command, CommandFactory as _};
use clap_complete::Shell;

use super::{Cli, examples};

/// Print the completions of a shell.
///
/// bash: covault completions bash > /etc/bash_completion.d/covault
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Write a manual page for each command into a folder.
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// The folder. It is created if it is missing.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

/// Prints the completions.
///
/// # Errors
/// When they cannot be written.
pub fn completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "covault", &mut text);
    // A reader that has gone is no reason to end.
    let _ = std::io::stdout().write_all(&text);
    Ok(())
}

/// Writes the pages.
///
/// # Errors
/// When one cannot be written.
pub fn man(args: &ManArgs) -> anyhow::Result<()> {
    std::fs::create_dir_all(&args.folder)
        .with_context(|| format!("{} cannot be made", args.folder.display()))?;
    let mut covault = examples::command();
    covault.build();
    page(&covault, "covault", args)
}

fn page(command: &Command, name: &str, args: &ManArgs) -> anyhow::Result<()> {
    // Its name is kept for ever, and a process makes each page once.
    let named = command.clone().name(&*name.to_owned().leak());
    let mut text = Vec::new();
    clap_mangen::Man::new(named).render(&mut text)?;
    let path = args.folder.join(format!("{name}.1"));
    std::fs::write(&path, text).with_context(|| format!("{} cannot be written", path.display()))?;
    for inner in command.get_subcommands() {
        if inner.get_name() != "help" && !inner.is_hide_set() {
            page(inner, &format!("{name}-{}", inner.get_name()), args)?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn pages__should_be_there_for_every_command() {
        let folder = tempfile::tempdir().expect("a folder");
        let args = ManArgs {
            folder: folder.path().join("man1"),
        };
        man(&args).expect("written");
        for page in ["covault.1", "covault-serve.1", "covault-vault-create.1"] {
            let text = std::fs::read_to_string(args.folder.join(page)).expect(page);
            assert!(text.contains(".SH NAME"), "{text}");
        }
        let create = std::fs::read_to_string(args.folder.join("covault-vault-create.1"));
        assert!(create.expect("read").contains("threshold"));
    }
}
