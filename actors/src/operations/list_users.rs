use async_trait::async_trait;
use covault_core::{fault::Fault, schema::admin};

use super::{Operation, OperationCall};
use crate::{lists::PageBytes, notifications, users};

/// Lists the users of the console by their names, with their passkeys and sessions, page by page.
pub struct ListUsers;

#[async_trait]
impl Operation for ListUsers {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.ListUsers";
    type Request = admin::ListUsersRequest;
    type Response = admin::ListUsersResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let services = call.services;
        let now_ms = services.now_ms();
        let after = request.after.unwrap_or_default();
        let (mut users, mut bytes) = (Vec::new(), PageBytes::default());
        for user in users::all(services).await? {
            if user.name <= after {
                continue;
            }
            let sessions = users::sessions(services, user.id).await?;
            let sessions = sessions.into_iter().map(|(_, session)| session).collect();
            let notifications = notifications::view(services, user.id).await?;
            let mut user = users::message_of(user, sessions, now_ms)?;
            user.notifications = notifications;
            if !bytes.fits(&user) {
                break;
            }
            users.push(user);
        }
        Ok(admin::ListUsersResponse { users, now_ms })
    }
}
