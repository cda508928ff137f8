//! Orders to generate a key.

use std::sync::Arc;

use covault_core::{fault::Fault, order::KeygenOrder};
use sha2::{Digest as _, Sha256};

use crate::{
    backend::{self, KeygenSetup, SignerIndex},
    envelope::EnvelopeHeader,
    message::KeygenOrderMsg,
    node::{
        Node,
        check::check_quorums,
        refusals::{refused, wrong_epoch},
        sessions::{MAX_KEYGEN_MS, SessionJob, SessionStart},
    },
    primes,
    runner::ProtocolRun,
    shares::{FIRST_EPOCH, ShareLineage, ShareRecord},
};

impl Node {
    pub(super) fn keygen_order(
        self: &Arc<Self>,
        header: &EnvelopeHeader,
        request: KeygenOrderMsg,
        received_ms: u64,
    ) -> Result<(), Fault> {
        let (from, session) = (header.from, header.session);
        let KeygenOrderMsg { order, sent_at_ms } = request;
        let context: [u8; 32] = Sha256::digest(order.canonical_bytes()?).into();
        if order.session != session {
            return Err(Fault::field("session", "the order is for another session"));
        }
        self.check_own_vault(order.vault)?;
        if header.epoch != FIRST_EPOCH {
            return Err(wrong_epoch());
        }
        if let Some(key) = self.keys.of_session(session) {
            // It has succeeded before.
            let record = &key.record;
            let other = [
                ("vault", record.vault != order.vault),
                ("scheme", record.scheme != order.scheme),
                ("threshold", record.threshold != order.threshold),
                ("signers", record.holders != order.signers),
            ];
            if let Some((field, _)) = other.iter().find(|(_, other)| *other) {
                return Err(Fault::field(*field, "the session made a key with another"));
            }
            self.reply(from, header.epoch, session, 0, &self.key_made(&key));
            return Ok(());
        }
        if self.sessions.accepted((session, 0)).is_some() {
            // Claimed, running, or just over: the answer is on its way.
            return Ok(());
        }
        self.check_time(sent_at_ms, order.issued_at_ms, order.expires_at_ms)?;
        self.check_not_duplicated()?;
        self.check_peers(order.vault, "signers", &order.signers)?;
        let limits = self.rules.limits(order.vault);
        limits.check(order.threshold, order.signers.len(), None)?;
        if self.check.asks_approvals(order.vault) {
            check_quorums(order.threshold, order.signers.len())?;
        }
        let room = self.reserve_for_key(from, order.vault)?;
        // By our clock, which may not be theirs.
        let left_ms = order.expires_at_ms.saturating_sub(sent_at_ms);
        let until_ms = received_ms.saturating_add(left_ms.min(MAX_KEYGEN_MS));
        let KeygenOrder {
            vault,
            scheme,
            threshold,
            signers,
            ..
        } = order;
        let parties = SignerIndex::try_from(signers.len())
            .map_err(|_| Fault::field("signers", "are too many"))?;
        let indices: Vec<SignerIndex> = (1..=parties).collect();
        let mut distinct = signers.clone();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() != signers.len() {
            return Err(Fault::field("signers", "name a node twice"));
        }
        let place = signers.iter().position(|signer| *signer == self.codec.id());
        let me = place
            .and_then(|place| indices.get(place).copied())
            .ok_or_else(|| Fault::field("signers", "must include this node"))?;
        let setup = KeygenSetup {
            context,
            me,
            threshold: SignerIndex::try_from(threshold)
                .map_err(|_| Fault::field("threshold", "is too high"))?,
            parties,
        };
        let backend = backend::of(scheme)?;
        if backend.needs_primes() && self.primes.count()? == 0 {
            return Err(refused(primes::NONE_LEFT));
        }
        let primes = Arc::clone(&self.primes);
        let source = Box::new(move || primes.take());
        let run = ProtocolRun::keygen(
            backend::private::keygen(backend, setup, source)?,
            self.peers(&signers, &indices),
        );
        let record = move |key| ShareRecord {
            vault,
            epoch: FIRST_EPOCH,
            scheme,
            session,
            threshold,
            holders: signers,
            order: None,
            lineage: ShareLineage::default(),
            restored: false,
            key,
        };
        if !self.sessions.accept((session, 0), context, until_ms) {
            return Ok(());
        }
        let begin = SessionStart {
            room,
            key: (session, 0),
            run,
            orchestrator: from,
            epoch: FIRST_EPOCH,
            until_ms,
            job: SessionJob::Keygen(Box::new(record)),
        };
        self.claim_plain(begin);
        Ok(())
    }
}
