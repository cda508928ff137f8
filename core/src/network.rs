//! The networks, and the one exhaustive registry of them.

use serde::{Deserialize, Serialize};

use crate::{
    chain::{self, DynNetworkRules},
    schema::wire,
    signature::Curve,
};

/// A network kind. Networks of one kind (Movement, Sonic SVM, the EVM chains) differ by chain id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Network {
    /// Ethereum and its kin.
    Evm,
    /// Bitcoin.
    Bitcoin,
    /// Tron.
    Tron,
    /// Aptos (1) and Movement (126).
    Aptos,
    /// Sui.
    Sui,
    /// Solana (101) and Sonic SVM (0).
    Solana,
    /// TON.
    Ton,
    /// Stellar.
    Stellar,
}

impl Network {
    /// All networks.
    pub const ALL: [Network; 8] = [
        Network::Evm,
        Network::Bitcoin,
        Network::Tron,
        Network::Aptos,
        Network::Sui,
        Network::Solana,
        Network::Ton,
        Network::Stellar,
    ];

    /// The network of a wire enum; `None` for `NETWORK_TYPE_UNKNOWN`.
    pub fn from_wire(wire: wire::NetworkType) -> Option<Self> {
        Some(match wire {
            wire::NetworkType::Unknown => return None,
            wire::NetworkType::Evm => Network::Evm,
            wire::NetworkType::Bitcoin => Network::Bitcoin,
            wire::NetworkType::Tron => Network::Tron,
            wire::NetworkType::Aptos => Network::Aptos,
            wire::NetworkType::Sui => Network::Sui,
            wire::NetworkType::Solana => Network::Solana,
            wire::NetworkType::Ton => Network::Ton,
            wire::NetworkType::Stellar => Network::Stellar,
        })
    }

    /// The wire enum of the network.
    pub fn to_wire(self) -> wire::NetworkType {
        match self {
            Network::Evm => wire::NetworkType::Evm,
            Network::Bitcoin => wire::NetworkType::Bitcoin,
            Network::Tron => wire::NetworkType::Tron,
            Network::Aptos => wire::NetworkType::Aptos,
            Network::Sui => wire::NetworkType::Sui,
            Network::Solana => wire::NetworkType::Solana,
            Network::Ton => wire::NetworkType::Ton,
            Network::Stellar => wire::NetworkType::Stellar,
        }
    }

    /// The name that people read.
    pub fn name(self) -> &'static str {
        match self {
            Network::Evm => "EVM",
            Network::Bitcoin => "Bitcoin",
            Network::Tron => "Tron",
            Network::Aptos => "Aptos",
            Network::Sui => "Sui",
            Network::Solana => "Solana",
            Network::Ton => "TON",
            Network::Stellar => "Stellar",
        }
    }

    /// The name in configuration, e.g. `evm`.
    pub fn key(self) -> &'static str {
        match self {
            Network::Evm => "evm",
            Network::Bitcoin => "bitcoin",
            Network::Tron => "tron",
            Network::Aptos => "aptos",
            Network::Sui => "sui",
            Network::Solana => "solana",
            Network::Ton => "ton",
            Network::Stellar => "stellar",
        }
    }

    /// The curve of the network's wallets.
    pub fn curve(self) -> Curve {
        match self {
            Network::Evm | Network::Bitcoin | Network::Tron => Curve::Secp256k1,
            Network::Aptos | Network::Sui | Network::Solana | Network::Ton | Network::Stellar => {
                Curve::Ed25519
            }
        }
    }

    /// The coin type (SLIP-44) that begins the key paths of the network's wallets, so that no two
    /// networks share a key. Of one kind of network (the EVM chains, Solana and Sonic SVM) it is
    /// the first one's.
    pub fn coin_type(self) -> u32 {
        match self {
            Network::Bitcoin => 0,
            Network::Evm => 60,
            Network::Stellar => 148,
            Network::Tron => 195,
            Network::Solana => 501,
            Network::Ton => 607,
            Network::Aptos => 637,
            Network::Sui => 784,
        }
    }

    /// The network's rules.
    pub fn rules(self) -> &'static dyn DynNetworkRules {
        match self {
            Network::Evm => &chain::evm::Evm,
            Network::Solana => &chain::solana::Solana,
            Network::Aptos => &chain::aptos::Aptos,
            Network::Stellar => &chain::stellar::Stellar,
            Network::Bitcoin => &chain::bitcoin::Bitcoin,
            Network::Tron => &chain::tron::Tron,
            Network::Ton => &chain::ton::Ton,
            Network::Sui => &chain::sui::Sui,
        }
    }
}
