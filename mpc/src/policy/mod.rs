//! A node's policy floor: what it never signs, no matter who orders it.
//!
//! The operator of the node writes it into a file of the node's own ([`Policy::read`]); orders
//! cannot change it. It goes by what the signed bytes bind
//! ([`covault_core::networks::outflow`]), not by what an order calls them.
//!
//! It has three scopes: the node, the vault and the wallet. An order has to satisfy the rules of
//! each, and each has counters of its own: what one vault spends or fails to spend takes nothing of
//! another's limits.

mod explain;
mod file;
mod rules;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use covault_core::{
    amount::U256,
    derive::RootKey,
    fault::Fault,
    ids::VaultId,
    networks::{Network, Payload, outflow::AccountChange},
    order::SigningOrder,
};

use rules::ScopeRules;

/// What a node signs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    node: ScopeRules,
    /// Of every vault without rules of its own.
    each_vault: ScopeRules,
    vaults: BTreeMap<VaultId, ScopeRules>,
    /// Of every wallet without rules of its own.
    each_wallet: ScopeRules,
    /// By network and address.
    wallets: BTreeMap<(Network, String), ScopeRules>,
}

/// Whose rules and counters they are. Printed as refusals name them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyScope {
    /// All that the node signs.
    Node,
    /// One vault.
    Vault(VaultId),
    /// One wallet, by its address.
    Wallet(String),
}

impl fmt::Display for PolicyScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this signer's policy")?;
        match self {
            PolicyScope::Node => Ok(()),
            PolicyScope::Vault(vault) => write!(f, " (vault {vault})"),
            PolicyScope::Wallet(address) => write!(f, " (wallet {address})"),
        }
    }
}

/// What is counted: an asset in a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpendingCounter {
    /// Whose counter it is.
    pub scope: PolicyScope,
    /// The asset, e.g. `evm:1`.
    pub asset: String,
}

impl SpendingCounter {
    /// The name under which the claims keep it.
    pub fn name(&self) -> String {
        let asset = &self.asset;
        match &self.scope {
            PolicyScope::Node => asset.clone(),
            PolicyScope::Vault(vault) => format!("vault {vault} {asset}"),
            PolicyScope::Wallet(address) => format!("wallet {address} {asset}"),
        }
    }
}

/// What somebody wants to have signed.
#[derive(Clone, Copy)]
pub struct PolicyRequest<'a> {
    /// The vault of the wallet, whose address the payload names.
    pub vault: VaultId,
    /// The network of the wallet.
    pub network: Network,
    /// The payload.
    pub payload: &'a Payload,
    /// The most that the network can take for it.
    pub fee: U256,
    /// The price per unit that chain nodes named, where the payload brings none.
    pub price: Option<u128>,
    /// The recipients that are wallets of the vault, as the node itself has derived them.
    pub own_wallets: &'a BTreeSet<String>,
}

/// An amount of one asset that an order would let go, to be counted when the order's claim is
/// granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spending {
    /// What counts it.
    pub counter: SpendingCounter,
    /// In its smallest unit.
    pub amount: U256,
    /// What may go in any 24 hours.
    pub most_per_day: Option<U256>,
}

impl Policy {
    /// What a node without a policy file goes by: everything but raw signing, with the default
    /// highest fees.
    pub fn production() -> Self {
        Self::default()
    }

    /// For development: raw signing too, and every change of an account.
    pub fn development() -> Self {
        let mut policy = Self::default();
        policy.node.raw_signing = Some(true);
        policy.node.account_changes = Some(AccountChange::ALL.iter().copied().collect());
        policy
    }

    /// Whether `rawMessage` is signed, which no limit can hold.
    pub fn raw_signing(&self) -> bool {
        self.node.raw_signing.unwrap_or(false)
    }

    /// Checks a verified order of a key below `root`, and its payload. What has to be counted: the
    /// limits per day hold only when the claims count it too.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] that begins with what is forbidden: `network`,
    /// `kind`, `recipient`, `amount`, `fee` or `price`; or `recipientIndices` that are wrong.
    pub fn check(
        &self,
        order: &SigningOrder,
        root: &RootKey,
        payload: &Payload,
    ) -> Result<Vec<Spending>, Fault> {
        let own_wallets = order.own_recipients(root, payload)?;
        let rules = order.network.rules();
        let fee = rules.most_fee(&order.unsigned)?;
        self.evaluate(&PolicyRequest {
            vault: order.vault,
            network: order.network,
            payload,
            fee,
            price: rules.quoted_price(payload, &order.chain_data),
            own_wallets: &own_wallets,
        })
    }

    /// Judges what is asked, by the rules of node, vault and wallet. What has to be counted.
    ///
    /// # Errors
    /// As [`Policy::check`].
    pub fn evaluate(&self, asked: &PolicyRequest<'_>) -> Result<Vec<Spending>, Fault> {
        let outflow = asked.payload.outflow(asked.network);
        let of_vault = self.vaults.get(&asked.vault).unwrap_or(&self.each_vault);
        let wallet = (asked.network, asked.payload.from().to_owned());
        let of_wallet = self.wallets.get(&wallet).unwrap_or(&self.each_wallet);
        let scopes = [
            (PolicyScope::Node, &self.node),
            (PolicyScope::Vault(asked.vault), of_vault),
            (PolicyScope::Wallet(wallet.1), of_wallet),
        ];
        let mut spending = Vec::new();
        for (scope, rules) in scopes {
            spending.extend(rules.check(&scope, asked, &outflow)?);
        }
        Ok(spending)
    }
}

/// The refusal when the total of 24 hours would be too high.
pub(crate) fn over_day(counter: &SpendingCounter) -> Fault {
    let SpendingCounter { scope, asset } = counter;
    let sentence = format_args!("with the fee, more {asset} than {scope} allows in 24 hours");
    Fault::field("amount", sentence)
}
