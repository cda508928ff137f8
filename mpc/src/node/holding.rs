//! Payments that the node's policy holds, and requests that its operator has vetoed.

use std::sync::Arc;

use covault_core::{
    approval::Rejection,
    fault::Fault,
    ids::{RequestId, VaultId},
    moment::utc,
    order::NodeId,
};

use super::{
    Node,
    orders::refused_claim,
    refusals::{refused, wrong_epoch},
};
use crate::{
    claims::ClaimError,
    envelope::EnvelopeHeader,
    message::{OrderReply, RejectionMsg, SignOrderMsg, decode},
    policy::{HeldUntil, approvals_missing},
    veto::{RejectionOutcome, Veto},
};

impl Node {
    /// Refuses to sign a request that the operator has vetoed on this node or a person has rejected, or where that cannot
    /// be told.
    pub(super) fn check_not_vetoed(&self, vault: VaultId, request: RequestId) -> Result<(), Fault> {
        match self.vetoes.of_request(vault, request)? {
            None => Ok(()),
            Some(Veto::Operator) => Err(refused(
                "the operator of this node has vetoed the request (covault node veto): it never signs it",
            )),
            Some(Veto::Person) => Err(refused(
                "a person has rejected the request: this node never signs it",
            )),
        }
    }

    /// An orchestrator tells of a rejection. Nobody waits for an answer.
    pub(super) fn rejected(self: &Arc<Self>, from: NodeId, body: &[u8]) {
        let message = decode(body).ok_or_else(|| refused("the rejection cannot be read"));
        let taken = message.and_then(|RejectionMsg { rejection }| {
            let person = self.check_rejection(&rejection)?;
            self.keep_rejection(from, person, rejection)
        });
        if let Err(fault) = taken {
            self.log_untaken(from, &fault);
        }
    }

    fn log_untaken(&self, from: NodeId, fault: &Fault) {
        let from = from.openssh_line("");
        tracing::warn!(node = %self.name, from, ?fault, "a rejection was not taken");
    }

    /// Whose rejection it is, where the person could reject what this node holds.
    fn check_rejection(&self, rejection: &Rejection) -> Result<String, Fault> {
        let vault = rejection.vault;
        self.check_own_vault(vault)?;
        if !self.keys.all().iter().any(|key| key.record.vault == vault) {
            return Err(Fault::field("vault", "no share of a key of this vault"));
        }
        let current = self.check.current();
        let check = current.as_deref().unwrap_or(self.check.as_ref());
        check.rejected_by(rejection)
    }

    /// Notes for good what a person has rejected. That takes the disk its time, which no signature waits for: a hundred
    /// requests are a hundred files.
    fn keep_rejection(
        self: &Arc<Self>,
        from: NodeId,
        person: String,
        rejection: Rejection,
    ) -> Result<(), Fault> {
        // What is told again costs nothing.
        if (self.vetoes).are_rejected(rejection.vault, &rejection.requests)? {
            return Ok(());
        }
        let place = Arc::clone(&self.rejections).try_acquire_owned();
        let place = place.map_err(|_| {
            Fault::unavailable("this node is writing down too many rejections; tell it again")
        })?;
        let node = Arc::clone(self);
        self.runtime.spawn(async move {
            let _place = place;
            let (vault, writing) = (rejection.vault, Arc::clone(&node));
            let written = move || writing.vetoes.reject(vault, &rejection.requests);
            let written = node.pool.block_on(written).await.and_then(|written| written);
            let RejectionOutcome { marked, no_room } = match written {
                Ok(outcome) => outcome,
                Err(fault) => return node.log_untaken(from, &fault),
            };
            for request in marked {
                tracing::warn!(
                    node = %node.name, %request, %vault, person,
                    "request rejected by a person: this node never signs it"
                );
            }
            for request in no_room {
                tracing::warn!(
                    node = %node.name, %request, %vault, person,
                    "a rejection was not taken: this node keeps no more of the vault; its operator can veto the request (covault node veto)"
                );
            }
        });
        Ok(())
    }

    /// Says which request is held, and until when: those who can reject or veto it may learn of it from nobody else.
    pub(super) fn log_held(&self, held: &HeldUntil) {
        let HeldUntil {
            until_ms,
            of,
            request,
            vault,
            network,
            ..
        } = held;
        let until = utc(*until_ms);
        tracing::warn!(node = %self.name, %request, %vault, network = network.name(), %until, %of, "payment held");
    }

    /// Looks at the approvals of a request that has no transaction yet, and answers how long this node would hold it, or
    /// who has to approve it besides.
    /// Nothing is signed and no digest is claimed: the order shows none.
    pub(super) fn told_of_approvals(
        self: &Arc<Self>,
        header: &EnvelopeHeader,
        request: &SignOrderMsg,
    ) -> Result<(), Fault> {
        let order = &request.order;
        if header.epoch != order.epoch {
            return Err(wrong_epoch());
        }
        let room = self.quota_tracker.session(header.from, 1)?;
        let key = self
            .keys
            .get(&order.root_public_key)
            .ok_or_else(|| Fault::field("rootPublicKey", "no share of this key"))?;
        let record = key.record();
        if record.vault != order.vault {
            return Err(Fault::field("vault", "the key belongs to another vault"));
        }
        self.check_thawed(order.vault)?;
        self.check_not_vetoed(order.vault, order.request)?;
        // A time that it does not believe is none that a hold begins at.
        self.check_fit(&key, &[])?;
        order.check_path(&record.key.root)?;
        let child = key.child(&order.path)?;
        order.verify_intent(&record.key.root, &child)?;
        let now_ms = self.clock.now_ms();
        let hold = self.check.hold(order, &record.key.root, now_ms)?;
        let EnvelopeHeader {
            from,
            epoch,
            session,
            attempt,
            ..
        } = *header;
        let Some(hold) = hold else {
            let reply = OrderReply::Noted { held_until_ms: 0 };
            self.reply(from, epoch, session, attempt, &reply);
            return Ok(());
        };
        let node = Arc::clone(self);
        let wants = hold.wants();
        self.runtime.spawn(async move {
            let _room = room;
            let held_until_ms = match node.claims.note_approvals(hold, now_ms).await {
                Ok(()) => 0,
                Err(ClaimError::Held(held)) => {
                    node.log_held(&held);
                    // Its time runs while the others are asked.
                    if let Some(wants) = wants {
                        let fault = approvals_missing(&wants);
                        return node.refuse(from, epoch, session, attempt, fault);
                    }
                    held.until_ms
                }
                Err(error) => {
                    let fault = refused_claim(&error).caused_by(&error);
                    return node.refuse(from, epoch, session, attempt, fault);
                }
            };
            let reply = OrderReply::Noted { held_until_ms };
            node.reply(from, epoch, session, attempt, &reply);
        });
        Ok(())
    }
}
