//! Checks of values that have the right type.

use std::{net::SocketAddr, path::Path};

use reqwest::Url;

use super::{ChainNodes, Config, ConfigError, ServeSettings, SignerSettings, StoreKind};

/// The most nonces that a signer makes ahead for one key.
const MOST_NONCES: usize = 4096;
/// The longest name of a signer node, in bytes.
const MOST_NAME: usize = 100;
/// With less, a PostgreSQL that is just busy would seem to be away.
const LEAST_STORE_TIMEOUT_MS: u64 = 1_000;

impl Config {
    /// What is wrong, each a sentence that begins with the setting.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = self.serve.problems();
        problems.extend(self.signer.problems());
        let (wait, deadline) = (self.serve.execute_wait_ms, self.serve.signing_deadline_ms);
        // Under `covault dev` a wait that is too short for the outcome is of use.
        if wait <= deadline && !self.signer.development {
            problems.push(format!(
                "serve.execute_wait_ms: {wait} is not above serve.signing_deadline_ms, which is {deadline}: \
                 executeSigningRequests could not tell how requests end"
            ));
        }
        problems.extend(self.log.problems());
        for (setting, address, may_be_off) in [
            ("serve.listen", &self.serve.listen, false),
            ("serve.grpc_listen", &self.serve.grpc_listen, true),
            ("serve.metrics_listen", &self.serve.metrics_listen, true),
            ("console.listen", &self.console.listen, true),
            ("signer.metrics_listen", &self.signer.metrics_listen, true),
            ("signer.approve_listen", &self.signer.approve_listen, true),
        ] {
            let is_off = may_be_off && address.is_empty();
            if !is_off && !is_address(address) {
                problems.push(not_an_address(setting, address));
            }
        }
        // The socket that stands for no setting is looked at by who listens there: a signer has none.
        if !self.serve.admin_listen.is_empty()
            && let Err(problem) = self.serve.admin_address()
        {
            problems.push(format!("serve.admin_listen: {problem}"));
        }
        // In the public product's file the host may be missing.
        let health = &self.client_signer.health_listen;
        if !health.is_empty() && !is_address(health) && !is_address(&format!("0.0.0.0{health}")) {
            problems.push(not_an_address("client_signer.health_listen", health));
        }
        problems.extend(self.bus.problems());
        let origins = [
            self.console.origin().err(),
            self.signer.approve_origin().err(),
        ];
        for problem in origins.into_iter().flatten() {
            if let ConfigError::Value(problem) = problem {
                problems.push(problem);
            }
        }
        let names_postgres = !self.store.url.is_empty() || self.store.url_file != Path::new("");
        if names_postgres && self.store.kind == StoreKind::Redb {
            // Its vaults would seem to be gone.
            problems.push(
                "store.kind: \"redb\" is in serve.data_dir, and store.url or store.url_file names a PostgreSQL; use \"postgres\", \
                 or leave the URL out"
                    .to_owned(),
            );
        }
        if self.store.timeout_ms < LEAST_STORE_TIMEOUT_MS {
            problems.push(format!(
                "store.timeout_ms: must be at least {LEAST_STORE_TIMEOUT_MS}"
            ));
        }
        for (chain, nodes) in self.chains.all() {
            problems.extend(chain_problem(&chain, nodes));
        }
        problems
    }
}

impl ServeSettings {
    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.data_dir.as_os_str().is_empty() {
            problems.push("serve.data_dir: is empty; name a folder".to_owned());
        }
        for (setting, value) in [
            ("serve.signing_deadline_ms", self.signing_deadline_ms),
            ("serve.grpc_timeout_ms", self.grpc_timeout_ms),
            ("serve.header_timeout_ms", self.header_timeout_ms),
            ("serve.body_timeout_ms", self.body_timeout_ms),
            ("serve.idle_timeout_ms", self.idle_timeout_ms),
            ("serve.max_body_bytes", self.max_body_bytes as u64),
            ("serve.max_live_requests", self.max_live_requests as u64),
            ("serve.max_live_bytes", self.max_live_bytes as u64),
        ] {
            if value == 0 {
                problems.push(format!(
                    "{setting}: 0 leaves no room for anything; use 1 or more"
                ));
            }
        }
        problems
    }
}

impl SignerSettings {
    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.data_dir.as_os_str().is_empty() {
            problems.push("signer.data_dir: is empty; name a folder".to_owned());
        }
        let name = &self.name;
        let is_name = (1..=MOST_NAME).contains(&name.len()) && !name.chars().any(char::is_control);
        if !is_name {
            problems.push(format!(
                "signer.name: {name:?} cannot be used; use a name of up to {MOST_NAME} bytes, on one line"
            ));
        }
        let (least, most) = (self.least_threshold, self.most_threshold);
        if most != 0 && most < least {
            problems.push(format!(
                "signer.most_threshold: {most} is below signer.least_threshold, which is {least}"
            ));
        }
        if self.least_spare < -1 {
            problems.push(format!(
                "signer.least_spare: {} is too low; use 0 or more, or -1 for no rule",
                self.least_spare
            ));
        }
        let (low, high) = (self.nonce_pool_low, self.nonce_pool_high);
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
    if nodes.timeout_ms == 0 {
        return Some(format!("chains.{chain}.timeout_ms: must be above 0"));
    }
    let is_url =
        |text: &str| Url::parse(text).is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
    let wrong = nodes.rpc.iter().position(|text| !is_url(text))?;
    // An address may hold a key.
    Some(format!(
        "chains.{chain}.rpc: address {} of {count} is not a URL; use http://HOST:PORT or https://",
        wrong + 1
    ))
}

fn not_an_address(setting: &str, address: &str) -> String {
    format!("{setting}: {address:?} is not an address; use IP:PORT, such as 127.0.0.1:8080")
}

/// Host names are looked up when the process listens.
pub(super) fn is_address(text: &str) -> bool {
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
                "log.level: \"infoo\" is not a level",
            ),
            (
                "[log]\nlevel = \"info,covault=loud\"",
                "log.level: \"loud\" is not a level",
            ),
            ("[log]\nlevel = \"info,\"", "log.level: \"\" is not a level"),
            (
                "[log]\nlevel = \"info,=debug\"",
                "log.level: \"\" is not a target",
            ),
            (
                "[log]\nlevel = \"info\\n\"",
                "log.level: \"info\\n\" is not a level",
            ),
            (
                "[log]\nlevel = \"a b=info\"",
                "log.level: \"a b\" is not a target",
            ),
            (
                "[serve]\nlisten = \"8080\"",
                "serve.listen: \"8080\" is not an address",
            ),
            (
                "[serve]\nlisten = \"\"",
                "serve.listen: \"\" is not an address",
            ),
            (
                "[serve]\nmetrics_listen = \"127.0.0.1\"",
                "serve.metrics_listen",
            ),
            (
                "[serve]\ngrpc_listen = \"127.0.0.1:99999\"",
                "serve.grpc_listen",
            ),
            (
                "[serve]\nadmin_listen = \"unix:admin.sock\"",
                "serve.admin_listen: \"admin.sock\" is not the whole path",
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
                "bus.redis_url: Redis URL did not parse",
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
