//! Payments that the node's policy holds, and requests that its operator has vetoed.

use std::{collections::HashMap, sync::Arc};

use covault_core::{
    approval::Rejection,
    fault::Fault,
    ids::{RequestId, VaultId},
    moment::utc,
    order::NodeId,
};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

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

/// Rejections that wait to be written to disk, or are being written.
const MAX_REJECTIONS_BEGUN: usize = 1024;
/// How often it is said of a vault that no more of its rejections are kept, in milliseconds.
const FULL_SAID_MS: u64 = 10_000;

/// How a node writes people's rejections to disk.
pub(super) struct RejectionWriter {
    /// A place for each that has begun.
    places: Arc<Semaphore>,
    /// One is written at once: on their threads they would only wait for each other.
    turn: Semaphore,
    /// When it was last said of a vault that no more are kept, in milliseconds since the Unix epoch.
    full_said_ms: Mutex<HashMap<VaultId, u64>>,
}

impl Default for RejectionWriter {
    fn default() -> Self {
        Self {
            places: Arc::new(Semaphore::new(MAX_REJECTIONS_BEGUN)),
            turn: Semaphore::new(1),
            full_said_ms: Mutex::default(),
        }
    }
}

impl RejectionWriter {
    /// Whether it is to be said again that no more rejections of a vault are kept: who sends one again and again must not
    /// fill the log.
    fn says_full(&self, vault: VaultId, now_ms: u64) -> bool {
        let mut said = self.full_said_ms.lock();
        let last_ms = said.get(&vault);
        let is_due = last_ms.is_none_or(|last_ms| now_ms.abs_diff(*last_ms) >= FULL_SAID_MS);
        if is_due {
            said.insert(vault, now_ms);
        }
        is_due
    }
}

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
        if self.vetoes.is_full(rejection.vault) {
            self.log_no_room(rejection.vault, &person, &rejection.requests);
            return Ok(());
        }
        let place = Arc::clone(&self.rejections.places).try_acquire_owned();
        let place = place.map_err(|_| {
            Fault::unavailable("this node is writing down too many rejections; tell it again")
        })?;
        let vault = rejection.vault;
        // From now on, also while it waits for its turn and for the disk.
        let begun = self.vetoes.begin(vault, &rejection.requests);
        let node = Arc::clone(self);
        self.runtime.spawn(async move {
            let _place = place;
            let _turn = node.rejections.turn.acquire().await;
            let written = node.pool.block_on(move || begun.write()).await;
            let RejectionOutcome { marked, no_room } = match written.and_then(|written| written) {
                Ok(outcome) => outcome,
                Err(fault) => return node.log_untaken(from, &fault),
            };
            for request in marked {
                tracing::warn!(
                    node = %node.name, %request, %vault, person,
                    "request rejected by a person: this node never signs it"
                );
            }
            if !no_room.is_empty() {
                node.log_no_room(vault, &person, &no_room);
            }
        });
        Ok(())
    }

    fn log_no_room(&self, vault: VaultId, person: &str, requests: &[RequestId]) {
        if self.rejections.says_full(vault, self.clock.now_ms()) {
            let requests: Vec<_> = requests.iter().map(RequestId::to_string).collect();
            tracing::warn!(
                node = %self.name, requests = requests.join(" "), %vault, person,
                "a rejection was not taken: this node keeps no more of the vault; its operator can veto the requests (covault node veto)"
            );
        }
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

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn full_vault__should_be_named_in_the_log_once_in_ten_seconds() {
        let writer = RejectionWriter::default();
        let [one, other] = [1, 2].map(|number| VaultId::from_bytes([number; 16]));
        let said = [(one, 50_000), (one, 59_999), (other, 59_999), (one, 60_000)];
        let said = said.map(|(vault, now_ms)| writer.says_full(vault, now_ms));
        assert_eq!(said, [true, false, true, true]);
        // The clock was set back.
        assert!(writer.says_full(one, 20_000));
        assert!(!writer.says_full(one, 20_001));
    }
}
