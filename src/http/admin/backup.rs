//! Backups of the store, part by part, and letting clients in after a restore.

use axum::Router;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_actors::{
    gateway::{Command, Query, Receipt, View},
    store::RawRow,
};
use covault_core::fault::Fault;
use serde::{Deserialize, Serialize};

use super::{decode, encode, submit};
use crate::{
    api::unexpected,
    http::{Answer, Call, Route, nodes::Nothing},
};

pub(super) fn routes(route: &Route) -> Router {
    Router::new()
        .route("/admin/v1/beginBackup", route.clone().post(begin))
        .route("/admin/v1/getBackupPart", route.clone().post(part))
        .route("/admin/v1/letClientsIn", route.clone().post(let_in))
}

/// Answer of beginBackup.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Begun {
    /// The id of the backup.
    pub backup: String,
    /// The orchestrator's clock, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The version of Covault.
    pub version: String,
}

/// Which part.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetPart {
    /// The id of the backup.
    pub backup: String,
    /// From 0 on; each once.
    pub number: u64,
}

/// Answer of getBackupPart; without rows: there are no more.
#[derive(Debug, Serialize, Deserialize)]
pub struct Part {
    pub rows: Vec<PartRow>,
}

/// A row of the store.
#[derive(Debug, Serialize, Deserialize)]
pub struct PartRow {
    /// The number of its kind.
    pub space: u8,
    /// In base64.
    pub key: String,
    /// In base64.
    pub value: String,
}

impl PartRow {
    /// The row.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] when it is none.
    pub fn row(&self) -> Result<RawRow, Fault> {
        let bytes = |field: &str, text: &str| {
            let problem = |error| Fault::field(field, "is no base64").caused_by(error);
            STANDARD.decode(text).map_err(problem)
        };
        Ok(RawRow {
            space: self.space,
            key: bytes("key", &self.key)?,
            value: bytes("value", &self.value)?,
        })
    }
}

async fn begin(call: Call) -> Result<Answer, Fault> {
    let Nothing {} = decode(&call.body)?;
    match submit(&call, Command::BeginBackup).await? {
        Receipt::Backup(id) => encode(&Begun {
            backup: id.to_string(),
            at_ms: call.api.clock.now_ms(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }),
        other => Err(unexpected(&other)),
    }
}

async fn part(call: Call) -> Result<Answer, Fault> {
    let GetPart { backup, number } = decode(&call.body)?;
    let id = backup
        .parse()
        .map_err(|fault: Fault| Fault::field("backup", fault.message()))?;
    let query = Query::BackupPart(id, number);
    match call.api.gateway.view(&call.caller, query).await? {
        View::BackupPart(rows) => {
            let row = |RawRow { space, key, value }| PartRow {
                space,
                key: STANDARD.encode(key),
                value: STANDARD.encode(value),
            };
            encode(&Part {
                rows: rows.into_iter().map(row).collect(),
            })
        }
        other => Err(unexpected(&other)),
    }
}

async fn let_in(call: Call) -> Result<Answer, Fault> {
    let Nothing {} = decode(&call.body)?;
    match submit(&call, Command::LetClientsIn).await? {
        Receipt::ClientsLetIn => encode(&Nothing {}),
        other => Err(unexpected(&other)),
    }
}
