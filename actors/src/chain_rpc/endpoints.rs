//! The chains that are configured, and their nodes.

use std::{collections::BTreeMap, fmt};

use covault_core::{deposit::transfer::FollowedChain, networks::Network};
use secrecy::SecretString;

/// A chain that requests can name: a network, and the chain id where its payloads name one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainKey {
    /// The network.
    pub network: Network,
    /// The chain id of the API: of every EVM chain, 1 Aptos, 126 Movement, 101 Solana, 0 Sonic SVM.
    /// `None` on networks that have one chain.
    pub chain_id: Option<u64>,
}

impl ChainKey {
    /// Solana.
    pub const SOLANA: Self = Self::of(Network::Solana, Some(101));
    /// Sonic SVM.
    pub const SONIC: Self = Self::of(Network::Solana, Some(0));
    /// Aptos.
    pub const APTOS: Self = Self::of(Network::Aptos, Some(1));
    /// Movement.
    pub const MOVEMENT: Self = Self::of(Network::Aptos, Some(126));

    /// The chains that configuration names by a word; EVM chains it names by their id.
    pub const NAMED: [(&str, Self); 9] = [
        ("bitcoin", Self::of(Network::Bitcoin, None)),
        ("tron", Self::of(Network::Tron, None)),
        ("aptos", Self::APTOS),
        ("movement", Self::MOVEMENT),
        ("sui", Self::of(Network::Sui, None)),
        ("solana", Self::SOLANA),
        ("sonic", Self::SONIC),
        ("ton", Self::of(Network::Ton, None)),
        ("stellar", Self::of(Network::Stellar, None)),
    ];

    /// The chain of a payload.
    pub const fn of(network: Network, chain_id: Option<u64>) -> Self {
        Self { network, chain_id }
    }

    /// An EVM chain.
    pub const fn evm(chain_id: u64) -> Self {
        Self::of(Network::Evm, Some(chain_id))
    }

    /// The chain as deposits know it; `None` where none are taken.
    pub fn followed(&self) -> Option<FollowedChain> {
        match (self.network, self.chain_id) {
            (Network::Evm, Some(id)) => Some(FollowedChain::Evm(id)),
            (Network::Tron, None) => Some(FollowedChain::Tron),
            _ => None,
        }
    }

    /// The chain's table in configuration, e.g. `chains.evm.1`.
    pub fn setting(&self) -> String {
        let named = Self::NAMED.iter().find(|(_, key)| key == self);
        match (named, self.chain_id) {
            (Some((name, _)), _) => format!("chains.{name}"),
            (None, Some(id)) => format!("chains.{}.{id}", self.network.key()),
            (None, None) => format!("chains.{}", self.network.key()),
        }
    }

    /// What clients are told when no node of the chain is configured.
    pub fn without_node(&self) -> String {
        format!("no node is configured for {self} ({}.rpc)", self.setting())
    }
}

/// As people call it.
impl fmt::Display for ChainKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.network, self.chain_id) {
            (Network::Evm, Some(id)) => write!(f, "EVM chain {id}"),
            _ if *self == Self::MOVEMENT => f.write_str("Movement"),
            _ if *self == Self::SONIC => f.write_str("Sonic SVM"),
            (network, _) => f.write_str(network.name()),
        }
    }
}

/// Where the nodes of the chains are. An EVM chain that is named here is a known one.
pub type ChainsConfig = BTreeMap<ChainKey, ChainEndpoints>;

/// The nodes of one chain.
#[derive(Clone)]
pub struct ChainEndpoints {
    /// The nodes; those that answer are preferred in this order.
    pub nodes: Vec<NodeEndpoint>,
    /// How long one call may take, in milliseconds.
    pub timeout_ms: u64,
    /// How many nodes must give the same answer where money depends on it. What ends something for good takes two at
    /// least, wherever there are two ([`super::NodePool::witnesses_needed`]).
    pub agree: usize,
    /// The highest price of the nodes that is believed, in the network's unit; `None`: that of
    /// [`covault_core::networks::DynNetworkRules::default_most_price`].
    pub most_price: Option<u128>,
    /// When a transaction is replaced that no block takes; `None`: only when a client asks.
    pub speed_up: Option<SpeedUpPolicy>,
    /// The address of the contract that pays batches there; `None`: there is none.
    pub batch_contract: Option<String>,
    /// How its blocks are followed for deposits; `None`: they are not.
    pub deposits: Option<FollowPolicy>,
}

/// How the blocks of a chain are followed for deposits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowPolicy {
    /// After so many blocks a transfer is confirmed, its own included; `None`:
    /// [`covault_core::deposit::lifecycle::default_confirmations`].
    pub confirmations: Option<u64>,
    /// A block is final when it has so many blocks on it; `None`: when the nodes call it so.
    pub final_after: Option<u64>,
    /// How often nodes are asked for the next block, in milliseconds.
    pub poll_ms: u64,
    /// Nodes that can trace blocks are asked what contracts pass on.
    pub traces: bool,
    /// Nodes are asked for all receipts of a block, and not for the logs of tokens and some receipts.
    pub receipts: bool,
}

impl Default for FollowPolicy {
    fn default() -> Self {
        Self {
            confirmations: None,
            final_after: None,
            poll_ms: 1_000,
            traces: false,
            receipts: false,
        }
    }
}

/// When the service replaces transactions of a chain that no block takes, by the same at a higher fee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeedUpPolicy {
    /// After so many blocks; counted again for each replacement.
    pub after_blocks: u64,
    /// The most that a replacement may cost as fee, in the smallest unit of the coin.
    pub most_fee: u128,
}

/// One node. Its URL may hold an access key: there is no Debug.
#[derive(Clone)]
pub struct NodeEndpoint {
    /// Its address, `http://` or `https://`.
    pub url: String,
    /// What it wants to be shown.
    pub access: NodeAuth,
}

/// What a node wants to be shown with every request.
#[derive(Clone)]
pub enum NodeAuth {
    /// Nothing.
    Open,
    /// A header that holds a key.
    Header {
        /// Its name, e.g. `X-API-Key`.
        name: String,
        /// The key.
        value: SecretString,
    },
    /// HTTP basic authentication: `user:password`.
    Login(SecretString),
}

impl ChainEndpoints {
    /// The usual timeout, in milliseconds.
    pub const TIMEOUT_MS: u64 = 5_000;

    /// Nodes that want nothing to be shown, with the usual timeout, each of which is believed.
    pub fn new(urls: Vec<String>) -> Self {
        let open = |url| NodeEndpoint {
            url,
            access: NodeAuth::Open,
        };
        Self {
            nodes: urls.into_iter().map(open).collect(),
            timeout_ms: Self::TIMEOUT_MS,
            agree: 1,
            most_price: None,
            speed_up: None,
            batch_contract: None,
            deposits: Some(FollowPolicy::default()),
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn chain_keys__should_have_names_for_people_and_for_configuration() {
        for (key, shown, setting) in [
            (ChainKey::evm(1), "EVM chain 1", "chains.evm.1"),
            (ChainKey::MOVEMENT, "Movement", "chains.movement"),
            (ChainKey::APTOS, "Aptos", "chains.aptos"),
            (ChainKey::SONIC, "Sonic SVM", "chains.sonic"),
            (
                ChainKey::of(Network::Bitcoin, None),
                "Bitcoin",
                "chains.bitcoin",
            ),
        ] {
            assert_eq!(key.to_string(), shown);
            assert_eq!(key.setting(), setting);
        }
    }
}
