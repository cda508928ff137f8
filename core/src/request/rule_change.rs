//! Another approval rule for a vault, to which the people of the present one agree.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{ApprovalMode, ApprovalRule, Approver, USUAL_EXPIRY_MS, WalletNeeds};
use crate::{
    approval::{ApprovalProof, MAX_APPROVALS, MAX_VALIDITY_MS, rule_change_challenge},
    fault::Fault,
    ids::VaultId,
    order::NodeId,
    schema::admin,
};

/// What people agree to who change the approval rule of a vault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleChange {
    /// The vault.
    pub vault: VaultId,
    /// How often its rule was changed before: what they sign is the next change and no later one.
    pub changes: u64,
    /// The rule in force: they agree to no change of another one.
    pub present: ApprovalRule,
    /// The rule that takes its place.
    pub next: ApprovalRule,
    /// Until when it may be made, in milliseconds since the Unix epoch.
    pub valid_until_ms: u64,
}

impl RuleChange {
    /// What each of them signs.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when it cannot be serialized.
    pub fn challenge(&self) -> Result<[u8; 32], Fault> {
        rule_change_challenge(self)
    }

    /// Checks at `now_ms` that its end is to come, and not too far ahead.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming the field.
    pub fn check_end(&self, now_ms: u64) -> Result<(), Fault> {
        match self.valid_until_ms.checked_sub(now_ms) {
            None | Some(0) => Err(Fault::field("validUntilMs", "is over")),
            Some(left) if left > MAX_VALIDITY_MS => {
                Err(Fault::field("validUntilMs", "is more than 24 hours ahead"))
            }
            Some(_) => Ok(()),
        }
    }

    /// How many people have to agree: [`ApprovalRule::needs_to_change`] of the present rule.
    pub fn needs(&self) -> usize {
        self.present.needs_to_change()
    }

    /// Checks at `now_ms` that as many people agree as [`RuleChange::needs`], and says who they are. A rule that needs
    /// nobody is changed by who made it.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming the field.
    pub fn check(&self, proofs: &[ApprovalProof], now_ms: u64) -> Result<BTreeSet<String>, Fault> {
        let next = self.next.check();
        next.map_err(|fault| fault.with_prefix("approvals"))?;
        let needs = self.needs();
        if needs == 0 && proofs.is_empty() {
            return Ok(BTreeSet::new());
        }
        self.check_end(now_ms)?;
        if proofs.len() > MAX_APPROVALS {
            let problem = format_args!("more than {MAX_APPROVALS}");
            return Err(Fault::field("signatures", problem));
        }
        let challenge = self.challenge()?;
        let mut people = BTreeSet::new();
        for (place, proof) in proofs.iter().enumerate() {
            let person = self.present.approver(proof, &challenge);
            let at =
                |fault: Fault| Fault::field(format_args!("signatures[{place}]"), fault.message());
            people.insert(person.map_err(at)?);
        }
        if people.len() < needs {
            let names: Vec<_> = people.iter().map(String::as_str).collect();
            let problem = format_args!(
                "the vault's rule wants {needs} of {}, and {} have signed this change: {}",
                self.present.people(),
                names.len(),
                names.join(", ")
            );
            return Err(Fault::field("signatures", problem));
        }
        Ok(people)
    }
}

impl ApprovalRule {
    /// The rule as the admin API has it. It has to be said.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming the field.
    pub fn parse(message: Option<admin::ApprovalRule>) -> Result<Self, Fault> {
        let refuse = |part: &str, problem: &str| Fault::field(format!("approvals{part}"), problem);
        let admin::ApprovalRule {
            mode,
            needs,
            of,
            expires_ms,
            client_signers,
            wallets,
        } = message.ok_or_else(|| {
            refuse(
                "",
                "is required: manual, with the persons who approve each request, or automatic",
            )
        })?;
        let mode = match (mode.as_str(), needs) {
            ("manual", needs) => ApprovalMode::Manual {
                // More than there can be approvers is refused by the rule itself.
                needs: u16::try_from(needs).unwrap_or(u16::MAX),
            },
            ("automatic", 0) => ApprovalMode::Automatic,
            ("automatic", _) => return Err(refuse(".needs", "must be 0 where mode is automatic")),
            _ => return Err(refuse(".mode", "must be manual or automatic")),
        };
        let approver = |admin::Approver { name, keys }| Approver { name, keys };
        let signers = client_signers.iter().enumerate().map(|(place, line)| {
            let at = format!("approvals.clientSigners[{place}]");
            NodeId::parse_openssh_line(line).map_err(|fault| fault.at(&at))
        });
        let of_wallet = |admin::WalletApprovals { address, needs }| WalletNeeds {
            address,
            needs: u16::try_from(needs).unwrap_or(u16::MAX),
        };
        let rule = Self {
            mode,
            of: of.into_iter().map(approver).collect(),
            expires_ms: match expires_ms {
                0 => USUAL_EXPIRY_MS,
                given => given,
            },
            client_signers: signers.collect::<Result<_, _>>()?,
            wallets: wallets.into_iter().map(of_wallet).collect(),
        };
        rule.check()
            .map_err(|fault| fault.with_prefix("approvals"))?;
        Ok(rule)
    }

