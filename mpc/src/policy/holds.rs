//! Payments that are held: signed only when some hours are over since enough people have approved them, in which one of
//! them can still stop them.

use std::collections::BTreeSet;

use covault_core::{
    amount::U256,
    approval::{Approval, VerifiedApprovals},
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

/// A rule that holds what an order pays.
#[derive(Clone, Debug)]
pub(crate) struct HoldingRule {
    /// Tells it from other rules, whatever its hours.
    pub(crate) id: [u8; 32],
    /// In hours.
    pub(crate) hours: u64,
    /// Only what pays somebody new.
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

impl Policy {
    /// Whether a rule holds payments.
    pub(crate) fn holds(&self) -> bool {
        let mut rules = self.scopes().flat_map(|rules| &rules.approvals);
        rules.any(|rule| rule.hold.is_some())
    }

    /// What tells whether a verified order is held: one that [`Policy::check`] lets through, or one that has no
    /// transaction yet ([`SigningOrder::tells_of_approvals`]). `None`: no rule that applies holds anything.
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
        if verdict.applying.iter().all(|it| it.rule.hold.is_none()) {
            return Ok(None);
        }
        order.approvals.check_bounds()?;
        let fee = match order.tells_of_approvals() {
            true => U256::ZERO,
            false => most_fee,
        };
        let verified = self
            .approvers
            .verify(&order.approval(), &order.approvals, fee, now_ms)?;
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
            request: order.request,
            vault,
            network: order.network,
            recipients: others.map(|it| format!("{vault} {place} {it}")).collect(),
            has_unseen_recipients,
            rules: verdict.holding(&verified),
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
    fn holding(&self, verified: &VerifiedApprovals) -> Vec<HoldingRule> {
        let holding = |ApplyingRule { rule, day }: &ApplyingRule<'_>| {
            let hold = rule.hold?;
            let counted = day.and_then(|(place, most)| Some((self.spending.get(place)?, most)));
            let approved = verified.approved.iter().filter(|one| rule.takes(one));
            Some(HoldingRule {
                id: rule_id(rule),
                hours: hold.hours,
                only_new_recipients: hold.only_new_recipients,
                of: rule.of.join(", "),
                approved: approved.map(|one| one.person.clone()).collect(),
                missing: rule.missing(verified),
                day: counted.map(|(it, most)| (it.counter.name(), it.amount, most)),
            })
        };
        self.applying.iter().filter_map(holding).collect()
    }
}

/// What claims know a rule by. One whose people, ways or amounts are changed is another rule; its hours are looked up.
fn rule_id(rule: &ApprovalRequirement) -> [u8; 32] {
    let rule = ApprovalRequirement {
        hold: None,
        ..rule.clone()
    };
    let hash = Sha256::new().chain_update(b"covault/holding-rule");
    hash.chain_update(rule.explain()).finalize().into()
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
