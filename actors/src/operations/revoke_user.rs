use async_trait::async_trait;
use covault_core::{audit::AuditChain, fault::Fault, schema::admin};

use super::{Operation, OperationCall};
use crate::{
    audit::{self, AuditActor, AuditNote},
    store::{Precondition, notification_rows, rows},
    users,
};

/// Ends an account of the console, its sessions, its link and its notifications. Repeating it changes nothing. Keys that approve are not
/// touched: those are in rules and policies.
pub struct RevokeUser;

#[async_trait]
impl Operation for RevokeUser {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.RevokeUser";
    type Request = admin::RevokeUserRequest;
    type Response = admin::RevokeUserResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let services = call.services;
        let now_ms = services.now_ms();
        let (mut user, version) = users::find(services, &request.name).await?;
        if user.is_active() {
            let mut batch = crate::store::Batch::new();
            if let Some(link) = user.link.take() {
                batch.delete(rows::user_link(&link.hash), Precondition::Any);
            }
            batch.delete(
                notification_rows::notification_target(user.id),
                Precondition::Any,
            );
            user.revoked_at_ms = Some(now_ms);
            let expected = Precondition::Version(version);
            batch.put(rows::user(user.id), expected, rows::encode(&user)?);
            // One that begins at the same time demands the account's row, which changes here.
            for (session, _) in users::sessions(services, user.id).await? {
                batch.delete(session, Precondition::Any);
            }
            let by = AuditActor::caller(call.caller);
            AuditNote::new(&by, audit::user(&user.name), "UserRevoked").add_to(
                &mut batch,
                AuditChain::Service,
                now_ms,
            )?;
            services.store.commit(batch).await?;
        }
        Ok(admin::RevokeUserResponse {
            user: Some(users::message_of(user, Vec::new(), now_ms)?),
        })
    }
}
