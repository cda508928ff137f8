//! Configuration, in layers: the defaults file, the operator's file, the environment.

mod admin;
mod bus;
mod chains;
mod check;
mod client_signer;
mod cluster;
mod console;
pub mod contexts;
pub mod credentials;
mod error;
mod log;
mod origins;
mod paths;
mod shown;
mod signer;
mod webhooks;
mod yaml;

use std::{
    collections::BTreeMap,
    num::{NonZeroU32, NonZeroUsize},
    path::{Path, PathBuf},
};

use covault_core::ids::VaultId;
use covault_mpc::node::ThresholdLimits as KeyLimits;
use serde::Deserialize;
use toml::{Table, Value};

pub use self::{
    admin::AdminAddress,
    bus::{BusSettings, namespace_problem},
    chains::{ChainNodes, ChainSettings},
    client_signer::{CallbackFormat, CallbackSettings, ClientSignerSettings, PrivateKey},
    cluster::{ClusterSettings, ProcessRole},
    console::{ConsoleSettings, PageOrigin},
    error::ConfigError,
    log::{LogFormat, LogSettings, level_filter},
    shown::ShownSetting,
    webhooks::WebhookSettings,
};
use self::{
    chains::{chain_id, empty_chain},
    credentials::is_no_setting,
    origins::{Origins, unusable_values},
};
use crate::files;

/// The defaults, which are also the reference for operators.
pub const DEFAULTS: &str = include_str!("config.default.toml");

const ENV_PREFIX: &str = "COVAULT_";

/// All settings. `config.default.toml` describes them.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    pub log: LogSettings,
    pub bus: BusSettings,
    pub store: StoreSettings,
    pub serve: ServeSettings,
    pub tls: TlsSettings,
    pub console: ConsoleSettings,
    pub cluster: ClusterSettings,
    pub limits: RateLimits,
    pub signer: SignerSettings,
    pub client_signer: ClientSignerSettings,
    pub idempotency: IdempotencySettings,
    pub evm: EvmSettings,
    pub webhooks: WebhookSettings,
    pub notify: NotifySettings,
    pub chains: ChainSettings,
}

#[derive(Clone, Debug, Deserialize)]
pub struct NotifySettings {
    pub details: bool,
    pub mail_server: String,
    pub mail_user: String,
    pub mail_password_file: PathBuf,
    pub mail_from: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct RateLimits {
    pub per_token_per_second: u32,
    pub per_token_burst: u32,
    pub per_ip_per_second: u32,
    pub per_ip_burst: u32,
}

/// Empty: no TLS.
#[derive(Clone, Debug, Deserialize)]
pub struct TlsSettings {
    pub certificate_file: PathBuf,
    pub key_file: PathBuf,
}

#[derive(Clone, Debug, Deserialize)]
pub struct EvmSettings {
    pub abi_files: Vec<PathBuf>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct IdempotencySettings {
    pub strict: bool,
}

#[derive(Clone, Deserialize)]
pub struct StoreSettings {
    pub kind: StoreKind,
    pub url: String,
    pub url_file: PathBuf,
    pub connections: NonZeroU32,
    pub timeout_ms: u64,
}

/// A PostgreSQL URL may hold a password.
impl std::fmt::Debug for StoreSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store {:?}", self.kind)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    Redb,
    Postgres,
}

#[derive(Clone, Debug, Deserialize)]
pub struct ServeSettings {
    pub listen: String,
    pub grpc_listen: String,
    pub metrics_listen: String,
    admin_listen: String,
    /// Whether the token of the file opens the admin API.
    pub admin_file_token: bool,
    /// Whether a start may make a new orchestrator in an empty folder.
    pub init: bool,
    pub data_dir: PathBuf,
    identity_file: PathBuf,
    platform_token_file: PathBuf,
    admin_token_file: PathBuf,
    pub policy_file: PathBuf,
    pub signing_deadline_ms: u64,
    pub most_wait_ms: u64,
    pub execute_wait_ms: u64,
    pub grpc_timeout_ms: u64,
    pub header_timeout_ms: u64,
    pub body_timeout_ms: u64,
    pub idle_timeout_ms: u64,
    pub trusted_proxies: usize,
    pub max_body_bytes: usize,
    pub max_connections: NonZeroUsize,
    pub max_connections_per_ip: NonZeroUsize,
    pub max_in_flight: NonZeroUsize,
    pub max_in_flight_bytes: usize,
    pub max_unread_bytes: usize,
    pub max_event_listeners: usize,
    pub shutdown_grace_ms: u64,
    pub max_live_requests: usize,
    pub max_live_bytes: usize,
    pub message_domain: String,
    pub simulate: bool,
}

impl ServeSettings {
    pub fn identity_file(&self) -> PathBuf {
        path_or_default(&self.identity_file, &self.data_dir, "identity")
    }

