//! The life of a vault's keys: refresh, reshare, backup.

use std::sync::Arc;

use axum::Router;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_actors::gateway::{Command, KeyView, Receipt, Reshare, ShareBackup, WorkView};
use covault_core::{fault::Fault, scheme::Scheme};
use covault_mpc::{identity, shares::backup};
use serde::{Deserialize, Serialize};

use super::{VaultAnswer, decode, encode, parse_lines, vault};
use crate::{
    api::unexpected,
    http::{Answer, Api, Area, Call, Route},
};

pub(super) fn routes(api: &Arc<Api>) -> Router {
    let route = Route {
        api: Arc::clone(api),
        area: Area::Admin,
        operation: None,
        takes_idempotency_key: false,
    };
    Router::new()
        .route("/admin/v1/reshareVault", route.clone().post(reshare_vault))
        .route(
            "/admin/v1/cancelReshare",
            route.clone().post(cancel_reshare),
        )
        .route("/admin/v1/backupVault", route.post(backup_vault))
}

/// A root key of a vault.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Key {
    /// `frost-ed25519`, `dkls23` or `cggmp24`.
    pub scheme: String,
    /// The shares that sign; absent before the key is there.
    pub shares: Option<Shares>,
    /// What is in work.
    pub work: Option<Work>,
    /// Why that has not worked yet.
    pub problem: Option<String>,
    /// OpenSSH lines of nodes that have not confirmed these shares: those that hold none of them may
    /// still have older ones. They are told as soon as they are there.
    #[serde(default)]
    pub unconfirmed: Vec<String>,
    /// OpenSSH lines of nodes that may have shares of a run that has not succeeded. A refresh makes
    /// these worthless, and has them erased.
    #[serde(default)]
    pub leftover: Vec<String>,
}

/// A generation of shares.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Shares {
    /// Raised by every refresh and reshare.
    pub epoch: u32,
    pub threshold: u16,
    /// OpenSSH lines.
    pub holders: Vec<String>,
}

/// What is in work for a key.
#[derive(Debug, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    tag = "step"
)]
pub enum Work {
    /// New shares are made; the present ones sign.
    Preparing {
        threshold: u16,
        /// OpenSSH lines.
        holders: Vec<String>,
    },
    /// New shares sign; not every node has confirmed that it knows.
    Telling,
    /// Runs have failed; there is no other before it is asked for again. The present shares sign.
    Halted {
        threshold: u16,
        /// OpenSSH lines.
        holders: Vec<String>,
        /// Why the last run failed.
        reason: String,
    },
}

/// New shares for a vault's keys. Without threshold and signers: a refresh.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ReshareVault {
    pub vault_uuid: String,
    pub threshold: Option<u16>,
    /// OpenSSH lines of the nodes that get a share.
    pub signers: Vec<String>,
    /// OpenSSH lines of present holders that have lost their share.
    pub lost: Vec<String>,
    /// Names of the schemes whose keys are meant; none: every key.
    pub schemes: Vec<String>,
}

/// A vault whose reshare is to be cancelled.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CancelReshare {
    pub vault_uuid: String,
}

/// A vault whose shares are to be backed up.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackupVault {
    pub vault_uuid: String,
    /// age recipients, `age1...`.
    pub recipients: Vec<String>,
}

/// Answer of backupVault.
#[derive(Debug, Serialize, Deserialize)]
pub struct BackupsAnswer {
    pub backups: Vec<Backup>,
}

/// One node's share of one key, encrypted.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Backup {
    /// OpenSSH line of the node.
    pub public_key: String,
    pub name: String,
    pub scheme: String,
    pub epoch: u32,
    /// Shares needed to recover the key.
    pub threshold: u16,
    /// An age file, in base64.
    pub backup: Option<String>,
    /// Why there is none.
    pub problem: Option<String>,
}

