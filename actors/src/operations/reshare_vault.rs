use async_trait::async_trait;
use covault_core::{fault::Fault, schema::admin, scheme::Scheme};

use super::{
    Home, HomeLookup, Operation, OperationCall,
    admin::{parse_lines, parse_threshold},
};
use crate::{
    audit::AuditActor,
    vaults::vault::{self, ReshareMsg, ReshareRequest, vault_message},
};

/// Makes new shares of a vault's keys: refresh, reshare, repair. Answers when the order is stored; the
/// keys say how it goes. Repeating it while it is in progress changes nothing.
pub struct ReshareVault;

#[async_trait]
impl Operation for ReshareVault {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.ReshareVault";
    type Request = admin::ReshareVaultRequest;
    type Response = admin::ReshareVaultResponse;

    async fn home(_: &HomeLookup<'_>, request: &Self::Request) -> Result<Home, Fault> {
        Ok(request.vault_uuid.parse().ok().into())
    }

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let admin::ReshareVaultRequest {
            vault_uuid,
            threshold,
            signers,
            lost,
            schemes,
        } = request;
        let to = match threshold {
            Some(_) if signers.is_empty() => {
                return Err(Fault::field("signers", "are required with threshold"));
            }
            Some(threshold) => Some((
                parse_threshold(threshold)?,
                parse_lines("signers", &signers)?,
            )),
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
        let request = ReshareRequest {
            to,
            lost: parse_lines("lost", &lost)?,
            schemes: schemes.collect::<Result<_, _>>()?,
        };
        let by = AuditActor::caller(call.caller);
        let actor = call.vaults.vault(vault_uuid.parse()?).await?;
        let message = |reply| vault::Msg::Reshare(ReshareMsg::Want(Box::new(request), by, reply));
        let vault = call.ask(&actor, message).await??;
        Ok(admin::ReshareVaultResponse {
            vault: Some(vault_message(call.services, &vault).await?),
        })
    }
}
