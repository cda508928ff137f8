use async_trait::async_trait;
use covault_core::{
    audit::AuditChain,
    deposit::event::EventId,
    fault::{Class, Fault},
    schema::admin,
};

use super::{Operation, OperationCall};
use crate::{
    audit::{self, AuditActor, AuditNote},
    store::{
        Batch, CommitError, Precondition,
        deposit_rows::{self, NoticeAfterRow, NoticeDelivery, NoticeRow},
        rows,
    },
    webhooks::event_message,
};

/// Sends the event of a webhook again.
pub struct ReplayWebhookEvent;

#[async_trait]
impl Operation for ReplayWebhookEvent {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.ReplayWebhookEvent";
    type Request = admin::ReplayWebhookEventRequest;
    type Response = admin::ReplayWebhookEventResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let services = call.services;
        let id =
            EventId::parse(&request.id).ok_or_else(|| Fault::field("id", "is not an event id"))?;
        let key = deposit_rows::notice(id);
        let Some((mut row, version)) = services.load::<NoticeRow>(&key).await? else {
            return Err(Fault::field("id", "is not that of an event"));
        };
        if let NoticeDelivery::Waiting { .. } = row.delivery {
            return Err(Fault::new(
                Class::WrongState,
                "id: the event is waiting to be sent as it is",
            ));
        }
        row.delivery = NoticeDelivery::Waiting {
            problem: String::new(),
        };
        row.first_tried_at_ms = None;
        row.attempts = 0;
        let now_ms = services.now_ms();
        let owner = row.notice.transfer.owner.token;
        let network = row.notice.transfer.chain.network();
        let mut batch = Batch::new();
        batch.put(key, Precondition::Version(version), rows::encode(&row)?);
        // What comes after it waits for it again, if it was not written yet.
        let after = deposit_rows::notice_after(id);
        if let Some((NoticeAfterRow::Over, version)) = services.load(&after).await? {
            batch.delete(after, Precondition::Version(version));
        }
        let due = deposit_rows::notice_due(owner, network, now_ms, id);
        batch.put(due, Precondition::Any, rows::encode(&())?);
        let by = AuditActor::caller(call.caller);
        AuditNote::new(&by, audit::token(owner), "WebhookReplayed")
            .fact("event", id)
            .add_to(&mut batch, AuditChain::Service, now_ms)?;
        match services.store.commit(batch).await {
            Ok(()) => {}
            Err(CommitError::Conflict(_)) => {
                return Err(Fault::new(
                    Class::Conflict,
                    "the event was changed at the same time; read it again",
                ));
            }
            Err(error) => return Err(error.into()),
        }
        services.listeners.notices_due.notify_one();
        Ok(admin::ReplayWebhookEventResponse {
            event: Some(event_message(id, &row)?),
        })
    }
}
