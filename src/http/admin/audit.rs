//! The audit log, page by page.

use axum::Router;
use covault_actors::{
    audit::AuditCursor,
    gateway::{AuditQuery, AuditView, Query, View},
};
use covault_core::{
    audit::{Chain, EntryLine, Head, HeadLine, Linked, OlderLine},
    fault::Fault,
    request::Audit,
};
use serde::{Deserialize, Serialize};

use super::{decode, encode};
use crate::{
    api::unexpected,
    http::{Answer, Call, Route},
};

pub(super) fn routes(route: &Route) -> Router {
    Router::new()
        .route("/admin/v1/listAuditChains", route.clone().post(chains))
        .route("/admin/v1/listAuditEntries", route.clone().post(entries))
        .route("/admin/v1/listOlderAudit", route.clone().post(older))
}

/// Which chains.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ListChains {
    /// Those after this one; absent: from the first on.
    pub after: Option<String>,
}

/// Answer of listAuditChains; empty when there are no more.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChainsAnswer {
    pub chains: Vec<ChainState>,
}

/// A chain.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChainState {
    /// `service`, or `vault:` and a uuid.
    pub chain: String,
    /// Its last entry.
    pub head: Option<HeadLine>,
}

/// Which entries.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListEntries {
    /// The chain.
    pub chain: String,
    /// The first number.
    #[serde(default)]
    pub from: u64,
}

/// Answer of listAuditEntries; empty when there are no more.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EntriesAnswer {
    pub entries: Vec<PlacedEntry>,
    /// The head of the chain, looked up after them.
    pub head: Option<HeadLine>,
}

/// An entry where it lies.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacedEntry {
    /// The number under which it lies.
    pub at: u64,
    pub line: EntryLine,
}

/// Which rows that are older than the chains.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ListOlder {
    /// Those after this one; absent: from the first on.
    pub after: Option<OlderPlace>,
}

/// A row that is older than the chains.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OlderPlace {
    pub request: String,
    pub number: u64,
}

/// Answer of listOlderAudit; empty when there are no more.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OlderAnswer {
    pub older: Vec<OlderLine>,
}

async fn ask(call: &Call, query: AuditQuery) -> Result<AuditView, Fault> {
    let query = Query::Audit(query);
    match call.api.gateway.view(&call.caller, query).await? {
        View::Audit(view) => Ok(view),
        other => Err(unexpected(&other)),
    }
}

async fn chains(call: Call) -> Result<Answer, Fault> {
    let ListChains { after } = decode(&call.body)?;
    let after = after
        .map(|chain| chain.parse::<Chain>())
        .transpose()
        .map_err(|_| Fault::field("after", "must be service, or vault: and a uuid"))?;
    match ask(&call, AuditQuery::Chains(after)).await? {
        AuditView::Chains(found) => encode(&chains_answer(found)),
        other => Err(unexpected(&other)),
    }
}

async fn entries(call: Call) -> Result<Answer, Fault> {
    let ListEntries { chain, from } = decode(&call.body)?;
    let chain: Chain = chain.parse()?;
    match ask(&call, AuditQuery::Entries(chain, from)).await? {
        AuditView::Entries { entries, head } => encode(&entries_answer(chain, entries, head)),
        other => Err(unexpected(&other)),
    }
}

async fn older(call: Call) -> Result<Answer, Fault> {
    let ListOlder { after } = decode(&call.body)?;
    let after = after
        .map(|OlderPlace { request, number }| Ok((request.parse()?, number)))
        .transpose()
        .map_err(|fault: Fault| Fault::field("after.request", fault.message()))?;
    match ask(&call, AuditQuery::Older(after)).await? {
        AuditView::Older(found) => encode(&older_answer(found)),
        other => Err(unexpected(&other)),
    }
}

/// What is told of chains.
pub fn chains_answer(found: Vec<(Chain, Option<Head>)>) -> ChainsAnswer {
    let state = |(chain, head): (Chain, Option<_>)| ChainState {
        chain: chain.to_string(),
        head: head.map(|head| HeadLine::new(chain, &head)),
    };
    ChainsAnswer {
        chains: found.into_iter().map(state).collect(),
    }
}

/// What is told of entries.
pub fn entries_answer(
    chain: Chain,
    entries: Vec<(u64, Linked)>,
    head: Option<Head>,
) -> EntriesAnswer {
    let placed = |(at, linked)| PlacedEntry {
        at,
        line: EntryLine::new(chain, &linked),
    };
    EntriesAnswer {
        entries: entries.into_iter().map(placed).collect(),
        head: head.map(|head| HeadLine::new(chain, &head)),
    }
}

/// What is told of rows that are older than the chains.
pub fn older_answer(found: Vec<(AuditCursor, Vec<Audit>)>) -> OlderAnswer {
    let line = |((request, number), trail)| OlderLine::new(request, number, trail);
    OlderAnswer {
        older: found.into_iter().map(line).collect(),
    }
}
