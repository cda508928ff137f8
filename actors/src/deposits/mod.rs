//! Deposits: what sweep tokens have configured per network, and the blocks of the chains that are followed for them.

pub mod addresses;
pub mod assets;
mod beside;
mod books;
mod change;
pub mod follower;
mod followers;
mod known;
mod matching;
mod progress;
pub mod reconcile;
pub mod rescan;
pub mod restart;
mod routes;
pub mod start;
pub mod sweep_counts;
pub mod sweep_retry;
pub mod sweep_rules;
pub mod sweep_status;
mod sweep_step;
pub mod sweeper;

pub use followers::DepositFollowers;

use covault_core::{
    deposit::{ChainAssets, DepositNetwork, SweepRoute, transfer::FollowedChain},
    fault::Fault,
    ids::TokenId,
    schema::admin,
    token::{ApiToken, TokenKind},
};

use crate::{commands::tokens, services::Services, store::rows};

/// What a sweep token has configured for one network; nothing, unless an operator did.
///
/// # Errors
/// When the store cannot be read.
pub async fn route(
    services: &Services,
    token: TokenId,
    network: DepositNetwork,
) -> Result<SweepRoute, Fault> {
    let found = services.load(&rows::sweep_route(token, network)).await?;
    Ok(found.map(|(route, _)| route).unwrap_or_default())
}

/// A sweep token, by its id or name.
///
/// # Errors
/// [`covault_core::fault::Class::Invalid`] naming `token` when there is no such token.
pub async fn sweep_token(services: &Services, which: &str) -> Result<ApiToken, Fault> {
    let (token, _) = tokens::find(services, which).await?;
    if token.kind != TokenKind::Sweep {
        return Err(Fault::field(
            "token",
            "is not a sweep token: make one with covault token create --kind sweep",
        ));
    }
    Ok(token)
}

/// The token with what it has configured, as operators see it.
///
/// # Errors
/// When the store cannot be read.
pub async fn message_of(
    services: &Services,
    token: ApiToken,
) -> Result<(admin::Token, Vec<admin::SweepNetwork>), Fault> {
    let mut networks = Vec::new();
    for network in DepositNetwork::ALL {
        let route = route(services, token.id, network).await?;
        if route == SweepRoute::default() {
            continue;
        }
        let SweepRoute {
            vault,
            target,
            webhook,
            assets,
        } = route;
        networks.push(admin::SweepNetwork {
            network: network.name().to_owned(),
            vault_uuid: vault.map(|vault| vault.to_string()),
            target,
            webhook: webhook.map(|webhook| webhook.0),
            assets: assets
                .into_iter()
                .flat_map(|(chain, assets)| asset_messages(chain, assets))
                .collect(),
        });
    }
    Ok((tokens::message_of(token), networks))
}

/// What is taken on a chain, as operators see it: the coin, then the tokens.
fn asset_messages(
    chain: FollowedChain,
    assets: ChainAssets,
) -> impl Iterator<Item = admin::SweepAsset> {
    let chain_id = chain.chain_id().map(|id| id.to_string());
    let chain_id = chain_id.unwrap_or_default();
    let coin = assets.coin_minimum.map(|minimum| (None, minimum));
    let tokens = assets.tokens.into_iter();
    let tokens = tokens.map(|(token, minimum)| (Some(token), minimum));
    coin.into_iter().chain(tokens).map(move |(token, minimum)| {
        let contract = token.map(|token| token.text(chain.network()));
        admin::SweepAsset {
            chain_id: chain_id.clone(),
            contract: contract.unwrap_or_default(),
            minimum,
        }
    })
}
