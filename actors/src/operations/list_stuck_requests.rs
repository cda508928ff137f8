use async_trait::async_trait;
use covault_core::{
    fault::Fault,
    ids::RequestId,
    request::{RequestState, SigningRequest},
    schema::{admin, wire::signing_request::Status},
};

use super::{Operation, OperationCall};
use crate::{
    lists::PageBytes,
    requests::stuck,
    services::{Services, skip_unreadable},
    store::{KeySpace, Scan},
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
            let (open, rest) = stuck::page(services, scan).await?;
            reasons.extend(open.stuck);
            // Ids begin with the time at which they were made.
            reasons.sort_unstable();
            reasons.truncate(MOST);
            next = rest;
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
