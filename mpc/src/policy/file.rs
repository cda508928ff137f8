//! The policy file: TOML, every key with a path of its own in what is said about it.

mod approvals;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    fs, io,
    path::Path,
};

use covault_core::{
    amount::{U256, parse_u256},
    approval::Approvers,
    fault::{Class, Fault},
    ids::VaultId,
    networks::{
        Network, PayloadKind, evm,
        outflow::{AccountChange, Asset, ChainScope},
    },
};
use toml::{Table, Value};

use self::approvals::{approvals, approvers};

use super::{AmountLimit, Policy, rules::ScopeRules};

/// The version of the file, which has to say it.
const VERSION: i64 = 2;
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
            .map_err(|fault| refuse(&fault.message()))
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
        let mut keys = TableReader::of(String::new(), table);
        match keys.take("version") {
            Some((_, Value::Integer(VERSION))) => {}
            Some((path, _)) => return Err(wrong(path, WRONG_VERSION)),
            None => return Err(wrong("version", WRONG_VERSION)),
        }
        let approvers = approvers(&mut keys)?;
        let policy = Self {
            node: ScopeRules::take(&mut keys, &approvers)?,
            each_vault: keys.rules("each_vault", &approvers)?,
            vaults: vaults(&mut keys, &approvers)?,
            each_wallet: keys.rules("each_wallet", &approvers)?,
            wallets: wallets(&mut keys, &approvers)?,
            approvers,
            batch_contracts: keys
                .list("batch_contracts", evm::batch::parse_contract)?
                .unwrap_or_default(),
            of_service: false,
        };
        keys.finish()?;
        Ok(policy)
    }
}

const WRONG_VERSION: &str = "must be 2: this Covault reads policy files that begin with version = 2 \
                       (docs/policy-floor.md says what that means)";

impl ScopeRules {
    /// Takes the keys that every scope has.
    fn take(keys: &mut TableReader, approvers: &Approvers) -> Result<Self, Fault> {
        Ok(Self {
            networks: keys.list("networks", place)?,
            kinds: keys.list("kinds", kind)?,
            raw_signing: keys.switch("raw_signing")?,
            messages: keys.switch("messages")?,
            typed_data: keys.list("typed_data", place)?,
            custom_calls: keys.list("custom_calls", place)?,
            unseen_recipients: keys.list("unseen_recipients", place)?.unwrap_or_default(),
            account_changes: keys.list("account_changes", account_change)?,
            only_listed_assets: keys.switch("only_listed_assets")?.unwrap_or_default(),
            only_listed_recipients: keys.switch("only_listed_recipients")?.unwrap_or_default(),
            own_wallets: keys.switch("own_wallets")?.unwrap_or_default(),
            recipients: recipients(keys)?,
            most_fee: amounts(keys, "most_fee")?,
            most_price: amounts(keys, "most_price")?,
            most_own_price: amounts(keys, "most_own_price")?,
            limits: limits(keys)?,
            approvals: approvals(keys, approvers)?,
        })
    }
}

fn vaults(
    keys: &mut TableReader,
    approvers: &Approvers,
) -> Result<BTreeMap<VaultId, ScopeRules>, Fault> {
    let mut vaults = BTreeMap::new();
    for (path, key, rules) in keys.scopes("vaults", approvers)? {
        let vault = key
            .parse()
            .map_err(|_| wrong(&path, "must be the UUID of a vault"))?;
        if vaults.insert(vault, rules).is_some() {
            return Err(wrong(&path, "already has rules"));
        }
    }
    Ok(vaults)
}

/// An address that is one on several networks (Aptos, Sui) is a wallet on each of them.
fn wallets(
    keys: &mut TableReader,
    approvers: &Approvers,
) -> Result<BTreeMap<(Network, String), ScopeRules>, Fault> {
    let mut wallets = BTreeMap::new();
    for (path, key, rules) in keys.scopes("wallets", approvers)? {
        let mut known = false;
        for network in Network::ALL {
            let Ok(address) = network.rules().parse_address(&key) else {
                continue;
            };
            known = true;
            if wallets.insert((network, address), rules.clone()).is_some() {
                return Err(wrong(&path, "already has rules"));
            }
        }
        if !known {
            return Err(wrong(&path, "must be the address of a wallet"));
        }
    }
    Ok(wallets)
}

fn recipients(keys: &mut TableReader) -> Result<BTreeMap<ChainScope, BTreeSet<String>>, Fault> {
    let mut lists = BTreeMap::new();
    for (path, at, value) in keys.by_place("recipients")? {
        let chain = at.network.rules();
        lists.insert(at, list(&path, value, |text| chain.parse_address(text))?);
    }
    Ok(lists)
}

fn amounts(
    keys: &mut TableReader,
    name: &'static str,
) -> Result<BTreeMap<ChainScope, U256>, Fault> {
    keys.by_place(name)?
        .into_iter()
        .map(|(path, at, value)| Ok((at, amount(&path, &value)?)))
        .collect()
}

fn limits(keys: &mut TableReader) -> Result<BTreeMap<Asset, AmountLimit>, Fault> {
    let mut limits = BTreeMap::new();
    for (path, mut keys) in keys.tables("limits")? {
        let at = format!("{path}.asset");
        let (asset, limit) = keys.amount_limit()?;
        keys.finish()?;
        if limit == AmountLimit::default() {
            return Err(wrong(
                &path,
                "limits nothing: give per_request, per_day or both",
            ));
        }
        if limits.insert(asset, limit).is_some() {
            return Err(wrong(&at, "already has limits"));
        }
    }
    Ok(limits)
}