    /// The names of those who are new in `next`, no longer in it, or have other keys there, each with what it is.
    pub fn people_changed(&self, next: &Self) -> String {
        let by_name = |rule: &Self| -> BTreeMap<String, BTreeSet<String>> {
            let of = rule.of.iter();
            of.map(|it| (it.name.clone(), it.keys.iter().cloned().collect()))
                .collect()
        };
        let (before, after) = (by_name(self), by_name(next));
        let mut changed = Vec::new();
        for (name, keys) in &after {
            match before.get(name) {
                None => changed.push(format!("{name} added")),
                Some(known) if known != keys => changed.push(format!("{name} has other keys")),
                Some(_) => {}
            }
        }
        let gone = before.keys().filter(|name| !after.contains_key(*name));
        changed.extend(gone.map(|name| format!("{name} removed")));
        changed.join(", ")
    }

    /// The wallets for which another number has to approve in `next`, each with what it is.
    pub fn wallets_changed(&self, next: &Self) -> String {
        let by_address = |rule: &Self| -> BTreeMap<String, u16> {
            let of = rule.wallets.iter();
            of.map(|it| (it.address.clone(), it.needs)).collect()
        };
        let (before, after) = (by_address(self), by_address(next));
        let mut changed = Vec::new();
        for (address, needs) in &after {
            match before.get(address) {
                None => changed.push(format!("{address} added with {needs}")),
                Some(known) if known != needs => {
                    changed.push(format!("{address} from {known} to {needs}"));
                }
                Some(_) => {}
            }
        }
        let gone = before.iter();
        let gone = gone.filter(|(address, _)| !after.contains_key(*address));
        changed
            .extend(gone.map(|(address, needs)| format!("{address} removed, which had {needs}")));
        changed.join(", ")
    }

    /// The wallets for which fewer have to approve in `next` than now, each with both numbers.
    pub fn wallets_with_fewer<'a>(
        &'a self,
        next: &'a Self,
    ) -> impl Iterator<Item = (&'a str, usize, usize)> {
        self.wallets.iter().filter_map(|it| {
            let needs = |rule: &Self| rule.of_wallet(&it.address).needs();
            let (before, after) = (needs(self), needs(next));
            (after < before).then_some((it.address.as_str(), before, after))
        })
    }

    /// How many of its people have to agree to another rule: as many as it needs, for the vault or for the wallet that
    /// needs most.
    pub fn needs_to_change(&self) -> usize {
        let wallets = self.wallets.iter();
        let most = wallets.map(|it| usize::from(it.needs)).max();
        self.needs().max(most.unwrap_or_default())
    }

    /// The rule as the admin API shows it.
    pub fn to_wire(&self) -> admin::ApprovalRule {
        let (mode, needs) = match self.mode {
            ApprovalMode::Automatic => ("automatic", 0),
            ApprovalMode::Manual { needs } => ("manual", needs.into()),
            // A request's, and never a vault's.
            ApprovalMode::ClientSigner(_) => ("clientSigner", 0),
        };
        let approver = |Approver { name, keys }: &Approver| admin::Approver {
            name: name.clone(),
            keys: keys.clone(),
        };
        admin::ApprovalRule {
            mode: mode.to_owned(),
            needs,
            of: self.of.iter().map(approver).collect(),
            expires_ms: self.expires_ms,
            client_signers: (self.client_signers.iter())
                .map(|signer| signer.openssh_line(""))
                .collect(),
            wallets: (self.wallets.iter())
                .map(|it| admin::WalletApprovals {
                    address: it.address.clone(),
                    needs: it.needs.into(),
                })
                .collect(),
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn rule(needs: u16, wallets: &[(&str, u16)]) -> ApprovalRule {
        let of_wallet = |(address, needs): &(&str, u16)| WalletNeeds {
            address: (*address).to_owned(),
            needs: *needs,
        };
        let mode = match needs {
            0 => ApprovalMode::Automatic,
            needs => ApprovalMode::Manual { needs },
        };
        ApprovalRule {
            mode,
            wallets: wallets.iter().map(of_wallet).collect(),
            ..ApprovalRule::automatic()
        }
    }

    #[test]
    fn wallets__should_be_named_that_lose_approvals_or_get_other_ones() {
        let before = rule(1, &[("cold", 3), ("warm", 2), ("hot", 1), ("same", 2)]);
        let after = rule(1, &[("new", 2), ("warm", 1), ("same", 2)]);
        assert_eq!(
            before.wallets_changed(&after),
            "new added with 2, warm from 2 to 1, cold removed, which had 3, hot removed, which had 1"
        );
        assert_eq!(before.wallets_changed(&before), "");
        // What the whole vault needs they need, too.
        let fewer: Vec<_> = before.wallets_with_fewer(&after).collect();
        assert_eq!(fewer, [("cold", 3, 1), ("warm", 2, 1)]);
        assert_eq!(before.wallets_with_fewer(&rule(3, &[])).count(), 0);
        let all = rule(0, &[]);
        let fewer: Vec<_> = before.wallets_with_fewer(&all).collect();
        assert_eq!(
            fewer,
            [
                ("cold", 3, 0),
                ("warm", 2, 0),
                ("hot", 1, 0),
                ("same", 2, 0)
            ]
        );
        // A hundred wallets, one of which goes.
        let names: Vec<_> = (0..100)
            .map(|number| format!("wallet-{number:03}"))
            .collect();
        let many: Vec<_> = names.iter().map(|name| (name.as_str(), 2)).collect();
        let changed = rule(0, &many).wallets_changed(&rule(0, &many[1..]));
        assert_eq!(changed, "wallet-000 removed, which had 2");
    }

    #[test]
    fn rule__should_be_changed_by_as_many_as_its_wallets_need() {
        for (vault, wallets, needs) in [
            (0, &[][..], 0),
            (2, &[], 2),
            (0, &[("cold", 3), ("hot", 1)], 3),
            (2, &[("hot", 1)], 2),
        ] {
            assert_eq!(rule(vault, wallets).needs_to_change(), needs);
        }
    }
}
