use async_trait::async_trait;
use covault_core::{fault::Fault, schema::admin};

use super::{Operation, OperationCall};
use crate::deposits::sweep_rules;

/// Changes whether and how the deposits of a sweep token on one chain are swept.
pub struct SetSweepRules;

#[async_trait]
impl Operation for SetSweepRules {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.SetSweepRules";
    type Request = admin::SetSweepRulesRequest;
    type Response = admin::SetSweepRulesResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let rules = sweep_rules::change(call.services, call.caller, request).await?;
        Ok(admin::SetSweepRulesResponse { rules: Some(rules) })
    }
}
