//! The neighbours of the process: the bus, the chain nodes, PostgreSQL.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use covault_actors::chain_rpc::{
    ChainClient, ChainClients, ChainEndpoints, ChainKey, NodeEndpoint, PoolPorts,
};
use covault_core::port::Clock as _;
use futures::future::join_all;
use redis::aio::MultiplexedConnection;
use reqwest::Url;
use secrecy::ExposeSecret as _;
use tokio::{net::TcpStream, time::Instant};

use super::{super::config::CheckedRole, Check, PATIENCE, within};
use crate::{
    adapters::{OsEntropy, SystemClock},
    chain_nodes,
    config::{BusSettings, Config},
    redis_access::RedisAccess,
    wiring,
};

/// A round of a protocol takes one way or two, and a signature several rounds.
const SLOW_BUS: Duration = Duration::from_millis(20);
/// Nodes refuse orders when clocks are a minute apart.
const FAR_CLOCK_MS: u64 = 5_000;
const WRONG_CLOCK_MS: u64 = 30_000;
/// The largest message, and what Redis adds.
const LEAST_BULK: u64 = 5 << 20;
/// How long a node may take for its newest block, which is of use and not needed.
const BLOCK_PATIENCE: Duration = Duration::from_secs(2);
const BUS: &str = "bus";

/// The bus, its settings, and its clock.
pub(super) async fn bus(settings: &BusSettings) -> Vec<Check> {
    let servers = RedisAccess::load(settings).and_then(|access| access.servers());
    let servers = match servers {
        Ok(servers) => servers,
        Err(error) => return vec![Check::fail(BUS, format!("{error:#}"), "fix the setting")],
    };
    let connected = within(async {
        let connection = servers.open(PATIENCE).await;
        connection.map_err(|error| error.to_string())
    });
    let mut connection = match connected.await {
        Ok(connection) => connection,
        Err(error) => {
            return vec![Check::fail(
                BUS,
                format!("{} cannot be reached: {error}", servers.place()),
                "start Redis, or fix bus.redis_url (or what bus.redis_url_file holds), its certificates or the network",
            )];
        }
    };
    let mut checks = Vec::new();
    let begun = Instant::now();
    let time: Result<(u64, u64), String> = ask(&mut connection, &["TIME"]).await;
    let took = begun.elapsed();
    checks.push(match &time {
        Err(error) => Check::fail(
            BUS,
            error.clone(),
            "let this user of Redis do TIME and PING",
        ),
        Ok(_) if took > SLOW_BUS => Check::warn(
            BUS,
            format!("an answer takes {} ms", took.as_millis()),
            "each signature waits for several: put Redis nearer",
        ),
        Ok(_) => Check::ok(BUS, format!("an answer takes {} ms", took.as_millis())),
    });
    if let Ok((seconds, micros)) = time {
        let of_bus_ms = seconds.saturating_mul(1000).saturating_add(micros / 1000);
        checks.push(clock(SystemClock.now_ms(), of_bus_ms));
    }
    let settings = ["maxmemory", "proto-max-bulk-len", "save", "appendonly"];
    let mut known = BTreeMap::new();
    for setting in settings {
        let said: Result<Vec<String>, String> =
            ask(&mut connection, &["CONFIG", "GET", setting]).await;
        if let Some(value) = said.ok().and_then(|said| said.into_iter().nth(1)) {
            known.insert(setting, value);
        }
    }
    checks.extend(settings_of_redis(&known));
    checks
}

async fn ask<T: redis::FromRedisValue>(
    connection: &mut MultiplexedConnection,
    words: &[&str],
) -> Result<T, String> {
    within(async {
        let mut command = redis::Cmd::new();
        words.iter().for_each(|word| {
            command.arg(*word);
        });
        let said = command.query_async(connection).await;
        said.map_err(|error| error.to_string())
    })
    .await
}

/// Both in milliseconds since the Unix epoch.
fn clock(here_ms: u64, of_bus_ms: u64) -> Check {
    let apart_ms = here_ms.abs_diff(of_bus_ms);
    let found = format!("{apart_ms} ms from that of the bus's machine");
    let mend = "run NTP on all machines, and let it slew (docs/faults.md)";
    if apart_ms > WRONG_CLOCK_MS {
        Check::fail("clock", found, mend)
    } else if apart_ms > FAR_CLOCK_MS {
        Check::warn("clock", found, mend)
    } else {
        Check::ok("clock", found)
    }
}

