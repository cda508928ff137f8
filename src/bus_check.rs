//! Whether Redis takes this process as it is configured: asked before the first file is made.
//!
//! What is away may be there soon: the bus keeps trying. What Redis answers to a wrong password, or to the wrong kind
//! of connection, stays the same until someone fixes it.

use std::{io, sync::Arc, time::Duration};

use anyhow::bail;
use covault_core::order::NodeId;
use covault_mpc::bus::servers::RedisServers;
use redis::{
    ConnectionAddr, ErrorKind, RedisError, RedisResult, ServerErrorKind, aio::MultiplexedConnection,
};
use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use crate::redis_access::RedisAccess;

/// How long an answer may take; what takes longer is away.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a server may take to show whether it speaks TLS.
const PROBE: Duration = Duration::from_secs(1);

/// Asks Redis for what this process reads: announcements, and `inbox` once its identity is there. Gives the reason why
/// Redis is away, where it is.
///
/// # Errors
/// When Redis refuses it for good, with the setting and what to do. What the URL holds is not repeated.
pub async fn check(access: &RedisAccess, inbox: Option<NodeId>) -> anyhow::Result<Option<String>> {
    let servers = access.servers()?;
    let (error, is_open) = match servers.open(PATIENCE).await {
        Err(error) => (error, false),
        Ok(connection) => match ask(connection, access, inbox).await {
            Ok(()) => return Ok(None),
            Err(error) => (error, true),
        },
    };
    let (setting, place) = (access.url_setting(), servers.place());
    if let Some(problem) = refusal(&error, is_open) {
        bail!("{setting}: {place} {problem}");
    }
    let address = match &servers {
        RedisServers::One(client) => Some(client.get_connection_info().addr()),
        RedisServers::Sentinels(_) => None,
    };
    match address {
        Some(ConnectionAddr::TcpTls { host, port, .. }) if speaks_plainly(host, *port).await => {
            bail!(
                "{setting}: begins with rediss://, but {place} does not use TLS; use redis://, or the TLS port of \
                 Redis"
            )
        }
        Some(ConnectionAddr::Tcp(host, port)) if speaks_tls(host, *port).await => bail!(
            "{setting}: begins with redis://, but {place} requires TLS; use rediss://, and set bus.ca_file if its \
             certificate is from your own authority"
        ),
        _ => Ok(Some(format!("{place}: {error}"))),
    }
}

async fn ask(
    mut connection: MultiplexedConnection,
    access: &RedisAccess,
    inbox: Option<NodeId>,
) -> RedisResult<()> {
    let streams = std::iter::once("announcements".to_owned());
    let inbox = inbox.map(|id| format!("inbox:{}", hex::encode(id.0)));
    for stream in streams.chain(inbox) {
        redis::cmd("XREVRANGE")
            .arg(access.key(&stream))
            .arg("+")
            .arg("-")
            .arg("COUNT")
            .arg(1)
            .exec_async(&mut connection)
            .await?;
    }
    Ok(())
}

/// What Redis will not do until someone fixes it. `is_open`: the connection was made.
fn refusal(error: &RedisError, is_open: bool) -> Option<String> {
    if let Some(error) = tls_error(error) {
        return Some(format!(
            "is not reached over TLS ({error}); look at bus.ca_file, bus.certificate_file and bus.key_file, and at the \
             certificate of Redis"
        ));
    }
    match (error.kind(), error.code()) {
        (ErrorKind::AuthenticationFailed, _) | (_, Some("WRONGPASS")) => Some(
            "refuses the user or password of this URL; correct it, or the user in Redis".to_owned(),
        ),
        (_, Some("NOAUTH")) => Some(
            "asks for a password, and this URL has none; use redis://user:password@host:port"
                .to_owned(),
        ),
        (ErrorKind::Server(ServerErrorKind::NoPerm), _) => Some(format!(
            "does not allow the user of this URL to read this process's inbox ({}); covault redis-acl prints the \
             users that \
             a cluster needs",
            error.detail().unwrap_or("NOPERM")
        )),
        (ErrorKind::Server(ServerErrorKind::ResponseError), _) if !is_open => Some(format!(
            "refuses the database of this URL ({}); leave the number out",
            error.detail().unwrap_or_default()
        )),
        (ErrorKind::InvalidClientConfig, _) => Some(format!("cannot be used: {error}")),
        _ => None,
    }
}

/// Why TLS was refused, by either side.
fn tls_error(error: &RedisError) -> Option<String> {
    type Shared = Arc<dyn std::error::Error + Send + Sync>;
    let source = std::error::Error::source(error)?;
    let inner = source.downcast_ref::<Shared>()?;
    of_tls(inner.downcast_ref()?).map(ToString::to_string)
}

fn of_tls(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// Whether Redis answers there in the clear.
async fn speaks_plainly(host: &str, port: u16) -> bool {
    let asked = async {
        let mut stream = TcpStream::connect((host, port)).await?;
        stream.write_all(b"PING\r\n").await?;
        stream.read_u8().await
    };
    matches!(timeout(PROBE, asked).await, Ok(Ok(b'+' | b'-')))
}

/// Whether a server there does its part of a TLS handshake. Nothing is sent over it, and no certificate is trusted.
async fn speaks_tls(host: &str, port: u16) -> bool {
    let asked = async {
        let name = ServerName::try_from(host.to_owned()).ok()?;
        let config = ClientConfig::builder()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let stream = TcpStream::connect((host, port)).await.ok()?;
        let shaken = TlsConnector::from(Arc::new(config)).connect(name, stream);
        let Err(error) = shaken.await else {
            return Some(());
        };
        match of_tls(&error)? {
            rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_) => Some(()),
            _ => None,
        }
    };
    matches!(timeout(PROBE, asked).await, Ok(Some(())))
}
