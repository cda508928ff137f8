use async_trait::async_trait;
use covault_core::{fault::Fault, schema::admin};

use super::{Operation, OperationCall};
use crate::{audit::AuditActor, users};

/// Ends the sessions of an account of the console, which stays as it is. Repeating it changes nothing.
pub struct SignOutUser;

#[async_trait]
impl Operation for SignOutUser {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.SignOutUser";
    type Request = admin::SignOutUserRequest;
    type Response = admin::SignOutUserResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let services = call.services;
        let (user, _) = users::find(services, &request.name).await?;
        let known = users::sessions(services, user.id).await?;
        let by = AuditActor::caller(call.caller);
        users::end_sessions(services, &user.name, known, &by).await?;
        Ok(admin::SignOutUserResponse {
            user: Some(users::message_of(user, Vec::new(), services.now_ms())?),
        })
    }
}
