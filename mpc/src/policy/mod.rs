//! A node's policy floor: what it never signs, no matter who orders it.
//!
//! The operator of the node writes it into a file of the node's own ([`Policy::read`]); orders
//! cannot change it. It decides by what the signed bytes bind
//! ([`covault_core::networks::outflow`]), not by what an order calls them.
//!
//! It has three scopes: the node, the vault and the wallet. An order has to satisfy the rules of
//! each, and each has counters of its own: what one vault spends or fails to spend takes nothing of
//! another's limits.

mod approvals;
mod explain;
mod file;
mod holds;
mod rules;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use covault_core::{
    amount::U256,
    approval::{Approvers, VerifiedApprovals},
    derive::RootKey,
    fault::Fault,
    ids::VaultId,
    networks::{
        Network, Payload,
        evm::batch::BatchContracts,
        outflow::{AccountChange, Outflow},
    },
    order::SigningOrder,
};

pub(crate) use approvals::approvals_missing;
pub use approvals::{PolicyVerdict, RuleProgress, UnapprovedLimit};
pub(crate) use holds::HoldingRule;
pub(crate) use holds::held;
pub use holds::{HeldUntil, HoldCheck};
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
    /// The people that rules of approval name.
    approvers: Approvers,
    /// Batch contracts that the operator knows to be genuine, whose calls say all that they do.
    batch_contracts: BatchContracts,
    /// Whether it is the orchestrator's own copy, which names itself otherwise in refusals.
    of_service: bool,
}

/// Whose rules and counters they are. Printed as the refusals of signers name them.
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
        self.write(f, "this signer's policy")
    }
}

/// A scope of the policy that judges. Printed as refusals name it.
struct JudgingScope {
    scope: PolicyScope,
    of_service: bool,
}

impl fmt::Display for JudgingScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.of_service {
            false => self.scope.fmt(f),
            true => self.scope.write(f, "this service's policy"),
        }
    }
}

impl PolicyScope {
    fn write(&self, f: &mut fmt::Formatter<'_>, policy: &str) -> fmt::Result {
        f.write_str(policy)?;
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

/// What an orchestrator asks to have signed.
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
    /// The price per unit that is paid, where the payload names it or a part of it. Nobody but the orchestrator says
    /// that a client did.
    pub own_price: Option<u128>,
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
    /// What may go in any 24 hours as long as people have not approved what they have to above it.
    pub unapproved: Option<UnapprovedLimit>,
}

/// The most of one asset, in its smallest unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct AmountLimit {
    per_request: Option<U256>,
    per_day: Option<U256>,
}

impl Policy {
    /// The policy of a node without a policy file: everything but raw signing, with the default highest fees.
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

    /// The same, for an orchestrator that refuses early what its signers would: refusals say so.
    pub fn of_service(self) -> Self {
        Self {
            of_service: true,
            ..self
        }
    }

    /// Whether `rawMessage` is signed, which no limit can hold.
    pub fn raw_signing(&self) -> bool {
        self.node.raw_signing.unwrap_or(false)
    }

    /// The people that rules of approval name.
    pub fn approvers(&self) -> &Approvers {
        &self.approvers
    }

    /// All rules that there are.
    fn scopes(&self) -> impl Iterator<Item = &ScopeRules> {
        let each = [&self.node, &self.each_vault, &self.each_wallet];
        let named = self.vaults.values().chain(self.wallets.values());
        each.into_iter().chain(named)
    }

    /// Those that some of what the vault signs can be judged by.
    fn scopes_of(&self, vault: VaultId) -> impl Iterator<Item = &ScopeRules> {
        let of_vault = self.vaults.get(&vault).unwrap_or(&self.each_vault);
        [&self.node, of_vault, &self.each_wallet]
            .into_iter()
            .chain(self.wallets.values())
    }

    /// Whether people have to approve some of what the vault signs.
    pub fn asks_approvals(&self, vault: VaultId) -> bool {
        let mut scopes = self.scopes_of(vault);
        scopes.any(|rules| !rules.approvals.is_empty())
    }

