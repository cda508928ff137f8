//! Deposit wallets and watch addresses: what calls may request, what is stored, and the transfers to and from
//! them.
//!
//! | file | what |
//! |---|---|
//! | `transfer.rs` | a transfer as a block of a chain has it |
//! | `lifecycle.rs` | what becomes of a transfer: seen, confirmed, finalized, reverted |
//! | `ring.rs` | the blocks of a chain that are not final: which block follows, and where a chain forks |
//! | `balance.rs` | what an address must have by its transfers, beside what it has |
//! | `sweep.rs` | the sweep of a deposit wallet: top-up, transfer, pauses |
//! | `event.rs` | what the owner of an address is told, and the id that stays the same |
//!
//! Public sentences are the reasons of the API, word for word: they name no field.

pub mod balance;
pub mod event;
pub mod lifecycle;
pub mod ring;
pub mod sweep;
pub mod transfer;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use self::transfer::{Account, FollowedChain};
use crate::{
    fault::{Class, Fault},
    ids::{VaultId, WalletId, WatchId},
    networks::Network,
    schema::wire,
};

/// Most characters of a reference.
pub const MAX_REF: usize = 128;

/// A network that deposits are taken on. The wire knows it by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DepositNetwork {
    /// Every EVM chain that is configured: one address for all.
    Evm,
    /// Tron.
    Tron,
}

impl DepositNetwork {
    /// All of them.
    pub const ALL: [DepositNetwork; 2] = [DepositNetwork::Evm, DepositNetwork::Tron];

    /// `EVM` or `TRON`.
    pub fn name(self) -> &'static str {
        match self {
            DepositNetwork::Evm => "EVM",
            DepositNetwork::Tron => "TRON",
        }
    }

    /// The network of a name, in capitals as the API has it.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|network| network.name() == name)
    }

    /// The network of its wallets.
    pub fn network(self) -> Network {
        match self {
            DepositNetwork::Evm => Network::Evm,
            DepositNetwork::Tron => Network::Tron,
        }
    }

    /// Its number in the keys of rows. On disk: never change one.
    pub fn number(self) -> u8 {
        match self {
            DepositNetwork::Evm => 1,
            DepositNetwork::Tron => 2,
        }
    }

    /// The canonical form of an address to which deposits are to be swept.
    ///
    /// # Errors
    /// [`Class::Invalid`] when it is invalid, or the zero address, which has no key.
    pub fn parse_target(self, text: &str) -> Result<String, Fault> {
        const ZERO_ON_TRON: &str = "T9yD14Nj9j7xAB4dbGeiX9h8unkKHxuWwb";
        let address = self.network().rules().parse_address(text)?;
        let is_zero = match self {
            DepositNetwork::Evm => address.trim_start_matches("0x").bytes().all(|b| b == b'0'),
            DepositNetwork::Tron => address == ZERO_ON_TRON,
        };
        if is_zero {
            return Err(Fault::new(
                Class::Invalid,
                "is the zero address: funds sent to it are lost",
            ));
        }
        Ok(address)
    }
}

/// A call for a deposit wallet, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DepositCall {
    /// Where deposits are taken.
    pub network: DepositNetwork,
    /// The client's own reference.
    pub reference: String,
    /// Without a proof of the address nothing is to be made or shown.
    pub require_proof: bool,
}

impl DepositCall {
    /// Checks a call.
    ///
    /// # Errors
    /// The first of: `network required`, `network unsupported`, `ref required`, `ref invalid`.
    pub fn parse(request: &wire::CreateDepositWalletRequest) -> Result<Self, Fault> {
        let wire::CreateDepositWalletRequest {
            network,
            r#ref,
            require_address_proof,
        } = request;
        if network.is_empty() {
            return Err(reason("network required"));
        }
        let network =
            DepositNetwork::parse(network).ok_or_else(|| reason("network unsupported"))?;
        if r#ref.is_empty() {
            return Err(reason("ref required"));
        }
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:@".contains(&byte);
        if r#ref.len() > MAX_REF || !r#ref.bytes().all(fits) {
            return Err(reason("ref invalid"));
        }
        Ok(Self {
            network,
            reference: r#ref.clone(),
            require_proof: *require_address_proof,
        })
    }
}

/// A call for a watch, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchCall {
    /// Where the address is.
    pub network: DepositNetwork,
    /// The address, in canonical form.
    pub address: String,
}

impl WatchCall {
    /// Checks a call. Only TRON addresses are watched.
    ///
    /// # Errors
    /// The first of: `network unsupported`, also when it is missing, `address required`,
    /// `address invalid`.
    pub fn parse(request: &wire::AddWatchAddressRequest) -> Result<Self, Fault> {
        let wire::AddWatchAddressRequest { network, address } = request;
        let network = DepositNetwork::parse(network)
            .filter(|network| *network == DepositNetwork::Tron)
            .ok_or_else(|| reason("network unsupported"))?;
        if address.is_empty() {
            return Err(reason("address required"));
        }
        let address = network
            .network()
            .rules()
            .parse_address(address)
            .map_err(|fault| reason("address invalid").caused_by(fault))?;
        Ok(Self { network, address })
    }
}

/// The URL that events of deposits go to. Services put secrets into such URLs: it is not shown by
/// `Debug`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Webhook(pub String);

impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Webhook(..)")
    }
}

/// What a sweep token takes on one chain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainAssets {
    /// The least amount of the chain's coin that is swept, in its smallest unit, as decimal digits; `None`: the coin is
    /// told, and not swept.
    pub coin_minimum: Option<String>,
    /// The tokens that are told, by contract, and the least amount of each that is swept.
    pub tokens: BTreeMap<Account, String>,
}

