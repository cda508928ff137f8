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
use serde::de::DeserializeOwned;

use crate::{
    commands::caller::{Caller, in_scope},
    operations::{Home, HomeLookup},
    requests::replacing::replaced_by,
    services::Services,
    store::{
        Key, RowMap, batch_rows,
        rows::{self, ReplacementRow, SimulationRow, TransactionRow},
    },
    vaults::management,
};

/// What an operator did to a vault, as responses show it, when the caller may see it.
async fn management_request(
    services: &Services,
    caller: &Caller,
    id: RequestId,
) -> Result<wire::SigningRequest, Fault> {
    let shown = management::shown(services, id).await?;
    let shown = shown.filter(|(vault, _)| in_scope(caller, *vault));
    shown
        .map(|(_, shown)| shown)
        .ok_or_else(Fault::invalid_uuid)
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
    match services.request(id).await? {
        Some((request, _)) if in_scope(caller, request.vault) => Ok(request),
        Some(_) => Err(Fault::invalid_uuid()),
        None => {
            management_request(services, caller, id).await?;
            Err(Fault::new(
                Class::WrongState,
                "an operator made this request on the command line; it is not executed, approved or rejected here",
            ))
        }
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

/// What a UUID names, as the caller may see it, with all that the store has of it.
///
/// # Errors
/// `Invalid uuid`, and when the store cannot be read.
pub async fn shown(
    services: &Services,
    caller: &Caller,
    id: RequestId,
) -> Result<wire::SigningRequest, Fault> {
    // One question for all of it: few requests replace another one.
    let (own, beside) = (rows::request(id), RowsBeside::of(id, id));
    let keys = [vec![own.clone()], beside.0.to_vec()].concat();
    let found = services.store.get_all(&keys).await?;
    let Some(row) = found.get(&own) else {
        return management_request(services, caller, id).await;
    };
    let request: SigningRequest = rows::decode(&row.value)?;
    if !in_scope(caller, request.vault) {
        return Err(Fault::invalid_uuid());
    }
    if request.first_of_place() == id {
        return beside.shown(services, caller, &request, &found);
    }
    shown_request(services, caller, &request).await
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
    let beside = RowsBeside::of(request.id, request.first_of_place());
    let found = services.store.get_all(&beside.0).await?;
    beside.shown(services, caller, request, &found)
}

/// Where what else there is of a request stands: its simulation, where its transaction is, what replaces it, and the batch
/// payment that it belongs to.
struct RowsBeside([Key; 4]);

impl RowsBeside {
    /// Of a request, and of the first one whose transaction it replaces: itself, where it replaces none.
    fn of(id: RequestId, first: RequestId) -> Self {
        Self([
            rows::simulation(id),
            rows::transaction(id),
            rows::replacement_row(first),
            batch_rows::request_batch(first),
        ])
    }

    fn shown(
        &self,
        services: &Services,
        caller: &Caller,
        request: &SigningRequest,
        found: &RowMap,
    ) -> Result<wire::SigningRequest, Fault> {
        let [simulation, transaction, replacements, batch] = &self.0;
        let simulation = decoded::<SimulationRow>(found, simulation)?;
        let mut message = request_message(
            services,
            caller,
            request,
            simulation.map(|row| row.json),
            decoded(found, transaction)?,
            decoded(found, replacements)?.as_ref(),
        );
        if let Some(batch) = decoded::<BatchId>(found, batch)? {
            message.batch_payment_uuid = batch.to_string();
        }
        Ok(message)
    }
}

fn decoded<T: DeserializeOwned>(found: &RowMap, key: &Key) -> Result<Option<T>, Fault> {
    let row = found.get(key);
    row.map(|row| rows::decode(&row.value)).transpose()
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
