//! `covault audit`: the audit log, checked and exported.

mod source;

use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead as _, BufReader, BufWriter},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use covault_core::{
    audit::{ChainReport, ExportFindings, ExportLine, ExportReader, HeadLine, KnownHeads},
    port::Clock as _,
};

use self::source::LogSource;
use super::{CommandFinding, client::ConnectionArgs, print_line};
use crate::{adapters::SystemClock, wiring};

/// Most bytes of a line that is read.
const MAX_LINE: u64 = 16 * 1024 * 1024;

/// The audit log.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    Verify(VerifyAuditArgs),
    Export(ExportAuditArgs),
}

/// Check that no entry of the audit log was changed, removed, inserted or moved.
///
/// Prints chain, number and hash of the last entry of every chain. Keep that (`> heads`) elsewhere, and check against
/// it later with --expect: nothing else shows that a chain was truncated or rewritten. Problems are listed on
/// standard error, and the exit code is 3; it is 1 when the log could not be read.
#[derive(Debug, clap::Args)]
pub struct VerifyAuditArgs {
    /// Check this exported file, offline.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["config", "url", "token_file", "offline"])]
    file: Option<PathBuf>,
    /// A file with heads that you kept: the output of this command, or an export. May be repeated.
    #[arg(long, value_name = "FILE")]
    expect: Vec<PathBuf>,
    #[command(flatten)]
    from: LogSourceArgs,
}

/// Export the audit log as lines of JSON, one entry per line, from a running service or from a store that no process
/// uses.
///
/// The heads of all chains come at the end. `covault audit verify --file` checks it offline. It contains no secret,
/// but says who did what: keep it private.
#[derive(Debug, clap::Args)]
pub struct ExportAuditArgs {
    /// Write to this new file (mode 0600), not to standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    from: LogSourceArgs,
}

/// Where the log is.
#[derive(Debug, clap::Args)]
struct LogSourceArgs {
    /// Open the store itself (in serve.data_dir, or [store]); no orchestrator may be using it.
    #[arg(long, conflicts_with = "url")]
    offline: bool,
    #[command(flatten)]
    target: ConnectionArgs,
}

impl LogSourceArgs {
    async fn source(self) -> anyhow::Result<LogSource> {
        if self.offline {
            LogSource::stopped(&self.target.configuration()?).await
        } else {
            Ok(LogSource::Running(self.target.client()?))
        }
    }
}

pub async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Verify(args) => verify(args).await,
        Command::Export(args) => export(args).await,
    }
}

async fn export(args: ExportAuditArgs) -> anyhow::Result<()> {
    let source = args.from.source().await?;
    let Some(path) = args.out else {
        let out = BufWriter::new(io::stdout().lock());
        source.export(out, SystemClock.now_ms()).await?;
        return Ok(());
    };
    let shown = path.display();
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .with_context(|| format!("cannot make {shown}"))?;
    let written = write_to(&source, file).await;
    if written.is_err() {
        // Half an export is of no use, and would be in the way of the next.
        let _ = std::fs::remove_file(&path);
    }
    written.with_context(|| format!("{shown} was not written"))
}

async fn write_to(source: &LogSource, file: File) -> anyhow::Result<()> {
    let out = source
        .export(BufWriter::new(file), SystemClock.now_ms())
        .await?;
    out.into_inner()?.sync_all()?;
    Ok(())
}

async fn verify(args: VerifyAuditArgs) -> anyhow::Result<()> {
    let mut expected = KnownHeads::new();
    for path in &args.expect {
        read_heads(path, &mut expected)?;
    }
    let reader = ExportReader::new(expected);
    let findings = match &args.file {
        Some(path) => read_file(path, reader)?,
        None => {
            let source = args.from.source().await?;
            let writer = VerifyingWriter {
                reader,
                line: Vec::new(),
            };
            let read = source.export(writer, SystemClock.now_ms()).await?;
            read.reader.finish()
        }
    };
    print_findings(&findings)
}

