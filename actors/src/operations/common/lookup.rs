//! What several operations look up: requests, wallets and vaults that the caller may see.

use covault_core::{
    fault::{Class, Fault},
    ids::{BatchId, RequestId, VaultId},
    networks::Network,
    order::NodeId,
    request::SigningRequest,
    schema::wire,
    token::TokenAccess,
    wallet::{Wallet, vault::CLIENT_SIGNER},
};

use crate::{
    commands::caller::{Caller, in_scope},
    operations::{Home, HomeLookup},
    requests::{replacing::replaced_by, simulations},
    services::Services,
    store::{
        Key, batch_rows,
        rows::{self, ReplacementRow, TransactionRow},
    },
    vaults::management,
};

/// What a request's UUID names.
pub enum FoundRequest {
    /// Something that is signed.
    Request(Box<SigningRequest>),
    /// What an operator did to a vault, as responses show it.
    Management(Box<wire::SigningRequest>),
}

/// What a UUID names, when the caller may see it.
pub async fn find(
    services: &Services,
    caller: &Caller,
    id: RequestId,
) -> Result<FoundRequest, Fault> {
    if let Some((request, _)) = services.request(id).await? {
        return if in_scope(caller, request.vault) {
            Ok(FoundRequest::Request(Box::new(request)))
        } else {
            Err(Fault::invalid_uuid())
        };
    }
    let shown = management::shown(services, id).await?;
    let shown = shown.filter(|(vault, _)| in_scope(caller, *vault));
    let (_, shown) = shown.ok_or_else(Fault::invalid_uuid)?;
    Ok(FoundRequest::Management(Box::new(shown)))
}

/// A request that is signed, when the caller may see it.
///
/// # Errors
/// [`Class::WrongState`] for what an operator did to a vault: there is nothing to sign.
pub async fn request(
    services: &Services,
    caller: &Caller,
    id: RequestId,
) -> Result<SigningRequest, Fault> {
    match find(services, caller, id).await? {
        FoundRequest::Request(request) => Ok(*request),
        FoundRequest::Management(_) => Err(Fault::new(
            Class::WrongState,
            "an operator made this request on the command line; it is not executed, approved or rejected here",
        )),
    }
}

/// The home of a command about a request: where its vault runs.
pub async fn vault_of_request(lookup: &HomeLookup<'_>, uuid: &str) -> Result<Home, Fault> {
    let Ok(id) = uuid.parse::<RequestId>() else {
        return Ok(Home::AnyProcess);
    };
    let request = lookup.services.request(id).await?;
    Ok(request.map(|(request, _)| request.vault).into())
}

/// A request as the caller may see it, with what its transaction would do, where it is on the chain, and what was made
/// to replace it.
pub fn request_message(
    services: &Services,
    caller: &Caller,
    request: &SigningRequest,
    simulation: Option<Vec<u8>>,
    transaction: Option<TransactionRow>,
    replacements: Option<&ReplacementRow>,
) -> wire::SigningRequest {
    let calls = &services.settings.calls;
    let transaction = transaction.map(|row| row.state);
    let simulation = simulation.unwrap_or_default();
    let now_ms = services.now_ms();
    let mut message = request.to_wire(calls, simulation, transaction.as_ref(), now_ms);
    if let Some(replacements) = replacements {
        message.replaced_by_uuids = replaced_by(replacements, request);
    }
    if caller.access == TokenAccess::ReadOnly && request.hash_is_signature() {
        message.tx_hash.clear();
    }
    message
}

/// A request as the caller may see it, with all that the store has of it.
///
/// # Errors
/// When the store cannot be read.
pub async fn shown_request(
    services: &Services,
    caller: &Caller,
    request: &SigningRequest,
) -> Result<wire::SigningRequest, Fault> {
    let simulation = simulations::stored(services, request.id).await?;
    let transaction = services.load(&rows::transaction(request.id)).await?;
    let transaction = transaction.map(|(row, _)| row);
    let replacements = services
        .load(&rows::replacement_row(request.first_of_place()))
        .await?;
    let replacements = replacements.map(|(row, _)| row);
    let mut message = request_message(
        services,
        caller,
        request,
        simulation,
        transaction,
        replacements.as_ref(),
    );
    let of = services.load::<BatchId>(&batch_of(request)).await?;
    if let Some((batch, _)) = of {
        message.batch_payment_uuid = batch.to_string();
    }
    Ok(message)
}

/// Where the batch payment stands that a request, or the one whose transaction it replaces, was made for.
pub fn batch_of(request: &SigningRequest) -> Key {
    batch_rows::request_batch(request.first_of_place())
}

/// The wallet of an address, in any form that its network takes, when the caller may see it.
pub async fn wallet_by_address(
    services: &Services,
    caller: &Caller,
    text: &str,
) -> Result<Wallet, Fault> {
    let canonical = Network::ALL
        .iter()
        .find_map(|network| network.rules().parse_address(text).ok())
        .ok_or_else(|| Fault::field("address", "is not an address of any network"))?;
    let wallet = services
        .wallet_by(&rows::wallet_address(&canonical))
        .await?;
    visible(caller, wallet, "address")
}

/// The wallet, when there is one and the caller may see it.
pub fn visible(
    caller: &Caller,
    wallet: Option<(Wallet, u64)>,
    field: &str,
) -> Result<Wallet, Fault> {
    wallet
        .map(|(wallet, _)| wallet)
        .filter(|wallet| in_scope(caller, wallet.vault))
        .ok_or_else(|| Fault::field(field, "is not that of a wallet"))
}

/// The vault of the wallet of an address.
pub async fn vault_of_address(
    services: &Services,
    address: &str,
) -> Result<Option<VaultId>, Fault> {
    let wallet = services
        .hot_wallet_by(&rows::wallet_address(address))
        .await?;
    Ok(wallet.map(|(wallet, _)| wallet.vault))
}

/// The client signer that a call names, if it does.
pub fn client_signer(key: Option<&str>) -> Result<Option<NodeId>, Fault> {
    let key = key.filter(|key| !key.is_empty());
    let signer = key.map(NodeId::parse_openssh_line).transpose();
    signer.map_err(|fault| fault.at(CLIENT_SIGNER))
}
