//! What a node checks of a signing order before it claims anything. Every refusal begins with the
//! field that is wrong, as the order calls it.

use std::sync::Arc;

use covault_core::{
    fault::{Fault, FaultCode},
    ids::SessionId,
    order::{NodeId, SigningOrder},
};

use super::{Node, refusals::refused};
use crate::{
    backend::SignerIndex,
    message::SignOrderMsg,
    policy::{HoldCheck, Spending},
};
use crate::{loaded_keys::LoadedKey, message::MAX_INPUTS};

/// An order that may be signed.
pub(super) struct CheckedOrder {
    pub key: Arc<LoadedKey>,
    /// Of the signers, in their order.
    pub indices: Vec<SignerIndex>,
    /// To be counted with the claim.
    pub spending: Vec<Spending>,
    /// It may rest on approvals.
    pub approved: bool,
    /// What tells whether it is held.
    pub hold: Option<HoldCheck>,
}

impl Node {
    /// Checks what the request says about itself: its session and its times.
    pub(super) fn check_request(
        &self,
        session: SessionId,
        request: &SignOrderMsg,
    ) -> Result<(), Fault> {
        if request.session != session {
            return Err(Fault::field("session", "the order is for another session"));
        }
        let order = &request.order;
        self.check_time(request.sent_at_ms, order.issued_at_ms, order.expires_at_ms)
    }

    /// Checks the order against the share that it names, rebuilds what it shows, and applies the
    /// node's policy. `signers`: who signs it; `None` where that is not known yet.
    pub(super) fn check_order(
        &self,
        order: &SigningOrder,
        signers: Option<&[NodeId]>,
    ) -> Result<CheckedOrder, Fault> {
        let key = self
            .keys
            .get(&order.root_public_key)
            .ok_or_else(|| Fault::field("rootPublicKey", "no share of this key"))?;
        let record = &key.record;
        if record.vault != order.vault {
            return Err(Fault::field("vault", "the key belongs to another vault"));
        }
        self.check_thawed(order.vault)?;
        self.check_not_vetoed(order.vault, order.request)?;
        // Before its epoch, which may be an old one: this says what to do.
        if record.restored {
            return Err(refused(
                "this share was restored from a backup: refresh the vault first",
            ));
        }
        self.check_fit(&key, signers.unwrap_or_default())?;
        if record.epoch != order.epoch {
            let problem = format_args!("the shares are of epoch {}", record.epoch);
            return Err(Fault::field("epoch", problem));
        }
        if order.inputs.is_empty() || order.inputs.len() > MAX_INPUTS {
            return Err(Fault::field(
                "inputs",
                "the order has no inputs, or too many",
            ));
        }
        let curve = record.key.root.curve;
        if let Some(place) = order.inputs.iter().position(|input| input.curve != curve) {
            return Err(Fault::field(
                format_args!("inputs[{place}].curve"),
                "an input needs another curve",
            ));
        }
        let indices = match signers {
            Some(signers) => {
                self.check_peers(order.vault, "signers", signers)?;
                self.indices(record, signers)?
            }
            None => Vec::new(),
        };
        // Before it takes a place among the children that are kept ready.
        order.check_path(&record.key.root)?;
        let child = key.child(&order.path)?;
        // One policy judges all of it, whichever takes its place in the meantime.
        let current = self.check.current();
        let check = current.as_deref().unwrap_or(self.check.as_ref());
        let (root, now_ms) = (&record.key.root, self.clock.now_ms());
        let asked = check.asks_approvals(order.vault);
        let checked = check.check(order, root, &child, now_ms);
        let approved = !order.approvals.given.is_empty() && asked;
        let missing = |fault: &Fault| fault.code() == FaultCode::ApprovalsMissing;
        if approved || checked.as_ref().is_err_and(missing) {
            check_quorums(record.threshold, record.holders.len())?;
        }
        let spending = checked?;
        let hold = check.hold(order, root, now_ms)?;
        Ok(CheckedOrder {
            hold,
            key,
            indices,
            spending,
            approved,
        })
    }
}

/// Checks that any two sets of signers have a node in common. Where they need not, each of two could use one
/// approval for a transaction of its own.
pub(super) fn check_quorums(threshold: u16, holders: usize) -> Result<(), Fault> {
    let half = holders / 2;
    if usize::from(threshold) > half {
        return Ok(());
    }
    let sentence = format_args!(
        "with {threshold} of {holders} signers one approval could be used for two transactions, and this signer's \
         policy requires approvals: it must be more than {half}"
    );
    Err(Fault::field("threshold", sentence))
}
