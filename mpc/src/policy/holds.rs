//! Payments that are held: signed only when some hours are over since enough people have approved them, in which one of
//! them can still stop them.

use std::collections::BTreeSet;

use covault_core::{
    amount::U256,
    approval::{Approval, Approved, VerifiedApprovals},
    derive::RootKey,
    fault::{Class, Fault, FaultCode},
    moment::utc,
    networks::{Payload, outflow::ContentKind},
    order::SigningOrder,
};

use super::{
    Policy, PolicyRequest, PolicyVerdict,
    approvals::{ApplyingRule, ApprovalRequirement, Hold},
};

/// Milliseconds of an hour.
const HOUR_MS: u64 = 3_600_000;

/// A rule that holds what an order pays.
#[derive(Clone, Debug)]
struct HeldBy {
    rule: ApprovalRequirement,
    hold: Hold,
    /// `Some`: only when the day's sum of the counter of this name, with this amount, is above the other amount.
    day: Option<(String, U256, U256)>,
}

/// What the claims of a node look at to tell whether a payment is held, and note: who has approved it since when, and
/// whom it pays.
#[derive(Clone, Debug)]
pub struct HoldCheck {
    /// What was approved, whatever the highest fee and the end of validity.
    pub(crate) intent: [u8; 32],
    /// Whose approvals of it are valid.
    approved: Vec<Approved>,
    /// To whom it pays, by vault and network; wallets of the vault itself are left out.
    pub(crate) recipients: BTreeSet<String>,
    /// What is signed does not say whom it pays.
    has_unseen_recipients: bool,
    rules: Vec<HeldBy>,
}

/// A rule that holds a payment, and how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldUntil {
    /// In milliseconds since the Unix epoch.
    pub until_ms: u64,
    /// The rule's hours.
    pub hours: u64,
    /// Who can reject it.
    pub of: String,
}

/// An approval as the claims note it.
fn noted(approved: &Approved) -> String {
    let Approved {
        person,
        way,
        synced,
    } = approved;
    // No name has a comma.
    format!("{person},{way},{synced}")
}

impl HoldCheck {
    /// The approvals, as the claims note them.
    pub(crate) fn approvals(&self) -> impl Iterator<Item = String> {
        self.approved.iter().map(noted)
    }

    /// Who has approved.
    pub(crate) fn people(&self) -> impl Iterator<Item = &str> {
        self.approved.iter().map(|one| one.person.as_str())
    }

    /// The longest that a rule holds the payment at `now_ms`. `None`: none does. `since`: when an approval of it was
    /// verified first, `is_above`: whether a day's sum with an amount is above another one, `known`: whether
    /// something was signed for a recipient that such an approval was for.
    ///
    /// # Errors
    /// Those of what is asked.
    pub(crate) fn held<E>(
        &self,
        now_ms: u64,
        mut since: impl FnMut(&str) -> Result<Option<u64>, E>,
        mut is_above: impl FnMut(&str, U256, U256) -> Result<bool, E>,
        mut known: impl FnMut(&str, &str) -> Result<bool, E>,
    ) -> Result<Option<HeldUntil>, E> {
        let mut longest: Option<HeldUntil> = None;
        for HeldBy { rule, hold, day } in &self.rules {
            if let Some((counter, amount, most)) = day
                && !is_above(counter, *amount, *most)?
            {
                continue;
            }
            if hold.only_new_recipients && !self.pays_new(rule, &mut known)? {
                continue;
            }
            // Of each person the first time; when the last one that is needed came, the hold began.
            let mut people: Vec<(u64, &str)> = Vec::new();
            for one in self.approved.iter().filter(|one| rule.takes(one)) {
                let at_ms = since(&noted(one))?.unwrap_or(now_ms);
                match people.iter_mut().find(|(_, person)| *person == one.person) {
                    Some((first_ms, _)) => *first_ms = at_ms.min(*first_ms),
                    None => people.push((at_ms, &one.person)),
                }
            }
            people.sort_unstable();
            let Some((began_ms, _)) = people.get(rule.needs.saturating_sub(1)) else {
                // It is refused because approvals are missing.
                continue;
            };
            let until_ms = began_ms.saturating_add(hold.hours.saturating_mul(HOUR_MS));
            let longer = longest.as_ref().is_none_or(|it| it.until_ms < until_ms);
            if now_ms < until_ms && longer {
                longest = Some(HeldUntil {
                    until_ms,
                    hours: hold.hours,
                    of: rule.of.join(", "),
                });
            }
        }
        Ok(longest)
    }

