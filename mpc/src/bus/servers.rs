//! Which Redis server the bus uses: the one of a URL, or the primary that Redis Sentinels name.
//!
//! Sentinels are asked for each new connection, and the server is asked whether it is the primary:
//! after a failover, which ends connections or has writes refused, the next one leads to the new
//! primary.

use std::{sync::Arc, time::Duration};

use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo,
    IntoConnectionInfo as _, ProtocolVersion, RedisResult, TlsCertificates, TlsMode,
    aio::MultiplexedConnection,
    sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType},
};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::{sync::Mutex, time::timeout};

use super::BusError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the question for the primary may take, and connecting to it.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(4);
/// The port of a Sentinel where the URL names none.
const SENTINEL_PORT: u16 = 26379;
const SENTINELS: &str = "redis-sentinel://";
const SENTINELS_TLS: &str = "rediss-sentinel://";

/// Whom a connection over TLS trusts, and as whom it shows itself. Plain connections have none of it.
#[derive(Clone, Default)]
pub struct RedisTls {
    /// Certificates (PEM) of the authorities that servers' certificates are from; `None`: those of the machine.
    pub authorities: Option<String>,
    /// Certificate chain (PEM) and private key (PEM) of this process, where servers ask for them.
    pub client: Option<(String, SecretString)>,
}

impl RedisTls {
    fn is_set(&self) -> bool {
        self.authorities.is_some() || self.client.is_some()
    }

    fn certificates(&self) -> TlsCertificates {
        TlsCertificates {
            client_tls: self.client.as_ref().map(|(chain, key)| ClientTlsConfig {
                client_cert: chain.clone().into_bytes(),
                client_key: key.expose_secret().as_bytes().to_vec(),
            }),
            root_cert: self.authorities.clone().map(String::into_bytes),
        }
    }
}

/// See the module.
#[derive(Clone)]
pub enum RedisServers {
    /// One server.
    One(Box<Client>),
    /// The primary that these name.
    Sentinels(Arc<Mutex<SentinelClient>>),
}

impl RedisServers {
    /// `redis://[user:password@]host:port[/db]`, or
    /// `redis-sentinel://[user:password@]host[:port][,host[:port]...]/name[/db]` with the Sentinels
    /// that watch over the primary of this name; user and password are the primary's. With `rediss://` and
    /// `rediss-sentinel://` all connections are over TLS, to the Sentinels too.
    ///
    /// # Errors
    /// [`BusError::Unreachable`] when it is neither, or `tls` does not fit. What they hold is not repeated.
    pub fn of(url: &str, tls: &RedisTls) -> Result<Self, BusError> {
        let unusable = |cause: redis::RedisError| BusError::Unreachable(cause.to_string());
        let is_tls = url.starts_with("rediss");
        if tls.is_set() && !is_tls {
            return Err(BusError::Unreachable(
                "certificates are for rediss:// and rediss-sentinel:// only".to_owned(),
            ));
        }
        let sentinels = url.strip_prefix(SENTINELS);
        let Some(rest) = sentinels.or_else(|| url.strip_prefix(SENTINELS_TLS)) else {
            let info = info(url).map_err(unusable)?;
            let client = if is_tls {
                Client::build_with_tls(info, tls.certificates())
            } else {
                Client::open(info)
            };
            return Ok(Self::One(Box::new(client.map_err(unusable)?)));
        };
        let SentinelUrl {
            credentials,
            hosts,
            name,
            db,
        } = parts(rest)?;
        let scheme = if is_tls { "rediss" } else { "redis" };
        let mut sentinels = Vec::with_capacity(hosts.len());
        for host in &hosts {
            let sentinel = info(&format!("{scheme}://{host}")).map_err(unusable)?;
            sentinels.push(sentinel.addr().clone());
        }
        let first = hosts.first().map(String::as_str).unwrap_or_default();
        let primary = info(&format!("{scheme}://{credentials}{first}/{db}")).map_err(unusable)?;
        let (settings, tcp) = (primary.redis_settings(), primary.tcp_settings().clone());
        let mut builder = SentinelClientBuilder::new(sentinels, name, SentinelServerType::Master)
            .map_err(unusable)?
            .set_client_to_redis_db(settings.db())
            .set_client_to_redis_protocol(ProtocolVersion::RESP2)
            .set_client_to_redis_tcp_settings(tcp.clone())
            .set_client_to_sentinel_protocol(ProtocolVersion::RESP2)
            .set_client_to_sentinel_tcp_settings(tcp);
        if let Some(user) = settings.username() {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = settings.password() {
            builder = builder.set_client_to_redis_password(password);
        }
        if is_tls {
            builder = builder
                .set_client_to_redis_tls_mode(TlsMode::Secure)
                .set_client_to_redis_certificates(tls.certificates())
                .set_client_to_sentinel_certificates(tls.certificates());
        }
        let client = builder.build().map_err(unusable)?;
        Ok(Self::Sentinels(Arc::new(Mutex::new(client))))
    }

    /// Where it is, for logs: without user and password.
    pub fn place(&self) -> String {
        match self {
            Self::One(client) => format!("Redis at {}", client.get_connection_info().addr()),
            Self::Sentinels(_) => "Redis behind its Sentinels".to_owned(),
        }
    }

    /// A new connection, whose answers may take so long.
    ///
    /// # Errors
    /// When there is none within a few seconds.
    pub async fn open(&self, response: Duration) -> RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(response));
        match self {
            Self::One(client) => {
                client
                    .get_multiplexed_async_connection_with_config(&config)
                    .await
            }
            Self::Sentinels(client) => {
                let mut client = client.lock().await;
                let open = client.get_async_connection_with_config(&config);
                timeout(SEARCH_TIMEOUT, open)
                    .await
                    .map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))?
            }
        }
    }
}

