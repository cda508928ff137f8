use async_trait::async_trait;
use covault_core::{
    audit::AuditChain,
    deposit::{
        AddressWatch, WatchCall,
        transfer::{Account, AddressOwner},
    },
    fault::Fault,
    ids::WatchId,
    port::random_16,
    schema::wire,
};

use super::{Operation, OperationCall};
use crate::{
    audit::AuditNote,
    deposits::{addresses, route},
    store::{Batch, CommitError, Key, KeySpace, Precondition, rows},
};

/// How often a call begins again while others add the same address.
const TRIES: usize = 8;

/// The watch of (token, address): makes it, or finds it.
pub struct AddWatchAddress;

#[async_trait]
impl Operation for AddWatchAddress {
    const METHOD: &'static str = "mpcvault.platform.v1.SweepAPI.AddWatchAddress";
    type Request = wire::AddWatchAddressRequest;
    type Response = wire::AddWatchAddressResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let watched = WatchCall::parse(&request)?;
        let services = call.services;
        let key = rows::watch(call.caller.token, watched.network, &watched.address);
        let mut made = None;
        // Another call for the address may be faster: then it is read again.
        for _ in 0..TRIES {
            made = match services.load::<AddressWatch>(&key).await? {
                Some((watch, _)) => Some(watch),
                None => make(&call, &watched, &key).await?,
            };
            if made.is_some() {
                break;
            }
        }
        let watch = made.ok_or_else(|| {
            Fault::unavailable("the address is being added by other calls; try again")
        })?;
        Ok(wire::AddWatchAddressResponse {
            uuid: watch.id.to_string(),
            address: watched.address,
            network: watched.network.name().to_owned(),
        })
    }
}

/// Makes the watch; `None` when another call for the address was faster.
async fn make(
    call: &OperationCall<'_>,
    watched: &WatchCall,
    key: &Key,
) -> Result<Option<AddressWatch>, Fault> {
    let services = call.services;
    let route = route(services, call.caller.token, watched.network).await?;
    route.check_webhook()?;
    let noted = call.noted_chains.note_all(services, watched.network);
    noted.await?;
    let watch = AddressWatch {
        id: WatchId::from_random(random_16(&*services.entropy)),
        created_at_ms: services.now_ms(),
    };
    let mut batch = Batch::new();
    batch.put(key.clone(), Precondition::Absent, rows::encode(&watch)?);
    let account = Account::parse(watched.network, &watched.address)
        .ok_or_else(|| Fault::bug("a watched address cannot be read"))?;
    let owner = AddressOwner {
        token: call.caller.token,
        reference: String::new(),
        wallet: None,
        since_ms: watch.created_at_ms,
    };
    addresses::add(services, &mut batch, watched.network, account, owner).await?;
    let subject = format!("watch:{}", watch.id);
    AuditNote::new(call.command_commit.by(), subject, "WatchAdded")
        .fact("network", watched.network.name())
        .fact("address", &watched.address)
        .add_to(&mut batch, AuditChain::Service, watch.created_at_ms)?;
    call.command_commit.demand(&mut batch);
    match services.store.commit(batch).await {
        Ok(()) => Ok(Some(watch)),
        Err(CommitError::Conflict(Key {
            space: KeySpace::Watch | KeySpace::DepositAddress,
            ..
        })) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
