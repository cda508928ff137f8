//! Commands: what is checked before anything is stored, and which actor gets them.

use std::sync::Arc;

use covault_core::{
    fault::{Class, Fault},
    ids::{RequestId, VaultId},
    network::Network,
    payload::Payload,
    request::{Request, State},
    schema::wire,
    wallet::{Change, Status, check_labels},
};

use ractor::rpc::CallResult;

use crate::{
    audit::By,
    command_commit::CommandCommit,
    directory,
    gateway::{Caller, Inner, Receipt, answer, in_scope, operators_only, too_many, vault_in_scope},
    nodes, rows,
    rpc::ChainKey,
    tx_builder,
    vault::{self, AdmissionPermit, NewRequest, NewWallet},
    views,
    wallets::{self, Plan},
};

/// How often a request is looked for whose creation ended without an answer.
const LOOKS: u32 = 6;

impl Inner {
    pub(crate) async fn create_wallet(
        &self,
        caller: &Caller,
        request: wire::CreateWalletRequest,
        command_commit: CommandCommit,
    ) -> Result<wire::Wallet, Fault> {
        let network = Network::from_wire(request.network_type())
            .ok_or_else(|| Fault::field("networkType", "is required"))?;
        let wire::CreateWalletRequest {
            vault_uuid,
            callback_client_signer_public_key,
            network_type: _,
            r#ref: reference,
            name,
            require_address_proof,
        } = request;
        if vault_uuid.is_empty() {
            return Err(Fault::field("vaultUuid", "is required"));
        }
        let vault = vault_in_scope(caller, &vault_uuid)?;
        refuse_callback(Some(&callback_client_signer_public_key))?;
        check_labels(&name, &reference)?;
        if !reference.is_empty()
            && self
                .context
                .store
                .get(&rows::wallet_ref(&reference))
                .await?
                .is_some()
        {
            return Err(wallets::duplicate_ref());
        }
        let actor = self.vault(vault).await?;
        let message = |reply| {
            let plan = Plan {
                network,
                name,
                proven_reference: reference.clone(),
                reference,
                deposit: None,
                require_proof: require_address_proof,
                command_commit,
            };
            vault::Msg::CreateWallet(Box::new(NewWallet { plan, reply }))
        };
        answer(actor.call(message, self.context.call_timeout()).await)?
    }

    pub(crate) async fn create_request(
        &self,
        caller: &Caller,
        request: wire::CreateSigningRequestRequest,
        command_commit: CommandCommit,
    ) -> Result<wire::SigningRequest, Fault> {
        let context = &self.context;
        let wire::CreateSigningRequestRequest {
            notes,
            vault_uuid,
            callback_client_signer_public_key,
            broadcast_tx,
            r#type: kind,
        } = request;
        let kind =
            kind.ok_or_else(|| Fault::new(Class::Invalid, "exactly one payload kind is required"))?;
        let payload = Payload::parse(&kind)?;
        let vault = match vault_uuid.as_deref() {
            None | Some("") => None,
            Some(uuid) => Some(vault_in_scope(caller, uuid)?),
        };
        refuse_callback(callback_client_signer_public_key.as_deref())?;
        let from = format!("{}.from", payload.kind());
        let (wallet, wallet_version) = context
            .wallet_by(&rows::wallet_address(payload.from()))
            .await?
            .filter(|(wallet, _)| in_scope(caller, wallet.vault))
            .ok_or_else(|| Fault::field(&from, "is not the address of a wallet"))?;
        if vault.is_some_and(|vault| vault != wallet.vault) {
            return Err(Fault::field(&from, "is not a wallet of this vault"));
        }
        payload.check_wallet(wallet.network)?;
        payload.screen(&context.known)?;
        if wallet.status == Status::Archived {
            return Err(wallets::archived(from));
        }
        let broadcast = broadcast_tx.unwrap_or(true) && payload.may_broadcast(&context.known);
        let (vault, _) = context
            .vault(wallet.vault)
            .await?
            .ok_or_else(|| Fault::bug("a wallet without a vault"))?;
        let root = vault
            .root(wallet.network.curve())
            .ok_or_else(|| Fault::bug("a wallet without a root key"))?;
        let request = Request {
            id: context.new_request_id(),
            vault: wallet.vault,
            wallet: wallet.id,
            network: wallet.network,
            root_public_key: root.public_key.clone(),
            path: wallet.path,
            public_key: wallet.public_key,
            address: wallet.address,
            payload: payload.encode(),
            notes,
            token: caller.token,
            created_at_ms: context.now_ms(),
            state: State::Received,
        };
        let queries = tx_builder::queries(context, request.network, &payload);
        let asks = tx_builder::local_facts(context, &payload, &queries).is_none();
        if (asks || broadcast)
            && context
                .chains
                .get(request.network, payload.chain_id())
                .is_none()
        {
            return Err(no_node(&payload, request.network, asks));
        }
        let place = AdmissionPermit::new(context, &request).ok_or_else(too_many)?;
        let actor = self.vault(request.vault).await?;
        let account_queue = tx_builder::account_queue(&request, &payload, &queries);
        let (vault, id) = (request.vault, request.id);
        let message = |reply| {
            vault::Msg::Admit(Box::new(NewRequest {
                request,
                account_queue,
                broadcast,
                wallet_version,
                command_commit,
                place,
                reply,
            }))
        };
        let outcome = actor.call(message, context.call_timeout()).await;
        if matches!(outcome, Ok(CallResult::Timeout | CallResult::SenderError)) {
            self.look_again(vault, id);
        }
        answer(outcome)?
    }

