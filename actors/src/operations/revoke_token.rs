use async_trait::async_trait;
use covault_core::{audit::AuditChain, fault::Fault, schema::admin, token::ApiToken};

use super::{Operation, OperationCall};
use crate::{
    audit::{self, AuditActor, AuditNote},
    commands::tokens,
    store::{Batch, CommitError, Precondition, rows},
};

/// Ends the use of an API token, by its id or name. Repeating it by id changes nothing.
pub struct RevokeToken;

#[async_trait]
impl Operation for RevokeToken {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.RevokeToken";
    type Request = admin::RevokeTokenRequest;
    type Response = admin::RevokeTokenResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let services = call.services;
        let (record, version) = tokens::find(services, &request.token).await?;
        if record.revoked_at_ms.is_some() {
            return Ok(response(record));
        }
        let record = ApiToken {
            revoked_at_ms: Some(services.now_ms()),
            ..record
        };
        let mut batch = Batch::new();
        batch.put(
            rows::token(record.id),
            Precondition::Version(version),
            rows::encode(&record)?,
        );
        // Nobody else can have taken the name: it was this token's until now.
        batch.delete(rows::token_name(&record.name), Precondition::Any);
        AuditNote::new(
            &AuditActor::caller(call.caller),
            audit::token(record.id),
            "TokenRevoked",
        )
        .fact("name", &record.name)
        .add_to(&mut batch, AuditChain::Service, services.now_ms())?;
        match services.store.commit(batch).await {
            Ok(()) => Ok(response(record)),
            // Another operator revoked it at the same time; nothing else changes a token.
            Err(CommitError::Conflict(_)) => {
                let id = record.id.to_string();
                Ok(response(tokens::find(services, &id).await?.0))
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn response(record: ApiToken) -> admin::RevokeTokenResponse {
    admin::RevokeTokenResponse {
        token: Some(tokens::message_of(record)),
    }
}