    /// Checks a verified order of a key below `root`, its payload, and at `now_ms` the approvals that it
    /// carries, where any are wanted. What has to be counted: the limits per day hold only when the claims
    /// count it too.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] that begins with what is forbidden: `network`,
    /// `kind`, `recipient`, `amount`, `fee`, `price` or `approvals`; `recipientIndices` that are wrong;
    /// [`covault_core::fault::FaultCode::ApprovalsMissing`] when people have to approve.
    pub fn check(
        &self,
        order: &SigningOrder,
        root: &RootKey,
        payload: &Payload,
        now_ms: u64,
    ) -> Result<Vec<Spending>, Fault> {
        let own_wallets = order.own_recipients(root, payload)?;
        let rules = order.network.rules();
        let (fee, paid_price) = match payload.pays_fee() {
            true => (
                rules.most_fee(&order.unsigned)?,
                rules.paid_price(&order.unsigned)?,
            ),
            false => (U256::ZERO, None),
        };
        let price = rules.quoted_price(payload, &order.chain_data);
        let verdict = self.evaluate(&PolicyRequest {
            vault: order.vault,
            network: order.network,
            payload,
            fee,
            price,
            own_price: paid_price.filter(|paid| Some(*paid) != price),
            own_wallets: &own_wallets,
        })?;
        // Whatever there is of approvals, nobody stores and sends on more than this.
        order.approvals.check_bounds()?;
        let verified = match verdict.asks() {
            true => self
                .approvers
                .verify(&order.approval(), &order.approvals, fee, now_ms)?,
            false => VerifiedApprovals::default(),
        };
        verdict.settle(&verified)
    }

    /// Judges what is asked, by the rules of node, vault and wallet: what has to be counted, and what people
    /// have to approve.
    ///
    /// # Errors
    /// As [`Policy::check`], without approvals.
    pub fn evaluate(&self, asked: &PolicyRequest<'_>) -> Result<PolicyVerdict<'_>, Fault> {
        let outflow = self.outflow(asked.payload, asked.network);
        let of_vault = self.vaults.get(&asked.vault).unwrap_or(&self.each_vault);
        let wallet = (asked.network, asked.payload.from().to_owned());
        let of_wallet = self.wallets.get(&wallet).unwrap_or(&self.each_wallet);
        let scopes = [
            (PolicyScope::Node, &self.node),
            (PolicyScope::Vault(asked.vault), of_vault),
            (PolicyScope::Wallet(wallet.1), of_wallet),
        ];
        let mut verdict = PolicyVerdict::default();
        let allowance = match asked.payload {
            Payload::Evm(payload) => payload.batch_allowance(&self.batch_contracts),
            _ => None,
        };
        for (scope, rules) in scopes {
            let of_service = self.of_service;
            let scope = JudgingScope { scope, of_service };
            // No amount leaves by it, and yet it calls the token's contract.
            if let Some(token) = &allowance {
                rules.check_listed(&scope, token)?;
            }
            rules.check(&scope, asked, &outflow, &mut verdict)?;
        }
        Ok(verdict)
    }

    /// What a payload lets leave a wallet: of a known batch contract, each row.
    fn outflow(&self, payload: &Payload, wallet: Network) -> Outflow {
        let of_batch = match payload {
            Payload::Evm(payload) => payload.batch_outflow(&self.batch_contracts),
            _ => None,
        };
        of_batch.unwrap_or_else(|| payload.outflow(wallet))
    }

    /// [`Policy::evaluate`] before the transaction is built: what not even the least possible fee makes allowed is
    /// refused. `None`: the fee is not known.
    ///
    /// # Errors
    /// As there.
    pub fn foresee(
        &self,
        asked: &PolicyRequest<'_>,
        fee: Option<U256>,
    ) -> Result<PolicyVerdict<'_>, Fault> {
        // No transaction costs nothing, so what no fee makes allowed is never signed.
        let least = fee.unwrap_or(U256::from(asked.payload.is_transaction()));
        self.evaluate(&PolicyRequest {
            fee: least,
            ..*asked
        })?;
        self.evaluate(&PolicyRequest {
            fee: fee.unwrap_or_default(),
            ..*asked
        })
    }
}

/// The refusal when the total of 24 hours would be too high.
pub(crate) fn over_day(scope: &dyn fmt::Display, asset: &str) -> Fault {
    let sentence = format_args!("with the fee, more {asset} than {scope} allows in 24 hours");
    Fault::field("amount", sentence)
}
