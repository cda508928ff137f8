//! The settings in force, for people: each with where it comes from, and without what is secret.

use std::path::Path;

use reqwest::Url;
use toml::{Table, Value};

use super::{
    Config, ConfigError, defaults, merge, overlay, paths, set_from_env, variable_of, variables,
};

/// Settings that hold a secret.
const SECRETS: [&str; 2] = ["client_signer.private_key", "client_signer.password"];
/// Settings whose addresses may hold one.
const ADDRESSES: [&str; 2] = ["bus.redis_url", "store.url"];

/// A setting in force.
#[derive(Debug, PartialEq, Eq)]
pub struct ShownSetting {
    /// Its path, joined by dots.
    pub path: String,
    /// Its value as TOML has it. `(hidden)` stands for what is secret.
    pub value: String,
    /// `default`, the file, or the variable of the environment.
    pub origin: String,
}

impl Config {
    /// The settings that [`Config::load`] would use.
    ///
    /// # Errors
    /// [`ConfigError`] naming file or variable and the setting.
    pub fn shown(file: Option<&Path>) -> Result<Vec<ShownSetting>, ConfigError> {
        let file = file
            .map(|path| {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| ConfigError::Read(path.to_owned(), error))?;
                Ok((path.display().to_string(), text))
            })
            .transpose()?;
        shown(file, variables()?)
    }
}

fn shown(
    file: Option<(String, String)>,
    variables: Vec<(String, String)>,
) -> Result<Vec<ShownSetting>, ConfigError> {
    // What is wrong is said here, once.
    Config::layer(file.clone(), variables.clone())?;
    let mut settings = defaults()?;
    let (mut of_file, mut origin) = (Table::new(), String::new());
    if let Some((name, text)) = file {
        of_file = overlay(&name, &text)?;
        merge(&mut settings, of_file.clone(), &name, "", &mut Vec::new());
        paths::anchor(&mut settings, Path::new(&name))?;
        origin = name;
    }
    for (name, value) in &variables {
        set_from_env(&mut settings, name, value)?;
    }
    let mut found = Vec::new();
    leaves(&settings, "", &mut |path, value| {
        let variable = variable_of(path);
        let is_set = |(name, _): &&(String, String)| *name == variable;
        let origin = if variables.iter().any(|set| is_set(&set)) {
            variable
        } else if has(&of_file, path) {
            origin.clone()
        } else {
            "default".to_owned()
        };
        found.push(ShownSetting {
            path: path.to_owned(),
            value: without_secrets(path, value),
            origin,
        });
    });
    Ok(found)
}

pub(super) fn leaves(table: &Table, at: &str, each: &mut impl FnMut(&str, &Value)) {
    for (key, value) in table {
        let path = if at.is_empty() {
            key.clone()
        } else {
            format!("{at}.{key}")
        };
        match value {
            Value::Table(inner) => leaves(inner, &path, each),
            value => each(&path, value),
        }
    }
}

pub(super) fn has(table: &Table, path: &str) -> bool {
    match path.split_once('.') {
        Some((key, rest)) => match table.get(key) {
            Some(Value::Table(inner)) => has(inner, rest),
            _ => false,
        },
        None => table.contains_key(path),
    }
}

pub(super) fn without_secrets(path: &str, value: &Value) -> String {
    let is_node = path.starts_with("chains.") && path.ends_with(".rpc");
    match value {
        Value::String(text) if text.is_empty() => value.to_string(),
        Value::String(_) if SECRETS.contains(&path) => "(hidden)".to_owned(),
        Value::String(text) if ADDRESSES.contains(&path) => format!("{:?}", host_of(text)),
        Value::Array(urls) if is_node => {
            let hosts = urls.iter().filter_map(Value::as_str).map(host_of);
            format!("{:?}", hosts.collect::<Vec<_>>())
        }
        value => value.to_string(),
    }
}

/// Where an address leads, without user, password, path and query.
fn host_of(text: &str) -> String {
    let Ok(url) = Url::parse(text) else {
        return "(hidden)".to_owned();
    };
    let host = url.host_str().unwrap_or_default();
    let port = url
        .port()
        .map(|port| format!(":{port}"))
        .unwrap_or_default();
    let is_whole = url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && matches!(url.path(), "" | "/");
    let rest = if is_whole { "" } else { "/(hidden)" };
    format!("{}://{host}{port}{rest}", url.scheme())
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn settings__should_be_shown_with_their_origin_and_without_secrets() {
        let file = r#"
            [bus]
            redis_url = "redis://user:hunter2@redis:6379/3"
            [serve]
            listen = "127.0.0.1:1"
            [client_signer]
            private_key = "hunter2"
            [chains.evm.1]
            rpc = ["https://node.example.com/v2/hunter2", "http://127.0.0.1:8545"]
        "#;
        let variables = vec![
            ("COVAULT_SERVE_LISTEN".to_owned(), "127.0.0.1:2".to_owned()),
            (
                "COVAULT_CHAINS_SOLANA_RPC".to_owned(),
                "https://sol.example.com/?api-key=hunter2".to_owned(),
            ),
        ];
        let shown = shown(Some(("a.toml".into(), file.into())), variables).expect("loads");
        let of = |path: &str| {
            let found = shown.iter().find(|setting| setting.path == path);
            let found = found.unwrap_or_else(|| panic!("{path}"));
            (found.value.as_str(), found.origin.as_str())
        };
        let redis = "\"redis://redis:6379/(hidden)\"";
        assert_eq!(of("bus.redis_url"), (redis, "a.toml"));
        assert_eq!(
            of("serve.listen"),
            ("\"127.0.0.1:2\"", "COVAULT_SERVE_LISTEN")
        );
        assert_eq!(of("serve.max_in_flight"), ("10000", "default"));
        assert_eq!(of("client_signer.private_key").0, "(hidden)");
        let nodes = r#"["https://node.example.com/(hidden)", "http://127.0.0.1:8545"]"#;
        assert_eq!(of("chains.evm.1.rpc"), (nodes, "a.toml"));
        let solana = r#"["https://sol.example.com/(hidden)"]"#;
        assert_eq!(
            of("chains.solana.rpc"),
            (solana, "COVAULT_CHAINS_SOLANA_RPC")
        );
        assert!(!format!("{shown:?}").contains("hunter2"));
    }
}