    pub fn platform_token_file(&self) -> PathBuf {
        path_or_default(&self.platform_token_file, &self.data_dir, "platform-token")
    }

    pub fn admin_token_file(&self) -> PathBuf {
        path_or_default(&self.admin_token_file, &self.data_dir, "admin-token")
    }

    /// Where the admin API listens.
    ///
    /// # Errors
    /// What is wrong with the setting, which the sentence does not name.
    pub fn admin_address(&self) -> Result<AdminAddress, String> {
        AdminAddress::parse(&self.admin_listen, &self.data_dir)
    }
}

#[derive(Clone, Debug, Deserialize)]
pub struct SignerSettings {
    pub name: String,
    pub data_dir: PathBuf,
    identity_file: PathBuf,
    passphrase_file: PathBuf,
    pub generate_passphrase: bool,
    pub development: bool,
    pub orchestrators: Vec<String>,
    pub backup_recipients: Vec<String>,
    pub peers: Vec<String>,
    least_threshold: u16,
    most_threshold: u16,
    least_spare: i32,
    pub vaults: BTreeMap<String, SignerVaultSettings>,
    pub keep_retired_days: u16,
    pub metrics_listen: String,
    policy_file: PathBuf,
    pub nonce_pool_low: usize,
    pub nonce_pool_high: usize,
    pub keys_per_vault_per_day: usize,
    pub keys_per_day: usize,
    pub unused_keys: usize,
    pub sandbox: bool,
    pub approve_listen: String,
    approve_origin: String,
    approve_trusted_proxies: usize,
}

impl SignerSettings {
    pub fn identity_file(&self) -> PathBuf {
        path_or_default(&self.identity_file, &self.data_dir, "identity")
    }

    /// Whether the operator has said where the passphrase is.
    pub fn names_passphrase_file(&self) -> bool {
        !self.passphrase_file.as_os_str().is_empty()
    }

    pub fn passphrase_file(&self) -> PathBuf {
        path_or_default(&self.passphrase_file, &self.data_dir, "passphrase")
    }

    /// How many shares a key of this node may need, and have to spare.
    pub fn limits(&self) -> KeyLimits {
        limits(self.least_threshold, self.most_threshold, self.least_spare)
    }

