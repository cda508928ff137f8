use async_trait::async_trait;
use covault_core::{
    audit::AuditChain,
    deposit::{DepositNetwork, event::EventId},
    fault::{Class, Fault},
    port::random_16,
    schema::admin,
};
use reqwest::Url;
use serde_json::json;

use super::{Operation, OperationCall};
use crate::{
    audit::{self, AuditActor, AuditNote},
    deposits::{route, sweep_token},
    store::{
        Batch,
        deposit_rows::{self, WebhookSecretRow},
    },
    webhooks::{WebhookSecret, WebhookSender, headers},
};

/// Sends a test event to a webhook at once.
pub struct TestWebhook;

#[async_trait]
impl Operation for TestWebhook {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.TestWebhook";
    type Request = admin::TestWebhookRequest;
    type Response = admin::TestWebhookResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let services = call.services;
        let network = DepositNetwork::parse(&request.network)
            .ok_or_else(|| Fault::field("network", "must be EVM or TRON"))?;
        let token = sweep_token(services, &request.token).await?;
        let webhook = route(services, token.id, network).await?.webhook;
        let webhook = webhook.ok_or_else(|| {
            Fault::field(
                "network",
                "has no webhook: set one with covault sweep configure --webhook",
            )
        })?;
        let url = Url::parse(&webhook.0).map_err(Fault::bug)?;
        let Some(keys) = &services.webhooks.keys else {
            return Err(Fault::unavailable(
                "this process has no key for webhooks (webhooks.key_file)",
            ));
        };
        let key = deposit_rows::webhook_secret(token.id);
        let Some((secret, _)) = services.load::<WebhookSecretRow>(&key).await? else {
            return Err(Fault::new(
                Class::WrongState,
                "token: has no webhook secret; make one with covault sweep configure --new-webhook-secret",
            ));
        };
        let secret = WebhookSecret::new(secret.secret);
        let id = EventId(random_16(&*services.entropy));
        let now_ms = services.now_ms();
        let body = json!({
            "id": id.to_string(),
            "event": "webhook.test.v1",
            "network": network.name(),
            "timestamp": now_ms.to_string(),
        });
        let body = body.to_string();
        let headers = headers(keys, &secret, &id.to_string(), now_ms, body.as_bytes())?;
        let sender = WebhookSender::new(services.webhooks.rules.clone())?;
        let sent = sender.send(&url, &headers, body.clone().into_bytes()).await;
        let mut batch = Batch::new();
        let by = AuditActor::caller(call.caller);
        AuditNote::new(&by, audit::token(token.id), "WebhookTested")
            .fact("network", network.name())
            .fact("event", id)
            .add_to(&mut batch, AuditChain::Service, now_ms)?;
        services.store.commit(batch).await?;
        Ok(admin::TestWebhookResponse {
            body,
            problem: sent.err().unwrap_or_default(),
        })
    }
}
