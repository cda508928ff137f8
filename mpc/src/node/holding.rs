//! Payments that the node's policy holds, and requests that its operator has vetoed.

use std::{collections::HashMap, sync::Arc};

use covault_core::{
    approval::Rejection,
    fault::{Class, Fault},
    ids::{RequestId, VaultId},
    moment::utc,
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
    veto::{RejectionOutcome, Veto, log_rejected},
};

/// How often the log says again of a vault that a person has no room for more rejections, and that the disk takes none, in
/// milliseconds.
const SAID_MS: u64 = 10_000;

/// How a node writes people's rejections to disk.
pub(super) struct RejectionWriter {
    /// One thread writes: others would only wait for the same disk.
    turn: Arc<Semaphore>,
    /// When it was last said that there is no room, or of no vault that the disk fails, in milliseconds since the Unix epoch.
    said_ms: Mutex<HashMap<Option<VaultId>, u64>>,
}

impl Default for RejectionWriter {
    fn default() -> Self {
        Self {
            turn: Arc::new(Semaphore::new(1)),
            said_ms: Mutex::default(),
        }
    }
}

impl RejectionWriter {
    /// Whether it is to be said again: who sends a rejection again and again must not fill the log.
    fn says(&self, of: Option<VaultId>, now_ms: u64) -> bool {
        let mut said = self.said_ms.lock();
        let last_ms = said.get(&of);
        let is_due = last_ms.is_none_or(|last_ms| now_ms.abs_diff(*last_ms) >= SAID_MS);
        if is_due {
            said.insert(of, now_ms);
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

    /// An orchestrator tells of a rejection, and again until it is answered. That it is noted means that it is on disk.
    pub(super) fn rejected(self: &Arc<Self>, header: &EnvelopeHeader, body: &[u8]) {
        let EnvelopeHeader {
            from,
            epoch,
            session,
            attempt,
            ..
        } = *header;
        let message = decode(body).ok_or_else(|| refused("the rejection cannot be read"));
        let is_written = message.and_then(|RejectionMsg { rejection }| {
            let person = self.check_rejection(&rejection)?;
            self.keep_rejection(&person, &rejection)
        });
        let reply = match is_written {
            Ok(true) => OrderReply::Noted { held_until_ms: 0 },
            Ok(false) => return,
            Err(fault) => {
                let from = from.openssh_line("");
                tracing::warn!(node = %self.name, from, ?fault, "a rejection was not taken");
                OrderReply::Refused(fault)
            }
        };
        self.reply(from, epoch, session, attempt, &reply);
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

    /// Obeys at once and for good what a person has rejected; whether all of it is on disk. That takes the disk its time,
    /// which no signature waits for: a hundred requests are a hundred files.
    fn keep_rejection(
        self: &Arc<Self>,
        person: &str,
        rejection: &Rejection,
    ) -> Result<bool, Fault> {
        let Rejection {
            vault, requests, ..
        } = rejection;
        // What is told again costs nothing.
        if matches!(self.vetoes.are_written(*vault, requests), Ok(true)) {
            return Ok(true);
        }
        let RejectionOutcome { no_room, .. } = self.vetoes.reject(*vault, person, requests);
        self.write_rejections();
        if no_room.is_empty() {
            return Ok(false);
        }
        if self.rejections.says(Some(*vault), self.clock.now_ms()) {
            let requests: Vec<_> = no_room.iter().map(RequestId::to_string).collect();
            tracing::warn!(
                node = %self.name, requests = requests.join(" "), %vault, person,
                "a rejection was not taken: this node keeps no more of this person; its operator can veto the requests (covault node veto)"
            );
        }
        Err(Fault::new(
            Class::Limited,
            format!("this node keeps no more rejections by {person} of this vault"),
        ))
    }

    /// Writes to disk what people have rejected, where something is not and nobody is at it.
    pub(super) fn write_rejections(self: &Arc<Self>) {
        if !self.vetoes.has_unwritten() {
            return;
        }
        let Ok(turn) = Arc::clone(&self.rejections.turn).try_acquire_owned() else {
            return;
        };
        let node = Arc::clone(self);
        self.runtime.spawn(async move {
            node.rejections_on_disk().await;
            drop(turn);
        });
    }

    /// Writes to disk what people have rejected; where that fails it is obeyed without, and tried again.
    pub(super) async fn rejections_on_disk(&self) {
        let (vetoes, name) = (Arc::clone(&self.vetoes), self.name.clone());
        let written = (self.pool).block_on(move || vetoes.write(|it| log_rejected(&name, it)));
        match written.await.and_then(|written| written) {
            Ok(()) => {}
            Err(fault) if self.rejections.says(None, self.clock.now_ms()) => {
                tracing::error!(
                    node = %self.name, ?fault,
                    "rejections cannot be written to disk: this node obeys them only until it stops, and tries again"
                );
            }
            Err(_) => {}
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
        let [one, other] = [1, 2].map(|number| Some(VaultId::from_bytes([number; 16])));
        let said = [
            (one, 50_000),
            (one, 59_999),
            (other, 59_999),
            (None, 59_999),
            (one, 60_000),
        ];
        let said = said.map(|(of, now_ms)| writer.says(of, now_ms));
        assert_eq!(said, [true, false, true, true, true]);
        // The clock was set back.
        assert!(writer.says(one, 20_000));
        assert!(!writer.says(one, 20_001));
    }
}
