//! Statements about addresses: the node derives each itself before it signs for it.

use std::{path::PathBuf, sync::Arc};

use covault_core::{
    attest::{AttestOrder, KeyStatement, MAX_ADDRESSES},
    fault::Fault,
};
use parking_lot::Mutex;

use super::{Node, keygen_quota::RecordStatus, lock};
use crate::{
    attest::KeyStatements,
    envelope::EnvelopeHeader,
    loaded_keys::LoadedKey,
    message::{AttestOrderMsg, OrderReply},
};

/// Where the node's statements about its keys are, one writer at a time.
pub(super) struct StatementsFolder(Mutex<PathBuf>);

impl StatementsFolder {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self(Mutex::new(folder))
    }
}

impl Node {
    /// Has the file of statements say which keys the node holds shares of. Who reads it can wait; the
    /// node continues without.
    pub(super) fn state_keys(&self) {
        let folder = lock(&self.statements.0);
        let keys = self.keys.all();
        let keys: Vec<KeyStatement> = keys.iter().map(|key| key.statement()).collect();
        let stored = KeyStatements::sign(self.codec.identity(), &keys).store(&folder);
        if let Err(fault) = stored {
            tracing::warn!(node = %self.name, ?fault, "failed to write the statements about keys");
        }
    }

    /// That the share of this key is on disk.
    pub(super) fn key_made(&self, key: &LoadedKey) -> OrderReply {
        let text = key.statement().text();
        OrderReply::KeyMade {
            root: key.record().key.root.clone(),
            transcript: key.transcript,
            signature: self.codec.identity().sign(text.as_bytes()).to_vec(),
        }
    }

    /// Signs for addresses of a key that we hold a share of, all or none: of the vault's own, once
    /// it is known that all holders have their shares.
    pub(super) fn attest_order(
        self: &Arc<Self>,
        header: &EnvelopeHeader,
        request: &AttestOrderMsg,
    ) -> Result<(), Fault> {
        let AttestOrderMsg { order, sent_at_ms } = request;
        let AttestOrder {
            session,
            vault,
            epoch,
            root_public_key,
            threshold,
            holders,
            confirmed,
            addresses,
        } = order;
        if *session != header.session {
            return Err(Fault::field("session", "the order is for another session"));
        }
        if *epoch != header.epoch {
            return Err(super::refusals::wrong_epoch());
        }
        self.check_time(*sent_at_ms, *sent_at_ms, u64::MAX)?;
        if addresses.is_empty() || addresses.len() > MAX_ADDRESSES {
            return Err(Fault::field("addresses", "must not be empty or too many"));
        }
        let key = self
            .keys
            .get(root_public_key)
            .ok_or_else(|| Fault::field("rootPublicKey", "no share of this key"))?;
        let record = key.record();
        if record.vault != *vault {
            return Err(Fault::field("vault", "the key belongs to another vault"));
        }
        if record.threshold != *threshold {
            return Err(Fault::field("threshold", "the key has another threshold"));
        }
        if record.holders != *holders {
            return Err(Fault::field(
                "holders",
                "other nodes hold shares of the key",
            ));
        }
        key.check_confirmed(confirmed)?;
        let noted = self
            .quota_tracker
            .note_vault(record.vault, &record.key.root);
        if noted == RecordStatus::Other {
            return Err(Fault::field(
                "rootPublicKey",
                "this node has stated addresses of another key of the vault, or signed with it; \
                 make a new vault",
            ));
        }
        let mut signatures = Vec::with_capacity(addresses.len().saturating_mul(64));
        for statement in order.statements() {
            statement
                .verify(&record.key.root)
                .map_err(|fault| fault.with_prefix("addresses"))?;
            signatures.extend(self.codec.identity().sign(statement.text().as_bytes()));
        }
        let EnvelopeHeader {
            from,
            epoch,
            session,
            attempt,
            ..
        } = *header;
        let reply = OrderReply::Attested(signatures);
        if noted == RecordStatus::OnDisk {
            self.reply(from, epoch, session, attempt, &reply);
            return Ok(());
        }
        // Nobody hears of an address before it is on disk that there is no other key.
        let node = Arc::clone(self);
        self.runtime.spawn(async move {
            match node.save_vault_key(&key).await {
                Ok(()) => node.reply(from, epoch, session, attempt, &reply),
                Err(error) => {
                    let fault = Fault::unavailable("a signer's disk failed").caused_by(error);
                    node.refuse(from, epoch, session, attempt, fault);
                }
            }
        });
        Ok(())
    }
}
