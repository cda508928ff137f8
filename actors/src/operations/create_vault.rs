use async_trait::async_trait;
use covault_core::{
    fault::Fault, ids::VaultId, request::ApprovalRule, schema::admin, scheme::Scheme,
    signature::Curve, wallet::vault::Vault,
};

use super::{
    Home, HomeLookup, Operation, OperationCall,
    admin::{parse_lines, parse_threshold},
};
use crate::{
    audit::AuditActor,
    services::Services,
    store::rows,
    vaults::{
        creation::{NewVault, VaultCreation},
        directory,
        vault::{self, KeyPlan, vault_message},
    },
};

/// Makes a vault: key generation of its root keys. Answers when the vault is stored; its keys follow.
/// The name is unique: repeating it answers the same vault, and starts again what had failed.
pub struct CreateVault;

#[async_trait]
impl Operation for CreateVault {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.CreateVault";
    type Request = admin::CreateVaultRequest;
    type Response = admin::CreateVaultResponse;

    async fn home(lookup: &HomeLookup<'_>, request: &Self::Request) -> Result<Home, Fault> {
        let name = rows::vault_name(&request.name);
        let named = lookup.services.load::<VaultId>(&name).await?;
        Ok(named.map_or(Home::AnyOrchestrator, |(vault, _)| Home::Vault(vault)))
    }

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let admin::CreateVaultRequest {
            name,
            threshold,
            signers,
            ecdsa_backend,
            replace,
            approvals,
        } = request;
        let approval = ApprovalRule::parse(approvals)?;
        let threshold = parse_threshold(threshold)?;
        let signers = parse_lines("signers", &signers)?;
        let ecdsa = parse_backend(call.services, ecdsa_backend.as_deref())?;
        let by = AuditActor::caller(call.caller);
        let (named, asked_by) = (signers.clone(), by.clone());
        let message = |reply| {
            directory::Msg::CreateVault(Box::new(NewVault {
                name,
                threshold,
                signers,
                ecdsa,
                approval,
                replace,
                by,
                reply,
            }))
        };
        let made = call.ask_directory(message).await??;
        let made: Box<Vault> = match made {
            VaultCreation::Vault(made) => made,
            VaultCreation::Other(id) => {
                let actor = call.vaults.vault(id).await?;
                let message = |reply| {
                    vault::Msg::ReplaceSigners(Box::new(KeyPlan {
                        threshold,
                        signers: named,
                        ecdsa,
                        by: asked_by,
                        reply,
                    }))
                };
                Box::new(call.ask(&actor, message).await??)
            }
        };
        let made = if made.failed_reason().is_none() {
            *made
        } else {
            let actor = call.vaults.vault(made.id).await?;
            let by = AuditActor::caller(call.caller);
            let message = |reply| vault::Msg::RetryKeygen(by, reply);
            call.ask(&actor, message).await??
        };
        Ok(admin::CreateVaultResponse {
            vault: Some(vault_message(call.services, &made).await?),
        })
    }
}

/// The scheme of a vault's ECDSA key. It is refused when this build lacks it: the signers' builds are
/// expected to have what the orchestrator's has.
fn parse_backend(services: &Services, name: Option<&str>) -> Result<Scheme, Fault> {
    let Some(name) = name else {
        return Ok(Scheme::default_of(Curve::Secp256k1));
    };
    let field = "ecdsaBackend";
    let scheme = Scheme::parse(name)
        .filter(|scheme| scheme.curve() == Curve::Secp256k1)
        .ok_or_else(|| Fault::field(field, "must be dkls23 or cggmp24"))?;
    let available = services.signers.check_backend(scheme);
    available.map_err(|fault| Fault::field(field, fault.message()))?;
    Ok(scheme)
}
