//! Which payments need approval, and by how many people.

use std::collections::BTreeSet;

use covault_core::{
    amount::U256,
    approval::{ApprovalWay, Approved, ApproverKey, Approvers, VerifiedApprovals},
    fault::{Class, Fault, FaultCode},
    networks::{
        Payload, PayloadKind,
        outflow::{Asset, ChainScope, ContentKind, Outflow},
    },
};

use super::{AmountLimit, Spending};

/// The hours that a payment can be held: a week at most.
pub(super) const HOLD_HOURS: std::ops::RangeInclusive<i64> = 1..=168;

/// How a rule of approval holds what it applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ApprovalHold {
    /// How long after enough approvals, in hours; of [`HOLD_HOURS`].
    pub(super) hours: u64,
    /// Only what pays someone to whom nothing was signed yet that the rule applied to.
    pub(super) only_new_recipients: bool,
}

/// One `[[approval]]`. Every rule that applies must be met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApprovalRequirement {
    /// `None`: everywhere.
    pub(super) networks: Option<BTreeSet<ChainScope>>,
    /// `None`: all.
    pub(super) kinds: Option<BTreeSet<PayloadKind>>,
    /// `None`: it always applies.
    pub(super) above: Option<(Asset, AmountLimit)>,
    /// At least 1.
    pub(super) needs: usize,
    /// Names of approvers, in the order of the file.
    pub(super) of: Vec<String>,
    /// Whether passkeys count that a cloud can copy.
    pub(super) synced_passkeys: bool,
    /// `None`: all.
    pub(super) ways: Option<BTreeSet<ApprovalWay>>,
    /// `None`: it is signed as soon as they have approved it.
    pub(super) hold: Option<ApprovalHold>,
}

/// Why a rule applies to what is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleReason {
    /// Whatever was signed before.
    Always,
    /// Only when the day's sum with it is above this.
    AboveDay(U256),
}

/// A rule that applies, or may.
#[derive(Clone, Debug)]
pub(super) struct ApplyingRule<'p> {
    pub(super) rule: &'p ApprovalRequirement,
    /// `Some`: only when the day's sum of this place of [`PolicyVerdict::spending`] is above the amount.
    pub(super) day: Option<(usize, U256)>,
}

/// What a day's sum may not be above unless people have approved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnapprovedLimit {
    /// In the smallest unit.
    pub most_per_day: U256,
    /// Who has to approve above it, as [`approvals_missing`] says it.
    pub wants: String,
}

/// What a policy allows: what has to be counted, and what people have to approve.
#[derive(Clone, Debug, Default)]
pub struct PolicyVerdict<'p> {
    /// To be counted when the order's claim is granted.
    pub spending: Vec<Spending>,
    pub(super) applying: Vec<ApplyingRule<'p>>,
}

impl ApprovalRequirement {
    /// Whether it applies. `amount`: what goes of the asset that it names.
    pub(super) fn applies(
        &self,
        payload: &Payload,
        outflow: &Outflow,
        unknown: bool,
        amount: impl Fn(&Asset) -> U256,
    ) -> Option<RuleReason> {
        let here = self.networks.as_ref().is_none_or(|networks| {
            let mut networks = networks.iter();
            networks.any(|network| network.meets(&outflow.place))
        });
        let kind = payload.payload_kind();
        if !here
            || self
                .kinds
                .as_ref()
                .is_some_and(|kinds| !kinds.contains(&kind))
        {
            return None;
        }
        let Some((asset, above)) = &self.above else {
            return Some(RuleReason::Always);
        };
        let amount = amount(asset);
        let over = |most: Option<U256>| most.is_some_and(|most| amount > most);
        if unknown || over(above.per_request) || over(above.per_day) {
            return Some(RuleReason::Always);
        }
        let day = above.per_day.filter(|_| !amount.is_zero());
        day.map(RuleReason::AboveDay)
    }

    /// Whether this key can give an approval that counts.
    pub(super) fn takes_key(&self, key: &ApproverKey, approvers: &Approvers) -> bool {
        let synced = matches!(key, ApproverKey::Passkey(key) if key.backup_eligible);
        let mut ways = approvers.ways_of(key).into_iter();
        (self.synced_passkeys || !synced) && ways.any(|way| self.takes_way(way))
    }

    fn takes_way(&self, way: ApprovalWay) -> bool {
        self.ways.as_ref().is_none_or(|ways| ways.contains(&way))
    }

    pub(super) fn takes(&self, approved: &Approved) -> bool {
        let Approved {
            person,
            way,
            synced,
        } = approved;
        self.of.contains(person) && self.takes_way(*way) && (self.synced_passkeys || !synced)
    }

    /// `None` when it is met; otherwise who is missing.
    pub(super) fn missing(&self, verified: &VerifiedApprovals) -> Option<String> {
        let counted = verified.approved.iter().filter(|one| self.takes(one));
        // One person with two keys is one person.
        let people: BTreeSet<&str> = counted.map(|one| one.person.as_str()).collect();
        if people.len() >= self.needs {
            return None;
        }
        let mut said = Vec::new();
        if !people.is_empty() {
            let people: Vec<&str> = people.into_iter().collect();
            said.push(format!("approved: {}", people.join(", ")));
        }
        let others = verified.approved.iter().filter(|one| !self.takes(one));
        for Approved {
            person,
            way,
            synced,
        } in others
        {
            let how = if *synced {
                " with a synced passkey"
            } else {
                ""
            };
            said.push(format!("not counted: {person} by way of {way}{how}"));
        }
        for place in &verified.unknown {
            said.push(format!(
                "approvals[{place}] is signed by a key that no [[approver]] here has"
            ));
        }
        let said = match said.is_empty() {
            true => String::new(),
            false => format!(" ({})", said.join("; ")),
        };
        Some(format!("{}{said}", self.wants()))
    }

