use async_trait::async_trait;
use covault_core::{fault::Fault, schema::wire};

use super::{Operation, OperationCall};
use crate::{commands::tokens, operations::common::fees};

/// Asks the nodes of a chain what transactions pay now.
pub struct EstimateFee;

#[async_trait]
impl Operation for EstimateFee {
    const METHOD: &'static str = "mpcvault.platform.v1.PlatformAPI.EstimateFee";
    type Request = wire::EstimateFeeRequest;
    type Response = wire::EstimateFeeResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let estimates = fees::estimate(call.services, &request).await?;
        // The chain's nodes may have taken their time.
        tokens::in_use(call.services, call.caller).await?;
        Ok(estimates)
    }
}
