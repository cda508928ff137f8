//! Who decides about a vault's requests, as command line options.

use anyhow::{Context as _, bail};
use covault_core::schema::admin;

use crate::cli::public_key;

const HOUR_MS: u64 = 60 * 60 * 1000;

/// Who decides about the requests of a vault.
#[derive(Debug, clap::Args)]
pub struct ApprovalArgs {
    /// manual: nothing is signed before the persons that --approver names have approved it. automatic: requests of any
    /// token of the vault are signed at once, within what the policy files of the signers allow.
    #[arg(long, value_name = "RULE", default_value = "manual", value_parser = ["manual", "automatic"])]
    approvals: String,
    /// A person who may approve and reject, and one of that person's public keys: an OpenSSH line (ssh-ed25519,
    /// sk-ssh-ed25519@openssh.com, sk-ecdsa-sha2-nistp256@openssh.com), the line of a passkey (covault-approver1), or
    /// the path of a file that holds one. May be repeated: other persons, or further keys of one. With automatic:
    /// who may approve what the policy of a signer wants approved.
    #[arg(long, value_name = "NAME=KEY")]
    approver: Vec<String>,
    /// How many persons have to approve; default where only one is named: 1.
    #[arg(long, value_name = "N")]
    needs: Option<u32>,
    /// For how many hours a request waits for approval before it fails.
    #[arg(long, value_name = "HOURS", default_value_t = 72)]
    approval_hours: u64,
    /// A client signer that requests may name, to decide in place of the persons: an OpenSSH line or the path of a .pub
    /// file. May be repeated. It needs a share of the vault, too, by now or later. Requests that name another one are
    /// refused.
    #[arg(long, value_name = "KEY")]
    client_signer: Vec<String>,
    /// A wallet of the vault for which at least N persons have to approve, where the others need fewer or nobody. May be
    /// repeated. Not when the vault is made: it has no wallets then.
    #[arg(long, value_name = "ADDRESS=N")]
    wallet: Vec<String>,
}

impl ApprovalArgs {
    /// That of a vault for development: automatic, unless persons are named, one of whom has to approve.
    pub fn for_development(approver: Vec<String>) -> Self {
        let mode = if approver.is_empty() {
            "automatic"
        } else {
            "manual"
        };
        Self {
            approvals: mode.to_owned(),
            needs: (!approver.is_empty()).then_some(1),
            approver,
            approval_hours: 72,
            client_signer: Vec::new(),
            wallet: Vec::new(),
        }
    }

    /// The client signers, as the API takes them.
    ///
    /// # Errors
    /// When the file of one cannot be read.
    pub fn client_signers(&self) -> anyhow::Result<Vec<String>> {
        self.client_signer.iter().map(|it| public_key(it)).collect()
    }

    /// The rule.
    ///
    /// # Errors
    /// When it is not said who approves.
    pub fn rule(self) -> anyhow::Result<admin::ApprovalRule> {
        let client_signers = self.client_signers()?;
        let mut of: Vec<admin::Approver> = Vec::new();
        for text in &self.approver {
            let (name, key) = text
                .split_once('=')
                .with_context(|| format!("--approver {text:?} is not NAME=KEY"))?;
            let key = key_line(key)?;
            match of.iter_mut().find(|it| it.name == name) {
                Some(known) => known.keys.push(key),
                None => of.push(admin::Approver {
                    name: name.to_owned(),
                    keys: vec![key],
                }),
            }
        }
        let wallets = self.wallet.iter().map(|text| {
            let split = text.rsplit_once('=');
            let (address, needs) =
                split.with_context(|| format!("--wallet {text:?} is not ADDRESS=N"))?;
            let needs = needs
                .parse()
                .with_context(|| format!("--wallet {text:?}: {needs:?} is not a number"))?;
            let address = address.to_owned();
            anyhow::Ok(admin::WalletApprovals { address, needs })
        });
        let wallets = wallets.collect::<anyhow::Result<_>>()?;
        let needs = match (self.approvals.as_str(), self.needs, of.len()) {
            ("automatic", None, _) => 0,
            ("automatic", Some(_), _) => bail!("--needs goes with --approvals manual only"),
            (_, _, 0) => bail!(
                "name who approves the vault's requests (--approver NAME=KEY), or choose --approvals automatic to \
                 sign each at once"
            ),
            (_, Some(needs), _) => needs,
            (_, None, 1) => 1,
            (_, None, all) => {
                bail!("--needs is required: how many of the {all} persons have to approve")
            }
        };
        Ok(admin::ApprovalRule {
            mode: self.approvals,
            needs,
            of,
            expires_ms: self.approval_hours.saturating_mul(HOUR_MS),
            client_signers,
            wallets,
        })
    }
}

