use async_trait::async_trait;
use covault_core::{deposit::event::EventId, fault::Fault, schema::admin};

use super::{Operation, OperationCall};
use crate::{
    store::deposit_rows::{self, NoticeRow},
    webhooks::event_message,
};

/// Shows one event of a webhook.
pub struct GetWebhookEvent;

#[async_trait]
impl Operation for GetWebhookEvent {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.GetWebhookEvent";
    type Request = admin::GetWebhookEventRequest;
    type Response = admin::GetWebhookEventResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let id =
            EventId::parse(&request.id).ok_or_else(|| Fault::field("id", "is not an event id"))?;
        let key = deposit_rows::notice(id);
        let Some((row, _)) = call.services.load::<NoticeRow>(&key).await? else {
            return Err(Fault::field("id", "is not that of an event"));
        };
        Ok(admin::GetWebhookEventResponse {
            event: Some(event_message(id, &row)?),
        })
    }
}
