//! Statements about addresses: the node derives each itself before it signs for it.

use std::{path::PathBuf, sync::Mutex};

use covault_core::{
    attest::{AttestOrder, KeyStatement, MAX_ADDRESSES},
    fault::Fault,
};

use super::{Node, lock};
use crate::{
    attest::KeyStatements,
    envelope::Header,
    message::{AttestRequest, Reply},
};

/// Where the node's statements about its keys are, one writer at a time.
pub(super) struct Statements(Mutex<PathBuf>);

impl Statements {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self(Mutex::new(folder))
    }
}

impl Node {
    /// Has the file of statements say which keys the node holds shares of. Who reads it can wait; the
    /// node goes on without.
    pub(super) fn state_keys(&self) {
        let folder = lock(&self.statements.0);
        let keys = self.keys.all();
        let keys: Vec<KeyStatement> = keys
            .iter()
            .map(|key| {
                let record = key.record();
                KeyStatement {
                    vault: record.vault,
                    scheme: record.scheme,
                    root: record.key.root.clone(),
                    epoch: record.epoch,
                    threshold: record.threshold,
                    holders: record.holders.clone(),
                    transcript: key.transcript,
                }
            })
            .collect();
        let stored = KeyStatements::sign(self.post.identity(), &keys).store(&folder);
        if let Err(fault) = stored {
            tracing::warn!(node = %self.name, ?fault, "the statements about keys are not written");
        }
    }

    /// Signs for addresses of a key that we hold a share of, all or none.
    pub(super) fn attest_order(
        &self,
        header: &Header,
        request: &AttestRequest,
    ) -> Result<(), Fault> {
        let AttestRequest { order, sent_at_ms } = request;
        let AttestOrder {
            session,
            vault,
            epoch,
            root_public_key,
            addresses,
        } = order;
        if *session != header.session {
            return Err(Fault::field("session", "the order is for another session"));
        }
        if *epoch != header.epoch {
            return Err(super::orders::wrong_epoch());
        }
        self.check_time(*sent_at_ms, *sent_at_ms, u64::MAX)?;
        if addresses.is_empty() || addresses.len() > MAX_ADDRESSES {
            return Err(Fault::field("addresses", "are none, or too many"));
        }
        let key = self
            .keys
            .get(root_public_key)
            .ok_or_else(|| Fault::field("rootPublicKey", "no share of this key"))?;
        let record = key.record();
        if record.vault != *vault {
            return Err(Fault::field("vault", "the key is another vault's"));
        }
        let mut signatures = Vec::with_capacity(addresses.len().saturating_mul(64));
        for statement in order.statements() {
            statement
                .verify(&record.key.root)
                .map_err(|fault| fault.under("addresses"))?;
            signatures.extend(self.post.identity().sign(statement.text().as_bytes()));
        }
        self.reply(
            header.from,
            header.epoch,
            header.session,
            header.attempt,
            &Reply::Attested(signatures),
        );
        Ok(())
    }
}
