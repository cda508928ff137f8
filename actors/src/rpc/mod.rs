//! Clients of chain nodes.

mod evm;
mod jsonrpc;
mod solana;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use async_trait::async_trait;
use covault_core::{
    chain::{Facts, Needs, Signed},
    fault::{ExecuteCode, Fault},
    network::Network,
    payload::KnownChains,
};

pub use jsonrpc::JsonRpc;

/// Where the nodes of the chains are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainsConfig {
    /// EVM chains by chain id. A chain named here is a known one.
    pub evm: BTreeMap<u64, Endpoints>,
    /// Solana-family chains by the API's chain id: 101 Solana, 0 Sonic SVM.
    pub solana: BTreeMap<u64, Endpoints>,
}

/// The nodes of one chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// JSON-RPC addresses, `http://` or `https://`; the first that answers is used.
    pub urls: Vec<String>,
    /// How long one call may take, in milliseconds.
    pub timeout_ms: u64,
}

impl Endpoints {
    /// Endpoints with the usual timeout of 5 seconds.
    pub fn new(urls: Vec<String>) -> Self {
        Self {
            urls,
            timeout_ms: 5_000,
        }
    }
}

/// A signed transaction on its way to the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shipment {
    /// The bytes and their hash.
    pub signed: Signed,
    /// What it was built from.
    pub facts: Facts,
    /// How long ago it was built, in milliseconds.
    pub age_ms: u64,
    /// It may have been sent before, and what became of that is not known.
    pub retried: bool,
}

/// What a node's refusal means. It is for good when every node says that it does not know the
/// transaction. Where one cannot be asked, it is only without `doubt`: nothing was sent before
/// and the refusal cannot come of the transaction itself being there. Else nobody knows: a
/// transaction that is called failed and is mined all the same would be paid twice.
fn settle(refusal: Refusal, known: Result<bool, String>, doubt: bool) -> Broadcast {
    match known {
        Ok(true) => Broadcast::Accepted,
        Err(trouble) if doubt => Broadcast::Unknown(format!(
            "a node said \"{}\", and another cannot say whether it has the transaction: {trouble}",
            refusal.reason
        )),
        Ok(false) | Err(_) => Broadcast::Refused(refusal),
    }
}

/// What became of a broadcast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broadcast {
    /// A node has it.
    Accepted,
    /// The network will never take it.
    Refused(Refusal),
    /// Nobody knows; the same bytes are sent again.
    Unknown(String),
}

/// Why a node said no, for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// A sentence that a person can act on.
    pub reason: String,
    /// The code that executeSigningRequests reports.
    pub code: ExecuteCode,
}

/// Why a question to a chain got no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainError {
    /// No node answered; ask again.
    Unknown(String),
    /// The node answered that it cannot be.
    Refused(Refusal),
}

/// A chain, through its nodes.
#[async_trait]
pub trait ChainClient: Send + Sync {
    /// What a payload needs to know. An EVM nonce in the answer is the node's pending count.
    async fn facts(&self, needs: &Needs) -> Result<Facts, ChainError>;

    /// Sends a signed transaction. Safe to repeat.
    async fn broadcast(&self, shipment: &Shipment) -> Broadcast;

    /// A balance in the smallest unit, decimal: of the chain's coin, or of a token.
    async fn balance(&self, address: &str, token: Option<&str>) -> Result<String, ChainError>;
}

/// The chains that can be reached. Cheap to clone.
#[derive(Clone, Default)]
pub struct Chains {
    evm: BTreeMap<u64, Arc<dyn ChainClient>>,
    solana: BTreeMap<u64, Arc<dyn ChainClient>>,
}

impl Chains {
    /// Clients for configured endpoints. Nothing is asked yet.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] naming the address that is not a URL, and
    /// [`covault_core::fault::Class::Bug`] when the TLS provider is missing.
    pub fn connect(config: &ChainsConfig) -> Result<Self, Fault> {
        let mut chains = Self::default();
        for (id, endpoints) in &config.evm {
            let rpc = JsonRpc::new(&format!("EVM chain {id}"), endpoints)?;
            chains
                .evm
                .insert(*id, Arc::new(evm::EvmNode::new(*id, rpc)));
        }
        for (id, endpoints) in &config.solana {
            let rpc = JsonRpc::new(solana::chain_name(*id), endpoints)?;
            chains
                .solana
                .insert(*id, Arc::new(solana::SolanaNode::new(rpc)));
        }
        Ok(chains)
    }

    /// Adds a client of one's own.
    #[must_use]
    pub fn with(mut self, network: Network, chain_id: u64, client: Arc<dyn ChainClient>) -> Self {
        match network {
            Network::Solana => self.solana.insert(chain_id, client),
            _ => self.evm.insert(chain_id, client),
        };
        self
    }

    /// The client of a chain, where one is configured.
    pub fn get(&self, network: Network, chain_id: Option<u64>) -> Option<&Arc<dyn ChainClient>> {
        let id = chain_id?;
        match network {
            Network::Evm => self.evm.get(&id),
            Network::Solana => self.solana.get(&id),
            Network::Bitcoin
            | Network::Tron
            | Network::Aptos
            | Network::Sui
            | Network::Ton
            | Network::Stellar => None,
        }
    }

    /// The EVM chains that configuration names.
    pub fn known(&self) -> KnownChains {
        KnownChains {
            configured: self.evm.keys().copied().collect::<BTreeSet<_>>(),
        }
    }
}
