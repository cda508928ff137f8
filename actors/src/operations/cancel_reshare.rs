use async_trait::async_trait;
use covault_core::{fault::Fault, schema::admin};

use super::{Home, HomeLookup, Operation, OperationCall};
use crate::{
    audit::AuditActor,
    vaults::vault::{self, ReshareMsg, vault_message},
};

/// Cancels a reshare before the new shares are in use.
pub struct CancelReshare;

#[async_trait]
impl Operation for CancelReshare {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.CancelReshare";
    type Request = admin::CancelReshareRequest;
    type Response = admin::CancelReshareResponse;

    async fn home(_: &HomeLookup<'_>, request: &Self::Request) -> Result<Home, Fault> {
        Ok(request.vault_uuid.parse().ok().into())
    }

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let by = AuditActor::caller(call.caller);
        let actor = call.vaults.vault(request.vault_uuid.parse()?).await?;
        let message = |reply| vault::Msg::Reshare(ReshareMsg::Cancel(by, reply));
        let vault = call.ask(&actor, message).await??;
        Ok(admin::CancelReshareResponse {
            vault: Some(vault_message(call.services, &vault).await?),
        })
    }
}
