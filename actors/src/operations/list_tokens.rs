use async_trait::async_trait;
use covault_core::{fault::Fault, schema::admin};

use super::{Operation, OperationCall};
use crate::tokens;

/// Lists the API tokens.
pub struct ListTokens;

#[async_trait]
impl Operation for ListTokens {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.ListTokens";
    type Request = admin::ListTokensRequest;
    type Response = admin::ListTokensResponse;

    async fn run(call: OperationCall<'_>, _: Self::Request) -> Result<Self::Response, Fault> {
        let all = tokens::all(call.services).await?;
        Ok(admin::ListTokensResponse {
            tokens: all.into_iter().map(tokens::message_of).collect(),
            now_ms: call.services.now_ms(),
        })
    }
}