    /// The policy file, and whether it must be there: one that is named must.
    pub fn policy_file(&self) -> (PathBuf, bool) {
        let named = !self.policy_file.as_os_str().is_empty();
        (
            path_or_default(&self.policy_file, &self.data_dir, "policy.toml"),
            named,
        )
    }
}

/// What a signer node lets be made of the keys of one vault.
#[derive(Clone, Debug, Deserialize)]
pub struct SignerVaultSettings {
    pub peers: Vec<String>,
    least_threshold: u16,
    most_threshold: u16,
    least_spare: i32,
}

impl SignerVaultSettings {
    /// As [`SignerSettings::limits`], for one vault.
    pub fn limits(&self) -> KeyLimits {
        limits(self.least_threshold, self.most_threshold, self.least_spare)
    }
}

/// 0, and below 0 for the spare, stand for what is not set.
fn limits(least_threshold: u16, most_threshold: u16, least_spare: i32) -> KeyLimits {
    KeyLimits {
        least_threshold: (least_threshold != 0).then_some(least_threshold),
        most_threshold: (most_threshold != 0).then_some(most_threshold),
        least_spare: u16::try_from(least_spare).ok(),
    }
}

/// The settings of a vault that nobody has set.
fn empty_vault() -> Table {
    let mut table = Table::new();
    table.insert("peers".to_owned(), Value::Array(Vec::new()));
    for (name, unset) in [
        ("least_threshold", 0),
        ("most_threshold", 0),
        ("least_spare", -1),
    ] {
        table.insert(name.to_owned(), Value::Integer(unset));
    }
    table
}

impl Config {
    /// The defaults, then `file`, then the environment.
    ///
    /// The second value holds the COVAULT_ variables that mean nothing: a warning, not an error,
    /// because container platforms inject such names for a service that is called covault.
    ///
    /// # Errors
    /// [`ConfigError`] naming file or variable and the setting.
    pub fn load(file: Option<&Path>) -> Result<(Self, Vec<String>), ConfigError> {
        let text = file
            .map(|path| {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| ConfigError::Read(path.to_owned(), error))?;
                Ok((path.display().to_string(), text))
            })
            .transpose()?;
        Self::layer(text, variables()?)
    }

    /// As [`Config::load`], for a signer node: nobody but root and this process's user may be able to
    /// write the file, or to put another in its place.
    ///
    /// # Errors
    /// As [`Config::load`], and [`ConfigError::Untrusted`].
    pub fn load_for_signer(file: Option<&Path>) -> Result<(Self, Vec<String>), ConfigError> {
        Self::layer_trusted(file, variables()?)
    }

    fn layer_trusted(
        file: Option<&Path>,
        variables: Vec<(String, String)>,
    ) -> Result<(Self, Vec<String>), ConfigError> {
        let text = file
            .map(|path| {
                let text = files::read_trusted(path).map_err(ConfigError::Untrusted)?;
                let text = text.ok_or_else(|| {
                    ConfigError::Read(path.to_owned(), std::io::ErrorKind::NotFound.into())
                })?;
                Ok((path.display().to_string(), text))
            })
            .transpose()?;
        let loaded = Self::layer(text.clone(), variables)?;
        // What a variable has is not in the file.
        let alone = Self::layer(text, Vec::new());
        if let Some(file) = file
            && !alone.is_ok_and(|(alone, _)| !alone.client_signer.holds_secret())
        {
            files::read_secret(file).map_err(ConfigError::Untrusted)?;
        }
        Ok(loaded)
    }

    /// As [`Config::load`], with `text` in place of a file.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_with(origin: &str, text: &str) -> Result<(Self, Vec<String>), ConfigError> {
        Self::layer(Some((origin.to_owned(), text.to_owned())), variables()?)
    }

    fn layer(
        file: Option<(String, String)>,
        variables: Vec<(String, String)>,
    ) -> Result<(Self, Vec<String>), ConfigError> {
        let mut settings = defaults()?;
        // Anyone who fixes a file wants to know all that is wrong with it.
        let mut problems = Vec::new();
        let mut of_file = None;
        if let Some((origin, text)) = file {
            let overlay = overlay(&origin, &text)?;
            merge(&mut settings, overlay.clone(), &origin, "", &mut problems);
            paths::anchor(&mut settings, Path::new(&origin))?;
            of_file = Some((origin, overlay));
        }
        let mut ignored = Vec::new();
        for (name, value) in &variables {
            match set_from_env(&mut settings, name, value) {
                Ok(true) => {}
                Ok(false) => ignored.push(name.clone()),
                Err(problem) => problems.push(problem),
            }
        }
        let origins = Origins {
            file: of_file.as_ref().map(|(name, table)| (name.as_str(), table)),
            variables: &variables,
        };
        // Their place is taken by the defaults, so that the rest can be looked at.
        for sentence in unusable_values(&mut settings)? {
            problems.push(origins.problem(sentence));
        }
        let config: Result<Self, toml::de::Error> = settings.try_into();
        let config = config.map_err(|error| ConfigError::Value(error.to_string()))?;
        let sentences = config.problems().into_iter();
        problems.extend(sentences.map(|sentence| origins.problem(sentence)));
        ConfigError::of(problems)?;
        config.chains.evm()?;
        Ok((config, ignored))
    }
}

