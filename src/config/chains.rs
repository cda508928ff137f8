//! The part of the configuration that says where chain nodes are.

use std::{collections::BTreeMap, path::PathBuf};

use serde::Deserialize;
use toml::{Table, Value};

use super::ConfigError;

macro_rules! chains {
    ($($name:ident,)*) => {
        #[derive(Clone, Debug, Deserialize)]
        pub struct ChainSettings {
            /// By chain id, which TOML has as text.
            evm: BTreeMap<String, ChainNodes>,
            $($name: ChainNodes,)*
        }

        impl ChainSettings {
            /// Those that have a name of their own.
            const NAMES: &[&str] = &[$(stringify!($name)),*];

            fn find(&self, name: &str) -> Option<&ChainNodes> {
                match name {
                    $(stringify!($name) => Some(&self.$name),)*
                    _ => None,
                }
            }

            fn find_mut(&mut self, name: &str) -> Option<&mut ChainNodes> {
                match name {
                    $(stringify!($name) => Some(&mut self.$name),)*
                    _ => None,
                }
            }
        }
    };
}

chains! {
    bitcoin,
    tron,
    aptos,
    movement,
    sui,
    solana,
    sonic,
    ton,
    stellar,
}

impl ChainSettings {
    /// The EVM chains that are named.
    pub fn evm(&self) -> Result<BTreeMap<u64, &ChainNodes>, ConfigError> {
        self.evm
            .iter()
            .map(|(id, nodes)| Ok((chain_id(id)?, nodes)))
            .collect()
    }

    /// All of them, with what stands for them under `chains`.
    pub(super) fn all(&self) -> impl Iterator<Item = (String, &ChainNodes)> {
        let evm = self
            .evm
            .iter()
            .map(|(id, nodes)| (format!("evm.{id}"), nodes));
        let named = Self::NAMES.iter();
        evm.chain(named.filter_map(|name| Some(((*name).to_owned(), self.find(name)?))))
    }

    /// The chain that is called so, when it has nodes.
    pub fn named(&self, name: &str) -> Option<&ChainNodes> {
        self.find(name).filter(|nodes| !nodes.rpc.is_empty())
    }

    /// Adds what `covault dev --chain` names.
    pub fn add(&mut self, chain: &str, url: &str) -> Result<(), ConfigError> {
        let name = match chain {
            // The numbers are the API's chain ids of networks that are not EVM.
            "101" => "solana",
            "0" => "sonic",
            name => name,
        };
        let nodes = match chain_id(name) {
            Ok(id) => self.evm.entry(id.to_string()).or_default(),
            Err(_) => self.find_mut(name).ok_or_else(|| ConfigError::Chain {
                given: chain.to_owned(),
                named: Self::NAMES.join(", "),
            })?,
        };
        nodes.rpc.push(url.to_owned());
        Ok(())
    }
}

/// RPC URLs often hold an API key: no Debug.
#[derive(Clone, Deserialize)]
pub struct ChainNodes {
    pub rpc: Vec<String>,
    pub timeout_ms: u64,
    pub agree: usize,
    /// Empty: the network's default.
    pub most_price: String,
    /// 0: never.
    pub speed_up_after_blocks: u64,
    pub speed_up_most_fee: String,
    /// Empty: none.
    pub batch_contract: String,
    pub deposits: bool,
    /// 0: the default of the chain.
    pub confirmations: u64,
    /// 0: what the nodes call final.
    pub final_after: u64,
    pub deposit_poll_ms: u64,
    pub traces: bool,
    pub receipts: bool,
    pub header_files: Vec<PathBuf>,
    pub login_files: Vec<PathBuf>,
}

/// The defaults of every chain, as `config.default.toml` describes them.
impl Default for ChainNodes {
    fn default() -> Self {
        Self {
            rpc: Vec::new(),
            timeout_ms: 5_000,
            agree: 1,
            most_price: String::new(),
            speed_up_after_blocks: 0,
            speed_up_most_fee: String::new(),
            batch_contract: String::new(),
            deposits: true,
            confirmations: 0,
            final_after: 0,
            deposit_poll_ms: 1_000,
            traces: false,
            receipts: false,
            header_files: Vec::new(),
            login_files: Vec::new(),
        }
    }
}

impl std::fmt::Debug for ChainNodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} nodes", self.rpc.len())
    }
}

pub(super) fn chain_id(text: &str) -> Result<u64, ConfigError> {
    text.parse()
        .ok()
        .filter(|id| (1..=i64::MAX.cast_unsigned()).contains(id))
        .ok_or_else(|| ConfigError::ChainId(text.to_owned()))
}

/// A chain of which nothing is set.
pub(super) fn empty_chain() -> Table {
    let ChainNodes {
        rpc: _,
        timeout_ms,
        agree,
        most_price,
        speed_up_after_blocks,
        speed_up_most_fee,
        batch_contract,
        deposits,
        confirmations,
        final_after,
        deposit_poll_ms,
        traces,
        receipts,
        header_files: _,
        login_files: _,
    } = ChainNodes::default();
    let number = |number: u64| Value::Integer(i64::try_from(number).unwrap_or(i64::MAX));
    let list = || Value::Array(Vec::new());
    [
        ("rpc", list()),
        ("timeout_ms", number(timeout_ms)),
        ("agree", number(agree as u64)),
        ("most_price", Value::String(most_price)),
        ("speed_up_after_blocks", number(speed_up_after_blocks)),
        ("speed_up_most_fee", Value::String(speed_up_most_fee)),
        ("batch_contract", Value::String(batch_contract)),
        ("deposits", Value::Boolean(deposits)),
        ("confirmations", number(confirmations)),
        ("final_after", number(final_after)),
        ("deposit_poll_ms", number(deposit_poll_ms)),
        ("traces", Value::Boolean(traces)),
        ("receipts", Value::Boolean(receipts)),
        ("header_files", list()),
        ("login_files", list()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into_iter()
    .collect()
}
