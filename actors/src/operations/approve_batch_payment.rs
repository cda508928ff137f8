use async_trait::async_trait;
use covault_core::{
    amount::parse_u256,
    batch::{BatchEvent, BatchPayload, BatchProgress, BatchState},
    fault::{Class, Fault},
    schema::admin,
};

use super::{Home, HomeLookup, Operation, OperationCall, batch, lookup::client_signer};
use crate::batches::start::{self, LoadedBatch};

/// Approves a batch payment and makes its first signing request, in one commit. A batch is completed by a person: this is
/// needed whatever the vault's own rule is, which then holds for each of its requests.
pub struct ApproveBatchPayment;

#[async_trait]
impl Operation for ApproveBatchPayment {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.ApproveBatchPayment";
    type Request = admin::ApproveBatchPaymentRequest;
    type Response = admin::ApproveBatchPaymentResponse;

    async fn home(lookup: &HomeLookup<'_>, message: &Self::Request) -> Result<Home, Fault> {
        batch::home(lookup, &message.uuid).await
    }

    async fn run(call: OperationCall<'_>, message: Self::Request) -> Result<Self::Response, Fault> {
        let services = call.services;
        let signer = client_signer(message.callback_client_signer_public_key.as_deref())?;
        let (found, version) = batch::find(services, call.caller, &message.uuid).await?;
        if found.state != BatchState::Pending {
            return Err(Fault::new(
                Class::WrongState,
                match found.state {
                    BatchState::Failed { .. } => {
                        "the batch has failed; resume it, if it can be resumed"
                    }
                    _ => "the batch is approved already",
                },
            ));
        }
        batch::check_people_approve(services, call.caller, &found, signer).await?;
        if let Some(total) = &message.total {
            let payment = BatchPayload::decode(&found.payment).map_err(Fault::bug)?;
            let pays = payment.total();
            if parse_u256(total).map_err(|error| Fault::field("total", error))? != pays {
                let problem = format!("the batch pays {pays} in all, not {total}");
                return Err(Fault::new(Class::WrongState, problem).at("total"));
            }
        }
        let stage = start::first_stage(services, &found).await?;
        let read = LoadedBatch {
            batch: &found,
            version,
            progress: &BatchProgress::default(),
            client_signer: signer,
        };
        let event = |request| BatchEvent::Approved {
            client_signer: signer,
            request,
        };
        start::make(call.vaults, read, stage, event, call.command_commit.clone()).await?;
        let (found, _) = batch::find(services, call.caller, &message.uuid).await?;
        Ok(admin::ApproveBatchPaymentResponse {
            batch_payment: Some(batch::whole_summary(services, &found).await?),
        })
    }
}
