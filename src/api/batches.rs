//! Batch payments.

use covault_actors::gateway::{Command, Operation, Query, Receipt, View};
use covault_core::{fault::Fault, schema::wire};

use super::{Answer, Call, unexpected};

/// createBatchPayment.
pub async fn create(call: Call) -> Result<Answer, Fault> {
    let done = call
        .submit_once(Operation::CreateBatchPayment, Command::CreateBatchPayment)
        .await?;
    call.answer_to(done, |receipt| match receipt {
        Receipt::BatchPayment(batch) => Some(wire::CreateBatchPaymentResponse {
            batch_payment: Some(*batch),
            error: None,
        }),
        _ => None,
    })
}

/// getBatchPaymentDetails.
pub async fn details(call: Call) -> Result<Answer, Fault> {
    let request: wire::GetBatchPaymentDetailsRequest = call.request()?;
    let query = Query::BatchPayment { uuid: request.uuid };
    match call.api.gateway.view(&call.caller, query).await? {
        View::BatchPayment(batch) => call.answer(&wire::GetBatchPaymentDetailsResponse {
            batch_payment: Some(*batch),
            error: None,
        }),
        other => Err(unexpected(&other)),
    }
}
