//! Backups of a node's shares.

use covault_core::{fault::Fault, order::BackupOrder};

use super::{
    Node,
    life::stale,
    refusals::{refused, wrong_epoch},
};
use crate::{
    envelope::EnvelopeHeader,
    message::{BackupOrderMsg, OrderReply},
    shares::backup::{self, plain},
};

impl Node {
    /// Gives our share, encrypted to recipients that our own configuration names.
    pub(super) fn backup_order(
        &self,
        header: &EnvelopeHeader,
        request: &BackupOrderMsg,
    ) -> Result<(), Fault> {
        let BackupOrderMsg { order, sent_at_ms } = request;
        if order.session != header.session {
            return Err(Fault::field("session", "the order is for another session"));
        }
        if header.epoch != order.epoch {
            return Err(wrong_epoch());
        }
        self.check_time(*sent_at_ms, order.issued_at_ms, order.expires_at_ms)?;
        let BackupOrder {
            vault,
            root_public_key,
            epoch,
            recipients,
            ..
        } = order;
        if recipients.is_empty() {
            return Err(Fault::field("recipients", "are missing"));
        }
        if let Some(stranger) = recipients
            .iter()
            .find(|line| !self.life.recipients.iter().any(|ours| ours == line.trim()))
        {
            return Err(Fault::field(
                "recipients",
                format_args!(
                    "name {stranger}, to which this node does not encrypt: list it in \
                     signer.backup_recipients first"
                ),
            ));
        }
        let key = self
            .keys
            .get(root_public_key)
            .ok_or_else(|| refused("no share of this key"))?;
        let record = key.record();
        if record.vault != *vault {
            return Err(Fault::field("vault", "the key belongs to another vault"));
        }
        if record.epoch != *epoch {
            return Err(stale(record.epoch));
        }
        let stored = self
            .shares
            .load(record.vault, &record.key.root, record.epoch, false)?;
        let sealed = backup::export(
            &stored,
            &plain(&stored)?,
            &self.codec.id(),
            &backup::recipients(recipients)?,
        )?;
        tracing::info!(node = %self.name, ?recipients, "share backed up");
        self.reply(
            header.from,
            header.epoch,
            header.session,
            header.attempt,
            &OrderReply::Backup(sealed),
        );
        Ok(())
    }
}
