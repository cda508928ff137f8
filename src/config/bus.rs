//! Where orchestrator and signer nodes meet.

use std::path::{Path, PathBuf};

use covault_mpc::bus::{
    BusError,
    servers::{RedisServers, RedisTls},
};
use serde::Deserialize;

/// Of config.default.toml.
pub(super) const DEFAULT_REDIS: &str = "redis://127.0.0.1:6379";
const MOST_NAMESPACE: usize = 40;
/// What the command bus of a cluster ends in.
const COMMANDS: &str = "-commands";

#[derive(Clone, Deserialize)]
pub struct BusSettings {
    pub redis_url: String,
    pub redis_url_file: PathBuf,
    pub ca_file: PathBuf,
    pub certificate_file: PathBuf,
    pub key_file: PathBuf,
    pub namespace: String,
}

/// A Redis URL may hold a password.
impl std::fmt::Debug for BusSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bus")
    }
}

impl BusSettings {
    /// What is wrong, each a sentence that begins with the setting.
    pub(super) fn problems(&self) -> Vec<String> {
        let is_set = |path: &Path| !path.as_os_str().is_empty();
        let url_in_file = is_set(&self.redis_url_file);
        let mut problems = Vec::new();
        if url_in_file && self.redis_url != DEFAULT_REDIS {
            problems.push(
                "bus.redis_url and bus.redis_url_file are both set: leave one of them".to_owned(),
            );
        }
        if !url_in_file && let Err(error) = RedisServers::of(&self.redis_url, &RedisTls::default())
        {
            let problem = match error {
                BusError::Unreachable(problem) => problem,
                other => other.to_string(),
            };
            problems.push(format!(
                "bus.redis_url: {problem}; use redis://[user:password@]host:port, or rediss:// for TLS"
            ));
        }
        if is_set(&self.certificate_file) != is_set(&self.key_file) {
            problems.push("bus.certificate_file and bus.key_file: set both, or neither".to_owned());
        }
        let is_plain = !url_in_file && !self.redis_url.starts_with("rediss");
        for (setting, path) in [
            ("bus.ca_file", &self.ca_file),
            ("bus.certificate_file", &self.certificate_file),
            ("bus.key_file", &self.key_file),
        ] {
            if is_plain && is_set(path) {
                problems.push(format!(
                    "{setting}: is for TLS, and bus.redis_url has none; use rediss:// there"
                ));
            }
        }
        if let Some(problem) = namespace_problem(&self.namespace) {
            problems.push(format!("bus.namespace: {problem}"));
        }
        problems
    }
}

/// Why no cluster can have this namespace.
pub fn namespace_problem(namespace: &str) -> Option<String> {
    let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_good = (1..=MOST_NAMESPACE).contains(&namespace.len())
        && namespace.chars().all(is_letter)
        && !namespace.ends_with(COMMANDS);
    (!is_good).then(|| {
        format!(
            "{namespace:?} cannot be used; use up to {MOST_NAMESPACE} small letters, digits and \"-\", not ending in \
             {COMMANDS}"
        )
    })
}
