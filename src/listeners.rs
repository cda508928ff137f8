//! Where an orchestrator listens: for programs, and for people.

use std::net::SocketAddr;

use anyhow::Context as _;
use tokio::net::TcpListener;

use crate::{
    config::{ConsoleSettings, PageOrigin, ShownSetting, TlsSettings},
    tls::ServerTls,
};

/// Where an orchestrator is reached.
pub struct ApiListeners {
    /// HTTP/1.1.
    pub http: TcpListener,
    /// gRPC, where it is wanted.
    pub grpc: Option<TcpListener>,
    /// The console, where there is one.
    pub console: Option<(TcpListener, PageOrigin)>,
    /// The settings that it shows.
    pub settings: Vec<ShownSetting>,
    /// The certificate of all; without it they are in the clear.
    pub tls: Option<ServerTls>,
}

impl ApiListeners {
    /// Listens for HTTP, for gRPC where `grpc` says, which learns the address of HTTP, and for the console; empty:
    /// nowhere.
    ///
    /// # Errors
    /// When an address is invalid or in use, or the certificate cannot be used.
    pub async fn bind(
        http: &str,
        grpc: impl FnOnce(SocketAddr) -> String,
        console: Option<&ConsoleSettings>,
        tls: &TlsSettings,
    ) -> anyhow::Result<Self> {
        let tls = ServerTls::load(tls)?;
        let http = listen(http).await.context("serve.listen")?;
        let grpc = match grpc(http.local_addr()?).as_str() {
            "" => None,
            address => Some(listen(address).await.context("serve.grpc_listen")?),
        };
        let console = match console.filter(|console| !console.listen.is_empty()) {
            None => None,
            Some(console) => {
                let listener = listen(&console.listen).await.context("console.listen")?;
                console.origin()?.map(|origin| (listener, origin))
            }
        };
        Ok(Self {
            http,
            grpc,
            console,
            settings: Vec::new(),
            tls,
        })
    }

    /// Where gRPC is reached: `IP:PORT`, or nothing.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn grpc_address(&self) -> anyhow::Result<Option<SocketAddr>> {
        let address = self.grpc.as_ref().map(TcpListener::local_addr);
        address.transpose().context("where gRPC listens")
    }
}

/// Listens, with a sentence that helps when that is not possible.
///
/// # Errors
/// When the address is invalid, or in use.
pub async fn listen(address: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}; choose another address (IP:PORT)"))
}
