//! Payments that are held: signed only when some hours are over since enough people have approved them, in which one of
//! them can still stop them.

use std::collections::BTreeSet;

use covault_core::{
    amount::U256,
    approval::{Approval, Rejection, VerifiedApprovals},
    derive::RootKey,
    fault::{Class, Fault, FaultCode},
    ids::{RequestId, VaultId},
    moment::utc,
    networks::{Network, Payload, outflow::ContentKind},
    order::SigningOrder,
};
use sha2::{Digest as _, Sha256};

use super::{
    Policy, PolicyRequest, PolicyVerdict,
    approvals::{ApplyingRule, ApprovalRequirement},
};

/// A rule that holds what an order pays, or, before there is a transaction, one that wants more people.
#[derive(Clone, Debug)]
pub(crate) struct HoldingRule {
    /// Tells it from other rules, whatever its hours.
    pub(crate) id: [u8; 32],
    /// In hours. 0: it holds nothing.
    pub(crate) hours: u64,
    /// Only what pays someone new.
    pub(crate) only_new_recipients: bool,
    /// Who can reject it.
    pub(crate) of: String,
    /// Those of them who have approved it in a way that counts.
    pub(crate) approved: BTreeSet<String>,
    /// `Some`: they are too few; who is missing.
    pub(crate) missing: Option<String>,
    /// `Some`: it applies only when the day's sum of the counter of this name, with this amount, is above the other amount.
    pub(crate) day: Option<(String, U256, U256)>,
}

/// What the claims of a node look at to tell whether a payment is held.
#[derive(Clone, Debug)]
pub struct HoldCheck {
    /// What was approved, whatever the highest fee and the end of validity.
    pub(crate) intent: [u8; 32],
    pub(crate) request: RequestId,
    pub(crate) vault: VaultId,
    pub(crate) network: Network,
    /// To whom it pays, by vault and network; wallets of the vault itself are left out.
    pub(crate) recipients: BTreeSet<String>,
    /// What is signed does not say whom it pays.
    pub(crate) has_unseen_recipients: bool,
    /// Those that apply, or may; at least one.
    pub(crate) rules: Vec<HoldingRule>,
}

/// A payment that a rule holds, and how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldUntil {
    /// In milliseconds since the Unix epoch.
    pub until_ms: u64,
    /// The rule's hours.
    pub hours: u64,
    /// Who can reject it.
    pub of: String,
    /// Which request it is.
    pub request: RequestId,
    /// Of which vault.
    pub vault: VaultId,
    /// On which network.
    pub network: Network,
}

impl HoldCheck {
    /// Who has to approve besides, by a rule that applies for certain.
    pub(crate) fn wants(&self) -> Option<String> {
        let certain = |rule: &&HoldingRule| rule.day.is_none();
        let mut certain = self.rules.iter().filter(certain);
        certain.find_map(|rule| rule.missing.clone())
    }
}

impl Policy {
    /// Whether a rule holds payments.
    pub(crate) fn holds(&self) -> bool {
        let mut rules = self.scopes().flat_map(|rules| &rules.approvals);
        rules.any(|rule| rule.hold.is_some())
    }

    /// What tells whether a verified order is held: one that [`Policy::check`] lets through, or one that has no
    /// transaction yet ([`SigningOrder::tells_of_approvals`]). `None`: no rule that applies holds anything, and before
    /// there is a transaction, none wants more approvals either.
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
        let is_told = order.tells_of_approvals();
        if !self.holds() && !is_told {
            return Ok(None);
        }
        let own_wallets = order.own_recipients(root, payload)?;
        let asked = |fee| PolicyRequest {
            vault: order.vault,
            network: order.network,
            payload,
            fee,
            price: None,
            own_price: None,
            own_wallets: &own_wallets,
        };
        let most_fee = match payload.pays_fee() {
            true if is_told => U256::from(order.approvals.most_fee),
            true => order.network.rules().most_fee(&order.unsigned)?,
            false => U256::ZERO,
        };
        // The fee that was approved may be above what this policy allows, and that of the transaction below.
        let verdict = match self.evaluate(&asked(most_fee)) {
            Err(_) if is_told => self.evaluate(&asked(U256::ZERO))?,
            verdict => verdict?,
        };
        // For what is above a rule by that fee alone, nobody is asked too early.
        let least = match is_told {
            true => self.evaluate(&asked(U256::ZERO))?,
            false => PolicyVerdict::default(),
        };
        let is_held = verdict.applying.iter().any(|it| it.rule.hold.is_some());
        if !is_held && !least.asks() {
            return Ok(None);
        }
        order.approvals.check_bounds()?;
        let fee = match is_told {
            true => U256::ZERO,
            false => most_fee,
        };
        let verified = self
            .approvers
            .verify(&order.approval(), &order.approvals, fee, now_ms)?;
        let mut rules = verdict.holding(&verified);
        if is_told {
            rules.retain(|rule| rule.missing.is_none());
            rules.extend(least.unmet(&verified));
        }
        if rules.is_empty() {
            return Ok(None);
        }
        let outflow = self.outflow(payload, order.network);
        let (vault, place) = (order.vault, &outflow.place);
        let others = outflow.spends.iter().filter_map(|it| it.recipient.as_ref());
        let others = others.filter(|it| !own_wallets.contains(*it));
        let is_transfer = outflow.nature == ContentKind::Transfer;
        let has_unseen_recipients = !is_transfer
            || outflow.spends.is_empty()
            || outflow.spends.iter().any(|it| it.recipient.is_none());
        Ok(Some(HoldCheck {
            intent: intent(order)?,
            request: order.request,
            vault,
            network: order.network,
            recipients: others.map(|it| format!("{vault} {place} {it}")).collect(),
            has_unseen_recipients,
            rules,
        }))
    }
}