/// A key as the API takes it: the line itself, or the first one of a file.
fn key_line(key: &str) -> anyhow::Result<String> {
    let key = key.trim();
    if ["ssh-", "sk-", "covault-approver1 "]
        .iter()
        .any(|start| key.starts_with(start))
    {
        return Ok(key.to_owned());
    }
    let text = std::fs::read_to_string(key).with_context(|| {
        format!("{key:?} is neither the line of a public key nor a file that can be read")
    })?;
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn args(approvals: &str, approver: &[&str], needs: Option<u32>) -> ApprovalArgs {
        ApprovalArgs {
            approvals: approvals.into(),
            approver: approver.iter().map(|&text| text.to_owned()).collect(),
            needs,
            approval_hours: 72,
            client_signer: vec!["ssh-ed25519 C bot".into()],
            wallet: Vec::new(),
        }
    }

    #[test]
    fn rule__should_want_to_be_told_who_approves() {
        let problem = |args: ApprovalArgs| args.rule().unwrap_err().to_string();
        assert!(problem(args("manual", &[], None)).contains("--approvals automatic"));
        let two = ["a=ssh-ed25519 A", "b=ssh-ed25519 B"];
        assert!(problem(args("manual", &two, None)).contains("--needs"));
        assert!(problem(args("automatic", &two, Some(1))).contains("manual only"));
        assert!(problem(args("manual", &["ssh-ed25519 A"], None)).contains("NAME=KEY"));
        assert!(problem(args("manual", &["a=/nowhere"], None)).contains("/nowhere"));
    }

    #[test]
    fn rule__should_name_wallets_for_which_more_approve() {
        let with = |wallet: &str| ApprovalArgs {
            wallet: vec![wallet.to_owned()],
            ..args("automatic", &["a=ssh-ed25519 A"], None)
        };
        // Addresses may have the sign, too.
        let rule = with("EQ==/=2").rule().unwrap();
        let [wallet] = rule.wallets.as_slice() else {
            panic!("{rule:?}");
        };
        assert_eq!((wallet.address.as_str(), wallet.needs), ("EQ==/", 2));
        for wrong in ["EQ", "EQ=two", "EQ=-1", "EQ="] {
            let problem = with(wrong).rule().unwrap_err().to_string();
            assert!(
                problem.starts_with(&format!("--wallet {wrong:?}")),
                "{problem}"
            );
        }
    }

    #[test]
    fn rule__should_have_all_keys_of_a_person_together() {
        let all = [
            "a=ssh-ed25519 A",
            "b=sk-ssh-ed25519@openssh.com B",
            "a=covault-approver1 C",
        ];
        let rule = args("manual", &all, Some(2)).rule().unwrap();
        assert_eq!((rule.mode.as_str(), rule.needs), ("manual", 2));
        assert_eq!(rule.expires_ms, 259_200_000);
        let keys: Vec<_> = rule
            .of
            .iter()
            .map(|it| (it.name.as_str(), it.keys.len()))
            .collect();
        assert_eq!(keys, [("a", 2), ("b", 1)]);
        assert_eq!(rule.client_signers, ["ssh-ed25519 C bot"]);
        let rule = args("automatic", &[], None).rule().unwrap();
        assert_eq!(
            (rule.mode.as_str(), rule.needs, rule.of.len()),
            ("automatic", 0, 0)
        );
    }
}
