use async_trait::async_trait;
use covault_core::{fault::Fault, schema::admin};

use super::{Operation, OperationCall};
use crate::{
    deposits::sweep_token,
    services::skip_unreadable,
    store::{
        KeySpace, Scan,
        deposit_rows::{self, NoticeRow},
        rows,
    },
    webhooks::{DeliveryFilter, event_message},
};

/// Rows that one scan reads.
const PAGE: usize = 512;
/// Events that an answer has.
const MOST: usize = 1_000;

/// Lists what webhooks are told.
pub struct ListWebhookEvents;

#[async_trait]
impl Operation for ListWebhookEvents {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.ListWebhookEvents";
    type Request = admin::ListWebhookEventsRequest;
    type Response = admin::ListWebhookEventsResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let services = call.services;
        let filter = DeliveryFilter::parse(&request.state)?;
        let token = match request.token.as_str() {
            "" => None,
            which => Some(sweep_token(services, which).await?.id),
        };
        let mut events = Vec::new();
        let mut next = Some(Scan::prefix(KeySpace::TransferNotice, &[], PAGE));
        while let Some(scan) = next {
            let page = services.store.scan(&scan).await?;
            for (key, row) in &page {
                let Some(id) = deposit_rows::event_of_notice(key) else {
                    continue;
                };
                let row = rows::decode::<NoticeRow>(&row.value);
                let Some(row) = skip_unreadable(row, format_args!("webhook event {id}"))? else {
                    continue;
                };
                let is_of = token.is_none_or(|token| row.notice.transfer.owner.token == token);
                if is_of && filter.takes(&row.delivery) {
                    events.push((row.created_at_ms, id, row));
                }
            }
            // The newest alone are kept.
            events.sort_by_key(|(at_ms, id, _)| (std::cmp::Reverse(*at_ms), *id));
            events.truncate(MOST);
            next = scan.rest(&page);
        }
        let events = events.iter().map(|(_, id, row)| event_message(*id, row));
        Ok(admin::ListWebhookEventsResponse {
            events: events.collect::<Result<_, _>>()?,
        })
    }
}
