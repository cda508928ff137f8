//! Where an orchestrator listens: for programs, and for people.

use std::net::SocketAddr;

use anyhow::Context as _;
use axum::Router;
use tokio::net::TcpListener;

use crate::{
    config::{AdminAddress, ConsoleSettings, PageOrigin, ShownSetting, TlsSettings},
    http::{
        server::{self, HttpVersion, ServerLimits},
        socket::{LocalSocket, ServerSocket},
    },
    shutdown::StopSignal,
    tls::ServerTls,
};

/// Where an orchestrator is reached.
pub struct ApiListeners {
    /// HTTP/1.1.
    pub http: TcpListener,
    /// gRPC, where it is wanted.
    pub grpc: Option<TcpListener>,
    /// Where operators call, in a process that serves the API.
    pub admin: Option<AdminListener>,
    /// The console, where there is one.
    pub console: Option<(TcpListener, PageOrigin)>,
    /// The settings that it shows.
    pub settings: Vec<ShownSetting>,
    /// The certificate of all; without it they are in the clear.
    pub tls: Option<ServerTls>,
}

/// Where operators call.
pub struct AdminListener {
    /// What it accepts connections on.
    socket: ServerSocket,
    /// Where commands reach it: `unix:/PATH`, or a URL.
    pub url: String,
}

impl AdminListener {
    async fn bind(address: &AdminAddress, has_tls: bool) -> anyhow::Result<Self> {
        Ok(match address {
            AdminAddress::Network(address) => {
                let listener = listen(address).await?;
                let url = url_of(listener.local_addr()?, has_tls);
                Self {
                    socket: listener.into(),
                    url,
                }
            }
            AdminAddress::Socket(path) => Self {
                socket: ServerSocket::Local(LocalSocket::bind(path)?),
                url: address.to_string(),
            },
        })
    }

    /// Serves operators until `stop`: REST and gRPC. They are few, and need few connections.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub async fn serve(
        self,
        router: Router,
        tls: Option<ServerTls>,
        patience: ServerLimits,
        stop: StopSignal,
    ) -> anyhow::Result<()> {
        let most = ServerLimits::OPERATORS.max_connections;
        let most = patience.max_connections.min(most);
        let limits = ServerLimits {
            max_connections: most,
            // Who has no token could else keep operators out with connections alone.
            max_per_address: Some((most / 4).max(1)),
            ..patience
        };
        let tls = match &self.socket {
            ServerSocket::Network(_) => tls,
            // What stays on this machine needs none.
            ServerSocket::Local(_) => None,
        };
        server::serve(self.socket, tls, router, HttpVersion::Either, limits, stop).await
    }
}

impl ApiListeners {
    /// Listens for HTTP, for gRPC where `grpc` says, which learns the address of HTTP, and for the console; empty:
    /// nowhere. [`ApiListeners::listen_for_operators`] comes once the data folder is this process's.
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
            admin: None,
            console,
            settings: Vec::new(),
            tls,
        })
    }

    /// Listens for operators as well. The folder of their socket must be there.
    ///
    /// # Errors
    /// When the address cannot be used.
    pub async fn listen_for_operators(&mut self, address: &AdminAddress) -> anyhow::Result<()> {
        let listener = AdminListener::bind(address, self.tls.is_some()).await;
        self.admin = Some(listener.context("serve.admin_listen")?);
        Ok(())
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

/// The URL of a listener for programs on the same machine.
pub fn url_of(address: SocketAddr, tls: bool) -> String {
    let scheme = if tls { "https" } else { "http" };
    match (address.ip().is_unspecified(), address.is_ipv6()) {
        (true, true) => format!("{scheme}://[::1]:{}", address.port()),
        (true, false) => format!("{scheme}://127.0.0.1:{}", address.port()),
        (false, _) => format!("{scheme}://{address}"),
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
