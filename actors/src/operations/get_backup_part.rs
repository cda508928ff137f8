use async_trait::async_trait;
use covault_core::{fault::Fault, schema::admin};

use super::{Operation, OperationCall};
use crate::store::RawRow;

/// Reads one part of a backup.
pub struct GetBackupPart;

#[async_trait]
impl Operation for GetBackupPart {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.GetBackupPart";
    type Request = admin::GetBackupPartRequest;
    type Response = admin::GetBackupPartResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let id = request.backup.parse();
        let id = id.map_err(|fault: Fault| Fault::field("backup", fault.message()))?;
        let rows = call.backups.part(call.services, id, request.number).await?;
        let row = |RawRow { space, key, value }| admin::StoreRow {
            space: space.into(),
            key,
            value,
        };
        Ok(admin::GetBackupPartResponse {
            rows: rows.into_iter().map(row).collect(),
        })
    }
}