fn settings_of_redis(known: &BTreeMap<&str, String>) -> Vec<Check> {
    let number = |setting| {
        known
            .get(setting)
            .and_then(|value| value.parse::<u64>().ok())
    };
    let mut checks = Vec::new();
    if known.is_empty() {
        let mend = "look at maxmemory, proto-max-bulk-len, save and appendonly yourself (README.md has what is wanted)";
        return vec![Check::warn(
            "Redis settings",
            "this user may not read them",
            mend,
        )];
    }
    if number("maxmemory") == Some(0) {
        checks.push(Check::warn(
            "Redis settings",
            "maxmemory is 0: a flood takes all memory of the machine",
            "redis-server --maxmemory 1gb",
        ));
    }
    if number("proto-max-bulk-len").is_some_and(|length| length < LEAST_BULK) {
        checks.push(Check::fail(
            "Redis settings",
            "proto-max-bulk-len is too small for the largest messages",
            "redis-server --proto-max-bulk-len 8mb",
        ));
    }
    let saves = known.get("save").is_some_and(|save| !save.is_empty());
    if saves || known.get("appendonly").is_some_and(|on| on == "yes") {
        checks.push(Check::warn(
            "Redis settings",
            "it writes to its disk, which nothing needs and which slows it down",
            "redis-server --save '' --appendonly no",
        ));
    }
    if checks.is_empty() {
        checks.push(Check::ok("Redis settings", "as they should be"));
    }
    checks
}

/// A node of a chain, as it answers.
pub(in crate::cli) struct ChainNodeState {
    pub chain: ChainKey,
    /// Its place among the nodes of the chain, from 1.
    pub number: usize,
    /// Its host: what is behind it in its URL may be a key.
    pub host: String,
    /// Where it is, or why it does not answer.
    pub answer: Result<String, String>,
}

/// Asks each node of each chain of the configuration, all at once.
///
/// # Errors
/// When the configuration cannot be used.
pub(in crate::cli) async fn ask_nodes(config: &Config) -> anyhow::Result<Vec<ChainNodeState>> {
    let chains = chain_nodes::from_config(&config.chains)?;
    let nodes = chains.iter().flat_map(|(chain, endpoints)| {
        let nodes = endpoints.nodes.iter().zip(1..);
        nodes.map(move |(node, number)| async move {
            ChainNodeState {
                chain: *chain,
                number,
                host: host_of(&node.url),
                answer: ask_node(*chain, endpoints, node).await,
            }
        })
    });
    Ok(join_all(nodes).await)
}