    /// Who has to approve.
    pub(super) fn wants(&self) -> String {
        format!(
            "wants {} of {}{}",
            self.needs,
            self.of.join(", "),
            self.how()
        )
    }

    fn how(&self) -> String {
        let ways = self.ways.as_ref().map_or(String::new(), |ways| {
            let ways: Vec<&str> = ways.iter().map(|way| way.name()).collect();
            format!(" by way of {}", ways.join(" or "))
        });
        let synced = match self.synced_passkeys {
            true => "",
            false => ", no synced passkeys",
        };
        let hold = self.hold.map_or(String::new(), |hold| {
            let hours = hold.hours;
            match hold.only_new_recipients {
                true => format!(", held for {hours} hours where a recipient is new"),
                false => format!(", held for {hours} hours"),
            }
        });
        format!("{ways}{synced}{hold}")
    }

    /// The rule in words.
    pub(super) fn explain(&self) -> String {
        let mut when = Vec::new();
        if let Some(networks) = &self.networks {
            let networks: Vec<String> = networks.iter().map(ToString::to_string).collect();
            when.push(format!("on {}", networks.join(", ")));
        }
        if let Some(kinds) = &self.kinds {
            let kinds: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
            when.push(format!("for {}", kinds.join(", ")));
        }
        if let Some((asset, above)) = &self.above {
            let parts = [
                (above.per_request, "per request"),
                (above.per_day, "in any 24 hours"),
            ];
            let parts: Vec<String> = parts
                .iter()
                .filter_map(|(most, per)| most.map(|most| format!("{most} {per}")))
                .collect();
            let parts = parts.join(" or ");
            when.push(format!(
                "above {parts} of {asset}, with fees, and where no amount is known"
            ));
        }
        let when = match when.is_empty() {
            true => "always".to_owned(),
            false => when.join(" "),
        };
        format!(
            "approvals: {} of {}{}: {when}",
            self.needs,
            self.of.join(", "),
            self.how()
        )
    }
}

impl PolicyVerdict<'_> {
    /// Whether people may have to approve.
    pub(super) fn asks(&self) -> bool {
        !self.applying.is_empty()
    }

    /// What has to be counted, when people have approved what they have.
    ///
    /// # Errors
    /// As [`approvals_missing`].
    pub(super) fn settle(self, verified: &VerifiedApprovals) -> Result<Vec<Spending>, Fault> {
        let Self {
            mut spending,
            applying,
        } = self;
        for ApplyingRule { rule, day } in applying {
            let Some(wants) = rule.missing(verified) else {
                continue;
            };
            let counted = day.and_then(|(place, most)| Some((spending.get_mut(place)?, most)));
            let Some((counted, most_per_day)) = counted else {
                return Err(approvals_missing(&wants));
            };
            let stricter = |known: &UnapprovedLimit| known.most_per_day <= most_per_day;
            if !counted.unapproved.as_ref().is_some_and(stricter) {
                counted.unapproved = Some(UnapprovedLimit {
                    most_per_day,
                    wants,
                });
            }
        }
        Ok(spending)
    }

    /// The rules that apply, each with who has to approve, and when.
    pub fn wanted(&self) -> Vec<String> {
        let line = |ApplyingRule { rule, day }: &ApplyingRule<'_>| {
            let when = match day.and_then(|(place, most)| Some((self.spending.get(place)?, most))) {
                None => String::new(),
                Some((Spending { counter, .. }, most)) => {
                    format!(
                        " when the day's sum with it is above {most} {}",
                        counter.asset
                    )
                }
            };
            format!("{}{when}", rule.wants())
        };
        self.applying.iter().map(line).collect()
    }
}

/// A rule that applies, and how far it is met as far as names tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleProgress {
    /// What it wants, and when: a line of [`PolicyVerdict::wanted`].
    pub wants: String,
    /// Who has approved of those that it names, in the order of the file.
    pub approved: Vec<String>,
    /// Who has not.
    pub others: Vec<String>,
    /// How many of these are missing.
    pub missing: usize,
}

impl PolicyVerdict<'_> {
    /// How far the rules that apply are met when these people have approved. A signer goes by their signatures instead,
    /// and by the way in which each was given.
    pub fn progress(&self, approved: &[String]) -> Vec<RuleProgress> {
        let wanted = self.wanted().into_iter().zip(&self.applying);
        let progress = |(wants, ApplyingRule { rule, .. }): (String, &ApplyingRule<'_>)| {
            let of = rule.of.iter().cloned();
            let (approved, others): (Vec<_>, Vec<_>) = of.partition(|it| approved.contains(it));
            RuleProgress {
                wants,
                missing: rule.needs.saturating_sub(approved.len()),
                approved,
                others,
            }
        };
        wanted.map(progress).collect()
    }
}

/// Whether no amount says what it can move: a rule that begins above one applies always.
pub(super) fn is_unknown(payload: &Payload, outflow: &Outflow) -> bool {
    match outflow.nature {
        ContentKind::Raw | ContentKind::TypedData | ContentKind::Custom => true,
        // No chain takes a text for an instruction.
        ContentKind::Transfer | ContentKind::Message => !payload.account_changes().is_empty(),
    }
}

/// The refusal when more people have to approve. It begins with what the signer wants; who shows it says
/// which signer.
pub(crate) fn approvals_missing(wants: &str) -> Fault {
    Fault::new(Class::Invalid, wants).with_code(FaultCode::ApprovalsMissing)
}
