//! `covault policy approver`: adds a person's key to a policy file.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use covault_core::approval::{ApproverKey, ApproverLine, Passkey};
use covault_mpc::policy::Policy;
use serde::Deserialize;
use toml::{Spanned, Value};

use crate::{cli::print_line, files, wiring};

/// Add an approver's key to a signer's policy file: the line that an enrolment page shows
/// ("covault-approver1 ..."), whose proof it checks, or an OpenSSH public key.
///
/// It prints whose the key is, where it can be used, whether a cloud can copy it, and eight words. Have the person read
/// the words to you over a channel other than the one by which the line came: an attacker who exchanges the line on
/// its way would approve in the person's place. Then repeat the command with --yes. The signer reads it when it is
/// restarted.
///
/// Example:
///
///   covault policy approver /etc/covault/policy.toml "covault-approver1 AAAA... treasurer@key-1"
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct AddApproverArgs {
    /// The policy file (TOML).
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The line.
    #[arg(value_name = "LINE")]
    line: String,
    /// The person, as rules of approval name them. Without it: what the name of the key has before "@".
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Write the file.
    #[arg(long)]
    yes: bool,
}

/// What is looked for in the file; the rest is checked by [`Policy::parse`].
#[derive(Deserialize)]
struct PolicyFile {
    #[serde(default)]
    approver: Vec<ApproverTable>,
}

#[derive(Deserialize)]
struct ApproverTable {
    name: String,
    keys: Spanned<Vec<Value>>,
}

pub fn add(args: AddApproverArgs) -> anyhow::Result<()> {
    let line = args.line.split_whitespace().collect::<Vec<_>>().join(" ");
    let key = ApproverKey::parse(&line).map_err(|fault| wiring::explain(fault).context("LINE"))?;
    let comment = line.splitn(3, ' ').nth(2).unwrap_or_default();
    let named = match &key {
        ApproverKey::Passkey(passkey) => passkey.name.as_str(),
        ApproverKey::Ssh(_) => comment,
    };
    let before = named.split('@').next().unwrap_or_default();
    let person = args.name.as_deref().unwrap_or(before);
    if person.is_empty() {
        bail!("--name is required: the key has no name");
    }
    let text = fs::read_to_string(&args.file)
        .with_context(|| format!("the policy file {} cannot be read", args.file.display()))?;
    let changed = insert(&text, person, &line)?;
    Policy::parse(&changed)
        .map_err(wiring::explain)
        .with_context(|| format!("{} with this key", args.file.display()))?;
    let keys = Policy::parse(&text).map_or(0, |policy| policy.approvers().keys_of(person).count());
    print_line(match keys {
        0 => format!("person: {person}"),
        keys => format!(
            "person: {person}, who has {keys} already: compare with {person}, not with the one who brought the line"
        ),
    });
    match &key {
        ApproverKey::Passkey(passkey) => describe(passkey, &line)?,
        ApproverKey::Ssh(key) => {
            print_line(format!(
                "key: {} {}",
                key.algorithm(),
                key.fingerprint(Default::default())
            ));
        }
    }
    if !args.yes {
        bail!("nothing was written: compare with the person, and repeat the command with --yes");
    }
    write(&args.file, &changed)?;
    print_line(format!("written: {}", args.file.display()));
    let _ = writeln!(
        std::io::stderr(),
        "send the signer SIGHUP or restart it, so that it reads its policy again"
    );
    Ok(())
}

fn describe(passkey: &Passkey, line: &str) -> anyhow::Result<()> {
    let Passkey {
        name,
        rp_id,
        origins,
        backup_eligible,
        ..
    } = passkey;
    let origins: Vec<&str> = origins.iter().map(String::as_str).collect();
    let words = ApproverLine::parse(line)
        .and_then(|line| line.fingerprint())
        .map_err(wiring::explain)?;
    print_line(format!("key: {name}"));
    print_line(format!("origin: {} (rp id {rp_id})", origins.join(", ")));
    print_line(match backup_eligible {
        true => "synced: yes, a cloud can copy this passkey (flag BE)",
        false => "synced: no, this passkey stays in its device",
    });
    print_line(format!("words: {}", words.join(" ")));
    Ok(())
}

/// The text with the key in it; all else stays as it is.
fn insert(text: &str, person: &str, line: &str) -> anyhow::Result<String> {
    let file: PolicyFile = toml::from_str(text).context("the policy file is not TOML")?;
    let quoted = Value::String(line.to_owned()).to_string();
    let Some(known) = file.approver.iter().find(|one| one.name == person) else {
        let name = Value::String(person.to_owned());
        let gap = if text.ends_with('\n') { "" } else { "\n" };
        return Ok(format!(
            "{text}{gap}\n[[approver]]\nname = {name}\nkeys = [{quoted}]\n"
        ));
    };
    let span = known.keys.span();
    let place = span.start.saturating_add(1);
    match text.split_at_checked(place) {
        Some((before, after)) if before.ends_with('[') && !known.keys.get_ref().is_empty() => {
            Ok(format!("{before}{quoted}, {after}"))
        }
        _ => bail!("approver {person}: keys must be a list of strings with at least one"),
    }
}

/// As readable for others as it was.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode();
    match mode & 0o077 {
        0 => files::write_private(path, text.as_bytes()),
        _ => files::write_public(path, text.as_bytes()),
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::approval::testing::TestPasskey;

    use super::*;

    #[test]
    fn approver__should_be_added_when_the_words_were_compared() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("policy.toml");
        let before = "version = 2 # ours\nraw_signing = true\n";
        fs::write(&file, before).unwrap();
        let add = |line: &str, name: Option<&str>, yes: bool| {
            let name = name.map(str::to_owned);
            add(AddApproverArgs {
                file: file.clone(),
                line: line.to_owned(),
                name,
                yes,
            })
            .map_err(|error| format!("{error:#}"))
        };
        let text = || fs::read_to_string(&file).unwrap();
        let [first, second] = [1, 2].map(|number| {
            let passkey = TestPasskey::new(&format!("treasurer@key-{number}"), number);
            passkey.line().line().unwrap()
        });
        let refusal = add(&first, None, false).unwrap_err();
        assert!(refusal.contains("--yes"), "{refusal}");
        assert_eq!(text(), before);
        add(&first, None, true).unwrap();
        add(&second, None, true).unwrap();
        let ssh =
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti";
        assert!(add(ssh, None, true).unwrap_err().contains("--name"));
        add(ssh, Some("director"), true).unwrap();
        assert!(text().starts_with(before));
        let policy = Policy::parse(&text()).unwrap();
        let approvers = policy.approvers();
        assert_eq!(approvers.keys_of("treasurer").count(), 2);
        assert_eq!(approvers.keys_of("director").count(), 1);
        // The same key again, another's, and one that proves nothing.
        let now = text();
        let other = TestPasskey::new("treasurer@key-3", 3)
            .line()
            .line()
            .unwrap();
        for (line, name) in [
            (first.as_str(), None),
            (&first, Some("director")),
            (&other.replacen("approver1 ", "approver1 A", 1), None),
            ("ssh-rsa AAAA", Some("director")),
        ] {
            add(line, name, true).unwrap_err();
        }
        assert_eq!(text(), now);
    }
}