/// The variable that sets a setting.
fn variable_of(path: &str) -> String {
    let path = path.replace('.', "_").to_ascii_uppercase();
    format!("{ENV_PREFIX}{path}")
}

/// The variables of the environment that may be settings.
fn variables() -> Result<Vec<(String, String)>, ConfigError> {
    std::env::vars_os()
        .filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            let is_setting = name.starts_with(ENV_PREFIX) && !is_no_setting(&name);
            is_setting.then_some((name, value))
        })
        .map(|(name, value)| match value.into_string() {
            Ok(value) => Ok((name, value)),
            Err(_) => Err(ConfigError::NotText(name)),
        })
        .collect()
}

fn path_or_default(path: &Path, folder: &Path, name: &str) -> PathBuf {
    if path.as_os_str().is_empty() {
        folder.join(name)
    } else {
        path.to_owned()
    }
}

/// What a file sets.
fn overlay(origin: &str, text: &str) -> Result<Table, ConfigError> {
    match yaml::is_yaml(origin) {
        true => yaml::parse(origin, text),
        false => parse(origin, text),
    }
}

fn parse(origin: &str, text: &str) -> Result<Table, ConfigError> {
    text.parse().map_err(|error: toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        let lines = before.map_or(0, |before| before.matches('\n').count());
        ConfigError::Syntax {
            origin: origin.to_owned(),
            line: lines.saturating_add(1),
            problem: error.message().to_owned(),
        }
    })
}

/// The places where keys are chosen by the operator; what stands under each is fixed.
const BY_CHAIN_ID: &str = "chains.evm";
const BY_VAULT: &str = "signer.vaults";

/// Lays `overlay` over `base`; a key that `base` does not have is unknown. What is wrong is left out, and named among the
/// problems.
fn merge(
    base: &mut Table,
    overlay: Table,
    origin: &str,
    at: &str,
    problems: &mut Vec<ConfigError>,
) {
    for (key, value) in overlay {
        let path = if at.is_empty() {
            key.clone()
        } else {
            format!("{at}.{key}")
        };
        if at == BY_CHAIN_ID {
            if let Err(problem) = chain_id(&key) {
                problems.push(ConfigError::Setting {
                    origin: origin.to_owned(),
                    problem: format!("{path}: {problem}"),
                });
                continue;
            }
            base.entry(key.clone())
                .or_insert_with(|| Value::Table(empty_chain()));
        }
        if at == BY_VAULT {
            if key.parse::<VaultId>().is_err() {
                problems.push(ConfigError::Setting {
                    origin: origin.to_owned(),
                    problem: format!(
                        "{path}: {key:?} is not the uuid of a vault; covault vault list shows them"
                    ),
                });
                continue;
            }
            base.entry(key.clone())
                .or_insert_with(|| Value::Table(empty_vault()));
        }
        let origin_of = || origin.to_owned();
        match (base.get_mut(&key), value) {
            (None, _) => problems.push(ConfigError::Unknown {
                origin: origin_of(),
                key: path,
                known: base_keys(base),
            }),
            (Some(Value::Table(table)), Value::Table(inner)) => {
                merge(table, inner, origin, &path, problems);
            }
            (Some(Value::Table(_)), _) => problems.push(ConfigError::NotATable {
                origin: origin_of(),
                key: path,
            }),
            (Some(slot @ Value::Float(_)), Value::Integer(whole)) => {
                let whole = i32::try_from(whole).unwrap_or(i32::MAX);
                *slot = Value::Float(whole.into());
            }
            (Some(like), value) if like.type_str() != value.type_str() => {
                // Texts and lists may hold what is secret.
                let given = match like {
                    Value::Integer(_) | Value::Boolean(_) => format!(", not {value}"),
                    _ => String::new(),
                };
                problems.push(ConfigError::Type {
                    origin: origin_of(),
                    key: path,
                    wanted: like.type_str(),
                    given,
                });
            }
            (Some(slot), value) => *slot = value,
        }
    }
}

