use async_trait::async_trait;
use covault_core::{fault::Fault, schema::admin};

use super::{Operation, OperationCall};
use crate::deposits::{sweep_status, sweep_token};

/// Shows where the sweeps of a sweep token stand.
pub struct GetSweepStatus;

#[async_trait]
impl Operation for GetSweepStatus {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.GetSweepStatus";
    type Request = admin::GetSweepStatusRequest;
    type Response = admin::GetSweepStatusResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let token = sweep_token(call.services, &request.token).await?;
        Ok(admin::GetSweepStatusResponse {
            chains: sweep_status::of_token(call.services, token.id).await?,
        })
    }
}
