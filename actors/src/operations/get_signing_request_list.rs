use async_trait::async_trait;
use covault_core::{
    fault::Fault,
    ids::{BatchId, RequestId},
    request::SigningRequest,
    schema::wire::{self, get_signing_request_list_request::SortOrder},
};

use super::{
    Operation, OperationCall,
    lookup::{batch_of, request_message},
};
use crate::{
    commands::caller::vault_in_scope,
    lists::{self, PageBytes, PageRange},
    requests::simulations,
    services::skip_unreadable,
    store::{
        Key, batch_rows,
        rows::{self, ReplacementRow, TransactionRow},
    },
    vaults::management,
};

/// How many requests a page has when the call does not say.
const DEFAULT_PAGE: i64 = 10;

/// Lists the signing requests of a vault, and what operators did to it, by their time of creation; the last one first, unless asked
/// otherwise.
pub struct GetSigningRequestList;

#[async_trait]
impl Operation for GetSigningRequestList {
    const METHOD: &'static str = "mpcvault.platform.v1.PlatformAPI.GetSigningRequestList";
    type Request = wire::GetSigningRequestListRequest;
    type Response = wire::GetSigningRequestListResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let services = call.services;
        if request.vault_uuid.is_empty() {
            return Err(Fault::field("vaultUuid", "is required"));
        }
        let vault = vault_in_scope(call.caller, &request.vault_uuid)?;
        let page = PageRange::of(request.page, request.limit, DEFAULT_PAGE)?;
        let reverse = match SortOrder::try_from(request.sort_order) {
            Ok(SortOrder::Desc) => true,
            Ok(SortOrder::Asc) => false,
            Err(_) => {
                let problem = "must be SORT_ORDER_DESC or SORT_ORDER_ASC";
                return Err(Fault::field("sortOrder", problem));
            }
        };
        if services.vault(vault).await?.is_none() {
            return Err(Fault::invalid_uuid());
        }
        let all = rows::requests_of(vault);
        let page = lists::page((services, call.caller), &all, reverse, page).await?;
        let ids = page.iter().map(|(key, _)| rows::indexed_request(key));
        let ids: Option<Vec<_>> = ids.collect();
        let ids = ids.ok_or_else(|| Fault::bug("an index without an id"))?;
        let (mut signing_requests, mut bytes) = (Vec::new(), PageBytes::default());
        for ids in ids.chunks(lists::READ_CHUNK) {
            let keys =
                |key: fn(RequestId) -> Key| ids.iter().map(|id| key(*id)).collect::<Vec<_>>();
            let requests = services
                .load_all::<SigningRequest>(&keys(rows::request))
                .await?;
            let simulations = simulations::load_all(services, &keys(rows::simulation)).await?;
            let transactions = services
                .load_all::<TransactionRow>(&keys(rows::transaction))
                .await?;
            let first = |(id, request): (&RequestId, &Result<Option<SigningRequest>, Fault>)| {
                let request = request.as_ref().ok().and_then(Option::as_ref);
                rows::replacement_row(request.map_or(*id, SigningRequest::first_of_place))
            };
            let firsts: Vec<_> = ids.iter().zip(&requests).map(first).collect();
            let replacements = services.load_all::<ReplacementRow>(&firsts).await?;
            let of_batch = |(id, request): (&RequestId, &Result<Option<SigningRequest>, Fault>)| {
                let request = request.as_ref().ok().and_then(Option::as_ref);
                request.map_or_else(|| batch_rows::request_batch(*id), batch_of)
            };
            let of_batches: Vec<_> = ids.iter().zip(&requests).map(of_batch).collect();
            let batches = services.load_all::<BatchId>(&of_batches).await?;
            let found = requests
                .into_iter()
                .zip(simulations)
                .zip(transactions)
                .zip(replacements)
                .zip(batches);
            for (id, ((((request, simulation), transaction), replacements), batch)) in
                ids.iter().zip(found)
            {
                // One that cannot be read must not hide the others of its page.
                let Some(request) = skip_unreadable(request, format_args!("request {id}"))? else {
                    continue;
                };
                let Some(request) = request else {
                    let shown = management::shown(services, *id).await?;
                    let (_, shown) =
                        shown.ok_or_else(|| Fault::bug("an index without a request"))?;
                    bytes.add(&shown)?;
                    signing_requests.push(shown);
                    continue;
                };
                let mut message = request_message(
                    services,
                    call.caller,
                    &request,
                    simulation?,
                    transaction?,
                    replacements?.as_ref(),
                );
                message.batch_payment_uuid = batch?.map(|it| it.to_string()).unwrap_or_default();
                // As large as the payload once more: a page would hardly hold it.
                message.signed_transaction.clear();
                message.approval_subject = None;
                bytes.add(&message)?;
                signing_requests.push(message);
            }
        }
        Ok(wire::GetSigningRequestListResponse {
            signing_requests,
            error: None,
        })
    }
}