fn info(url: &str) -> RedisResult<ConnectionInfo> {
    let info = url.into_connection_info()?;
    if matches!(info.addr(), ConnectionAddr::TcpTls { insecure: true, .. }) {
        return Err((
            redis::ErrorKind::InvalidClientConfig,
            "#insecure is not supported: name the authority of the server's certificate instead",
        )
            .into());
    }
    // Off by default in the client: small messages would wait for each other.
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    let settings = info
        .redis_settings()
        .clone()
        .set_protocol(ProtocolVersion::RESP2);
    Ok(info.set_tcp_settings(tcp).set_redis_settings(settings))
}

/// What a URL of Sentinels says.
#[derive(Debug, PartialEq, Eq)]
struct SentinelUrl {
    /// With the "@" behind them, where there are any.
    credentials: String,
    /// `host:port`
    hosts: Vec<String>,
    name: String,
    db: String,
}

fn parts(rest: &str) -> Result<SentinelUrl, BusError> {
    let unusable = |what: &str| BusError::Unreachable(format!("{SENTINELS}...: {what}"));
    let (authority, path) = rest
        .split_once('/')
        .ok_or_else(|| unusable("the name of the primary is missing"))?;
    let (name, db) = path.split_once('/').unwrap_or((path, ""));
    if name.is_empty() {
        return Err(unusable("the name of the primary is missing"));
    }
    let (credentials, hosts) = match authority.rsplit_once('@') {
        Some((credentials, hosts)) => (format!("{credentials}@"), hosts),
        None => (String::new(), authority),
    };
    let mut with_ports = Vec::new();
    for host in hosts.split(',') {
        // Behind the brackets of an IPv6 address.
        let port = host.rsplit(']').next().unwrap_or_default();
        match (host.is_empty(), port.contains(':')) {
            (true, _) => return Err(unusable("a Sentinel is missing")),
            (false, true) => with_ports.push(host.to_owned()),
            (false, false) => with_ports.push(format!("{host}:{SENTINEL_PORT}")),
        }
    }
    Ok(SentinelUrl {
        credentials,
        hosts: with_ports,
        name: name.to_owned(),
        db: db.to_owned(),
    })
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn parts__should_be_told_apart() {
        let found = parts("user:p@ss@a,b:1,[::1],[::2]:3/main/4").unwrap();
        let expected = SentinelUrl {
            credentials: "user:p@ss@".into(),
            hosts: ["a:26379", "b:1", "[::1]:26379", "[::2]:3"]
                .map(String::from)
                .into(),
            name: "main".into(),
            db: "4".into(),
        };
        assert_eq!(found, expected);
        for bad in ["a:1", "a:1/", "/main", "a,,b/main", "user@/main"] {
            assert!(parts(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn of__should_refuse_what_is_none_without_repeating_it() {
        for bad in [
            "http://secret@host",
            "redis-sentinel://u:secret@host",
            "redis-sentinel://u:secret@host:x/main",
            "redis-sentinel://u:secret@host/main/x",
            "rediss://u:secret@host/#insecure",
            "rediss-sentinel://u:secret@host",
        ] {
            let Err(refused) = RedisServers::of(bad, &RedisTls::default()) else {
                panic!("{bad}");
            };
            assert!(!refused.to_string().contains("secret"), "{refused}");
        }
        let of = |url: &str| RedisServers::of(url, &RedisTls::default());
        for one in ["redis://u:p@host:1/2", "rediss://u:p@host:1/2"] {
            assert!(matches!(of(one), Ok(RedisServers::One(_))), "{one}");
        }
        for several in [
            "redis-sentinel://u:p@a,b:2/main/2",
            "rediss-sentinel://a,b:2/main",
        ] {
            assert!(
                matches!(of(several), Ok(RedisServers::Sentinels(_))),
                "{several}"
            );
        }
        let tls = RedisTls {
            authorities: Some(String::new()),
            client: None,
        };
        for plain in ["redis://host", "redis-sentinel://host/main"] {
            assert!(RedisServers::of(plain, &tls).is_err(), "{plain}");
        }
    }
}
