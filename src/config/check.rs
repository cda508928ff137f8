//! What is wrong with values that have the right type.

use std::net::SocketAddr;

use tracing_subscriber::filter::LevelFilter;

use super::{ChainNodes, Config};

/// The most nonces that a signer makes ahead for one key.
const MOST_NONCES: usize = 4096;
/// With less, a PostgreSQL that is just busy would seem to be away.
const LEAST_STORE_TIMEOUT_MS: u64 = 1_000;

impl Config {
    /// What is wrong, each a sentence that begins with the setting.
    pub(super) fn problems(&self) -> Vec<String> {
        let (serve, signer) = (&self.serve, &self.signer);
        let mut problems = Vec::new();
        for part in self.log.level.split(',') {
            let level = part.split_once('=').map_or(part, |(_, level)| level);
            if level.trim().parse::<LevelFilter>().is_err() {
                problems.push(format!(
                    "log.level: {level:?} is no level; use trace, debug, info, warn, error or off, alone or as target=level"
                ));
            }
        }
        for (setting, address, may_be_off) in [
            ("serve.listen", &serve.listen, false),
            ("serve.grpc_listen", &serve.grpc_listen, true),
            ("serve.metrics_listen", &serve.metrics_listen, true),
            ("signer.metrics_listen", &signer.metrics_listen, true),
        ] {
            let is_off = may_be_off && address.is_empty();
            if !is_off && !is_address(address) {
                problems.push(not_an_address(setting, address));
            }
        }
        // In the public product's file the host may be missing.
        let health = &self.client_signer.health_listen;
        if !health.is_empty() && !is_address(health) && !is_address(&format!("0.0.0.0{health}")) {
            problems.push(not_an_address("client_signer.health_listen", health));
        }
        problems.extend(self.bus.problems());
        if self.store.timeout_ms < LEAST_STORE_TIMEOUT_MS {
            problems.push(format!(
                "store.timeout_ms: must be at least {LEAST_STORE_TIMEOUT_MS}"
            ));
        }
        let (low, high) = (signer.nonce_pool_low, signer.nonce_pool_high);
        if high > MOST_NONCES {
            problems.push(format!(
                "signer.nonce_pool_high: {high} is above {MOST_NONCES}"
            ));
        }
        if high < low {
            problems.push(format!(
                "signer.nonce_pool_high: {high} is below signer.nonce_pool_low, which is {low}"
            ));
        }
        for (chain, nodes) in self.chains.all() {
            problems.extend(chain_problem(&chain, nodes));
        }
        problems
    }
}

fn chain_problem(chain: &str, nodes: &ChainNodes) -> Option<String> {
    let count = nodes.rpc.len();
    if count == 0 {
        return None;
    }
    if !(1..=count).contains(&nodes.agree) {
        let agree = nodes.agree;
        return Some(format!(
            "chains.{chain}.agree: {agree} is not between 1 and the number of its nodes, which is {count}"
        ));
    }
    (nodes.timeout_ms == 0).then(|| format!("chains.{chain}.timeout_ms: must be above 0"))
}

fn not_an_address(setting: &str, address: &str) -> String {
    format!("{setting}: {address:?} is no address; use IP:PORT, such as 127.0.0.1:8080")
}

