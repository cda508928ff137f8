//! Commands of operators about vaults.

use covault_core::{
    audit::Chain,
    fault::{Class, Fault},
    order::{BackupOrder, NodeId},
    scheme::Scheme,
    wallet::vault::{KeyState, Vault},
};
use ractor::RpcReplyPort;
use serde::{Deserialize, Serialize};

use crate::{
    audit::{self, By, Note},
    directory::{self, Made, NewVault},
    gateway::{Caller, Inner, VaultView, answer, operators_only},
    port::NodeBackup,
    vault::{self, KeyPlan, LifeMsg, ReshareRequest, view::view},
};

/// How long nodes may take to encrypt their shares, in milliseconds.
const BACKUP_MS: u64 = 15_000;
/// Most age recipients of a backup.
const MAX_RECIPIENTS: usize = 16;

/// One node's share of one key, encrypted, or why there is none.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShareBackup {
    /// The node.
    pub node: NodeId,
    /// The name it announced; empty when it never did.
    pub name: String,
    /// The key.
    pub scheme: Scheme,
    /// Generation of the shares.
    pub epoch: u32,
    /// Shares needed to recover the key.
    pub threshold: u16,
    /// An age file.
    pub backup: NodeBackup,
}

impl Inner {
    pub(crate) async fn create_vault(
        &self,
        caller: &Caller,
        name: String,
        threshold: u16,
        signers: Vec<NodeId>,
        ecdsa: Scheme,
        replace: bool,
    ) -> Result<VaultView, Fault> {
        operators_only(caller)?;
        let directory = self.directory()?;
        let by = By::caller(caller);
        let (wanted, asked) = (signers.clone(), by.clone());
        let message = |reply| {
            directory::Msg::CreateVault(Box::new(NewVault {
                name,
                threshold,
                signers,
                ecdsa,
                replace,
                by,
                reply,
            }))
        };
        let made = answer(directory.call(message, self.context.call_timeout()).await)??;
        let made = match made {
            Made::Vault(made) => made,
            Made::Other(id) => {
                let actor = self.vault(id).await?;
                let message = |reply| {
                    vault::Msg::MakeKeysWith(Box::new(KeyPlan {
                        threshold,
                        signers: wanted,
                        ecdsa,
                        by: asked,
                        reply,
                    }))
                };
                Box::new(answer(
                    actor.call(message, self.context.call_timeout()).await,
                )??)
            }
        };
        if made.failed_reason().is_none() {
            return Ok(view(&self.context, &made));
        }
        let actor = self.vault(made.id).await?;
        let by = By::caller(caller);
        let message = |reply| vault::Msg::MakeKeysAgain(by, reply);
        let again = actor.call(message, self.context.call_timeout()).await;
        Ok(view(&self.context, &answer(again)??))
    }

    pub(crate) async fn reshare(
        &self,
        caller: &Caller,
        vault: &str,
        reshare_request: ReshareRequest,
    ) -> Result<VaultView, Fault> {
        operators_only(caller)?;
        let by = By::caller(caller);
        self.life(caller, vault, |reply| {
            LifeMsg::Want(Box::new(reshare_request), by, reply)
        })
        .await
    }

    pub(crate) async fn cancel_reshare(
        &self,
        caller: &Caller,
        vault: &str,
    ) -> Result<VaultView, Fault> {
        let by = By::caller(caller);
        self.life(caller, vault, |reply| LifeMsg::Cancel(by, reply))
            .await
    }

    pub(crate) async fn backup(
        &self,
        caller: &Caller,
        vault: &str,
        recipients: Vec<String>,
    ) -> Result<Vec<ShareBackup>, Fault> {
        operators_only(caller)?;
        if recipients.is_empty() || recipients.len() > MAX_RECIPIENTS {
            return Err(Fault::field(
                "recipients",
                format!("must be 1 to {MAX_RECIPIENTS}"),
            ));
        }
        let context = &self.context;
        let (vault, _) = context
            .vault(vault.parse()?)
            .await?
            .ok_or_else(Fault::invalid_uuid)?;
        if !vault.ready() {
            return Err(Fault::new(
                Class::WrongState,
                "the vault's keys are not made yet",
            ));
        }
        // Before anybody is asked: what nodes hand out must not lack its entry.
        let wanted = Note::of_vault(&By::caller(caller), vault.id, "SharesBackupWanted")
            .fact("recipients", recipients.join(" "));
        audit::note(context, Chain::Vault(vault.id), wanted).await?;
        let orders = vault.keys.iter().filter_map(|key| {
            let KeyState::Ready(live) = &key.state else {
                return None;
            };
            let now = context.now_ms();
            let order = BackupOrder {
                vault: vault.id,
                session: context.new_session_id(),
                root_public_key: live.root.public_key.clone(),
                epoch: live.generation.epoch,
                holders: live.generation.holders.clone(),
                recipients: recipients.clone(),
                issued_at_ms: now,
                expires_at_ms: now.saturating_add(BACKUP_MS),
            };
            Some((key.scheme, live.generation.threshold, order))
        });
        // All at once: a node that is silent is waited for once, and costs only its own shares.
        let asked = orders.map(|(scheme, threshold, order)| async move {
            let answers = context.signers.backup(&order).await;
            let nobody = |fault: Fault| {
                let holders = order.holders.iter();
                holders.map(|node| (*node, Err(fault.clone()))).collect()
            };
            let answers = answers.unwrap_or_else(nobody);
            (scheme, threshold, order.epoch, answers)
        });
        let answered: Vec<(_, _, _, Vec<_>)> = futures::future::join_all(asked).await;
        let nodes = context.signers.nodes();
        let mut backups = Vec::new();
        for (scheme, threshold, epoch, answers) in answered {
            backups.extend(answers.into_iter().map(|(node, backup)| {
                let view = nodes.iter().find(|view| view.id == node);
                ShareBackup {
                    node,
                    name: view.map(|view| view.name.clone()).unwrap_or_default(),
                    scheme,
                    epoch,
                    threshold,
                    backup,
                }
            }));
        }
        Ok(backups)
    }

    async fn life(
        &self,
        caller: &Caller,
        vault: &str,
        message: impl FnOnce(RpcReplyPort<Result<Vault, Fault>>) -> LifeMsg,
    ) -> Result<VaultView, Fault> {
        operators_only(caller)?;
        let actor = self.vault(vault.parse()?).await?;
        let message = |reply| vault::Msg::Life(message(reply));
        let vault = answer(actor.call(message, self.context.call_timeout()).await)??;
        Ok(view(&self.context, &vault))
    }
}