async fn reshare_vault(call: Call) -> Result<Answer, Fault> {
    let ReshareVault {
        vault_uuid,
        threshold,
        signers,
        lost,
        schemes,
    } = decode(&call.body)?;
    let to = match threshold {
        Some(_) if signers.is_empty() => {
            return Err(Fault::field("signers", "are required with threshold"));
        }
        Some(threshold) => Some((threshold, parse_lines("signers", &signers)?)),
        None if signers.is_empty() => None,
        None => return Err(Fault::field("threshold", "is required with signers")),
    };
    let schemes = schemes.iter().enumerate().map(|(index, name)| {
        Scheme::parse(name).ok_or_else(|| {
            Fault::field(
                format_args!("schemes[{index}]"),
                "must be frost-ed25519, dkls23 or cggmp24",
            )
        })
    });
    let command = Command::ReshareVault {
        vault: vault_uuid,
        reshare: Reshare {
            to,
            lost: parse_lines("lost", &lost)?,
            schemes: schemes.collect::<Result<_, _>>()?,
        },
    };
    submit(&call, command).await
}

async fn cancel_reshare(call: Call) -> Result<Answer, Fault> {
    let CancelReshare { vault_uuid } = decode(&call.body)?;
    submit(&call, Command::CancelReshare { vault: vault_uuid }).await
}

async fn submit(call: &Call, command: Command) -> Result<Answer, Fault> {
    let done = call.api.gateway.submit(&call.caller, command, None).await?;
    match done.receipt {
        Receipt::Vault(view) => encode(&VaultAnswer { vault: vault(view) }),
        other => Err(unexpected(&other)),
    }
}

async fn backup_vault(call: Call) -> Result<Answer, Fault> {
    let BackupVault {
        vault_uuid,
        recipients,
    } = decode(&call.body)?;
    for (index, recipient) in recipients.iter().enumerate() {
        backup::recipients(std::slice::from_ref(recipient)).map_err(|error| {
            Fault::field(
                format_args!("recipients[{index}]"),
                "must be an age recipient: age1...",
            )
            .caused_by(error)
        })?;
    }
    let command = Command::BackupVault {
        vault: vault_uuid,
        recipients,
    };
    let done = call.api.gateway.submit(&call.caller, command, None).await?;
    match done.receipt {
        Receipt::Backups(backups) => encode(&BackupsAnswer {
            backups: backups.into_iter().map(show).collect(),
        }),
        other => Err(unexpected(&other)),
    }
}

fn show(share: ShareBackup) -> Backup {
    let ShareBackup {
        node,
        name,
        scheme,
        epoch,
        threshold,
        backup,
    } = share;
    let (backup, problem) = match backup {
        Ok(sealed) => (Some(STANDARD.encode(sealed)), None),
        Err(fault) => (None, Some(fault.message().to_owned())),
    };
    Backup {
        public_key: identity::openssh_line(&node, &name),
        name,
        scheme: scheme.name().to_owned(),
        epoch,
        threshold,
        backup,
        problem,
    }
}

pub(super) fn key(view: KeyView) -> Key {
    let KeyView {
        scheme,
        generation,
        work,
        problem,
        unconfirmed,
        leftover,
    } = view;
    let lines = |nodes: &[_]| {
        let lines = nodes.iter().map(|node| identity::openssh_line(node, ""));
        lines.collect::<Vec<_>>()
    };
    Key {
        scheme: scheme.name().to_owned(),
        shares: generation.map(|generation| Shares {
            epoch: generation.epoch,
            threshold: generation.threshold,
            holders: lines(&generation.holders),
        }),
        work: work.map(|work| match work {
            WorkView::Preparing { threshold, holders } => Work::Preparing {
                threshold,
                holders: lines(&holders),
            },
            WorkView::Telling => Work::Telling,
            WorkView::Halted {
                threshold,
                holders,
                reason,
            } => Work::Halted {
                threshold,
                holders: lines(&holders),
                reason,
            },
        }),
        problem,
        unconfirmed: lines(&unconfirmed),
        leftover: lines(&leftover),
    }
}