    /// Changes name or state of a wallet. Repeating it changes nothing.
    pub(crate) async fn update_wallet(
        &self,
        caller: &Caller,
        request: wire::UpdateWalletRequest,
        command_commit: CommandCommit,
    ) -> Result<wire::Wallet, Fault> {
        let wire::UpdateWalletRequest {
            address,
            name,
            status,
        } = request;
        if address.is_empty() {
            return Err(Fault::field("address", "is required"));
        }
        let change = Change::parse(&name, &status)?;
        let wallet = views::by_address(&self.context, caller, &address).await?;
        let actor = self.vault(wallet.vault).await?;
        let message = |reply| vault::Msg::UpdateWallet(wallet.id, change, command_commit, reply);
        answer(actor.call(message, self.context.call_timeout()).await)?
    }

    /// Ends a request that has not reached signing.
    pub(crate) async fn reject_request(
        &self,
        caller: &Caller,
        uuid: &str,
        command_commit: CommandCommit,
    ) -> Result<(), Fault> {
        let id = uuid.parse()?;
        for _ in 0..LOOKS {
            let request = views::request(&self.context, caller, id).await?;
            if let Some(reason) = request.state.past_rejection() {
                return Err(not_rejected(reason));
            }
            let actor = self.vault(request.vault).await?;
            let message = |reply| vault::Msg::Reject(id, command_commit.clone(), reply);
            match actor.call(message, self.context.call_timeout()).await {
                // The request's actor ended before it read the message: the store says how.
                Ok(CallResult::SenderError) => {}
                outcome => return answer(outcome)?,
            }
        }
        Err(Fault::unavailable(
            "the request is starting again; look at it before trying again",
        ))
    }

    /// Has a request looked for whose creation ended without an answer: its first commit may
    /// come after its vault has looked for live requests.
    fn look_again(&self, vault: VaultId, request: RequestId) {
        let context = Arc::clone(&self.context);
        let directory = self.directory.clone();
        tokio::spawn(async move {
            for tries in 0..LOOKS {
                tokio::time::sleep(context.pause(tries)).await;
                let Some(directory) = directory.borrow().clone() else {
                    continue;
                };
                let message = |reply| directory::Msg::GetVault(vault, reply);
                if let Ok(CallResult::Success(Some(actor))) =
                    directory.call(message, context.call_timeout()).await
                {
                    let _ = actor.cast(vault::Msg::RestartDue(request));
                }
            }
        });
    }
}

impl Inner {
    pub(crate) async fn change_nodes(
        &self,
        caller: &Caller,
        change: nodes::Change,
    ) -> Result<Receipt, Fault> {
        operators_only(caller)?;
        nodes::change(&self.context, change, &By::caller(caller)).await?;
        Ok(Receipt::NodesChanged)
    }
}

/// Why a request is not rejected.
pub fn not_rejected(reason: &str) -> Fault {
    let sentence = format!("the request cannot be rejected: {reason}");
    Fault::new(Class::WrongState, sentence)
}

/// No client signer can take part yet; a request that names one must not be signed without it.
fn refuse_callback(key: Option<&str>) -> Result<(), Fault> {
    match key {
        None | Some("") => Ok(()),
        Some(_) => Err(Fault::field(
            "callbackClientSignerPublicKey",
            "client signers are not in this version; leave it empty",
        )),
    }
}

fn no_node(payload: &Payload, network: Network, asks: bool) -> Fault {
    let chain = ChainKey::of(network, payload.chain_id());
    let way_out = if asks {
        "the operator has to configure one"
    } else {
        "set broadcastTx to false to get the signed transaction"
    };
    let problem = format!("{}; {way_out}", chain.without_node());
    match chain.chain_id {
        Some(_) => Fault::field(format!("{}.chainId", payload.kind()), problem),
        None => Fault::field(payload.kind(), problem),
    }
}
