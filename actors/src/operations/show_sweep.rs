use async_trait::async_trait;
use covault_core::{fault::Fault, schema::admin};

use super::{Operation, OperationCall};
use crate::deposits::{self, sweep_token};

/// Shows what a sweep token has configured.
pub struct ShowSweep;

#[async_trait]
impl Operation for ShowSweep {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.ShowSweep";
    type Request = admin::ShowSweepRequest;
    type Response = admin::ShowSweepResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let token = sweep_token(call.services, &request.token).await?;
        let (token, networks) = deposits::message_of(call.services, token).await?;
        Ok(admin::ShowSweepResponse {
            token: Some(token),
            networks,
        })
    }
}
