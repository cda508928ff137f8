//! `covault vault approvals`: another rule for who decides about a vault's requests.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use covault_actors::operations::ChangeApprovals;
use covault_core::{
    order::NodeId,
    port::Clock as _,
    request::{ApprovalRule, RuleChange},
    schema::admin,
};

use super::{VaultSelector, approvals::ApprovalArgs, made};
use crate::{
    adapters::SystemClock,
    cli::{
        answer, approve,
        client::{AdminClient, ConnectionArgs},
        print_line,
    },
    wiring::explain,
};

const HOUR_MS: u64 = 60 * 60 * 1000;
const MINUTE_MS: u64 = 60 * 1000;

/// Another rule for who approves.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Write a change into a file, for the approvers to sign.
    Propose {
        #[command(flatten)]
        which: VaultSelector,
        #[command(flatten)]
        approvals: ApprovalArgs,
        /// Change nothing but the client signers, to those that --client-signer names.
        #[arg(long, conflicts_with_all = ["approvals", "approver", "needs", "approval_hours", "wallet"])]
        keep_people: bool,
        /// For how many hours the signatures count; at most 24.
        #[arg(long, value_name = "HOURS", default_value_t = 23)]
        valid_hours: u64,
        /// The file to write.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        #[command(flatten)]
        target: ConnectionArgs,
    },
    /// Show a change and sign it with your own key. Needs no connection.
    Sign {
        /// The change.
        #[arg(value_name = "FILE")]
        change: PathBuf,
        /// Your private key (ed25519, sk-ed25519, sk-ecdsa), or its .pub file where ssh-agent has it.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// The signature's file.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        /// Do not ask for confirmation.
        #[arg(long)]
        yes: bool,
    },
    /// Make a change that enough have signed. A rule that needs nobody is changed without signatures.
    Apply {
        /// The change.
        #[arg(value_name = "FILE")]
        change: PathBuf,
        /// A signature's file. May be repeated.
        #[arg(long, value_name = "FILE")]
        signature: Vec<PathBuf>,
        /// Print the vault as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        target: ConnectionArgs,
    },
}

pub async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Propose {
            which,
            approvals,
            keep_people,
            valid_hours,
            out,
            target,
        } => {
            ensure!(
                (1..=24).contains(&valid_hours),
                "--valid-hours must be 1 to 24"
            );
            let client_signers = approvals.client_signers()?;
            let named = match keep_people {
                true => None,
                false => Some(parsed(Some(approvals.rule()?))?),
            };
            let vault = which.find(&target.client()?).await?;
            let present = parsed(vault.approvals)?;
            let next = match named {
                Some(next) => next,
                None => with_client_signers(&present, client_signers)?,
            };
            eprint!("{}", approve::visible(&losses(&present, &next)));
            let valid_ms = valid_hours.saturating_mul(HOUR_MS);
            let change = RuleChange {
                vault: vault.uuid.parse().map_err(explain)?,
                changes: vault.approval_changes,
                present,
                next,
                valid_until_ms: SystemClock.now_ms().saturating_add(valid_ms),
            };
            let needs = change.needs();
            std::fs::write(&out, serde_json::to_string_pretty(&change)?)
                .with_context(|| format!("cannot write {}", out.display()))?;
            print_line(format_args!(
                "{}: needs {needs} signatures (covault vault approvals sign)",
                out.display()
            ));
            Ok(())
        }
        Command::Sign {
            change,
            key,
            out,
            yes,
        } => {
            let change = read(&change)?;
            eprintln!("{}", shown(&change, SystemClock.now_ms())?);
            if !yes {
                approve::confirm()?;
            }
            let challenge = change.challenge().map_err(explain)?;
            let signature = approve::ssh_signature(&key, &challenge)?;
            std::fs::write(&out, signature)
                .with_context(|| format!("cannot write {}", out.display()))
        }
        Command::Apply {
            change,
            signature,
            json,
            target,
        } => {
            let change = read(&change)?;
            let read = |path: &PathBuf| {
                std::fs::read_to_string(path)
                    .with_context(|| format!("cannot read {}", path.display()))
            };
            let signatures: anyhow::Result<Vec<_>> = signature.iter().map(read).collect();
            let request = admin::ChangeApprovalsRequest {
                vault_uuid: change.vault.to_string(),
                approvals: Some(change.next.to_wire()),
                valid_until_ms: change.valid_until_ms,
                signatures: signatures?,
            };
            let client = target.client()?;
            let vault = made(client.call::<ChangeApprovals>(&request).await?.vault)?;
            let rule = parsed(vault.approvals.clone())?;
            answer(json, &vault, |vault| {
                format!("{}  {}", vault.uuid, rule.describe())
            })
        }
    }
}

