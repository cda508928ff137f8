use async_trait::async_trait;
use covault_core::{fault::Fault, schema::admin};

use super::{
    Home, HomeLookup, Operation, OperationCall,
    lookup::{request, vault_of_request},
};
use crate::requests::refused::forgetting::forget_refused;

/// Has what pays the same as a refused request be built as if that had never been: an operator has looked its transaction up.
pub struct ForgetRefusedTransaction;

#[async_trait]
impl Operation for ForgetRefusedTransaction {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.ForgetRefusedTransaction";
    type Request = admin::ForgetRefusedTransactionRequest;
    type Response = admin::ForgetRefusedTransactionResponse;

    async fn home(lookup: &HomeLookup<'_>, message: &Self::Request) -> Result<Home, Fault> {
        vault_of_request(lookup, &message.uuid).await
    }

    async fn run(call: OperationCall<'_>, message: Self::Request) -> Result<Self::Response, Fault> {
        let id = message.uuid.parse()?;
        let request = request(call.services, call.caller, id).await?;
        // Under the vault's lease, which its actor has.
        call.vaults.vault(request.vault).await?;
        let services = call.services.for_vault(request.vault)?;
        let commit = &call.command_commit;
        let tx_hashes = forget_refused(&services, &request, message.older, commit).await?;
        Ok(admin::ForgetRefusedTransactionResponse { tx_hashes })
    }
}
