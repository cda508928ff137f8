//! Balances.

use covault_actors::gateway::{Query, View};
use covault_core::{
    fault::Fault,
    schema::{json, wire},
};

use crate::http::{Answer, Call, unexpected};

/// getBalance.
pub async fn get(call: Call) -> Result<Answer, Fault> {
    let query = Query::Balance(json::decode(&call.body)?);
    match call.api.gateway.view(&call.caller, query).await? {
        View::Balance(balance) => {
            let response = wire::GetBalanceResponse {
                balance,
                error: None,
            };
            Ok(Answer::new(json::encode(&response)?))
        }
        other => Err(unexpected(&other)),
    }
}
