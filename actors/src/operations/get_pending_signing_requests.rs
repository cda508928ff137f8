use async_trait::async_trait;
use covault_core::{
    fault::Fault,
    ids::{RequestId, VaultId},
    request::SigningRequest,
    schema::wire,
};

use super::{
    Operation, OperationCall,
    lookup::{request, request_message},
};
use crate::{
    commands::caller::{Caller, VaultScope, vault_in_scope},
    lists::{MAX_PAGE, PageBytes, READ_CHUNK},
    services::{Services, skip_unreadable},
    store::{Key, KeySpace, Scan, rows},
};

/// Lists the requests that wait for people, of a vault or of all that the token opens: all of them, or a page. A page goes
/// on where the one before it has ended: it takes as long however many there are.
pub struct GetPendingSigningRequests;

#[async_trait]
impl Operation for GetPendingSigningRequests {
    const METHOD: &'static str = "mpcvault.platform.v1.PlatformAPI.GetPendingSigningRequests";
    type Request = wire::GetPendingSigningRequestsRequest;
    type Response = wire::GetPendingSigningRequestsResponse;

    async fn run(call: OperationCall<'_>, message: Self::Request) -> Result<Self::Response, Fault> {
        let (services, caller) = (call.services, call.caller);
        let parts = parts(services, caller, &message.vault_uuid).await?;
        // Without a limit it is the whole list, as programs written for the public product take it to be.
        let limit = message.limit.filter(|limit| *limit != 0);
        let is_whole = limit.is_none();
        let limit = limit.unwrap_or(MAX_PAGE);
        if !(1..=MAX_PAGE).contains(&limit) {
            return Err(Fault::field("limit", format!("must be 1 to {MAX_PAGE}")));
        }
        let limit = usize::try_from(limit).map_err(Fault::bug)?;
        let mut from = match message.after_uuid.as_str() {
            "" => Vec::new(),
            uuid => {
                let last = uuid.parse().map_err(|fault: Fault| fault.at("afterUuid"))?;
                let last = request(services, caller, last).await;
                let last = last.map_err(|fault| fault.at("afterUuid"))?;
                let key = rows::awaiting(last.vault, last.consent.due_ms(), last.id);
                [key.bytes.as_slice(), &[0]].concat()
            }
        };
        let (mut signing_requests, mut bytes) = (Vec::new(), PageBytes::default());
        let mut turn = None;
        'list: loop {
            let page = page(services, &parts, from, limit).await?;
            for part in page.chunks(READ_CHUNK) {
                let keys: Vec<_> = part.iter().map(|(_, id)| rows::request(*id)).collect();
                let found = services.load_all::<SigningRequest>(&keys).await?;
                for ((_, id), found) in part.iter().zip(found) {
                    let found = skip_unreadable(found, format_args!("request {id}"))?;
                    let Some(request) = found.flatten() else {
                        continue;
                    };
                    let mut message = request_message(services, caller, &request, None, None, None);
                    message.approval_subject = None;
                    match bytes.add(&message) {
                        Ok(()) => signing_requests.push(message),
                        // A part of it would look like the whole.
                        Err(fault) if is_whole => return Err(fault),
                        // The next page begins with it.
                        Err(_) => break 'list,
                    }
                }
            }
            let Some((last, _)) = page.last().filter(|_| is_whole && page.len() == limit) else {
                break;
            };
            from = [last.bytes.as_slice(), &[0]].concat();
            // Long lists are for few callers at once.
            if turn.is_none() {
                turn = Some(services.limits.far_pages.turn(caller.token).await?);
            }
        }
        Ok(wire::GetPendingSigningRequestsResponse {
            signing_requests,
            error: None,
        })
    }
}

/// The parts of the index that are meant, in order.
async fn parts(services: &Services, caller: &Caller, uuid: &str) -> Result<Vec<Key>, Fault> {
    let vaults: &[VaultId] = match (&caller.vaults, uuid) {
        (VaultScope::All, "") => return Ok(vec![Key::new(KeySpace::Awaiting, &[])]),
        (VaultScope::Only(vaults), "") => vaults,
        _ => {
            let vault = vault_in_scope(caller, uuid)?;
            if services.vault(vault).await?.is_none() {
                return Err(Fault::invalid_uuid());
            }
            &[vault]
        }
    };
    let mut parts: Vec<_> = vaults.iter().copied().map(rows::awaiting_of).collect();
    parts.sort_unstable();
    Ok(parts)
}

/// The first so many requests in these parts of the index, from a key on.
async fn page(
    services: &Services,
    parts: &[Key],
    from: Vec<u8>,
    limit: usize,
) -> Result<Vec<(Key, RequestId)>, Fault> {
    let mut page = Vec::with_capacity(limit);
    for part in parts {
        let mut scan = Scan::prefix(part.space, &part.bytes, limit.saturating_sub(page.len()));
        if from.starts_with(&part.bytes) {
            scan.from = Some(from.clone());
        } else if from > part.bytes {
            continue;
        }
        let rows = services.store.scan(&scan).await?;
        page.extend(rows.into_iter().filter_map(|(key, _)| {
            let (_, id) = rows::awaited(&key)?;
            Some((key, id))
        }));
        if page.len() >= limit {
            break;
        }
    }
    Ok(page)
}
