//! The health listener of a client signer: it answers while the process runs.

use axum::{Router, routing::get};
use tokio::task::JoinHandle;

use crate::{
    http::server::{self, HttpVersion, ServerLimits},
    shutdown::StopSignal,
    wiring,
};

/// Answers every GET at this address with 200 until `stop`; nowhere where it is empty. `:8080` is that port of all addresses.
///
/// # Errors
/// When the address cannot be used.
pub async fn start(
    address: &str,
    stop: StopSignal,
) -> anyhow::Result<Option<JoinHandle<anyhow::Result<()>>>> {
    let address = match address {
        "" => return Ok(None),
        port if port.starts_with(':') => format!("0.0.0.0{port}"),
        address => address.to_owned(),
    };
    let listener = wiring::listen(&address).await?;
    tracing::info!(address = %listener.local_addr()?, "health is served");
    let router = Router::new().fallback(get(async || "ok\n"));
    let serving = server::serve(
        listener,
        None,
        router,
        HttpVersion::Http1,
        ServerLimits::OPERATORS,
        stop,
    );
    Ok(Some(tokio::spawn(serving)))
}