fn base_keys(table: &Table) -> String {
    table.keys().cloned().collect::<Vec<_>>().join(", ")
}

/// The defaults, where every chain has all the settings of a chain.
fn defaults() -> Result<Table, ConfigError> {
    let mut settings = parse("config.default.toml", DEFAULTS)?;
    if let Some(Value::Table(chains)) = settings.get_mut("chains") {
        for (name, chain) in chains {
            if let Value::Table(chain) = chain
                && name != "evm"
            {
                let mut whole = empty_chain();
                whole.extend(std::mem::take(chain));
                *chain = whole;
            }
        }
    }
    Ok(settings)
}

/// Sets what a variable names; false when it names nothing.
fn set_from_env(settings: &mut Table, name: &str, value: &str) -> Result<bool, ConfigError> {
    let Some(path) = name.strip_prefix(ENV_PREFIX) else {
        return Ok(false);
    };
    let path = path.to_ascii_lowercase();
    let of_evm = path.strip_prefix("chains_evm_");
    if let Some((id, setting)) = of_evm.and_then(|rest| rest.split_once('_'))
        && empty_chain().contains_key(setting)
    {
        chain_id(id).map_err(|error| ConfigError::EnvValue(name.to_owned(), error.to_string()))?;
        let evm = settings
            .get_mut("chains")
            .and_then(|chains| chains.get_mut("evm"));
        if let Some(evm) = evm.and_then(Value::as_table_mut) {
            evm.entry(id).or_insert_with(|| Value::Table(empty_chain()));
        }
    }
    match find_setting(settings, &path) {
        Some(_) if signer::is_file_only(&path) => Err(ConfigError::FileOnly {
            variable: name.to_owned(),
            setting: path.replacen('_', ".", 1),
        }),
        Some(slot) => {
            *slot = parse_as(slot, value)
                .map_err(|problem| ConfigError::EnvValue(name.to_owned(), problem))?;
            Ok(true)
        }
        None => Ok(false),
    }
}

/// The setting whose path, joined by `_`, is `path`.
fn find_setting<'a>(table: &'a mut Table, path: &str) -> Option<&'a mut Value> {
    table.iter_mut().find_map(|(key, value)| {
        let rest = path.strip_prefix(key.as_str())?;
        match (rest.strip_prefix('_'), value) {
            (Some(rest), Value::Table(inner)) => find_setting(inner, rest),
            (None, value) if rest.is_empty() && !value.is_table() => Some(value),
            _ => None,
        }
    })
}

/// Text as a value of the type that the setting has.
fn parse_as(like: &Value, text: &str) -> Result<Value, String> {
    Ok(match like {
        Value::Integer(_) => Value::Integer(
            text.parse()
                .map_err(|_| format!("{text:?} is not a whole number"))?,
        ),
        Value::Float(_) => Value::Float(
            text.parse()
                .map_err(|_| format!("{text:?} is not a number"))?,
        ),
        Value::Boolean(_) => Value::Boolean(
            text.parse()
                .map_err(|_| format!("{text:?} is not true or false"))?,
        ),
        Value::Array(_) => Value::Array(
            text.split(',')
                .map(str::trim)
                .filter(|item| !item.is_empty())
                .map(|item| Value::String(item.to_owned()))
                .collect(),
        ),
        _ => Value::String(text.to_owned()),
    })
}

#[cfg(test)]
mod tests;
