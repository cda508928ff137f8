use async_trait::async_trait;
use covault_core::{
    audit::AuditChain,
    batch::{BatchPayload, BatchPayment, BatchState, check_labels},
    fault::{Class, Fault, FaultCode},
    schema::wire,
    wallet::WalletStatus,
};
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use super::{Home, HomeLookup, Operation, OperationCall, lookup::vault_of_address};
use crate::{
    audit::AuditNote,
    commands::caller::in_scope,
    store::{Batch, CommitError, KeySpace, Precondition, batch_rows, rows},
    vaults::wallets,
};

/// Stores a batch payment that a person completes. The commit is taken only as long as the wallet's
/// row is in the version in which the wallet was found active.
pub struct CreateBatchPayment;

#[async_trait]
impl Operation for CreateBatchPayment {
    const METHOD: &'static str = "mpcvault.platform.v1.PlatformAPI.CreateBatchPayment";
    type Request = wire::CreateBatchPaymentRequest;
    type Response = wire::CreateBatchPaymentResponse;

    async fn home(lookup: &HomeLookup<'_>, request: &Self::Request) -> Result<Home, Fault> {
        let payment = request.r#type.as_ref().map(BatchPayload::parse);
        Ok(match payment {
            Some(Ok(payment)) => vault_of_address(lookup.services, payment.from())
                .await?
                .into(),
            _ => Home::AnyProcess,
        })
    }

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let services = call.services;
        let wire::CreateBatchPaymentRequest {
            name,
            notes,
            r#type: kind,
        } = request;
        let notes = notes.unwrap_or_default();
        let kind = kind.ok_or_else(|| {
            Fault::new(Class::Invalid, "exactly one batch kind is required")
                .with_code(FaultCode::Payload)
        })?;
        let payment = BatchPayload::parse(&kind)?;
        check_labels(&name, &notes)?;
        payment.screen(&services.known)?;
        let from = format!("{}.from", payment.kind());
        loop {
            let (wallet, version) = services
                .hot_wallet_by(&rows::wallet_address(payment.from()))
                .await?
                .filter(|(wallet, _)| in_scope(call.caller, wallet.vault))
                .ok_or_else(|| Fault::field(&from, "is not the address of a wallet"))?;
            payment.check_wallet(wallet.network)?;
            if wallet.status == WalletStatus::Archived {
                return Err(wallets::archived(from));
            }
            let owner = services.for_vault(wallet.vault)?;
            let made = BatchPayment {
                id: services.new_batch_id(),
                vault: wallet.vault,
                wallet: wallet.id,
                name: name.clone(),
                notes: notes.clone(),
                payment: payment.encode(),
                token: call.caller.token,
                created_at_ms: services.now_ms(),
                state: BatchState::Pending,
            };
            let response = wire::CreateBatchPaymentResponse {
                batch_payment: Some(made.to_wire()),
                error: None,
            };
            let mut batch = Batch::new();
            batch.put(
                rows::batch(made.id),
                Precondition::Absent,
                rows::encode(&made)?,
            );
            let index = batch_rows::batch_index(made.vault, made.created_at_ms, made.id);
            batch.put(index, Precondition::Any, rows::encode(&())?);
            batch.check(rows::wallet(wallet.id), Precondition::Version(version));
            AuditNote::new(
                call.command_commit.by(),
                format_args!("batch:{}", made.id),
                "BatchMade",
            )
            .fact("kind", payment.kind())
            .fact("wallet", wallet.id)
            .fact("paymentSha256", hex::encode(Sha256::digest(&made.payment)))
            .add_to(
                &mut batch,
                AuditChain::Vault(made.vault),
                made.created_at_ms,
            )?;
            call.command_commit.add_to(
                &mut batch,
                || response.encode_to_vec(),
                made.created_at_ms,
            )?;
            match owner.store.commit(batch).await {
                Ok(()) => return Ok(response),
                // The wallet was renamed or archived in between.
                Err(CommitError::Conflict(key)) if key.space == KeySpace::Wallet => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
