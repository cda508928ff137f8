//! The policy file: TOML, every key with a path of its own in what is said about it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    fs, io,
    path::Path,
};

use covault_core::{
    amount::{U256, parse_u256},
    fault::{Class, Fault},
    payload::{
        Kind,
        outflow::{Asset, Place},
    },
};
use toml::{Table, Value};

use super::{Limit, Policy};

/// Larger than any list that makes sense.
const MAX_BYTES: u64 = 16 << 20;

impl Policy {
    /// Reads a policy file; `None` when there is none.
    ///
    /// # Errors
    /// [`Class::Invalid`] naming the file and the key that is unknown or malformed.
    pub fn read(path: &Path) -> Result<Option<Self>, Fault> {
        let refuse = |problem: &dyn Display| {
            let sentence = format!("policy file {}: {problem}", path.display());
            Fault::new(Class::Invalid, sentence)
        };
        match fs::metadata(path) {
            Ok(metadata) if metadata.len() > MAX_BYTES => return Err(refuse(&"is too large")),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(refuse(&format_args!("cannot be read: {error}"))),
        }
        let text = fs::read_to_string(path)
            .map_err(|error| refuse(&format_args!("cannot be read: {error}")))?;
        Self::parse(&text)
            .map(Some)
            .map_err(|fault| refuse(&fault.public()))
    }

    /// Reads the text of a policy file.
    ///
    /// # Errors
    /// [`Class::Invalid`] beginning with the key that is unknown or malformed.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error
                .span()
                .and_then(|span| text.get(..span.start))
                .map_or(1, |before| before.matches('\n').count().saturating_add(1));
            let sentence = format!("line {line} is not TOML: {}", error.message());
            Fault::new(Class::Invalid, sentence)
        })?;
        let mut keys = Keys {
            path: String::new(),
            table,
            known: Vec::new(),
        };
        let defaults = Self::production();
        let policy = Self {
            networks: keys.list("networks", place)?,
            kinds: keys.list("kinds", kind)?,
            raw_signing: keys.switch("raw_signing")?.unwrap_or(defaults.raw_signing),
            messages: keys.switch("messages")?.unwrap_or(defaults.messages),
            typed_data: keys.list("typed_data", place)?,
            custom_calls: keys.list("custom_calls", place)?,
            only_listed_assets: keys
                .switch("only_listed_assets")?
                .unwrap_or(defaults.only_listed_assets),
            recipients: recipients(&mut keys)?,
            most_fee: most_fee(&mut keys)?,
            limits: limits(&mut keys)?,
        };
        keys.finish()?;
        Ok(policy)
    }
}

fn recipients(keys: &mut Keys) -> Result<BTreeMap<Place, BTreeSet<String>>, Fault> {
    let mut lists = BTreeMap::new();
    for (path, at, value) in keys.by_place("recipients")? {
        let chain = at.network.chain();
        let list = list(&path, value, |text| chain.parse_address(text))?;
        // Like no list at all.
        if !list.is_empty() {
            lists.insert(at, list);
        }
    }
    Ok(lists)
}

fn most_fee(keys: &mut Keys) -> Result<BTreeMap<Place, U256>, Fault> {
    keys.by_place("most_fee")?
        .into_iter()
        .map(|(path, at, value)| Ok((at, amount(&path, &value)?)))
        .collect()
}

fn limits(keys: &mut Keys) -> Result<BTreeMap<Asset, Limit>, Fault> {
    let mut limits = BTreeMap::new();
    let Some((path, value)) = keys.take("limits") else {
        return Ok(limits);
    };
    let Value::Array(entries) = value else {
        return Err(wrong(&path, "must be tables, each under [[limits]]"));
    };
    for (place, entry) in entries.into_iter().enumerate() {
        let path = format!("{path}[{place}]");
        let Value::Table(table) = entry else {
            return Err(wrong(&path, "must be a table under [[limits]]"));
        };
        let mut keys = Keys {
            path: format!("{path}."),
            table,
            known: Vec::new(),
        };
        let (at, asset) = keys
            .take("asset")
            .ok_or_else(|| wrong(format_args!("{path}.asset"), "is required, e.g. \"evm:1\""))?;
        let asset = Asset::parse(text(&at, &asset)?).map_err(|fault| wrong(&at, fault.public()))?;
        let mut most = |key| {
            let taken = keys.take(key);
            taken.map(|(path, value)| amount(&path, &value)).transpose()
        };
        let limit = Limit {
            per_request: most("per_request")?,
            per_day: most("per_day")?,
        };
        keys.finish()?;
        if limit == Limit::default() {
            return Err(wrong(
                &path,
                "limits nothing: give per_request, per_day or both",
            ));
        }
        if limits.insert(asset, limit).is_some() {
            return Err(wrong(&at, "has limits already"));
        }
    }
    Ok(limits)
}

