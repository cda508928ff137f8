use async_trait::async_trait;
use covault_core::{fault::Fault, schema::admin, version::this_version};

use super::{Operation, OperationCall};

/// Starts a backup of the store.
pub struct BeginBackup;

#[async_trait]
impl Operation for BeginBackup {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.BeginBackup";
    type Request = admin::BeginBackupRequest;
    type Response = admin::BeginBackupResponse;

    async fn run(call: OperationCall<'_>, _: Self::Request) -> Result<Self::Response, Fault> {
        let backup = call
            .backups
            .begin(call.services, call.command_commit.by())
            .await?;
        Ok(admin::BeginBackupResponse {
            backup: backup.to_string(),
            at_ms: call.services.now_ms(),
            version: this_version().to_owned(),
        })
    }
}
