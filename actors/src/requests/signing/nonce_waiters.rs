//! Transactions that wait until a node has accepted the one before them.

use std::collections::HashMap;

use covault_core::request::NonceReservation;
use parking_lot::Mutex;

use super::Msg;
use crate::process::mailbox::ActorMailbox;

/// Transactions that no node takes yet, by their numbers. Networks that want the numbers of an
/// account without a gap refuse one whose predecessor is not in yet.
#[derive(Default)]
pub struct NonceWaiters(Mutex<HashMap<NonceReservation, ActorMailbox<Msg>>>);

impl NonceWaiters {
    fn with<T>(
        &self,
        change: impl FnOnce(&mut HashMap<NonceReservation, ActorMailbox<Msg>>) -> T,
    ) -> T {
        change(&mut self.0.lock())
    }

    /// The transaction with this number is to be sent again once the one before it is taken.
    pub fn wait(&self, claim: NonceReservation, actor: ActorMailbox<Msg>) {
        self.with(|waiting| waiting.insert(claim, actor));
    }

    /// The transaction with this number waits no more.
    pub fn leave(&self, claim: &NonceReservation) {
        self.with(|waiting| waiting.remove(claim));
    }

    /// A node has the transaction with this number: the next one's turn has come.
    pub fn taken(&self, claim: &NonceReservation) {
        let next = NonceReservation {
            nonce: claim.nonce.saturating_add(1),
            ..claim.clone()
        };
        if let Some(actor) = self.with(|waiting| waiting.remove(&next)) {
            // It may have ended.
            let _ = actor.cast(Msg::TurnCame);
        }
    }
}
