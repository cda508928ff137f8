//! The table of the networks.

use serde::{Deserialize, Serialize};

use crate::{schema::wire, signature::Curve};

macro_rules! networks {
    ($($(#[$doc:meta])* $variant:ident $name:literal $key:literal $curve:ident $coin_type:literal,)*) => {
        /// A network kind. Networks of one kind (Movement, Sonic SVM, the EVM chains) differ by chain id.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Network {
            $($(#[$doc])* $variant,)*
        }

        impl Network {
            /// All networks.
            pub const ALL: [Network; [$(Network::$variant),*].len()] = [$(Network::$variant),*];

            /// The network of a wire enum; `None` for `NETWORK_TYPE_UNKNOWN`.
            pub fn from_wire(wire: wire::NetworkType) -> Option<Self> {
                match wire {
                    wire::NetworkType::Unknown => None,
                    $(wire::NetworkType::$variant => Some(Network::$variant),)*
                }
            }

            /// The wire enum of the network.
            pub fn to_wire(self) -> wire::NetworkType {
                match self {
                    $(Network::$variant => wire::NetworkType::$variant,)*
                }
            }

            /// The name that people read.
            pub fn name(self) -> &'static str {
                match self {
                    $(Network::$variant => $name,)*
                }
            }

            /// The name in configuration, e.g. `evm`.
            pub fn key(self) -> &'static str {
                match self {
                    $(Network::$variant => $key,)*
                }
            }

            /// The curve of the network's wallets.
            pub fn curve(self) -> Curve {
                match self {
                    $(Network::$variant => Curve::$curve,)*
                }
            }

            /// The coin type (SLIP-44) that begins the key paths of the network's wallets, so that no two
            /// networks share a key. Of one kind of network (the EVM chains, Solana and Sonic SVM) it is
            /// the first one's.
            pub fn coin_type(self) -> u32 {
                match self {
                    $(Network::$variant => $coin_type,)*
                }
            }
        }
    };
}

// Name, name in configuration, curve, coin type. The order is that of the numbers on disk: a new
// network goes to the end.
networks! {
    /// Ethereum and its kin.
    Evm "EVM" "evm" Secp256k1 60,
    /// Bitcoin.
    Bitcoin "Bitcoin" "bitcoin" Secp256k1 0,
    /// Tron.
    Tron "Tron" "tron" Secp256k1 195,
    /// Aptos (1) and Movement (126).
    Aptos "Aptos" "aptos" Ed25519 637,
    /// Sui.
    Sui "Sui" "sui" Ed25519 784,
    /// Solana (101) and Sonic SVM (0).
    Solana "Solana" "solana" Ed25519 501,
    /// TON.
    Ton "TON" "ton" Ed25519 607,
    /// Stellar.
    Stellar "Stellar" "stellar" Ed25519 148,
}
