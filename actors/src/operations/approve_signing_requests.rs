use async_trait::async_trait;
use covault_core::{fault::Fault, schema::wire};
use futures::future::join_all;

use super::{
    Home, HomeLookup, Operation, OperationCall, approve_signing_request::approve, person, several,
};

/// Records one gesture of a person for several requests: an approval of each.
pub struct ApproveSigningRequests;

#[async_trait]
impl Operation for ApproveSigningRequests {
    const METHOD: &'static str = "mpcvault.platform.v1.PlatformAPI.ApproveSigningRequests";
    type Request = wire::ApproveSigningRequestsRequest;
    type Response = wire::ApproveSigningRequestsResponse;

    async fn home(lookup: &HomeLookup<'_>, message: &Self::Request) -> Result<Home, Fault> {
        several::home(lookup, &message.uuids).await
    }

    async fn run(call: OperationCall<'_>, message: Self::Request) -> Result<Self::Response, Fault> {
        let ids = several::requests_of_one_vault(&call, &message.uuids).await?;
        // What is wrong with it is wrong for all of them.
        person::approval(message.approval.clone())?;
        let each = ids
            .iter()
            .map(|id| approve(&call, *id, message.approval.clone()));
        // Side by side: they share commits.
        let approved = join_all(each).await;
        let now_ms = call.services.now_ms();
        let remaining = approved
            .into_iter()
            .map(|approved| approved.map(|request| request.remaining_approvals(now_ms)));
        Ok(wire::ApproveSigningRequestsResponse {
            error: None,
            results: several::results(&ids, remaining.collect())?,
        })
    }
}
