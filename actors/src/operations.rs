//! Commands of operators about vaults.

use covault_core::{
    fault::{Class, Fault},
    order::{BackupOrder, NodeId},
    scheme::Scheme,
    wallet::vault::{KeyState, Vault},
};
use ractor::RpcReplyPort;

use crate::{
    directory::{self, NewVault},
    gateway::{Caller, Inner, VaultScope, VaultView, answer},
    nodes,
    port::NodeBackup,
    vault::{self, LifeMsg, Wish, view::view},
};

/// How long nodes may take to encrypt their shares, in milliseconds.
const BACKUP_MS: u64 = 15_000;
/// Most age recipients of a backup.
const MAX_RECIPIENTS: usize = 16;

/// One node's share of one key, encrypted, or why there is none.
#[derive(Clone, Debug)]
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
    ) -> Result<VaultView, Fault> {
        operators_only(caller)?;
        let directory = self.directory()?;
        let message = |reply| {
            directory::Msg::CreateVault(Box::new(NewVault {
                name,
                threshold,
                signers,
                ecdsa,
                reply,
            }))
        };
        let made = answer(directory.call(message, self.context.call_timeout()).await)??;
        if made.failed_reason().is_none() {
            return Ok(view(&self.context, &made));
        }
        let actor = self.vault(made.id).await?;
        let again = actor
            .call(vault::Msg::MakeKeysAgain, self.context.call_timeout())
            .await;
        Ok(view(&self.context, &answer(again)??))
    }

    pub(crate) async fn reshare(
        &self,
        caller: &Caller,
        vault: &str,
        wish: Wish,
    ) -> Result<VaultView, Fault> {
        operators_only(caller)?;
        if let Some((_, holders)) = &wish.to {
            nodes::check_admitted(&self.context, "signers", holders).await?;
        }
        self.life(caller, vault, |reply| LifeMsg::Want(Box::new(wish), reply))
            .await
    }

    pub(crate) async fn cancel_reshare(
        &self,
        caller: &Caller,
        vault: &str,
    ) -> Result<VaultView, Fault> {
        self.life(caller, vault, LifeMsg::Cancel).await
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
        let nodes = context.signers.nodes();
        let mut backups = Vec::new();
        for key in &vault.keys {
            let KeyState::Ready(live) = &key.state else {
                continue;
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
            for (node, backup) in context.signers.backup(&order).await? {
                let view = nodes.iter().find(|view| view.id == node);
                backups.push(ShareBackup {
                    node,
                    name: view.map(|view| view.name.clone()).unwrap_or_default(),
                    scheme: key.scheme,
                    epoch: order.epoch,
                    threshold: live.generation.threshold,
                    backup,
                });
            }
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

/// Whose token reaches every vault.
fn operators_only(caller: &Caller) -> Result<(), Fault> {
    if caller.vaults == VaultScope::All {
        return Ok(());
    }
    Err(Fault::new(
        Class::Forbidden,
        "this token cannot make or change vaults",
    ))
}
