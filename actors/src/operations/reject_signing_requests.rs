use async_trait::async_trait;
use covault_core::{fault::Fault, field, schema::wire};
use futures::future::join_all;

use super::{
    Home, HomeLookup, Operation, OperationCall,
    reject_signing_request::{reject, rejection, tell_signers},
    several,
};

/// Most characters of a reason.
const MAX_REASON: usize = 200;

/// Ends several requests, in the name of the token or of a person who has signed the rejection of all of them.
pub struct RejectSigningRequests;

#[async_trait]
impl Operation for RejectSigningRequests {
    const METHOD: &'static str = "mpcvault.platform.v1.PlatformAPI.RejectSigningRequests";
    type Request = wire::RejectSigningRequestsRequest;
    type Response = wire::RejectSigningRequestsResponse;

    async fn home(lookup: &HomeLookup<'_>, message: &Self::Request) -> Result<Home, Fault> {
        several::home(lookup, &message.uuids).await
    }

    async fn run(call: OperationCall<'_>, message: Self::Request) -> Result<Self::Response, Fault> {
        let ids = several::requests_of_one_vault(&call, &message.uuids).await?;
        let rejection = rejection(message.rejection)?;
        field::label("reason", &message.reason, MAX_REASON)?;
        let each = ids
            .iter()
            .map(|id| reject(&call, *id, rejection.as_ref(), &ids, &message.reason));
        let rejected = join_all(each).await;
        if let Some(proof) = rejection.clone() {
            tell_signers(&call, &ids, proof).await;
        }
        let rejected = rejected.into_iter();
        let rejected = rejected.map(|rejected| rejected.map(|()| 0));
        Ok(wire::RejectSigningRequestsResponse {
            error: None,
            results: several::results(&ids, rejected.collect())?,
        })
    }
}
