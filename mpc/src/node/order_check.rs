//! The checks that decide whether a node signs an order.

use std::sync::Arc;

use covault_core::{
    approval::Rejection,
    derive::{ChildKey, RootKey},
    fault::{Class, Fault},
    ids::VaultId,
    networks::Payload,
    order::SigningOrder,
};
use parking_lot::RwLock;

use crate::policy::{HoldCheck, Policy, Spending};

/// Decides whether what an order shows is what it asks to sign, and may be signed.
pub trait OrderCheck: Send + Sync {
    /// Checks an order for a key that the node holds, and that has this child at the order's path, at
    /// `now_ms` (the node's clock, milliseconds since the Unix epoch).
    /// What it would let go, to be counted with the claim.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] naming what does not match or is forbidden.
    fn check(
        &self,
        order: &SigningOrder,
        root: &RootKey,
        child: &ChildKey,
        now_ms: u64,
    ) -> Result<Vec<Spending>, Fault>;

    /// Whether people have to approve some of what the vault signs.
    fn asks_approvals(&self, _vault: VaultId) -> bool {
        false
    }

    /// The one that is in force, where it can be replaced: all questions about one order are asked of one.
    fn current(&self) -> Option<Arc<dyn OrderCheck>> {
        None
    }

    /// What tells whether an order is held that [`OrderCheck::check`] lets through, or that has no transaction yet.
    ///
    /// # Errors
    /// As [`Policy::hold`].
    fn hold(
        &self,
        _order: &SigningOrder,
        _root: &RootKey,
        _now_ms: u64,
    ) -> Result<Option<HoldCheck>, Fault> {
        Ok(None)
    }

    /// Whose rejection it is, of those who can reject what is held of its vault.
    ///
    /// # Errors
    /// As [`Policy::rejected_by`].
    fn rejected_by(&self, _rejection: &Rejection) -> Result<String, Fault> {
        Err(Fault::new(Class::Invalid, "nothing is held here"))
    }
}

/// The check of every real node: rebuilds everything from payload and chain data
/// ([`SigningOrder::verify`]), then applies the node's own policy.
pub struct PolicyCheck(pub Policy);

impl OrderCheck for PolicyCheck {
    fn check(
        &self,
        order: &SigningOrder,
        root: &RootKey,
        child: &ChildKey,
        now_ms: u64,
    ) -> Result<Vec<Spending>, Fault> {
        let payload = order.verify_child(root, child)?;
        self.0.check(order, root, &payload, now_ms)
    }

    fn asks_approvals(&self, vault: VaultId) -> bool {
        self.0.asks_approvals(vault)
    }

    fn hold(
        &self,
        order: &SigningOrder,
        root: &RootKey,
        now_ms: u64,
    ) -> Result<Option<HoldCheck>, Fault> {
        if !self.0.holds() && !order.tells_of_approvals() {
            return Ok(None);
        }
        let payload = Payload::decode(&order.payload)?;
        self.0.hold(order, root, &payload, now_ms)
    }

    fn rejected_by(&self, rejection: &Rejection) -> Result<String, Fault> {
        self.0.rejected_by(rejection)
    }
}

/// Rebuilds everything, and allows whatever is what it says it is: [`PolicyCheck`] without a floor, for
/// simulations.
pub struct RebuildCheck;

impl OrderCheck for RebuildCheck {
    fn check(
        &self,
        order: &SigningOrder,
        root: &RootKey,
        child: &ChildKey,
        _now_ms: u64,
    ) -> Result<Vec<Spending>, Fault> {
        let payload = order.verify_child(root, child)?;
        order.own_recipients(root, &payload)?;
        Ok(Vec::new())
    }
}

/// The policy that is in force, which the operator can replace while the process runs. Each order is judged by one as a
/// whole.
pub struct CurrentPolicy(RwLock<Arc<PolicyCheck>>);

impl CurrentPolicy {
    /// With this policy, until another takes its place.
    pub fn new(policy: Policy) -> Self {
        Self(RwLock::new(Arc::new(PolicyCheck(policy))))
    }

    /// What comes from now on is judged by this one.
    pub fn replace(&self, policy: Policy) {
        *self.0.write() = Arc::new(PolicyCheck(policy));
    }

    /// The one in force.
    pub fn get(&self) -> Arc<PolicyCheck> {
        Arc::clone(&self.0.read())
    }
}

impl OrderCheck for CurrentPolicy {
    fn check(
        &self,
        order: &SigningOrder,
        root: &RootKey,
        child: &ChildKey,
        now_ms: u64,
    ) -> Result<Vec<Spending>, Fault> {
        self.get().check(order, root, child, now_ms)
    }

    fn asks_approvals(&self, vault: VaultId) -> bool {
        self.get().asks_approvals(vault)
    }

    fn current(&self) -> Option<Arc<dyn OrderCheck>> {
        Some(self.get())
    }

    fn hold(
        &self,
        order: &SigningOrder,
        root: &RootKey,
        now_ms: u64,
    ) -> Result<Option<HoldCheck>, Fault> {
        self.get().hold(order, root, now_ms)
    }

    fn rejected_by(&self, rejection: &Rejection) -> Result<String, Fault> {
        self.get().rejected_by(rejection)
    }
}
