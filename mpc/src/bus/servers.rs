//! Which Redis server the bus uses: the one of a URL, or the primary that Redis Sentinels name.
//!
//! Sentinels are asked for each new connection, and the server is asked whether it is the primary:
//! after a failover, which ends connections or has writes refused, the next one leads to the new
//! primary.

use std::{sync::Arc, time::Duration};

use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, IntoConnectionInfo as _, ProtocolVersion,
    RedisResult,
    aio::MultiplexedConnection,
    sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType},
};
use tokio::{sync::Mutex, time::timeout};

use super::BusError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the question for the primary may take, and connecting to it.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(4);
/// The port of a Sentinel where the URL names none.
const SENTINEL_PORT: u16 = 26379;
const SENTINELS: &str = "redis-sentinel://";

/// See the module.
#[derive(Clone)]
pub(super) enum RedisServers {
    One(Client),
    Sentinels(Arc<Mutex<SentinelClient>>),
}

impl RedisServers {
    /// `redis://[user:password@]host:port[/db]`, or
    /// `redis-sentinel://[user:password@]host[:port][,host[:port]...]/name[/db]` with the Sentinels
    /// that watch over the primary of this name; user and password are the primary's.
    ///
    /// # Errors
    /// [`BusError::Unreachable`] when it is neither. What the URL holds is not repeated.
    pub(super) fn of(url: &str) -> Result<Self, BusError> {
        let unusable = |cause: redis::RedisError| BusError::Unreachable(cause.to_string());
        let Some(rest) = url.strip_prefix(SENTINELS) else {
            let info = info(url).map_err(unusable)?;
            return Ok(Self::One(Client::open(info).map_err(unusable)?));
        };
        let SentinelUrl {
            credentials,
            hosts,
            name,
            db,
        } = parts(rest)?;
        let mut sentinels = Vec::with_capacity(hosts.len());
        for host in &hosts {
            sentinels.push(info(&format!("redis://{host}")).map_err(unusable)?);
        }
        let first = hosts.first().map(String::as_str).unwrap_or_default();
        let primary = info(&format!("redis://{credentials}{first}/{db}")).map_err(unusable)?;
        let primary = SentinelNodeConnectionInfo::default()
            .set_redis_connection_info(primary.redis_settings().clone())
            .set_tcp_settings(primary.tcp_settings().clone());
        let client =
            SentinelClient::build(sentinels, name, Some(primary), SentinelServerType::Master)
                .map_err(unusable)?;
        Ok(Self::Sentinels(Arc::new(Mutex::new(client))))
    }

    /// A new connection, whose answers may take so long.
    pub(super) async fn open(&self, response: Duration) -> RedisResult<MultiplexedConnection> {
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
        ] {
            let Err(refused) = RedisServers::of(bad) else {
                panic!("{bad}");
            };
            assert!(!refused.to_string().contains("secret"), "{refused}");
        }
        assert!(matches!(
            RedisServers::of("redis://u:p@host:1/2"),
            Ok(RedisServers::One(_))
        ));
        let several = RedisServers::of("redis-sentinel://u:p@a,b:2/main/2");
        assert!(matches!(several, Ok(RedisServers::Sentinels(_))));
    }
}