/// Host names are looked up when the process listens.
fn is_address(text: &str) -> bool {
    let named = || {
        let (host, port) = text.rsplit_once(':')?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
        let is_host = !host.is_empty() && host.chars().all(is_name);
        // An IP address that cannot be read is no name.
        let is_host = is_host && host.chars().any(|c| c.is_ascii_alphabetic());
        Some(is_host && port.parse::<u16>().is_ok())
    };
    text.parse::<SocketAddr>().is_ok() || named().unwrap_or(false)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::{super::bus::DEFAULT_REDIS, *};

    fn problem(file: &str) -> String {
        let file = ("a.toml".to_owned(), file.to_owned());
        let layered = Config::layer(Some(file), Vec::new());
        layered.expect_err("refused").to_string()
    }

    #[test]
    fn values__should_be_refused_by_the_name_of_their_setting() {
        for (file, words) in [
            (
                "[log]\nlevel = \"infoo\"",
                "log.level: \"infoo\" is no level",
            ),
            (
                "[log]\nlevel = \"info,covault=loud\"",
                "log.level: \"loud\" is no level",
            ),
            (
                "[serve]\nlisten = \"8080\"",
                "serve.listen: \"8080\" is no address",
            ),
            ("[serve]\nlisten = \"\"", "serve.listen: \"\" is no address"),
            (
                "[serve]\nmetrics_listen = \"127.0.0.1\"",
                "serve.metrics_listen",
            ),
            (
                "[serve]\ngrpc_listen = \"127.0.0.1:99999\"",
                "serve.grpc_listen",
            ),
            (
                "[signer]\nnonce_pool_high = 4097",
                "signer.nonce_pool_high: 4097 is above 4096",
            ),
            (
                "[signer]\nnonce_pool_high = 8",
                "signer.nonce_pool_high: 8 is below",
            ),
            (
                "[bus]\nredis_url = \"http://u:hunter2@a\"",
                "bus.redis_url: the bus is not reachable",
            ),
            (
                "[bus]\nredis_url = \"redis://a\"\nredis_url_file = \"b\"",
                "bus.redis_url and bus.redis_url_file are both set",
            ),
            (
                "[bus]\nca_file = \"a\"",
                "bus.ca_file: is for TLS, and bus.redis_url has none",
            ),
            (
                "[bus]\nredis_url = \"rediss://a\"\nkey_file = \"a\"",
                "bus.certificate_file and bus.key_file: set both",
            ),
            (
                "[bus]\nnamespace = \"Staging\"",
                "bus.namespace: \"Staging\" cannot be used",
            ),
            (
                "[bus]\nnamespace = \"\"",
                "bus.namespace: \"\" cannot be used",
            ),
            (
                "[bus]\nnamespace = \"covault-commands\"",
                "bus.namespace: \"covault-commands\"",
            ),
            (
                "[chains.evm.1]\nrpc = [\"http://a\"]\nagree = 2",
                "chains.evm.1.agree: 2",
            ),
            (
                "[chains.ton]\nrpc = [\"http://a\"]\ntimeout_ms = 0",
                "chains.ton.timeout_ms",
            ),
        ] {
            let problem = problem(file);
            assert!(problem.contains(words), "{file}: {problem}");
            assert!(!problem.contains("hunter2"), "{file}: {problem}");
        }
        for level in ["off", "info,covault_mpc=trace", "WARN"] {
            let file = format!("[log]\nlevel = \"{level}\"");
            let layered = Config::layer(Some(("a.toml".to_owned(), file)), Vec::new());
            assert!(layered.is_ok(), "{level}");
        }
        let over_tls = "[bus]\nredis_url_file = \"a\"\nca_file = \"b\"\nnamespace = \"staging-2\"";
        let layered = Config::layer(Some(("a.toml".to_owned(), over_tls.to_owned())), Vec::new());
        assert!(layered.is_ok(), "{layered:?}");
        let (default, _) = Config::layer(None, Vec::new()).unwrap();
        assert_eq!(default.bus.redis_url, DEFAULT_REDIS);
        for listen in [
            "localhost:80",
            "[::1]:80",
            "0.0.0.0:0",
            "covault.internal:8080",
        ] {
            assert!(is_address(listen), "{listen}");
        }
    }

    #[test]
    fn problems__should_be_named_all_at_once() {
        let problem = problem(
            "[serv]\n[serve]\nlisten = 5\nlistn = \"a\"\n[log]\nlevel = \"x\"\n[chains.evm.x]\n[signer.vaults.y]",
        );
        for words in [
            "serv;",
            "serve.listen",
            "serve.listn",
            "log.level",
            "\"x\" is not an EVM",
            "signer.vaults.y",
        ] {
            assert!(problem.contains(words), "{words}: {problem}");
        }
    }
}
