use async_trait::async_trait;
use covault_core::{
    audit::{AuditChain, AuditEntry, AuditEvent, LinkedEntry},
    fault::Fault,
    schema::admin,
};

use super::{Operation, OperationCall, list_audit_chains::head_message};
use crate::{audit::AuditLog, lists::PageBytes, store::Store};

/// Lists the entries of one chain of the audit log, page by page.
pub struct ListAuditEntries;

#[async_trait]
impl Operation for ListAuditEntries {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.ListAuditEntries";
    type Request = admin::ListAuditEntriesRequest;
    type Response = admin::ListAuditEntriesResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        Self::read(&*call.services.store, request).await
    }
}

impl ListAuditEntries {
    /// The same, of a store that no orchestrator uses.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] naming `chain`, and when the store cannot be read.
    pub async fn read(
        store: &dyn Store,
        request: admin::ListAuditEntriesRequest,
    ) -> Result<admin::ListAuditEntriesResponse, Fault> {
        let chain: AuditChain = request.chain.parse()?;
        let log = AuditLog(store);
        let entries = log.entries(chain, request.from).await?;
        // After them: a head that is behind an entry is wrong then, and not just older.
        let head = log.head(chain).await?;
        let mut bytes = PageBytes::default();
        let entries = entries.into_iter().map(entry_message);
        Ok(admin::ListAuditEntriesResponse {
            entries: entries.take_while(|entry| bytes.fits(entry)).collect(),
            head: head.map(head_message),
        })
    }
}

fn entry_message((at, linked): (u64, LinkedEntry)) -> admin::AuditEntry {
    let LinkedEntry {
        number,
        previous,
        hash,
        body,
    } = linked;
    admin::AuditEntry {
        at,
        number,
        previous: hex::encode(previous),
        hash: hex::encode(hash),
        report: AuditEntry::decode(&body).map(report_message),
        body,
    }
}

fn report_message(entry: AuditEntry) -> admin::AuditReport {
    let AuditEntry {
        at_ms,
        by,
        call,
        subject,
        events,
    } = entry;
    let fact = |(name, value)| admin::AuditFact { name, value };
    let event = |AuditEvent { event, facts }| admin::AuditEvent {
        event,
        facts: facts.into_iter().map(fact).collect(),
    };
    admin::AuditReport {
        at_ms,
        by,
        call,
        subject,
        events: events.into_iter().map(event).collect(),
    }
}