    /// Whether it pays somebody new: as many of the rule's people as it needs have not approved a payment to them yet that
    /// was signed here. One that needed none of them makes nobody known: a hostile orchestrator would send a little first.
    fn pays_new<E>(
        &self,
        rule: &ApprovalRequirement,
        known: &mut impl FnMut(&str, &str) -> Result<bool, E>,
    ) -> Result<bool, E> {
        if self.has_unseen_recipients {
            return Ok(true);
        }
        for recipient in &self.recipients {
            let mut people = 0_usize;
            for person in &rule.of {
                people = people.saturating_add(usize::from(known(recipient, person)?));
            }
            if people < rule.needs {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Policy {
    /// Whether a rule holds payments.
    pub(crate) fn holds(&self) -> bool {
        let mut rules = self.scopes().flat_map(|rules| &rules.approvals);
        rules.any(|rule| rule.hold.is_some())
    }

    /// What tells whether a verified order is held: one that [`Policy::check`] lets through, or one that has no
    /// transaction yet ([`SigningOrder::tells_of_approvals`]). `None`: this policy holds nothing.
    ///
    /// # Errors
    /// As [`Policy::check`], but for approvals that are missing.
    pub fn hold(
        &self,
        order: &SigningOrder,
        root: &RootKey,
        payload: &Payload,
        now_ms: u64,
    ) -> Result<Option<HoldCheck>, Fault> {
        if !self.holds() {
            return Ok(None);
        }
        let own_wallets = order.own_recipients(root, payload)?;
        let asked = |fee| PolicyRequest {
            vault: order.vault,
            network: order.network,
            payload,
            fee,
            price: None,
            own_wallets: &own_wallets,
        };
        let most_fee = match payload.pays_fee() {
            true if order.tells_of_approvals() => U256::from(order.approvals.most_fee),
            true => order.network.rules().most_fee(&order.unsigned)?,
            false => U256::ZERO,
        };
        // The fee that was approved may be above what this policy allows, and that of the transaction below.
        let verdict = match self.evaluate(&asked(most_fee)) {
            Err(_) if order.tells_of_approvals() => self.evaluate(&asked(U256::ZERO))?,
            verdict => verdict?,
        };
        order.approvals.check_bounds()?;
        let fee = match order.tells_of_approvals() {
            true => U256::ZERO,
            false => most_fee,
        };
        let verified = self
            .approvers
            .verify(&order.approval(), &order.approvals, fee, now_ms);
        let VerifiedApprovals { approved, .. } = match verified {
            // Nobody has to approve it, so nobody looks at approvals either.
            Err(_) if !verdict.asks() => VerifiedApprovals::default(),
            verified => verified?,
        };
        let outflow = payload.outflow(order.network);
        let (vault, place) = (order.vault, &outflow.place);
        let others = outflow.spends.iter().filter_map(|it| it.recipient.as_ref());
        let others = others.filter(|it| !own_wallets.contains(*it));
        let is_transfer = outflow.nature == ContentKind::Transfer;
        let has_unseen_recipients = !is_transfer
            || outflow.spends.is_empty()
            || outflow.spends.iter().any(|it| it.recipient.is_none());
        Ok(Some(HoldCheck {
            intent: intent(order)?,
            approved,
            recipients: others.map(|it| format!("{vault} {place} {it}")).collect(),
            has_unseen_recipients,
            rules: verdict.held_by(),
        }))
    }
}

/// What people approve of an order, without what they have bound it by: that differs when they approve it again.
fn intent(order: &SigningOrder) -> Result<[u8; 32], Fault> {
    let approval = Approval {
        most_fee: 0,
        valid_until_ms: 0,
        ..order.approval()
    };
    approval.id()
}

impl PolicyVerdict<'_> {
    /// The rules that apply and hold what they apply to.
    fn held_by(&self) -> Vec<HeldBy> {
        let held_by = |ApplyingRule { rule, day }: &ApplyingRule<'_>| {
            let counted = day.and_then(|(place, most)| Some((self.spending.get(place)?, most)));
            Some(HeldBy {
                rule: (*rule).clone(),
                hold: rule.hold?,
                day: counted.map(|(it, most)| (it.counter.name(), it.amount, most)),
            })
        };
        self.applying.iter().filter_map(held_by).collect()
    }
}

/// The refusal of what is held.
pub(crate) fn held(held: &HeldUntil) -> Fault {
    let HeldUntil {
        until_ms,
        hours,
        of,
    } = held;
    let until_ms = *until_ms;
    let sentence = format!(
        "holds this payment until {}, {hours} hours after the approvals that it has verified: until then {of} can reject it",
        utc(until_ms)
    );
    Fault::new(Class::Invalid, sentence).with_code(FaultCode::Held { until_ms })
}
