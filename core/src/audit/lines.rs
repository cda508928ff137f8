//! The audit log as lines of JSON: how it is exported, and read again.
//!
//! One object per line, with one name that says what it is: `start`, then every
//! `entry`, the `head` of every chain, and `end`, which counts, and has the
//! SHA-256 of all bytes before its line.

use std::io;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{AuditChain, AuditEntry, ChainHead, ChainReport, KnownHeads, LinkedEntry, LogChecker};
use crate::fault::{Class, Fault};

/// The version of the form of lines.
const FORMAT: u32 = 1;
/// Most lines that are named as damaged; the rest is counted.
const MOST: usize = 100;

/// A line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ExportLine {
    /// The first.
    Start(ExportStart),
    /// An entry.
    Entry(EntryLine),
    /// The head of a chain.
    Head(HeadLine),
    /// The last.
    End(ExportEnd),
}

/// See [`ExportLine::Start`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExportStart {
    /// The version of the form: 1.
    pub format: u32,
    /// When it was exported, in milliseconds since the Unix epoch.
    pub at_ms: u64,
}

/// See [`ExportLine::Entry`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EntryLine {
    /// The chain.
    pub chain: String,
    /// The number.
    pub number: u64,
    /// The hash of the entry before, in hex.
    pub previous: String,
    /// Its own hash, in hex.
    pub hash: String,
    /// What it says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<AuditEntry>,
    /// The body in hex, where this version cannot read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
}

impl EntryLine {
    /// The line of an entry.
    pub fn new(chain: AuditChain, linked: &LinkedEntry) -> Self {
        let entry = AuditEntry::decode(&linked.body);
        Self {
            chain: chain.to_string(),
            number: linked.number,
            previous: hex::encode(linked.previous),
            hash: hex::encode(linked.hash),
            body: entry.is_none().then(|| hex::encode(&linked.body)),
            entry,
        }
    }

    /// The entry of a line.
    ///
    /// # Errors
    /// [`Class::Invalid`] naming the field.
    pub fn linked(&self) -> Result<(AuditChain, LinkedEntry), Fault> {
        let body = match (&self.entry, &self.body) {
            (Some(entry), None) => entry.encode()?,
            (None, Some(body)) => {
                hex::decode(body).map_err(|_| Fault::field("body", "is not hexadecimal"))?
            }
            _ => return Err(Fault::field("entry", "is required, or body instead")),
        };
        let linked = LinkedEntry {
            number: self.number,
            previous: parse_hash("previous", &self.previous)?,
            hash: parse_hash("hash", &self.hash)?,
            body,
        };
        Ok((self.chain.parse()?, linked))
    }
}

/// See [`ExportLine::Head`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeadLine {
    /// The chain.
    pub chain: String,
    /// The number of its last entry.
    pub number: u64,
    /// The hash of that, in hex.
    pub hash: String,
}

impl HeadLine {
    /// The line of a head.
    pub fn new(chain: AuditChain, head: &ChainHead) -> Self {
        Self {
            chain: chain.to_string(),
            number: head.number,
            hash: hex::encode(head.hash),
        }
    }

    /// The head of a line.
    ///
    /// # Errors
    /// [`Class::Invalid`] naming the field.
    pub fn head(&self) -> Result<(AuditChain, ChainHead), Fault> {
        let head = ChainHead {
            number: self.number,
            hash: parse_hash("hash", &self.hash)?,
        };
        Ok((self.chain.parse()?, head))
    }
}

/// A hash, of its hexadecimal digits.
///
/// # Errors
/// [`Class::Invalid`] naming the field.
pub fn parse_hash(field: &str, text: &str) -> Result<[u8; 32], Fault> {
    let mut hash = [0; 32];
    hex::decode_to_slice(text, &mut hash)
        .map_err(|_| Fault::field(field, "must be 64 hexadecimal digits"))?;
    Ok(hash)
}

/// See [`ExportLine::End`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExportEnd {
    /// Entries.
    pub entries: u64,
    /// Heads.
    pub heads: u64,
    /// Of all bytes before this line, in hex.
    pub sha256: String,
}

/// Writes an export. After [`ExportWriter::end`] it is whole.
pub struct ExportWriter<W> {
    to: W,
    hash: Sha256,
    entries: u64,
    heads: u64,
}

