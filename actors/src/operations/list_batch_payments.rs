use async_trait::async_trait;
use covault_core::{batch::BatchPayment, fault::Fault, ids::BatchId, schema::admin};

use super::{Operation, OperationCall, batch};
use crate::{
    commands::caller::vault_in_scope,
    services::skip_unreadable,
    store::{Scan, batch_rows, rows},
};

/// Batches that one answer has.
const PAGE: usize = 100;
/// Of them at once in memory: one may have half a MiB of notes.
const AT_ONCE: usize = 8;

/// Lists the batch payments of a vault, newest first.
pub struct ListBatchPayments;

#[async_trait]
impl Operation for ListBatchPayments {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.ListBatchPayments";
    type Request = admin::ListBatchPaymentsRequest;
    type Response = admin::ListBatchPaymentsResponse;

    async fn run(call: OperationCall<'_>, message: Self::Request) -> Result<Self::Response, Fault> {
        let services = call.services;
        let vault = vault_in_scope(call.caller, &message.vault_uuid)?;
        if services.vault(vault).await?.is_none() {
            return Err(Fault::field("vaultUuid", "is not the UUID of a vault"));
        }
        let all = batch_rows::batches_of(vault);
        let mut scan = Scan::prefix(all.space, &all.bytes, PAGE);
        scan.reverse = true;
        if let Some(next) = &message.next {
            let id: BatchId = next.parse().map_err(|fault: Fault| fault.at("next"))?;
            let last = services.load::<BatchPayment>(&rows::batch(id)).await?;
            let last = last.filter(|(last, _)| last.vault == vault);
            let (last, _) =
                last.ok_or_else(|| Fault::field("next", "is not from an earlier page"))?;
            scan.from = Some(batch_rows::batch_index(vault, last.created_at_ms, id).bytes);
            // It was the last of the page before.
            scan.skip = 1;
        }
        let page = services.store.scan(&scan).await?;
        let ids: Vec<_> = page
            .iter()
            .filter_map(|(key, _)| batch_rows::indexed_batch(key))
            .collect();
        let mut batch_payments = Vec::new();
        for part in ids.chunks(AT_ONCE) {
            let keys: Vec<_> = part.iter().map(|id| rows::batch(*id)).collect();
            let found = services.load_all::<BatchPayment>(&keys).await?;
            for (found, id) in found.into_iter().zip(part) {
                let shown = found.and_then(|found| {
                    let found = found.as_ref();
                    found.map(|it| batch::summary(services, it)).transpose()
                });
                let shown = skip_unreadable(shown, format_args!("batch {id}"))?;
                batch_payments.extend(shown.flatten());
            }
            tokio::task::yield_now().await;
        }
        let next = ids.last().filter(|_| page.len() == PAGE);
        Ok(admin::ListBatchPaymentsResponse {
            batch_payments,
            next: next.map(ToString::to_string),
            now_ms: services.now_ms(),
        })
    }
}
