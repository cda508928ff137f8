//! The coins and tokens that a sweep token accepts.

use std::collections::btree_map::Entry;

use covault_core::{
    amount::parse_u256,
    audit::AuditChain,
    deposit::{
        DepositNetwork, SweepRoute, SweepRules,
        transfer::{Account, FollowedChain},
    },
    fault::Fault,
    networks::evm::transfers::COIN_LOGS,
    schema::admin,
    token::ApiToken,
};

use super::{message_of, reconcile, sweep_token};
use crate::{
    audit::{self, AuditActor, AuditNote},
    commands::caller::Caller,
    leases,
    services::Services,
    store::{Batch, Precondition, rows, sweep_rows},
};

/// Most tokens of one sweep token on one chain: all are named in each question about a block.
const MAX_TOKENS: usize = 100;

/// A coin or token of a chain.
pub struct AssetName {
    /// The chain.
    pub chain: FollowedChain,
    /// The contract; `None`: the coin.
    pub contract: Option<Account>,
}

impl AssetName {
    /// As an operator names it.
    ///
    /// # Errors
    /// [`Class::Invalid`] naming the field.
    pub fn parse(network: &str, chain_id: &str, contract: &str) -> Result<Self, Fault> {
        let network = DepositNetwork::parse(network)
            .ok_or_else(|| Fault::field("network", "must be EVM or TRON"))?;
        let chain = match network {
            DepositNetwork::Evm => {
                let id = chain_id.parse().ok().filter(|id| *id > 0);
                FollowedChain::Evm(id.ok_or_else(|| Fault::field("chainId", "must be a chain id"))?)
            }
            DepositNetwork::Tron if chain_id.is_empty() => FollowedChain::Tron,
            DepositNetwork::Tron => {
                return Err(Fault::field("chainId", "must be empty: TRON is one chain"));
            }
        };
        let contract = match contract {
            "" => None,
            text => {
                let canonical = network.parse_target(text);
                let canonical =
                    canonical.map_err(|fault| Fault::field("contract", fault.message()))?;
                let account = Account::parse(network, &canonical);
                Some(account.ok_or_else(|| Fault::bug("a contract that cannot be read"))?)
            }
        };
        // Each transfer of the coin would be told twice.
        if network == DepositNetwork::Evm && contract == Some(COIN_LOGS) {
            let problem = "is where logs of the coin come from; leave it empty for the coin";
            return Err(Fault::field("contract", problem));
        }
        Ok(Self { chain, contract })
    }
}

/// Sets the minimum of a coin or token, or removes it (`None`). What the token has configured then.
///
/// # Errors
/// [`Class::Invalid`] naming the field, [`Class::Conflict`] when another call changes it at the same time.
pub async fn change(
    services: &Services,
    caller: &Caller,
    token: &str,
    asset: &AssetName,
    minimum: Option<&str>,
) -> Result<(admin::Token, Vec<admin::SweepNetwork>), Fault> {
    let token = sweep_token(services, token).await?;
    if token.revoked_at_ms.is_some() {
        return Err(Fault::field("token", "was revoked"));
    }
    let rules = sweep_rows::rules(token.id, asset.chain);
    let rules = services.load::<SweepRules>(&rules).await?;
    let is_swept = rules.is_some_and(|(rules, _)| rules.enabled);
    if let Some(minimum) = minimum {
        // A slip of the pen would be told to nobody.
        let known = leases::unowned_chains(services).await?;
        if !known.contains_key(&asset.chain) {
            let problem = match asset.chain {
                FollowedChain::Evm(id) => format!(
                    "no orchestrator follows this chain: configure its nodes ([chains.evm.{id}]) without deposits = false"
                ),
                FollowedChain::Tron => {
                    "no orchestrator follows TRON: configure its nodes ([chains.tron]) without deposits = false".to_owned()
                }
            };
            return Err(Fault::field("chainId", problem));
        }
        let least = parse_u256(minimum).map_err(|error| Fault::field("minimum", error))?;
        if is_swept && asset.contract.is_some() && least.is_zero() {
            let problem = "must be above 0 where deposits are swept, and above the cost of a sweep: anyone can send \
                           small amounts to many wallets";
            return Err(Fault::field("minimum", problem));
        }
    }
    let key = rows::sweep_route(token.id, asset.chain.network());
    let (mut route, expect) = match services.load::<SweepRoute>(&key).await? {
        Some((route, version)) => (route, Precondition::Version(version)),
        None => (SweepRoute::default(), Precondition::Absent),
    };
    let before = route.clone();
    set(&mut route, asset, minimum)?;
    if route != before {
        let mut batch = Batch::new();
        batch.put(key, expect, rows::encode(&route)?);
        note(caller, &token, asset, minimum).add_to(
            &mut batch,
            AuditChain::Service,
            services.now_ms(),
        )?;
        // With a lower minimum more is to be swept of what is there.
        let wanted = is_swept.then_some(asset.chain);
        reconcile::commit(services, batch, wanted, "the configuration was").await?;
    }
    message_of(services, token).await
}

fn set(route: &mut SweepRoute, asset: &AssetName, minimum: Option<&str>) -> Result<(), Fault> {
    let mut entry = match route.assets.entry(asset.chain) {
        Entry::Occupied(entry) => entry,
        Entry::Vacant(_) if minimum.is_none() => return Ok(()),
        Entry::Vacant(entry) => entry.insert_entry(Default::default()),
    };
    let assets = entry.get_mut();
    match (asset.contract, minimum) {
        (None, minimum) => assets.coin_minimum = minimum.map(str::to_owned),
        (Some(contract), Some(minimum)) => {
            assets.tokens.insert(contract, minimum.to_owned());
        }
        (Some(contract), None) => {
            assets.tokens.remove(&contract);
        }
    }
    if assets.tokens.len() > MAX_TOKENS {
        let problem = format!("there are {MAX_TOKENS} tokens on this chain; no more can be added");
        return Err(Fault::field("contract", problem));
    }
    if *assets == Default::default() {
        entry.remove();
    }
    Ok(())
}

fn note(caller: &Caller, token: &ApiToken, asset: &AssetName, minimum: Option<&str>) -> AuditNote {
    let event = match minimum {
        Some(_) => "SweepAssetSet",
        None => "SweepAssetRemoved",
    };
    let network = asset.chain.network();
    let contract = asset.contract.map(|contract| contract.text(network));
    AuditNote::new(&AuditActor::caller(caller), audit::token(token.id), event)
        .fact("chain", asset.chain)
        .fact("contract", contract.unwrap_or_default())
        .fact("minimum", minimum.unwrap_or_default())
}
