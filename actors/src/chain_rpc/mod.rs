//! Clients of chain nodes.

mod aptos;
mod bitcoin;
mod client;
mod endpoints;
mod evm;
mod exchange;
mod grpc;
mod health;
mod jsonrpc;
mod pool;
mod rest;
mod simulation;
mod solana;
mod stellar;
mod sui;
mod ton;
mod tron;

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use covault_core::{
    fault::{ExecuteCode, Fault},
    networks::{ChainData, KnownChains, Network, Payload, Queries, Signed},
};

pub use client::{Call, CallError, Client, Protocol, Refusal};
pub use endpoints::{ChainEndpoints, ChainKey, ChainsConfig, NodeAuth, NodeEndpoint};
pub use exchange::{NodeRequest, NodeRequestBody, NodeResponse};
pub use health::EndpointHealth;
pub use jsonrpc::{JsonRpc, RpcCall};
pub use pool::{NodePool, PoolPorts};
pub use rest::Rest;
pub use simulation::{SimulationOutcome, SimulationRequest};

/// A signed transaction on its way to the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BroadcastRequest {
    /// The bytes and their hash.
    pub signed: Signed,
    /// What it was built from; [`ChainData::Nothing`] when its request is over and it is sent again.
    pub chain_data: ChainData,
    /// How long ago it was built, or asked for, in milliseconds.
    pub age_ms: u64,
    /// The present time, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// It may have been sent before, and what became of that is not known.
    pub retried: bool,
}

/// What a node's refusal means. It is for good when nothing was sent before, and the refusal cannot come of
/// the transaction itself being there. With `doubt` nobody knows, whatever nodes say of its hash: the one
/// that took the transaction may be another one behind the same address. A transaction that is called
/// failed and is mined nevertheless would be paid twice.
fn resolve_refusal(
    refusal: ChainRefusal,
    known: Result<bool, String>,
    doubt: bool,
) -> BroadcastOutcome {
    match known {
        Ok(true) => BroadcastOutcome::Accepted,
        Err(trouble) if doubt => BroadcastOutcome::Unknown(format!(
            "a node said \"{}\", and another cannot say whether it has the transaction: {trouble}",
            refusal.reason
        )),
        Ok(false) if doubt => BroadcastOutcome::Doubtful(refusal, Standing::Open),
        Ok(false) | Err(_) => BroadcastOutcome::Refused(refusal),
    }
}

/// The end of a transaction that by all that the nodes say can never come. With `doubt`, an earlier try may
/// have reached one.
fn is_void(refusal: ChainRefusal, doubt: bool) -> BroadcastOutcome {
    if doubt {
        BroadcastOutcome::Doubtful(refusal, Standing::Void)
    } else {
        BroadcastOutcome::Refused(refusal)
    }
}

/// What became of a broadcast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BroadcastOutcome {
    /// A node has it.
    Accepted,
    /// The network will never take it, and no node ever had it.
    Refused(ChainRefusal),
    /// A node refuses it now, and an earlier try may have reached the chain.
    Doubtful(ChainRefusal, Standing),
    /// Nobody knows; the same bytes are sent again.
    Unknown(String),
}

/// Whether a transaction can still come that a node refuses now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It can.
    Open,
    /// The nodes say that its number is used, and not yet for good.
    Passed,
    /// Its number or its time is over for good, by what the nodes say now. One that is behind may still not
    /// know that the chain has it: it counts when they say so for [`Settings::settling_ms`].
    ///
    /// [`Settings::settling_ms`]: crate::settings::Settings::settling_ms
    Void,
}

/// Why a node said no, for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainRefusal {
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
    Refused(ChainRefusal),
}

/// A chain, through its nodes.
#[async_trait]
pub trait ChainClient: Send + Sync {
    /// What a payload needs to know, as the nodes say: the next number of an account, outputs and
    /// objects that are there, reserved or not. What other requests hold is left out of it
    /// later ([`covault_core::networks::DynNetworkRules::allocate`]). `now_ms`, in milliseconds since the Unix
    /// epoch, is for facts that come of the clock: timestamps, expiration.
    async fn chain_data(&self, queries: &Queries, now_ms: u64) -> Result<ChainData, ChainError>;

    /// Looks whether a transaction can do what its payload says, before anything is signed.
    /// Nothing is asked, unless the network says otherwise.
    ///
    /// # Errors
    /// [`ChainError::Refused`] when it cannot.
    async fn preflight(&self, _payload: &Payload) -> Result<(), ChainError> {
        Ok(())
    }

    /// Sends a signed transaction. Safe to repeat.
    async fn broadcast(&self, broadcast_request: &BroadcastRequest) -> BroadcastOutcome;

