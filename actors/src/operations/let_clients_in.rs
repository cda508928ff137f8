use async_trait::async_trait;
use covault_core::{fault::Fault, schema::admin};

use super::{Operation, OperationCall};
use crate::backup::restore;

/// Lets clients in again after a restore.
pub struct LetClientsIn;

#[async_trait]
impl Operation for LetClientsIn {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.LetClientsIn";
    type Request = admin::LetClientsInRequest;
    type Response = admin::LetClientsInResponse;

    async fn run(call: OperationCall<'_>, _: Self::Request) -> Result<Self::Response, Fault> {
        restore::let_clients_in(call.services, call.command_commit.by()).await?;
        Ok(admin::LetClientsInResponse {})
    }
}
