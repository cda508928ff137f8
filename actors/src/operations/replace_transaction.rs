use async_trait::async_trait;
use covault_core::{
    amount::parse_u128,
    fault::{Class, Fault},
    ids::RequestId,
    networks::Replacement,
    request::check_notes,
    schema::wire::{self, replace_transaction_request::Action},
    wallet::WalletStatus,
};

use super::{Home, HomeLookup, Operation, OperationCall, lookup::request};
use crate::{
    requests::replacing::{self, ReplacementWish},
    vaults::{
        admission::{ProposalContent, SigningProposal, admit},
        wallets,
    },
};

/// Makes a signing request whose transaction takes the place of another one's. Answers when it is stored.
pub struct ReplaceTransaction;

#[async_trait]
impl Operation for ReplaceTransaction {
    const METHOD: &'static str = "mpcvault.platform.v1.PlatformAPI.ReplaceTransaction";
    type Request = wire::ReplaceTransactionRequest;
    type Response = wire::ReplaceTransactionResponse;

    async fn home(lookup: &HomeLookup<'_>, message: &Self::Request) -> Result<Home, Fault> {
        let Ok(id) = message.uuid.parse::<RequestId>() else {
            return Ok(Home::AnyProcess);
        };
        let request = lookup.services.request(id).await?;
        Ok(request.map(|(request, _)| request.vault).into())
    }

    async fn run(call: OperationCall<'_>, message: Self::Request) -> Result<Self::Response, Fault> {
        let wire::ReplaceTransactionRequest {
            uuid,
            action,
            most_fee,
            notes,
        } = message;
        check_notes(notes.as_deref())?;
        let services = call.services;
        let request = request(services, call.caller, uuid.parse()?).await?;
        let how = match Action::try_from(action) {
            Ok(Action::SpeedUp) => Replacement::SpeedUp,
            Ok(Action::Cancel) => Replacement::Cancel,
            Ok(Action::Unspecified) | Err(_) => {
                let problem = "must be ACTION_SPEED_UP or ACTION_CANCEL";
                return Err(Fault::field("action", problem));
            }
        };
        let most_fee = most_fee.as_deref().map(parse_u128).transpose();
        let most_fee = most_fee.map_err(|problem| Fault::field("mostFee", problem))?;
        let (wallet, wallet_version) = services.wallet(request.wallet).await?;
        if wallet.status == WalletStatus::Archived {
            return Err(wallets::archived("uuid"));
        }
        let wish = ReplacementWish {
            how,
            most_fee,
            at_block: None,
        };
        let plan = replacing::plan(services, &request, wish).await?;
        let proposal = SigningProposal {
            content: ProposalContent::Replacement(plan),
            wallet,
            wallet_version,
            notes,
            token: call.caller.token,
            // Who decided about the one decides about the other.
            client_signer: request.consent.rule.client_signer(),
            command_commit: call.command_commit.clone(),
        };
        // The client gave no payload whose fields could be named.
        let made = admit(call.vaults, proposal).await.map_err(|fault| {
            if *fault.class() == Class::Invalid {
                Fault::field("uuid", fault.message())
            } else {
                fault
            }
        });
        Ok(wire::ReplaceTransactionResponse {
            signing_request: Some(made?),
            error: None,
        })
    }
}
