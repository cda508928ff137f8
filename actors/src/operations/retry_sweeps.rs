use async_trait::async_trait;
use covault_core::{fault::Fault, schema::admin};

use super::{Operation, OperationCall};
use crate::deposits::sweep_retry;

/// Has what is held of the deposit wallets of a sweep token tried again.
pub struct RetrySweeps;

#[async_trait]
impl Operation for RetrySweeps {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.RetrySweeps";
    type Request = admin::RetrySweepsRequest;
    type Response = admin::RetrySweepsResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let retried = sweep_retry::retry(call.services, call.caller, &request).await?;
        Ok(admin::RetrySweepsResponse { retried })
    }
}