/// A table whose keys are taken one by one; what is left is unknown.
struct TableReader {
    /// What stands before each key.
    path: String,
    table: Table,
    known: Vec<&'static str>,
}

impl TableReader {
    fn of(path: String, table: Table) -> Self {
        Self {
            path,
            table,
            known: Vec::new(),
        }
    }

    /// The rules in a table of this name; none where it is left out.
    fn rules(&mut self, key: &'static str, approvers: &Approvers) -> Result<ScopeRules, Fault> {
        match self.take(key) {
            None => Ok(ScopeRules::default()),
            Some((path, value)) => rules(&path, value, approvers),
        }
    }

    /// Tables of rules, each with its path and its key.
    fn scopes(
        &mut self,
        key: &'static str,
        approvers: &Approvers,
    ) -> Result<Vec<(String, String, ScopeRules)>, Fault> {
        let Some((path, value)) = self.take(key) else {
            return Ok(Vec::new());
        };
        let Value::Table(table) = value else {
            return Err(wrong(path, "must be a table of tables"));
        };
        table
            .into_iter()
            .map(|(key, value)| {
                let path = format!("{path}.{key:?}");
                let rules = rules(&path, value, approvers)?;
                Ok((path, key, rules))
            })
            .collect()
    }

    /// The tables under `[[key]]`, each with its path.
    fn tables(&mut self, key: &'static str) -> Result<Vec<(String, Self)>, Fault> {
        let Some((path, value)) = self.take(key) else {
            return Ok(Vec::new());
        };
        let Value::Array(entries) = value else {
            let problem = format_args!("must be tables, each under [[{key}]]").to_string();
            return Err(wrong(&path, problem));
        };
        let entries = entries.into_iter().enumerate();
        entries
            .map(|(place, entry)| {
                let path = format!("{path}[{place}]");
                match entry {
                    Value::Table(table) => {
                        let keys = Self::of(format!("{path}."), table);
                        Ok((path, keys))
                    }
                    _ => Err(wrong(
                        &path,
                        format_args!("must be a table under [[{key}]]"),
                    )),
                }
            })
            .collect()
    }

    fn required(&mut self, key: &'static str, example: &str) -> Result<(String, Value), Fault> {
        let path = format!("{}{key}", self.path);
        self.take(key)
            .ok_or_else(|| wrong(path, format_args!("is required, {example}")))
    }

    fn required_text(&mut self, key: &'static str, example: &str) -> Result<String, Fault> {
        let (path, value) = self.required(key, example)?;
        Ok(text(&path, &value)?.to_owned())
    }

    /// A list of strings in its order, with its path.
    fn texts(&mut self, key: &'static str) -> Result<(String, Vec<String>), Fault> {
        let (path, value) = self.required(key, "a list of strings")?;
        let Value::Array(entries) = value else {
            return Err(wrong(path, "must be a list of strings"));
        };
        let entries = entries.iter().enumerate();
        let texts: Result<_, Fault> = entries
            .map(|(place, entry)| Ok(text(&format!("{path}[{place}]"), entry)?.to_owned()))
            .collect();
        Ok((path, texts?))
    }

    /// An asset, and amounts of it.
    fn amount_limit(&mut self) -> Result<(Asset, AmountLimit), Fault> {
        let (at, asset) = self.required("asset", "e.g. \"evm:1\"")?;
        let asset =
            Asset::parse(text(&at, &asset)?).map_err(|fault| wrong(&at, fault.message()))?;
        let mut most = |key| {
            let taken = self.take(key);
            taken.map(|(path, value)| amount(&path, &value)).transpose()
        };
        let limit = AmountLimit {
            per_request: most("per_request")?,
            per_day: most("per_day")?,
        };
        Ok((asset, limit))
    }

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
    fn by_place(&mut self, key: &'static str) -> Result<Vec<(String, ChainScope, Value)>, Fault> {
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
                let place = place(&key).map_err(|fault| wrong(&path, fault.message()))?;
                Ok((path, place, value))
            })
            .collect()
    }

    fn finish(self) -> Result<(), Fault> {
        match self.table.keys().next() {
            None => Ok(()),
            Some(key) => Err(wrong(
                format_args!("{}{key}", self.path),
                format_args!("unknown key; allowed here: {}", self.known.join(", ")),
            )),
        }
    }
}

fn rules(path: &str, value: Value, approvers: &Approvers) -> Result<ScopeRules, Fault> {
    let Value::Table(table) = value else {
        return Err(wrong(path, "must be a table of rules"));
    };
    let mut keys = TableReader::of(format!("{path}."), table);
    let rules = ScopeRules::take(&mut keys, approvers)?;
    keys.finish()?;
    Ok(rules)
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
            read(text(&path, entry)?).map_err(|fault| wrong(&path, fault.message()))
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

fn place(text: &str) -> Result<ChainScope, Fault> {
    ChainScope::parse(text)
}

fn account_change(text: &str) -> Result<AccountChange, Fault> {
    let all = AccountChange::ALL;
    let named = all.iter().copied().find(|change| change.name() == text);
    named.ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|change| change.name()).collect();
        let sentence = format!(
            "is not a change of an account: use one of {}",
            names.join(", ")
        );
        Fault::new(Class::Invalid, sentence)
    })
}

fn kind(text: &str) -> Result<PayloadKind, Fault> {
    PayloadKind::ALL
        .iter()
        .copied()
        .find(|kind| kind.name() == text)
        .ok_or_else(|| Fault::new(Class::Invalid, "is not a payload kind, e.g. evmSendNative"))
}