    /// The number of the next transaction that the chain takes of an account, as of a block that is
    /// not from before `since_ms` (milliseconds since the Unix epoch, by the chain's own clock).
    /// `None` when there is no such block yet. Asked on networks whose transactions end with time,
    /// to tell that one was never executed: what `agree` of the nodes say counts.
    async fn next_number(&self, _address: &str, _since_ms: u64) -> Result<Option<u64>, ChainError> {
        Err(ChainError::Unknown(
            "the nodes of this chain are not asked for it".into(),
        ))
    }

    /// A balance in the smallest unit, decimal: of the chain's coin, or of a token. Both texts are
    /// in canonical form.
    async fn balance(&self, address: &str, token: Option<&str>) -> Result<String, ChainError>;

    /// What a transaction would do now, as one node says that is asked once. `None` where that
    /// cannot be said; it is dropped when it takes long. Nothing is decided by it.
    async fn simulate(&self, _trial: &SimulationRequest) -> Option<SimulationOutcome> {
        None
    }

    /// How the chain's nodes are doing.
    fn health(&self) -> Vec<EndpointHealth> {
        Vec::new()
    }
}

/// The chains that can be reached. Cheap to clone.
#[derive(Clone, Default)]
pub struct ChainClients {
    clients: BTreeMap<ChainKey, Arc<dyn ChainClient>>,
    /// The highest prices that configuration believes.
    most_prices: BTreeMap<ChainKey, u128>,
}

impl ChainClients {
    /// Clients for configured nodes. Nothing is asked yet.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] naming the setting that is wrong, and
    /// [`covault_core::fault::Class::Bug`] when the TLS provider is missing.
    pub fn connect(config: &ChainsConfig, ports: &PoolPorts) -> Result<Self, Fault> {
        let connect = |(chain, endpoints): (&ChainKey, &ChainEndpoints)| {
            let pool = NodePool::new(*chain, endpoints, ports.clone())?;
            Ok((*chain, client(*chain, pool)?))
        };
        let most_price = |(chain, endpoints): (&ChainKey, &ChainEndpoints)| {
            endpoints.most_price.map(|most| (*chain, most))
        };
        Ok(Self {
            clients: config.iter().map(connect).collect::<Result<_, Fault>>()?,
            most_prices: config.iter().filter_map(most_price).collect(),
        })
    }

    /// Adds a custom client.
    #[must_use]
    pub fn with(mut self, chain: ChainKey, client: Arc<dyn ChainClient>) -> Self {
        self.clients.insert(chain, client);
        self
    }

    /// The client of a chain, where one is configured.
    pub fn get(&self, network: Network, chain_id: Option<u64>) -> Option<&Arc<dyn ChainClient>> {
        self.clients.get(&ChainKey::of(network, chain_id))
    }

    /// Why a transaction is not built with the price that the chain's nodes name; `None` where it may be.
    pub fn price_problem(
        &self,
        network: Network,
        payload: &Payload,
        chain_data: &ChainData,
    ) -> Option<String> {
        let rules = network.rules();
        let price = rules.quoted_price(payload, chain_data)?;
        let chain = ChainKey::of(network, payload.chain_id());
        let most = self.most_prices.get(&chain).copied();
        let most = most.unwrap_or_else(|| rules.default_most_price(chain.chain_id));
        (price > most).then(|| {
            format!(
                "the nodes of {chain} name a price of {price} {}, and {most} is the most that is believed \
                 ({}.most_price); give gasFee in the request, or raise it",
                rules.price_unit(),
                chain.setting(),
            )
        })
    }

    /// The EVM chains that configuration names.
    pub fn known(&self) -> KnownChains {
        let evm = self
            .clients
            .keys()
            .filter(|chain| chain.network == Network::Evm);
        KnownChains {
            configured: evm.filter_map(|chain| chain.chain_id).collect(),
        }
    }

    /// How the nodes of all chains are doing.
    pub fn health(&self) -> Vec<EndpointHealth> {
        self.clients
            .values()
            .flat_map(|client| client.health())
            .collect()
    }
}

/// The registry of clients: the one match that a new network has to be in.
fn client(chain: ChainKey, pool: NodePool) -> Result<Arc<dyn ChainClient>, Fault> {
    Ok(match chain.network {
        Network::Evm => {
            let id = chain.chain_id.ok_or_else(|| Fault::bug("no chain id"))?;
            Arc::new(evm::EvmNode::new(id, pool))
        }
        Network::Solana => Arc::new(solana::SolanaNode::new(chain, pool)),
        Network::Aptos => {
            let id = chain.chain_id.ok_or_else(|| Fault::bug("no chain id"))?;
            Arc::new(aptos::AptosNode::new(id, pool))
        }
        Network::Stellar => Arc::new(stellar::StellarNode::new(pool)),
        Network::Tron => Arc::new(tron::TronNode::new(pool)),
        Network::Ton => Arc::new(ton::TonNode::new(pool)),
        Network::Bitcoin => Arc::new(bitcoin::BitcoinNode::new(pool)),
        Network::Sui => Arc::new(sui::SuiNode::new(pool)),
    })
}
