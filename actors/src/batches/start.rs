//! How the next signing request of a batch is made.

use covault_core::{
    amount::{U256, parse_u256},
    batch::{
        BatchEvent, BatchPayload, BatchPayment, BatchProgress, BatchRequest, BatchStage, BatchState,
    },
    fault::{Class, Fault},
    ids::BatchId,
    networks::Network,
    order::NodeId,
    wallet::Wallet,
};

use crate::{
    chain_rpc::ChainKey,
    commands::command_commit::CommandCommit,
    requests::batch_claim::{BatchClaim, allowance_row},
    services::Services,
    vaults::{
        admission::{ProposalContent, SigningProposal, admit},
        vault_actors::VaultActors,
    },
};

/// A batch as it was read.
pub struct LoadedBatch<'a> {
    /// It.
    pub batch: &'a BatchPayment,
    /// The version of its row.
    pub version: u64,
    /// The requests that it has made.
    pub progress: &'a BatchProgress,
    /// The client signer that decides about its requests.
    pub client_signer: Option<NodeId>,
}

/// Makes a request of a batch. Its first commit has the next state of the batch, so that of two at the same time one is
/// made.
///
/// # Errors
/// Any class; [`Class::WrongState`] also when the batch has changed in between.
pub async fn make(
    vaults: &VaultActors,
    read: LoadedBatch<'_>,
    stage: BatchStage,
    event: impl FnOnce(BatchRequest) -> BatchEvent,
    command_commit: CommandCommit,
) -> Result<(), Fault> {
    let services = &vaults.services;
    let LoadedBatch {
        batch,
        version,
        progress,
        client_signer,
    } = read;
    let payment = BatchPayload::decode(&batch.payment).map_err(Fault::bug)?;
    let payload = payment.payload(stage, contract(services, &payment))?;
    let request = progress.next_request(batch.id, stage);
    let now_ms = services.now_ms();
    let claim = BatchClaim::new(batch, version, event(request), command_commit.by(), now_ms)?;
    let (wallet, wallet_version) = services.hot_wallet(batch.wallet).await?;
    if let (BatchState::Approved(_) | BatchState::Failed { .. }, Some(signer)) =
        (&batch.state, client_signer)
    {
        check_still_decides(services, &wallet, signer).await?;
    }
    let what = match stage {
        BatchStage::ResetAllowance => "takes back the allowance of the batch contract",
        BatchStage::Allowance => "lets the batch contract take the total",
        BatchStage::Send => "pays",
    };
    let mut before = progress.requests.iter().rev();
    let before = before.find(|it| it.stage == BatchStage::Send && stage == BatchStage::Send);
    let before = before.map_or(String::new(), |it| {
        // Whoever approves is the last who can see that a chain's nodes have lied.
        format!(
            ". Request {} was to pay the same before: look on the chain whether its recipients were paid, before you approve \
             this one",
            it.request
        )
    });
    let proposal = SigningProposal {
        content: ProposalContent::BatchRequest {
            payload,
            request: request.request,
            claim,
        },
        wallet,
        wallet_version,
        notes: Some(format!("batch payment {}: {what}{before}", batch.id)),
        token: batch.token,
        client_signer,
        command_commit,
    };
    admit(vaults, proposal).await?;
    Ok(())
}

/// Refuses to go on where the client signer with which a batch was approved decides no longer: nobody decides in its place.
async fn check_still_decides(
    services: &Services,
    wallet: &Wallet,
    signer: NodeId,
) -> Result<(), Fault> {
    let Some((vault, _)) = services.hot_vault(wallet.vault).await? else {
        return Ok(());
    };
    let decides = vault.check_client_signer(wallet.network.curve(), signer);
    decides.map_err(|fault| {
        let sentence = format!(
            "{}: the batch was approved for this client signer; have the vault's rule name it again and resume the batch, or \
             make a new one",
            fault.message()
        );
        Fault::new(Class::Invalid, sentence)
    })
}

/// What has to be done first for a batch, as the chain is now.
///
/// # Errors
/// [`Class::WrongState`] when another batch of the same token is on its way, or no batch contract is configured;
/// [`Class::Unavailable`] when the chain's nodes do not answer.
pub async fn first_stage(services: &Services, batch: &BatchPayment) -> Result<BatchStage, Fault> {
    let payment = BatchPayload::decode(&batch.payment).map_err(Fault::bug)?;
    if payment.allowance_token().is_none() {
        return Ok(BatchStage::Send);
    }
    // Both would set one allowance. The first commit looks again.
    if let Some(key) = allowance_row(batch)
        && let Some((other, _)) = services.load::<BatchId>(&key).await?
        && other != batch.id
    {
        let sentence =
            format!("batch {other} pays the same token from the wallet; wait until it has ended");
        return Err(Fault::new(Class::WrongState, sentence));
    }
    let allowance = allowance(services, &payment).await?;
    Ok(payment.first_stage(allowance))
}

/// How much of a batch's token the batch contract may take of its wallet; 0 where none is needed.
///
/// # Errors
/// As [`first_stage`].
pub async fn allowance(services: &Services, payment: &BatchPayload) -> Result<U256, Fault> {
    let Some(token) = payment.allowance_token() else {
        return Ok(U256::ZERO);
    };
    let chain = ChainKey::of(Network::Evm, payment.chain_id());
    // It says which setting is missing.
    payment.payload(BatchStage::Send, contract(services, payment))?;
    let contract = contract(services, payment).unwrap_or_default();
    let client = services.chains.get(Network::Evm, payment.chain_id());
    let client = client.ok_or_else(|| Fault::unavailable(chain.without_node()))?;
    let said = client.allowance(payment.from(), token, contract).await;
    let said = said.map_err(|error| Fault::unavailable(error.into_reason()))?;
    parse_u256(&said).map_err(Fault::bug)
}

/// The batch contract that pays a batch; `None` where none is needed, or configured.
pub(crate) fn contract<'a>(services: &'a Services, payment: &BatchPayload) -> Option<&'a str> {
    let chain = ChainKey::of(payment.network(), payment.chain_id());
    services.chains.batch_contract(chain)
}
