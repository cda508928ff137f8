//! The result of simulating a transaction on the latest block.

use covault_core::networks::evm;
use serde_json::{Value, json};

use super::{EvmNode, INVALID_PARAMS, METHOD_NOT_FOUND, refusals::speaks_of_load};
use crate::chain_rpc::{
    SimulationOutcome, SimulationRequest,
    exchange::short,
    jsonrpc::{RpcCall, RpcCallError, quantity},
    simulation::revert_reason,
};

impl EvmNode {
    /// By `eth_call` of the whole transaction; `None` when nodes cannot say.
    pub(super) async fn try_on_latest(
        &self,
        trial: &SimulationRequest,
    ) -> Option<SimulationOutcome> {
        let from = trial.payload.from();
        let transaction = evm::trial(&trial.unsigned.bytes).ok()?;
        let params = json!([attempt(from, &transaction), "latest"]);
        let error = match self
            .rpc
            .query_best_effort(RpcCall("eth_call", params))
            .await
        {
            Ok(returned) => {
                return Some(SimulationOutcome::passes(Some(
                    returned.as_str()?.to_owned(),
                )));
            }
            Err(RpcCallError::Node(error)) => error,
            Err(_) => return None,
        };
        if speaks_of_load(&error) || matches!(error.code, METHOD_NOT_FOUND | INVALID_PARAMS) {
            return None;
        }
        // It may fail because it has gone through: it is signed and sent at the same time.
        let params = json!([from, "latest"]);
        let count = self
            .rpc
            .query_best_effort(RpcCall("eth_getTransactionCount", params))
            .await;
        let count = count.as_ref().ok().and_then(quantity)?;
        if count > u128::from(transaction.nonce) {
            return None;
        }
        let data = revert_data(&error.data);
        let reason = data.as_ref().and_then(|data| revert_reason(data));
        let words = match reason.filter(|reason| !error.message.contains(reason.as_str())) {
            Some(reason) => format!("{}: {reason}", short(&error.message)),
            None => error.message,
        };
        Some(SimulationOutcome {
            result: data.map(|data| format!("0x{}", hex::encode(data))),
            ..SimulationOutcome::fails(&words)
        })
    }
}

/// The whole transaction, as nodes take it to be tried. Its nonce is left out: earlier ones of the
/// account need not be mined.
fn attempt(from: &str, transaction: &evm::SimulationCall) -> Value {
    let evm::SimulationCall {
        to,
        value,
        data,
        nonce: _,
        gas_limit,
        most_price,
        priority,
    } = transaction;
    let mut object = json!({
        "from": from,
        "value": format!("{value:#x}"),
        "data": format!("0x{}", hex::encode(data)),
        "gas": format!("{gas_limit:#x}"),
    });
    let price = format!("{most_price:#x}");
    let prices = match priority {
        Some(priority) => vec![
            ("maxFeePerGas", price),
            ("maxPriorityFeePerGas", format!("{priority:#x}")),
        ],
        None => vec![("gasPrice", price)],
    };
    let to = to.iter().map(|to| ("to", to.clone()));
    if let Some(fields) = object.as_object_mut() {
        for (name, text) in prices.into_iter().chain(to) {
            fields.insert(name.into(), text.into());
        }
    }
    object
}

/// What a call reverts with: text, in an object with some nodes, with words before it in others.
fn revert_data(data: &Value) -> Option<Vec<u8>> {
    let text = data.as_str().or_else(|| data.get("data")?.as_str())?;
    let (_, digits) = text.split_once("0x")?;
    hex::decode(digits).ok()
}
