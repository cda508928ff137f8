//! Batch payments: made here, completed by a person in the console.

use covault_core::{
    audit::Chain,
    batch::{BatchPayment, Payment, State, check_labels},
    fault::{Class, Fault},
    ids::BatchId,
    schema::wire,
    wallet::Status,
};
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use crate::{
    audit::Note,
    command_commit::CommandCommit,
    context::Context,
    gateway::{Caller, Inner, in_scope},
    rows,
    store::{Batch, CommitError, Expect, Space},
    wallets,
};

impl Inner {
    /// Stores a batch that waits for a person, with the idempotency record. The commit is taken only
    /// as long as the wallet's row is in the version in which the wallet was found active.
    pub(crate) async fn create_batch(
        &self,
        caller: &Caller,
        request: wire::CreateBatchPaymentRequest,
        command_commit: CommandCommit,
    ) -> Result<wire::BatchPayment, Fault> {
        let context = &self.context;
        let wire::CreateBatchPaymentRequest {
            name,
            notes,
            r#type: kind,
        } = request;
        let notes = notes.unwrap_or_default();
        let kind =
            kind.ok_or_else(|| Fault::new(Class::Invalid, "exactly one batch kind is required"))?;
        let payment = Payment::parse(&kind)?;
        check_labels(&name, &notes)?;
        payment.screen(&context.known)?;
        let from = format!("{}.from", payment.kind());
        loop {
            let (wallet, version) = context
                .wallet_by(&rows::wallet_address(payment.from()))
                .await?
                .filter(|(wallet, _)| in_scope(caller, wallet.vault))
                .ok_or_else(|| Fault::field(&from, "is not the address of a wallet"))?;
            payment.check_wallet(wallet.network)?;
            if wallet.status == Status::Archived {
                return Err(wallets::archived(from));
            }
            let owner = context.of_vault(wallet.vault)?;
            let made = BatchPayment {
                id: context.new_batch_id(),
                vault: wallet.vault,
                wallet: wallet.id,
                name: name.clone(),
                notes: notes.clone(),
                payment: payment.encode(),
                token: caller.token,
                created_at_ms: context.now_ms(),
                state: State::Pending,
            };
            let shown = made.to_wire();
            let mut batch = Batch::new();
            batch.put(rows::batch(made.id), Expect::Absent, rows::encode(&made)?);
            batch.check(rows::wallet(wallet.id), Expect::Version(version));
            Note::new(
                command_commit.by(),
                format_args!("batch:{}", made.id),
                "BatchMade",
            )
            .fact("kind", payment.kind())
            .fact("wallet", wallet.id)
            .fact("paymentSha256", hex::encode(Sha256::digest(&made.payment)))
            .add_to(&mut batch, Chain::Vault(made.vault), made.created_at_ms)?;
            command_commit.add_to(&mut batch, || shown.encode_to_vec(), made.created_at_ms)?;
            match owner.store.commit(batch).await {
                Ok(()) => return Ok(shown),
                // The wallet got another name, or was archived, just now.
                Err(CommitError::Conflict(key)) if key.space == Space::Wallet => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// A batch, when the caller may see it.
///
/// # Errors
/// `Invalid uuid`.
pub async fn load(context: &Context, caller: &Caller, id: BatchId) -> Result<BatchPayment, Fault> {
    context
        .load::<BatchPayment>(&rows::batch(id))
        .await?
        .map(|(batch, _)| batch)
        .filter(|batch| in_scope(caller, batch.vault))
        .ok_or_else(Fault::invalid_uuid)
}