/// A table whose keys are taken one by one; what is left is unknown.
struct Keys {
    /// What stands before each key.
    path: String,
    table: Table,
    known: Vec<&'static str>,
}

impl Keys {
    fn take(&mut self, key: &'static str) -> Option<(String, Value)> {
        self.known.push(key);
        let value = self.table.remove(key)?;
        Some((format!("{}{key}", self.path), value))
    }

    fn switch(&mut self, key: &'static str) -> Result<Option<bool>, Fault> {
        match self.take(key) {
            None => Ok(None),
            Some((_, Value::Boolean(switch))) => Ok(Some(switch)),
            Some((path, _)) => Err(wrong(path, "must be true or false")),
        }
    }

    fn list<T: Ord>(
        &mut self,
        key: &'static str,
        read: impl Fn(&str) -> Result<T, Fault>,
    ) -> Result<Option<BTreeSet<T>>, Fault> {
        self.take(key)
            .map(|(path, value)| list(&path, value, read))
            .transpose()
    }

    /// A table whose keys are places.
    fn by_place(&mut self, key: &'static str) -> Result<Vec<(String, Place, Value)>, Fault> {
        let Some((path, value)) = self.take(key) else {
            return Ok(Vec::new());
        };
        let Value::Table(table) = value else {
            return Err(wrong(path, "must be a table with networks as keys"));
        };
        table
            .into_iter()
            .map(|(key, value)| {
                let path = format!("{path}.{key:?}");
                let place = place(&key).map_err(|fault| wrong(&path, fault.public()))?;
                Ok((path, place, value))
            })
            .collect()
    }

    fn finish(self) -> Result<(), Fault> {
        match self.table.keys().next() {
            None => Ok(()),
            Some(key) => Err(wrong(
                format_args!("{}{key}", self.path),
                format_args!("unknown key; here can stand: {}", self.known.join(", ")),
            )),
        }
    }
}

fn wrong(path: impl Display, problem: impl Display) -> Fault {
    Fault::field(path, problem)
}

fn list<T: Ord>(
    path: &str,
    value: Value,
    read: impl Fn(&str) -> Result<T, Fault>,
) -> Result<BTreeSet<T>, Fault> {
    let Value::Array(entries) = value else {
        return Err(wrong(path, "must be a list of strings"));
    };
    entries
        .iter()
        .enumerate()
        .map(|(place, entry)| {
            let path = format!("{path}[{place}]");
            read(text(&path, entry)?).map_err(|fault| wrong(&path, fault.public()))
        })
        .collect()
}

fn text<'a>(path: &str, value: &'a Value) -> Result<&'a str, Fault> {
    value
        .as_str()
        .ok_or_else(|| wrong(path, "must be a string"))
}

fn amount(path: &str, value: &Value) -> Result<U256, Fault> {
    let digits = value.as_str().ok_or_else(|| {
        wrong(
            path,
            "must be a whole number in the smallest unit, as a string",
        )
    })?;
    parse_u256(digits).map_err(|error| wrong(path, error))
}

fn place(text: &str) -> Result<Place, Fault> {
    Place::parse(text)
}

fn kind(text: &str) -> Result<Kind, Fault> {
    Kind::ALL
        .iter()
        .copied()
        .find(|kind| kind.name() == text)
        .ok_or_else(|| Fault::new(Class::Invalid, "is not a payload kind, e.g. evmSendNative"))
}
