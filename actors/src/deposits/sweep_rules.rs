//! Whether and how the deposits of a sweep token on one chain are swept, as an operator sets it.

use covault_core::{
    amount::{parse_u128, parse_u256},
    audit::AuditChain,
    deposit::{
        SweepRoute, SweepRules,
        transfer::{Account, DepositAddress, FollowedChain},
    },
    fault::Fault,
    schema::admin,
    wallet::{Wallet, WalletStatus},
};

use super::{assets::AssetName, reconcile, route, sweep_token};
use crate::{
    audit::{self, AuditActor, AuditNote},
    commands::caller::Caller,
    services::Services,
    store::{Batch, Precondition, deposit_rows, rows, sweep_rows},
};

/// The only method by which fees of tokens are paid.
const TOP_UP: &str = "topup";

/// Changes the rules. What they are then.
///
/// # Errors
/// [`Class::Invalid`] naming the field, [`Class::Conflict`] when another call changes them at the same time.
pub async fn change(
    services: &Services,
    caller: &Caller,
    request: admin::SetSweepRulesRequest,
) -> Result<admin::SweepRules, Fault> {
    let admin::SetSweepRulesRequest {
        token,
        network,
        chain_id,
        enabled,
        gas_wallet,
        max_cost_percent,
        max_gas_price,
        max_wait_seconds,
        method,
        max_top_up,
        every_seconds,
    } = request;
    let chain = AssetName::parse(&network, &chain_id, "")?.chain;
    if let Some(method) = method
        && method != TOP_UP
    {
        let problem = match method.as_str() {
            "delegate7702" => "delegate7702 is not built yet; use topup",
            _ => "must be topup",
        };
        return Err(Fault::field("method", problem));
    }
    let token = sweep_token(services, &token).await?;
    // What a revoked token sweeps can still be switched off.
    let is_switched_off = enabled == Some(false)
        && gas_wallet.is_none()
        && max_cost_percent.is_none()
        && max_gas_price.is_none()
        && max_top_up.is_none()
        && max_wait_seconds.is_none()
        && every_seconds.is_none();
    if token.revoked_at_ms.is_some() && !is_switched_off {
        return Err(Fault::field("token", "was revoked"));
    }
    let key = sweep_rows::rules(token.id, chain);
    let (mut rules, expect) = match services.load::<SweepRules>(&key).await? {
        Some((rules, version)) => (rules, Precondition::Version(version)),
        None => (SweepRules::default(), Precondition::Absent),
    };
    let before = rules.clone();
    let route = route(services, token.id, chain.network()).await?;
    if let Some(address) = gas_wallet {
        let (wallet, account) = check_gas_wallet(services, &route, chain, &address).await?;
        rules.gas_wallet = Some(wallet.id);
        if !rules.gas_accounts.contains(&account) {
            rules.gas_accounts.push(account);
        }
    }
    if let Some(percent) = max_cost_percent {
        if !(1..=100).contains(&percent) {
            return Err(Fault::field("maxCostPercent", "must be from 1 to 100"));
        }
        rules.max_cost_percent = percent;
    }
    if let Some(text) = max_gas_price {
        rules.max_gas_price = limit("maxGasPrice", &text)?;
    }
    if let Some(text) = max_top_up {
        rules.max_top_up = limit("maxTopUp", &text)?;
    }
    if let Some(seconds) = max_wait_seconds {
        rules.max_wait_s = seconds.into();
    }
    if let Some(seconds) = every_seconds {
        rules.every_s = seconds.into();
    }
    rules.enabled = enabled.unwrap_or(rules.enabled);
    if rules.enabled {
        check_complete(&rules, &route, chain)?;
    }
    if rules != before {
        let mut batch = Batch::new();
        batch.put(key, expect, rows::encode(&rules)?);
        AuditNote::new(
            &AuditActor::caller(caller),
            audit::token(token.id),
            "SweepRulesSet",
        )
        .fact("chain", chain)
        .fact("enabled", rules.enabled)
        .fact(
            "gasWallet",
            rules
                .gas_wallet
                .map(|id| id.to_string())
                .unwrap_or_default(),
        )
        .fact("maxCostPercent", rules.max_cost_percent)
        .fact(
            "maxGasPrice",
            rules
                .max_gas_price
                .map(|price| price.to_string())
                .unwrap_or_default(),
        )
        .fact(
            "maxTopUp",
            rules
                .max_top_up
                .map(|most| most.to_string())
                .unwrap_or_default(),
        )
        .fact("maxWaitSeconds", rules.max_wait_s)
        .fact("everySeconds", rules.every_s)
        .add_to(&mut batch, AuditChain::Service, services.now_ms())?;
        // What was paid before it was swept is not noted yet.
        let wanted = (rules.enabled && !before.enabled).then_some(chain);
        reconcile::commit(services, batch, wanted, "the set of rules was").await?;
    }
    message_of(services, chain, &rules).await
}

