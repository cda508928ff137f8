use async_trait::async_trait;
use covault_core::{
    fault::Fault,
    ids::RequestId,
    request::{RequestEffect, RequestState, SigningRequest},
    schema::{admin, wire::signing_request::Status},
};

use super::{Operation, OperationCall};
use crate::{
    lists::PageBytes,
    services::{Services, skip_unreadable},
    store::{
        KeySpace, Scan,
        rows::{self, OutboxRow, TransactionRow},
    },
};

/// Rows that one scan reads.
const PAGE: usize = 512;
/// Requests that an answer has.
const MOST: usize = 1_000;

/// Lists requests and transactions that make no progress.
pub struct ListStuckRequests;

#[async_trait]
impl Operation for ListStuckRequests {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.ListStuckRequests";
    type Request = admin::ListStuckRequestsRequest;
    type Response = admin::ListStuckRequestsResponse;

    async fn run(call: OperationCall<'_>, _: Self::Request) -> Result<Self::Response, Fault> {
        let services = call.services;
        let mut reasons = Vec::new();
        let mut next = Some(Scan::prefix(KeySpace::Outbox, &[], PAGE));
        while let Some(scan) = next {
            let page = services.store.scan(&scan).await?;
            let (mut followed, mut waiting) = (Vec::new(), Vec::new());
            for (key, row) in &page {
                let Some(id) = rows::outbox_request(key) else {
                    continue;
                };
                let effect = rows::decode::<OutboxRow>(&row.value);
                match skip_unreadable(effect, format_args!("effect of request {id}"))? {
                    Some(row) if row.effect == RequestEffect::Track => followed.push(id),
                    _ => waiting.push(id),
                }
            }
            let keys = |ids: &[RequestId], key: fn(RequestId) -> _| -> Vec<_> {
                ids.iter().map(|id| key(*id)).collect()
            };
            let problems = services
                .load_all::<TransactionRow>(&keys(&followed, rows::transaction))
                .await?;
            for (id, problem) in followed.iter().zip(problems) {
                let problem = skip_unreadable(problem, format_args!("transaction of {id}"))?;
                reasons.extend(problem.flatten().and_then(|row| Some((*id, row.problem?))));
            }
            let delays = services
                .load_all::<String>(&keys(&waiting, rows::delay))
                .await?;
            for (id, delay) in waiting.iter().zip(delays) {
                let delay = skip_unreadable(delay, format_args!("delay of request {id}"))?;
                reasons.extend(delay.flatten().map(|reason| (*id, reason)));
            }
            // Ids begin with the time at which they were made.
            reasons.sort_unstable();
            reasons.truncate(MOST);
            next = scan.rest(&page);
        }
        let (mut requests, mut bytes) = (Vec::new(), PageBytes::default());
        for (id, reason) in reasons {
            let Some(request) = message(services, id, reason).await? else {
                continue;
            };
            if !bytes.fits(&request) {
                break;
            }
            requests.push(request);
        }
        Ok(admin::ListStuckRequestsResponse {
            requests,
            now_ms: services.now_ms(),
        })
    }
}

/// `None` when the request cannot be read.
async fn message(
    services: &Services,
    id: RequestId,
    reason: String,
) -> Result<Option<admin::StuckRequest>, Fault> {
    let found = skip_unreadable(services.request(id).await, format_args!("request {id}"))?;
    Ok(found.flatten().map(|(request, _)| {
        let SigningRequest { state, .. } = &request;
        let (status, tx_hash) = match state {
            RequestState::Succeeded {
                signed: Some(signed),
                ..
            } => (Status::Succeeded, signed.tx_hash.clone()),
            _ => (Status::Pending, String::new()),
        };
        admin::StuckRequest {
            uuid: id.to_string(),
            vault_uuid: request.vault.to_string(),
            network: request.network.name().to_owned(),
            created_ms: request.created_at_ms,
            status: status.as_str_name().to_owned(),
            tx_hash,
            reason,
            address: request.address,
        }
    }))
}
