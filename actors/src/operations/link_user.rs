use async_trait::async_trait;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use covault_core::{
    audit::AuditChain,
    fault::{Class, Fault},
    schema::admin,
    user::{MAX_PASSKEYS, User},
};
use zeroize::Zeroizing;

use super::{Operation, OperationCall};
use crate::{
    audit::{self, AuditActor, AuditNote},
    services::Services,
    users,
};

/// Gives a person a link that enrols another passkey. An earlier link that was not used ends.
pub struct LinkUser;

#[async_trait]
impl Operation for LinkUser {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.LinkUser";
    type Request = admin::LinkUserRequest;
    type Response = admin::LinkUserResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let services = call.services;
        let (mut user, version) = users::find(services, &request.name).await?;
        if !user.is_active() {
            return Err(Fault::new(Class::WrongState, "the user was revoked"));
        }
        if user.passkeys.len() >= MAX_PASSKEYS {
            let problem = format!("the user has {MAX_PASSKEYS} passkeys already");
            return Err(Fault::new(Class::Conflict, problem));
        }
        let (secret, mut batch) = users::give_link(services, &mut user, Some(version))?;
        call.command_commit.demand(&mut batch);
        AuditNote::new(
            &AuditActor::caller(call.caller),
            audit::user(&user.name),
            "UserLinked",
        )
        .add_to(&mut batch, AuditChain::Service, services.now_ms())?;
        let link = link_message(services, &user, &secret)?;
        services.store.commit(batch).await?;
        Ok(admin::LinkUserResponse { link: Some(link) })
    }
}

/// A link, whole. What is behind `#` stays in the browser: neither proxies nor logs see it, and who only looks the page
/// up does not use the link.
///
/// # Errors
/// [`Class::WrongState`] when there is no console.
pub(super) fn link_message(
    services: &Services,
    user: &User,
    secret: &Zeroizing<[u8; 32]>,
) -> Result<admin::UserLink, Fault> {
    let origin = &services.settings.console_origin;
    if origin.is_empty() {
        return Err(Fault::new(
            Class::WrongState,
            "this service has no console: set console.origin in its configuration",
        ));
    }
    let expires_at_ms = user.link.as_ref().map(|link| link.expires_at_ms);
    Ok(admin::UserLink {
        url: format!(
            "{origin}/enrol#{}",
            BASE64_URL_SAFE_NO_PAD.encode(secret.as_slice())
        ),
        expires_at_ms: expires_at_ms.unwrap_or_default(),
    })
}