/// A limit as an operator writes it; `None` for an empty text.
fn limit(field: &str, text: &str) -> Result<Option<u128>, Fault> {
    if text.is_empty() {
        return Ok(None);
    }
    let limit = parse_u128(text).map_err(|error| Fault::field(field, error))?;
    match limit {
        0 => Err(Fault::field(field, "must be above 0")),
        limit => Ok(Some(limit)),
    }
}

/// Refuses to switch on what could not work, or what one node or anyone who pays a little could make dear.
fn check_complete(
    rules: &SweepRules,
    route: &SweepRoute,
    chain: FollowedChain,
) -> Result<(), Fault> {
    let refused = |problem: &str| Err(Fault::field("enabled", problem));
    if route.vault.is_none() || route.target.is_none() {
        return refused("vault and target are not configured: covault sweep configure");
    }
    let assets = route.assets.get(&chain);
    let Some(assets) = assets else {
        return refused("no coin or token has a minimum: covault sweep asset add");
    };
    // Anyone can pay one unit to many wallets, and each sweep costs coin of the gas wallet.
    if assets
        .tokens
        .values()
        .any(|minimum| parse_u256(minimum).is_ok_and(|minimum| minimum.is_zero()))
    {
        return refused(
            "a token has the minimum 0: covault sweep asset add with a minimum above the cost of a sweep",
        );
    }
    if assets.tokens.is_empty() {
        return Ok(());
    }
    if rules.gas_wallet.is_none() {
        return refused("gasWallet is not set: fees of tokens are paid from it");
    }
    // No price of a token is known here, so that nothing else holds what a sweep of it may cost.
    if rules.max_top_up.is_none() {
        return refused("maxTopUp is not set: the most coin that a deposit wallet gets for a fee");
    }
    if rules.max_gas_price.is_none() {
        return refused("maxGasPrice is not set: nothing else limits the fee of a token's sweep");
    }
    Ok(())
}

async fn check_gas_wallet(
    services: &Services,
    route: &SweepRoute,
    chain: FollowedChain,
    address: &str,
) -> Result<(Wallet, Account), Fault> {
    let refused = |problem: &str| Fault::field("gasWallet", problem);
    let network = chain.network();
    let canonical = network.network().rules().parse_address(address);
    let canonical = canonical.map_err(|fault| refused(fault.message()))?;
    let wallet = services
        .wallet_by(&rows::wallet_address(&canonical))
        .await?;
    let Some((wallet, _)) = wallet else {
        return Err(refused("is not the address of a wallet"));
    };
    if route.vault != Some(wallet.vault) {
        return Err(refused(
            "is not a wallet of the vault of the deposit wallets",
        ));
    }
    if wallet.status == WalletStatus::Archived {
        return Err(refused("is an archived wallet"));
    }
    if route.target.as_ref() == Some(&canonical) {
        return Err(refused("is the target of the sweeps"));
    }
    let account = Account::parse(network, &canonical);
    let account = account.ok_or_else(|| Fault::bug("a wallet whose address cannot be read"))?;
    let key = deposit_rows::deposit_address(network, account);
    if services.load::<DepositAddress>(&key).await?.is_some() {
        return Err(refused("is a deposit wallet"));
    }
    Ok((wallet, account))
}

/// The rules as operators see them.
///
/// # Errors
/// When the store cannot be read.
pub async fn message_of(
    services: &Services,
    chain: FollowedChain,
    rules: &SweepRules,
) -> Result<admin::SweepRules, Fault> {
    let SweepRules {
        retries: _,
        enabled,
        gas_wallet,
        gas_accounts: _,
        max_cost_percent,
        max_gas_price,
        max_top_up,
        max_wait_s,
        every_s,
    } = rules;
    let gas_wallet = match gas_wallet {
        Some(id) => services.wallet(*id).await?.0.address,
        None => String::new(),
    };
    Ok(admin::SweepRules {
        network: chain.network().name().to_owned(),
        chain_id: chain
            .chain_id()
            .map(|id| id.to_string())
            .unwrap_or_default(),
        enabled: *enabled,
        gas_wallet,
        max_cost_percent: *max_cost_percent,
        max_gas_price: max_gas_price
            .map(|price| price.to_string())
            .unwrap_or_default(),
        max_top_up: max_top_up.map(|most| most.to_string()).unwrap_or_default(),
        max_wait_seconds: *max_wait_s,
        every_seconds: *every_s,
        method: TOP_UP.to_owned(),
    })
}