fn parsed(rule: Option<admin::ApprovalRule>) -> anyhow::Result<ApprovalRule> {
    ApprovalRule::parse(rule).map_err(explain)
}

/// A rule with these client signers instead of its own.
///
/// # Errors
/// When they cannot be those of a rule.
fn with_client_signers(rule: &ApprovalRule, lines: Vec<String>) -> anyhow::Result<ApprovalRule> {
    parsed(Some(admin::ApprovalRule {
        client_signers: lines,
        ..rule.to_wire()
    }))
}

/// Has a vault's rule name these client signers beside those that it names: at once where the rule needs nobody.
///
/// # Errors
/// When people have to agree to that, with what to run.
pub(super) async fn name_client_signers(
    client: &AdminClient,
    vault: &admin::Vault,
    lines: &[String],
) -> anyhow::Result<()> {
    let present = parsed(vault.approvals.clone())?;
    let mut all = present.to_wire().client_signers;
    let known = all.len();
    for signer in with_client_signers(&present, lines.to_vec())?.client_signers {
        if !present.client_signers.contains(&signer) {
            all.push(signer.openssh_line(""));
        }
    }
    if all.len() == known {
        return Ok(());
    }
    let needs = present.needs_to_change();
    ensure!(
        needs == 0,
        "{needs} of the vault's people have to agree before its rule names another client signer: covault vault approvals \
         propose --vault {} --keep-people {} --out change.json, then sign and apply it, and repeat this command",
        vault.uuid,
        all.iter()
            .map(|line| format!("--client-signer {line:?}"))
            .collect::<Vec<_>>()
            .join(" ")
    );
    let request = admin::ChangeApprovalsRequest {
        vault_uuid: vault.uuid.clone(),
        approvals: Some(with_client_signers(&present, all)?.to_wire()),
        valid_until_ms: 0,
        signatures: Vec::new(),
    };
    client.call::<ChangeApprovals>(&request).await?;
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<RuleChange> {
    let of = || format!("{} is not a change of who approves", path.display());
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let change: RuleChange = serde_json::from_str(&text).with_context(of)?;
    change.next.check().map_err(explain).with_context(of)?;
    Ok(change)
}

/// The change in words, with every key, until when it may be made from now on, and how often the rule was changed before.
///
/// # Errors
/// When its end is over, or further ahead than the service takes: nobody signs what may be used at another time.
fn shown(change: &RuleChange, now_ms: u64) -> anyhow::Result<String> {
    let end = change.check_end(now_ms).map_err(explain);
    end.context("this change is not to be signed")?;
    let minutes = change.valid_until_ms.saturating_sub(now_ms) / MINUTE_MS;
    let (hours, minutes) = (minutes / 60, minutes % 60);
    let mut shown = format!(
        "vault {}\nchange {} of its rule, to be made within {hours} hours and {minutes} minutes\n",
        change.vault,
        change.changes.saturating_add(1),
    );
    for (when, rule) in [("now", &change.present), ("then", &change.next)] {
        shown.push_str(&format!("{when}: {}", in_words(rule)));
    }
    shown.push_str(&losses(&change.present, &change.next));
    Ok(approve::visible(&shown))
}

/// What the next rule no longer has of the present one, a line each: who leaves an option out may not mean it.
fn losses(present: &ApprovalRule, next: &ApprovalRule) -> String {
    let mut notes = String::new();
    for (address, before, after) in present.wallets_with_fewer(next) {
        notes.push_str(&format!(
            "NOTE: the new rule wants {after} approvals for the wallet {address}, where the present one wants {before}\n"
        ));
    }
    let gone = |it: &&NodeId| !next.client_signers.contains(it);
    for signer in present.client_signers.iter().filter(gone) {
        notes.push_str(&format!(
            "NOTE: the new rule does not name the client signer {}: requests that name it will be refused\n",
            signer.openssh_line("")
        ));
    }
    notes
}

/// A rule in words, with every key.
pub(super) fn in_words(rule: &ApprovalRule) -> String {
    let hours = rule.expires_ms / HOUR_MS;
    let mut words = format!("{}; requests wait {hours} hours\n", rule.describe());
    for approver in &rule.of {
        for key in &approver.keys {
            words.push_str(&format!("  {}: {key}\n", approver.name));
        }
    }
    words
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::{
        approval::{
            MAX_VALIDITY_MS,
            testing::{TestSshKey, TestSshKind},
        },
        ids::VaultId,
    };

    use super::*;

    const NOW_MS: u64 = 1_800_000_000_000;

    #[test]
    fn client_signers__should_be_changed_without_the_people_and_shown_to_who_signs() {
        let node = |number| {
            let line = TestSshKey::new(TestSshKind::Ed25519, number).line();
            NodeId::parse_openssh_line(&line).unwrap()
        };
        let line = |number| node(number).openssh_line("");
        let rule = parsed(Some(admin::ApprovalRule {
            mode: "automatic".into(),
            client_signers: vec![line(1)],
            ..Default::default()
        }))
        .unwrap();
        let next = with_client_signers(&rule, vec![line(2), line(3)]).unwrap();
        assert_eq!(next.client_signers, [node(2), node(3)]);
        let but_them = ApprovalRule {
            client_signers: rule.client_signers.clone(),
            ..next.clone()
        };
        assert_eq!(but_them, rule);
        let words = in_words(&next);
        assert!(
            words.contains(&line(2)) && words.contains(&line(3)),
            "{words}"
        );
        assert!(with_client_signers(&rule, vec![line(2); 2]).is_err());
    }

    #[test]
    fn sign__should_note_which_wallets_and_client_signers_a_change_takes_out() {
        let person = TestSshKey::new(TestSshKind::Ed25519, 9).line();
        let signer = TestSshKey::new(TestSshKind::Ed25519, 1).line();
        let rule = |wallets: &[(&str, u32)], client_signers: &[&String]| {
            let wallet = |(address, needs): &(&str, u32)| admin::WalletApprovals {
                address: (*address).to_owned(),
                needs: *needs,
            };
            parsed(Some(admin::ApprovalRule {
                mode: "automatic".into(),
                of: vec![admin::Approver {
                    name: "treasurer".into(),
                    keys: vec![person.clone()],
                }],
                client_signers: client_signers.iter().map(|&line| line.clone()).collect(),
                wallets: wallets.iter().map(wallet).collect(),
                ..Default::default()
            }))
            .unwrap()
        };
        let change = RuleChange {
            vault: VaultId::from_bytes([9; 16]),
            changes: 0,
            present: rule(&[("cold", 1), ("warm", 1)], &[&signer]),
            next: rule(&[("warm", 1)], &[]),
            valid_until_ms: NOW_MS + 1,
        };
        let shown = shown(&change, NOW_MS).unwrap();
        let notes: Vec<_> = shown.lines().filter(|it| it.starts_with("NOTE")).collect();
        assert_eq!(
            notes[0],
            "NOTE: the new rule wants 0 approvals for the wallet cold, where the present one wants 1"
        );
        assert!(
            notes[1].contains("does not name the client signer"),
            "{shown}"
        );
        assert_eq!(notes.len(), 2);
        assert_eq!(losses(&change.next, &change.present), "");
    }

    #[test]
    fn sign__should_show_until_when_a_change_may_be_made_and_refuse_other_ends() {
        let change = |valid_until_ms| RuleChange {
            vault: VaultId::from_bytes([9; 16]),
            changes: 4,
            present: ApprovalRule::automatic(),
            next: ApprovalRule::automatic(),
            valid_until_ms,
        };
        for (left_ms, said) in [
            (1, "within 0 hours and 0 minutes\n"),
            (90 * MINUTE_MS, "within 1 hours and 30 minutes\n"),
            (MAX_VALIDITY_MS, "within 24 hours and 0 minutes\n"),
        ] {
            let shown = shown(&change(NOW_MS + left_ms), NOW_MS).unwrap();
            assert!(shown.contains(said), "{shown}");
            assert!(shown.contains("\nchange 5 of its rule"), "{shown}");
        }
        for (until_ms, problem) in [
            (0, "is over"),
            (NOW_MS, "is over"),
            (NOW_MS + MAX_VALIDITY_MS + 1, "more than 24 hours ahead"),
            (u64::MAX, "more than 24 hours ahead"),
        ] {
            let refused = shown(&change(until_ms), NOW_MS).unwrap_err();
            let refused = format!("{refused:#}");
            assert!(refused.contains(problem), "{refused}");
        }
    }
}
