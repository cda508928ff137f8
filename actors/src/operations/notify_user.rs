use async_trait::async_trait;
use covault_core::{
    audit::AuditChain,
    deposit::Webhook,
    fault::{Class, Fault},
    notification::{NotificationForm, NotificationPace, NotificationSecret, NotificationTarget},
    schema::admin,
    user::UserRole,
};
use secrecy::ExposeSecret as _;

use super::{Operation, OperationCall, configure_sweep::check_url};
use crate::{
    audit::{self, AuditActor, AuditNote},
    mail::mail_address,
    notifications,
    services::Services,
    store::{Batch, Precondition, notification_rows, rows},
    users,
    webhooks::WebhookSecret,
};

/// Whether nobody on the way reads the URL itself: over TLS, or on this machine.
fn is_private(url: &str) -> bool {
    let begins = ["https://", "http://127.0.0.1:", "http://localhost:"];
    begins.iter().any(|begin| url.starts_with(begin))
}

/// The URL of an address of mail, where this process can send to it.
fn mail_url(services: &Services, address: &str) -> Result<Webhook, Fault> {
    let address = mail_address("url", address)?;
    if services.webhooks.mailer.is_none() {
        return Err(Fault::unavailable(
            "no mail server is named (notify.mail_server)",
        ));
    }
    Ok(Webhook(format!("mailto:{address}")))
}

/// Sets where a person is told what waits, in place of where it was before. Each time with a new secret.
pub struct NotifyUser;

#[async_trait]
impl Operation for NotifyUser {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.NotifyUser";
    type Request = admin::NotifyUserRequest;
    type Response = admin::NotifyUserResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let services = call.services;
        let admin::NotifyUserRequest { name, form, url } = request;
        let (user, version) = users::find(services, &name).await?;
        if !user.is_active() {
            return Err(Fault::new(Class::WrongState, "the user was revoked"));
        }
        let (form, secret) = match form.as_str() {
            "none" => (None, None),
            "slack" => (Some(NotificationForm::Slack), None),
            "mail" => (Some(NotificationForm::Mail), None),
            "webhook" => {
                let mut secret = NotificationSecret([0; 32]);
                services.entropy.fill(&mut secret.0);
                let text = WebhookSecret::new(secret.0).text();
                (Some(NotificationForm::Webhook(secret)), Some(text))
            }
            _ => return Err(Fault::field("form", "must be webhook, slack, mail or none")),
        };
        let url = match form {
            Some(NotificationForm::Mail) => Some(mail_url(services, &url)?),
            _ => check_url("url", Webhook(url), &services.webhooks.rules)?,
        };
        if let (Some(NotificationForm::Slack), Some(url)) = (&form, &url)
            && !is_private(&url.0)
        {
            let problem = "must begin with https:// for slack: it is a secret";
            return Err(Fault::field("url", problem));
        }
        let target = match (form, url) {
            (None, None) => None,
            (None, Some(_)) => return Err(Fault::field("url", "must be empty with `none`")),
            (Some(_), None) => return Err(Fault::field("url", "is required")),
            (Some(form), Some(url)) => Some(NotificationTarget {
                form,
                url,
                set_at_ms: services.now_ms(),
                is_new: true,
                pace: NotificationPace::default(),
            }),
        };
        let is_told = matches!(user.role, UserRole::Approver | UserRole::Operator);
        if target.is_some() && !is_told {
            let problem = "is that of a user who is told nothing: only approvers and operators are";
            return Err(Fault::field("name", problem));
        }
        if target.is_some() && services.webhooks.keys.is_none() {
            return Err(Fault::unavailable(
                "this process has no key for webhooks (webhooks.key_file)",
            ));
        }
        let mut batch = Batch::new();
        // A revocation at the same time wins.
        batch.check(rows::user(user.id), Precondition::Version(version));
        let key = notification_rows::notification_target(user.id);
        match &target {
            Some(target) => batch.put(key, Precondition::Any, rows::encode(target)?),
            None => batch.delete(key, Precondition::Any),
        };
        let form = target.as_ref().map_or("none", |target| target.form.name());
        // Nothing of the URL: it may hold a key.
        AuditNote::new(
            &AuditActor::caller(call.caller),
            audit::user(&user.name),
            "UserNotified",
        )
        .fact("form", form)
        .add_to(&mut batch, AuditChain::Service, services.now_ms())?;
        services.store.commit(batch).await?;
        let view = notifications::view(services, user.id).await?;
        let mut user = users::message_of(user, Vec::new(), services.now_ms())?;
        user.notifications = view;
        Ok(admin::NotifyUserResponse {
            user: Some(user),
            webhook_secret: secret.map(|text| text.expose_secret().to_owned()),
        })
    }
}
