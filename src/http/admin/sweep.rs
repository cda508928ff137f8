//! What sweep tokens have configured.

use axum::Router;
use covault_actors::gateway::{Command, ConfigureSweep, Query, Receipt, SweepView, View};
use covault_core::{
    deposit::{DepositNetwork, Route as SweepRoute, Webhook},
    fault::Fault,
    ids::VaultId,
};
use serde::{Deserialize, Serialize};

use super::{
    decode, encode,
    tokens::{Token, show},
};
use crate::{
    api::unexpected,
    http::{Answer, Call, Route},
};

pub(super) fn routes(route: &Route) -> Router {
    Router::new()
        .route("/admin/v1/configureSweep", route.clone().post(configure))
        .route("/admin/v1/showSweep", route.clone().post(look))
}

/// A change for one network. What is absent or null stays as it is.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Configure {
    /// Id or name of a sweep token.
    pub token: String,
    /// `EVM` or `TRON`.
    pub network: String,
    /// The vault of new deposit wallets.
    #[serde(default)]
    pub vault_uuid: Option<String>,
    /// The address that deposits are swept to.
    #[serde(default)]
    pub target: Option<String>,
    /// The URL that events go to; empty: none.
    #[serde(default)]
    pub webhook: Option<Webhook>,
}

/// A sweep token.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Show {
    /// Its id, or its name.
    pub token: String,
}

/// What is configured for one network.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Configured {
    /// `EVM` or `TRON`.
    pub network: String,
    pub vault_uuid: Option<String>,
    pub target: Option<String>,
    pub webhook: Option<Webhook>,
}

/// Answer of both operations.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SweepAnswer {
    pub token: Token,
    pub networks: Vec<Configured>,
}

async fn configure(call: Call) -> Result<Answer, Fault> {
    let Configure {
        token,
        network,
        vault_uuid,
        target,
        webhook,
    } = decode(&call.body)?;
    let network = DepositNetwork::parse(&network)
        .ok_or_else(|| Fault::field("network", "must be EVM or TRON"))?;
    let vault = vault_uuid
        .map(|uuid| uuid.parse::<VaultId>())
        .transpose()
        .map_err(|_| Fault::field("vaultUuid", "is not a uuid"))?;
    let command = Command::ConfigureSweep(ConfigureSweep {
        token,
        network,
        vault,
        target,
        webhook,
    });
    match super::submit(&call, command).await? {
        Receipt::Sweep(view) => encode(&shown(*view)),
        other => Err(unexpected(&other)),
    }
}

async fn look(call: Call) -> Result<Answer, Fault> {
    let Show { token } = decode(&call.body)?;
    let query = Query::Sweep(token);
    match call.api.gateway.view(&call.caller, query).await? {
        View::Sweep(view) => encode(&shown(*view)),
        other => Err(unexpected(&other)),
    }
}

fn shown(view: SweepView) -> SweepAnswer {
    let SweepView { token, routes } = view;
    let one = |(network, route): (DepositNetwork, SweepRoute)| {
        let SweepRoute {
            vault,
            target,
            webhook,
        } = route;
        Configured {
            network: network.name().to_owned(),
            vault_uuid: vault.map(|vault| vault.to_string()),
            target,
            webhook,
        }
    };
    SweepAnswer {
        token: show(token),
        networks: routes.into_iter().map(one).collect(),
    }
}
