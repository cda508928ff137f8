//! API tokens.

use axum::Router;
use covault_actors::gateway::{Command, MadeToken, Query, Receipt, View};
use covault_core::{
    fault::Fault,
    ids::VaultId,
    token::{Access, ApiToken, Cidr, Kind, NewToken, Vaults},
};
use secrecy::ExposeSecret as _;
use serde::{Deserialize, Serialize};

use super::{decode, encode};
use crate::{
    api::unexpected,
    http::{Answer, Call, Route, nodes::Nothing},
};

pub(super) fn routes(route: &Route) -> Router {
    Router::new()
        .route("/admin/v1/createToken", route.clone().post(create))
        .route("/admin/v1/listTokens", route.clone().post(list))
        .route("/admin/v1/revokeToken", route.clone().post(revoke))
}

/// A token to be made.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CreateToken {
    /// What to call it; unique among tokens that are not revoked.
    pub name: String,
    /// `platform` or `sweep`.
    pub kind: String,
    /// Uuids of the vaults that it reaches.
    pub vaults: Vec<String>,
    /// It reaches every vault, also those that are made later.
    pub all_vaults: bool,
    /// `full` or `read-only`.
    pub access: String,
    /// Addresses and CIDR networks that it may be used from; none: any.
    pub allow: Vec<String>,
    /// From when on it is refused, in milliseconds since the Unix epoch; null: never.
    pub expires_at_ms: Option<u64>,
}

/// A token to be revoked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RevokeToken {
    /// Its id, or its name.
    pub token: String,
}

/// A token, without its text.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Token {
    pub id: String,
    pub name: String,
    /// `platform` or `sweep`.
    pub kind: String,
    /// Uuids; none with `allVaults`.
    pub vaults: Vec<String>,
    pub all_vaults: bool,
    /// `full` or `read-only`.
    pub access: String,
    pub allow: Vec<String>,
    /// Milliseconds since the Unix epoch, as the two that follow.
    pub created_at_ms: u64,
    pub expires_at_ms: Option<u64>,
    pub revoked_at_ms: Option<u64>,
}

/// Answer of createToken. The token is shown here and never again.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MadeAnswer {
    /// The text that calls send as `x-mtoken`.
    pub secret: String,
    pub token: Token,
}

/// It holds a secret.
impl std::fmt::Debug for MadeAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MadeAnswer")
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

/// Answer of revokeToken.
#[derive(Debug, Serialize, Deserialize)]
pub struct TokenAnswer {
    pub token: Token,
}

/// Answer of listTokens.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokensAnswer {
    /// In the order in which they were made.
    pub tokens: Vec<Token>,
    /// The orchestrator's clock, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

async fn create(call: Call) -> Result<Answer, Fault> {
    let new = parse(decode(&call.body)?)?;
    let done = super::submit(&call, Command::CreateToken(new)).await?;
    match done {
        Receipt::TokenMade(made) => {
            let MadeToken { secret, record } = *made;
            encode(&MadeAnswer {
                secret: secret.expose_secret().to_owned(),
                token: show(record),
            })
        }
        other => Err(unexpected(&other)),
    }
}

async fn list(call: Call) -> Result<Answer, Fault> {
    let Nothing {} = decode(&call.body)?;
    match call.api.gateway.view(&call.caller, Query::Tokens).await? {
        View::Tokens { tokens, now_ms } => encode(&TokensAnswer {
            tokens: tokens.into_iter().map(show).collect(),
            now_ms,
        }),
        other => Err(unexpected(&other)),
    }
}

async fn revoke(call: Call) -> Result<Answer, Fault> {
    let RevokeToken { token } = decode(&call.body)?;
    match super::submit(&call, Command::RevokeToken(token)).await? {
        Receipt::Token(token) => encode(&TokenAnswer {
            token: show(*token),
        }),
        other => Err(unexpected(&other)),
    }
}

fn parse(request: CreateToken) -> Result<NewToken, Fault> {
    let CreateToken {
        name,
        kind,
        vaults,
        all_vaults,
        access,
        allow,
        expires_at_ms,
    } = request;
    let kind =
        Kind::parse(&kind).ok_or_else(|| Fault::field("kind", "must be platform or sweep"))?;
    let access = Access::parse(&access)
        .ok_or_else(|| Fault::field("access", "must be full or read-only"))?;
    let vaults = match (all_vaults, vaults.is_empty()) {
        (true, true) => Vaults::All,
        (true, false) => {
            return Err(Fault::field("vaults", "cannot be combined with allVaults"));
        }
        (false, true) => {
            return Err(Fault::field("vaults", "are required, or allVaults"));
        }
        (false, false) => Vaults::Only(each("vaults", &vaults, str::parse::<VaultId>)?),
    };
    Ok(NewToken {
        name,
        kind,
        vaults,
        access,
        allow: each("allow", &allow, str::parse::<Cidr>)?,
        expires_at_ms,
    })
}

fn each<T>(
    field: &str,
    texts: &[String],
    parse: impl Fn(&str) -> Result<T, Fault>,
) -> Result<Vec<T>, Fault> {
    let parsed = texts.iter().enumerate().map(|(index, text)| {
        parse(text).map_err(|fault| Fault::field(format_args!("{field}[{index}]"), fault.message()))
    });
    parsed.collect()
}

pub(super) fn show(record: ApiToken) -> Token {
    let ApiToken {
        id,
        name,
        kind,
        vaults,
        access,
        allow,
        created_at_ms,
        expires_at_ms,
        revoked_at_ms,
        hash: _,
    } = record;
    let (all_vaults, vaults) = match vaults {
        Vaults::All => (true, Vec::new()),
        Vaults::Only(vaults) => (false, vaults),
    };
    Token {
        id: id.to_string(),
        name,
        kind: kind.name().to_owned(),
        vaults: vaults.iter().map(ToString::to_string).collect(),
        all_vaults,
        access: access.name().to_owned(),
        allow: allow.iter().map(ToString::to_string).collect(),
        created_at_ms,
        expires_at_ms,
        revoked_at_ms,
    }
}
