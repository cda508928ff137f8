use async_trait::async_trait;
use covault_core::{approval::ApprovalProof, fault::Fault, request::ApprovalRule, schema::admin};

use super::{Home, HomeLookup, Operation, OperationCall};
use crate::vaults::vault::{self, NewRule, vault_message};

/// Changes who decides about the requests of a vault: as many of the people have to agree as its present rule needs.
/// Requests that are there keep the rule that they came under.
pub struct ChangeApprovals;

#[async_trait]
impl Operation for ChangeApprovals {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.ChangeApprovals";
    type Request = admin::ChangeApprovalsRequest;
    type Response = admin::ChangeApprovalsResponse;

    async fn home(_: &HomeLookup<'_>, request: &Self::Request) -> Result<Home, Fault> {
        Ok(request.vault_uuid.parse().ok().into())
    }

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let admin::ChangeApprovalsRequest {
            vault_uuid,
            approvals,
            valid_until_ms,
            signatures,
        } = request;
        let id = vault_uuid.parse()?;
        let new = NewRule {
            rule: ApprovalRule::parse(approvals)?,
            valid_until_ms,
            proofs: signatures.into_iter().map(ApprovalProof::Ssh).collect(),
            command_commit: call.command_commit.clone(),
        };
        let actor = call.vaults.vault(id).await?;
        let message = |reply| vault::Msg::ChangeApprovals(Box::new(new), reply);
        let vault = call.ask(&actor, message).await??;
        Ok(admin::ChangeApprovalsResponse {
            vault: Some(vault_message(call.services, &vault).await?),
        })
    }
}
