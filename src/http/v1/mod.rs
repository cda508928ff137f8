//! `/v1`: the platform API. One line per operation that is built; the others say so.

mod balances;
mod signing_requests;
mod wallets;

use std::sync::Arc;

use axum::routing::MethodRouter;
use covault_core::{
    fault::{Class, Fault},
    schema::service::Operation,
};

use super::{Api, Area, Call, Route};

/// The route of an operation.
pub(super) fn route(api: &Arc<Api>, operation: Operation) -> MethodRouter {
    let name = operation.name().to_owned();
    let plain = Route {
        api: Arc::clone(api),
        area: Area::Platform,
        operation: Some(operation),
        takes_idempotency_key: false,
    };
    let idempotent = Route {
        takes_idempotency_key: true,
        ..plain.clone()
    };
    match name.as_str() {
        "createSigningRequest" => idempotent.post(signing_requests::create),
        "executeSigningRequests" => plain.post(signing_requests::execute),
        "getSigningRequestDetails" => plain.post(signing_requests::details),
        "createWallet" => idempotent.post(wallets::create),
        "getWalletInfo" => plain.post(wallets::info),
        "getWalletList" => plain.post(wallets::list),
        "getBalance" => plain.post(balances::get),
        _ => plain.post(move |_: Call| {
            let sentence = format!("{name} is not available in this version");
            async move { Err(Fault::new(Class::Invalid, sentence)) }
        }),
    }
}