impl<W: io::Write> ExportWriter<W> {
    /// Begins. `now_ms` is in milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn start(to: W, now_ms: u64) -> io::Result<Self> {
        let mut writer = Self {
            to,
            hash: Sha256::new(),
            entries: 0,
            heads: 0,
        };
        writer.line(&ExportLine::Start(ExportStart {
            format: FORMAT,
            at_ms: now_ms,
        }))?;
        Ok(writer)
    }

    /// An entry.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn entry(&mut self, line: EntryLine) -> io::Result<()> {
        self.entries = self.entries.saturating_add(1);
        self.line(&ExportLine::Entry(line))
    }

    /// The head of a chain.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn head(&mut self, line: HeadLine) -> io::Result<()> {
        self.heads = self.heads.saturating_add(1);
        self.line(&ExportLine::Head(line))
    }

    /// Ends the export, and gives back what was written to.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn end(mut self) -> io::Result<W> {
        let end = ExportEnd {
            entries: self.entries,
            heads: self.heads,
            sha256: hex::encode(self.hash.clone().finalize()),
        };
        self.line(&ExportLine::End(end))?;
        self.to.flush()?;
        Ok(self.to)
    }

    fn line(&mut self, line: &ExportLine) -> io::Result<()> {
        let mut text = serde_json::to_vec(line).map_err(io::Error::other)?;
        text.push(b'\n');
        self.hash.update(&text);
        self.to.write_all(&text)
    }
}

/// Reads an export, line by line, and checks it.
pub struct ExportReader {
    hash: Sha256,
    lines: u64,
    entries: u64,
    heads: u64,
    chains: LogChecker,
    ended: bool,
    problems: Vec<String>,
    more: u64,
}

/// What was found in an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportFindings {
    /// Per chain.
    pub chains: Vec<ChainReport>,
    /// What is wrong with the file itself.
    pub problems: Vec<String>,
}

impl ExportFindings {
    /// Whether nothing is wrong.
    pub fn whole(&self) -> bool {
        self.problems.is_empty() && self.chains.iter().all(|chain| chain.breaks.is_empty())
    }
}

impl ExportReader {
    /// Begins. `expected` are heads that were kept elsewhere.
    pub fn new(expected: KnownHeads) -> Self {
        Self {
            hash: Sha256::new(),
            lines: 0,
            entries: 0,
            heads: 0,
            chains: LogChecker::new(expected),
            ended: false,
            problems: Vec::new(),
            more: 0,
        }
    }

    /// The next line, with the line feed at its end.
    pub fn line(&mut self, bytes: &[u8]) {
        self.lines = self.lines.saturating_add(1);
        if self.ended {
            self.problem("comes after the end");
            return;
        }
        let line = serde_json::from_slice::<ExportLine>(bytes);
        if !matches!(line, Ok(ExportLine::End(_))) {
            self.hash.update(bytes);
        }
        let read = match line {
            Ok(line) => self.read(line),
            Err(error) => Err(Fault::new(Class::Invalid, error.to_string())),
        };
        if let Err(fault) = read {
            self.problem(fault.message());
        }
    }

    fn read(&mut self, line: ExportLine) -> Result<(), Fault> {
        let first = self.lines == 1;
        match line {
            ExportLine::Start(ExportStart { format, .. }) if first => match format {
                FORMAT => Ok(()),
                _ => Err(Fault::field(
                    "format",
                    "was written by a newer version of Covault: use that version",
                )),
            },
            ExportLine::Start(_) => Err(Fault::new(Class::Invalid, "is a second start")),
            _ if first => Err(Fault::new(
                Class::Invalid,
                "is not the start of an audit log",
            )),
            ExportLine::Entry(entry) => {
                let (chain, linked) = entry.linked()?;
                self.entries = self.entries.saturating_add(1);
                self.chains.entry(chain, &linked);
                Ok(())
            }
            ExportLine::Head(line) => {
                let (chain, head) = line.head()?;
                self.heads = self.heads.saturating_add(1);
                if self.chains.head(chain, head) {
                    Ok(())
                } else {
                    Err(Fault::field("chain", "has a second head"))
                }
            }
            ExportLine::End(end) => {
                self.ended = true;
                let ExportEnd {
                    entries,
                    heads,
                    sha256,
                } = end;
                if (entries, heads) != (self.entries, self.heads) {
                    let problem = "does not match the number of lines";
                    return Err(Fault::new(Class::Invalid, problem));
                }
                if sha256 != hex::encode(self.hash.clone().finalize()) {
                    let problem =
                        "sha256 does not match the lines before it: the file was modified";
                    return Err(Fault::new(Class::Invalid, problem));
                }
                Ok(())
            }
        }
    }

    fn problem(&mut self, problem: &str) {
        if self.problems.len() >= MOST {
            self.more = self.more.saturating_add(1);
            return;
        }
        self.problems
            .push(format!("line {}: {problem}", self.lines));
    }

    /// There are no more lines.
    pub fn finish(mut self) -> ExportFindings {
        if !self.ended {
            self.problems
                .push("the file has no end: it was truncated".to_owned());
        }
        if self.more > 0 {
            self.problems.push(format!("{} more problems", self.more));
        }
        ExportFindings {
            chains: self.chains.finish(),
            problems: self.problems,
        }
    }
}
