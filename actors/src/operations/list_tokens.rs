use async_trait::async_trait;
use covault_core::{fault::Fault, ids::TokenId, schema::admin, token::ApiToken};

use super::{Operation, OperationCall};
use crate::{
    commands::tokens,
    lists::{PageBytes, READ_CHUNK},
    store::rows,
};

/// Lists the API tokens in the order in which they were made, page by page.
pub struct ListTokens;

#[async_trait]
impl Operation for ListTokens {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.ListTokens";
    type Request = admin::ListTokensRequest;
    type Response = admin::ListTokensResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let services = call.services;
        let mut ages = tokens::ages(services).await?;
        if let Some(after) = request.after {
            let after: Option<TokenId> = after.parse().ok();
            let last = ages.iter().position(|(_, id)| Some(*id) == after);
            let last = last.ok_or_else(|| Fault::field("after", "is not the id of a token"))?;
            ages.drain(..=last);
        }
        let (mut listed, mut bytes) = (Vec::new(), PageBytes::default());
        'pages: for ages in ages.chunks(READ_CHUNK) {
            let keys: Vec<_> = ages.iter().map(|(_, id)| rows::token(*id)).collect();
            for token in services.load_all::<ApiToken>(&keys).await? {
                // None was deleted since: revoked ones stay.
                let Some(token) = token?.map(tokens::message_of) else {
                    continue;
                };
                if !bytes.fits(&token) {
                    break 'pages;
                }
                listed.push(token);
            }
        }
        Ok(admin::ListTokensResponse {
            tokens: listed,
            now_ms: services.now_ms(),
        })
    }
}