fn host_of(url: &str) -> String {
    let url = Url::parse(url).ok();
    let host = url.as_ref().and_then(Url::host_str).unwrap_or("?");
    match url.as_ref().and_then(Url::port) {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

/// Each node of each chain: whether it answers, for the chain that it is configured for, and where it is.
pub(super) async fn chains(config: &Config, role: CheckedRole) -> Vec<Check> {
    if role == CheckedRole::Signer {
        return Vec::new();
    }
    let chains = match chain_nodes::from_config(&config.chains) {
        Ok(chains) => chains,
        Err(error) => return vec![Check::fail("chain nodes", format!("{error:#}"), "")],
    };
    let nodes = chains.iter().flat_map(|(chain, endpoints)| {
        let nodes = endpoints.nodes.iter().zip(1..);
        nodes.map(|(node, number)| chain_node(*chain, endpoints, node, number))
    });
    let mut checks = join_all(nodes).await;
    let single = chains
        .iter()
        .filter(|(_, endpoints)| endpoints.nodes.len() == 1);
    checks.extend(single.map(|(chain, _)| {
        Check::warn(
            &format!("nodes of {chain}"),
            "there is only one, which is trusted alone",
            format!(
                "add a second one, of another operator, to {}.rpc",
                chain.setting()
            ),
        )
    }));
    checks
}

async fn chain_node(
    chain: ChainKey,
    endpoints: &ChainEndpoints,
    node: &NodeEndpoint,
    number: usize,
) -> Check {
    let what = format!("node {number} of {chain}");
    match ask_node(chain, endpoints, node).await {
        Ok(found) => Check::ok(what, found),
        Err(error) => Check::fail(
            &what,
            error,
            format!("fix the node, or take it out of {}.rpc", chain.setting()),
        ),
    }
}

async fn ask_node(
    chain: ChainKey,
    endpoints: &ChainEndpoints,
    node: &NodeEndpoint,
) -> Result<String, String> {
    let alone = ChainEndpoints {
        nodes: vec![node.clone()],
        agree: 1,
        ..endpoints.clone()
    };
    let ports = PoolPorts {
        clock: Arc::new(SystemClock),
        entropy: Arc::new(OsEntropy),
        calls_per_node: 1,
    };
    within(async {
        let clients = ChainClients::connect(&[(chain, alone)].into(), &ports);
        let clients = clients.map_err(|fault| fault.message().to_owned())?;
        let client = clients.get(chain.network, chain.chain_id);
        where_it_is(client.ok_or("no such chain")?.as_ref()).await
    })
    .await
}

async fn where_it_is(client: &dyn ChainClient) -> Result<String, String> {
    let head = client.head().await;
    match head.map_err(|error| error.into_reason())? {
        Some(block) => {
            let passed_on = passed_on(client, block).await;
            Ok(format!("answers, at block {block}{passed_on}"))
        }
        None => {
            let estimates = client.fee_estimates().await;
            estimates.map_err(|error| error.into_reason())?;
            Ok("answers".to_owned())
        }
    }
}

/// How a node tells what contracts pass on, where its newest block shows it.
async fn passed_on(client: &dyn ChainClient, newest: u64) -> String {
    let Some(source) = client.blocks() else {
        return String::new();
    };
    // A node that does not give it in time is as well as any other for all else.
    let tokens = BTreeSet::new();
    let _ = tokio::time::timeout(BLOCK_PATIENCE, source.block(newest, &tokens)).await;
    match source.traces() {
        "none" | "unknown" => String::new(),
        by => format!("; tells what contracts pass on by {by}"),
    }
}

/// Whether anything listens where PostgreSQL should. No more: who opens the store may change it.
pub(super) async fn postgres(config: &Config) -> Check {
    let what = "PostgreSQL";
    let connected = within(async {
        let url = wiring::store_url(&config.store).map_err(|error| format!("{error:#}"))?;
        let url = Url::parse(url.expose_secret()).map_err(|_| "its URL cannot be read")?;
        let host = url.host_str().unwrap_or("localhost");
        let address = (host, url.port().unwrap_or(5432));
        let connected = TcpStream::connect(address).await;
        connected.map_err(|error| format!("{host}: {error}"))
    });
    match connected.await {
        Ok(_) => Check::ok(what, "can be reached"),
        Err(error) => Check::fail(what, error, "docs/postgresql.md"),
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::{super::State, *};

    #[test]
    fn clock__should_be_near_that_of_the_bus() {
        let state = |of_bus_ms| clock(100_000, of_bus_ms).state;
        assert_eq!(state(100_900), State::Ok);
        assert_eq!(state(109_000), State::Warn);
        assert_eq!(state(55_000), State::Fail);
    }

    #[test]
    fn settings_of_redis__should_be_those_of_a_bus() {
        let state = |known: &[(&'static str, &str)]| {
            let known = known.iter().map(|(key, value)| (*key, (*value).to_owned()));
            let checks = settings_of_redis(&known.collect());
            checks.into_iter().map(|check| check.state).max()
        };
        let good = [
            ("maxmemory", "1073741824"),
            ("proto-max-bulk-len", "8388608"),
            ("save", ""),
            ("appendonly", "no"),
        ];
        assert_eq!(state(&good), Some(State::Ok));
        assert_eq!(state(&[]), Some(State::Warn));
        assert_eq!(state(&[("maxmemory", "0")]), Some(State::Warn));
        assert_eq!(state(&[("save", "3600 1")]), Some(State::Warn));
        assert_eq!(
            state(&[("proto-max-bulk-len", "1048576")]),
            Some(State::Fail)
        );
    }
}
