use async_trait::async_trait;
use covault_core::{fault::Fault, schema::wire};

use super::{Operation, OperationCall};
use crate::{commands::tokens, operations::common::balances};

/// Asks a node of the chain for a balance.
pub struct GetBalance;

#[async_trait]
impl Operation for GetBalance {
    const METHOD: &'static str = "mpcvault.platform.v1.PlatformAPI.GetBalance";
    type Request = wire::GetBalanceRequest;
    type Response = wire::GetBalanceResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let balance = balances::balance(call.services, &request).await?;
        // The chain's nodes may have taken their time.
        tokens::in_use(call.services, call.caller).await?;
        Ok(wire::GetBalanceResponse {
            balance,
            error: None,
        })
    }
}