impl Policy {
    /// Whose rejection it is, of those whom a rule names that holds payments of its vault: who could reject them if the
    /// orchestrator obeyed. Which payments of the vault the rule applies to is not looked at: the order may come later, or
    /// never, and a rejection can only stop.
    ///
    /// # Errors
    /// [`Class::Invalid`] naming the field.
    pub fn rejected_by(&self, rejection: &Rejection) -> Result<String, Fault> {
        let nobody = || {
            let problem = "is not from a person named by a rule with hold_hours for this vault";
            Fault::field("proof", problem)
        };
        // Before the signature: so that others cost nothing.
        let of_vault = self.scopes_of(rejection.vault);
        let rules = of_vault.flat_map(|rules| &rules.approvals);
        let holding = rules.filter(|rule| rule.hold.is_some());
        let named: BTreeSet<&str> = holding
            .flat_map(|rule| rule.of.iter().map(String::as_str))
            .collect();
        if named.is_empty() {
            return Err(nobody());
        }
        let person = self.approvers.rejected_by(rejection)?;
        let person = person.filter(|person| named.contains(person));
        person.map(str::to_owned).ok_or_else(nobody)
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
    fn holding(&self, verified: &VerifiedApprovals) -> Vec<HoldingRule> {
        let holding = self.applying.iter().filter(|it| it.rule.hold.is_some());
        holding.map(|it| self.looked_up(it, verified)).collect()
    }

    /// The rules that apply and want more people.
    fn unmet(&self, verified: &VerifiedApprovals) -> Vec<HoldingRule> {
        let mut rules: Vec<_> = self.applying.iter().collect();
        rules.retain(|it| it.rule.missing(verified).is_some());
        let rules = rules.into_iter();
        rules.map(|it| self.looked_up(it, verified)).collect()
    }

    /// What claims look up of a rule.
    fn looked_up(
        &self,
        ApplyingRule { rule, day }: &ApplyingRule<'_>,
        verified: &VerifiedApprovals,
    ) -> HoldingRule {
        let counted = day.and_then(|(place, most)| Some((self.spending.get(place)?, most)));
        let approved = verified.approved.iter().filter(|one| rule.takes(one));
        HoldingRule {
            id: rule_id(rule),
            hours: rule.hold.map_or(0, |hold| hold.hours),
            only_new_recipients: rule.hold.is_some_and(|hold| hold.only_new_recipients),
            of: rule.of.join(", "),
            approved: approved.map(|one| one.person.clone()).collect(),
            missing: rule.missing(verified),
            day: counted.map(|(it, most)| (it.counter.name(), it.amount, most)),
        }
    }
}

/// What claims know a rule by. One whose people, ways or amounts are changed is another rule; its hours are looked up. By
/// what a policy file says: other words for people must not begin holds again.
fn rule_id(rule: &ApprovalRequirement) -> [u8; 32] {
    let mut fields = vec![
        format!("needs={}", rule.needs),
        format!("synced_passkeys={}", rule.synced_passkeys),
    ];
    let networks = rule.networks.iter().flatten();
    fields.extend(networks.map(|network| format!("networks={network}")));
    let kinds = rule.kinds.iter().flatten();
    fields.extend(kinds.map(|kind| format!("kinds={}", kind.name())));
    let ways = rule.ways.iter().flatten();
    fields.extend(ways.map(|way| format!("way={}", way.name())));
    fields.extend(rule.of.iter().map(|person| format!("of={person}")));
    if let Some((asset, most)) = &rule.above {
        fields.push(format!("asset={asset}"));
        let per_request = most.per_request.iter();
        fields.extend(per_request.map(|most| format!("per_request={most}")));
        let per_day = most.per_day.iter();
        fields.extend(per_day.map(|most| format!("per_day={most}")));
    }
    let mut hash = Sha256::new().chain_update(b"covault/holding-rule");
    for field in fields {
        hash.update(u64::try_from(field.len()).unwrap_or(u64::MAX).to_le_bytes());
        hash.update(field);
    }
    hash.finalize().into()
}

/// The refusal of what is held.
pub(crate) fn held(held: &HeldUntil) -> Fault {
    let HeldUntil {
        until_ms,
        hours,
        of,
        ..
    } = held;
    let until_ms = *until_ms;
    let sentence = format!(
        "holds this payment until {}, {hours} hours after it first verified enough approvals: until then {of} can reject it",
        utc(until_ms)
    );
    Fault::new(Class::Invalid, sentence).with_code(FaultCode::Held { until_ms })
}
