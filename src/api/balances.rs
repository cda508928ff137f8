//! Balances.

use covault_actors::gateway::{Query, View};
use covault_core::{fault::Fault, schema::wire};

use super::{Answer, Call, unexpected};

/// getBalance.
pub async fn get(call: Call) -> Result<Answer, Fault> {
    let query = Query::Balance(call.request()?);
    match call.api.gateway.view(&call.caller, query).await? {
        View::Balance(balance) => call.answer(&wire::GetBalanceResponse {
            balance,
            error: None,
        }),
        other => Err(unexpected(&other)),
    }
}
