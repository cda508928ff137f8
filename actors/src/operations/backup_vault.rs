use async_trait::async_trait;
use covault_core::{
    audit::AuditChain,
    fault::{Class, Fault},
    order::BackupOrder,
    schema::admin,
    wallet::{
        management::{ManagementKind, ManagementOutcome},
        vault::KeyState,
    },
};

use super::{Home, HomeLookup, Operation, OperationCall};
use crate::{
    audit::{self, AuditActor, AuditNote},
    nodes,
    store::Batch,
    vaults::management,
};

/// How long nodes may take to encrypt their shares, in milliseconds.
const BACKUP_MS: u64 = 15_000;
/// Most age recipients of a backup.
const MAX_RECIPIENTS: usize = 16;

/// Has every holder of a vault's keys encrypt its share to recipients that are kept offline.
pub struct BackupVault;

#[async_trait]
impl Operation for BackupVault {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.BackupVault";
    type Request = admin::BackupVaultRequest;
    type Response = admin::BackupVaultResponse;

    async fn home(_: &HomeLookup<'_>, _: &Self::Request) -> Result<Home, Fault> {
        Ok(Home::AnyOrchestrator)
    }

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let services = call.services;
        let admin::BackupVaultRequest {
            vault_uuid,
            recipients,
        } = request;
        if recipients.is_empty() || recipients.len() > MAX_RECIPIENTS {
            return Err(Fault::field(
                "recipients",
                format!("must be 1 to {MAX_RECIPIENTS}"),
            ));
        }
        for (index, recipient) in recipients.iter().enumerate() {
            let checked = services.signers.check_recipient(recipient);
            checked.map_err(|fault| {
                Fault::field(format_args!("recipients[{index}]"), fault.message())
            })?;
        }
        let (vault, _) = services
            .vault(vault_uuid.parse()?)
            .await?
            .ok_or_else(Fault::invalid_uuid)?;
        if !vault.ready() {
            return Err(Fault::new(
                Class::WrongState,
                "the vault's keys do not exist yet",
            ));
        }
        let nodes = nodes::written(services).await?;
        // Before anyone is asked: what nodes hand out must not lack its entry.
        let wanted = AuditNote::for_vault(
            &AuditActor::caller(call.caller),
            vault.id,
            "SharesBackupWanted",
        )
        .fact("recipients", recipients.join(" "));
        audit::note(services, AuditChain::Vault(vault.id), wanted).await?;
        let orders = vault.keys.iter().filter_map(|key| {
            let KeyState::Ready(live) = &key.state else {
                return None;
            };
            let now = services.now_ms();
            let order = BackupOrder {
                vault: vault.id,
                session: services.new_session_id(),
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
            let answers = services.signers.backup(&order).await;
            let nobody = |fault: Fault| {
                let holders = order.holders.iter();
                holders.map(|node| (*node, Err(fault.clone()))).collect()
            };
            let answers = answers.unwrap_or_else(nobody);
            (scheme, threshold, order.epoch, answers)
        });
        let answered: Vec<(_, _, _, Vec<_>)> = futures::future::join_all(asked).await;
        let (mut backups, mut outcome) = (Vec::new(), ManagementOutcome::Succeeded);
        for (scheme, threshold, epoch, answers) in answered {
            let came = answers.iter().filter(|(_, backup)| backup.is_ok()).count();
            if came < usize::from(threshold) {
                outcome = ManagementOutcome::Failed(format!(
                    "{came} nodes gave their shares of the {} key, and {threshold} are needed to recover it",
                    scheme.name()
                ));
            }
            backups.extend(answers.into_iter().map(|(node, backup)| {
                let view = nodes.iter().find(|view| view.id == node);
                let name = view.map(|view| view.name.clone()).unwrap_or_default();
                let (backup, problem) = match backup {
                    Ok(encrypted) => (Some(encrypted), None),
                    Err(fault) => (None, Some(fault.message().to_owned())),
                };
                admin::ShareBackup {
                    public_key: node.openssh_line(&name),
                    name,
                    scheme: scheme.name().to_owned(),
                    epoch,
                    threshold: threshold.into(),
                    backup,
                    problem,
                }
            }));
        }
        let mut batch = Batch::new();
        let kind = ManagementKind::RootKeyBackup;
        management::add_over(services, &mut batch, vault.id, kind, outcome)?;
        services.store.commit(batch).await?;
        Ok(admin::BackupVaultResponse { backups })
    }
}
