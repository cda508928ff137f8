use async_trait::async_trait;
use covault_core::{audit::AuditChain, fault::Fault, schema::admin};

use super::{Operation, OperationCall};
use crate::audit::{self, AuditNote};

/// Changes what the process that answers writes into its log, until it ends.
pub struct SetLogLevel;

#[async_trait]
impl Operation for SetLogLevel {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.SetLogLevel";
    type Request = admin::SetLogLevelRequest;
    type Response = admin::SetLogLevelResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let (services, level) = (call.services, request.level);
        services.log.check(&level)?;
        let before = services.log.level();
        // Who looks into what was logged, or was not, finds out who wanted that.
        let note = AuditNote::new(call.command_commit.by(), "log", "LogLevelChanged")
            .fact("process", &services.name)
            .fact("before", &before)
            .fact("level", &level);
        audit::note(services, AuditChain::Service, note).await?;
        services.log.set_level(&level)?;
        tracing::info!(%before, %level, "the log level was changed");
        Ok(admin::SetLogLevelResponse { before })
    }
}
