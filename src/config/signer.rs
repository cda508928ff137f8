//! The settings that a signer node requires at its start, and those that environment variables may set.

use super::{ConfigError, PageOrigin, SignerSettings, console::page_origin};

/// The settings of a signer node that the environment may override. Every other one decides what the
/// node signs and with whom, or where that is written: it comes from the configuration file only.
const FROM_ENVIRONMENT: &[&str] = &[
    "name",
    "passphrase_file",
    "metrics_listen",
    "nonce_pool_low",
    "nonce_pool_high",
];

/// The same of a client signer.
const CLIENT_FROM_ENVIRONMENT: &[&str] = &["password", "health_listen"];

/// Whether the setting with this path, joined by `_`, is read from the configuration file only.
pub(super) fn is_file_only(path: &str) -> bool {
    let tables = [
        ("signer_", FROM_ENVIRONMENT),
        ("client_signer_", CLIENT_FROM_ENVIRONMENT),
    ];
    tables.iter().any(|(table, from_environment)| {
        let setting = path.strip_prefix(table);
        setting.is_some_and(|setting| !from_environment.contains(&setting))
    })
}

impl SignerSettings {
    /// Under what browsers reach the page on which people approve, where the node serves one.
    ///
    /// # Errors
    /// As [`super::ConsoleSettings::origin`].
    pub fn approve_origin(&self) -> Result<Option<PageOrigin>, ConfigError> {
        page_origin(
            ["signer.approve_origin", "signer.approve_listen"],
            &self.approve_listen,
            &self.approve_origin,
            self.approve_trusted_proxies,
        )
    }

    /// Refuses a node that would be open: without peers, least threshold or policy file, unless it is
    /// one for development.
    ///
    /// # Errors
    /// [`ConfigError::Insecure`] naming all that is missing, and what to do.
    pub fn check_secure(&self) -> Result<(), ConfigError> {
        if self.development {
            return Ok(());
        }
        let (policy, _) = self.policy_file();
        let missing: Vec<String> = [
            self.peers.is_empty().then(|| {
                "signer.peers is empty (name the public keys of the other signer nodes, or their \
                 .pub files)"
                    .to_owned()
            }),
            (self.least_threshold == 0).then(|| {
                "signer.least_threshold is 0 (how many signer nodes a key must need at least, such \
                 as 2)"
                    .to_owned()
            }),
            (!policy.exists()).then(|| {
                format!(
                    "the policy file {} is missing (bring it back, or name another in \
                     signer.policy_file; deploy/policy.toml is a sample)",
                    policy.display()
                )
            }),
        ]
        .into_iter()
        .flatten()
        .collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(ConfigError::Insecure(missing.join("; ")))
    }
}
