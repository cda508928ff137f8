//! What a signature lets leave a wallet: the input of the policies of signer nodes.
//!
//! Only what the signed bytes bind counts. Anyone who orders the signature may call the payload what
//! it likes, and what it says beside those bytes is worth nothing.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{amount::U256, networks::network::Network};

/// Where signed bytes are good: a network, or one chain of it where the bytes name the chain.
/// Printed as `evm:1` or `solana`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChainScope {
    /// The network.
    pub network: Network,
    /// The chain. `None`: any chain of the network.
    pub chain_id: Option<u64>,
}

impl ChainScope {
    /// All chains of a network.
    pub fn network(network: Network) -> Self {
        Self {
            network,
            chain_id: None,
        }
    }

    /// One EVM chain.
    pub fn evm(chain_id: u64) -> Self {
        Self {
            network: Network::Evm,
            chain_id: Some(chain_id),
        }
    }

    /// One chain of the Aptos family.
    pub fn aptos(chain_id: u64) -> Self {
        Self {
            network: Network::Aptos,
            chain_id: Some(chain_id),
        }
    }

    /// Whether everything that is good at `other` is good here.
    pub fn covers(&self, other: &Self) -> bool {
        self.network == other.network
            && (self.chain_id.is_none() || self.chain_id == other.chain_id)
    }

    /// Whether something can be good at both.
    pub fn meets(&self, other: &Self) -> bool {
        self.covers(other) || other.covers(self)
    }
}

impl fmt::Display for ChainScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.network.key())?;
        match self.chain_id {
            Some(id) => write!(f, ":{id}"),
            None => Ok(()),
        }
    }
}

/// In the place of a token that cannot be told; no address of any network.
const SOME: &str = "*";

/// Something that has amounts: the coin of a place, or a token there. Printed as `evm:1`,
/// `evm:1/0xdAC17F958D2ee523a2206206994597C13D831ec7`, `solana`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Asset {
    /// Where it is. EVM and Aptos assets name their chain.
    pub place: ChainScope,
    /// The token's contract or mint, in canonical form; on Aptos, the metadata of the fungible asset
    /// that it is. `None` for the coin.
    pub token: Option<String>,
}

impl Asset {
    /// The coin of a place.
    pub fn coin(place: ChainScope) -> Self {
        Self { place, token: None }
    }

    /// A token of a place that cannot be determined from what is signed. Printed as `solana/*`.
    pub fn some_token(place: ChainScope) -> Self {
        Self {
            place,
            token: Some(SOME.to_owned()),
        }
    }

    /// Whether this is a token that cannot be told, and may be `other`.
    pub fn may_be(&self, other: &Self) -> bool {
        self.token.as_deref() == Some(SOME)
            && other.token.is_some()
            && self.place.meets(&other.place)
    }
}

impl fmt::Display for Asset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.place)?;
        match &self.token {
            Some(token) => write!(f, "/{token}"),
            None => Ok(()),
        }
    }
}

/// What kind of thing is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentKind {
    /// A transfer that says all that it does.
    Transfer,
    /// A transaction that may do more than it says: a contract decides.
    Custom,
    /// A text that no chain takes for an instruction. Services off the chain may.
    Message,
    /// Data that contracts read: EIP-712, a cell of TON, a message that is no text but a digest. They
    /// obey some of it: permits, orders.
    TypedData,
    /// Bytes that may be anything, a transaction too.
    Raw,
}

/// An amount that leaves the wallet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spend {
    /// Of what.
    pub asset: Asset,
    /// How much, in the smallest unit; 0 for a call that sends nothing.
    pub amount: U256,
    /// To whom, in canonical form; `None` for a contract that does not exist yet, and where the signed
    /// bytes (an address lookup table of Solana) or the payload (a jetton wallet of TON) do not say.
    pub recipient: Option<String>,
}

impl Spend {
    /// Something that may leave for whom nobody can tell: no list of recipients lets it through.
    pub fn unseen(place: ChainScope) -> Self {
        Self {
            asset: Asset::coin(place),
            amount: U256::ZERO,
            recipient: None,
        }
    }
}

/// What a signature lets leave a wallet, in addition to the fee
/// ([`crate::networks::DynNetworkRules::most_fee`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outflow {
    /// Kind of thing.
    pub nature: ContentKind,
    /// Where it is good.
    pub place: ChainScope,
    /// What is known to leave. All there is for [`ContentKind::Transfer`]; elsewhere more may leave, and
    /// one without a recipient says that nobody can tell to whom.
    pub spends: Vec<Spend>,
}

impl Outflow {
    /// Of a text: nothing that is known.
    pub fn of_text(place: ChainScope) -> Self {
        Self {
            nature: ContentKind::Message,
            place,
            spends: Vec::new(),
        }
    }

    /// Of data that contracts read and that is not understood here.
    pub fn of_typed_data(place: ChainScope) -> Self {
        Self {
            nature: ContentKind::TypedData,
            place,
            spends: vec![Spend::unseen(place)],
        }
    }
}

macro_rules! account_changes {
    ($($(#[$doc:meta])* $variant:ident $name:literal,)*) => {
        /// A change of who may sign for an account, or of what signs for it: anyone who can have one
        /// signed can have everything after it. No policy allows one that it does not name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum AccountChange {
            $($(#[$doc])* $variant,)*
        }

        impl AccountChange {
            /// All of them.
            pub const ALL: &'static [AccountChange] = &[$(AccountChange::$variant,)*];

            /// The name in policy files.
            pub fn name(self) -> &'static str {
                match self {
                    $(AccountChange::$variant => $name,)*
                }
            }
        }
    };
}

// Of EVM there are those of a chain's precompiles alone, of Tron none: nothing but `rawMessage` can
// sign an EIP-7702 authorisation or an AccountPermissionUpdateContract. TON has none: the orders of
// its wallets that are signed here hold messages and nothing else.
account_changes! {
    /// SetOptions of signers, thresholds or the weight of the master key.
    StellarSetOptions "stellarSetOptions",
    /// BumpSequence, or a lowest sequence number among the preconditions: numbers that are skipped are
    /// gone, and with the last of them the account.
    StellarBumpSequence "stellarBumpSequence",
    /// Another authority of a token account, mint, nonce, stake, vote or program.
    SolanaSetAuthority "solanaSetAuthority",
    /// Another owner program of the wallet's account, or data in it, so that it can never pay.
    SolanaAssign "solanaAssign",
    /// A delegate for tokens.
    SolanaApprove "solanaApprove",
    /// Another key, a capability of the account for another account, or code that signs for it.
    AptosKeyRotation "aptosKeyRotation",
    /// Other addresses whose keys sign for the wallet's.
    SuiAddressAlias "suiAddressAlias",
    /// Another account acts for it (precompiles of Moonbeam).
    EvmAddProxy "evmAddProxy",
}
