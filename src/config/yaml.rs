//! Configuration in YAML: the file of the public product's client signer, and any setting of Covault beside its own names.

use std::path::Path;

use serde_json::{Map, Value as Json};
use toml::{Table, Value};

use super::ConfigError;

/// The names in that file, and the settings of `[client_signer]` that they are. Those below another one come in pairs.
const NAMES: &[(&str, &str)] = &[
    ("vault-uuid", "vault"),
    ("callback-url", "callback_url"),
    ("callback-format", "callback_format"),
    ("callback-secret-file", "callback_secret_file"),
];
const SSH: &[(&str, &str)] = &[("private-key", "private_key"), ("password", "password")];
const HEALTH: &[(&str, &str)] = &[("listening-addr", "health_listen")];
const BELOW: &[(&str, &[(&str, &str)])] = &[("ssh", SSH), ("http-health", HEALTH)];

/// Whether a file of this name is one.
pub(super) fn is_yaml(name: &str) -> bool {
    let extension = Path::new(name).extension();
    extension.is_some_and(|extension| extension == "yml" || extension == "yaml")
}

/// The settings in it, as a TOML file would have them.
pub(super) fn parse(origin: &str, text: &str) -> Result<Table, ConfigError> {
    let bad = |problem: String| ConfigError::Yaml {
        origin: origin.to_owned(),
        problem,
    };
    // What it says beside the place may show the line, and that a password.
    let read: Result<Json, _> = serde_saphyr::from_str(text);
    let Json::Object(mut file) = read.map_err(|error| {
        bad(match error.location() {
            Some(at) => format!("line {}, column {}", at.line(), at.column()),
            None => "it is truncated, or empty".to_owned(),
        })
    })?
    else {
        return Err(bad("it must be a mapping of names to values".to_owned()));
    };
    let mut client = Table::new();
    take(origin, "", &mut file, NAMES, &mut client)?;
    for (name, names) in BELOW {
        match file.remove(*name) {
            None | Some(Json::Null) => {}
            Some(Json::Object(mut below)) => {
                take(origin, &format!("{name}."), &mut below, names, &mut client)?;
                if let Some(unknown) = below.keys().next() {
                    let known: Vec<&str> = names.iter().map(|(known, _)| *known).collect();
                    return Err(ConfigError::Unknown {
                        origin: origin.to_owned(),
                        key: format!("{name}.{unknown}"),
                        known: known.join(", "),
                    });
                }
            }
            Some(_) => {
                return Err(ConfigError::NotATable {
                    origin: origin.to_owned(),
                    key: (*name).to_owned(),
                });
            }
        }
    }
    let mut table = Table::try_from(file)
        .map_err(|_| bad("a setting without a value: give it one, or leave it out".to_owned()))?;
    let own = table
        .entry("client_signer")
        .or_insert_with(|| Value::Table(Table::new()));
    match own {
        Value::Table(own) => own.extend(client),
        _ => {
            return Err(ConfigError::NotATable {
                origin: origin.to_owned(),
                key: "client_signer".to_owned(),
            });
        }
    }
    Ok(table)
}

/// Moves what has these names. An empty value is one that is left out.
fn take(
    origin: &str,
    below: &str,
    file: &mut Map<String, Json>,
    names: &[(&str, &str)],
    to: &mut Table,
) -> Result<(), ConfigError> {
    for (name, setting) in names {
        match file.remove(*name) {
            None | Some(Json::Null) => {}
            Some(Json::String(text)) => {
                to.insert((*setting).to_owned(), Value::String(text));
            }
            Some(_) => {
                return Err(ConfigError::Type {
                    origin: origin.to_owned(),
                    key: format!("{below}{name}"),
                    wanted: "string (in quotes where it looks like a number)",
                    given: String::new(),
                });
            }
        }
    }
    Ok(())
}