/// A sweep token's configuration for one network. All of it can come piece by piece.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepRoute {
    /// The vault that new deposit wallets are made in.
    pub vault: Option<VaultId>,
    /// The address that deposits are swept to, in canonical form.
    pub target: Option<String>,
    /// Where events go.
    pub webhook: Option<Webhook>,
    /// What is taken, by chain.
    pub assets: BTreeMap<FollowedChain, ChainAssets>,
}

/// Whether and how a sweep token's deposits on one chain are swept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepRules {
    /// Whether they are.
    pub enabled: bool,
    /// The wallet that pays top-ups.
    pub gas_wallet: Option<WalletId>,
    /// All accounts that have ever paid top-ups: what a sweep has asked them for is told to nobody as a deposit.
    pub gas_accounts: Vec<Account>,
    /// The most that a fee may be of an amount of the coin, in percent. Of a token no price is known.
    pub max_cost_percent: u32,
    /// The most that a unit of gas may cost, in the smallest unit of the coin; `None`: any price.
    pub max_gas_price: Option<u128>,
    /// The most coin of one top-up, in the smallest unit; `None`: no top-up is made.
    pub max_top_up: Option<u128>,
    /// How long a sweep may wait before operators are told, in seconds.
    pub max_wait_s: u64,
    /// How much later than the last sweep of a wallet the next one begins at the earliest, in seconds; 0: at once.
    pub every_s: u64,
    /// How people had what is held tried again.
    pub retries: SweepRetries,
}

/// How people had what is held tried again: of all wallets, and of some. The process that has the vault follows it. By numbers, as
/// the clocks of the two may differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepRetries {
    /// The number of the last one.
    pub last: u64,
    /// That of the last one of all wallets.
    pub all: u64,
    /// Those of the last ones of some, since then.
    pub some: BTreeMap<Account, u64>,
}

impl SweepRetries {
    /// Notes that what is held of a wallet, or of all, is to be tried again. Of single wallets so many are remembered at most:
    /// the oldest were tried again long since.
    pub fn note(&mut self, only: Option<Account>, most: usize) {
        self.last = self.last.saturating_add(1);
        match only {
            None => {
                self.all = self.last;
                self.some.clear();
            }
            Some(account) => {
                self.some.insert(account, self.last);
            }
        }
        while self.some.len() > most {
            let oldest = self.some.iter().min_by_key(|(_, number)| **number);
            let Some(oldest) = oldest.map(|(account, _)| *account) else {
                break;
            };
            self.some.remove(&oldest);
        }
    }

    /// Whether what was held after this one is to be tried again.
    pub fn include(&self, account: Account, after: u64) -> bool {
        let some = self.some.get(&account).copied().unwrap_or_default();
        after < self.all.max(some)
    }
}

impl Default for SweepRules {
    fn default() -> Self {
        Self {
            enabled: false,
            gas_wallet: None,
            gas_accounts: Vec::new(),
            max_cost_percent: 5,
            max_gas_price: None,
            max_top_up: None,
            max_wait_s: 24 * 60 * 60,
            every_s: 0,
            retries: SweepRetries::default(),
        }
    }
}

impl SweepRoute {
    /// The least amount of a coin or token that is swept; `None`: it is not.
    pub fn minimum(&self, chain: FollowedChain, asset: Option<Account>) -> Option<&str> {
        let assets = self.assets.get(&chain)?;
        match asset {
            None => assets.coin_minimum.as_deref(),
            Some(token) => assets.tokens.get(&token).map(String::as_str),
        }
    }

    /// The tokens that are told on a chain.
    pub fn tokens(&self, chain: FollowedChain) -> impl Iterator<Item = Account> + '_ {
        let assets = self.assets.get(&chain).into_iter();
        assets.flat_map(|assets| assets.tokens.keys().copied())
    }

    /// The vault of new deposit wallets.
    ///
    /// # Errors
    /// `sweep config not configured` while vault or target are missing.
    pub fn deposit_vault(&self) -> Result<VaultId, Fault> {
        self.target
            .as_ref()
            .and(self.vault)
            .ok_or_else(|| reason("sweep config not configured"))
    }

    /// Makes sure that events have somewhere to go.
    ///
    /// # Errors
    /// `webhook not configured`.
    pub fn check_webhook(&self) -> Result<(), Fault> {
        match self.webhook {
            Some(_) => Ok(()),
            None => Err(reason("webhook not configured")),
        }
    }
}

/// A deposit wallet, as it is stored under (token, network, ref).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deposit {
    /// The wallet.
    pub wallet: WalletId,
    /// When it was created, in milliseconds since the Unix epoch.
    pub created_at_ms: u64,
}

/// A watched address, as it is stored under (token, network, address).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressWatch {
    /// The watch.
    pub id: WatchId,
    /// When it was asked for, in milliseconds since the Unix epoch: nothing older is told of.
    pub created_at_ms: u64,
}

/// `wallet disabled`.
pub fn wallet_disabled() -> Fault {
    reason("wallet disabled")
}

/// `wallet address conflict; retry`.
pub fn conflict() -> Fault {
    Fault::new(Class::Conflict, "wallet address conflict; retry")
}

/// A reason that has status 400.
fn reason(reason: &str) -> Fault {
    Fault::new(Class::Invalid, reason)
}

#[cfg(test)]
mod tests;