/// Prints what was found.
fn print_findings(findings: &ExportFindings) -> anyhow::Result<()> {
    let mut broken = print_heads(&findings.chains);
    for problem in &findings.problems {
        eprintln!("BROKEN {problem}");
        broken = broken.saturating_add(1);
    }
    if broken > 0 {
        let alarm = format!("the audit log is broken: {broken} problems");
        return Err(CommandFinding::alarm(alarm).into());
    }
    let entries = findings.chains.iter().map(|chain| chain.entries);
    eprintln!(
        "whole: {} entries in {} chains",
        entries.sum::<u64>(),
        findings.chains.len()
    );
    Ok(())
}

/// Prints the heads of chains, and on standard error what is broken. Returns how much is.
pub fn print_heads(chains: &[ChainReport]) -> usize {
    let mut broken = 0_usize;
    let mut unreadable = 0_u64;
    for chain in chains {
        unreadable = unreadable.saturating_add(chain.unreadable);
        if let Some(head) = &chain.head {
            let HeadLine {
                chain,
                number,
                hash,
            } = HeadLine::new(chain.chain, head);
            print_line(format_args!("{chain} {number} {hash}"));
        }
        for problem in &chain.breaks {
            eprintln!("BROKEN {problem}");
            broken = broken.saturating_add(1);
        }
    }
    if unreadable > 0 {
        eprintln!(
            "{unreadable} entries were written by a newer version of Covault: only their hashes were checked"
        );
    }
    broken
}

/// Checks what is written to it.
struct VerifyingWriter {
    reader: ExportReader,
    line: Vec<u8>,
}

impl io::Write for VerifyingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                self.reader.line(&self.line);
                self.line.clear();
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Calls `each` with every line of a file.
fn lines(path: &Path, mut each: impl FnMut(&[u8]) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("cannot read {shown}"))?;
    let mut file = BufReader::new(file);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = io::Read::take(&mut file, MAX_LINE).read_until(b'\n', &mut line);
        if read.with_context(|| format!("cannot read {shown}"))? == 0 {
            return Ok(());
        }
        each(&line)?;
    }
}

fn read_file(path: &Path, mut reader: ExportReader) -> anyhow::Result<ExportFindings> {
    lines(path, |line| {
        reader.line(line);
        Ok(())
    })?;
    Ok(reader.finish())
}

/// Adds the heads of a file.
pub fn read_heads(path: &Path, heads: &mut KnownHeads) -> anyhow::Result<()> {
    let shown = path.display();
    let mut found = false;
    lines(path, |line| {
        let Some(line) = parse_head(line).with_context(|| format!("{shown} contains no heads"))?
        else {
            return Ok(());
        };
        let (chain, head) = line
            .head()
            .map_err(|fault| wiring::explain(fault).context(shown.to_string()))?;
        heads.entry(chain).or_default().push(head);
        found = true;
        Ok(())
    })?;
    if !found {
        bail!("{shown} contains no heads: name the output of `covault audit verify`, or an export");
    }
    Ok(())
}

/// The head of a line: of an export, or of what `verify` prints.
fn parse_head(line: &[u8]) -> anyhow::Result<Option<HeadLine>> {
    let text = std::str::from_utf8(line)?.trim();
    if text.is_empty() {
        return Ok(None);
    }
    if text.starts_with('{') {
        return Ok(match serde_json::from_str::<ExportLine>(text)? {
            ExportLine::Head(head) => Some(head),
            ExportLine::Start(_) | ExportLine::Entry(_) | ExportLine::End(_) => None,
        });
    }
    let mut words = text.split_whitespace();
    let (Some(chain), Some(number), Some(hash), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        bail!("a line is not chain, number and hash: {text:.100}");
    };
    Ok(Some(HeadLine {
        chain: chain.to_owned(),
        number: number
            .parse()
            .with_context(|| format!("{number:.100} is not a number"))?,
        hash: hash.to_owned(),
    }))
}
