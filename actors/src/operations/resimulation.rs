use async_trait::async_trait;
use covault_core::{fault::Fault, schema::wire};

use super::{Operation, OperationCall, lookup::request};
use crate::requests::simulations;

/// Simulates the transaction of a pending request again.
pub struct Resimulation;

#[async_trait]
impl Operation for Resimulation {
    const METHOD: &'static str = "mpcvault.platform.v1.PlatformAPI.Resimulation";
    type Request = wire::ResimulationRequest;
    type Response = wire::ResimulationResponse;

    async fn run(call: OperationCall<'_>, message: Self::Request) -> Result<Self::Response, Fault> {
        let id = message.signing_request_uuid.parse()?;
        let request = request(call.services, call.caller, id).await?;
        Ok(wire::ResimulationResponse {
            simulation: simulations::resimulate(call.services, &request, &call.command_commit)
                .await?,
            error: None,
        })
    }
}
